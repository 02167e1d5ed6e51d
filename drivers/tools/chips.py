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


class Pulse:
    """Pulses under way on one line: the state before the first, which the last one to end restores."""

    __slots__ = ("count", "rest")

    def __init__(self, rest: LineState) -> None:
        self.rest: LineState = rest
        self.count = 0


class Chip:
    """One chip. `_pulses` is touched by transactions only, and so by one at a time."""

    __slots__ = ("_pulses", "_sets", "_undos", "bus", "drivable", "label", "readable")

    def __init__(self, board: Board, label: str) -> None:
        self.label = label
        self.bus = board.gpio_bus(label)
        self.readable = board.readable[label]
        self.drivable = board.drivable[label]
        self._pulses: dict[int, Pulse] = {}
        self._sets: dict[tuple[int, LineState], Callable[[GpioDriver], LineState]] = {}
        self._undos: dict[tuple[int, LineState], Undo] = {}

    def set(self, offset: int, state: LineState) -> Callable[[GpioDriver], LineState]:
        """The transaction that sets a line; it returns the state to go back to.

        It takes the line away from pulses under way, which then leave it alone: whoever set it last has the
        say.
        """
        known = self._sets.get((offset, state))
        if known is not None:
            return known
        pulses = self._pulses

        def op(driver: GpioDriver) -> LineState:
            former = driver.set(offset, state)
            if pulses:
                pulse = pulses.pop(offset, None)
                if pulse is not None:
                    return pulse.rest
            return former

        self._sets[offset, state] = op
        return op

    def undo(self, offset: int, former: LineState) -> Undo:
        """The way back to `former`."""
        undo = self._undos.get((offset, former))
        if undo is None:
            back = "an input" if former == "input" else str(former)
            undo = Undo(self.set(offset, former), f"gpio line {offset} of {self.label} back to {back}")
            self._undos[offset, former] = undo
        return undo

    def begin_pulse(self, offset: int, value: Level) -> Callable[[GpioDriver], Pulse]:
        """The transaction that begins a pulse."""

        def op(driver: GpioDriver) -> Pulse:
            former = driver.set(offset, value)
            pulse = self._pulses.get(offset)
            if pulse is None:
                pulse = self._pulses[offset] = Pulse(former)
            pulse.count += 1
            return pulse

        return op

    def end_pulse(self, offset: int, pulse: Pulse) -> Callable[[GpioDriver], bool]:
        """The transaction that ends a pulse; True if it brought the line back."""

        def op(driver: GpioDriver) -> bool:
            if self._pulses.get(offset) is not pulse:
                return False
            pulse.count -= 1
            if pulse.count:
                return False
            # Forgotten only once the line is back: a driver that fails now is asked for the same rest state later.
            driver.set(offset, pulse.rest)
            del self._pulses[offset]
            return True

        return op
