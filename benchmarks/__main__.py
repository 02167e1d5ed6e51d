"""The command: `python -m benchmarks [--quick] [--json FILE] [--profile NAME] [NAME...]`."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from attrs import evolve

from benchmarks import report
from benchmarks.approval import APPROVALS
from benchmarks.attest import ATTESTED
from benchmarks.can import CAN
from benchmarks.client import CLIENT
from benchmarks.embedded import EMBEDDED
from benchmarks.evenness import EVENNESS
from benchmarks.fairness import FAIRNESS
from benchmarks.fanout import FANOUT
from benchmarks.guard import GUARDING
from benchmarks.halt import HALTS
from benchmarks.idle import IDLE
from benchmarks.loop import LOOPS
from benchmarks.mcp import MCP
from benchmarks.memory import MEMORY
from benchmarks.profiling import profile
from benchmarks.rates import RATES, Effort, Rate
from benchmarks.reading import READING
from benchmarks.servers import RESULTS, ROOT, Servers
from benchmarks.start import STARTS
from benchmarks.turns import TURNS
from benchmarks.watchers import WATCHERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.report import Row


class Measure(Protocol):
    """One thing to measure."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    @property
    def what(self) -> str:
        """What it is, for people."""

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure. Raises RuntimeError or OSError if it cannot be done."""


DOCS = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- figures: written by `python -m benchmarks --docs` -->", "<!-- end of figures -->"

FULL = Effort(rounds=7, seconds=1.0, many=2000, idle=5000, starts=15)
QUICK = Effort(rounds=2, seconds=0.2, many=100, idle=200, starts=3)

_ALL: list[Measure] = [
    *RATES, *CLIENT, *FANOUT, *MCP, *EVENNESS, *MEMORY, *IDLE, *STARTS,
    *GUARDING, *EMBEDDED, *HALTS, *APPROVALS, *ATTESTED, *LOOPS, *CAN, *TURNS, *FAIRNESS, *READING,
]  # fmt: skip
PROFILED = [rate for rate in [*RATES, *CLIENT, *FANOUT] if isinstance(rate, Rate) and rate.floor is None]
MEASURES = {measure.name: measure for measure in _ALL}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is asked for, print the table, write the JSON. Returns 1 if something could not be measured."""
    options = _options(argv)
    names = chosen(options.names)
    if options.list:
        print(*(f"{name:18} {MEASURES[name].what}" for name in names), sep="\n")
        return 0
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    effort = QUICK if options.quick else FULL
    effort = evolve(
        effort,
        rounds=options.rounds or effort.rounds,
        seconds=options.seconds or effort.seconds,
        repeats=options.repeats or effort.repeats,
        starts=options.rounds or effort.starts,
    )
    if options.profile is not None:
        with Servers() as servers:
            rate = next(rate for rate in PROFILED if rate.name == options.profile)
            for line in profile(servers, rate, 5 * effort.seconds, how=options.how, top=options.top):
                print(line)
        return 0
    rows: list[Row] = []
    with Servers() as servers:
        for name in names:
            print(f"{name} …", file=sys.stderr, flush=True)
            found = measured(MEASURES[name], servers, effort)
            rows += found
            print(*report.table(found)[1:], sep="\n", file=sys.stderr, flush=True)
    print(*report.table(rows), sep="\n")
    if options.docs:
        report.rewrite(DOCS, BEGIN, END, report.markdown(rows))
    target = options.json or RESULTS / time.strftime("%Y%m%d-%H%M%S.json")
    report.write(target, rows, {"quick": options.quick, "rounds": effort.rounds, "seconds": effort.seconds})
    print(f"written to {target}")
    return int(any(row.figure is None for row in rows))


def measured(measure: Measure, servers: Servers, effort: Effort) -> list[Row]:
    """The rows of one measure. One that cannot be taken says why, and the others go on."""
    try:
        return list(measure(servers, effort))
    except (RuntimeError, OSError) as error:
        return [report.Row(measure.name, measure.what, None, note=f"{type(error).__name__}: {error}"[:300])]


def chosen(names: Sequence[str]) -> list[str]:
    """The measures that names, prefixes ("get") and patterns ("*-16") stand for, in order. Raises SystemExit."""
    for wanted in names:
        if not any(_fits(name, wanted) for name in MEASURES):
            raise SystemExit(f"no measure {wanted!r}; there are {', '.join(MEASURES)}")
    return [name for name in MEASURES if not names or any(_fits(name, wanted) for wanted in names)]


def _fits(name: str, wanted: str) -> bool:
    return fnmatchcase(name, wanted) or name.startswith(f"{wanted}-")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description="Measure hearthd against floors in one run.")
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(MEASURES)}; or a prefix or pattern")
    add("--list", action="store_true", help="say what would be measured")
    add("--quick", action="store_true", help="a look in a minute: short rounds, small numbers, wide spreads")
    add("--json", type=Path, metavar="FILE", help="where to write the figures (default: benchmarks/results/)")
    add("--docs", action="store_true", help="put the figures of a whole run into docs/performance.md too")
    add("--rounds", type=int, metavar="N", help="rounds per measure")
    add("--seconds", type=float, metavar="S", help="length of a round")
    add("--repeats", type=int, metavar="N", help="how often a round is taken, at most, because others disturbed it")
    add("--profile", choices=[rate.name for rate in PROFILED], metavar="NAME",
        help="instead of measuring, show where the server's time goes under that load")  # fmt: skip
    add("--how", choices=list(WATCHERS), default="sample",
        help="with --profile: look once per ms of CPU time, trace all calls, or count what Trio schedules")  # fmt: skip
    add("--top", type=int, default=25, metavar="N", help="with --profile: lines per table")
    options = parser.parse_args(argv)
    if options.docs and (options.names or options.quick):
        parser.error("--docs wants a whole run: neither names nor --quick")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
