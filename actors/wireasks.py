"""What came over a wire, and the way back to it: a call of a HACP method, a message of HCP (draft §2.1; L1).

Each is settled exactly once, whenever its session or the desk has an answer, and on a connection that has gone
meanwhile nothing happens. Bounding how many there are is the connection's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hearth.known_members import with_ignored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.actors.events import History
    from hearth.actors.outbox import Outbox
    from hearth.errors import RpcError
    from hearth.protocol.methods import Params
    from hearth.protocol.server import Call


class Answering(Protocol):
    """The side of a connection that they are settled on."""

    outbox: Outbox

    def answer(self, call: Call, value: Any) -> None:
        """Send a call's result."""

    def refuse(self, call: Call, error: RpcError) -> None:
        """Send a call's error."""

    def settle(self, line: bytes | None, weight: int) -> None:
        """One that was under way no longer is, nor what it weighed; send its answer, if it has one."""


class WireAsk:
    """A call and the connection to answer it on. Implements `asks.Ask`."""

    __slots__ = ("_call", "_connection", "ignored", "params")

    def __init__(self, connection: Answering, call: Call, params: Params, ignored: tuple[str, ...] = ()) -> None:
        self._connection = connection
        self._call = call
        self.params = params
        self.ignored = ignored

    @property
    def follower(self) -> Outbox:
        """Who is sent the events this request asks for."""
        return self._connection.outbox

    def result(self, value: Any) -> None:
        """See Ask."""
        self._connection.answer(self._call, with_ignored(value, self.ignored))

    def error(self, error: RpcError) -> None:
        """See Ask."""
        self._connection.refuse(self._call, error)


class WireLetter:
    """An HCP message and the connection it came on. Implements `asks.Letter`."""

    __slots__ = ("_connection", "_weight", "document")

    def __init__(self, connection: Answering, document: Mapping[str, Any], weight: int) -> None:
        self._connection = connection
        self._weight = weight
        self.document = document

    def answer(self, line: bytes) -> None:
        """See Letter."""
        self._connection.settle(line, self._weight)

    def follow(self, story: History, from_seq: int) -> None:
        """See Letter."""
        if not self._connection.outbox.gone:
            self._connection.outbox.follow(story, from_seq)
        self._connection.settle(None, self._weight)

    def done(self) -> None:
        """See Letter."""
        self._connection.settle(None, self._weight)
