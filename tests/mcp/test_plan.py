"""hacp_plan: a whole task in one call, and what is told of each of its steps."""

from __future__ import annotations

from types import SimpleNamespace

import jsonschema
import mcp_types as types
import pytest
import trio
from support.mcp import ERAS, mcp_client, text_of
from support.waiting import passes
from support.world import BenchWorld, running

from hearth.actors.bridges.mcp.provider import Refused
from hearth.actors.bridges.mcp.server import HacpTools, PlanTool
from hearth.mcp.names import META_ERROR, PLAN
from hearth.mcp.plan_tool import MOST_STEPS, PLAN_INPUT
from hearth.mcp.tools import ToolView
from hearth.protocol.jsonrpc import MAX_DEPTH
from hearth.protocol.methods import METHODS

both_eras = pytest.mark.parametrize("mode", ERAS)


def records(w, **like):
    """The audit records with these members."""
    return [record for record in w.journal.records if like.items() <= record.items()]


def plan(*steps, **more):
    return {"intent": "try it", "steps": [{"tool": tool, "args": args} for tool, args in steps], **more}


@pytest.fixture
async def w():
    async with running(BenchWorld()) as world:
        yield world


@both_eras
async def test_a_plan_runs_its_steps_in_order_as_one_task_and_tells_of_each(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool(
            PLAN, plan(("bench_set", {"line": 4, "value": 1}), ("bench.read", {"tag": "then"}))
        )
    assert not result.is_error
    told = result.structured_content
    assert told["status"] == "SUCCESS"
    assert [step["status"] for step in told["steps"]] == ["SUCCESS", "SUCCESS"]
    assert told["steps"][0]["result"] == {"line": 4, "value": 1}
    assert w.observer.labels("end")[:2] == ["set", "then"]
    [submitted] = records(w, event="task.submit")
    assert submitted["intent"] == "try it"
    assert told["task_id"] == submitted["task_id"]


@both_eras
async def test_what_is_told_of_a_plan_is_as_its_output_schema_says(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        [tool] = [tool for tool in (await client.list_tools()).tools if tool.name == PLAN]
        for steps in ([("bench.read", {})], [("bench.fail", {}), ("bench.read", {})]):
            result = await client.call_tool(PLAN, plan(*steps))
            jsonschema.Draft202012Validator(tool.output_schema).validate(result.structured_content)
    assert tool.annotations.destructive_hint is True
    assert tool.annotations.read_only_hint is False
    jsonschema.Draft202012Validator.check_schema(tool.input_schema)


@both_eras
async def test_a_dry_run_tells_what_would_run_and_touches_nothing(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool(PLAN, plan(("bench_set", {"line": 4, "value": 1}), dry_run=True))
    assert not result.is_error
    assert result.structured_content["steps"][0]["result"]["dry_run"] is True
    assert "nothing was touched" in text_of(result)
    assert not w.observer.labels("begin")


@both_eras
async def test_a_step_that_fails_ends_the_plan_and_what_was_done_is_undone_if_asked(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        steps = [("bench_set", {"line": 4, "value": 1}), ("bench_fail", {}), ("bench_read", {})]
        result = await client.call_tool(PLAN, plan(*steps, rollback_on_failure=True))
    assert result.is_error
    told = result.structured_content["steps"]
    assert [step["status"] for step in told] == ["SUCCESS", "FAILED", "CANCELLED"]
    assert told[0]["rolled_back"] is True
    assert "rolled back" in text_of(result)
    assert "undo set" in w.observer.labels("end")


@both_eras
async def test_a_plan_goes_on_after_a_failure_if_asked(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool(PLAN, plan(("bench_fail", {}), ("bench_read", {}), abort_on_step_failure=False))
    assert result.is_error
    assert [step["status"] for step in result.structured_content["steps"]] == ["FAILED", "SUCCESS"]


@both_eras
async def test_a_plan_ends_when_its_time_is_over(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        began = trio.current_time()
        result = await client.call_tool(PLAN, plan(("bench_nap", {"ms": 60_000}), max_duration_ms=2000))
        assert trio.current_time() - began == pytest.approx(2, abs=0.1)
    assert result.is_error


async def test_a_plan_takes_its_buses_for_itself_if_asked_and_another_can_fail_at_once(autojump_clock, w):
    gate = w.gate("hold")
    async with mcp_client(w.sessions(), "auto") as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, PLAN, plan(("bench_read", {"gate": "hold"}), exclusive=True))
        await gate.reached()
        refused = await client.call_tool(PLAN, plan(("bench_read", {}), on_busy="fail", priority="urgent"))
        gate.open()
    assert refused.is_error
    assert "usy" in text_of(refused)


@both_eras
@pytest.mark.parametrize(
    ("arguments", "pointer"),
    [
        ({}, "/intent"),
        ({"intent": "x", "steps": []}, "/steps"),
        ({"intent": "", "steps": [{"tool": "bench_read"}]}, "/intent"),
        ({"intent": "x", "steps": [{"tool": 7}]}, "/steps/0/tool"),
        ({"intent": "x", "steps": [{"tool": "zzzzzz"}]}, "/steps/0/tool"),
        ({"intent": "x", "steps": [{"tool": "bench_read", "arguments": {}}]}, "/steps/0/arguments"),
        ({"intent": "x", "steps": [{"tool": "bench_read"}], "rollback": True}, "/rollback"),
        ({"intent": "x", "steps": [{"tool": "bench_read"}], "priority": "soon"}, "/priority"),
        ({"intent": "x", "steps": [{"tool": "bench_read"}, {"tool": "bench_nothing"}]}, "/steps/1/tool"),
        ({"intent": "x", "steps": [{"tool": "bench-read"}]}, "/steps/0/tool"),
        ({"intent": "x", "steps": [{"tool": "bench_set", "args": {"line": 4, "value": 9}}]}, "/steps/0/args/value"),
    ],
)
async def test_a_plan_that_is_wrong_is_refused_with_the_place_and_nothing_runs(
    autojump_clock, w, mode, arguments, pointer
):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool(PLAN, arguments)
    assert result.is_error
    assert result.meta[META_ERROR]["code"] == -32602
    assert result.meta[META_ERROR]["path"] == pointer
    assert f"- {pointer}: " in text_of(result)
    assert "hacp_plan was not run" in text_of(result)
    assert not w.observer.labels("begin")


@both_eras
async def test_the_progress_of_a_plan_counts_its_steps(autojump_clock, w, mode):
    heard = []

    async def hear(progress, total, message):
        heard.append((progress, total, message))

    async with mcp_client(w.sessions(), mode) as client:
        steps = [("bench_nap", {"ms": 6000}), ("bench_read", {}), ("bench_nap", {"ms": 12_000})]
        await client.call_tool(PLAN, plan(*steps), progress_callback=hear)
    values = [value for value, _, _ in heard]
    assert values == sorted(set(values)), "never twice the same"
    assert {0, 1, 2} <= set(values)
    assert {total for _, total, _ in heard} == {3}
    assert heard[0][2] == "step 1 of 3 (bench.nap): begins"
    assert any(message.startswith("step 3 of 3 (bench.nap): still running") for _, _, message in heard)


async def test_a_plan_may_say_all_that_a_task_may_but_how_risky_it_is():
    """What a plan can set are HACP's constraints, so that a new one is not forgotten here."""
    submit = METHODS["task.submit"](
        {"task": {"intent": "x", "steps": [{"tool": "a"}], "constraints": {"dry_run": True}}}
    )
    known = {attribute.name for attribute in type(submit.constraints).__attrs_attrs__}
    assert set(PLAN_INPUT["properties"]) - {"intent", "steps"} == known - {"max_risk_level"}
    assert PLAN_INPUT["properties"]["steps"]["maxItems"] == MOST_STEPS


@both_eras
async def test_a_plan_that_is_cancelled_undoes_what_it_did_if_asked(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        async with trio.open_nursery() as nursery:
            steps = [("bench_set", {"line": 4, "value": 1}), ("bench_nap", {"ms": 60_000})]
            nursery.start_soon(client.call_tool, PLAN, plan(*steps, rollback_on_failure=True))
            await passes(lambda: len(records(w, event="task.step.start")) == 2)
            nursery.cancel_scope.cancel()
        await passes(lambda: records(w, event="task.finish"))
        assert w.driver.levels[4] is None
        assert "undo set" in w.observer.labels("end")


def asking(w):
    """What a provider is asked by: a client that sees every tool."""

    async def view():
        return ToolView([tool.to_wire() for tool in w.parts.registry.values()])

    return SimpleNamespace(client=SimpleNamespace(view=view))


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("provider", [PlanTool(), HacpTools()])
async def test_what_is_no_json_number_is_refused_before_anything_runs(w, provider, number):
    # As the bridge reads a line: the SDK's own client cannot send one.
    plan_of = (
        '{"name": "hacp_plan", "arguments": {"intent": "i", "steps": [{"tool": "bench_read"}], "max_duration_ms": %s}}'
    )
    call_of = '{"name": "bench_read", "arguments": {"ms": %s}}'
    params = types.CallToolRequestParams.model_validate_json(
        (plan_of if type(provider) is PlanTool else call_of) % number
    )
    with pytest.raises(Refused) as caught:
        await provider.job(asking(w), params)
    assert "NaN and Infinity are no JSON" in caught.value.outcome["content"][0]["text"]


@pytest.mark.parametrize("provider", [PlanTool(), HacpTools()])
async def test_what_is_nested_too_deeply_to_be_written_again_is_refused_before_anything_runs(w, provider):
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    name = "hacp_plan" if type(provider) is PlanTool else "bench_read"
    call = f'{{"name": "{name}", "arguments": {{"intent": "i", "steps": {deep}}}}}'
    params = types.CallToolRequestParams.model_validate_json(call)
    with pytest.raises(Refused) as caught:
        await provider.job(asking(w), params)
    assert f"nested more than {MAX_DEPTH} deep" in caught.value.outcome["content"][0]["text"]
