"""Capabilities, policies and submissions to try the gate with: real schemas, expressions and envelopes, no daemon."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve, frozen

from hearth.hcp.capability import Capability, CapabilitySet, Escalation, Safety
from hearth.hcp.envelope import read_envelope
from hearth.hcp.expressions import Names, compile_expression
from hearth.hcp.gate import Allowance, Approval, Rejection, assess
from hearth.hcp.messages import Constraints, ExpectedOutput, TaskSubmit
from hearth.policy.jobs import JobRules
from hearth.schema import Validator

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    ("inputs.samples > `1000`", "R3", "many samples wear the sensor"),
    ("inputs.heat >= `100`", "R4", "heat is a hazard"),
    ("inputs.fast", "R2", "speed is noisy"),
]
ENVELOPE = {"parameters": {"interval": {"value": "inputs.interval", "min": 0.01, "max": 60, "unit": "second"}}}
TOOLS = frozenset({"hw.sensor.read"})


@frozen
class NamedTools:
    """A plan of which the gate sees what it looks at: the tools."""

    tools: frozenset[str] = TOOLS
    resumable: bool = True

    def begin(self, _order: Any) -> Any:
        raise AssertionError("the gate begins nothing")


def capability(
    name: str = "bench-climate-survey",
    *,
    version: str = "1.4.2",
    rules: list[tuple[str, str, str]] = RULES,
    floor: Any = "R1",
    ceiling: Any = "R4",
    approval: bool = False,
    tools: frozenset[str] = TOOLS,
    inputs: Mapping[str, Any] = INPUTS,
    outputs: Mapping[str, Any] = OUTPUTS,
    envelope: Mapping[str, Any] = ENVELOPE,
    **others: Any,
) -> Capability:
    names = Names.of_inputs(inputs)
    escalate = tuple(
        Escalation(when=compile_expression(when, names=names), risk=risk, because=because)  # type: ignore[arg-type]
        for when, risk, because in rules
    )
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
            escalate=escalate,
        ),
        envelope=read_envelope(envelope, inputs),
        plan=NamedTools(tools),
        planner="recipe",
        place="survey.toml",
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
    for key, cls in (("constraints", Constraints), ("expected_output", ExpectedOutput)):
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
