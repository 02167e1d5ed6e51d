"""The event stream of one HCP session: every message is numbered, stored, then sent to its caller, in this order.

It owns the session's state and the numbers of its events; nothing else writes to the session's message log. A message
is in the job store before a caller gets it, and cancellation cannot come between the two: so what one caller has read,
every later one reads too. The job decides what to report.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.hcp.codec import dump, message
from hearth.hcp.messages import Event, Payload, move

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from hearth.actors.bridges.hcp.message_log import MessageLog
    from hearth.actors.bridges.hcp.store import JobStore
    from hearth.hcp.messages import EventType, State

Said: TypeAlias = "tuple[EventType, Mapping[str, Any]] | Payload"
"""An event (type and data), which gets its number here; or a payload, which has none."""

log = logging.getLogger("hearth.hcp")


class EventWriter:
    """The writer of one session's messages; `message_log` has its first line already."""

    def __init__(
        self,
        session_id: str,
        job_store: JobStore,
        message_log: MessageLog,
        clock: Callable[[], float],
        *,
        state: State = "PENDING",
        sequence: int = 0,
        phase: str = "",
    ) -> None:
        self.session_id = session_id
        self.message_log = message_log
        self.state: State = state
        self.phase = phase
        """The job's phase, in its capability's own words; stored with the next entry."""
        self._job_store = job_store
        self._clock = clock
        self._sequence = sequence
        self._turn = trio.StrictFIFOLock()

    async def tell(self, *said: Said) -> None:
        """Store and send messages. Raises JobStoreError; then none of them is sent."""
        async with self._uninterrupted():
            lines = self._lines(said)
            await self._job_store.append(self.session_id, lines, phase=self.phase, state=self.state)
            self.message_log.append(*lines)

    async def open(self, created: Mapping[str, Any], reason: str) -> None:
        """Report that the session exists and that its work begins. Raises JobStoreError."""
        self.state = "PENDING"
        await self.tell(("session_created", created), self._changed("RUNNING", reason))

    async def move(self, to: State, reason: str | None, *said: Said) -> None:
        """Change the state and report it, then send the other messages. Raises JobStoreError."""
        await self.tell(self._changed(to, reason), *said)

    async def keep(self, number: int, outcome: dict[str, Any], *said: Said) -> None:
        """Store an operation's outcome together with the messages about it. Raises JobStoreError."""
        async with self._uninterrupted():
            lines = self._lines(said)
            await self._job_store.record(self.session_id, number, outcome, lines, phase=self.phase)
            self.message_log.append(*lines)

    async def close(self, to: State, reason: str, *said: Said, closing: Mapping[str, Any] | None = None) -> None:
        """End the session: its final state, the last messages, and session_closed as the last line.

        They are sent even if they cannot be stored, because a caller must not wait for ever. The next start then finds
        a session without an end, and writes one.
        """
        async with self._uninterrupted():
            moved = [self._changed(to, reason)] if self.state != to else []
            closed = {"final_state": to, "reason": reason, **(closing or {})}
            lines = self._lines([*moved, *said, ("session_closed", closed)])
            try:
                await self._job_store.end(self.session_id, to, lines)
            except JobStoreError as error:
                log.error("the end of HCP session %s could not be stored: %s", self.session_id, error)
            self.message_log.append(*lines)
            self.message_log.end()

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
        """Store and send one entry at a time, out of reach of cancellation.

        Parts of a job that run side by side send messages too; the lock keeps the numbers in the order of the job
        store. The shield cannot hang: the job store itself gives up on a disk that does not answer.
        """
        with trio.CancelScope(shield=True):
            async with self._turn:
                sequence = self._sequence
                try:
                    yield
                except JobStoreError:
                    # A message that was not stored was not sent, so its number is free again.
                    self._sequence = sequence
                    raise
