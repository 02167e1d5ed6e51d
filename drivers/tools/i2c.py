"""The tools i2c.read, i2c.write, i2c.transfer and i2c.scan (design §4): each step is one bus transaction.

Owns the translation of args into messages; refuses to know what any device's registers mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.drivers.i2c import FIRST_ADDR, LAST_ADDR, MAX_LENGTH, Message, Read, Write, limit_ms
from hearth.drivers.tools import schemas
from hearth.drivers.tools.schemas import decode, encode, number
from hearth.tools import Args, StepContext, Tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.drivers.boards import Board

_TIMEOUT_MS = 10_000
_SCAN = (Read(LAST_ADDR - FIRST_ADDR + 1),)
"""As long as a scan: one byte for each address."""


async def _transfer(ctx: StepContext, addr: int, messages: list[Message]) -> bytes:
    data: bytes = await ctx.transact(lambda driver: driver.transfer(addr, messages), limit_ms=limit_ms(messages))
    return data


async def read(ctx: StepContext, args: Args) -> Mapping[str, Any]:
    """i2c.read: the register's number and the read are one transaction, with a repeated start between them."""
    messages: list[Message] = [Read(int(args["len"]))]
    if "reg" in args:
        messages.insert(0, Write(bytes((number(args["reg"]),))))
    return {"data": encode(await _transfer(ctx, number(args["addr"]), messages))}


async def write(ctx: StepContext, args: Args) -> Mapping[str, Any]:
    """i2c.write: one message, the register's number first."""
    data = decode(args["data"])
    register = bytes((number(args["reg"]),)) if "reg" in args else b""
    await _transfer(ctx, number(args["addr"]), [Write(register + data)])
    return {"written": len(data)}


async def transfer(ctx: StepContext, args: Args) -> Mapping[str, Any]:
    """i2c.transfer: a write, then a read if there is one, in one transaction."""
    messages: list[Message] = [Write(decode(args["write"]))]
    length = int(args.get("read_len", 0))
    if length:
        messages.append(Read(length))
    return {"data": encode(await _transfer(ctx, number(args["addr"]), messages))}


async def scan(ctx: StepContext, args: Args) -> Mapping[str, Any]:
    """i2c.scan."""
    found = await ctx.transact(lambda driver: driver.scan(), limit_ms=limit_ms(_SCAN))
    return {"bus": int(args["bus"]), "addresses": found, "hex": [f"{addr:#04x}" for addr in found]}


def i2c_tools(board: Board) -> list[Tool]:
    """The i2c tools for a board, in the order of design §4."""

    def bus_of(args: Args) -> str:
        return board.i2c_bus(args["bus"])

    numbers = [spec.bus for spec in board.profile.i2c if f"i2c:{spec.bus}" in board.drivers]
    which = ", ".join(str(number) for number in numbers) or "none"
    bus = schemas.integer(f"the bus number N of /dev/i2c-N, one of: {which}", 0, 255)
    where = {"bus": bus, "addr": schemas.address()}
    reg = schemas.register("the register to start at; left out: wherever the device's pointer is")
    return [
        Tool(
            name="i2c.read",
            risk_level=0,
            timeout_ms=_TIMEOUT_MS,
            description=(
                "Read `len` bytes from an I2C device, starting at register `reg` (8-bit) if one is given, "
                "in one transaction. The bytes come in the order of the wire, as base64. An address that "
                "nobody answers at is an error with effect none."
            ),
            params_schema=schemas.args(
                {**where, "reg": reg, "len": schemas.integer("how many bytes", 1, MAX_LENGTH)},
                required=["bus", "addr", "len"],
            ),
            result_schema=schemas.result({"data": schemas.base64_data("what was read", least=1)}),
            capability="CAP_I2C_READ",
            bus=bus_of,
            run=read,
        ),
        Tool(
            name="i2c.write",
            risk_level=2,
            timeout_ms=_TIMEOUT_MS,
            description=(
                "Write bytes to an I2C device, to register `reg` (8-bit) and those after it if one is "
                "given, in one transaction. There is no rollback. An EEPROM wraps within its page (8 bytes "
                "on a 24C02): write page by page."
            ),
            params_schema=schemas.args(
                {
                    **where,
                    "reg": schemas.register("the register to start at; left out: the data alone"),
                    "data": schemas.base64_data("what to write", least=1),
                },
                required=["bus", "addr", "data"],
            ),
            result_schema=schemas.result({"written": schemas.integer("data bytes written", 1, MAX_LENGTH)}),
            capability="CAP_I2C_RW",
            bus=bus_of,
            run=write,
        ),
        Tool(
            name="i2c.transfer",
            risk_level=2,
            timeout_ms=_TIMEOUT_MS,
            description=(
                "Write bytes to an I2C device and then read `read_len` bytes from it, in one transaction "
                "with a repeated start: for devices with 16-bit registers or with commands. `read_len` 0 "
                "reads nothing."
            ),
            params_schema=schemas.args(
                {
                    **where,
                    "write": schemas.base64_data("what to write first", least=1),
                    "read_len": schemas.integer("how many bytes to read then", 0, MAX_LENGTH, default=0),
                },
                required=["bus", "addr", "write"],
            ),
            result_schema=schemas.result({"data": schemas.base64_data("what was read")}),
            capability="CAP_I2C_RW",
            bus=bus_of,
            run=transfer,
        ),
        Tool(
            name="i2c.scan",
            risk_level=1,
            timeout_ms=_TIMEOUT_MS,
            description=(
                "Find the addresses from 0x08 to 0x77 that acknowledge on an I2C bus. It addresses every "
                "one of them, which a few devices take amiss: hw.i2c.list tells what is known to be there "
                "without asking."
            ),
            params_schema=schemas.args({"bus": bus}, required=["bus"]),
            result_schema=schemas.result(
                {
                    "bus": bus,
                    "addresses": schemas.listed("ascending", {"type": "integer"}),
                    "hex": schemas.listed("the same as strings", {"type": "string"}),
                }
            ),
            capability="CAP_I2C_READ",
            bus=bus_of,
            run=scan,
            default_rate="5/s",
        ),
    ]
