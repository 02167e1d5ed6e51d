"""The safety envelope of a capability (L3): hard boundaries of its parameters, which no caller can relax.

A limit with a `value` is checked on the inputs, before a job is accepted; `check_value` also serves a job that watches
a quantity while it runs. A boundary that cannot be judged is violated: a `value` that raises, or a result that is no
finite number. None is "not known yet", and violates nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from hearth.hcp.inputs import ask, places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.capability import Limit


@frozen(kw_only=True)
class Violation:
    """A boundary that does not hold."""

    parameter: str
    message: str
    cure: str
    places: tuple[str, ...] = ()
    """The inputs that it is about, as JSON pointers into the task_submit; none for a measured value."""


@frozen(kw_only=True)
class SafetyEnvelope:
    """All boundaries of one capability."""

    parameters: Mapping[str, Limit] = field(factory=dict)
    prohibited_actions: tuple[str, ...] = ()
    emergency_procedures: Mapping[str, str] = field(factory=dict)

    def check_inputs(self, inputs: Mapping[str, Any]) -> Violation | None:
        """The first boundary that approved inputs (structured, defaults filled in) would break."""
        for name, limit in self.parameters.items():
            if limit.value is None:
                continue
            at = tuple(places(limit.value))
            try:
                found = ask(limit.value, inputs)
            except Exception as error:  # noqa: BLE001 - the author's function: any exception of it is "cannot be judged"
                return _violated(name, limit, f"it cannot be told: {type(error).__name__}: {error}", at)
            if (violation := self.check_value(name, found, at)) is not None:
                return violation
        return None

    def check_value(self, name: str, found: Any, at: tuple[str, ...] = ()) -> Violation | None:
        """Hold a number, or a list of them, against the limit of this name. Raises LookupError if there is none."""
        if (limit := self.parameters.get(name)) is None:
            there = ", ".join(self.parameters) or "none"
            raise LookupError(f"there is no limit {name!r}, but {there}; declare it: limits={{{name!r}: Limit(max=…)}}")
        for value in found if isinstance(found, list | tuple) else [found]:
            if value is None:
                continue
            if type(value) not in (int, float) or not math.isfinite(value):
                return _violated(name, limit, f"{str(value)[:60]!r} is no number", at)
            if limit.min is not None and value < limit.min:
                least = _said(limit.min, limit.unit)
                return _violated(name, limit, f"{_said(value, limit.unit)} is below the least allowed, {least}", at)
            if limit.max is not None and value > limit.max:
                most = _said(limit.max, limit.unit)
                return _violated(name, limit, f"{_said(value, limit.unit)} is above the most allowed, {most}", at)
        return None

    def to_wire(self) -> dict[str, Any]:
        """As L3's schema has it; {} where nothing is bounded."""
        wire: dict[str, Any] = {}
        if self.parameters:
            wire["parameters"] = {name: _limit_to_wire(limit) for name, limit in self.parameters.items()}
        if self.prohibited_actions:
            wire["prohibited_actions"] = list(self.prohibited_actions)
        if self.emergency_procedures:
            wire["emergency_procedures"] = dict(self.emergency_procedures)
        return wire


def _limit_to_wire(limit: Limit) -> dict[str, Any]:
    bounds = {"min": limit.min, "max": limit.max, "unit": limit.unit}
    return {**{key: value for key, value in bounds.items() if value is not None}, "hard_limit": True}


def _violated(name: str, limit: Limit, message: str, at: tuple[str, ...]) -> Violation:
    if limit.min is None:
        room = f"at {_said(limit.max, limit.unit)} or less"
    elif limit.max is None:
        room = f"at {_said(limit.min, limit.unit)} or more"
    else:
        room = f"between {_said(limit.min, None)} and {_said(limit.max, limit.unit)}"
    return Violation(parameter=name, message=f"{name}: {message}", cure=f"Keep {name} {room}", places=at)


def _said(number: float | None, unit: str | None) -> str:
    text = str(int(number)) if isinstance(number, float) and number.is_integer() and abs(number) < 1e15 else str(number)
    return f"{text} {unit}" if unit else text
