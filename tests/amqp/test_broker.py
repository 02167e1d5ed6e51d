"""The client against a real RabbitMQ: what each side promises the other, and every refusal by its name."""

from __future__ import annotations

import secrets
import struct
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio

from hearth.actors.bridges.amqp.connection import BrokerSettings, open_connection
from hearth.amqp.errors import (
    AccessRefused,
    AmqpMisuse,
    BrokerBlocked,
    BrokerUnreachable,
    ConnectionForced,
    DeliveryLost,
    EntityLocked,
    EntityNotFound,
    NoRoute,
    NotAllowed,
    PreconditionFailed,
    PublishNacked,
)
from hearth.amqp.framing import encode_content
from hearth.amqp.messages import AmqpLimits, AmqpMessage
from hearth.amqp.topology import Binding, Exchange, Queue, Topology
from hearth.errors import ConfigError

pytestmark = pytest.mark.slow
QUORUM = {"x-queue-type": "quorum"}


def named(prefix="t"):
    """A name that no other test uses."""
    return f"{prefix}.{secrets.token_hex(6)}"


def message(queue, body=b"x", **more):
    """A message to a queue by the default exchange."""
    return AmqpMessage(exchange="", routing_key=queue, body=body, **more)


@asynccontextmanager
async def connected(rabbitmq, queue=None, *, address=None, settings=None, arguments=QUORUM):
    """A connection, within 60 s, with a durable queue if one is named."""
    with trio.fail_after(60):
        async with open_connection(address or rabbitmq.address(), settings or BrokerSettings()) as connection:
            if queue is not None:
                await connection.declare(Topology(queues=(Queue(queue, arguments=arguments),)))
            yield connection


async def bodies(connection, queue, count):
    """The next bodies of a queue, acknowledged."""
    found = []
    async with connection.consume(queue, prefetch=100) as consumer:
        while len(found) < count:
            delivery = await consumer.receive()
            found.append(delivery.message.body)
            delivery.ack()
    return found


# --- messages -------------------------------------------------------------------------------------------------------


async def test_what_is_published_with_a_confirmation_is_delivered_once_and_gone_after_its_ack(rabbitmq) -> None:
    exchange, queue = named("e"), named("q")
    topology = Topology(
        (Exchange(exchange, "topic"),), (Queue(queue, arguments=QUORUM),), (Binding(queue, exchange, "a.#"),)
    )
    async with connected(rabbitmq) as connection:
        await connection.declare(topology)
        await connection.declare(topology)
        async with connection.publisher() as publisher:
            sent = AmqpMessage(
                exchange=exchange, routing_key="a.b", body=b"hello", message_id="1", type="event", headers={"n": 1}
            )
            await publisher.publish(sent, mandatory=True)
        async with connection.consume(queue) as consumer:
            delivery = await consumer.receive()
            assert delivery.message == sent
            assert not delivery.redelivered
            delivery.ack()
            with pytest.raises(AmqpMisuse, match="settled already"):
                delivery.ack()
        assert (await connection.inspect(queue)).messages == 0


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 1_048_576])
async def test_a_body_of_every_size_up_to_the_limit_arrives_whole(rabbitmq, size) -> None:
    queue, body = named(), secrets.token_bytes(size)
    async with connected(rabbitmq, queue) as connection, connection.publisher() as publisher:
        await publisher.publish(message(queue, body))
        assert await bodies(connection, queue, 1) == [body]
        with pytest.raises(AmqpMisuse, match="over the limit of 1048576"):
            await publisher.publish(message(queue, bytes(1_048_577)))


async def test_pipelined_publishes_arrive_in_order_and_each_is_confirmed(rabbitmq) -> None:
    queue = named()
    async with connected(rabbitmq, queue) as connection, connection.publisher(window=64) as publisher:
        confirmations = [await publisher.send(message(queue, b"%d" % n)) for n in range(1000)]
        assert sum(not each.done for each in confirmations) <= 64
        for each in confirmations:
            await each.wait()
        assert await bodies(connection, queue, 1000) == [b"%d" % n for n in range(1000)]


async def test_leaving_a_publisher_waits_for_what_is_unconfirmed(rabbitmq) -> None:
    queue = named()
    async with connected(rabbitmq, queue) as connection:
        async with connection.publisher() as publisher:
            confirmations = [await publisher.send(message(queue)) for _ in range(50)]
        assert all(each.done for each in confirmations)
        for each in confirmations:
            await each.wait()
        with pytest.raises(AmqpMisuse, match="this channel is closed"):
            await publisher.send(message(queue))


async def test_a_full_queue_refuses_the_message_and_the_publisher_learns_which(rabbitmq) -> None:
    queue = named()
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    async with connected(rabbitmq, queue, arguments=full) as connection, connection.publisher() as publisher:
        await publisher.publish(message(queue))
        with pytest.raises(PublishNacked, match="is a queue full, with overflow reject-publish"):
            await publisher.publish(message(queue))
        assert await bodies(connection, queue, 1) == [b"x"]
        await publisher.publish(message(queue))


async def test_a_mandatory_message_without_a_queue_comes_back_to_the_publish_that_sent_it(rabbitmq) -> None:
    queue = named()
    async with connected(rabbitmq, queue) as connection, connection.publisher() as publisher:
        sent = [
            await publisher.send(message(queue if n % 3 else "nowhere", message_id=str(n)), mandatory=True)
            for n in range(30)
        ]
        for n, each in enumerate(sent):
            if n % 3:
                await each.wait()
            else:
                with pytest.raises(
                    NoRoute, match=r"exchange '', routing key 'nowhere'.*312 NO_ROUTE.*declare the queue"
                ):
                    await each.wait()
        await publisher.publish(message("nowhere"))  # not mandatory: confirmed, and dropped by the broker


async def test_a_nacked_delivery_comes_again_and_an_unsettled_one_after_the_consumers_end(rabbitmq) -> None:
    queue = named()
    async with connected(rabbitmq, queue) as connection, connection.publisher() as publisher:
        await publisher.publish(message(queue))
        async with connection.consume(queue) as consumer:
            (await consumer.receive()).nack(requeue=True)
            delivery = await consumer.receive()
            assert delivery.redelivered
        assert delivery.settled
        with pytest.raises(DeliveryLost, match="the broker delivers the message again"):
            delivery.ack()
        async with connection.consume(queue) as consumer:
            (await consumer.receive()).nack(requeue=False)
            assert (await connection.inspect(queue)).messages == 0


async def test_no_more_than_the_prefetch_is_delivered_before_something_is_settled(rabbitmq) -> None:
    queue = named()
    async with connected(rabbitmq, queue) as connection, connection.publisher() as publisher:
        for n in range(5):
            await publisher.publish(message(queue, b"%d" % n))
        async with connection.consume(queue, prefetch=2) as consumer:
            first, second = await consumer.receive(), await consumer.receive()
            with trio.move_on_after(0.3) as scope:
                await consumer.receive()
            assert scope.cancelled_caught
            second.ack()
            assert (await consumer.receive()).message.body == b"2"
            first.ack()


async def test_a_stream_is_read_from_its_beginning_by_each_reader(rabbitmq) -> None:
    queue = named()
    async with connected(rabbitmq, queue, arguments={"x-queue-type": "stream"}) as connection:
        async with connection.publisher() as publisher:
            for n in range(3):
                await publisher.publish(message(queue, b"%d" % n))
        for _ in range(2):
            async with connection.consume(queue, arguments={"x-stream-offset": "first"}) as consumer:
                found = []
                async for delivery in consumer:
                    found.append(delivery.message.body)
                    delivery.ack()
                    if len(found) == 3:
                        break
                assert found == [b"0", b"1", b"2"]


async def test_a_delivery_that_cannot_be_read_is_rejected_and_those_behind_it_arrive(rabbitmq, monkeypatch) -> None:
    queue, rejected = named(), []
    settings = BrokerSettings(limits=AmqpLimits(body=1000))
    deep = b"\0\0\0\0"
    for _ in range(2000):
        deep = struct.pack(">I", len(deep) + 3) + b"\x01aF" + deep
    async with connected(rabbitmq, queue) as sender, sender.publisher() as publisher:
        await publisher.publish(message(queue, bytes(300_000)))
        for properties in (
            b"\x00\x40" + b"\xff" * 8,  # a timestamp in the far future
            b"\x00\x80\x01\xff",  # a message_id that is not UTF-8
            b"\x20\x00" + deep,  # headers, in 2,000 tables
            b"\x20\x00" + struct.pack(">I3sI", 20_007, b"\x01aS", 20_000) + b"x" * 20_000,
        ):
            with monkeypatch.context() as patched:
                patched.setattr("hearth.amqp.channel.encode_properties", lambda _, raw=properties: raw[:16_000])
                patched.setattr("hearth.amqp.channel.encode_content", partial(_content, properties))
                await publisher.publish(message(queue))
        await publisher.publish(message(queue, b"good"))
        async with connected(rabbitmq, settings=settings) as connection:
            connection.on_rejected = lambda *what: rejected.append(what)
            async with connection.consume(queue) as consumer:
                delivery = await consumer.receive()
                assert delivery.message.body == b"good"
                delivery.ack()
                assert consumer.rejected == 5
        assert [where for where, _ in rejected] == [queue] * 5
        expected = (
            "its body has 300000 bytes, where 1000 is the most",
            "timestamp cannot be read",
            "message_id cannot be read",
            "headers cannot be read: maximum recursion depth",
            "its properties have 20013 bytes, where 16384 is the most",
        )
        for (_, reason), words in zip(rejected, expected, strict=True):
            assert words in reason
        assert (await sender.inspect(queue)).messages == 0


def _content(properties, channel, size, _):
    """The content header of a publisher that writes its own bytes."""
    return encode_content(channel, size, properties)


# --- refusals -------------------------------------------------------------------------------------------------------


async def test_an_exchange_that_there_is_not_ends_the_publishers_channel_alone(rabbitmq) -> None:
    queue = named()
    async with connected(rabbitmq, queue) as connection:
        async with connection.publisher() as publisher:
            with pytest.raises(EntityNotFound, match=r"404 NOT_FOUND: no exchange 'nowhere'.*; declare it first"):
                await publisher.publish(AmqpMessage(exchange="nowhere", routing_key="x", body=b""))
            with pytest.raises(EntityNotFound):
                await publisher.publish(message(queue))
        with pytest.raises(EntityNotFound, match="no queue 'nowhere'"):
            await connection.inspect("nowhere")
        with pytest.raises(EntityNotFound, match="no queue 'nowhere'"):
            async with connection.consume("nowhere"):
                pass
        async with connection.publisher() as publisher:
            await publisher.publish(message(queue))


async def test_a_user_without_the_permission_is_refused_by_name(rabbitmq) -> None:
    user, queue = named("u"), named()
    rabbitmq.add_user(user, configure="^$", write="^$", read=".*")
    async with connected(rabbitmq, queue), connected(rabbitmq, address=rabbitmq.address(user)) as connection:
        with pytest.raises(AccessRefused, match=r"403 ACCESS_REFUSED.*rabbitmqctl list_permissions"):
            await connection.declare(Topology(queues=(Queue(named()),)))
        async with connection.publisher() as publisher:
            with pytest.raises(AccessRefused):
                await publisher.publish(AmqpMessage(exchange="amq.topic", routing_key="x", body=b""))
        await connection.declare(Topology((Exchange("amq.topic", passive=True),), (Queue(queue, passive=True),)))


async def test_what_exists_with_other_settings_and_a_user_id_that_is_not_the_login_are_406(rabbitmq) -> None:
    queue = named()
    async with connected(rabbitmq, queue) as connection:
        with pytest.raises(PreconditionFailed, match="406 PRECONDITION_FAILED: inequivalent arg"):
            await connection.declare(Topology(queues=(Queue(queue),)))
        async with connection.publisher() as publisher:
            await publisher.publish(message(queue, user_id="hearth"))
            with pytest.raises(PreconditionFailed, match="user_id must be the name of the login"):
                await publisher.publish(message(queue, user_id="another-user"))


async def test_a_queue_of_another_connection_is_locked_and_a_deleted_queue_ends_its_consumer(rabbitmq) -> None:
    queue = named()
    async with connected(rabbitmq) as connection, connected(rabbitmq) as other:
        await connection.declare(Topology(queues=(Queue(queue, durable=False, exclusive=True),)))
        with pytest.raises(EntityLocked, match="405 RESOURCE_LOCKED"):
            await other.inspect(queue)
        async with connection.consume(queue) as consumer:
            rabbitmq.evaluate(
                f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)),'
                f' rabbit_amqqueue:delete(Q, false, false, <<"test">>)'
            )
            with pytest.raises(EntityNotFound, match="was deleted or its node failed"):
                await consumer.receive()


# --- log-in and TLS -------------------------------------------------------------------------------------------------


async def test_a_client_certificate_is_a_login_and_its_name_the_user(rabbitmq) -> None:
    user, queue = named("u"), named()
    rabbitmq.add_user(user)
    address = rabbitmq.tls_address(user)
    async with connected(rabbitmq, queue, address=address) as connection, connection.publisher() as publisher:
        await publisher.publish(message(queue, user_id=user))
        with pytest.raises(PreconditionFailed):
            await publisher.publish(message(queue, user_id="hearth"))


async def test_a_certificate_whose_name_is_no_user_is_refused(rabbitmq) -> None:
    with pytest.raises(AccessRefused, match="403 ACCESS_REFUSED"):
        async with connected(rabbitmq, address=rabbitmq.tls_address(named("stranger"))):
            pass


async def test_a_broker_of_another_ca_and_a_client_of_another_ca_are_refused_with_the_cure(rabbitmq) -> None:
    other = rabbitmq.pki.other_authority
    with pytest.raises(BrokerUnreachable, match=r"amqps://localhost:\d+: its certificate is not signed by the CA"):
        async with connected(rabbitmq, address=rabbitmq.tls_address("hearth", ca=other.path)):
            pass
    pair = rabbitmq.pki.client("foreign", authority=other)
    with pytest.raises(
        BrokerUnreachable, match=r"it does not know the CA that signed our certificate|it may not take our certificate"
    ):
        async with connected(rabbitmq, address=rabbitmq.tls_address("hearth", cert=pair.cert, key=pair.key)):
            pass


async def test_a_wrong_password_a_wrong_virtual_host_and_a_readable_password_file_are_refused(
    rabbitmq, tmp_path
) -> None:
    import attrs

    wrong = tmp_path / "password"
    wrong.write_text("wrong")
    wrong.chmod(0o600)
    address = rabbitmq.address()
    with pytest.raises(AccessRefused, match="Login was refused using authentication mechanism PLAIN"):
        async with connected(rabbitmq, address=attrs.evolve(address, password_file=wrong)):
            pass
    with pytest.raises(NotAllowed, match=r"530 NOT_ALLOWED.*vhost nowhere not found"):
        async with connected(rabbitmq, address=rabbitmq.address(vhost="nowhere")):
            pass
    wrong.chmod(0o644)
    with pytest.raises(ConfigError, match=r"password_file .* can be used by others"):
        async with connected(rabbitmq, address=attrs.evolve(address, password_file=wrong)):
            pass


async def test_a_virtual_host_of_its_own_has_queues_of_its_own(rabbitmq) -> None:
    vhost, queue = named("v/"), named()
    rabbitmq.add_vhost(vhost)
    async with connected(rabbitmq, queue), connected(rabbitmq, address=rabbitmq.address(vhost=vhost)) as connection:
        with pytest.raises(EntityNotFound, match=r"vhost 'v/\."):
            await connection.inspect(queue)


# --- alarms and closes ---------------------------------------------------------------------------------------------


async def test_a_blocked_broker_makes_publishers_wait_and_those_that_wait_too_long_learn_why(rabbitmq) -> None:
    queue = named()
    settings = BrokerSettings(blocked_timeout=0.5)
    async with connected(rabbitmq, queue, settings=settings) as connection, connection.publisher() as publisher:
        await publisher.publish(message(queue))
        rabbitmq.set_alarm("memory")
        try:
            # The broker blocks a connection when it publishes after the alarm: one that came before it passes.
            waiting = []
            while connection.blocked is None:
                with suppress(BrokerBlocked):
                    waiting.append(await publisher.send(message(queue, b"blocked")))
                with trio.move_on_after(0.1):
                    await connection.changed.wait()
            assert connection.blocked == "low on memory"
            with pytest.raises(BrokerBlocked, match=r"has been blocked for 0.5 s \(low on memory\)"):
                await publisher.publish(message(queue, b"never sent"))
            assert not waiting[-1].done
        finally:
            rabbitmq.clear_alarm("memory")
        for each in waiting:
            await each.wait()
        await publisher.publish(message(queue, b"after"))
        assert connection.blocked is None
        assert await bodies(connection, queue, len(waiting) + 2) == [b"x", *len(waiting) * [b"blocked"], b"after"]


async def test_an_operator_who_closes_the_connection_is_named_to_every_waiting_call(rabbitmq) -> None:
    queue, seen = named(), []

    async def use() -> None:
        async with connected(rabbitmq, queue) as connection, connection.consume(queue) as consumer:
            seen.append(connection)
            await trio.to_thread.run_sync(rabbitmq.close_connections)
            with pytest.raises(ConnectionForced, match="320"):
                await consumer.receive()
            seen.append("told")
            await trio.sleep_forever()

    with pytest.raises(ConnectionForced, match="320 CONNECTION_FORCED: closed by a test; the client connects again"):
        await use()
    connection, told = seen
    assert told == "told"
    with pytest.raises(ConnectionForced):
        await connection.inspect(queue)


async def test_both_sides_of_a_closed_connection_forget_it(rabbitmq) -> None:
    before = rabbitmq.connections()
    async with connected(rabbitmq) as connection:
        assert rabbitmq.connections() == before + 1
    assert connection.error is None
    assert rabbitmq.connections() == before
    with pytest.raises(AmqpMisuse, match="this connection is closed"):
        await connection.inspect("x")
