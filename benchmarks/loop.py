"""How late the periods of a control loop at 1 kHz begin, beside a daemon under load.

The loop is in a process of its own (`loop_program`), as a robot's controller is. A hearthd on the same machine answers
sixteen clients as fast as it can meanwhile. Its floor is a bare thread that only waits for each period, in the same
place, by turns with the loop. What is missed is counted by the loop, and must be what the function was not called for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from benchmarks import load
from benchmarks.quiet import quietest
from benchmarks.report import Row
from benchmarks.servers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

PATIENCE_S = 120


@frozen
class LoopLateness:
    """The lateness of a control loop beside a loaded daemon."""

    name: str
    what: str
    scheduling: Literal["fifo", "other"]
    goal: float | None
    busy: bool = False

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        server = servers.hearthd("os")
        runs = load.tasks(server.address, 16)
        over = threading.Event()

        def loaded() -> None:
            while not over.is_set():
                runs.run(0.2)

        clients = threading.Thread(target=loaded)
        clients.start()
        try:
            taken = quietest(lambda _: self._both(effort), effort.rounds, [server], repeats=effort.repeats)
        finally:
            over.set()
            clients.join()
            runs.close()
        turns = taken.kept
        floors, found = [_p99(bare["late_us"]) for bare, _ in turns], [_p99(ours["late_us"]) for _, ours in turns]
        missed, due = sum(ours["missed"] for _, ours in turns), sum(ours["missed"] + ours["runs"] for _, ours in turns)
        for _, ours in turns:
            if ours["scheduling"] != self.scheduling:
                raise RuntimeError("SCHED_FIFO is not permitted here: it takes CAP_SYS_NICE or RLIMIT_RTPRIO")
            if not len(ours["late_us"]) == ours["runs"] == sum(ours["writes"].values()):
                raise RuntimeError(f"the counts are wrong: {len(ours['late_us'])} calls, {ours['runs']} runs")
        p50 = median(median(ours["late_us"]) for _, ours in turns)
        worst = max(max(ours["late_us"]) for _, ours in turns)
        yield Row(
            self.name,
            self.what,
            median(found),
            "us",
            self.goal,
            "at most",
            spread=(min(found), max(found)),
            others=taken.others,
            note=f"{median(found) / median(floors):.1f} x a bare thread ({median(floors):.0f} us); p50 {p50:.0f} us, "
            f"worst {worst:.0f} us; {missed} of {due:,} periods missed",
            detail={"p99_us": found, "floor_p99_us": floors, "missed": missed, "due": due},
        )

    def _both(self, effort: Effort) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._turn("bare", effort), self._turn("hearth", effort)

    def _turn(self, kind: str, effort: Effort) -> dict[str, Any]:
        options = ["busy"] if self.busy else []
        command = [sys.executable, "-m", "benchmarks.loop_program", kind, str(3 * effort.seconds), self.scheduling]
        done = subprocess.run(
            [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-300:])
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def _p99(late: Sequence[float]) -> float:
    return sorted(late)[round(0.99 * (len(late) - 1))]


LOOPS = [
    LoopLateness("loop-fifo", "p99 lateness at 1 kHz with SCHED_FIFO", "fifo", 150),
    LoopLateness("loop-other", "p99 lateness at 1 kHz without SCHED_FIFO", "other", 1_000),
    LoopLateness("loop-busy", "p99 with SCHED_FIFO, the runtime itself busy", "fifo", None, busy=True),
]
