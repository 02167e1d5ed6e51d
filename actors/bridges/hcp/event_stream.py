"""The event stream of one HCP session: every message is numbered, stored, then sent to its caller, in this order.

`MessageLog` is the history of the session's messages, which any number of readers follow (L1, Stream Continuity; L2):
task_accepted, the events, task_completed or task_failed, session_closed. Lines are numbered from 1. A reader is the
number of its next line, so a slow reader delays no other, and a late one misses nothing.

`EventWriter` is the only writer of that history. It owns the session's state and the numbers of its events. The job
decides what to report.

A line is in the job store before it is in the history, and cancellation cannot come between the two: the shield in
`EventWriter` covers both. So what one caller has read, every later one reads too, also after a crash of the daemon.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import trio
from attrs import define, field

from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.actors.bridges.hcp.store.queries import sequence_of
from hearth.hcp.codec import dump, message
from hearth.hcp.messages import Event, Payload, move
from hearth.policy.memory import ANSWER_BYTES, Retained

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from hearth.actors.bridges.hcp.store import JobStore
    from hearth.actors.events import Reader
    from hearth.actors.metrics import Metrics
    from hearth.hcp.messages import EventType, State
    from hearth.policy.memory import Account

Entry: TypeAlias = "tuple[EventType, Mapping[str, Any]] | Payload"
"""An event (type and data), which gets its number here; or a payload, which has none."""

log = logging.getLogger("hearth.hcp")


# --- the history ------------------------------------------------------------------------------------------------------


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
        self._notify_readers()

    def end(self) -> None:
        """Mark the log as complete. Idempotent."""
        if not self.ended:
            self.ended = True
            # A reader that has read everything learns of the end by reading once more.
            self._notify_readers()
            self._readers = {}
            self.let_go()

    def _notify_readers(self) -> None:
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


# --- its writer -------------------------------------------------------------------------------------------------------


@define(eq=False)
class EventWriter:
    """The writer of one session's messages; `message_log` has its first line already."""

    session_id: str
    _job_store: JobStore
    message_log: MessageLog
    _clock: Callable[[], float]
    state: State = field(default="PENDING", kw_only=True)
    sequence: int = field(default=0, kw_only=True)
    phase: str = field(default="", kw_only=True)
    """The job's phase, in its capability's own words; stored with the next entry."""
    _turn: trio.StrictFIFOLock = field(factory=trio.StrictFIFOLock, init=False)

    async def write(self, *entries: Entry) -> None:
        """Store and send messages. Raises JobStoreError; then none of them is sent."""
        async with self._uninterrupted():
            lines = self._lines(entries)
            await self._job_store.append(self.session_id, lines, phase=self.phase, state=self.state)
            self.message_log.append(*lines)

    async def open(self, created: Mapping[str, Any], reason: str) -> None:
        """Report that the session exists and that its work begins. Raises JobStoreError."""
        self.state = "PENDING"
        await self.write(("session_created", created), self._changed("RUNNING", reason))

    async def move(self, to: State, reason: str | None, *entries: Entry) -> None:
        """Change the state and report it, then send the other messages. Raises JobStoreError; then it is as before."""
        former = self.state
        try:
            await self.write(self._changed(to, reason), *entries)
        except JobStoreError:
            self.state = former
            raise

    async def record(self, number: int, outcome: dict[str, Any], *entries: Entry) -> None:
        """Store an operation's outcome together with the messages about it. Raises JobStoreError."""
        async with self._uninterrupted():
            lines = self._lines(entries)
            await self._job_store.record(self.session_id, number, outcome, lines, phase=self.phase)
            self.message_log.append(*lines)

    async def close(self, to: State, reason: str, *entries: Entry, closing: Mapping[str, Any] | None = None) -> None:
        """End the session: its final state, the last messages, and session_closed as the last line.

        They are sent even if they cannot be stored, because a caller must not wait for ever. The next start then finds
        a session without an end, and writes one.
        """
        async with self._uninterrupted():
            # L2 has no transition from PAUSED to an end.
            moved = [self._changed("RUNNING", "asks a person no longer")] if self.state == "PAUSED" else []
            moved += [self._changed(to, reason)] if self.state != to else []
            closed = {"final_state": to, "reason": reason, **(closing or {})}
            lines = self._lines([*moved, *entries, ("session_closed", closed)])
            try:
                await self._job_store.end(self.session_id, to, lines)
            except JobStoreError as error:
                log.error("the end of HCP session %s could not be stored: %s", self.session_id, error)
            self.message_log.append(*lines)
            self.message_log.end()

    def _changed(self, to: State, reason: str | None) -> Entry:
        data = {"from_state": self.state, "to_state": to}
        self.state = move(self.state, to)
        return "state_changed", data if reason is None else {**data, "reason": reason}

    def _lines(self, entries: tuple[Entry, ...] | list[Entry]) -> list[bytes]:
        now = self._clock()
        return [dump(message(self._payload(one), session_id=self.session_id, now=now)) for one in entries]

    def _payload(self, entry: Entry) -> Payload:
        if not isinstance(entry, tuple):
            return entry
        self.sequence += 1
        return Event(event_type=entry[0], sequence=self.sequence, data=entry[1])

    @asynccontextmanager
    async def _uninterrupted(self) -> AsyncIterator[None]:
        """Store and send one entry at a time, out of reach of cancellation.

        Parts of a job that run side by side send messages too; the lock keeps the numbers in the order of the job
        store. The shield cannot hang: the job store itself gives up on a disk that does not answer.
        """
        with trio.CancelScope(shield=True):
            await take(self._turn)
            sequence = self.sequence
            try:
                yield
            except JobStoreError:
                # A message that was not stored was not sent, so its number is free again.
                self.sequence = sequence
                raise
            finally:
                self._turn.release()


async def take(lock: trio.StrictFIFOLock) -> None:
    """Acquire a lock; without a checkpoint if it is free: what it is held for waits for the disk anyway."""
    try:
        lock.acquire_nowait()
    except trio.WouldBlock:
        await lock.acquire()
