"""What a client hears of a task while it lives: that steps begin, what they tell, and that it still goes on.

The number counts steps. Within a step nobody knows how much is left, so it creeps towards the next whole number, and
never stands still (the protocol forbids that). What a result says is not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson
import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.actors.bridges.mcp.providers import Ask
    from hearth.api import Step, TaskEvent

BEAT: Final = 5.0
"""Seconds after which a task that has nothing to tell tells that it lives."""
MOST_DETAILS: Final = 500
"""Characters of what a step tells that are passed on: a message is read by a person."""


class Progress:
    """The progress of one request that asked for it."""

    def __init__(self, ask: Ask, steps: Sequence[Step], *, every: float = BEAT) -> None:
        self._session = ask.ctx.session
        self._steps = steps
        self._every = every
        self._began = trio.current_time()
        self._index = 0
        self._said = 0
        """How often something was said of the step that is on."""
        self.due = self._began + every
        """When a sign of life is due, in Trio's time."""

    async def take(self, event: TaskEvent) -> None:
        """A task event has come."""
        if event.step_index is None or event.phase not in ("start", "progress"):
            return
        if event.phase == "start":
            self._index, self._said = event.step_index, 0
            await self._say("begins")
            return
        await self._say(orjson.dumps(event.data.get("data")).decode()[:MOST_DETAILS])

    async def beat(self) -> None:
        """A sign of life."""
        await self._say(f"still running after {trio.current_time() - self._began:.0f} s")

    async def _say(self, what: str) -> None:
        count = len(self._steps)
        said, self._said = self._said, self._said + 1
        tool = self._steps[self._index].tool
        place = f"step {self._index + 1} of {count} ({tool})" if count > 1 else tool
        await self._session.report_progress(self._index + said / (said + 1), count, f"{place}: {what}")
        self.due = trio.current_time() + self._every
