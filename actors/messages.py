"""The types of messages to a session and to the job server.

A session receives requests, each with a way to answer it, and a few notices. The job server receives HCP messages and
hcp.* calls. Only types, so that a connection, an embedded program and a test can all send them without importing the
session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from hearth.actors.bus.interlocks import Interlock
    from hearth.actors.events import History
    from hearth.errors import RpcError
    from hearth.policy.principal import Principal
    from hearth.policy.rules import Grant
    from hearth.protocol.methods import Params
    from hearth.tools import PathUse


Verdicts: TypeAlias = "Mapping[PathUse | Interlock, RpcError | None]"
"""Verdicts that took time: on paths, checked in a thread, and on interlocks, whose lines and sensors were read. None if
allowed, else the error."""


class EventSink(Protocol):
    """A receiver of task events, such as a connection's send queue."""

    @property
    def gone(self) -> bool:
        """True when the receiver will never read again."""
        ...

    def follow(self, log: History, from_seq: int | None) -> None:
        """Send the events of a history from number `from_seq` on; None: all that it has not been sent already."""

    def unfollow(self, log: History) -> None:
        """Send no more events of a history."""


class Request(Protocol):
    """A request, and the way to answer it exactly once."""

    ignored: tuple[str, ...]
    """JSON pointers to the members of the request that are ignored; the answer names them."""
    halts: int
    """The number of halts when it came to its session, which sets it (`bus.queue.HaltFlag`)."""

    @property
    def params(self) -> Params:
        """The parameters, whose class names the method."""
        ...

    @property
    def follower(self) -> EventSink | None:
        """The receiver of the events that the request subscribes to, or None."""
        ...

    def result(self, value: Any) -> None:
        """Answer with a result, to which `ignored` is added."""

    def error(self, error: RpcError) -> None:
        """Answer with an error."""


class HcpRequest(Protocol):
    """An HCP message that a caller has sent, and the way to answer it: one call of one of three methods."""

    @property
    def document(self) -> Mapping[str, Any]:
        """The message as received."""
        ...

    def check_time(self, *, moves: bool) -> None:
        """Raise Rejection if the order must not begin any more; `moves`: it may have an effect on hardware."""

    def answer(self, line: bytes) -> None:
        """Send one message, as one line with its LF."""

    def follow(self, message_log: History, from_seq: int) -> None:
        """Send a session's messages from number `from_seq` on, until the session or the caller ends."""

    def done(self) -> None:
        """Settle the message without an answer."""


class JobServer(Protocol):
    """The receiver of jobs: HCP messages and hcp.* methods, from any carrier."""

    def receive(self, principal: Principal, request: HcpRequest) -> None:
        """Take a message and answer it later. Never raises for anything a caller can send."""

    def call(self, principal: Principal, request: Request, sink: MessageSink) -> None:
        """Execute an hcp.* method. Raises RpcError, or answers `request`."""

    def halt(self) -> None:
        """End every job that may act, and refuse what has not begun: the daemon is being halted. Never waits."""


class MessageSink(Protocol):
    """A receiver of the messages of an HCP session: a connection, or a program in this process."""

    def follow(self, log: History, from_seq: int) -> None:
        """Send a session's messages from number `from_seq` on."""


@frozen(eq=False)
class Resumed:
    """A request that had to wait outside of the session's turn; `resume` goes on with it, as RpcError or an answer."""

    request: Request
    resume: Callable[[], None]


@frozen
class CloseSession:
    """A notice to close the session, with the reason for its record."""

    reason: str


@frozen(eq=False)
class Disconnected:
    """A notice that a follower's connection has ended.

    `open_unanswered`: it ended before the answer to session.open was sent. `followed`: the histories, of any session,
    that it followed then.
    """

    follower: EventSink
    open_unanswered: bool = False
    followed: Collection[History] = ()


@frozen
class StopTasks:
    """A notice to cancel every task that has effects, because of a halt."""

    error: RpcError


@frozen(eq=False)
class NewGrant:
    """A notice that the policy was read again, with what it permits the session from now on."""

    grant: Grant


class TimerFired:
    """A notice to check what is due: a task has ended while the session winds up, or a deadline may have passed."""


TIMER_FIRED = TimerFired()
Notice: TypeAlias = "CloseSession | Disconnected | NewGrant | StopTasks | TimerFired"
Message: TypeAlias = "Request | Resumed | Notice"


def refuse(message: Message, error: RpcError) -> None:
    """Answer a message with an error, if it expects an answer."""
    if isinstance(message, Resumed):
        message.request.error(error)
    elif not isinstance(message, (CloseSession, Disconnected, NewGrant, StopTasks, TimerFired)):
        message.error(error)
