"""hearth's own caller over a real broker: orders, events, time limits, halts, the registry of devices."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

from hearth.actors.bridges.amqp.connection import open_connection
from hearth.amqp.messages import AmqpMessage
from hearth.amqp.topology import Queue, Topology
from hearth.fleet.client import FleetClient
from hearth.fleet.order_store import ENDED, OrderStore
from hearth.hcp.messages import TaskSubmit

pytestmark = pytest.mark.slow
BOUND = 60


@asynccontextmanager
async def calling(rabbitmq, caller, path=":memory:", *, bound=BOUND, **more):
    """A client that runs."""
    order_store = OrderStore(path)
    client = FleetClient(more.pop("address", None) or rabbitmq.address(caller), caller, order_store, **more)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            with trio.fail_after(bound):
                await client.connected()
                yield client
            nursery.cancel_scope.cancel()
    finally:
        order_store.close()


def job(caller, capability, inputs):
    """What is asked for."""
    return TaskSubmit(capability=capability, caller_id=caller, intent="a test", inputs=inputs)


async def ended(client):
    """Wait until all orders have ended; return them."""
    while True:
        orders = await client.orders()
        if all(one.state in ENDED for one in orders):
            return orders
        await client.changed()


async def test_an_order_is_done_and_its_events_are_in_the_order_store(rabbitmq, device, name) -> None:
    caller = f"call-{name}"
    async with calling(rabbitmq, caller) as client:
        await client.submit([device.id], job(caller, "marks", device.inputs("one")), within_s=60)
        (order,) = await ended(client)
        assert (order.state, order.result["outputs"]) == ("COMPLETED", {"marks": 1})
        events = client.order_store.events(order.session_id)
        assert [one["payload"]["sequence"] for one in events] == list(range(1, order.sequence + 1))
        assert client.duplicates == client.foreign == 0
    assert device.made() == ["one"]


async def test_the_devices_are_those_that_announced_themselves(rabbitmq, device, name) -> None:
    async with calling(rabbitmq, f"call-{name}") as client:
        while device.id not in (found := {one.device: one for one in await client.devices()}):  # noqa: ASYNC110
            await trio.sleep(0.05)
        assert found[device.id].labels["board"] == "sim"


async def test_a_halt_of_the_fleet_reaches_a_device_and_its_reset_too(rabbitmq, device, name) -> None:
    async with calling(rabbitmq, f"call-{name}") as client:
        await client.halt("smoke in lab 3")
        peer = device.peer()
        device.until(lambda: peer.health()["halt"]["halted"])
        assert peer.health()["halt"]["reason"] == "the fleet: smoke in lab 3"
        # A reset that comes in the stop sequence is refused, and not repeated.
        device.until(lambda: not peer.health()["halt"]["stopping"])
        await client.reset()
        device.until(lambda: not peer.health()["halt"]["halted"])


@pytest.mark.proof
async def test_a_stream_that_comes_in_chunks_beyond_the_prefetch_is_read_whole(rabbitmq, name) -> None:
    stream = f"stream-{name}"
    async with open_connection(rabbitmq.address()) as connection:
        await connection.declare(Topology((), (Queue(stream, arguments={"x-queue-type": "stream"}),)))
        async with connection.publisher(window=1000) as publisher:
            sent = [
                await publisher.send(AmqpMessage(exchange="", routing_key=stream, body=b"%d" % n, message_id=str(n)))
                for n in range(3000)
            ]
            for one in sent:
                await one.wait()
        arguments = {"x-stream-offset": "first"}
        async with connection.consume(stream, prefetch=10, arguments=arguments) as consumer:
            for n in range(3000):
                delivery = await consumer.receive()
                assert delivery.message.body == b"%d" % n
                delivery.ack()
