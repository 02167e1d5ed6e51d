"""The messages of one HCP session, as a history that any number of readers follow (L1, Stream Continuity; L2).

It owns the lines, numbered from 1: task_accepted, the events, task_completed or task_failed, session_closed. A reader
is the number of its next line: a slow reader delays no other, and a late one misses nothing. A line is in the job store
before it is appended here.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from hearth.policy.memory import ANSWER_BYTES, Retained

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hearth.actors.events import Reader
    from hearth.actors.metrics import Metrics
    from hearth.policy.memory import Account


def sequence_of(line: bytes) -> int | None:
    """Return the sequence of the event on a stored line; None for a message of another type."""
    message: Any = orjson.loads(line)
    if message["type"] != "event":
        return None
    sequence: int = message["payload"]["sequence"]
    return sequence


class MessageLog(Retained):
    """A session's messages, each a whole line. Implements `events.History`.

    The writer of a running session appends; the log of an ended session is read from the job store. Its bytes are
    charged to `account` while the job runs, and as long as a follower has lines yet to be sent.
    """

    __slots__ = ("__weakref__", "_lines", "_readers", "ended", "metrics")

    def __init__(
        self,
        lines: Iterable[bytes] = (),
        *,
        ended: bool = False,
        metrics: Metrics | None = None,
        account: Account | None = None,
    ) -> None:
        super().__init__(account)
        self._lines = list(lines)
        self.grow(_size(self._lines))
        if ended:
            # Only its followers keep it from here on.
            self.let_go()
        self._readers: dict[Reader, None] = {}
        self.ended = ended
        self.metrics = metrics
        """See History."""

    @property
    def last_seq(self) -> int:
        """The number of lines (see History); the sequence of the newest event is smaller."""
        return len(self._lines)

    def append(self, *lines: bytes) -> None:
        """Add messages that are in the job store already, and notify the readers. Raises RuntimeError after `end`."""
        if self.ended:
            raise RuntimeError("this message log has ended")
        self._lines += lines
        self.grow(_size(lines))
        self._poke()

    def end(self) -> None:
        """Mark the log as complete. Idempotent."""
        if not self.ended:
            self.ended = True
            # A reader that has read everything learns of the end by reading once more.
            self._poke()
            self._readers = {}
            self.let_go()

    def _poke(self) -> None:
        for reader in self._readers:
            if not reader.gone:
                reader.notify()

    def attach(self, reader: Reader) -> None:
        """See History."""
        if not self.ended:
            self._readers[reader] = None
        if self._lines:
            reader.notify()

    def detach(self, reader: Reader) -> None:
        """See History."""
        self._readers.pop(reader, None)

    def lines(self, from_seq: int, most: int) -> tuple[list[bytes], int]:
        """See History."""
        start = max(from_seq, 1) - 1
        found = self._lines[start : start + most]
        return found, start + 1 + len(found)

    def index_of(self, sequence: int) -> int:
        """Return the number of the line from which a caller gets the events from `sequence` on.

        It is the line after the last earlier event. So a line between two events (task_completed) is not missed by a
        caller that knows only the last event it has seen. 1 if there is no earlier event.
        """
        return bisect_left(range(len(self._lines)), sequence, key=self._due) + 1

    def _due(self, index: int) -> int:
        """Return the sequence of the first event from a line on, or sys.maxsize. It never falls, so bisect works."""
        for line in islice(self._lines, index, None):
            sequence = sequence_of(line)
            if sequence is not None:
                return sequence
        return sys.maxsize


def _size(lines: Sequence[bytes]) -> int:
    return sum(map(len, lines)) + ANSWER_BYTES * len(lines)
