"""The hooks by which an extra adds to a client: methods, and the messages of another protocol than HACP.

An extra's record names a class (`Extra.client`) that is made of a client: its public methods are methods of every
client, and of every runtime in a program. Nothing of an extra is imported before one of its methods is used. Type
checkers know these methods by the stub of `hearth`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from hearth import extras

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.errors import HearthError


class Receiver(ABC):
    """A receiver of the messages that are not HACP's, for one connection."""

    abandoned: int = 0
    """Number of messages whose caller was cancelled and whose effect is to be undone: the connection stays for them."""

    @abstractmethod
    def receive(self, document: Mapping[str, Any]) -> None:
        """Handle a received message. Never raises for anything that a peer can send, and never waits."""

    @abstractmethod
    def end(self, why: Callable[[str], HearthError]) -> None:
        """Note the end of the connection; `why` returns the error for an operation, given its name."""


class MessageLink(ABC):
    """A connection that carries messages of another protocol than HACP, and its methods without a session."""

    receiver: Receiver | None = None

    @abstractmethod
    def attach_receiver(self, receiver: Receiver) -> None:
        """Give every later message to this receiver, and tell it of the end, also of one that has been."""

    @abstractmethod
    def send_message(self, line: bytes) -> None:
        """Send a message; `line` is a whole line."""

    @abstractmethod
    async def call(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call a method that needs no session. Raises the RpcError of the answer, or CarrierError."""

    @abstractmethod
    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Call a method that needs no session, without waiting for an answer."""

    @abstractmethod
    def settled(self) -> None:
        """Note that `Receiver.abandoned` has changed."""


class Extended(ABC):
    """A client with the methods that extras add to it."""

    @abstractmethod
    def message_link(self) -> MessageLink:
        """Return the connection for messages of extras. Raises MethodNotFound where there is none."""

    if not TYPE_CHECKING:  # a misspelt name is an error for type checkers

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_"):
                for added in extras.clients():
                    if hasattr(added, name):
                        return getattr(added(self), name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
