"""GPIO: the interface of a chip's driver, and the values of lines, edges and watches.

A driver here is one chip. This module owns the vocabulary (a line's state, an edge, a watch, the lines of a halt) and
the one rule that all chips share, bringing lines to their safe state; it does not access a chip.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

import trio
from attrs import asdict, frozen

from hearth.drivers.base import Driver, Wakeup, bring_outputs_to_safe
from hearth.errors import DeviceError
from hearth.fields import STRINGS, Integer, Number

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from hearth.drivers.signals import SignalLevel

Level: TypeAlias = Literal[0, 1]
LineState: TypeAlias = Literal[0, 1, "input"]
"""The state that hearth gives a line: driven low, driven high, or input (high impedance)."""
EdgeKind: TypeAlias = Literal["rising", "falling", "both"]
Hold: TypeAlias = Literal["release", "keep"]
Direction: TypeAlias = Literal["any", "input", "output"]
Pull: TypeAlias = Literal["as-is", "none", "up", "down"]
"""`as-is` leaves the bias as the kernel found it; `none` switches it off."""
Drive: TypeAlias = Literal["push-pull", "open-drain", "open-source"]

Duration: TypeAlias = Annotated[float, Number(gt=0, le=86_400_000)]
"""Milliseconds, at most a day."""

WATCH_CAPACITY = 1024
"""Edges that wait for a slow watcher before the oldest are dropped: over 10 ms of a 100 kHz square wave."""


@frozen
class LineLimit:
    """The limits of an output in time; it is on while it is driven to 1, and off at 0 and as an input.

    `min_on_ms` and `min_off_ms` are the least times between two switchings, `max_on_ms` the longest time on, after
    which the bus brings the line to its safe state; `max_rate_hz` says how often a second it may be switched on. None:
    no limit.
    """

    min_on_ms: Duration | None = None
    max_on_ms: Duration | None = None
    min_off_ms: Duration | None = None
    max_rate_hz: Annotated[float, Number(gt=0, le=1_000_000)] | None = None

    def to_json(self) -> dict[str, float]:
        """Return the limits that there are, for hw.gpio.list."""
        return asdict(self, filter=lambda _attribute, value: value is not None)


@frozen
class LineSpec:
    """A line in a board's profile.

    `safe` and `hold` decide the line's state after the session that drove it has ended. `direction = "input"` means
    that hearth never drives it. `reserved` is the reason why it may not be used at all, or None. With `active_low` 1 is
    the low voltage. `initial` is driven from the moment the bus opens. `functions` are the pin's other functions ("ALT0
    SDA1"): information, hearth does not switch it. `limit` bounds how it may be switched.
    """

    offset: int
    name: str
    safe: LineState = "input"
    hold: Hold = "release"
    direction: Direction = "any"
    pull: Pull = "as-is"
    reserved: str | None = None
    note: str | None = None
    active_low: bool = False
    drive: Drive = "push-pull"
    debounce_us: Annotated[int, Integer(0, 1_000_000)] = 0
    """At most a second: a longer bounce is no contact's."""
    initial: Level | None = None
    functions: Annotated[tuple[str, ...], STRINGS] = ()
    limit: LineLimit | None = None


@frozen
class HaltLine:
    """A line that `[halt]` names: the label of its chip, its offset, and its name."""

    chip: str
    offset: int
    name: str

    @property
    def bus(self) -> str:
        """Return the id of its bus."""
        return f"gpio:{self.chip}"


@frozen
class HaltInput(HaltLine):
    """An input that halts: at the level `stop`, or, with `timeout_ms`, after so many milliseconds without an edge."""

    stop: Level = 1
    timeout_ms: Annotated[int, Integer(20, 3_600_000)] | None = None


@frozen
class StopEntry:
    """One entry of the stop sequence: `after_ms` after the entry before it, the output goes to `value`.

    `output` is its number on the chip of `bus`; `key` is "line" or "channel".
    """

    key: Literal["line", "channel"]
    bus: str
    output: int
    name: str
    value: LineState | SignalLevel = 0
    after_ms: int = 0


@frozen
class Heartbeat(HaltLine):
    """The output that toggles while the daemon is healthy and not halted: `hz` periods a second."""

    hz: float = 1.0


@frozen
class HaltSpec:
    """The section `[halt]` of a profile.

    With a `sequence` a halt is a stop of category 1 (IEC 60204-1), without one of category 0.
    """

    inputs: tuple[HaltInput, ...] = ()
    sequence: tuple[StopEntry, ...] = ()
    heartbeat: Heartbeat | None = None


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

    def watch(self, line: int, edge: EdgeKind) -> Watch:
        """Begin to report edges.

        A line may have many watches, and may be driven while it is watched: its changes are reported.
        """
        ...

    def unwatch(self, watch: Watch) -> None:
        """End a watch; idempotent, also for one that a reopened driver no longer knows."""
        ...


def bring_to_safe(
    driver: GpioDriver, specs: Mapping[int, LineSpec], outputs: Iterable[Hashable], *, kept: bool = False
) -> list[dict[str, Any]]:
    """Bring `outputs` (offsets) to the profile's safe state; see `base.bring_to_safe`."""
    return bring_outputs_to_safe(driver.set, specs, outputs, "line", kept=kept)
