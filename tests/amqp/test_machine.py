"""The state machine of AMQP, byte by byte: a table of what the broker sends and what comes of it."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import pytest
from hypothesis import given, strategies as st
from pamqp import commands
from support.amqp import (
    OPEN_OK,
    QUEUE,
    START,
    TUNE,
    answer,
    consumer,
    content,
    deliver,
    method,
    names,
    opened,
    publisher,
    raw,
    sent,
    with_channel,
)

from hearth.amqp import errors
from hearth.amqp.channel import (
    ChannelEnded,
    Confirmed,
    ConsumerCancelled,
    Delivered,
    DeliveryRejected,
    MessageReturned,
    Replied,
)
from hearth.amqp.connection import (
    AmqpConnection,
    Blocked,
    ConnectionEnded,
    ConnectionOpened,
    ConnectionState,
    Login,
    Unblocked,
)
from hearth.amqp.messages import AmqpLimits, AmqpMessage
from hearth.amqp.topology import Binding, Exchange, Queue

Basic, Channel, Connection = commands.Basic, commands.Channel, commands.Connection


def to(queue="q", body=b"x", **more):
    """A message."""
    return AmqpMessage(exchange="", routing_key=queue, body=body, **more)


def ended(events):
    """The error of the last event, which ends the connection."""
    assert isinstance(events[-1], ConnectionEnded)
    return events[-1].error


# --- the handshake --------------------------------------------------------------------------------------------------


def test_the_handshake_sends_what_the_specification_wants_and_ends_with_connected() -> None:
    woken = []
    machine = AmqpConnection(Login.plain("arm", "secret"), vhost="lab", name="arm-7", on_output=lambda: woken.append(1))
    assert machine.data_to_send() == b"AMQP\x00\x00\x09\x01"
    assert machine.receive(method(START)) == []
    ((channel, start_ok),) = sent(machine)
    assert channel == 0
    assert (start_ok.mechanism, start_ok.response, start_ok.locale) == ("PLAIN", "\0arm\0secret", "en_US")
    assert start_ok.client_properties["connection_name"] == "arm-7"
    assert start_ok.client_properties["capabilities"]["connection.blocked"] is True
    assert machine.receive(method(TUNE)) == []
    (_, tune_ok), (_, opening) = sent(machine)
    assert (tune_ok.channel_max, tune_ok.frame_max, tune_ok.heartbeat) == (64, 131_072, 30)
    assert opening.virtual_host == "lab"
    assert machine.receive(method(OPEN_OK)) == [ConnectionOpened(30, 131_072, 64)]
    assert woken


def test_a_certificate_is_all_of_an_external_login_and_no_login_shows_its_secret() -> None:
    machine = AmqpConnection(Login.external())
    machine.data_to_send()
    machine.receive(method(START))
    ((_, start_ok),) = sent(machine)
    assert (start_ok.mechanism, start_ok.response) == ("EXTERNAL", "")
    assert "secret" not in repr(Login.plain("arm", "secret"))


@pytest.mark.parametrize(
    ("proposed", "agreed"),
    [
        ((2047, 131_072, 60), (64, 131_072, 30)),
        ((0, 0, 0), (64, 131_072, 30)),
        ((10, 4096, 5), (10, 4096, 5)),
        ((65_535, 2**32 - 1, 65_535), (64, 131_072, 30)),
    ],
)
def test_of_two_bounds_the_smaller_holds_and_none_is_no_bound_of_ours(proposed, agreed) -> None:
    machine = opened(tune=commands.Connection.Tune(*proposed))
    assert (machine.limits.channels, machine.limits.frame, machine.heartbeat) == agreed


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ended the connection before it said anything"),
        (b"AMQP\x00\x01\x00\x00", "the broker does not speak AMQP 0-9-1"),
        (b"HTTP/1.1 400 Bad Request\r\n", "it is no AMQP broker that answers; is it the right port"),
        (b"\x15\x03\x03\x00\x02", "it is no AMQP broker that answers"),
        (
            method(Connection.Start(mechanisms="AMQPLAIN")),
            "offers the log-ins 'AMQPLAIN' and not PLAIN; enable it there",
        ),
        (method(TUNE), "Connection.Tune came in the state start"),
        (method(START) + method(Connection.Tune(0, 1000, 0)), "frames of 1000 bytes, where 4096 is the least"),
        (method(START) + method(Connection.Secure("?")), "Connection.Secure came in the state tune"),
        (method(START) * 2, "Connection.Start came in the state tune"),
        (
            method(START) + method(TUNE) + method(Connection.Blocked("x")),
            "Connection.Blocked came in the state opening",
        ),
    ],
)
def test_a_handshake_that_goes_wrong_ends_with_an_error_that_names_the_cure(data, words) -> None:
    machine = AmqpConnection(Login.plain("arm", "secret"), place="amqp://broker")
    error = ended(machine.receive(data))
    assert isinstance(error, (errors.AmqpProtocolError, errors.BrokerConnectionLost))
    assert words in str(error)
    assert str(error).startswith("amqp://broker")


def test_an_external_login_that_is_not_offered_names_the_plugin() -> None:
    machine = AmqpConnection(Login.external())
    error = ended(machine.receive(method(Connection.Start(mechanisms="PLAIN"))))
    assert "enable the plugin rabbitmq_auth_mechanism_ssl there" in str(error)


def test_the_end_of_the_stream_says_where_the_connection_was() -> None:
    machine = AmqpConnection(Login.plain("arm", "secret"))
    machine.receive(method(START))
    assert "during the log-in" in str(ended(machine.receive(b"")))
    assert machine.receive(b"more") == []
    assert str(ended(opened().receive(b""))) == "amqp://broker ended the connection"


# --- closing --------------------------------------------------------------------------------------------------------

CODES = {
    312: errors.NoRoute, 320: errors.ConnectionForced, 403: errors.AccessRefused, 404: errors.EntityNotFound,
    405: errors.EntityLocked, 406: errors.PreconditionFailed, 530: errors.NotAllowed, 541: errors.BrokerRefusal,
    999: errors.BrokerRefusal,
}  # fmt: skip


@pytest.mark.parametrize("code", CODES)
def test_each_reply_code_is_an_error_with_a_name(code) -> None:
    machine = opened()
    error = ended(machine.receive(method(Connection.Close(code, "WHY - because\n\x1b[31m", 0, 0))))
    assert type(error) is CODES[code]
    assert error.code == code
    assert error.name in str(error)
    assert "\x1b" not in str(error)
    assert names(machine) == ["Connection.CloseOk"]
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(other), other.code, str(other)) == (type(error), error.code, str(error))


def test_closing_discards_what_was_under_way_and_ends_without_an_error() -> None:
    machine = opened()
    channel = consumer(machine)
    machine.close()
    machine.close()
    assert names(machine) == ["Connection.Close"]
    assert machine.receive(deliver(1) + method(Connection.Blocked("x")) + method(OPEN_OK, 9)) == []
    assert machine.receive(method(Connection.CloseOk())) == [ConnectionEnded(None)]
    with pytest.raises(errors.AmqpMisuse, match="not open"):
        channel.publish(to())
    with pytest.raises(errors.AmqpMisuse, match="not open"):
        machine.open_channel()


@pytest.mark.parametrize("data", [b"", method(Connection.Close(320, "bye", 0, 0))])
def test_a_broker_that_closes_at_the_same_time_ends_it_as_well(data) -> None:
    machine = opened()
    machine.close()
    assert machine.receive(data) == [ConnectionEnded(None)]


def test_an_abandoned_connection_sends_nothing_more_and_its_deliveries_are_lost() -> None:
    machine = opened()
    channel = consumer(machine)
    (delivered,) = machine.receive(deliver(1))
    machine.send_heartbeat()
    machine.abandon()
    machine.abandon()
    channel.close()
    machine.close()
    machine.send_heartbeat()
    assert machine.pending == 0
    with pytest.raises(errors.DeliveryLost):
        delivered.delivery.ack()


def test_a_channel_that_the_broker_closes_leaves_the_others_and_its_number_free() -> None:
    machine = opened()
    channel, other = publisher(machine), consumer(machine)
    channel.publish(to("nowhere"))
    machine.data_to_send()
    (event,) = machine.receive(method(Channel.Close(404, "NOT_FOUND - no exchange", 60, 40), 1))
    assert isinstance(event, ChannelEnded)
    assert event.channel is channel
    assert str(event.error).startswith("amqp://broker refused with 404 NOT_FOUND: no exchange; declare it first")
    assert names(machine) == ["Channel.CloseOk"]
    assert machine.open_channel().number == 1
    assert machine.receive(deliver(1, consumer="hearth-2", channel=2))[0].channel is other


@pytest.mark.parametrize("answered", [Channel.CloseOk(), Channel.Close(404, "x", 0, 0)])
def test_a_channel_that_this_side_closes_discards_what_is_under_way(answered) -> None:
    machine = opened()
    channel = consumer(machine)
    (delivered,) = machine.receive(deliver(1))
    channel.close()
    channel.close()
    assert names(machine) == ["Channel.Close"]
    assert machine.receive(deliver(2)) == []
    assert machine.receive(method(answered, 1)) == [ChannelEnded(channel, None)]
    assert delivered.delivery.settled
    with pytest.raises(errors.DeliveryLost):
        delivered.delivery.nack(requeue=True)
    assert isinstance(ended(machine.receive(deliver(3))), errors.AmqpProtocolError)


# --- commands -------------------------------------------------------------------------------------------------------


def test_what_is_declared_arrives_as_it_was_meant() -> None:
    machine = opened()
    channel = with_channel(machine)
    channel.declare_exchange(Exchange("e", "topic", arguments={"alternate-exchange": "a"}))
    ((number, exchange),) = sent(machine)
    assert number == 1
    assert (exchange.exchange, exchange.exchange_type, exchange.durable, exchange.passive) == (
        "e",
        "topic",
        True,
        False,
    )
    assert exchange.arguments == {"alternate-exchange": "a"}
    assert isinstance(answer(machine, channel, commands.Exchange.DeclareOk())[0], Replied)
    channel.declare_queue(QUEUE)
    ((_, queue),) = sent(machine)
    assert (queue.queue, queue.durable, queue.exclusive, queue.auto_delete) == ("q", True, False, False)
    assert queue.arguments == {"x-queue-type": "quorum"}
    (event,) = answer(machine, channel, commands.Queue.DeclareOk("q", 3, 1))
    assert (event.method.message_count, event.method.consumer_count) == (3, 1)
    channel.bind_queue(Binding("q", "e", "a.#", {"x": 1}))
    ((_, binding),) = sent(machine)
    assert (binding.queue, binding.exchange, binding.routing_key, binding.arguments) == ("q", "e", "a.#", {"x": 1})


def test_a_second_command_before_the_answer_and_one_that_cannot_be_encoded_are_misuse_and_send_nothing() -> None:
    machine = opened()
    channel = with_channel(machine)
    with pytest.raises(errors.AmqpMisuse, match=r"Queue\.Declare cannot be sent"):
        channel.declare_queue(Queue("q", arguments={"x": object()}))
    with pytest.raises(errors.AmqpMisuse, match="none from 1 to 65535"):
        channel.limit_deliveries(0)
    with pytest.raises(errors.AmqpMisuse, match="after limit_deliveries"):
        channel.consume("q")
    assert machine.pending == 0
    channel.declare_queue(QUEUE)
    with pytest.raises(errors.AmqpMisuse, match=r"before Queue.DeclareOk has come"):
        channel.declare_queue(QUEUE)


def test_a_connection_has_so_many_channels_and_no_more() -> None:
    machine = opened(limits=AmqpLimits(channels=2))
    assert [machine.open_channel().number for _ in range(2)] == [1, 2]
    with pytest.raises(errors.AmqpMisuse, match="all 2 channels"):
        machine.open_channel()


def test_a_message_is_cut_into_frames_of_the_agreed_size() -> None:
    machine = opened(tune=commands.Connection.Tune(0, 4096, 0))
    channel = with_channel(machine)
    body = bytes(range(256)) * 40
    assert channel.publish(to("q", body, message_id="m", type="event", headers={"n": 1}, persistent=False)) == 0
    data = machine.data_to_send()
    assert all(len(part) <= 4096 for part in data.split(b"\xce\x03"))
    machine._send(data)
    (_, publish), (_, head), *parts = sent(machine)
    assert (publish.routing_key, publish.mandatory) == ("q", False)
    assert (head.body_size, head.properties.message_id, head.properties.delivery_mode) == (len(body), "m", 1)
    assert head.properties.message_type == "event"
    assert b"".join(part.value for _, part in parts) == body
    assert len(parts[0][1].value) == 4096 - 8


def test_output_is_taken_in_pieces() -> None:
    machine = opened()
    machine.send_heartbeat()
    machine.send_heartbeat()
    assert machine.data_to_send(10) + machine.data_to_send(100) == b"\x08\0\0\0\0\0\0\xce" * 2


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (to(body=bytes(1_048_577)), "over the limit of 1048576"),
        (to(headers={"x": "y" * 17_000}), "over the limit of 16384"),
        (to(message_id="m" * 256), "the properties of a message cannot be sent"),
        (to(headers={"x": object()}), "the properties of a message cannot be sent"),
        (to(priority=1000), "the properties of a message cannot be sent"),
        (to("q" * 256), "Basic.Publish cannot be sent"),
    ],
)
def test_a_message_that_cannot_be_sent_is_misuse_and_sends_nothing(message, words) -> None:
    machine = opened()
    channel = publisher(machine)
    with pytest.raises(errors.AmqpMisuse, match=words):
        channel.publish(message)
    assert machine.pending == 0
    assert not channel.unconfirmed


# --- confirms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "outcomes"),
    [
        ([Basic.Ack(1)], [((1,), True)]),
        ([Basic.Ack(2), Basic.Ack(1)], [((2,), True), ((1,), True)]),
        ([Basic.Ack(3, multiple=True)], [((1, 2, 3), True)]),
        ([Basic.Ack(2), Basic.Ack(3, multiple=True)], [((2,), True), ((1, 3), True)]),
        ([Basic.Ack(0, multiple=True)], [((1, 2, 3, 4), True)]),
        ([Basic.Nack(2)], [((2,), False)]),
        ([Basic.Nack(4, multiple=True)], [((1, 2, 3, 4), False)]),
    ],
)
def test_confirmations_name_the_publishes_that_they_answer(frames, outcomes) -> None:
    machine = opened()
    channel = publisher(machine)
    assert [channel.publish(to()) for _ in range(4)] == [1, 2, 3, 4]
    events = machine.receive(b"".join(method(each, 1) for each in frames))
    assert [(event.numbers, event.accepted) for event in events] == outcomes
    left = {1, 2, 3, 4}.difference(*(numbers for numbers, _ in outcomes))
    assert set(channel.unconfirmed) == left


@pytest.mark.parametrize(
    "frames",
    [
        [Basic.Ack(5)],
        [Basic.Ack(5, multiple=True)],
        [Basic.Ack(1)] * 2,
        [Basic.Nack(0)],
        [Basic.Ack(4, multiple=True)] * 2,
    ],
)
def test_a_confirmation_of_what_is_not_unconfirmed_breaks_the_protocol(frames) -> None:
    machine = opened()
    channel = publisher(machine)
    for _ in range(4):
        channel.publish(to())
    machine.data_to_send()
    error = ended(machine.receive(b"".join(method(each, 1) for each in frames)))
    assert isinstance(error, errors.AmqpProtocolError)
    assert "which is not unconfirmed" in str(error)
    ((_, close),) = sent(machine)
    assert close.reply_code == 406


def test_a_returned_message_is_found_by_its_id_and_then_confirmed() -> None:
    machine = opened()
    channel = publisher(machine)
    for name in "abc":
        channel.publish(to("nowhere", message_id=name), mandatory=True)
    channel.publish(to("q", message_id="b"))
    returned = content(Basic.Return(312, "NO_ROUTE", "", "nowhere"), b"long" * 100_000, message_id="b")
    event, confirmed = machine.receive(returned + method(Basic.Ack(2), 1))
    assert isinstance(event, MessageReturned)
    assert event.number == 2
    assert isinstance(event.error, errors.NoRoute)
    assert confirmed == Confirmed(channel, (2,), accepted=True)
    error = ended(machine.receive(content(Basic.Return(312, "NO_ROUTE", "", "nowhere"), message_id="b")))
    assert "that was not published as mandatory" in str(error)


@pytest.mark.parametrize("message_id", [None, "a"])
def test_a_mandatory_message_needs_an_id_of_its_own(message_id) -> None:
    channel = publisher(opened())
    channel.publish(to(message_id="a"), mandatory=True)
    with pytest.raises(errors.AmqpMisuse, match="a message_id that no other"):
        channel.publish(to(message_id=message_id), mandatory=True)


# --- deliveries -----------------------------------------------------------------------------------------------------


def test_a_delivery_carries_the_whole_message_and_is_settled_on_its_own_channel() -> None:
    machine = opened()
    consumer(machine)
    other = consumer(machine)
    body = bytes(range(256)) * 10
    data = deliver(7, body, consumer="hearth-2", channel=2, piece=100, redelivered=True, message_id="m",
                   message_type="event", user_id="arm", delivery_mode=2, headers={"n": [1, {"a": "b"}]})  # fmt: skip
    (event,) = machine.receive(data)
    assert isinstance(event, Delivered)
    assert event.channel is other
    delivery = event.delivery
    assert delivery.redelivered
    assert delivery.message == to(
        body=body, message_id="m", type="event", user_id="arm", headers={"n": [1, {"a": "b"}]}
    )
    assert not delivery.settled
    assert "2560 bytes" in repr(delivery)
    assert "again" in repr(delivery)
    delivery.ack()
    ((channel, ack),) = sent(machine)
    assert (channel, ack.name, ack.delivery_tag, ack.multiple) == (2, "Basic.Ack", 7, False)
    with pytest.raises(errors.AmqpMisuse, match="settled already"):
        delivery.nack(requeue=True)
    assert delivery.settled


@pytest.mark.parametrize("requeue", [True, False])
def test_a_nack_says_whether_the_message_comes_again(requeue) -> None:
    machine = opened()
    consumer(machine)
    (event,) = machine.receive(deliver(1))
    event.delivery.nack(requeue=requeue)
    ((_, nack),) = sent(machine)
    assert (nack.name, nack.delivery_tag, nack.multiple, nack.requeue) == ("Basic.Nack", 1, False, requeue)


DELIVER = method(Basic.Deliver("hearth-1", 1, False, "", "q"), 1)
"""A delivery's first frame."""


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (deliver(1, consumer="another"), "for a consumer that there is not"),
        (deliver(1) + deliver(2) + deliver(3), "more deliveries came than the prefetch of 2"),
        (deliver(2) + deliver(2), "delivery 2 came after delivery 2"),
        (deliver(1) + deliver(0), "delivery 0 came after delivery 1"),
        (DELIVER * 2, "Basic.Deliver came within a message"),
        (raw(2, bytes(14), 1), "a content header came without its method"),
        (raw(3, b"x", 1), "a part of a body came without its header"),
        (deliver(1, b"")[:-1] + b"\xce" + raw(3, b"x", 1), "a part of a body came without its header"),
        (deliver(1, b"xy", piece=1)[:-9] + raw(3, b"yz", 1), "a body is longer than its header says"),
        (DELIVER + raw(2, bytes(13), 1), "content header ends too early"),
        (DELIVER + raw(2, bytes(14), 1), "for class 0, which has no"),
        (method(Basic.Cancel("another"), 1), "Basic.Cancel came on a channel that does not wait for it"),
        (method(Channel.Flow(active=False), 1), "Channel.Flow came on a channel"),
        (method(commands.Queue.DeclareOk("q", 0, 0), 1), "Queue.DeclareOk came on a channel that does not wait for it"),
        (method(Channel.OpenOk(), 1), "Channel.OpenOk came on a channel"),
        (method(Channel.OpenOk(), 5), "a frame came for channel 5, which is not open"),
        (raw(2, bytes(14), 0), "content came on channel 0"),
        (raw(8, b"x"), "a heartbeat came with a channel or a payload"),
        (raw(8, b"", 1), "a heartbeat came with a channel or a payload"),
        (raw(4, b""), "a frame of the unknown type 4 came"),
        (b"\x01\0\0\xff\xff\xff\xff", "a frame of 4294967295 bytes came, where 262144 is the most"),
        (b"\x01\0\0\0\0\0\0\xcf", "a frame ended with 0xCF in place of 0xCE"),
        (raw(1, b"\0\x0a\0"), "the unknown method"),
        (raw(1, b"\0\x63\0\x01"), "the unknown method 99.1 came"),
        (raw(1, method(Connection.Blocked("x"))[7:-1] + b"y"), "Connection.Blocked has 1 bytes too many"),
        (raw(1, method(Connection.Blocked("x"))[7:-2]), "Connection.Blocked ends too early"),
        (raw(1, b"\0\x0a\0\x0a" + bytes(20_000)), "a method of 20004 bytes came, where 16384 is the most"),
        (method(TUNE), "Connection.Tune came in the state open"),
    ],
)  # fmt: skip
def test_what_breaks_the_protocol_ends_the_connection_with_a_named_error_and_a_last_word(data, words) -> None:
    machine = opened()
    consumer(machine, prefetch=2)
    error = ended(machine.receive(data))
    assert isinstance(error, errors.AmqpProtocolError)
    assert words in str(error)
    ((channel, close),) = sent(machine)
    assert (channel, close.name, close.reply_code) == (0, "Connection.Close", error.code)
    assert machine.receive(method(Connection.CloseOk())) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (deliver(1, bytes(2001)), "its body has 2001 bytes, where 2000 is the most"),
        (deliver(1, headers={"x": "y" * 600}), "where 500 is the most"),
        (DELIVER + raw(2, b"\0\x3c" + bytes(10) + b"\0\x01", 1),
         "more property flags than AMQP 0-9-1 defines"),
        (DELIVER + raw(2, b"\0\x3c" + bytes(10) + b"\0\x80\x05x", 1),
         "its property message_id ends too early"),
        (DELIVER + raw(2, b"\0\x3c" + bytes(10) + b"\0\x80", 1),
         "its property message_id ends too early"),
        (DELIVER + raw(2, b"\0\x3c" + bytes(10) + b"\0\x80\x01\xff", 1),
         "its property message_id cannot be read"),
        (DELIVER + raw(2, b"\0\x3c" + bytes(10) + b"\0\0xx", 1),
         "its properties have 2 bytes too many"),
    ],
)  # fmt: skip
def test_a_delivery_that_cannot_be_read_is_rejected_and_the_next_arrives(data, reason) -> None:
    machine = opened(limits=AmqpLimits(body=2000, properties=500))
    channel = consumer(machine)
    rejected, delivered = machine.receive(data + deliver(2))
    assert isinstance(rejected, DeliveryRejected)
    assert reason in rejected.reason
    ((_, reject),) = sent(machine)
    assert (reject.name, reject.delivery_tag, reject.requeue) == ("Basic.Reject", 1, False)
    assert channel.unsettled == {2}
    assert isinstance(delivered, Delivered)


def test_a_routing_key_that_is_not_utf_8_ends_nothing() -> None:
    machine = opened()
    consumer(machine)
    (event,) = machine.receive(deliver(1, key="qqq").replace(b"\x03qqq", b"\x03q\xffq"))
    assert event.delivery.message.routing_key == "q\ufffdq"


def test_a_cancelled_consumer_is_an_event_and_what_it_had_can_still_be_settled() -> None:
    machine = opened()
    channel = consumer(machine)
    delivered, cancelled = machine.receive(deliver(1) + method(Basic.Cancel("hearth-1", nowait=True), 1))
    assert cancelled == ConsumerCancelled(channel)
    delivered.delivery.ack()
    assert isinstance(ended(machine.receive(deliver(2))), errors.AmqpProtocolError)


def test_blocked_and_unblocked_are_events() -> None:
    machine = opened()
    data = method(Connection.Blocked("low on memory")) + method(Connection.Unblocked())
    assert machine.receive(data) == [Blocked("low on memory"), Unblocked()]


# --- any bytes ------------------------------------------------------------------------------------------------------

STREAM = b"".join(
    (
        method(Basic.Ack(1), 1),
        deliver(1, b"one", consumer="hearth-2", channel=2, message_id="m", headers={"a": [1, 2]}),
        b"\x08\0\0\0\0\0\0\xce",
        deliver(2, b"x" * 50, consumer="hearth-2", channel=2, piece=7),
        method(Connection.Blocked("why")),
        content(Basic.Return(312, "NO_ROUTE", "", "nowhere"), b"body", 1, message_id="r"),
        method(Basic.Nack(3, multiple=True), 1),
        deliver(3, bytes(2001), consumer="hearth-2", channel=2),
        method(Connection.Unblocked()),
        method(Basic.Cancel("hearth-2", nowait=True), 2),
        method(Channel.Close(406, "PRECONDITION_FAILED - x", 60, 80), 2),
        method(Connection.Close(320, "CONNECTION_FORCED - bye", 0, 0)),
    )
)
"""All that a broker says of itself on channel 1, a publisher's, and 2, a consumer's."""


def ready():
    """A machine for STREAM."""
    machine = opened(limits=AmqpLimits(body=2000))
    channel = publisher(machine)
    consumer(machine)
    for number in range(3):
        channel.publish(to(message_id="r" if number == 1 else None), mandatory=number == 1)
    return machine


def told(events):
    """Events, comparable between machines."""
    found = []
    for event in events:
        if isinstance(event, Delivered):
            found.append(("delivered", event.channel.number, event.delivery.message, event.delivery.redelivered))
        elif isinstance(event, ConnectionEnded):
            found.append(("ended", type(event.error), str(event.error)))
        else:
            values = [(each.name, getattr(event, each.name)) for each in event.__attrs_attrs__]
            found.append((type(event), [value.number if name == "channel" else str(value) for name, value in values]))
    return found


WHOLE = told(ready().receive(STREAM))


def test_the_stream_of_these_tests_has_every_event() -> None:
    kinds = {type(event) for event in ready().receive(STREAM)}
    assert kinds == {Confirmed, MessageReturned, Delivered, DeliveryRejected, ConsumerCancelled, ChannelEnded, Blocked,
                     Unblocked, ConnectionEnded}  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=40, unique=True))
def test_however_the_stream_is_cut_the_events_are_the_same(cuts) -> None:
    machine, events = ready(), []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(STREAM)], strict=True):
        events += machine.receive(STREAM[start:end])
        assert machine.held <= 262_144 + 8
    assert told(events) == WHOLE


def test_byte_by_byte_the_events_are_the_same() -> None:
    machine, events = ready(), []
    for byte in STREAM:
        events += machine.receive(bytes([byte]))
    assert told(events) == WHOLE


@pytest.mark.slow
def test_a_stream_that_ends_anywhere_ends_with_a_named_error() -> None:
    for end in range(0, len(STREAM), 3):
        machine = ready()
        events = machine.receive(STREAM[:end]) if end else []
        assert isinstance(ended(events + machine.receive(b"")), errors.BrokerConnectionLost)


FRAMES = {
    "start": (0, method(START)), "tune": (1, method(TUNE)), "open-ok": (2, method(OPEN_OK)),
    "close": (3, method(Connection.Close(320, "bye", 10, 50))), "close-ok": (3, method(Connection.CloseOk())),
    "blocked": (3, method(Connection.Blocked("why"))), "unblocked": (3, method(Connection.Unblocked())),
    "channel-close": (3, method(Channel.Close(404, "no", 60, 40), 1)), "ack": (3, method(Basic.Ack(1), 1)),
    "nack": (3, method(Basic.Nack(2, multiple=True), 1)),
    "cancel": (3, method(Basic.Cancel("hearth-2", nowait=True), 2)),
    "declare-ok": (4, method(commands.Queue.DeclareOk("q", 1, 2), 3)),
    "return": (3, content(Basic.Return(312, "NO_ROUTE", "", "nowhere"), b"body", 1, message_id="r")),
    "deliver": (3, deliver(1, b"one", consumer="hearth-2", channel=2, message_id="m", headers={"a": [1, {"b": True}]})),
    "heartbeat": (3, b"\x08\0\0\0\0\0\0\xce"),
}  # fmt: skip
"""Frame -> the stage at which it is right, and its bytes."""


def at(stage):
    """A machine that waits for a frame of this stage."""
    if stage < 3:
        machine = AmqpConnection(Login.plain("arm", "secret"))
        for each in (START, TUNE)[:stage]:
            machine.receive(method(each))
        return machine
    machine = ready()
    if stage == 4:
        with_channel(machine).declare_queue(QUEUE)
    return machine


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_frame_with_a_flipped_byte_ends_in_an_error_with_a_name_or_is_another_good_frame(name, flip) -> None:
    stage, data = FRAMES[name]
    for place in range(len(data)):
        machine = at(stage)
        events = machine.receive(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
        events += machine.receive(b"")
        ends = [event for event in events if isinstance(event, ConnectionEnded)]
        assert len(ends) == 1
        assert events[-1] is ends[0]
        assert isinstance(ends[0].error, errors.AmqpError)


@pytest.mark.parametrize("name", [name for name, (_, data) in FRAMES.items() if data[0] == 1 and len(data) > 12])
def test_a_method_whose_payload_is_cut_anywhere_breaks_the_protocol(name) -> None:
    stage, data = FRAMES[name]
    size = int.from_bytes(data[3:7], "big")
    for end in range(size):
        events = at(stage).receive(raw(1, data[7 : 7 + end], int.from_bytes(data[1:3], "big")))
        assert isinstance(ended(events), errors.AmqpProtocolError)


@pytest.mark.slow
@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_end_in_an_error_with_a_name_or_wait_for_more(data) -> None:
    for stage in range(5):
        machine = at(stage)
        events = machine.receive(data)
        events += machine.receive(b"")
        assert isinstance(ended(events), errors.AmqpError)


HEAD_OF_AN_ENDLESS_BODY = raw(2, b"\0\x3c\0\0" + (2**63 - 1).to_bytes(8, "big") + b"\0\0", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "flood"),
    [
        (b"", b"\x08\0\0\0\0\0\0\xce"),
        (b"", method(Connection.Blocked("x" * 200)) + method(Connection.Unblocked())),
        (DELIVER + HEAD_OF_AN_ENDLESS_BODY, raw(3, b"x", 1)),
        (DELIVER + HEAD_OF_AN_ENDLESS_BODY, raw(3, bytes(1000), 1)),
        (DELIVER + HEAD_OF_AN_ENDLESS_BODY, raw(3, b"", 1)),
    ],
    ids=["heartbeats", "blocked", "bytes of a body", "a body", "empty parts of a body"],
)
def test_endless_frames_grow_nothing(first, flood) -> None:
    machine = opened(limits=AmqpLimits(body=2000))
    consumer(machine)
    machine.receive(first)
    part = flood * (60_000 // len(flood))
    machine.receive(part)
    tracemalloc.start()
    try:
        for _ in range(5):
            assert not any(isinstance(event, ConnectionEnded) for event in machine.receive(part))
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now < 200_000
    assert machine.held == machine.pending == 0


@pytest.mark.proof
def test_a_peer_that_sends_what_is_rejected_and_reads_nothing_ends_at_a_bound() -> None:
    machine = opened(limits=AmqpLimits(body=10))
    consumer(machine)
    rejected, data = 0, deliver(1, bytes(11))
    while machine.state is ConnectionState.OPEN:
        rejected += 1
        events = machine.receive(data.replace((1).to_bytes(8, "big"), rejected.to_bytes(8, "big"), 1))
    assert "has read nothing of 2097" in str(ended(events))
    assert machine.pending < 2 * 1_048_576 + 1000
