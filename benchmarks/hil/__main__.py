"""The command: on the host it starts itself in the guest and shows the rows; in the guest it takes them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from benchmarks import report
from benchmarks.__main__ import DOCS
from benchmarks.servers import RESULTS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.hil.bench import Effort

BEGIN, END = "<!-- figures: written by `python -m benchmarks.hil --docs` -->", "<!-- end of the guest's figures -->"
TIMEOUT = 1800
CANNOT_RUN = 126
"""What tests/hardware/guest.py returns where no guest can run; it has said why."""


class Measure(Protocol):
    """One thing to measure."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""

    @property
    def what(self) -> str:
        """What it is, for people."""

    def __call__(self, folder: Path, effort: Effort) -> Iterator[report.Row]:
        """Measure. Raises RuntimeError or OSError if it cannot be done."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON. Returns 1 if something could not be measured."""
    options = _options(argv)
    if os.environ.get("HEARTH_GUEST") == "1":
        return _measure(options)
    target: Path = (options.json or RESULTS / time.strftime("hil-%Y%m%d-%H%M%S.json")).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    again = ["--json", str(target), *["--quick"] * options.quick, *options.names]
    runner = [sys.executable, "tests/hardware/guest.py", "--timeout", str(TIMEOUT), "--out", str(target.parent)]
    command = ["env", "PYTHONPATH=tests", sys.executable, "-m", "benchmarks.hil", *again]
    code = subprocess.run([*runner, "--", *command], cwd=ROOT, check=False).returncode
    if code == 0 and options.docs:
        report.rewrite(DOCS, BEGIN, END, report.markdown(*report.read(target)))
    return 0 if code == CANNOT_RUN else code


def _measure(options: argparse.Namespace) -> int:
    from benchmarks.hil.bench import Effort
    from benchmarks.hil.can import LOADS
    from benchmarks.hil.idle import IDLES
    from benchmarks.hil.latency import LATENCIES
    from benchmarks.hil.rates import RATES

    # A daemon is at rest after ten seconds at the earliest: for so long Trio keeps a thread after its last call.
    effort = Effort(rounds=7, seconds=1.0, edges=200, settle=12.0, idle=10.0)
    if options.quick:
        effort = Effort(rounds=2, seconds=0.1, edges=20, settle=1.0, idle=1.0)
    measures: list[Measure] = [*RATES, *LATENCIES, *LOADS, *IDLES]
    known = [measure.name for measure in measures]
    for name in options.names:
        if name not in known:
            raise SystemExit(f"no measure {name!r}; there are {', '.join(known)}")
    rows: list[report.Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for measure in measures:
            if options.names and measure.name not in options.names:
                continue
            print(f"{measure.name} …", file=sys.stderr, flush=True)
            rows += _taken(measure, Path(folder), effort)
    print(*report.table(rows), sep="\n")
    report.write(options.json, rows, {"quick": options.quick})
    print(f"written to {options.json}")
    return int(any(row.figure is None for row in rows))


def _taken(measure: Measure, folder: Path, effort: Effort) -> list[report.Row]:
    """The rows of one measure. One that cannot be taken says why, and the others go on."""
    try:
        return list(measure(folder, effort))
    except (RuntimeError, OSError, TimeoutError) as error:
        return [report.Row(measure.name, measure.what, None, note=f"{type(error).__name__}: {error}"[:300])]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.hil", description="Measure hearth on simulated hardware.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure, of the names in the table")
    parser.add_argument("--quick", action="store_true", help="a look: short rounds, wide spreads")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures (benchmarks/results/)")
    parser.add_argument("--docs", action="store_true", help="put the figures into docs/performance.md too")
    options = parser.parse_args(argv)
    if options.docs and (options.names or options.quick):
        parser.error("--docs wants a whole run: neither names nor --quick")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
