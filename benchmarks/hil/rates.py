"""How often a line is set in a second, against a bare gpiod loop that sets it through one thread hop each time.

The loop is what a Trio program writes first: `trio.to_thread.run_sync(request.set_value, line, value)`, one at a
time. A chip that is memory-mapped needs no thread, and hearth uses none there; so the same is measured on a chip
declared `blocking`, where hearth too pays for a hop.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Literal

import trio
from attrs import frozen
from gpiod.line import Value

from benchmarks.hil.bench import open_bench
from benchmarks.report import Row
from hearth import step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from benchmarks.hil.bench import Bench, Effort

STEPS = 256
"""Steps of a task, as many as it may have by default."""


async def bare(bench: Bench, until: float) -> int:
    """Set the bare line, one hop each time; how often."""
    done = 0
    set_value = bench.output.set_value
    while time.perf_counter() < until:
        for value in (Value.ACTIVE, Value.INACTIVE):
            await trio.to_thread.run_sync(set_value, "bare", value)
            done += 1
    return done


async def steps(bench: Bench, until: float) -> int:
    """Set hearth's line in tasks of many steps; how often."""
    plan = [step("gpio.set", line="ours", value=number % 2) for number in range(STEPS)]
    done = 0
    while time.perf_counter() < until:
        task = await bench.session.submit("set it", plan)
        (await task.wait()).raise_for_status()
        done += STEPS
    return done


async def tasks(bench: Bench, until: float) -> int:
    """Set hearth's line in tasks of one step, each followed to its end; how often."""
    done = 0
    while time.perf_counter() < until:
        task = await bench.session.submit("set it", [step("gpio.set", line="ours", value=done % 2)])
        (await task.wait()).raise_for_status()
        done += 1
    return done


@frozen
class SetRate:
    """The rate of one way to set a line, over that of the bare loop, by turns."""

    name: str
    what: str
    way: Callable[[Bench, float], Awaitable[int]]
    goal: float | None
    blocking: bool = False
    sense: Literal["at least"] = "at least"

    def __call__(self, folder: Path, effort: Effort) -> Iterator[Row]:
        """Measure."""
        yield trio.run(self._measure, folder, effort)

    async def _measure(self, folder: Path, effort: Effort) -> Row:
        async with open_bench(folder, blocking=self.blocking) as bench:
            for way in (bare, self.way):
                await _rate(way, bench, min(0.3, effort.seconds))
            kept = []
            for number in range(effort.rounds):
                first, second = (bare, self.way) if number % 2 == 0 else (self.way, bare)
                rates = {way: await _rate(way, bench, effort.seconds) for way in (first, second)}
                kept.append((rates[self.way], rates[bare]))
        found = [ours / floor for ours, floor in kept]
        return Row(
            self.name,
            self.what,
            median(found),
            "x bare",
            self.goal,
            self.sense,
            spread=(min(found), max(found)),
            note=f"{median(one for one, _ in kept):,.0f}/s; bare {median(one for _, one in kept):,.0f}/s",
            detail={"rates": [one for one, _ in kept], "bare_rates": [one for _, one in kept]},
        )


async def _rate(way: Callable[[Bench, float], Awaitable[int]], bench: Bench, seconds: float) -> float:
    begun = time.perf_counter()
    done = await way(bench, begun + seconds)
    return done / (time.perf_counter() - begun)


RATES = [
    SetRate("set-steps", "gpio.set, steps of one task", steps, 0.5),
    SetRate("set-tasks", "gpio.set, whole tasks", tasks, 0.5),
    SetRate("set-steps-thread", "gpio.set, steps of one task, a chip that blocks", steps, 0.5, blocking=True),
    SetRate("set-tasks-thread", "gpio.set, whole tasks, a chip that blocks", tasks, 0.5, blocking=True),
]
