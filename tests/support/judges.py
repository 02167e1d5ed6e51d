"""npm packages that `make judges` installs into `.node`: the official judges of an MCP server, Node, TypeScript.

Tests that need them are skipped where they are not installed, unless `HEARTH_JUDGES` is set: then they fail.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / ".node" / "node_modules"
PROGRAMS = PACKAGES / ".bin"

_INSTALLED = (ROOT / ".node" / ".installed").exists()

needs_judges = pytest.mark.skipif(
    not _INSTALLED and not os.environ.get("HEARTH_JUDGES"),
    reason="the official judges of MCP, and Node, are not installed: `make judges` installs them (it needs npm)",
)


def environment(home: Path) -> dict[str, str]:
    """What a judge is started with: our Node before any other, and a home of its own, so that it keeps nothing."""
    return {
        **os.environ,
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "NO_COLOR": "1",
    }
