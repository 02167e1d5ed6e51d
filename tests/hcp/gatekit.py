"""Capabilities, policies and submissions to try the gate with: real schemas, rules and limits, no daemon."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from hearth.hcp.capability import Capability, CapabilitySet, Escalation, Limit, Safety, SafetyEnvelope
from hearth.hcp.messages import ExpectedOutput, JobConstraints, Rejection, TaskSubmit
from hearth.hcp.safety import Allowance, Approval, assess
from hearth.policy.rules import JobRules
from hearth.schema import Validator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INPUTS = {
    "type": "object",
    "required": ["sensor"],
    "additionalProperties": False,
    "properties": {
        "sensor": {"type": "string", "minLength": 1, "description": "which sensor"},
        "samples": {"type": "integer", "minimum": 1, "maximum": 100_000, "default": 10},
        "interval": {"type": "number", "exclusiveMinimum": 0, "default": 0.5},
        "fast": {"type": "boolean"},
        "heat": {"type": "number", "default": 20},
        "mode": {"enum": ["once", "often"], "default": "once"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
    },
    "$defs": {"line": {"type": "object", "required": ["offset"], "properties": {"offset": {"type": "integer"}}}},
}
OUTPUTS = {
    "type": "object",
    "required": ["mean"],
    "additionalProperties": False,
    "properties": {
        "mean": {"type": "number"},
        "spread": {"type": "number"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
}
RULES = [
    Escalation(
        lambda samples: samples > 1000,
        "R3",
        "many samples wear the sensor",
        "keep /payload/inputs/samples at 1000 or less",
    ),
    Escalation(lambda heat: heat >= 100, "R4", "heat is a hazard", "keep /payload/inputs/heat below 100"),
    Escalation(lambda fast: fast, "R2", "speed is noisy", "leave /payload/inputs/fast out, or make it false"),
]
LIMITS = {"interval": Limit(lambda interval: interval, min=0.01, max=60, unit="second")}
TOOLS = frozenset({"hw.sensor.read"})


async def unused(_job: Any, **_inputs: Any) -> Any:
    raise AssertionError("the gate runs nothing")


def capability(
    name: str = "bench-climate-survey",
    *,
    version: str = "1.4.2",
    rules: Sequence[Escalation] = RULES,
    floor: Any = "R1",
    ceiling: Any = "R4",
    approval: bool = False,
    tools: frozenset[str] = TOOLS,
    inputs: Mapping[str, Any] = INPUTS,
    outputs: Mapping[str, Any] = OUTPUTS,
    limits: Mapping[str, Limit] = LIMITS,
    **others: Any,
) -> Capability:
    return Capability(
        name=name,
        version=version,
        description="Samples a sensor for a while.",
        input_schema=inputs,
        output_schema=outputs,
        safety=Safety(
            risk_ceiling=ceiling,
            risk_floor=floor,
            requires_human_approval=approval,
            involves_physical_resources=True,
            escalate=tuple(rules),
        ),
        envelope=SafetyEnvelope(parameters=limits),
        tools=tools,
        function=unused,
        place="survey.py:12",
        inputs=Validator(inputs),
        outputs=Validator(outputs),
        **{"max_duration": timedelta(hours=1), **others},
    )


SURVEY = capability()


def allowed(
    *, risk: Any = "R5", tools: frozenset[str] = TOOLS, too_risky: frozenset[str] = frozenset(), **rules: Any
) -> Allowance:
    return Allowance(policy="lab", rules=JobRules(**rules), max_risk=risk, tools=tools, too_risky=too_risky)


def submit(inputs: Mapping[str, Any] | None = None, **members: Any) -> TaskSubmit:
    """A submission that is approved as it is; `constraints` and `expected_output` are given as mappings."""
    given = {"sensor": "bench"} if inputs is None else inputs
    for key, cls in (("constraints", JobConstraints), ("expected_output", ExpectedOutput)):
        if key in members:
            members[key] = cls(**members[key])
    whole = TaskSubmit(capability="bench-climate-survey", caller_id="harness-1", intent="Look.", inputs=given)
    return evolve(whole, **members)


def approve(task: TaskSubmit, *capabilities: Capability, by: Allowance | None = None, **settings: Any) -> Approval:
    return assess(task, CapabilitySet(capabilities or (SURVEY,)), by or allowed(), **settings)


def reject(task: TaskSubmit, *capabilities: Capability, by: Allowance | None = None) -> Rejection:
    """The rejection, which is complete, bounded and fit for a terminal."""
    with pytest.raises(Rejection) as caught:
        approve(task, *capabilities, by=by)
    for text in (caught.value.message, caught.value.suggestion):
        assert text
        assert text.isprintable()
        assert len(text) <= 600
    return caught.value
