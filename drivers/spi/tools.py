"""The tools spi.transfer, spi.read, spi.write and hw.spi.list: each step is one transaction on a device's bus.

They translate args into the bytes of a transfer. The registers, and the form of a transfer that reaches one, are the
board profile's; the limits of a register are checked by its bus.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from hearth._util.text import suggestions
from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.declare import Listing, Planned, changing, with_clamped
from hearth.drivers.named import NamedSignal
from hearth.drivers.schemas import number, read_bytes, shown_bytes, wrong
from hearth.drivers.spi.driver import Registers, SpiDriver, SpiRegister, check_transfer
from hearth.errors import DeviceError
from hearth.tools import Args, Drive, Preview, StepContext, Tool, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.spi.spec import SpiSpec

_TIMEOUT_MS = 10_000
_HUGE = 1e18
"""Beyond every register: a larger value is taken for this one."""

_REGISTER: Final = schemas.number_or(
    'a register that hw.spi.list has for the device: its name, or its number (16 or "0x10")',
    0,
    0xFFFF,
    minLength=1,
    maxLength=64,
)


class _SpiTools:
    """The tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def device(self, args: Args) -> SpiSpec:
        """Return the device that the args name. Raises InvalidParams."""
        found: SpiSpec = self._board.specs[self._board.bus("spi", "device", args["device"], key="name")]
        return found

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

    def read_risk(self, args: Args) -> int:
        """Return the risk of a spi.read."""
        return 2 if self.register(args)[1].read_effect else 0

    def _exchange(
        self,
        args: Args,
        data: bytes,
        result: Callable[[bytes, Sequence[Mapping[str, Any]]], dict[str, Any]],
        *,
        drives: bool = True,
        preview: Callable[[], Preview | None] = lambda: None,
    ) -> Planned:
        """Return the plan of one transfer; `result` gets what came in, and the reports of what was clamped."""
        bus = self.device(args).bus
        limit_ms = cast("SpiDriver", self._board.drivers[bus]).limit_ms(len(data))

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            answer: bytes = await ctx.transact(lambda driver: driver.transfer(data), limit_ms=limit_ms)
            return with_clamped(result(answer, ctx.clamped), ctx.clamped)

        def driven() -> Sequence[Drive]:
            return (Drive(bus, "data", data),) if drives else ()

        return Planned(bus, lambda: (Use("spi", (args["device"],)),), run, driven, preview)

    def transfer(self, args: Args) -> Planned:
        """spi.transfer: as many bytes come in as go out."""
        return self._exchange(args, self.data(args), lambda answer, _: {**shown_bytes(answer)})

    def read(self, args: Args) -> Planned:
        """spi.read: the register's number and its value are one transfer."""
        declared, register = self.register(args)

        def result(answer: bytes, _clamped: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
            value = answer[declared.frame.header :]
            return _shown(args, register, int.from_bytes(value, register.order, signed=register.signed))

        return self._exchange(args, declared.frame.read(register), result, drives=False)

    def write(self, args: Args) -> Planned:
        """spi.write: the register's number and its value are one transfer; no preview where reading has an effect."""
        declared, register = self.register(args, write=True)
        raw = _raw(register, args["value"])

        def result(_answer: bytes, clamped: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
            return _shown(args, register, round(clamped[0]["written"] / register.scale) if clamped else raw)

        def preview() -> Preview | None:
            if register.access == "w" or register.read_effect:
                return None
            where = {name: args[name] for name in ("device", "register")}
            return Preview("spi.read", where, ("value",), {"value": raw * register.scale})

        return self._exchange(args, declared.frame.write(register, raw), result, preview=preview)


def _raw(register: SpiRegister, given: float) -> int:
    """Return the register's number for the value of a spi.write: the nearest one. Raises InvalidParams."""
    low, high = SpiRegister(0, register.width, signed=register.signed).raw_bounds
    value = float(min(max(given, -_HUGE), _HUGE))
    raw = round(min(max(value / register.scale, -_HUGE), _HUGE))
    if not low <= raw <= high:
        holds = f"{low * register.scale:g} to {high * register.scale:g}"
        raise wrong("/value", f"{value:g} is impossible: the register holds {holds}")
    return raw


def _shown(args: Args, register: SpiRegister, raw: int) -> dict[str, Any]:
    unit = {} if register.unit is None else {"unit": register.unit}
    named = register.name or f"{register.reg:#04x}"
    value = None if register.is_none(raw) else raw * register.scale
    return {"device": args["device"], "register": named, "value": value, "raw": raw, **unit}


def _row(spec: SpiSpec, described: Mapping[str, Any], _path: dict[str, Any]) -> dict[str, Any]:
    """Return a device for hw.spi.list."""
    told = {key: value for key, value in described.items() if key not in ("kind", "bus", "devices")}
    return {"bus": spec.bus, "driven": True, **told, **spec.to_json()}


listed: Final = Listing("spi", "devices", _row, use=lambda _, one: Use("spi", (one["device"],)))


def spi_tools(board: Board) -> list[Tool]:
    """Return the spi tools for a board, in the default order."""
    spi = _SpiTools(board)
    names = ", ".join(spec.name for spec in board.of("spi")) or "none"
    device = schemas.text(f"the device's name, one of: {names}")
    value = {"type": "number", "description": "the value, in the unit that hw.spi.list has"}
    shown = {
        "device": device,
        "register": schemas.text("the register's name or number"),
        "value": {"type": ["number", "null"], "description": "the register's number times its scale; null: no value"},
        "raw": {"type": "integer", "description": "the register's number"},
        "unit?": schemas.text("the unit of the value, where the board's profile has one"),
    }
    clamped = schemas.clamped("device, reg, name")
    changes = changing("CAP_SPI_RW", timeout_ms=_TIMEOUT_MS)
    return [
        listed.tool(
            "List the SPI devices: name, mode, speed, word, node, and the registers that the board's profile declares. "
            "Touches no hardware.",
            "the devices",
            "device, bus, mode, registers, …",
        ),
        changes(
            "spi.transfer",
            "Exchange bytes with an SPI device in one transfer, during which it stays selected. As many bytes come "
            "in as go out (one of `write`, `text` and `hex`), so append a zero for each byte to read after a "
            "command. A device with declared registers takes transfers to these registers only; spi.read and "
            "spi.write reach them by name. There is no rollback.",
            {"device": device, **schemas.bytes_args("write", "what to send")},
            {**schemas.bytes_result("what came in at the same time", least=1), "clamped?": clamped},
            spi.transfer,
            reaches=lambda _args: (),  # what comes in is not known
            logged=("device",),
        ),
        changes(
            "spi.read",
            "Read a declared register of an SPI device, in one transfer. hw.spi.list has the registers. Risk 0, "
            "but for a register with `read_effect`, which reading changes (a FIFO, a latched fault): it is risk 2.",
            {"device": device, "register": _REGISTER},
            shown,
            spi.read,
            capability="CAP_SPI_READ",
            effective_risk=spi.read_risk,
            reaches=lambda args: [(spi.device(args).bus, (0, spi.register(args)[1].reg))],
            logged=("device", "register"),
        ),
        changes(
            "spi.write",
            "Write a value to a declared register of an SPI device, in one transfer. The value is in the register's "
            "unit, and the nearest one that the register can hold is written; the result has it. There is no rollback.",
            {"device": device, "register": _REGISTER, "value": value},
            {**shown, "clamped?": clamped},
            spi.write,
            logged=("device", "register", "value"),
        ),
    ]


class SpiSignal(NamedSignal):
    """A declared register as a signal, in its unit."""

    sets: ClassVar[tuple[str, ...]] = ("spi.write",)

    @property
    def _place(self) -> dict[str, Any]:
        assert self.signal is not None
        return {"device": self.signal.place["device"], "register": self.signal.place["reg"]}

    def read(self) -> Step:
        """See NamedSignal."""
        return Step("spi.read", self._place)

    def write(self, value: Any) -> Step:
        """See NamedSignal."""
        return Step("spi.write", {**self._place, "value": value})


def spi_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the registers of the devices of a board as signals; one that reading changes is not read by its name."""
    for spec in board.of("spi"):
        signals = board.outputs[spec.bus].signals
        use = Use("spi", (spec.name,))
        for register in () if spec.declared is None else spec.declared.registers:
            signal = signals[0, register.reg]
            access = signal.access.replace("r", "") if register.read_effect else signal.access
            names = {"name": signal.name, "unit": signal.unit, "access": access}
            yield SpiSignal(bus=spec.bus, signal=signal, use=use, **names)
