"""The tools hw.i2c.list, i2c.read, i2c.write, i2c.transfer and i2c.scan: each step is one bus transaction.

They translate args into messages; they do not know any device's registers. Their schemas are flat, so the checks of one
arg against another (a ten-bit address, a register's width, bytes in one of three forms) are in `bus`, before anything
runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hearth.drivers import schemas
from hearth.drivers.board import BoardDriver, list_tool, listing
from hearth.drivers.i2c.driver import (
    ADDRESSES,
    DANGEROUS,
    FIRST_ADDR,
    LAST_ADDR,
    LAST_SEVEN_BIT,
    LAST_TEN_BIT,
    MAX_LENGTH,
    MAX_MESSAGES,
    I2cDriver,
    Scan,
)
from hearth.drivers.registers import Message, Read, Write
from hearth.drivers.schemas import Schema, encode, number, only_one, read_bytes, shown_bytes, wrong
from hearth.tools import Args, Drive, Preview, StepContext, Tool, Use, i2c_use

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.i2c.driver import Addresses
    from hearth.drivers.i2c.spec import DeviceSpec

_TIMEOUT_MS = 10_000
_SCAN: Sequence[Message] = [Read(1) for _ in ADDRESSES]
"""Upper bound on the length of a scan."""

_HEX_TEN_BIT = r"^0[xX]0*(?:[0-9a-fA-F]{1,2}|[1-3][0-9a-fA-F]{2})$"
_HEX_WORD = r"^0[xX][0-9a-fA-F]{1,4}$"
_LAST_EIGHT_BIT = 0xFF
# Without looking ahead or behind: clients compile them with RE2.
_SEVEN_BIT: Schema = {
    "description": 'the device\'s 7-bit address, 0x08 to 0x77: an integer (72) or a string ("0x48")',
    "anyOf": [
        {"type": "integer", "minimum": FIRST_ADDR, "maximum": LAST_ADDR},
        {"type": "string", "pattern": r"^0[xX](?:0?[89a-fA-F]|[1-6][0-9a-fA-F]|7[0-7])$"},
    ],
}


_ADDRESS: Schema = {
    "description": 'the device\'s address: an integer (72) or a string ("0x48"); 0x08 to 0x77, or with `ten_bit` up to '
    "0x3ff",
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": LAST_TEN_BIT},
        {"type": "string", "pattern": _HEX_TEN_BIT},
    ],
}
_TEN_BIT: Schema = {
    **schemas.flag("the address goes over the wire in ten bits; refused where the adapter cannot do that"),
    "default": False,
}
_REG_WIDTH: Schema = {"enum": [8, 16], "description": "bits of the register's number, high byte first", "default": 8}


def _register(description: str) -> Schema:
    return {
        "description": f'{description}: an integer up to 255 or a string ("0x00"); with `reg_width` 16 up to 65535',
        "anyOf": [{"type": "integer", "minimum": 0, "maximum": 0xFFFF}, {"type": "string", "pattern": _HEX_WORD}],
    }


_MESSAGES: Schema = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "description": "instead of all these: the messages in their order, with a repeated START between them; each has "
    "one of `write`, `text`, `hex` and `read`",
    "items": {
        "type": "object",
        "properties": {
            **schemas.bytes_args("write", "send these bytes"),
            "read": schemas.integer("receive so many bytes", 1, MAX_LENGTH),
        },
    },
}


_CLAMPED = schemas.listed(
    "registers whose limit has changed what was written", schemas.json_object("addr, reg, name, asked, written")
)


def _check_address(args: Args) -> None:
    """Raise InvalidParams for an address or a register's number that is too large for the width that is asked for."""
    addr = number(args["addr"])
    if not args.get("ten_bit", False) and not FIRST_ADDR <= addr <= LAST_ADDR:
        seven = f"expected an address from {FIRST_ADDR:#04x} to {LAST_ADDR:#04x}, got {addr:#04x}"
        raise wrong("/addr", f"{seven}; a ten-bit address needs `ten_bit`")
    if "reg" in args and int(args.get("reg_width", 8)) == 8 and number(args["reg"]) > _LAST_EIGHT_BIT:
        raise wrong("/reg", f"expected a register from 0 to {_LAST_EIGHT_BIT}; a wider number needs `reg_width` 16")


def _selected(args: Args) -> bytes:
    """Return the register's number as it goes over the wire; nothing if there is none."""
    if "reg" not in args:
        return b""
    return number(args["reg"]).to_bytes(int(args.get("reg_width", 8)) // 8, "big")


def _messages(args: Args) -> list[Message]:
    """Return the messages of an i2c.transfer. Raises InvalidParams for args that are not one way to say them."""
    length = int(args.get("read_len", 0))
    if only_one(args, ("write", "text", "hex", "messages")) != "messages":
        messages: list[Message] = [Write(read_bytes(args, "write"))]
        if length:
            messages.append(Read(length))
        return messages
    if length:
        raise wrong("/read_len", "`messages` has the reads itself; leave it out")
    messages = [_message(entry, f"/messages/{index}") for index, entry in enumerate(args["messages"])]
    written = sum(len(message.data) for message in messages if isinstance(message, Write))
    read = sum(message.length for message in messages if isinstance(message, Read))
    if max(written, read) > MAX_LENGTH:
        reason = f"{written} bytes to write and {read} to read; one step has at most {MAX_LENGTH} of each"
        raise wrong("/messages", reason)
    return messages


def _message(entry: Mapping[str, Any], at: str) -> Message:
    if only_one(entry, ("write", "text", "hex", "read"), at) == "read":
        return Read(int(entry["read"]))
    return Write(read_bytes(entry, "write", at=at))


def _split(data: bytes, messages: list[Message]) -> list[str]:
    """Return the bytes of each of the reads."""
    parts: list[str] = []
    at = 0
    for message in messages:
        if isinstance(message, Read):
            parts.append(encode(data[at : at + message.length]))
            at += message.length
    return parts


def _with_clamped(ctx: StepContext, result: dict[str, Any]) -> dict[str, Any]:
    return {**result, "clamped": list(ctx.clamped)} if ctx.clamped else result


def _entries(reasons: Mapping[int, str], what: str) -> list[dict[str, Any]]:
    return [{"addr": addr, "hex": f"{addr:#04x}", what: text} for addr, text in reasons.items()]


def _addresses(board: Board, bus_id: str) -> Addresses:
    return cast("I2cDriver", board.drivers[bus_id]).addresses


class _I2cTools:
    """The tools' functions on one board."""

    def __init__(self, bus_of: Callable[[Args], str], board: Board) -> None:
        self._bus_of = bus_of
        self._board = board

    def _limit_ms(self, args: Args, messages: Sequence[Message]) -> float:
        return cast("I2cDriver", self._board.drivers[self._bus_of(args)]).limit_ms(messages)

    async def _exchange(self, ctx: StepContext, args: Args, messages: list[Message]) -> bytes:
        addr, ten_bit = number(args["addr"]), bool(args.get("ten_bit", False))
        data: bytes = await ctx.transact(
            lambda driver: driver.transfer(addr, messages, ten_bit=ten_bit), limit_ms=self._limit_ms(args, messages)
        )
        return data

    async def read(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """i2c.read: the register's number and the read are one transaction, with a repeated start between them."""
        messages: list[Message] = [Read(int(args["len"]))]
        register = _selected(args)
        if register:
            messages.insert(0, Write(register))
        return shown_bytes(await self._exchange(ctx, args, messages))

    async def write(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """i2c.write: one message, the register's number first."""
        data = read_bytes(args)
        await self._exchange(ctx, args, [Write(_selected(args) + data)])
        return _with_clamped(ctx, {"written": len(data)})

    def preview_write(self, args: Args) -> Preview | None:
        """Show the registers before an i2c.write that names one, and after it."""
        if "reg" not in args:
            return None
        data = read_bytes(args)
        where = {name: args[name] for name in ("bus", "addr", "ten_bit", "reg", "reg_width") if name in args}
        return Preview("i2c.read", {**where, "len": len(data)}, ("data",), {"data": encode(data)})

    async def transfer(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """i2c.transfer: a write and perhaps a read, or any list of messages, in one transaction."""
        messages = _messages(args)
        data = await self._exchange(ctx, args, messages)
        result: dict[str, Any] = {**shown_bytes(data)}
        if "messages" in args:
            result["reads"] = _split(data, messages)
        return _with_clamped(ctx, result)

    async def scan(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """i2c.scan."""
        include = frozenset(number(addr) for addr in args.get("include", ()))
        scan: Scan = await ctx.transact(lambda driver: driver.scan(include), limit_ms=self._limit_ms(args, _SCAN))
        return {
            "bus": int(args["bus"]),
            "addresses": list(scan.found),
            "hex": [f"{addr:#04x}" for addr in scan.found],
            "owned": _entries(scan.owned, "driver"),
            "skipped": _entries(scan.skipped, "reason"),
        }


def _uses(args: Args) -> Sequence[Use]:
    return (i2c_use(int(args["bus"]), number(args["addr"]), ten_bit=bool(args.get("ten_bit", False))),)


def _uses_of_scan(args: Args) -> Sequence[Use]:
    # A scan asks every address: only a scope that has all of them permits it.
    return (Use("i2c", (f"{int(args['bus'])}:*",)),)


def listed(board: BoardDriver) -> dict[str, Any]:
    """Return the result of hw.i2c.list."""
    buses = [
        {
            "bus": spec.bus,
            "id": f"i2c:{spec.bus}",
            "driven": True,
            "speed_hz": spec.speed_hz,
            "scope": spec.scope,
            "reserved": list(spec.reserved),
            **{key: value for key, value in described.items() if key not in ("kind", "bus", "devices")},
            "devices": [_device_json(device) for device in spec.devices],
        }
        for spec, described, _ in board.of("i2c")
    ]
    return {"buses": buses, "undriven": board.missing("i2c")}


def _device_json(device: DeviceSpec) -> dict[str, Any]:
    entry: dict[str, Any] = {"addr": device.addr, "hex": f"{device.addr:#04x}", "kind": device.kind}
    optional = {
        "reg_width": device.reg_width,
        "note": device.note,
        "increment": device.increment if device.registers else None,
        "registers": [register.to_json() for register in device.registers] or None,
    }
    return entry | {key: value for key, value in optional.items() if value is not None}


def i2c_tools(board: Board) -> list[Tool]:
    """Return the i2c tools for a board, in the default order."""

    def bus_of(args: Args) -> str:
        return board.bus("i2c", "bus", int(args["bus"]))

    def checked(args: Args, messages: Callable[[Args], Sequence[Message]]) -> str:
        # Checked at submit: what the profile refuses is refused there too, before anything runs.
        bus_id = bus_of(args)
        _check_address(args)
        addr, ten_bit = number(args["addr"]), bool(args.get("ten_bit", False))
        _addresses(board, bus_id).check(args["bus"], addr, messages(args), ten_bit=ten_bit)
        return bus_id

    def read_bus_of(args: Args) -> str:
        return checked(args, lambda args: [Write(_selected(args))])

    def write_bus_of(args: Args) -> str:
        return checked(args, lambda args: [Write(_selected(args) + read_bytes(args))])

    def transfer_bus_of(args: Args) -> str:
        return checked(args, _messages)

    def drives(args: Args, messages: list[Message]) -> Sequence[Drive]:
        addr = number(args["addr"])
        # In ten bits a 7-bit number is another device, which the profile does not declare.
        known = not args.get("ten_bit", False) or addr > LAST_SEVEN_BIT
        return (Drive(bus_of(args), addr, messages),) if known else ()

    def drives_of_read(args: Args) -> Sequence[Drive]:
        return drives(args, [Write(_selected(args)), Read(int(args["len"]))]) if "reg" in args else ()

    def drives_of_write(args: Args) -> Sequence[Drive]:
        return drives(args, [Write(_selected(args) + read_bytes(args))])

    def drives_of_transfer(args: Args) -> Sequence[Drive]:
        return drives(args, _messages(args))

    def read_risk(args: Args) -> int:
        # A register's number of another width than the device's is data to it: an EEPROM with 8-bit numbers writes the
        # second byte of one with 16. For an undeclared device the width is unknown.
        if "reg" not in args:
            return 0
        rules = _addresses(board, bus_of(args))
        width = rules.reg_width(number(args["addr"]), ten_bit=bool(args.get("ten_bit", False)))
        return 0 if width == int(args.get("reg_width", 8)) else 2

    which = ", ".join(str(spec.bus) for spec in board.of("i2c")) or "none"
    bus = schemas.integer(f"the bus number N of /dev/i2c-N, one of: {which}", 0, 255)
    where = {"bus": bus, "addr": _ADDRESS, "ten_bit": _TEN_BIT}
    runs = _I2cTools(bus_of, board)
    return [
        list_tool(
            "hw.i2c.list",
            "List the I2C buses and the devices known to sit on them. Touches no hardware; i2c.scan asks the bus.",
            {
                "buses": schemas.listed("the buses", schemas.json_object("bus, adapter, functionality, devices, …")),
                "undriven": schemas.UNDRIVEN,
            },
            listing(listed, "buses", "devices", lambda bus, device: i2c_use(bus["bus"], device["addr"])),
        ),
        Tool(
            name="i2c.read",
            logged=("bus", "addr", "ten_bit", "reg", "reg_width", "len"),
            risk_level=2,
            effective_risk=read_risk,
            timeout_ms=_TIMEOUT_MS,
            description=(
                "Read `len` bytes from an I2C device, starting at register `reg` if one is given, in one "
                "transaction. The bytes come in the order of the wire. An address that no device has "
                "is an error with effect none. Risk 0 without `reg`, or with one of the `reg_width` that hw.i2c.list "
                "has for the device; any other puts bytes on the wire that the device may take for data, and is risk 2."
            ),
            params_schema=schemas.args(
                {
                    **where,
                    "reg": _register("the register to start at; left out: wherever the device's pointer is"),
                    "reg_width": _REG_WIDTH,
                    "len": schemas.integer("how many bytes", 1, MAX_LENGTH),
                },
                required=["bus", "addr", "len"],
            ),
            result_schema=schemas.result(schemas.bytes_result("what was read", least=1), optional=schemas.SHOWN),
            capability="CAP_I2C_READ",
            bus=read_bus_of,
            uses=_uses,
            drives=drives_of_read,
            run=runs.read,
        ),
        Tool(
            name="i2c.write",
            logged=("bus", "addr", "ten_bit", "reg", "reg_width"),
            risk_level=2,
            timeout_ms=_TIMEOUT_MS,
            description=(
                "Write bytes (one of `data`, `text` and `hex`) to an I2C device, to register `reg` and those after it "
                "if one is given, in one transaction. There is no rollback. An EEPROM wraps within its page (8 bytes "
                "on a 24C02): write page by page."
            ),
            params_schema=schemas.args(
                {
                    **where,
                    "reg": _register("the register to start at; left out: the data alone"),
                    "reg_width": _REG_WIDTH,
                    **schemas.bytes_args("data", "what to write"),
                },
                required=["bus", "addr"],
            ),
            result_schema=schemas.result(
                {"written": schemas.integer("data bytes written", 1, MAX_LENGTH), "clamped": _CLAMPED},
                optional=["clamped"],
            ),
            capability="CAP_I2C_RW",
            bus=write_bus_of,
            uses=_uses,
            drives=drives_of_write,
            run=runs.write,
            preview=runs.preview_write,
        ),
        Tool(
            name="i2c.transfer",
            logged=("bus", "addr", "ten_bit", "read_len"),
            risk_level=2,
            timeout_ms=_TIMEOUT_MS,
            description=(
                "Write bytes (one of `write`, `text` and `hex`) to an I2C device and then read `read_len` bytes from "
                "it, in one transaction with a repeated start: for devices with commands. `read_len` 0 reads nothing. "
                "Or exchange any `messages` in one transaction. An adapter that cannot do them as one refuses them, "
                "with effect none: nothing is ever split."
            ),
            params_schema=schemas.args(
                {
                    **where,
                    **schemas.bytes_args("write", "what to write first"),
                    "read_len": schemas.integer("how many bytes to read then", 0, MAX_LENGTH, default=0),
                    "messages": _MESSAGES,
                },
                required=["bus", "addr"],
            ),
            result_schema=schemas.result(
                {
                    **schemas.bytes_result("what was read, all of it joined"),
                    "reads": schemas.listed("for `messages`: what each read got", schemas.base64_data("the bytes")),
                    "clamped": _CLAMPED,
                },
                optional=[*schemas.SHOWN, "reads", "clamped"],
            ),
            capability="CAP_I2C_RW",
            bus=transfer_bus_of,
            uses=_uses,
            drives=drives_of_transfer,
            run=runs.transfer,
        ),
        Tool(
            name="i2c.scan",
            logged=("bus",),
            risk_level=1,
            idempotent=True,
            timeout_ms=_TIMEOUT_MS,
            description=(
                f"Find the addresses from {FIRST_ADDR:#04x} to {LAST_ADDR:#04x} that acknowledge on an I2C bus, asking "
                "each in the way that is safest there. Those that belong to a driver of the kernel's are not "
                "touched, nor are those that the board's profile refuses, nor, unless `include` names them, those at "
                "which asking is known to do harm. "
                "hw.i2c.list has the known devices without asking."
            ),
            params_schema=schemas.args(
                {
                    "bus": bus,
                    "include": {
                        "type": "array",
                        "maxItems": len(ADDRESSES),
                        "items": _SEVEN_BIT,
                        "description": "addresses to ask although it may do harm, such as "
                        + ", ".join(f"{addr:#04x}" for addr in DANGEROUS)
                        + ", or the adapter cannot ask in the way that is safest there",
                    },
                },
                required=["bus"],
            ),
            result_schema=schemas.result(
                {
                    "bus": bus,
                    "addresses": schemas.listed("those that acknowledge, ascending", {"type": "integer"}),
                    "hex": schemas.listed("the same as strings", {"type": "string"}),
                    "owned": schemas.listed(
                        "not touched: the kernel's own", schemas.json_object("addr, hex, driver: the kernel's driver")
                    ),
                    "skipped": schemas.listed("not touched", schemas.json_object("addr, hex, reason")),
                }
            ),
            capability="CAP_I2C_READ",
            bus=bus_of,
            uses=_uses_of_scan,
            run=runs.scan,
            default_rate="5/s",
        ),
    ]
