"""The risk of a job, and the inputs that would lower it (L3, Risk Assessment Process; decision 0072).

The risk is the capability's floor, raised by each declared rule whose condition holds. A condition that raises an
exception counts as one that holds, because inputs that cannot be evaluated are not harmless. No message of a caller
lowers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth._util.foreign import Raised, called
from hearth.hcp.inputs import ask
from hearth.policy.levels import RISKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.hcp.capability import Escalation, Safety
    from hearth.policy.levels import Risk


@frozen
class Assessment:
    """The risk of one job, and the rules that hold for its inputs."""

    risk: Risk
    floor: Risk
    raised_by: tuple[Escalation, ...] = ()


def above(risk: Risk, limit: Risk) -> bool:
    """Return True if a risk is higher than a limit."""
    return RISKS.index(risk) > RISKS.index(limit)


def lower(one: Risk, other: Risk) -> Risk:
    """The lower of two."""
    return other if above(one, other) else one


def assess_risk(safety: Safety, inputs: Mapping[str, Any]) -> Assessment:
    """The risk of a job with these inputs, which are valid, have their defaults and are structured."""
    holding = tuple(rule for rule in safety.escalate if _holds(rule, inputs))
    return Assessment(_highest(safety.risk_floor, holding), safety.risk_floor, holding)


def _highest(floor: Risk, rules: Iterable[Escalation]) -> Risk:
    return RISKS[max(RISKS.index(risk) for risk in (floor, *(rule.risk for rule in rules)))]


def _holds(rule: Escalation, inputs: Mapping[str, Any]) -> bool:
    try:
        return called(lambda: bool(ask(rule.when, inputs)))
    except Raised:
        return True


def why(assessment: Assessment) -> str:
    """Return the cause of an assessed risk, to follow a colon or a comma."""
    highest = [rule for rule in assessment.raised_by if rule.risk == assessment.risk]
    if not highest or assessment.risk == assessment.floor:
        return f"{assessment.risk} is the least that this capability has"
    return f"{highest[0].because} raises it from {assessment.floor} to {assessment.risk}"


def how_to_lower(assessment: Assessment, limit: Risk) -> str | None:
    """Return the inputs to change, and to what, to bring the risk within `limit`; None where no input can do that."""
    if above(assessment.floor, limit):
        return None
    rules = [rule for rule in assessment.raised_by if above(rule.risk, limit)]
    cures = list(dict.fromkeys(rule.cure.rstrip(".") for rule in rules))
    left = _highest(assessment.floor, (rule for rule in assessment.raised_by if not above(rule.risk, limit)))
    said = "; and ".join(cures)
    return f"{said[:1].upper()}{said[1:]}: then the risk is {left}"
