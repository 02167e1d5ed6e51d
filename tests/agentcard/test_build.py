"""The daemon's own card: what it says of the tools, where it leads, what it costs, and what it keeps to itself."""

import getpass
import json
import platform
import re

import pytest
from attrs import evolve

from hearth.actors.agentcard import CardSources
from hearth.agentcard.build import STDIO, CardEndpoint, Measured, auth_scheme, build_card, choose_place
from hearth.agentcard.validate import validate
from hearth.config.agentcard import CardConfig
from hearth.config.listen import Endpoint, HttpConfig
from hearth.errors import ConfigError

AGENT_ID = "01HZQK3P8EMXR9V7T5N2W4J6C0"


def built(tools, config=None, place=STDIO, **more):
    return build_card(
        tools, config or CardConfig(), place, agent_id=AGENT_ID, version="1.0.0", board="sim", **more
    )  # fmt: skip


def by_id(card):
    return {capability["id"]: capability for capability in card["capabilities"]}


@pytest.mark.spec(
    "card 1.1",
    "is",
    "AgentCard is a pure data schema. It describes what an agent can do and how to reach it; it does not specify how "
    "the agent processes requests.",
)
def test_the_card_of_every_shipped_tool_is_valid_and_survives_json(tools):
    card = built(tools)
    assert validate(card) == []
    assert json.loads(json.dumps(card)) == card
    assert len(card["capabilities"]) == len(tools) > 30


@pytest.mark.spec("card 2.4.1", "SHOULD", "Implementations SHOULD use the conventional namespaces above.")
def test_every_tool_is_a_capability_in_the_namespace_of_tools(tools):
    assert {f"tool.{tool.name}" for tool in tools} == set(by_id(built(tools)))


@pytest.mark.spec("card 2.4", "SHOULD", "Entries SHOULD be ordered from most prominent to least prominent capability.")
def test_what_moves_the_world_comes_before_the_board_and_that_before_files_and_processes(tools):
    vendors = evolve(tools[0], name="acme.laser.fire")
    names = [capability["id"].split(".")[1] for capability in built([*tools, vendors])["capabilities"]]
    order = list(dict.fromkeys(names))
    assert order == [
        "signal",
        "gpio",
        "i2c",
        "uart",
        "pwm",
        "servo",
        "dac",
        "can",
        "spi",
        "modbus",
        "acme",
        "hw",
        "file",
        "sys",
        "proc",
    ]
    assert built(list(reversed(tools)))["capabilities"][0]["id"] == "tool.modbus.write", "within a rank the registry's"


@pytest.mark.spec(
    "card 2.4.2",
    "is",
    "A human-readable description of the capability for use in LLM prompts, API documentation, and agent discovery "
    "UIs.",
)
@pytest.mark.spec("card 2.4.2", "SHOULD", "Implementations SHOULD provide this field.")
@pytest.mark.spec(
    "card 2.4.2",
    "SHOULD",
    "The description SHOULD be one to three sentences that describe what the capability does, what inputs it accepts, "
    "and what it returns.",
)
def test_every_description_is_one_to_three_sentences_of_the_tools_own(tools):
    capabilities = by_id(built(tools))
    for tool in tools:
        said = capabilities[f"tool.{tool.name}"]["description"]
        assert 1 <= len(re.findall(r"[.!?](?: |$)", said)) <= 4
        assert tool.description.startswith(said)
    assert capabilities["tool.i2c.read"]["description"].endswith(
        "in the order of the wire. An address that no device has is an error with effect none."
    )
    assert len(capabilities["tool.uart.exchange"]["description"]) < len(
        next(tool.description for tool in tools if tool.name == "uart.exchange")
    )


@pytest.mark.spec(
    "card 2.4.3",
    "is",
    "Optional JSON Schema objects describing the expected input parameters and output structure of the capability.",
)
@pytest.mark.spec(
    "card 2.4.3",
    "SHOULD",
    "When provided, these schemas MUST conform to JSON Schema [JSON-SCHEMA] and SHOULD be compatible with the "
    "parameters object in OpenAI function-calling format.",
)
def test_every_input_schema_is_an_object_with_properties_as_function_calling_wants_it(tools):
    for capability in built(tools)["capabilities"]:
        if "input_schema" in capability:
            assert capability["input_schema"]["type"] == "object"
            assert isinstance(capability["input_schema"]["properties"], dict)
            assert set(capability["input_schema"].get("required", ())) <= set(capability["input_schema"]["properties"])
            assert capability["output_schema"]["type"] == "object"


def test_tags_say_the_kind_the_risk_the_name_over_mcp_and_whether_it_rolls_back(tools):
    assert by_id(built(tools))["tool.gpio.set"]["tags"] == ["gpio", "risk:medium", "mcp:gpio_set", "rollback"]
    assert by_id(built(tools))["tool.hw.board"]["tags"] == ["hw", "risk:safe", "mcp:hw_board"]


@pytest.mark.spec(
    "card 2.2",
    "SHOULD",
    "The name field is intended for presentation purposes and SHOULD reflect the agent's primary function or role.",
)
def test_the_name_says_what_the_agent_is_for_unless_the_operator_says_it(tools):
    assert built(tools)["name"] == "Hardware access by hearth (sim)"
    assert built(tools, CardConfig(name="Greenhouse controller"))["name"] == "Greenhouse controller"
    long = build_card(tools, CardConfig(), STDIO, agent_id=AGENT_ID, version="1.0.0", board="b" * 200)
    assert validate(long) == []


@pytest.mark.spec(
    "card 8.6",
    "MUST NOT",
    "Implementors MUST NOT embed user data, operator names, or other PII in the name, capabilities[].description, or "
    "metadata fields unless the AgentCard is served over a channel with appropriate access controls.",
)
def test_a_card_tells_nothing_of_people_nor_of_the_host(tools):
    card = built(tools, audit_key="PEM")
    text = json.dumps({**card, "capabilities": [{**c, "input_schema": 0, "output_schema": 0}
                                                for c in card["capabilities"]]})  # fmt: skip
    for secret in ("Ada", "Lovelace", "lamp"):
        assert not re.search(rf"\b{secret}\b", json.dumps(card))
    for word in (platform.node(), getpass.getuser(), "/home"):
        assert not re.search(rf"\b{re.escape(word)}\b", text)
    assert "input_schema" not in by_id(card)["tool.proc.exec"], "the operator wrote into it what there is to run"


@pytest.mark.spec(
    "card 6.2",
    "MAY",
    "The two are orthogonal: an MCP server MAY publish an AgentCard; an AgentCard MAY reference an MCP endpoint.",
)
def test_metadata_have_the_audit_logs_key_and_what_is_spoken(tools):
    metadata = built(tools, CardConfig(metadata={"site": {"floor": 2}}), audit_key="-----BEGIN PUBLIC KEY-----")[
        "metadata"
    ]
    assert metadata["hearth:audit_public_key"] == "-----BEGIN PUBLIC KEY-----"
    assert metadata["hacp:protocol_version"] == "0.1.0"
    assert "2026-07-28" in metadata["mcp:protocol_versions"]
    assert metadata["site"] == {"floor": 2}
    assert "pacr:trust_tier" not in metadata, "trust is for others to give"
    assert "hearth:audit_public_key" not in built(tools)["metadata"]


def test_whole_jobs_are_named_in_the_metadata_and_are_no_capabilities_of_the_endpoint(tools):
    card = built(tools, jobs=["bench-climate-survey", "gpio-self-test"])
    assert validate(card) == []
    assert card["metadata"]["hcp:version"] == "1.0"
    assert card["metadata"]["hcp:capabilities"] == ["bench-climate-survey", "gpio-self-test"]
    assert card["capabilities"] == built(tools)["capabilities"]
    assert not any(key.startswith("hcp:") for key in built(tools)["metadata"])


# --- where it leads -------------------------------------------------------------------------------------------------


def http(listen="127.0.0.1", **more):
    return HttpConfig(listen=Endpoint(listen, 7119), plaintext=listen != "127.0.0.1", **more)


def placed(config, section, *listeners, mcp=True, tokens=True):
    return choose_place(config, section, listeners, mcp=mcp, tokens=tokens)


def test_without_an_http_listener_the_endpoint_is_the_command_that_speaks_mcp():
    place = placed(CardConfig(), HttpConfig(), "unix:/run/hearth/hearth.sock", "tls://127.0.0.1:7118")
    assert place.to_json() == {"protocol": "stdio", "url": "stdio:hearth%20mcp", "auth": {"scheme": "none"}}


def test_over_http_the_endpoint_is_mcp_at_the_url_whose_scheme_readers_compare():
    place = placed(CardConfig(), http(), "ws://127.0.0.1:1", "http://127.0.0.1:7119")
    assert place == CardEndpoint("mcp", "http://127.0.0.1:7119/mcp", "none")
    without = placed(CardConfig(), http(), "http://127.0.0.1:7119", mcp=False)
    assert without == CardEndpoint("http", "http://127.0.0.1:7119/", "none")


def test_what_listens_at_all_addresses_is_told_by_a_name_that_the_operator_gave():
    named = http("0.0.0.0", hosts=("board.example", "other"))
    assert placed(CardConfig(), named, "http://0.0.0.0:7119").url == "http://board.example:7119/mcp"
    assert placed(CardConfig(), http("0.0.0.0"), "https://[::]:7119").url == "https://localhost:7119/mcp"
    assert placed(CardConfig(), named, "https://192.0.2.1:7119").url == "https://192.0.2.1:7119/mcp"


@pytest.mark.parametrize(
    ("section", "tokens", "scheme"),
    [
        (http(), True, "none"),
        (http("192.0.2.1"), True, "bearer"),
        (HttpConfig(listen=Endpoint("127.0.0.1", 1), plaintext=True), False, "bearer"),
    ],
)
def test_the_auth_scheme_is_what_a_caller_must_bring(section, tokens, scheme):
    assert auth_scheme(section, tokens=tokens) == scheme


def test_where_only_certificates_are_known_the_scheme_is_mtls(tmp_path):
    section = HttpConfig(
        listen=Endpoint("0.0.0.0", 1), cert=tmp_path / "c", key=tmp_path / "k", client_ca=tmp_path / "a"
    )
    assert auth_scheme(section, tokens=False) == "mtls"
    assert auth_scheme(section, tokens=True) == "bearer"


def test_the_operators_endpoint_goes_before_the_listeners(tools):
    config = CardConfig(protocol="https", url="https://agents.example.com/board-7", auth="oauth2")
    place = placed(config, http("0.0.0.0"), "http://0.0.0.0:7119")
    assert place == CardEndpoint("https", "https://agents.example.com/board-7", "oauth2")
    assert validate(built(tools, place=place)) == []
    assert placed(evolve(config, auth=None), http("0.0.0.0"), "http://0.0.0.0:1").auth == "bearer"
    own = CardConfig(protocol="stdio", url="stdio:mine")
    assert placed(own, http("0.0.0.0"), "http://0.0.0.0:1").auth == "none"


@pytest.mark.spec("card 8.5", "SHOULD", "Agents SHOULD serve AgentCards exclusively over TLS (https://).")
def test_there_is_no_listener_that_would_serve_a_card_to_others_without_tls():
    with pytest.raises(ConfigError, match="would cross the network in the clear"):
        HttpConfig(listen=Endpoint("0.0.0.0", 7119))
    assert HttpConfig(listen=Endpoint("127.0.0.1", 7119)).listen is not None


# --- what it costs --------------------------------------------------------------------------------------------------

MEASURED = Measured(0.25, "powercap/intel-rapl-package-0/energy", 3600, 1200)


@pytest.mark.spec(
    "card 2.6.1",
    "SHOULD",
    "Agents SHOULD set base_cost_joules to a realistic estimate of their per-invocation energy consumption.",
)
def test_the_price_is_what_was_measured_and_the_metadata_say_how(tools):
    card = built(tools, measured=MEASURED)
    assert card["pricing"] == {"base_cost_joules": 0.25}
    assert card["metadata"]["hearth:energy_measured"] == (
        "all energy that powercap/intel-rapl-package-0/energy counted in 3600 s, divided by the 1200 invocations in "
        "that time; what the machine needs at rest is included"
    )
    assert validate(card) == []


def test_the_operators_price_goes_before_what_was_measured(tools):
    card = built(tools, CardConfig(base_cost_joules=0, per_token_joules=1e-3), measured=MEASURED)
    assert card["pricing"] == {"base_cost_joules": 0, "per_token_joules": 1e-3}
    assert "hearth:energy_measured" not in card["metadata"]


def test_where_nothing_is_known_of_energy_there_is_no_price(tools):
    assert "pricing" not in built(tools)
    assert "pricing" not in built(tools, measured=evolve(MEASURED, joules=0.0)), "nothing costs nothing"
    assert built(tools, CardConfig(per_token_joules=1))["pricing"] == {"per_token_joules": 1}


def test_goals_are_the_operators(tools):
    goals = ({"goal_id": "dry-the-cellar", "priority": 0.5},)
    assert built(tools, CardConfig(goal_subscriptions=goals))["goal_subscriptions"] == [dict(goals[0])]
    assert "goal_subscriptions" not in built(tools)


def test_sources_have_defaults_that_measure_nothing(tools):
    assert CardSources(tools=tools, card=CardConfig(), http=HttpConfig(), board="x").measured() is None
