"""What is said to a session: requests with a way to answer them, and the few notices that are not requests.

Only shapes, so that a connection, an embedded program and a test can all talk to a session without knowing
it; and the shapes of what is said to the desk that takes whole jobs (HCP).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hearth.actors.events import EventLog, History
    from hearth.errors import PermissionDenied, RpcError
    from hearth.policy.principal import Principal
    from hearth.protocol.methods import Params, TaskSubmit
    from hearth.tools import PathUse


PathVerdicts: TypeAlias = "Mapping[PathUse, PermissionDenied | None]"
"""What the guard said of paths that had to be looked up in a thread."""


class EventSink(Protocol):
    """Whoever can be sent a task's events: a connection."""

    @property
    def gone(self) -> bool:
        """True when it will never read again."""
        ...

    def follow(self, log: EventLog, from_seq: int) -> None:
        """Send the log's events, from its history on."""

    def unfollow(self, log: EventLog) -> None:
        """Send no more of them."""


class Request(Protocol):
    """A request and the way to answer it, exactly once."""

    ignored: tuple[str, ...]
    """Where something of it is ignored, as JSON pointers; its answer names them."""

    @property
    def params(self) -> Params:
        """What is asked."""
        ...

    @property
    def follower(self) -> EventSink | None:
        """Who is to be sent the events that are asked for."""
        ...

    def result(self, value: Any) -> None:
        """Answer, with what is ignored."""

    def error(self, error: RpcError) -> None:
        """Refuse."""


class HcpRequest(Protocol):
    """An HCP message that a caller has sent, and the way to answer it: once, by one of the three."""

    @property
    def document(self) -> Mapping[str, Any]:
        """As received."""
        ...

    def answer(self, line: bytes) -> None:
        """Send one message, a whole line, and no more."""

    def follow(self, message_log: History, from_seq: int) -> None:
        """Send a session's messages from there on, until it ends or its caller does."""

    def done(self) -> None:
        """Nothing is to be sent."""


class JobServer(Protocol):
    """Where whole jobs are handed in: HCP messages, and the hcp.* methods, of any carrier."""

    def receive(self, principal: Principal, request: HcpRequest) -> None:
        """Take a message; it is answered later. Never raises for anything a caller can send."""

    def call(self, principal: Principal, ask: Request, reader: MessageSink) -> None:
        """Execute an hcp.* method. Raises RpcError, or answers `ask`."""


class MessageSink(Protocol):
    """Whoever can be sent the messages of an HCP session: a connection, or a program in this process."""

    def follow(self, log: History, from_seq: int) -> None:
        """Send a session's messages from there on."""


@frozen(eq=False)
class PathsChecked:
    """A submission whose paths have been looked up in a thread: check it again."""

    ask: Request
    submit: TaskSubmit
    looked: PathVerdicts


@frozen
class CloseSession:
    """Close the session, for this reason."""

    reason: str


@frozen(eq=False)
class Disconnected:
    """A follower's connection has ended.

    `untold`: before the answer to session.open had left. `followed`: what it was being sent then, of any session.
    """

    follower: EventSink
    untold: bool = False
    followed: Collection[History] = ()


class TimerFired:
    """Look again at what is due: a task has ended while the session winds up, or a deadline may have passed."""


TIMER_FIRED = TimerFired()
Notice: TypeAlias = "CloseSession | Disconnected | TimerFired"
Message: TypeAlias = "Request | PathsChecked | Notice"


def refuse(message: Message, error: RpcError) -> None:
    """Answer what wants an answer: the session has ended."""
    if isinstance(message, PathsChecked):
        message.ask.error(error)
    elif not isinstance(message, (CloseSession, Disconnected, TimerFired)):
        message.error(error)
