"""The client against a real RabbitMQ: what each side promises the other, and every refusal by its name."""

from __future__ import annotations

import secrets

import pytest
import trio

from hearth.actors.bridges.amqp.connection import open_connection
from hearth.amqp.messages import AmqpMessage
from hearth.amqp.topology import Binding, Exchange, Queue, Topology

pytestmark = pytest.mark.slow
QUORUM = {"x-queue-type": "quorum"}


def named(prefix="t"):
    """A name that no other test uses."""
    return f"{prefix}.{secrets.token_hex(6)}"


def message(queue, body=b"x", **more):
    """A message to a queue by the default exchange."""
    return AmqpMessage(exchange="", routing_key=queue, body=body, **more)


async def test_what_is_published_with_a_confirmation_is_delivered_once_and_gone_after_its_ack(rabbitmq) -> None:
    exchange, queue = named("e"), named("q")
    topology = Topology(
        (Exchange(exchange, "topic"),), (Queue(queue, arguments=QUORUM),), (Binding(queue, exchange, "a.#"),)
    )
    with trio.fail_after(30):
        async with open_connection(rabbitmq.address()) as connection:
            await connection.declare(topology)
            await connection.declare(topology)
            async with connection.publisher() as publisher:
                sent = AmqpMessage(exchange=exchange, routing_key="a.b", body=b"hello", message_id="1", type="event")
                await publisher.publish(sent, mandatory=True)
            async with connection.consume(queue) as consumer:
                delivery = await consumer.receive()
                assert delivery.message == sent
                assert not delivery.redelivered
                delivery.ack()
            assert (await connection.inspect(queue)).messages == 0
