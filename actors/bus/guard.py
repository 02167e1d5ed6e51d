"""The guarded driver of a bus: the one place before the hardware that asks limits, interlocks and the halt.

`Bus` gives every transaction the guarded driver (`Guard.face`) and never the driver itself: steps over HACP, MCP and
HCP, the end of a pulse, rollback, and the tools of vendors. A face has all operations of its driver. Those that change
the hardware call `Guard.check` first and `Guard.note` afterwards; all others are the driver's own. A driver of an
unknown kind is passed as it is: for it the checks of its tickets hold.

Order of one operation, all of it inside one transaction, so nothing comes in between:

    check(output, level) --> the driver's operation --> note(output, level)
         |                        |
         +-- raises, effect none  +-- raises: `note` is told what may have happened (`failed`)

Bringing outputs to their safe state (`make_safe`) is never checked, only noted: safety comes first.

To plug in: set `Guard.halt` to a callable `(output, level) -> None`, or `Guard.interlocks` to an `InterlockChecks`,
that raises (`Halted`, `InterlockOpen`, with `effect: "none"`) to refuse; None asks nothing. Both are called within the
transaction, in the bus's own thread where the driver blocks, so they must not wait, and must not touch Trio. `halt` is
not asked for a level that is the output's safe state. An output is the offset of a GPIO line, with the levels 0, 1 and
"input"; the address of an I2C device, with the messages as its level; or "data" and "lines" of a serial port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from hearth.drivers.i2c import Read, selects
from hearth.errors import RpcError, effect_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence

    from hearth.drivers.base import Driver
    from hearth.drivers.boards import Board
    from hearth.drivers.gpio import GpioDriver, LineState
    from hearth.drivers.i2c import I2cDriver, Message, Outcome
    from hearth.drivers.uart import UartDriver


class InterlockChecks(Protocol):
    """The interlocks of one bus."""

    def check(self, output: Hashable, level: object) -> None:
        """Raise InterlockOpen where a condition for driving this output to this level does not hold."""

    def note(self, output: Hashable, level: object, *, certain: bool = True) -> None:
        """Note that an output is at a level; without `certain` it may still be at its former one."""


class Guard:
    """The checks of one bus, and the guarded driver that makes them.

    `safe` maps each output to its safe state. `face` is the guarded driver.
    """

    def __init__(self, bus_id: str, driver: Driver, safe: Mapping[Hashable, object] | None = None) -> None:
        self.bus_id = bus_id
        self.safe: Mapping[Hashable, object] = safe or {}
        self.halt: Callable[[Hashable, object], None] | None = None
        """Refuses everything while the daemon is halted: raises Halted."""
        self.interlocks: InterlockChecks | None = None
        """The interlocks of this bus, if it has any."""
        face = _FACES.get(bus_id.partition(":")[0])
        self.face: Any = driver if face is None else face(driver, self)

    def check(self, output: Hashable, level: object) -> None:
        """Refuse to bring an output to a level. Raises Halted or InterlockOpen, each with effect "none"."""
        if self.halt is not None and self.safe.get(output) != level:
            self.halt(output, level)
        if self.interlocks is not None:
            self.interlocks.check(output, level)

    def note(self, output: Hashable, level: object) -> None:
        """Note that an output is now at a level."""
        if self.interlocks is not None:
            self.interlocks.note(output, level)

    def failed(self, output: Hashable, level: object, error: RpcError) -> None:
        """Note that bringing an output to a level failed: unless the effect is "none", it may be there."""
        if effect_of(error) != "none" and self.interlocks is not None:
            self.interlocks.note(output, level, certain=False)


def guard_of(bus_id: str, driver: Driver, board: Board) -> Guard:
    """Return the guard of a board's bus, with what the profile says about its outputs."""
    kind, _, name = bus_id.partition(":")
    if kind == "gpio" and name in board.chips:
        return Guard(bus_id, driver, {line.offset: line.safe for line in board.chips[name].lines})
    return Guard(bus_id, driver)


class _Face:
    """A driver behind its guard: the operations that are not overridden are the driver's own."""

    def __init__(self, driver: Any, guard: Guard) -> None:
        self._driver = driver
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


class _GuardedGpio(_Face):
    _driver: GpioDriver

    def set(self, line: int, state: LineState) -> LineState:
        guard = self._guard
        guard.check(line, state)
        try:
            former = self._driver.set(line, state)
        except RpcError as error:
            guard.failed(line, state, error)
            raise
        guard.note(line, state)
        return former

    def make_safe(self, outputs: Iterable[Hashable]) -> Any:
        return self._noted(self._driver.make_safe(outputs))

    def halt(self, outputs: Iterable[Hashable]) -> Any:
        return self._noted(self._driver.halt(outputs))

    def _noted(self, reports: Any) -> Any:
        for report in reports:
            if "safe" in report and "error" not in report:
                self._guard.note(report["line"], report["safe"])
        return reports


class _GuardedI2c(_Face):
    _driver: I2cDriver

    def transfer(self, addr: int, messages: Sequence[Message], *, ten_bit: bool = False) -> Outcome[bytes]:
        if _writes(messages):
            self._guard.check(addr, messages)
        return self._driver.transfer(addr, messages, ten_bit=ten_bit)


def _writes(messages: Sequence[Message]) -> bool:
    """Return False for a read, also of a register: a pointer that moves is no effect."""
    return not (selects(messages) or all(isinstance(message, Read) for message in messages))


class _GuardedUart(_Face):
    _driver: UartDriver

    def write(self, data: bytes, **more: Any) -> Coroutine[Any, Any, Any]:
        self._guard.check("data", data)
        return self._driver.write(data, **more)

    def exchange(self, data: bytes, **more: Any) -> Coroutine[Any, Any, Any]:
        self._guard.check("data", data)
        return self._driver.exchange(data, **more)

    def control(self, **levels: Any) -> Coroutine[Any, Any, Any]:
        if any(level is not None for level in levels.values()):
            self._guard.check("lines", levels)
        return self._driver.control(**levels)


_FACES: Final[Mapping[str, Callable[[Any, Guard], _Face]]] = {
    "gpio": _GuardedGpio,
    "i2c": _GuardedI2c,
    "uart": _GuardedUart,
}
"""By the kind of bus that its id begins with."""
