"""The command line of a Python child process; hearth starts every process of this interpreter with it.

A plain `python -m MODULE` puts the working directory in front of the standard library, and PYTHONPATH behind it: a
`json.py` in another user's directory would run with the caller's rights. Here a child imports from the interpreter's
own directories alone. See decision 0103.
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
