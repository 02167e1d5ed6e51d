"""The command: `python -m tests.soak [--minutes M] [--docs]`. Exits with 1 if anything is not as it should be."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from soak.page import rewrite  # noqa: E402
from soak.picture import draw  # noqa: E402
from soak.run import Plan, passed, soak, words  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

OUT = ROOT / "test-artefacts" / "soak"


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, write what was found, and say whether it passed."""
    options = _options(argv)
    plant = dict(_planted(each) for each in options.plant)
    plan = Plan(60 * options.minutes, options.clients, options.pause, options.seed, plant, period=options.period)
    found = soak(plan, lambda line: print(line, file=sys.stderr, flush=True))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "soak.json").write_text(json.dumps(found), "utf-8")
    drawn = draw(found, options.out / "soak.png")
    print(*words(found), sep="\n")
    print(
        f"written: {options.out / 'soak.json'}"
        + (f", {drawn}" if drawn else "; no plot without the extra: pip install 'hearthd[plot]'")
    )
    if options.docs:
        rewrite(found)
    return 0 if passed(found) else 1


def _planted(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    return name, float(amount)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.soak", description="Mixed load on a real hearthd; what it takes must stay flat."
    )
    add = parser.add_argument
    add("--minutes", type=float, default=10, metavar="M", help="how long the load lasts (default: 10)")
    add("--clients", type=int, default=50, metavar="N", help="how many clients there are at a time (default: 50)")
    add(
        "--pause",
        type=float,
        default=0.6,
        metavar="S",
        help="mean seconds between two visits of a client (default: 0.6)",
    )
    add("--period", type=float, default=1.0, metavar="S", help="seconds between two samples (default: 1)")
    add("--seed", type=int, default=1, metavar="N", help="what the visits are drawn from")
    add(
        "--out",
        type=Path,
        default=OUT,
        metavar="DIR",
        help="where soak.json and soak.png go (default: test-artefacts/soak)",
    )
    add("--docs", action="store_true", help="put the table into docs/reliability.md and the plot beside it, too")
    add("--plant", action="append", default=[], metavar="WHAT=N",
        help="have the daemon leak each second: bytes=N, descriptors=N or threads=N; the run must fail")  # fmt: skip
    options = parser.parse_args(argv)
    if options.docs and options.plant:
        parser.error("--docs wants a sound daemon: leave out --plant")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
