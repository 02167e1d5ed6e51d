"""The message that is published and delivered, and the bounds on what a peer may send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping


@frozen(kw_only=True)
class AmqpMessage:
    """A message with its route and the properties of AMQP's class basic; None is a property that is not sent.

    `persistent` is delivery_mode 2. `expiration` is in milliseconds, in digits. `user_id`, if given, must be the name
    of the login: the broker checks it. A mandatory message needs a `message_id` of its own.
    """

    exchange: str
    routing_key: str
    body: bytes = field(repr=lambda body: f"<{len(body)} bytes>")
    persistent: bool = True
    content_type: str | None = None
    content_encoding: str | None = None
    headers: Mapping[str, Any] | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: dt.datetime | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None


@frozen(kw_only=True)
class AmqpLimits:
    """Bounds on one connection's memory, in bytes where no other unit is said."""

    frame: int = 131_072
    """The largest frame that this side proposes; RabbitMQ's default."""
    properties: int = 16_384
    """Longer properties of a delivery are not decoded: the delivery is rejected."""
    body: int = 1_048_576
    """The longest body: a longer delivery is skipped as it arrives and rejected; a longer publish is refused."""
    channels: int = 64
    """Channels of one connection."""
