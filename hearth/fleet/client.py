"""The caller of a fleet: sends the stored orders until each has an answer, and follows the sessions that they begin.

Theory of operation. Everything that must survive is in the order store (`hearth.fleet.order_store`); this client holds
a connection, and what it heard since it has one. Three tasks run on each connection:

- *listening*: takes what has arrived, puts it into the order store in one transaction, and only then acknowledges it
  (L1, ACK Strategy). For a gap it asks the device for the missing messages.
- *sending*: publishes each order that has no answer, again every `RETRY_S`, under its one `message_id`. An order with a
  `not_after` needs a fresh tick of its device (`hearth.hcp.l1`, Late orders), so it goes out only while its device is
  connected. One that never went out ends as "NOT SENT" when its time is over. One that did is sent on, although it is
  late by then: the device answers what became of it, and never begins it.
- *asking*: a session that has been quiet for long is asked for what may be missing. A broker that was wiped may have
  lost the last message, after which no gap shows.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
import trio
from attrs import define, field

from hearth.actors.bridges.amqp.connection import BrokerSettings, stay_connected
from hearth.actors.bridges.amqp.declare import declare_as_allowed
from hearth.amqp.errors import (
    AccessRefused,
    AmqpError,
    BrokerRefusal,
    EntityNotFound,
    NoRoute,
    PreconditionFailed,
    PublishNacked,
)
from hearth.fleet.order_store import FleetOrder, OrderStore, TakenMessages
from hearth.fleet.selectors import FleetDevice
from hearth.hcp import l1
from hearth.hcp.codec import message as message_of, write_message
from hearth.hcp.messages import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hearth.actors.bridges.amqp.connection import BrokerConnection, Confirmation, LinkState, Publisher
    from hearth.amqp.address import BrokerAddress
    from hearth.amqp.channel import Delivery
    from hearth.amqp.messages import AmqpMessage
    from hearth.hcp.messages import TaskSubmit

log = logging.getLogger("hearth.fleet")

RETRY_S: Final = 5.0
"""Seconds without an answer after which a message is sent again."""
HALT_RETRY_S: Final = 1.0
"""Seconds until a halt, or a reset, that was not confirmed is published again."""
TICK_S: Final = 10.0
"""Seconds for which a device's tick is used for further orders."""
QUIET_S: Final = 15.0
"""Seconds without a message of a session after which its device is asked; doubled each time."""
LONGEST_QUIET_S: Final = 300.0
MOST_DUE: Final = 256
"""Orders that are published at once."""

T = TypeVar("T")


@define(eq=False)
class FleetClient:
    """A caller; `run` serves it. `on_message` is called with each new message, after it is in the order store."""

    address: BrokerAddress
    caller: str
    order_store: OrderStore
    on_message: Callable[[dict[str, Any]], None] = field(default=lambda _message: None, kw_only=True)
    prefetch: int = field(default=50, kw_only=True)
    settings: BrokerSettings = field(factory=BrokerSettings, kw_only=True)
    clock: Callable[[], float] = field(default=time.time, kw_only=True)
    link: LinkState | None = field(default=None, init=False)
    duplicates: int = field(default=0, init=False)
    """Messages that were dropped because the order store had them."""
    foreign: int = field(default=0, init=False)
    """Messages that belong to no order, or do not come from its device."""
    _connection: BrokerConnection | None = field(default=None, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _due: trio.Event = field(factory=trio.Event, init=False)
    _limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _ticks: dict[str, tuple[l1.Tick, float]] = field(factory=dict, init=False)
    """By device: its tick, and when it came, on Trio's clock."""
    _asked: dict[str, float] = field(factory=dict, init=False)
    """By device or message id: when it was last sent, on Trio's clock."""
    _heard: dict[str, tuple[float, float]] = field(factory=dict, init=False)
    """By session: when it was last heard of, or asked about, and for how long it may be quiet."""

    @property
    def user(self) -> str:
        """The user at the broker."""
        return self.address.user or self.caller

    async def _order_store(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        """Use the order store in a thread: its commits are synced. One at a time, and never left half-way."""
        # Not abandoned: a cancelled caller waits for the commit.
        return await trio.to_thread.run_sync(partial(work, *args, **named), limiter=self._limiter)

    async def submit(self, devices: Iterable[str], submit: TaskSubmit, *, within_s: float | None) -> list[str]:
        """Order a job from each device; return the message ids. They are stored, and go out as soon as possible.

        `within_s`: seconds from now after which it must not begin any more; None: at any time, which a device accepts
        only of a job that moves nothing.
        """
        now = self.clock()
        orders = []
        for device in devices:
            document = write_message(message_of(submit, session_id=None, now=now))
            not_after = None if within_s is None else now + within_s
            orders.append(
                FleetOrder(
                    message_id=document["message_id"],
                    device=device,
                    document=document,
                    not_after=not_after,
                    made_at=now,
                )
            )
        await self._order_store(self.order_store.add, orders)
        self._due.set()
        self._notify()
        return [one.message_id for one in orders]

    async def orders(self, *, open_only: bool = False) -> list[FleetOrder]:
        """Return the orders of the order store, the oldest first."""
        return await self._order_store(self.order_store.orders, open_only=open_only)

    async def changed(self) -> None:
        """Wait until an order, or the connection, has changed."""
        await self._changed.wait()

    async def connected(self) -> BrokerConnection:
        """Wait until there is a connection, and return it."""
        while self._connection is None:
            await self._changed.wait()
        return self._connection

    @property
    def hindered(self) -> bool:
        """True while the broker cannot be reached, or takes no messages."""
        return self._connection is None or self._connection.blocked is not None

    @property
    def standing(self) -> str:
        """What stands between this caller and an answer of the broker, as a sentence."""
        connection, place = self._connection, self.address.place
        if connection is None:
            why = None if self.link is None else self.link.error
            return f"{why}; trying again" if why is not None else f"{place} has not answered yet"
        if connection.blocked is not None:
            return f"{place} is connected and takes no messages: it is blocked ({connection.blocked})"
        return f"{place} is connected and has not answered yet"

    async def abort(self, order: FleetOrder, reason: str) -> None:
        """Ask a device to abort the session of an order."""
        await self._tell(order.device, "abort", {"reason": reason}, session_id=order.session_id)

    async def halt(self, reason: str) -> None:
        """Halt every device: those that are connected now, the others when they connect.

        Returns once the broker has it for each; until then it is published again. Raises AccessRefused, NoRoute if
        there is no device, and EntityNotFound or PreconditionFailed if the broker is not set up for it.
        """
        await self._tell_fleet({"reason": reason})

    async def reset(self) -> None:
        """End the fleet's halt, on every device that it halted. Returns, and raises, as `halt` does."""
        await self._tell_fleet({"reset": True})

    async def _tell_fleet(self, payload: dict[str, Any]) -> None:
        document = l1.envelope(l1.HALT, payload, new_id(), self.clock())
        while True:
            connection = await self.connected()
            try:
                return await connection.publish(l1.fleet_message(document, "halt", self.user), mandatory=True)
            except (AccessRefused, EntityNotFound, NoRoute, PreconditionFailed):
                raise
            except AmqpError as error:
                # Where it has arrived, another one changes nothing.
                log.warning("not every device has the message yet, it is published again: %s", error)
                await trio.sleep(HALT_RETRY_S)

    async def devices(self) -> list[FleetDevice]:
        """Return the devices, as each announced itself last. Raises AmqpError."""
        connection = await self.connected()
        with suppress(BrokerRefusal):
            await connection.declare(l1.cards_topology())
        # The stream has no end: it is read up to a message of our own.
        mark = l1.envelope("hearth.mark", {}, new_id(), self.clock())
        await connection.publish(l1.fleet_message(mark, f"card._.{self.caller}", self.user))
        found: dict[str, FleetDevice] = {}
        async with connection.consume(l1.CARDS, prefetch=500, arguments={"x-stream-offset": "first"}) as consumer:
            async for delivery in consumer:
                delivery.ack()
                if delivery.message.message_id == mark["message_id"]:
                    break
                document = _read(delivery)
                device = None if document is None else FleetDevice.read(document, delivery.message.user_id)
                if device is not None:
                    found[device.device] = device
        return list(found.values())

    async def run(self) -> None:
        """Stay connected until cancelled."""
        await stay_connected(
            self.address,
            self._serve,
            settings=self.settings,
            name=f"hearth fleet {self.caller}",
            on_change=self._link_changed,
        )

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _link_changed(self, link: LinkState) -> None:
        self.link = link
        self._notify()

    async def _serve(self, connection: BrokerConnection) -> None:
        await declare_as_allowed(connection, l1.caller_topology(self.caller))
        async with trio.open_nursery() as nursery:
            self._asked.clear()
            self._heard.clear()
            self._connection = connection
            self._notify()
            try:
                nursery.start_soon(self._send, connection)
                nursery.start_soon(self._ask)
                await self._listen(connection)
            finally:
                self._connection = None
                self._notify()

    async def _listen(self, connection: BrokerConnection) -> None:
        arrive, arrived = trio.open_memory_channel["Delivery"](self.prefetch)
        queue = l1.event_queue(self.caller)
        async with connection.consume(queue, prefetch=self.prefetch) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(self._process_all, arrived)
            async for delivery in consumer:
                await arrive.send(delivery)

    async def _process_all(self, arrived: trio.MemoryReceiveChannel[Delivery]) -> None:
        while True:
            deliveries = [await arrived.receive()]
            with suppress(trio.WouldBlock):
                while True:
                    deliveries.append(arrived.receive_nowait())
            await self._process(deliveries)

    async def _process(self, deliveries: list[Delivery]) -> None:
        """Store what has arrived, then acknowledge it."""
        messages = []
        for delivery in deliveries:
            document, user = _read(delivery), delivery.message.user_id
            if document is None:
                self.foreign += 1
            elif document.get("type") == l1.CLOCK:
                self._take_tick(document, user)
            else:
                messages.append((document, user))
        taken = await self._order_store(self.order_store.take, messages) if messages else TakenMessages()
        for delivery in deliveries:
            delivery.ack()
        self.duplicates += taken.duplicates
        self.foreign += taken.foreign
        now = trio.current_time()
        for message in taken.new:
            if message["session_id"] is not None:
                self._heard[message["session_id"]] = now, QUIET_S
            self.on_message(message)
        for session_id, sequence in taken.gaps.items():
            user = next(user for message, user in messages if message.get("session_id") == session_id)
            await self._ask_for(str(user), session_id, sequence)
        self._notify()

    def _take_tick(self, document: dict[str, Any], user: str | None) -> None:
        payload: Any = document.get("payload")
        boot, at_ms = (payload.get("boot"), payload.get("at_ms")) if isinstance(payload, dict) else (None, None)
        if user is not None and isinstance(boot, str) and type(at_ms) is int:
            self._ticks[user] = l1.Tick(boot=boot, at_ms=at_ms), trio.current_time()
            self._due.set()

    async def _send(self, connection: BrokerConnection) -> None:
        """Publish what is due, for ever; on a new channel after a refusal: `BrokerConnection.publish` says why."""
        while True:
            async with connection.publisher() as publisher:
                while not publisher.refused:
                    self._due = trio.Event()
                    orders = await self._order_store(self.order_store.orders, open_only=True)
                    unanswered = [one for one in orders if one.session_id is None]
                    more = await self._send_due(publisher, unanswered)
                    if not more:
                        with trio.move_on_after(RETRY_S / 5 if unanswered else float("inf")):
                            await self._due.wait()

    async def _send_due(self, publisher: Publisher, orders: list[FleetOrder]) -> bool:
        """Publish the orders that are due, and ask for ticks; return True if there are more."""
        due: list[tuple[FleetOrder, AmqpMessage]] = []
        asked: list[Confirmation] = []
        for order in orders:
            now = trio.current_time()
            if await self._expired(order) or now - self._asked.get(order.message_id, -RETRY_S) < RETRY_S:
                continue
            tick, came = self._ticks.get(order.device, (None, -TICK_S))
            if order.not_after is not None and now - came >= TICK_S:
                if self._may_ask(order.device):
                    asked.append(await self._ask_tick(publisher, order.device))
                continue
            self._asked[order.message_id] = now
            due.append((order, self._message(order, tick, now - came)))
            if len(due) >= MOST_DUE:
                break
        if first := [order.message_id for order, _ in due if not order.published]:
            await self._order_store(self.order_store.mark_published, first)
        sent = [(order, await publisher.send(message, mandatory=True)) for order, message in due]
        for order, confirmation in sent:
            await self._note_sent(order, confirmation)
        for confirmation in asked:
            with suppress(PublishNacked):
                await confirmation.wait()
        return len(due) >= MOST_DUE

    async def _expired(self, order: FleetOrder) -> bool:
        """Return True for an order whose time ended before it was published, and note that."""
        if order.not_after is None or order.published or self.clock() <= order.not_after:
            return False
        said = order.said or "the device was not there in time"
        await self._order_store(self.order_store.mark, order, published=False, said=said, state="NOT SENT")
        self._notify()
        return True

    async def _ask_tick(self, publisher: Publisher, device: str) -> Confirmation:
        """Ask a device for the tick of its clock, which an order with a time needs."""
        ask = l1.envelope(l1.CLOCK, {"caller_id": self.caller}, new_id(), self.clock())
        return await publisher.send(l1.command_message(ask, device, self.user, expiration=str(int(RETRY_S * 1000))))

    def _may_ask(self, question: str) -> bool:
        """Return True once in `RETRY_S` for each question."""
        now = trio.current_time()
        if now - self._asked.get(question, -RETRY_S) < RETRY_S:
            return False
        self._asked[question] = now
        return True

    async def _note_sent(self, order: FleetOrder, confirmation: Confirmation) -> None:
        try:
            await confirmation.wait()
        except NoRoute:
            await self._refused(order, "no device of this id has ever been connected")
        except PublishNacked:
            await self._refused(order, "the device's queue is full, or has no leader")

    async def _refused(self, order: FleetOrder, why: str) -> None:
        """Note that this attempt has not reached a queue."""
        await self._order_store(self.order_store.mark, order, published=order.published, said=why)
        self._notify()

    def _message(self, order: FleetOrder, tick: l1.Tick | None, age_s: float) -> AmqpMessage:
        """Return the message of an order; `age_s` is how long ago the tick came."""
        if order.not_after is None or tick is None:
            return l1.command_message(dict(order.document), order.device, self.user)
        left_s = order.not_after - self.clock()
        # The tick was made before it came: counted from its coming, the device's limit is never too late.
        terms = l1.OrderTime(
            not_after=datetime.fromtimestamp(order.not_after, UTC),
            tick=tick,
            valid_ms=int((left_s + age_s) * 1000),
            made_ms=int((age_s - (self.clock() - order.made_at)) * 1000),
        )
        # A late order stays in the queue for its answer.
        more = {"expiration": str(int(left_s * 1000) + 1)} if left_s > 0 else {}
        return l1.command_message(dict(order.document), order.device, self.user, headers=terms.headers(), **more)

    async def _ask(self) -> None:
        """Ask for messages of sessions that have been quiet for long."""
        while True:
            orders = await self._order_store(self.order_store.orders, open_only=True)
            now = trio.current_time()
            for order in orders:
                if order.session_id is None:
                    continue
                heard, quiet_s = self._heard.setdefault(order.session_id, (now, QUIET_S))
                if now - heard >= quiet_s:
                    self._heard[order.session_id] = now, min(2 * quiet_s, LONGEST_QUIET_S)
                    await self._ask_for(order.device, order.session_id, order.sequence + 1)
            await trio.sleep(QUIET_S / 5)

    async def _ask_for(self, device: str, session_id: str, sequence: int) -> None:
        """Ask a device for a session's messages from a sequence on; at most once in `RETRY_S`."""
        if self._may_ask(f"{session_id} {sequence}"):
            await self._tell(device, l1.REPLAY, {"from_sequence": sequence}, session_id=session_id)

    async def _tell(self, device: str, type_: str, payload: dict[str, Any], *, session_id: str | None = None) -> None:
        told = {**payload, "caller_id": self.caller} if type_ == l1.REPLAY else payload
        document = l1.envelope(type_, told, new_id(), self.clock(), session_id)
        connection = await self.connected()
        await connection.publish(l1.command_message(document, device, self.user))


def _read(delivery: Delivery) -> dict[str, Any] | None:
    try:
        document = orjson.loads(delivery.message.body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
