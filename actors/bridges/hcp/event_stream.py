"""The account of one session: every message that its caller gets, numbered, written down, then told, in this order.

It owns the session's state and the numbers of its events; nobody else writes to the session's story. What is told has
been written to the book before, out of reach of cancellation, so that what one caller has read every later one reads
too. It refuses to decide what happens: that is the job's.

One HCP session's messages as a history that any number follow, each at its own pace (L1, Stream Continuity; L2).

Owns the lines, numbered from 1: task_accepted, the events, task_completed or task_failed, session_closed. A reader is
the number of the line it wants next, so one that is slow delays nobody and one that comes late misses nothing. What is
appended here has been written to the book before; this module knows no book, and reads a line only to find an event.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import trio

from hearth.actors.bridges.hcp.store import BookError
from hearth.hcp.codec import dump, message
from hearth.hcp.messages import Event, Payload, move
from hearth.policy.memory import ANSWER_BYTES, Retained

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from hearth.actors.bridges.hcp.store import Book
    from hearth.actors.events import Reader
    from hearth.actors.metrics import Tally
    from hearth.hcp.messages import EventType, State
    from hearth.policy.memory import Account

Said: TypeAlias = "tuple[EventType, Mapping[str, Any]] | Payload"
"""An event by its type and its data, which gets its number here; or a payload that has none."""

log = logging.getLogger("hearth.hcp")


class EventWriter:
    """One session's; `story` has its first line already."""

    def __init__(
        self,
        session_id: str,
        book: Book,
        story: MessageLog,
        clock: Callable[[], float],
        *,
        state: State = "PENDING",
        sequence: int = 0,
        phase: str = "",
    ) -> None:
        self.session_id = session_id
        self.story = story
        self.state: State = state
        self.phase = phase
        """Where the job is, by its plan's own names: goes into the book with the next entry."""
        self._book = book
        self._clock = clock
        self._sequence = sequence
        self._turn = trio.StrictFIFOLock()

    async def tell(self, *said: Said) -> None:
        """Say these things. Raises BookError, and they are not told."""
        async with self._uninterrupted():
            lines = self._lines(said)
            await self._book.append(self.session_id, lines, phase=self.phase, state=self.state)
            self.story.append(*lines)

    async def open(self, created: Mapping[str, Any], reason: str) -> None:
        """The session is there and its work begins. Raises BookError."""
        self.state = "PENDING"
        await self.tell(("session_created", created), self._changed("RUNNING", reason))

    async def move(self, to: State, reason: str | None, *said: Said) -> None:
        """Change the state and say so, then the rest. Raises BookError."""
        await self.tell(self._changed(to, reason), *said)

    async def keep(self, number: int, outcome: dict[str, Any], *said: Said) -> None:
        """Write down what an operation came to, with what is said of it. Raises BookError."""
        async with self._uninterrupted():
            lines = self._lines(said)
            await self._book.record(self.session_id, number, outcome, lines, phase=self.phase)
            self.story.append(*lines)

    async def close(self, to: State, reason: str, *said: Said, closing: Mapping[str, Any] | None = None) -> None:
        """The end: the state, what is said of it, and session_closed as the last line of all.

        It is told even where it cannot be written: whoever waits must not wait for ever. The next start then finds a
        session without an end, and gives it one.
        """
        async with self._uninterrupted():
            moved = [self._changed(to, reason)] if self.state != to else []
            closed = {"final_state": to, "reason": reason, **(closing or {})}
            lines = self._lines([*moved, *said, ("session_closed", closed)])
            try:
                await self._book.end(self.session_id, to, lines)
            except BookError as error:
                log.error("the end of HCP session %s is not on record: %s", self.session_id, error)
            self.story.append(*lines)
            self.story.end()

    def _changed(self, to: State, reason: str | None) -> Said:
        data = {"from_state": self.state, "to_state": to}
        self.state = move(self.state, to)
        return "state_changed", data if reason is None else {**data, "reason": reason}

    def _lines(self, said: tuple[Said, ...] | list[Said]) -> list[bytes]:
        now = self._clock()
        return [dump(message(self._payload(one), session_id=self.session_id, now=now)) for one in said]

    def _payload(self, said: Said) -> Payload:
        if not isinstance(said, tuple):
            return said
        self._sequence += 1
        return Event(event_type=said[0], sequence=self._sequence, data=said[1])

    @asynccontextmanager
    async def _uninterrupted(self) -> AsyncIterator[None]:
        """Write one thing after the other, whatever state the surrounding task is in.

        Parts of a job that run side by side say things too, and numbers go with their order in the job store. A disk
        that hangs, the store itself gives up.
        """
        with trio.CancelScope(shield=True):
            async with self._turn:
                sequence = self._sequence
                try:
                    yield
                except BookError:
                    # What was not told has no number.
                    self._sequence = sequence
                    raise


def sequence_of(line: bytes) -> int | None:
    """The event's sequence on a line of ours; None for a message of another type."""
    message: Any = orjson.loads(line)
    if message["type"] != "event":
        return None
    sequence: int = message["payload"]["sequence"]
    return sequence


class MessageLog(Retained):
    """A session's messages, each a whole line. Implements `events.History`.

    While the session runs whoever runs it appends; one that has ended is made of what the book has of it. It is charged
    to `account`: while its job runs, and for as long as somebody who follows it has yet to be sent of it.
    """

    __slots__ = ("__weakref__", "_lines", "_readers", "ended", "tally")

    def __init__(
        self,
        lines: Iterable[bytes] = (),
        *,
        ended: bool = False,
        tally: Tally | None = None,
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
        self.tally = tally
        """See History."""

    @property
    def last_seq(self) -> int:
        """See History: the number of lines, whatever the sequence of the newest event is."""
        return len(self._lines)

    def append(self, *lines: bytes) -> None:
        """Add messages, which are in the book by now, and tell the readers. Raises RuntimeError after the end."""
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
                reader.poke()

    def attach(self, reader: Reader) -> None:
        """See History."""
        if not self.ended:
            self._readers[reader] = None
        if self._lines:
            reader.poke()

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
