"""How many cases the proofs play: all of them, or with `HEARTH_SHARE=0.1` about a tenth, as CI does."""

from __future__ import annotations

import os

SHARE = float(os.environ.get("HEARTH_SHARE", "1"))


def amount(variable: str, whole: int, least: int = 1) -> int:
    """Return how many to play: the number that an environment variable has, or this share of the whole."""
    return int(os.environ.get(variable, max(least, round(SHARE * whole))))
