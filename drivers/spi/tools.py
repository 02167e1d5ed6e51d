"""The tools spi.transfer, spi.read, spi.write and hw.spi.list: each step is one transaction on a device's bus.

They translate args into the bytes of a transfer. The registers, and the form of a transfer that reaches one, are the
board profile's; the limits of a register are checked by its bus.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NotRequired, TypeAlias, TypedDict, cast

from annotated_types import Ge, Le, Len

from hearth._util.text import suggestions
from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.declare import Listing, Planned, with_clamped
from hearth.drivers.named import NamedSignal
from hearth.drivers.schemas import Bytes, ShownBytes, number, shown_bytes, wrong
from hearth.drivers.spi.driver import Registers, SpiDriver, SpiRegister, check_transfer
from hearth.drivers.typed_tools import changes, tools_of
from hearth.errors import DeviceError
from hearth.tools import Args, Drive, Preview, Reached, StepContext, Tool, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.spi.spec import SpiSpec

_TIMEOUT_MS = 10_000
_HUGE = 1e18
"""Beyond every register: a larger value is taken for this one."""

Device: TypeAlias = Annotated[str, Len(1, 64), "the device's name, one of: {devices}"]
Register: TypeAlias = Annotated[
    Annotated[int, Ge(0), Le(0xFFFF)] | Annotated[str, Len(1, 64)],
    'a register that hw.spi.list has for the device: its name, or its number (16 or "0x10")',
]
Clamped: TypeAlias = Annotated[list[Any], schemas.clamped("device, reg, name")]


class _SpiTransferred(TypedDict):
    data: Annotated[bytes, ShownBytes("what came in at the same time", least=1)]
    clamped: NotRequired[Clamped]


class _Shown(TypedDict):
    device: Device
    register: Annotated[str, Len(1, 64), "the register's name or number"]
    value: Annotated[float | None, "the register's number times its scale; null: no value"]
    raw: Annotated[int, "the register's number"]
    unit: NotRequired[Annotated[str, Len(1, 64), "the unit of the value, where the board's profile has one"]]


class _SpiRegisterWritten(_Shown):
    clamped: NotRequired[Clamped]


class _SpiTools:
    """The tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def device(self, name: str) -> SpiSpec:
        """Return the device of this name. Raises InvalidParams."""
        found: SpiSpec = self._board.specs[self._board.bus("spi", "device", name, key="name")]
        return found

    def register(self, name: str, asked: int | str, *, write: bool = False) -> tuple[Registers, SpiRegister]:
        """Return a register of a device, and how it is reached. Raises InvalidParams."""
        device = self.device(name)
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

    def read_risk(self, args: Args) -> int:
        """Return the risk of a spi.read."""
        return 2 if self.register(args["device"], args["register"])[1].read_effect else 0

    def _exchange(
        self,
        device: str,
        data: bytes,
        result: Callable[[bytes, Sequence[Mapping[str, Any]]], dict[str, Any]],
        *,
        reads: int | None = None,
        preview: Callable[[], Preview | None] = lambda: None,
    ) -> Planned[Any]:
        """Return the plan of one transfer, which drives the device, or reads the register of the number `reads`.

        `result` gets the bytes that came in, and the reports of the values that were clamped.
        """
        bus = self.device(device).bus
        limit_ms = cast("SpiDriver", self._board.drivers[bus]).limit_ms(len(data))

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            answer: bytes = await ctx.transact(lambda driver: driver.transfer(data), limit_ms=limit_ms)
            return with_clamped(result(answer, ctx.clamped), ctx.clamped)

        def driven() -> Sequence[Drive]:
            return (Drive(bus, "data", data),) if reads is None else ()

        def reached() -> Sequence[Reached] | None:
            return None if reads is None else [(bus, (0, reads))]

        return Planned(bus, lambda: (Use("spi", (device,)),), run, driven, preview, reached)

    @changes("spi.transfer", "CAP_SPI_RW", timeout_ms=_TIMEOUT_MS, logged=("device",), reaches=lambda _args: ())
    def transfer(self, device: Device, write: Annotated[bytes, Bytes("what to send")]) -> Planned[_SpiTransferred]:
        """Exchange bytes with an SPI device in one transfer, during which it stays selected.

        As many bytes come in as go out (one of `write`, `text` and `hex`), so append a zero for each byte to read after
        a command. A device with declared registers takes transfers to these registers only; spi.read and spi.write
        reach them by name. There is no rollback.
        """
        spec = self.device(device)
        try:
            check_transfer(spec.name, write, spec.settings)
        except DeviceError as error:
            raise wrong("/write", error.message.partition(": ")[2]) from None
        return self._exchange(device, write, lambda answer, _: {**shown_bytes(answer)})

    @changes("spi.read", "CAP_SPI_READ", timeout_ms=_TIMEOUT_MS, logged=("device", "register"))
    def read(self, device: Device, register: Register) -> Planned[_Shown]:
        """Read a declared register of an SPI device, in one transfer. hw.spi.list has the registers.

        Risk 0, but for a register with `read_effect`, which reading changes (a FIFO, a latched fault): it is risk 2.
        """
        declared, found = self.register(device, register)

        def result(answer: bytes, _clamped: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
            value = answer[declared.frame.header :]
            return _shown(device, found, int.from_bytes(value, found.order, signed=found.signed))

        return self._exchange(device, declared.frame.read(found), result, reads=found.reg)

    @changes("spi.write", "CAP_SPI_RW", timeout_ms=_TIMEOUT_MS, logged=("device", "register", "value"))
    def write(
        self, device: Device, register: Register, value: Annotated[float, "the value, in the unit that hw.spi.list has"]
    ) -> Planned[_SpiRegisterWritten]:
        """Write a value to a declared register of an SPI device, in one transfer.

        The value is in the register's unit, and the nearest one that the register can hold is written; the result has
        it. There is no rollback.
        """
        declared, found = self.register(device, register, write=True)
        raw = _raw(found, value)

        def result(_answer: bytes, clamped: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
            return _shown(device, found, round(clamped[0]["written"] / found.scale) if clamped else raw)

        def preview() -> Preview | None:
            if found.access == "w" or found.read_effect:
                return None
            args = {"device": device, "register": register}
            return Preview("spi.read", args, ("value",), {"value": raw * found.scale})

        return self._exchange(device, declared.frame.write(found, raw), result, preview=preview)


def _raw(register: SpiRegister, given: float) -> int:
    """Return the register's number for the value of a spi.write: the nearest one. Raises InvalidParams."""
    low, high = SpiRegister(0, register.width, signed=register.signed).raw_bounds
    value = float(min(max(given, -_HUGE), _HUGE))
    raw = round(min(max(value / register.scale, -_HUGE), _HUGE))
    if not low <= raw <= high:
        holds = f"{low * register.scale:g} to {high * register.scale:g}"
        raise wrong("/value", f"{value:g} is impossible: the register holds {holds}")
    return raw


def _shown(device: str, register: SpiRegister, raw: int) -> dict[str, Any]:
    unit = {} if register.unit is None else {"unit": register.unit}
    named = register.name or f"{register.reg:#04x}"
    value = None if register.is_none(raw) else raw * register.scale
    return {"device": device, "register": named, "value": value, "raw": raw, **unit}


def _row(spec: SpiSpec, described: Mapping[str, Any], _path: dict[str, Any]) -> dict[str, Any]:
    """Return a device for hw.spi.list."""
    told = {key: value for key, value in described.items() if key not in ("kind", "bus", "devices")}
    return {"bus": spec.bus, "driven": True, **told, **spec.to_json()}


listed: Final = Listing("spi", "devices", _row, use=lambda _, one: Use("spi", (one["device"],)))


def spi_tools(board: Board) -> list[Tool]:
    """Return the spi tools for a board, in the default order."""
    spi = _SpiTools(board)
    names = ", ".join(spec.name for spec in board.of("spi")) or "none"
    return [
        listed.tool(
            "List the SPI devices: name, mode, speed, word, node, and the registers that the board's profile declares. "
            "Touches no hardware.",
            "the devices",
            "device, bus, mode, registers, …",
        ),
        *tools_of(spi, {"devices": names}, read={"effective_risk": spi.read_risk}),
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
