"""All tests that need the guest, in as many boots as they need: `make test-hardware`.

    python tests/hardware/suite.py [--coverage] [PYTEST ARGUMENTS...]

One boot runs this folder and the drivers' contract suites, whose benches stand on the kernel's devices there; a second
one, whose clock jumps over every wait, runs what is marked `virtual_time`. The exit status is that of the first boot
that failed. Where no guest can run, one line says why and what to do about it, and the exit status is 0.

With --coverage, what the guest measured is left beside what the host did, for `coverage combine`; `.guest/ran` says
that all of it is there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

if __name__ == "__main__":  # as a script: the siblings are found where pytest's `pythonpath` has them
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from hardware import guest, kernel

OUT = kernel.PROJECT / ".guest"
"""What the boots leave: results in JUnit's form, and `ran`."""

_SECONDS = 1200
"""A bound for a boot that hangs, far beyond what one takes on a loaded machine: a minute or two."""

_STUCK = 150
"""Seconds after which a test that does not end has its stacks printed."""


@frozen
class Part:
    """One boot: its name, the words for the kernel, and the arguments of pytest."""

    name: str
    append: Sequence[str]
    pytest: Sequence[str]


def parts() -> list[Part]:
    """The boots, in order."""
    contracts = sorted(
        str(path.relative_to(kernel.PROJECT)) for path in kernel.PROJECT.glob("tests/drivers/test_contract_*.py")
    )
    devices = ["-q", "-m", "not virtual_time", "-o", f"faulthandler_timeout={_STUCK}", "tests/hardware", *contracts]
    return [
        Part("devices", [], devices),
        Part("virtual-time", ["time-travel=inf-cpu"], ["-v", "-m", "virtual_time", "tests/hardware"]),
    ]


def boot(part: Part, extra: Sequence[str], *, coverage: bool) -> int:
    """Run one part, and return its exit status. Raises `kernel.Missing`."""
    python = [sys.executable]
    if coverage:
        python += ["-m", "coverage", "run", f"--data-file={OUT}/.coverage"]
    pytest = ["-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={OUT}/{part.name}.xml"]
    command = [*python, *pytest, *part.pytest, *extra]
    return guest.run(guest.Boot(command, timeout=_SECONDS, append=part.append, out=OUT))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="suite.py", description=__doc__, formatter_class=form)
    parser.add_argument("--coverage", action="store_true", help="measure it")
    parsed, extra = parser.parse_known_args(arguments)
    shutil.rmtree(OUT, ignore_errors=True)
    failed: dict[str, int] = {}
    for part in parts():
        print(f"hardware tests: {part.name}", flush=True)
        try:
            code = boot(part, extra, coverage=parsed.coverage)
        except kernel.Missing as missing:
            print(f"hardware tests skipped: {missing}", flush=True)
            return 0
        if code != 0:
            failed[part.name] = code
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
