"""A course is a function of its order and outcomes: from any checkpoint it does the rest and only that."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import trio
from hypothesis import given, settings, strategies as st
from support.recipes import REGISTRY, Run, drive, failed, order, prepare, sensible

from hearth.hcp.planning import Action, Do, Fail, Finish, Outcome, Tell
from hearth.hcp.recipe import RecipePlan, RecipePlanner

_WHEN = st.sampled_from([
    None, "inputs.samples > `2`", "`true`", "length(results.s0) > `1`", "job.elapsed_s < `2`",
])  # fmt: skip
_ROUNDS: Any = st.sampled_from([
    {}, {},
    {"repeat": {"count": 3, "every_s": 0.25}},
    {"repeat": {"count": "inputs.samples"}},
    {"repeat": {"count": 4, "until": "job.elapsed_s > `1.5`"}},
    {"for_each": "inputs.lines"},
    {"for_each": "range(length(results.s0))", "repeat": {"every_s": 0.3}},
])  # fmt: skip
_CALLS: Any = st.sampled_from([
    {"tool": "sensor.read", "args": {"sensor": "t"}, "report": "latest.value"},
    {"tool": "sensor.read", "args": {"sensor": "t"}, "retry": {"times": 1, "after_s": 0.1}},
    {"tool": "line.set", "args": {"line": 1, "value": {"expr": "if(job.elapsed_s > `1`, `1`, `0`)"}}},
    {"tool": "a.note", "args": {"anything": {"expr": "[length(results.s0), job.elapsed_s]"}}},
    {"tool": "bytes.read", "args": {"bus": 1, "len": 2}, "decode": {"n": {"from": "data", "format": ">h"}}},
])  # fmt: skip


def _dressed(parts: tuple[Any, Any, Any, bool]) -> dict[str, Any]:
    what, when, rounds, may_fail = parts
    step = {**what, **rounds, "on_failure": "continue" if may_fail else "fail"}
    return step if when is None else {**step, "when": when}


def _named(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "name": f"n{index}"} for index, one in enumerate(steps)]


_LEAF = st.tuples(_CALLS, _WHEN, _ROUNDS, st.booleans()).map(_dressed)
_GROUP = st.tuples(
    st.lists(_LEAF, min_size=1, max_size=2).map(lambda steps: {"steps": _named(steps)}), _WHEN, _ROUNDS, st.booleans()
).map(_dressed)
_FIRST = {
    "name": "s0",
    "tool": "sensor.read",
    "args": {"sensor": "t"},
    "repeat": {"count": 2},
    "on_failure": "continue",
}
_RECIPES = st.lists(_LEAF | _GROUP, min_size=1, max_size=3).map(lambda steps: [_FIRST, *_named(steps)])


def _plan(steps: list[dict[str, Any]]) -> RecipePlan:
    inputs = {
        "type": "object",
        "properties": {"samples": {"type": "integer"}, "lines": {"type": "array", "items": {"type": "object"}}},
    }
    return RecipePlanner().prepare(
        {
            "capability": {"input_schema": inputs, "output_schema": {"type": "object"}},
            "recipe": {
                "steps": steps,
                "outputs": {"all": "results"},
                "artifacts": [{"name": "all", "file": "all.json", "content": "results"}],
            },
        },
        REGISTRY,
    )


def _after(run: Run, done: int) -> list[Action]:
    """What a run did once this many of its steps were done."""
    seen = 0
    for index, action in enumerate(run.actions):
        if seen == done:
            return [one for one in run.actions[index:] if isinstance(one, (Do, Tell, Fail, Finish))]
        seen += isinstance(action, Do)
    return []


def _on_record(outcome: Outcome) -> Outcome:
    return Outcome(**json.loads(json.dumps({name: getattr(outcome, name) for name in (
        "ok", "elapsed_s", "result", "error", "error_code", "error_data",
    )})))  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(steps=_RECIPES, samples=st.integers(0, 3), failing=st.sets(st.integers(0, 12), max_size=3), data=st.data())
def test_a_course_resumed_from_any_prefix_of_outcomes_does_exactly_the_rest_and_gives_the_same_outputs(
    steps: list[dict[str, Any]], samples: int, failing: set[int], data: st.DataObject
) -> None:
    plan = _plan(steps)
    inputs = {"samples": samples, "lines": [{"out": 1}, {"out": 2}]}

    def world(offset: int) -> Any:
        count = [offset]

        def come(do: Do, now: float) -> Any:
            count[0] += 1
            return failed(now + 0.1, effect="none") if count[0] - 1 in failing else sensible(do, now)

        return come

    async def both() -> tuple[Run, Run, int]:
        whole = await drive(plan.begin(order(inputs)), world(0))
        cut = data.draw(st.integers(0, len(whole.outcomes)))
        recorded = [_on_record(one) for one in whole.outcomes[:cut]]
        return whole, await drive(plan.begin(order(inputs)), world(cut), recorded), cut

    whole, resumed, cut = trio.run(both)
    rest = _after(whole, cut)
    # What was said of the last recorded step may be said once more: nobody knows whether it was.
    again = [one for one in resumed.actions if isinstance(one, (Do, Tell, Fail, Finish))]
    assert again == rest
    assert len(resumed.outcomes) == len(whole.outcomes)
    assert resumed.course.progress().done == whole.course.progress().done
    assert resumed.course.partial_outputs() == whole.course.partial_outputs()
    assert resumed.course.keepsakes() == whole.course.keepsakes()


async def test_a_job_that_failed_goes_on_with_the_step_that_failed() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "read"
tool = "sensor.read"
args = { sensor = "t" }
repeat = { count = 4, every_s = 1 }
[recipe.outputs]
times = "results.read[].at_s"
""")

    def breaking(do: Do, now: float) -> Any:
        return failed(now) if do.name == "read[2]" else sensible(do, now)

    broken = await drive(plan.begin(order()), breaking)
    assert broken.failure.error_code == "execution_error"
    recorded = [one for one in broken.outcomes if one.ok]
    resumed = await drive(plan.begin(order()), recorded=recorded)
    assert resumed.names == ["read[2]", "read[3]"]
    assert resumed.outputs["times"][:2] == [one.elapsed_s for one in recorded]


async def test_results_are_what_a_record_of_them_would_give_back() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "look"
tool = "a.note"
[recipe.outputs]
said = "results.look.said"
""")
    run = await drive(
        plan.begin(order()), lambda _do, _now: {"said": MappingProxyType({"pair": (1, 2), "none": float("nan")})}
    )
    assert run.outputs == {"said": {"pair": [1, 2], "none": None}}
    odd = await drive(plan.begin(order()), lambda _do, _now: {"said": object()})
    assert "not as declared" in odd.failure.message


async def test_rounds_go_on_in_the_rhythm_that_they_had() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "read"
tool = "sensor.read"
args = { sensor = "t" }
delay_s = 2
repeat = { count = 4, every_s = 1 }
[recipe.outputs]
times = "results.read[].at_s"
""")
    whole = await drive(plan.begin(order()))
    assert whole.outputs["times"] == [2.1, 3.1, 4.1, 5.1]
    resumed = await drive(plan.begin(order()), recorded=whole.outcomes[:2])
    assert resumed.outputs == whole.outputs
    assert resumed.waits == whole.waits[2:]
