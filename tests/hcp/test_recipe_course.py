"""A recipe's course: what is done, in which order, with which args, at which pace, and what comes of it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import trio
from hypothesis import given, settings, strategies as st
from support.recipes import World, drive, failed, order, prepare, sensible

from hearth.hcp.planning import Do, Fail, Finish, Outcome, Tell, Wait

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLE = """
[[recipe.steps]]
name = "sample"
phase = "sampling"
tool = "sensor.read"
args = { sensor = { expr = "inputs.sensor" } }
repeat = { count = "inputs.samples", every_s = 0.5 }
"""
GROUP = """
[[recipe.steps]]
name = "check"
for_each = "inputs.lines"
ON_FAILURE
[[recipe.steps.steps]]
name = "drive"
tool = "line.set"
args = { line = { expr = "item.out" }, value = 1 }
[[recipe.steps.steps]]
name = "echo"
tool = "line.set"
args = { line = { expr = "here.drive.line" }, value = { expr = "if(index > `0`, `1`, `0`)" } }
[recipe.outputs]
lines = "results.check[].{line: item.out, echo: echo.value}"
"""
MAY_FAIL = GROUP.replace("ON_FAILURE", 'on_failure = "continue"').replace("echo.value}", "echo.value, bad: failed}")


async def test_steps_are_done_in_order_and_outputs_come_of_their_results() -> None:
    plan = prepare(f"""{SAMPLE}
[recipe.outputs]
mean = "round(avg(results.sample[].value), `2`)"
n = "length(results.sample)"
""")
    run = await drive(plan.begin(order({"sensor": "t", "samples": 3})))
    assert run.names == ["sample[0]", "sample[1]", "sample[2]"]
    assert {one.phase for one in run.dos} == {"sampling"}
    assert [dict(one.args) for one in run.dos] == [{"sensor": "t"}] * 3
    assert run.outputs == {"mean": 20.5, "n": 3}
    assert plan.tools == {"sensor.read"}
    assert plan.resumable


async def test_a_pace_does_not_drift_by_what_the_rounds_take() -> None:
    run = await drive(prepare(SAMPLE).begin(order({"sensor": "t", "samples": 4})))
    assert run.waits == [0.4, 0.4, 0.4]


async def test_a_round_that_is_late_by_less_than_the_pace_is_caught_up() -> None:
    def slow_once(do: Do, now: float) -> Outcome:
        return Outcome(ok=True, elapsed_s=now + (0.7 if do.name == "sample[0]" else 0.1), result=sensible(do, now))

    run = await drive(prepare(SAMPLE).begin(order({"sensor": "t", "samples": 4})), slow_once)
    assert run.waits == [0.2, 0.4]


async def test_rounds_that_were_missed_are_not_made_up_for_in_a_burst() -> None:
    def stalled(do: Do, now: float) -> Outcome:
        return Outcome(ok=True, elapsed_s=now + (10.0 if do.name == "sample[0]" else 0.1), result=sensible(do, now))

    run = await drive(prepare(SAMPLE).begin(order({"sensor": "t", "samples": 4})), stalled)
    assert run.waits == [0.4, 0.4]


async def test_each_result_says_when_it_was_there_and_which_round_it_was() -> None:
    plan = prepare(SAMPLE + '[recipe.outputs]\nall = "results.sample"')
    run = await drive(plan.begin(order({"sensor": "t", "samples": 2})))
    assert run.outputs["all"] == [
        {"index": 0, "at": "2023-11-14T22:13:20.100Z", "at_s": 0.1, "value": 20.0, "unit": "celsius"},
        {"index": 1, "at": "2023-11-14T22:13:20.600Z", "at_s": 0.6, "value": 20.5, "unit": "celsius"},
    ]


async def test_a_group_is_done_for_each_item_and_its_steps_see_their_own_round() -> None:
    plan = prepare(GROUP.replace("ON_FAILURE", ""))
    assert plan.tools == {"line.set"}
    run = await drive(plan.begin(order({"lines": [{"out": 3}, {"out": 5}]})))
    assert run.names == ["check[0].drive", "check[0].echo", "check[1].drive", "check[1].echo"]
    assert [one.args for one in run.dos] == [
        {"line": 3, "value": 1}, {"line": 3, "value": 0}, {"line": 5, "value": 1}, {"line": 5, "value": 1},
    ]  # fmt: skip
    assert run.outputs == {"lines": [{"line": 3, "echo": 0}, {"line": 5, "echo": 1}]}


async def test_nested_loops_bind_their_own_item_and_reach_the_outer_round() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "outer"
repeat = { count = 2 }
[[recipe.steps.steps]]
name = "inner"
tool = "a.note"
for_each = "range(`2`)"
args = { anything = { expr = "[results.outer[-1].index, index, item]" } }
[recipe.outputs]
all = "results.outer[].inner[].said | [].anything"
""")
    run = await drive(plan.begin(order()))
    assert run.names == ["outer[0].inner[0]", "outer[0].inner[1]", "outer[1].inner[0]", "outer[1].inner[1]"]
    assert run.outputs == {"all": [[0, 0, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]]}


async def test_a_round_can_look_back_at_the_one_before() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "walk"
tool = "a.note"
repeat = { count = 3 }
args = { anything = { expr = "add(not_null(here.walk[-1].said.anything, `0`), `2`)" } }
[recipe.outputs]
last = "results.walk[-1].said.anything"
""")
    assert (await drive(plan.begin(order()))).outputs == {"last": 6}


async def test_until_ends_the_rounds_and_delay_comes_once_before_them() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "warm_up"
tool = "sensor.read"
args = { sensor = "t" }
delay_s = "div(inputs.limit, `10`)"
repeat = { count = 10, every_s = 1, until = "latest.value >= inputs.limit" }
[recipe.outputs]
rounds = "length(results.warm_up)"
""")
    run = await drive(plan.begin(order({"limit": 24})))
    assert run.waits == [2.4, 0.9, 0.9]
    assert run.outputs == {"rounds": 3}


async def test_a_step_whose_condition_does_not_hold_is_skipped() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "one"
tool = "a.note"
when = "inputs.samples > `3`"
delay_s = 5
[[recipe.steps]]
name = "many"
tool = "a.note"
when = "inputs.samples > `3`"
repeat = { count = 2 }
[recipe.outputs]
one = "type(results.one)"
many = "results.many"
""")
    run = await drive(plan.begin(order({"samples": 3})))
    assert (run.names, run.waits) == ([], [])
    assert run.outputs == {"one": "null", "many": []}
    assert (await drive(plan.begin(order({"samples": 4})))).names == ["one", "many[0]", "many[1]"]


async def test_a_computed_arg_that_is_null_is_left_out_and_the_rest_is_as_written() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "set"
tool = "a.note"
[recipe.steps.args.anything]
chip = { expr = "inputs.sensor" }
list = [1, { expr = "inputs.samples" }, { expr = "inputs.limit" }]
raw = { literal = { expr = "kept" } }
warm = { expr = "inputs.samples", from = "celsius", unit = "kelvin" }
""")
    run = await drive(plan.begin(order({"samples": 5})))
    assert run.dos[0].args == {"anything": {"list": [1, 5, None], "raw": {"expr": "kept"}, "warm": 278.15}}


async def test_raw_bytes_become_numbers_by_their_declaration() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "raw"
tool = "bytes.read"
args = { bus = 1, len = 2 }
decode.celsius = { from = "data", format = ">h", scale = 0.00390625, unit = "celsius" }
[recipe.outputs]
kelvin = { expr = "results.raw.celsius", unit_of = "results.raw.celsius_unit", unit = "kelvin" }
""")
    assert (await drive(plan.begin(order()))).outputs == {"kelvin": pytest.approx(298.65)}


# --- failures -------------------------------------------------------------------------------------------------------


def failing(*names: str, **outcome: Any) -> World:
    def world(do: Do, now: float) -> Outcome | Mapping[str, Any]:
        return failed(now + 0.1, **outcome) if do.name in names else sensible(do, now)

    return world


async def test_a_step_that_fails_ends_the_job_with_the_right_code() -> None:
    course = prepare(SAMPLE).begin(order({"sensor": "t", "samples": 3}))
    run = await drive(course, failing("sample[1]", message="no answer", code=-32004, effect="none"))
    assert run.names == ["sample[0]", "sample[1]"]
    assert run.failure.message == "sample[1]: sensor.read failed: no answer"
    assert (run.failure.error_code, run.failure.risk_event) == ("resource_unavailable", None)
    assert run.failure.recoverable
    assert course.phase == "sampling"


async def test_a_failure_without_a_reason_or_code_is_told_all_the_same() -> None:
    course = prepare(SAMPLE).begin(order({"sensor": "t", "samples": 1}))
    run = await drive(course, lambda _do, now: Outcome(ok=False, elapsed_s=now))
    assert run.failure.message == "sample[0]: sensor.read failed: no reason was given"
    assert (run.failure.error_code, run.failure.recoverable) == ("execution_error", False)


async def test_a_round_that_may_fail_is_marked_and_the_next_goes_on() -> None:
    plan = prepare(MAY_FAIL)
    run = await drive(plan.begin(order({"lines": [{"out": 3}, {"out": 5}]})), failing("check[0].drive"))
    assert run.names == ["check[0].drive", "check[1].drive", "check[1].echo"]
    assert run.outputs == {"lines": [{"line": 3, "echo": None, "bad": True}, {"line": 5, "echo": 1, "bad": None}]}
    (warning,) = run.told("warning")
    assert warning["code"] == "step_failed"
    assert "check[0].drive: line.set failed: no answer" in warning["message"]
    assert warning["details"]["step"] == "check[0]"


async def test_a_single_step_that_may_fail_leaves_its_failure_as_its_result() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "read"
tool = "sensor.read"
args = { sensor = "t" }
on_failure = "continue"
[recipe.outputs]
said = "results.read.error"
code = "results.read.error_code"
at_s = "results.read.at_s"
""")
    run = await drive(plan.begin(order()), failing("read"))
    assert run.outputs == {"said": "read: sensor.read failed: no answer", "code": "execution_error", "at_s": 0.1}


async def test_a_failed_tool_is_asked_again_as_often_as_is_allowed() -> None:
    text = SAMPLE + "retry = { times = 2, after_s = 0.3 }"
    asked: list[str] = []

    def shaky(do: Do, now: float) -> Outcome | Mapping[str, Any]:
        asked.append(do.name)
        return failed(now + 0.1) if asked.count(do.name) < 3 else sensible(do, now)

    run = await drive(prepare(text).begin(order({"sensor": "t", "samples": 2})), shaky)
    assert run.names == ["sample[0]"] * 3 + ["sample[1]"] * 3
    assert [one["code"] for one in run.told("warning")] == ["step_retried"] * 4
    assert isinstance(run.actions[-1], Finish)
    assert run.waits[:2] == [0.3, 0.3]
    course = prepare(text).begin(order({"sensor": "t", "samples": 2}))
    given_up = await drive(course, lambda _do, now: failed(now + 0.1))
    assert given_up.names == ["sample[0]"] * 3
    assert given_up.failure.message.startswith("sample[0]: sensor.read failed")


async def test_args_that_the_tool_would_refuse_fail_before_the_step() -> None:
    plan = prepare(GROUP.replace("ON_FAILURE", ""))
    run = await drive(plan.begin(order({"lines": [{"out": 3}, {"out": 4096}]})))
    assert run.names == ["check[0].drive", "check[0].echo"]
    assert run.failure.error_code == "input_error"
    assert "check[1].drive: line.set does not take these args: /line" in run.failure.message


@pytest.mark.parametrize(
    ("text", "inputs", "code", "said"),
    [
        ('tool = "a.note"\nrepeat = { count = "inputs.samples" }', {"samples": -1}, "input_error", "repeat.count"),
        ('tool = "a.note"\nrepeat = { count = "inputs.limit" }', {"limit": 1.5}, "input_error", "repeat.count"),
        ('tool = "a.note"\nrepeat = { count = "inputs.limit" }', {"limit": 1e300}, "input_error", "a job may do"),
        ('tool = "a.note"\nrepeat = { count = "inputs.samples" }', {}, "input_error", "repeat.count"),
        ('tool = "a.note"\nfor_each = "inputs.lines"', {}, "input_error", "for_each takes an array"),
        ('tool = "a.note"\ndelay_s = "inputs.limit"', {"limit": -1}, "input_error", "delay_s takes seconds"),
        ('tool = "a.note"\ndelay_s = "div(`1`, inputs.limit)"', {"limit": 0}, "execution_error", "division by zero"),
        ('tool = "a.note"\nwhen = "add(inputs.limit, `1`)"', {}, "execution_error", "when"),
        (
            'tool = "a.note"\nargs = { anything = { expr = "div(`1`, inputs.limit)" } }',
            {"limit": 0}, "input_error", "an arg of a.note",
        ),
        (
            'tool = "a.note"\nrepeat = { count = 2, until = "latest.said.x > add(inputs.limit, `1`)" }',
            {}, "execution_error", "repeat.until",
        ),
        ('tool = "bytes.read"\nargs = { bus = 1, len = 1 }\ndecode.x = { from = "data", format = ">i" }', {},
         "execution_error", "not as declared"),
    ],
)  # fmt: skip
async def test_what_only_the_inputs_show_to_be_impossible_fails_honestly(
    text: str, inputs: Any, code: str, said: str
) -> None:
    plan = prepare(f'[[recipe.steps]]\nname = "s"\n{text}')
    run = await drive(plan.begin(order(inputs)))
    assert run.failure.error_code == code
    assert said in run.failure.message
    excused = prepare(f'[[recipe.steps]]\nname = "s"\non_failure = "continue"\n{text}')
    ended = await drive(excused.begin(order(inputs)))
    if "a job may do" not in said:
        assert isinstance(ended.actions[-1], Finish)
        assert [one["code"] for one in ended.told("warning")] == ["step_failed"]


async def test_an_output_that_cannot_be_told_fails_the_job_and_the_others_are_partial_outputs() -> None:
    plan = prepare(f"""{SAMPLE}
[recipe.outputs]
n = "length(results.sample)"
bad = "div(`1`, inputs.limit)"
none = "inputs.unit"
""")
    course = plan.begin(order({"sensor": "t", "samples": 1, "limit": 0}))
    run = await drive(course)
    assert run.failure.error_code == "execution_error"
    assert "division by zero" in run.failure.message
    assert course.partial_outputs() == {"n": 1}
    assert await course.next(None, 99) is run.failure


async def test_a_null_output_is_left_out_unless_the_schema_admits_null() -> None:
    plan = prepare("""
properties.kept = { type = ["number", "null"] }
properties.nest = { type = "object", properties = { a = { type = ["null", "number"] } } }
[[recipe.steps]]
name = "s"
tool = "a.note"
[recipe.outputs]
kept = "inputs.limit"
gone = "inputs.limit"
fixed = { literal = [1] }
[recipe.outputs.nest]
a = "inputs.limit"
b = "inputs.limit"
c = "inputs.samples"
""")
    course = plan.begin(order({"samples": 1}))
    assert (await drive(course)).outputs == {"kept": None, "fixed": [1], "nest": {"a": None, "c": 1}}
    assert course.partial_outputs() == {"fixed": [1], "nest": {"c": 1}}


# --- the safety envelope, and bounds --------------------------------------------------------------------------------


@pytest.mark.spec("hcp L3 Safety Envelope", "is", "Enforced locally by the callee during L1 tool execution")
async def test_a_watched_value_beyond_its_boundary_ends_the_job_at_once() -> None:
    plan = prepare(
        SAMPLE
        + """
on_failure = "continue"
[safety_envelope.parameters.heat]
watch = "results.sample[-1].value"
max = 20.7
unit = "celsius"
"""
    )
    course = plan.begin(order({"sensor": "t", "samples": 9}))
    run = await drive(course)
    assert run.names == ["sample[0]", "sample[1]", "sample[2]"]
    assert (run.failure.error_code, run.failure.risk_event) == ("safety_violation", "safety_envelope.heat")
    assert not run.failure.recoverable
    assert "after sample[2], outside of the safety envelope: heat: 21.0 celsius is above" in run.failure.message


async def test_a_job_of_too_many_steps_fails_before_the_first_where_that_is_known() -> None:
    run = await drive(prepare(SAMPLE).begin(order({"sensor": "t", "samples": 101}, max_steps=100)))
    assert run.dos == []
    assert run.failure.error_code == "input_error"
    assert "takes 101 steps, and a job may do 100" in run.failure.message


async def test_a_job_of_too_many_steps_fails_at_the_bound_where_it_is_not_known_before() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "first"
tool = "a.note"
args = { anything = 8 }
[[recipe.steps]]
name = "outer"
repeat = { count = "results.first.said.anything" }
[[recipe.steps.steps]]
name = "inner"
tool = "a.note"
repeat = { count = "results.first.said.anything" }
""")
    run = await drive(plan.begin(order(max_steps=10)))
    assert len(run.dos) == 10
    assert "would be step 11, and a job may do 10" in run.failure.message


async def test_a_recipe_that_goes_round_without_steps_takes_breaths_and_is_ended() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "outer"
repeat = { count = 100 }
[[recipe.steps.steps]]
name = "inner"
repeat = { count = 100 }
[[recipe.steps.steps.steps]]
name = "never"
tool = "a.note"
when = "`false`"
""")
    run = await drive(plan.begin(order(max_steps=100)))
    assert run.dos == []
    assert "goes round and round" in run.failure.message
    assert all(isinstance(one, Wait) and not one.seconds for one in run.actions[:-1])
    assert len(run.actions) > 2


# --- what is told meanwhile -----------------------------------------------------------------------------------------


@pytest.mark.spec(
    "hcp L2 Standard Event Types",
    "is",
    "intermediate_result | Partial or interim result available | result_type, data, is_partial",
)
async def test_reports_become_intermediate_results() -> None:
    plan = prepare(SAMPLE + 'report = { expr = "latest.value", type = "reading", every = 2 }')
    run = await drive(plan.begin(order({"sensor": "t", "samples": 5})))
    assert run.told("intermediate_result") == [
        {"result_type": "reading", "data": 20.5, "is_partial": True},
        {"result_type": "reading", "data": 21.5, "is_partial": True},
    ]
    silent = prepare('[[recipe.steps]]\nname = "s"\ntool = "a.note"\nreport = "inputs.limit"')
    assert (await drive(silent.begin(order()))).told("intermediate_result") == []


async def test_a_report_that_cannot_be_told_is_one_warning_and_the_job_goes_on() -> None:
    plan = prepare(SAMPLE + 'report = "div(latest.value, `0`)"')
    run = await drive(plan.begin(order({"sensor": "t", "samples": 3})))
    assert [one["code"] for one in run.told("warning")] == ["report_failed"]
    assert isinstance(run.actions[-1], Finish)


async def test_an_artifact_that_cannot_be_made_is_a_warning_before_the_end() -> None:
    plan = prepare(
        SAMPLE
        + """
[[recipe.artifacts]]
name = "bad"
file = "bad.csv"
rows = "results.sample"
columns = { x = "div(value, `0`)" }
"""
    )
    course = plan.begin(order({"sensor": "t", "samples": 1}))
    run = await drive(course)
    assert isinstance(run.actions[-2], Tell)
    assert [one["code"] for one in run.told("warning")] == ["artifact_failed"]
    assert isinstance(run.actions[-1], Finish)
    assert course.keepsakes() == []


@pytest.mark.spec(
    "hcp L2 Standard Event Types",
    "is",
    "progress | Execution progress update | stage (string), percent (number, optional), message (string)",
)
async def test_progress_knows_the_total_and_the_time_that_remains() -> None:
    course = prepare(SAMPLE).begin(order({"sensor": "t", "samples": 4}))
    assert (course.progress().done, course.progress().total) == (0, 4)
    assert course.progress().remaining == timedelta(seconds=2)
    await course.next(None, 0.0)
    waited = await course.next(Outcome(ok=True, elapsed_s=0.1, result={"value": 1, "unit": "celsius"}), 0.1)
    assert waited == Wait(0.4)
    at = course.progress()
    assert (at.stage, at.done, at.total) == ("sampling", 1, 4)
    assert at.remaining == timedelta(seconds=1.5)
    assert at.message == "sample[1]: 1 of 4 steps done"
    run = await drive(course)
    assert isinstance(run.actions[-1], Finish)
    assert (course.progress().done, course.progress().total, course.progress().remaining) == (4, 4, None)


async def test_there_is_no_total_while_a_count_depends_on_results_to_come() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "first"
tool = "a.note"
args = { anything = [1, 2, 3] }
[[recipe.steps]]
name = "each"
phase = "rest"
for_each = "results.first.said.anything"
[[recipe.steps.steps]]
name = "a"
tool = "a.note"
[[recipe.steps.steps]]
name = "b"
tool = "a.note"
""")
    course = plan.begin(order())
    assert (course.progress().total, course.progress().remaining) == (None, None)
    await course.next(None, 0.0)
    assert course.progress().total is None
    await course.next(Outcome(ok=True, elapsed_s=2.0, result={"said": {"anything": [1, 2, 3]}}), 2.0)
    at = course.progress()
    assert (at.stage, at.done, at.total, at.remaining) == ("rest", 1, 7, timedelta(seconds=12))


async def test_a_step_that_was_given_out_must_be_answered() -> None:
    course = prepare(SAMPLE).begin(order({"sensor": "t", "samples": 1}))
    await course.next(None, 0.0)
    with pytest.raises(ValueError, match="nothing was told"):
        await course.next(None, 0.1)


_HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["out", "value", "x"]), inner, max_size=2)
    ),
    max_leaves=5,
)
_UNSOUND = prepare("""
[[recipe.steps]]
name = "wait"
tool = "a.note"
delay_s = "inputs.limit"
args = { anything = { expr = "inputs" } }
decode.bytes = { from = "to_string(said)", format = ">hh", scale = 1e300 }
on_failure = "continue"
[[recipe.steps]]
name = "read"
tool = "sensor.read"
when = "inputs.limit > inputs.samples"
args = { sensor = { expr = "inputs.sensor" }, scale = { expr = "inputs.limit", unit_of = "inputs.unit", unit = "K" } }
repeat = { count = "inputs.samples", every_s = "inputs.limit", until = "latest.value > inputs.limit" }
report = "div(latest.value, inputs.samples)"
on_failure = "continue"
[[recipe.steps]]
name = "each"
for_each = "inputs.lines"
on_failure = "continue"
[[recipe.steps.steps]]
name = "set"
tool = "line.set"
args = { line = { expr = "item.out" }, value = 1 }
[recipe.outputs]
mean = "avg(results.read[].value)"
all = "results"
[[recipe.artifacts]]
name = "rows"
file = "rows.csv"
rows = "results.read"
columns = { v = "add(value, `1`)", all = "root().inputs" }
[[recipe.artifacts]]
name = "plot"
file = "plot.png"
plot = { rows = "results.each", x = "set.value", series = { line = "item.out" } }
""")


@settings(max_examples=80, deadline=None)
@given(
    inputs=st.dictionaries(st.sampled_from(["sensor", "samples", "limit", "unit", "lines"]), _HOSTILE),
    samples=st.none() | st.integers(-1, 4),
    results=st.lists(_HOSTILE, min_size=1, max_size=4),
)
def test_whatever_the_inputs_and_results_are_a_course_comes_to_its_end(
    inputs: dict[str, Any], samples: int | None, results: list[Any]
) -> None:
    given_inputs = inputs if samples is None else {**inputs, "samples": samples}

    def world(do: Do, now: float) -> Outcome:
        value = results[len(do.name) % len(results)]
        return Outcome(ok=True, elapsed_s=now + 0.1, result={"value": value, "said": value})

    async def play() -> None:
        course = _UNSOUND.begin(order(given_inputs, max_steps=50))
        run = await drive(course, world)
        assert isinstance(run.actions[-1], (Finish, Fail))
        for said in (course.partial_outputs(), [one.plot for one in course.keepsakes()]):
            orjson.dumps(said)
        assert course.progress().done == len(run.outcomes)

    trio.run(play)
