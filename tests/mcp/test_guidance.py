"""Prompts for common jobs, and the list of tools: what it has, its size, its search, and calls by name."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import mcp_types as types
import pytest
import trio
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from support.mcp import ERAS, mcp_client, text_of
from support.world import BenchWorld, running, simulated

import hearth
from hearth.actors.bridges.mcp.guidance import CALL, JOBS, LONGEST_VALUE, MOST_TOOLS, SEARCH, ShortList
from hearth.actors.bridges.mcp.provider import Provider
from hearth.actors.bridges.mcp.server import all_offers
from hearth.mcp.names import HALT, META_ERROR, PLAN, RESERVED, mcp_name
from hearth.policy.rules import Match, PolicyEntry

both_eras = pytest.mark.parametrize("mode", ERAS)


SIGNALS = ["signal_list", "signal_read", "signal_watch", "signal_set"]
SHORT = [HALT, *SIGNALS, PLAN, SEARCH, CALL]


def offers(tmp_path, *, compact=False):
    return all_offers(tmp_path, principal=lambda _ask: "me", compact=compact)


@pytest.fixture
async def sim():
    async with hearth.open_runtime(board="sim") as runtime:
        yield runtime


async def listed(client):
    """The names in tools/list, as the server has them now."""
    return [tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools]


# --- the list of tools -----------------------------------------------------------------------------------------------


@both_eras
@pytest.mark.parametrize(("compact", "tokens"), [(False, 6_000), (True, 2_500)], ids=["default", "compact"])
async def test_a_board_of_many_tools_lists_signals_plans_the_halt_and_the_search(sim, tmp_path, mode, compact, tokens):
    async with mcp_client(sim, mode, offers=offers(tmp_path, compact=compact)) as client:
        shown = (await client.list_tools()).tools
        told = client.instructions
    assert [tool.name for tool in shown] == SHORT
    text = json.dumps({"tools": [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in shown]})
    assert len(text) / 4 <= tokens
    assert CALL in told
    assert all(tool.annotations is not None and tool.input_schema["additionalProperties"] is False for tool in shown)


@both_eras
async def test_the_list_is_in_the_order_of_mcp_tools(tmp_path, mode):
    world = simulated(tmp_path)
    async with running(world), mcp_client(world.sessions(), mode, offers=offers(tmp_path)) as client:
        daemon = world.connect()
        session = (await daemon.call("session.open"))["session_id"]
        every = [tool["name"] for tool in (await daemon.call("mcp.tools", session_id=session))["tools"]]
        await client.call_tool(SEARCH, {"query": "write i2c"})
        names = await listed(client)
    assert len(names) > len(SHORT)
    assert [*(name for name in every if name in names), SEARCH, CALL] == names


class Many(Provider):
    """Offers so many tools."""

    def __init__(self, count):
        self.count = count

    async def tools(self, _request):
        schema = {"type": "object"}
        names = [f"t{number}" for number in range(self.count)]
        return [types.Tool(name=name, input_schema=schema, output_schema=schema) for name in names]


@both_eras
@pytest.mark.parametrize("compact", [False, True], ids=["default", "compact"])
async def test_all_tools_are_listed_if_there_are_no_more_than_25(autojump_clock, mode, compact):
    assert MOST_TOOLS == 25
    many = Many(MOST_TOOLS)
    async with (
        running(BenchWorld()) as w,
        mcp_client(w.sessions(), mode, offers=[ShortList([many], compact=compact), many]) as client,
    ):
        shown = (await client.list_tools()).tools
        assert [tool.name for tool in shown] == [f"t{number}" for number in range(MOST_TOOLS)]
        assert all((tool.output_schema is None) is compact for tool in shown)
        many.count += 1
        assert await listed(client) == [SEARCH, CALL]


@asynccontextmanager
async def told_of_changes(sim, mode, offered):
    """A client that hears of changes of the list of tools, and what it has heard."""
    told, channel = trio.open_memory_channel(10)

    async def handler(message):
        if isinstance(message, types.ToolListChangedNotification):
            await told.send("changed")

    async def follow(stream):
        async for event in stream:
            assert event == ToolsListChanged()
            await told.send("changed")

    async with mcp_client(sim, mode, offers=offered, message_handler=handler if mode == "legacy" else None) as client:
        assert client.server_capabilities.tools.list_changed is True
        if mode == "legacy":
            yield client, channel
            return
        async with client.listen(tools_list_changed=True) as stream, trio.open_nursery() as nursery:
            nursery.start_soon(follow, stream)
            yield client, channel
            nursery.cancel_scope.cancel()


@both_eras
async def test_a_tool_that_a_search_has_found_is_listed_from_then_on(sim, tmp_path, mode):
    offered = offers(tmp_path)
    with trio.fail_after(30):
        async with told_of_changes(sim, mode, offered) as (client, changes):
            await client.call_tool(SEARCH, {"query": "*"})
            assert await listed(client) == SHORT, "names alone are no find"
            await client.call_tool(SEARCH, {"query": "i2c_write"})
            assert await changes.receive() == "changed"
            tools = (await client.list_tools(cache_mode="bypass")).tools
            assert [tool.name for tool in tools] == [HALT, *SIGNALS, "i2c_write", PLAN, SEARCH, CALL]
            assert all(tool.output_schema for tool in tools[:-2]), "as any other, and whole"
            await client.call_tool(SEARCH, {"query": "i2c_write"})
            await client.call_tool(SEARCH, {"query": "signal_set"})
            with pytest.raises(trio.WouldBlock):
                changes.receive_nowait()
        async with mcp_client(sim, mode, offers=offered) as client:
            assert await listed(client) == SHORT, "another client has searched for nothing"


@both_eras
async def test_the_compact_list_stays_as_it_is(sim, tmp_path, mode):
    async with mcp_client(sim, mode, offers=offers(tmp_path, compact=True)) as client:
        await client.call_tool(SEARCH, {"query": "i2c_write"})
        assert await listed(client) == SHORT


@both_eras
async def test_a_tool_that_is_not_listed_is_called_by_its_own_name(sim, tmp_path, mode):
    async with mcp_client(sim, mode, offers=offers(tmp_path)) as client:
        assert (await client.call_tool("gpio_set", {"line": "LED", "value": 1})).structured_content["value"] == 1
        wrong = await client.call_tool("gpio_set", {"line": "LED", "valeu": 1})
        assert 'Try: gpio_set {"line":"LED","value":1}' in text_of(wrong)
        assert await listed(client) == SHORT


class Weak:
    """A client that reads the list of tools and what it is told, and knows only one word of its job."""

    def __init__(self, client):
        self._client = client
        self.calls = 0

    async def call(self, name, /, **arguments):
        self.calls += 1
        result = await self._client.call_tool(name, arguments)
        assert not result.is_error, text_of(result)
        return result.structured_content

    async def tool(self, *words):
        """The first tool whose description has these words."""
        tools = (await self._client.list_tools()).tools
        return next(tool.name for tool in tools if all(word in (tool.description or "").lower() for word in words))

    async def switch_on(self, wanted):
        (found,) = (await self.call(await self.tool("list", "signals"), name=wanted))["signals"]
        assert "w" in found["access"]
        return await self.call(await self.tool("bring an output"), name=found["name"], value=1)


@both_eras
@pytest.mark.parametrize("compact", [False, True], ids=["default", "compact"])
async def test_a_weak_client_finds_and_sets_the_pump_in_two_calls(sim, tmp_path, mode, compact):
    async with mcp_client(sim, mode, offers=offers(tmp_path, compact=compact)) as client:
        weak = Weak(client)
        assert (await weak.switch_on("PUMP"))["value"] == 1
        assert weak.calls == 2
        assert (await client.call_tool("gpio_get", {"line": "PUMP"})).structured_content["value"] == 1


@pytest.mark.slow
@both_eras
async def test_every_tool_that_is_not_listed_is_found_and_called_by_name(sim, tmp_path, mode):
    async with sim.open_session() as session:
        every = {*RESERVED, *(mcp_name(tool["name"]) for tool in await session.tools())}
    async with mcp_client(sim, mode, offers=offers(tmp_path)) as client:
        for name in sorted(every - set(SHORT)):
            found = (await client.call_tool(SEARCH, {"query": name})).structured_content["tools"]
            assert found[0]["name"] == name
            assert set(found[0]["inputSchema"]) == {"type", "properties", "required", "additionalProperties"}
        named = (await client.call_tool(SEARCH, {"query": "*"})).structured_content["names"]
        assert set(named) == every
        assert (await client.call_tool(SEARCH, {"query": "xyzzy"})).structured_content["names"] == named
        result = await client.call_tool(CALL, {"name": "sys_uptime"})
        assert not result.is_error
        written = await client.call_tool(
            CALL, {"name": "i2c_write", "arguments": {"bus": 1, "addr": 80, "hex": "0001"}}
        )
        assert not written.is_error
        assert written.meta["dev.hearth/task"]["tool"] == "i2c.write"


async def test_a_search_finds_the_tools_of_a_job_by_words(sim, tmp_path):
    async with mcp_client(sim, "legacy", offers=offers(tmp_path)) as client:
        for query, name in (
            ("write to an i2c device", "i2c_write"),
            ("serial port", "uart_read"),
            ("cpu load", "sys_load"),
        ):
            found = (await client.call_tool(SEARCH, {"query": query})).structured_content["tools"]
            assert name in [tool["name"] for tool in found], query


async def test_a_call_by_name_is_refused_as_the_call_itself(autojump_clock, tmp_path):
    policy = PolicyEntry(name="low", match=Match(uid=1001), max_risk=0)
    async with (
        running(BenchWorld(policy=(policy,))) as w,
        mcp_client(w.sessions(), "legacy", offers=offers(tmp_path)) as client,
    ):
        args = {"line": 4, "value": 1}
        direct = await client.call_tool("bench_set", args)
        by_name = await client.call_tool(CALL, {"name": "bench_set", "arguments": args})
        assert 4 not in w.driver.levels
    assert direct.is_error
    assert text_of(by_name) == text_of(direct)


@both_eras
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_person_is_asked_for_a_call_by_name_as_for_the_call_itself(autojump_clock, tmp_path, mode, action):
    asked = []

    async def person(_ctx, params):
        from mcp_types import ElicitResult

        asked.append(params.message)
        return ElicitResult(action=action)

    policy = PolicyEntry(name="all", match=Match(uid=1001), max_risk=2, max_risk_ceiling=3)
    async with running(BenchWorld(policy=(policy,))) as w:
        options = {"offers": offers(tmp_path), "elicitation_callback": person}
        async with mcp_client(w.sessions(), mode, **options) as client:
            result = await client.call_tool(CALL, {"name": "bench_danger", "arguments": {"tag": "x"}})
    assert len(asked) == 1
    assert "bench.danger" in asked[0]
    assert result.is_error is (action == "decline")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "/name: is missing"),
        ({"tool": "sys_uptime", "args": {}}, 'Try: hacp_call {"name":"sys_uptime","arguments":{}}'),
        ({"name": CALL}, "hacp_call calls other tools"),
        ({"name": "i2c_writ"}, "Unknown tool: i2c_writ; did you mean i2c_write"),
        ({"name": "uart_write", "arguments": {"port": "uart", "text": "x"}}, 'Try: hacp_call {"name":"uart_write"'),
    ],
)
async def test_a_wrong_call_by_name_is_answered_with_a_call_that_the_client_can_make(sim, tmp_path, arguments, said):
    async with mcp_client(sim, "legacy", offers=offers(tmp_path)) as client:
        result = await client.call_tool(CALL, arguments)
    assert result.is_error
    assert said in text_of(result)
    suggested = result.meta[META_ERROR].get("try")
    assert suggested is None or f"Try: {suggested['name']} " in text_of(result)


# --- prompts ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@both_eras
async def test_the_prompts_of_a_board_are_listed_and_filled_in(sim, tmp_path, mode):
    async with mcp_client(sim, mode, offers=offers(tmp_path)) as client:
        prompts = (await client.list_prompts()).prompts
        assert {prompt.name for prompt in prompts} == set(JOBS)
        for prompt in prompts:
            given = {argument.name: "LED" for argument in prompt.arguments if argument.required}
            told = await client.get_prompt(prompt.name, given)
            assert "{" not in told.messages[0].content.text
        blink = await client.get_prompt("blink_line", {"line": "LED"})
        assert "line LED 3 times" in blink.messages[0].content.text


async def test_every_tool_that_a_prompt_names_is_one(sim, tmp_path):
    async with mcp_client(sim, "legacy", offers=offers(tmp_path)) as client:
        every = set((await client.call_tool(SEARCH, {"query": "*"})).structured_content["names"])
        for job in JOBS.values():
            named = {
                word.strip(".,;()") for word in job.text.split() if word.startswith(("hw_", "gpio_", "i2c_", "hacp_"))
            }
            assert named - {"hw_…"} <= every, job.title


async def test_a_prompt_without_its_tools_is_not_offered(autojump_clock, tmp_path):
    async with running(BenchWorld()) as w, mcp_client(w.sessions(), "legacy", offers=offers(tmp_path)) as client:
        assert "blink_line" not in {prompt.name for prompt in (await client.list_prompts()).prompts}


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("blink_lines", {}, "did you mean blink_line?"),
        ("blink_line", {}, "needs the argument line"),
        ("blink_line", {"lin": "LED"}, "did you mean line?"),
        ("check_board", {"zzz": "1"}, "leave it out"),
        ("blink_line", {"line": "x" * (LONGEST_VALUE + 1)}, f"at most {LONGEST_VALUE} characters"),
    ],
)
async def test_a_wrong_prompt_is_refused_with_the_cure(sim, tmp_path, name, arguments, said):
    async with mcp_client(sim, "legacy", offers=offers(tmp_path)) as client:
        with pytest.raises(MCPError) as caught:
            await client.get_prompt(name, arguments)
    assert caught.value.code == -32602
    assert said in caught.value.message
