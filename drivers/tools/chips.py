"""What the gpio tools know of a chip: its lines, its transactions, and the pulses under way on it.

Owns one rule: a pulse leaves its line as it was before it, however many overlap; and whoever sets a line while it
is pulsed has the say. What can be worked out before the first step is: a gpio.set finds everything in tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.tools import Undo

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.drivers.boards import Board
    from hearth.drivers.gpio import GpioDriver, Level, LineState


class _Pulsed:
    """A line with pulses under way: the state before the first, which the last one to end restores."""

    __slots__ = ("count", "rest")

    def __init__(self, rest: LineState) -> None:
        self.rest: LineState = rest
        self.count = 0


class Pulse:
    """One pulse; `begun` once the line has been driven, also when whoever asked for it was not told so."""

    __slots__ = ("line", "offset", "value")

    def __init__(self, offset: int, value: Level) -> None:
        self.offset = offset
        self.value: Level = value
        self.line: _Pulsed | None = None

    @property
    def begun(self) -> bool:
        """True once the line has been driven: then `Chip.end_pulse` is owed."""
        return self.line is not None


class Chip:
    """One chip. `_pulses` is touched by transactions only, and so by one at a time."""

    __slots__ = ("_pulses", "_sets", "_undos", "bus", "drivable", "label", "readable")

    def __init__(self, board: Board, label: str) -> None:
        self.label = label
        self.bus = board.gpio_bus(label)
        self.readable = board.readable[label]
        self.drivable = board.drivable[label]
        self._pulses: dict[int, _Pulsed] = {}
        self._sets: dict[tuple[int, LineState], Callable[[GpioDriver], LineState]] = {}
        self._undos: dict[tuple[int, LineState], Undo] = {}

    def set(self, offset: int, state: LineState) -> Callable[[GpioDriver], LineState]:
        """The transaction that sets a line; it returns the state to go back to.

        It takes the line away from pulses under way, which then leave it alone: whoever set it last has the say.
        """
        known = self._sets.get((offset, state))
        if known is not None:
            return known
        pulses = self._pulses

        def op(driver: GpioDriver) -> LineState:
            former = driver.set(offset, state)
            if pulses:
                line = pulses.pop(offset, None)
                if line is not None:
                    return line.rest
            return former

        self._sets[offset, state] = op
        return op

    def undo(self, offset: int, former: LineState) -> Undo:
        """The way back to `former`."""
        undo = self._undos.get((offset, former))
        if undo is None:
            back = "an input" if former == "input" else str(former)
            undo = Undo(self.set(offset, former), f"gpio line {offset} of {self.label} back to {back}", offset)
            self._undos[offset, former] = undo
        return undo

    def begin_pulse(self, pulse: Pulse) -> Callable[[GpioDriver], None]:
        """The transaction that begins a pulse."""

        def op(driver: GpioDriver) -> None:
            former = driver.set(pulse.offset, pulse.value)
            line = self._pulses.get(pulse.offset)
            if line is None:
                line = self._pulses[pulse.offset] = _Pulsed(former)
            line.count += 1
            pulse.line = line

        return op

    def restores(self, pulse: Pulse) -> bool:
        """Whether the end of this pulse, if it came now, would bring the line back; within a transaction's turn."""
        line = self._pulses.get(pulse.offset)
        return line is not None and line is pulse.line and line.count == 1

    def forget_pulse(self, pulse: Pulse) -> None:
        """Forget the last pulse on a line, which is in its safe state; within a transaction's turn."""
        self._pulses.pop(pulse.offset, None)

    def end_pulse(self, pulse: Pulse) -> Callable[[GpioDriver], bool]:
        """The transaction that ends a pulse; True if it brought the line back."""

        def op(driver: GpioDriver) -> bool:
            line = self._pulses.get(pulse.offset)
            if line is None or line is not pulse.line:
                return False
            line.count -= 1
            if line.count:
                return False
            # Forgotten only once the line is back: if the driver fails now, the next pulse still knows the state.
            driver.set(pulse.offset, line.rest)
            del self._pulses[pulse.offset]
            return True

        return op
