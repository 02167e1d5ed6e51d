"""A task's events from a server that sends none: made from successive answers to task.get (draft §8).

The draft makes streaming optional, and only the flag CAP_STREAMING_TASK_EVENTS says that a server has it. Every server
has task.get, so `Polling` asks for the task again and again and compares what it shows with what it showed before:

- The waits between two requests double from `FIRST_WAIT` to `LONGEST_WAIT`, and begin again when a step has moved on.
- One request at a time: a caller that is cancelled while one is outstanding leaves it to the next call of `next`.
- Every step that has begun is told of twice, in order: its `start`, then its `finish`, even if it began and ended
  between two requests. `task_finish` comes last. There is no `progress`: task.get does not show it.
- Events are numbered from 1 in that order, so `from_seq` means the same for each reader of one task.

Calling the server is the client's; what the members of a task mean is `protocol.client`'s.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from hearth.api import TERMINAL, TaskEvent
from hearth.errors import MethodNotFound
from hearth.facade import Following
from hearth.protocol.client import read_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.api import Phase, StepResult

FIRST_WAIT: Final = 0.01
"""Seconds after which a task that has just moved on is asked about again."""
LONGEST_WAIT: Final = 1.0
"""Seconds between two requests about a task that has not moved for long."""


class Asked(Protocol):
    """A request that was sent."""

    answered: trio.Event

    def result(self) -> Mapping[str, Any]:
        """The result, once `answered` is set. Raises the RpcError it was answered with, or CarrierError."""
        ...


class Asking(Protocol):
    """The connection to poll over."""

    def ask(self, method: str, params: Mapping[str, Any]) -> Asked:
        """Send a request without waiting for its answer. Raises CarrierError when the connection has ended."""
        ...


class Polling(Following):
    """One reader of one task's events, which are made from the answers to task.get."""

    def __init__(self, connection: Asking, session_id: str, task_id: str, from_seq: int) -> None:
        self._connection = connection
        self._params = {"session_id": session_id, "task_id": task_id}
        self._from_seq = from_seq
        self._seq = 0
        self._started: set[int] = set()
        self._finished: set[int] = set()
        self._events: deque[TaskEvent] = deque()
        self._asked: Asked | None = None
        self._wait = FIRST_WAIT
        self._due = float("-inf")
        """When the next request may be sent. A caller that gives up early and comes again does not put it off."""
        self._over = False

    async def start(self) -> None:
        """See Following. There is nothing to subscribe to, and so nothing to wait for."""

    async def next(self) -> TaskEvent | None:
        """See Following. Raises the RpcError that task.get is answered with, or CarrierError."""
        while not self._events:
            if self._over:
                return None
            # Waits only where there is something to wait for: a caller with a timeout of nothing gets on as well.
            if self._asked is None:
                if trio.current_time() < self._due:
                    await trio.sleep_until(self._due)
                self._asked = self._connection.ask("task.get", self._params)
            if not self._asked.answered.is_set():
                await self._asked.answered.wait()
            asked, self._asked = self._asked, None
            seq = self._seq
            try:
                self._compare(asked.result())
            finally:
                self._wait = FIRST_WAIT if self._seq > seq else min(2 * self._wait, LONGEST_WAIT)
                self._due = trio.current_time() + self._wait
        return self._events.popleft()

    def close(self) -> None:
        """See Following. No request is sent any more."""
        self._over = True
        self._events.clear()

    def _compare(self, shown: Mapping[str, Any]) -> None:
        task = read_task(shown)
        for index, step in enumerate(task.steps):
            members = shown["steps"][index]
            if index not in self._started and _has_begun(step):
                self._started.add(index)
                self._tell("start", {"tool": step.tool}, index)
            if index in self._started and index not in self._finished and step.status in TERMINAL:
                self._finished.add(index)
                self._tell("finish", members, index)
        if task.done:
            self._over = True
            told = ("status", "error", "error_code", "error_data")
            self._tell("task_finish", {name: shown[name] for name in told if shown.get(name) is not None})

    def _tell(self, phase: Phase, data: Mapping[str, Any], step_index: int | None = None) -> None:
        self._seq += 1
        if self._seq >= self._from_seq:
            seen = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            self._events.append(TaskEvent(self._params["task_id"], self._seq, phase, seen, step_index, data))


def _has_begun(step: StepResult) -> bool:
    """True for a step that runs or has run. One that was cancelled has only if it took time or left something."""
    if step.status == "CANCELLED":
        return step.latency_ms is not None or step.result is not None or step.error is not None
    return step.status == "RUNNING" or step.status in TERMINAL


class Fallback(Following):
    """A subscription, and polling in its place if the server answers that it knows no subscriptions."""

    def __init__(self, subscription: Following, polling: Polling) -> None:
        self._following = subscription
        self._polling = polling

    async def start(self) -> None:
        """See Following."""
        try:
            await self._following.start()
        except MethodNotFound:
            self._following = self._polling

    async def next(self) -> TaskEvent | None:
        """See Following."""
        return await self._following.next()

    def close(self) -> None:
        """See Following."""
        self._following.close()
