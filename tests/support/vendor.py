"""The example of a vendor's kind, `examples/acme_lamp`, as an installed package has it: found by its entry point.

Where its wheel is installed beside hearth, that one is used.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from hearth._util.python import vendor_entry_points

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "acme_lamp"
_SITE: Final = TemporaryDirectory()


def install() -> None:
    """Make the example importable, and its entry points known to this process."""
    if "lamp" in vendor_entry_points("hearth.kinds"):
        return
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    info = Path(_SITE.name, f"acme_lamp-{project['version']}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    sys.path += [str(EXAMPLE), _SITE.name]
