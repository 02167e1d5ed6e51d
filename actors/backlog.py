"""Records that the audit log could not take: kept in their order, in bounded memory, until it can.

It knows no log and no time. Past either bound the oldest go, and are counted, because what happened last matters most.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from hearth.audit.record import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.audit.log import Stamped

MOST_KEPT: Final = 10_000
"""How many records are kept in memory while the log cannot be written; beyond that the oldest are dropped."""
MOST_KEPT_BYTES: Final = 16 * 1024 * 1024
"""The same in bytes, as lines of the log: a caller may make its records long."""


class Backlog:
    """The kept records, oldest first; `dropped` counts those that had to go since it was last told."""

    __slots__ = ("_bytes", "_kept", "dropped")

    def __init__(self) -> None:
        self._kept: deque[Stamped] = deque()
        self._bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def lost(self) -> int:
        """How many records would never be written if the process ended now."""
        return len(self._kept) + self.dropped

    def keep(self, at: float, record: Mapping[str, Any]) -> None:
        """Keep a record, marked as late."""
        self._kept.append((at, {**record, "late": True}))
        self._bytes += _weight(self._kept[-1])
        while len(self._kept) > MOST_KEPT or self._bytes > MOST_KEPT_BYTES:
            self.release(1)
            self.dropped += 1

    def oldest(self, most: int) -> list[Stamped]:
        """Up to `most` records, oldest first; they stay."""
        return list(itertools.islice(self._kept, most))

    def release(self, written: int) -> None:
        """Let go of the `written` oldest."""
        for _ in range(written):
            self._bytes -= _weight(self._kept.popleft())


def _weight(stamped: Stamped) -> int:
    return len(encode(0, "", stamped[1], ""))
