"""A broker's side of AMQP as bytes, written and read by the codec pamqp, and machines that have got so far."""

from __future__ import annotations

from pamqp import body, commands, frame, header

from hearth.amqp.connection import AmqpConnection, ConnectionOpened, Login
from hearth.amqp.topology import Queue

START = commands.Connection.Start(0, 9, {"product": "RabbitMQ", "capabilities": {"basic.nack": True}}, "PLAIN EXTERNAL")
TUNE = commands.Connection.Tune(2047, 131_072, 60)
OPEN_OK = commands.Connection.OpenOk()


def method(each, channel=0):
    """The frame of a method."""
    return frame.marshal(each, channel)


def raw(kind, payload, channel=0):
    """A frame of any payload."""
    return bytes([kind]) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def content(each, text=b"", channel=1, piece=131_064, **properties):
    """A method with content: deliver or return."""
    head = header.ContentHeader(0, len(text), commands.Basic.Properties(**properties))
    parts = [text[start : start + piece] for start in range(0, len(text), piece)]
    return b"".join(frame.marshal(one, channel) for one in (each, head, *map(body.ContentBody, parts)))


def deliver(tag, text=b"x", *, consumer="hearth-1", redelivered=False, key="q", channel=1, **more):
    """A delivery."""
    return content(commands.Basic.Deliver(consumer, tag, redelivered, "", key), text, channel, **more)


def sent(machine):
    """What the machine has sent since the last look: (channel, method, header, body or heartbeat) each."""
    data, found = machine.data_to_send(), []
    while data:
        used, channel, each = frame.unmarshal(data)
        found.append((channel, each))
        data = data[used:]
    return found


def names(machine):
    """The names of what the machine has sent since the last look."""
    return [each.name for _, each in sent(machine)]


def opened(login=None, *, tune=TUNE, **options):
    """A machine whose handshake is done."""
    machine = AmqpConnection(login or Login.plain("arm", "secret"), place="amqp://broker", **options)
    machine.receive(method(START) + method(tune))
    (event,) = machine.receive(method(OPEN_OK))
    assert isinstance(event, ConnectionOpened)
    machine.data_to_send()
    return machine


def with_channel(machine):
    """The machine's next channel, open."""
    channel = machine.open_channel()
    machine.receive(method(commands.Channel.OpenOk(), channel.number))
    machine.data_to_send()
    return channel


def answer(machine, channel, each):
    """The broker's answer to the last command on a channel."""
    return machine.receive(method(each, channel.number))


def publisher(machine):
    """A channel in confirm mode."""
    channel = with_channel(machine)
    channel.select_confirms()
    answer(machine, channel, commands.Confirm.SelectOk())
    machine.data_to_send()
    return channel


def consumer(machine, prefetch=10):
    """A channel with a consumer."""
    channel = with_channel(machine)
    channel.limit_deliveries(prefetch)
    answer(machine, channel, commands.Basic.QosOk())
    channel.consume("q")
    answer(machine, channel, commands.Basic.ConsumeOk(f"hearth-{channel.number}"))
    machine.data_to_send()
    return channel


QUEUE = Queue("q", arguments={"x-queue-type": "quorum"})
