"""One finding of `hearth doctor`."""

from __future__ import annotations

from typing import Literal

from attrs import frozen


@frozen
class Check:
    """One finding."""

    state: Literal["OK", "WARN", "FAIL"]
    name: str
    finding: str
    cure: str | None = None
