"""A control loop: a function that runs `hz` times a second in a thread of its own and drives lines it was granted once.

It owns the life of a loop: the grant, the records, the watchdog, the end. `bus.loop_thread` runs the function,
`hearth.loop` counts its periods, `embedded` opens the loop's session and submits its task.

Theory of operation. A loop is a task of one step, in a session of its own. So what ends a task ends a loop: the end of
its session or of the runtime, a halt, a request to cancel, a policy without its principal. The task is submitted as
other tasks are, with a `gpio.set` for each output and a `gpio.get` for each input, which pass every check of a
submission (`admission`): tools, risk, approval, hardware of the policy entry, rates, halt, audit log. In place of those
steps runs one step, `ControlLoop._run`:

    grant -------> start ------> supervise -------> end
    claim lines    loop.start    loop.digest        outputs safe, loop.stop
                                 each second

1. *Grant.* The bus lends its driver (`Bus.lend`). One transaction for each output enters the session as its holder, so
   that it is on the list of driven outputs, and the loop's claim into the guard. From here on no other requester drives
   these lines; all other transactions of the bus go on.
2. *Start.* The record `loop.start` is as durable as configured before the first period begins.
3. *Supervise.* Each second a `loop.digest` record says what was counted since the record before. It extends the loop's
   authority: without it nothing is driven after `AUTHORITY_S`. The watchdog ends a loop whose thread makes no progress.
4. *End*, for whatever reason. The flag that `LoopThread.end` sets bars the thread from the driver; then the session's
   outputs are brought to their safe state, in a transaction of the bus; then `loop.stop` has the rest of the counts.
   A thread that is stuck inside the driver holds the bus's turn: the safe state waits for it, the bus becomes wedged,
   and is lent until the thread has left the driver. One that is stuck in the function itself can no longer reach it.

The sum of the counts in `loop.digest` and `loop.stop` is what the loop did. A process that is killed loses the counts
since the last digest; its start makes the outputs safe, which are on the list since the grant.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field, frozen

from hearth.actors.bus.actor import SAFE_STATE_LIMIT, make_safe
from hearth.actors.bus.loop_thread import HALTED, LoopThread, MachineClock
from hearth.actors.bus.queue import Requester, Ticket
from hearth.actors.step import StepRun, StepScope
from hearth.errors import AuditUnavailable, DeviceError, InvalidParams, LoopStopped
from hearth.protocol.submissions import StepSpec, TaskSubmit
from hearth.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hearth.actors.bus.actor import Bus
    from hearth.actors.bus.interlocks import Interlock, Interlocks
    from hearth.actors.bus.loop_thread import LoopClock, LoopIO
    from hearth.actors.journal import Journal
    from hearth.drivers.boards import Board
    from hearth.loop import LoopStats, OnOverrun, Sample
    from hearth.tools import StepContext

log = logging.getLogger("hearth.loop")

DIGEST_S: Final = 1.0
"""Seconds between two digests."""
AUTHORITY_S: Final = 3.0
"""Seconds, after the counts of the last record that is written, in which anything is driven."""
MAX_HZ: Final = 10_000
MIN_HZ: Final = 0.1
MOST_LINES: Final = 64
LEAVE_S: Final = 0.25
"""Seconds that the end of a loop waits for its function to return."""
SAFE_S: Final = 1.0
"""Seconds that the end of a loop waits for its outputs to be safe; the bus brings them there in any case."""
READ_S: Final = 0.02
"""Seconds between two looks at the telemetry: waking a reader for each value would disturb the loop."""
SWITCH_S: Final = 0.0001
"""Seconds after which a thread that computes hands Python's lock to one that waits, while a loop runs."""
OWNER: Final = "its owner stopped it"
CANCELLED: Final = "its task was cancelled, or its session has ended"
WATCHDOG: Final = "its thread made no progress (watchdog)"


@frozen(eq=False)
class LoopSubmit(TaskSubmit):
    """The submission of a loop: `steps` are what it may do, and are checked; `tool` runs instead of them."""

    tool: Tool = field(kw_only=True)
    args: bytes = field(kw_only=True)

    def step(self, checked: Sequence[StepRun]) -> StepRun:
        """Return the step that runs in place of those that were checked."""
        most = max(checked, key=lambda step: step.risk)
        return StepRun(self.tool, self.args, most.bus, most.risk, scope=most.scope)


@frozen(kw_only=True)
class LoopSettings:
    """The arguments of a loop, as checked; `lines` and `inputs` as they were given."""

    name: str
    hz: float
    lines: tuple[int | str, ...]
    inputs: tuple[int | str, ...] = ()
    chip: str | None = None
    on_overrun: OnOverrun = "skip"
    watchdog_ms: float = 250
    realtime: bool = True
    telemetry: int = 1024

    def __attrs_post_init__(self) -> None:
        if not MIN_HZ <= self.hz <= MAX_HZ:
            raise _invalid("hz", f"{self.hz!r} is not from {MIN_HZ} to {MAX_HZ}")
        if not self.lines:
            raise _invalid("lines", "name at least one line that the loop drives")
        if len(self.lines) + len(self.inputs) > MOST_LINES:
            raise _invalid("lines", f"a loop has at most {MOST_LINES} lines")
        if self.on_overrun not in ("skip", "stop"):
            raise _invalid("on_overrun", f'"skip" or "stop", not {self.on_overrun!r}')
        if not 1 <= self.watchdog_ms <= 60_000:
            raise _invalid("watchdog_ms", f"{self.watchdog_ms!r} is not from 1 to 60,000")
        if not 1 <= self.telemetry <= 1_000_000:
            raise _invalid("telemetry", f"{self.telemetry!r} is not from 1 to 1,000,000")


def _invalid(where: str, why: str) -> InvalidParams:
    return InvalidParams(f"Invalid params: runtime.loop: {where}: {why}", data={"path": where, "reason": why})


class Telemetry:
    """The values that a loop emits: `async for sample in loop.telemetry()`."""

    def __init__(self, thread: LoopThread, over: trio.Event) -> None:
        self._thread = thread
        self._over = over
        self._read: deque[Sample] = deque()

    def __aiter__(self) -> Telemetry:
        return self

    async def __anext__(self) -> Sample:
        while not self._read:
            # In this order: what was emitted before the end is read.
            over = self._over.is_set()
            self._read += self._thread.samples()
            if over and not self._read:
                raise StopAsyncIteration
            if not self._read:
                with trio.move_on_after(READ_S):
                    await self._over.wait()
        return self._read.popleft()


class _Turn(Ticket):
    """A transaction that does nothing but take the turn; its requester need not wait for its end."""

    def abort(self) -> bool:
        """Let the requester go."""
        return True


@define(eq=False)
class ControlLoop:
    """A control loop that was granted its lines; made by `runtime.loop`. All but `stats` is for the Trio thread."""

    _settings: LoopSettings
    _bus: Bus
    _thread: LoopThread
    _journal: Journal
    _interlocks: Interlocks | None
    _outputs: Mapping[int, str]
    """The offsets of the output lines, with their names."""
    _inputs: Sequence[str]
    _over: trio.Event = field(factory=trio.Event, init=False)
    _counted: dict[str, Any] = field(factory=dict, init=False)
    """What the records have told so far."""
    _ids: dict[str, Any] = field(factory=dict, init=False)
    _began: bool = field(default=False, init=False)
    """True from the record of its start on."""

    @classmethod
    def on(
        cls,
        settings: LoopSettings,
        function: Callable[[LoopIO], object],
        board: Board,
        buses: Mapping[str, Bus],
        journal: Journal,
        interlocks: Interlocks | None,
        clock: LoopClock | None,
    ) -> ControlLoop:
        """Return a loop on a board's lines, which has not begun. Raises InvalidParams and PermissionDenied."""
        bus = buses[board.gpio_bus(settings.chip)]
        outputs = {line: board.line(settings.chip, line, drive=True) for line in settings.lines}
        inputs = {line: board.line(settings.chip, line) for line in settings.inputs}
        # In records and messages a line has the name that it was given.
        names = {offset: str(line) for line, offset in (inputs | outputs).items()}

        def spellings(lines: Mapping[int | str, int]) -> dict[int | str, int]:
            found: dict[int | str, int] = {offset: offset for offset in lines.values()}
            return found | dict(lines)

        thread = LoopThread(
            settings.name,
            settings.hz,
            function,
            bus.guard,
            outputs=spellings(outputs),
            inputs=spellings(inputs),
            names=names,
            on_overrun=settings.on_overrun,
            telemetry=settings.telemetry,
            clock=clock or MachineClock(),
            halted=lambda: bus.halted,
        )
        driven = {offset: names[offset] for offset in outputs.values()}
        return cls(settings, bus, thread, journal, interlocks, driven, [names[offset] for offset in inputs.values()])

    # --- for the program ----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the loop, in records and messages."""
        return self._settings.name

    @property
    def ended(self) -> str | None:
        """The reason why the loop has ended; None while it runs."""
        return self._thread.reason

    def stats(self) -> LoopStats:
        """Return counts and the histogram of lateness; in any thread, also when the loop has ended."""
        return self._thread.stats()

    def telemetry(self) -> Telemetry:
        """Return an iterator over the values that the function emits, until the loop has ended and all are read.

        One reader at a time. Values that are not read in time are dropped, oldest first; `Sample.seq` shows the gap.
        """
        return Telemetry(self._thread, self._over)

    async def wait(self) -> LoopStats:
        """Wait until the loop has ended and its outputs are safe; return its last counts."""
        await self._over.wait()
        return self.stats()

    async def stop(self) -> LoopStats:
        """End the loop after the call that it is in, make its outputs safe, and return its last counts."""
        self._thread.end(OWNER)
        return await self.wait()

    # --- submission ---------------------------------------------------------------------------------------------

    def submission(self, dumps: Callable[[Mapping[str, Any]], bytes]) -> LoopSubmit:
        """Return the submission of the loop's task."""
        settings, safe = self._settings, self._bus.guard.safe
        chip = {} if settings.chip is None else {"chip": settings.chip}
        # The level is of no weight: what limits and interlocks permit is asked at each write.
        levels = {offset: 1 if safe.get(offset) == 1 else 0 for offset in self._outputs}
        kind = self._bus.bus_id.partition(":")[0]
        steps = [StepSpec(f"{kind}.set", {**chip, "line": line, "value": levels[line]}) for line in self._outputs]
        steps += [StepSpec(f"{kind}.get", {**chip, "line": name}) for name in self._inputs]
        args = {**chip, "name": settings.name, "hz": settings.hz, "lines": [*self._outputs.values()]}
        tool = Tool(
            name="control.loop",
            risk_level=3,
            timeout_ms=1_000,
            description="A control loop of this program.",
            params_schema={"type": "object"},
            result_schema={"type": "object"},
            capability="CAP_GPIO_RW",
            bus=lambda _args: self._bus.bus_id,
            run=self._run,
            logged=("name", "hz"),
        )
        return LoopSubmit(f"control loop {settings.name}", tuple(steps), subscribe=True, tool=tool, args=dumps(args))

    # --- the step -----------------------------------------------------------------------------------------------

    async def _run(self, ctx: StepContext, _args: Any) -> Mapping[str, Any]:
        """Run the loop, until it ends by itself or is cancelled; its outputs are safe then, or wait for their bus."""
        thread, bus = self._thread, self._bus
        assert isinstance(ctx, StepScope), "the runtime's own context"
        self._ids = {**ctx.ids, "bus": bus.bus_id, "name": self.name}
        wanted: list[Interlock] = []
        _switching.begin()
        try:
            bus.lend(thread)
            for offset in self._outputs:
                await ctx.transact(partial(self._claim, offset), drives=offset)
            if self._interlocks is not None:
                wanted = await self._interlocks.want(bus.bus_id, self._outputs, lasting=True)
            await self._start(ctx)
            await self._supervise()
        except BaseException as error:
            cancelled = HALTED if bus.halted else CANCELLED
            thread.end(cancelled if isinstance(error, trio.Cancelled) else f"{type(error).__name__}: {error}")
            raise
        finally:
            with trio.CancelScope(shield=True):
                await self._end(ctx.session_id, wanted)
        if thread.reason != OWNER:
            raise DeviceError(f"the control loop has ended: {thread.reason}", effect="done")
        return {"reason": thread.reason, **self._totals()}

    def _claim(self, offset: int, _driver: object) -> None:
        """Claim an output, within a transaction of the bus. Raises ResourceBusy."""
        claims = self._bus.guard.claims
        if (other := claims.get(offset)) is not None:
            other.check(offset)
        claims[offset] = self._thread

    async def _start(self, ctx: StepContext) -> None:
        """Start the thread, record the grant, and let the first period begin. Raises AuditUnavailable."""
        settings, thread = self._settings, self._thread
        why = thread.start(realtime=settings.realtime)
        if why is not None:
            log.warning("control loop %s: runs without SCHED_FIFO: %s", self.name, why, extra={"bus": self._bus.bus_id})
        record = {
            "hz": settings.hz,
            "lines": [*self._outputs.values()],
            "inputs": [*self._inputs],
            "on_overrun": settings.on_overrun,
            "watchdog_ms": settings.watchdog_ms,
            "scheduling": thread.scheduling,
        }
        self._counted = self._totals()
        self._began = True
        await self._journal.write({"event": "loop.start", **self._ids, **record})
        thread.go(AUTHORITY_S)
        ctx.progress({"loop": "started"})

    async def _supervise(self) -> None:
        """Write the digests and keep the watchdog, until the loop has ended."""
        thread = self._thread
        watchdog = self._settings.watchdog_ms / 1000
        due = trio.current_time() + DIGEST_S
        while not thread.ended():
            with trio.move_on_at(min(due, trio.current_time() + watchdog / 2)):
                await thread.wakeup.until(thread.ended)
            if not thread.ended() and thread.stuck_for() > watchdog:
                thread.end(WATCHDOG)
            elif not thread.ended() and trio.current_time() >= due:
                due = trio.current_time() + DIGEST_S
                counted_at = time.monotonic_ns()
                try:
                    await self._journal.write({"event": "loop.digest", **self._ids, **self._since()})
                except AuditUnavailable as error:
                    thread.end(error.message)
                thread.renew(counted_at, AUTHORITY_S)

    async def _end(self, session_id: str, wanted: Sequence[Interlock]) -> None:
        """Make the outputs safe, give the lines and the driver back, and write the last record."""
        thread, bus = self._thread, self._bus
        until = trio.current_time() + SAFE_S
        safe = await make_safe([bus], session_id, until, unattended=False, hands_over=False)
        for offset in [offset for offset, claim in bus.guard.claims.copy().items() if claim is thread]:
            del bus.guard.claims[offset]
        if self._interlocks is not None:
            self._interlocks.leave(wanted)
        if await self._is_outside(until):
            bus.reclaim(thread)
        else:
            thread.on_exit = partial(bus.reclaim, thread)
        _switching.end()
        if self._began:
            with trio.move_on_after(LEAVE_S):
                await thread.wakeup.until(lambda: thread.exited)
            self._record_end(safe)
        self._over.set()

    async def _is_outside(self, until: float) -> bool:
        """Return True once the thread has left the driver, for good: the turn was taken after its end."""
        if self._bus.state == "closed":
            return True
        turn = _Turn(lambda _driver: None, Requester("", "", ""), limit=SAFE_STATE_LIMIT, must_run=True)
        with trio.move_on_at(until):
            await self._bus.request(turn).wait()
        return turn.filled

    def _record_end(self, safe: Sequence[Any]) -> None:
        thread, about = self._thread, {"bus": self._bus.bus_id}
        record: dict[str, Any] = {"reason": thread.reason, **self._since(), "total": self._totals(), "safe": safe}
        if not thread.exited:
            record["stuck"] = True
            log.error("control loop %s: its function has not returned", self.name, extra=about)
        if thread.reason == OWNER or thread.failure is None:
            log.info("control loop %s has ended: %s", self.name, thread.reason, extra=about)
        else:
            log.error("control loop %s: %s", self.name, thread.reason, exc_info=thread.failure, extra=about)
        self._journal.post({"event": "loop.stop", **self._ids, **record})

    def _totals(self) -> dict[str, Any]:
        """Return what has been counted from the start, as JSON."""
        stats = self.stats()
        members = {name: getattr(stats, name) for name in ("runs", "missed", "overruns", "refused", "failed")}
        return {**members, "writes": dict(stats.writes)}

    def _since(self) -> dict[str, Any]:
        """Return what has been counted since the last record, and the last levels, as JSON."""
        before, self._counted = self._counted, self._totals()
        counts = {name: value - before[name] for name, value in self._counted.items() if name != "writes"}
        writes = {name: count - before["writes"][name] for name, count in self._counted["writes"].items()}
        return {**counts, "writes": writes, "last": dict(self.stats().last)}

    def raise_if_failed(self) -> None:
        """Raise LoopStopped if the loop has ended by itself."""
        reason = self._thread.reason
        if reason is not None and reason != OWNER:
            raise LoopStopped(f"the control loop {self.name!r} has ended: {reason}", reason) from self._thread.failure


class _Switching:
    """The interpreter's switch interval, shortened while a loop runs: it bounds how long a loop waits for the GIL."""

    def __init__(self) -> None:
        # A process may have several Trio threads.
        self._lock = threading.Lock()
        self._loops = 0
        self._before = 0.0

    def begin(self) -> None:
        """Note that a loop begins."""
        with self._lock:
            if not self._loops:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, SWITCH_S))
            self._loops += 1

    def end(self) -> None:
        """Note that a loop has ended."""
        with self._lock:
            self._loops -= 1
            if not self._loops:
                sys.setswitchinterval(self._before)


_switching = _Switching()
