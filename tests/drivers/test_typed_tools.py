"""Tools from typed functions: what a method says of its args, its result and itself is what a caller sees."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from annotated_types import Ge, Le, Len

from hearth.annotations import NotJson
from hearth.drivers.declare import Planned
from hearth.drivers.schemas import DIALECT, Bytes, ShownBytes
from hearth.drivers.typed_tools import changes, offers, reads, tools_of
from hearth.errors import ConfigError, InvalidParams
from hearth.tools import OneTransaction, Transaction

MOST = 20


class _Got(TypedDict):
    name: str
    value: Annotated[float | None, "null if there is none"]
    unit: NotRequired[Annotated[str, "its unit"]]


class _Sent(TypedDict):
    data: Annotated[bytes, ShownBytes("what came back")]


class _Edge(TypedDict):
    value: int


class _Seen(TypedDict):
    edges: Annotated[list[_Edge], "in order"]


class _Tools:
    def __init__(self):
        self.called = []

    @reads("acme.get", "CAP_ACME", logged=("name",))
    def get(
        self, name: Annotated[str, Len(1, 8), "one of: {names}"], count: Annotated[int, Ge(1)] = 1
    ) -> Planned[_Got]:
        """Read a value.

        At most {MOST} of them, by
        `name`.
        """
        self.called.append((name, count))
        return Planned("acme:0", tuple, None)

    @changes("acme.send", "CAP_ACME", timeout_ms=50)
    def send(
        self,
        data: Annotated[bytes, Bytes("what to send", most=4)],
        pause: Annotated[float, Le(9)] | None = None,
        len_: int | None = None,
    ) -> Planned[_Sent]:
        """Send bytes."""
        self.called.append((data, pause, len_))
        return Planned("acme:0", tuple, None)

    @reads("acme.ask", "CAP_ACME")
    def ask(self, data: Annotated[bytes, Bytes("the question")] | None = None) -> Planned[_Sent]:
        """Ask, or listen."""
        self.called.append((data,))
        return Planned("acme:0", tuple, None)

    @offers("acme.set", "CAP_ACME", 3, bus=lambda _args: "acme:1")
    def set(self, value: Literal[0, 1]) -> Transaction[_Edge]:
        """Set it."""
        return Transaction(lambda driver: driver, lambda former: {"value": value, "former": former})

    @offers("acme.watch", "CAP_ACME", 0, bus=lambda _args: "acme:1")
    async def watch(self, ctx: Any, line: int | str) -> _Seen:
        """Wait for edges."""
        return {"edges": [{"value": line}, {"value": ctx}]}

    def not_a_tool(self) -> None:
        """No tool."""


@pytest.fixture
def owner():
    return _Tools()


@pytest.fixture
def tools(owner):
    return {tool.name: tool for tool in tools_of(owner, {"names": "A, B"}, set={"timeout_ms": 7, "idempotent": True})}


def test_the_marked_methods_are_tools_in_the_order_of_their_class(tools):
    assert [(tool.name, tool.risk_level, tool.timeout_ms, tool.logged) for tool in tools.values()] == [
        ("acme.get", 0, 1000, ("name",)),
        ("acme.send", 2, 50, ()),
        ("acme.ask", 0, 1000, ()),
        ("acme.set", 3, 7, ()),
        ("acme.watch", 0, 1000, ()),
    ]
    assert tools["acme.set"].idempotent


def test_the_docstring_is_the_description_with_constants_and_names_filled_in(tools):
    assert tools["acme.get"].description == "Read a value. At most 20 of them, by `name`."
    assert tools["acme.get"].params_schema["properties"]["name"]["description"] == "one of: A, B"


def test_parameters_are_the_args_and_those_with_a_default_may_be_absent(tools):
    assert tools["acme.get"].params_schema == {
        "$schema": DIALECT,
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 8, "description": "one of: A, B"},
            "count": {"type": "integer", "minimum": 1, "default": 1},
        },
        "required": ["name"],
    }
    sent = tools["acme.send"].params_schema
    assert list(sent["properties"]) == ["data", "text", "hex", "pause", "len"]
    assert sent["properties"]["pause"] == {"type": "number", "maximum": 9}, "an absent arg is not null"
    assert sent["required"] == []


def test_the_return_annotation_is_the_result(tools):
    got = tools["acme.get"].result_schema
    assert got["properties"]["value"] == {"type": ["number", "null"], "description": "null if there is none"}
    assert got["required"] == ["name", "value"]
    assert list(tools["acme.send"].result_schema["properties"]) == ["data", "hex", "text"]
    edges = tools["acme.watch"].result_schema["properties"]["edges"]
    assert edges["items"] == {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}


@pytest.mark.parametrize(
    ("tool", "args", "called"),
    [
        ("acme.get", {"name": "A"}, ("A", 1)),
        ("acme.get", {"name": "A", "count": 2.0, "unknown": 1}, ("A", 2)),
        ("acme.send", {"hex": "00ff"}, (b"\x00\xff", None, None)),
        ("acme.ask", {}, (None,)),
        ("acme.ask", {"hex": "01"}, (b"\x01",)),
        ("acme.send", {"text": "hi", "pause": 3, "len": 4.0}, (b"hi", 3.0, 4)),
    ],
)
def test_args_reach_the_method_as_its_own_types(owner, tools, tool, args, called):
    assert tools[tool].bus(args) == "acme:0"
    assert owner.called == [called]
    assert [type(one) for one in owner.called[0]] == [type(one) for one in called]


def test_bytes_are_given_once(tools):
    for args in ({"pause": 1}, {"data": "AA==", "hex": "00"}):
        with pytest.raises(InvalidParams, match="exactly one of data, text and hex"):
            tools["acme.send"].bus(args)


async def test_a_transaction_and_a_coroutine_are_runs(tools):
    assert isinstance(tools["acme.set"].run, OneTransaction)
    assert tools["acme.set"].run.make({"value": 1}).result("x") == {"value": 1, "former": "x"}
    assert await tools["acme.watch"].run("ctx", {"line": "L"}) == {"edges": [{"value": "L"}, {"value": "ctx"}]}


class _NoDocstring:
    @reads("acme.mute", "CAP_ACME")
    def mute(self) -> Planned[_Got]:
        return Planned("acme:0", tuple, None)


class _NoAnnotation:
    @reads("acme.any", "CAP_ACME")
    def any(self, value) -> Planned[_Got]:
        """Take anything."""
        return Planned("acme:0", tuple, None)


class _NoResult:
    @reads("acme.lost", "CAP_ACME")
    def lost(self):
        """Return something."""
        return Planned("acme:0", tuple, None)


class _UnknownText:
    @reads("acme.menu", "CAP_ACME")
    def menu(self) -> Planned[_Got]:
        """Choose one of {what_is_there}."""
        return Planned("acme:0", tuple, None)


class _BytesTwice:
    @reads("acme.two", "CAP_ACME")
    def two(self, data: Annotated[bytes, Bytes("x")], mask: Annotated[bytes, Bytes("y")]) -> Planned[_Got]:
        """Take two."""
        return Planned("acme:0", tuple, None)


class _NoJson:
    @reads("acme.raw", "CAP_ACME")
    def raw(self, value: bytes) -> Planned[_Got]:
        """Take bytes."""
        return Planned("acme:0", tuple, None)


@pytest.mark.parametrize(
    ("owner", "error", "says"),
    [
        (_NoDocstring, ConfigError, r"tool acme\.mute: _NoDocstring\.mute has no docstring"),
        (_NoAnnotation, NotJson, r"value: has no annotation"),
        (_NoResult, ConfigError, r"tool acme\.lost: _NoResult\.lost does not say its result"),
        (_UnknownText, ConfigError, r"tool acme\.menu: .*\{what_is_there\}"),
        (_BytesTwice, NotJson, r"mask: there is a 'hex' already.*give one of them another name"),
        (_NoJson, NotJson, r"value: bytes has no JSON form"),
    ],
)
def test_a_method_that_cannot_be_a_tool_says_the_place_and_the_cure(owner, error, says):
    with pytest.raises(error, match=says):
        tools_of(owner())
