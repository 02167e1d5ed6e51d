"""A tools/call as a task: its result, its failure, its progress, its session. In memory, under a virtual clock."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from support.mcp import ERAS, mcp_client, text_of
from support.waiting import passes, until
from support.world import BenchWorld, running

from hearth.errors import CarrierError, DeviceError
from hearth.mcp.names import META_ERROR, META_TASK, PLAN
from hearth.tools import Tool

both_eras = pytest.mark.parametrize("mode", ERAS)


def records(w, **like):
    """The audit records with these members."""
    return [record for record in w.journal.records if like.items() <= record.items()]


@pytest.fixture
async def w():
    async with running(BenchWorld()) as world:
        yield world


@both_eras
async def test_a_call_is_a_task_of_one_step_and_its_result_is_structured(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool("bench_set", {"line": 4, "value": 1})
        assert w.driver.levels[4] == 1
    assert not result.is_error
    assert result.structured_content == {"line": 4, "value": 1}
    assert text_of(result) == '{"line":4,"value":1}'
    [submitted] = records(w, event="task.submit")
    assert [step["tool"] for step in submitted["steps"]] == ["bench.set"]
    assert result.meta[META_TASK]["task_id"] == submitted["task_id"]


@pytest.mark.spec(
    "card 2.4.1",
    "is",
    "The capabilities[].id is designed to be compatible with the name field of an OpenAI-style function schema and the "
    "name field of an MCP tool definition, enabling zero-conversion interoperability.",
)
@pytest.mark.spec(
    "card 6.2",
    "is",
    "The capabilities[].id dot-namespace convention in AgentCard is intentionally compatible with MCP tool name fields "
    "to minimise conversion overhead.",
)
@both_eras
@pytest.mark.parametrize("name", ["bench_set", "bench.set", "tool.bench.set"])
async def test_a_tool_is_called_by_each_of_its_names(autojump_clock, w, mode, name):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool(name, {"line": 4, "value": 1})
        step = {"tool": name, "args": {"line": 3, "value": 1}}
        planned = await client.call_tool(PLAN, {"intent": "x", "steps": [step]})
        assert (w.driver.levels[4], w.driver.levels[3]) == (1, 1)
    assert not result.is_error
    assert not planned.is_error
    assert {step["tool"] for record in records(w, event="task.submit") for step in record["steps"]} == {"bench.set"}


@both_eras
@pytest.mark.parametrize(
    ("name", "near"),
    [("bench_sett", "bench_set"), ("bench.sett", "bench_set"), ("hacp_plans", "hacp_plan"), ("zzzzzz", None)],
)
async def test_an_unknown_tool_is_refused_with_the_nearest_that_there_is(autojump_clock, w, mode, name, near):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool(name, {})
    assert result.is_error
    first = text_of(result).splitlines()[0]
    assert first.startswith(f"Unknown tool: {name}; did you mean {near}" if near else f"Unknown tool: {name}.")
    assert first.endswith("Nothing has happened to the hardware. tools/list and hacp_search have those there are.")
    assert result.meta[META_ERROR]["code"] == -32002


async def test_an_unknown_name_that_cannot_be_sent_is_shown_escaped(autojump_clock, w):
    async with mcp_client(w.sessions(), "legacy") as client:
        result = await client.call_tool("bench_\ud800", {})
    assert text_of(result).startswith("Unknown tool: bench_\\ud800")
    assert text_of(result).encode("utf-8")


@both_eras
async def test_what_a_tool_returns_keeps_its_nulls(autojump_clock, mode):
    async def run(_ctx, _args):
        await trio.lowlevel.checkpoint()
        return {"value": None, "more": [None, {"deep": None}]}

    tool = Tool(
        name="bench.null",
        risk_level=0,
        timeout_ms=1000,
        description="x",
        params_schema={"type": "object"},
        result_schema={"type": "object"},
        capability="CAP_GPIO_READ",
        bus=lambda _args: "a",
        run=run,
    )
    async with running(BenchWorld(extra_tools=[tool])) as w, mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool("bench_null", {})
    assert result.structured_content == {"value": None, "more": [None, {"deep": None}]}


@both_eras
async def test_a_failure_is_a_result_that_says_what_became_of_the_world(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool("bench_fail", {"effect": "unknown"})
    assert result.is_error
    assert "the device said no" in text_of(result)
    assert "is not known" in text_of(result)
    assert result.meta[META_ERROR]["code"] == DeviceError.code


@both_eras
async def test_a_crash_in_a_tool_is_a_failure_that_shows_no_traceback(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool("bench_bug", {})
    assert result.is_error
    assert "Traceback" not in text_of(result)
    assert "internal error" in text_of(result).lower()


@both_eras
async def test_arguments_that_the_schema_refuses_are_a_failure_with_the_place(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool("bench_set", {"line": 4, "value": 7})
    assert result.is_error
    assert "/value: 7 is greater than the maximum of 1" in text_of(result)
    assert result.meta[META_ERROR]["code"] == -32602
    assert result.meta[META_ERROR]["path"] == "/value"
    assert not records(w, event="task.submit")


# --- progress -------------------------------------------------------------------------------------------------------


class Heard:
    """What a client hears, and when."""

    def __init__(self):
        self.values = []
        self.messages = []
        self.times = []

    async def __call__(self, progress, total, message):
        self.values.append((progress, total))
        self.messages.append(message)
        self.times.append(trio.current_time())


@both_eras
async def test_a_client_that_wants_progress_hears_at_least_every_five_seconds_that_a_task_lives(
    autojump_clock, w, mode
):
    heard = Heard()
    async with mcp_client(w.sessions(), mode) as client:
        began = trio.current_time()
        await client.call_tool("bench_nap", {"ms": 18_000}, progress_callback=heard)
    gaps = [later - earlier for earlier, later in zip([began, *heard.times], heard.times, strict=False)]
    assert max(gaps) <= 5.0 + 1e-6
    assert len(heard.values) == 4, "the beginning, and three signs of life"
    assert "18 s" not in heard.messages[-1]
    assert "15 s" in heard.messages[-1]


@both_eras
async def test_progress_never_stands_still_and_never_claims_to_be_done(autojump_clock, w, mode):
    heard = Heard()
    async with mcp_client(w.sessions(), mode) as client:
        await client.call_tool("bench_nap", {"ms": 60_000}, progress_callback=heard)
    values = [value for value, _ in heard.values]
    assert values == sorted(set(values))
    assert all(value < total == 1 for value, total in heard.values)


@both_eras
async def test_what_a_step_tells_reaches_the_client(autojump_clock, w, mode):
    heard = Heard()
    async with mcp_client(w.sessions(), mode) as client, trio.open_nursery() as nursery:

        async def call():
            await client.call_tool("bench_progress", {"n": 3, "tag": "go"}, progress_callback=heard)

        nursery.start_soon(call)
        await until(lambda: len(heard.values) == 4)
        w.event("go").set()
    assert heard.messages == [
        "bench.progress: begins",
        'bench.progress: {"number":0}',
        'bench.progress: {"number":1}',
        'bench.progress: {"number":2}',
    ]


async def test_a_client_that_did_not_ask_for_progress_hears_none(autojump_clock, w):
    said = []

    async def listen(message):
        said.append(message)

    async with mcp_client(w.sessions(), "legacy", message_handler=listen) as client:
        await client.call_tool("bench_nap", {"ms": 20_000})
    assert not said


# --- cancellation ---------------------------------------------------------------------------------------------------


@both_eras
async def test_a_cancelled_request_cancels_its_task_and_a_transaction_that_has_begun_is_finished(
    autojump_clock, w, mode
):
    gate = w.gate("write")
    steps = [{"tool": "bench_read", "args": {"gate": "write", "tag": "first"}}, {"tool": "bench.read"}]
    async with mcp_client(w.sessions(), mode) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "hacp_plan", {"intent": "two reads", "steps": steps})
            await gate.reached()
            nursery.cancel_scope.cancel()
        # The bridge hears of it in its own time, and the daemon from the bridge.
        await trio.testing.wait_all_tasks_blocked()
        gate.open()
        await passes(lambda: records(w, event="task.finish"))
        again = await client.call_tool("bench_read", {})
    [finish] = records(w, event="task.finish", status="CANCELLED")
    assert finish["reason"] == "cancelled"
    done = records(w, event="task.step.finish", task_id=finish["task_id"])
    assert [step["status"] for step in done] == ["SUCCESS"], "the second one never began"
    assert w.observer.labels("end") == ["first", "read"]
    w.observer.assert_whole()
    assert not again.is_error, "the client and its session go on"


@both_eras
async def test_a_request_that_is_cancelled_before_its_task_is_acknowledged_leaves_no_task_running(
    autojump_clock, w, mode
):
    async with mcp_client(w.sessions(), mode) as client:
        await client.call_tool("bench_read", {})
        w.journal.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "bench_nap", {"ms": 600_000})
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        w.journal.release()
        began = trio.current_time()
        await passes(lambda: records(w, event="task.finish", status="CANCELLED"))
        assert trio.current_time() - began < 5


class Unstoppable:
    """What opens sessions whose tasks neither end nor can be cancelled, because the daemon has gone."""

    def __init__(self, inner):
        self._inner = inner
        self.asked = trio.Event()

    @asynccontextmanager
    async def open_session(self, **named):
        async with self._inner.open_session(**named) as session:
            session.submit = self._submit
            yield session

    async def _submit(self, *_args, **_more):
        await trio.lowlevel.checkpoint()
        return self

    task_id = "01UNSTOPPABLE"

    async def wait(self):
        self.asked.set()
        await trio.sleep_forever()

    async def cancel(self):
        await trio.lowlevel.checkpoint()
        raise CarrierError("the connection ended before task.cancel was answered")


@both_eras
async def test_a_cancelled_request_whose_daemon_has_gone_ends_all_the_same(autojump_clock, w, mode):
    unstoppable = Unstoppable(w.sessions())
    async with mcp_client(unstoppable, mode) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "bench_nap", {"ms": 600_000})
            await unstoppable.asked.wait()
            nursery.cancel_scope.cancel()
        assert "bench_nap" in {tool.name for tool in (await client.list_tools()).tools}


@both_eras
async def test_an_argument_that_the_tool_does_not_know_is_refused_with_the_nearest_and_nothing_runs(
    autojump_clock, w, mode
):
    step = {"tool": "bench_set", "args": {"line": 4, "value": 1, "limitms": 5}}
    async with mcp_client(w.sessions(), mode) as client:
        for name, arguments, path in (
            ("bench_set", step["args"], "/limitms"),
            (PLAN, {"intent": "x", "steps": [step]}, "/steps/0/args/limitms"),
        ):
            refused = await client.call_tool(name, arguments)
            assert refused.is_error
            assert f'{path}: there is no argument "limitms"; did you mean "limit_ms"?' in text_of(refused)
            assert refused.meta[META_ERROR]["code"] == -32602
    assert 4 not in w.driver.levels
    assert not records(w, event="task.submit")
