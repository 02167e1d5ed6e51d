"""One connection to a broker over TCP or TLS, what programs do with it, and the loop that makes it again after a loss."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio
from attrs import field, frozen

from hearth.amqp.messages import AmqpLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import Any, NoReturn

    from hearth.amqp.address import BrokerAddress
    from hearth.amqp.channel import Delivery
    from hearth.amqp.errors import AmqpError
    from hearth.amqp.messages import AmqpMessage
    from hearth.amqp.topology import QueueState, Topology


@frozen(kw_only=True)
class BrokerSettings:
    """Times in seconds, and bounds, of a connection and of its making again."""

    heartbeat: int = 30
    """Proposed interval; the broker may shorten it. A peer without a whole frame in two intervals is lost."""
    connect_timeout: float = 10.0
    """For name, TCP, TLS and AMQP handshake together."""
    call_timeout: float = 30.0
    """For the answer to a declaration, a new channel or a consumer; after that the connection is lost."""
    blocked_timeout: float = 30.0
    """The longest wait of a publish while the broker is blocked, or does not take what is written."""
    close_timeout: float = 5.0
    backoff_first: float = 0.5
    backoff_most: float = 30.0
    limits: AmqpLimits = field(factory=AmqpLimits)


DEFAULTS: Final = BrokerSettings()


@frozen
class LinkState:
    """A change of a link to a broker. `error` is the reason of the loss, `retry_in` the seconds to the next attempt."""

    connected: bool
    error: AmqpError | None = None
    retry_in: float | None = None


class Confirmation:
    """A message on its way: `wait` returns when the broker has confirmed it."""

    @property
    def done(self) -> bool:
        """True if the outcome is known, so that `wait` does not block."""
        raise NotImplementedError

    async def wait(self) -> None:
        """Return when the broker has confirmed the message: it is in its queues, safe as these are.

        Raises PublishNacked; NoRoute for a mandatory message without a queue; PublishUnconfirmed if the connection ended
        first; BrokerRefusal if the broker closed the channel: all its unconfirmed messages then end so. Cancelling the
        wait leaves the message on its way.
        """
        raise NotImplementedError


class Publisher:
    """A channel in confirm mode. Several tasks may publish over it; order is the order of the calls."""

    async def publish(self, message: AmqpMessage, *, mandatory: bool = False) -> None:
        """Publish, and wait for the broker's confirmation; raises what `send` and `Confirmation.wait` raise."""
        raise NotImplementedError

    async def send(self, message: AmqpMessage, *, mandatory: bool = False) -> Confirmation:
        """Queue the message for writing and return its Confirmation: how to pipeline.

        Waits while `window` messages are unconfirmed, and, up to `blocked_timeout`, while the broker is blocked or reads
        nothing: then raises BrokerBlocked, and nothing was sent. `mandatory` needs a message_id: a message that no queue
        takes comes back, and its confirmation raises NoRoute. Raises AmqpMisuse for a message that cannot be encoded.
        """
        raise NotImplementedError


class Consumer:
    """Deliveries of one queue, in order: `async for delivery in consumer`.

    Each Delivery has `.message`, `.redelivered`, and `.ack()` or `.nack(requeue=…)`, which do not wait. At most `prefetch`
    deliveries are unsettled. The iteration ends with the error that ended the channel (BrokerConnectionLost,
    BrokerRefusal, EntityNotFound if the queue was deleted).
    """

    def __aiter__(self) -> AsyncIterator[Delivery]:
        raise NotImplementedError

    async def receive(self) -> Delivery:
        """Return the next delivery."""
        raise NotImplementedError


class BrokerConnection:
    """An open connection; `open_connection` and `stay_connected` make it."""

    heartbeat: int
    """The negotiated interval, in seconds."""
    blocked: str | None
    """The broker's reason while it takes no messages."""
    lost: trio.Event
    """Set when the connection has ended, however it did; `error` then has the reason, or None after `close`."""
    error: AmqpError | None

    async def declare(self, topology: Topology) -> None:
        """Declare exchanges, queues and bindings. Raises BrokerRefusal (403, 404, 406); the connection goes on."""
        raise NotImplementedError

    async def inspect(self, queue: str) -> QueueState:
        """Return the state of a queue. Raises EntityNotFound."""
        raise NotImplementedError

    @asynccontextmanager
    async def publisher(self, window: int = 64) -> AsyncIterator[Publisher]:
        """Open a channel for publishing; at its end, waits up to `close_timeout` for outstanding confirmations."""
        yield Publisher()

    @asynccontextmanager
    async def consume(
        self,
        queue: str,
        *,
        prefetch: int = 10,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Consumer]:
        """Consume a queue on a channel of its own; at its end, what is not settled goes back to the queue.

        `arguments` are those of basic.consume, such as {"x-stream-offset": "first"} for a stream.
        """
        yield Consumer()


@asynccontextmanager
async def open_connection(
    address: BrokerAddress, settings: BrokerSettings = DEFAULTS, *, name: str = "hearth"
) -> AsyncIterator[BrokerConnection]:
    """Connect, log in and yield the connection; at the end close it, within `close_timeout`.

    The block is cancelled when the connection is lost, after every pending call has ended with its error; then this
    raises the error of the loss. `name` is what the broker's operator sees. Raises BrokerUnreachable, BrokerRefusal,
    AmqpProtocolError, and ConfigError for files that cannot be used.
    """
    yield BrokerConnection()


async def stay_connected(
    address: BrokerAddress,
    serve: Callable[[BrokerConnection], Awaitable[None]],
    *,
    topology: Topology | None = None,
    settings: BrokerSettings = DEFAULTS,
    name: str = "hearth",
    on_change: Callable[[LinkState], None] = lambda state: None,
    uniform: Callable[[float, float], float] = random.uniform,
) -> NoReturn:
    """Connect, declare `topology` and run `serve(connection)`; after a loss do so again, with back-off, until cancelled.

    `serve` is cancelled when its connection is lost. An AmqpError that leaves it, such as a refused declaration, counts
    as a loss; so does its return. Any other exception ends the loop. The wait grows from `backoff_first` to
    `backoff_most`, doubled each time, and is drawn by `uniform` from its upper half; a connection that lasted longer
    than `backoff_most` starts it again. A ConfigError ends the loop at the first attempt; later it counts as a loss.
    """
    raise NotImplementedError
