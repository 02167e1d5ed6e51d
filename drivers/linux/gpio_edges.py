"""Edges from the kernel to the watches of a chip's lines: in order, each once, and with every gap counted.

It owns the records that a line request's descriptor delivers, the count of lost records, and the wait for them. They
are read from the descriptor itself, whose layout is the kernel's promise (struct gpio_v2_line_event in linux/gpio.h),
so that the Trio thread touches no object that the bus's thread may be using. It makes no system call that may sleep,
and does not know a line's configuration.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from hearth.drivers.gpio import EdgeKind, Level, Watch

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
