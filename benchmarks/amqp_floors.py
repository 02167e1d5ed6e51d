"""The AMQP floor: a bare publisher with confirms. `python -m benchmarks.amqp_floors PORT USER PASSWORD QUEUE SECONDS`.

It encodes each event with orjson and publishes it, persistent, over one plain TCP connection on Trio with the codec
pamqp, with WINDOW messages unconfirmed at most, and prints the confirmed messages per second. It checks nothing, knows
one channel and no reconnection, and shares no line of code with hearth.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import orjson
import trio
from pamqp import body, commands, frame, header

WINDOW = 64
RECEIVE_SIZE = 1 << 16
EVENT = {
    "hcp_version": "1.0",
    "timestamp": "2026-01-15T08:30:00.000Z",
    "session_id": "550e8400-e29b-41d4-a716-446655440000",
    "type": "event",
    "payload": {
        "sequence": 1,
        "event_type": "progress",
        "timestamp": "2026-01-15T08:30:00.000Z",
        "data": {
            "percent": 50,
            "message": "a step of a benchmark",
            "readings": {"temperature": 21.5, "pressure": 1.01},
        },
    },
}
"""An event of a job, as HCP's L1 and L2 have it; its message_id comes on top."""


class BarePublisher:
    """A connection with a channel in confirm mode."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._rest = b""
        self.unconfirmed: dict[int, None] = {}
        self._number = 0

    async def _frames(self) -> list[Any]:
        """Receive once, and return the whole frames."""
        data = await self._stream.receive_some(RECEIVE_SIZE)
        if not data:
            raise RuntimeError("the broker ended the connection")
        self._rest += data
        found = []
        while len(self._rest) >= 8 and len(self._rest) >= (size := int.from_bytes(self._rest[3:7], "big") + 8):
            found.append(frame.unmarshal(self._rest)[2])
            self._rest = self._rest[size:]
        return found

    async def _call(self, each: commands.Connection.StartOk | Any, channel: int, answer: type) -> Any:
        await self._stream.send_all(frame.marshal(each, channel))
        return await self._answer(answer)

    async def _answer(self, answer: type) -> Any:
        while True:
            for each in await self._frames():
                if isinstance(each, answer):
                    return each

    async def connect(self, user: str, password: str) -> None:
        """Do the handshake, and open the channel."""
        await self._stream.send_all(header.ProtocolHeader().marshal())
        await self._answer(commands.Connection.Start)
        start = commands.Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}", "en_US")
        tune = await self._call(start, 0, commands.Connection.Tune)
        await self._stream.send_all(frame.marshal(commands.Connection.TuneOk(1, tune.frame_max, 0), 0))
        await self._call(commands.Connection.Open("/"), 0, commands.Connection.OpenOk)
        await self._call(commands.Channel.Open(), 1, commands.Channel.OpenOk)
        await self._call(commands.Confirm.Select(), 1, commands.Confirm.SelectOk)

    async def publish(self, queue: str, data: bytes, message_id: str) -> None:
        """Send one message; wait for confirmations only while the window is full."""
        while len(self.unconfirmed) >= WINDOW:
            await self.confirm()
        properties = commands.Basic.Properties(
            content_type="application/json", delivery_mode=2, message_id=message_id, message_type="event"
        )
        await self._stream.send_all(
            frame.marshal(commands.Basic.Publish(routing_key=queue), 1)
            + frame.marshal(header.ContentHeader(0, len(data), properties), 1)
            + frame.marshal(body.ContentBody(data), 1)
        )
        self._number += 1
        self.unconfirmed[self._number] = None

    async def confirm(self) -> None:
        """Wait for confirmations."""
        for each in await self._frames():
            if not isinstance(each, commands.Basic.Ack):
                raise TypeError(f"{each.name} came in place of a confirmation")
            tag = each.delivery_tag or 0
            for number in [n for n in self.unconfirmed if n <= tag] if each.multiple else [tag]:
                del self.unconfirmed[number]


async def rate(port: int, user: str, password: str, queue: str, seconds: float) -> float:
    """Return the confirmed messages per second."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        publisher = BarePublisher(stream)
        await publisher.connect(user, password)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            message_id = f"550e8400-e29b-41d4-a716-{count:012}"
            await publisher.publish(queue, orjson.dumps({**EVENT, "message_id": message_id}), message_id)
            count += 1
        while publisher.unconfirmed:
            await publisher.confirm()
        return count / (time.perf_counter() - start)


def main(port: str, user: str, password: str, queue: str, seconds: str) -> None:
    """Measure once and print the rate."""
    print(f"{trio.run(rate, int(port), user, password, queue, float(seconds)):.0f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
