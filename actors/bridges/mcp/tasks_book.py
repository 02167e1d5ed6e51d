"""The MCP tasks of one client: found by it and by nobody else, at most so many, and gone when their lease is.

It also knows who listens to them. It refuses to run anything: a call is run by its client's nursery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import mcp_types as types
import trio
from mcp.shared.exceptions import MCPError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from hearth.actors.bridges.mcp.tasks_call import LongCall

MOST_TASKS: Final = 64
"""Tasks that a client has at a time, finished ones included: as many as a HACP session has live ones."""
MOST_WATCHES: Final = 16
"""Streams on which a client is told about its tasks at a time."""
LISTENING: Final = 5.0
"""Seconds by which a stream that is open renews the leases of what it tells of."""


class Book:
    """See the module."""

    def __init__(self) -> None:
        self._calls: dict[str, LongCall] = {}
        self._watches: set[Watch] = set()

    @property
    def full(self) -> bool:
        """True if there is no place for another."""
        return len(self._calls) >= MOST_TASKS

    def enter(self, call: LongCall) -> None:
        """It can be found from now on."""
        self._calls[call.task_id] = call

    def strike(self, call: LongCall) -> None:
        """It cannot be found any more, if it could."""
        self._calls.pop(call.task_id, None)

    def find(self, task_id: str) -> LongCall:
        """A task that is asked for, its lease renewed. Raises MCPError: not found, be it unknown, over or another's."""
        call = self._calls.get(task_id)
        if call is None:
            raise MCPError(
                code=types.INVALID_PARAMS,
                message="Task not found: this client has none of that id, or its ttlMs is over",
            )
        call.renew()
        return call

    def changed(self, call: LongCall) -> None:
        """Tell those who listen to it."""
        for watch in self._watches:
            watch.note(call)

    def watch(self, task_ids: Iterable[str]) -> Watch:
        """Listen to those of these tasks that there are. Raises MCPError for one stream too many."""
        if len(self._watches) >= MOST_WATCHES:
            raise MCPError(
                code=types.INVALID_REQUEST,
                message=f"This client listens to its tasks on {MOST_WATCHES} streams already; end one of them first",
            )
        calls = (self._calls.get(task_id) for task_id in task_ids)
        return Watch(self._watches, [call for call in calls if call is not None])


class Watch:
    """What one stream has yet to tell: of each task only how it stands now, however often it changed meanwhile."""

    def __init__(self, watches: set[Watch], calls: list[LongCall]) -> None:
        self._calls = {call.task_id: call for call in calls}
        self._untold = dict(self._calls)
        self._news = trio.Event()
        self._watches = watches

    @property
    def task_ids(self) -> list[str]:
        """The tasks it is about."""
        return list(self._calls)

    def note(self, call: LongCall) -> None:
        """A task has changed."""
        if call.task_id in self._calls:
            self._untold[call.task_id] = call
            self._news.set()

    def __enter__(self) -> Self:
        self._watches.add(self)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._watches.discard(self)

    async def tell(self, say: Callable[[dict[str, Any]], Awaitable[None]]) -> NoReturn:
        """Say how each task stands, at first and after every change, until cancelled."""
        while True:
            while self._untold:
                _, call = self._untold.popitem()
                await say(call.describe())
            self._news = trio.Event()
            with trio.move_on_after(LISTENING):
                await self._news.wait()
            for call in self._calls.values():
                if not call.settled:
                    # Whoever listens has not vanished.
                    call.renew()
