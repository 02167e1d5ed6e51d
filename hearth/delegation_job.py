"""One job that is followed over a connection: what its messages have told, and who reads them.

Owns the record of the session, and for each reader what has come and is not read yet. It sends nothing but what its
router (`hearth.delegation_jobs`) sends for it.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import trio

from hearth.api import ENDED
from hearth.delegation_order import InOrder, closes
from hearth.hcp.messages import Event, TaskAccepted, TaskCompleted, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.delegation_jobs import Delegations
    from hearth.hcp.messages import Message
    from hearth.hcp.values import State
    from hearth.protocol.client import ProtocolViolation

log = logging.getLogger("hearth.delegation")

CLOSING_PATIENCE = 5.0
"""Seconds that a reader waits for session_closed, and a caller for an outcome, once the session is known to be over."""
MESSAGES_KEPT = 4096
"""Messages that wait for a reader; one that falls behind further has the rest sent again when it gets there."""
_TELLS_STATE = {"session_created": "state", "state_changed": "to_state", "session_closed": "final_state"}
"""Event type -> the member that says in which state the session is."""


class Job:
    """What is known of one session, and who reads its messages."""

    def __init__(
        self, router: Delegations, session_id: str, from_sequence: int = 1, *, catching_up: bool = False
    ) -> None:
        self.session_id = session_id
        self.accepted: TaskAccepted | None = None
        self.state: State = "PENDING"
        self.outcome: TaskCompleted | TaskFailed | None = None
        self.closed: Event | None = None
        self.entry: Mapping[str, Any] = {}
        """What hcp.attach was answered with, if it was asked for."""
        self.broken: ProtocolViolation | None = None
        """Set when its outcome has come and could not be read."""
        self.over_at: float | None = None
        """When it became known that the session is over: by its outcome, or by a state that it does not leave."""
        self._router = router
        self._order = InOrder(from_sequence, catching_up=catching_up)
        self._readers: WeakSet[Messages] = WeakSet()
        self._changed = trio.Event()

    @property
    def ended(self) -> bool:
        """True once its outcome is known."""
        return self.outcome is not None or self.closed is not None

    @property
    def last_processed_sequence(self) -> int:
        """The newest event that has come in order (L2)."""
        return self._order.last_processed_sequence

    def read(self, from_sequence: int, *, from_now: bool = False) -> Messages:
        """A reader of its messages. `from_now`: all of them are coming by themselves."""
        reader = Messages(self, from_sequence, live=from_now)
        self._readers.add(reader)
        return reader

    def take(self, message: Message) -> None:
        """A message of this session has come."""
        for due in self._order.take(message):
            self._learn(due)
        for reader in list(self._readers):
            reader.take(message)
        self.wake()

    def _learn(self, message: Message) -> None:
        payload = message.payload
        if isinstance(payload, TaskAccepted):
            self.accepted = payload
        elif isinstance(payload, TaskCompleted | TaskFailed):
            self.outcome = payload
            self.state = "COMPLETED" if isinstance(payload, TaskCompleted) else "FAILED"
        elif isinstance(payload, Event):
            state = payload.data.get(_TELLS_STATE.get(payload.event_type, ""))
            if isinstance(state, str) and not self.ended:
                self.state = state  # type: ignore[assignment]  # of a newer callee too
            if closes(message):
                self.closed = payload
        if self.over_at is None and (self.ended or self.state in ENDED):
            self.over_at = trio.current_time()

    def wake(self) -> None:
        """Let everybody look again."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        for reader in list(self._readers):
            reader.wake()

    def check(self, doing: str) -> None:
        """Raise what the connection ended with, `doing` this, or why nothing more will be told of this job."""
        if self.broken is not None:
            raise self.broken
        if self._router.ended is not None:
            raise self._router.ended(doing)

    async def end(self) -> None:
        """Wait until its outcome is known, or it is over and its callee sends none in time. Raises as `check`."""
        doing = f"before {self.session_id} had"
        await self.until(lambda: self.ended or self.over_at is not None, doing)
        if not self.ended and self.over_at is not None:
            with trio.move_on_at(self.over_at + CLOSING_PATIENCE) as waiting:
                await self.until(lambda: self.ended, doing)
            if waiting.cancelled_caught:
                log.warning("HCP session %s: it ended %s, and no outcome has come", self.session_id, self.state)

    async def until(self, happened: Callable[[], bool], doing: str) -> None:
        """Wait until something is so. Raises as `check`."""
        while not happened():
            self.check(doing)
            await self._changed.wait()

    async def attach(self, from_sequence: int) -> bool:
        """Have its messages sent from there on, and what comes after; True if some are there already.

        Raises SessionInvalid: there is no such job.
        """
        # Whoever else reads here goes on where it is: the one history that is sent begins early enough for all.
        wanted = min(from_sequence, self.last_processed_sequence + 1)
        entry = self.entry = await self._attach(wanted)
        last = entry.get("last_sequence")
        if entry.get("state") in ENDED and type(last) is int and 1 <= last < wanted and not self.ended:
            # Nothing of what was asked for will ever be; but how the job ended has not been told here.
            self._order = InOrder(last)
            await self._attach(last)
        coming = type(last) is int and last >= wanted
        self._order.catching_up = self._order.catching_up and coming
        return coming

    async def _attach(self, from_sequence: int) -> Mapping[str, Any]:
        # What is before the first event is the acceptance, which who reads from the beginning may as well have.
        sequence = from_sequence if from_sequence > 1 else 0
        return await self._router.call("hcp.attach", {"session_id": self.session_id, "from_sequence": sequence})


class Messages:
    """A job's messages, for one reader: each once and in order, however often and from wherever they are sent."""

    __slots__ = ("__weakref__", "_changed", "_heard_at", "_job", "_live", "_order", "_over", "_ready")

    def __init__(self, job: Job, from_sequence: int, *, live: bool) -> None:
        self._job = job
        self._order = InOrder(from_sequence)
        self._ready: deque[Message] = deque()
        self._heard_at = float("-inf")
        """When the newest message came."""
        self._live = live
        """False while what comes is left to be sent again: before the first look, and behind too many unread."""
        self._over = False
        self._changed = trio.Event()

    async def next(self) -> Message | None:
        """The next message, or None after session_closed. Cancelling this loses none.

        A callee that sends no session_closed after an outcome is waited for as long as `CLOSING_PATIENCE`.
        """
        while not self._ready:
            if self._over:
                return None
            self._job.check(f"while {self._job.session_id} was followed")
            if not self._live:
                await self.catch_up()
                continue
            with trio.move_on_at(self._closing_by()) as waiting:
                await self._changed.wait()
            if waiting.cancelled_caught:
                log.warning("HCP session %s: it is over, and no session_closed has come", self._job.session_id)
                self._over = True
        return self._ready.popleft()

    def _closing_by(self) -> float:
        over_at = self._job.over_at
        return float("inf") if over_at is None else max(over_at, self._heard_at) + CLOSING_PATIENCE

    async def catch_up(self) -> None:
        """Have what comes next sent from now on. Raises SessionInvalid."""
        # Before it is asked for: the messages may come before the answer.
        self._live = self._order.catching_up = True
        try:
            coming = await self._job.attach(self._order.last_processed_sequence + 1)
        except BaseException:
            self._live = False
            raise
        self._order.catching_up = self._order.catching_up and coming

    def take(self, message: Message) -> None:
        """A message has come."""
        if not self._live:
            return
        self._heard_at = trio.current_time()
        if len(self._ready) >= MESSAGES_KEPT:
            self._live = False
            return
        self._ready += self._order.take(message)
        if closes(message) and message.payload.sequence <= self._order.last_processed_sequence:  # type: ignore[union-attr]  # an Event
            self._over = True

    def wake(self) -> None:
        """Let the reader look again."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()
