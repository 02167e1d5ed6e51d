"""Fuzzing: what reads a peer's bytes, under libFuzzer by way of atheris, and without it in the ordinary suite.

`python -m tests.fuzz` runs targets; `targets/` has one module for each, whose `check(data)` holds the oracle and
needs no atheris; `corpus/` is what earlier runs found worth keeping, and every input that once was a finding.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

if str(HERE.parent) not in sys.path:  # as `python -m tests.fuzz`; under pytest it is there
    sys.path.insert(0, str(HERE.parent))
