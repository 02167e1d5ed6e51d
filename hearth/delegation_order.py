"""One reader's place in the messages of one HCP session: each message once, events in the order of their `sequence`.

Owns what L2 asks of a caller (Integration with L1 Stream Continuity): the last processed sequence, the dropping of
what has come before, and the buffer for what has come too early. Sans-IO.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hearth.hcp.messages import Event, TaskAccepted, TaskCompleted, TaskFailed

if TYPE_CHECKING:
    from hearth.hcp.messages import Message

log = logging.getLogger("hearth.delegation")

EARLY_KEPT = 64
"""Events that wait for one that is missing; with one more it is given up."""


def closes(message: Message) -> bool:
    """Whether it is the last message of its session."""
    return isinstance(message.payload, Event) and message.payload.event_type == "session_closed"


class InOrder:
    """Take messages as they come; get those whose turn it is."""

    __slots__ = ("_early", "_ended", "_seen", "catching_up", "last_processed_sequence")

    def __init__(self, from_sequence: int = 1, *, catching_up: bool = False) -> None:
        self.last_processed_sequence = max(from_sequence, 1) - 1
        self.catching_up = catching_up
        """True while all messages from there on have been asked for: what runs ahead of them will come again."""
        self._early: dict[int, Message] = {}
        self._seen: set[str] = set()
        """The ids of the messages that have no sequence: an acceptance, an outcome."""
        self._ended = False
        """True once an outcome has come: there is one, whatever a callee sends after it."""

    def take(self, message: Message) -> list[Message]:
        """A message has come; return what is due now, oldest first."""
        event = message.payload
        if not isinstance(event, Event):
            if message.message_id in self._seen or (self.catching_up and not isinstance(event, TaskAccepted)):
                return []
            if isinstance(event, TaskCompleted | TaskFailed):
                if self._ended:
                    return []
                self._ended = True
            self._seen.add(message.message_id)
            return [message]
        if event.sequence <= self.last_processed_sequence or event.sequence in self._early:
            return []
        if event.sequence == self.last_processed_sequence + 1:
            self.catching_up = False
            return [message, *self._next_early(event.sequence)]
        return [] if self.catching_up else self._too_early(message, event.sequence)

    def _next_early(self, sequence: int) -> list[Message]:
        """Those that have waited for this event, and that it has come."""
        due: list[Message] = []
        while (following := self._early.pop(sequence + 1, None)) is not None:
            due.append(following)
            sequence += 1
        self.last_processed_sequence = sequence
        return due

    def _too_early(self, message: Message, sequence: int) -> list[Message]:
        if not self._early:
            log.warning(
                "HCP session %s: event %d has come, and %d has not",
                message.session_id,
                sequence,
                self.last_processed_sequence + 1,
            )
        self._early[sequence] = message
        if len(self._early) <= EARLY_KEPT and not closes(message):
            return []
        # Nothing will fill the gap; what is there is told without it.
        due = [self._early[early] for early in sorted(self._early)]
        self.last_processed_sequence = max(self._early)
        self._early.clear()
        return due
