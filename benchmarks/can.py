"""CAN at 1,000 frames a second: the processor time of hearthd, what it loses, and a bare program beside it.

Another process sends the frames, each at the time when it is due. hearthd passes all of them to a client and decodes
those that its DBC file has, which is one in four. The bare program reads the same frames in the same seconds, on Trio,
and does nothing with them. Processor time is the kernel's account of each process; the client's is not in it.

Few machines have a CAN interface, so here the frames come over UDP on loopback, to the shipped driver's own read path
(`benchmarks.hearthd --can`). `benchmarks.hil` takes the same rows on a virtual bus of the kernel.
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING

import trio
from attrs import frozen

import hearth
from benchmarks.quiet import quietest
from benchmarks.report import Row
from benchmarks.servers import started
from hearth.drivers.can.spec import SHIPPED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.rates import Effort
    from benchmarks.servers import Server, Servers

RATE = 1_000
MOST_PERCENT = 10
"""The goal: percent of a core."""
MOST_OVER_BARE = 5
"""The goal beside the bare program. It decides where a system call takes many times as long as on a real machine."""
SECONDS_A_ROUND = 4
"""So many times as long as other rounds."""
ENDS_WITHIN_S = 20
"""Seconds after the last frame until a turn counts as hung."""

BOARD = """
name = "can"
description = "a CAN bus"
[[can]]
bus = "can0"
driver = "socketcan"
interface = "{interface}"
dbc = "{dbc}"
"""


def board(interface: str) -> str:
    """A board profile with one bus, whose messages are the simulated board's."""
    return BOARD.format(interface=interface, dbc=SHIPPED / "sim.dbc")


@frozen
class CanTurn:
    """What one turn took: shares of a core, of hearthd and of the bare program, and frames."""

    share: float
    bare_share: float
    sent: int
    got: int
    reported_lost: int


@frozen
class CanWire:
    """The two servers that read the frames, and where to send these."""

    daemon: Server
    bare: Server
    to: Sequence[str]
    """Wires of `can_program`."""

    async def turn(self, tool: str, count: int) -> CanTurn:
        """Send `count` frames, and let a client of hearthd get them with `tool`."""
        servers = (self.daemon, self.bare)
        async with hearth.connect(self.daemon.address) as client, client.open_session(client_name="bench") as session:
            await session.run("can.read", bus="can0", timeout_ms=0)
            task = None
            if tool == "can.watch":
                task = await session.submit("watch", [hearth.step(tool, bus="can0", count=count, timeout_ms=600_000)])
                async for event in task.events():
                    if event.phase == "start":
                        break
                # A watch sees what comes after it has begun, which this read in the same bus's queue is behind.
                await session.run("can.read", bus="can0", timeout_ms=0)
            before = [server.cpu_seconds() for server in servers]
            with trio.move_on_after(count / RATE + ENDS_WITHIN_S):
                async with trio.open_nursery() as nursery:
                    command = [sys.executable, "-m", "benchmarks.can_program", "send", str(count), str(RATE), *self.to]
                    nursery.start_soon(trio.run_process, command)
                    got, lost = await (_read(session, count) if task is None else _watched(task))
                used = [server.cpu_seconds() - one for server, one in zip(servers, before, strict=True)]
                return CanTurn(used[0] * RATE / count, used[1] * RATE / count, count, got, lost)
        raise RuntimeError(f"the client did not get {count} frames within {ENDS_WITHIN_S} s of the last one")


async def _watched(task: hearth.Task) -> tuple[int, int]:
    result = (await task.wait()).raise_for_status().steps[0].result or {}
    return result["seen"], result["lost"]


async def _read(session: hearth.Session, count: int) -> tuple[int, int]:
    got = lost = 0
    while got + lost < count:
        answer = await session.run("can.read", bus="can0", count=min(256, count - got), timeout_ms=5000)
        got += len(answer["frames"])
        lost += answer["lost"]
        if answer["timed_out"]:
            break
    return got, lost


def rows(name: str, what: str, turns: Sequence[CanTurn], *, goal: float | None, others: float | None) -> Iterator[Row]:
    """The rows of some turns: the share of a core, that share over the bare program's, and the frames lost."""
    shares = [100 * turn.share for turn in turns]
    bare = median(100 * turn.bare_share for turn in turns)
    sent, got = sum(turn.sent for turn in turns), sum(turn.got for turn in turns)
    yield Row(
        name,
        what,
        median(shares),
        "% of a core",
        goal,
        "at most",
        spread=(min(shares), max(shares)),
        others=others,
        note=f"{10 * median(shares):.0f} us a frame; the bare program {bare:.1f} %",
        detail={"shares": shares},
    )
    ratios = [turn.share / max(turn.bare_share, 1e-9) for turn in turns]
    yield Row(
        f"{name}-bare",
        "the same, over a bare program that reads the frames",
        median(ratios),
        "x bare",
        MOST_OVER_BARE,
        "at most",
        spread=(min(ratios), max(ratios)),
        others=others,
    )
    reported = sum(turn.reported_lost for turn in turns)
    yield Row(
        f"{name}-lost",
        "frames that the client did not get",
        float(sent - got),
        "frames",
        0,
        "at most",
        note=f"of {sent:,}; {reported} reported as lost",
    )


@frozen
class CanLoad:
    """hearthd's share of a core for the frames that a client gets with one tool."""

    name: str
    what: str
    tool: str

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        count = int(SECONDS_A_ROUND * effort.seconds * RATE)
        with ExitStack() as stack:
            ends = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2)]
            for end in ends:
                end.bind(("127.0.0.1", 0))
                end.setblocking(False)
            ours, bare = (end.fileno() for end in ends)
            profile = servers.folder(f"{self.name}-board") / "can.toml"
            profile.write_text(board("can0"))
            daemon = servers.hearthd(
                self.name,
                options=["--can", str(ours)],
                more=f'\n[board]\nprofile = "{profile}"\n',
                descriptors=[ours],
            )
            command = [sys.executable, "-m", "benchmarks.can_program", "bare", str(bare)]
            floor = stack.enter_context(started(command, "", descriptors=[bare]))
            wire = CanWire(daemon, floor, [str(end.getsockname()[1]) for end in ends])
            trio.run(wire.turn, self.tool, RATE)
            taken = quietest(
                lambda _: trio.run(wire.turn, self.tool, count), effort.rounds, [daemon, floor], repeats=effort.repeats
            )
        yield from rows(self.name, self.what, taken.kept, goal=MOST_PERCENT, others=taken.others)


CAN = [
    CanLoad("can-read", "CAN at 1,000 frames/s, can.read of all", "can.read"),
    CanLoad("can-watch", "CAN at 1,000 frames/s, can.watch of all", "can.watch"),
]
