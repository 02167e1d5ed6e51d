"""A GPIO chip of the kernel's, through its character device (gpiod 2).

It owns one open chip: its lines, each with a request that is held until the bus closes, and its watches, whose edges
come in order, each once, and with every gap counted. `linux_lines` requests a line, `linux_chips` finds the device.
Names, sessions and policy are not known here.

**A level after its holder has ended.** A line keeps its level as long as its request lives: until this driver closes it
or its process ends, in whatever way. For the time after that the character device promises nothing. The kernel frees
the line, and the pin controller's driver decides: an output may stay as it is, or become an input. So `hold = "keep"`
means that hearth leaves a line alone when a session ends; it cannot keep the level after the daemon's end.
docs/decisions/0031 lists the kernel's behaviour, case by case.

Operations come from one caller at a time, the bus, in whatever thread; `pump` runs in the Trio thread beside them. It
reads edges from the request's descriptor itself, whose layout is the kernel's promise (struct gpio_v2_line_event in
linux/gpio.h), so that it touches no object that the bus's thread may be using. It makes no system call that may sleep.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

import trio

from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.gpio.driver import EdgeKind, Watch
from hearth.drivers.gpio.linux_chips import cannot_open, entry_of, find_chip, open_chip, style_of
from hearth.drivers.linux.device_users import shared_device
from hearth.errors import DeviceError, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import gpiod

    from hearth.drivers.gpio.linux_chips import ChipNode
    from hearth.drivers.gpio.linux_lines import KernelLine
    from hearth.drivers.gpio.spec import LineSpec
    from hearth.drivers.signals import Level, LineState

KERNEL_BUFFER = 1024
"""Edges that the kernel keeps for us, per line: the most it grants. It allocates the memory with the first watch."""
_EVENT = struct.Struct("@QIIII24x")
"""timestamp_ns, id, offset, seqno, line_seqno, and six words of padding."""
_RISING = 1
_BATCH = 64
"""Edges of one read at most: the rest is read in the next turn, so a chattering line delays no other."""


class Edges:
    """The edges of one line and their reports to its watches. Touched with the lock of its `EdgePump` held."""

    __slots__ = ("_last", "_level", "_reported_ns", "asked", "watches")

    def __init__(self) -> None:
        self.watches: tuple[Watch, ...] = ()
        self.asked: EdgeKind | None = None
        """The edges that the kernel was asked to report."""
        self._level: Level | None = None
        self._last = 0
        self._reported_ns = 0

    def wanted(self) -> EdgeKind | None:
        """Return the edges that at least one watch wants."""
        wanted: EdgeKind | None = None
        for watch in self.watches:
            wanted = watch.edge if wanted in (None, watch.edge) else "both"
        return wanted

    def restart(self, asked: EdgeKind | None) -> None:
        """Begin with a new request, which reports `asked` and counts its edges from 1."""
        self.asked = asked
        self._last = 0
        self._reported_ns = 0

    def read(self, fd: int) -> bool:
        """Read one batch from a request's descriptor; return False once nothing is left.

        Raises OSError when the chip is gone.
        """
        try:
            data = os.read(fd, _EVENT.size * _BATCH)
        except BlockingIOError:
            return False
        for timestamp_ns, kind, _offset, _seqno, seqno in _EVENT.iter_unpack(data):
            level: Level = 1 if kind == _RISING else 0
            # The kernel numbers the edges of a line, also those it drops: a gap is the number of lost ones.
            lost = (seqno - self._last - 1) & 0xFFFF_FFFF
            self._last = seqno
            if lost:
                self._report_lost(lost, level)
            # An edge from before a change that we have reported ourselves is that change, seen by the kernel too.
            if timestamp_ns > self._reported_ns:
                self._level = level
                for watch in self.watches:
                    watch.feed(level, timestamp_ns)
        return len(data) == _EVENT.size * _BATCH

    def drain(self, fd: int) -> None:
        """Read the edges that the kernel holds by now: at most its largest buffer, however fast the line chatters."""
        for _ in range(KERNEL_BUFFER // _BATCH):
            if not self.read(fd):
                return

    def _report_lost(self, lost: int, level: Level) -> None:
        """Report to the watches that the kernel dropped `lost` edges before one that led to `level`."""
        kind = "rising" if level else "falling"
        for watch in self.watches:
            if watch.edge == "both" or self.asked != "both":
                watch.lost(lost)
            else:
                # Edges alternate, so the lost one next to this was of the other kind.
                watch.lost(lost // 2 if watch.edge == kind else (lost + 1) // 2)

    def before_change(self) -> None:
        """Note which edges still come: the line is about to be driven, or released."""
        self._level = None

    def after_change(self, before: Level, after: Level) -> None:
        """Report a change that we made from `before` to `after`, since the kernel does not report it.

        If the kernel does report it, its record is older than this one, and is left out.
        """
        known = before if self._level is None else self._level
        if after != known:
            self._reported_ns = time.monotonic_ns()
            self._level = after
            for watch in self.watches:
                watch.feed(after, self._reported_ns)

    def end(self, reason: str) -> None:
        """End all watches."""
        watches, self.watches = self.watches, ()
        for watch in watches:
            watch.close(reason)


class EdgePump:
    """The descriptors of a chip's watched lines, with one wait for all.

    Watches begin and end in whatever thread the bus uses; `run` feeds them in the Trio thread. The lock orders the two,
    for no longer than it takes to read what is there. Raises OSError where the system has no descriptor left.
    """

    def __init__(self, chip_fd: int) -> None:
        self._lock = threading.Lock()
        self._lines: dict[int, Edges] = {}
        self._chip_fd = chip_fd
        self._epoll = select.epoll()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup, select.EPOLLIN)
        # The chip's own descriptor hangs up when it is unplugged; no other reports of it are requested.
        self._epoll.register(chip_fd, 0)

    def add(self, edges: Edges, fd: int, watch: Watch) -> None:
        """Add a watch to a line, whose request is `fd`. It sees no edge from before."""
        with self._lock:
            # The present watches get the edges from before, the new one does not.
            edges.drain(fd)
            if not edges.watches:
                self._lines[fd] = edges
                self._epoll.register(fd, select.EPOLLIN)
            edges.watches = (*edges.watches, watch)

    def remove(self, edges: Edges, fd: int, watch: Watch) -> None:
        """Remove a watch of a line; the edges that the kernel has noted by now are its last. OSError: chip gone."""
        with self._lock:
            try:
                edges.drain(fd)
            finally:
                edges.watches = tuple(other for other in edges.watches if other is not watch)
                if not edges.watches:
                    self._lines.pop(fd, None)
                    self._epoll.unregister(fd)

    def before_change(self, edges: Edges, fd: int) -> None:
        """Note that a watched line is about to be driven, or released."""
        with self._lock:
            # Edges from before the change must be read first: afterwards they would seem to follow it.
            edges.drain(fd)
            edges.before_change()

    def after_change(self, edges: Edges, fd: int, before: Level, after: Level) -> None:
        """Report that a watched line has been brought from `before` to `after`."""
        with self._lock:
            edges.drain(fd)
            edges.after_change(before, after)

    def ring(self) -> None:
        """Wake `run` because an operation has found that the chip is gone; some kernels do not wake it."""
        if not self._epoll.closed:
            os.eventfd_write(self._wakeup, 1)

    async def run(self) -> bool:
        """Feed the watches; True once the chip is gone, False when this is closed."""
        while not self._epoll.closed:
            try:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            except trio.ClosedResourceError:
                break
            if self._gone():
                return True
        return False

    def _gone(self) -> bool:
        """Read one batch of edges per line; return True if the chip is gone."""
        for fd, _events in self._epoll.poll(0):
            with self._lock:
                edges = self._lines.get(fd)
                if edges is not None:
                    try:
                        edges.read(fd)
                    except OSError:
                        return True
                elif fd in (self._wakeup, self._chip_fd):
                    return True
                # If not, the bus's thread has just ended the last watch on this line.
        return False

    def end(self, reason: str) -> None:
        """End every watch."""
        with self._lock:
            for edges in self._lines.values():
                edges.end(reason)

    def close(self) -> None:
        """Release the descriptors, so that they can be closed; `run` returns. Idempotent."""
        with self._lock:
            self._lines.clear()
            if self._epoll.closed:
                return
            # Wakes `run`. Outside Trio there is none to wake.
            if trio.lowlevel.in_trio_run():
                trio.lowlevel.notify_closing(self._epoll.fileno())
            self._epoll.close()
            os.close(self._wakeup)


_STATES = frozenset({0, 1, "input"})


class _Cell:
    """A line and its edges."""

    __slots__ = ("edges", "line")

    def __init__(self, line: KernelLine) -> None:
        self.line = line
        self.edges = Edges()


class LinuxGpio(BaseDriver):
    """A `GpioDriver` over /dev/gpiochip*.

    The chip is found by `label` when it is opened, or by `path`; it offers those of `lines` that it has. Without
    `blocking` the driver derives the style from the chip's parent devices (see `linux_chips.style_of`); a chip that is
    not there yet counts as one that may sleep. `event_buffer` is the number of edges that the kernel keeps per line
    until they are read.
    """

    def __init__(
        self,
        label: str,
        lines: Sequence[LineSpec],
        *,
        path: str | None = None,
        blocking: bool | None = None,
        event_buffer: int = KERNEL_BUFFER,
    ) -> None:
        self.label = label
        self._wanted_path = path
        self._specs = {spec.offset: spec for spec in lines}
        self._buffer = event_buffer
        self._place = f"gpio chip {label}"
        self._found: ChipNode | None = None
        self._chip: gpiod.Chip | None = None
        self._pump: EdgePump | None = None
        self._cells: dict[int, _Cell] = {}
        self.style = self._find_style() if blocking is None else Style.THREAD if blocking else Style.INLINE

    def _find_style(self) -> Style:
        try:
            return style_of(find_chip(self.label, self._wanted_path).name)
        except DeviceError:
            return Style.THREAD

    def open(self) -> None:
        """Find the chip and open it; drive the lines that have an `initial` level, if not halted, and touch no other.

        Raises DeviceError (not there, ambiguous, not permitted) and ResourceBusy (another process holds such a line).
        """
        from hearth.drivers.gpio.linux_lines import KernelLine

        chip, found = open_chip(self.label, self._wanted_path)
        self._chip, self._found = chip, found
        self.shares = shared_device(entry_of(found.name))
        try:
            self._pump = EdgePump(chip.fd)
            self._cells = {
                offset: _Cell(KernelLine(self._place, chip, spec, event_buffer=self._buffer))
                for offset, spec in self._specs.items()
                if 0 <= offset < found.lines
            }
            for offset, spec in self._specs.items():
                if spec.initial is not None and not self.halted:
                    self.set(offset, spec.initial)
        except (DeviceError, ResourceBusy):
            self.close()
            raise
        except OSError as error:
            self.close()
            raise cannot_open(self.label, found.path, error.errno or 0) from error

    def close(self) -> None:
        """Release every line and the chip, end the watches, and let a running pump return; idempotent."""
        pump, self._pump = self._pump, None
        cells, self._cells = self._cells, {}
        chip, self._chip = self._chip, None
        if pump is not None:
            pump.end(f"{self._place} was closed")
            pump.close()
        for cell in cells.values():
            cell.line.release()
        if chip is not None:
            chip.close()

    async def pump(self) -> None:
        """Feed the watches until the chip is closed. Raises DeviceError once it has been unplugged."""
        pump, found = self._pump, self._found
        if pump is not None and found is not None and await pump.run():
            gone = f"{self._place} ({found.path}) was unplugged"
            pump.end(gone)
            raise DeviceError(gone, effect="none", data={"chip": self.label, "path": found.path, "errno": "ENODEV"})

    def describe(self) -> Mapping[str, Any]:
        """Return the chip and its place; `path` and `kernel_label` are null until it has been opened once."""
        found = self._found
        return {
            "kind": "gpio",
            "driver": "gpiod",
            "chip": self.label,
            "path": found.path if found is not None else self._wanted_path,
            "kernel_label": found.label if found is not None else None,
            "lines": found.lines if found is not None else len(self._specs),
            "style": self.style.value,
        }

    def held(self) -> list[int]:
        """Return the lines that this driver has requested, which a read does not change."""
        return [offset for offset, cell in self._cells.items() if cell.line.request is not None]

    def get(self, line: int) -> Level:
        """See `GpioDriver.get`."""
        cell = self._cells.get(line) or self._refuse(line)
        try:
            if cell.line.request is None:
                self._claim(cell)
            return cell.line.read()
        except DeviceError as error:
            raise self._noted(error) from error.__cause__

    def set(self, line: int, state: LineState) -> LineState:
        """See `GpioDriver.set`. On a line that is an output already this is one system call."""
        cell = self._cells.get(line) or self._refuse(line)
        if state not in _STATES:
            raise DeviceError(f"{self._place}: no such state: {state!r}", effect="none", data={"line": line})
        kernel = cell.line
        former = kernel.driven
        try:
            if former is None or cell.edges.watches or state == "input":
                return self._turn(cell, state)
            kernel.drive(state)
        except DeviceError as error:
            raise self._noted(error) from error.__cause__
        return former

    def _turn(self, cell: _Cell, state: LineState) -> LineState:
        """Bring a line to `state` the slow way: it is not ours yet, changes its direction, or is watched."""
        kernel, edges = cell.line, cell.edges
        former = kernel.state if kernel.request is not None else self._claim(cell, state)
        if kernel.state == state and state in (kernel.driven, "input"):
            return former
        if not edges.watches:
            self._change(cell, state)
            return former
        # The kernel reports no edges of an output, nor the effect of a change of direction on the level.
        pump, fd = self._watched(cell)
        with kernel.refusals("read", "none"):
            pump.before_change(edges, fd)
        before = kernel.read()
        self._change(cell, state)
        try:
            after = kernel.read() if state == "input" or kernel.open_ended else state
            with kernel.refusals("watched", "none"):
                pump.after_change(edges, fd, before, after)
        except DeviceError as error:
            # The change is done; the pump reports the end of the watches.
            self._noted(error)
        return former

    def _change(self, cell: _Cell, state: LineState) -> None:
        if state != "input":
            cell.line.drive(state)
            cell.edges.asked = None
            return
        wanted = cell.edges.wanted()
        try:
            self._listen(cell, wanted)
        except DeviceError:
            if wanted is None:
                raise
            # A chip that cannot report edges can still release a line, which matters more.
            self._listen(cell, None)

    def watch(self, line: int, edge: EdgeKind) -> Watch:
        """See `GpioDriver.watch`."""
        cell = self._cells.get(line) or self._refuse(line)
        watch = Watch(line, edge)
        try:
            if cell.line.request is None:
                self._claim(cell, edge=edge)
            pump, fd = self._watched(cell)
            with cell.line.refusals("watched", "none"):
                pump.add(cell.edges, fd, watch)
            self._detect(cell)
        except DeviceError as error:
            self.unwatch(watch)
            raise self._noted(error) from error.__cause__
        return watch

    def unwatch(self, watch: Watch) -> None:
        """End a watch, see `GpioDriver.unwatch`. Edges that the kernel has noted by now still reach the watch."""
        cell = self._cells.get(watch.line)
        if cell is not None and watch in cell.edges.watches:
            pump, fd = self._watched(cell)
            try:
                with cell.line.refusals("watched", "none"):
                    pump.remove(cell.edges, fd, watch)
                self._detect(cell)
            except DeviceError as error:
                # The watch has ended all the same; the pump reports that the chip is gone.
                self._noted(error)
        watch.close("it was ended by its owner")

    def release(self, line: int) -> None:
        """See `GpioDriver.release`."""
        self.set(line, "input")
        cell = self._cells[line]
        if not cell.edges.watches:
            cell.line.release()

    def _refuse(self, line: int) -> NoReturn:
        """Raise the error for a line that `_cells` does not have: the slow path."""
        if self._chip is None:
            raise DeviceError(f"{self._place}: the chip is not open", effect="none", data={"line": line})
        if line in self._specs and self._found is not None:
            has = f"the chip has 0 to {self._found.lines - 1}; is this the right profile for it?"
        else:
            has = f"the board lists {', '.join(map(str, sorted(self._specs))) or 'none'}"
        raise DeviceError(
            f"{self._place}: no line {line!r}; {has}", effect="none", data={"line": line, "errno": "EINVAL"}
        )

    def _claim(self, cell: _Cell, target: LineState | None = None, edge: EdgeKind | None = None) -> LineState:
        former = cell.line.claim(target, edge)
        cell.edges.restart(edge if cell.line.listens else None)
        return former

    def _watched(self, cell: _Cell) -> tuple[EdgePump, int]:
        assert self._pump is not None, "the chip is open"
        assert cell.line.request is not None, "claimed before it is watched"
        return self._pump, cell.line.request.fd

    def _detect(self, cell: _Cell) -> None:
        """Let the kernel report the edges that the watches want, as far as it can."""
        wanted = cell.edges.wanted()
        if cell.line.listens and cell.edges.asked != wanted:
            self._listen(cell, wanted)

    def _listen(self, cell: _Cell, edge: EdgeKind | None) -> None:
        cell.line.listen(edge)
        cell.edges.asked = edge

    def _noted(self, error: DeviceError) -> DeviceError:
        """Make the pump check for a removed chip after a refused operation; return the error unchanged."""
        if (error.data or {}).get("errno") == "ENODEV" and self._pump is not None:
            self._pump.ring()
        return error
