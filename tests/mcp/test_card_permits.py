"""The AgentCard tools pass the policy, its rates and the audit log, although the bridge serves them itself."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from mcp.shared.exceptions import MCPError
from support.mcp import VERSIONS, serving
from support.waiting import until
from support.world import ALICE, BOB, BenchWorld, running

from hearth.actors.bridges.mcp.cards import AgentCards
from hearth.errors import AuditUnavailable, MethodNotFound, PermissionDenied, RateLimited, ToolNotFound
from hearth.mcp.names import CARD_TOOLS
from hearth.policy.rules import Match, PolicyEntry
from hearth.policy.uses import BY_NAME

CARD = {
    "agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C1",
    "name": "Rover",
    "version": "2.1.0",
    "capabilities": [{"id": "tool.drive"}],
    "endpoint": {"protocol": "https", "url": "https://rover.example/a"},
}


@pytest.fixture(params=VERSIONS)
def era(request):
    return request.param


def entry(**more):
    return PolicyEntry(**{"name": "bench", "match": Match(any=True), **more})


def cards(directory):
    return AgentCards(directory, principal=lambda _ask: "uid:1001")


def kept(directory):
    return sorted(path.name for path in directory.rglob("*.json"))


async def test_a_card_is_not_declared_where_the_policy_asks_for_an_approval_of_it(tmp_path, era):
    # A use is no task and cannot be prepared as a plan: no person could approve it.
    supervised = entry(approval=[{"from_risk": 1}])
    async with (
        running(BenchWorld(policy=(supervised,))) as world,
        serving([cards(tmp_path)], era, sessions=world.sessions()) as (client, _),
    ):
        assert "agentcard_declare" not in [tool.name for tool in (await client.list_tools()).tools]
        refused = await client.call_tool("agentcard_declare", {"card_json": CARD})
        assert refused.is_error
        assert "asks for an approval from risk 1 on" in refused.content[0].text
        assert not (await client.call_tool("agentcard_list", {})).is_error
    assert kept(tmp_path) == []


async def test_a_policy_without_them_shows_none_and_refuses_all_with_the_reason_on_record(tmp_path, era):
    async with (
        running(BenchWorld(policy=(entry(tools=["bench.*"]),))) as world,
        serving([cards(tmp_path)], era, sessions=world.sessions()) as (client, _),
    ):
        assert (await client.list_tools()).tools == []
        for name in CARD_TOOLS:
            refused = await client.call_tool(name, {"card_json": CARD, "query": "Rover"})
            assert refused.is_error
            assert "not in the allowlist of policy 'bench'" in refused.content[0].text
        with pytest.raises(MCPError, match="allowlist"):
            await client.read_resource("agentcard://registry")
        assert (await client.read_resource("agentcard://schema")).contents
    rejected = world.journal.of("task.reject")
    assert kept(tmp_path) == []
    assert {tool for record in rejected for tool in record["tools"]} == set(BY_NAME)
    assert world.journal.of("mcp.use") == []


async def test_patterns_choose_among_them_and_a_principal_that_only_looks_declares_nothing(tmp_path, era):
    async with (
        running(BenchWorld(policy=(entry(tools=["agentcard.*", "bench.read"], max_risk=0),))) as world,
        serving([cards(tmp_path)], era, sessions=world.sessions()) as (client, _),
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == list(CARD_TOOLS[1:])
        refused = await client.call_tool("agentcard_declare", {"card_json": CARD})
        assert refused.is_error
        assert "max_risk_level=0 < tool=1" in refused.content[0].text
        assert not (await client.call_tool("agentcard_validate", {"card_json": CARD})).is_error
    assert kept(tmp_path) == []
    assert [record["tool"] for record in world.journal.of("mcp.use")] == ["agentcard.validate"]


async def test_they_have_a_rate_which_clients_of_one_principal_share(tmp_path, era):
    rates = {"agentcard.declare": "1/h", "agentcard.*": "2/h"}
    async with running(BenchWorld(policy=(entry(rate=rates),))) as world:
        async with serving([cards(tmp_path)], era, sessions=world.sessions()) as (client, _):
            assert not (await client.call_tool("agentcard_declare", {"card_json": CARD})).is_error
            assert not (await client.call_tool("agentcard_list")).is_error
        async with serving([cards(tmp_path)], era, sessions=world.sessions()) as (client, _):
            refused = await client.call_tool("agentcard_declare", {"card_json": {**CARD, "name": "Other"}})
            assert refused.is_error
            assert "limited to 1/3600s" in refused.content[0].text
            assert (await client.read_resource("agentcard://registry")).contents
            with pytest.raises(MCPError, match="limited to 2/3600s"):
                await client.read_resource("agentcard://registry")
        async with serving([cards(tmp_path)], era, sessions=world.sessions(BOB)) as (client, _):
            listed = await client.call_tool("agentcard_list")
    assert [agent["name"] for agent in listed.structured_content["agents"]] == ["Rover"]


async def test_a_card_is_declared_only_after_the_use_is_on_record(tmp_path, era):
    async with (
        running(BenchWorld()) as world,
        serving([cards(tmp_path)], era, sessions=world.sessions()) as (client, ours),
    ):
        await ours.session()
        world.journal.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "agentcard_declare", {"card_json": CARD})
            await until(lambda: world.journal.lag)
            await trio.testing.wait_all_tasks_blocked()
            assert kept(tmp_path) == []
            world.journal.release()
        assert kept(tmp_path) == [f"{CARD['agent_id']}.json"]
        (record,) = world.journal.of("mcp.use")
    assert (record["principal"], record["tool"]) == (ALICE.key, "agentcard.declare")
    assert record["session_id"]


async def test_what_cannot_be_recorded_is_not_declared_and_reads_go_on(tmp_path, era):
    async with (
        running(BenchWorld()) as world,
        serving([cards(tmp_path)], era, sessions=world.sessions()) as (client, _),
    ):
        world.journal.fail("no space is left")
        refused = await client.call_tool("agentcard_declare", {"card_json": CARD})
        assert refused.is_error
        assert "Audit log cannot be written" in refused.content[0].text
        assert kept(tmp_path) == []
        assert not (await client.call_tool("agentcard_list")).is_error


async def test_a_session_that_has_ended_is_opened_anew_for_them(tmp_path, era):
    async with (
        running(BenchWorld()) as world,
        serving([cards(tmp_path)], era, sessions=world.sessions()) as (client, ours),
    ):
        first = await ours.session()
        await first.close()
        assert not (await client.call_tool("agentcard_list")).is_error
        assert (await ours.session()).session_id != first.session_id


async def test_a_server_that_knows_no_such_methods_has_no_policy_for_them(tmp_path, era):
    class CoreOnly:
        session_id = "s"

        async def call(self, method, /, **_params):
            raise MethodNotFound(method)

    class Client:
        async def session(self):
            return CoreOnly()

    class Ask:
        client = Client()

    provider = cards(tmp_path)
    assert [tool.name for tool in await provider.tools(Ask())] == list(CARD_TOOLS)
    await provider._permits.use(Ask(), CARD_TOOLS[0])


# --- over HACP --------------------------------------------------------------------------------------------------------


async def opened(world):
    """A function that asks, in a new session, for leave to use a tool."""
    client = world.connect()
    session = await client.open()

    async def use(tool):
        return await client.call("mcp.use", session_id=session.session_id, tool=tool)

    return use


async def test_mcp_use_leaves_a_record_and_knows_no_other_tools():
    async with running(BenchWorld()) as world:
        use = await opened(world)
        assert await use("agentcard.list") == {"ok": True}
        assert [record["tool"] for record in world.journal.of("mcp.use")] == ["agentcard.list"]
        for name in ("bench.read", "agentcard_list", "agentcard.purge"):
            with pytest.raises(ToolNotFound):
                await use(name)
        assert world.journal.of("task.reject")[0]["tools"] == ["bench.read"]


@pytest.mark.parametrize(
    ("policy", "before", "error"),
    [
        (entry(tools=["bench.*"]), 0, PermissionDenied),
        (entry(max_risk=0), 0, PermissionDenied),
        (entry(rate={"agentcard.declare": "1/h"}), 1, RateLimited),
    ],
)
async def test_mcp_use_refuses_as_a_submit_does(policy, before, error):
    async with running(BenchWorld(policy=(policy,))) as world:
        for _ in range(before):
            await (await opened(world))("agentcard.declare")
        use = await opened(world)
        with pytest.raises(error):
            await use("agentcard.declare")


async def test_a_use_that_cannot_be_recorded_takes_no_token():
    async with running(BenchWorld(policy=(entry(rate={"agentcard.declare": "1/h"}),))) as world:
        use = await opened(world)
        world.journal.fail("no space is left")
        with pytest.raises(AuditUnavailable):
            await use("agentcard.declare")
        world.journal.heal()
        assert await use("agentcard.declare") == {"ok": True}
