"""Rates against floor A: short rounds, floor and hearth by turns, one ratio per round, the median of the ratios.

Both sides see the same machine in the same second, which is what makes a ratio worth more than a rate here. The
server's CPU time per exchange is kept too: it hardly depends on what else the machine does.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, field, frozen

from benchmarks import load
from benchmarks.quiet import quietest
from benchmarks.report import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.load import Load, Round
    from benchmarks.servers import Server, Servers

MakeLoad: TypeAlias = "Callable[[str, int], Load]"


@frozen
class Effort:
    """How long to measure."""

    rounds: int
    seconds: float
    many: int
    """How many idle sessions, connections or tasks to divide memory by."""
    idle: int
    """How many idle sessions to look for pauses with."""
    starts: int
    """How often to start a process."""


@define
class Side:
    """One server under one load, round by round."""

    server: Server
    load: Load
    rounds: list[Round] = field(factory=list)
    cpu: list[float] = field(factory=list)
    """Seconds of the server's CPU time per exchange."""

    def run(self, seconds: float) -> tuple[Round, float]:
        """One round, and the CPU time per exchange."""
        before = self.server.cpu_seconds()
        done = self.load.run(seconds)
        return done, (self.server.cpu_seconds() - before) / len(done.latencies)

    @property
    def rate(self) -> float:
        """The median rate."""
        return median(one.rate for one in self.rounds)

    @property
    def cpu_us(self) -> float:
        """The median CPU time per exchange, in microseconds."""
        return median(self.cpu) * 1e6

    def percentile_us(self, percent: float) -> float:
        """The median over the rounds of a latency, in microseconds."""
        return median(one.percentile(percent) for one in self.rounds) * 1e6


def by_turns(sides: list[Side], effort: Effort) -> float:
    """Warm up, then let the sides run their rounds, in alternating order; returns how many CPUs others used."""

    def turn(number: int) -> list[tuple[Round, float]]:
        done = [side.run(effort.seconds) for side in (sides if number % 2 == 0 else reversed(sides))]
        return done if number % 2 == 0 else done[::-1]

    try:
        for side in sides:
            side.load.run(min(0.5, effort.seconds))
        turns = quietest(turn, effort.rounds, {side.server.pid: side.server for side in sides}.values())
    finally:
        for side in sides:
            side.load.close()
    for index, side in enumerate(sides):
        side.rounds = [done[index][0] for done in turns.kept]
        side.cpu = [done[index][1] for done in turns.kept]
    return turns.others


def ratios(over: Side, under: Side) -> list[float]:
    """The ratio of the rates, per round."""
    return [one.rate / other.rate for one, other in zip(over.rounds, under.rounds, strict=True)]


@frozen
class Rate:
    """One measure: hearth under a load, against floor A with as many connections."""

    name: str
    what: str
    connections: int
    goal: float | None
    load: MakeLoad = load.tasks
    floor: str | None = None
    """Another floor instead of hearth."""
    durability: str = "os"
    style: str | None = None

    def server(self, servers: Servers) -> Server:
        """The server that is measured."""
        if self.floor is not None:
            return servers.floor(self.floor)
        return servers.hearthd(self.style or self.durability, durability=self.durability, style=self.style)

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        floor_server = servers.floor("a")
        server = self.server(servers)
        floor = Side(floor_server, load.floor(floor_server.address, self.connections))
        side = Side(server, self.load(server.address, self.connections))
        others = by_turns([floor, side], effort)
        found = ratios(side, floor)
        yield Row(
            self.name,
            self.what,
            median(found),
            "x A",
            self.goal,
            spread=(min(found), max(found)),
            others=others,
            note=(
                f"{side.rate:,.0f}/s; A {floor.rate:,.0f}/s; "
                f"CPU {side.cpu_us:.0f} us each, {floor.cpu_us / side.cpu_us:.2f} x A"
            ),
            detail={
                "connections": self.connections,
                "rates": [one.rate for one in side.rounds],
                "floor_rates": [one.rate for one in floor.rounds],
                "cpu_us": side.cpu_us,
                "floor_cpu_us": floor.cpu_us,
                "p50_us": side.percentile_us(50),
                "p99_us": side.percentile_us(99),
                "floor_p50_us": floor.percentile_us(50),
                "floor_p99_us": floor.percentile_us(99),
            },
        )


RATES = [
    Rate("floor-b-1", "floor B, 1 connection", 1, None, load.floor, floor="b"),
    Rate("floor-b-16", "floor B, 16 connections", 16, None, load.floor, floor="b"),
    Rate("get-1", "task.get, 1 connection", 1, 0.6, load.answers),
    Rate("get-16", "task.get, 16 connections", 16, 0.5, load.answers),
    Rate("task-1", "whole task, inline bus, 1 connection", 1, 0.25),
    Rate("task-16", "whole task, inline bus, 16 connections", 16, 0.25),
    Rate("thread-1", "whole task, bus with a thread, 1 connection", 1, 0.15, style="thread"),
    Rate("thread-16", "whole task, bus with a thread, 16 connections", 16, 0.15, style="thread"),
    Rate("fsync-64", "whole task, fsync, 64 in flight", 64, 0.1, durability="fsync"),
]
