"""The Session interface over two primitives: call a method, follow a task's events.

A remote client does both over a carrier, an embedded runtime in its process; everything a user sees on top of them is
here, once. See `hearth.api` for the contract.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from hearth.api import Step, StepResult, TaskEvent, TaskResult
from hearth.errors import MethodNotFound, TaskFailed, from_wire
from hearth.protocol.client import ProtocolViolation, read_task
from hearth.protocol.jsonrpc import kind_of
from hearth.protocol.known import require_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hearth.errors import HearthError


TakeBack: TypeAlias = "Callable[[Mapping[str, Any]], tuple[str, Mapping[str, Any]] | None]"
"""From a result that nobody waits for any more to the method and params that take its effect back, if there are any."""


class Following(ABC):
    """One subscription to one task's events; nothing happens before `start`."""

    @abstractmethod
    async def start(self) -> None:
        """Subscribe. Raises the RpcError it was answered with, or CarrierError; it may then be tried again."""

    @abstractmethod
    async def next(self) -> TaskEvent | None:
        """The next event, or None after the last. Cancelling this loses no event."""

    @abstractmethod
    def close(self) -> None:
        """Follow no more; idempotent, and never waits."""


class TaskEvents:
    """What `async for event in task.events()` reads.

    Whoever stops early may just walk away: the subscription ends with this object, at the latest with the task. A
    timeout around one event loses none; the next call goes on where this one was left.
    """

    __slots__ = ("_following", "_started", "_thread")

    def __init__(self, following: Following, *, started: bool = False) -> None:
        self._following = following
        self._started = started
        self._thread = threading.get_ident()

    def __aiter__(self) -> TaskEvents:
        return self

    async def __anext__(self) -> TaskEvent:
        if not self._started:
            await self._following.start()
            self._started = True
        event = await self._following.next()
        if event is None:
            self._following.close()
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """Follow no more, now; for `contextlib.aclosing`."""
        self._following.close()

    def __del__(self) -> None:
        # The garbage collector runs in whichever thread it likes; then the subscription ends with its task.
        if threading.get_ident() == self._thread:
            self._following.close()


class SessionLink(ABC):
    """The primitives."""

    @abstractmethod
    async def call(
        self, method: str, params: Mapping[str, Any], *, compensate: TakeBack | None = None
    ) -> Mapping[str, Any]:
        """Call a method and return its result; raises the RpcError it was answered with, or CarrierError.

        If the caller is cancelled before the answer comes, what it then says is taken back.
        """

    @abstractmethod
    async def submit(
        self, params: Mapping[str, Any], *, compensate: TakeBack | None = None
    ) -> tuple[Mapping[str, Any], Following | None]:
        """task.submit, and its events from the first on in the same request; None from a server that cannot do that.

        What follows has started. Raises as `call`.
        """

    @abstractmethod
    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Call a method without waiting and without learning what comes of it."""

    @abstractmethod
    def follow(self, session_id: str, task_id: str, from_seq: int) -> Following:
        """A subscription to a task: its events from `from_seq` on, the last of which is `task_finish`."""


class TaskFace:
    """Implements `hearth.api.Task`."""

    def __init__(self, link: SessionLink, session_id: str, task_id: str, events: TaskEvents | None = None) -> None:
        self._link = link
        self._session_id = session_id
        self.task_id = task_id
        self._events = events
        """Those that were asked for with the submission, until somebody reads them."""

    def __repr__(self) -> str:
        return f"<task {self.task_id}>"

    def _params(self) -> dict[str, Any]:
        return {"session_id": self._session_id, "task_id": self.task_id}

    def events(self, *, from_seq: int = 1) -> TaskEvents:
        """See hearth.api.Task."""
        if from_seq == 1 and self._events is not None:
            events, self._events = self._events, None
            return events
        return TaskEvents(self._link.follow(self._session_id, self.task_id, from_seq))

    async def wait(self) -> TaskResult:
        """See hearth.api.Task."""
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
    """A member that a result must have. Raises ProtocolViolation for a server that left it out."""
    value = answer.get(name)
    if not isinstance(value, kind):
        raise ProtocolViolation(f"the server answered {method} with {kind_of(value)} for {name}")
    return value


class ClientSession:
    """Implements `hearth.api.Session`."""

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
        intent: str,
        steps: Sequence[Step | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        follow: bool = False,
        **constraints: Any,
    ) -> TaskFace:
        """See hearth.api.Session."""
        task: dict[str, Any] = {
            "intent": intent,
            "steps": [step.to_wire() if isinstance(step, Step) else dict(step) for step in steps],
        }
        if constraints:
            task["constraints"] = constraints
        if idempotency_key is not None:
            task["idempotency_key"] = idempotency_key
        # With a key the caller can come back for the task; without, nobody would ever know of it.
        compensate = self._cancelling if idempotency_key is None else None
        # Constraints are held against what is known here; only the server knows what its tools take.
        params = {"session_id": self.session_id, "task": task, "strict": True}
        require_known("task.submit", params)
        events: TaskEvents | None = None
        if follow:
            answer, following = await self._link.submit(params, compensate=compensate)
            events = None if following is None else TaskEvents(following, started=True)
        else:
            answer = await self._link.call("task.submit", params, compensate=compensate)
        return TaskFace(self._link, self.session_id, member(answer, "task_id", str, "task.submit"), events)

    def _cancelling(self, submitted: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        task_id = submitted.get("task_id")
        return ("task.cancel", {"session_id": self.session_id, "task_id": task_id}) if task_id else None

    async def run(self, tool: str, /, **args: Any) -> Mapping[str, Any]:
        """See hearth.api.Session."""
        task = await self.submit(f"run {tool}", [Step(tool, args)])
        try:
            done = await task.wait()
        except BaseException:
            # Whoever gave up waiting is the only one who knows of the task.
            self._link.tell("task.cancel", {"session_id": self.session_id, "task_id": task.task_id})
            raise
        step = done.steps[0] if done.steps else StepResult(tool, done.status)
        if step.status == "SUCCESS":
            return step.result or {}
        if step.error_code is not None:
            raise from_wire({"code": step.error_code, "message": step.error, "data": step.error_data})
        raise TaskFailed(f"task {task.task_id} {done.status}: {done.error or step.error or tool}")

    async def task(self, task_id: str) -> TaskFace:
        """See hearth.api.Session."""
        task = TaskFace(self._link, self.session_id, task_id)
        await task.get()
        return task

    async def close(self) -> int:
        """See hearth.api.Session."""
        self.closed = True
        answer = await self._link.call("session.close", {"session_id": self.session_id})
        yielding = answer.get("yielding", 0)
        return yielding if type(yielding) is int else 0


# --- events over a connection -----------------------------------------------------------------------------------------
#
# Who follows which task over one connection, on the client's side: what has come and has not been read yet.
# Calling the daemon, and noticing that it is gone, is the client's.

EVENTS_KEPT = 4096
"""Events that wait for a follower who does not read; of progress, older ones beyond this are dropped."""


class Subscriptions:
    """All of one connection's."""

    def __init__(self, link: SessionLink) -> None:
        self.link = link
        self.ended: Callable[[str], HearthError] | None = None
        """Set when the connection has ended: from what was under way to the error that says why."""
        self._of_task: dict[str, list[Subscription]] = {}

    def add(self, subscription: Subscription) -> None:
        """From now on it takes its task's events."""
        self._of_task.setdefault(subscription.task_id, []).append(subscription)

    def remove(self, subscription: Subscription) -> bool:
        """It takes no more; True if it was the last that followed its task."""
        others = self._of_task.get(subscription.task_id, [])
        if subscription not in others:
            return False
        others.remove(subscription)
        if not others:
            del self._of_task[subscription.task_id]
        return not others

    def take(self, event: TaskEvent) -> None:
        """An event has come."""
        for subscription in self._of_task.get(event.task_id, ()):
            subscription.take(event)

    def end(self, why: Callable[[str], HearthError]) -> None:
        """No more will come."""
        self.ended = why
        for subscriptions in self._of_task.values():
            for subscription in subscriptions:
                subscription.wake()


class Subscription(Following):
    """Somebody who follows one task here; drops what it has seen, since a second follower makes the server replay."""

    def __init__(self, all_of_them: Subscriptions, session_id: str, task_id: str, from_seq: int) -> None:
        self.task_id = task_id
        self._all = all_of_them
        self._params: dict[str, Any] = {"session_id": session_id, "task_id": task_id}
        self._from_seq = from_seq
        self._last_seq = from_seq - 1
        self._events: deque[TaskEvent] = deque()
        self._changed = trio.Event()
        self._over = False
        """True when the task's last event has come, whether or not it was asked for."""

    def begin(self) -> None:
        """Take its task's events from now on: who sends them has been asked already."""
        self._all.add(self)

    async def start(self) -> None:
        """See Following."""
        self.begin()
        try:
            last_seq = await self._subscribe(self._from_seq)
            if type(last_seq) is int and 1 <= last_seq < self._from_seq:
                # Nothing that was asked for is there yet; only the last event tells whether there will ever be.
                await self._subscribe(last_seq)
        except MethodNotFound:
            self._all.remove(self)  # and nothing is told to a server that knows no subscriptions
            raise
        except BaseException:
            self.close()
            raise

    async def _subscribe(self, from_seq: int) -> Any:
        answer = await self._all.link.call("task.events.subscribe", {**self._params, "from_seq": from_seq})
        return answer.get("last_seq")

    async def next(self) -> TaskEvent | None:
        """See Following."""
        while not self._events:
            if self._over:
                return None
            if self._all.ended is not None:
                raise self._all.ended(f"while {self.task_id} was followed")
            self._changed = trio.Event()
            await self._changed.wait()
        return self._events.popleft()

    def close(self) -> None:
        """See Following."""
        if self._all.remove(self) and not self._over:
            self._all.link.tell("task.events.unsubscribe", self._params)

    def take(self, event: TaskEvent) -> None:
        """The task has had an event."""
        self._over = self._over or event.phase == "task_finish"
        self.wake()
        # A server that does not count its events (the draft does not ask for it) says 0, and repeats nothing.
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
        """Let the reader look again."""
        self._changed.set()
