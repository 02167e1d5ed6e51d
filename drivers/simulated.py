"""Parts of all simulated buses: the clock that they wait by, injected faults, and a wire."""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import trio
from attrs import define

from hearth.drivers.base import BaseDriver, Style, Wakeup, finish_now

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from hearth.drivers.registers import Outcome
    from hearth.errors import DeviceError

T = TypeVar("T")
FaultKind = Literal["nack", "timeout", "busy", "wedge", "error"]


@define(eq=False)
class SimFault:
    """One fault of the next `times` transactions with `addr` (None: any), after `after` data bytes."""

    kind: FaultKind
    times: float
    addr: int | None
    after: int
    seconds: float = 0.0


class Faults:
    """The faults of one simulated bus. `latency_s` is added to every transaction."""

    def __init__(self, style: Style) -> None:
        self.latency_s = 0.0
        self._style = style
        self._planned: list[SimFault] = []
        self._released = threading.Event()
        self._wakeup = Wakeup()
        self._held = 0

    def nack(self, times: int = 1, *, addr: int | None = None, after: int = 0) -> None:
        """The device stops acknowledging: at its address, or after `after` data bytes of the transaction."""
        self._plan(SimFault("nack", times, addr, after))

    def timeout(self, times: int = 1, *, addr: int | None = None, after: int = 0, seconds: float = 0.025) -> None:
        """The device holds the clock for `seconds`, and the adapter gives up with TimedOut."""
        self._plan(SimFault("timeout", times, addr, after, seconds))

    def busy(self, times: int = 1, *, addr: int | None = None, after: int = 0) -> None:
        """Another controller wins the bus (arbitration), at the address or behind `after` data bytes."""
        self._plan(SimFault("busy", times, addr, after))

    def wedge(self, *, addr: int | None = None, after: int = 0) -> None:
        """Transactions hang at that place until `release`, then go on.

        Raises ValueError for an INLINE driver.
        """
        if self._style is Style.INLINE:
            raise ValueError("an INLINE driver cannot be wedged: it would hold up the whole process")
        self._released.clear()
        self._plan(SimFault("wedge", math.inf, addr, after))

    def release(self) -> None:
        """Continue all hanging transactions, and wedge no more."""
        self._planned = [fault for fault in self._planned if fault.kind != "wedge"]
        self._released.set()
        self._wakeup.wake()

    def clear(self) -> None:
        """Remove all faults and the extra latency."""
        self.latency_s = 0.0
        self._planned = []
        self.release()

    @property
    def held(self) -> int:
        """Return the number of transactions that hang in a wedge now."""
        return self._held

    async def wait_held(self) -> None:
        """Wait until a transaction hangs: the moment at which a test cancels, closes or kills."""
        await self._wakeup.until(lambda: self._held)

    def _plan(self, fault: SimFault) -> None:
        self._planned = [*self._planned, fault]

    def pick(self, addr: int | None) -> SimFault | None:
        """Return the fault of the transaction that begins now, if any (simulator's side)."""
        if not self._planned:
            return None
        for fault in self._planned:
            if fault.addr in (None, addr):
                fault.times -= 1
                if fault.times <= 0:
                    self._planned = [other for other in self._planned if other is not fault]
                return fault
        return None

    async def hold(self) -> None:
        """Hang until `release` (simulator's side); in a bus's thread (THREAD) that really blocks it."""
        self._held += 1
        self._wakeup.wake()
        try:
            if self._style is Style.THREAD:
                self._released.wait()
            else:
                await self._wakeup.until(self._released.is_set)
        finally:
            self._held -= 1


Clock = Callable[[], float]


LOG_LENGTH = 1024


def clock_for(style: Style) -> Clock:
    """Return Trio's clock, which may be virtual, for ASYNC; else the machine's."""
    return trio.current_time if style is Style.ASYNC else time.monotonic


@define(eq=False)
class Progress:
    """The pace and the fault of a transaction: `due` is the time of its last byte, `moved` its number of data bytes."""

    due: float
    fault: SimFault | None
    moved: int = 0


class SimWire(BaseDriver):
    """A simulated bus on which each byte takes its time. `log` has its transactions, byte by byte.

    THREAD blocks as a kernel does, ASYNC sleeps in Trio's time, INLINE takes no time.
    """

    simulated = True

    def __init__(self, style: Style, faults: Faults, byte_s: float) -> None:
        self.style = style
        self.faults = faults
        self.log: deque[Any] = deque(maxlen=LOG_LENGTH)
        self.overlaps = 0
        """Count of transactions that began while another was running: a bus must keep this at 0."""
        self._in_flight = 0
        self._opened = False
        self._byte_s = 0.0 if style is Style.INLINE else byte_s
        self._clock = clock_for(style)
        self._block = time.sleep

    def open(self) -> None:
        """Offer the bus."""
        self._opened = True

    def close(self) -> None:
        """Stop offering the bus."""
        self._opened = False

    def _outcome(self, coroutine: Coroutine[Any, Any, T]) -> Outcome[T]:
        return finish_now(coroutine) if self.style is Style.INLINE else coroutine

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.overlaps += self._in_flight > 0
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def _delay(self, seconds: float) -> None:
        if seconds > 0:
            if self.style is Style.ASYNC:
                await trio.sleep(seconds)
            elif self.style is Style.THREAD:
                self._block(seconds)

    async def _tick(self, progress: Progress) -> None:
        """Wait for the time of one byte, and apply the planned fault."""
        fault = progress.fault
        if fault is not None and progress.moved >= fault.after:
            progress.fault = None
            if fault.kind != "wedge":
                await self._delay(fault.seconds)
                raise self._failure(fault, progress)
            await self.faults.hold()
        if self._byte_s:
            # Against a schedule: the system's own delays do not add up over a long transaction.
            progress.due += self._byte_s
            await self._delay(progress.due - self._clock())

    @abstractmethod
    def _failure(self, fault: SimFault, progress: Progress) -> DeviceError:
        """Return the error of a fault."""


class Tank:
    """A tank of water: a pump fills it while it runs, an outlet drains it all the time; the level is in percent.

    The level follows from the clock and from the moments at which the pump was switched, so the same moments give the
    same level, in virtual time as in real time. Time counts from the first call.
    """

    def __init__(self, clock: Clock, *, start: float, fill: float, drain: float) -> None:
        self._clock = clock
        self._level = start
        self._fill, self._drain = fill, drain
        self._at: float | None = None
        self._pumping = False
        # The level is read in the thread of the sensor's bus, and the pump is switched in another one.
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the level now: 0 to 100."""
        with self._lock:
            self._flow()
            return self._level

    def put(self, level: float) -> None:
        """Set the level, as a person with a bucket does."""
        with self._lock:
            self._flow()
            self._level = level

    def pump(self, running: object) -> None:
        """Switch the pump on (1) or off."""
        with self._lock:
            self._flow()
            self._pumping = running == 1

    def _flow(self) -> None:
        """Let the water flow that flows between the last call and now. The lock is held."""
        now = self._clock()
        at, self._at = now if self._at is None else self._at, now
        rate = (self._fill if self._pumping else 0.0) - self._drain
        self._level = min(max(self._level + rate * (now - at), 0.0), 100.0)
