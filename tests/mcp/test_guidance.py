"""Prompts for common jobs, and the compact list of tools: its size, its search, and calls by name."""

from __future__ import annotations

import json

import pytest
from mcp.shared.exceptions import MCPError
from support.mcp import ERAS, mcp_client, text_of
from support.world import BenchWorld, running

import hearth
from hearth.actors.bridges.mcp.guidance import CALL, JOBS, LONGEST_VALUE, MOST_CHARACTERS, MOST_TOOLS, SEARCH
from hearth.actors.bridges.mcp.server import all_offers
from hearth.mcp.names import META_ERROR
from hearth.policy.rules import Match, PolicyEntry

both_eras = pytest.mark.parametrize("mode", ERAS)


def offers(tmp_path, *, compact=True):
    return all_offers(tmp_path, principal=lambda _ask: "me", compact=compact)


@pytest.fixture
async def sim():
    async with hearth.open_runtime(board="sim") as runtime:
        yield runtime


# --- the compact list ------------------------------------------------------------------------------------------------


@both_eras
async def test_the_compact_list_has_at_most_12_tools_in_2500_tokens(sim, tmp_path, mode):
    async with mcp_client(sim, mode, offers=offers(tmp_path)) as client:
        shown = (await client.list_tools()).tools
        told = client.instructions
    text = json.dumps({"tools": [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in shown]})
    assert len(text) <= MOST_CHARACTERS == 10_000
    assert len(shown) <= MOST_TOOLS == 12
    names = {tool.name for tool in shown}
    assert {SEARCH, CALL, "hw_board", "gpio_set", "hw_sensor_read", "hacp_plan"} <= names
    assert CALL in told
    assert all(tool.annotations is not None and tool.input_schema["additionalProperties"] is False for tool in shown)


async def test_the_compact_list_of_a_board_with_few_tools_has_them_all(autojump_clock, tmp_path):
    async with running(BenchWorld()) as w, mcp_client(w.sessions(), "legacy", offers=offers(tmp_path)) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert len(names) == MOST_TOOLS
        assert names[:2] == [SEARCH, CALL]


@pytest.mark.slow
@both_eras
async def test_every_tool_that_is_not_listed_is_found_and_called_by_name(sim, tmp_path, mode):
    async with mcp_client(sim, mode, offers=offers(tmp_path, compact=False)) as client:
        every = {tool.name for tool in (await client.list_tools()).tools}
    async with mcp_client(sim, mode, offers=offers(tmp_path)) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        for name in sorted(every - listed):
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
    async with mcp_client(sim, mode, offers=offers(tmp_path, compact=False)) as client:
        prompts = (await client.list_prompts()).prompts
        assert {prompt.name for prompt in prompts} == set(JOBS)
        for prompt in prompts:
            given = {argument.name: "LED" for argument in prompt.arguments if argument.required}
            told = await client.get_prompt(prompt.name, given)
            assert "{" not in told.messages[0].content.text
        blink = await client.get_prompt("blink_line", {"line": "LED"})
        assert "line LED 3 times" in blink.messages[0].content.text


async def test_every_tool_that_a_prompt_names_is_one(sim, tmp_path):
    async with mcp_client(sim, "legacy", offers=offers(tmp_path, compact=False)) as client:
        every = {tool.name for tool in (await client.list_tools()).tools}
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
    async with mcp_client(sim, "legacy", offers=offers(tmp_path, compact=False)) as client:
        with pytest.raises(MCPError) as caught:
            await client.get_prompt(name, arguments)
    assert caught.value.code == -32602
    assert said in caught.value.message
