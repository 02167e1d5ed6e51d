"""The two JSON Schema validators give the same verdicts, and every shipped schema is one by the authority's word.

jsonschema-rs decides on the path of every step, jsonschema explains refusals and stands in where there is no wheel of
the other (design §10): were they to differ, a step would be refused without a reason, or run on one machine only.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from conformance.pages import generate
from hypothesis import example, given, settings, strategies as st
from jsonschema import Draft202012Validator

from hearth import schema as schema_module
from hearth.errors import ConfigError
from hearth.schema import LONGEST_REASON, Validator, authority, check_schema

REGISTRY = generate.registry()
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
    args: dict[str, Any] = dict(generate.EXAMPLES[name])
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
    assert AUTHORITY[name].is_valid(generate.EXAMPLES[name])
    assert FAST[name].accepts(generate.EXAMPLES[name])


@pytest.mark.parametrize("name", REGISTRY)
def test_both_validators_give_the_same_verdict_on_the_args_of_every_tool(name: str) -> None:
    verdicts = set()

    @settings(max_examples=80, deadline=None)
    @given(mutated_args(name))
    @example(generate.EXAMPLES[name])
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
    assert validator.accepts(generate.EXAMPLES[name])
    assert not validator.accepts([])
    check_schema(REGISTRY[name].params_schema, name)


def test_a_refusal_names_the_place_as_a_json_pointer_and_stays_short() -> None:
    validator = Validator({"properties": {"a/b~c": {"items": {"type": "integer"}}, "t": {"maxLength": 1}}})
    assert validator.explain({"a/b~c": [1, "x"]}) == ("/a~1b~0c/1", "'x' is not of type 'integer'")
    pointer, reason = validator.explain({"t": "x" * 10_000})
    assert pointer == "/t"
    assert len(reason) <= LONGEST_REASON + 2
    assert validator.explain({"t": "x"}) == ("", "the value does not fit the schema")


def test_a_value_too_deep_for_a_recursive_schema_is_refused_in_words() -> None:
    validator = Validator({"type": "object", "properties": {"a": {"$ref": "#"}}})
    deep = orjson.loads(b'{"a":' * 1000 + b"1" + b"}" * 1000)
    assert not validator.accepts(deep)
    assert validator.explain(deep) == ("", "the value does not fit the schema, and is nested too deeply to say where")



@pytest.mark.parametrize("by_authority", [False, True])
def test_what_is_no_schema_is_refused_with_the_place(by_authority: bool) -> None:
    with pytest.raises(ConfigError, match="tool x: params_schema: not a JSON Schema 2020-12: "):
        check_schema({"type": 3}, "tool x: params_schema", by_authority=by_authority)


@pytest.mark.parametrize("pattern", ["^a$", "a$|b", r"^[$]$", r"^\$", r"^[\]$]$", "^(?:a|$)$", ""])
@pytest.mark.parametrize("value", ["a", "a\n", "$", "$\n", "b\n", "]", "", "\n", "a\n\n"])
def test_the_end_of_a_pattern_is_the_end_for_both(pattern: str, value: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert authority(schema).is_valid(value) is Validator(schema).accepts(value)
