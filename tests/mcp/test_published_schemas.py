"""Every schema that hearth publishes, as a real daemon gives it: with patterns that clients with RE2 can compile."""

from __future__ import annotations

import json
import os
from re import _constants as codes, _parser as parser

import jsonschema_rs
import pytest
from support.hearthd import Hearthd
from support.mcp import RawMcp

import hearth
from hearth.actors.bridges.mcp import guidance
from hearth.config.model import Config, FilesConfig, ToolsConfig
from hearth.mcp.card_tools import CARD_DEFINITIONS
from hearth.mcp.plan_tool import HALT_DEFINITION, PLAN_DEFINITION
from hearth.mcp.schemas import plain
from hearth.mcp.tools import ToolView

CONFIG = """\
[board]
profile = "sim"
[files]
read = ["SHARED"]
write = ["SHARED"]
[tools]
enable = ["proc.exec", "proc.signal"]
[tools.exec.df]
argv = ["/bin/df", "-k", "{mount}"]
params = { mount = { pattern = "(?=/)/[a-z]*" } }
[[policy]]
name = "all"
match = { any = true }
max_risk = 3
"""
BEYOND_RE2 = {codes.ASSERT, codes.ASSERT_NOT, codes.GROUPREF, codes.GROUPREF_EXISTS, codes.ATOMIC_GROUP}
BEYOND_RE2 |= {codes.POSSESSIVE_REPEAT}
MOST_REPEATS = 1000
"""RE2 compiles no more."""


def members(value, found):
    """All objects within a value."""
    if isinstance(value, dict):
        found.append(value)
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        members(inner, found)
    return found


def patterns(published):
    """The patterns of all schemas in a document."""
    return {
        pattern
        for schema in members(published, [])
        for pattern in [schema.get("pattern"), *(schema.get("patternProperties") or ())]
        if isinstance(pattern, str)
    }


def beyond_re2(pattern):
    """What RE2 cannot compile in a pattern."""
    found = set()

    def look(items):
        for code, argument in items:
            if code in BEYOND_RE2:
                found.add(str(code))
            if code in (codes.MAX_REPEAT, codes.MIN_REPEAT) and argument[0] > MOST_REPEATS:
                found.add("too many repeats")
            for part in argument if isinstance(argument, (tuple, list)) else (argument,):
                for inner in part if isinstance(part, list) else (part,):
                    if isinstance(inner, parser.SubPattern):
                        look(inner)

    look(parser.parse(pattern))
    return found


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """What the daemon and its MCP bridge say of tools, jobs and cards."""
    directory = tmp_path_factory.mktemp("published")
    (directory / "shared").mkdir()
    daemon = Hearthd(directory, CONFIG.replace("SHARED", f"{directory}/shared")).start()
    try:
        peer = daemon.peer()
        session = {"session_id": peer.open()}
        said = {method: peer.call(method, session)["result"] for method in ("tool.list", "mcp.tools", "mcp.info")}
        said["hcp.capabilities"] = peer.call("hcp.capabilities")["result"]
        env = {**os.environ, "XDG_STATE_HOME": str(directory)}
        with RawMcp(f"unix:{daemon.socket}", env=env) as bridge:
            bridge.initialize()
            bridge.tool("hacp_search", query="i2c_write")
            said["tools/list"] = bridge.call("tools/list")["result"]
            schema = bridge.call("resources/read", {"uri": "agentcard://schema"})["result"]
            said["agentcard://schema"] = json.loads(schema["contents"][0]["text"])
    finally:
        daemon.end()
    return said


@pytest.mark.proof
def test_no_published_pattern_looks_ahead_or_behind_or_back(published):
    found = {where: patterns(document) for where, document in published.items()}
    assert all(found[where] for where in ("tool.list", "mcp.tools", "tools/list", "agentcard://schema")), found
    for where, some in found.items():
        for pattern in some:
            assert not beyond_re2(pattern), f"{where}: {pattern}"


@pytest.mark.proof
def test_every_published_pattern_compiles_in_an_engine_of_linear_time(published):
    """Rust's `regex` has RE2's language; it is the one in jsonschema-rs that has no look-around."""
    options = jsonschema_rs.RegexOptions()
    for document in published.values():
        for pattern in patterns(document):
            jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options)


@pytest.mark.parametrize("pattern", [r"^a(?!\n)$", r"(?<=a)b", r"(a)\1", r"(?:x|(?=y))", r"a{1001}", r"(?>a)"])
def test_what_re2_cannot_compile_is_seen(pattern):
    assert beyond_re2(pattern)


# --- Gemini ---------------------------------------------------------------------------------------------------------

NOT_TAKEN = {
    "exclusiveMinimum", "exclusiveMaximum", "patternProperties", "if", "then", "else", "not", "const", "oneOf",
    "contains", "dependentRequired", "dependentSchemas", "propertyNames", "unevaluatedProperties", "unevaluatedItems",
}  # fmt: skip


def beyond_gemini(schema, at=""):
    """Where a schema leaves what Gemini's API takes (https://ai.google.dev/api/caching#Schema)."""
    if not isinstance(schema, dict):
        yield f"{at}: {schema}"
        return
    if not all(isinstance(one, str) for one in schema.get("enum", ())):
        yield f"{at}: enum {schema['enum']}"
    if not {"type", "anyOf", "allOf", "$ref"} & set(schema) or isinstance(schema.get("type"), list):
        yield f"{at}: no type"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{at}: no items"
    yield from (f"{at}: {word}" for word in NOT_TAKEN & set(schema))
    for name, one in schema.get("properties", {}).items():
        yield from beyond_gemini(one, f"{at}.{name}")
    for word in ("items", "additionalProperties"):
        if (word == "items" and word in schema) or isinstance(schema.get(word), dict):
            yield from beyond_gemini(schema[word], f"{at}[{word}]")
    for word in ("anyOf", "allOf"):
        for number, one in enumerate(schema.get(word, ())):
            yield from beyond_gemini(one, f"{at}({word} {number})")


async def test_every_schema_over_mcp_keeps_to_what_gemini_takes(tmp_path):
    """hyperdxio/hyperdx 2967, github/copilot-cli 4623: one schema beyond it fails a request with all its tools."""
    config = Config(files=FilesConfig(read=(tmp_path,), write=(tmp_path,)), tools=ToolsConfig(enable=("proc.signal",)))
    async with hearth.open_runtime(config=config) as runtime, runtime.open_session() as session:
        manifest = await session.tools()
    offered = [*ToolView(manifest).definitions(), PLAN_DEFINITION, HALT_DEFINITION, *CARD_DEFINITIONS]
    offered += [
        tool.model_dump(by_alias=True, exclude_none=True) for tool in (guidance._SEARCH_TOOL, guidance._CALL_TOOL)
    ]
    assert len(offered) > 50
    for tool in offered:
        for which in ("inputSchema", "outputSchema"):
            if which in tool:
                assert list(beyond_gemini(tool[which])) == [], f"{tool['name']} {which}"


def whole(low, high=None, **more):
    return {"type": "integer", "minimum": low, "maximum": low if high is None else high, **more}


TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "integer", "enum": [0, 1]}, whole(0, 1)),
        ({"enum": [8, 16], "description": "its width"}, whole(8, 16, description="its width (8 or 16)")),
        ({"enum": ["a", "b"]}, {**TEXT, "enum": ["a", "b"]}),
        ({"enum": ["a", None, 2]}, {"anyOf": [{**TEXT, "enum": ["a"]}, whole(2), {"type": "null"}]}),
        ({"const": True}, {"type": "boolean"}),
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
        ({"type": "number", "exclusiveMaximum": 5}, {"type": "number", "maximum": 5}),
        ({"oneOf": [TEXT, {"const": 3}]}, {"anyOf": [TEXT, whole(3)]}),
        ({"properties": {"a": TEXT}, "required": ["a"], "not": {}}, None),
        ({"type": "object", "patternProperties": {"^a": True}, "additionalProperties": False}, {"type": "object"}),
        ({"type": "array"}, None),
        ({}, None),
        ({"type": "object", "properties": {"a": True, "b": {"minimum": 1}}}, None),
    ],
)
def test_what_gemini_does_not_take_is_said_otherwise_and_refuses_no_more(schema, made):
    said = plain(schema)
    assert made is None or said == made
    assert list(beyond_gemini(said)) == []
    fitting = [value for value in VALUES if jsonschema_rs.is_valid(schema, value)]
    assert [value for value in fitting if not jsonschema_rs.is_valid(said, value)] == []


VALUES = [0, 1, 2, 3, 4.5, 5, 8, 16, -1, "a", "b", "", None, True, False, [], [1], {}, {"a": "x"}, {"a": 1, "b": 2}]
