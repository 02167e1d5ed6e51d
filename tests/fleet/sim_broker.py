"""A broker in memory, under a virtual clock, that does what a broker may do: to connections, queues and messages.

It stands for `open_connection`. What is above it is the shipped code: `stay_connected`, publishers, confirmations,
consumers, deliveries. Every channel is a pipe of its own in each direction, with delays of its own, so that nothing is
in order but what one channel carries. The broker:

- loses what it has not confirmed when it is killed, or keeps it; what it has confirmed survives that, but not a wipe;
- delivers again, marked, what was not acknowledged on a connection that it knows to be lost: often long after the
  client knows;
- confirms late and out of order, refuses at times, takes a message twice at times, blocks, and drops expired messages.

`BrokerPeer` is a process at the other end: what a dead one does reaches nothing.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from contextlib import asynccontextmanager
from functools import partial

import trio
from attrs import define

from hearth.actors.bridges.amqp.connection import BrokerConnection, Consumer, Publisher
from hearth.amqp.channel import Confirmed, Delivered, Delivery, MessageReturned
from hearth.amqp.errors import (
    AmqpMisuse,
    BrokerConnectionLost,
    BrokerUnreachable,
    DeliveryLost,
    EntityLocked,
    EntityNotFound,
    NoRoute,
)
from hearth.amqp.topology import QueueState


class Timetable:
    """What happens when; `run` does it."""

    def __init__(self):
        self._due = []
        self._numbers = itertools.count()
        self._changed = trio.Event()

    def at(self, when, what):
        """Call `what()` then."""
        heapq.heappush(self._due, (when, next(self._numbers), what))
        self._changed.set()

    async def run(self):
        """Until cancelled."""
        while True:
            self._changed = trio.Event()
            while self._due and self._due[0][0] <= trio.current_time():
                heapq.heappop(self._due)[2]()
            with trio.move_on_at(self._due[0][0] if self._due else math.inf):
                await self._changed.wait()


class BrokerPeer:
    """A process that connects. Its hooks are called before what it does leaves it."""

    dead = False

    def publishes(self, message):
        """It publishes a message."""

    def acknowledges(self, message):
        """It acknowledges a delivery."""

    def acknowledged(self):
        """It has done so."""


@define(eq=False)
class QueuedMessage:
    """A message in a queue."""

    message: object
    expires: float
    safe: bool = False
    """True once it was confirmed."""
    redelivered: bool = False


class SimChannel:
    """Stands for `AmqpChannel`, as far as publishers, consumers and deliveries use it."""

    def __init__(self, connection):
        self.connection = connection
        self.each = None
        self.gone = False
        """True once the broker has forgotten it."""
        self.unsettled = set()
        self.held = {}
        """At the broker: tag -> (queue, what it has delivered)."""
        self._published = 0
        self._unconfirmed = {}
        self._tags = itertools.count(1)
        self._last = {"up": 0.0, "down": 0.0}

    def _later(self, way, what):
        broker = self.connection.broker
        self._last[way] = max(self._last[way], trio.current_time() + broker.delay())
        broker.timetable.at(self._last[way], what)

    # --- the client's side

    def publish(self, message, *, mandatory):
        """Publish a message; its number."""
        if mandatory and message.message_id in self._unconfirmed.values():
            raise AmqpMisuse("a mandatory message needs a message_id that no other unconfirmed message has")
        self._published += 1
        number = self._published
        self._unconfirmed[number] = message.message_id if mandatory else None
        peer = self.connection.peer
        if not peer.dead:
            peer.publishes(message)
        if not peer.dead:
            self._later("up", partial(self._arrives, number, message, mandatory))
        return number

    def settle(self, tag, method):
        """Acknowledge, or give back, a delivery."""
        if self.each.ended.is_set():
            raise DeliveryLost("the channel of this delivery has ended: the broker delivers the message again")
        if tag not in self.unsettled:
            raise AmqpMisuse("this delivery is settled already")
        peer = self.connection.peer
        acknowledges = method.name == "Basic.Ack"
        if acknowledges and not peer.dead:
            peer.acknowledges(self.held[tag][1].message)
        if peer.dead:
            return
        self.unsettled.discard(tag)
        requeue = not acknowledges and method.requeue
        self._later("up", partial(self.connection.broker.settled, self, tag, requeue=requeue))
        peer.acknowledged()

    def _hears(self, event):
        if not self.each.ended.is_set():
            if isinstance(event, Delivered):
                self.unsettled.add(event.delivery._tag)
            elif isinstance(event, Confirmed):
                for number in event.numbers:
                    del self._unconfirmed[number]
            self.each.handle(event)
            self.connection.pulse()

    # --- the broker's side

    def _arrives(self, number, message, mandatory):
        if not self.gone:
            self.connection.broker.takes(self, number, message, mandatory=mandatory)

    def returns(self, number, message):
        """Give a mandatory message back, and confirm it."""
        error = NoRoute(312, "NO_ROUTE", self.connection.place)
        self._later("down", partial(self._hears, MessageReturned(self, number, error)))
        self.confirms(number, accepted=True)
        assert message.message_id

    def confirms(self, number, *, accepted):
        """Confirm, or refuse, a message."""
        if not self.gone:
            self._later("down", partial(self._hears, Confirmed(self, (number,), accepted)))

    def delivers(self, queue, held):
        """Deliver a message."""
        tag = next(self._tags)
        self.held[tag] = queue, held
        delivery = Delivery(self, tag, held.message, redelivered=held.redelivered)
        self._later("down", partial(self._hears, Delivered(self, delivery)))


class SimConnection:
    """Stands for `BrokerConnection`."""

    def __init__(self, broker, peer, settings, place):
        self.broker, self.peer, self.settings, self.place = broker, peer, settings, place
        self.lost = trio.Event()
        self.error = None
        self.changed = trio.Event()
        self.body = trio.CancelScope()
        self.channels = []

    @property
    def is_open(self):
        """True until the connection has ended."""
        return not self.lost.is_set()

    @property
    def blocked(self):
        """The broker's reason while it takes no messages."""
        return "memory" if self.broker.blocked else None

    backlogged = False

    def pulse(self):
        """Have waiting publishers look again."""
        self.changed.set()
        self.changed = trio.Event()

    def end(self, error):
        """The client's side knows that the connection is lost."""
        if self.is_open:
            self.error = error
            self.lost.set()
            for channel in self.channels:
                channel.each.end(error)
            self.pulse()
            self.body.cancel()

    def check(self):
        """Raise the error of a connection that is lost."""
        if not self.is_open:
            raise BrokerConnectionLost("lost")

    async def declare(self, topology):
        """Declare exchanges, queues and bindings; the state of each queue that is kept."""
        await trio.sleep(self.broker.delay())
        self.check()
        self.broker.declare(topology, self)
        queues = self.broker.queues
        return {
            one.name: QueueState(one.name, len(queues[one.name]), len(self.broker.consumers[one.name]))
            for one in topology.queues
            if one.name in queues
        }

    @asynccontextmanager
    async def _channel(self, make):
        self.check()
        channel = SimChannel(self)
        self.channels.append(channel)
        channel.each = each = make(self, channel)
        await trio.sleep(self.broker.delay())
        self.check()
        try:
            yield each
        finally:
            each.end(None)
            channel._later("up", partial(self.broker.forget, channel))

    @asynccontextmanager
    async def publisher(self, window=64):
        """Open a channel for publishing."""
        async with self._channel(partial(Publisher, window=window)) as publisher:
            yield publisher
            with trio.move_on_after(self.settings.close_timeout):
                await publisher.flush()

    publish = BrokerConnection.publish

    @asynccontextmanager
    async def consume(self, queue, *, prefetch=10, **_more):
        """Consume a queue."""
        async with self._channel(partial(Consumer, queue=queue, prefetch=prefetch)) as consumer:
            if queue not in self.broker.queues:
                raise EntityNotFound(404, f"no queue {queue}", self.place)
            self.broker.consumers[queue].append((consumer.channel, prefetch))
            self.broker.pump(queue)
            yield consumer


class SimBroker:
    """The broker. `hard`, from 0 to 1, is how much goes wrong; `chance` is a random.Random."""

    def __init__(self, chance, hard):
        self.chance, self.hard = chance, hard
        self.timetable = Timetable()
        self.up = True
        self.blocked = False
        self.queues = {}
        self.most = {}
        """By queue that drops its oldest messages: how many it keeps."""
        self.owners = {}
        """By exclusive queue: its connection."""
        self.bindings = set()
        self.consumers = defaultdict(list)
        self.connections = []
        self.peers = {}
        """By the name that a client gives its connection."""
        self.routed = {}
        """By exchange and routing key: the queues that took the newest message."""
        self.confirmed = set()
        """The bodies that were ever confirmed."""
        self.figures = defaultdict(int)

    def delay(self):
        """Seconds of one way, or of one write."""
        slow = self.chance.random() < 0.05 * self.hard
        return self.chance.choice((0.3, 2.0, 8.0)) if slow else self.chance.choice((0.001, 0.002, 0.02))

    # --- connections

    @asynccontextmanager
    async def open_connection(self, address, settings=None, *, name="hearth"):
        """See `hearth.actors.bridges.amqp.connection.open_connection`."""
        await trio.sleep(self.delay())
        peer = self.peers[name]
        if not self.up or peer.dead:
            raise BrokerUnreachable(f"cannot connect to {address.place}: no process listens on that port")
        connection = SimConnection(self, peer, settings, address.place)
        self.connections.append(connection)
        try:
            with connection.body:
                yield connection
        finally:
            self.loses(connection, at_once=True)
            # As closing a socket does: a cancelled loop ends with its cancellation, and not with the loss.
            await trio.lowlevel.checkpoint()
        if connection.error is not None:
            raise connection.error

    def loses(self, connection, *, at_once=False):
        """A connection ends for its client; the broker knows it later, and what was on its way arrives or not."""
        connection.end(BrokerConnectionLost("cut"))
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        later = 0.0 if at_once else self.chance.choice((0.0, 0.001, 0.02, 1.0, 20.0))
        for channel in connection.channels:
            self.timetable.at(trio.current_time() + later, partial(self.forget, channel))
        self.timetable.at(trio.current_time() + later, partial(self._disown, connection))

    def forget(self, channel):
        """A channel has ended: what it had not acknowledged goes back to the head of its queue."""
        channel.gone = True
        for tag, (queue, held) in sorted(channel.held.items(), reverse=True):
            del channel.held[tag]
            if queue in self.queues:
                self._gives_back(queue, held)
                self.figures["redelivered"] += 1
        for queue, consumers in self.consumers.items():
            consumers[:] = [one for one in consumers if one[0] is not channel]
            self.pump(queue)

    def _gives_back(self, queue, held):
        """Put a message back to the head of its queue."""
        held.redelivered = True
        self.queues[queue].appendleft(held)
        self._drops(queue)

    def _drops(self, queue):
        """Drop the oldest messages of a queue that has too many."""
        while len(self.queues[queue]) > self.most.get(queue, math.inf):
            self.queues[queue].popleft()
            self.figures["replaced by a newer one"] += 1

    def _disown(self, connection):
        """Delete the queues that a connection had for itself."""
        for queue in [one for one, owner in self.owners.items() if owner is connection]:
            del self.queues[queue], self.owners[queue]

    def kill(self, *, wiped=False):
        """Kill the broker: connections and unconfirmed messages are gone; `wiped`: everything is."""
        self.up, self.blocked = False, False
        for connection in list(self.connections):
            self.connections.remove(connection)
            connection.end(BrokerConnectionLost("the broker was killed"))
            for channel in connection.channels:
                self.forget(channel)
        for connection in list(self.owners.values()):
            self._disown(connection)
        for each in list(self.consumers.values()):
            for channel, _ in list(each):
                self.forget(channel)
        for queue, messages in self.queues.items():
            kept = deque(one for one in messages if one.safe or self.chance.random() < 0.5)
            self.figures["unconfirmed, and lost"] += len(messages) - len(kept)
            self.queues[queue] = kept
        if wiped:
            self.queues, self.bindings = {}, set()

    def block(self, *, blocked):
        """Block those that publish, or let them go on."""
        self.blocked = blocked
        for connection in self.connections:
            connection.pulse()

    # --- queues

    def declare(self, topology, connection):
        """Make what there is not; streams are not kept."""
        for queue in topology.queues:
            if self.owners.get(queue.name, connection) is not connection:
                raise EntityLocked(405, f"queue {queue.name} is locked", connection.place)
            if queue.exclusive:
                self.owners[queue.name] = connection
            if queue.arguments.get("x-queue-type") != "stream":
                self.queues.setdefault(queue.name, deque())
                if queue.arguments.get("x-overflow") != "reject-publish" and "x-max-length" in queue.arguments:
                    self.most[queue.name] = queue.arguments["x-max-length"]
        self.bindings |= {(one.exchange, one.routing_key, one.queue) for one in topology.bindings}

    def _routes(self, message):
        for exchange, key, queue in sorted(self.bindings):
            fits = message.routing_key == key or (
                key.endswith(".#") and message.routing_key.startswith(key.removesuffix("#"))
            )
            if exchange == message.exchange and fits and queue in self.queues:
                yield queue

    def takes(self, channel, number, message, *, mandatory):
        """A message has arrived."""
        queues = self.routed[message.exchange, message.routing_key] = list(self._routes(message))
        if mandatory and not queues:
            channel.returns(number, message)
            return
        if self.chance.random() < 0.03 * self.hard:
            self.figures["refused"] += 1
            channel.confirms(number, accepted=False)
            return
        expires = math.inf if message.expiration is None else trio.current_time() + int(message.expiration) / 1000
        copies = 2 if self.chance.random() < 0.05 * self.hard else 1
        self.figures["taken twice"] += copies - 1
        taken = [(queue, QueuedMessage(message, expires)) for queue in queues for _ in range(copies)]
        for queue, held in taken:
            self.queues[queue].append(held)
            self.pump(queue)
            self._drops(queue)
        self.timetable.at(trio.current_time() + self.delay(), partial(self._confirm, channel, number, message, taken))

    def _confirm(self, channel, number, message, taken):
        if channel.gone:
            return
        for _, held in taken:
            held.safe = True
        self.confirmed.add(message.body)
        channel.confirms(number, accepted=True)

    def pump(self, queue):
        """Deliver what consumers have room for."""
        messages = self.queues.get(queue)
        for channel, prefetch in self.consumers[queue]:
            while messages and len(channel.held) < prefetch:
                held = messages.popleft()
                if held.expires <= trio.current_time():
                    self.figures["expired"] += 1
                else:
                    channel.delivers(queue, held)

    def settled(self, channel, tag, *, requeue):
        """A delivery was acknowledged, or given back."""
        queue, held = channel.held.pop(tag, (None, None))
        if queue is None or channel.gone:
            return
        if requeue:
            self._gives_back(queue, held)
        self.pump(queue)
