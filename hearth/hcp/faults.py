"""A mistake in a capability: its place, its key, and the cure. Every check at start-up collects these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from hearth.config_toml import dump_key
from hearth.suggestions import suggest

if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class Fault:
    """One mistake. Its text is "PLACE: KEY: REASON", without the parts that are empty."""

    key: str
    """Such as "risk_ceiling", "parameters.samples" or "capability.safety.risk_ceiling"; "" is the whole."""
    reason: str
    """The mistake and its cure."""
    place: str = ""
    """A file, with a line for a function: "survey.py:12"."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.key, self.reason) if part)


def join(path: str, key: str) -> str:
    """The path of a key within a table."""
    return f"{path}.{dump_key(key)}" if path else dump_key(key)


def near(name: str, there: Iterable[str]) -> str:
    """Words to add to a fault: the nearest of the names that there are, if one is near."""
    said = suggest(name, there, show=repr)
    return f"; {said}" if said else ""
