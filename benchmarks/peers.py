"""hearth's clients beside other ways to set a line from Python: `python -m benchmarks.peers [--python PYTHON] [NAME…]`.

Every way is a server and its own client, each a process of its own (`benchmarks.peer_programs`). hearth checks its
policy and rates and writes four audit records for each line that is set; the peers check and record nothing. The
clients take their rounds by turns, on one connection and on sixteen, so that all of them see the same machine.

The peers are packages that hearth does not need. A peer that the interpreter lacks is left out, with a note that says
how to install it:

    python -m venv .venv-peers && .venv-peers/bin/python -m pip install -r benchmarks/peers.txt
    python -m benchmarks.peers --python .venv-peers/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import IO, TYPE_CHECKING, Any

from attrs import define, field, frozen

from benchmarks import report
from benchmarks.quiet import REPEATS, quietest
from benchmarks.report import Row
from benchmarks.servers import ENDED_WITHIN, RESULTS, ROOT, Server, Servers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DOCS = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- figures: written by `python -m benchmarks.peers --docs` -->", "<!-- end of the peers' figures -->"
INSTALL = "python -m pip install -r benchmarks/peers.txt"
CONNECTIONS = (1, 16)


@frozen
class Way:
    """A way to set a line."""

    name: str
    what: str
    module: str = ""
    """The module that its interpreter must have; empty for hearth's own."""


HEARTH = Way("hearth", "hearthd, with policy, rates and audit; hearth.connect (Trio)")
WAYS = (
    HEARTH,
    Way("hearth-aio", "the same daemon; hearth.aio"),
    Way("hearth-sync", "the same daemon; hearth.sync"),
    Way("pyro5", "Pyro5", "Pyro5"),
    Way("rpyc", "RPyC", "rpyc"),
    Way("caproto", "caproto (EPICS), put with wait", "caproto"),
    Way("pymodbus", "pymodbus, write_coil", "pymodbus"),
    Way("fastapi", "FastAPI on uvicorn, uvloop and httptools; http.client", "fastapi"),
)
OBJECTS = ("pyro5", "rpyc", "caproto")
"""The peers that hearth's client is to be as fast as: they call an object, or put a value and wait for its effect."""
GOALS: tuple[tuple[str, int, Sequence[str], float], ...] = (
    ("objects-1", 1, OBJECTS, 1.0),
    ("objects-16", 16, OBJECTS, 1.0),
    ("modbus-16", 16, ("pymodbus",), 0.5),
)
"""The name of a ratio, its connections, the peers of which the best counts, and its goal."""


@define
class Driver:
    """The process of one client, with its connections."""

    way: Way
    connections: int
    process: subprocess.Popen[str]
    server: Server
    rates: list[float] = field(factory=list)
    client_cpu: list[float] = field(factory=list)
    server_cpu: list[float] = field(factory=list)

    def run(self, seconds: float) -> tuple[float, float, float]:
        """Take one round; return the rate, and the CPU seconds of client and server for each time the line was set."""
        assert self.process.stdin is not None
        before = self.server.cpu_seconds()
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        done = json.loads(_line(self.process.stdout, f"the client of {self.way.name}"))
        if not done["least"]:
            raise RuntimeError(f"{self.way.name}: a connection of {self.connections} has set nothing in {seconds} s")
        server = self.server.cpu_seconds() - before
        return done["count"] / done["seconds"], done["cpu"] / done["count"], server / done["count"]

    def keep(self, figures: tuple[float, float, float]) -> None:
        """Note a round that counts."""
        for kept, figure in zip((self.rates, self.client_cpu, self.server_cpu), figures, strict=True):
            kept.append(figure)


def _line(stream: IO[str] | None, whose: str) -> str:
    assert stream is not None
    said = stream.readline()
    if not said:
        raise RuntimeError(f"{whose} ended; what it said is above")
    return said


@contextmanager
def program(python: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run one of `benchmarks.peer_programs` until leaving."""
    command = [python, "-m", "benchmarks.peer_programs", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(ENDED_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def has(python: str, module: str) -> bool:
    """Return True if an interpreter finds a module."""
    found = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", found], check=False).returncode == 0


class Race:
    """Servers and clients of the ways to be measured, started once."""

    def __init__(self, stack: ExitStack, python: str) -> None:
        self._stack = stack
        self._python = python
        self._hearthd = stack.enter_context(Servers())
        self._servers: dict[str, Server] = {}

    def driver(self, way: Way, connections: int) -> Driver:
        """Start a client, and its server if that does not run yet."""
        server = self._server(way)
        python = self._python if way.module else sys.executable
        client = self._stack.enter_context(program(python, "drive", way.name, server.address, str(connections)))
        _line(client.stdout, f"the client of {way.name}")
        return Driver(way, connections, client, server)

    def _server(self, way: Way) -> Server:
        if not way.module:
            return self._hearthd.hearthd()
        if way.name not in self._servers:
            process: subprocess.Popen[Any] = self._stack.enter_context(program(self._python, "serve", way.name))
            address = _line(process.stdout, f"the server of {way.name}").split()[1]
            self._servers[way.name] = Server(address, process)
        return self._servers[way.name]


def measured(
    ways: Sequence[Way], connections: int, python: str, rounds: int, seconds: float
) -> tuple[list[Driver], float]:
    """Let the clients of these ways run their rounds by turns; return them, and how many CPUs others used."""
    with ExitStack() as stack:
        race = Race(stack, python)
        drivers = [race.driver(way, connections) for way in ways]
        for driver in drivers:
            driver.run(min(0.3, seconds))

        def turn(number: int) -> list[tuple[float, float, float]]:
            # Each is the first in some turns.
            order = drivers[number % len(drivers) :] + drivers[: number % len(drivers)]
            found = {driver.way.name: driver.run(seconds) for driver in order}
            return [found[driver.way.name] for driver in drivers]

        processes = {driver.server.pid: driver.server for driver in drivers}
        processes |= {driver.process.pid: Server("", driver.process) for driver in drivers}
        turns = quietest(turn, rounds, processes.values(), repeats=REPEATS)
        for one in turns.kept:
            for driver, figures in zip(drivers, one, strict=True):
                driver.keep(figures)
        return drivers, turns.others


def rows_of(drivers: Sequence[Driver], others: float) -> Iterator[Row]:
    """The rates, and hearth's ratios to the best of some peers, round by round."""
    by_name = {driver.way.name: driver for driver in drivers}
    for driver in drivers:
        count = driver.connections
        connections = "1 connection" if count == 1 else f"{count} connections"
        client, server = (median(cpu) * 1e6 for cpu in (driver.client_cpu, driver.server_cpu))
        yield Row(
            f"{driver.way.name}-{count}",
            f"{driver.way.what}, {connections}",
            median(driver.rates),
            "/s",
            spread=(min(driver.rates), max(driver.rates)),
            others=others,
            note=f"CPU: client {client:.0f} us, server {server:.0f} us each",
            detail={"rates": driver.rates, "client_cpu_us": client, "server_cpu_us": server},
        )
    for name, count, peers, goal in GOALS:
        best = max(
            (by_name[peer] for peer in peers if peer in by_name), key=lambda one: median(one.rates), default=None
        )
        ours = by_name.get(HEARTH.name)
        if ours is None or best is None or ours.connections != count:
            continue
        found = [one / other for one, other in zip(ours.rates, best.rates, strict=True)]
        what = f"hearth, against {best.way.what}" + (", the best of these" if len(peers) > 1 else "")
        spread = (min(found), max(found))
        yield Row(name, f"{what}, {count} conn.", median(found), "x", goal, spread=spread, others=others)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is there, print a table, write JSON. Returns 1 if a peer that is there could not be measured."""
    options = _options(argv)
    wanted = [way for way in WAYS if not options.names or way.name in options.names]
    rows: list[Row] = []
    ways: list[Way] = []
    for way in wanted:
        if not way.module or has(options.python, way.module):
            ways.append(way)
        else:
            print(f"{way.name}: {options.python} has no {way.module}; {INSTALL}", file=sys.stderr)
    failed = False
    for connections in CONNECTIONS if ways else ():
        try:
            rows += rows_of(*measured(ways, connections, options.python, options.rounds, options.seconds))
        except (RuntimeError, OSError) as error:
            failed = True
            what = f"{connections} connections"
            rows.append(Row(f"peers-{connections}", what, None, note=f"{type(error).__name__}: {error}"[:300]))
    print(*report.table(rows), sep="\n")
    if options.docs:
        report.rewrite(DOCS, BEGIN, END, report.markdown(rows))
    target = options.json or RESULTS / time.strftime("peers-%Y%m%d-%H%M%S.json")
    report.write(target, rows, {"rounds": options.rounds, "seconds": options.seconds})
    print(f"written to {target}")
    return int(failed)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.peers", description="Measure hearth's clients beside peers.")
    add = parser.add_argument
    names = [way.name for way in WAYS]
    add("names", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(names)}")
    add("--python", default=sys.executable, help=f"the interpreter that has the peers; {INSTALL}")
    add("--rounds", type=int, default=7, metavar="N", help="rounds of each client")
    add("--seconds", type=float, default=1.0, metavar="S", help="length of a round")
    add("--json", type=Path, metavar="FILE", help="where to write the figures (default: benchmarks/results/)")
    add("--docs", action="store_true", help="put the figures of a whole run into docs/performance.md too")
    options = parser.parse_args(argv)
    for name in options.names:
        if name not in names:
            parser.error(f"there is no {name!r}; there are {', '.join(names)}")
    if options.docs and options.names:
        parser.error("--docs wants a whole run: no names")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
