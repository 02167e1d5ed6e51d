"""Nothing that a caller can write into a task_submit makes a limit wider: random submissions, read from documents."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hcp.gatekit import INPUTS, TOOLS, allowed, capability
from hypothesis import HealthCheck, event, given, settings, strategies as st

from hearth.hcp.capability import CapabilitySet
from hearth.hcp.codec import read_message
from hearth.hcp.messages import MessageError, Rejection, TaskSubmit, read_duration, write_duration
from hearth.hcp.safety import Allowance, Approval, assess
from hearth.policy.levels import CLASSIFICATIONS, RISKS

CAPABILITIES = [
    capability(floor=floor, ceiling=ceiling, approval=approval, data_classification=data, max_duration=longest)
    for floor, ceiling, approval, data, longest in (
        ("R1", "R4", False, "T2", timedelta(hours=1)),
        ("R1", "R3", True, "T4", timedelta(minutes=5)),
        ("R3", "R5", True, "T1", timedelta(hours=72)),
    )
]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**6) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
LIMITS = st.sampled_from([
    "risk_level", "max_risk", "risk_floor", "risk_ceiling", "requires_human_approval", "safety_envelope", "escalate",
    "approved_risk_level", "session_token", "max", "min", "policy", "tools", "hcp_session", "rule",
])  # fmt: skip
"""Names under which somebody might try to bring limits along."""
ATTEMPTS = st.dictionaries(LIMITS, ANY, max_size=3)
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "sensor": st.text(min_size=1, max_size=5),
    "samples": st.integers(1, 2000),
    "interval": st.floats(0.001, 100),
    "fast": st.booleans(),
    "heat": st.floats(0, 200),
    "mode": st.sampled_from(["once", "often"]),
    "lines": st.lists(st.fixed_dictionaries({"offset": st.integers(0, 40)}), max_size=2),
}
GOOD_INPUTS = st.fixed_dictionaries(
    {"sensor": FITTING["sensor"]}, optional={name: FITTING[name] for name in INPUTS["properties"] if name != "sensor"}
)
INPUT_SETS = (
    GOOD_INPUTS
    | st.builds(lambda good, more: {**good, **more}, GOOD_INPUTS, ATTEMPTS)
    | st.builds(lambda good, name, value: {**good, name: value}, GOOD_INPUTS, st.sampled_from(list(FITTING)), ANY)
)
CONSTRAINTS = st.builds(
    lambda fitting, more: {**fitting, **more},
    st.fixed_dictionaries(
        {},
        optional={
            "max_duration": st.timedeltas(timedelta(seconds=1), timedelta(days=10)).map(write_duration),
            "confidence_threshold": st.floats(0, 1),
            "data_classification": st.sampled_from(CLASSIFICATIONS),
            "priority": st.sampled_from(["low", "normal", "high", "urgent"]),
        },
    ),
    ATTEMPTS,
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    payload = {
        **draw(ATTEMPTS),
        "capability": "bench-climate-survey",
        "caller_id": draw(st.sampled_from(["harness-1", "harness-2", "root", "*"])),
        "intent": draw(st.text(min_size=1, max_size=10)),
        "inputs": draw(INPUT_SETS),
        "constraints": draw(CONSTRAINTS),
        "context": draw(ATTEMPTS),
    }
    if draw(st.booleans()):
        payload["capability_version"] = draw(st.sampled_from(["1.x", "*", "^1.2 || 3.x", ">=1.4.2", "2.x"]))
    envelope = {"hcp_version": "1.0", "message_id": "m", "timestamp": "...", "session_id": None, "type": "task_submit"}
    return {**draw(ATTEMPTS), **envelope, "payload": payload}


ALLOWANCES = st.builds(
    lambda risk, data, tools, caller: allowed(risk=risk, max_data_classification=data, tools=tools, callers=(caller,)),
    st.sampled_from(RISKS),
    st.sampled_from(CLASSIFICATIONS),
    st.sampled_from([TOOLS, TOOLS, TOOLS, frozenset()]),
    st.sampled_from(["*", "*", "*", "*", "harness-*"]),
)


def judged(document: dict[str, Any], one: Any, by: Allowance) -> tuple[TaskSubmit, Approval] | None:
    try:
        submit = read_message(document).payload
        assert isinstance(submit, TaskSubmit)
        return submit, assess(submit, CapabilitySet([one]), by)
    except (MessageError, Rejection) as refusal:
        event(getattr(refusal, "reason_code", "unread"))
        return None


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(document=documents(), one=st.sampled_from(CAPABILITIES), by=ALLOWANCES)
@pytest.mark.spec(
    "hcp L3 Safety Envelope",
    "is",
    "Not modifiable by the caller — the caller cannot relax safety limits",
)
def test_whatever_is_approved_is_within_every_limit(document, one, by):
    found = judged(document, one, by)
    if found is None:
        return
    event("approved")
    submit, approval = found
    order = RISKS.index
    assert (
        order(one.safety.risk_floor) <= order(approval.risk) <= min(order(one.safety.risk_ceiling), order(by.max_risk))
    )
    inputs = approval.inputs
    least = [(inputs["samples"] > 1000, "R3"), (inputs["heat"] >= 100, "R4"), (inputs.get("fast") is True, "R2")]
    assert order(approval.risk) == max([order(one.safety.risk_floor), *(order(risk) for holds, risk in least if holds)])
    assert approval.max_duration <= one.max_duration
    if (asked := submit.constraints.max_duration) is not None:
        assert approval.max_duration <= asked
    assert 0.01 <= inputs["interval"] <= 60
    assert approval.safety_envelope == one.envelope.to_wire()
    rank = CLASSIFICATIONS.index
    assert rank(approval.classification) <= min(rank(one.data_classification), rank(by.rules.max_data_classification))
    assert rank(approval.classification) >= rank(submit.constraints.data_classification or "T1")
    assert one.tools <= by.tools - by.too_risky
    assert by.rules.allows_caller(submit.caller_id)
    assert (approval.rule is not None) == (one.safety.requires_human_approval and order(approval.risk) >= order("R3"))
    assert one.inputs.accepts(inputs)
    assert approval.confidence_threshold == submit.constraints.confidence_threshold


@pytest.mark.parametrize("one", CAPABILITIES, ids=["open", "supervised", "critical"])
def test_each_of_the_capabilities_can_be_approved_at_all(one):
    constraints = {"max_duration": "PT1M", "data_classification": "T1"}
    payload = {
        "capability": one.name,
        "caller_id": "c",
        "intent": "i",
        "inputs": {"sensor": "s"},
        "constraints": constraints,
    }
    document = {"hcp_version": "1.0", "message_id": "m", "timestamp": "...", "type": "task_submit", "payload": payload}
    found = judged(document, one, allowed(max_data_classification="T4"))
    assert found is not None
    assert found[1].max_duration == read_duration("PT1M")
