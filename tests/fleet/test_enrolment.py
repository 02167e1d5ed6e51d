"""Enrolled members over TLS at a real broker: what their credentials allow, and what stolen ones do not."""

from __future__ import annotations

import json
import ssl

import pytest
import trio
from fleet.bench import Device
from fleet.test_client import calling, ended, job
from pamqp import commands
from support.foreign_harness import AmqpWire, Refused

from hearth.errors import ConfigError
from hearth.fleet.enrolment import UNROUTED, definitions

pytestmark = pytest.mark.slow
VHOST = "/"


class Members:
    """A device, another one, a caller and an operator, enrolled."""

    def __init__(self, broker, directory, name):
        self.broker = broker
        self.device, self.other, self.caller, self.operator = (f"{part}-{name}" for part in ("d", "o", "c", "op"))
        made = definitions(
            {self.device: "device", self.other: "device", self.caller: "caller", self.operator: "operator"}, VHOST
        )
        file = directory / "definitions.json"
        file.write_text(json.dumps(made))
        broker.control("import_definitions", str(file))

    def wire(self, name):
        """A connection with somebody's stolen certificate."""
        address = self.broker.tls_address(name)
        context = ssl.create_default_context(cafile=address.ca)
        context.load_cert_chain(address.cert, address.key)
        return AmqpWire(self.broker.tls_port, name, "", tls=context)

    def refused(self, name, *steps):
        """Do steps over AMQP until the broker refuses one; return its code."""
        wire = self.wire(name)
        try:
            for command, answer in steps:
                wire.call(command, answer)
        except Refused as refusal:
            return refusal.code
        finally:
            wire.close()
        return None

    def publish(self, name, exchange, key, user):
        """Publish with a user-id; return the code of the refusal, or None."""
        wire = self.wire(name)
        try:
            wire.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
            wire.publish(exchange, key, b"{}", commands.Basic.Properties(user_id=user, message_id="m"))
            wire.expect(commands.Basic.Ack)
        except Refused as refusal:
            return refusal.code
        finally:
            wire.close()
        return None


@pytest.fixture
def members(rabbitmq, tmp_path, name):
    return Members(rabbitmq, tmp_path, name)


@pytest.mark.spec(
    "hcp L1 Broker Connections",
    "SHOULD",
    "Access control (which harness can publish/consume which queues) SHOULD be configured at the broker level via AMQP "
    "permissions.",
)
def test_stolen_credentials_of_a_device_cannot_read_the_orders_of_another(members) -> None:
    other = f"hcp.cmd.{members.other}"
    consume = (commands.Basic.Consume(queue=other), commands.Basic.ConsumeOk)
    assert members.refused(members.device, consume) == 403
    # Nor by a queue of its own, bound to the orders of the other.
    own = f"hcp.cmd.{members.device}"
    bind = (
        commands.Queue.Bind(queue=own, exchange="hcp.commands", routing_key=members.other),
        commands.Queue.BindOk,
    )
    assert members.refused(members.device, bind) == 403
    steal = (commands.Queue.Bind(queue=own, exchange="hcp.events", routing_key="#"), commands.Queue.BindOk)
    assert members.refused(members.device, steal) == 403
    new = (commands.Queue.Declare(queue="mine", durable=True), commands.Queue.DeclareOk)
    assert members.refused(members.device, new) == 403
    assert members.refused(members.device, (commands.Queue.Delete(queue=other), commands.Queue.DeleteOk)) == 403
    delete = (commands.Exchange.Delete(exchange="hcp.commands"), commands.Exchange.DeleteOk)
    assert members.refused(members.device, delete) == 403


def test_stolen_credentials_of_a_device_cannot_publish_as_another_nor_order_anything(members) -> None:
    assert members.publish(members.device, "hcp.events", f"{members.caller}.-.event", members.device) is None
    assert members.publish(members.device, "hcp.events", f"{members.caller}.-.event", members.other) == 406
    assert members.publish(members.device, "hcp.commands", members.other, members.device) == 403
    assert members.publish(members.device, "", f"hcp.cmd.{members.other}", members.device) == 403
    assert members.publish(members.device, "hearth.fleet", f"card.{members.device}", members.device) is None
    assert members.publish(members.device, "hearth.fleet", f"card.{members.other}", members.device) == 403
    assert members.publish(members.device, "hearth.fleet", "halt", members.device) == 403


def test_a_device_hears_halts_by_a_queue_of_its_connection_and_nothing_else_of_the_fleet(members) -> None:
    def steps(device, key):
        live = f"hearth.halt.{device}.live"
        declare = commands.Queue.Declare(queue=live, durable=False, exclusive=True)
        bind = commands.Queue.Bind(queue=live, exchange="hearth.fleet", routing_key=key)
        return (declare, commands.Queue.DeclareOk), (bind, commands.Queue.BindOk)

    assert members.refused(members.device, *steps(members.device, "halt")) is None
    assert members.refused(members.device, *steps(members.device, "card.#")) == 403
    assert members.refused(members.device, *steps(members.other, "halt")) == 403


def test_stolen_credentials_of_a_caller_cannot_read_the_events_of_another_nor_halt(members) -> None:
    own = f"hcp.evt.{members.caller}"
    bind = (commands.Queue.Bind(queue=own, exchange="hcp.events", routing_key=f"{members.operator}.#"),)
    assert members.refused(members.caller, (*bind, commands.Queue.BindOk)) == 403
    consume = (commands.Basic.Consume(queue=f"hcp.evt.{members.operator}"), commands.Basic.ConsumeOk)
    assert members.refused(members.caller, consume) == 403
    assert members.publish(members.caller, "hcp.commands", members.device, members.operator) == 406
    assert members.publish(members.caller, "hcp.events", f"{members.operator}.-.event", members.caller) == 403
    assert members.publish(members.caller, "hearth.fleet", "halt", members.caller) == 403
    assert members.publish(members.operator, "hearth.fleet", "halt", members.operator) is None


def test_a_user_that_was_enrolled_has_no_password(members) -> None:
    with pytest.raises((Refused, ConnectionResetError)):
        AmqpWire(members.broker.port, members.device, "")


@pytest.mark.spec("hcp L1 Authentication", "SHOULD", "Each harness SHOULD have a unique set of credentials.")
@pytest.mark.spec(
    "hcp L1 Broker Connections", "is", "Harnesses authenticate to the AMQP broker using standard AMQP SASL mechanisms."
)
@pytest.mark.spec("hcp L1 Broker Connections", "SHOULD", "All AMQP connections SHOULD use TLS (amqps://).")
async def test_enrolled_members_do_their_work_over_tls(members, tmp_path) -> None:
    broker = members.broker
    address = broker.tls_address(members.device)
    device = Device.enrolled(broker, tmp_path, members.device, address, callers=[members.caller, members.operator])
    await trio.to_thread.run_sync(device.connect)
    try:
        async with calling(broker, members.caller, address=broker.tls_address(members.caller)) as client:
            await client.submit([device.id], job(members.caller, "marks", device.inputs("one")), within_s=60)
            (order,) = await ended(client)
            assert order.state == "COMPLETED", order.said
            assert device.id in {one.device for one in await client.devices()}
        async with calling(broker, members.operator, address=broker.tls_address(members.operator)) as client:
            await client.halt("smoke")
            await trio.to_thread.run_sync(device.until, lambda: device.peer().health()["halt"]["halted"])
    finally:
        await trio.to_thread.run_sync(device.end)


def test_what_no_caller_has_a_queue_for_goes_to_the_alternate_exchange(members) -> None:
    before = int(members.broker.evaluate(_count(UNROUTED)))
    assert members.publish(members.device, "hcp.events", "nocaller.-.event", members.device) is None
    assert int(members.broker.evaluate(_count(UNROUTED))) == before + 1


def _count(queue):
    return (
        "element(2, rabbit_amqqueue:stat(element(2, rabbit_amqqueue:lookup("
        f'{{resource, <<"/">>, queue, <<"{queue}">>}}))))'
    )


@pytest.mark.parametrize("name_", ["a.b", "#", "", "ä" * 3, "x" * 65])
def test_an_id_that_is_no_word_of_a_routing_key_is_refused(name_) -> None:
    with pytest.raises(ConfigError, match="expected an id"):
        definitions({name_: "device"}, VHOST)
