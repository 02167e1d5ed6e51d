"""Hears the halts of the fleet, and their resets, on a connection to a broker, and obeys the newest (decision 0141).

It refuses what no policy entry permits, and decides nothing else: the halt of this machine does (`actors/bus/halt.py`).

Theory of operation. The broker has a queue for each device, which keeps the newest message only. Messages are obeyed
in their order, and acknowledged when that is done; a newer one replaces one that is not done yet. What has waited for
the device is obeyed before it takes orders: `hears` is set then.

A reset ends the fleet's own holds of the halt, and none that came after it. One that is refused is dropped, and the
next announcement of the device says why. No reset is obeyed twice, since what it finds later is not what its sender
had seen: one that the broker delivers again is dropped too, and so is one that has come over another queue already.

A broker that has not noticed the end of the device's last connection sends messages to that one. When it notices, they
come again: a halt that was missed, or a reset that is older than a halt. So the queue is consumed only once no other
connection consumes it. Then the queue has what was held, and drops it for a newer message.

Until then, and while the queue's node is down, a queue of this connection stands in. What comes there is obeyed, but
may not be all: orders are taken only in the second case, which would else last as long as the node is down.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field

from hearth._util.exceptions import unwrapped
from hearth.actors.bridges.amqp.declare import declare_as_allowed
from hearth.amqp.errors import DeliveryLost, EntityLocked, EntityNotFound
from hearth.errors import RpcError
from hearth.hcp import l1
from hearth.policy.principal import from_amqp

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.actors.bridges.amqp.connection import BrokerConnection
    from hearth.actors.bus.halt import Halt
    from hearth.amqp.channel import Delivery
    from hearth.amqp.topology import Topology
    from hearth.policy.principal import Principal

NODE_AGAIN_S: Final = 30.0
"""Seconds until the queue is tried again whose node was down."""
RETRY_S: Final = 1.0
"""Seconds until a queue that another connection consumes is tried again."""
MOST_IDS: Final = 64
HELD: Final = (
    "another connection hears the halts of this device: its last one, until the broker notices its end, or another "
    "hearthd with the same [amqp] id, which has to be stopped"
)

log = logging.getLogger("hearth.amqp")


@define(eq=False)
class FleetHalts:
    """Hears halts for one device. `allowed(principal)` returns what the policy permits, or None."""

    _device: str
    _halt: Halt
    _allowed: Callable[[Principal], Any]
    held: bool = False
    """True while another connection consumes the queue."""
    refused: str | None = None
    """Why the last message, a reset, was refused; None if it was not."""
    _resets: deque[str] = field(factory=lambda: deque[str](maxlen=MOST_IDS), init=False)
    """The ids of the last resets."""

    async def hear(self, connection: BrokerConnection, hears: trio.Event) -> None:
        """Obey until cancelled; set `hears` once what had waited is done. Raises BrokerRefusal."""
        self.held = False
        while True:
            hears_here, again_s = hears, NODE_AGAIN_S
            try:
                await self._obey_all(connection, l1.halt_topology(self._device), hears)
            except EntityNotFound as error:
                log.warning("a halt that came while this device was away may not be heard before its return: %s", error)
            except EntityLocked:
                hears_here, again_s = trio.Event(), RETRY_S
                if not self.held:
                    self.held = True
                    log.warning("no order is taken yet: %s", HELD)
            with trio.move_on_after(again_s):
                with suppress(EntityLocked):
                    await self._obey_all(connection, l1.live_halt_topology(self._device), hears_here)
                await trio.sleep_forever()

    async def _obey_all(self, connection: BrokerConnection, topology: Topology, hears: trio.Event) -> None:
        """Obey what comes to the queue of this topology.

        Raises EntityNotFound while the queue's node is down, EntityLocked while another connection consumes it.
        """
        (queue,) = topology.queues
        state = (await declare_as_allowed(connection, topology))[queue.name]
        # Only this connection can consume its exclusive queue, where it may still be ending an earlier channel.
        if state.consumers and not queue.exclusive:
            raise EntityLocked(405, f"another connection consumes {queue.name}", connection.place)
        attempt = trio.CancelScope()
        async with (
            unwrapped() as body,
            connection.consume(queue.name, prefetch=2) as consumer,
            trio.open_nursery() as nursery,
            body.watched(),
        ):
            if not state.messages:
                hears.set()
            async for delivery in consumer:
                attempt.cancel()
                attempt = trio.CancelScope()
                nursery.start_soon(self._take, delivery, attempt, hears)

    async def _take(self, delivery: Delivery, attempt: trio.CancelScope, hears: trio.Event) -> None:
        """Obey a halt, or a reset, and acknowledge it: a halt once it is latched, or a newer message comes."""
        with attempt:
            try:
                await self._obey(delivery)
            except (ValueError, RpcError) as error:
                log.warning("a message to the fleet is dropped: %s", error)
            hears.set()
            while not await self._halt.latched():
                pass
        with suppress(DeliveryLost):
            delivery.ack()

    async def _obey(self, delivery: Delivery) -> None:
        """Do what a halt, or a reset, says. Raises ValueError, RpcError."""
        document, principal = l1.read_message(delivery.message.body), from_amqp(delivery.message.user_id or "-")
        payload, message_id = document.get("payload"), str(document.get("message_id"))
        allowed, self.refused = self._allowed(principal), None
        if not isinstance(payload, dict) or allowed is None:
            raise ValueError(f"from {principal.key}, which no policy entry matches, or without a payload")
        if payload.get("reset") is not True:
            reason = f"the fleet: {payload.get('reason') or 'no reason was given'}"
            return self._halt.halt(reason, principal.key, source="fleet")
        if "reset_halt" not in allowed.rights:
            raise ValueError(f"policy {allowed.policy!r} does not give {principal.key} the right reset_halt")
        if delivery.redelivered or message_id in self._resets:
            raise ValueError(f"the reset {message_id} has come before")
        self._resets.append(message_id)
        try:
            await self._halt.reset(principal.key, self._halt.flag.count, source="fleet", message_id=message_id)
        except RpcError as error:
            self.refused = error.message
            self._halt.tell()
            raise
