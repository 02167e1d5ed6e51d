"""Ways to watch the server from inside; each saves what it saw, and `findings` shows it.

`Sampler` looks once per millisecond of CPU time: ITIMER_PROF counts CPU time only, so waiting costs no samples, and
unlike cProfile it does not make small functions look expensive. It sees the main thread, which is where Trio runs; the
time of a C function belongs to the line that called it. `Tracer` is cProfile. `Steps` counts what Trio schedules,
`Turns` measures the longest turn of its loop.
"""

from __future__ import annotations

import cProfile
import json
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import CodeType, FrameType

INTERVAL = 0.001


class Watcher(Protocol):
    """One way to watch."""

    def start(self) -> None:
        """Begin anew."""

    def stop(self) -> None:
        """Watch no more."""

    def write(self, path: Path) -> None:
        """Save what was seen."""


Place = tuple[str, int, str]
"""File, line, function."""


class Sampler:
    """Counts, from `start` to `stop`: samples by function (itself, and whatever it calls) and by line."""

    def __init__(self) -> None:
        self.samples = 0
        self._own: Counter[CodeType] = Counter()
        self._all: Counter[CodeType] = Counter()
        self._lines: Counter[tuple[CodeType, int]] = Counter()

    def start(self) -> None:
        """Begin anew."""
        self.samples = 0
        for counter in (self._own, self._all, self._lines):
            counter.clear()
        signal.signal(signal.SIGPROF, self._look)
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def stop(self) -> None:
        """Take no more samples."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _number: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self.samples += 1
        self._own[frame.f_code] += 1
        self._lines[frame.f_code, frame.f_lineno or 0] += 1
        seen = set()
        while frame is not None:
            seen.add(frame.f_code)
            frame = frame.f_back
        self._all.update(seen)

    def write(self, path: Path) -> None:
        """Save what was counted as JSON."""
        content = {
            "samples": self.samples,
            "own": [(*_place(code), count) for code, count in self._own.most_common(200)],
            "all": [(*_place(code), count) for code, count in self._all.most_common(200)],
            "lines": [
                (code.co_filename, line, code.co_qualname, count)
                for (code, line), count in self._lines.most_common(200)
            ],
        }
        path.write_text(json.dumps(content))


class Tracer:
    """cProfile: exact numbers of calls, and times that are too long for what calls much."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile()

    def start(self) -> None:
        """Begin anew."""
        self._profile.clear()
        self._profile.enable()

    def stop(self) -> None:
        """Trace no more."""
        self._profile.disable()

    def write(self, path: Path) -> None:
        """Save for pstats."""
        self._profile.dump_stats(path)


class Steps(trio.abc.Instrument):
    """How often the event loop goes round, which tasks are run, and which are started."""

    def __init__(self) -> None:
        self.turns = 0
        self.steps: Counter[str] = Counter()
        self.started: Counter[str] = Counter()

    def before_io_wait(self, timeout: float) -> None:
        """See trio.abc.Instrument."""
        self.turns += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See trio.abc.Instrument."""
        self.steps[task.name] += 1

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """See trio.abc.Instrument."""
        self.started[task.name] += 1

    def start(self) -> None:
        """Begin anew. The signal's handler runs where Trio does, so this reaches the running loop."""
        self.turns = 0
        self.steps.clear()
        self.started.clear()
        trio.lowlevel.add_instrument(self)

    def stop(self) -> None:
        """Count no more."""
        trio.lowlevel.remove_instrument(self)

    def write(self, path: Path) -> None:
        """Save what was counted as JSON."""
        path.write_text(json.dumps({"turns": self.turns, "steps": self.steps, "started": self.started}))


class Turns(trio.abc.Instrument):
    """The longest turn of the event loop, in milliseconds: of CPU time of its thread, and by the clock."""

    def __init__(self) -> None:
        self._cpu = self._wall = 0.0
        self._begun: tuple[float, float] | None = None
        self._step: tuple[float, str] = (0.0, "")
        self._step_begun = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See trio.abc.Instrument."""
        self._step_begun = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """See trio.abc.Instrument."""
        self._step = max(self._step, (time.thread_time() - self._step_begun, task.name))

    def after_io_wait(self, timeout: float) -> None:
        """See trio.abc.Instrument."""
        self._begun = time.thread_time(), time.perf_counter()

    def before_io_wait(self, timeout: float) -> None:
        """See trio.abc.Instrument."""
        if self._begun is not None:
            self._cpu = max(self._cpu, time.thread_time() - self._begun[0])
            self._wall = max(self._wall, time.perf_counter() - self._begun[1])

    def start(self) -> None:
        """Begin anew. See Steps."""
        self._cpu = self._wall = 0.0
        self._step = (0.0, "")
        self._begun = None
        trio.lowlevel.add_instrument(self)

    def stop(self) -> None:
        """Measure no more."""
        trio.lowlevel.remove_instrument(self)

    def write(self, path: Path) -> None:
        """Save the longest as JSON."""
        path.write_text(json.dumps({"cpu": self._cpu * 1000, "wall": self._wall * 1000, "step": self._step}))


WATCHERS: dict[str, Callable[[], Watcher]] = {"sample": Sampler, "cprofile": Tracer, "steps": Steps, "turns": Turns}


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_firstlineno, code.co_qualname
