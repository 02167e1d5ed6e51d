"""The uplink: takes orders from a broker and publishes what the job store has for their callers (HCP L1).

The device keeps the record, and the broker relays. Theory of operation, for one order:

1. The broker delivers it. The job server deduplicates it by `message_id`, checks it (policy, gate, time), audits and
   stores it, synced.
2. Only then it is acknowledged. Up to here a crash of the device, or of the connection, makes the broker deliver it
   again; from here on the job store knows it, and the same order again gets the same answer.
3. The answer and all events are lines of the session in the job store. They are also the outbox: each session has the
   number of its lines that the broker has confirmed (`published`). A line is published only after its commit, and
   counts as published only after its confirmation. A crash in between publishes it again; the caller drops it by
   `sequence`.

A refusal has no session. Its order is acknowledged after the refusal was confirmed: a crash before that makes the
broker deliver the order again, and it is refused again. A refusal over a broker is final and stored, also one whose
reason may not hold later: a copy of the order may still be in the queue, and must not run after its caller was told no.
A process that ends refuses nothing: what has no answer by then stays in the queue for the next one.

`hearth.replay` sets a session's `published` back. So it needs no queue, survives a crash, and keeps the order.

The outbox is bounded by `outbox_bytes`: past that, new orders are refused (`resource_unavailable`) until the broker has
taken enough. Running jobs go on, each within the limit of its own log. Nothing that waits is dropped, but by
`[hcp] retention_s`.

The uplink dials out, and nothing here is needed to stop: deadman, limits and halt are local.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import define, field

from hearth._util.ids import boot_id
from hearth.actors.agentcard import card_of
from hearth.actors.bridges.amqp.connection import BrokerSettings, stay_connected
from hearth.actors.bridges.amqp.declare import declare_as_allowed
from hearth.actors.bridges.amqp.halts import HELD, FleetHalts
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.actors.supervisor import contain
from hearth.amqp.errors import AmqpError, BrokerRefusal, DeliveryLost
from hearth.hcp import l1
from hearth.hcp.codec import dump, message as message_of, message_id_of
from hearth.hcp.messages import Rejection, new_id
from hearth.hcp.rejections import no_policy, unknown_session
from hearth.hcp.safety import allowance
from hearth.policy.principal import from_amqp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.actors.bridges.amqp.connection import BrokerConnection, LinkState, Publisher
    from hearth.actors.bridges.hcp.service import HcpJobServer
    from hearth.actors.bridges.hcp.store import OutboxLine
    from hearth.actors.events import History
    from hearth.actors.runtime import Runtime
    from hearth.amqp.address import BrokerAddress
    from hearth.amqp.channel import Delivery
    from hearth.config.amqp import AmqpConfig
    from hearth.policy.principal import Principal

WINDOW: Final = 64
"""Messages that are published before earlier ones were confirmed."""
BATCH: Final = 1024
"""Messages of the outbox that are read at once."""
EACH: Final = 256
"""Those of one session among them, at most."""
COUNT_S: Final = 0.5
"""Seconds between two counts of the outbox while it is not empty."""
ANNOUNCE_S: Final = 600.0
"""Seconds between two announcements of an unchanged device."""
NO_STREAM: Final = 506
"""How RabbitMQ ends a connection for a message to a stream that it cannot reach; orders must not wait for that."""
AGAIN_S: Final = 30.0
"""Seconds from a crash of the uplink to the next attempt."""
RETRY_S: Final = 1.0
"""Seconds until a message that the broker would not take is published again."""

log = logging.getLogger("hearth.amqp")


def tick_now() -> l1.Tick:
    """Return the time since the boot, suspended time included: no setting of the wall clock changes it."""
    return l1.Tick(boot=boot_id(), at_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


class AmqpHcpRequest:
    """A message from the broker's queue. Implements `messages.HcpRequest`."""

    __slots__ = ("_proven", "_uplink", "caller", "delivery", "document", "principal", "time")

    def __init__(self, uplink: Uplink, delivery: Delivery, document: Mapping[str, Any]) -> None:
        self._uplink = uplink
        self.time = l1.OrderTime()
        self.document = document
        self.delivery = delivery
        self.principal = from_amqp(delivery.message.user_id or "-")
        payload = document.get("payload")
        named = payload.get("caller_id") if isinstance(payload, dict) else None
        self.caller = named if isinstance(named, str) and l1.is_id(named) else self.principal.amqp_user or "-"
        """The caller whose queue gets the answer."""
        self._proven = self.caller == self.principal.amqp_user or uplink.may_speak_for(self.principal, self.caller)

    def check_time(self, *, moves: bool) -> None:
        """See HcpRequest. Also refuses new orders while the outbox is full."""
        self._uplink.check_room()
        now = datetime.fromtimestamp(self._uplink.clock(), UTC)
        self.time.check(now, self._uplink.tick(), moves=moves, reset=self._uplink.reset_at)

    def answer(self, line: bytes) -> None:
        """See HcpRequest. Acknowledged once the broker has confirmed the answer."""
        if not self._proven:
            # The named caller could take it for the answer to a message of its own with the same id.
            told = orjson.loads(line)
            told["payload"].pop("in_reply_to", None)
            line = orjson.dumps(told)
        self._uplink.reply(self, line)

    def follow(self, message_log: History, from_seq: int) -> None:
        """See HcpRequest. The session is stored, so the order may leave the broker; the outbox has the messages."""
        if message_log.last_seq > from_seq:
            # An order that was answered before: its caller may not have had that answer.
            session_id = orjson.loads(message_log.lines(1, 1)[0][0])["session_id"]
            self._uplink.replay(self, session_id, 0)
        else:
            self.done()

    def done(self) -> None:
        """See HcpRequest."""
        with suppress(DeliveryLost):
            self.delivery.ack()

    def reject(self, rejection: Rejection) -> None:
        """Answer with a refusal."""
        payload = rejection.payload(message_id_of(self.document))
        self.answer(dump(message_of(payload, session_id=None, now=self._uplink.clock())))


@define(eq=False)
class Uplink:
    """The uplink of one daemon; `run` serves it."""

    _config: AmqpConfig
    _runtime: Runtime
    _jobs: HcpJobServer
    settings: BrokerSettings = field(factory=BrokerSettings, kw_only=True)
    tick: Any = field(default=tick_now, kw_only=True)
    """Returns the present tick."""
    reset_at: l1.Tick | None = field(default=None, init=False)
    """When a person has last ended a halt, in this run: orders that are older do not begin."""
    address: BrokerAddress = field(init=False)
    device: str = field(init=False)
    """The id of this device."""
    user: str = field(init=False)
    """Its user at the broker."""
    _link: LinkState | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)
    """When the link changed last, in epoch seconds."""
    _waiting: tuple[int, int] = field(default=(0, 0), init=False)
    """Messages in the outbox, and their bytes."""
    published: int = field(default=0, init=False)
    """Messages that the broker has confirmed."""
    taken: int = field(default=0, init=False)
    """Messages that the broker has delivered."""
    reconnects: int = field(default=0, init=False)
    _woken: trio.Event = field(factory=trio.Event, init=False)
    """Set when there may be lines to publish."""
    _running: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _orders: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """Cancelled when no more orders are taken."""
    _stopped: bool = field(default=False, init=False)
    """True once no more orders are taken."""
    _finishing: bool = field(default=False, init=False)
    _taking: bool = field(default=False, init=False)
    """True while there is a connection, with a consumer of the device's queue."""
    _halts: FleetHalts = field(init=False)
    _announce_from: float = field(default=-math.inf, init=False)
    """Announce nothing earlier, in Trio's time."""
    _nursery: trio.Nursery | None = field(default=None, init=False)
    _publisher: Publisher | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        address = self._config.broker()
        assert self._config.id is not None
        self.address, self.device = address, self._config.id
        self.user = address.user or self.device
        self._halts = FleetHalts(self.device, self._runtime.halt, self._allowed)
        self._jobs.services.job_store.on_lines = self._wake
        self._runtime.halt.flag.on_reset.append(self.note_reset)

    @property
    def clock(self) -> Any:
        """Return the runtime's clock, in epoch seconds."""
        return self._runtime.parts.clock

    def status(self) -> dict[str, Any]:
        """Return the state of the uplink, for health, as JSON."""
        link = self._link
        status: dict[str, Any] = {
            "broker": self.address.place,
            "id": self.device,
            "connected": self._taking,
            "outbox": self._waiting[0],
            "outbox_bytes": self._waiting[1],
            "published": self.published,
            "taken": self.taken,
            "reconnects": self.reconnects,
        }
        if link is not None and link.error is not None:
            status["reason"] = str(link.error)
        elif self._halts.held and not self._taking:
            status["reason"] = HELD
        return status

    # --- life -------------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Run it until `finish`, again after a crash: a bug here must end no job and not the daemon."""
        while not self._finishing:
            await contain("the uplink to the broker", self.run, lambda _error: None)
            if not self._finishing:
                await trio.sleep(AGAIN_S)

    async def run(self) -> None:
        """Stay connected until cancelled; after `finish`, until everything that is in the outbox has been published."""
        # A scope is entered once, and this may run again.
        self._running = trio.CancelScope()
        with self._running:
            await stay_connected(
                self.address,
                self._serve,
                settings=self.settings,
                name=f"hearthd {self.device}",
                on_change=self._changed,
            )

    def note_reset(self) -> None:
        """Note that a halt has ended."""
        self.reset_at = self.tick()

    def stop(self) -> None:
        """Take no more orders: those that are in the queue stay there."""
        self._stopped = True
        self._orders.cancel()

    def finish(self) -> None:
        """End `run` as soon as the outbox is empty, or there is no connection; the next start publishes the rest."""
        self._finishing = True
        self._wake()
        if self._link is None or not self._link.connected:
            self._running.cancel()

    def _changed(self, link: LinkState) -> None:
        if link.connected:
            log.info("connected to %s as %s", self.address.place, self.device)
            self.reconnects += self._link is not None
        elif self._link is None or self._link.connected:
            log.warning("%s; hearth goes on, and keeps what is due", link.error or self.address.place)
        if self._link is None or self._link.connected != link.connected:
            if link.connected:
                self._runtime.audit("amqp.connect", broker=self.address.place)
            else:
                self._runtime.audit("amqp.disconnect", broker=self.address.place)
        if isinstance(link.error, BrokerRefusal) and link.error.code == NO_STREAM:
            self._announce_from = trio.current_time() + ANNOUNCE_S
        self._link, self._since = link, self.clock()

    async def _serve(self, connection: BrokerConnection) -> None:
        hears = trio.Event()

        def unreadable(queue: str, reason: str) -> None:
            self._refused("-", reason)
            if queue == l1.halt_queue(self.device):
                hears.set()

        connection.on_rejected = unreadable
        # One that expires before its turn is counted too: then a later order is refused without need.
        queues = await declare_as_allowed(connection, l1.callee_topology(self.device))
        waiting = queues[l1.command_queue(self.device)].messages
        async with connection.publisher(WINDOW) as publisher, trio.open_nursery() as nursery:
            self._publisher, self._nursery = publisher, nursery
            try:
                nursery.start_soon(self._publish_outbox, publisher)
                nursery.start_soon(self._announce, connection)
                nursery.start_soon(self._halts.hear, connection, hears)
                # No order is taken where a halt would not be heard.
                await hears.wait()
                await self._take_orders(connection, waiting)
                await trio.sleep_forever()
            finally:
                self._publisher = self._nursery = None
                self._taking = False

    # --- orders -----------------------------------------------------------------------------------------------------

    async def _take_orders(self, connection: BrokerConnection, waiting: int) -> None:
        """Take the orders of the device's queue; the first `waiting` of them were there before the device."""
        queue = l1.command_queue(self.device)
        self._orders = trio.CancelScope()
        if self._stopped:
            return
        with self._orders:
            async with connection.consume(queue, prefetch=self._config.prefetch) as consumer:
                self._taking = True
                async for delivery in consumer:
                    self.taken += 1
                    self._take(delivery, waited=waiting > 0 or delivery.redelivered)
                    waiting -= 1

    def _take(self, delivery: Delivery, *, waited: bool) -> None:
        """Pass a message on to the job server, or do what it asks for if it is one of hearth's own."""
        try:
            document = l1.read_message(delivery.message.body)
        except ValueError as error:
            # Its sender cannot be answered. Not given back: the broker would deliver it again at once.
            self._refused(delivery.message.user_id or "-", str(error))
            delivery.nack(requeue=False)
            return
        request = AmqpHcpRequest(self, delivery, document)
        try:
            request.time = l1.OrderTime.of(document.get("timestamp"), delivery.message.headers, waited=waited)
        except ValueError as error:
            request.reject(Rejection("invalid_message", str(error), suggestion="see `not_after` in the documentation"))
            return
        kind = document.get("type")
        if kind in (l1.CLOCK, l1.REPLAY):
            if self._allowed(request.principal) is None:
                request.reject(no_policy())
            elif kind == l1.CLOCK:
                self._tell_tick(request)
            else:
                self._read_replay(request)
        else:
            self._jobs.receive(request.principal, request)

    def _refused(self, user: str, reason: str) -> None:
        """Record what is no message, within the bound for refusals."""
        principal = f"amqp:{user}"
        if self._runtime.refusals.admit("hcp.reject", principal, "invalid_message"):
            self._runtime.audit("hcp.reject", principal=principal, reason_code="invalid_message", reason=reason)

    def check_room(self) -> None:
        """Raise Rejection while more waits for the broker than `outbox_bytes`."""
        if self._waiting[1] > self._config.outbox_bytes:
            reason = f"the outbox has {self._waiting[1]} bytes that the broker has not taken yet"
            raise Rejection("resource_unavailable", reason, suggestion="submit it again later under a new message_id")

    def _allowed(self, principal: Principal) -> Any:
        services = self._jobs.services
        return allowance(services.policy, principal, services.registry)

    def may_speak_for(self, principal: Principal, caller: str) -> bool:
        """Return True if a policy entry lets a user's jobs have another caller_id than its own name."""
        allowed = self._allowed(principal)
        return allowed is not None and allowed.caller is None and allowed.rules.allows_caller(caller)

    def _tell_tick(self, request: AmqpHcpRequest) -> None:
        tick = {**self.tick().to_wire(), "in_reply_to": message_id_of(request.document)}
        request.answer(orjson.dumps(l1.envelope(l1.CLOCK, tick, new_id(), self.clock())))

    def _read_replay(self, request: AmqpHcpRequest) -> None:
        payload = request.document.get("payload")
        session_id = request.document.get("session_id")
        sequence = payload.get("from_sequence", 0) if isinstance(payload, dict) else None
        if not isinstance(session_id, str) or type(sequence) is not int:
            reason = "expected a session_id, and /payload/from_sequence as an integer"
            request.reject(Rejection("invalid_message", reason, suggestion="see hearth.replay in the documentation"))
            return
        self.replay(request, session_id, sequence)

    def replay(self, request: AmqpHcpRequest, session_id: str, sequence: int) -> None:
        """Publish a session's messages again from the event `sequence` on, then acknowledge the request."""
        if self._nursery is not None:
            self._nursery.start_soon(self._replay, request, session_id, sequence)

    async def _replay(self, request: AmqpHcpRequest, session_id: str, sequence: int) -> None:
        try:
            found = await self._jobs.services.job_store.rewind(session_id, request.principal.key, sequence)
        except JobStoreError as error:
            request.reject(Rejection("resource_unavailable", str(error), suggestion="try again later"))
            return
        if found:
            request.done()
        else:
            request.reject(unknown_session(session_id))

    def reply(self, request: AmqpHcpRequest, line: bytes) -> None:
        """Publish an answer that no session has, then acknowledge the request."""
        # Without a connection the delivery is lost too: the broker delivers it again. So it does what has no answer
        # when this process ends.
        if self._nursery is not None and self._publisher is not None and not self._stopped:
            self._nursery.start_soon(self._reply, self._publisher, request, line)

    async def _reply(self, publisher: Publisher, request: AmqpHcpRequest, line: bytes) -> None:
        await publisher.publish(l1.event_message(line, request.caller, self.user))
        request.done()

    # --- the outbox ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._woken.set()

    async def _publish_outbox(self, publisher: Publisher) -> None:
        """Publish the outbox in the order of each session, and mark what was confirmed."""
        job_store = self._jobs.services.job_store
        lines: list[OutboxLine] = []
        counted = -COUNT_S
        while True:
            woken = self._woken = trio.Event()
            try:
                lines = await job_store.outbox(BATCH, EACH, lines)
                if not lines:
                    self._waiting = 0, 0
                    if self._finishing:
                        self._running.cancel()
                    await woken.wait()
                    continue
                if trio.current_time() - counted >= COUNT_S:
                    self._waiting = await job_store.outbox_size()
                    counted = trio.current_time()
            except JobStoreError as error:
                log.error("the outbox cannot be read or marked: %s", error)
                await trio.sleep(RETRY_S)
                continue
            sent = [await publisher.send(l1.event_message(one.line, one.caller_id, self.user)) for one in lines]
            for confirmation in sent:
                await confirmation.wait()
            self.published += len(lines)

    # --- the fleet ----------------------------------------------------------------------------------------------------

    async def _announce(self, connection: BrokerConnection) -> None:
        """Announce the device to the fleet, now and from time to time; without the permission, not."""
        await trio.sleep_until(self._announce_from)
        with suppress(BrokerRefusal):
            await connection.declare(l1.cards_topology())
        while True:
            parts = self._runtime.parts
            card = card_of(self._runtime) or {}
            metadata = card.get("metadata", {})
            labels = {name: value for name, value in metadata.items() if isinstance(value, str) and ":" not in name}
            # Taken before the state is read: what changes while this announces is announced next.
            changed = self._runtime.halt.changed
            labels = {"board": parts.board.name, **labels}
            halted = self._runtime.halt.flag.halted
            told = {"id": self.device, "labels": labels, "halted": halted, "agent_card": card}
            told |= {"halted_by": sorted({one["source"] for one in self._runtime.halt.status().get("holds", ())})}
            told |= {"reset_refused": self._halts.refused} if self._halts.refused else {}
            document = l1.envelope(l1.CARD, told, new_id(), self.clock())
            with suppress(AmqpError):
                await connection.publish(l1.fleet_message(document, f"card.{self.device}", self.user))
            with trio.move_on_after(ANNOUNCE_S):
                await changed.wait()
