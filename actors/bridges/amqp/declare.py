"""Declaring a topology with the permissions that there are."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hearth.amqp.errors import AccessRefused
from hearth.amqp.topology import Topology

if TYPE_CHECKING:
    from hearth.actors.bridges.amqp.connection import BrokerConnection
    from hearth.amqp.topology import QueueState


async def declare_as_allowed(connection: BrokerConnection, topology: Topology) -> dict[str, QueueState]:
    """Declare a topology, without what this user may not declare: that is the operator's then.

    Returns the state of each queue by its name. Raises BrokerRefusal. An enrolled device may declare its own queues
    only (`hearth.fleet.enrolment`).
    """
    # Each declaration takes a channel: all at once, if that is allowed.
    with suppress(AccessRefused):
        return await connection.declare(topology)
    for exchange in topology.exchanges:
        with suppress(AccessRefused):
            await connection.declare(Topology((exchange,)))
    states = await connection.declare(Topology((), topology.queues))
    for binding in topology.bindings:
        with suppress(AccessRefused):
            await connection.declare(Topology((), (), (binding,)))
    return states
