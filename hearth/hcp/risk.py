"""What risk a job has, and which inputs would lower it (L3, Risk Assessment Process; decision 0072).

The risk is the capability's floor, raised by each declared rule whose condition holds. A condition that cannot be
judged counts as one that holds: what is not understood is not taken for harmless. Nothing a caller sends lowers it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import jmespath
from attrs import frozen

from hearth.hcp.expressions import ExpressionError, truthy
from hearth.hcp.inputs import AT
from hearth.hcp.values import RISKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hearth.hcp.capability import Escalation, Safety
    from hearth.hcp.expressions import Expression
    from hearth.hcp.values import Risk


@frozen
class Assessment:
    """The risk of one job, and the rules that hold for its inputs."""

    risk: Risk
    floor: Risk
    raised_by: tuple[Escalation, ...] = ()


def above(risk: Risk, limit: Risk) -> bool:
    """Whether a risk is higher than a limit."""
    return RISKS.index(risk) > RISKS.index(limit)


def lower(one: Risk, other: Risk) -> Risk:
    """The lower of two."""
    return other if above(one, other) else one


def assess_risk(safety: Safety, inputs: Mapping[str, Any]) -> Assessment:
    """The risk of a job with these inputs, which are valid and have their defaults."""
    holding = tuple(rule for rule in safety.escalate if _holds(rule, inputs))
    return Assessment(_highest(safety.risk_floor, holding), safety.risk_floor, holding)


def _highest(floor: Risk, rules: Iterable[Escalation]) -> Risk:
    return RISKS[max(RISKS.index(risk) for risk in (floor, *(rule.risk for rule in rules)))]


def _holds(rule: Escalation, inputs: Mapping[str, Any]) -> bool:
    try:
        return truthy(rule.when.value({"inputs": inputs}))
    except ExpressionError:
        return True


def why(assessment: Assessment) -> str:
    """Where an assessed risk comes from, to follow a colon or a comma."""
    highest = [rule for rule in assessment.raised_by if rule.risk == assessment.risk]
    if not highest or assessment.risk == assessment.floor:
        return f"{assessment.risk} is the least that this capability has"
    return f"{highest[0].because} raises it from {assessment.floor} to {assessment.risk}"


def how_to_lower(assessment: Assessment, limit: Risk) -> str | None:
    """Which inputs to change to what, for the risk to come within `limit`; None where no input can do that."""
    if above(assessment.floor, limit):
        return None
    rules = [rule for rule in assessment.raised_by if above(rule.risk, limit)]
    cures = list(dict.fromkeys(_cure(rule) for rule in rules))
    left = _highest(assessment.floor, (rule for rule in assessment.raised_by if not above(rule.risk, limit)))
    said = "; and ".join(cures)
    return f"{said[:1].upper()}{said[1:]}: then the risk is {left}"


def _cure(rule: Escalation) -> str:
    plain = _to_fail(jmespath.compile(rule.when.text).parsed)
    what = " or ".join(named_in(rule.when))
    return plain or f"change {what} so that `{rule.when.text}` does not hold"


def named_in(expression: Expression) -> list[str]:
    """The inputs that an expression names, as pointers into the message; that of all of them, if it names none."""
    return sorted({f"{AT}/{path}" for path in _paths(jmespath.compile(expression.text).parsed)}) or [AT]


_FLIPPED: Final = {"lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte", "eq": "eq", "ne": "ne"}
_BOUNDS: Final = {
    "gt": "keep {} at {} or less",
    "gte": "keep {} below {}",
    "lt": "keep {} at {} or more",
    "lte": "keep {} above {}",
    "eq": "give {} another value than {}",
    "ne": "give {} the value {}",
}
"""What to do for a comparison not to hold."""


def _to_fail(node: Mapping[str, Any]) -> str | None:
    """How to make a condition not hold, for those that are plain enough to say so in words."""
    kind, children = node["type"], node["children"]
    if kind == "comparator":
        sign, (left, right) = node["value"], children
        if left["type"] == "literal":
            sign, left, right = _FLIPPED[sign], right, left
        path = _path(left)
        if path is None or right["type"] != "literal":
            return None
        return _BOUNDS[sign].format(f"{AT}/{path}", json.dumps(right["value"]))
    if kind in ("and_expression", "or_expression"):
        parts = [_to_fail(child) for child in children]
        # To undo "both" one is enough, to undo "either" takes both.
        words = ", or " if kind == "and_expression" else ", and "
        return None if None in parts else words.join(part for part in parts if part is not None)
    path = _path(node)
    return f"leave {AT}/{path} out, or make it false" if path is not None else None


def _path(node: Mapping[str, Any]) -> str | None:
    """The plain path inputs.a.b as "a/b"; None of anything else."""
    if not _is_of_inputs(node):
        return None
    names = [child["value"] for child in node["children"][1:] if child["type"] == "field"]
    return "/".join(names) if len(names) == len(node["children"]) - 1 else None


def _paths(node: Mapping[str, Any]) -> Iterator[str]:
    """The plain paths that a condition is about; of a longer way through the inputs, the member where it begins."""
    path = _path(node)
    if path is not None:
        yield path
    elif _is_of_inputs(node):
        yield from _first_field(node["children"][1])
    else:
        for child in _nodes(node):
            yield from _paths(child)


def _first_field(node: Mapping[str, Any]) -> Iterator[str]:
    while inner := _nodes(node):
        node = inner[0]
    if node["type"] == "field":
        yield node["value"]


def _nodes(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [child for child in node["children"] if isinstance(child, dict)]  # a slice has numbers there


def _is_of_inputs(node: Mapping[str, Any]) -> bool:
    first: Any = node["children"][0] if node["type"] == "subexpression" else {}
    return bool(first == {"type": "field", "children": [], "value": "inputs"})
