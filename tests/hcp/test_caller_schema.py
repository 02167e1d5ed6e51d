"""A schema from a caller: what is run of it, what is not, and that neither takes long."""

import re

import orjson
import pytest
from hypothesis import HealthCheck, event, given, settings, strategies as st

from hearth.hcp import schemas
from hearth.hcp.schemas import (
    MOST_BYTES,
    MOST_COST,
    MOST_DEPTH,
    MOST_WORK,
    PATTERN_COST,
    SchemaMismatch,
    SchemaRefused,
    explain,
    read_caller_schema,
)

EVIL = "^(a+)+$"
"""Exponential in a backtracking engine: 30 characters take Python's `re` minutes."""
LOOKS_AHEAD = "(?=a)(a+)+$"
"""Only a backtracking engine can run it: 100,000 characters took jsonschema-rs's default engine 16 s."""


def refused(schema) -> SchemaRefused:
    with pytest.raises(SchemaRefused) as caught:
        read_caller_schema(schema)
    assert caught.value.reason
    assert caught.value.cure
    return caught.value


# --- what is run ------------------------------------------------------------------------------------------------------


def test_the_l4_pages_own_schema_is_run():
    schema = read_caller_schema(
        {
            "type": "object",
            "required": ["peak_distance", "layer_count"],
            "properties": {
                "peak_distance": {"type": "number", "description": "A1g-E2g peak distance in cm^-1"},
                "layer_count": {"type": "integer", "description": "Estimated layer count"},
                "confidence": {"type": "number", "minimum": 0, "maximum": 1},
            },
        }
    )
    assert schema.required == ("peak_distance", "layer_count")
    assert schema.mismatch_of({"peak_distance": 18.47, "layer_count": 1, "confidence": 0.97}) is None
    assert schema.mismatch_of({"peak_distance": 18.47, "layer_count": 1.5}) == SchemaMismatch(
        "/layer_count", '1.5 is not of type "integer"'
    )


def test_the_misfit_is_named_by_a_json_pointer():
    schema = read_caller_schema({"properties": {"a/b": {"items": {"properties": {"m~n": {"type": "string"}}}}}})
    mismatch_of = schema.mismatch_of({"a/b": [{}, {"m~n": 5}]})
    assert mismatch_of is not None
    assert mismatch_of.pointer == "/a~1b/1/m~0n"


def test_a_long_value_does_not_drown_the_reason():
    mismatch_of = read_caller_schema({"items": {"type": "number"}}).mismatch_of(["x" * 100_000])
    assert mismatch_of is not None
    assert mismatch_of.pointer == "/0"
    assert len(mismatch_of.reason) <= 310
    assert mismatch_of.reason.endswith('is not of type "number"')


def test_definitions_at_the_root_may_be_referred_to_as_often_as_the_bound_allows():
    point = {"type": "object", "required": ["x", "y"], "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}
    schema = read_caller_schema(
        {
            "$defs": {"point": point, "a/b": {"$ref": "#/$defs/point"}},
            "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/a~1b"}},
        }
    )
    assert schema.mismatch_of({"from": {"x": 1, "y": 2}, "to": {"x": 1, "y": 2}}) is None
    mismatch_of = schema.mismatch_of({"from": {"x": 1, "y": 2}, "to": {"x": 1}})
    assert mismatch_of is not None
    assert mismatch_of.pointer == "/to"


def test_a_property_called_like_a_keyword_is_a_property():
    schema = read_caller_schema({"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}})
    assert schema.mismatch_of({"$ref": "http://elsewhere/", "$id": "x"}) is None
    mismatch_of = schema.mismatch_of({"$ref": 5})
    assert mismatch_of is not None
    assert mismatch_of.pointer == "/$ref"


@pytest.mark.parametrize(
    "dialect", ["https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2020-12/schema#"]
)
def test_a_schema_may_say_that_it_is_of_2020_12(dialect):
    assert read_caller_schema({"$schema": dialect, "type": "object"}).mismatch_of({}) is None


def test_formats_are_annotations():
    assert read_caller_schema({"format": "email"}).mismatch_of("no address") is None


# --- what is not ------------------------------------------------------------------------------------------------------

AN_OBJECT = {"type": "object"}
REFUSED = [
    ({"type": "strin"}, "/type", "strin"),
    ({"properties": {"a": {"minimum": "x"}}}, "/properties/a/minimum", "not of type"),
    ({"required": "a"}, "/required", "not of type"),
    ({"properties": []}, "/properties", "not of type"),
    ({"properties": {"a": 5}}, "/properties/a", "5"),
    ({"$ref": "http://127.0.0.1:9/x.json"}, "/$ref", "nothing outside"),
    ({"$ref": "file:///etc/passwd"}, "/$ref", "nothing outside"),
    ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "/$ref", "nothing outside"),
    ({"$ref": "#/properties/a", "properties": {"a": AN_OBJECT}}, "/$ref", "nothing outside"),
    ({"$ref": "#/$defs/none", "$defs": {}}, "/$ref", "nothing outside"),
    ({"$ref": "#/$defs/none"}, "/$ref", "nothing outside"),
    ({"$ref": "#/$defs/a", "$defs": 5}, "/$ref", "nothing outside"),
    ({"$ref": 5}, "/$ref", "nothing outside"),
    ({"$ref": "http://" + "x" * 5000}, "/$ref", "nothing outside"),
    ({"$ref": "#"}, "/$ref", "nothing outside"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "/$defs/a/$ref", "leads back"),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}},
        "/$defs/b/$ref",
        "leads back",
    ),
    ({"$defs": {"idle": {"not": {"$ref": "#/$defs/idle"}}}}, "/$defs/idle/not/$ref", "leads back"),
    ({"$id": "http://elsewhere/"}, "/$id", "not taken"),
    ({"items": {"$anchor": "here"}}, "/items/$anchor", "not taken"),
    ({"$dynamicRef": "#meta"}, "/$dynamicRef", "not taken"),
    ({"anyOf": [AN_OBJECT, {"$dynamicAnchor": "meta"}]}, "/anyOf/1/$dynamicAnchor", "not taken"),
    ({"$vocabulary": {}}, "/$vocabulary", "not taken"),
    ({"properties": {"a": {"$defs": {}}}}, "/properties/a/$defs", "stands within"),
    ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema", "2020-12"),
    ({"$schema": 5}, "/$schema", "2020-12"),
    ({"pattern": LOOKS_AHEAD}, "/pattern", "linear time"),
    ({"pattern": r"(a+)\1"}, "/pattern", "linear time"),
    ({"pattern": "(?<!a)b"}, "/pattern", "linear time"),
    ({"pattern": "((a{0,100}){0,100}){0,100}"}, "/pattern", "linear time"),
    ({"pattern": "("}, "/pattern", "linear time"),
    ({"patternProperties": {LOOKS_AHEAD: True}}, "/patternProperties", "linear time"),
    ({"description": "x" * MOST_BYTES}, "", f"at most {MOST_BYTES}"),
    ({"allOf": [AN_OBJECT] * (MOST_COST + 1)}, "", f"more than {MOST_COST}"),
    ({"enum": list(range(MOST_COST + 1))}, "", f"more than {MOST_COST}"),
    ({"const": {"deep": [[0] * (MOST_COST + 1)]}}, "", f"more than {MOST_COST}"),
]


@pytest.mark.parametrize(("schema", "pointer", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_schema_outside_of_what_is_run_is_refused_with_place_and_cure(schema, pointer, reason):
    error = refused(schema)
    assert error.pointer.startswith(pointer)
    assert reason in error.reason
    assert len(error.reason) < 500


def nested(levels, keyword="not"):
    schema = {"type": "object"}
    for _ in range(levels):
        schema = {keyword: schema}
    return schema


def test_a_python_value_that_is_no_json_is_refused_too():
    assert "not plain JSON" in refused({"enum": [{1, 2}]}).reason


@pytest.mark.parametrize("levels", [MOST_DEPTH, 400])
def test_a_schema_deeper_than_the_bound_is_refused_before_anything_walks_it(levels):
    assert read_caller_schema(nested(MOST_DEPTH - 1)).cost > 1
    assert f"more than {MOST_DEPTH} levels" in refused(nested(levels)).reason


def test_references_that_double_at_each_level_are_counted_and_not_run():
    doubling = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(24)}
    defs = {**doubling, "d24": AN_OBJECT}
    assert "each $ref counted" in refused({"$ref": "#/$defs/d0", "$defs": defs}).reason
    # Nor are those compiled that nothing refers to.
    assert "each $ref counted" in refused({"$defs": defs}).reason


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"pattern": f"{number}"} for number in range(33)]},
        {"$defs": {f"d{number}": {"pattern": "a"} for number in range(33)}},
        {"patternProperties": {f"{number}": {} for number in range(33)}},
        {"pattern": "a", "items": {"patternProperties": {f"{number}": {} for number in range(32)}}},
    ],
)
def test_so_many_patterns_are_compiled_and_no_more(schema):
    with pytest.raises(SchemaRefused, match="more than 32 patterns"):
        read_caller_schema(schema)
    assert read_caller_schema({"allOf": [{"pattern": f"{number}"} for number in range(32)]}).patterns == 32


def test_a_chain_of_references_is_followed_only_so_far():
    defs = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(1000)} | {"d1000": True}
    error = refused({"$ref": "#/$defs/d0", "$defs": defs})
    assert "references deep" in error.reason


def test_unevaluated_properties_within_each_other_are_counted_as_they_are_run():
    schema = {"type": "object"}
    for _ in range(12):
        schema = {"if": schema, "then": True, "unevaluatedProperties": False}
    assert "comes to more than" in refused(schema).reason


def test_a_pattern_that_backtracks_elsewhere_runs_in_linear_time_and_python_never_sees_it(monkeypatch):
    def never(*_args, **_kwargs):
        raise AssertionError("a caller's pattern reached Python's re")

    for name in ("compile", "search", "match", "fullmatch"):
        monkeypatch.setattr(re, name, never)
    schema = read_caller_schema({"properties": {"name": {"pattern": EVIL}}})
    mismatch_of = schema.mismatch_of({"name": "a" * 4_000 + "!"})
    assert mismatch_of is not None
    assert mismatch_of.pointer == "/name"
    assert mismatch_of.reason.endswith(f'does not match "{EVIL}"')


def test_outputs_too_large_for_a_costly_schema_are_not_looked_at():
    schema = read_caller_schema({"items": {"allOf": [{"type": "number"}] * 1000}})
    assert schema.mismatch_of([0] * 1000) is None
    mismatch_of = schema.mismatch_of([0] * (MOST_WORK // 1000))
    assert mismatch_of is not None
    assert mismatch_of.too_much
    assert "1002" in mismatch_of.reason


def test_a_pattern_counts_by_the_text_there_is_for_it_and_not_by_the_numbers():
    schema = read_caller_schema({"items": {"pattern": "^a"}})
    most = MOST_WORK // PATTERN_COST
    assert schema.mismatch_of([123_456] * most) is None
    assert schema.mismatch_of(["a" * (most - 100)]) is None
    for outputs in (["a" * most], ["é" * (most // 2)], [{"a" * most: 1}]):
        mismatch_of = schema.mismatch_of(outputs)
        assert mismatch_of is not None
        assert mismatch_of.too_much
        assert "1 patterns" in mismatch_of.reason


def test_nothing_is_fetched_even_if_the_compiler_should_ask():
    with pytest.raises(ValueError, match="nothing is fetched"):
        schemas._fetch_nothing("http://elsewhere/")


def test_an_operators_schema_is_explained_in_the_same_words():
    schema = {"properties": {"n": {"minimum": 1}}}
    assert explain(schema, {"n": 0}) == SchemaMismatch("/n", "0 is less than the minimum of 1")


# --- whatever it is ---------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["object", "number"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["a", "b", "$ref"])
PATTERNS = st.sampled_from(["^a", "a{2,5}$", "(a|b)*c", r"\d+", EVIL, LOOKS_AHEAD, "[", r"(a)\1", ""])


def keywords(inner):
    """Schemas of which most keywords have a value of their kind, and some have anything at all."""
    several, by_name = st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    bound, count = st.integers(-3, 3) | st.floats(), st.integers(0, 3) | st.just(1 << 63)
    kinds = {
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), bound),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxProperties"), count),
        **dict.fromkeys(("items", "contains", "not", "if", "then", "else", "additionalProperties"), inner),
        **dict.fromkeys(("propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"), inner),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("properties", "dependentSchemas", "$defs", "definitions"), by_name),
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        "pattern": PATTERNS,
        "type": st.sampled_from(["object", "array", "string", "number", ["string", "null"]]),
        "enum": st.lists(JSON, min_size=1, max_size=3),
        "const": JSON,
        "required": st.lists(NAMES, max_size=2, unique=True),
        "uniqueItems": st.booleans(),
        "$ref": st.sampled_from(["#/$defs/a", "#/definitions/b", "#", "#/$defs/a/b", "#/%24defs/a", "x", "", "#a"]),
        "$id": st.just("x"),
        "dependencies": by_name,
    }
    one = st.sampled_from(list(kinds)).flatmap(lambda name: st.tuples(st.just(name), kinds[name]))
    other = st.tuples(st.sampled_from(list(kinds)), JSON)
    return st.lists(one | one | one | one | one | one | other, max_size=3).map(dict)


def _is_told(value):
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


SCHEMAS = st.recursive(st.booleans(), keywords, max_leaves=6)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=SCHEMAS.filter(lambda one: isinstance(one, dict)), value=JSON.filter(_is_told))
def test_whatever_is_sent_as_a_schema_is_run_or_refused_and_nothing_else(schema, value):
    try:
        compiled = read_caller_schema(schema)
    except SchemaRefused as refusal:
        event("refused")
        said = (refusal.reason, refusal.cure)
    else:
        mismatch_of = compiled.mismatch_of(orjson.loads(orjson.dumps(value)))
        event("fits" if mismatch_of is None else "does not fit")
        said = ("fits",) if mismatch_of is None else (mismatch_of.reason,)
        assert compiled.cost <= MOST_COST
    assert all(said)
