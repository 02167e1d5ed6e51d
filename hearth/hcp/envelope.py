"""The safety envelope of a capability (L3): hard boundaries of its parameters, which no caller can relax.

A parameter is looked at in the inputs, before a job is accepted, or in the results, after every step, or both. Whoever
cannot tell whether a boundary holds is told that it does not: a value that is no number, a unit that is none, a watch
that cannot be evaluated are violations too. Nothing measured yet (null) is none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from hearth.config_kinds import ListOf, TableOf, Text
from hearth.hcp.decoding import Factor
from hearth.hcp.expressions import ExpressionError, Names, compile_expression
from hearth.hcp.planning import PlanError
from hearth.hcp.tables import Table
from hearth.hcp.units import UnitError, check_unit, convert

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.hcp.expressions import Expression
    from hearth.hcp.planning import Fault
    from hearth.hcp.schema_kinds import Shape

KEY = "safety_envelope"
_EXPRESSION = Text("an expression")


@frozen(kw_only=True)
class Violation:
    """A boundary that does not hold."""

    parameter: str
    message: str
    cure: str


@frozen(kw_only=True)
class Parameter:
    """One bounded quantity."""

    name: str
    value: Expression | None = None
    """Over the inputs."""
    watch: Expression | None = None
    """Over the results so far."""
    min: float | None = None
    max: float | None = None
    unit: str | None = None
    unit_of: Expression | None = None
    """The unit in which the value comes, where that is not always `unit`."""

    def check(self, expression: Expression, scope: Mapping[str, Any]) -> Violation | None:
        """Look at what an expression gives."""
        try:
            found = expression.value(scope)
            unit = self.unit if self.unit_of is None or found is None else self.unit_of.value(scope)
        except ExpressionError as error:
            return self._violated(f"it cannot be told: {error}")
        return next(self._violations(found, unit), None)

    def to_wire(self) -> dict[str, Any]:
        """As L3's schema has it."""
        bounds = {"min": self.min, "max": self.max, "unit": self.unit}
        return {**{key: value for key, value in bounds.items() if value is not None}, "hard_limit": True}

    def _violations(self, found: Any, unit: Any) -> Iterator[Violation]:
        values = found if isinstance(found, list) else [found]
        for value in values:
            if value is None:
                continue
            if type(value) not in (int, float) or not math.isfinite(value):
                yield self._violated(f"{str(value)[:60]!r} is no number")
                continue
            try:
                converted = value if unit == self.unit else convert(value, unit, self.unit or "")
            except UnitError as error:
                yield self._violated(str(error))
                continue
            if self.min is not None and converted < self.min:
                yield self._violated(f"{_said(value, unit)} is below the least allowed, {_said(self.min, self.unit)}")
            if self.max is not None and converted > self.max:
                yield self._violated(f"{_said(value, unit)} is above the most allowed, {_said(self.max, self.unit)}")

    def _violated(self, message: str) -> Violation:
        if self.min is None:
            room = f"at {_said(self.max, self.unit)} or less"
        elif self.max is None:
            room = f"at {_said(self.min, self.unit)} or more"
        else:
            room = f"between {_said(self.min, None)} and {_said(self.max, self.unit)}"
        return Violation(parameter=self.name, message=f"{self.name}: {message}", cure=f"Keep {self.name} {room}")


@frozen(kw_only=True)
class SafetyEnvelope:
    """All boundaries of one capability."""

    parameters: tuple[Parameter, ...] = ()
    prohibited_actions: tuple[str, ...] = ()
    emergency_procedures: Mapping[str, str] = field(factory=dict)

    def check_inputs(self, inputs: Mapping[str, Any]) -> Violation | None:
        """The first boundary that approved inputs (defaults filled in) would break."""
        return _first((one, one.value, {"inputs": inputs}) for one in self.parameters)

    def check_results(self, scope: Mapping[str, Any]) -> Violation | None:
        """The first boundary that the results so far break; `scope` has all that expressions of a recipe name."""
        return _first((one, one.watch, scope) for one in self.parameters)

    def to_wire(self) -> dict[str, Any]:
        """As L3's schema has it; {} where nothing is bounded."""
        wire: dict[str, Any] = {}
        if self.parameters:
            wire["parameters"] = {one.name: one.to_wire() for one in self.parameters}
        if self.prohibited_actions:
            wire["prohibited_actions"] = list(self.prohibited_actions)
        if self.emergency_procedures:
            wire["emergency_procedures"] = dict(self.emergency_procedures)
        return wire


def _first(looks: Iterator[tuple[Parameter, Expression | None, Mapping[str, Any]]]) -> Violation | None:
    for parameter, expression, scope in looks:
        if expression is not None and (violation := parameter.check(expression, scope)) is not None:
            return violation
    return None


def read_envelope(
    content: Mapping[str, Any], input_schema: Shape, *, watched: Names | None = None
) -> SafetyEnvelope:
    """Read [safety_envelope]. Raises PlanError with all its faults.

    `watched` is what `watch` may name, for those who know the results; others leave its names unchecked.
    """
    faults: list[Fault] = []
    top = Table(content, KEY, faults)
    names = Names.of_inputs(input_schema)
    parameters = top.table("parameters", required=False)
    found = [_parameter(name, parameters, names, watched) for name in parameters.content]
    envelope = SafetyEnvelope(
        parameters=tuple(one for one in found if one is not None),
        prohibited_actions=top.take("prohibited_actions", ListOf(Text()), ()),
        emergency_procedures=top.take("emergency_procedures", TableOf(Text()), {}),
    )
    top.done()
    if faults:
        raise PlanError.of(faults)
    return envelope


def _parameter(name: str, parent: Table, names: Names, watched: Names | None) -> Parameter | None:
    table = parent.table(name)
    value = _expression(table, "value", names)
    watch = _expression(table, "watch", watched)
    both = "value" in table.content, "watch" in table.content
    # At the gate there are no results yet.
    unit_of = _expression(table, "unit_of", names if both[0] else watched)
    low, high = table.take("min", Factor(), None), table.take("max", Factor(), None)
    unit = table.take("unit", Text("a unit", limit=64), None)
    table.done()
    if not any(both):
        table.fault("value", "say what to look at: `value` over the inputs, `watch` over the results, or both")
    if "min" not in table.content and "max" not in table.content:
        table.fault("max", "a parameter without `min` and `max` bounds nothing")
    elif low is not None and high is not None and low > high:
        table.fault("min", f"{low} is above max = {high}; nothing could hold")
    if unit_of is not None and unit is None:
        table.fault("unit", "unit_of says in which unit the value comes; say in which the bounds are")
    elif unit_of is not None:
        try:
            check_unit(unit)
        except UnitError as error:
            table.fault("unit", str(error))
    if value is None and watch is None:
        return None
    return Parameter(name=name, value=value, watch=watch, min=low, max=high, unit=unit, unit_of=unit_of)


def _expression(table: Table, key: str, names: Names | None) -> Expression | None:
    text = table.take(key, _EXPRESSION, None)
    if text is None:
        return None
    try:
        return compile_expression(text, names=names)
    except ExpressionError as error:
        table.fault(key, str(error))
        return None


def _said(number: float | None, unit: Any) -> str:
    return f"{number} {unit}" if unit else f"{number}"
