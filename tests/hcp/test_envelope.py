"""The safety envelope: a boundary that is broken is found, and so is one that cannot be judged."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hearth.hcp.capability import Limit, SafetyEnvelope, Violation

BOTH = Limit(lambda t: t, min=-10, max=1000, unit="celsius")
RANGE = Limit(lambda low, high: [low, high], max=1000)


def violation(limit: Limit, **inputs: Any) -> Violation | None:
    return SafetyEnvelope(parameters={"t": limit}).check_inputs(inputs)


@pytest.mark.parametrize(
    ("limit", "inputs", "said"),
    [
        (BOTH, {"t": 1000}, None),
        (BOTH, {"t": -10}, None),
        (BOTH, {}, None),
        (BOTH, {"t": 1000.0000001}, "t: 1000.0000001 celsius is above the most allowed, 1000 celsius"),
        (BOTH, {"t": -11}, "t: -11 celsius is below the least allowed, -10 celsius"),
        (BOTH, {"t": 2000.0}, "t: 2000 celsius is above"),
        (BOTH, {"t": "hot"}, "t: 'hot' is no number"),
        (BOTH, {"t": True}, "t: 'True' is no number"),
        (BOTH, {"t": math.nan}, "t: 'nan' is no number"),
        (BOTH, {"t": math.inf}, "t: 'inf' is no number"),
        (RANGE, {"low": 1, "high": 2000}, "t: 2000 is above the most allowed, 1000"),
        (RANGE, {"low": 1}, None),
        (Limit(lambda t: (1, t), max=1), {"t": 5}, "t: 5 is above"),
        (Limit(lambda t: 1 / t, max=1), {"t": 0}, "t: it cannot be evaluated: ZeroDivisionError: division by zero"),
        (Limit(max=1), {"t": 5}, None),
    ],
)
def test_inputs_are_held_to_the_boundaries(limit: Limit, inputs: Any, said: str | None) -> None:
    found = violation(limit, **inputs)
    if said is None:
        assert found is None
    else:
        assert found is not None
        assert found.parameter == "t"
        assert found.message.startswith(said)
        assert found.cure.startswith("Keep t ")


def test_a_violation_by_inputs_names_those_that_the_limit_looks_at() -> None:
    found = violation(Limit(lambda low, high: high - low, max=1), low=0, high=2)
    assert found is not None
    assert found.places == ("/payload/inputs/low", "/payload/inputs/high")


def test_the_first_limit_that_is_broken_is_told() -> None:
    envelope = SafetyEnvelope(parameters={"a": Limit(lambda t: t, max=3), "b": BOTH, "c": Limit(lambda t: t, max=2)})
    assert envelope.check_inputs({"t": 2}) is None
    for value, parameter in ((3, "c"), (4, "a"), (-11, "b")):
        found = envelope.check_inputs({"t": value})
        assert found is not None
        assert found.parameter == parameter


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, None),
        (None, None),
        ([1, 2], None),
        (-0.5, "t: -0.5 is below the least allowed, 0"),
        ([0, -1], "t: -1 is below the least allowed, 0"),
        ("cold", "t: 'cold' is no number"),
    ],
)
def test_a_measured_value_is_held_to_the_boundary_of_its_name(value: Any, said: str | None) -> None:
    found = SafetyEnvelope(parameters={"t": Limit(min=0)}).check_value("t", value)
    assert (None if found is None else found.message) == said


def test_a_value_without_a_limit_of_its_name_is_a_mistake_of_the_author() -> None:
    with pytest.raises(LookupError, match="there is no limit 'x', but t; declare it: limits=") as caught:
        SafetyEnvelope(parameters={"t": BOTH}).check_value("x", 1)
    assert type(caught.value) is LookupError, "whose text is not put into quotes again"


@pytest.mark.parametrize(
    ("limit", "value", "cure"),
    [
        (BOTH, 2000, "Keep t between -10 and 1000 celsius"),
        (Limit(lambda t: t, max=3), 4, "Keep t at 3 or less"),
        (Limit(lambda t: t, min=3, unit="s"), 2, "Keep t at 3 s or more"),
    ],
)
def test_the_cure_names_the_room_there_is(limit: Limit, value: float, cure: str) -> None:
    found = violation(limit, t=value)
    assert found is not None
    assert found.cure == cure


def test_it_is_published_as_the_specification_has_it() -> None:
    envelope = SafetyEnvelope(
        parameters={"t": BOTH, "wires": Limit(max=0)},
        prohibited_actions=("mixing",),
        emergency_procedures={"hot": "stop"},
    )
    assert envelope.to_wire() == {
        "parameters": {
            "t": {"min": -10, "max": 1000, "unit": "celsius", "hard_limit": True},
            "wires": {"max": 0, "hard_limit": True},
        },
        "prohibited_actions": ["mixing"],
        "emergency_procedures": {"hot": "stop"},
    }
    assert SafetyEnvelope().to_wire() == {}
