"""CAN at 1,000 frames a second: the processor time of hearthd, beside that of a bare program, and what it loses.

Another process sends the frames on a virtual bus, each with the time it is due. hearthd passes all of them to a
client and decodes those that its DBC file has: one in four. The bare program receives the same frames on Trio, and does
nothing with them. Processor time is the kernel's account of the process; the client's is not in it.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import trio
from attrs import frozen
from support.can_bus import virtual

import hearth
from benchmarks.report import Row
from benchmarks.servers import hearthd_command, started
from hearth.drivers.boards.can import SHIPPED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.hil.bench import Effort

RATE = 1_000
INTERFACE = "vcan7"

SENDER = """
import socket, struct, sys, time
count, rate = int(sys.argv[2]), int(sys.argv[3])
made = socket.socket(socket.AF_CAN, socket.SOCK_RAW, socket.CAN_RAW)
made.setsockopt(socket.SOL_CAN_RAW, socket.CAN_RAW_FILTER, b"")
made.bind((sys.argv[1],))
begun = time.monotonic()
for number in range(count):
    wait = begun + number / rate - time.monotonic()
    if wait > 0:
        time.sleep(wait)
    key = 0x100 if number % 4 == 0 else 0x400 + number % 64
    made.send(struct.pack("=IB3xQ", key, 8, number & 0x3FFF))
print(time.monotonic() - begun)
"""

BARE = """
import socket, sys, trio

async def main():
    made = socket.socket(socket.AF_CAN, socket.SOCK_RAW, socket.CAN_RAW)
    made.bind((sys.argv[1],))
    stream = trio.socket.from_stdlib_socket(made)
    print("bare: ready on nothing", file=sys.stderr, flush=True)
    while True:
        await stream.recv(72)

trio.run(main)
"""

BOARD = """
name = "can"
description = "a virtual CAN bus"
[[can]]
bus = "can0"
driver = "socketcan"
interface = "{interface}"
dbc = "{dbc}"
"""

CONFIG = """
[server]
socket = "{folder}/can.sock"
[board]
profile = "{folder}/can.toml"
[audit]
path = "{folder}/can/audit.log"
"""


@frozen
class CanLoad:
    """The daemon's processor time for the frames, over that of the bare program."""

    name: str
    what: str
    tool: str

    def __call__(self, folder: Path, effort: Effort) -> Iterator[Row]:
        """Measure."""
        (folder / "can.toml").write_text(BOARD.format(interface=INTERFACE, dbc=SHIPPED / "sim.dbc"))
        (folder / "can.conf").write_text(CONFIG.format(folder=folder))
        (folder / "can").mkdir(exist_ok=True)
        count = int(max(effort.idle, 2.0) * RATE)
        with (
            virtual(INTERFACE),
            started([*hearthd_command(), "--config", str(folder / "can.conf")], "") as daemon,
            started([sys.executable, "-c", BARE, INTERFACE], "") as bare,
        ):
            servers = [daemon, bare]
            took, cpu, seen, lost = trio.run(self._run, folder, servers, count)
        each = [1e6 * seconds / count for seconds in cpu]
        yield Row(
            self.name,
            self.what,
            cpu[0] / max(cpu[1], 1e-9),
            "x bare",
            5.0,
            "at most",
            # System calls are many times slower here than natively, for both programs.
            note=f"{each[0]:.0f} µs a frame, the bare program {each[1]:.0f} µs; {seen} of {count} frames, {lost} lost",
            detail={"frames": count, "seconds": took, "cpu_seconds": cpu, "seen": seen, "lost": lost},
        )
        yield Row(
            f"{self.name}-lost",
            "of them, frames that the client did not get",
            float(count - seen),
            "frames",
            0,
            "at most",
            note=f"{lost} reported as lost",
        )

    async def _run(self, folder: Path, servers: list, count: int) -> tuple[float, list[float], int, int]:
        async with (
            hearth.connect(str(folder / "can.sock")) as client,
            client.open_session(client_name="bench") as session,
        ):
            await session.run("can.read", bus="can0", timeout_ms=0)
            if self.tool == "can.watch":
                task = await session.submit(
                    "watch",
                    [hearth.step("can.watch", bus="can0", count=count, timeout_ms=int(count * 1000 / RATE) + 15_000)],
                )
                await trio.sleep(1.0)  # until the watch has begun
            before = [server.cpu_seconds() for server in servers]
            begun = time.monotonic()
            async with trio.open_nursery() as nursery:
                command = [sys.executable, "-c", SENDER, INTERFACE, str(count), str(RATE)]
                nursery.start_soon(trio.run_process, command)
                seen, lost = await (self._watched(task) if self.tool == "can.watch" else self._read(session, count))
            took = time.monotonic() - begun
            return took, [server.cpu_seconds() - one for server, one in zip(servers, before, strict=True)], seen, lost

    @staticmethod
    async def _watched(task: hearth.Task) -> tuple[int, int]:
        with trio.fail_after(120):
            result = (await task.wait()).raise_for_status().steps[0].result
        return result["seen"], result["lost"]

    @staticmethod
    async def _read(session: hearth.Session, count: int) -> tuple[int, int]:
        seen = lost = 0
        while seen + lost < count:
            answer = await session.run("can.read", bus="can0", count=min(256, count - seen), timeout_ms=5000)
            seen += len(answer["frames"])
            lost += answer["lost"]
            if answer["timed_out"]:
                break
        return seen, lost


LOADS = [
    CanLoad("can-read", "CAN at 1,000 frames/s, can.read of all", "can.read"),
    CanLoad("can-watch", "CAN at 1,000 frames/s, can.watch of all", "can.watch"),
]
