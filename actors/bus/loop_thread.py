"""The thread of one control loop, and the interface through which the loop's function reaches its lines.

It owns when the function runs and what is counted, and calls the driver of its bus. `hearth.actors.loop` grants the
lines, watches this thread and writes the records; `hearth.loop` counts the periods.

Theory of operation. Three kinds of threads may call the driver of a bus that is lent to a loop (`Bus.lend`): the bus's
worker, which runs the transactions, and the thread of each loop on it. They hold `turn`, the bus's lock, for one
transaction or one call, so that the driver still has one caller at a time. The Trio thread never waits for that lock: a
call that hangs holds up the worker, and the bus is wedged by the rule that holds for every transaction.

Every write goes through the guarded driver (`guard.BusGuard`): halt, interlocks and limits are asked before it. The
guard also has the loop's claim (`OutputClaim`): while the loop has an output, a write of any other requester is
refused, and an output that is brought to its safe state, for whatever cause, ends the loop.

States of a thread:

    parked ---- go ----> running ---- end ----> ended ---- its function returns ----> exited
       +------------------------------------------^

- `end` may be called in any thread; the first reason stays. It is one flag, which every call of the driver reads while
  it holds the turn. So once `end` has returned and the turn has been taken once, nothing of this thread can reach the
  driver, even if its function never returns.
- A thread that ends by itself (its function raised, it overran, its authority ran out) brings its outputs to their
  safe state itself, at once. If another component ends it, that component does (`loop.ControlLoop`, the halt).
- *Authority.* The thread may begin a period, and write, only until `until`, which the Trio thread moves on with each
  record that has been written. So nothing is driven for long without records, also if the event loop hangs.
- *Watchdog.* `stuck_for` tells how long no period has begun or ended; the Trio thread asks it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import outcome
import trio

from hearth.drivers.base import Wakeup
from hearth.errors import Halted, PermissionDenied, ResourceBusy, RpcError, denied, effect_of
from hearth.loop import SECOND, Grid, LoopStats, OnOverrun, Sample, Scheduling

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from hearth.actors.bus.guard import BusGuard
    from hearth.drivers.signals import Level

PRIORITY: Final = 20
"""Of SCHED_FIFO: above ordinary threads, below the kernel's interrupt threads (50)."""
_PR_SET_TIMERSLACK: Final = 29
OVERRUN: Final = "a period was missed, and on_overrun is stop"
HALTED: Final = "the daemon was halted"
UNRECORDED: Final = "its digests were not written in time"


class LoopClock(Protocol):
    """The clock that a loop's periods follow; tests have another one than the machine's."""

    def now(self) -> int:
        """Return the time in nanoseconds; never goes back."""
        ...

    def wait(self, until: int, ended: threading.Lock) -> None:
        """Return at this time, or as soon as the lock `ended` can be acquired."""


class MachineClock:
    """CLOCK_MONOTONIC."""

    def now(self) -> int:
        """See LoopClock."""
        return time.monotonic_ns()

    def wait(self, until: int, ended: threading.Lock) -> None:
        """See LoopClock."""
        left = until - time.monotonic_ns()
        if left > 0:
            # A wait for a lock wakes as precisely as a sleep, and `end` can cut it short.
            ended.acquire(timeout=left / SECOND)


class LoopEnded(BaseException):
    """Raised by the interface of a loop that has ended, to leave its function; nothing was done.

    No Exception, as trio.Cancelled is none: a function that handles refusals must not hold on to a loop that is over.
    """


class _Output:
    """A line that the loop drives."""

    __slots__ = ("last", "name", "offset", "writes")

    def __init__(self, name: str, offset: int) -> None:
        self.name = name
        self.offset = offset
        self.writes = 0
        self.last: int | None = None


class LoopThread:
    """One control loop's thread. `outputs` and `inputs` map each spelling that its function may use to an offset.

    `halted` tells, in any thread, if the daemon is halted. `wakeup` is woken when the loop has ended, and has exited.
    Made in the Trio thread.
    """

    def __init__(
        self,
        name: str,
        hz: float,
        function: Callable[[LoopIO], object],
        guard: BusGuard,
        *,
        outputs: Mapping[int | str, int],
        inputs: Mapping[int | str, int],
        names: Mapping[int, str],
        on_overrun: OnOverrun,
        telemetry: int,
        clock: LoopClock,
        halted: Callable[[], bool],
    ) -> None:
        self.name = name
        self.hz = hz
        self.turn = threading.Lock()
        """The lock of the bus's turns; replaced by `Bus.lend`."""
        self.guard = guard
        self.reason: str | None = None
        """The reason why the loop has ended, or None."""
        self.failure: BaseException | None = None
        """The exception that its function has raised."""
        self.exited = False
        """True, in the Trio thread, once the thread uses nothing any more."""
        self.on_exit: Callable[[], None] | None = None
        """Called then, in the Trio thread."""
        self.wakeup = Wakeup()
        self.scheduling: Scheduling = "other"
        self.clock = clock
        self.grid = Grid(hz, clock.now())
        self.until = 0
        """The time, of CLOCK_MONOTONIC in nanoseconds, after which no period begins and nothing is written."""
        self.writing = False
        """True while this thread's own write holds the turn."""
        self.refused = self.failed = 0
        self.by_offset = {offset: _Output(names[offset], offset) for offset in outputs.values()}
        self.outputs = {spelling: self.by_offset[offset] for spelling, offset in outputs.items()}
        self.inputs = {**inputs, **outputs}
        self.stopping: str | None = None
        """Set by the function when it wants no further period."""
        self.emitted = 0
        self.taken = 0
        self._ring: deque[Sample] = deque(maxlen=telemetry)
        self._function = function
        self._stops = on_overrun == "stop"
        self._halted = halted
        self._barred = False
        self._beat = 0
        self._parked = True
        self._token = trio.lowlevel.current_trio_token()
        self._wake = threading.Lock()
        self._go = threading.Lock()
        self._ending = threading.Lock()
        self._wake.acquire()
        self._go.acquire()
        self._thread = threading.Thread(target=self._run, name=f"hearth-loop {name}", daemon=True)

    # --- called in the Trio thread ------------------------------------------------------------------------------

    def start(self, *, realtime: bool) -> str | None:
        """Start the thread, which waits for `go`; return why it has no SCHED_FIFO, or None."""
        self._thread.start()
        if not realtime:
            return None
        assert self._thread.native_id is not None
        try:
            # Threads that the function starts do not inherit it.
            policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(self._thread.native_id, policy, os.sched_param(PRIORITY))
        except OSError as error:
            return f"{error.strerror}: it takes CAP_SYS_NICE, or RLIMIT_RTPRIO of {PRIORITY} (LimitRTPRIO=)"
        self.scheduling = "fifo"
        return None

    def go(self, authority: float) -> None:
        """Let the first period begin; see `renew`."""
        self._beat = time.monotonic_ns()
        self.renew(self._beat, authority)
        with self._ending:
            self._unpark()

    def _unpark(self) -> None:
        if self._parked:
            self._parked = False
            self._go.release()

    def renew(self, counted_at: int, authority: float) -> None:
        """Extend the authority to so many seconds after the counts were taken that are on record now."""
        self.until = counted_at + int(authority * SECOND)

    def stuck_for(self) -> float:
        """Return the seconds since a period has begun or ended, beyond the length of a period."""
        return (time.monotonic_ns() - self._beat) / SECOND - 1 / self.hz

    def bar(self, reason: str) -> None:
        """End the loop, whose driver is about to be closed: not even its outputs are made safe in its thread."""
        self._barred = True
        self.end(reason)

    def join(self) -> None:
        """Wait until no call of this thread is inside the driver; none begins after `end`. See `workers.Worker`."""
        with self.turn:
            pass

    # --- called in any thread -----------------------------------------------------------------------------------

    def ended(self) -> bool:
        """Return True once the loop has ended; its function may still run."""
        return self.reason is not None

    def end(self, reason: str, failure: BaseException | None = None) -> bool:
        """End the loop; return False if it has ended already, for another reason."""
        with self._ending:
            if self.reason is not None:
                return False
            self.failure, self.reason = failure, reason
            self._wake.release()
            self._unpark()
        self.wakeup.wake()
        return True

    def check(self, output: Hashable) -> None:
        """See `guard.OutputClaim`."""
        if not self.writing:
            raise self.busy(output)

    def busy(self, output: Hashable) -> ResourceBusy:
        """Return the refusal of another requester's write."""
        bus, name = self.guard.bus_id, self._called(output)
        text = f"gpio line {name} of bus {bus} is driven by the control loop {self.name!r}; nothing was driven"
        return ResourceBusy(text, data={"bus": bus, "line": name, "reason": "control loop", "effect": "none"})

    def made_safe(self, output: Hashable) -> None:
        """See `guard.OutputClaim`."""
        self.end(HALTED if self._halted() else f"line {self._called(output)} was brought to its safe state")

    def _called(self, output: Hashable) -> str:
        found = self.by_offset.get(output)  # type: ignore[call-overload]
        return str(output) if found is None else str(found.name)

    def samples(self) -> list[Sample]:
        """Remove and return the emitted values that are there, oldest first."""
        found: list[Sample] = []
        while self._ring:
            found.append(self._ring.popleft())
        self.taken += len(found)
        return found

    def emit(self, sample: Sample) -> None:
        """Keep an emitted value; the oldest is dropped if there is no room."""
        self._ring.append(sample)
        self.emitted = sample.seq

    def stats(self) -> LoopStats:
        """Return what has been done so far; while the loop runs, its numbers may differ by what is being counted."""
        grid = self.grid
        return LoopStats(
            hz=self.hz,
            scheduling=self.scheduling,
            runs=grid.runs,
            missed=grid.missed,
            overruns=grid.overruns,
            writes={output.name: output.writes for output in self.by_offset.values()},
            last={output.name: output.last for output in self.by_offset.values()},
            refused=self.refused,
            failed=self.failed,
            emitted=self.emitted,
            dropped=max(0, self.emitted - self.taken - len(self._ring)),
            lateness=grid.histogram(),
            worst_us=grid.worst / 1000,
            ended=self.reason,
        )

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        # Without SCHED_FIFO the kernel wakes a thread up to 50 us late, to save power, unless it is told otherwise.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self._go.acquire()
        result = outcome.capture(self._periods)
        if isinstance(result, outcome.Value):
            ended = result.value is not None and self.end(result.value)
        else:
            error: BaseException = result.error
            why = f"its function raised {type(error).__name__}: {error}"[:256]
            if isinstance(error, (Halted, LoopEnded)):
                ended = self.end(HALTED if isinstance(error, Halted) else UNRECORDED)
            else:
                ended = self.end(why, error)
        if ended:
            # This thread has decided it: no other component has made the outputs safe, or is about to.
            with self.turn:
                # During a halt they go to their safe states in the order of its stop sequence.
                if not self._barred and not self._halted():
                    # A bug of the driver is met again by the bus, which makes them safe too.
                    outcome.capture(self.guard.face.make_safe, list(self.by_offset))
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._exit)

    def _exit(self) -> None:
        self.exited = True
        self.wakeup.wake()
        if self.on_exit is not None:
            self.on_exit()

    def _periods(self) -> str | None:
        """Run the periods; return the reason why this thread ends the loop, or None if it was ended."""
        clock, function = self.clock, self._function
        if self.ended():
            return None
        grid = self.grid = Grid(self.hz, clock.now())
        io = LoopIO(self)
        while True:
            while (now := clock.now()) < grid.due:
                clock.wait(grid.due, self._wake)
                if self.ended():
                    return None
            if time.monotonic_ns() > self.until:
                return UNRECORDED
            if not grid.begin(now) and self._stops:
                return OVERRUN
            self._beat = time.monotonic_ns()
            io.begin(grid.latest, grid.late)
            function(io)
            self._beat = time.monotonic_ns()
            in_time = grid.end(clock.now())
            if self.ended():
                return None
            if self.stopping is not None:
                return self.stopping
            if not in_time and self._stops:
                return OVERRUN


class LoopIO:
    """The interface of a control loop's function: its lines, its time, its telemetry. Only for the loop's own thread.

    Each call of `read` and `write` is one call of the driver, in its turn among the bus's transactions.
    """

    __slots__ = ("_face", "_ident", "_latest", "_start", "_thread", "dt", "late", "time")

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._face = thread.guard.face
        self._ident = threading.get_ident()
        self._start = thread.grid.latest
        self._latest: int | None = None
        self.time = 0.0
        """Seconds from the loop's start to when this period was due."""
        self.dt = 1 / thread.hz
        """Seconds from the period that ran before to this one: more than a period if some were missed."""
        self.late = 0.0
        """Seconds by which the function is called too late; more than a period if some were missed because of it."""

    def begin(self, due: int, late: int) -> None:
        """Begin a period; for the loop's thread."""
        self.late = late / SECOND
        if self._latest is not None:
            self.dt = (due - self._latest) / SECOND
        self._latest = due
        self.time = (due - self._start) / SECOND

    def read(self, line: int | str) -> Level:
        """Return the present level of one of the loop's lines, inputs or outputs.

        Raises PermissionDenied for another line, and DeviceError.
        """
        thread = self._mine()
        offset = thread.inputs.get(line)
        if offset is None:
            raise self._not_granted(line, thread.inputs)
        with thread.turn:
            if thread.ended():
                raise LoopEnded
            return self._face.get(offset)  # type: ignore[no-any-return]

    def write(self, line: int | str, level: int) -> None:
        """Drive one of the loop's output lines to 0 or 1.

        Raises PermissionDenied for another line; LimitViolated, InterlockOpen or Halted, after which the line is as it
        was; DeviceError. A function that lets any of them pass ends its loop. Once the loop has ended, each call leaves
        the function by a BaseException.
        """
        thread = self._mine()
        output = thread.outputs.get(line)
        if output is None:
            raise self._not_granted(line, thread.outputs)
        if level not in (0, 1):
            raise ValueError(f"gpio line {line}: the level is 0 or 1, not {level!r}")
        with thread.turn:
            if thread.ended() or time.monotonic_ns() > thread.until:
                raise LoopEnded
            thread.writing = True
            try:
                self._face.set(output.offset, int(level))
            except RpcError as error:
                if effect_of(error) == "none":
                    thread.refused += 1
                else:
                    thread.failed += 1
                raise
            finally:
                thread.writing = False
            output.writes += 1
            output.last = level

    def emit(self, value: Any) -> None:
        """Hand a value to the readers of the loop's telemetry; it must not be changed afterwards. Never waits."""
        thread = self._mine()
        thread.emit(Sample(seq=thread.emitted + 1, time=self.time, value=value))

    def stop(self, reason: str = "its function stopped it") -> None:
        """End the loop when this period's run returns."""
        self._mine().stopping = reason

    def _mine(self) -> LoopThread:
        if threading.get_ident() != self._ident:
            raise RuntimeError("the interface of a control loop is for the loop's own thread, while its function runs")
        return self._thread

    def _not_granted(self, line: object, granted: Mapping[int | str, object]) -> PermissionDenied:
        listed = ", ".join(map(str, granted)) or "none"
        return denied(f"line {line!r} is not granted to the control loop {self._thread.name!r}, which has {listed}")
