"""One target without a tracer: `python -m tests.fuzz.untraced PLACE TARGET RUNS SEED DIRECTORY…`.

What runs under libFuzzer have kept in the directories, changed once to three times, and looked at by the same
oracle. Nothing is learned of where an input went, which is what makes it the faster half: coverage finds the ways,
this walks them often. Short inputs are taken more often than long ones, as libFuzzer does. Whatever ends this process,
be it a fault in a library's C, the input that it was looking at is in PLACE, as `CURRENT`; nothing is there otherwise.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Never

from .targets import MOST_SECONDS, TARGETS, Hang, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from types import FrameType, ModuleType

CURRENT = "current"
MOST_BYTES = 2 << 30
SHORTEST_OF = 4
"""So many are drawn, and the shortest is taken."""


def main() -> None:
    """Run as many as asked for, and say how many there were in libFuzzer's way."""
    place, name, runs, seed, *directories = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    signal.signal(signal.SIGPROF, _hang)
    faulthandler.enable()
    module, rng = load(name), random.Random(int(seed) or None)
    kept = [path.read_bytes() for each in directories for path in sorted(Path(each).iterdir())]
    done = 0
    current = Path(place, CURRENT)
    try:
        with current.open("wb", buffering=0) as file:
            for data in _inputs(module, rng, [*module.seeds(), *kept], TARGETS[name].max_len, int(runs)):
                _one(module, data, file)
                done += 1
        current.unlink()
    finally:
        print(f"stat::number_of_executed_units: {done}", flush=True)


def _inputs(module: ModuleType, rng: random.Random, kept: list[bytes], most: int, runs: int) -> Iterator[bytes]:
    made = 0
    while made < runs:
        data = min(rng.choices(kept, k=SHORTEST_OF), key=len)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            data = module.mutate(data, rng)
        if 0 < len(data) <= most:
            made += 1
            yield data


def _one(module: ModuleType, data: bytes, current: FileIO) -> None:
    current.write(data)
    # A timer and not a clock: what never returns is stopped by it. It counts processor time, as a machine is busy.
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        module.check(data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    current.seek(0)
    current.truncate()


def _hang(_signal: int, _frame: FrameType | None) -> Never:
    raise Hang(f"more than {MOST_SECONDS} s")


if __name__ == "__main__":
    main()
