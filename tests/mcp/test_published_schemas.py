"""Every schema that hearth publishes, as a real daemon gives it: with patterns that clients with RE2 can compile."""

from __future__ import annotations

import json
import os
from re import _constants as codes, _parser as parser

import jsonschema_rs
import pytest
from support.hearthd import Hearthd
from support.mcp import RawMcp

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
