"""The examples of vendors' packages, `examples/acme_lamp` (a kind) and `examples/acme_beacon` (an extra), as installed.

Each is found by its entry point. Where its wheel is installed beside hearth, that one is used.
"""

from __future__ import annotations

import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
_SITE: Final = TemporaryDirectory()


def install(package: str = "acme_lamp") -> list[str]:
    """Make an example importable, and its entry points known to this process; return where it is on sys.path."""
    with suppress(PackageNotFoundError):
        distribution(package)
        return []
    example = EXAMPLES / package
    project = tomllib.loads((example / "pyproject.toml").read_text("utf-8"))["project"]
    info = Path(_SITE.name, package, f"{package}-{project['version']}.dist-info")
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    places = [str(example), str(info.parent)]
    sys.path += places
    return places
