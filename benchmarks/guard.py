"""The cost that the guard before a driver adds to a step: with nothing configured, and with limits and interlocks.

Measured in this process, because it is a few microseconds: a GPIO line of the simulated chip is switched on by the
driver alone, and by the guarded driver. The figure is the difference.

Measured over the wire, as the time of a whole task: a daemon with a limit and an interlock for each line that is driven
and with a budget of memory for each principal, over a daemon with a plain board.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

import trio
import trio.lowlevel
from attrs import frozen

from benchmarks import load
from benchmarks.rates import Side, by_turns
from benchmarks.report import Row
from hearth.actors.bus.actor import Bus
from hearth.actors.bus.face import guard_of
from hearth.actors.bus.interlocks import Interlocks
from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

LOOPS = 20_000
BUS = "gpio:sim"
LIMIT = {"min_on_ms": 0.000_001, "max_on_ms": 60_000, "min_off_ms": 0.000_001, "max_rate_hz": 1_000_000}
"""Limits that are checked and never refuse."""


def profile(count: int) -> dict[str, Any]:
    """A board whose first line has `count` interlocks, and `count` of whose lines have limits."""
    names = [f"L{number}" for number in range(count + 2)]
    lines = {name: {"safe": 0, "limit": LIMIT} for name in names[:count]}
    locks = [{"drives": "L0", "value": 1, "requires": [{"line": name, "value": 0}]} for name in names[1 : count + 1]]
    chip = {"label": "sim", "driver": "sim", "names": names, "lines": lines}
    return {"name": "bench", "description": "a bench", "gpio": [chip], "interlock": locks}


def switching_us(switch: Callable[[int, int], object]) -> float:
    """Microseconds for switching the line on, which is what interlocks and limits are asked for; the median of many."""
    clock = time.perf_counter_ns
    found = []
    for _ in range(LOOPS):
        began = clock()
        switch(0, 1)
        found.append(clock() - began)
        switch(0, 0)
    return median(found) / 1000


async def added_us(count: int, rounds: int) -> tuple[list[float], float]:
    """What the guard adds, in each round; and what the driver takes alone."""
    board = open_board(parse_profile(profile(count), "benchmark"), style=Style.INLINE)
    driver: Any = board.drivers[BUS]
    bus = Bus(BUS, driver, guard=guard_of(BUS, driver, board.outputs[BUS]))
    found, alone = [], []
    async with trio.open_nursery() as nursery:
        driver.open()
        bus.guard.opened()
        interlocks = Interlocks.of(board, {})
        if interlocks is not None:
            interlocks.plug({BUS: bus}, lambda _event, **_fields: None, lambda _reason, _by, **_fields: None)
            nursery.start_soon(interlocks.run)
            await trio.lowlevel.checkpoint()
        for _ in range(rounds):
            alone.append(switching_us(driver.set))
            found.append(switching_us(bus.guard.face.set) - alone[-1])
        nursery.cancel_scope.cancel()
    return found, median(alone)


@frozen
class Guarding:
    """What the guard adds to switching a line on."""

    name: str
    what: str
    count: int
    goal: float

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        del servers  # none is needed
        found, alone = trio.run(added_us, self.count, effort.rounds)
        spread = (min(found), max(found))
        note = f"{median(found) / alone:.2f} x the driver alone ({alone:.2f} us)"
        yield Row(self.name, self.what, median(found), "us", self.goal, "at most", spread=spread, note=note)


LINES = 32
CONNECTIONS = 16
PLAIN = """
name = "bench"
description = "a bench"
[[gpio]]
label = "sim"
driver = "sim"
names = [{names}]
"""
GUARDED_LINE = """
[gpio.lines.L{number}]
safe = 0
limit = {{ min_on_ms = 0.000001, max_on_ms = 60000, min_off_ms = 0.000001, max_rate_hz = 1000000 }}
"""
INTERLOCK = """
[[interlock]]
drives = "L{number}"
value = 1
requires = [{{ line = "L31", value = 0 }}]
"""


@frozen
class Configured:
    """The CPU time of a whole task with limits, interlocks and a memory budget, over that without them."""

    name: str
    what: str

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        folder = servers.folder(self.name)
        plain = PLAIN.format(names=", ".join(f'"L{number}"' for number in range(LINES)))
        # The load drives the first lines, one for each connection; the last line stays off.
        driven = range(CONNECTIONS)
        rules = [text.format(number=number) for text in (GUARDED_LINE, INTERLOCK) for number in driven]
        sides = []
        for board, text, limits in (
            ("plain", plain, ""),
            ("guarded", plain + "".join(rules), "max_retained_bytes = 33_554_432"),
        ):
            path = folder / f"{board}.toml"
            path.write_text(text)
            more = f'\n[board]\nprofile = "{path}"\n'
            server = servers.hearthd(f"{self.name}-{board}", limits=limits, more=more)
            sides.append(Side(server, load.tasks(server.address, CONNECTIONS)))
        others = by_turns(sides, effort)
        without, guarded = sides
        found = [one / other for one, other in zip(guarded.cpu, without.cpu, strict=True)]
        note = f"{guarded.cpu_us:.0f} us CPU each, without {without.cpu_us:.0f} us"
        spread = (min(found), max(found))
        yield Row(self.name, self.what, median(found), "x without", 1.05, "at most", spread, others, note)


GUARDING: list[Guarding | Configured] = [
    Guarding("guard-none", "added to a gpio.set by the guard, nothing configured", 0, 5),
    Guarding("guard-ten", "added by ten limits, and ten interlocks of that line", 10, 20),
    Configured("guard-task", "CPU of a task with a limit, an interlock and a memory budget, 16 connections"),
]
