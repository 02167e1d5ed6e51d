"""How long an edge takes to its event, against a bare loop that waits for the descriptor and reads the edge.

Time counts from the kernel's own timestamp of the edge. From the moment in which the line is pulled it would be longer
by up to a tick, for both: gpio-sim raises its interrupts from the timer's, and so hides what is looked for.
"""

from __future__ import annotations

import time
from statistics import median, quantiles
from typing import TYPE_CHECKING

import gpiod
import trio
from attrs import frozen
from gpiod.line import Edge
from support.waiting import passes

from benchmarks.hil.bench import open_bench
from benchmarks.report import Row
from hearth import step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from benchmarks.hil.bench import Bench, Effort

BOUND = 60.0
"""Seconds in which a round has its edges, or counts as hung."""


@frozen
class Heard:
    """The edges of one round: microseconds from the kernel's timestamp to the program, and from the pull to it."""

    from_edge: list[float]
    from_pull: list[float]


async def bare(bench: Bench, count: int) -> Heard:
    """Wait, read, and note the time."""
    heard = Heard([], [])
    for number in range(count):
        pulled = _pull(bench, "bare-heard", number)
        await trio.lowlevel.wait_readable(bench.input.fd)
        for event in bench.input.read_edge_events():
            _note(heard, pulled, event.timestamp_ns)
    return heard


async def subscribed(bench: Bench, count: int) -> Heard:
    """Follow the task of a gpio.watch, and note the time at each of its progress events."""
    heard = Heard([], [])
    watch = step("gpio.watch", line="heard", edge="both", count=count, timeout_ms=int(BOUND * 1000))
    task = await bench.session.submit("watch it", [watch])
    events = task.events()
    async for event in events:
        if event.phase == "start" and event.step_index is not None:
            break
    # The step has begun; its watch is there when the kernel says that somebody wants edges of the line.
    await passes(lambda: _is_watched(bench))
    for number in range(count):
        pulled = _pull(bench, "heard", number)
        async for event in events:
            if event.phase == "progress":
                _note(heard, pulled, event.data["data"]["timestamp_ns"])
                break
    (await task.wait()).raise_for_status()
    return heard


def _pull(bench: Bench, line: str, number: int) -> int:
    pulled = time.monotonic_ns()
    bench.chip.pull(line, 1 - number % 2)
    return pulled


def _note(heard: Heard, pulled: int, timestamp_ns: int) -> None:
    now = time.monotonic_ns()
    heard.from_edge.append((now - timestamp_ns) / 1000)
    heard.from_pull.append((now - pulled) / 1000)


def _is_watched(bench: Bench) -> bool:
    with gpiod.Chip(bench.chip.path) as chip:
        return chip.get_line_info("heard").edge_detection is not Edge.NONE


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return quantiles(values, n=100, method="inclusive")[98]


@frozen
class EdgeLatency:
    """The 99th percentile of the latency, over that of the bare loop, by turns."""

    name: str
    what: str
    goal: float
    blocking: bool = False

    def __call__(self, folder: Path, effort: Effort) -> Iterator[Row]:
        """Measure."""
        yield trio.run(self._measure, folder, effort)

    async def _measure(self, folder: Path, effort: Effort) -> Row:
        kept: list[tuple[Heard, Heard]] = []
        async with open_bench(folder, blocking=self.blocking) as bench:
            for number in range(-1, effort.rounds):  # the first is to warm up
                first, second = (bare, subscribed) if number % 2 == 0 else (subscribed, bare)
                heard = {way: await self._round(way, bench, effort.edges) for way in (first, second)}
                if number >= 0:
                    kept.append((heard[subscribed], heard[bare]))
        found = [p99(ours.from_edge) / p99(floor.from_edge) for ours, floor in kept]
        ours, floor = ([one for pair in kept for one in pair[side].from_edge] for side in (0, 1))
        pulls = [median([one for pair in kept for one in pair[side].from_pull]) for side in (0, 1)]
        return Row(
            self.name,
            self.what,
            median(found),
            "x bare",
            self.goal,
            "at most",
            spread=(min(found), max(found)),
            note=(
                f"p50 {median(ours):.0f} us, p99 {p99(ours):.0f} us; bare {median(floor):.0f} us, {p99(floor):.0f} us; "
                f"from the pull p50 {pulls[0]:,.0f} us, bare {pulls[1]:,.0f} us"
            ),
            detail={
                "p99_us": [p99(one.from_edge) for one, _ in kept],
                "bare_us": [p99(one.from_edge) for _, one in kept],
            },
        )

    async def _round(self, way: Callable[[Bench, int], Awaitable[Heard]], bench: Bench, count: int) -> Heard:
        with trio.fail_after(BOUND):
            bench.chip.pull("heard", 0)
            bench.chip.pull("bare-heard", 0)
            return await way(bench, count)


LATENCIES = [
    EdgeLatency("edge-event", "p99 from an edge to its event", 3),
    EdgeLatency("edge-event-thread", "p99 from an edge to its event, a chip that blocks", 3, blocking=True),
]
