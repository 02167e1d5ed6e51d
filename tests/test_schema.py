"""The two JSON Schema validators give the same verdicts, and every shipped schema is one by the authority's word.

jsonschema-rs decides on the path of every step and explains refusals, jsonschema stands in where there is no wheel of
it: were they to differ, a step would run on one machine only. Neither may hold the loop, whatever it is given.
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import orjson
import pytest
from conformance.pages import reference_pages
from hypothesis import example, given, settings, strategies as st
from jsonschema import Draft202012Validator

from hearth import schema as schema_module
from hearth.errors import ConfigError
from hearth.schema import EXPLAINED_BYTES, LONGEST_REASON, Validator, authority, check_schema

REGISTRY = reference_pages.registry()
AUTHORITY = {name: authority(tool.params_schema) for name, tool in REGISTRY.items()}
FAST = {name: Validator(tool.params_schema) for name, tool in REGISTRY.items()}

INTEGERS = [-(2**63), -(2**53), -256, -1, 0, 1, 2, 7, 8, 72, 119, 120, 128, 255, 256, 2**31, 2**53, 2**63, 2**64 - 1]
ADDRESSES = ["0x48", "0X48", "0x4", "0x048", "0x4g", "48", "0x48\n", "\n0x48", "٤٨", "0x٤٨"]
BASE64 = ["", "AAAA", "AA==", "AA=\n", "AAA", "A" * 5464]
WORDS = ["a", "é" * 64, "🤖" * 65, "\x00", "replace", "append", "both", "rising", "SIGTERM", "df", "/", "/srv/x"]
ODD = [None, True, False, 0.0, 1.0, 1.5, -0.0, 72.0, 1e308, 5e-324, [], {}, [1], {"a": 1}, [[]]]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def near(member: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values at and about what one member's schema allows."""
    bounds: list[Any] = []
    for option in [member, *member.get("anyOf", ())]:
        for key in ("minimum", "maximum"):
            if key in option:
                bounds += [option[key] - 1, option[key], option[key] + 1, float(option[key]), option[key] + 0.5]
        for key in ("minLength", "maxLength"):
            if key in option:
                bounds += ["x" * max(option[key] + more, 0) for more in (-1, 0, 1)]
        bounds += option.get("enum", [])
        if "default" in option:
            bounds.append(option["default"])
    return st.sampled_from(bounds + INTEGERS + ADDRESSES + BASE64 + WORDS + ODD)


@st.composite
def mutated_args(draw: st.DrawFn, name: str) -> Any:
    """The example args of a tool, some members taken out, put in, or changed to what is nearly right."""
    members = REGISTRY[name].params_schema.get("properties", {})
    args: dict[str, Any] = dict(reference_pages.EXAMPLES[name])
    for _ in range(draw(st.integers(0, 3))):
        key = draw(st.sampled_from([*members, "unknown"]))
        change = draw(st.sampled_from(["near", "near", "any", "away"]))
        if change == "away":
            args.pop(key, None)
        else:
            args[key] = draw(near(members.get(key, {})) if change == "near" else JSON)
    whole = draw(st.sampled_from([args] * 20 + [None, [], "args", 1, [args]]))
    # As the wire would have it.
    return orjson.loads(orjson.dumps(whole))


@pytest.mark.parametrize("name", REGISTRY)
def test_the_example_args_of_every_tool_fit_its_schema(name: str) -> None:
    assert AUTHORITY[name].is_valid(reference_pages.EXAMPLES[name])
    assert FAST[name].accepts(reference_pages.EXAMPLES[name])


@pytest.mark.usefixtures("unmeasured_here")
@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
def test_both_validators_give_the_same_verdict_on_the_args_of_every_tool(name: str) -> None:
    verdicts = set()

    @settings(max_examples=80, deadline=None)
    @given(mutated_args(name))
    @example(reference_pages.EXAMPLES[name])
    @example([])
    def same(args: Any) -> None:
        verdict = AUTHORITY[name].is_valid(args)
        verdicts.add(verdict)
        assert FAST[name].accepts(args) is verdict
        if not verdict:
            pointer, reason = FAST[name].explain(args)
            assert reason
            assert pointer == "" or pointer.startswith("/")

    same()
    assert verdicts == {True, False}


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("which", ["params_schema", "result_schema"])
def test_every_shipped_schema_is_valid_by_the_authority_and_passes_the_check_at_start(name: str, which: str) -> None:
    schema = getattr(REGISTRY[name], which)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert schema["type"] == "object"
    check_schema(schema, name)


BAD = [{"type": "strin"}, {"properties": []}, {"required": "line"}, {"minimum": "0"}, {"anyOf": []}, {"pattern": 1}]


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_schema_is_refused_by_both(bad: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^tool x\.y: not a JSON Schema 2020-12: "):
        check_schema(bad, "tool x.y")
    monkeypatch.setattr(schema_module, "_rs", None)
    with pytest.raises(ConfigError, match=r"^tool x\.y: not a JSON Schema 2020-12: "):
        check_schema(bad, "tool x.y")


@pytest.mark.parametrize("name", REGISTRY)
def test_without_a_wheel_the_authority_takes_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "_rs", None)
    validator = Validator(REGISTRY[name].params_schema)
    assert validator.accepts(reference_pages.EXAMPLES[name])
    assert not validator.accepts([])
    check_schema(REGISTRY[name].params_schema, name)


def test_a_refusal_names_the_place_as_a_json_pointer_and_stays_short() -> None:
    validator = Validator({"properties": {"a/b~c": {"items": {"type": "integer"}}, "t": {"maxLength": 1}}})
    assert validator.explain({"a/b~c": [1, "x"]}) == ("/a~1b~0c/1", '"x" is not of type "integer"')
    pointer, reason = validator.explain({"t": "x" * 10_000})
    assert pointer == "/t"
    assert reason.endswith("is longer than 1 character")
    assert len(reason) <= LONGEST_REASON + 3
    assert validator.explain({"t": "x"}) == ("", "the value does not fit the schema")


ADDRESS = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^0x"}]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (-1, "-1 is less than the minimum of 0"),
        ("zz", '"zz" does not match "^0x"'),
        (None, "null is not valid under any of the schemas listed in the 'anyOf' keyword"),
    ],
)
def test_of_alternatives_the_one_of_the_values_type_is_explained(value: Any, reason: str) -> None:
    assert Validator({"properties": {"addr": ADDRESS}}).explain({"addr": value}) == ("/addr", reason)


@pytest.mark.parametrize("kind", ["oneOf", "anyOf"])
def test_where_no_alternative_comes_closest_all_are_named(kind: str) -> None:
    schema = {kind: [{"required": ["a"]}, {"required": ["b"]}]}
    reason = f"{{}} is not valid under any of the schemas listed in the '{kind}' keyword"
    assert Validator(schema).explain({}) == ("", reason)


LONG = {
    "type": "object",
    "properties": {
        "addr": ADDRESS,
        "list": {"type": "array", "maxItems": 9000, "items": {"$ref": "#/$defs/byte"}},
        "map": {"type": "object", "maxProperties": 9000, "additionalProperties": {"type": "null"}},
        "text": {"type": "string", "maxLength": 500_000, "pattern": "^x*$"},
        "n": {"type": "integer"},
    },
    "required": ["n"],
    "additionalProperties": False,
    "$defs": {"byte": {"type": "integer", "maximum": 255}},
}


@pytest.mark.parametrize(
    ("value", "pointer", "reason"),
    [
        ({"n": 1, "list": [0] * 9001}, "/list", "an array of 9001 items has more than 9000 items"),
        ({"n": 1, "list": [1, 256] * 4500}, "/list/1", "256 is greater than the maximum of 255"),
        ({"n": 1, "list": [0] * 8999 + ["x"]}, "/list", "an array of 9000 items does not fit the schema, and is too"),
        ({"n": 1, "list": {str(i): 0 for i in range(5000)}}, "/list", "an object of 5000 members does not fit"),
        ({"n": 1, "map": {str(i): None for i in range(9001)}}, "/map", "an object of 9001 members has more than 9000"),
        ({"n": 1, "map": {"a": None, "b": 1} | {str(i): None for i in range(5000)}}, "/map/b", '1 is not of type'),
        ({"n": 1, "text": "x" * 500_001}, "/text", "a string of 500001 characters has more than 500000 characters"),
        ({"n": 1, "text": "y" * 50_000}, "/text", "a string of 50000 characters does not fit the schema"),
        ({"n": 1, "addr": [0] * 9000}, "/addr", "an array of 9000 items does not fit the schema"),
        ({"n": "1", "text": "x" * 50_000}, "/n", '"1" is not of type "integer"'),
        ({"text": "x" * 50_000}, "", '"n" is a required property'),
        ({"n": 1, "text": "x" * 50_000, "other": 1}, "", "Additional properties are not allowed ('other' was"),
        ({"n": 1} | {f"other{i}": 1 for i in range(5000)}, "", "Additional properties are not allowed ('other0'"),
        ({"n": 1, "x" * 50_000: 1}, "", "the value does not fit the schema, and is too long to say where"),
        ([0] * 20_000, "", "an array of 20000 items does not fit the schema, and is too long to say why"),
        ("x" * 20_000, "", "a string of 20000 characters does not fit the schema, and is too long to say why"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_a_long_value_is_explained_by_as_much_of_it_as_is_wrong(value: Any, pointer: str, reason: str) -> None:
    validator = Validator(LONG)
    assert not validator.accepts(value)
    where, why = validator.explain(value)
    assert where == pointer
    assert why.startswith(reason)
    assert len(why) <= LONGEST_REASON + 3


class Counted:
    """jsonschema-rs, with the bytes that are handed to what explains."""

    def __init__(self) -> None:
        self.longest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(jsonschema_rs, name)

    def Draft202012Validator(self, schema: Any) -> Any:  # noqa: N802 - it is called so
        compiled = jsonschema_rs.Draft202012Validator(schema)

        def validate(value: Any) -> None:
            self.longest = max(self.longest, len(orjson.dumps(value)))
            compiled.validate(value)

        return SimpleNamespace(is_valid=compiled.is_valid, validate=validate)


DOCUMENTS = [
    [0] * 20_000,
    [{}] * 20_000,
    {f"{n:x}" + "x" * 40: 0 for n in range(20_000)},
    ["é" * 26] * 20_000,
    "x" * (1 << 20),
    {"x" * (1 << 20): 0},
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("name", ["i2c.scan", "i2c.read", "gpio.set", "file.write", "uart.exchange"])
def test_no_refusal_copies_more_of_a_document_than_is_cheap(
    name: str, document: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_module, "_rs", counted := Counted())
    validator = Validator(REGISTRY[name].params_schema)
    members = REGISTRY[name].params_schema["properties"]
    more = {**reference_pages.EXAMPLES[name], "more": document}
    for args in (document, {}, more, *({one: document} for one in members)):
        if validator.accepts(args):
            continue
        pointer, reason = validator.explain(args)
        assert len(pointer) < 2 * LONGEST_REASON
        assert 0 < len(reason) <= LONGEST_REASON + 3
    assert 0 < counted.longest <= EXPLAINED_BYTES + 1024


def test_a_value_too_deep_for_a_recursive_schema_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    deep = orjson.loads(b'{"a":' * 400 + b"1" + b"}" * 400)
    assert not Validator(schema).accepts(deep)
    assert Validator(schema).explain(deep)[1]
    monkeypatch.setattr(schema_module, "_rs", None)
    validator = Validator(schema)
    assert not validator.accepts(deep)
    assert validator.explain(deep) == ("", "the value does not fit the schema, and is nested too deeply to say where")


@pytest.mark.usefixtures("unmeasured_here")
@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
def test_the_fallback_gives_the_same_verdicts_and_explains_as_briefly(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = FAST[name]
    monkeypatch.setattr(schema_module, "_rs", None)
    slow = Validator(REGISTRY[name].params_schema)

    @settings(max_examples=40, deadline=None)
    @given(mutated_args(name))
    def same(args: Any) -> None:
        assert slow.accepts(args) is fast.accepts(args)
        if not slow.accepts(args):
            pointer, reason = slow.explain(args)
            assert pointer == "" or pointer.startswith("/")
            assert 0 < len(reason) <= LONGEST_REASON + 3

    same()


@pytest.mark.parametrize("value", [[0] * 501, {"a": {"b": list(range(499))}}, {str(n): 0 for n in range(500)}])
def test_the_fallback_looks_at_no_more_than_it_can_in_time(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "_rs", None)
    validator = Validator({})
    monkeypatch.setattr(validator, "_compiled", None)
    assert not validator.accepts(value)
    assert validator.explain(value) == ("", "more than 500 values cannot be checked here: there is no jsonschema-rs")
    assert Validator({}).accepts([0] * 499)
    assert Validator({}).explain([0] * 499) == ("", "the value does not fit the schema")


@pytest.mark.slow
def test_no_refusal_imports_the_slow_validator() -> None:
    code = """if True:
        import sys
        from hearth.schema import Validator
        validator = Validator({"properties": {"a": {"type": "string"}}, "required": ["a"]})
        for value in ({}, {"a": 1}, {"a": [0] * 60_000}, {"b": [0] * 60_000}, {"a": {"b": "x" * 20_000}}):
            assert not validator.accepts(value)
            validator.explain(value)
        assert "jsonschema" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("by_authority", [False, True])
def test_what_is_no_schema_is_refused_with_the_place(by_authority: bool) -> None:
    with pytest.raises(ConfigError, match="tool x: params_schema: not a JSON Schema 2020-12: "):
        check_schema({"type": 3}, "tool x: params_schema", by_authority=by_authority)


@pytest.mark.parametrize("pattern", ["^a$", "a$|b", r"^[$]$", r"^\$", r"^[\]$]$", "^(?:a|$)$", ""])
@pytest.mark.parametrize("value", ["a", "a\n", "$", "$\n", "b\n", "]", "", "\n", "a\n\n"])
def test_the_end_of_a_pattern_is_the_end_for_both(pattern: str, value: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert authority(schema).is_valid(value) is Validator(schema).accepts(value)
