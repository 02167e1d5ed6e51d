"""Who follows which task over one connection, on the client's side.

Owns what has come and has not been read yet. Calling the daemon, and noticing that it is gone, is the client's.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import trio

from hearth.errors import MethodNotFound
from hearth.facade import Following

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.api import TaskEvent
    from hearth.errors import HearthError
    from hearth.facade import Link

EVENTS_KEPT = 4096
"""Events that wait for a follower who does not read; of progress, older ones beyond this are dropped."""


class Subscriptions:
    """All of one connection's."""

    def __init__(self, link: Link) -> None:
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
