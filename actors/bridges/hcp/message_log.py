"""The messages of one HCP session as a history that any number of readers follow (L1, Stream Continuity; L2).

It owns the lines, numbered from 1: task_accepted, the events, task_completed or task_failed, session_closed. A reader
is the number of the line it wants next: a slow one delays no other, and a late one misses nothing. A line is in the job
store before it is appended here.
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
    """The event's sequence on a line of ours; None for a message of another type."""
    message: Any = orjson.loads(line)
    if message["type"] != "event":
        return None
    sequence: int = message["payload"]["sequence"]
    return sequence


class MessageLog(Retained):
    """A session's messages, each a whole line. Implements `events.History`.

    While the session runs whoever runs it appends; one that has ended is made of what the job store has of it. It is
    charged to `account`: while its job runs, and for as long as somebody who follows it has yet to be sent of it.
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
            # Nobody keeps it but those who follow it.
            self.let_go()
        self._readers: dict[Reader, None] = {}
        self.ended = ended
        self.metrics = metrics
        """See History."""

    @property
    def last_seq(self) -> int:
        """See History: the number of lines, whatever the sequence of the newest event is."""
        return len(self._lines)

    def append(self, *lines: bytes) -> None:
        """Add messages, which are in the job store by now, and tell the readers. Raises RuntimeError after the end."""
        if self.ended:
            raise RuntimeError("this story has ended")
        self._lines += lines
        self.grow(_size(lines))
        self._poke()

    def end(self) -> None:
        """Nothing comes after what is there. Idempotent."""
        if not self.ended:
            self.ended = True
            # Who has read everything learns of the end by looking once more.
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
        """The number of the line to go on from for who wants the events from `sequence` on.

        It is the line after the last event before that one: so what stands between two events (task_completed) is not
        missed by a caller who knows only which event it has seen last. 1 where there is no such event.
        """
        return bisect_left(range(len(self._lines)), sequence, key=self._due) + 1

    def _due(self, index: int) -> int:
        """The sequence of the first event from there on; beyond all where there is none. It never falls."""
        for line in islice(self._lines, index, None):
            sequence = sequence_of(line)
            if sequence is not None:
                return sequence
        return sys.maxsize


def _size(lines: Sequence[bytes]) -> int:
    return sum(map(len, lines)) + ANSWER_BYTES * len(lines)
