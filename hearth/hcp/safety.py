"""The safety gate: from a task_submit to an approval or a rejection, in the order that L3 gives (decision 0072).

It knows policy, capability and message, and decides once, before anything runs. Approvals by persons, the number of
running jobs and the carrier are not known here. No value of a caller's widens a limit: the approval is the narrower of
the request, the capability's declaration and the policy.

It also owns versions: semver ranges by npm's rules (L4; https://github.com/npm/node-semver), with the messages for a
range that cannot be read and for a version outside a range. And it has the rejections that the job server sends before
or beside the gate, so that their texts are in one place.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attrs import evolve, frozen
from semantic_version import Version

from hearth._util.text import nearest
from hearth.errors import ShuttingDown
from hearth.hcp.codec import dump, message
from hearth.hcp.inputs import InputRefused, ask, fill_defaults, line_as_given, port_as_given, respelled, what_is_wrong
from hearth.hcp.messages import (
    NEEDED_RISK_LEVEL,
    TERMINAL,
    ReasonCode,
    Rejection,
    listed,
    one_of,
    quoted,
    write_duration,
)
from hearth.hcp.schemas import SchemaRefused, read_caller_schema
from hearth.policy.levels import CLASSIFICATIONS, RISKS
from hearth.policy.rules import ApprovalRule, decide, strictest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from hearth.errors import QueueFull, RpcError
    from hearth.hcp.capability import Capability, Escalation, Safety
    from hearth.hcp.inputs import LineName, PortName
    from hearth.hcp.messages import Priority, State, TaskSubmit
    from hearth.hcp.schemas import CallerSchema
    from hearth.policy.levels import Classification, Risk
    from hearth.policy.principal import Principal
    from hearth.policy.rules import JobRules, PolicyEntry
    from hearth.tools import Tool

LONGEST_RANGE: Final = 200
"""Characters of a range; real ranges are far shorter."""
GRAMMAR: Final = (
    'Write a range as npm does: "1.x", "^1.2", "~1.2.3", ">=1.0.0 <2.0.0" (a space between two bounds), '
    '"1.x || 3.x", or leave capability_version out for any version'
)
"""The cure for a range that cannot be read."""


def read_version(text: str) -> str:
    """Return a semver version, unchanged. Raises ValueError that says what was expected."""
    try:
        Version(text)
    except ValueError:
        raise ValueError(f'expected a semver version such as "1.0.0", got {text[:60]!r}') from None
    return text


def satisfies(version: str, accepted: str) -> bool:
    """Return True if `version` lies within the range `accepted`. Raises ValueError for a range that cannot be read.

    A pre-release is in a range only where the range names a pre-release of the same version, as in npm.
    """
    if len(accepted) > LONGEST_RANGE:
        raise ValueError(f"a range of {len(accepted)} characters; at most {LONGEST_RANGE} are read")
    here = Version(version).truncate("prerelease")
    try:
        sets = [_comparators(one.strip()) for one in accepted.split("||")]
    except ValueError:
        raise ValueError(f"{accepted[:60]!r} is not a range of semver versions") from None
    return any(_within(here, one) for one in sets)


_ID = "[0-9A-Za-z-]+"
_PART = r"(0|[1-9][0-9]*|[xX*])"
_PARTIAL = rf"[v=\s]*{_PART}(?:\.{_PART}(?:\.{_PART}(?:-({_ID}(?:\.{_ID})*))?(?:\+{_ID}(?:\.{_ID})*)?)?)?"
_COMPARATOR = re.compile(rf"(\^|~>?|[<>]=?|=|)\s*{_PARTIAL}(?:\s+|\Z)")
_HYPHEN = re.compile(r"(\S.*?)\s+-\s+(\S.*)", re.DOTALL)
Comparator: TypeAlias = "tuple[str, Version]"
"""One of "<", "<=", ">", ">=" and "=", and a version."""


def _comparators(text: str) -> list[Comparator]:
    """Return what a version must fulfil, all of it, to be in a set of a range. Raises ValueError."""
    if hyphen := _HYPHEN.fullmatch(text):
        text = f">={hyphen[1]} <={hyphen[2]}"
    found: list[Comparator] = []
    at = 0
    while at < len(text):
        one = _COMPARATOR.match(text, at)
        if one is None:
            raise ValueError(text)
        found += _bounds(one[1], *one.groups()[1:])
        at = one.end()
    return found


def _bounds(op: str, *parts: str | None) -> Iterator[Comparator]:
    """Yield the comparators of an operator with a version, of which "x", "*" or nothing leaves parts open."""
    known = [int(part) for part in takewhile(str.isdigit, (part or "x" for part in parts[:3]))]
    pre = parts[3].split(".") if parts[3] and len(known) == 3 else ()
    major, minor, patch = [*known, 0, 0, 0][:3]
    low = Version(major=major, minor=minor, patch=patch, prerelease=pre)
    if not known:
        if op in ("<", ">"):
            yield "<", _before(0, 0, 0)
        return
    # The number that grows at the end of what the known parts, "~" or "^" stand for.
    first = next((at for at, number in enumerate(known) if number), len(known) - 1)
    grows = {"^": first, "~": min(len(known), 2) - 1, "~>": min(len(known), 2) - 1}.get(op, len(known) - 1)
    high = [*known[:grows], known[grows] + 1, 0, 0][:3]
    whole = len(known) == 3 and op not in ("^", "~", "~>")
    if whole:
        yield op or "=", low
    else:
        beyond = Version(major=high[0], minor=high[1], patch=high[2])
        part: dict[str, list[Comparator]] = {
            ">": [(">=", beyond)],
            ">=": [(">=", low)],
            "<": [("<", _before(major, minor, patch))],
            "<=": [("<", _before(*high))],
        }
        yield from part.get(op, [(">=", low), ("<", _before(*high))])


def _before(major: int, minor: int, patch: int) -> Version:
    """Return the lowest pre-release of a version."""
    return Version(major=major, minor=minor, patch=patch, prerelease=("0",))


def _within(here: Version, comparators: Sequence[Comparator]) -> bool:
    key = here.precedence_key
    for op, there in comparators:
        other = there.precedence_key
        if not ((key == other and "=" in op) or (key < other and "<" in op) or (key > other and ">" in op)):
            return False
    release = here.truncate()
    return not here.prerelease or any(each.prerelease and each.truncate() == release for _, each in comparators)


def how_to_accept(version: str) -> str:
    """Return a sentence for a caller whose range excludes `version`, the only one."""
    there = Version(version)
    if there.prerelease:
        return f'The version here is {version}, a pre-release: name it exactly, capability_version "{version}"'
    fitting = f"{there.major}.x" if there.major else f"~{there.major}.{there.minor}.{there.patch}"
    return f'The version here is {version}: "{fitting}" accepts it, and so does leaving capability_version out'


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


# --- permission audit -----------------------------------------------------------------------------------------------


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


# --- messages
# --- messages ---------------------------------------------------------------------------------------------------------


def _there_are(names: list[str]) -> str:
    return f"There are {listed(names)}" if names else "No capability is permitted here"


# --- the risk of a job, and the inputs that would lower it (L3, Risk Assessment Process; decision 0072)
# --- the risk of a job, and the inputs that would lower it (L3, Risk Assessment Process; decision 0072) ---------------
#
# The risk is the capability's floor, raised by each declared rule whose condition holds. A condition that raises an
# exception counts as one that holds, because inputs that cannot be evaluated are not harmless. No message of a caller
# lowers it.


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
        return bool(ask(rule.when, inputs))
    except Exception:  # noqa: BLE001 - the author's function: any exception of it is "cannot be judged"
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


# --- what a caller expects of the outputs (L4, Expected Output)
# --- what a caller expects of the outputs (L4, Expected Output) -------------------------------------------------------
#
# Checked before anything runs: an expectation that the capability can never meet is refused now instead of after all
# the work. One that is merely not promised becomes a warning.

_AT = "/payload/expected_output"


def check_expected(submit: TaskSubmit, capability: Capability) -> tuple[CallerSchema | None, list[str]]:
    """Return the caller's schema compiled, and warnings. Raises Rejection for an expectation that can never be met."""
    expected = submit.expected_output
    warnings = _check_format(expected.format, capability) if expected.format is not None else []
    warnings += _check_promised(f"{_AT}/required_fields", expected.required_fields, capability)
    schema = None
    if expected.schema is not None:
        try:
            schema = read_caller_schema(expected.schema)
        except SchemaRefused as error:
            reason = f"{_AT}/schema{error.pointer}: {error.reason}"
            raise Rejection("invalid_input", reason, suggestion=error.cure) from None
        warnings += _check_promised(f"{_AT}/schema/required", schema.required, capability)
    if submit.constraints.confidence_threshold is not None and "confidence" not in _declared(capability):
        reason = f"/payload/constraints/confidence_threshold: {capability.name} states no confidence to hold against it"
        raise Rejection("invalid_input", reason, suggestion="Leave confidence_threshold out for this capability")
    return schema, warnings


def _check_format(name: str, capability: Capability) -> list[str]:
    at = f"{_AT}/format"
    if not capability.formats:
        return [f"{at}: {capability.name} declares no formats, so {quoted(name)} changes nothing"]
    if name not in capability.formats:
        near = nearest(name[:100], capability.formats, 1)
        cure = f"Use {one_of(near or capability.formats)}, or leave format out"
        raise Rejection("invalid_input", f"{at}: {capability.name} has no format {quoted(name)}", suggestion=cure)
    return []


def _check_promised(at: str, names: Iterable[str], capability: Capability) -> list[str]:
    """Return warnings for fields that may be absent. Raises Rejection for one that the output_schema excludes."""
    declared = _declared(capability)
    unknown_members = [name for name in dict.fromkeys(names) if name not in declared]
    if not unknown_members:
        return []
    if _is_closed(capability.output_schema):
        near = nearest(unknown_members[0][:100], declared, 1)
        cure = f"Write {quoted(near[0])} there" if near else f"Ask for some of {listed(declared)}, or leave it out"
        reason = f"{at}: {quoted(unknown_members[0])} is not among the outputs of {capability.name}"
        raise Rejection("invalid_input", reason, suggestion=cure)
    shown = listed(map(quoted, unknown_members))
    return [f"{at}: {capability.name} does not promise {shown}; the task will fail if that is not among its outputs"]


def _declared(capability: Capability) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = capability.output_schema.get("properties", {})
    return properties


def _is_closed(schema: Mapping[str, Any]) -> bool:
    return schema.get("additionalProperties") is False and "patternProperties" not in schema


def no_policy() -> Rejection:
    """Return the rejection of a caller that no policy entry matches."""
    cure = "ask the operator for a [[policy]] entry that matches this connection's principal"
    return Rejection("unauthorized", "no policy entry matches the caller", suggestion=cure)


def reused(message_id: str) -> Rejection:
    """Return the rejection of a message whose id belongs to another message."""
    reason = f"the message_id {message_id!r} has been used for another task_submit"
    return Rejection("message_id_reused", reason, suggestion="give every task_submit a fresh message_id (a UUID v4)")


def shutting_down() -> Rejection:
    """Return the rejection of a message that arrives while the daemon ends."""
    cure = "submit it again, with the same message_id, later"
    return Rejection("shutting_down", "the daemon is ending", suggestion=cure)


def no_memory(refusal: QueueFull) -> Rejection:
    """Return the rejection of a message that exceeds the memory budget of its principal, or of all."""
    said = refusal.data or {}
    return Rejection("resource_unavailable", said["reason"], suggestion=said["cure"])


def unknown_session(session_id: str) -> Rejection:
    """Return the rejection for an unknown session; another principal's session gets the same answer."""
    reason = f"there is no session {session_id[:200]!r} of yours"
    return Rejection("unknown_session", reason, suggestion="take the session_id that came with task_accepted")


def withdrawn(why: str | None, risk: Risk) -> Rejection:
    """Return the rejection of a submission that its caller withdrew before it was accepted."""
    reason = "its caller withdrew it" + (f": {why}" if why else "")
    return Rejection("withdrawn", reason, suggestion="submit it again under a new message_id", risk=risk)


def session_ended(session_id: str, state: State) -> Rejection:
    """Return the rejection of an abort whose session has ended: nothing is left to stop."""
    cure = "`hcp.attach` sends the session's messages again, its outcome among them"
    if state not in TERMINAL:
        # Its end could not be stored. The daemon's next start writes FAILED.
        return Rejection("session_ended", f"session {session_id} no longer runs", suggestion=cure)
    return Rejection("session_ended", f"session {session_id} has ended {state}", suggestion=cure, final_state=state)


def not_for_callers(type_: str) -> Rejection:
    """Return the rejection of a message of a type that only a callee sends."""
    reason = f"/type: only a callee sends {type_}"
    return Rejection("invalid_message", reason, suggestion='send "task_submit" or "abort"')


def wrong_token(why: str) -> Rejection:
    """Return the rejection of an abort whose session token is not valid."""
    cure = "send the session_token of this session's task_accepted, or none"
    return Rejection("unauthorized", f"/payload/session_token: {why}", suggestion=cure)


def crashed(error: BaseException) -> Rejection:
    """Return the rejection of a submission that met a bug in hearth."""
    return Rejection("internal_error", f"internal error: {type(error).__name__}")


def no_hacp_session(error: RpcError) -> Rejection:
    """Return the rejection of a job whose HACP session cannot be opened."""
    if isinstance(error, ShuttingDown):
        return shutting_down()
    reason = f"no HACP session can be opened for it: {error.message}"
    return Rejection("resource_unavailable", reason, suggestion="try again later")


def unread(document: Mapping[str, Any], reason_code: ReasonCode, reason: str, now: float) -> bytes:
    """Return the answer line to a message that is refused without being read."""
    message_id = document.get("message_id")
    rejection = Rejection(reason_code, reason, suggestion="send it again, with the same message_id, later")
    payload = rejection.payload(message_id if isinstance(message_id, str) else None)
    return dump(message(payload, session_id=None, now=now))
