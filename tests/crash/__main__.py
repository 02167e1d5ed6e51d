"""`python -m tests.crash`: kill daemons and cut the power, as often as is asked, until something does not hold."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def main() -> None:
    """Say what came of it; exits 1 at the first breach, with the command that repeats it."""
    sys.path.insert(0, str(TESTS))
    from crash import cuts, plan
    from support.zygote import Zygote

    parser = argparse.ArgumentParser("python -m tests.crash", description=__doc__)
    add = parser.add_argument
    add("--kills", type=int, default=500, help="how many daemons are killed (default: 500)")
    add("--from", type=int, default=0, dest="first", metavar="WORLD", help="the number of the first world of kills")
    add(
        "--variants",
        type=int,
        default=12,
        help="how often the power is cut at each point of a scenario (default: 12; 0: never)",
    )
    add("--scenarios", type=int, default=4, help="how many scenarios have a kill in them before the cut (default: 4)")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="hearth-crash-"))
    zygote = Zygote(directory, "crash.child:main")
    try:
        killed = plan.run(directory, zygote, first=options.first, kills=options.kills)
        sys.stdout.write("\n".join([*plan.summary(killed), ""]))
        if options.variants:
            cut = cuts.run(directory, zygote, lives=options.scenarios, variants=options.variants, real=500)
            sys.stdout.write(f"{cuts.summary(cut)}\n")
    except AssertionError:
        traceback.print_exc()  # a breach is for who works on hearth; what the daemons left stays where it is
        raise SystemExit(1) from None
    finally:
        zygote.close()
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
