"""One step of a task: its state from accepted to done, and the context through which its tool reaches hardware.

This module turns a tool's call into a ticket for the step's bus, looks for the effect that a step must have, and turns
a step's outcome into members of events and of task.get. The task actor decides when a step runs and what its failure
means for the next ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import trio
from attrs import define, field, frozen

from hearth._util.exceptions import sole
from hearth.actors.bus.queue import GiveBack, Requester, State, Ticket
from hearth.audit.record import args_hash, timestamp
from hearth.errors import EffectNotSeen, RpcError, effect_of
from hearth.policy.memory import STEP_BYTES
from hearth.policy.rules import EVERYTHING
from hearth.protocol.jsonrpc import sendable_error
from hearth.protocol.submissions import PRIORITIES, Constraints
from hearth.tools import SIGNALS, Done, KnownOutputs, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from hearth.actors.bus.actor import Bus
    from hearth.actors.bus.interlocks import Interlock, Interlocks
    from hearth.actors.bus.queue import HaltFlag
    from hearth.actors.events import EventLog
    from hearth.actors.journal import Journal
    from hearth.actors.observe import Observer
    from hearth.actors.refusals import Refusals
    from hearth.api import Expect, Status
    from hearth.errors import Effect
    from hearth.policy.rules import Buckets, Scope
    from hearth.tools import GuardedPaths, Tool, Transaction, Undo

READINGS = 50
"""Readings of an expected effect in its `within_ms`, at most one in 2 ms and at least ten in a second."""
MOST_SHOWN = 256
"""Bytes of JSON of a member's value up to which `seen` shows it whole."""


@frozen(eq=False)
class TaskServices:
    """The services that every task of a runtime uses."""

    journal: Journal
    buses: Mapping[str, Bus]
    paths: GuardedPaths
    clock: Callable[[], float]
    health: Callable[[], Mapping[str, Any]]
    refusals: Refusals
    """Decides which refusals are recorded one by one."""
    halt_flag: HaltFlag
    dry_runs: Buckets
    """Limits how often each principal may submit a dry run."""
    observer: Observer
    interlocks: Interlocks | None = None
    """The interlocks of the board, if it has any."""


@frozen(eq=False)
class Expectation:
    """The effect that a step must have, and the read that looks for it."""

    expect: Expect
    read: StepRun

    @property
    def memory(self) -> int:
        """The bytes of memory that it takes at most: itself, and what was expected and seen in an event and an end."""
        members = sum(map(len, self.expect.wanted().values()))
        return STEP_BYTES + 4 * len(orjson.dumps(self.expect.wanted())) + 2 * MOST_SHOWN * members

    def missing(self, seen: Mapping[str, Any] | None, why: str, effect: Effect) -> EffectNotSeen:
        """Return the error of a step whose effect was not seen."""
        expected = {"tool": self.expect.tool, **self.expect.wanted(), "within_ms": self.expect.within_ms}
        return EffectNotSeen(why, effect=effect, data={"expected": expected, "seen": seen})


@define(slots=True, eq=False)
class StepRun:
    """One step, from accepted to done."""

    tool: Tool
    args: bytes
    """JSON, dropped when the step begins: a step may wait for long, and parsed args take many times the memory."""
    bus: Bus
    risk: int
    """The effective risk (0 to 3), which every check uses."""
    expectation: Expectation | None = None
    status: Status | None = None
    started_at: float = 0.0
    latency_ms: float | None = None
    result: bytes | None = None
    error: RpcError | None = None
    undo: Undo | None = None
    rolled_back: bool | None = None
    done: bool = False
    """True once the tool has returned; the step still runs while its effect is looked for."""
    begun: bool = False
    """True once a transaction of it has begun."""
    seen: dict[str, Any] | None = None
    """The members that the expectation names, from the last reading."""
    asked: str | None = None
    """The tool that was asked for, where it means this step (`hearth.tools.Resolved`)."""
    scope: Scope = EVERYTHING
    """The hardware that its session may use."""
    every_s: float = 0.0
    """Seconds between two uses of its tool at the rate that the policy gives it, for a tool that was asked for."""
    allowed: Collection[str] = ()
    """The tools that its session may use, for a tool with `resolves_to`."""
    held: dict[Hashable, str] = field(factory=dict)
    """By output that the step drove: the session to which it goes back if the effect is taken back."""
    logged: Mapping[str, Any] = field(factory=dict)
    """The args that the log and observers may have in clear; set by `hash_args`."""
    known_hash: str | None = None
    """The hash that represents the args in the audit log; computed at the first record, not for a refused step."""

    def hash_args(self, args: Any = None) -> str:
        """Compute `known_hash`, before the step begins and drops its args; for long args it takes milliseconds.

        `args` are the step's own, if they have been parsed.
        """
        if args is None:
            args = orjson.loads(self.args)
        self.logged = self.tool.logged_args(args)
        self.known_hash = args_hash(args)
        return self.known_hash

    @property
    def guarded(self) -> bool:
        """True if the step must not run before its start is on record: it changes, discloses or consumes something."""
        expectation = self.expectation
        return self.risk > 0 or self.tool.discloses or (expectation is not None and expectation.read.guarded)

    @property
    def effect(self) -> Effect:
        """The effect on the hardware of a step whose tool has returned."""
        return "done" if self.risk else "none"

    @property
    def may_have_acted(self) -> bool:
        """True unless it is known to have had no effect: it only reads, nothing of it began, or its error says so."""
        refused = self.error is not None and effect_of(self.error) == "none"
        return bool(self.risk) and (self.begun or self.done) and not refused

    def unverified(self) -> EffectNotSeen | None:
        """Return the error of a step that ends between its effect and the sight of it; None if it has no effect."""
        if not self.done or self.expectation is None:
            return None
        return self.expectation.missing(self.seen, "the step ended before its effect was seen", self.effect)

    def outcome(self) -> dict[str, Any]:
        """Return the members that describe the step's state, for events and task.get."""
        wire: dict[str, Any] = {"status": self.status}
        if self.result is not None:
            wire["result"] = orjson.Fragment(self.result)
        if self.latency_ms is not None:
            wire["latency_ms"] = self.latency_ms
        if self.seen is not None:
            wire["seen"] = self.seen
        if self.error is not None:
            error = sendable_error(self.error)
            wire["error"] = error["message"]
            wire["error_code"] = error["code"]
            wire["error_data"] = error.get("data")
        if self.rolled_back is not None:
            wire["rolled_back"] = self.rolled_back
        return wire


@define(eq=False)
class StepScope:
    """The `StepContext` of one running step: its tool's only way to the hardware."""

    _index: int
    _step: StepRun
    _requester: Requester
    _constraints: Constraints
    _log: EventLog
    _services: TaskServices
    _transacted: bool = field(default=False, init=False)
    clamped: Sequence[Mapping[str, Any]] = field(default=(), init=False)
    """See StepContext."""

    @property
    def session_id(self) -> str:
        """See StepContext."""
        return self._requester.session_id

    @property
    def ids(self) -> dict[str, str]:
        """The session, the task and the principal, as records name them."""
        whose = self._requester
        return {"session_id": whose.session_id, "task_id": whose.task_id, "principal": whose.principal}

    @property
    def every_s(self) -> float:
        """See StepContext."""
        return self._step.every_s

    @property
    def paths(self) -> GuardedPaths:
        """See StepContext."""
        return self._services.paths

    def health(self) -> Mapping[str, Any]:
        """See StepContext."""
        return self._services.health()

    async def transact(
        self,
        op: Callable[[Any], Any],
        *,
        limit_ms: float | None = None,
        drives: Hashable | Callable[[], Hashable | None] | None = None,
        borrows: bool = False,
        gives_back: Hashable | Callable[[], Hashable | None] | None = None,
        instead: Callable[[], None] | None = None,
        must_run: bool = False,
        on_cancel: Callable[[], None] | None = None,
    ) -> Any:
        """See StepContext."""
        if not must_run:
            # A transaction may run in place, without a checkpoint. So check here: a cancelled step must not begin one,
            # and a step with many transactions must let other tasks run between them.
            if self._transacted:
                await trio.lowlevel.checkpoint()
            else:
                self._transacted = True
                await trio.lowlevel.checkpoint_if_cancelled()
        constraints = self._constraints
        step = self._step

        def ask() -> Ticket:
            return Ticket(
                op,
                self._requester,
                limit=(step.tool.timeout_ms if limit_ms is None else limit_ms) / 1000,
                priority=PRIORITIES[constraints.priority],
                risk=step.risk,
                drives=drives,
                borrows=borrows,
                gives_back=None
                if gives_back is None
                else GiveBack(gives_back, self._requester.session_id, step.held, borrowed=True, instead=instead),
                must_run=must_run,
                only_reads=not step.risk,
                on_cancel=on_cancel,
            )

        interlocks = self._services.interlocks
        wanted: Sequence[Interlock] = ()
        if interlocks is not None:
            # Before the ticket is requested: on the bus, stale readings would leave an interlock open.
            wanted = await interlocks.want(step.bus.bus_id, (*step.held, None if callable(drives) else drives))
        try:
            return await (step.bus.take_back(ask) if must_run else self._run(ask()))
        finally:
            if interlocks is not None:
                interlocks.leave(wanted)

    async def _run(self, ticket: Ticket) -> Any:
        bus = self._step.bus
        try:
            await bus.list_output(ticket)
            bus.request(ticket, no_wait=self._constraints.on_busy == "fail")
            return await ticket.get()
        finally:
            bus.unlist_output(ticket)
            self._step.begun |= ticket.state in (State.BEGUN, State.DONE)
            self.clamped = ticket.clamped
            if ticket.held_by is not None:
                # A step may drive an output several times: it goes back to the session that held it before the first.
                self._step.held.setdefault(ticket.drives, ticket.held_by)

    def permits(self, use: Use) -> bool:
        """See StepContext."""
        return self._step.scope.permits(use)

    def allows(self, tool: str) -> bool:
        """See StepContext."""
        return tool in self._step.allowed

    async def interlocks(self) -> list[dict[str, Any]]:
        """See StepContext."""
        interlocks, scope = self._services.interlocks, self._step.scope
        states = [] if interlocks is None else await interlocks.states()
        return [one for one in states if scope.permits(Use(SIGNALS, (one["drives"], f"{one['bus']}:{one['drives']}")))]

    def now(self, at: float | None = None) -> str:
        """See StepContext."""
        return timestamp(self._services.clock() if at is None else at)

    def outputs(self, bus: str) -> KnownOutputs:
        """See StepContext."""
        found = self._services.buses.get(bus)
        if found is None:
            return KnownOutputs(f"bus {bus} is not there")
        return found.known(lambda owner: owner if owner == self.session_id else "another session")

    def progress(self, data: Mapping[str, Any]) -> None:
        """See StepContext."""
        self._log.publish("progress", self.now(), {"step_index": self._index, "data": data})


async def run_tool(step: StepRun, scope: StepScope, args: Any) -> Mapping[str, Any]:
    """Run a step's tool, and return its result. Raises RpcError, also from within a nursery of the tool's own."""
    try:
        value = await step.tool.run(scope, args)
    except ExceptionGroup as group:
        cause = sole(group)
        if not isinstance(cause, RpcError):
            raise
        raise cause from None
    return _result(step, value)


def run_transaction(step: StepRun, one: Transaction[Any], requester: Requester) -> Mapping[str, Any]:
    """Run a step whose tool is this one transaction on a bus that runs it in place; return its result, as `run_tool`.

    Raises RpcError, and NotListedYet, with nothing done, if the step has to wait for the outputs file.
    """
    ticket = Ticket(one.op, requester, limit=step.tool.timeout_ms / 1000, risk=step.risk, drives=one.drives)
    step.bus.request(ticket)
    if ticket.held_by is not None:
        step.held[ticket.drives] = ticket.held_by
    return _result(step, one.result(ticket.get_nowait()))


def _result(step: StepRun, value: Mapping[str, Any] | Done) -> Mapping[str, Any]:
    step.done = True
    if isinstance(value, Done):
        # Kept whatever comes: the effect has happened, and a rollback must undo it.
        step.undo = value.undo
        return value.result
    return value


async def look_for_effect(step: StepRun, expectation: Expectation, scope: StepScope) -> None:
    """Read until the expected effect is seen; a reading that fails is one that does not show it.

    Raises EffectNotSeen if no reading that began in time has shown it.
    """
    expect, read = expectation.expect, expectation.read
    every = min(max(expect.within_ms / READINGS, 2.0), 100.0) / 1000
    failure: RpcError | None = None
    with trio.move_on_after(expect.within_ms / 1000):
        while True:
            try:
                result = await run_tool(read, scope, orjson.loads(read.args))
            except RpcError as error:
                failure, step.seen = error, None
            else:
                failure, step.seen = None, {name: _brief(value) for name, value in expect.named(result).items()}
                if expect.holds(result):
                    return
            await trio.sleep(every)
    shown = f"{expect.tool} showed {_text(step.seen)}" if failure is None else f"{expect.tool} failed: {failure}"
    raise expectation.missing(
        step.seen,
        f"the step was done, and its effect was not seen within {expect.within_ms} ms: expected "
        f"{_text(expect.wanted())}, and {shown}",
        step.effect,
    )


def _brief(value: Any) -> Any:
    """Return a member's value, or the beginning of its JSON if that is long."""
    packed = orjson.dumps(value)
    return value if len(packed) <= MOST_SHOWN else packed[: MOST_SHOWN // 2].decode(errors="ignore") + "…"


def _text(members: Mapping[str, Any] | None) -> str:
    text = orjson.dumps(members or {}).decode()
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def json_safe(error: RpcError) -> RpcError:
    """Return the error in a form that JSON can hold: a driver may put any object into its data, any bytes in its text.

    Its traceback, context and cause are removed: their frames refer to the step that keeps the error, and only the
    cyclic garbage collector, which seldom runs, would free them.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    try:
        orjson.dumps((error.message, error.data))
    except TypeError:
        error.message = _utf8(error.message)
        error.data = {_utf8(str(name)): _json_or_text(value) for name, value in (error.data or {}).items()}
    return error


def _json_or_text(value: Any) -> Any:
    try:
        orjson.dumps(value)
    except TypeError:
        return ascii(value)
    return value


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
