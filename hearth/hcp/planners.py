"""The planners of this process, by the name that a capability file gives: ours, and vendors' where they are named.

It owns who is let in: a vendor's package is imported only when `[hcp] planners` names its entry point, cannot take the
place of ours, and is named in the error when it fails. What a planner does it refuses to know.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hearth.errors import ConfigError
from hearth.hcp.planning import PlanError
from hearth.hcp.recipe import RecipePlanner
from hearth.vendors import package_of, vendors_points

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.metadata import EntryPoint

    from hearth.hcp.planning import Plan, Planner
    from hearth.tools import ToolRegistry

ENTRY_POINTS: Final = "hearth.planners"
"""The entry point group of vendors' planners: each is a callable without arguments that returns a Planner.

Its name is what `[hcp] planners` and a capability's `planner` say, and the table of a capability file that is the
planner's own: letters, digits, "_" and "-".
"""
OURS: Final = "recipe"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_OWNED = ("capability", "safety_envelope")
"""Tables of a capability file that are no planner's."""


def load_planners(names: Sequence[str] = ()) -> dict[str, Planner]:
    """Ours, and the vendors' of these names. Raises ConfigError for one that there is not, or that cannot be used."""
    planners: dict[str, Planner] = {OURS: RecipePlanner()}
    if not names:
        return planners
    points = vendors_points(ENTRY_POINTS)
    for name in names:
        if name == OURS:
            continue
        if name not in points:
            raise ConfigError(
                f"[hcp] planners: no package that is installed has a planner {name!r}{_near(name, points)}"
            )
        planners[name] = _load(points[name])
    return planners


def _near(name: str, points: Mapping[str, Any]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, list(points), n=3)
    if close:
        return f"; did you mean {', '.join(close)}?"
    return f"; there are {', '.join(sorted(points))}" if points else f" (entry points of the group {ENTRY_POINTS})"


def _load(point: EntryPoint) -> Planner:
    package = package_of(point)
    if not _NAME.match(point.name) or point.name in _OWNED:
        raise ConfigError(
            f"[hcp] planners: {package} calls its planner {point.name!r}, which cannot be the name of a "
            "table of its own in a capability file: it takes letters, digits, '_' and '-'"
        )
    try:
        planner = point.load()()
    except Exception as error:  # a vendor's code may raise anything; it becomes an error that names the package
        raise ConfigError(
            f"[hcp] planners: {package} ({point.value}) cannot be used: {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(planner, "prepare", None)):
        raise ConfigError(f"[hcp] planners: {package} ({point.value}) made {planner!r}, which has no prepare()")
    return _Vendors(planner, package)


class _Vendors:
    """A vendor's planner, whose bugs at start-up become errors that name its package."""

    def __init__(self, planner: Planner, package: str) -> None:
        self._planner = planner
        self._package = package

    def prepare(self, document: Mapping[str, Any], registry: ToolRegistry) -> Plan:
        """The vendor's plan. Raises PlanError, whatever the vendor's code raises."""
        try:
            plan = self._planner.prepare(document, registry)
            if unknown := sorted(plan.tools - registry.keys()):
                raise PlanError(
                    "capability.planner", f"{self._package} plans with {unknown[0]!r}, which is no tool here"
                )
        except PlanError:
            raise
        except Exception as error:  # a vendor's code may raise anything; see _load
            raise PlanError(
                "capability.planner", f"{self._package} cannot plan it: {type(error).__name__}: {error}"
            ) from error
        return plan
