"""What is said to a session: requests with a way to answer them, and the few notices that are not requests.

Only shapes, so that a connection, an embedded program and a test can all talk to a session without knowing
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from attrs import frozen

if TYPE_CHECKING:
    from hearth.actors.events import EventLog
    from hearth.actors.submission import Looked
    from hearth.errors import RpcError
    from hearth.protocol.methods import Params, TaskSubmit


class Follower(Protocol):
    """Whoever can be sent a task's events: a connection."""

    @property
    def gone(self) -> bool:
        """True when it will never read again."""
        ...

    def follow(self, log: EventLog, from_seq: int) -> None:
        """Send the log's events, from its history on."""

    def unfollow(self, log: EventLog) -> None:
        """Send no more of them."""


class Ask(Protocol):
    """A request and the way to answer it, exactly once."""

    @property
    def params(self) -> Params:
        """What is asked."""
        ...

    @property
    def follower(self) -> Follower | None:
        """Who is to be sent the events that are asked for."""
        ...

    def result(self, value: Any) -> None:
        """Answer."""

    def error(self, error: RpcError) -> None:
        """Refuse."""


@frozen(eq=False)
class PathsLooked:
    """A submission whose paths have been looked up in a thread: check it again."""

    ask: Ask
    submit: TaskSubmit
    looked: Looked


@frozen
class End:
    """Close the session, for this reason."""

    reason: str


@frozen(eq=False)
class Gone:
    """A follower's connection has ended; `untold`: before the answer to session.open had left."""

    follower: Follower
    untold: bool = False


class Nudge:
    """Look again at what is due: a task has ended while the session winds up, or a deadline may have passed."""


NUDGE = Nudge()
Notice: TypeAlias = "End | Gone | Nudge"
Message: TypeAlias = "Ask | PathsLooked | Notice"


def refuse(message: Message, error: RpcError) -> None:
    """Answer what wants an answer: the session has ended."""
    if isinstance(message, PathsLooked):
        message.ask.error(error)
    elif not isinstance(message, (End, Gone, Nudge)):
        message.error(error)
