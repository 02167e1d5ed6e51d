"""A program with one loop at 1 kHz, for `benchmarks.loop`: a control loop of hearth, or a bare thread as its floor.

    python -m benchmarks.loop_program hearth|bare SECONDS fifo|other [busy]

With `busy` a session of the same runtime runs one step after the other, so that two threads want the interpreter. It
prints one JSON object: the lateness of every period in microseconds, and what `stats()` counts.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import trio

import hearth

if TYPE_CHECKING:
    from hearth import LoopIO

HZ = 1000
LINE = "LED"


def bare(seconds: float, *, realtime: bool) -> dict[str, Any]:
    """The lateness of a thread that does nothing but wait for each period, as precisely as hearth's does."""
    late: list[float] = []

    def run() -> None:
        ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)
        if realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
        never = threading.Lock()
        never.acquire()
        due = time.monotonic_ns()
        for _ in range(round(seconds * HZ)):
            due += 1_000_000_000 // HZ
            left = due - time.monotonic_ns()
            if left > 0:
                never.acquire(timeout=left / 1e9)
            late.append((time.monotonic_ns() - due) / 1000)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return {"late_us": late}


async def controlled(seconds: float, *, realtime: bool, busy: bool) -> dict[str, Any]:
    """The lateness of a control loop that switches a line in each period."""
    late: list[float] = []
    level = 0

    def control(io: LoopIO) -> None:
        nonlocal level
        late.append(io.late * 1e6)
        level = 1 - level
        io.write(LINE, level)

    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session() as session:
        async with runtime.loop(HZ, control, lines=[LINE], realtime=realtime) as loop:
            with trio.move_on_after(seconds):
                while busy:
                    await session.run("gpio.get", line="BUTTON")
                    # The rate of reads is limited.
                    await trio.sleep(0.001)
                await trio.sleep_forever()
        stats = loop.stats()
    counts = {"runs": stats.runs, "missed": stats.missed, "writes": stats.writes, "scheduling": stats.scheduling}
    return {"late_us": late, **counts}


def main() -> None:
    """Measure, and print."""
    kind, seconds, scheduling, *rest = sys.argv[1:]
    realtime = scheduling == "fifo"
    if kind == "bare":
        found = bare(float(seconds), realtime=realtime)
    else:
        found = trio.run(lambda: controlled(float(seconds), realtime=realtime, busy="busy" in rest))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
