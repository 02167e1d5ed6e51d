"""The AgentCard tools and resources as an MCP client meets them, in both eras."""

from __future__ import annotations

import json

import orjson
import pytest
import trio
from hypothesis import example, given, settings, strategies as st
from mcp.shared.exceptions import MCPError
from support.mcp import VERSIONS, serving

from hearth.actors.bridges.mcp.card_registry import CardRegistry
from hearth.actors.bridges.mcp.cards import CARD_SCHEMA, META_DECLARED, AgentCards
from hearth.agentcard.validate import validate
from hearth.mcp.card_tools import IDS_SHOWN
from hearth.mcp.names import CARD_TOOLS, META_ERROR
from hearth.schema import Validator, check_schema

OWN = {
    "agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C0",
    "name": "hearth on a bench",
    "version": "1.0.0",
    "capabilities": [{"id": "tool.gpio.set"}, {"id": "tool.gpio.get"}],
    "endpoint": {"protocol": "mcp", "url": "stdio:hearth"},
}
CARD = {
    "agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C1",
    "name": "Rover",
    "version": "2.1.0",
    "capabilities": [{"id": "tool.drive", "description": "Drive.", "input_schema": {"type": "object"}, "tags": []}],
    "endpoint": {"protocol": "https", "url": "https://rover.example/a", "auth": {"scheme": "bearer"}},
    "pricing": {"base_cost_joules": 12.5, "per_token_joules": 0},
    "metadata": {"pacr:trust_tier": "verified", "colour": "rot"},
    "goal_subscriptions": [{"goal_id": "explore", "priority": 0.5}],
    "unknown": {"field": [1]},
}
OTHER = {**CARD, "agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C2", "name": "Rover II"}
ALICE, BOB = "uid:1000", "token:9f86d081884c7d659a2feaa0c55ad015"


class Everything:
    """Permits it: who may use what is looked at in test_card_permits. Stands in for `SessionPermits`."""

    async def usable(self, _ask):
        return CARD_TOOLS

    async def use(self, _ask, _tool):
        return


@pytest.fixture(params=VERSIONS)
def era(request):
    return request.param


@pytest.fixture
def provider(tmp_path):
    """The provider, whose requests come from whom the test last named in `callers`, and whose own card is `own[0]`."""
    cards = AgentCards(
        tmp_path, principal=lambda _ask: cards.callers[-1], own_card=lambda: cards.own, permits=Everything()
    )
    cards.callers = [ALICE]
    cards.own = None
    return cards


async def told(client, name, **arguments):
    """What a tool answers: its structured content, which is its text as well."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


async def refused(client, name, **arguments):
    """The words with which a tool failed."""
    result = await client.call_tool(name, arguments)
    assert result.is_error
    return result.content[0].text


@pytest.mark.spec(
    "card 4",
    "SHOULD",
    "Agents that use the mcp protocol SHOULD also expose their AgentCard via the AgentCard MCP server tools defined in "
    "[AGENTCARD-MCP].",
)
async def test_this_servers_own_card_is_listed_first_and_resolved_among_the_others(provider, era):
    provider.own = OWN
    async with serving([provider], era) as (client, _):
        await told(client, "agentcard_declare", card_json={**CARD, "agent_id": "00000000000000000000000000"})
        listed = await told(client, "agentcard_list")
        found = await told(client, "agentcard_resolve", query="bench")
    assert [(agent["name"], agent["own"], agent["declared_by"]) for agent in listed["agents"]] == [
        ("hearth on a bench", True, None),
        ("Rover", False, ALICE),
    ]
    assert found["match"] == {"card": OWN, "declared_by": None, "declared_at": None, "own": True}


async def test_there_are_the_four_tools_and_two_resources_of_the_public_reference(provider, era):
    async with serving([provider], era) as (client, _):
        tools = (await client.list_tools()).tools
        resources = (await client.list_resources()).resources
    assert {tool.name: list(tool.input_schema["properties"]) for tool in tools} == {
        "agentcard_declare": ["card_json"],
        "agentcard_resolve": ["query"],
        "agentcard_validate": ["card_json"],
        "agentcard_list": [],
    }
    assert [str(resource.uri) for resource in resources] == ["agentcard://schema", "agentcard://registry"]
    for tool in tools:
        check_schema(tool.input_schema, tool.name, by_authority=True)
        check_schema(tool.output_schema, tool.name, by_authority=True)
        hints = tool.annotations
        assert (hints.read_only_hint, hints.destructive_hint) == (tool.name != "agentcard_declare", False)
        assert (hints.idempotent_hint, hints.open_world_hint) == (True, False)


@pytest.mark.spec(
    "card 8.1",
    "MUST NOT",
    "Consumers MUST NOT grant elevated privileges or trust solely on the basis of declared capabilities.",
)
async def test_every_tool_that_hands_cards_on_says_that_they_are_claims(provider, era):
    async with serving([provider], era) as (client, _):
        described = {tool.name: tool.description for tool in (await client.list_tools()).tools}
    for name in ("agentcard_declare", "agentcard_resolve", "agentcard_list"):
        assert "is a claim of the principal who declared it" in described[name]
        assert "grant nothing because of them" in described[name]
    assert "says nothing about whether its claims are true" in described["agentcard_validate"]


@pytest.mark.spec("card 3", "MUST", "Implementations MUST accept both embedded-string and direct-object forms.")
async def test_a_card_is_taken_as_an_object_and_as_a_string(provider, era):
    async with serving([provider], era) as (client, _):
        for given_as in (CARD, json.dumps(CARD), json.dumps(json.dumps(CARD))):
            assert await told(client, "agentcard_validate", card_json=given_as) == {"valid": True, "findings": []}
            declared = await told(client, "agentcard_declare", card_json=given_as)
            assert declared["agent_id"] == CARD["agent_id"]
            assert (await told(client, "agentcard_resolve", query="Rover"))["match"]["card"] == CARD


async def test_what_was_declared_is_answered_in_short(provider, era):
    many = {**CARD, "capabilities": [{"id": f"tool.n{index}"} for index in range(40)]}
    async with serving([provider], era) as (client, _):
        declared = await told(client, "agentcard_declare", card_json=many)
        assert (await told(client, "agentcard_list"))["agents"] == [declared]
    assert declared.pop("declared_at").endswith("Z")
    assert declared == {
        "agent_id": CARD["agent_id"],
        "name": "Rover",
        "version": "2.1.0",
        "endpoint": "https://rover.example/a",
        "capabilities": 40,
        "capability_ids": [f"tool.n{index}" for index in range(IDS_SHOWN)],
        "declared_by": ALICE,
        "own": False,
    }


@pytest.mark.spec("card 5", "MUST", "A document that fails any MUST rule is invalid and MUST be rejected.")
async def test_an_invalid_card_is_not_declared_and_every_fault_has_its_place_and_cure(provider, era):
    bad = {**CARD, "version": "1", "endpoint": {"protocol": "ftp", "url": "ftp://x"}}
    async with serving([provider], era) as (client, _):
        text = await refused(client, "agentcard_declare", card_json=bad)
        found = await told(client, "agentcard_validate", card_json=bad)
        assert (await told(client, "agentcard_list"))["agents"] == []
    assert text.startswith("The card is not valid, and was not declared:\n- /version: ")
    assert len(text.splitlines()) == 3
    assert found == {"valid": False, "findings": [finding.to_json() for finding in validate(bad)]}


async def test_no_principal_declares_anothers_agent_nor_this_server(provider, era):
    provider.own = OWN
    async with serving([provider], era) as (client, _):
        await told(client, "agentcard_declare", card_json=CARD)
        provider.callers.append(BOB)
        text = await refused(client, "agentcard_declare", card_json={**CARD, "name": "Bob's"})
        assert text.startswith(f"Agent_id {CARD['agent_id']} has been declared by another principal")
        text = await refused(client, "agentcard_declare", card_json={**CARD, "agent_id": OWN["agent_id"]})
        assert text.startswith(f"agent_id {OWN['agent_id']} is that of this server itself")
        await told(client, "agentcard_declare", card_json=OTHER)
        listed = await told(client, "agentcard_list")
    assert [agent["declared_by"] for agent in listed["agents"]] == [None, ALICE, "token:9f86d081884c"]


async def test_a_name_that_fits_several_agents_is_answered_with_all_of_them_to_choose_from(provider, era):
    async with serving([provider], era) as (client, _):
        assert "No agent known here fits 'rover'" in await refused(client, "agentcard_resolve", query="rover")
        for card in (CARD, OTHER):
            await told(client, "agentcard_declare", card_json=card)
        several = await told(client, "agentcard_resolve", query="ROVE")
        exactly = await told(client, "agentcard_resolve", query="rover")
        by_id = await told(client, "agentcard_resolve", query=OTHER["agent_id"].lower())
    assert (several["match"], [agent["name"] for agent in several["candidates"]]) == (None, ["Rover", "Rover II"])
    assert (exactly["match"]["card"], exactly["candidates"]) == (CARD, [])
    assert (by_id["match"]["card"], by_id["match"]["declared_by"]) == (OTHER, ALICE)


@pytest.mark.parametrize(
    ("tool", "arguments", "place"),
    [
        ("agentcard_declare", {}, "/card_json"),
        ("agentcard_validate", {"card": CARD}, "/card"),
        ("agentcard_resolve", {}, "/query"),
        ("agentcard_resolve", {"query": ""}, "/query"),
        ("agentcard_resolve", {"query": 7}, "/query"),
        ("agentcard_resolve", {"query": "x" * 129}, "/query"),
    ],
)
async def test_wrong_arguments_are_a_failure_that_names_the_place(provider, tool, arguments, place):
    async with serving([provider], "2026-07-28") as (client, _):
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert (result.meta[META_ERROR]["code"], result.meta[META_ERROR]["path"]) == (-32602, place)


async def test_a_tool_of_another_name_is_another_servers(provider, era):
    async with serving([provider], era) as (client, _):
        assert "Unknown tool: agentcard_forget" in await refused(client, "agentcard_forget")


async def test_files_that_are_no_cards_are_named_to_the_caller_that_lists_up_to_a_bound(provider, tmp_path, era):
    for index in range(40):
        (tmp_path / f"note-{index:02}.txt").write_text("")
    async with serving([provider], era) as (client, _):
        listed = await told(client, "agentcard_list")
    assert listed["skipped"][0] == {"file": "note-00.txt", "reason": "its name is no agent_id with .json behind it"}
    assert (len(listed["skipped"]), listed["skipped_more"]) == (32, 8)


async def test_a_registry_that_cannot_be_used_is_a_failure_in_words(provider, tmp_path, era):
    tmp_path.chmod(0o777)
    async with serving([provider], era) as (client, _):
        assert "must belong to this process's user" in await refused(client, "agentcard_list")
        assert "must belong to this process's user" in await refused(client, "agentcard_declare", card_json=CARD)
        with pytest.raises(MCPError, match="must belong to this process's user"):
            await client.read_resource("agentcard://registry")


async def test_the_registry_resource_is_an_array_of_cards_and_says_beside_it_whose_they_are(provider, tmp_path, era):
    provider.own = OWN
    async with serving([provider], era) as (client, _):
        await told(client, "agentcard_declare", card_json=CARD)
        (contents,) = (await client.read_resource("agentcard://registry")).contents
    assert (contents.mime_type, json.loads(contents.text)) == ("application/json", [OWN, CARD])
    (declared,) = (await CardRegistry(tmp_path).contents()).cards.values()
    assert contents.meta[META_DECLARED] == {
        CARD["agent_id"]: {"declared_by": ALICE, "declared_at": declared.declared_at}
    }


async def test_the_schema_resource_is_a_json_schema_of_the_size_that_was_listed(provider, era):
    async with serving([provider], era) as (client, _):
        listed = (await client.list_resources()).resources[0]
        (contents,) = (await client.read_resource("agentcard://schema")).contents
    assert contents.mime_type == listed.mime_type == "application/schema+json"
    assert len(contents.text.encode()) == listed.size
    check_schema(json.loads(contents.text), "agentcard://schema", by_authority=True)


# --- any input ------------------------------------------------------------------------------------------------------

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
SCHEMA = Validator(CARD_SCHEMA)
PLACES = [
    ("agent_id",), ("name",), ("version",), ("capabilities",), ("capabilities", 0), ("capabilities", 0, "id"),
    ("capabilities", 0, "description"), ("capabilities", 0, "input_schema"), ("capabilities", 0, "tags"), ("endpoint",),
    ("endpoint", "protocol"), ("endpoint", "url"), ("endpoint", "auth"), ("endpoint", "auth", "scheme"), ("pricing",),
    ("pricing", "base_cost_joules"), ("pricing", "per_token_joules"), ("metadata",), ("metadata", "pacr:trust_tier"),
    ("metadata", "colour"), ("goal_subscriptions",), ("goal_subscriptions", 0), ("goal_subscriptions", 0, "goal_id"),
    ("goal_subscriptions", 0, "priority"), ("unknown",),
]  # fmt: skip
LIKELY = st.sampled_from(
    ["", "x", "1.0.0", "http", "https", "mcp", "grpc", "none", "mtls", "banned", "verified", 0, -1, 1, 0.5, 2.8e-21,
     2.854e-21, 1e-30, None, True, [], {}, "https://a.example", "http://a.example", "HTTPS://a", "https://", "https:a",
     "mcp:x", "urn:a:b", "a b", [{"id": "a"}], [{"id": "A"}], {"type": "object"}, {"type": "no"}, {"scheme": "mtls"},
     "x" * 128, "x" * 129, "01HZQK3P8EMXR9V7T5N2W4J6C1\n", "01HZQK3P8EMXR9V7T5N2W4J6CI", "1.0.0\n", "tool.x\n"]
)  # fmt: skip


def mutated(place, value, *, drop):
    document = json.loads(json.dumps(CARD))
    holder = document
    for step in place[:-1]:
        holder = holder[step]
    if drop:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return document


@pytest.mark.slow
@given(st.sampled_from(PLACES), LIKELY | ANY, st.booleans())
@settings(max_examples=300, deadline=None)
@example(("endpoint", "url"), "http://", False)
@example(("endpoint", "protocol"), "http", False)
def test_the_schema_and_the_validator_agree_but_for_what_a_uri_is_to_the_letter(place, value, drop):
    document = mutated(place, value, drop=drop)
    findings = [finding for finding in validate(document) if finding.pointer != "/endpoint/url"]
    if SCHEMA.accepts(document):
        assert findings == []
    elif not findings:
        assert validate(document), f"{document} is refused by the schema alone"


def fits_a_line(document):
    """True for what has integers of 64 bits and text without lone surrogates: other values are no arguments."""
    try:
        orjson.dumps(document)
    except orjson.JSONEncodeError:
        return False
    return True


@pytest.mark.slow
@example({"x": 2**64})
@example(7)
@given(ANY | st.builds(mutated, st.sampled_from(PLACES), LIKELY | ANY, drop=st.booleans()) | st.text())
@settings(max_examples=25, deadline=None)
def test_no_input_whatsoever_makes_the_validating_tool_raise(tmp_path_factory, document):
    provider = AgentCards(tmp_path_factory.getbasetemp() / "unused", principal=lambda _ask: ALICE, permits=Everything())

    async def ask():
        async with serving([provider], "2026-07-28") as (client, _):
            if isinstance(document, dict | str) and fits_a_line(document):
                return await told(client, "agentcard_validate", card_json=document)
            assert "was not run" in await refused(client, "agentcard_validate", card_json=document)
            return None

    verdict = trio.run(ask)
    if verdict is not None:
        assert verdict["valid"] is (verdict["findings"] == []) is (validate(document) == [])
