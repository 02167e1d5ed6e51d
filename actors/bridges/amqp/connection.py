"""One connection to a broker over TCP or TLS, what programs do with it, and the loop that makes it again after a loss.

`hearth.amqp.connection` is the protocol; this module is its clock, its sockets and its waiting.

- `open_connection` owns two tasks. The reader feeds the machine and dispatches its events, and never waits for a
  consumer: each has room for its prefetch, and the machine ends the connection of a broker that delivers more.
  The writer takes the machine's output in pieces, and sends a heartbeat when half an interval passes without any.
- A peer counts as lost when no whole frame has come for two heartbeats (bytes alone do not count: one a second would
  keep a useless connection for hours), or when a piece of output cannot be written for that long. A blocked
  broker reads nothing from a connection that has published, acknowledgements neither, but its heartbeats go on: then
  only the reader judges.
- The end of a connection, whatever its cause, is one function, `_end`: it gives every waiting call its error, and then
  cancels the block. A call that waited has its error before the cancellation reaches its task.
- Publishes are confirmed in a window. A confirmation has one of four ends: confirmed; refused (nack, returned); its
  channel closed by the broker (404, 403, 406), where only a window of one says which message was the cause; unknown
  (PublishUnconfirmed). After the last two the message may be queued or not, and is to be published again.
- What uses a connection lives within it. `stay_connected` runs `serve` for each connection from its beginning, so that
  no object outlives its connection.
"""

from __future__ import annotations

import copy
import math
import random
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import trio
from attrs import field, frozen

from hearth._util.exceptions import only_cancelled, unwrapped
from hearth.actors.bridges.amqp.handshake import PIECE, login_for, open_stream, shake_hands, why_broken
from hearth.amqp.channel import (
    ChannelEnded,
    Confirmed,
    ConsumerCancelled,
    Delivered,
    DeliveryRejected,
    MessageReturned,
    Replied,
)
from hearth.amqp.connection import AmqpConnection, Blocked, ConnectionEnded, ConnectionOpened, Unblocked
from hearth.amqp.errors import (
    AmqpError,
    AmqpMisuse,
    BrokerBlocked,
    BrokerConnectionLost,
    BrokerUnreachable,
    EntityNotFound,
    PublishNacked,
    PublishUnconfirmed,
)
from hearth.amqp.messages import AmqpLimits
from hearth.amqp.topology import Queue, QueueState, Topology
from hearth.errors import ConfigError
from hearth.transport.address import TlsAddress
from hearth.transport.tls import context_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from typing import Any

    from pamqp.base import Frame as Method

    from hearth.amqp.address import BrokerAddress
    from hearth.amqp.channel import AmqpChannel, Delivery
    from hearth.amqp.connection import Event
    from hearth.amqp.messages import AmqpMessage

T = TypeVar("T", bound="_OpenChannel")
R = TypeVar("R")

BACKLOG: Final = 262_144
"""Bytes of output from which publishers wait."""


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
    """The longest wait of a publish while the broker is blocked."""
    confirm_timeout: float = 60.0
    """A broker that is not blocked and confirms none of the unconfirmed messages for so long counts as lost."""
    close_timeout: float = 5.0
    backoff_first: float = 0.5
    backoff_most: float = 30.0
    limits: AmqpLimits = field(factory=AmqpLimits)


DEFAULTS: Final = BrokerSettings()


@frozen
class LinkState:
    """A change of a link to a broker. `error` is the reason of the loss, `retry_in` the seconds to the next attempt."""

    connected: bool
    error: AmqpError | ConfigError | None = None
    retry_in: float | None = None


# --- channels -------------------------------------------------------------------------------------------------------


class _OpenChannel:
    """A channel and its waiting task: base of what programs hold. `ended` is set with `error` when it is over."""

    def __init__(self, connection: BrokerConnection, channel: AmqpChannel) -> None:
        self.connection = connection
        self.channel = channel
        self.ended = trio.Event()
        self.error: AmqpError | None = None
        self._answers: list[Method] = []
        self._answered = trio.Event()

    def handle(self, event: Event) -> None:
        """Take an event of this channel."""
        if isinstance(event, Replied):
            self._answers.append(event.method)
            self._answered.set()
        elif isinstance(event, ChannelEnded):
            self.end(event.error)

    def end(self, error: AmqpError | None) -> None:
        """Give every waiting call its error."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()
            self._answered.set()

    def failure(self) -> AmqpError:
        """Return the error for a call on a channel that has ended: a new one each time, as each is raised."""
        return AmqpMisuse("this channel is closed") if self.error is None else copy.copy(self.error)

    async def call(self, start: Callable[[], None]) -> Method:
        """Send a command and return its answer."""
        if self.ended.is_set():
            raise self.failure()
        self._answers.clear()
        self._answered = trio.Event()
        start()
        timeout = self.connection.settings.call_timeout
        with trio.move_on_after(timeout) as scope:
            await self._answered.wait()
        if scope.cancelled_caught and self.connection.blocked is not None:
            blocked = self.connection.blocked
            raise BrokerBlocked(
                f"{self.connection.place} has not answered for {timeout:g} s: it is blocked ({blocked})"
            )
        if scope.cancelled_caught:
            self.connection.abort(BrokerConnectionLost(f"{self.connection.place} did not answer within {timeout:g} s"))
        if not self._answers:
            raise self.failure()
        return self._answers.pop()


class Confirmation:
    """A message on its way: `wait` returns when the broker has confirmed it."""

    def __init__(self) -> None:
        self._settled = trio.Event()
        self._error: AmqpError | None = None

    @property
    def done(self) -> bool:
        """True if the outcome is known, so that `wait` does not block."""
        return self._settled.is_set()

    def settle(self, error: AmqpError | None) -> None:
        """Set the outcome; the first one holds."""
        if not self.done:
            self._error = error
            self._settled.set()

    async def wait(self) -> None:
        """Return when the broker has confirmed the message: it is in its queues, safe as these are.

        Raises PublishNacked; NoRoute for a mandatory message without a queue; PublishUnconfirmed if the connection
        ended first; BrokerRefusal if the broker closed the channel, for all its unconfirmed messages: one is the cause.
        Cancelling the wait leaves the message on its way.
        """
        await self._settled.wait()
        if self._error is not None:
            raise copy.copy(self._error)


class Publisher(_OpenChannel):
    """A channel in confirm mode. Several tasks may publish over it; order is the order of the calls."""

    def __init__(self, connection: BrokerConnection, channel: AmqpChannel, window: int) -> None:
        super().__init__(connection, channel)
        self.refused = False
        """True once the broker has refused a message."""
        self._window = window
        self._turn = trio.StrictFIFOLock()
        self._confirmations: dict[int, Confirmation] = {}
        self._progress = 0.0

    @property
    def overdue(self) -> bool:
        """True if the broker has confirmed nothing for `confirm_timeout`, although it could have."""
        if not self._confirmations or self.connection.blocked is not None:
            self._progress = trio.current_time()
        return trio.current_time() - self._progress > self.connection.settings.confirm_timeout

    async def publish(self, message: AmqpMessage, *, mandatory: bool = False) -> None:
        """Publish, and wait for the broker's confirmation; raises what `send` and `Confirmation.wait` raise."""
        await (await self.send(message, mandatory=mandatory)).wait()

    async def send(self, message: AmqpMessage, *, mandatory: bool = False) -> Confirmation:
        """Queue the message for writing and return its Confirmation: how to pipeline.

        Waits while `window` messages are unconfirmed, while the broker reads slowly, and, up to `blocked_timeout`,
        while it is blocked: then raises BrokerBlocked, and nothing was sent. `mandatory` needs a message_id: a message
        that no queue takes comes back, and its confirmation raises NoRoute. Raises AmqpMisuse for a message that cannot
        be encoded.
        """
        async with self._turn:
            deadline = math.inf
            while not self.ended.is_set():
                blocked, timeout = self.connection.blocked, self.connection.settings.blocked_timeout
                if blocked is None and not self.connection.backlogged and len(self._confirmations) < self._window:
                    break
                deadline = math.inf if blocked is None else min(deadline, trio.current_time() + timeout)
                with trio.move_on_at(deadline) as scope:
                    await self.connection.changed.wait()
                if scope.cancelled_caught:
                    raise BrokerBlocked(f"{self.connection.place} has been blocked for {timeout:g} s ({blocked})")
            if self.ended.is_set():
                raise self.failure()
            confirmation = Confirmation()
            if not self._confirmations:
                self._progress = trio.current_time()
            self._confirmations[self.channel.publish(message, mandatory=mandatory)] = confirmation
            return confirmation

    def handle(self, event: Event) -> None:
        """Take an event of this channel."""
        if isinstance(event, Confirmed):
            self._progress = trio.current_time()
            words = f"{self.connection.place} refused the message: is a queue full, with overflow reject-publish?"
            self.refused |= not event.accepted
            for number in event.numbers:
                self._confirmations.pop(number).settle(None if event.accepted else PublishNacked(words))
        elif isinstance(event, MessageReturned):
            self._confirmations[event.number].settle(event.error)
        else:
            super().handle(event)

    def end(self, error: AmqpError | None) -> None:
        """Give every waiting call and every unconfirmed message its error."""
        super().end(error)
        lost = error is None or isinstance(error, BrokerConnectionLost) or not self.connection.is_open
        words = f"the message may be queued or not; publish it again ({error or 'its channel is closed'})"
        for confirmation in self._confirmations.values():
            confirmation.settle(PublishUnconfirmed(words) if lost else error)
        self._confirmations.clear()

    async def flush(self) -> None:
        """Return when no message is unconfirmed, or the channel has ended."""
        while self._confirmations:
            await self.connection.changed.wait()


STREAM_CHUNK: Final = 4096
"""Messages of one chunk of a stream, at most."""


class Consumer(_OpenChannel):
    """Deliveries of one queue, in order: `async for delivery in consumer`.

    Each Delivery has `.message`, `.redelivered`, and `.ack()` or `.nack(requeue=…)`, which do not wait. At most
    `prefetch` deliveries are unsettled. The iteration ends with the error that ended the channel (BrokerConnectionLost,
    BrokerRefusal, EntityNotFound if the queue was deleted). `rejected` counts the deliveries that could not be read.
    """

    def __init__(self, connection: BrokerConnection, channel: AmqpChannel, queue: str, prefetch: int) -> None:
        super().__init__(connection, channel)
        self.queue = queue
        self.rejected = 0
        self._send, self._receive = trio.open_memory_channel["Delivery"](prefetch)

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Delivery:
        return await self.receive()

    async def receive(self) -> Delivery:
        """Return the next delivery; those that came before the end of the channel are lost with it."""
        if self.ended.is_set():
            raise self.failure()
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise self.failure() from None

    def handle(self, event: Event) -> None:
        """Take an event of this channel."""
        if isinstance(event, Delivered):
            self._send.send_nowait(event.delivery)
        elif isinstance(event, DeliveryRejected):
            self.rejected += 1
            self.connection.on_rejected(self.queue, event.reason)
        elif isinstance(event, ConsumerCancelled):
            text = f"the queue {self.queue!r} was deleted or its node failed"
            self.end(EntityNotFound(404, text, self.connection.place))
            self.channel.close()
        else:
            super().handle(event)

    def end(self, error: AmqpError | None) -> None:
        """Give the waiting receiver its error."""
        super().end(error)
        self._send.close()


# --- the connection -------------------------------------------------------------------------------------------------


def _ignore(queue: str, reason: str) -> None:
    """Do nothing."""


class BrokerConnection:
    """An open connection; `open_connection` and `stay_connected` make it.

    Attributes: `heartbeat`, the negotiated interval in seconds; `blocked`, the broker's reason while it takes no
    messages, or None; `lost`, an event that is set when the connection has ended; `error`, why it has ended, None after
    `close`; `on_rejected(queue, reason)`, called for a delivery that could not be read and was rejected.
    """

    def __init__(self, stream: trio.abc.Stream, machine: AmqpConnection, settings: BrokerSettings, place: str) -> None:
        self.settings = settings
        self.place = place
        self.blocked: str | None = None
        self.lost = trio.Event()
        self.error: AmqpError | None = None
        self.on_rejected: Callable[[str, str], None] = _ignore
        self.changed = trio.Event()
        """Set, and replaced, when a waiting publisher should look again."""
        self._stream = stream
        self._machine = machine
        self._output = trio.Event()
        self._body = trio.CancelScope()
        # Shielded: a cancelled block closes in order too, within `close_timeout`.
        self._tasks = trio.CancelScope(shield=True)
        self._writing = trio.CancelScope()
        self._finished = trio.Event()
        self._channels: dict[AmqpChannel, _OpenChannel] = {}
        machine.on_output = self._on_output

    @property
    def heartbeat(self) -> int:
        """The negotiated interval in seconds."""
        return self._machine.heartbeat

    @property
    def is_open(self) -> bool:
        """True until the connection has ended."""
        return not self.lost.is_set()

    @property
    def backlogged(self) -> bool:
        """True if so much waits to be written that publishers should wait."""
        return self._machine.pending > BACKLOG

    # --- what programs call ---

    async def declare(self, topology: Topology) -> dict[str, QueueState]:
        """Declare exchanges, queues and bindings; return the state of each queue by its name.

        Raises BrokerRefusal (403, 404, 406); the connection goes on.
        """
        states = {}
        async with self._channel(_OpenChannel) as each:
            for exchange in topology.exchanges:
                await each.call(partial(each.channel.declare_exchange, exchange))
            for queue in topology.queues:
                answer: Any = await each.call(partial(each.channel.declare_queue, queue))
                states[queue.name] = QueueState(answer.queue, answer.message_count, answer.consumer_count)
            for binding in topology.bindings:
                await each.call(partial(each.channel.bind_queue, binding))
        return states

    async def inspect(self, queue: str) -> QueueState:
        """Return the state of a queue. Raises EntityNotFound."""
        return (await self.declare(Topology((), (Queue(queue, passive=True),))))[queue]

    @asynccontextmanager
    async def publisher(self, window: int = 64) -> AsyncIterator[Publisher]:
        """Open a channel for publishing; at its end, waits up to `close_timeout` for outstanding confirmations."""
        async with self._channel(partial(Publisher, window=window)) as publisher:
            await publisher.call(publisher.channel.select_confirms)
            yield publisher
            with trio.move_on_after(self.settings.close_timeout):
                await publisher.flush()

    async def publish(self, message: AmqpMessage, *, mandatory: bool = False) -> None:
        """Publish what is rare, on a channel of its own, and wait for its confirmation. Raises as `Publisher.publish`.

        A refusal closes no other channel. And if a channel's first message finds a queue without its leader,
        RabbitMQ 3.10 refuses all that follow for it.
        """
        async with self.publisher(1) as publisher:
            await publisher.publish(message, mandatory=mandatory)

    @asynccontextmanager
    async def consume(
        self,
        queue: str,
        *,
        prefetch: int = 10,
        arguments: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Consumer]:
        """Consume a queue on a channel of its own; at its end, what is not settled goes back to the queue.

        `arguments` are those of basic.consume, such as {"x-stream-offset": "first"} for a stream.
        """
        # RabbitMQ sends a stream by chunks, and the last of them may reach beyond the prefetch.
        more = STREAM_CHUNK if "x-stream-offset" in (arguments or {}) else 0
        async with self._channel(partial(Consumer, queue=queue, prefetch=prefetch + more)) as consumer:
            channel = consumer.channel
            await consumer.call(partial(channel.limit_deliveries, prefetch, more))
            await consumer.call(partial(channel.consume, queue, arguments=arguments))
            yield consumer

    @asynccontextmanager
    async def _channel(self, make: Callable[[BrokerConnection, AmqpChannel], T]) -> AsyncIterator[T]:
        """Open a channel; at the end close it, and wait for that unless the block was left by an exception."""
        if self.lost.is_set():
            raise copy.copy(self.error) if self.error else AmqpMisuse("this connection is closed")
        channel = self._machine.open_channel()
        self._channels[channel] = each = make(self, channel)
        try:
            await each.call(lambda: None)
            yield each
        finally:
            channel.close()
        with trio.move_on_after(self.settings.close_timeout):
            await each.ended.wait()

    # --- its end ---

    def abort(self, error: AmqpError) -> None:
        """End the connection for this reason, without telling the peer."""
        self._machine.abandon()
        self._end(error)
        self._tasks.cancel()

    def _end(self, error: AmqpError | None) -> None:
        if self.lost.is_set():
            return
        self.error = error
        self.lost.set()
        for each in list(self._channels.values()):
            each.end(error or BrokerConnectionLost(f"{self.place}: this side has closed the connection"))
        self._pulse()
        self._output.set()
        self._body.cancel()

    # --- its tasks ---

    @asynccontextmanager
    async def running(self, events: Iterable[Event] = ()) -> AsyncIterator[None]:
        """Run reader and writer around the block; at its end close the connection, within `close_timeout`.

        `events` came with the end of the handshake.
        """
        for event in events:
            self._dispatch(event)
        async with unwrapped() as body, trio.open_nursery() as nursery:
            nursery.start_soon(self._run)
            try:
                with self._body:
                    async with body.watched():
                        yield
            finally:
                self._machine.close()
                with trio.move_on_after(self.settings.close_timeout, shield=True):
                    await self._finished.wait()
                self._tasks.cancel()
        if self.error is not None:
            raise self.error

    async def _run(self) -> None:
        try:
            with self._tasks:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read)
                    nursery.start_soon(self._write)
        finally:
            self._finished.set()

    def _pulse(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def _on_output(self) -> None:
        self._output.set()

    async def _read(self) -> None:
        """Feed the machine and dispatch its events, until the connection ends."""
        patience = 2 * self.heartbeat
        frames, deadline = -1, math.inf
        while not self.lost.is_set():
            if self._machine.frames != frames:
                frames, deadline = self._machine.frames, trio.current_time() + patience
            data: bytes | bytearray | None = None
            with trio.move_on_at(deadline):
                try:
                    data = await self._stream.receive_some(PIECE)
                except trio.BrokenResourceError as error:
                    return self.abort(BrokerConnectionLost(f"{self.place}: {why_broken(error)}"))
            if data is None:
                return self.abort(
                    BrokerConnectionLost(f"{self.place} is silent: no whole frame within {patience} s (two heartbeats)")
                )
            for event in self._machine.receive(bytes(data)):
                self._dispatch(event)
            self._pulse()
        return None

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, ConnectionEnded):
            self._end(event.error)
        elif isinstance(event, Blocked):
            self.blocked = event.reason
            self._writing.deadline = math.inf
        elif isinstance(event, Unblocked):
            self.blocked = None
            self._writing.deadline = trio.current_time() + 2 * self.heartbeat
        elif not isinstance(event, ConnectionOpened):
            self._channels[event.channel].handle(event)
            if isinstance(event, ChannelEnded):
                del self._channels[event.channel]

    async def _write(self) -> None:
        """Send the machine's output, and heartbeats, until the connection has ended and all output is sent."""
        machine, patience = self._machine, 2 * self.heartbeat
        while True:
            if machine.pending:
                data = machine.data_to_send(PIECE)
                deadline = math.inf if self.blocked is not None else trio.current_time() + patience
                with trio.CancelScope(deadline=deadline) as self._writing:
                    try:
                        await self._stream.send_all(data)
                    except trio.BrokenResourceError as error:
                        return self.abort(BrokerConnectionLost(f"{self.place}: {why_broken(error)}"))
                if self._writing.cancelled_caught:
                    return self.abort(BrokerConnectionLost(f"{self.place} has read nothing for {patience} s"))
                if not self.backlogged:
                    self._pulse()
            elif self.lost.is_set():
                return None
            else:
                self._output = trio.Event()
                with trio.move_on_after(self.heartbeat / 2) as scope:
                    await self._output.wait()
                if scope.cancelled_caught:
                    machine.send_heartbeat()
                if any(isinstance(each, Publisher) and each.overdue for each in self._channels.values()):
                    timeout = self.settings.confirm_timeout
                    return self.abort(BrokerConnectionLost(f"{self.place} has confirmed nothing for {timeout:g} s"))


# --- connecting ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_connection(
    address: BrokerAddress, settings: BrokerSettings = DEFAULTS, *, name: str = "hearth"
) -> AsyncIterator[BrokerConnection]:
    """Connect, log in and yield the connection; at the end close it, within `close_timeout`.

    The block is cancelled when the connection is lost, after every pending call has ended with its error; then this
    raises the error of the loss. `name` is what the broker's operator sees. Raises BrokerUnreachable, BrokerRefusal,
    AmqpProtocolError, and ConfigError for files that cannot be used.
    """
    tls = TlsAddress(address.host, address.port, address.ca, address.cert, address.key)
    context = context_for(tls) if address.secure else None
    machine = AmqpConnection(
        login_for(address),
        vhost=address.vhost,
        limits=settings.limits,
        heartbeat=settings.heartbeat,
        name=name,
        place=address.place,
    )
    stream: trio.abc.Stream | None = None
    try:
        try:
            with trio.fail_after(settings.connect_timeout):
                stream = await open_stream(address, context, tls)
                events = await shake_hands(stream, machine, tls, address.place)
        except trio.TooSlowError:
            cure = (
                f"is {address.host} on, does a firewall let port {address.port} through, is it a broker that listens?"
            )
            raise BrokerUnreachable(
                f"no connection to {address.place} within {settings.connect_timeout:g} s: {cure}"
            ) from None
        connection = BrokerConnection(stream, machine, settings, address.place)
        async with connection.running(events):
            yield connection
    finally:
        if stream is not None:
            await trio.aclose_forcefully(stream)


async def stay_connected(
    address: BrokerAddress,
    serve: Callable[[BrokerConnection], Awaitable[R]],
    *,
    topology: Topology | None = None,
    settings: BrokerSettings = DEFAULTS,
    name: str = "hearth",
    on_change: Callable[[LinkState], None] = lambda state: None,
    uniform: Callable[[float, float], float] = random.uniform,
) -> R:
    """Connect, declare `topology` and run `serve(connection)`; after a loss do so again, with back-off.

    Returns what `serve` returns. `serve` is cancelled when its connection is lost. An AmqpError that leaves it, or a
    group of them, such as a refused declaration, counts as a loss; any other exception ends the loop. The wait grows
    from `backoff_first` to `backoff_most`, doubled each time, and is drawn by `uniform` from its upper half; a
    connection that lasted longer than `backoff_most` starts it again. A ConfigError ends the loop at the first attempt;
    later it counts as a loss.
    """
    delay, first = settings.backoff_first, True
    while True:
        connected_at = math.inf
        try:
            async with open_connection(address, settings, name=name) as connection:
                await connection.declare(topology or Topology())
                connected_at = trio.current_time()
                on_change(LinkState(connected=True))
                return await serve(connection)
        except AmqpError as raised:
            error: AmqpError | ConfigError = raised
        except ConfigError as raised:
            if first or connected_at != math.inf:
                raise
            error = raised
        except BaseExceptionGroup as group:
            only, rest = group.split(AmqpError)
            if only is not None and rest is not None and only_cancelled(rest):
                # Cancelled at the moment of a loss: the loss must not outlive the cancellation, which Trio takes back.
                raise rest from None
            if only is None or rest is not None:
                raise
            error = _first(only)
        first = False
        if trio.current_time() - connected_at > settings.backoff_most:
            delay = settings.backoff_first
        retry_in = uniform(delay / 2, delay)
        delay = min(2 * delay, settings.backoff_most)
        on_change(LinkState(connected=False, error=error, retry_in=retry_in))
        await trio.sleep(retry_in)


def _first(error: BaseException) -> AmqpError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, AmqpError)
    return error
