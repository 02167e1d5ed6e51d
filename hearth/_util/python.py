"""Entry points of vendors' packages, and the names of those packages in messages.

It loads none of them: the operator names the ones to load, and the loading module checks what they are.

The command line of a Python child process; hearth starts every process of this interpreter with it.

A plain `python -m MODULE` puts the working directory in front of the standard library, and PYTHONPATH behind it: a
`json.py` in another user's directory would run with the caller's rights. Here a child imports from the interpreter's
own directories alone. See decision 0103.
"""

from __future__ import annotations

import os
import site
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def vendor_entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, each directory searched once. Imports no vendor's code.

    A package that is installed while this process runs is found after a restart.
    """
    return {**_entry_points(group, tuple(sys.path))}


@cache
def _entry_points(group: str, _path: tuple[str, ...]) -> dict[str, EntryPoint]:
    # Imported here: the module is slow to import, and most processes have no vendor's package.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def package_of(point: EntryPoint) -> str:
    """Return the package of an entry point, as a message names it."""
    return f"the package {point.dist.name!r}" if point.dist is not None else f"the entry point {point.name!r}"


def interpreter_file() -> Path:
    """Return the file of the interpreter that runs this process, links followed."""
    return Path(os.path.realpath(sys.executable))


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the argv that runs `module`, isolated from the working directory and from PYTHON* variables.

    The user's own site-packages are read where this process reads them: hearth may be installed there.
    """
    isolation = ("-E", "-P") if site.ENABLE_USER_SITE else ("-I",)
    return [sys.executable, *isolation, "-m", module, *arguments]
