"""What vendors' packages offer: entry points of a group, and what a package is called in a message about it.

It lets nobody in: which of them are loaded, the operator names, and whoever loads them says what they must be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def vendors_points(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, by name. Imports no vendor's code."""
    # Only now: it is slow to import, and most processes have nothing of a vendor's.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def package_of(point: EntryPoint) -> str:
    """The package that an entry point comes with, as a message names it."""
    return f"the package {point.dist.name!r}" if point.dist is not None else f"the entry point {point.name!r}"
