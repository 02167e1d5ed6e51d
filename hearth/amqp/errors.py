"""The errors of the AMQP client, each by its name.

Three families: the peer's bytes break the protocol (`AmqpProtocolError`), the broker refuses in the protocol's words
(`BrokerRefusal`, by reply code), or the connection is gone (`BrokerConnectionLost`).
"""

from __future__ import annotations

from typing import ClassVar, Final

from hearth.errors import HearthError


class AmqpError(HearthError):
    """The root of the errors of the AMQP client."""


class AmqpMisuse(AmqpError):
    """The program asked for what the protocol, or the state of the channel, does not allow; nothing was sent."""


class AmqpProtocolError(AmqpError):
    """The peer sent bytes that break the protocol or its bounds; the connection is closed.

    `code` is the reply code that this side closes with.
    """

    def __init__(self, message: str, code: int = 501) -> None:
        super().__init__(message)
        self.code = code


class BrokerUnreachable(AmqpError):
    """No connection came about: address, network, TLS, or no answer in time."""


class BrokerConnectionLost(AmqpError):
    """The connection ended: by a cut, a silent peer, or a program that closed it."""


class PublishUnconfirmed(BrokerConnectionLost):
    """The connection ended before the broker confirmed this message: it may be queued or not. Publish it again."""


class DeliveryLost(BrokerConnectionLost):
    """This delivery can no longer be settled, since its channel has ended; the broker delivers the message again."""


class BrokerBlocked(AmqpError):
    """The broker takes no messages (memory or disk alarm), for longer than the wait's bound; nothing was sent."""


class PublishNacked(AmqpError):
    """The broker has refused the responsibility for this message, as a full queue with `reject-publish` does."""


def printable(text: str) -> str:
    """Return the beginning of a peer's text, fit for a terminal and a log."""
    return "".join(character if character.isprintable() else "?" for character in text[:300])


class BrokerRefusal(AmqpError):
    """The broker closed the channel or the connection, or returned a message, with a reply code.

    `code` is the number, `name` its name in the specification, `text` the broker's own explanation.
    """

    cure: ClassVar[str] = ""

    def __init__(self, code: int, text: str, place: str = "the broker") -> None:
        self.code = code
        self.name = REPLY_NAMES.get(code, "UNKNOWN")
        self.text = text
        self._place = place
        said = printable(text).removeprefix(f"{self.name} - ")  # with which RabbitMQ begins its texts
        end = f"; {self.cure}" if self.cure else ""
        super().__init__(f"{place} refused with {code} {self.name}: {said}{end}")


class NoRoute(BrokerRefusal):
    """312: no queue is bound for a mandatory message; the broker has dropped it."""

    cure = "declare the queue and bind it to the exchange with this routing key"


class ConnectionForced(BrokerRefusal):
    """320: an operator, or the broker's shutdown, closed the connection."""

    cure = "the client connects again by itself once the broker is back"


class AccessRefused(BrokerRefusal):
    """403: the user may not do this, or the login failed."""

    cure = "look at the user, its credentials and its permissions (rabbitmqctl list_permissions)"


class EntityNotFound(BrokerRefusal):
    """404: there is no such exchange or queue."""

    cure = "declare it first, or correct its name and the virtual host"


class EntityLocked(BrokerRefusal):
    """405: another connection has the queue for itself."""

    cure = "stop the other client, or use a queue that is not exclusive"


class PreconditionFailed(BrokerRefusal):
    """406: what is declared exists with other settings, a delivery was settled twice, or user_id is not the login."""

    cure = "compare it with what the broker has; user_id must be the name of the login"


class NotAllowed(BrokerRefusal):
    """530: the virtual host does not exist or is not for this user, or a limit of the broker is reached."""

    cure = "look at the virtual host in the URL and at the user's permissions for it"


REPLY_NAMES: Final = {
    200: "OK", 311: "CONTENT_TOO_LARGE", 312: "NO_ROUTE", 313: "NO_CONSUMERS", 320: "CONNECTION_FORCED",
    402: "INVALID_PATH", 403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED", 406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR", 502: "SYNTAX_ERROR", 503: "COMMAND_INVALID", 504: "CHANNEL_ERROR", 505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR", 530: "NOT_ALLOWED", 540: "NOT_IMPLEMENTED", 541: "INTERNAL_ERROR",
}  # fmt: skip
"""Reply code -> its name, as in the AMQP 0-9-1 specification §1.2 and in RabbitMQ's texts."""

_CLASSES: Final[dict[int, type[BrokerRefusal]]] = {
    312: NoRoute,
    320: ConnectionForced,
    403: AccessRefused,
    404: EntityNotFound,
    405: EntityLocked,
    406: PreconditionFailed,
    530: NotAllowed,
}


def refusal(code: int, text: str, place: str = "the broker") -> BrokerRefusal:
    """Return the error of a reply code; codes without a class of their own give a plain BrokerRefusal."""
    return _CLASSES.get(code, BrokerRefusal)(code, text, place)
