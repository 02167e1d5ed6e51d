"""How fast things start: whole processes, each paired with the bare import that it cannot do without."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen

from benchmarks.quiet import quietest
from benchmarks.report import Row
from benchmarks.servers import ROOT, hearth_command, hearthd_command, started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

    Once: TypeAlias = Callable[[], float]


class CannotStart(Exception):
    """The process did not do what was asked of it."""


@frozen
class Start:
    """The time until something has started, over the time of `python -c "import MODULE"`."""

    name: str
    what: str
    goal: float
    module: str
    prepare: Callable[[Servers], Once]

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        bare = [sys.executable, "-c", f"import {self.module}"]
        once = self.prepare(servers)
        # As an installed package has it, and as the bare module has it, whatever this machine thinks of writing them.
        for package in ("hearth", "actors", "drivers"):
            compileall.compile_dir(ROOT / package, quiet=2)

        def turn(number: int) -> tuple[float, float]:
            first = _finished(bare) if number % 2 else once()
            second = once() if number % 2 else _finished(bare)
            return (second, first) if number % 2 else (first, second)

        try:
            turn(0)  # with cold caches
            turns = quietest(turn, effort.starts, repeats=effort.repeats)
        except CannotStart as error:
            yield Row(self.name, self.what, None, goal=self.goal, sense="at most", note=str(error))
            return
        times, bases = zip(*turns.kept, strict=True)
        found = [one / other for one, other in turns.kept]
        yield Row(
            self.name,
            self.what,
            median(found),
            f"x {self.module}",
            self.goal,
            "at most",
            spread=(min(found), max(found)),
            others=turns.others,
            note=f"{median(times) * 1000:.0f} ms; import {self.module}: {median(bases) * 1000:.0f} ms",
            detail={"seconds": times, "bare_seconds": bases},
        )


def _finished(command: Sequence[str]) -> float:
    """Seconds that a whole process takes."""
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    took = time.perf_counter() - begun
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
        raise CannotStart(f"exit code {done.returncode}: {last[0]}")
    return took


def _daemon(servers: Servers) -> Once:
    """Hearthd without a configuration: the simulated board, everything by default, in directories of its own."""
    folder = str(servers.folder("defaults"))
    env = {**os.environ, "RUNTIME_DIRECTORY": folder, "STATE_DIRECTORY": folder}
    return lambda: _ready(hearthd_command(), env)


def _configured(servers: Servers) -> Once:
    config = servers.config("configured")
    return lambda: _ready([*hearthd_command(), "--config", str(config)], None)


def _ready(command: Sequence[str], env: dict[str, str] | None) -> float:
    """Seconds until a daemon says that it is ready."""
    begun = time.perf_counter()
    try:
        with started(command, "", env):
            return time.perf_counter() - begun
    except RuntimeError as error:
        raise CannotStart(str(error)) from error


STARTS = [
    Start("start-hearthd", "hearthd ready on sim", 3, "trio", _daemon),
    Start("start-config", "hearthd --config FILE ready on sim", 3, "trio", _configured),
    Start("start-cli", "hearth --help", 1.5, "click", lambda _: lambda: _finished([*hearth_command(), "--help"])),
]
