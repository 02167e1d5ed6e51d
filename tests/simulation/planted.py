"""Plants a known bug in the runtime, and hunts it: the proof that the judge is awake.

The change is made as the module is imported, in a process of its own. Nothing is written: a loader changes the text on
its way from the file to the compiler. This module imports nothing of the runtime, so that it can plant before anything
is imported.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from .planted_bugs import BUGS, BY_NAME, ROOT, Bug


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the changed text; reads and writes no compiled file."""

    def __init__(self, name, path, bug) -> None:
        super().__init__(name, path)
        self._bug = bug

    def get_code(self, fullname):
        source = self.get_data(self.path).decode()
        return compile(self._bug.planted_in(source), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, with a bug in it."""

    def __init__(self, bug) -> None:
        self._bug = bug

    def find_spec(self, name, path, target=None):
        if name != self._bug.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(name, spec.origin, self._bug)
        return spec


def plant(name: str) -> Bug:
    """Plant a bug in what this process will import. Raises RuntimeError if it has imported the module already."""
    bug = BY_NAME[name]
    if bug.module in sys.modules:
        raise RuntimeError(f"{bug.module} has been imported: a bug is planted in a fresh process")
    sys.meta_path.insert(0, _Finder(bug))
    return bug


# --- the hunt -------------------------------------------------------------------------------------------------------


class Catch(NamedTuple):
    """What caught a bug: by which seed, after how many, and how small the scenario became."""

    seeds: int
    seed: int
    caught_by: tuple[str, ...]
    seconds: float


class Hung(Exception):
    """A deadlock without a deadline spins for ever under a virtual clock."""


def in_time(play, *args, seconds=20, **more):
    """What `play` returns. Raises if it takes too much time of the processor."""

    def give_up(_number, _frame):
        raise Hung

    # A machine that is busy with other things takes longer by the clock on the wall alone.
    former = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return play(*args, **more)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


def hunt(start: int, seeds: int, wanted: str | None = None) -> Catch | None:
    """Play seeds until an invariant (`wanted`, if one is named) is broken."""
    from .observer import judge
    from .scenario import play

    began = time.perf_counter()
    for count, seed in enumerate(range(start, start + seeds), 1):
        try:
            verdict = judge(in_time(play, seed))
        except Exception:  # noqa: BLE001  a planted bug may break the world itself; only the judge's word counts
            continue
        broken = tuple(violation.invariant for violation in sorted(verdict.violations, key=lambda one: one.numbers[-1]))
        if wanted in broken if wanted else broken:
            return Catch(count, seed, broken, time.perf_counter() - began)
    return None


def main(argv: list[str]) -> int:
    """`--planted NAME`: run until it is caught, and print it; `--planted all`: the table, a process for each."""
    parser = argparse.ArgumentParser("python -m tests.simulation")
    parser.add_argument("--planted", required=True, choices=["all", *BY_NAME], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=2000, help="give up after so many")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first seed")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds in which the scenario is made small")
    parser.add_argument("--row", action="store_true", help="print a row of the table instead of the scenario")
    parser.add_argument("--no-shrink", action="store_true", help="say what caught it, and leave it at that")
    options, _ = parser.parse_known_args(argv)
    if options.planted == "all":
        return _table(options)
    bug = plant(options.planted)
    catch = hunt(options.start, options.seeds, bug.invariant)
    if catch is None:
        print(f"{bug.name}: not caught by “{bug.invariant}” in {options.seeds} seeds from {options.start}")
        return 1
    shrunk = None
    if not options.no_shrink:
        from .shrink import shrink

        shrunk = shrink(catch.seed, bug.invariant, seconds=options.patience)
    if options.row:
        length = "" if shrunk is None else f"{shrunk.size} of {shrunk.parts}"
        print(f"| {bug.what} | {bug.invariant} | {catch.seeds} | {length} |")
        return 0
    print(f"{bug.name}: {bug.what}")
    print(f"caught by “{bug.invariant}” in seed {catch.seed}, after {catch.seeds} seeds and {catch.seconds:.1f} s")
    others = [name for name in catch.caught_by if name != bug.invariant]
    if others:
        print("and by " + ", ".join(f"“{name}”" for name in others))
    if shrunk is not None:
        print()
        print(shrunk.render(planted=bug.name))
    return 0


def _table(options) -> int:
    print("| the mistake | caught by | seeds until then, from 0 | what is left of the scenario |")
    print("| --- | --- | --- | --- |")
    sys.stdout.flush()
    failed = 0
    for bug in BUGS:
        command = [sys.executable, "-m", "tests.simulation", "--planted", bug.name, "--row"]
        command += ["--seeds", str(options.seeds), "--from", str(options.start)]
        failed |= subprocess.run(command, cwd=ROOT, check=False).returncode
    return failed
