"""One task that wakes sessions at the times they asked for.

Thousands of idle sessions cost one heap here instead of a timer each on the path of every request. An alarm is a
hint: the session looks at its own clock when it is nudged and sets another if it is not yet time.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


SLACK = 64
"""Alarms of forgotten names that may stay in the heap: tidying it has its price."""


class Alarms:
    """Alarms by name; `ring` is called with a name when its time has come."""

    def __init__(self, ring: Callable[[str], None]) -> None:
        self._ring = ring
        self._heap: list[tuple[float, str]] = []
        self._names: dict[str, int] = {}
        """How many alarms each name has in the heap; an alarm without its name here is passed over."""
        self._changed = trio.Event()

    def set(self, name: str, when: float) -> None:
        """Ring for `name` at `when`, in seconds of Trio's clock."""
        self._names[name] = self._names.get(name, 0) + 1
        heappush(self._heap, (when, name))
        if self._heap[0][0] == when:
            self._changed.set()

    def forget(self, name: str) -> None:
        """Ring for `name` no more; it is not used again."""
        if self._names.pop(name, None) and len(self._heap) > 2 * len(self._names) + SLACK:
            # Sessions that come and go must not leave their alarms behind until their time would have come.
            self._heap = [alarm for alarm in self._heap if alarm[1] in self._names]
            heapify(self._heap)

    async def run(self) -> None:
        """Ring alarms until cancelled."""
        while True:
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                name = heappop(self._heap)[1]
                count = self._names.get(name, 0)
                if count > 1:
                    self._names[name] = count - 1
                elif count:
                    del self._names[name]
                if count:
                    self._ring(name)
            self._changed = trio.Event()
            with trio.move_on_at(self._heap[0][0] if self._heap else float("inf")):
                await self._changed.wait()
