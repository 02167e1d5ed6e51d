"""What a caller is told of inputs that do not fit: the place, and what belongs there."""

from __future__ import annotations

import pytest

from hearth.hcp.inputs import describe, fill_defaults, what_is_wrong

DESCRIBED = [
    ({"type": "integer", "minimum": 1, "maximum": 1000}, "an integer from 1 to 1000"),
    ({"type": "number", "exclusiveMinimum": 0}, "a number above 0"),
    ({"type": "number", "exclusiveMaximum": 0, "minimum": -5}, "a number of at least -5 and below 0"),
    ({"type": "number", "maximum": 3, "multipleOf": 0.5}, "a number of at most 3 and in multiples of 0.5"),
    (
        {"type": "string", "minLength": 1, "maxLength": 8},
        "a string of 1 to 8 characters",
    ),
    ({"type": "string", "pattern": "^[a-z]+$"}, 'a string that fits the pattern "^[a-z]+$"'),
    ({"type": "array", "minItems": 1, "maxItems": 4}, "an array of 1 to 4 items"),
    ({"type": "array", "minItems": 1}, "an array of at least 1 item"),
    (
        {"type": "string", "maxLength": 5, "pattern": "^a"},
        'a string that fits the pattern "^a" and of at most 5 characters',
    ),
    ({"type": "boolean"}, "true or false"),
    ({"type": "object"}, "an object"),
    ({"type": ["string", "null"]}, "a string or null"),
    ({"enum": ["a", 5, None]}, 'one of "a", 5, null'),
    ({"const": "x"}, '"x"'),
    ({"type": "integer", "description": "how many"}, "an integer (how many)"),
    ({"description": "x" * 500}, "a value"),
    ({"enum": ["x" * 500]}, f'one of "{"x" * 79}…'),
    (True, "a value that matches the capability's input_schema"),
]


@pytest.mark.parametrize(("schema", "words"), DESCRIBED, ids=lambda value: str(value)[:30])
def test_a_schema_is_described_in_words(schema, words):
    assert describe(schema) == words


@pytest.mark.parametrize(
    ("schema", "inputs", "filled"),
    [
        ({"properties": {"a": {"default": 1}, "b": {"default": None}}}, {}, {"a": 1, "b": None}),
        ({"properties": {"a": {"default": 1}}}, {"a": 2}, {"a": 2}),
        ({"properties": {"a": {"default": 1}}}, {"a": None}, {"a": None}),
        ({"properties": {"a": True, "b": {"type": "string"}}}, {"c": 1}, {"c": 1}),
        ({"properties": {"a": {"properties": {"b": {"default": 1}}}}}, {"a": {}}, {"a": {}}),
        ({}, {"a": 1}, {"a": 1}),
    ],
)
def test_defaults_are_filled_in_at_the_top_only_where_nothing_was_said(schema, inputs, filled):
    assert fill_defaults(schema, inputs) == filled


CURES = [
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "/payload/inputs", "Give /payload/inputs"),
    ({"patternProperties": {"^n": {"type": "integer"}}}, {"n1": "x"}, "/payload/inputs/n1", "Give /payload/inputs/n1"),
    ({"properties": {"a": {"items": {"type": "integer"}}}}, {"a": [1, "x"]}, "/payload/inputs/a/1", "an integer"),
    ({"properties": {"a": {"$ref": "#/$defs/n"}}}, {"a": 1}, "/payload/inputs/a", "an integer of at least 5"),
    ({"properties": {"a~b/c": {"type": "null"}}}, {"a~b/c": 1}, "/payload/inputs/a~0b~1c", "null"),
    ({"properties": {"a": {"allOf": [{"items": {"type": "null"}}]}}}, {"a": [[1]]}, "/payload/inputs/a/0", "Give"),
    ({"anyOf": [{"properties": {"a": {"items": False}}}]}, {"a": [1]}, "/payload/inputs", "Give"),
    (
        {"properties": {"a": {"patternProperties": {"^b": {"properties": {"c": {"type": "null"}}}}}}},
        {"a": {"b": {"c": 1}}},
        "/payload/inputs/a/b/c", "Give /payload/inputs/a/b/c a value",
    ),
    ({"additionalProperties": False}, {"zzz": 1}, "/payload/inputs", 'Remove "zzz" from /payload/inputs'),
    ({"required": ["a"]}, {}, "/payload/inputs", "Add /payload/inputs/a: a value that"),
    (
        {"required": ["wires"], "additionalProperties": False, "properties": {"wires": {"type": "array"}}}, {"n": 1},
        "/payload/inputs", 'Remove "n" from /payload/inputs. Add /payload/inputs/wires: an array; there are wires',
    ),
    ({"minProperties": 1}, {}, "/payload/inputs", "Give /payload/inputs a value"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "inputs", "place", "cure"), CURES, ids=lambda value: str(value)[:30])
def test_the_place_and_the_cure_are_named_wherever_the_fault_lies(schema, inputs, place, cure):
    reason, suggestion = what_is_wrong({**schema, "$defs": {"n": {"type": "integer", "minimum": 5}}}, inputs)
    assert reason.startswith(f"{place}: ")
    assert cure in suggestion


def test_an_unexplained_refusal_points_at_the_inputs():
    reason, suggestion = what_is_wrong({}, {"a": 1})
    assert reason == "/payload/inputs: the value does not fit the schema"
    assert suggestion


def test_half_a_million_wrong_items_are_explained_by_the_first():
    reason, suggestion = what_is_wrong({"properties": {"a": {"items": {"type": "string"}}}}, {"a": [1] * 500_000})
    assert reason == '/payload/inputs/a/0: 1 is not of type "string"'
    assert suggestion == "Give /payload/inputs/a/0 a string"


def test_of_very_many_unknown_members_the_first_are_compared():
    schema = {"properties": {"sensor": {}}, "additionalProperties": False}
    many = {f"zzz{number}": 1 for number in range(100_000)}
    assert what_is_wrong(schema, {**many, "sensr": 1})[1].startswith('Remove "zzz0" from /payload/inputs')
    assert "Write 'sensor'" in what_is_wrong(schema, {"zzz": 1, "sensr": 1, **many})[1]
