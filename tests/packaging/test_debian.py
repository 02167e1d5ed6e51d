"""Each release of Debian that hearth is for, by its own Python: the package is built there, installs, runs; tests pass.

`make test-debian` runs these. They start from a fresh root with the source, as docs/operations.md has it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.booted import TOOLS as BOOT_TOOLS
from support.debian import PYTHONS, SUITES
from support.freshroot import TOOLS, lack

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.debian import Debian

_LACK = lack("test-debian", "HEARTH_DEBIAN", TOOLS | BOOT_TOOLS)
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(_LACK is not None, reason=_LACK or ""),
    pytest.mark.parametrize("suite", SUITES),
]


def test_the_package_is_built_and_installed_and_runs_the_demo(debian: Callable[..., Debian], suite: str) -> None:
    root = debian(suite)
    depends = root.run(f"dpkg-deb --field {root.package()} Depends")
    assert f"python3 (>= {PYTHONS[suite]})" in depends
    root.run(f"dpkg -i {root.package()}")
    root.demo()


def test_the_fast_tests_pass(debian: Callable[..., Debian], suite: str) -> None:
    root = debian(suite)
    root.package()
    said = root.make("fast", limit=1800)
    python = root.run("/src/.venv/bin/python -c 'import sys; print(*sys.version_info[:2], sep=\".\")'")
    assert python.strip() == PYTHONS[suite]
    passed = re.search(r"^(\d+) passed", said, re.MULTILINE)
    assert passed is not None, said
    assert int(passed[1]) > 10_000, "all of them ran"
