"""The processor time of an embedded `session.run("gpio.set")`, audited, over the least that an audited actor costs.

The floor is the start and the end of one Trio task, which waits for nothing, and one record in the same journal. Both
take turns in one process, in short slices; what else the machine does only adds, so the quickest slices count.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from attrs import frozen

from benchmarks.report import Row
from hearth.actors.embedded import open_runtime
from hearth.config.model import AuditConfig, Config, PolicyConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

SLICE = 100
SLICES_A_ROUND = 10
GOAL = 3.0
RECORD = {"event": "bench", "session_id": "01KA6XJ5R2V8M3Q9T7Z4N0B1CD", "task_id": "01KA6XJ5R2V8M3Q9T7Z4N0B1CE"}


async def slice_us(call: Callable[[], Awaitable[Any]]) -> float:
    """Microseconds of this thread's processor time for a call, over one slice."""
    began = time.thread_time_ns()
    for _ in range(SLICE):
        await call()
    return (time.thread_time_ns() - began) / 1000 / SLICE


async def nothing() -> None:
    """Wait for nothing."""


async def measured(place: Path, slices: int) -> tuple[float, float]:
    """The time of a step, and that of the floor."""
    rates = {"*": "999999/s"}
    policy = (PolicyConfig(name="bench", match={"any": True}, max_risk=2, rate=rates),)
    audit = AuditConfig(path=place / "audit.log", key=place / "key", reserve_bytes=0)
    async with open_runtime(config=Config(audit=audit, policy=policy)) as runtime, runtime.open_session() as session:
        journal = runtime._runtime.parts.journal
        value = 0

        async def step() -> None:
            nonlocal value
            value ^= 1
            await session.run("gpio.set", line=17, value=value)

        async def floor() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(nothing)
            await journal.write(RECORD)

        steps, floors = [], []
        for _ in range(slices):
            floors.append(await slice_us(floor))
            steps.append(await slice_us(step))
    return min(steps), min(floors)


@frozen
class Embedded:
    """A step of an embedding program."""

    name: str = "embedded-run"
    what: str = 'embedded session.run("gpio.set"), CPU time'

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        del servers  # none is needed
        with tempfile.TemporaryDirectory(prefix="hearth-bench-") as place:
            step, floor = trio.run(measured, Path(place), SLICES_A_ROUND * effort.rounds)
        note = f"{step:.0f} us; a Trio task and a record {floor:.0f} us"
        yield Row(self.name, self.what, step / floor, "x floor", GOAL, "at most", note=note)


EMBEDDED = [Embedded()]
