"""How even the service is: the tail on one connection, the rate under a crowd, pauses beside idle sessions."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from attrs import frozen

from benchmarks import load
from benchmarks.load import Client, encode
from benchmarks.rates import Side, by_turns, ratios
from benchmarks.report import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rates import Effort, MakeLoad
    from benchmarks.servers import Servers

CROWD = 256
FEW = 16


@frozen
class Tail:
    """p99 over p50 on one connection; floor A's beside it, since it shows what the machine adds."""

    name: str
    what: str
    load: MakeLoad

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        server, floor_server = servers.hearthd(), servers.floor("a")
        side = Side(server, self.load(server.address, 1))
        floor = Side(floor_server, load.floor(floor_server.address, 1))
        others = by_turns([floor, side], effort)
        tails = [one.percentile(99) / one.percentile(50) for one in side.rounds]
        floors = [one.percentile(99) / one.percentile(50) for one in floor.rounds]
        yield Row(
            self.name,
            self.what,
            median(tails),
            "x p50",
            4,
            "at most",
            spread=(min(tails), max(tails)),
            others=others,
            note=f"p50 {side.percentile_us(50):.0f} us, p99 {side.percentile_us(99):.0f} us; A {median(floors):.2f} x",
            detail={"tails": tails, "floor_tails": floors},
        )


@frozen
class Crowd:
    """The rate of many connections over that of a few, on one daemon."""

    name: str
    what: str
    load: MakeLoad

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        server = servers.hearthd()
        few = Side(server, self.load(server.address, FEW))
        crowd = Side(server, self.load(server.address, CROWD))
        others = by_turns([few, crowd], effort)
        found = ratios(crowd, few)
        yield Row(
            self.name,
            self.what,
            median(found),
            f"x {FEW}",
            0.8,
            spread=(min(found), max(found)),
            others=others,
            note=f"{crowd.rate:,.0f}/s, {crowd.cpu_us:.0f} us CPU each; {FEW}: {few.rate:,.0f}/s, {few.cpu_us:.0f} us",
            detail={"crowd": [one.rate for one in crowd.rounds], "few": [one.rate for one in few.rounds]},
        )


@frozen
class Pauses:
    """p99.9 of one connection on a daemon full of idle sessions, over that on a daemon with none."""

    name: str
    what: str
    load: MakeLoad

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        full, empty = servers.hearthd(self.name), servers.hearthd()
        opener = Client(full.address)
        opener.call_many([encode("session.open", {"client_name": "idle"}) for _ in range(effort.idle)])
        busy = Side(full, self.load(full.address, 1))
        quiet = Side(empty, self.load(empty.address, 1))
        try:
            others = by_turns([quiet, busy], effort)
        finally:
            opener.close()
        pairs = zip(busy.rounds, quiet.rounds, strict=True)
        found = [one.percentile(99.9) / other.percentile(99.9) for one, other in pairs]
        yield Row(
            self.name,
            f"{self.what} beside {effort.idle:,} idle sessions",
            median(found),
            "x none",
            3,
            "at most",
            spread=(min(found), max(found)),
            others=others,
            note=f"p99.9 {busy.percentile_us(99.9):,.0f} us, with none {quiet.percentile_us(99.9):,.0f} us",
            detail={"ratios": found, "longest_us": max(max(one.latencies) for one in busy.rounds) * 1e6},
        )


EVENNESS: list[Tail | Crowd | Pauses] = [
    Tail("tail-get", "p99 of task.get, 1 connection", load.answers),
    Tail("tail-task", "p99 of a whole task, 1 connection", load.tasks),
    Crowd("crowd-get", f"task.get, {CROWD} connections", load.answers),
    Crowd("crowd-task", f"whole task, {CROWD} connections", load.tasks),
    Pauses("pauses-get", "p99.9 of task.get", load.answers),
    Pauses("pauses-task", "p99.9 of a whole task", load.tasks),
]
