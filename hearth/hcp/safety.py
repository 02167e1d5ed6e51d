"""The safety gate: from a task_submit to an approval or a rejection, in the order that L3 gives (decision 0072).

It knows policy, capability and message, and decides once, before anything runs. Approvals by persons, the number of
running jobs and the carrier are not known here. No value of a caller's widens a limit: the approval is the narrower of
the request, the capability's declaration and the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, frozen

from hearth._util.text import nearest
from hearth.hcp.expected import check_expected
from hearth.hcp.inputs import InputRefused, fill_defaults, line_as_given, port_as_given, respelled, what_is_wrong
from hearth.hcp.messages import (
    NEEDED_RISK_LEVEL,
    Rejection,
    listed,
    one_of,
    quoted,
    write_duration,
)
from hearth.hcp.risk import Assessment, above, assess_risk, how_to_lower, lower, why
from hearth.hcp.versions import GRAMMAR, how_to_accept, satisfies
from hearth.policy.levels import CLASSIFICATIONS, RISKS
from hearth.policy.rules import ApprovalRule, decide, strictest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import timedelta

    from hearth.hcp.capability import Capability
    from hearth.hcp.inputs import LineName, PortName
    from hearth.hcp.messages import Priority, TaskSubmit
    from hearth.hcp.schemas import CallerSchema
    from hearth.policy.levels import Classification, Risk
    from hearth.policy.principal import Principal
    from hearth.policy.rules import JobRules, PolicyEntry
    from hearth.tools import Tool


_SUPERVISED: Final[Risk] = "R3"
"""From this risk on, a capability that requires human approval needs it (L3, Approval Flow)."""
ANOTHER_PERSON: Final = ApprovalRule(from_risk=1, other=True)
"""The approval of another principal than the job's."""


@frozen(kw_only=True)
class Allowance:
    """The whole jobs that one principal may submit."""

    policy: str
    rules: JobRules
    max_risk: Risk
    """The highest risk of a job: by the entry's hcp.max_risk and by its max_risk, whichever is lower."""
    tools: frozenset[str]
    """On the entry's allowlist, whatever their risk level."""
    too_risky: frozenset[str]
    """Tools above the entry's max_risk whatever their args: a job's tasks ask for no more than that."""
    rights: frozenset[str] = frozenset()
    approval: tuple[ApprovalRule, ...] = ()
    """The entry's rules for what needs approvals, by rising risk."""
    caller: str | None = None
    """The only caller_id that jobs may have; None: any that the rules allow."""


@frozen(kw_only=True)
class Approval:
    """A job that may run, after a person's approval where that is needed, with all its limits."""

    capability: Capability
    inputs: Mapping[str, Any]
    """JSON: valid, with defaults filled in, and each line, address and port in its one spelling."""
    risk: Risk
    classification: Classification
    max_duration: timedelta
    priority: Priority
    rule: ApprovalRule | None
    """The approvals that it needs; None: none."""
    warnings: tuple[str, ...]
    """Sentences for the caller about requests that cannot be promised."""
    safety_envelope: Mapping[str, Any]
    """As L3's schema has it."""
    expected: CallerSchema | None
    confidence_threshold: float | None

    @property
    def acts(self) -> bool:
        """True if the job may have an effect; any other only reads, and a halt does not concern it."""
        return NEEDED_RISK_LEVEL[self.risk] > 0


def allowance(policy: Iterable[PolicyEntry], principal: Principal, registry: Mapping[str, Tool]) -> Allowance | None:
    """Return the rights that the first matching entry gives; None where none matches."""
    grant = decide(policy, principal, registry)
    if grant is None:
        return None
    within: list[Risk] = [
        risk for risk in RISKS if NEEDED_RISK_LEVEL[risk] <= grant.max_risk and not above(risk, grant.hcp.max_risk)
    ]
    return Allowance(
        policy=grant.policy,
        rules=grant.hcp,
        # The events of a job go to the queue of its caller_id, so that it is no mere claim.
        caller=principal.amqp_user if grant.hcp.callers == ("*",) else None,
        max_risk=within[-1],
        tools=grant.allowed,
        too_risky=frozenset(name for name, tool in registry.items() if tool.least_risk > grant.max_risk),
        rights=grant.rights,
        approval=grant.approval,
    )


def may_submit(capability: Capability, allowed: Allowance) -> bool:
    """Return True if some job of this capability could be admitted: the caller's list shows it then."""
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
    """Return the approval of this task, with its limits. Raises Rejection with the first reason against it.

    `line_name` and `port_name` are the board's: they return the one spelling of a line and of a serial port, in which
    all later checks see it (`hearth.hcp.inputs`).
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
        rule=_approval_rule(capability, assessment.risk, allowed),
        warnings=tuple(warnings),
        safety_envelope=capability.envelope.to_wire(),
        expected=expected,
        confidence_threshold=asked.confidence_threshold,
    )


def _approval_rule(capability: Capability, risk: Risk, allowed: Allowance) -> ApprovalRule | None:
    """Return the approvals that a job needs: those of the policy entry, and another person's for its capability."""
    rule = strictest(allowed.approval, NEEDED_RISK_LEVEL[risk])
    if capability.safety.requires_human_approval and not above(_SUPERVISED, risk):
        return ANOTHER_PERSON if rule is None else evolve(rule, other=True)
    return rule


def _check_caller(submit: TaskSubmit, allowed: Allowance | None) -> Allowance:
    if allowed is None:
        cure = "Ask the operator for a [[policy]] entry that matches this connection's principal"
        raise Rejection("unauthorized", "no policy entry matches the caller", suggestion=cure)
    if not allowed.rules.allows_caller(submit.caller_id) or allowed.caller not in (None, submit.caller_id):
        who = quoted(submit.caller_id)
        cure = f"Use the caller_id agreed with the operator, or ask for {who} in hcp.callers of that entry"
        reason = f"/payload/caller_id: policy {quoted(allowed.policy)} lets no caller {who} hand in jobs"
        raise Rejection("unauthorized", reason, suggestion=cure)
    return allowed


def _find(submit: TaskSubmit, capabilities: Mapping[str, Capability], allowed: Allowance) -> Capability:
    name = submit.capability
    permitted = [one for one in capabilities if allowed.rules.allows(one)]
    if name not in capabilities:
        near = nearest(name[:100], permitted, 3, 0.5)
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
        # Items with different spellings may be the same one.
        _check_fit(capability, inputs)
    return inputs


def _checked(capability: Capability, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values that the capability's own functions get, after its check has accepted them."""
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


def _there_are(names: list[str]) -> str:
    return f"There are {listed(names)}" if names else "No capability is permitted here"
