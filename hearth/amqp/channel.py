"""One channel of a connection, as a state machine without I/O.

    opening --open-ok--> open --close()--> closing --close-ok--> closed
    any of them --the broker's channel.close, the connection's end--> closed

Commands append frames to the connection's output; what the broker answers comes as events of the connection.

- One command with an answer at a time (`call`): answers carry no number, only their order says whose they are.
- With `select_confirms`, publishes are numbered from 1. The broker answers each number once, alone or with all before
  it, positively or not. A number that is not unconfirmed breaks the protocol.
- A returned message has no number. Its message_id finds it; its confirmation, which follows, says nothing more.
- Content is a method frame, a header frame and body frames, in a row. A body over the bound, or properties that cannot
  be read, are the fault of the program that published them; ending the connection would end it again at each
  redelivery. So the rest is skipped, the delivery is rejected without requeue, and `DeliveryRejected` has the reason.
- A broker that delivers more than the prefetch breaks the protocol: consumers reserve memory for so many deliveries.
- A delivery can be settled only by its own methods, which know the channel: no number is ever handed out.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field, frozen
from pamqp import commands

from hearth.amqp.errors import AmqpMisuse, AmqpProtocolError, BrokerRefusal, DeliveryLost, printable, refusal
from hearth.amqp.framing import (
    BODY,
    OVERHEAD,
    decode_content,
    decode_properties,
    encode_content,
    encode_frame,
    encode_method,
    encode_properties,
)
from hearth.amqp.messages import AmqpMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pamqp.base import Frame as Method

    from hearth.amqp.messages import AmqpLimits
    from hearth.amqp.topology import Binding, Exchange, Queue


@frozen
class Replied:
    """The answer to a channel's `call`."""

    channel: AmqpChannel
    method: Method


@frozen
class Confirmed:
    """The broker has answered these publishes; `accepted` is False for a nack."""

    channel: AmqpChannel
    numbers: tuple[int, ...]
    accepted: bool


@frozen
class MessageReturned:
    """No queue takes the message of this publish: its Confirmed follows."""

    channel: AmqpChannel
    number: int
    error: BrokerRefusal


@frozen
class Delivered:
    """A message has arrived."""

    channel: AmqpChannel
    delivery: Delivery


@frozen
class DeliveryRejected:
    """A delivery could not be read, for this reason, and was rejected without requeue."""

    channel: AmqpChannel
    reason: str


@frozen
class ConsumerCancelled:
    """The broker has ended a consumer: its queue was deleted, or its node failed."""

    channel: AmqpChannel


@frozen
class ChannelEnded:
    """The channel is closed; `error` is the broker's reason, or None if this side closed it."""

    channel: AmqpChannel
    error: BrokerRefusal | None


ChannelEvent = Replied | Confirmed | MessageReturned | Delivered | DeliveryRejected | ConsumerCancelled | ChannelEnded


class Delivery:
    """A message from a queue. It knows its channel, and only through it can it be settled: once."""

    __slots__ = ("_channel", "_tag", "message", "redelivered")

    def __init__(self, channel: AmqpChannel, tag: int, message: AmqpMessage, *, redelivered: bool) -> None:
        self._channel = channel
        self._tag = tag
        self.message = message
        self.redelivered = redelivered

    def __repr__(self) -> str:
        return f"<Delivery {self.message!r}{' again' if self.redelivered else ''}>"

    @property
    def settled(self) -> bool:
        """True after `ack` or `nack`, and once the channel has ended."""
        return self._tag not in self._channel.unsettled

    def ack(self) -> None:
        """Tell the broker that the message is processed. Raises DeliveryLost, or AmqpMisuse for a second time."""
        self._channel.settle(self._tag, commands.Basic.Ack(self._tag))

    def nack(self, *, requeue: bool) -> None:
        """Give the message back, or drop it (to the dead-letter exchange, if there is one). Raises as `ack` does."""
        self._channel.settle(self._tag, commands.Basic.Nack(self._tag, multiple=False, requeue=requeue))


@define
class _Content:
    """Content that has not arrived whole. `tag` is None for a returned message; `reason` is why the rest is skipped."""

    method: Any
    missing: int | None = None
    properties: commands.Basic.Properties | None = None
    body: bytearray = field(factory=bytearray)
    reason: str | None = None


class ChannelState(Enum):
    """See the module's text."""

    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


_NAMES: Final = (
    "content_type", "content_encoding", "headers", "priority", "correlation_id", "reply_to", "expiration", "message_id",
    "timestamp", "user_id", "app_id",
)  # fmt: skip
_SAME: Final = (*((name, name) for name in _NAMES), ("type", "message_type"))
"""A property's name in AmqpMessage, and in the codec."""


class AmqpChannel:
    """A channel; `AmqpConnection.open_channel` makes it and passes frames to `handle_*`.

    Commands raise AmqpMisuse if the channel is not open, or if an answer is outstanding.
    """

    def __init__(self, number: int, limits: AmqpLimits, send: Callable[[bytes], None], place: str) -> None:
        self.number = number
        self.state = ChannelState.OPENING
        self.frame_max = limits.frame
        self.unconfirmed: dict[int, str | None] = {}
        """Number of each unconfirmed publish -> its message_id if it is mandatory, in their order."""
        self.unsettled: set[int] = set()
        self._limits = limits
        self._send = send
        self._place = place
        self._answers: tuple[str, ...] = ()
        self._confirms = False
        self._published = 0
        self._prefetch = 0
        self._last_tag = 0
        self._consumer: str | None = None
        self._content: _Content | None = None

    def call(self, method: Method) -> None:
        """Send a method that has an answer: it comes as Replied."""
        if self._answers:
            raise AmqpMisuse(f"{method.name} cannot be sent before {self._answers[0]} has come")
        self._check_open()
        self._send(encode_method(self.number, method))
        self._answers = tuple(method.valid_responses)

    def declare_exchange(self, exchange: Exchange) -> None:
        """Create an exchange, or check that it is as described."""
        self.call(
            commands.Exchange.Declare(
                exchange=exchange.name,
                exchange_type=exchange.type,
                passive=exchange.passive,
                durable=exchange.durable,
                arguments=dict(exchange.arguments),
            )
        )

    def declare_queue(self, queue: Queue) -> None:
        """Create a queue, or check that it is as described."""
        self.call(
            commands.Queue.Declare(
                queue=queue.name,
                passive=queue.passive,
                durable=queue.durable,
                exclusive=queue.exclusive,
                auto_delete=queue.auto_delete,
                arguments=dict(queue.arguments),
            )
        )

    def bind_queue(self, binding: Binding) -> None:
        """Bind a queue to an exchange."""
        self.call(
            commands.Queue.Bind(
                queue=binding.queue,
                exchange=binding.exchange,
                routing_key=binding.routing_key,
                arguments=dict(binding.arguments),
            )
        )

    def select_confirms(self) -> None:
        """Have the broker confirm each publish from now on."""
        self.call(commands.Confirm.Select())
        self._confirms = True

    def limit_deliveries(self, prefetch: int, more: int = 0) -> None:
        """Bound the unsettled deliveries (basic.qos), before `consume`. The broker may send `more` of a stream."""
        if not 1 <= prefetch <= 65_535:
            raise AmqpMisuse(f"a prefetch of {prefetch} is none from 1 to 65535")
        self.call(commands.Basic.Qos(prefetch_count=prefetch))
        self._prefetch = prefetch + more

    def consume(self, queue: str, *, arguments: Mapping[str, Any] | None = None) -> None:
        """Start the channel's one consumer, with acknowledgements."""
        if not self._prefetch or self._consumer is not None:
            raise AmqpMisuse("a channel has one consumer, after limit_deliveries")
        tag = f"hearth-{self.number}"
        self.call(commands.Basic.Consume(queue=queue, consumer_tag=tag, arguments=dict(arguments or {})))
        self._consumer = tag

    def publish(self, message: AmqpMessage, *, mandatory: bool = False) -> int:
        """Publish a message and return its number for Confirmed, or 0 without `select_confirms`."""
        self._check_open()
        body, limits = message.body, self._limits
        if len(body) > limits.body:
            raise AmqpMisuse(f"a body of {len(body)} bytes is over the limit of {limits.body}; publish a reference")
        if mandatory and (message.message_id is None or message.message_id in self.unconfirmed.values()):
            raise AmqpMisuse("a mandatory message needs a message_id that no other unconfirmed message has")
        method = commands.Basic.Publish(mandatory=mandatory)
        method.exchange, method.routing_key = message.exchange, message.routing_key
        properties = commands.Basic.Properties(delivery_mode=2 if message.persistent else 1)
        for ours, theirs in _SAME:
            setattr(properties, theirs, getattr(message, ours))
        encoded = encode_properties(properties)
        if len(encoded) > limits.properties:
            raise AmqpMisuse(f"properties of {len(encoded)} bytes are over the limit of {limits.properties}")
        frames = [encode_method(self.number, method), encode_content(self.number, len(body), encoded)]
        most = self.frame_max - OVERHEAD
        frames += (encode_frame(BODY, self.number, body[start : start + most]) for start in range(0, len(body), most))
        self._send(b"".join(frames))
        if not self._confirms:
            return 0
        self._published += 1
        self.unconfirmed[self._published] = message.message_id if mandatory else None
        return self._published

    def settle(self, tag: int, method: Method) -> None:
        """Send the ack or nack of a delivery: for Delivery alone."""
        if self.state is not ChannelState.OPEN:
            raise DeliveryLost("the channel of this delivery has ended: the broker delivers the message again")
        if tag not in self.unsettled:
            raise AmqpMisuse("this delivery is settled already")
        self._send(encode_method(self.number, method))
        self.unsettled.discard(tag)

    def close(self) -> None:
        """Close the channel: what is unsettled goes back to its queue. Does nothing if it is not open."""
        if self.state in (ChannelState.OPENING, ChannelState.OPEN):
            self.state = ChannelState.CLOSING
            self._send(encode_method(self.number, commands.Channel.Close(200, "", 0, 0)))
            self._forget()

    def _check_open(self) -> None:
        if self.state is not ChannelState.OPEN:
            raise AmqpMisuse(f"this channel is not open ({self.state.name.lower()})")

    def _forget(self) -> None:
        self._answers, self._content = (), None
        self.unsettled.clear()

    def ended(self) -> None:
        """Mark the channel as closed: its connection is."""
        self.state = ChannelState.CLOSED
        self._forget()

    def handle_method(self, method: Method) -> list[ChannelEvent]:
        """Take a method frame. Raises AmqpProtocolError for one that cannot come now."""
        if isinstance(method, commands.Channel.Close):
            return self._closed(method)
        if self.state is ChannelState.CLOSING:
            if not isinstance(method, commands.Channel.CloseOk):
                return []  # sent before the broker knew
            self.ended()
            return [ChannelEnded(self, None)]
        if self._content is not None:
            raise AmqpProtocolError(f"{method.name} came within a message", 505)
        if method.name in self._answers or (
            self.state is ChannelState.OPENING and isinstance(method, commands.Channel.OpenOk)
        ):
            return self._replied(method)
        match method:
            case commands.Basic.Ack() | commands.Basic.Nack():
                return self._confirmed(method)
            case commands.Basic.Deliver():
                if method.consumer_tag != self._consumer:
                    raise AmqpProtocolError("a delivery came for a consumer that there is not", 503)
                self._content = _Content(method)
            case commands.Basic.Return():
                self._content = _Content(method, reason="returned")
            case commands.Basic.Cancel() if method.consumer_tag == self._consumer:
                self._consumer = None
                return [ConsumerCancelled(self)]
            case _:
                raise AmqpProtocolError(f"{method.name} came on a channel that does not wait for it", 503)
        return []

    def _closed(self, method: commands.Channel.Close) -> list[ChannelEvent]:
        self._send(encode_method(self.number, commands.Channel.CloseOk()))
        ours = self.state is ChannelState.CLOSING
        self.ended()
        error = None if ours else refusal(method.reply_code or 0, method.reply_text or "", self._place)
        return [ChannelEnded(self, error)]

    def _replied(self, method: Method) -> list[ChannelEvent]:
        self._answers = ()
        if isinstance(method, commands.Channel.OpenOk):
            self.state = ChannelState.OPEN
        return [Replied(self, method)]

    def _confirmed(self, method: commands.Basic.Ack | commands.Basic.Nack) -> list[ChannelEvent]:
        tag = method.delivery_tag or 0
        if method.multiple:
            numbers = tuple(number for number in self.unconfirmed if not tag or number <= tag)
        else:
            numbers = (tag,) if tag in self.unconfirmed else ()
        if not numbers or tag > self._published:
            raise AmqpProtocolError(f"a confirmation came for publish {tag}, which is not unconfirmed", 406)
        for number in numbers:
            del self.unconfirmed[number]
        return [Confirmed(self, numbers, isinstance(method, commands.Basic.Ack))]

    def handle_header(self, payload: bytes) -> list[ChannelEvent]:
        """Take a content header. Raises AmqpProtocolError."""
        if self.state is ChannelState.CLOSING:
            return []
        content = self._content
        if content is None or content.missing is not None:
            raise AmqpProtocolError("a content header came without its method", 505)
        content.missing, encoded = decode_content(payload)
        if content.missing > self._limits.body and content.reason is None:
            content.reason = f"its body has {content.missing} bytes, where {self._limits.body} is the most"
        if len(encoded) > self._limits.properties:
            content.reason = f"its properties have {len(encoded)} bytes, where {self._limits.properties} is the most"
        else:
            try:
                content.properties = decode_properties(encoded)
            except ValueError as error:
                content.reason = printable(str(error))
        return self._whole(content) if content.missing == 0 else []

    def handle_body(self, payload: bytes) -> list[ChannelEvent]:
        """Take a part of a body. Raises AmqpProtocolError."""
        if self.state is ChannelState.CLOSING:
            return []
        content = self._content
        if content is None or content.missing is None:
            raise AmqpProtocolError("a part of a body came without its header", 505)
        if len(payload) > content.missing:
            raise AmqpProtocolError("a body is longer than its header says", 501)
        content.missing -= len(payload)
        if content.reason is None:
            content.body += payload
        return self._whole(content) if content.missing == 0 else []

    def _whole(self, content: _Content) -> list[ChannelEvent]:
        self._content = None
        if isinstance(content.method, commands.Basic.Return):
            return [self._returned(content)]
        method = content.method
        tag = method.delivery_tag
        if tag <= self._last_tag:
            raise AmqpProtocolError(f"delivery {tag} came after delivery {self._last_tag}", 501)
        self._last_tag = tag
        if content.reason is not None or content.properties is None:
            self._send(encode_method(self.number, commands.Basic.Reject(tag, requeue=False)))
            return [DeliveryRejected(self, content.reason or "")]
        if len(self.unsettled) >= self._prefetch:
            raise AmqpProtocolError(f"more deliveries came than the prefetch of {self._prefetch}", 506)
        self.unsettled.add(tag)
        message = AmqpMessage(
            exchange=method.exchange,
            routing_key=method.routing_key,
            body=bytes(content.body),
            persistent=content.properties.delivery_mode == 2,
            **{ours: getattr(content.properties, theirs) for ours, theirs in _SAME},
        )
        return [Delivered(self, Delivery(self, tag, message, redelivered=method.redelivered))]

    def _returned(self, content: _Content) -> MessageReturned:
        message_id = None if content.properties is None else content.properties.message_id
        method = content.method
        for number, mandatory in self.unconfirmed.items():
            if mandatory is not None and mandatory == message_id:
                what = f"{self._place}, exchange {method.exchange!r}, routing key {method.routing_key!r},"
                return MessageReturned(self, number, refusal(method.reply_code, method.reply_text, what))
        raise AmqpProtocolError("a message came back that was not published as mandatory", 503)
