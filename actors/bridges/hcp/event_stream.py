"""The event stream of one HCP session: every message that its caller gets, numbered, stored, then sent, in this order.

It owns the session's state and the numbers of its events; nothing else writes to the session's message log. A message
is in the job store before a caller gets it, out of reach of cancellation: what one caller has read, every later one
reads. What happens is decided by the job.
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
"""An event by its type and its data, which gets its number here; or a payload that has none."""

log = logging.getLogger("hearth.hcp")


class EventWriter:
    """One session's; `message_log` has its first line already."""

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
        """Where the job is, by its plan's own names: goes into the job store with the next entry."""
        self._job_store = job_store
        self._clock = clock
        self._sequence = sequence
        self._turn = trio.StrictFIFOLock()

    async def tell(self, *said: Said) -> None:
        """Say these things. Raises JobStoreError, and they are not told."""
        async with self._uninterrupted():
            lines = self._lines(said)
            await self._job_store.append(self.session_id, lines, phase=self.phase, state=self.state)
            self.message_log.append(*lines)

    async def open(self, created: Mapping[str, Any], reason: str) -> None:
        """The session is there and its work begins. Raises JobStoreError."""
        self.state = "PENDING"
        await self.tell(("session_created", created), self._changed("RUNNING", reason))

    async def move(self, to: State, reason: str | None, *said: Said) -> None:
        """Change the state and say so, then the rest. Raises JobStoreError."""
        await self.tell(self._changed(to, reason), *said)

    async def keep(self, number: int, outcome: dict[str, Any], *said: Said) -> None:
        """Write down what an operation came to, with what is said of it. Raises JobStoreError."""
        async with self._uninterrupted():
            lines = self._lines(said)
            await self._job_store.record(self.session_id, number, outcome, lines, phase=self.phase)
            self.message_log.append(*lines)

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
                await self._job_store.end(self.session_id, to, lines)
            except JobStoreError as error:
                log.error("the end of HCP session %s is not on record: %s", self.session_id, error)
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
        """Write one thing after the other, whatever state the surrounding task is in.

        Parts of a job that run side by side say things too, and numbers go with their order in the job store. A disk
        that hangs, the store itself gives up.
        """
        with trio.CancelScope(shield=True):
            async with self._turn:
                sequence = self._sequence
                try:
                    yield
                except JobStoreError:
                    # What was not told has no number.
                    self._sequence = sequence
                    raise
