"""Annotations as JSON Schema, JSON as their values, and values as JSON again."""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Optional, Union

import attrs
import pytest
from annotated_types import Ge, Gt, Interval, Le, Len, Lt, MaxLen, MinLen, MultipleOf, Predicate
from hypothesis import given, strategies as st

from hearth.annotations import NotJson, evaluated, object_schema, schema_of, structurer, unstructure, wire_name
from hearth.hcp.inputs import Line
from hearth.schema import Validator, check_schema

if TYPE_CHECKING:
    from collections import OrderedDict


@attrs.frozen
class Wire:
    out: Line
    in_: Annotated[Line, "what should follow"]
    settle_s: Annotated[float, Ge(0)] = 0.5


@attrs.define
class Harness:
    wires: list[Wire]
    notes: dict[str, str] = attrs.field(factory=dict)
    _hidden: int = 3
    computed: int = attrs.field(init=False, default=7)


@attrs.frozen
class Node:
    inner: list[Node]


@attrs.frozen
class Unknown:
    things: OrderedDict[str, int]


@attrs.frozen
class Unsayable:
    good: int
    bad: bytes
    worse: list[set[int]]


@attrs.frozen
class Untyped:
    x = attrs.field()


@attrs.frozen
class Even:
    n: int = attrs.field()

    @n.validator
    def _even(self, _attribute: Any, value: int) -> None:
        if value % 2:
            raise ValueError(f"{value} is odd")


@attrs.frozen
class Odd:
    n: int


@dataclass
class Plain:
    x: int


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 0


Metres = NewType("Metres", float)
Kilometres = NewType("Kilometres", Metres)
NUMBER, TEXT = {"type": "number"}, {"type": "string"}
WIRE = {
    "type": "object",
    "properties": {
        "out": {**schema_of(Line)},
        "in": {**schema_of(Line), "description": "what should follow"},
        "settle_s": {"type": "number", "minimum": 0, "default": 0.5},
    },
    "required": ["out", "in"],
    "additionalProperties": False,
}


def name_of(value):
    """What a case is called: the same in every process."""
    return str(value).partition(" at 0x")[0][:40]


SCHEMAS = [
    (bool, {"type": "boolean"}),
    (int, {"type": "integer"}),
    (float, NUMBER),
    (str, TEXT),
    (None, {"type": "null"}),
    (type(None), {"type": "null"}),
    (Any, {}),
    (datetime, {"type": "string", "format": "date-time"}),
    (list, {"type": "array"}),
    (dict, {"type": "object"}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
    (dict[str, list[float]], {"type": "object", "additionalProperties": {"type": "array", "items": NUMBER}}),
    (Literal["a", 5, True] | None, {"enum": ["a", 5, True, None]}),
    (Metres, NUMBER),
    (list[Kilometres], {"type": "array", "items": NUMBER}),
    (int | None, {"type": ["integer", "null"]}),
    (Optional[int], {"type": ["integer", "null"]}),  # noqa: UP045 - people write it
    (Union[int, str], {"type": ["integer", "string"]}),  # noqa: UP007 - people write it
    (Literal["a"] | None, {"enum": ["a", None]}),
    (list[int] | None, {"type": ["array", "null"], "items": {"type": "integer"}}),
    (list[int] | str, {"anyOf": [{"type": "array", "items": {"type": "integer"}}, TEXT]}),
    (Any | None, {"anyOf": [{}, {"type": "null"}]}),
    (Annotated[float, Gt(0), Le(10), "how much"],
     {"type": "number", "exclusiveMinimum": 0, "maximum": 10, "description": "how much"}),
    (Annotated[int, Ge(1), Lt(9), MultipleOf(2)],
     {"type": "integer", "minimum": 1, "exclusiveMaximum": 9, "multipleOf": 2}),
    (Annotated[float, Interval(ge=1, lt=2)], {"type": "number", "minimum": 1, "exclusiveMaximum": 2}),
    (Annotated[int | None, Ge(1)], {"type": ["integer", "null"], "minimum": 1}),
    (Annotated[str, Len(1, 5)], {"type": "string", "minLength": 1, "maxLength": 5}),
    (Annotated[str, Len(3)], {"type": "string", "minLength": 3}),
    (Annotated[list[int], MinLen(2)], {"type": "array", "items": {"type": "integer"}, "minItems": 2}),
    (Annotated[dict[str, Any], MaxLen(2)], {"type": "object", "additionalProperties": {}, "maxProperties": 2}),
    (Annotated[str | None, MaxLen(2)], {"type": ["string", "null"], "maxLength": 2}),
    (Annotated[list[str], {"uniqueItems": True}, "names"],
     {"type": "array", "items": TEXT, "uniqueItems": True, "description": "names"}),
    (Annotated[Annotated[str, "inner"], "outer"], {"type": "string", "description": "outer"}),
    (Wire, WIRE),
    (Wire | None, {**WIRE, "type": ["object", "null"]}),
    (Harness, {
        "type": "object",
        "properties": {
            "wires": {"type": "array", "items": WIRE},
            "notes": {"type": "object", "additionalProperties": TEXT},
            "hidden": {"type": "integer", "default": 3},
        },
        "required": ["wires"],
        "additionalProperties": False,
    }),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "schema"), SCHEMAS, ids=name_of)
def test_an_annotation_has_its_schema(annotation, schema):
    assert schema_of(annotation) == schema
    check_schema(schema_of(annotation), "it", by_authority=True)


def test_two_schemas_of_one_annotation_share_nothing():
    schema_of(Wire)["properties"]["out"]["minimum"] = 5
    assert schema_of(Wire) == WIRE


WRONG = [
    (bytes, "it: bytes has no JSON form; write str, and say"),
    (set[int], 'it: set has no JSON form; write Annotated[list[T], {"uniqueItems": True}]'),
    (tuple[int, str], "it: tuple has no JSON form; write tuple[T, ...], or an attrs class"),
    (timedelta, "it: timedelta has no JSON form; write float, for seconds"),
    (Path, "it: Path has no JSON form; write str"),
    (Colour, "it: Colour has no JSON form; write Literal[...]"),
    (Plain, "it: Plain has no JSON form; use bool, int,"),
    (Decimal, "it: Decimal has no JSON form; use bool, int,"),
    (object(), "has no JSON form; use bool, int,"),
    (Mapping[str, int], "it: Mapping has no JSON form; use bool, int,"),
    (dict[int, str], "it: names of members are strings in JSON; write dict[str, T]"),
    (Literal[Colour.RED], "it: a Literal of JSON has strings, integers, True, False and None only"),
    (Literal[Level.LOW], "it: a Literal of JSON has"),
    (list[bytes], "it[]: bytes has no JSON form"),
    (dict[str, bytes], "it.*: bytes has no JSON form"),
    (int | bytes, "it: bytes has no JSON form"),
    (Annotated[str, Ge(1)], "it: Ge(ge=1) bounds numbers, and this is string; use MinLen or MaxLen"),
    (Annotated[datetime, Ge(datetime(2025, 1, 1, tzinfo=UTC))], "expected a number; other types have no bounds"),
    (Annotated[float, Le(math.inf)], "it: Le(le=inf): expected a number"),
    (Annotated[float, Ge(True)], "it: Ge(ge=True): expected a number"),
    (Annotated[int, MinLen(1)], "it: MinLen(min_length=1) says nothing here; use Ge, Gt,"),
    (Annotated[int, Predicate(bool)], "says nothing here; use Ge, Gt,"),
    (Annotated[int, 5], "it: 5 says nothing here"),
    (Node, "it.inner[]: Node contains itself; write dict for its inner parts"),
    (Untyped, "it.x: has no annotation; write its type, such as int"),
    (Unknown, "it: Unknown cannot be evaluated: name 'OrderedDict' is not defined; define it at the top"),
]


@pytest.mark.parametrize(("annotation", "said"), WRONG, ids=name_of)
def test_what_json_cannot_say_is_an_error_with_place_and_cure(annotation, said):
    with pytest.raises(NotJson) as caught:
        schema_of(annotation, "it")
    (fault,) = caught.value.faults
    assert said in str(fault)


def test_everything_that_is_wrong_in_a_class_is_told_at_once():
    with pytest.raises(NotJson) as caught:
        schema_of(Unsayable, "parameters.it")
    assert [fault.key for fault in caught.value.faults] == ["parameters.it.bad", "parameters.it.worse[]"]


def test_the_schema_of_parameters_has_their_defaults_as_json():
    members = [("in_", int, attrs.NOTHING), ("wires", list[Wire], [Wire(1, "b")]), ("limit", float | None, None)]
    schema = object_schema(members)
    assert schema["required"] == ["in"]
    assert schema["properties"]["wires"]["default"] == [{"out": 1, "in": "b", "settle_s": 0.5}]
    assert schema["properties"]["limit"] == {"type": ["number", "null"], "default": None}
    with pytest.raises(NotJson, match=r"parameters\.x\.default: set has no JSON form"):
        object_schema([("x", Any, {1})], "parameters")


# --- strings ----------------------------------------------------------------------------------------------------------


def test_strings_are_looked_up_in_the_names_of_the_module():
    assert evaluated("list[Wire] | None", globals(), "it") == list[Wire] | None
    assert evaluated(list["Wire"], globals(), "it") == list[Wire]
    assert evaluated("Annotated[int, 'x']", globals(), "it") == Annotated[int, "x"]
    assert evaluated(None, {}, "it") is type(None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("OrderedDict[str, int]", "name 'OrderedDict' is not defined; define it at the top of the module"),
        ("list[", "cannot be evaluated: "),
        ("1 / 0", "division by zero"),
        pytest.param(
            "Annotated[list[int], {'uniqueItems': True}] | None",
            "write Annotated outermost: Annotated[T | None, {...}]",
            marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="from Python 3.13 on this can be evaluated"),
        ),
    ],
)
def test_a_string_that_cannot_be_evaluated_is_an_error_with_the_cure(text, said):
    with pytest.raises(NotJson) as caught:
        evaluated(text, globals(), "parameters.it")
    assert str(caught.value).startswith("parameters.it: cannot be evaluated: ")
    assert said in str(caught.value)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="before Python 3.13 this cannot be evaluated")
def test_annotated_within_a_union_applies_to_its_member():
    schema = schema_of(evaluated("Annotated[list[int], {'uniqueItems': True}] | None", globals(), "it"))
    assert schema == {"type": ["array", "null"], "items": {"type": "integer"}, "uniqueItems": True}


# --- values -----------------------------------------------------------------------------------------------------------

NOON = datetime(2025, 1, 15, 12, tzinfo=UTC)
VALUES = [
    (int, 4, 4),
    (int, 4.0, 4),
    (float, 4, 4.0),
    (bool, True, True),
    (int | float, 4.5, 4.5),
    (int | float, 4, 4),
    (int | str, "4", "4"),
    (int | str, 4.0, 4),
    (float | None, None, None),
    (float | None, 3, 3.0),
    (Literal["a", "b"], "a", "a"),
    (Any, {"a": [1]}, {"a": [1]}),
    (datetime | Literal["now"], "now", "now"),
    (datetime | Literal["now"], "2025-01-15T12:00:00Z", NOON),
    (Even | Odd, {"n": 3}, Odd(3)),
    (list, [1], [1]),
    (list[float], [1, 2], [1.0, 2.0]),
    (tuple[int, ...], [1.0, 2], (1, 2)),
    (dict[str, tuple[int, ...]], {"a": [1]}, {"a": (1,)}),
    (Annotated[int, Ge(0), {"x": []}], 1.0, 1),
    (Wire, {"out": 17.0, "in": "B"}, Wire(17, "B", 0.5)),
    (list[Wire] | Wire, {"out": 1, "in": 2, "settle_s": 1}, Wire(1, 2, 1.0)),
    (list[Wire] | Wire, [{"out": 1, "in": 2}], [Wire(1, 2)]),
    (Harness, {"wires": [{"out": 1, "in": 2}], "hidden": 9}, Harness([Wire(1, 2)], hidden=9)),
    (Kilometres, 3, 3.0),
]


@pytest.mark.parametrize(("annotation", "document", "value"), VALUES, ids=name_of)
def test_json_becomes_a_value_of_its_annotation(annotation, document, value):
    made = structurer(annotation)(document)
    assert made == value
    assert type(made) is type(value)


def test_a_value_that_no_type_of_a_union_takes_is_refused_as_by_the_first():
    with pytest.raises(ValueError, match="3 is odd"):
        structurer(Even | None)({"n": 3})


@pytest.mark.parametrize("annotation", [Any, dict, dict[str, Any], dict | None])
def test_a_value_shares_nothing_with_the_json_that_it_is_made_of(annotation):
    document = {"a": [1]}
    structurer(annotation)(document)["a"].append(2)
    assert document == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "instant"),
    [("2025-01-15T12:00:00Z", NOON), ("2025-01-15T14:00:00+02:00", NOON), ("2025-01-15T12:00:00.000+00:00", NOON)],
)
def test_a_date_and_time_is_in_utc(text, instant):
    made = structurer(datetime | None)(text)
    assert (made, made.tzinfo) == (instant, UTC)


@pytest.mark.parametrize("text", ["2025-01-15T12:00:00", "2025-02-30T12:00:00Z", "noon", ""])
def test_a_date_without_a_zone_or_that_there_is_not_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the words of most are Python's
        structurer(datetime)(text)


JSON = [
    (None, None),
    (True, True),
    (5, 5),
    (0.5, 0.5),
    ("a", "a"),
    ((1, [2, (3,)]), [1, [2, [3]]]),
    ({"a": (1,), "b": None}, {"a": [1], "b": None}),
    (NOON, "2025-01-15T12:00:00.000Z"),
    (NOON.astimezone(timezone(timedelta(hours=2))), "2025-01-15T12:00:00.000Z"),
    (Wire(1, "B"), {"out": 1, "in": "B", "settle_s": 0.5}),
    (Harness([Wire(1, 2)], {"a": "b"}), {
        "wires": [{"out": 1, "in": 2, "settle_s": 0.5}], "notes": {"a": "b"}, "hidden": 3,
    }),
]  # fmt: skip


@pytest.mark.parametrize(("value", "document"), JSON, ids=name_of)
def test_a_value_becomes_json(value, document):
    assert unstructure(value) == document


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, math.nan]}, "outputs.a[1]: nan has no JSON form; use None for a number that there is not"),
        (math.inf, "outputs: inf has no JSON form"),
        ([{1}], 'outputs[0]: set has no JSON form; write Annotated[list[T], {"uniqueItems": True}]'),
        (b"a", "outputs: bytes has no JSON form; write str"),
        ({5: 1}, "outputs: 5 is no name of a member; make it a str"),
        ({None: 1}, "outputs: None is no name of a member; make it a str"),
        (Harness([Wire(1, b"x")]), "outputs.wires[0].in_: bytes has no JSON form"),
        (datetime(2025, 1, 1), "outputs: 2025-01-01 00:00:00 has no time zone; give it datetime.UTC"),  # noqa: DTZ001
        (Colour.RED, "outputs: Colour has no JSON form; write Literal"),
        (object(), "outputs: object has no JSON form"),
    ],
)
def test_a_value_that_json_cannot_say_is_an_error_with_its_place(value, said):
    with pytest.raises(NotJson) as caught:
        unstructure(value, "outputs")
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(("name", "wire"), [("in_", "in"), ("samples", "samples"), ("a_b", "a_b"), ("x__", "x_")])
def test_one_trailing_underscore_is_dropped(name, wire):
    assert wire_name(name) == wire


LINES = st.integers(0, 1023) | st.text(min_size=1, max_size=5)
WIRES = st.builds(Wire, out=LINES, in_=LINES, settle_s=st.floats(0, 9))
HARNESSES = st.builds(
    Harness,
    st.lists(WIRES, max_size=3),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    hidden=st.integers(-5, 5),
)


@pytest.mark.slow
@given(harness=HARNESSES)
def test_a_value_fits_its_schema_as_json_and_comes_back(harness):
    document = unstructure(harness)
    assert Validator(schema_of(Harness)).accepts(document)
    assert structurer(Harness)(document) == harness
