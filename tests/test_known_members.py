"""Where an object has members that nobody understands: by a table, by a JSON Schema, and in bounded work."""

from __future__ import annotations

import pytest

from hearth._util.text import MOST_COMPARED, nearest, suggestions
from hearth.protocol.known import LONGEST_NAME, MOST_NAMED, KnownMembers, known_by, refusal

OPEN = {"properties": {"a": {}}, "additionalProperties": True}


def found(schema, value):
    known = known_by(schema)
    return None if known is None else [one.pointer for one in known.unknown_members(value)]


@pytest.mark.parametrize(
    ("schema", "value", "unknown_members"),
    [
        ({"properties": {"a": {}}}, {"a": {"anything": 1}}, []),
        ({"properties": {"a": {}}}, {"b": 1, "a": 2, "c": 3}, ["/b", "/c"]),
        ({"properties": {}}, {"a": 1}, ["/a"]),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, ["/b"]),
        ({"properties": {"a": {}}}, ["no object"], []),
        ({"properties": {"a~": {"properties": {"b": {}}}}}, {"a~": {"c/d": 1}}, ["/a~0/c~1d"]),
        ({"properties": {"a": {"items": {"properties": {"b": {}}}}}}, {"a": [{"b": 1}, {}, {"x": 1}]}, ["/a/2/x"]),
        ({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, {"a": 1, "b": 1, "c": 1}, ["/c"]),
        ({"properties": {"a": {}}, "if": {}, "then": {"properties": {"b": {}}}}, {"b": 1, "c": 1}, ["/c"]),
        ({"properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {"b": {}}}}}, {"b": 1, "c": 1}, ["/c"]),
        (
            {"properties": {"a": {"properties": {"b": {}}}}, "allOf": [{"properties": {"a": {}}}]},
            {"a": {"x": 1}},
            ["/a/x"],
        ),
        (
            {
                "properties": {"a": {"properties": {"b": {}}}},
                "anyOf": [{"properties": {"a": {"properties": {"c": {}}}}}],
            },
            {"a": {"x": 1}},
            [],
        ),
        ({"type": "object"}, {"a": 1}, None),
        (True, {"a": 1}, None),
        (OPEN, {"b": 1}, None),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, {"xa": 1}, None),
        ({"properties": {"a": {}}, "anyOf": [OPEN]}, {"b": 1}, None),
        ({"properties": {"a": {}}, "$ref": "#/$defs/b"}, {"b": 1}, None),
    ],
)
def test_a_member_that_no_part_of_a_schema_names_is_unknown_and_no_other(schema, value, unknown_members):
    assert found(schema, value) == unknown_members


def test_of_very_many_unknown_members_the_first_are_named_and_no_more_are_looked_for():
    value = {"a": 1, **{f"x{number}": 1 for number in range(20_000)}}
    looked_at = []

    class Names(frozenset):
        def __contains__(self, name):
            looked_at.append(name)
            return super().__contains__(name)

    named = [one.pointer for one in KnownMembers(Names("a")).unknown_members(value)]
    assert named == [f"/x{number}" for number in range(MOST_NAMED)]
    assert len(looked_at) <= MOST_NAMED + 1


def test_a_name_of_any_length_is_repeated_as_its_beginning_and_refused_at_once():
    [one] = unknown_members = KnownMembers(frozenset(("line", "value"))).unknown_members({"lin" + "n" * 1_000_000: 1})
    assert one.pointer == "/lin" + "n" * (LONGEST_NAME - 3) + "…"
    refused = refusal(unknown_members)
    assert refused.data["reason"] == "unknown key; expected line, value"
    assert len(refused.message) < 200


# --- suggestions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gpio.sett", "gpio.set"),
        ("gpio_set", "gpio.set"),
        ("GPIO.GET", "gpio.get"),
        ("i2c.raed", "i2c.read"),
        ("uart.send", "uart.read"),
        ("LEd", "LED"),
        ("qqqq", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_suggested_in_any_case(name, near):
    known = ["gpio.get", "gpio.set", "i2c.read", "i2c.write", "uart.read", "LED"]
    assert nearest(name, known) == ([] if near is None else [near])
    assert suggestions(name, known)[1].get("suggestions", [None])[0] == near


def test_the_nearest_of_a_thousand_like_names_is_found_and_few_are_compared(monkeypatch):
    import difflib

    compared = []

    class Counting(difflib.SequenceMatcher):
        def set_seq1(self, a):
            compared.extend([a] if a else [])  # a matcher is made with ""
            super().set_seq1(a)

    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    assert nearest("GPOI917", [f"GPIO{number}" for number in range(1024)])[0] == "GPIO917"
    assert len(compared) == MOST_COMPARED
    compared.clear()
    assert nearest("GPIO" * 1000, [f"GPIO{number}" for number in range(1024)]) == []
    assert nearest("GPIO", ["GPIO" * 1000]) == []
    assert not compared


def test_only_a_name_has_near_names():
    assert suggestions(17, ["17"]) == ("", {})
    assert suggestions("line", ["lines"]) == ("; did you mean lines?", {"suggestions": ["lines"]})
