"""Rates against floor A: short rounds, floor and hearth by turns, one ratio per round, the median of the ratios.

Both sides see the same machine in the same second, which is what makes a ratio worth more than a rate here. The
server's CPU time per exchange is kept too: it hardly depends on what else the machine does.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Protocol, TypeAlias

from attrs import define, field, frozen

from benchmarks import load, websocket
from benchmarks.quiet import REPEATS, quietest
from benchmarks.report import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.load import Round
    from benchmarks.servers import Server, Servers

MakeLoad: TypeAlias = "Callable[[str, int], Runs]"


class Runs(Protocol):
    """What drives a server: a `load.Load`, or something that is used like one."""

    def run(self, seconds: float) -> Round:
        """Drive it for so long."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


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
    repeats: int = REPEATS
    """How often, at most, a turn is taken because others disturbed it."""


@define
class Side:
    """One server under one load, round by round."""

    server: Server
    load: Runs
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
        servers = {side.server.pid: side.server for side in sides}.values()
        turns = quietest(turn, effort.rounds, servers, repeats=effort.repeats)
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
class Base:
    """A floor that others are measured against: its name, what it is called in a table, and its load."""

    name: str
    short: str
    load: MakeLoad


A = Base("a", "A", load.floor)
ECHO = Base("echo", "echo", websocket.floor)


@frozen
class Rate:
    """One measure: hearth under a load, against a floor with as many connections."""

    name: str
    what: str
    connections: int
    goal: float | None
    load: MakeLoad = load.tasks
    floor: str | None = None
    """Another floor instead of hearth."""
    durability: str = "os"
    style: str | None = None
    base: Base = A

    def server(self, servers: Servers) -> Server:
        """The server that is measured."""
        if self.floor is not None:
            return servers.floor(self.floor)
        return self.hearthd(servers, self.style or self.durability)

    def hearthd(self, servers: Servers, name: str, options: Sequence[str] = ()) -> Server:
        """A daemon as this measure wants it."""
        return servers.hearthd(name, durability=self.durability, style=self.style, options=options)

    def connect(self, server: Server, make: MakeLoad) -> Runs:
        """A load for a server, over this measure's carrier."""
        return make(server.address, self.connections)

    def sides(self, servers: Servers, effort: Effort) -> tuple[Side, Side, float]:
        """The floor and what is measured against it, after their rounds, and how many CPUs others used."""
        floor_server = servers.floor(self.base.name)
        server = self.server(servers)
        floor = Side(floor_server, self.connect(floor_server, self.base.load))
        try:
            side = Side(server, self.connect(server, self.load))
        except BaseException:
            floor.load.close()
            raise
        return floor, side, by_turns([floor, side], effort)

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        yield self.row(*self.sides(servers, effort))

    def row(self, floor: Side, side: Side, others: float) -> Row:
        """The ratio of the rates."""
        found = ratios(side, floor)
        return Row(
            self.name,
            self.what,
            median(found),
            f"x {self.base.short}",
            self.goal,
            spread=(min(found), max(found)),
            others=others,
            note=(
                f"{side.rate:,.0f}/s; {self.base.short} {floor.rate:,.0f}/s; "
                f"CPU {side.cpu_us:.0f} us each, {floor.cpu_us / side.cpu_us:.2f} x {self.base.short}"
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


@frozen
class WebSocketRate(Rate):
    """The same over WebSocket."""

    def hearthd(self, servers: Servers, name: str, options: Sequence[str] = ()) -> Server:
        """See Rate: a daemon that listens there too, apart from those that do not."""
        return servers.hearthd(f"{name}-ws", durability=self.durability, options=options, websocket=True)

    def connect(self, server: Server, make: MakeLoad) -> Runs:
        """See Rate."""
        return make(server.over_websocket(), self.connections)


RATES: list[Rate] = [
    Rate("floor-b-1", "floor B, 1 connection", 1, None, load.floor, floor="b"),
    Rate("floor-b-16", "floor B, 16 connections", 16, None, load.floor, floor="b"),
    Rate("get-1", "task.get, 1 connection", 1, 0.65, load.answers),
    Rate("get-16", "task.get, 16 connections", 16, 0.8, load.answers),
    Rate("task-1", "whole task, inline bus, 1 connection", 1, 0.3),
    Rate("task-16", "whole task, inline bus, 16 connections", 16, 0.28),
    Rate("thread-1", "whole task, bus with a thread, 1 connection", 1, 0.18, style="thread"),
    Rate("thread-16", "whole task, bus with a thread, 16 connections", 16, 0.15, style="thread"),
    Rate("fsync-64", "whole task, fsync, 64 in flight", 64, 0.15, durability="fsync"),
    WebSocketRate("ws-get-1", "task.get over WebSocket, 1 connection", 1, 0.6, websocket.answers, base=ECHO),
    WebSocketRate("ws-get-16", "task.get over WebSocket, 16 connections", 16, 0.6, websocket.answers, base=ECHO),
]
