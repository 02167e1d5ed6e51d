"""Requests and HCP messages of this process, and how they are answered: by a slot, and into an outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.actors.mailbox import Slot
from hearth.known_members import with_ignored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.actors.asks import Follower
    from hearth.actors.events import History
    from hearth.actors.outbox import Outbox
    from hearth.errors import RpcError
    from hearth.protocol.methods import Params


class LocalAsk:
    """A request of this process. Implements `asks.Ask`."""

    __slots__ = ("abandoned", "follower", "ignored", "params", "slot")

    def __init__(self, params: Params, follower: Follower | None = None, ignored: tuple[str, ...] = ()) -> None:
        self.params = params
        self.follower = follower
        self.ignored = ignored
        self.slot: Slot[Any] = Slot()
        self.abandoned: Callable[[Any], None] | None = None
        """Set when its caller has gone: what to do with a result."""

    def result(self, value: Any) -> None:
        """See Ask."""
        value = with_ignored(value, self.ignored)
        self.slot.fill(value)
        if self.abandoned is not None:
            self.abandoned(value)

    def error(self, error: RpcError) -> None:
        """See Ask."""
        self.slot.fail(error)


class LocalLetter:
    """An HCP message of this process. Implements `asks.Letter`."""

    __slots__ = ("_outbox", "document")

    def __init__(self, document: Mapping[str, Any], outbox: Outbox) -> None:
        self.document = document
        self._outbox = outbox

    def answer(self, line: bytes) -> None:
        """See Letter."""
        self._outbox.push(line)

    def follow(self, story: History, from_seq: int) -> None:
        """See Letter."""
        if not self._outbox.gone:
            self._outbox.follow(story, from_seq)

    def done(self) -> None:
        """See Letter."""
