"""Every demand of HCP L1 on AMQP, by its section, of both parts: hearth as callee and hearth as caller."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime

import pytest
import trio
from fleet.test_client import calling, ended, job
from pamqp import commands
from support.foreign_harness import AmqpWire
from support.rabbitmq import PASSWORD

from hearth.actors.bridges.amqp.connection import BrokerSettings, open_connection
from hearth.amqp.address import parse_broker
from hearth.amqp.channel import Delivery
from hearth.amqp.topology import Queue, Topology
from hearth.errors import ConfigError
from hearth.fleet.order_store import FleetOrder, OrderStore, OrderStoreError
from hearth.hcp.l1 import callee_topology, caller_topology

pytestmark = pytest.mark.slow
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ForeignCallee:
    """A callee that follows L1: its queue, and what arrives there."""

    def __init__(self, broker, callee):
        self.id = callee
        broker.add_user(callee)
        self.wire = AmqpWire(broker.port, callee, PASSWORD)
        call, queue = self.wire.call, f"hcp.cmd.{callee}"
        for name, kind in (("hcp.commands", "direct"), ("hcp.events", "topic")):
            declare = commands.Exchange.Declare(exchange=name, exchange_type=kind, durable=True)
            call(declare, commands.Exchange.DeclareOk)
        quorum = {"x-queue-type": "quorum"}
        call(commands.Queue.Declare(queue=queue, durable=True, arguments=quorum), commands.Queue.DeclareOk)
        call(commands.Queue.Bind(queue=queue, exchange="hcp.commands", routing_key=callee), commands.Queue.BindOk)
        call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        call(commands.Basic.Consume(queue=queue, no_ack=False), commands.Basic.ConsumeOk)

    def receive(self):
        """Return delivery, properties and document of the next command; acknowledge it."""
        while not self.wire.arrived:
            self.wire.next()
        deliver, properties, body = self.wire.arrived.pop(0)
        self.wire.send(commands.Basic.Ack(deliver.delivery_tag))
        return deliver, properties, json.loads(body)

    def event(self, caller, session_id, type_, payload):
        """Publish a message to a caller."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        document = {
            "hcp_version": "1.0", "message_id": str(uuid.uuid4()), "timestamp": now, "session_id": session_id,
            "type": type_, "payload": payload,
        }  # fmt: skip
        properties = commands.Basic.Properties(delivery_mode=2, user_id=self.id, message_id=document["message_id"])
        self.wire.publish("hcp.events", f"{caller}.{session_id}.{type_}", json.dumps(document).encode(), properties)
        self.wire.expect(commands.Basic.Ack)


def consumers(broker, queue):
    """(ack required, prefetch) of each consumer of a queue."""
    told = broker.evaluate(
        "[{element(3, C), element(4, C)} || C <- rabbit_amqqueue:consumers(element(2, rabbit_amqqueue:lookup("
        f'{{resource, <<"/">>, queue, <<"{queue}">>}})))]'
    )
    return re.findall(r"\{(\w+),(\d+)\}", told)


# --- topology ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("hcp L1 AMQP Topology")
@pytest.mark.spec(
    "hcp L1 Broker Connections",
    "is",
    "When a harness starts: connect to the AMQP broker, declare the exchanges, declare and bind its queue, start "
    "consuming.",
)
async def test_the_topology_is_that_of_l1(rabbitmq, device, name) -> None:
    caller = f"call-{name}"
    async with calling(rabbitmq, caller):
        # A foreign harness declares both exchanges with the parameters of L1: others would be refused (406).
        rabbitmq.add_user(f"other-{name}")
        harness = await trio.to_thread.run_sync(device.harness, f"other-{name}")
        harness.close()
        bindings = rabbitmq.evaluate(
            "[{element(4, element(2, B)), element(3, B), element(4, element(4, B))} ||"
            ' B <- rabbit_binding:list(<<"/">>), element(4, element(2, B)) =/= <<>>]'
        )
        assert f'{{<<"hcp.commands">>,<<"{device.id}">>,<<"hcp.cmd.{device.id}">>}}' in bindings
        assert f'{{<<"hcp.events">>,<<"{caller}.#">>,<<"hcp.evt.{caller}">>}}' in bindings
        for queue in (f"hcp.cmd.{device.id}", f"hcp.evt.{caller}"):
            told = rabbitmq.evaluate(
                "(fun(D) -> {amqqueue:is_durable(D), amqqueue:get_type(D), amqqueue:get_exclusive_owner(D)} end)("
                f'element(2, rabbit_amqqueue:lookup({{resource, <<"/">>, queue, <<"{queue}">>}})))'
            )
            assert told == "{true,rabbit_quorum_queue,none}"


@pytest.mark.spec(
    "hcp L1 Broker Connections",
    "SHOULD",
    "All HCP exchanges and queues SHOULD be created within a dedicated AMQP virtual host (e.g., /hcp) to isolate HCP "
    "traffic from other applications sharing the same broker.",
)
async def test_all_of_it_is_in_the_virtual_host_of_the_url(rabbitmq) -> None:
    rabbitmq.add_vhost("hcp")
    async with calling(rabbitmq, "hearth", address=rabbitmq.address(vhost="hcp")) as client:
        connection = await client.connected()
        while (await connection.inspect("hcp.evt.hearth")).consumers != 1:  # noqa: ASYNC110  it begins a moment later
            await trio.sleep(0.01)


@pytest.mark.spec(
    "hcp L1 Broker Connections",
    "SHOULD",
    "Unencrypted connections (amqp://) SHOULD only be used in trusted network environments (e.g., localhost "
    "development).",
)
def test_without_tls_no_other_machine_is_dialled() -> None:
    assert not parse_broker("amqp://a@127.0.0.1?password_file=/p").secure
    with pytest.raises(ConfigError, match="loopback"):
        parse_broker("amqp://a@broker.example?password_file=/p")


@pytest.mark.spec(
    "hcp L1 Queue Management",
    "SHOULD",
    "Implementations SHOULD configure x-max-length or x-max-length-bytes on event queues to prevent unbounded growth.",
)
@pytest.mark.spec(
    "hcp L1 Queue Management",
    "SHOULD",
    "When limits are reached, the oldest messages SHOULD be discarded (overflow: drop-head).",
)
@pytest.mark.spec(
    "hcp L1 Queue Management",
    "SHOULD",
    "Callee command queues SHOULD persist as long as the callee harness is registered.",
)
@pytest.mark.spec(
    "hcp L1 Consuming from AMQP",
    "SHOULD",
    "For high availability, the broker SHOULD be deployed with quorum queues",
)
async def test_queues_are_bounded_quorum_queues_and_do_not_expire(rabbitmq, name) -> None:
    (events,), (orders,) = caller_topology(name).queues, callee_topology(name).queues
    assert events.arguments["x-overflow"] == "drop-head"
    assert events.arguments["x-max-length-bytes"] == 256 << 20
    assert orders.arguments["x-overflow"] == "reject-publish"
    for queue in (events, orders):
        assert queue.arguments["x-queue-type"] == "quorum"
        assert not {"x-expires", "x-message-ttl"} & {*queue.arguments}
        assert queue.durable
        assert not queue.auto_delete
    async with open_connection(rabbitmq.address()) as connection:
        small = Queue(f"small-{name}", arguments={**events.arguments, "x-max-length": 2})
        await connection.declare(Topology((), (small,)))


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("hcp L1 AMQP Message Properties Mapping")
@pytest.mark.spec("hcp L1 Properties of AMQP Messages")
@pytest.mark.spec(
    "hcp L1 Delivery by AMQP",
    "MUST",
    "The callee MUST publish with delivery_mode: 2 and the caller MUST use manual ACK.",
)
def test_each_message_of_a_callee_has_the_properties_of_l1(rabbitmq, device, name) -> None:
    harness = device.harness(f"call-{name}")
    harness.command(device.id, harness.submission("looks", {}))
    harness.closed()
    harness.command(device.id, {**harness.submission("unknown", {})})
    harness.until(lambda one: one["type"] == "task_rejected")
    assert {one["type"] for one in harness.messages} == {"task_accepted", "event", "task_completed", "task_rejected"}
    for message, properties, key in zip(harness.messages, harness.properties, harness.keys, strict=True):
        assert properties.message_id == message["message_id"]
        assert properties.timestamp == datetime.fromisoformat(message["timestamp"]).replace(microsecond=0)
        assert properties.correlation_id == message["session_id"]
        assert properties.content_type == "application/json"
        assert properties.content_encoding == "utf-8"
        assert properties.delivery_mode == 2
        assert properties.message_type == message["type"]
        assert properties.user_id == device.id
        assert key == f"call-{name}.{message['session_id'] or '-'}.{message['type']}"
        assert UUID.fullmatch(message["message_id"])
    assert consumers(rabbitmq, f"hcp.cmd.{device.id}") == [("true", "32")]
    harness.close()


@pytest.mark.spec(
    "hcp L1 Delivery by AMQP",
    "MUST",
    "The caller MUST publish with delivery_mode: 2 (persistent) and the callee MUST use manual ACK (basic.ack).",
)
@pytest.mark.spec(
    "hcp L1 Delivery Guarantees",
    "SHOULD",
    "If the caller does not receive a task_accepted or task_rejected within a configurable timeout, it SHOULD "
    "republish the task_submit with the same message_id.",
)
async def test_a_caller_publishes_as_l1_says_and_again_without_an_answer(rabbitmq, name, monkeypatch) -> None:
    monkeypatch.setattr("hearth.fleet.client.RETRY_S", 0.5)
    caller, callee = f"call-{name}", ForeignCallee(rabbitmq, f"callee-{name}")
    rabbitmq.add_user(caller)
    async with calling(rabbitmq, caller) as client:
        await client.submit([callee.id], job(caller, "anything", {}), within_s=None)
        first, again = [await trio.to_thread.run_sync(callee.receive) for _ in range(2)]
        for deliver, properties, document in (first, again):
            assert (deliver.exchange, deliver.routing_key) == ("hcp.commands", callee.id)
            assert properties.delivery_mode == 2
            assert properties.message_id == document["message_id"] == first[2]["message_id"]
            assert properties.correlation_id is None
            assert document["session_id"] is None
            assert (properties.content_type, properties.content_encoding) == ("application/json", "utf-8")
            assert properties.message_type == document["type"] == "task_submit"
        # A foreign callee is heard, too.
        session = str(uuid.uuid4())
        told = {
            "session_token": "t", "risk_level": "R1", "data_classification": "T1", "in_reply_to": properties.message_id,
            "safety_envelope": {}, "constraints": {"max_duration": "PT1M", "abort_timeout": "PT1M"},
        }  # fmt: skip
        callee.event(caller, session, "task_accepted", told)
        callee.event(caller, session, "task_completed", {"outputs": {"x": 1}})
        closed = {"event_type": "session_closed", "sequence": 1, "data": {"final_state": "COMPLETED", "reason": "done"}}
        callee.event(caller, session, "event", closed)
        (order,) = await ended(client)
        assert (order.state, order.result) == ("COMPLETED", {"outputs": {"x": 1}})
    callee.wire.close()


# --- consuming --------------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "hcp L1 Consuming from AMQP",
    "MUST",
    "Callers MUST configure their event channel consumer as follows: no_ack false, prefetch_count 1–100, exclusive "
    "false",
)
@pytest.mark.spec("hcp L1 Consuming from AMQP", "SHOULD", "HCP implementations SHOULD configure heartbeats")
@pytest.mark.spec(
    "hcp L1 Consuming from AMQP",
    "SHOULD",
    "Harnesses SHOULD implement connection retry with exponential backoff (e.g., 1s, 2s, 4s, 8s... capped at 60s).",
)
async def test_a_caller_consumes_as_l1_says(rabbitmq, name) -> None:
    caller = f"call-{name}"
    rabbitmq.add_user(caller)
    async with calling(rabbitmq, caller) as client:
        # An exclusive consumer would keep a second one out.
        queue = f"hcp.evt.{caller}"
        async with (await client.connected()).consume(queue):
            while len(told := consumers(rabbitmq, queue)) < 2:  # noqa: ASYNC110  it begins a moment later
                await trio.sleep(0.05)
        assert ("true", "50") in told
        assert (await client.connected()).heartbeat == 30
    settings = BrokerSettings()
    assert 30 <= settings.heartbeat <= 60
    assert settings.backoff_first <= 1
    assert settings.backoff_most <= 60


@pytest.mark.spec("hcp L1 Consuming from AMQP", "MUST", "The caller MUST follow this ACK strategy:")
@pytest.mark.spec(
    "hcp L1 Consuming from AMQP",
    "MUST NOT",
    "The caller MUST NOT acknowledge an event until it has fully processed it (persisted, rendered, forwarded, etc.).",
)
async def test_an_event_is_acknowledged_after_it_is_in_the_order_store_and_goes_back_if_that_fails(
    rabbitmq, device, name, tmp_path, monkeypatch
) -> None:
    caller, done = f"call-{name}", []
    take, ack = OrderStore.take, Delivery.ack

    def take_and_note(self, messages):
        taken = take(self, messages)
        done.append("stored")
        return taken

    def ack_and_note(self):
        done.append("acknowledged")
        ack(self)

    def fail(self, messages):
        raise OrderStoreError("no space is left on the disk")

    monkeypatch.setattr(OrderStore, "take", fail)
    with pytest.RaisesGroup(OrderStoreError, flatten_subgroups=True):
        async with calling(rabbitmq, caller, tmp_path / "order store") as client:
            await client.submit([device.id], job(caller, "looks", {}), within_s=None)
            await trio.sleep_forever()
    monkeypatch.setattr(OrderStore, "take", take_and_note)
    monkeypatch.setattr(Delivery, "ack", ack_and_note)
    async with calling(rabbitmq, caller, tmp_path / "order store") as client:
        (order,) = await ended(client)
        assert order.state == "COMPLETED"
    assert done[0] == "stored"
    assert "acknowledged" in done


@pytest.mark.spec("hcp L1 Consuming from AMQP", "SHOULD", "Callers SHOULD handle redeliveries:")
def test_what_comes_again_is_dropped_by_its_sequence() -> None:
    order_store = OrderStore(":memory:")
    order_store._db.execute(
        "INSERT INTO orders (message_id, device, document, made_at, session_id) VALUES ('m', 'd', '{}', 0, 's')"
    )

    def event(sequence):
        payload = {"event_type": "log", "sequence": sequence, "data": {}}
        return {"session_id": "s", "type": "event", "payload": payload}, "d"

    taken = order_store.take([event(1), event(2), event(2), event(1), event(3)])
    assert [one["payload"]["sequence"] for one in taken.new] == [1, 2, 3]
    assert taken.duplicates == 2
    # A later one is not taken: the missing one is asked for. One of another device is none of this order's.
    taken = order_store.take([event(5), (event(4)[0], "another")])
    assert (taken.new, taken.gaps, taken.foreign) == ([], {"s": 4}, 1)
    order_store.close()


def test_a_caller_takes_only_what_its_device_has_sent() -> None:
    order_store = OrderStore(":memory:")
    order = FleetOrder(message_id="m", device="d", document={}, not_after=None, made_at=0.0)
    order_store.add([order])
    accepted = {"type": "task_accepted", "session_id": "s", "payload": {"in_reply_to": "m"}}
    assert order_store.take([(accepted, "another"), (accepted, None)]).foreign == 2
    assert order_store.take([(accepted, "d"), (accepted, "d")]).duplicates == 1
    strange = [
        {"type": "event", "session_id": "s", "payload": {"sequence": "1"}},
        {"type": "event", "session_id": "s", "payload": None},
        {"type": "hearth.other", "session_id": "s", "payload": {}},
    ]
    assert order_store.take([(one, "d") for one in strange]).foreign == 3
    # An outcome has no sequence: a session that closes without one is asked for it.
    closed = {"event_type": "session_closed", "sequence": 1, "data": {"final_state": "FAILED", "reason": "r"}}
    closing = {"type": "event", "session_id": "s", "payload": closed}
    assert order_store.take([(closing, "d")]).gaps == {"s": 1}
    failed = {"type": "task_failed", "session_id": "s", "payload": {"error_code": "timeout"}}
    assert len(order_store.take([(failed, "d"), (closing, "d"), (failed, "d")]).new) == 2
    assert order_store.orders()[0].state == "FAILED"
    assert order_store.orders(open_only=True) == []
    order_store.close()
