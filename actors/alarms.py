"""One task that wakes sessions at the times they asked for.

Thousands of idle sessions cost one heap here instead of a timer each on the path of every request. An alarm is a
hint: the session looks at its own clock when it is nudged and sets another if it is not yet time.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class Alarms:
    """Alarms by name; `ring` is called with a name when its time has come."""

    def __init__(self, ring: Callable[[str], None]) -> None:
        self._ring = ring
        self._heap: list[tuple[float, str]] = []
        self._changed = trio.Event()

    def set(self, name: str, when: float) -> None:
        """Ring for `name` at `when`, in seconds of Trio's clock."""
        heappush(self._heap, (when, name))
        if self._heap[0][0] == when:
            self._changed.set()

    async def run(self) -> None:
        """Ring alarms until cancelled."""
        while True:
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now:
                self._ring(heappop(self._heap)[1])
            self._changed = trio.Event()
            with trio.move_on_at(self._heap[0][0] if self._heap else float("inf")):
                await self._changed.wait()
