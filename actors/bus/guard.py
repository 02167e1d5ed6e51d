"""The guard of a bus: the one place before the hardware that asks limits, interlocks and the halt.

`Bus` gives every transaction the guarded driver (`BusGuard.face`) and never the driver itself: steps over HACP, MCP and
HCP, the end of a pulse, rollback, and the tools of vendors. The face has the operations of its driver. What each of
them drives is pure data of the kind (`hearth.drivers.kind.Outputs`); the steps are the same for every kind:

    which outputs does the call drive, and to what?   Outputs.driven; a call that is not declared as reading drives
                 |
    does anything forbid it?                          claims of loops, the halt, interlocks, limits: each raises with
                 |                                    effect "none", and then nothing has reached the driver
    is each output on the list of driven ones?        `owner.own`: what the ticket has not announced is claimed now
                 |
    send the call with the levels that the limits permit
                 |
    note what is there now, or that it is not known

All of it is inside one transaction, so nothing comes in between. It is written once, as a generator that yields the
calls (`steps`): the bus of a blocking driver runs it in place (`driven`), that of coroutine functions awaits it
(`driven_later`), and so its checks come when the coroutine is first awaited. Operations that drive one output, of which
the kind says where output and level stand (`Outputs.single`), are compiled: the same, by fewer calls (`face`).

Bringing outputs to their safe state (`make_safe`, `halt`, `force`) is never checked, only noted: safety comes first. An
output that was driven and has no safe state is in `left`: a halt does not stop it, and says so.

Pools (files, processes, telemetry, the board's own bus) drive no hardware and are passed as they are. What a step of
risk 0 and a driver without a kind get is in `face`.

To plug in: set `halt` to a callable `(output, level) -> None`, or `interlocks` to an `InterlockChecks`, that raises
(`Halted`, `InterlockOpen`, with `effect: "none"`) to refuse; None asks nothing. Both are called within the transaction,
in the bus's own thread where the driver blocks, so they must not wait, and must not touch Trio. `halt` is not asked for
a level that is the output's safe state.
"""

from __future__ import annotations

import inspect
import logging
import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias

import trio

from hearth._util.foreign import driven, driven_later
from hearth.actors.bus.limit import Limit
from hearth.drivers.base import Style, Wakeup, finish_now
from hearth.drivers.kind import ANY, Call
from hearth.errors import LimitViolated, PermissionDenied, RpcError, TimedOut, denied, effect_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence

    from hearth.actors.bus.queue import Requester, Ticket
    from hearth.drivers.kind import Driven, Level, Outputs, Signal
    from hearth.tools import Drive

    Steps: TypeAlias = Generator[Call | Hashable, Any, Any]
    """Yields calls of the driver, and outputs to be owned; returns the answer."""

log = logging.getLogger("hearth.bus")


class InterlockChecks(Protocol):
    """The interlocks of one bus."""

    def check(self, output: Hashable, level: object) -> None:
        """Raise InterlockOpen where a condition for driving this output to this level does not hold."""

    def note(self, output: Hashable, level: object, *, certain: bool = True) -> None:
        """Note that an output is at a level; without `certain` it may still be at its former one."""


class OutputClaim(Protocol):
    """A control loop that alone may drive an output."""

    def check(self, output: Hashable) -> None:
        """Raise ResourceBusy unless the loop itself is driving."""

    def made_safe(self, output: Hashable) -> None:
        """Note that the output was brought to its safe state."""


class OutputOwner(Protocol):
    """The bus: it owns an output that a ticket has not announced before the guard lets it be driven."""

    def own(self, output: Hashable) -> None:
        """Enter the session of the running transaction as the one that drives an output. In the transaction's thread.

        Raises AuditUnavailable, with effect "none".
        """

    async def own_later(self, output: Hashable) -> None:
        """Do the same in Trio, where that may take a moment."""


class SafeReport(dict[str, Any]):
    """What was done to bring `output` to its safe state, as JSON; an `error` says that it is not safe."""

    __slots__ = ("output",)

    def __init__(self, output: Hashable, members: Mapping[str, Any]) -> None:
        super().__init__(members)
        self.output = output


class Approach(NamedTuple):
    """A step towards a target: what the output gave out before, the level it is at now, and the target."""

    former: Any
    level: Level
    target: Level


class BusGuard:
    """The checks of one bus, and the guarded driver that makes them; without `outputs` the driver passes as it is."""

    def __init__(self, bus_id: str, driver: Any, outputs: Outputs | None = None) -> None:
        self.bus_id = bus_id
        self.driver = driver
        self.outputs = outputs
        self.waits = getattr(driver, "style", None) is Style.ASYNC
        self.signals: Mapping[Hashable, Signal] = {} if outputs is None else outputs.signals
        self.safe: dict[Hashable, object] = {
            output: signal.safe for output, signal in self.signals.items() if signal.safe is not None
        }
        """The safe state of each output that has one."""
        self.kept = [output for output, signal in self.signals.items() if signal.keep]
        """The outputs that are left as they are when a session ends."""
        self.limits = {output: Limit(bus_id, signal) for output, signal in self.signals.items() if signal.limited}
        self.foresees = bool(self.limits)
        """True if `foresee` could refuse something."""
        self.remembered = [one for one in self.limits.values() if one.remembered]
        """The limits of which the outputs file has the levels."""
        self.timed = [one for one in self.limits.values() if one.times is not None]
        # Of the run in which the bus is opened. A blocking driver's thread has no Trio clock of its own.
        self.clock: Callable[[], float] = time.monotonic
        self.due_changed = Wakeup()
        """Woken when a line has been switched on that has to be safe by a certain time."""
        self.clamped: list[Mapping[str, Any]] = []
        """By the running transaction: each value that was asked for, and the one that is written in its place."""
        self.firsts: list[tuple[Requester | None, Mapping[str, Any]]] = []
        """Who has driven an output of which no former level was known, and where to, until it is on record."""
        self.levels: dict[Hashable, Level] = {}
        """The levels that outputs were last driven to: for observers, and for calls that drive several at once."""
        self.seen: dict[Hashable, Level] = {}
        """The levels that transactions have read since, for observers."""
        self.left: dict[Hashable, None] = {}
        """Outputs that were driven and have no safe state, in the order in which they first were."""
        self.halt: Callable[[Hashable, object], None] | None = None
        """Refuses everything while the daemon is halted: raises Halted."""
        self.interlocks: InterlockChecks | None = None
        self.claims: dict[Hashable, OutputClaim] = {}
        """By output: the control loop that drives it."""
        self.owner: OutputOwner | None = None
        self.ticket: Ticket | None = None
        """Of the running transaction; None between transactions, and in those that need no owner."""
        self._busy = False
        self.face: Any = driver
        """The guarded driver; `face.guard_of` puts it here."""
        self.reader: Any = driver
        """The guarded driver for steps of risk 0."""

    def name(self, output: Hashable) -> str:
        """Return what a person calls an output."""
        signal = self.signals.get(output)
        return signal.called or signal.name if signal is not None else "raw" if output == ANY else str(output)

    # --- asked before an effect -----------------------------------------------------------------------------------

    def permit(self, output: Hashable, level: Level) -> None:
        """Ask loops, the halt and the interlocks alone, for a target farther than one step.

        Raises ResourceBusy, Halted or InterlockOpen, each with effect "none".
        """
        if self.claims and (claim := self.claims.get(output)) is not None:
            claim.check(output)
        if self.halt is not None and (output not in self.safe or self.safe[output] != level):
            self.halt(output, level)
        if self.interlocks is not None:
            self.interlocks.check(output, level)

    def _limited(self, output: Hashable, level: Level) -> Level:
        """Return the level to bring an output to: `level`, or the nearest permitted one where the profile clamps.

        Raises LimitViolated, and what `permit` does of another level than was asked for.
        """
        limit = self.limits.get(output)
        within = level if limit is None else limit.check(level, self.clock())
        if within != level:
            self.permit(output, within)
        return within

    def foresee(self, drive: Drive) -> None:
        """Refuse at submit what the limits could never permit, whatever happens until then. Raises LimitViolated."""
        if self.outputs is not None:
            for output, level in self.outputs.driven(self.outputs.asked(drive.output, drive.level)):
                if (limit := self.limits.get(output)) is not None:
                    limit.foresee(level, drive.duration_ms)

    def check_rest(self, output: Hashable) -> None:
        """Refuse to bring an output to its safe state before its times permit it: where that is not urgent.

        Raises LimitViolated.
        """
        if (limit := self.limits.get(output)) is not None:
            limit.check_rest(self.clock())

    # --- told after an effect -------------------------------------------------------------------------------------

    def opened(self) -> None:
        """Note that the bus has been opened, in Trio: what its outputs did before is not known."""
        self.clock = trio.lowlevel.current_clock().current_time
        self.levels.clear()
        self.seen.clear()
        # A chip that is opened during a halt drives nothing.
        driven = not getattr(self.driver, "halted", False)
        for limit in self.limits.values():
            limit.opened(self.clock(), driven=driven)

    def drove(self, output: Hashable, level: Level) -> None:
        """Note that an output was driven to a level."""
        if output not in self.safe:
            self.left[output] = None
        if output in self.signals:
            self.levels[output] = level
            if output in self.seen:
                del self.seen[output]
        if self.interlocks is not None:
            self.interlocks.note(output, level)
        if (limit := self.limits.get(output)) is None:
            return
        if limit.stepped and limit.level is None:
            self._note_first(limit, level)
        times = limit.times
        due = inf if times is None else times.due
        if times is not None and limit.only_times:  # what `Limit.note` does, by one call less: for each set of a line
            times.note(level == 1, self.clock())
        else:
            limit.note(level, self.clock())
        if times is not None and times.due < due:
            self.due_changed.wake()

    def failed(self, output: Hashable, level: Level, error: BaseException | None = None) -> None:
        """Note that bringing an output to a level failed: unless the effect is "none", it may be there.

        Whatever is no error of the driver's (a bug, a cancellation) leaves that unknown.
        """
        if isinstance(error, RpcError) and effect_of(error) == "none":
            return
        self.levels.pop(output, None)
        self.seen.pop(output, None)
        if output not in self.safe:
            self.left[output] = None
        if self.interlocks is not None:
            self.interlocks.note(output, level, certain=False)
        if (limit := self.limits.get(output)) is not None:
            self._note_first(limit, level)
            limit.failed(level, self.clock())
            self.due_changed.wake()

    def _note_first(self, limit: Limit, level: Level) -> None:
        """Note a drive that was within bounds alone, because nothing told the level before it."""
        if limit.is_missing() and level != limit.signal.safe and isinstance(level, (int, float)):
            self.firsts.append((None if self.ticket is None else self.ticket.requester, limit.reported(level)))

    def _saw(self, found: Iterable[Driven]) -> None:
        for output, level in found:
            if output in self.signals:
                self.seen[output] = level
            if self.interlocks is not None:
                self.interlocks.note(output, level)
            if (limit := self.limits.get(output)) is not None:
                limit.note(level, self.clock(), drove=False)

    def memory(self) -> list[tuple[Hashable, float]]:
        """Return the known levels of outputs whose levels no read could tell the next run."""
        return [(one.signal.output, one.level) for one in self.remembered if one.level is not None]

    def remember(self, levels: Iterable[tuple[Hashable, float]]) -> None:
        """Take over what `memory` returned in an earlier run."""
        for output, level in levels:
            if (limit := self.limits.get(output)) is not None:
                limit.kept = level

    # --- lines that are on for too long ---------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """Return the time at which the next line has to be in its safe state; infinity if none has to."""
        return min((one.times.due for one in self.timed if one.times is not None), default=inf)

    def overdue(self, now: float) -> list[Limit]:
        """Return the lines that have to go to their safe state now."""
        return [one for one in self.timed if one.times is not None and one.times.due <= now]

    # --- the steps of a call --------------------------------------------------------------------------------------

    def steps(self, call: Call, *, reads_only: bool = False) -> Steps:
        """Check a call, yield it as the limits permit it, and note what it has done; return its answer."""
        outputs = self.outputs
        assert outputs is not None, "a face is of a bus with outputs"
        driven = outputs.driven(call)
        if not driven:
            answer = yield call
            self._saw(outputs.seen(call, answer))
            return answer
        if reads_only:
            self.refuse_effect(driven[0][0])
        # All are checked before the first one is driven; what could never pass, before anything is read or made safe.
        for output, level in driven:
            self.permit(output, level)
            if (limit := self.limits.get(output)) is not None:
                limit.foresee(level, None)
        missing = [output for output, _ in driven if self._is_missing(output)]
        forced: list[Hashable] = []
        for output in missing:
            if (yield from self._learn(output)):
                forced.append(output)  # noqa: PERF401  no comprehension can yield
        try:
            levels = [self._limited(output, level) for output, level in driven]
        except LimitViolated as error:
            raise self._after_safe(error, forced) from None
        if levels != [level for _, level in driven]:
            call = self._clamped(outputs.permitted(call, levels), driven, levels)
        driven = [(output, level) for (output, _), level in zip(driven, levels, strict=True)]
        yield from self._own(driven, waited=bool(missing))
        answer = yield from self._effect(call, driven)
        self._saw(outputs.seen(call, answer))
        return answer

    def _is_missing(self, output: Hashable) -> bool:
        return (limit := self.limits.get(output)) is not None and limit.is_missing()

    def _clamped(self, call: Call, driven: Sequence[Driven], levels: Sequence[Level]) -> Call:
        """Note the levels that are written in place of those that were asked for; return the call that writes them.

        Raises LimitViolated where it would not bring each output to its level.
        """
        assert self.outputs is not None, "it has limits"
        changed = [
            (output, asked, level) for (output, asked), level in zip(driven, levels, strict=True) if asked != level
        ]
        if [level for _, level in self.outputs.driven(call)] != levels:
            names = ", ".join(self.name(output) for output, _, _ in changed)
            why = f"beyond the limits of {names}, and one call cannot bring each of its outputs within them"
            data = {"bus": self.bus_id, "reason": why, "effect": "none"}
            raise LimitViolated(f"Limit violated: {self.bus_id}: {why}; nothing was driven", data=data)
        self.clamped += [self.limits[output].clamped(asked, level) for output, asked, level in changed]
        return call

    def _effect(self, call: Call, driven: Sequence[Driven]) -> Steps:
        """Yield a call that has been checked, and note what it has done."""
        if self._busy:
            raise PermissionDenied(
                "two effects at once in one transaction: a tool awaits one before the next",
                data={"reason": "two effects at once", "effect": "none"},
            )
        self._busy = True
        try:
            answer = yield call
        except BaseException as error:
            for output, level in driven:
                self.failed(output, level, error)
            raise
        finally:
            self._busy = False
        for output, level in driven:
            self.drove(output, level)
        return answer

    def _learn(self, output: Hashable) -> Steps:
        """Find out the level of an output whose steps are limited; return True if it was made safe for that.

        In this order: read, where that is no wait; the level of an earlier run (the outputs file), or the one that the
        profile names (`start`); the safe state, which is driven first. Where none of them is there, the first drive is
        bounded by `least` and `most` alone.
        """
        limit = self.limits.get(output)
        if limit is None or not limit.is_missing():
            return False
        signal, outputs = limit.signal, self.outputs
        assert outputs is not None, "it has limits"
        if not self.waits and (call := outputs.read(signal)) is not None:
            answer = yield call
            self._saw(outputs.seen(call, answer))
        blind = limit.off or signal.access == "w"
        for level in (limit.kept if blind else None, signal.start):
            if limit.is_missing() and level is not None:
                limit.assume(level, self.clock())
        if limit.is_missing() and blind and signal.safe is not None:
            yield from self.force([(output, signal.safe)])
            return True
        return False

    def _own(self, driven: Sequence[Driven], *, waited: bool) -> Steps:
        """Have outputs owned that the ticket has not announced; a call that has waited is asked about again.

        A halt may have come meanwhile, or an interlock have opened.
        """
        unowned = [output for output, _ in driven if self.unowned(output)]
        for output in unowned:
            yield output
        if waited or unowned:
            for output, level in driven:
                self.permit(output, level)

    def _after_safe(self, error: LimitViolated, forced: Sequence[Hashable]) -> LimitViolated:
        """Return a refusal that also says which outputs were brought to their safe state before it."""
        if not forced:
            return error
        names = [self.name(output) for output in forced]
        told = f"; {', '.join(names)} was brought to its safe state, because its level was not known"
        return LimitViolated(error.message + told, data={**(error.data or {}), "made_safe": names})

    def force(self, driven: Sequence[Driven]) -> Steps:
        """Bring outputs to levels that nothing is asked about, and note them."""
        outputs = self.outputs
        assert outputs is not None, "it has signals"
        for call in outputs.drive(driven, self.levels):
            yield from self._effect(call, driven)

    def approach(self, output: Hashable, target: Level) -> Steps:
        """See `face.Face.approach`."""
        limit, outputs = self.limits.get(output), self.outputs
        assert outputs is not None, "it has signals"
        final = target
        if limit is not None:
            final = limit.bounded(target)
            if final != target:
                self.clamped.append(limit.clamped(target, final))
        self.permit(output, final)
        yield from self._learn(output)
        level = self._limited(output, final if limit is None else limit.towards(final, self.clock()))
        yield from self._own([(output, level)], waited=True)
        self.permit(output, final)
        (call,) = outputs.drive([(output, level)], self.levels)
        former = yield from self._effect(call, [(output, level)])
        return Approach(former, level, final)

    def make_safe(self, wanted: Iterable[Hashable], *, kept: bool) -> Steps:
        """Bring outputs to their safe state, those with `hold = "keep"` only if `kept`; return the reports.

        One output that refuses does not keep the others from their safe state: it is reported with its `error`. A
        device that does not answer costs one wait: it is not asked for its other outputs.
        """
        outputs = self.outputs
        assert outputs is not None, "a face is of a bus with outputs"
        reports: list[SafeReport] = []
        silent: dict[Hashable, TimedOut] = {}
        for output in wanted:
            signal = self.signals.get(output)
            if signal is None or signal.reserved is not None or signal.safe is None:
                note = f"left alone: {_left_alone(signal)}"
                reports.append(SafeReport(output, {**outputs.place(output), "note": note}))
                continue
            if signal.keep and not kept:
                continue
            report = SafeReport(output, {**signal.report, "safe": signal.shown(signal.safe)})
            try:
                if signal.device in silent:
                    raise silent[signal.device]
                yield from self.force([(output, signal.safe)])
            except RpcError as error:
                report["error"] = error.message
                if isinstance(error, TimedOut) and signal.device is not None:
                    silent[signal.device] = error
            if (claim := self.claims.get(output)) is not None:
                claim.made_safe(output)
            reports.append(report)
        return reports

    def unowned(self, output: Hashable) -> bool:
        """Return True if an output has a safe state, and the running transaction has not announced it."""
        ticket = self.ticket
        return ticket is not None and ticket.drives != output and output in self.safe

    def refuse_effect(self, output: Hashable) -> NoReturn:
        """Refuse what a step of risk 0 would drive. Raises PermissionDenied."""
        reason = f"a step of risk 0 only reads, and would drive {self.name(output)!r} of {self.bus_id}"
        cure = "its tool has to declare the risk of what it does (risk_level, effective_risk)"
        raise denied(reason, cure)

    def run(self, steps: Steps) -> Any:
        """Run steps to their answer; with a driver of coroutine functions return a coroutine that does."""
        return driven_later(steps, self._perform_later) if self.waits else driven(steps, self._perform)

    def runner(self, *, waits: bool) -> Callable[[Steps], Any]:
        """Return the function that runs the steps of one operation: in place, or as a coroutine."""
        return partial(driven_later, perform=self._perform_later) if waits else partial(driven, perform=self._perform)

    def _perform(self, asked: Call | Hashable) -> Any:
        if not isinstance(asked, Call):
            assert self.owner is not None, "only a bus sets the ticket"
            return self.owner.own(asked)
        answer = getattr(self.driver, asked.op)(*asked.args, **asked.kw)
        # A thread has no event loop: a coroutine may only be one that never waits (a simulated device).
        return finish_now(answer) if inspect.iscoroutine(answer) else answer

    async def _perform_later(self, asked: Call | Hashable) -> Any:
        if isinstance(asked, Call):
            return await getattr(self.driver, asked.op)(*asked.args, **asked.kw)
        assert self.owner is not None, "only a bus sets the ticket"
        return await self.owner.own_later(asked)


def _left_alone(signal: Signal | None) -> str:
    """Return why an output has no safe state: an earlier run drove it, which had another profile."""
    if signal is None:
        return "not in this board's profile"
    return "without `safe`" if signal.reserved is None else f"reserved: {signal.reserved}"


async def keep_lines(guard: BusGuard, bring_safe: Callable[[Limit], Ticket]) -> None:
    """Bring each line that was on for its longest time to its safe state; runs while the bus serves."""
    while True:
        due = guard.due
        with trio.move_on_at(due):
            await guard.due_changed.until(lambda: guard.due < due)  # noqa: B023  called before the next turn only
        for limit in guard.overdue(trio.current_time()):
            try:
                await bring_safe(limit).get()
            except RpcError as error:
                log.error("bus %s: line %s is not safe: %s", guard.bus_id, limit.signal.output, error.message)
                assert limit.times is not None, "it is overdue"
                limit.times.postpone(trio.current_time())


def retry_after(error: RpcError) -> float | None:
    """Return the seconds after which what a guard refused may pass; None if waiting does not help."""
    wait = (error.data or {}).get("retry_after_ms") if isinstance(error, LimitViolated) else None
    return None if wait is None else wait / 1000
