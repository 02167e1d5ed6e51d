"""The events of tasks on the client's side: iterators for users, and the subscriptions of one connection.

Theory of operation. The server sends the events of a task once for each connection, however many readers it has there.
`Subscriptions` passes each event to the `Subscription` of every reader, which drops what it has seen. A reader that
starts later makes the server replay the history, which the other readers get too and drop by number. The last reader
of a task that stops unsubscribes.

A subscription ends with `task_finish`, with `close`, or with the connection. What has been received is read first in
each case; after that a reader gets the end of the stream, or the error that ended the connection. With `task_finish`
it leaves `Subscriptions` by itself, so that a subscription that is never read or closed takes no memory for long.

The subscription that a submission brings sees all events of its task. It enters each into an `TaskOutcome` as it is
received, apart from the queue of its reader: so the task's result is known with the last event, also to a caller that
reads no events, and a caller that only waits for the end is woken once.

All of it runs in the Trio thread. `EventIterator.__del__` alone may run elsewhere.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import trio

from hearth.api import TaskEvent
from hearth.errors import MethodNotFound
from hearth.protocol.client import TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.errors import HearthError

T = TypeVar("T")


class Following(ABC, Generic[T]):
    """One subscription, to one task's events or to a runtime's; nothing happens before `start`."""

    @abstractmethod
    async def start(self) -> None:
        """Subscribe. Raises the RpcError of the answer, or CarrierError; it may then be called again."""

    @abstractmethod
    async def next(self) -> T | None:
        """Return the next event, or None after the last. Cancelling this loses no event."""

    def received(self) -> list[T]:
        """Remove and return the events that `next` would return without a wait."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End the subscription; idempotent, and never waits."""


class WholeFollowing(Following[TaskEvent]):
    """A subscription that came with a task's submission, so it sees every event of the task."""

    @abstractmethod
    async def outcome(self) -> TaskOutcome | None:
        """Wait for the task's end, and return it; None if the subscription is closed before that.

        Takes no event from the reader. Raises the error that ended the connection.
        """


class EventIterator(Generic[T]):
    """The iterator of `async for event in task.events()`, and of `session.observe()`.

    A reader may stop early without closing it: the subscription ends with this object, at the latest with the task. A
    timeout around one event loses none; the next call continues from there.
    """

    __slots__ = ("_following", "_started", "_thread", "_trio")

    def __init__(self, following: Following[T], *, started: bool = False) -> None:
        self._following = following
        self._started = started
        self._thread = threading.get_ident()
        self._trio = trio.lowlevel.current_trio_token()

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

    def received(self) -> list[T]:
        """Remove and return the events that need no wait."""
        return self._following.received() if self._started else []

    async def aclose(self) -> None:
        """End the subscription now; for `contextlib.aclosing`."""
        self.close()

    def close(self) -> None:
        """End the subscription now; in the Trio thread."""
        self._following.close()

    def __del__(self) -> None:
        # The last reference may go in any thread (those of `hearth.sync`, the garbage collector's), and Trio objects
        # are not thread-safe; `run_sync_soon` is.
        if threading.get_ident() == self._thread:
            self._following.close()
        else:
            with suppress(trio.RunFinishedError):
                self._trio.run_sync_soon(self._following.close)


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

    def __len__(self) -> int:
        """The number of tasks whose events are awaited."""
        return len(self._of_task)

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
        subscriptions = self._of_task.get(event.task_id)
        if subscriptions is None:
            return
        for subscription in subscriptions:
            subscription.take(event)
        if event.phase == "task_finish":
            # One that waits for its replay is not over: it gets this event again.
            left = [subscription for subscription in subscriptions if not subscription.over]
            if left:
                self._of_task[event.task_id] = left
            else:
                del self._of_task[event.task_id]

    def end(self, why: Callable[[str], HearthError]) -> None:
        """Note the end of the connection, and wake every reader."""
        self.ended = why
        for subscriptions in self._of_task.values():
            for subscription in subscriptions:
                subscription.wake()


class Subscription(WholeFollowing):
    """One reader of one task's events; it drops duplicates, since a second subscription makes the server replay.

    The server replays after its answer. An event before the answer may be on its way to another reader: it counts only
    if no event before it is missing.
    """

    def __init__(self, all_of_them: Subscriptions, session_id: str, task_id: str, from_seq: int) -> None:
        self.task_id = task_id
        self._all = all_of_them
        self._session_id = session_id
        self._from_seq = from_seq
        self._last_seq = from_seq - 1
        self._events: deque[TaskEvent] = deque()
        self._changed: trio.Event | None = None
        """What the reader waits for."""
        self._outcome = TaskOutcome()
        self._ended: trio.Event | None = None
        """What a caller waits for that needs the outcome alone."""
        self._answered = self._closed = False
        self.over = False
        """True when the task's last event has come, also if it is before `from_seq`."""

    @property
    def _params(self) -> dict[str, Any]:
        return {"session_id": self._session_id, "task_id": self.task_id}

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
            if self.over:
                return None
            if self._all.ended is not None:
                raise self._all.ended(f"while {self.task_id} was followed")
            # No checkpoint between the tests above and this wait, so no event and no end is missed.
            self._changed = trio.Event()
            await self._changed.wait()
        return self._events.popleft()

    def received(self) -> list[TaskEvent]:
        """See Following."""
        events = list(self._events)
        self._events.clear()
        return events

    async def outcome(self) -> TaskOutcome | None:
        """See WholeFollowing."""
        while not self.over:
            if self._closed:
                return None
            if self._all.ended is not None:
                raise self._all.ended(f"while {self.task_id} was followed")
            if self._ended is None:
                self._ended = trio.Event()
            await self._ended.wait()
        return self._outcome

    def close(self) -> None:
        """See Following."""
        self._closed = True
        # While others read the same task, the server must go on sending its events.
        if self._all.remove(self) and not self.over:
            self._all.link.notify("task.events.unsubscribe", self._params)
        if self._ended is not None:
            self._ended.set()

    def take(self, event: TaskEvent) -> None:
        """Queue a received event for the reader."""
        if not self._answered and event.seq > self._last_seq + 1:
            # The replay behind the answer brings it again, with the ones before it.
            return
        # Also by an event that is dropped below, as one before `from_seq`: it shows that no other will come.
        self.over = self.over or event.phase == "task_finish"
        # A server that does not number its events (the draft does not require it) sends 0, and repeats none.
        if event.seq == 0 or event.seq > self._last_seq:
            self._last_seq = event.seq or self._last_seq
            self._outcome.take(event)
            self._queue(event)
        if self.over:
            self.wake()
        elif self._changed is not None:
            self._changed.set()

    def _queue(self, event: TaskEvent) -> None:
        if len(self._events) >= EVENTS_KEPT and event.phase == "progress":
            for index, old in enumerate(self._events):
                if old.phase == "progress":
                    del self._events[index]
                    break
        self._events.append(event)

    def wake(self) -> None:
        """Wake every caller that waits."""
        for waited_for in (self._changed, self._ended):
            if waited_for is not None:
                waited_for.set()
