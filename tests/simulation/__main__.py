"""python -m tests.simulation: worlds by their seeds.

--seeds N --from K --jobs J runs many; --seed S plays one, with --show its whole tape; --trim leaves parts of it out;
--planted NAME plants one of the known bugs first, and tells what caught it. Exits 1 where something failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main(argv) -> int:
    """Run it."""
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    add("--from", type=int, default=0, dest="start", metavar="K", help="the first one (default: 0)")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes (default: one a processor)")
    add("--stop-after", type=int, default=3, metavar="N", help="failures after which no more is played (default: 3)")
    add("--state", type=Path, metavar="FILE", help="keep the figures here, also while it runs")
    add("--seed", type=int, metavar="S", help="play this one")
    add("--trim", default="", metavar="PARTS", help="parts to leave out of it: c3 a client, c3.7 an action, f2, d0")
    add("--show", action="store_true", help="print its tape")
    add("--shrink", action="store_true", help="make it small, if it fails")
    add("--planted", metavar="NAME", help="plant this bug first (all: each, as a table)")
    options, rest = parser.parse_known_args(argv)
    if options.planted is not None and options.seed is None:
        from .planted import main as planted

        return planted(argv)
    if rest:
        parser.error(f"unknown: {' '.join(rest)}")
    if options.planted is not None:
        from .planted import plant

        plant(options.planted)
    if options.seed is not None:
        return _one(options)
    from .runner import Run, tell_failures

    run = Run(options.start, options.seeds, options.jobs, stop_after=options.stop_after, state=options.state)
    good = run.run()
    print(run.text())
    tell_failures(run.failed[: options.stop_after], seconds=60.0)
    return 0 if good else 1


def _one(options) -> int:
    from .observer import judge
    from .scenario import play

    tape = play(options.seed, trims=frozenset(filter(None, options.trim.split(","))))
    if options.show:
        for entry in tape.entries:
            print(entry.number, f"{entry.at:.6f}", entry.kind, entry.what)
    verdict = judge(tape)
    for violation in verdict.violations:
        print(violation)
    if verdict.violation is not None and options.shrink:
        from .shrink import shrink

        print(shrink(options.seed, verdict.violation.invariant).render())
    print(f"seed {options.seed}: {len(tape.entries)} entries, {len(verdict.violations)} promises broken")
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
