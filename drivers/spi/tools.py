"""The tools spi.transfer, spi.read, spi.write and hw.spi.list: each step is one transaction on a device's bus.

They translate args into the bytes of a transfer. The registers, and the form of a transfer that reaches one, are the
board profile's; the limits of a register are checked by its bus.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from hearth._util.text import suggestions
from hearth.drivers import schemas
from hearth.drivers.board import Board, BoardDriver, list_tool, listing
from hearth.drivers.schemas import number, read_bytes, shown_bytes, wrong
from hearth.drivers.spi.driver import Registers, SpiDriver, SpiRegister, check_transfer
from hearth.errors import DeviceError
from hearth.tools import Args, Drive, Preview, StepContext, Tool, Use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.spi.spec import SpiSpec

_TIMEOUT_MS = 10_000
_HUGE = 1e18
"""Beyond every register: a larger value is taken for this one."""

_REGISTER: schemas.Schema = {
    "description": 'a register that hw.spi.list has for the device: its name, or its number (16 or "0x10")',
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 0xFFFF},
        {"type": "string", "minLength": 1, "maxLength": 64},
    ],
}
_CLAMPED = schemas.listed(
    "registers whose limit has changed what was written", schemas.json_object("device, reg, name, asked, written")
)
_VALUE: Mapping[str, schemas.Schema] = {
    "value": {"type": "number", "description": "the register's number times its scale"},
    "raw": {"type": "integer", "description": "the register's number"},
    "unit": schemas.text("the unit of the value, where the board's profile has one"),
}


class _SpiTools:
    """The tools' functions on one board."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def device(self, args: Args) -> SpiSpec:
        """Return the device that the args name. Raises InvalidParams."""
        return _device(self._board, args["device"])

    def driver(self, args: Args) -> SpiDriver:
        """Return the driver of the device that the args name; raises InvalidParams."""
        return cast("SpiDriver", self._board.drivers[self.device(args).bus])

    def register(self, args: Args, *, write: bool = False) -> tuple[Registers, SpiRegister]:
        """Return the register that the args name, and how it is reached. Raises InvalidParams."""
        device, asked = self.device(args), args["register"]
        if device.declared is None:
            reason = f"device {device.name!r} declares no registers"
            raise wrong("/register", f"{reason}; use spi.transfer, or list them in the board's profile")
        found = device.declared.named(asked)
        if found is None:
            with suppress(ValueError):  # a name is no number
                found = device.declared.named(number(asked))
        if found is None:
            known = [each.name or f"{each.reg:#04x}" for each in device.declared.registers]
            cure, near = suggestions(str(asked), known)
            reason = f"device {device.name!r} has no register {asked!r}; it has {', '.join(known)}{cure}"
            raise wrong("/register", reason, known=known, **near)
        if found.access == ("r" if write else "w"):
            raise wrong("/register", f"it is only {'read' if write else 'written'} (access = {found.access!r})")
        return device.declared, found

    def data(self, args: Args) -> bytes:
        """Return the bytes of a spi.transfer. Raises InvalidParams."""
        data, device = read_bytes(args, "write"), self.device(args)
        try:
            check_transfer(device.name, data, device.settings)
        except DeviceError as error:
            raise wrong("/write", error.message.partition(": ")[2]) from None
        return data

    def raw(self, args: Args) -> int:
        """Return the register's number for the value of a spi.write: the nearest one. Raises InvalidParams."""
        _, register = self.register(args, write=True)
        low, high = SpiRegister(0, register.width, signed=register.signed).raw_bounds
        value = float(min(max(args["value"], -_HUGE), _HUGE))
        raw = round(min(max(value / register.scale, -_HUGE), _HUGE))
        if not low <= raw <= high:
            holds = f"{low * register.scale:g} to {high * register.scale:g}"
            raise wrong("/value", f"{value:g} is impossible: the register holds {holds}")
        return raw

    def write_data(self, args: Args) -> bytes:
        """Return the bytes of a spi.write."""
        declared, register = self.register(args, write=True)
        return declared.frame.write(register, self.raw(args))

    async def _exchange(self, ctx: StepContext, args: Args, data: bytes) -> bytes:
        limit = self.driver(args).limit_ms(len(data))
        answer: bytes = await ctx.transact(lambda driver: driver.transfer(data), limit_ms=limit)
        return answer

    async def transfer(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """spi.transfer: as many bytes come in as go out."""
        answer = await self._exchange(ctx, args, self.data(args))
        return {**shown_bytes(answer), **({"clamped": list(ctx.clamped)} if ctx.clamped else {})}

    async def read(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """spi.read: the register's number and its value are one transfer."""
        declared, register = self.register(args)
        answer = await self._exchange(ctx, args, declared.frame.read(register))
        raw = int.from_bytes(answer[declared.frame.header :], register.order, signed=register.signed)
        return _shown(args, register, raw)

    async def write(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """spi.write: the register's number and its value are one transfer."""
        _, register = self.register(args, write=True)
        raw = self.raw(args)
        await self._exchange(ctx, args, self.write_data(args))
        if ctx.clamped:
            written = round(ctx.clamped[0]["written"] / register.scale)
            return {**_shown(args, register, written), "clamped": list(ctx.clamped)}
        return _shown(args, register, raw)

    def preview(self, args: Args) -> Preview | None:
        """Show the register before a spi.write and after it, where reading it has no effect."""
        _, register = self.register(args, write=True)
        if register.access == "w" or register.read_effect:
            return None
        where = {name: args[name] for name in ("device", "register")}
        return Preview("spi.read", where, ("value",), {"value": self.raw(args) * register.scale})


def _shown(args: Args, register: SpiRegister, raw: int) -> dict[str, Any]:
    unit = {} if register.unit is None else {"unit": register.unit}
    named = register.name or f"{register.reg:#04x}"
    return {"device": args["device"], "register": named, "value": raw * register.scale, "raw": raw, **unit}


def _device(board: Board, name: str) -> SpiSpec:
    """Return a device by its name. Raises InvalidParams."""
    found: SpiSpec = board.specs[board.bus("spi", "device", name, key="name")]
    return found


def listed(board: BoardDriver) -> dict[str, Any]:
    """Return the result of hw.spi.list."""
    devices = []
    for spec, described, _ in board.of("spi"):
        told = {key: value for key, value in described.items() if key not in ("kind", "bus", "devices")}
        devices.append({"bus": spec.bus, "driven": True, **told, **spec.to_json()})
    return {"devices": devices, "undriven": board.missing("spi")}


def spi_tools(board: Board) -> list[Tool]:
    """Return the spi tools for a board, in the default order."""
    runs = _SpiTools(board)

    def transfer_bus(args: Args) -> str:
        runs.data(args)
        return runs.device(args).bus

    def read_bus(args: Args) -> str:
        runs.register(args)
        return runs.device(args).bus

    def write_bus(args: Args) -> str:
        runs.raw(args)
        return runs.device(args).bus

    def read_risk(args: Args) -> int:
        return 2 if runs.register(args)[1].read_effect else 0

    def uses(args: Args) -> Sequence[Use]:
        return (Use("spi", (args["device"],)),)

    names = ", ".join(spec.name for spec in board.of("spi")) or "none"
    device = schemas.text(f"the device's name, one of: {names}")
    register_result = {"device": device, "register": schemas.text("the register's name or number"), **_VALUE}
    return [
        list_tool(
            "hw.spi.list",
            "List the SPI devices: name, mode, speed, word, node, and the registers that the board's profile declares. "
            "Touches no hardware.",
            {
                "devices": schemas.listed("the devices", schemas.json_object("device, bus, mode, registers, …")),
                "undriven": schemas.UNDRIVEN,
            },
            listing(listed, "devices", "", lambda _, one: Use("spi", (one["device"],))),
        ),
        Tool(
            name="spi.transfer",
            logged=("device",),
            risk_level=2,
            timeout_ms=_TIMEOUT_MS,
            description=(
                "Exchange bytes with an SPI device in one transfer, during which it stays selected. As many bytes come "
                "in as go out (one of `write`, `text` and `hex`), so append a zero for each byte to read after a "
                "command. A device with declared registers takes transfers to these registers only; spi.read and "
                "spi.write reach them by name. There is no rollback."
            ),
            params_schema=schemas.args(
                {"device": device, **schemas.bytes_args("write", "what to send")}, required=["device"]
            ),
            result_schema=schemas.result(
                {**schemas.bytes_result("what came in at the same time", least=1), "clamped": _CLAMPED},
                optional=[*schemas.SHOWN, "clamped"],
            ),
            capability="CAP_SPI_RW",
            bus=transfer_bus,
            uses=uses,
            drives=lambda args: (Drive(runs.device(args).bus, "data", runs.data(args)),),
            run=runs.transfer,
        ),
        Tool(
            name="spi.read",
            logged=("device", "register"),
            risk_level=2,
            effective_risk=read_risk,
            timeout_ms=_TIMEOUT_MS,
            description=(
                "Read a declared register of an SPI device, in one transfer. hw.spi.list has the registers. Risk 0, "
                "but for a register with `read_effect`, which reading changes (a FIFO, a latched fault): it is risk 2."
            ),
            params_schema=schemas.args({"device": device, "register": _REGISTER}, required=["device", "register"]),
            result_schema=schemas.result(register_result, optional=["unit"]),
            capability="CAP_SPI_READ",
            bus=read_bus,
            uses=uses,
            run=runs.read,
        ),
        Tool(
            name="spi.write",
            logged=("device", "register", "value"),
            risk_level=2,
            timeout_ms=_TIMEOUT_MS,
            description=(
                "Write a value to a declared register of an SPI device, in one transfer. The value is in the "
                "register's unit, and the nearest one that the register can hold is written; the result has it. "
                "There is no rollback."
            ),
            params_schema=schemas.args(
                {
                    "device": device,
                    "register": _REGISTER,
                    "value": {"type": "number", "description": "the value, in the unit that hw.spi.list has"},
                },
                required=["device", "register", "value"],
            ),
            result_schema=schemas.result({**register_result, "clamped": _CLAMPED}, optional=["unit", "clamped"]),
            capability="CAP_SPI_RW",
            bus=write_bus,
            uses=uses,
            drives=lambda args: (Drive(runs.device(args).bus, "data", runs.write_data(args)),),
            run=runs.write,
            preview=runs.preview,
        ),
    ]
