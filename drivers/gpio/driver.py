"""GPIO: the interface of a chip's driver, and the values of lines, edges and watches.

A driver here is one chip. This module owns the vocabulary (a line's state, an edge, a watch, the lines of a halt) and
the one rule that all chips share, bringing lines to their safe state; it does not access a chip.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import trio
from attrs import frozen

from hearth.drivers.base import Driver, Wakeup
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from hearth.drivers.signals import Level, LineState


EdgeKind: TypeAlias = Literal["rising", "falling", "both"]


WATCH_CAPACITY = 1024
"""Edges that wait for a slow watcher before the oldest are dropped: over 10 ms of a 100 kHz square wave."""


@frozen
class Edge:
    """One change of a line's level.

    `timestamp_ns` is CLOCK_MONOTONIC; `seq` counts a watch's edges from 1.
    """

    line: int
    value: Level
    edge: Literal["rising", "falling"]
    timestamp_ns: int
    seq: int


class Watch:
    """The edges of one line, from the moment the driver began to watch it.

    The driver feeds it, from any thread; one task receives. When the receiver is slower than the line the oldest edges
    are dropped, `dropped` counts them, and `seq` shows the gap.
    """

    __slots__ = ("_capacity", "_closed", "_edges", "_seq", "_wakeup", "dropped", "edge", "line")

    def __init__(self, line: int, edge: EdgeKind, *, capacity: int = WATCH_CAPACITY) -> None:
        self.line = line
        self.edge: EdgeKind = edge
        self.dropped = 0
        self._capacity = capacity
        self._edges: deque[Edge] = deque()
        self._seq = 0
        self._closed: str | None = None
        self._wakeup = Wakeup()

    def feed(self, value: Level, timestamp_ns: int) -> None:
        """Add an edge (driver's side): the line is now at `value`. Edges this watch did not ask for are not counted."""
        kind: Literal["rising", "falling"] = "rising" if value else "falling"
        if self._closed is not None or self.edge not in (kind, "both"):
            return
        self._seq += 1
        if len(self._edges) >= self._capacity:
            self._edges.popleft()
            self.dropped += 1
        self._edges.append(Edge(self.line, value, kind, timestamp_ns, self._seq))
        self._wakeup.wake()

    def lost(self, count: int) -> None:
        """Count lost edges (driver's side): the kernel dropped `count` edges before they could be read."""
        self._seq += count
        self.dropped += count

    def close(self, reason: str) -> None:
        """Close the watch (driver's side): no more edges will come, because of `reason`. Idempotent."""
        if self._closed is None:
            self._closed = reason
            self._wakeup.wake()

    @property
    def ended(self) -> bool:
        """True once no more edges will come: the owner has ended it, or the chip is gone or closed."""
        return self._closed is not None

    def _ready(self) -> bool:
        return bool(self._edges) or self.ended

    async def receive(self) -> Edge:
        """Wait for the next edge, off the bus: cancelling this reaches no hardware.

        Raises DeviceError once the watch is closed and its last edge has been received.
        """
        # A whole checkpoint: a chattering line must not keep other tasks from running.
        await trio.lowlevel.checkpoint()
        await self._wakeup.until(self._ready)
        if self._edges:
            return self._edges.popleft()
        raise DeviceError(
            f"the watch on line {self.line} ended: {self._closed}", effect="none", data={"line": self.line}
        )


class GpioDriver(Driver, Protocol):
    """One GPIO chip. Every operation is a plain function, one transaction, and bounded to one system call.

    Operations come from one caller at a time, in whatever thread: the bus, or a control loop in its turn.
    """

    def get(self, line: int) -> Level:
        """Return the line's present level, whatever drives it. Raises DeviceError, ResourceBusy."""
        ...

    def set(self, line: int, state: LineState) -> LineState:
        """Bring a line to `state` and return its former one, which `set` takes to go back."""
        ...

    def release(self, line: int) -> None:
        """Make a line an input, and give it back to the kernel unless it is watched: other programs may use it then."""
        ...

    def watch(self, line: int, edge: EdgeKind) -> Watch:
        """Begin to report edges.

        A line may have many watches, and may be driven while it is watched: its changes are reported.
        """
        ...

    def unwatch(self, watch: Watch) -> None:
        """End a watch; idempotent, also for one that a reopened driver no longer knows."""
        ...
