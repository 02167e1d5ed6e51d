"""The command line of a Python program of ours: every process that hearth starts with this interpreter starts here.

A plain `python -m MODULE` puts the working directory in front of the standard library, and PYTHONPATH behind it: a
`json.py` in a directory that somebody else wrote would run with the caller's rights. A child imports from the
interpreter's own directories alone. See decision 0103.
"""

from __future__ import annotations

import site
import sys


def python_module(module: str, *arguments: str) -> list[str]:
    """Return the argv that runs `module`, isolated from the working directory and from PYTHON* variables.

    The user's own site-packages are read where this process reads them: hearth may be installed there.
    """
    isolation = ("-E", "-P") if site.ENABLE_USER_SITE else ("-I",)
    return [sys.executable, *isolation, "-m", module, *arguments]
