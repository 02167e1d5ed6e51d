"""What an MCP client is shown of the tools: whole definitions, true to what each tool declares."""

from __future__ import annotations

import base64
import re
from xml.etree import ElementTree as ET

import mcp_types
import pytest
from conformance.pages import reference_pages
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

from hearth.errors import ConfigError
from hearth.mcp import names
from hearth.mcp.names import META_TOOL, mcp_name
from hearth.mcp.schemas import portable
from hearth.mcp.tools import ToolView
from hearth.schema import Validator

REGISTRY = reference_pages.registry()
MANIFEST = [tool.to_wire() for tool in REGISTRY.values()]
SHOWN = {definition["title"]: definition for definition in ToolView(MANIFEST).definitions()}


def entry(name: str = "acme.move", **members):
    """An entry of tool.list."""
    return {
        "name": name,
        "version": 1,
        "risk_level": 0,
        "timeout_ms": 1000,
        "supports_rollback": False,
        "description": "Moves",
        "params_schema": {"type": "object"},
        "result_schema": {"type": "object"},
        "capability": "CAP_ACME",
        **members,
    }


def shown(**members):
    """How an MCP client is shown a tool with these members."""
    (definition,) = ToolView([entry(**members)]).definitions()
    return definition


@pytest.mark.parametrize("name", REGISTRY)
def test_every_shipped_tool_is_shown_whole(name: str) -> None:
    definition, tool = SHOWN[name], REGISTRY[name]
    assert set(definition) == {
        "name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons", "_meta",
    }  # fmt: skip
    assert definition["title"] == name
    assert definition["_meta"][META_TOOL] == {
        "name": name,
        "version": tool.version,
        "risk_level": tool.risk_level,
        **({"least_risk": 0} if name in ("i2c.read", "spi.read") else {}),
        **({"idempotent": True} if tool.idempotent else {}),
        "risk": ("safe", "low", "medium", "high")[tool.risk_level],
        "supports_rollback": tool.supports_rollback,
        "timeout_ms": tool.timeout_ms,
        "capability": tool.capability,
    }
    model = mcp_types.Tool.model_validate(definition)
    assert model.model_dump(by_alias=True, exclude_unset=True, mode="json") == definition


@pytest.mark.spec(
    "3.3", "MUST", "Clients MUST treat unknown additional tool fields as opaque and preserve them when forwarding."
)
def test_members_that_no_release_of_ours_knows_are_forwarded_as_they_are() -> None:
    new = {"x-vendor": {"certified": ["a", {"b": None}], "max_current_ma": 16.5}, "unit": None}
    told = shown(**new)["_meta"][META_TOOL]
    assert {name: told[name] for name in new} == new


def test_the_order_is_that_of_tool_list() -> None:
    assert list(SHOWN) == list(REGISTRY)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_tool_is_found_by_its_mcp_name_its_hacp_name_and_its_id_in_the_card(name: str) -> None:
    view = ToolView(MANIFEST)
    assert len(view) == len(MANIFEST)
    for called in (mcp_name(name), name, f"tool.{name}"):
        found = view.find(called)
        assert found is not None
        assert found["name"] == name


@pytest.mark.parametrize("name", ["", "gpio", "gpio-set", "gpio.set.", "tool.gpio_set", "tool.", "tool.tool.gpio.set"])
def test_a_tool_is_found_by_no_other_name(name: str) -> None:
    assert ToolView(MANIFEST).find(name) is None


def test_a_tool_of_another_server_that_is_named_as_an_id_is_found_by_its_own_name() -> None:
    """This one refuses such a tool; what another one lists goes by its exact name first."""
    entries = [{**MANIFEST[0], "name": name} for name in ("gpio.get", "tool.gpio.get")]
    view = ToolView(entries)
    assert view.find("tool.gpio.get") == entries[1]
    assert view.find("gpio.get") == entries[0]


def test_definitions_are_made_once() -> None:
    view = ToolView(MANIFEST)
    assert view.definitions() is view.definitions()


def test_a_session_without_tools_has_an_empty_list() -> None:
    assert ToolView([]).definitions() == []


def test_a_tool_of_another_server_needs_no_more_than_the_draft_has() -> None:
    draft = {
        "name": "gpio.set",
        "version": 1,
        "risk_level": 2,
        "timeout_ms": 1000,
        "supports_rollback": True,
        "description": "Set a GPIO line to 0 or 1.",
        "params_schema": {"type": "object"},
    }
    (definition,) = ToolView([draft]).definitions()
    assert "outputSchema" not in definition
    assert definition["_meta"][META_TOOL]["risk"] == "medium"
    mcp_types.Tool.model_validate(definition)


def test_a_risk_level_of_a_later_protocol_is_as_high_as_the_highest() -> None:
    definition = shown(risk_level=7)
    assert definition["annotations"]["destructiveHint"] is True
    assert definition["_meta"][META_TOOL]["risk"] == "high"
    assert "Risk 7 (high): cannot be taken back" in definition["description"]


def test_two_tools_of_one_mcp_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_DIGITS", 1)
    with pytest.raises(ConfigError, match="have one MCP name"):
        ToolView([entry(f"acme.{'x' * 70}{number}") for number in range(17)])


# --- annotations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("risk", "rollback", "read_only", "destructive"),
    [
        (0, False, True, False),
        (1, False, False, False),
        (1, True, False, False),
        (2, True, False, False),
        (2, False, False, True),
        (3, False, False, True),
        (3, True, False, True),
    ],
)
def test_what_reads_only_and_what_destroys_follows_from_risk_and_rollback(
    risk: int, rollback: bool, read_only: bool, destructive: bool
) -> None:
    hints = shown(risk_level=risk, supports_rollback=rollback)["annotations"]
    assert hints["readOnlyHint"] is read_only
    assert hints["destructiveHint"] is destructive


def test_only_what_has_no_effect_or_says_so_is_idempotent() -> None:
    assert shown(risk_level=0)["annotations"]["idempotentHint"] is True
    assert shown(risk_level=2)["annotations"]["idempotentHint"] is False
    assert shown(risk_level=2, idempotent=True)["annotations"]["idempotentHint"] is True


@pytest.mark.parametrize(
    ("name", "is_open"),
    [("gpio.set", False), ("i2c.write", False), ("file.read", False), ("sys.load", False), ("hw.board", False),
     ("uart.write", True), ("proc.exec", True), ("com.acme.pump.start", True)],
)  # fmt: skip
def test_only_what_stays_within_the_board_is_a_closed_world(name: str, is_open: bool) -> None:
    assert shown(name=name)["annotations"]["openWorldHint"] is is_open


@pytest.mark.parametrize("name", REGISTRY)
def test_all_four_annotations_are_always_there(name: str) -> None:
    hints = SHOWN[name]["annotations"]
    assert set(hints) == {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
    assert all(type(hint) is bool for hint in hints.values())


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"risk_level": 0}, "Moves. Risk 0 (safe): only reads."),
        (
            {"risk_level": 1},
            "Moves. Risk 1 (low): may change something, which is easily put right; there is no rollback.",
        ),
        (
            {"risk_level": 2, "supports_rollback": True, "description": "Moves!"},
            "Moves! Risk 2 (medium): acts on the real world; within hacp_plan it can be rolled back.",
        ),
        (
            {"risk_level": 2, "least_risk": 0},
            "Moves. Risk 2 (medium) at most, and 0 for some arguments: acts on the real world; there is no rollback.",
        ),
        ({"risk_level": 2}, "Moves. Risk 2 (medium): acts on the real world; there is no rollback."),
        ({"risk_level": 3}, "Moves. Risk 3 (high): cannot be taken back: a person is asked first."),
    ],
)  # fmt: skip
def test_the_description_says_risk_and_rollback_in_words(members, words: str) -> None:
    assert shown(**members)["description"] == words


def test_tools_are_called_in_descriptions_as_the_client_calls_them() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "description": "acme.find has them"}}}
    said = "As acme.find tells, acme.find.v2 better. See acme.finder, my.acme.find, x.y."
    tools = [entry(description=said, params_schema=schema), entry("acme.find"), entry("acme.find.v2")]
    move, *_ = ToolView(tools).definitions()
    assert "As acme_find tells, acme_find_v2 better. See acme.finder, my.acme.find, x.y. Risk" in move["description"]
    assert move["inputSchema"]["properties"]["x"]["description"] == "acme_find has them"


@pytest.mark.parametrize("name", REGISTRY)
def test_no_shipped_description_sends_a_model_to_a_name_that_is_not_there(name: str) -> None:
    said = SHOWN[name]["description"]
    assert not [other for other in REGISTRY if re.search(rf"\b{re.escape(other)}\b(?!\.\w)", said)]


# --- schemas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["inputSchema", "outputSchema"])
@pytest.mark.parametrize("name", REGISTRY)
def test_schemas_are_json_schema_2020_12_of_an_object_with_one_type_each(name: str, which: str) -> None:
    schema = SHOWN[name][which]
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert not [type_ for type_ in every(schema, "type") if isinstance(type_, list)]


def every(schema, keyword: str):
    """Every value of a keyword, wherever in a schema."""
    if isinstance(schema, dict):
        if keyword in schema and not isinstance(schema[keyword], dict):
            yield schema[keyword]
        for value in schema.values():
            yield from every(value, keyword)
    elif isinstance(schema, list):
        for value in schema:
            yield from every(value, keyword)


TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from(["", "a", "abc"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner)),
    max_leaves=6,
)
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True)),
        "minimum": st.integers(-2, 2),
        "minLength": st.integers(0, 2),
        "description": st.just("words"),
    },
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda base, more: {**base, **more},
        LEAVES,
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
                "items": inner,
                "anyOf": st.lists(inner, min_size=1, max_size=2),
                "allOf": st.lists(inner, min_size=1, max_size=2),
                "not": inner,
                "if": inner,
                "then": inner,
                "additionalProperties": st.one_of(inner, st.booleans()),
            },
        ),
    ),
    max_leaves=5,
)


@pytest.mark.slow
@given(SCHEMAS, st.dictionaries(st.sampled_from("xyz"), VALUES))
def test_a_portable_schema_accepts_exactly_what_the_tools_own_does(schema, value) -> None:
    original = {**schema, "type": "object"}
    made = portable({**schema, "type": ["object", "null"]})
    assert Validator(made).accepts(value) is Validator(original).accepts(value)
    assert not [type_ for type_ in every(made, "type") if isinstance(type_, list)]


def test_a_schema_that_does_not_say_so_becomes_that_of_an_object() -> None:
    assert portable({}) == {"type": "object"}


# --- icons ----------------------------------------------------------------------------------------------------------


def test_icons_are_small_pictures_that_need_not_be_fetched() -> None:
    sources = {}
    for name, definition in SHOWN.items():
        (icon,) = definition["icons"]
        kind, _, data = icon["src"].partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert ET.fromstring(base64.b64decode(data)).tag == "{http://www.w3.org/2000/svg}svg"
        assert len(icon["src"]) < 500
        sources[name.partition(".")[0]] = icon["src"]
    assert len(set(sources.values())) == len(sources) == 14
    (other,) = shown(name="com.acme.move")["icons"]
    assert other["src"] not in sources.values()
