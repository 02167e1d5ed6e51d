"""python -m tests.fleet: worlds of a fleet by their seeds.

--seeds N --from K --jobs J plays many; --seed S plays one. Exits 1 where a promise does not hold.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main(argv) -> int:
    """Run it."""
    from fleet.worlds import one, play
    from simulation.runner import Run

    parser = argparse.ArgumentParser("python -m tests.fleet", description=__doc__)
    add = parser.add_argument
    add("--seeds", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    add("--from", type=int, default=0, dest="start", metavar="K", help="the first one (default: 0)")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes (default: one a processor)")
    add("--seed", type=int, metavar="S", help="play this one")
    add("--state", type=Path, metavar="FILE", help="keep the figures here, also while it runs")
    options = parser.parse_args(argv)
    if options.seed is not None:
        print(dict(play(options.seed)))
        return 0
    run = Run(options.start, options.seeds, options.jobs, state=options.state, play_one=one)
    good = run.run()
    print(run.text())
    for seed, _, text in run.failed:
        print(f"seed {seed}: {text}\n  python -m tests.fleet --seed {seed}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
