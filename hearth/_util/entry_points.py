"""Entry points of vendors' packages, and the names of those packages in messages.

It loads none of them: the operator names the ones to load, and the loading module checks what they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def vendors_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. Imports no vendor's code."""
    # Imported here: the module is slow to import, and most processes have no vendor's package.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def package_of(point: EntryPoint) -> str:
    """Return the package of an entry point, as a message names it."""
    return f"the package {point.dist.name!r}" if point.dist is not None else f"the entry point {point.name!r}"
