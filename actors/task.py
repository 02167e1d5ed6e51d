"""The task actor: runs one task's steps in order and brings it to exactly one terminal status (draft §3.4–3.6, §5).

It owns the task's status, its event history, its deadline and its leases. It does not decide whether a task is
accepted (`admission`), how a bus orders transactions (`bus.queue`) or which ended tasks are kept (`task_registry`).

Theory of operation. The states of a task:

    QUEUED ----> RUNNING ----> SUCCESS | FAILED | CANCELLED
       |                            ^
       +----------------------------+     its submission is not recorded, a lease is refused, dry run, or cancelled

1. *Submission.* The session makes the task and starts `run`. The `task.submit` record is written first, and its
   idempotency key. Only then is
   `acknowledge` called, exactly once: with None, or with the error that ends the task before its first step.
2. *Steps*, in order. For each: record `task.step.start`, publish `start`, run the tool, record and publish `finish`.
   A guarded step does not run unless its start is on record. With `exclusive` all buses are leased before the first.
   A step with an expectation is looked at after its tool has returned; it leases its bus for both.
3. *Verdict.* `_end` decides the terminal status once and puts it into `verdict`. From then on `cancel` does nothing.
4. *End.* Roll back if asked, release the leases, record `task.finish`, publish `task_finish`. Then `status` and
   `snapshot` are set, and `on_end` gives the task to the registry. A client never sees a terminal status that is not
   on record, unless the log cannot be written in time.

Cancellation (by request, by the end of the session, or by the deadline `max_duration_ms`) cancels one Trio scope, in
which the steps run. A step that waits stops waiting. A step whose transaction has begun keeps waiting for it
(`Ticket.abort`), so its true outcome is known before the task ends. A cancelled step is CANCELLED and its task
CANCELLED; past the deadline the task is FAILED, with TimedOut. A step that was done, and whose effect was still looked
for, is FAILED with EffectNotSeen: the effect has happened. Rolling back and the last records run outside this scope.
Rolling back is shielded. If the session is torn down around the task, the wait for the last records is shielded for at
most `FINAL_COMMIT_LIMIT` seconds.

*At once.* Most tasks are one short transaction on a bus that is free, and have nothing to wait for. `run_now` runs such
a task to its end in the turn of the session, without a Trio task of its own: the same records, in the same two writes,
and the same events, in the same order. It begins only when nothing can be in its way (`_ready`). No checkpoint lets
that change until its end, and no cancellation can come. If it cannot be ended so (the log fails half way, or it has to
roll back), its Trio task does the rest.

Who may call what: the session calls `run_now` once, before `run`, and `cancel` and `describe` at any time, in the Trio
thread; all are synchronous. Everything else runs in the task's own Trio task, so its state needs no locks.

What is guaranteed:

- `run` always ends with one terminal status and calls `on_end` once, whatever a tool raises (see `supervisor.contain`).
- Write-ahead: a record is committed before the thing it reports happens or is published: the submission before its
  acknowledgement, a step's start before the step, its finish before the event. `_commit` is the only place that waits
  for the journal and the only one that publishes, apart from `_publish` at the end of a task that cannot wait longer.
- If the log cannot be written, a step that is not guarded still runs, and a step that has begun still ends.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import orjson
import trio
from attrs import define, field

from hearth._util.foreign import Raised, called
from hearth.actors.bus.outputs_file import NotListedYet
from hearth.actors.bus.queue import GiveBack, Requester, Ticket
from hearth.actors.events import EventLog, to_keep
from hearth.actors.step import StepScope, json_safe, look_for_effect, run_tool, run_transaction
from hearth.actors.supervisor import contain, contain_now
from hearth.audit.record import timestamp
from hearth.errors import (
    AuditUnavailable,
    EffectNotSeen,
    InternalError,
    QueueFull,
    RpcError,
    ShuttingDown,
    TimedOut,
    has_no_value,
)
from hearth.policy.memory import EVENT_BYTES, FEED_BYTES, SMALL_RESULT, STEP_BYTES, TASK_BYTES, text_bytes
from hearth.protocol.framing import parsed_bytes
from hearth.protocol.submissions import PRIORITIES, Constraints
from hearth.tools import OneTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hearth.actors.bus.actor import Bus
    from hearth.actors.bus.interlocks import Interlock
    from hearth.actors.journal import Receipt
    from hearth.actors.mailbox import Slot
    from hearth.actors.step import Expectation, StepRun, TaskServices
    from hearth.api import Status
    from hearth.policy.memory import Account
    from hearth.tools import Transaction, Undo

log = logging.getLogger("hearth.task")

CancelReason = Literal["cancelled", "session closed", "session crashed", "shutting down", "halted"]

MOST_RESULT_BYTES = 4 << 20
"""Bytes of JSON that the results of one task may have: each is kept, sent as an event and returned by task.get."""

LONG_ARGS = 64 << 10
"""Bytes of a step's args above which their hash is computed in a thread."""
SHORT_ARGS = 4 << 10
"""Bytes of a step's args up to which it may run at once, in the turn of its session."""
_HASHING = trio.CapacityLimiter(1)
"""A limiter of its own: the threads of the shared limiter may all hang on a disk."""
FINAL_COMMIT_LIMIT = 5.0
"""Seconds that a task may wait for the audit log, in total, in waits that no cancellation can end."""


def cost_of(intent: str, steps: Sequence[StepRun]) -> tuple[int, int]:
    """Return the bytes of memory that a task takes at most, and those of its history.

    Results over SMALL_RESULT are not in it. Arguments count as JSON, and the largest ones as parsed too, since one step
    runs at a time.
    """
    packed = parsed = 0
    for step in steps:
        packed += len(step.args)
        parsed = max(parsed, parsed_bytes(step.args))
        if (one := step.expectation) is not None:
            packed += len(one.read.args) + one.memory
            parsed = max(parsed, parsed_bytes(one.read.args))
    return (
        TASK_BYTES + FEED_BYTES + text_bytes(intent) + STEP_BYTES * len(steps) + packed + parsed,
        EVENT_BYTES * (2 * len(steps) + 1),
    )


@define(eq=False)
class TaskActor:
    """One accepted task.

    `acknowledge` is called once: with None when the submission is on record, or with the error that prevents it. `kept`
    is filled when its idempotency key is kept; the task begins only then. `on_end` is called once, last, with `status`
    and `snapshot` set.
    """

    requester: Requester
    intent: str
    steps: Sequence[StepRun]
    _constraints: Constraints
    _services: TaskServices
    _cost: tuple[int, int]
    """See `cost_of`."""
    _account: Account = field(kw_only=True, alias="account")
    _clock: Callable[[], float] = field(kw_only=True, alias="clock")
    _started_at: float = field(kw_only=True, alias="now")
    _acknowledge: Callable[[RpcError | None], None] | None = field(kw_only=True, alias="acknowledge")
    _on_end: Callable[[TaskActor], None] = field(kw_only=True, alias="on_end")
    _kept: Slot[None] | None = field(default=None, kw_only=True, alias="kept")
    task_id: str = field(init=False)
    status: Status = field(default="QUEUED", init=False)
    charged: int = field(init=False)
    """Bytes of memory that are charged for it, without its history's; the task registry releases them."""
    log: EventLog = field(init=False)
    verdict: Status | None = field(default=None, init=False)
    """The terminal status, once it is decided; `status` is set when it is on record."""
    snapshot: bytes | None = field(default=None, init=False)
    """The task as task.get shows it, once it is on record and can no longer change."""
    # Set once it runs in a Trio task; a cancellation that came before is delivered then.
    _scope: trio.CancelScope | None = field(default=None, init=False)
    _reason: CancelReason | None = field(default=None, init=False)
    _error: RpcError | None = field(default=None, init=False)
    _current: int | None = field(default=None, init=False)
    # Also tickets of leases that are still queued: releasing one withdraws it.
    _leases: list[tuple[Bus, Ticket]] = field(factory=list, init=False)
    _mark: float = field(init=False)
    """The Trio time when the last step or wait for a lease ended: the next step's latency counts from it."""
    # A task without guarded steps is acknowledged, and runs, even if its records cannot be written.
    _minor: bool = field(init=False)
    _finish_posted: bool = field(default=False, init=False)
    _stepped: bool = field(default=False, init=False)
    """True once `run_now` has run the step: only the end is left."""
    _last: bytes | None = field(default=None, init=False)
    """The last state, once the record of the end has been made."""
    _result_bytes: int = field(default=0, init=False)
    _patience: float = field(default=FINAL_COMMIT_LIMIT, init=False)
    # Records that are not posted yet, receipts of posted ones, and events that wait for those receipts.
    _records: list[Mapping[str, Any]] = field(factory=list, init=False)
    _posted: list[Receipt] = field(factory=list, init=False)
    _events: list[tuple[str, dict[str, Any]]] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.task_id = self.requester.task_id
        self.charged, history = self._cost
        self._account.add(self.charged + history)
        self.log = EventLog(self.task_id, self._services.journal.metrics, self._account, history)
        self._mark = self._started_at
        self._minor = True
        for step in self.steps:
            if step.guarded:
                self._minor = False
                break

    # --- called by the session ----------------------------------------------------------------------------------

    def record_first(self, record: Mapping[str, Any]) -> None:
        """Write a record before that of the submission, in the same write; before `run`."""
        self._records.append(record)

    def cancel(self, reason: CancelReason, error: RpcError | None = None) -> None:
        """Ask the task to stop: its waits end at once, a transaction that has begun finishes. Idempotent.

        Does nothing once the verdict is decided. The task shows `error`.
        """
        if self.verdict is None and self._reason is None:
            # The first reason stays: a session that closes does not rename a request to cancel.
            self._reason, self._error = reason, error
            if self._scope is not None:
                self._scope.cancel()

    @property
    def acts(self) -> bool:
        """True if a step of it has an effective risk of 1 or more: a halt cancels it."""
        return any(step.risk for step in self.steps)

    def overview(self) -> dict[str, Any] | None:
        """Return the task as observers see it, with all its steps; None once its end has been posted."""
        if self._finish_posted:
            return None
        view: dict[str, Any] = {
            "task_id": self.task_id,
            "session_id": self.requester.session_id,
            "principal": self.requester.principal,
            "intent": self.intent[:256],
            "submitted_at": timestamp(self._services.clock() - (trio.current_time() - self._started_at)),
            "status": self.status,
            "steps": [{"tool": step.tool.name, "args": step.logged, "status": step.status} for step in self.steps],
        }
        return {**view, "dry_run": True} if self._constraints.dry_run else view

    def describe(self, status: Status | None = None) -> dict[str, Any]:
        """Return the task as task.get shows it (draft §3.5); a live task shows the steps that have started."""
        steps: list[dict[str, Any]] = []
        for step in self.steps:  # HOT: a comprehension would be one more call
            if step.status is not None:
                steps.append({"tool": step.tool.name, **step.outcome()})  # noqa: PERF401
        wire: dict[str, Any] = {
            "task_id": self.task_id,
            "status": status or self.status,
            "intent": self.intent,
            "steps": steps,
        }
        if self._error is not None:
            wire["error"] = self._error.message
            wire["error_code"] = self._error.code
            wire["error_data"] = self._error.data
        return wire

    # --- the actor ----------------------------------------------------------------------------------------------

    def run_now(self) -> bool:
        """Run the task at once, to its end, if nothing in it has to wait; return False if it has yet to `run`."""
        step = self.steps[0]
        one = self._ready(step)
        if one is None:
            return False
        contain_now(f"task {self.task_id}", partial(self._run_now, step, one), self._crashed)
        if self._error is None and self._current is not None and self.steps[0].status == "RUNNING":
            # The disk has not answered at once: `run` waits for it, and goes on from there.
            return False
        self._stepped = True
        status = self.verdict = self._verdict()
        if not self._services.journal.at_once or (status != "SUCCESS" and self._constraints.rollback_on_failure):
            return False
        self._last = self._conclude(status)
        if not self._post_now():
            return False
        self._commit_now()
        self._close(status, self._last)
        return True

    def _ready(self, step: StepRun) -> Transaction[Any] | None:
        """Return the transaction of a task that has one step and nothing to wait for; None for any other task."""
        constraints, services, run = self._constraints, self._services, step.tool.run
        if (
            not isinstance(run, OneTransaction)
            or len(self.steps) > 1
            or step.expectation is not None
            or self._kept is not None
            or constraints.dry_run
            or constraints.exclusive
            or len(step.args) > SHORT_ARGS
            or not services.journal.at_once
            or not step.bus.in_place(self.requester)
        ):
            return None
        limit = constraints.max_duration_ms
        if limit is not None and self._clock() >= self._started_at + limit / 1000:
            return None
        args = orjson.loads(step.args)
        try:
            one = called(run.make, args)
        except Raised:  # `run` meets it again, where it is contained and recorded
            return None
        if services.interlocks is not None and services.interlocks.concern(step.bus.bus_id, one.drives):
            return None
        step.hash_args(args)
        return one

    def _run_now(self, step: StepRun, one: Transaction[Any]) -> None:
        self._records.append(self._submit_record())
        self._begin_step(0)
        if not self._post_now():
            return
        try:
            unrecorded = self._commit_now()
        except _CannotStart as error:
            self._error = error.cause
            return
        if unrecorded is not None and step.guarded:
            self._finish_step(0, error=unrecorded)
            return
        try:
            value = run_transaction(step, one, self.requester)
        except NotListedYet:
            return
        except RpcError as error:
            self._finish_step(0, error=error)
        else:
            self._finish_step(0, value=value)
        step.args = b""

    async def run(self) -> None:
        """Run the task to its terminal status, recorded and published, whatever its tools raise."""
        try:
            if not self._stepped:
                await contain(f"task {self.task_id}", self._run, self._crashed)
        finally:
            # Also after a cancellation from outside, which `contain` lets pass: the end must be on record.
            await self._end()

    async def _run(self) -> None:
        scope = self._scope = trio.CancelScope()
        if self._reason is not None:
            scope.cancel()
        if self._constraints.max_duration_ms is not None:
            # Counted from the submission: the waits for the journal and for leases are part of the duration.
            scope.deadline = self._started_at + self._constraints.max_duration_ms / 1000
        # Everything that a cancellation may end is inside. `_end` is outside, so it can neither be skipped nor cut
        # short by it.
        with scope:
            try:
                await self._steps()
            except _CannotStart as error:
                self._error = error.cause

    async def _steps(self) -> None:
        for step in self.steps:
            for each in (step,) if step.expectation is None else (step, step.expectation.read):
                if len(each.args) > LONG_ARGS:
                    # It takes longer than one turn of the loop should. Shielded: the submission is recorded anyway.
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(each.hash_args, limiter=_HASHING)
        # Not committed here in the usual case: the first step's start goes to the journal in the same post.
        if self._current is None:
            self._records.append(self._submit_record())
        if self._constraints.dry_run:
            await self._commit()
            self._dry_run()
            return
        if self._constraints.exclusive or self._kept is not None:
            # Before the leases: a task that waits for a bus must be acknowledged, or its client could not cancel it.
            # Before the start of a step: its record must not be there while the task still waits for its key.
            await self._commit()
        if self._constraints.exclusive:
            await self._take_leases()
        for index in range(len(self.steps)):
            if not await self._step(index):
                return

    def _submit_record(self) -> dict[str, Any]:
        record = self._record("task.submit")
        record["intent"] = self.intent[:256]
        record["steps"] = [*map(_submitted, self.steps)]
        if self._constraints.dry_run:
            record["dry_run"] = True
        return record

    async def _step(self, index: int) -> bool:
        """Run one step; False when the task must not go on."""
        step = self.steps[index]
        if index:
            # Other tasks run between two steps, and a cancellation that came during the last step is delivered here.
            await trio.lowlevel.checkpoint()
        if self._current != index:
            self._begin_step(index)
        unrecorded = await self._commit()
        if unrecorded is not None and step.guarded:
            self._finish_step(index, error=unrecorded)
            # Even without abort_on_step_failure: each further attempt would only be one more record to keep.
            return False
        scope = StepScope(index, step, self.requester, self._constraints, self.log, self._services)
        # The packed form is dropped with the first use: a step runs once, and its args may be large.
        args, step.args = orjson.loads(step.args), b""
        # Cancelled is not caught here: the step stays RUNNING, and `_end` settles it.
        try:
            if step.expectation is None:
                value = await run_tool(step, scope, args)
            else:
                value = await self._seen(index, step, step.expectation, scope, args)
        except RpcError as error:
            self._finish_step(index, error=error)
            return not self._constraints.abort_on_step_failure
        self._finish_step(index, value=value)
        return step.error is None or not self._constraints.abort_on_step_failure

    def _begin_step(self, index: int) -> None:
        # From here on `_crashed` and `_end` settle this step if its run does not come to its end.
        self._current = index
        step = self.steps[index]
        step.started_at = self._mark
        step.status = "RUNNING"
        self.status = "RUNNING"
        self._records.append(self._record("task.step.start", index))
        self._events.append(("start", {"step_index": index, "tool": step.tool.name}))

    async def _seen(
        self, index: int, step: StepRun, expectation: Expectation, scope: StepScope, args: Any
    ) -> Mapping[str, Any]:
        """Run a step, and look for the effect that it must have. Raises RpcError, and EffectNotSeen if it is not seen.

        If step and reading have the same bus, the step leases it: no other task's transaction comes in between.
        """
        read, lease = expectation.read, None
        reading = StepScope(index, read, self.requester, self._constraints, self.log, self._services)
        if read.bus is step.bus and step.bus.driver.width == 1 and not self._constraints.exclusive:
            lease = Ticket(None, self.requester, limit=0, priority=PRIORITIES[self._constraints.priority])
        try:
            if lease is not None:
                step.bus.request(lease, no_wait=self._constraints.on_busy == "fail")
                await lease.get()
            value = await run_tool(step, scope, args)
            await look_for_effect(step, expectation, reading)
        finally:
            if lease is not None:
                step.bus.release(lease)
        return value

    def _finish_step(
        self, index: int, *, value: Mapping[str, Any] | None = None, error: RpcError | None = None
    ) -> None:
        """Settle a step: with a value it succeeded, with an error it failed, with neither it was cancelled."""
        step = self.steps[index]
        if value is not None:
            result = to_keep(value)
            error = self._no_room(step, len(result))
            if error is None:
                step.result = result
                step.status = "SUCCESS"
        if error is not None:
            step.error = json_safe(error)
            step.status = "FAILED"
        elif value is None:
            step.status = "CANCELLED"
        # The record and the event wait for the next commit, which saves a write for each step but the last.
        self._mark = self._clock()
        step.latency_ms = round((self._mark - step.started_at) * 1000, 3)
        record = self._record("task.step.finish", index)
        record["status"] = step.status
        record["latency_ms"] = step.latency_ms
        if error is not None:
            record["error_code"] = error.code
            record["effect"] = (error.data or {}).get("effect", "none")
        if step.expectation is not None and step.done:
            read = step.expectation.read
            record["expect"] = {
                "tool": read.tool.name,
                "bus": read.bus.bus_id,
                "args_hash": read.known_hash or read.hash_args(),
                "seen": not isinstance(error, EffectNotSeen),
            }
        self._records.append(record)
        self._events.append(("finish", {"step_index": index, "tool": step.tool.name, **step.outcome()}))
        if self._services.observer.awake and (shown := step.result or _no_value(error)) is not None:
            ids = {"session_id": self.requester.session_id, "task_id": self.task_id, "step_index": index}
            self._services.observer.reading(step.tool.name, step.logged, shown, ids)

    def _no_room(self, step: StepRun, size: int) -> QueueFull | None:
        """Charge a result of `size` bytes, or return the error because of which it cannot be kept.

        Room for twice the size is required: the event holds a copy.
        """
        if self._result_bytes + size > MOST_RESULT_BYTES:
            return _too_long(step, size)
        self._result_bytes += size
        if size > SMALL_RESULT:
            if not self._account.fits(2 * size):
                refusal = self._account.refusal(2 * size)
                refusal.data = {**(refusal.data or {}), "effect": step.effect}
                return refusal
            self._account.add(size)
            self.charged += size
        return None

    def _dry_run(self) -> None:
        """Give each step of a dry run its result: the bus and the risk. No tool runs."""
        for step in self.steps:
            step.status = "SUCCESS"
            would: dict[str, Any] = {"dry_run": True, "bus": step.bus.bus_id, "risk_level": step.risk}
            if step.expectation is not None:
                read = step.expectation.read
                would["expect"] = {"tool": read.tool.name, "bus": read.bus.bus_id}
            step.result = to_keep(would)

    async def _take_leases(self) -> None:
        """Lease every bus of the task, in the order of the bus ids, so that no two tasks wait for each other.

        Pools (files, telemetry) are not leased: they have no single device to hold. Raises _CannotStart.
        """
        every = (*self.steps, *_reads(self.steps))
        buses = {step.bus.bus_id: step.bus for step in every if step.bus.driver.width == 1}
        for bus_id in sorted(buses):
            bus = buses[bus_id]
            ticket = Ticket(None, self.requester, limit=0, priority=PRIORITIES[self._constraints.priority])
            # Noted before the wait: a task that is cancelled in it must release the lease, granted or not.
            self._leases.append((bus, ticket))
            try:
                bus.request(ticket, no_wait=self._constraints.on_busy == "fail")
                await ticket.get()
            except RpcError as error:
                raise _CannotStart(error) from None
        self._mark = trio.current_time()

    def _crashed(self, error: BaseException) -> None:
        """Fail the task with INTERNAL_ERROR, for a bug in a tool or here that the supervisor has contained."""
        current = self._current
        done = current is not None and self.steps[current].done
        effect = self.steps[current].effect if current is not None and done else "unknown"
        internal = InternalError(f"internal error: {type(error).__name__}", data={"effect": effect})
        self._error = internal
        if current is not None and self.steps[current].status == "RUNNING":
            self._finish_step(current, error=internal)

    async def _commit(self) -> AuditUnavailable | None:
        """Write the pending records; then acknowledge the submission, if that is still due, and publish the events.

        Returns the error if the records could not be written: the caller decides by the risk of the next step. Raises
        _CannotStart if the submission of a guarded task is not on record.
        """
        # A commit that is cancelled in its wait leaves receipts in `_posted`: nothing is posted twice or lost.
        if self._records:
            records, self._records = self._records, []
            self._posted.append(self._services.journal.post(*records, minor=self._minor))
        unrecorded = None
        while self._posted:
            try:
                await self._posted[0].get()
            except AuditUnavailable as error:
                unrecorded = error
            # Only after the wait: if it is cancelled, the next commit must wait for the same receipt.
            del self._posted[0]
        unkept = None
        if self._acknowledge is not None and self._kept is not None:
            try:
                await self._kept.get()
            except AuditUnavailable as error:
                unkept = error
        self._tell(unrecorded, unkept)
        return unrecorded

    def _post_now(self) -> bool:
        """Post the pending records; return False if the answer is not there at once, and `_commit` has to wait."""
        records, self._records = self._records, []
        self._posted.append(self._services.journal.post(*records, minor=self._minor))
        return self._posted[-1].filled

    def _commit_now(self) -> AuditUnavailable | None:
        """Do the same as `_commit` after `_post_now`."""
        unrecorded = None
        try:
            self._posted.pop().get_nowait()
        except AuditUnavailable as error:
            unrecorded = error
        self._tell(unrecorded)
        return unrecorded

    def _tell(self, unrecorded: AuditUnavailable | None, unkept: AuditUnavailable | None = None) -> None:
        """Acknowledge the submission, if that is still due, and publish the events, as their records are written."""
        if self._acknowledge is not None:
            # Before the events: the client must know the task before it hears of it. Cleared first, so it is called
            # only once.
            refused = (unrecorded if not self._minor else None) or unkept
            acknowledge, self._acknowledge = self._acknowledge, None
            if refused is not None:
                acknowledge(refused)
                raise _CannotStart(refused)
            acknowledge(None)
        if self._events:
            events, self._events = self._events, []
            self.log.publish_all(events, timestamp(self._services.clock()))

    def _publish(self) -> None:
        """Publish the pending events, whose records are written; a cancellation before that leaves them pending."""
        events, self._events = self._events, []
        self.log.publish_all(events, timestamp(self._services.clock()))

    async def _commit_shielded(self) -> None:
        """Commit, shielded from cancellation, within the rest of FINAL_COMMIT_LIMIT: a disk may never answer."""
        began = trio.current_time()
        with trio.move_on_after(self._patience, shield=True), suppress(_CannotStart):
            await self._commit()
        # One budget for the whole task: a hundred undos on a dead disk must not wait a hundred times.
        self._patience -= trio.current_time() - began

    async def _commit_last(self) -> None:
        """Commit the end of the task; publish its events even if the records cannot be written in time."""
        try:
            await self._commit()
        except _CannotStart:
            # The client has its error instead of an acknowledgement. Followers of the session still learn of the end.
            self._publish()
        except trio.Cancelled:
            # The session around the task is being torn down. Wait a little longer for the receipts of what was posted.
            await self._commit_shielded()
            if self._acknowledge is not None:
                self._acknowledge(ShuttingDown())
            self._publish()
            raise

    # --- the end ------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Reach the terminal status: roll back if asked, release the leases, record, publish, call `on_end`."""
        if self._current is not None and self.steps[self._current].status == "RUNNING":
            # CANCELLED, or failed if its effect has happened and could not be looked for to the end.
            self._finish_step(self._current, error=self.steps[self._current].unverified())
        # From here on a cancellation changes nothing: the verdict is decided before the first wait.
        status = self.verdict = self.verdict or self._verdict()
        if status != "SUCCESS" and self._constraints.rollback_on_failure:
            # Shielded: the task may be ending because it was cancelled, and its effects must still be taken back.
            with trio.CancelScope(shield=True):
                await self._roll_back()
        snapshot = self._last or self._conclude(status)
        # `status` changes only after the commit: task.get must not show an end that is not on record.
        try:
            await self._commit_last()
        finally:
            # Also if the commit was cancelled: the session would wait in vain for a task that never reaches `on_end`.
            self._close(status, snapshot)

    def _conclude(self, status: Status) -> bytes:
        """Release the leases; return the last state, of which record and event wait for the last commit."""
        # After rolling back, which needs the buses; before the journal, whose wait must not hold them.
        for bus, ticket in self._leases:
            bus.release(ticket)
        for step in self.steps:
            if step.status is None:
                step.status = "CANCELLED"
        record = self._record("task.finish")
        record["status"] = status
        if status != "SUCCESS":
            self._mark = self._clock()
        record["duration_ms"] = round((self._mark - self._started_at) * 1000, 3)
        members: dict[str, Any] = {"status": status}
        if self._reason is not None:
            record["reason"] = members["reason"] = self._reason
        if self._error is not None:
            members["error"] = self._error.message
            members["error_code"] = self._error.code
            members["error_data"] = self._error.data
            record["error_code"] = self._error.code
        # Posted before the next checkpoint, by `_commit_last`.
        self._records.append(record)
        self._finish_posted = True
        self._events.append(("task_finish", members))
        return to_keep(self.describe(status))

    def _close(self, status: Status, snapshot: bytes) -> None:
        self.status, self.snapshot = status, snapshot
        for step in self.steps:
            # An undo is of no use now, and may hold a file's whole former content.
            step.undo = None
        self._on_end(self)

    def _verdict(self) -> Status:
        # A request to cancel comes first: the steps that failed because of it do not make the task FAILED.
        if self._reason is not None:
            return "CANCELLED"
        # Cancelled without a reason: by the deadline.
        if self._scope is not None and self._scope.cancel_called:
            limit = self._constraints.max_duration_ms
            self._error = TimedOut(
                f"the task did not finish within max_duration_ms = {limit:.15g}",
                effect="unknown" if any(step.may_have_acted for step in self.steps) else "none",
                data={"limit_ms": limit},
            )
            return "FAILED"
        done = self._error is None
        for step in self.steps:
            if step.status != "SUCCESS":
                done = False
                if step.status == "FAILED":
                    return "FAILED"
        if done or self._error is not None:
            return "SUCCESS" if done else "FAILED"
        # Not cancelled by request, not failed, and not done: the runtime around the task is being torn down.
        self._reason = "shutting down"
        return "CANCELLED"

    async def _roll_back(self) -> None:
        """Undo the completed steps that can be undone, last first; each undo is recorded before it begins.

        An undo that fails is logged and recorded, and the next one is tried.
        """
        for index in range(len(self.steps) - 1, -1, -1):
            step = self.steps[index]
            # By the undo, not by the status: a step whose result was too long has failed after its effect.
            if step.undo is None:
                continue
            record = self._record("task.step.rollback", index)
            # What is about to be undone is on record before the hardware moves; a disk that hangs does not keep it from
            # moving.
            record["undo"] = step.undo.describe
            self._records.append(record)
            await self._commit_shielded()
            members: dict[str, Any] = {}
            interlocks = self._services.interlocks
            wanted: Sequence[Interlock] = ()
            if interlocks is not None:
                wanted = await interlocks.want(step.bus.bus_id, [step.undo.drives])
            # The caller is shielded, so this waits for the true outcome, however long the bus takes.
            try:
                await step.bus.take_back(partial(self._undoing, step, step.undo))
                step.rolled_back = True
            except RpcError as error:
                step.rolled_back = False
                members["error"] = error.message
                about = {"task": self.task_id, "session": self.requester.session_id, "bus": step.bus.bus_id}
                log.warning("task %s step %d could not be rolled back: %s", self.task_id, index, error, extra=about)
            finally:
                if interlocks is not None:
                    interlocks.leave(wanted)
            record = self._record("task.step.rollback", index)
            record["rolled_back"] = step.rolled_back
            self._records.append(record)
            self._events.append(("progress", {"step_index": index, "rolled_back": step.rolled_back, **members}))

    def _undoing(self, step: StepRun, undo: Undo) -> Ticket:
        """Return the ticket that takes the effect of a step back."""
        back = None if undo.drives is None else GiveBack(undo.drives, self.requester.session_id, step.held)
        limit = step.tool.timeout_ms / 1000
        # Neither a lease nor a full queue refuses an undo. On a bus that is down it waits until that is open.
        return Ticket(undo.op, self.requester, limit=limit, risk=step.risk, gives_back=back, must_run=True)

    def _record(self, event: str, index: int | None = None) -> dict[str, Any]:
        record: dict[str, Any] = {
            "event": event,
            "session_id": self.requester.session_id,
            "task_id": self.task_id,
            "principal": self.requester.principal,
        }
        if index is not None:
            step = self.steps[index]
            record["step_index"] = index
            record["tool"] = step.tool.name
            record["bus"] = step.bus.bus_id
            record["args_hash"] = step.known_hash or step.hash_args()
        return record


def _no_value(error: RpcError | None) -> bytes | None:
    """Return the result of a reading whose device has no value, as observers get it; None for any other end."""
    if error is None or not has_no_value(error):
        return None
    return orjson.dumps({"value": None, "why": error.message})


def _reads(steps: Sequence[StepRun]) -> list[StepRun]:
    """Return the reads that look for the effects of steps."""
    return [step.expectation.read for step in steps if step.expectation is not None]


def _submitted(step: StepRun) -> dict[str, Any]:
    """Return a step as the record of its submission has it."""
    call: dict[str, Any] = {"tool": step.tool.name, "args_hash": step.known_hash or step.hash_args()}
    if step.asked is not None:
        call["asked"] = step.asked
    if step.logged:
        call["args"] = step.logged
    if step.expectation is not None:
        call["expect"] = _submitted(step.expectation.read)
    return call


def _too_long(step: StepRun, size: int) -> QueueFull:
    reason = f"the results of one task may have {MOST_RESULT_BYTES} bytes, and this one has {size} more; use more tasks"
    return QueueFull(f"Queue full: {reason}", data={"reason": reason, "effect": step.effect})


class _CannotStart(Exception):
    """The task cannot begin: its submission could not be recorded, or a lease was refused."""

    def __init__(self, cause: RpcError) -> None:
        super().__init__(cause)
        self.cause = cause
