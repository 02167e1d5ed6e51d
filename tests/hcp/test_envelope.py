"""The safety envelope: a boundary that is broken is seen, and so is one of which nobody can tell."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from hearth.hcp.envelope import SafetyEnvelope, read_envelope
from hearth.hcp.planning import PlanError

SCHEMA = {
    "type": "object",
    "properties": {
        "t": {"type": "number"},
        "unit": {"type": "string"},
        "range": {"type": "object", "properties": {"min": {}, "max": {}}},
    },
}


def envelope(text: str) -> SafetyEnvelope:
    return read_envelope(tomllib.loads(text), SCHEMA)


def faults(text: str) -> dict[str, str]:
    with pytest.raises(PlanError) as caught:
        envelope(text)
    return {fault.key: fault.reason for fault in caught.value.faults}


BOTH = "parameters.t = { value = 'inputs.t', min = -10, max = 1000, unit = 'celsius' }"
WITH_UNIT = "parameters.t = { value = 'inputs.t', max = 1000, unit = 'celsius', unit_of = 'inputs.unit' }"
RANGE = "parameters.t = { value = '[inputs.range.min, inputs.range.max]', max = 1000 }"
WATCH = "parameters.t = { watch = 'results.sample[-1].value', min = 0 }"


@pytest.mark.parametrize(
    ("text", "inputs", "said"),
    [
        (BOTH, {"t": 1000}, None),
        (BOTH, {"t": -10}, None),
        (BOTH, {}, None),
        (BOTH, {"t": 1000.0000001}, "1000.0000001 celsius is above the most allowed, 1000 celsius"),
        (BOTH, {"t": -11}, "below the least allowed, -10 celsius"),
        (BOTH, {"t": "hot"}, "is no number"),
        (BOTH, {"t": True}, "is no number"),
        (WITH_UNIT, {"t": 1200, "unit": "kelvin"}, None),
        (WITH_UNIT, {"t": 1300, "unit": "kelvin"}, "1300 kelvin is above the most allowed, 1000 celsius"),
        (WITH_UNIT, {"unit": "florp"}, None),
        (WITH_UNIT, {"t": 1, "unit": "metre"}, "cannot be converted"),
        (WITH_UNIT, {"t": 1, "unit": "9**9**9**9"}, "expected a unit"),
        (WITH_UNIT, {"t": 1}, "expected a unit"),
        (RANGE, {"range": {"min": 1, "max": 2000}}, "2000 is above"),
        (RANGE, {"range": {"min": 1}}, None),
        ("parameters.t = { value = 'div(inputs.t, `0`)', max = 1 }", {"t": 1}, "it cannot be told"),
        (WATCH, {"t": -5}, None),
    ],
)
def test_inputs_are_held_to_the_boundaries(text: str, inputs: Any, said: str | None) -> None:
    violation = envelope(text).check_inputs(inputs)
    if said is None:
        assert violation is None
    else:
        assert violation is not None
        assert violation.parameter == "t"
        assert said in violation.message
        assert violation.cure.startswith("Keep t ")


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ([], None),
        ([{"value": 0}], None),
        ([{"value": 0}, {"value": -0.5}], "-0.5 is below"),
        ([{"value": "cold"}], "is no number"),
    ],
)
def test_results_are_held_to_the_boundaries(sample: Any, said: str | None) -> None:
    violation = envelope(WATCH).check_results({"inputs": {}, "results": {"sample": sample}})
    assert ((violation and violation.message) or None) is None if said is None else said in str(violation)


def test_a_watch_that_cannot_be_evaluated_counts_as_broken() -> None:
    watch = envelope("parameters.t = { watch = 'max(results.sample)', max = 1 }")
    violation = watch.check_results({"results": {"sample": None}})
    assert violation is not None
    assert "it cannot be told" in violation.message


def test_the_cure_names_the_room_there_is() -> None:
    def cure(text: str, value: float) -> str:
        violation = envelope(text).check_inputs({"t": value})
        assert violation is not None
        return violation.cure

    assert cure(BOTH, 2000) == "Keep t between -10 and 1000 celsius"
    assert cure("parameters.t = { value = 'inputs.t', max = 3 }", 4) == "Keep t at 3 or less"
    assert cure("parameters.t = { value = 'inputs.t', min = 3, unit = 's' }", 2) == "Keep t at 3 s or more"


def test_it_is_published_as_the_specification_has_it() -> None:
    text = f"""
    prohibited_actions = ["mixing"]
    emergency_procedures = {{ hot = "stop" }}
    {BOTH}
    """
    assert envelope(text).to_wire() == {
        "parameters": {"t": {"min": -10, "max": 1000, "unit": "celsius", "hard_limit": True}},
        "prohibited_actions": ["mixing"],
        "emergency_procedures": {"hot": "stop"},
    }
    assert envelope("").to_wire() == {}


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("parameters.t = { value = 'inputs.x', max = 1 }", "parameters.t.value", "there is no 'x'"),
        ("parameters.t = { max = 1 }", "parameters.t.value", "say what to look at"),
        ("parameters.t = { value = 'inputs.t' }", "parameters.t.max", "bounds nothing"),
        ("parameters.t = { value = 'inputs.t', min = 2, max = 1 }", "parameters.t.min", "above max"),
        ("parameters.t = { value = 'inputs.t', max = '1' }", "parameters.t.max", "expected a number"),
        ("parameters.t = { value = 'inputs.t', max = 1, limit = 2 }", "parameters.t.limit", "unknown"),
        (WITH_UNIT.replace("'celsius'", "'florp'"), "parameters.t.unit", "not a unit"),
        (WITH_UNIT.replace("unit = 'celsius', ", ""), "parameters.t.unit", "in which the bounds are"),
        (WITH_UNIT.replace("inputs.unit", "results.x"), "parameters.t.unit_of", "can begin from"),
        ("parameters.t = 5", "parameters.t", "expected a table"),
        ("parameter.t = 5", "parameter", "parameters"),
        ("prohibited_actions = 'x'", "prohibited_actions", "expected an array"),
    ],
)
def test_an_envelope_that_cannot_be_right_is_a_fault_at_its_key(text: str, key: str, said: str) -> None:
    assert said in faults(text)[f"safety_envelope.{key}"]
