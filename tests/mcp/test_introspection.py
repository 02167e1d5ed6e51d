"""HACP's `mcp.*`: what the daemon tells of its MCP side, and the tools as an MCP client is shown them (draft §3)."""

from __future__ import annotations

import json
from functools import partial
from hashlib import sha256

import mcp_types.version
import pytest
import trio
from attrs import evolve
from support.hearthd import Hearthd, Peer
from support.world import ALICE, BenchWorld, running

import hearth
from hearth._version import __version__
from hearth.actors.bridges.mcp.extra import McpService
from hearth.actors.bridges.mcp.server import all_offers
from hearth.actors.catalogue import ToolCatalogue
from hearth.actors.service import Service
from hearth.config.model import AuditConfig, Config
from hearth.errors import ConfigError, InvalidParams, SessionInvalid
from hearth.mcp import names
from hearth.mcp.card_tools import CARD_DEFINITIONS as CARDS
from hearth.mcp.names import EXTENSIONS, PROTOCOL_VERSIONS, endpoints
from hearth.mcp.plan_tool import HALT_DEFINITION as HALT, PLAN_DEFINITION as PLAN
from hearth.mcp.tools import ToolView
from hearth.policy.rules import Match, PolicyEntry, decide
from hearth.tools import ToolRegistry

INTROSPECTION = "mcp.* | MAY | MCP-bridge introspection (see Section 10.1)"


@pytest.fixture
async def world():
    with trio.fail_after(30):
        async with running(BenchWorld()) as made:
            yield made


async def ask(world, method: str, principal=ALICE, **params):
    """The answer to a request in a session of its own."""
    client = world.connect(principal)
    opened = await client.call("session.open")
    return await client.call(method, session_id=opened["session_id"], **params)


@pytest.mark.spec("3", "MAY", INTROSPECTION)
async def test_3_mcp_tools_has_the_tools_of_tool_list_as_an_mcp_client_is_shown_them(world) -> None:
    listed = (await ask(world, "tool.list"))["tools"]
    shown = (await ask(world, "mcp.tools"))["tools"]
    assert [tool["title"] for tool in shown[1 : 1 + len(listed)]] == [tool["name"] for tool in listed]
    assert shown == [HALT, *ToolView(listed).definitions(), PLAN, *CARDS]


@pytest.mark.spec("3", "MAY", INTROSPECTION)
async def test_3_mcp_info_says_who_speaks_what_and_where(world) -> None:
    world.runtime.listeners = ["unix:/run/h.sock", "tls://0.0.0.0:7117", "http://127.0.0.1:7119", "https://pi:443"]
    world.runtime.extra("mcp").over_http = True
    info = await ask(world, "mcp.info")
    assert info == {
        "server": {"name": "hearth", "version": __version__},
        "protocol_versions": list(PROTOCOL_VERSIONS),
        "endpoints": [
            {"transport": "streamable-http", "url": "http://127.0.0.1:7119/mcp"},
            {"transport": "streamable-http", "url": "https://pi:443/mcp"},
            {"transport": "stdio", "command": ["hearth", "mcp"]},
        ],
        "tools": len((await ask(world, "mcp.tools"))["tools"]),
        "extensions": ["io.modelcontextprotocol/tasks"],
        "card_tools": ["agentcard_declare", "agentcard_resolve", "agentcard_validate", "agentcard_list"],
        "agent_card": None,
    }


class Card(Service):
    """A card that has only the first address."""

    def card(self):
        return {"endpoint": self.runtime.listeners[0]}


async def test_a_machine_that_describes_itself_shows_its_card() -> None:
    made = BenchWorld()
    made.parts = evolve(made.parts, extras={"card": Card()})
    with trio.fail_after(30):
        async with running(made):
            made.runtime.listeners = ["https://pi:443"]
            assert (await ask(made, "mcp.info"))["agent_card"] == {"endpoint": "https://pi:443"}


@pytest.mark.parametrize("method", ["mcp.info", "mcp.tools"])
async def test_introspection_needs_a_session_of_ones_own(world, method: str) -> None:
    client = world.connect()
    with pytest.raises(SessionInvalid):
        await client.call(method, session_id="nobodys")
    with pytest.raises(InvalidParams):
        await client.call(method)


async def test_a_session_is_shown_the_tools_it_may_use_by_the_names_everybody_knows_them_by() -> None:
    few = PolicyEntry(name="few", match=Match(any=True), max_risk=2, max_risk_ceiling=2, tools=("bench.re*",))
    async with running(BenchWorld()) as all_of_them, running(BenchWorld(policy=(few,))) as some:
        with trio.fail_after(30):
            everything = {tool["title"]: tool for tool in (await ask(all_of_them, "mcp.tools"))["tools"]}
            shown = (await ask(some, "mcp.tools"))["tools"]
            assert 1 < len(shown) < len(everything) - len(CARDS)
            assert (await ask(some, "mcp.info"))["card_tools"] == []
            assert (await ask(some, "mcp.info"))["tools"] == len(shown)
    assert all(everything[tool["title"]]["name"] == tool["name"] for tool in shown)


def manifests(world: BenchWorld) -> ToolCatalogue:
    """What the world's runtime makes of its registry."""
    return ToolCatalogue(world.parts.registry, abilities=list, mcp=partial(McpService, None, world.parts))


def test_the_definitions_are_made_once_for_each_policy_entry() -> None:
    made = BenchWorld()
    told = manifests(made)
    grant = decide(made.parts.policy, ALICE, made.parts.registry)
    assert grant is not None
    assert told.mcp_tools(grant) is told.mcp_tools(evolve(grant))


def test_two_tools_of_one_mcp_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_DIGITS", 1)
    made = BenchWorld()
    (tool, *_) = made.parts.registry.values()
    clashing = [evolve(tool, name=f"com.acme.{'x' * 60}.t{number}") for number in range(17)]
    made.parts = evolve(made.parts, registry=ToolRegistry(clashing))
    with pytest.raises(ConfigError, match="have one MCP name"):
        McpService(None, made.parts)


def test_the_versions_are_those_that_the_sdk_speaks() -> None:
    assert mcp_types.version.KNOWN_PROTOCOL_VERSIONS == PROTOCOL_VERSIONS


def test_the_extensions_are_those_that_the_bridge_offers(tmp_path) -> None:
    offers = all_offers(tmp_path, principal=str)
    assert tuple(name for offer in offers for name in offer.extensions()) == EXTENSIONS


def test_an_address_that_serves_no_mcp_is_no_endpoint() -> None:
    stdio = {"transport": "stdio", "command": ["hearth", "mcp"]}
    assert endpoints(["unix:/tmp/mcp", "wss://pi/mcp"], over_http=True) == [stdio]
    assert endpoints(["http://127.0.0.1:7119"], over_http=False) == [stdio]


async def test_health_names_the_newest_audit_record_as_audit_head_does(tmp_path) -> None:
    log = tmp_path / "audit.log"
    with trio.fail_after(30):
        async with hearth.open_runtime(config=Config(audit=AuditConfig(path=log))) as runtime:
            async with runtime.open_session() as session:
                audit = (await session.run("hw.board"))["health"]["audit"]
            newest = log.read_bytes().splitlines()[audit["seq"] - 1]
            # The record of the step that asked, or a signature that came just after it.
            assert json.loads(newest)["event"] in {"task.step.start", "audit.checkpoint"}
            assert audit["head"] == f"sha256:{sha256(newest).hexdigest()}"


@pytest.mark.proof
def test_over_a_socket_both_methods_answer_as_anywhere(tmp_path) -> None:
    daemon = Hearthd(tmp_path).start()
    try:
        peer = Peer(daemon.socket)
        session = peer.open()
        info = peer.call("mcp.info", {"session_id": session})["result"]
        tools = peer.call("mcp.tools", {"session_id": session})["result"]["tools"]
        assert info["tools"] == len(tools) > 20
        assert "gpio_set" in [tool["name"] for tool in tools]
        peer.close()
    finally:
        daemon.end()
