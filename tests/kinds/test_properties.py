"""Whatever is called, by tools and past them: the properties of every kind, judged at the simulated devices.

Each kind plays the same generated sequences once, and each property is a test of its own. A failure shows the first
sequence that violates it; with HEARTH_SHRINK=1 the least one. HEARTH_EXAMPLES is the number of sequences.
"""

from __future__ import annotations

import os

import pytest
import trio
from kinds.judge import PROPERTIES, Judge, least, verdicts
from kinds.strategies import STRATEGIES

NEVER_REFUSED = {(kind, way) for kind in ("iio", "vendor", "uart") for way in ("tools", "all")}
"""They have no limits."""
WAYS = {"tools": "by tools", "all": "by tools and raw calls"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("of", PROPERTIES)
def test_whatever_is_called_a_property_of_its_kind_holds(dbc, promise, of, kind, way):
    promise(kind, f"property: {PROPERTIES[of]}, {WAYS[way]}")
    violated = verdicts(dbc, kind, way)[0].get(of)
    if violated is not None:
        what, actions = violated
        if os.environ.get("HEARTH_SHRINK") == "1":
            actions = least(dbc, kind, way, of)
        pytest.fail(f"{what}; the actions were:\n" + "\n".join(f"  after {pause} s: {act}" for pause, act in actions))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", STRATEGIES)
def test_the_calls_of_a_kind_are_of_both_sorts(dbc, kind, way):
    counts = verdicts(dbc, kind, way)[1]
    assert counts["done"] >= 15, "a property of calls that are all refused says nothing"
    assert counts["refused"] >= 2 or (kind, way) in NEVER_REFUSED, "nor does one of calls that all pass"


async def test_the_judge_sees_what_is_driven_past_the_guard(open_world):
    async with open_world() as world:
        judge, chip = Judge(world, new=False), world.drivers["pwm:sim"]
        chip.set(2, 0.1)
        await trio.sleep(1)
        chip.set(2, 0.5)
        judge.look()
        assert [one.of for one in judge.violations] == ["steps"], "0 to 0.1 in no time, 0.1 to 0.5 in a second"
        judge = Judge(world, new=False)
        chip.set(2, 0.9)
        judge.look()
        assert "bounds" in {one.of for one in judge.violations}
        judge.at_the_end({}, None)
        assert [one.of for one in judge.violations if one.of == "halt"] == ["halt"]
        judge.violations.clear()
        judge.at_the_end({"pwm:sim": ["BLOWER"]}, None)
        assert judge.violations == []
