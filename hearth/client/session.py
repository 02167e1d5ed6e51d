"""The Session interface over two primitives: call a method, follow a task's events.

A remote client implements the primitives (`SessionLink`) over a carrier, an embedded runtime in its process. This
module has the rest, once for both. See `hearth.api` for the contract.

Theory of operation. *Cancellation.* A caller that is cancelled gives up its wait, not the request: that has been sent,
and its effect may still come. So each call whose effect would then belong to no caller says how to take it back
(`compensate`): the link calls it when the late answer comes. A submission without an `idempotency_key` is cancelled;
one with a key can be found again, and goes on.

*Events.* The server sends the events of a task once for each connection, however many readers it has there.
`Subscriptions` passes each event to the `Subscription` of every reader, which drops what it has seen. A reader that
starts later makes the server replay the history, which the other readers get too and drop by number. The last reader
of a task that stops unsubscribes.

A subscription ends with `task_finish`, with `close`, or with the connection. What has been received is read first in
each case; after that a reader gets the end of the stream, or the error that ended the connection.

All of it runs in the Trio thread. `EventIterator.__del__` alone may run elsewhere, and then does nothing.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import trio
from attrs import define

from hearth._util.text import suggest
from hearth.api import Step, StepResult, TaskConstraints, TaskEvent, TaskResult
from hearth.audit.record import args_hash
from hearth.errors import MethodNotFound, TaskFailed, from_wire
from hearth.protocol.client import ProtocolViolation, read_halt, read_plan, read_task
from hearth.protocol.jsonrpc import kind_of
from hearth.protocol.known import require_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from hearth.api import HaltStatus, Plan
    from hearth.errors import HearthError
    from hearth.namespaces import (
        FilesNamespace,
        GpioNamespace,
        I2cNamespace,
        PwmNamespace,
        SensorsNamespace,
        UartNamespace,
    )


T = TypeVar("T")

TakeBack: TypeAlias = "Callable[[Mapping[str, Any]], tuple[str, Mapping[str, Any]] | None]"
"""A function for a result whose caller was cancelled: returns the method and params that undo its effect, or None."""


def require_trio(function: str) -> None:
    """Raise RuntimeError, which says what to use instead, where no Trio runs."""
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(f"hearth.{function} runs on Trio, {_instead(f'.{function}')}")


def wrong_thread(what: str) -> RuntimeError:
    """Return the error for the use of a Trio object outside the thread of its Trio."""
    if trio.lowlevel.in_trio_run():
        return RuntimeError(f"this {what} belongs to Trio in another thread: open one here, or use trio.from_thread")
    return RuntimeError(f"this {what} belongs to Trio, {_instead('')}")


def _instead(function: str) -> str:
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return f"and this is asyncio: use hearth.aio{function}"
    return f"and no event loop runs here: use hearth.sync{function}, or trio.run"


class Following(ABC, Generic[T]):
    """One subscription, to one task's events or to a runtime's; nothing happens before `start`."""

    @abstractmethod
    async def start(self) -> None:
        """Subscribe. Raises the RpcError of the answer, or CarrierError; it may then be called again."""

    @abstractmethod
    async def next(self) -> T | None:
        """Return the next event, or None after the last. Cancelling this loses no event."""

    @abstractmethod
    def close(self) -> None:
        """End the subscription; idempotent, and never waits."""


class EventIterator(Generic[T]):
    """The iterator of `async for event in task.events()`, and of `session.observe()`.

    A reader may stop early without closing it: the subscription ends with this object, at the latest with the task. A
    timeout around one event loses none; the next call continues from there.
    """

    __slots__ = ("_following", "_started", "_thread")

    def __init__(self, following: Following[T], *, started: bool = False) -> None:
        self._following = following
        self._started = started
        self._thread = threading.get_ident()

    def __aiter__(self) -> EventIterator[T]:
        return self

    async def __anext__(self) -> T:
        if not self._started:
            await self._following.start()
            self._started = True
        event = await self._following.next()
        if event is None:
            self._following.close()
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """End the subscription now; for `contextlib.aclosing`."""
        self.close()

    def close(self) -> None:
        """End the subscription now; in the Trio thread."""
        self._following.close()

    def __del__(self) -> None:
        # The garbage collector may run in any thread, and Trio objects are not thread-safe. In another thread do
        # nothing: the subscription ends with its task.
        if threading.get_ident() == self._thread:
            self._following.close()


class SessionLink(ABC):
    """The primitives that a session needs from a connection or a runtime."""

    @abstractmethod
    async def call(
        self, method: str, params: Mapping[str, Any], *, compensate: TakeBack | None = None
    ) -> Mapping[str, Any]:
        """Call a method and return its result. Raises the RpcError of the answer, or CarrierError.

        If the caller is cancelled before the answer comes, `compensate` undoes the effect of that answer.
        """

    @abstractmethod
    async def submit(
        self, params: Mapping[str, Any], *, compensate: TakeBack | None = None
    ) -> tuple[Mapping[str, Any], Following[TaskEvent] | None]:
        """Call task.submit and subscribe to the task's events in the same request; None if the server cannot do that.

        The returned Following has started. Raises as `call`.
        """

    @abstractmethod
    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Call a method without waiting for an answer."""

    @abstractmethod
    def observe(self, params: Mapping[str, Any]) -> Following[Mapping[str, Any]]:
        """Return a subscription to the runtime's events, by the params of observe.subscribe."""

    @abstractmethod
    def follow(self, session_id: str, task_id: str, from_seq: int) -> Following[TaskEvent]:
        """Return a subscription to a task: its events from `from_seq` on, of which `task_finish` is the last."""


@define(eq=False, repr=False)
class ClientTask:
    """An implementation of `hearth.api.Task`."""

    _link: SessionLink
    _session_id: str
    task_id: str
    _events: EventIterator[TaskEvent] | None = None
    """The events that the submission subscribed to, until the first reader takes them."""

    def __repr__(self) -> str:
        return f"<task {self.task_id}>"

    def _params(self) -> dict[str, Any]:
        return {"session_id": self._session_id, "task_id": self.task_id}

    def events(self, *, from_seq: int = 1) -> EventIterator[TaskEvent]:
        """See hearth.api.Task."""
        # The first reader takes the submission's own subscription. Later ones need a replay: its events are read once.
        if from_seq == 1 and self._events is not None:
            events, self._events = self._events, None
            return events
        return EventIterator(self._link.follow(self._session_id, self.task_id, from_seq))

    async def wait(self) -> TaskResult:
        """See hearth.api.Task."""
        # The events only tell when the task has ended; task.get has the whole result.
        async for _event in self.events():
            pass
        return await self.get()

    async def get(self) -> TaskResult:
        """See hearth.api.Task."""
        return read_task(await self._link.call("task.get", self._params()))

    async def cancel(self) -> str:
        """See hearth.api.Task."""
        answer = await self._link.call("task.cancel", self._params())
        return str(member(answer, "status", str, "task.cancel"))


def member(answer: Mapping[str, Any], name: str, kind: type, method: str) -> Any:
    """Return a required member of a result. Raises ProtocolViolation if it is missing or has another type."""
    value = answer.get(name)
    if not isinstance(value, kind):
        raise ProtocolViolation(f"the server answered {method} with {kind_of(value)} for {name}")
    return value


class WithNamespaces(ABC):
    """The namespaces of a session, as attributes. Their module is loaded on first use."""

    @abstractmethod
    async def run(self, tool: str, /, **args: Any) -> Mapping[str, Any]:
        """See hearth.api.Session."""

    @property
    def gpio(self) -> GpioNamespace:
        """See hearth.api.Session."""
        from hearth.namespaces import GpioNamespace

        return GpioNamespace(self)

    @property
    def i2c(self) -> I2cNamespace:
        """See hearth.api.Session."""
        from hearth.namespaces import I2cNamespace

        return I2cNamespace(self)

    @property
    def uart(self) -> UartNamespace:
        """See hearth.api.Session."""
        from hearth.namespaces import UartNamespace

        return UartNamespace(self)

    @property
    def pwm(self) -> PwmNamespace:
        """See hearth.api.Session."""
        from hearth.namespaces import PwmNamespace

        return PwmNamespace(self)

    @property
    def files(self) -> FilesNamespace:
        """See hearth.api.Session."""
        from hearth.namespaces import FilesNamespace

        return FilesNamespace(self)

    @property
    def sensors(self) -> SensorsNamespace:
        """See hearth.api.Session."""
        from hearth.namespaces import SensorsNamespace

        return SensorsNamespace(self)


class ClientSession(WithNamespaces):
    """An implementation of `hearth.api.Session`."""

    def __init__(self, link: SessionLink, opened: Mapping[str, Any]) -> None:
        self._link = link
        self.session_id: str = member(opened, "session_id", str, "session.open")
        flags = opened.get("capabilities")
        self.capabilities: tuple[str, ...] = tuple(flags) if isinstance(flags, list) else ()  # optional (draft §3.1)
        self.closed = False

    def __repr__(self) -> str:
        return f"<session {self.session_id}>"

    async def tools(self) -> list[dict[str, Any]]:
        """See hearth.api.Session."""
        answer = await self._link.call("tool.list", {"session_id": self.session_id})
        tools: list[dict[str, Any]] = member(answer, "tools", list, "tool.list")
        return tools

    async def call(self, method: str, /, **params: Any) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        return await self._link.call(method, {"session_id": self.session_id, "strict": True, **params})

    async def submit(
        self,
        /,
        intent: str,
        steps: Sequence[Step | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        follow: bool = False,
        **constraints: Unpack[TaskConstraints],
    ) -> ClientTask:
        """See hearth.api.Session."""
        task = _task("submit", intent, steps, constraints, "idempotency_key", "follow")
        if idempotency_key is not None:
            task["idempotency_key"] = idempotency_key
        # With a key the caller can find the task again. Without one, a task whose answer is lost must be cancelled.
        compensate = self._cancelling if idempotency_key is None else None
        # The members of a step are checked here; only the server knows the arguments of its tools.
        params = {"session_id": self.session_id, "task": task, "strict": True}
        require_known("task.submit", params)
        events: EventIterator[TaskEvent] | None = None
        if follow:
            answer, following = await self._link.submit(params, compensate=compensate)
            events = None if following is None else EventIterator(following, started=True)
        else:
            answer = await self._link.call("task.submit", params, compensate=compensate)
        return ClientTask(self._link, self.session_id, member(answer, "task_id", str, "task.submit"), events)

    def _cancelling(self, submitted: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        task_id = submitted.get("task_id")
        return ("task.cancel", {"session_id": self.session_id, "task_id": task_id}) if task_id else None

    async def prepare(
        self,
        /,
        intent: str,
        steps: Sequence[Step | Mapping[str, Any]],
        **constraints: Unpack[TaskConstraints],
    ) -> Plan:
        """See hearth.api.Session."""
        task = _task("prepare", intent, steps, constraints)
        params = {"session_id": self.session_id, "task": task, "strict": True}
        require_known("plan.prepare", params)
        return _plan(await self._link.call("plan.prepare", params))

    async def execute(self, plan: Plan | str, *, wait_ms: int | None = None) -> ClientTask:
        """See hearth.api.Session."""
        named = {"plan_id": plan} if isinstance(plan, str) else {"plan_id": plan.plan_id, "hash": plan.hash}
        params = {"session_id": self.session_id, "strict": True, **named}
        if wait_ms is not None:
            params["wait_ms"] = wait_ms
        answer = await self._link.call("plan.execute", params, compensate=self._cancelling)
        return ClientTask(self._link, self.session_id, member(answer, "task_id", str, "plan.execute"))

    async def plans(self) -> list[Plan]:
        """See hearth.api.Session."""
        return [_plan(plan) for plan in member(await self.call("plan.list"), "plans", list, "plan.list")]

    async def approve(self, plan: Plan, *, reason: str | None = None) -> int:
        """See hearth.api.Session."""
        answer = await self.call("plan.approve", plan_id=plan.plan_id, hash=plan.hash, reason=reason)
        missing: int = member(answer, "missing", int, "plan.approve")
        return missing

    async def reject(self, plan: Plan | str, *, reason: str | None = None) -> None:
        """See hearth.api.Session."""
        await self.call("plan.reject", plan_id=plan if isinstance(plan, str) else plan.plan_id, reason=reason)

    async def run(self, tool: str, /, **args: Any) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        task = await self.submit(f"run {tool}", [Step(tool, args)])
        try:
            done = await task.wait()
        except BaseException:
            # Only this caller has the id of the task, so no other could cancel it.
            self._link.notify("task.cancel", {"session_id": self.session_id, "task_id": task.task_id})
            raise
        step = done.steps[0] if done.steps else StepResult(tool, done.status)
        if step.status == "SUCCESS":
            return step.result or {}
        if step.error_code is not None:
            raise from_wire({"code": step.error_code, "message": step.error, "data": step.error_data})
        raise TaskFailed(f"task {task.task_id} {done.status}: {done.error or step.error or tool}")

    async def task(self, task_id: str) -> ClientTask:
        """See hearth.api.Session."""
        task = ClientTask(self._link, self.session_id, task_id)
        await task.get()
        return task

    async def halt(self, reason: str = "") -> HaltStatus:
        """See hearth.api.Session."""
        # No compensation: a caller that gave up waiting has not changed its mind.
        return read_halt(await self._link.call("halt", {"session_id": self.session_id, "reason": reason}))

    async def halt_status(self) -> HaltStatus:
        """See hearth.api.Session."""
        return read_halt(await self._link.call("halt.status", {"session_id": self.session_id}))

    async def reset_halt(self) -> HaltStatus:
        """See hearth.api.Session."""
        return read_halt(await self._link.call("halt.reset", {"session_id": self.session_id}))

    async def observe_state(self) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        return await self._link.call("observe.state", {"session_id": self.session_id})

    def observe(self, *, stream: str | None = None, from_seq: int | None = None) -> EventIterator[Mapping[str, Any]]:
        """See hearth.api.Session."""
        given = {"session_id": self.session_id, "stream": stream, "from_seq": from_seq}
        return EventIterator(self._link.observe({name: value for name, value in given.items() if value is not None}))

    async def observe_audit(self, *, from_seq: int | None = None, limit: int = 100) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        return await self._link.call(
            "observe.audit", {"session_id": self.session_id, "from_seq": from_seq, "limit": limit}
        )

    async def close(self) -> int:
        """See hearth.api.Session."""
        self.closed = True
        answer = await self._link.call("session.close", {"session_id": self.session_id})
        yielding = answer.get("yielding", 0)
        return yielding if type(yielding) is int else 0


def _task(
    method: str,
    intent: str,
    steps: Sequence[Step | Mapping[str, Any]],
    constraints: TaskConstraints,
    *others: str,
) -> dict[str, Any]:
    """Return the `task` of a request. Raises TypeError for an unknown constraint."""
    known = [*TaskConstraints.__annotations__, *others]
    for name in constraints.keys() - {*known}:
        raise TypeError(f"{method}() has no constraint {name!r}; {suggest(name, known) or f'there are {known}'}")
    given = {name: value for name, value in constraints.items() if value is not None}
    task: dict[str, Any] = {
        "intent": intent,
        "steps": [step.to_wire() if isinstance(step, Step) else dict(step) for step in steps],
    }
    if given:
        task["constraints"] = given
    return task


def _plan(answer: Mapping[str, Any]) -> Plan:
    """Return a plan. Raises ProtocolViolation if its hash is not that of what it shows: something else would run."""
    plan = read_plan(answer)
    shown = {name: answer.get(name) for name in ("intent", "constraints", "steps")}
    if plan.hash != args_hash(shown):
        raise ProtocolViolation("the server sent a plan whose hash is not that of what it shows")
    return plan


# --- events over a connection -----------------------------------------------------------------------------------------
#
# The subscriptions of one connection, with the events that were received and not read yet. The SessionLink calls the
# daemon and reports the end of the connection.

EVENTS_KEPT = 4096
"""Limit of the events that wait for a slow reader; beyond it, the oldest `progress` event is dropped for a new one."""


class EventsLink(Protocol):
    """The primitives that subscriptions need from a connection."""

    async def call(
        self, method: str, params: Mapping[str, Any], *, heard: Callable[[Mapping[str, Any]], None]
    ) -> Mapping[str, Any]:
        """See SessionLink; `heard` is called with the result before anything after it is read."""
        ...

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """See SessionLink."""


class Subscriptions:
    """The subscriptions of one connection, by task."""

    def __init__(self, link: EventsLink) -> None:
        self.link = link
        self.ended: Callable[[str], HearthError] | None = None
        """Set when the connection has ended: returns the error for an operation, given its name."""
        self._of_task: dict[str, list[Subscription]] = {}

    def add(self, subscription: Subscription) -> None:
        """Pass the events of its task to `subscription` from now on."""
        self._of_task.setdefault(subscription.task_id, []).append(subscription)

    def remove(self, subscription: Subscription) -> bool:
        """Pass no more events to `subscription`; return True if it was the last one of its task."""
        others = self._of_task.get(subscription.task_id, [])
        if subscription not in others:
            return False
        others.remove(subscription)
        if not others:
            del self._of_task[subscription.task_id]
        return not others

    def take(self, event: TaskEvent) -> None:
        """Pass a received event to the subscriptions of its task."""
        for subscription in self._of_task.get(event.task_id, ()):
            subscription.take(event)

    def end(self, why: Callable[[str], HearthError]) -> None:
        """Note the end of the connection, and wake every reader."""
        self.ended = why
        for subscriptions in self._of_task.values():
            for subscription in subscriptions:
                subscription.wake()


class Subscription(Following[TaskEvent]):
    """One reader of one task's events; it drops duplicates, since a second subscription makes the server replay.

    The server replays after its answer. An event before the answer may be on its way to another reader: it counts only
    if no event before it is missing.
    """

    def __init__(self, all_of_them: Subscriptions, session_id: str, task_id: str, from_seq: int) -> None:
        self.task_id = task_id
        self._all = all_of_them
        self._params: dict[str, Any] = {"session_id": session_id, "task_id": task_id}
        self._from_seq = from_seq
        self._last_seq = from_seq - 1
        self._events: deque[TaskEvent] = deque()
        self._changed = trio.Event()
        self._answered = False
        self._over = False
        """True when the task's last event has come, also if it is before `from_seq`."""

    def begin(self) -> None:
        """Take the task's events from now on; the request for them has been answered already."""
        self._answered = True
        self._all.add(self)

    async def start(self) -> None:
        """See Following."""
        # Before the request: the events may come before its answer.
        self._all.add(self)
        try:
            last_seq = await self._subscribe(self._from_seq)
            if type(last_seq) is int and 1 <= last_seq < self._from_seq:
                # No requested event exists yet. Only the last existing event shows whether the task has ended.
                await self._subscribe(last_seq)
        except MethodNotFound:
            self._all.remove(self)  # send no unsubscribe to a server that knows no subscriptions
            raise
        except BaseException:
            self.close()
            raise

    async def _subscribe(self, from_seq: int) -> Any:
        params = {**self._params, "from_seq": from_seq}
        answer = await self._all.link.call("task.events.subscribe", params, heard=self._heard)
        return answer.get("last_seq")

    def _heard(self, _answer: Mapping[str, Any]) -> None:
        self._answered = True

    async def next(self) -> TaskEvent | None:
        """See Following."""
        while not self._events:
            if self._over:
                return None
            if self._all.ended is not None:
                raise self._all.ended(f"while {self.task_id} was followed")
            # No checkpoint between the tests above and this wait, so no event and no end is missed.
            self._changed = trio.Event()
            await self._changed.wait()
        return self._events.popleft()

    def close(self) -> None:
        """See Following."""
        # While others read the same task, the server must go on sending its events.
        if self._all.remove(self) and not self._over:
            self._all.link.notify("task.events.unsubscribe", self._params)

    def take(self, event: TaskEvent) -> None:
        """Queue a received event for the reader."""
        if not self._answered and event.seq > self._last_seq + 1:
            # The replay behind the answer brings it again, with the ones before it.
            return
        # Also by an event that is dropped below, as one before `from_seq`: it shows that no other will come.
        self._over = self._over or event.phase == "task_finish"
        self.wake()
        # A server that does not number its events (the draft does not require it) sends 0, and repeats none.
        if event.seq:
            if event.seq <= self._last_seq:
                return
            self._last_seq = event.seq
        if len(self._events) >= EVENTS_KEPT and event.phase == "progress":
            for index, old in enumerate(self._events):
                if old.phase == "progress":
                    del self._events[index]
                    break
        self._events.append(event)

    def wake(self) -> None:
        """Wake the reader."""
        self._changed.set()
