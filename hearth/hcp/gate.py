"""The safety gate: from a task_submit to an approval or a rejection, in the order that L3 gives (decision 0072).

It knows policy, capability and message, and decides once, before anything runs. It refuses to know who waits for a
person's approval, how many jobs run already, and the carrier. Nothing that a caller can write makes a limit wider: what
is approved is the narrower of what was asked, what the capability declares and what the policy allows.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.hcp.expected import check_expected
from hearth.hcp.inputs import InputRefused, fill_defaults, what_is_wrong
from hearth.hcp.rejection import ReasonCode as ReasonCode, Rejection as Rejection, listed, one_of, quoted
from hearth.hcp.risk import above, assess_risk, how_to_lower, lower, why
from hearth.hcp.spelling import line_as_given, port_as_given, respelled
from hearth.hcp.values import CLASSIFICATIONS, NEEDED_RISK_LEVEL, RISKS, write_duration
from hearth.hcp.versions import GRAMMAR, how_to_accept, satisfies
from hearth.policy.rules import decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import timedelta

    from hearth.hcp.caller_schema import CallerSchema
    from hearth.hcp.capability import Capability
    from hearth.hcp.messages import TaskSubmit
    from hearth.hcp.risk import Assessment
    from hearth.hcp.spelling import LineName, PortName
    from hearth.hcp.values import Classification, Priority, Risk
    from hearth.policy.jobs import JobRules
    from hearth.policy.principal import Principal
    from hearth.policy.rules import PolicyEntry
    from hearth.tools import Tool

_SUPERVISED: Final[Risk] = "R3"
"""From here on a capability that requires human approval gets it (L3, Approval Flow)."""


@frozen(kw_only=True)
class Allowance:
    """What whole jobs one principal may hand in."""

    policy: str
    rules: JobRules
    max_risk: Risk
    """The highest risk of a job: by the entry's hcp.max_risk and by its max_risk, whichever is lower."""
    tools: frozenset[str]
    """On the entry's allowlist, whatever their risk level."""
    too_risky: frozenset[str]
    """Tools above the entry's max_risk whatever their args: a job's tasks ask for no more than that."""


@frozen(kw_only=True)
class Approval:
    """A job that may run once a person has agreed, where that is needed: all that holds for it."""

    capability: Capability
    inputs: Mapping[str, Any]
    """JSON: valid, with defaults filled in, and each line, address and port in its one spelling."""
    risk: Risk
    classification: Classification
    max_duration: timedelta
    priority: Priority
    needs_approval: bool
    warnings: tuple[str, ...]
    """Sentences for the caller about what was asked for and cannot be promised."""
    safety_envelope: Mapping[str, Any]
    """As L3's schema has it."""
    expected: CallerSchema | None
    confidence_threshold: float | None


def allowance(policy: Iterable[PolicyEntry], principal: Principal, registry: Mapping[str, Tool]) -> Allowance | None:
    """What the first entry that matches allows; None where none does."""
    grant = decide(policy, principal, registry)
    if grant is None:
        return None
    within: list[Risk] = [
        risk for risk in RISKS if NEEDED_RISK_LEVEL[risk] <= grant.max_risk and not above(risk, grant.hcp.max_risk)
    ]
    return Allowance(
        policy=grant.policy,
        rules=grant.hcp,
        max_risk=within[-1],
        tools=grant.allowed,
        too_risky=frozenset(name for name, tool in registry.items() if tool.least_risk > grant.max_risk),
    )


def may_submit(capability: Capability, allowed: Allowance) -> bool:
    """Whether some job of this capability would be let in: what a list for this caller has."""
    tools = capability.tools
    return (
        allowed.rules.allows(capability.name)
        and tools <= allowed.tools
        and not tools & allowed.too_risky
        and not above(capability.safety.risk_floor, allowed.max_risk)
    )


def assess(
    submit: TaskSubmit,
    capabilities: Mapping[str, Capability],
    allowed: Allowance | None,
    *,
    default_classification: Classification = "T1",
    line_name: LineName = line_as_given,
    port_name: PortName = port_as_given,
) -> Approval:
    """Whether this task may run, and within what. Raises Rejection with the first reason why not.

    `line_name` and `port_name` are the board's: the one spelling of a line and of a serial port, in which all that
    follows sees it (`spelling`).
    """
    allowed = _check_caller(submit, allowed)
    capability = _find(submit, capabilities, allowed)
    _check_version(submit, capability)
    inputs = _spelt(submit, capability, line_name, port_name)
    values = _checked(capability, inputs)
    assessment = assess_risk(capability.safety, values)
    _check_envelope(capability, values, assessment)
    _check_risk(capability, assessment, allowed)
    asked = submit.constraints
    classification = asked.data_classification or default_classification
    _check_classification(classification, capability, allowed, assessment.risk)
    _check_tools(capability, allowed, assessment.risk)
    expected, warnings = check_expected(submit, capability)
    limit = capability.max_duration
    if asked.max_duration is not None and asked.max_duration > limit:
        warnings.append(f"max_duration is {write_duration(limit)}, the most that {capability.name} runs")
    return Approval(
        capability=capability,
        inputs=inputs,
        risk=assessment.risk,
        classification=classification,
        max_duration=limit if asked.max_duration is None else min(asked.max_duration, limit),
        priority=asked.priority or "normal",
        needs_approval=capability.safety.requires_human_approval and not above(_SUPERVISED, assessment.risk),
        warnings=tuple(warnings),
        safety_envelope=capability.envelope.to_wire(),
        expected=expected,
        confidence_threshold=asked.confidence_threshold,
    )


# --- permission audit -----------------------------------------------------------------------------------------------


def _check_caller(submit: TaskSubmit, allowed: Allowance | None) -> Allowance:
    if allowed is None:
        cure = "Ask the operator for a [[policy]] entry that matches this connection's principal"
        raise Rejection("unauthorized", "no policy entry matches who is calling", suggestion=cure)
    if not allowed.rules.allows_caller(submit.caller_id):
        who = quoted(submit.caller_id)
        cure = f"Use the caller_id agreed with the operator, or ask for {who} in hcp.callers of that entry"
        reason = f"/payload/caller_id: policy {quoted(allowed.policy)} lets no caller {who} hand in jobs"
        raise Rejection("unauthorized", reason, suggestion=cure)
    return allowed


def _find(submit: TaskSubmit, capabilities: Mapping[str, Capability], allowed: Allowance) -> Capability:
    name = submit.capability
    permitted = [one for one in capabilities if allowed.rules.allows(one)]
    if name not in capabilities:
        near = get_close_matches(name[:100], permitted, 3, 0.5)
        cure = f"Did you mean {one_of(near)}?" if near else _there_are(permitted)
        raise Rejection("unknown_capability", f"/payload/capability: there is no {quoted(name)}", suggestion=cure)
    if not allowed.rules.allows(name):
        reason = f"/payload/capability: policy {quoted(allowed.policy)} does not permit {name}"
        cure = f"{_there_are(permitted)}; or ask the operator for {name} in hcp.capabilities of that entry"
        raise Rejection("forbidden", reason, suggestion=cure)
    return capabilities[name]


def _check_version(submit: TaskSubmit, capability: Capability) -> None:
    accepted = submit.capability_version
    if accepted is None:
        return
    at = "/payload/capability_version"
    try:
        fits = satisfies(capability.version, accepted)
    except ValueError as error:
        raise Rejection("invalid_input", f"{at}: {error}", suggestion=GRAMMAR) from None
    if not fits:
        reason = f"{at}: {capability.name} {capability.version} is not within {quoted(accepted)}"
        raise Rejection("version_mismatch", reason, suggestion=how_to_accept(capability.version))


def _spelt(submit: TaskSubmit, capability: Capability, line_name: LineName, port_name: PortName) -> Mapping[str, Any]:
    schema = capability.input_schema
    given = fill_defaults(schema, submit.inputs)
    _check_fit(capability, given)
    inputs: Mapping[str, Any] = respelled(schema, given, line_name, port_name)
    if inputs != given:
        # Items that were different as they were spelt may be the same one.
        _check_fit(capability, inputs)
    return inputs


def _checked(capability: Capability, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values that the capability's own functions get, once its check has let them pass."""
    try:
        values = capability.structure(inputs)
        capability.check(inputs)
    except InputRefused as refusal:
        raise Rejection("invalid_input", f"{refusal.place}: {refusal.reason}", suggestion=refusal.cure) from None
    return values


def _check_fit(capability: Capability, inputs: Mapping[str, Any]) -> None:
    if not capability.inputs.accepts(inputs):
        reason, cure = what_is_wrong(capability.input_schema, inputs)
        raise Rejection("invalid_input", reason, suggestion=cure)


# --- safety ---------------------------------------------------------------------------------------------------------


def _check_envelope(capability: Capability, values: Mapping[str, Any], assessment: Assessment) -> None:
    violation = capability.envelope.check_inputs(values)
    if violation is not None:
        reason = f"{' or '.join(violation.places)}: outside of the safety envelope: {violation.message}"
        raise Rejection("safety_violation", reason, suggestion=violation.cure, risk=assessment.risk)


def _check_risk(capability: Capability, assessment: Assessment, allowed: Allowance) -> None:
    risk, ceiling, most = assessment.risk, capability.safety.risk_ceiling, allowed.max_risk
    limit = lower(ceiling, most)
    if not above(risk, limit):
        return
    whose = f"policy {quoted(allowed.policy)}" if limit == most else capability.name
    cure = how_to_lower(assessment, limit)
    if cure is None:
        keys = f"max_risk = {NEEDED_RISK_LEVEL[assessment.floor]} and hcp.max_risk = {assessment.floor} or more"
        cure = f"No input lowers it: use a capability of less risk, or ask the operator for {keys} in that entry"
    reason = f"the task is {risk}, and {whose} goes no further than {limit}: {why(assessment)}"
    raise Rejection("risk_too_high", reason, suggestion=cure, risk=risk)


def _check_classification(
    classification: Classification, capability: Capability, allowed: Allowance, risk: Risk
) -> None:
    most = allowed.rules.max_data_classification
    for limit, whose, key in (
        (capability.data_classification, f"capability {capability.name}", "constraints.data_classification"),
        (most, f"policy {quoted(allowed.policy)}", "hcp.max_data_classification"),
    ):
        if CLASSIFICATIONS.index(classification) > CLASSIFICATIONS.index(limit):
            reason = f"/payload/constraints/data_classification: {classification}, and {whose} takes {limit} at most"
            cure = f"Send data of {limit} or below, and say so, or ask the operator about {key} there"
            raise Rejection("classification_too_high", reason, suggestion=cure, risk=risk)


def _check_tools(capability: Capability, allowed: Allowance, risk: Risk) -> None:
    for name in sorted(capability.tools):
        if name in allowed.tools and name not in allowed.too_risky:
            continue
        if name in allowed.tools:
            what, key = f"uses {name}, whose risk level is above the max_risk", "a higher max_risk"
        else:
            what, key = f"uses {name}, which is not among the tools", f"{quoted(name)} in tools"
        reason = f"/payload/capability: {capability.name} {what} of policy {quoted(allowed.policy)}"
        cure = f"Ask the operator for {key} of that entry; hcp.capabilities lists what may be submitted as it is"
        raise Rejection("forbidden", reason, suggestion=cure, risk=risk)


# --- words ----------------------------------------------------------------------------------------------------------


def _there_are(names: list[str]) -> str:
    return f"There are {listed(names)}" if names else "No capability is permitted here"
