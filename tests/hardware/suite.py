"""All tests that need the guest, in as many boots as they need: `make test-hardware`.

    python tests/hardware/suite.py [--coverage | --proof] [PYTEST ARGUMENTS...]

The boots run side by side, since most of their time is waiting; what each printed is shown whole when it has ended.
They are this folder's tests and the drivers' contract suites, whose benches stand on the kernel's devices there, in
halves; those marked `virtual_time`, under a clock that jumps over every wait; and those marked `unmeasured`, which are
about amounts and would only be slowed down by a measurement of coverage. The exit status is that of the first boot that
failed. Where no guest can run, one line says why and what to do about it, and the exit status is 0.

With --coverage, what the guest of the drivers measured is left beside what the host did, for `coverage combine`;
`.guest/ran` says that it is there. Nothing else is booted then. Daemons on real devices, days of virtual time and
amounts are what there is with --proof: `make test` does the one, and `make proof` the other.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

if __name__ == "__main__":  # as a script: the siblings are found where pytest's `pythonpath` has them
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from hardware import guest, kernel

OUT = kernel.PROJECT / ".guest"
"""What the boots leave: what they printed, results in JUnit's form, and `ran`."""

_SECONDS = 1200
"""A bound for a boot that hangs, far beyond what one takes on a loaded machine: three minutes or four."""

_STUCK = 150
"""Seconds after which a test that does not end has its stacks printed."""

_MEMORY = 1024

_DAEMONS = (
    "bench", "boards", "bus_contract_wire", "contention", "daemon", "halt", "interlocks", "life", "limits",
    "safe_states", "shared_adapter",
)  # fmt: skip
"""How the names of the files go on whose tests start daemons or watch for long: over half of the time goes there."""


@frozen
class Part:
    """One boot: its name, the words for the kernel, the tests, whether they are measured, whether they are proofs."""

    name: str
    append: Sequence[str]
    tests: Sequence[str]
    measured: bool = False
    proof: bool = False


def parts() -> list[Part]:
    """The boots, the longest first."""
    tests = kernel.PROJECT / "tests"
    files = [path for path in sorted(tests.glob("hardware/test_*.py")) if not path.name.startswith("test_host_")]
    daemons = [path for path in files if path.name.removeprefix("test_").startswith(_DAEMONS)]
    others = [path for path in files if path not in daemons] + sorted(tests.glob("drivers/test_contract*.py"))
    ordinary = ["-q", "-m", "not virtual_time and not unmeasured and not proof"]

    def names(paths: Sequence[Path]) -> list[str]:
        return [str(path.relative_to(kernel.PROJECT)) for path in paths]

    return [
        Part("daemons", ["dtb=none"], [*ordinary, *names(daemons)], proof=True),
        Part("drivers", [], [*ordinary, *names(others)], measured=True),
        Part("virtual-time", ["time-travel=inf-cpu"], ["-v", "-m", "virtual_time", "tests/hardware"], proof=True),
        Part("unmeasured", [], ["-v", "-m", "unmeasured", "tests/hardware"], proof=True),
    ]


def boot(part: Part, extra: Sequence[str], *, coverage: bool) -> int:
    """Run one part, show what it printed, and return its exit status."""
    python = [sys.executable]
    if coverage and part.measured:
        python += ["-m", "coverage", "run", f"--data-file={OUT}/.coverage.{part.name}"]
    pytest = ["-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={OUT}/{part.name}.xml"]
    command = [*python, *pytest, "-o", f"faulthandler_timeout={_STUCK}", *part.tests, *extra]
    runner = [sys.executable, str(Path(guest.__file__)), "--timeout", str(_SECONDS), "--mem", str(_MEMORY)]
    words = [word for append in part.append for word in ("--append", append)]
    printed = OUT / f"{part.name}.log"
    with printed.open("wb") as log:
        done = subprocess.run(
            [*runner, "--out", str(OUT), *words, "--", *command],
            cwd=kernel.PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    print(f"hardware tests: {part.name}\n{printed.read_text(errors='replace')}", flush=True)
    return done.returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="suite.py", description=__doc__, formatter_class=form)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--coverage", action="store_true", help="leave out the proofs, and measure the drivers")
    which.add_argument("--proof", action="store_true", help="nothing but the proofs")
    parsed, extra = parser.parse_known_args(arguments)
    shutil.rmtree(OUT, ignore_errors=True)
    try:
        kernel.check(None, _MEMORY)
    except kernel.Missing as missing:
        print(f"hardware tests skipped: {missing}", flush=True)
        return 0
    OUT.mkdir()
    print(f"hardware tests: each boot is shown when it has ended; meanwhile: tail -f {OUT}/*.log", flush=True)
    boots = [part for part in parts() if part.proof == parsed.proof or not (parsed.coverage or parsed.proof)]
    with ThreadPoolExecutor(len(boots)) as side_by_side:
        codes = list(side_by_side.map(lambda part: boot(part, extra, coverage=parsed.coverage), boots))
    failed = {part.name: code for part, code in zip(boots, codes, strict=True) if code != 0}
    if failed:
        told = ", ".join(f"{name} (status {code})" for name, code in failed.items())
        print(f"hardware tests failed: {told}; their results are in {OUT}", flush=True)
        return next(iter(failed.values()))
    if parsed.coverage:
        for data in OUT.glob(".coverage.*"):
            shutil.move(data, kernel.PROJECT)
        (OUT / "ran").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
