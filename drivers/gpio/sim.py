"""A simulated GPIO chip: lines, wires between them, pulls, contacts from outside, and a tank with its pump.

It owns the electricity of one chip. Lines joined by wires are one net and have one level: that of its driver, low
winning over high; else that of its pull; else low. Nets and `push` have voltages; the values of `get`, `set` and edges
are logical, as with the kernel: on a line that is active low, 1 is the low voltage. Contacts here do not bounce, so a
line's `debounce_us` has no effect. Names, policies and safe states beyond the line specs are not known here.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import trio

from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.gpio.driver import EdgeKind, Watch
from hearth.drivers.gpio.spec import OPEN_SIDE
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hearth.drivers.gpio.spec import LineSpec
    from hearth.drivers.signals import Level, LineState

log = logging.getLogger("hearth.sim")

_CONTACTS: Mapping[str, Level | None] = {"0": 0, "1": 1, "open": None}
"""The words of a panel, with the voltage that the outside puts on the line."""
_PANEL_BYTES = 4096


class _Net:
    """Lines that are wired together."""

    __slots__ = ("level", "lines")

    def __init__(self) -> None:
        self.level: Level = 0
        self.lines: list[_Line] = []

    def settle(self) -> bool:
        """Compute the level; return True when the net is driven both ways at once."""
        low = high = up = down = False
        for line in self.lines:
            driven, pushed, pull = line.driven, line.pushed, line.pull
            low = low or driven == 0 or pushed == 0
            high = high or driven == 1 or pushed == 1
            up = up or pull == "up"
            down = down or pull == "down"
        self.level = 0 if low else 1 if high or (up and not down) else 0
        return low and high


class _Line:
    __slots__ = ("inverted", "loads", "net", "open_side", "pull", "pushed", "spec", "state", "watches")

    def __init__(self, spec: LineSpec, net: _Net) -> None:
        self.spec = spec
        self.inverted = int(spec.active_low)
        self.open_side = OPEN_SIDE.get(spec.drive)
        self.pull = spec.pull
        self.net = net
        self.state: LineState = "input"
        self.pushed: Level | None = None
        self.watches: tuple[Watch, ...] = ()
        self.loads: tuple[Callable[[Level], None], ...] = ()

    @property
    def driven(self) -> int | None:
        """Return the voltage that hearth puts on the line; None if none: an input, or the open side of its output."""
        if self.state == "input":
            return None
        voltage = self.state ^ self.inverted
        return None if voltage == self.open_side else voltage

    @property
    def value(self) -> Level:
        """Return the line's logical level."""
        return 1 if self.net.level != self.inverted else 0


class SimGpio(BaseDriver):
    """A `GpioDriver` without hardware; `push`, `let_go`, `attach`, `state`, `level` and `fail` are its outside.

    `contacts` are levels that the outside pushes from the beginning. `panel` is the path of a named pipe through which
    a person pushes and lets go of lines while a daemon runs; `names` has the offsets of the lines' names and aliases
    for it. Outputs keep their level while the chip is closed, as real ones do.
    """

    simulated = True

    def __init__(
        self,
        label: str,
        lines: Sequence[LineSpec],
        *,
        wires: Iterable[tuple[int, int]] = (),
        contacts: Mapping[int, Level] = MappingProxyType({}),
        panel: str | None = None,
        names: Mapping[str, int] = MappingProxyType({}),
        style: Style = Style.INLINE,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.style = style
        self.label = label
        self.shorts = 0
        """Count of moments at which a net was driven high and low at once."""
        self.clock_ns = clock_ns
        """The time of an edge: nanoseconds, monotonic."""
        self._specs = {spec.offset: spec for spec in lines}
        self._all = {spec.offset: _Line(spec, _Net()) for spec in lines}
        self._lines: Mapping[int, _Line] = {}
        self._failing = 0
        self._panel = panel
        self._names = names
        self._pipe = -1
        # A test may push from another thread than the bus's.
        self._lock = threading.Lock()
        for line in self._all.values():
            line.net.lines.append(line)
        for one, other in wires:
            self._join(self._all[one].net, self._all[other].net)
        for offset, level in contacts.items():
            self._all[offset].pushed = level
        for line in self._all.values():
            line.net.settle()

    def _join(self, net: _Net, other: _Net) -> None:
        if net is not other:
            net.lines += other.lines
            for line in other.lines:
                line.net = net

    def open(self) -> None:
        """Offer the lines; if not halted, drive those that have an `initial` level.

        Raises DeviceError for a bad panel.
        """
        if self._panel is not None:
            self._pipe = self._open_panel(self._panel)
        self._lines = self._all
        for line in self._all.values():
            if line.spec.initial is not None and not self.halted:
                self.set(line.spec.offset, line.spec.initial)

    def _open_panel(self, path: str) -> int:
        try:
            # For writing too: the pipe then has no end when the last of the others that write to it closes it.
            pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            why = error.strerror
        else:
            if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                return pipe
            os.close(pipe)
            why = "it is no named pipe"
        cure = f"make it with `mkfifo {path}`, as the user that runs hearthd"
        raise DeviceError(f"gpio chip {self.label}: panel {path}: {why}; {cure}", effect="none")

    async def pump(self) -> None:
        """Follow the panel: each of its lines is a GPIO line's name and 0, 1 or `open`."""
        rest = b""
        while self._pipe >= 0:
            await trio.lowlevel.wait_readable(self._pipe)
            *orders, rest = (rest + os.read(self._pipe, _PANEL_BYTES)).split(b"\n")
            rest = rest[-_PANEL_BYTES:]
            for order in orders:
                self._obey(order.decode("utf-8", "replace"))

    def _obey(self, order: str) -> None:
        match order.split():
            case [name, ("0" | "1" | "open") as contact] if name in self._names:
                self._push(self._names[name], _CONTACTS[contact])
            case _:
                cure = "write a line's name and 0, 1 or open"
                log.warning("gpio chip %s: panel: %.80r is not understood; %s", self.label, order, cure)

    def close(self) -> None:
        """Stop offering the lines, and end every watch."""
        self._lines = {}
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        for line in self._all.values():
            watches, line.watches = line.watches, ()
            for watch in watches:
                watch.close(f"gpio chip {self.label} was closed")

    def _line(self, line: int) -> NoReturn:
        """Raise the error for a line that `_lines` does not have: the slow path."""
        if not self._lines:
            raise DeviceError(f"gpio chip {self.label}: the chip is not open", effect="none", data={"line": line})
        raise DeviceError(
            f"gpio chip {self.label}: no line {line!r}; it has {min(self._all)} to {max(self._all)}",
            effect="none",
            data={"line": line, "errno": "EINVAL"},
        )

    def held(self) -> list[int]:
        """Return the lines that can be read without a change: all of them, while the chip is open."""
        return list(self._lines)

    def get(self, line: int) -> Level:
        """See `GpioDriver.get`."""
        cell = self._lines.get(line) or self._line(line)
        if self._failing:
            self._fail(line)
        return cell.value

    def set(self, line: int, state: LineState) -> LineState:
        """See `GpioDriver.set`."""
        cell = self._lines.get(line) or self._line(line)
        if self._failing:
            self._fail(line)
        former = cell.state
        if former != state:
            if state not in (0, 1, "input"):
                raise DeviceError(
                    f"gpio chip {self.label}: no such state: {state!r}", effect="none", data={"line": line}
                )
            with self._lock:
                cell.state = state
                self._settle(cell.net)
        return former

    def watch(self, line: int, edge: EdgeKind) -> Watch:
        """See `GpioDriver.watch`."""
        cell = self._lines.get(line) or self._line(line)
        if self._failing:
            self._fail(line)
        watch = Watch(line, edge)
        with self._lock:
            cell.watches = (*cell.watches, watch)
        return watch

    def unwatch(self, watch: Watch) -> None:
        """See `GpioDriver.unwatch`."""
        cell = self._all.get(watch.line)
        if cell is not None:
            with self._lock:
                cell.watches = tuple(other for other in cell.watches if other is not watch)
        watch.close("it was ended by its owner")

    def release(self, line: int) -> None:
        """See `GpioDriver.release`."""
        self.set(line, "input")

    def describe(self) -> Mapping[str, Any]:
        """Return the simulator's name and its wires."""
        nets = {id(line.net): line.net for line in self._all.values()}
        wires = [sorted(line.spec.offset for line in net.lines) for net in nets.values() if len(net.lines) > 1]
        return {"kind": "gpio", "driver": "sim", "chip": self.label, "lines": len(self._all), "wires": wires}

    def _settle(self, net: _Net) -> None:
        """Compute a net's level; if it changed, tell the loads and feed the watches. The lock is held."""
        before = net.level
        if net.settle():
            self.shorts += 1
        if net.level == before:
            return
        for line in net.lines:
            for load in line.loads:
                load(line.value)
        if watches := [(line, watch) for line in net.lines for watch in line.watches]:
            now = self.clock_ns()
            for line, watch in watches:
                watch.feed(line.value, now)

    def push(self, line: int, level: Level) -> None:
        """Drive the line from outside until `let_go`, like a pressed button."""
        self._push(line, level)

    def let_go(self, line: int) -> None:
        """Stop driving the line from outside; its pull takes over."""
        self._push(line, None)

    def _push(self, line: int, level: Level | None) -> None:
        cell = self._all[line]
        with self._lock:
            cell.pushed = level
            self._settle(cell.net)

    def attach(self, line: int, load: Callable[[Level], None]) -> None:
        """Connect a simulated machine to the line: `load` gets the line's value at each change from now on."""
        cell = self._all[line]
        cell.loads = (*cell.loads, load)

    def state(self, line: int) -> LineState:
        """Return the state that hearth gives the line now: 0, 1 or "input"."""
        return self._all[line].state

    def level(self, line: int) -> Level:
        """Return the level that a voltmeter on the line shows."""
        return self._all[line].net.level

    def fail(self, times: int = 1) -> None:
        """Let the next `times` operations fail before they do anything."""
        self._failing = times

    def _fail(self, line: int) -> None:
        self._failing -= 1
        raise DeviceError(
            f"gpio chip {self.label}: injected fault on line {line}", effect="none", data={"line": line, "errno": "EIO"}
        )
