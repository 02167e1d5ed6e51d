"""What a broker sends: any bytes are events in the right order, not yet the whole of them, or the end by a named error.

An input's first byte chooses how far the connection is, the second how the rest is cut; the rest is what the broker
sends. A second reader, which knows only the framing of the standard, says which bodies a delivery may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pamqp import commands
from support.amqp import OPEN_OK, START, TUNE, consumer, content, deliver, method, publisher

from hearth.amqp.channel import Delivered, DeliveryRejected
from hearth.amqp.connection import AmqpConnection, Blocked, ConnectionEnded, Login
from hearth.amqp.errors import AmqpError
from hearth.amqp.messages import AmqpLimits, AmqpMessage

from ..mutation import bytes_of

if TYPE_CHECKING:
    import random

LIMITS: Final = AmqpLimits(frame=4096, body=1000, properties=300)
HANDSHAKE: Final = (START, TUNE, OPEN_OK)
DICTIONARY = (
    b"\xce",
    b"\x01\x00\x01\x00\x00\x00",
    b"\x00\x3c\x00\x3c",
    b"\x00\x3c\x00\x50",
    b"\x03\x00\x02",
    b"F",
    b"S",
)


def _machine(stage: int) -> AmqpConnection:
    """A connection that waits for a step of the handshake, or has a publisher, 1, and a consumer, 2."""
    machine = AmqpConnection(Login.plain("arm", "secret"), limits=LIMITS)
    for each in HANDSHAKE[:stage]:
        machine.receive(method(each))
    if stage == len(HANDSHAKE):
        channel = publisher(machine)
        consumer(machine, prefetch=5)
        for number in range(3):
            message = AmqpMessage(exchange="", routing_key="q", body=b"", message_id=str(number))
            channel.publish(message, mandatory=True)
    return machine


def _told(machine: AmqpConnection, parts: list[bytes]) -> list[Any]:
    """What a machine makes of these parts and the end after them, comparable with another's."""
    events = []
    for part in [*filter(None, parts), b""]:
        events += machine.receive(part)
        assert machine.held <= 2 * 131_072 + 8, "it keeps more than a frame"
    *others, end = events
    assert isinstance(end, ConnectionEnded), "it does not end"
    assert not any(isinstance(event, ConnectionEnded) for event in others), "it ends twice"
    assert end.error is None or isinstance(end.error, AmqpError)
    found: list[Any] = [str(end.error)]
    for event in others:
        if isinstance(event, Delivered):
            found.append((event.delivery.message, event.delivery.redelivered))
        elif isinstance(event, Blocked):
            found.append(event)
        else:
            found.append((type(event), getattr(event, "numbers", None), getattr(event, "reason", None)))
    for text in (str(end.error), *(event.reason for event in others if isinstance(event, (Blocked, DeliveryRejected)))):
        assert text.isprintable() or not text, f"a text that is not for a terminal: {text!r}"
    return found


def _bodies(stream: bytes) -> list[bytes]:
    """The bodies on channel 2 in a stream, each as long as its content header says; the last may be incomplete."""
    found: list[tuple[int, bytearray]] = []
    while len(stream) >= 8:
        size = int.from_bytes(stream[3:7], "big")
        payload = stream[7 : 7 + size]
        if stream[1:3] == b"\x00\x02" and stream[0] == 2:
            found.append((int.from_bytes(payload[4:12], "big"), bytearray()))
        elif stream[1:3] == b"\x00\x02" and stream[0] == 3 and found:
            found[-1][1].extend(payload)
        stream = stream[8 + size :]
    return [bytes(body[:size]) for size, body in found]


def check(data: bytes) -> None:
    """See the package."""
    if len(data) < 2:
        return
    stage, step, stream = data[0] % (len(HANDSHAKE) + 1), 1 + data[1], data[2:]
    whole = _told(_machine(stage), [stream])
    cut = _told(_machine(stage), [stream[at : at + step] for at in range(0, len(stream), step)])
    assert whole == cut, "it depends on how the bytes come"
    delivered = [one[0].body for one in whole if isinstance(one, tuple) and isinstance(one[0], AmqpMessage)]
    bodies = iter(_bodies(stream))
    assert all(any(body == other for other in bodies) for body in delivered), "a body that was not sent"
    assert all(len(body) <= LIMITS.body for body in delivered), "a body over the limit"


def seeds() -> list[bytes]:
    """The handshake from each step on, and what a broker says on both channels, in one stream and one by one."""
    basic, channel, connection = commands.Basic, commands.Channel, commands.Connection
    ready = [
        method(basic.Ack(1), 1),
        deliver(1, b"one", consumer="hearth-2", channel=2, message_id="m", headers={"a": [1, {"b": 2.5}]}),
        deliver(2, b"two" * 50, consumer="hearth-2", channel=2, piece=7, redelivered=True),
        deliver(3, bytes(1001), consumer="hearth-2", channel=2),
        deliver(4, consumer="hearth-2", channel=2, headers={"x": "y" * 300}),
        b"\x08\0\0\0\0\0\0\xce" + method(connection.Blocked("why")) + method(connection.Unblocked()),
        content(basic.Return(312, "NO_ROUTE", "", "nowhere"), b"body", 1, message_id="2"),
        method(basic.Nack(3, multiple=True), 1),
        method(basic.Cancel("hearth-2", nowait=True), 2),
        method(channel.Close(406, "PRECONDITION_FAILED - x", 60, 80), 2),
        method(connection.Close(320, "CONNECTION_FORCED - bye", 0, 0)),
    ]
    steps = [method(each) for each in HANDSHAKE]
    found = [bytes((stage, 3)) + b"".join(steps[stage:]) for stage in range(len(steps))]
    found += [bytes((len(steps), 6)) + one for one in ready]
    return [*found, bytes((len(steps), 40)) + b"".join(ready)]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Change bytes; half of the time give the first frame the size that it then must have."""
    changed = bytes_of(data, rng)
    if len(changed) > 10 and rng.random() < 0.5:
        end = changed.find(b"\xce", 9)
        if end > 0:
            return changed[:5] + (end - 9).to_bytes(4, "big") + changed[9:]
    return changed
