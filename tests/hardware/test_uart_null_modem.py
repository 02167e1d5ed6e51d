"""A mebibyte each way at once over the kernel's null modem, through the real tools, runtime, bus and driver.

The cable has no flow control, and the kernel's driver of these ports forgets to listen again after its reader has let
some 4 KB pile up. So a sender here keeps at most `WINDOW` bytes under way: what is proven is that hearth loses nothing,
not that a kernel cannot.
"""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from zlib import crc32

import pytest
import trio

import hearth
from hearth import step
from hearth.config.model import Config, PolicyConfig
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile

SIZE = 1 << 20
WINDOW = 3000


@pytest.fixture
def board(null_modem):
    ports = [
        {"port": port, "driver": "serial", "path": path, "baud": 38_400}
        for port, path in zip(("near", "far"), null_modem, strict=True)
    ]
    return open_board(parse_profile({"name": "modem", "description": "a null modem", "uart": ports}, "a test"))


UNHURRIED = Config(policy=(PolicyConfig(name="proof", match={"any": True}, rate={"uart.*": "100000/s"}),))
"""Thousands of small writes a second would be refused by the default rate of uart.write."""


class Window:
    """What is under way in one direction."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._moved = trio.Event()

    def arrived(self, size: int) -> None:
        self.received += size
        self._moved.set()
        self._moved = trio.Event()

    async def room(self) -> int:
        while self.sent - self.received >= WINDOW:
            await self._moved.wait()
        return WINDOW - (self.sent - self.received)


async def send(session, port, data, window, dice):
    while window.sent < len(data):
        chunk = data[window.sent :][: min(await window.room(), dice.randint(1, WINDOW))]
        window.sent += len(chunk)
        assert await session.run("uart.write", port=port, data=b64encode(chunk).decode()) == {"written": len(chunk)}


def some_read(port, dice):
    """One of the ways in which a read may end, its timeout included."""
    wish = dice.choice([{}, {"len": dice.randint(1, 2000)}, {"until": "\n"}, {"gap_ms": dice.randint(1, 3)}])
    return step("uart.read", port=port, timeout_ms=dice.choice([0, 5, 20, 1000]), **wish)


async def receive(session, port, size, window, dice):
    got, cancelled = bytearray(), 0
    while len(got) < size:
        task = await session.submit("read", [some_read(port, dice)])
        if dice.random() < 0.5:
            await trio.sleep(dice.random() * 0.004)
            await task.cancel()
        done = await task.wait()
        cancelled += done.status == "CANCELLED"
        (read,) = done.steps
        # A read that was cancelled while it waited took nothing; one that was under way tells what it took.
        if read.result is not None:
            assert "overflow" not in read.result
            data = b64decode(read.result["data"])
            got += data
            window.arrived(len(data))
        else:
            assert read.status == "CANCELLED", read
    return bytes(got), cancelled


async def emptied(session, port):
    """Read what an earlier user of the cable has left in it."""
    while (await session.run("uart.read", port=port, timeout_ms=200))["data"]:
        pass


@pytest.mark.unmeasured
@pytest.mark.parametrize("seed", [1])
async def test_a_mebibyte_each_way_at_once_with_reads_cancelled_and_restarted_at_random(board, seed):
    dice = random.Random(seed)
    received = {}

    async def direction(session, sender, receiver):
        data, window = dice.randbytes(SIZE), Window()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, session, sender, data, window, dice)
            got, cancelled = await receive(session, receiver, SIZE, window, dice)
        received[receiver] = len(got), crc32(got) == crc32(data), cancelled > 50

    with trio.fail_after(240):
        async with (
            hearth.open_runtime(board=board, config=UNHURRIED) as runtime,
            runtime.open_session(client_name="proof") as session,
        ):
            for port in ("near", "far"):
                await emptied(session, port)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(direction, session, "near", "far")
                nursery.start_soon(direction, session, "far", "near")
    assert received == {"near": (SIZE, True, True), "far": (SIZE, True, True)}
