"""The session actor: one authenticated context, its policy decision, its tasks (draft §3, §5; design §3, §8).

It alone owns the session's state: the live tasks and the history, the idempotency keys, the rate buckets, who follows
all its tasks, and when it was last heard of. It takes one message at a time and never waits for a task, so that a
request about one task is answered while others run. However it ends (closed, idle, silent, its client gone, shutdown,
a crash), its tasks are cancelled, the outputs it drove go to their safe state, and the end is on record.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import orjson
import trio
from attrs import define, frozen

from hearth.actors.mailbox import Mailbox
from hearth.actors.submission import Checks, check
from hearth.actors.task import TaskActor, TaskServices
from hearth.actors.tickets import Asker
from hearth.audit.record import args_hash
from hearth.errors import (
    AuditUnavailable,
    InvalidParams,
    PermissionDenied,
    QueueFull,
    RpcError,
    SessionInvalid,
    TaskNotFound,
)
from hearth.ids import new_id
from hearth.policy.rate import RateLimits
from hearth.protocol.methods import (
    EventsSubscribe,
    EventsUnsubscribe,
    Params,
    SessionClose,
    SessionOpen,
    TaskCancel,
    TaskGet,
    TaskSubmit,
    ToolList,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.actors.events import EventLog
    from hearth.policy.rules import Grant

MAX_KEYS = 10_000
"""Idempotency keys a session may use. None is forgotten while it lives: forgetting one could actuate twice."""


class Follower(Protocol):
    """Whoever can be sent a task's events: a connection."""

    @property
    def gone(self) -> bool:
        """True when it will never read again."""
        ...

    def follow(self, log: EventLog, from_seq: int) -> None:
        """Send the log's events, from its history on."""

    def unfollow(self, log: EventLog) -> None:
        """Send no more of them."""


class Ask(Protocol):
    """A request and the way to answer it, exactly once."""

    @property
    def params(self) -> Params:
        """What is asked."""
        ...

    @property
    def follower(self) -> Follower | None:
        """Who is to be sent the events that are asked for."""
        ...

    def result(self, value: Any) -> None:
        """Answer."""

    def error(self, error: RpcError) -> None:
        """Refuse."""


@frozen
class End:
    """Close the session, for this reason."""

    reason: str


@frozen(eq=False)
class Gone:
    """A follower's connection has ended."""

    follower: Follower


class Nudge:
    """Look again at what is due: a task has ended while the session winds up, or a deadline may have passed."""


NUDGE = Nudge()
Message: TypeAlias = "Ask | End | Gone | Nudge"


@frozen(eq=False)
class SessionLimits:
    """The bounds of one session; times in seconds."""

    idle_ttl: float
    close_grace: float
    max_tasks: int
    history: int


@frozen(eq=False)
class SessionServices:
    """What every session of a runtime works with."""

    tasks: TaskServices
    checks: Checks
    limits: SessionLimits
    tool_list: Callable[[Grant], bytes]
    capabilities: Callable[[Grant], list[str]]
    wake_at: Callable[[str, float], None]
    """Ask for a NUDGE at a time of Trio's clock."""
    forget: Callable[[Session], None]
    """Take the session out of the directory: from then on nobody finds it."""


@define(slots=True, eq=False)
class Finished:
    """What is kept of a task that has ended."""

    status: str
    snapshot: bytes
    log: EventLog


@define(slots=True, eq=False)
class Remembered:
    """An idempotency key's first submission."""

    task_id: str
    digest: bytes
    status: str


class Session:
    """One session. Others know its `session_id`, its owner's `principal`, and `post`."""

    __slots__ = (
        "_ended",
        "_followers",
        "_grant",
        "_history",
        "_inbox",
        "_keys",
        "_last_heard",
        "_live",
        "_nursery",
        "_opener",
        "_opening",
        "_rates",
        "_reason",
        "_services",
        "_winding_up",
        "principal",
        "session_id",
    )

    def __init__(self, principal: str, grant: Grant, opening: SessionOpen, services: SessionServices) -> None:
        self.session_id = new_id()
        self.principal = principal
        self._grant = grant
        self._opening = opening
        self._opener: Follower | None = None
        self._services = services
        self._inbox: Mailbox[Message] = Mailbox()
        self._rates = RateLimits(grant)
        self._live: dict[str, TaskActor] = {}
        self._history: dict[str, Finished] = {}
        self._ended: list[TaskActor] = []
        self._keys: dict[str, Remembered] = {}
        self._followers: list[Follower] = []
        self._last_heard = trio.current_time()
        self._reason: str | None = None
        self._nursery: trio.Nursery | None = None
        self._winding_up = False

    def post(self, message: Message) -> None:
        """Leave a message."""
        self._inbox.post(message)

    @property
    def ended(self) -> bool:
        """True once the session takes no more requests."""
        return self._reason is not None

    # --- the actor ----------------------------------------------------------------------------------------------

    async def run(self, opener: Ask) -> None:
        """Open, serve until something ends the session, and leave nothing moving behind."""
        self._opener = opener.follower
        try:
            await self._record("session.open", client_name=self._opening.client_name, policy=self._grant.policy)
            opener.result(self._opened())
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._schedule()
                closers = await self._serve()
                self._services.forget(self)
                await self._wind_up(closers)
        finally:
            self._services.forget(self)
            self._refuse_rest()
            # Once more and whatever happened above: tasks that were still yielding may have driven outputs since.
            with trio.CancelScope(shield=True):
                await self._make_safe()

    def _opened(self) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "capabilities": self._services.capabilities(self._grant),
            "protocol_version": "0.1.0",
        }

    async def _serve(self) -> list[Ask]:
        """Answer messages until the session is to close; returns the requests that asked for it."""
        closers: list[Ask] = []
        while self._reason is None:
            for message in await self._inbox.batch():
                if isinstance(message, (End, Gone, Nudge)):
                    self._notice(message)
                elif self._reason is not None:
                    message.error(SessionInvalid())
                elif isinstance(message.params, SessionClose):
                    self._reason = "closed by the client"
                    closers.append(message)
                else:
                    self._handle(message)
        return closers

    def _notice(self, message: End | Gone | Nudge) -> None:
        if isinstance(message, End):
            self._reason = self._reason or message.reason
        elif isinstance(message, Gone):
            self._followers = [follower for follower in self._followers if follower is not message.follower]
            if message.follower is self._opener and self._opening.on_disconnect == "close":
                self._reason = self._reason or "its client disconnected"
        elif self._reason is None:
            self._check_silence()

    def _handle(self, ask: Ask) -> None:
        """Execute one request; what a request does wrong is answered, never raised."""
        self._last_heard = trio.current_time()
        if self._ended:
            self._sweep()
        params = ask.params
        try:
            if isinstance(params, TaskSubmit):
                self._submit(ask, params)
            elif isinstance(params, TaskGet):
                ask.result(self._get(params.task_id))
            elif isinstance(params, TaskCancel):
                ask.result(self._cancel(params.task_id))
            elif isinstance(params, EventsSubscribe):
                self._subscribe(ask, params)
            elif isinstance(params, EventsUnsubscribe):
                self._unsubscribe(ask, params)
            elif isinstance(params, ToolList):
                ask.result(orjson.Fragment(self._services.tool_list(self._grant)))
        except RpcError as error:
            ask.error(error)

    # --- tasks --------------------------------------------------------------------------------------------------

    def _submit(self, ask: Ask, submit: TaskSubmit) -> None:
        digest = b""
        if submit.idempotency_key is not None:
            digest = _digest(submit)
            known = self._keys.get(submit.idempotency_key)
            if known is not None:
                ask.result(self._repeat(known, digest, submit.idempotency_key))
                return
        try:
            task = self._accept(ask, submit, digest)
        except RpcError as error:
            self._audit_rejection(submit, error)
            raise
        for follower in self._followers:
            if not follower.gone:
                follower.follow(task.log, 1)
        assert self._nursery is not None
        self._nursery.start_soon(task.run)

    def _accept(self, ask: Ask, submit: TaskSubmit, digest: bytes) -> TaskActor:
        services = self._services
        steps = check(submit, services.checks, self._grant, self._rates, self._last_heard)
        if len(self._live) >= services.limits.max_tasks:
            raise QueueFull(
                f"Queue full: the session has {len(self._live)} live tasks",
                data={"max_tasks_per_session": services.limits.max_tasks},
            )
        if submit.idempotency_key is not None and len(self._keys) >= MAX_KEYS:
            raise QueueFull("Queue full: the session has used up its idempotency keys", data={"max_keys": MAX_KEYS})
        asker = Asker(self.session_id, new_id(), self.principal)
        risk = max(step.tool.risk_level for step in steps)
        failure = services.tasks.journal.failure
        if risk and failure is not None:
            raise AuditUnavailable(data={"reason": failure, "effect": "none"})
        if submit.constraints.on_busy == "fail" and not submit.constraints.dry_run:
            for step in steps:
                busy = step.bus.known_busy(asker)
                if busy is not None:
                    raise busy

        def acknowledge(error: RpcError | None) -> None:
            if error is not None:
                self._keys.pop(submit.idempotency_key or "", None)
                ask.error(error)
                return
            ask.result({"task_id": asker.task_id, "status": "QUEUED"})
            if submit.subscribe and ask.follower is not None:
                ask.follower.follow(task.log, 1)

        task = TaskActor(
            asker,
            submit.intent,
            steps,
            submit.constraints,
            services.tasks,
            now=self._last_heard,
            acknowledge=acknowledge,
            on_end=self._task_ended,
        )
        self._live[asker.task_id] = task
        if submit.idempotency_key is not None:
            self._keys[submit.idempotency_key] = Remembered(asker.task_id, digest, "QUEUED")
        return task

    def _repeat(self, known: Remembered, digest: bytes, key: str) -> dict[str, Any]:
        if known.digest != digest:
            reason = f"idempotency_key {key!r} was used in this session for another task"
            raise InvalidParams(
                f"Invalid params: {reason}",
                data={"path": "/task/idempotency_key", "reason": reason, "task_id": known.task_id},
            )
        live, finished = self._live.get(known.task_id), self._history.get(known.task_id)
        if live is not None:
            known.status = live.status
        elif finished is not None:
            known.status = finished.status
        return {"task_id": known.task_id, "status": known.status, "repeated": True}

    def _audit_rejection(self, submit: TaskSubmit, error: RpcError) -> None:
        """A refusal is on record too; nobody waits for it, since nothing was done."""
        record: dict[str, Any] = {
            "event": "task.reject",
            "session_id": self.session_id,
            "principal": self.principal,
            "tools": [step.tool[:100] for step in submit.steps[:16]],
            "error_code": error.code,
            "reason": error.message[:256],
        }
        self._services.tasks.journal.post(record)

    def _task_ended(self, task: TaskActor) -> None:
        # Called in the task's turn, as its last act: a letter in a box that this actor looks into on its own next turn.
        self._ended.append(task)
        if self._winding_up:
            self._inbox.post(NUDGE)

    def _sweep(self) -> None:
        """File the tasks that have ended since the last turn."""
        ended, self._ended = self._ended, []
        for task in ended:
            assert task.snapshot is not None
            del self._live[task.task_id]
            self._history[task.task_id] = Finished(task.status, task.snapshot, task.log)
            if len(self._history) > self._services.limits.history:
                del self._history[next(iter(self._history))]

    def _get(self, task_id: str) -> Any:
        finished = self._history.get(task_id)
        if finished is not None:
            return orjson.Fragment(finished.snapshot)
        return self._find_live(task_id).describe()

    def _find_live(self, task_id: str) -> TaskActor:
        task = self._live.get(task_id)
        if task is None:
            raise TaskNotFound(data={"task_id": task_id[:64]})
        return task

    def _cancel(self, task_id: str) -> dict[str, Any]:
        finished = self._history.get(task_id)
        if finished is not None:
            return {"task_id": task_id, "status": finished.status}
        task = self._find_live(task_id)
        if task.verdict is not None:
            return {"task_id": task_id, "status": task.verdict}
        task.cancel("cancelled")
        return {"task_id": task_id, "status": "CANCELLING"}

    # --- events -------------------------------------------------------------------------------------------------

    def _subscribe(self, ask: Ask, params: EventsSubscribe) -> None:
        follower = ask.follower
        if follower is None:
            raise PermissionDenied("this carrier takes no notifications")
        if params.task_id is not None:
            log = self._log_of(params.task_id)
            ask.result({"ok": True, "task_id": params.task_id, "last_seq": log.last_seq})
            follower.follow(log, params.from_seq)
            return
        ask.result({"ok": True})
        if follower not in self._followers:
            self._followers.append(follower)
        for finished in self._history.values():
            follower.follow(finished.log, 1)
        for task in self._live.values():
            follower.follow(task.log, 1)

    def _unsubscribe(self, ask: Ask, params: EventsUnsubscribe) -> None:
        follower = ask.follower
        if follower is not None:
            if params.task_id is not None:
                follower.unfollow(self._log_of(params.task_id))
            else:
                self._followers = [other for other in self._followers if other is not follower]
                for task in self._live.values():
                    follower.unfollow(task.log)
        ask.result({"ok": True})

    def _log_of(self, task_id: str) -> EventLog:
        finished = self._history.get(task_id)
        return finished.log if finished is not None else self._find_live(task_id).log

    # --- silence ------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        self._services.wake_at(self.session_id, self._last_heard + self._patience())

    def _patience(self) -> float:
        """Seconds without a request after which something must happen."""
        ttl = self._services.limits.idle_ttl
        heartbeat = self._opening.heartbeat_ms
        return ttl if heartbeat is None else min(ttl, heartbeat / 1000)

    def _check_silence(self) -> None:
        """Close a session that has been silent for too long; otherwise ask to be woken when it would be.

        The deadman counts requests only. The idle time-to-live is also kept off by a live subscription, because
        somebody is listening; a running task alone does not keep a session (design §8).
        """
        now = trio.current_time()
        silent = now - self._last_heard
        heartbeat = self._opening.heartbeat_ms
        if heartbeat is not None and silent >= heartbeat / 1000:
            self._reason = f"no heartbeat within {heartbeat} ms"
            return
        if silent >= self._services.limits.idle_ttl:
            if not self._is_followed():
                self._reason = "idle"
                return
            self._last_heard = now if heartbeat is None else self._last_heard
        self._services.wake_at(self.session_id, max(self._last_heard + self._patience(), now + 0.001))

    def _is_followed(self) -> bool:
        return any(not follower.gone for follower in self._followers) or any(
            task.log.followed for task in self._live.values()
        )

    # --- the end ------------------------------------------------------------------------------------------------

    async def _wind_up(self, closers: list[Ask]) -> None:
        """Cancel what runs, wait a little for it to yield, make outputs safe, record the end, answer who asked."""
        self._winding_up = True
        reason = "shutting down" if self._reason == "shutting down" else "session closed"
        for task in self._live.values():
            task.cancel(reason)  # type: ignore[arg-type]
        with trio.move_on_after(self._services.limits.close_grace):
            self._sweep()
            while self._live:
                for message in await self._inbox.batch():
                    if not isinstance(message, (End, Gone, Nudge)):
                        message.error(SessionInvalid())
                self._sweep()
        yielding = len(self._live)
        safe = await self._make_safe()
        await self._record("session.close", reason=self._reason, **({"yielding": yielding} if yielding else {}), **safe)
        for ask in closers:
            ask.result({"ok": True, "yielding": yielding} if yielding else {"ok": True})

    async def _make_safe(self) -> dict[str, Any]:
        """Bring every output this session drove to its safe state; what was done, for the record.

        Waits at most the grace for a bus that does not come free; its turn then comes when it does.
        """
        done: list[Any] = []
        tickets = [
            ticket for bus in self._services.checks.buses.values() if (ticket := bus.make_safe(self.session_id)) is
            not None
        ]
        for ticket in tickets:
            with trio.move_on_after(self._services.limits.close_grace):
                await ticket.wait()
            if ticket.filled:
                try:
                    done.extend(await ticket.get())
                except RpcError as error:
                    done.append({"error": error.message})
        return {"safe": done} if done else {}

    def _refuse_rest(self) -> None:
        for message in self._inbox.drain():
            if not isinstance(message, (End, Gone, Nudge)):
                message.error(SessionInvalid())

    async def _record(self, event: str, **members: Any) -> None:
        """Write a record about the session; reads go on when the log cannot be written, so a failure is not raised."""
        record: Mapping[str, Any] = {
            "event": event,
            "session_id": self.session_id,
            "principal": self.principal,
            **{name: value for name, value in members.items() if value is not None},
        }
        try:
            await self._services.tasks.journal.post(record).get()
        except AuditUnavailable:
            return


def _digest(submit: TaskSubmit) -> bytes:
    """What makes two submissions the same: intent, steps and constraints."""
    parts = [submit.intent, repr(submit.constraints)]
    for step in submit.steps:
        parts += [step.tool, args_hash(step.args)]
    return hashlib.sha256("\0".join(parts).encode()).digest()
