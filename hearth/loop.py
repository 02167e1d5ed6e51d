"""The pure part of a control loop: the grid of its periods, the histogram of its lateness, and what `stats()` returns.

It reads no clock, runs no thread and touches no hardware: times are integers of nanoseconds that the caller passes, so
every count can be checked without waiting. `hearth.actors.loop` runs loops.

Theory of operation. Period n is due at `start + n / hz`, computed from n each time and never from the period before,
so that no rounding and no late wake-up moves the later ones. Each period that is due is either run or missed:

    begin(now)   the newest period that is due runs; those before it that have not run are missed
    end(now)     if the next period was due before the run ended, the run has overrun: what was due by then is missed

So after `end`, `runs + missed` is the number of periods that were due, whatever happened.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OnOverrun: TypeAlias = Literal["skip", "stop"]
Scheduling: TypeAlias = Literal["fifo", "other"]

SECOND: Final = 1_000_000_000
"""Nanoseconds."""
BOUNDS_US: Final = (
    *(10, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700),
    *(1_000, 1_500, 2_000, 3_000, 5_000, 7_000, 10_000, 20_000, 50_000, 100_000, 1_000_000),
)
"""The upper bounds of the histogram's classes, in microseconds; the last class has none."""


class LoopArguments(TypedDict, total=False):
    """The keyword arguments of `Runtime.loop` beside `lines`."""

    inputs: Sequence[int | str]
    chip: str | None
    name: str
    on_overrun: OnOverrun
    watchdog_ms: float
    realtime: bool
    telemetry: int


class Grid:
    """The periods of one loop: which are due, run, missed. All times are nanoseconds of one clock."""

    __slots__ = ("_histogram", "_next", "_period", "_start", "late", "latest", "missed", "overruns", "runs", "worst")

    def __init__(self, hz: float, start: int) -> None:
        self._period = SECOND / hz
        self._start = start
        self._next = 0
        self.latest = start
        """When the period that runs, or ran last, was due."""
        self.late = 0
        """How late it began: from when the next period to run was due, which may be an earlier one that is missed."""
        self.runs = self.missed = self.overruns = 0
        self._histogram = [0] * (len(BOUNDS_US) + 1)
        self.worst = 0
        """The greatest lateness, in nanoseconds."""

    def _due(self, number: int) -> int:
        return self._start + round(number * self._period)

    @property
    def due(self) -> int:
        """The time at which the next period is due."""
        return self._due(self._next)

    def _newest(self, now: int) -> int:
        """Return the number of the newest period that is due at `now`."""
        number = int((now - self._start) / self._period)
        # The division of floating-point numbers may be one off at the edge.
        while self._due(number) > now:
            number -= 1
        while self._due(number + 1) <= now:
            number += 1
        return number

    def begin(self, now: int) -> bool:
        """Begin to run the newest period that is due; `due` must have come. Returns False if earlier ones are missed.

        The lateness goes to the histogram. It counts from `due`, so a thread that sleeps through ten periods is late by
        more than ten.
        """
        late = self.late = now - self.due
        number = self._newest(now)
        missed = number - self._next
        self.missed += missed
        self._next = number + 1
        self.latest = self._due(number)
        self._histogram[bisect_left(BOUNDS_US, late / 1000)] += 1
        self.worst = max(self.worst, late)
        return not missed

    def end(self, now: int) -> bool:
        """End the run; returns False if it has overrun. The next period to run is the first that is due after `now`."""
        self.runs += 1
        if now <= self.due:
            return True
        self.overruns += 1
        number = self._newest(now)
        self.missed += number + 1 - self._next
        self._next = number + 1
        return False

    def histogram(self) -> list[int]:
        """Return the number of runs in each class of lateness; see `BOUNDS_US`."""
        return list(self._histogram)


@frozen(kw_only=True)
class Sample:
    """A value that a loop has emitted: its number, from 1, and the seconds from the loop's start to its period."""

    seq: int
    time: float
    value: Any


@frozen(kw_only=True)
class LoopStats:
    """What a control loop has done so far. `runs + missed` is the number of periods that were due."""

    hz: float
    scheduling: Scheduling
    """`fifo`: SCHED_FIFO, before all ordinary threads of the machine; `other`: not permitted, or not asked for."""
    runs: int
    missed: int
    """Periods that did not run, because the one before took too long or the thread woke too late."""
    overruns: int
    """Runs that went on when the next period was due."""
    writes: Mapping[str, int]
    """By line: the writes that were made."""
    last: Mapping[str, int | None]
    """By line: the level that was written last; None if there was none."""
    refused: int
    """Writes that a limit, an interlock or the halt refused: nothing was driven."""
    failed: int
    """Writes whose effect is not known, because the device failed."""
    emitted: int
    dropped: int
    """Emitted values that were dropped, the oldest first, because they were not read in time."""
    lateness: Sequence[int] = field(repr=False)
    """Runs by lateness, in the classes of `hearth.loop.BOUNDS_US`."""
    worst_us: float
    """The greatest lateness in microseconds."""
    ended: str | None
    """The reason why the loop has ended; None while it runs."""

    def late_us(self, share: float) -> float:
        """Return the microseconds of lateness that this share of the runs (0.99: 99 %) did not exceed.

        That is the upper bound of a class of the histogram, or `worst_us` where that is less; 0 before the first run.
        """
        wanted = share * sum(self.lateness)
        seen = 0
        for bound, count in zip((*BOUNDS_US, self.worst_us), self.lateness, strict=True):
            seen += count
            if seen >= wanted:
                return min(float(bound), self.worst_us)
        return self.worst_us
