"""Input schemas that every client takes, and arguments of models that do not quite fit them."""

from __future__ import annotations

import re

import pytest
from conformance.pages import reference_pages
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

from hearth.drivers.boards.board import open_board
from hearth.drivers.boards.profile import load_profile
from hearth.mcp.arguments import MOST_FAULTS, Arguments, usage
from hearth.mcp.card_tools import CARD_DEFINITIONS
from hearth.mcp.plan_tool import PLAN_DEFINITION
from hearth.mcp.schemas import flat
from hearth.mcp.search import near_tools, search
from hearth.mcp.tools import ToolView

VIEW = ToolView([tool.to_wire() for tool in reference_pages.registry().values()])
OFFERED = {shown["name"]: shown["inputSchema"] for shown in (*VIEW.definitions(), PLAN_DEFINITION, *CARD_DEFINITIONS)}
ROOT = {"type", "properties", "required", "additionalProperties"}
LEVEL = {"type": "integer", "enum": [0, 1]}

VENDORS = {
    "branches": {
        "allOf": [
            {"if": {"properties": {"wide": {"const": True}}}, "then": {"properties": {"reg": {"maximum": 65535}}}},
            {"properties": {"addr": {"type": "integer"}}, "required": ["addr"]},
        ],
        "properties": {"wide": {"type": "boolean"}},
    },
    "alternatives": {
        "oneOf": [
            {"properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text", "n"]},
            {"properties": {"hex": {"type": "string"}, "n": {"type": "string"}}, "required": ["hex", "n"]},
        ]
    },
    "reference": {
        "$ref": "#/$defs/move",
        "$defs": {
            "move": {"type": "object", "properties": {"to": {"$ref": "#/$defs/place"}}, "required": ["to"]},
            "place": {"type": "number", "minimum": 0},
        },
    },
    "recursive": {
        "$defs": {"tree": {"type": "object", "properties": {"under": {"$ref": "#/$defs/tree"}}}},
        "properties": {"tree": {"$ref": "#/$defs/tree"}},
    },
    "look-ahead": {
        "properties": {
            "name": {"type": "string", "pattern": "^(?!root)[a-z]+$"},
            "map": {"type": "object", "patternProperties": {"^(?=a)": {}}, "additionalProperties": False},
        }
    },
    "dependent": {"properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}}}},
    "not": {"properties": {"a": {"type": "integer"}}, "not": {"required": ["a"]}},
}
"""Root schemas as vendors write them."""


def nested(schema):
    """Yield every object within a schema."""
    if isinstance(schema, dict):
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from nested(inner)


@pytest.mark.parametrize("name", OFFERED)
def test_the_input_schema_of_every_tool_is_flat_at_its_root_and_takes_no_other_names(name) -> None:
    assert set(OFFERED[name]) == ROOT
    assert OFFERED[name]["type"] == "object"
    assert OFFERED[name]["additionalProperties"] is False


@pytest.mark.parametrize("schema", [*OFFERED.values(), *(flat(schema) for schema in VENDORS.values())])
def test_no_input_schema_has_a_reference_or_a_look_ahead(schema) -> None:
    assert set(schema) == ROOT
    Draft202012Validator.check_schema(schema)
    for part in nested(schema):
        assert "$ref" not in part
        assert not re.search(r"\(\?[=!<]", str(part.get("pattern", "")))
        assert not re.search(r"\(\?[=!<]", str(part.get("patternProperties", "")))


def test_a_vendors_branches_become_properties() -> None:
    branches = flat(VENDORS["branches"])
    assert list(branches["properties"]) == ["wide", "reg", "addr"]
    assert branches["required"] == ["addr"]
    alternatives = flat(VENDORS["alternatives"])
    assert list(alternatives["properties"]) == ["text", "n", "hex"]
    assert alternatives["properties"]["n"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert alternatives["required"] == ["n"]
    assert flat(VENDORS["reference"])["properties"] == {"to": {"type": "number", "minimum": 0}}
    assert flat(VENDORS["dependent"])["properties"]["b"] == {"type": "string"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reference", "recursive", "look-ahead", "not"])
@given(
    value=st.dictionaries(
        st.sampled_from(["wide", "addr", "reg", "text", "hex", "n", "to", "tree", "name", "map", "a", "b"]),
        st.one_of(st.integers(-3, 70000), st.booleans(), st.sampled_from(["a", "root", "0x1"]), st.just({})),
        max_size=4,
    )
)
def test_without_branches_a_flat_schema_refuses_nothing_that_the_vendors_own_accepts(name, value) -> None:
    schema = flat(VENDORS[name])
    if set(value) <= set(schema["properties"]) and Draft202012Validator(VENDORS[name]).is_valid(value):
        assert Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("schema", "further"),
    [
        ({"properties": {"a": {}}}, False),
        ({"properties": {}}, False),
        ({"type": "object"}, True),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "number"}}, {"type": "number"}),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, True),
    ],
)
def test_further_names_are_taken_only_where_the_tool_says_so_or_names_none(schema, further) -> None:
    assert flat(schema)["additionalProperties"] == further


# --- what is taken -----------------------------------------------------------------------------------------------


def tool(**properties):
    required = [name for name in properties if not name.endswith("_")]
    return Arguments(flat({"properties": properties, "required": required}))


@pytest.mark.parametrize(
    ("schema", "given", "taken"),
    [
        ({"type": "integer"}, "17", 17),
        ({"type": "integer"}, " -4 ", -4),
        ({"type": "integer"}, "0x48", 0x48),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "integer"}, "3.0", 3),
        ({"type": "boolean"}, "True", True),
        (LEVEL, "1", 1),
        (LEVEL, True, 1),
        ({"enum": [8, 16]}, "16", 16),
        ({"type": "array", "items": {"type": "integer"}}, '["1", 2]', [1, 2]),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, '{"n": "5"}', {"n": 5}),
        ({"type": "array", "items": {"type": "integer"}}, ["1", "2"], [1, 2]),
    ],
)
def test_a_value_with_one_meaning_is_taken_in_the_type_that_is_wanted(schema, given, taken) -> None:
    found = tool(x=schema).check({"x": given})
    assert found.faults == ()
    assert found.arguments == {"x": taken}
    assert type(found.arguments["x"]) is type(taken) or taken == 3


@pytest.mark.parametrize(
    ("schema", "given"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^0x"}]}, "48"),
        ({"type": "integer"}, "seventeen"),
        ({"type": "integer"}, "1_000"),
        ({"type": "integer"}, 1.5),
        ({"type": "string"}, 17),
        (LEVEL, "high"),
        # No line, address or time is meant by a flag; a client that writes one has mixed up its arguments.
        ({"type": "integer"}, True),
        ({"type": "integer", "minimum": 1, "maximum": 60_000}, True),
        ({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1023}, {"type": "string"}]}, True),
        ({"type": "number"}, False),
        ({"enum": [1, 4]}, True),
        ({"type": "array"}, "[1"),
    ],
)
def test_a_value_with_no_meaning_or_two_is_refused(schema, given) -> None:
    found = tool(x=schema).check({"x": given})
    assert [fault.path for fault in found.faults] == ["/x"]
    assert found.arguments == {"x": given}


HABIT = {"anyOf": [{"type": "integer", "minimum": 8, "maximum": 119}, {"type": "string", "pattern": "^0x[0-9a-f]{2}$"}]}


@pytest.mark.parametrize(
    ("schema", "given", "said", "corrected"),
    [
        (HABIT, "48", 'did you mean 48 (decimal: 0x30) or "0x48" (hexadecimal: 72)?', None),
        (HABIT, " 77 ", 'did you mean 77 (decimal: 0x4d) or "0x77" (hexadecimal: 119)?', None),
        (HABIT, "99", 'did you mean 99 (decimal: 0x63) or "0x99" (hexadecimal: 153)?', None),
        (HABIT, "05", 'did you mean 5 (decimal: 0x5, which is refused) or "0x05" (hexadecimal: 5)?', None),
        # Only one of the two fits, and keeps the number.
        (HABIT, "112", "did you mean 112?", 112),
        # No decimal number is written like this.
        (HABIT, "4a", 'did you mean "0x4a"?', "0x4a"),
    ],
)
def test_the_cure_of_a_number_never_makes_another_number_of_it(schema, given, said, corrected) -> None:
    """Where the habit is hexadecimal (i2cdetect, candump) both readings are offered, and none is taken."""
    found = tool(x=schema).check({"x": given})
    assert said in found.faults[0].reason
    assert found.corrected == (None if corrected is None else {"x": corrected})


@pytest.mark.parametrize(
    ("schema", "given", "taken"),
    [
        ({"type": "array", "items": {"type": "integer"}}, "17, 27", [17, 27]),
        ({"type": "array", "items": {"type": "string"}}, "LED, DOOR", ["LED", "DOOR"]),
        ({"type": "array", "items": {"type": "string"}}, '["LED","DOOR"]', ["LED", "DOOR"]),
    ],
)
def test_a_list_that_is_given_as_text_is_that_list(schema, given, taken) -> None:
    assert tool(x=schema).check({"x": given}).arguments == {"x": taken}


def test_an_optional_argument_that_is_null_is_left_out_and_a_required_one_is_refused() -> None:
    both = tool(line={"type": "integer"}, chip_={"type": "string"})
    assert both.check({"line": 1, "chip_": None}).arguments == {"line": 1}
    assert both.check({"line": None}).faults


def test_a_fitting_call_is_passed_on_as_the_same_object() -> None:
    given = {"x": 1}
    assert tool(x={"type": "integer"}).check(given).arguments is given


# --- what is refused ---------------------------------------------------------------------------------------------

GPIO_SET = VIEW.arguments(VIEW.find("gpio.set"))


@pytest.mark.parametrize(
    ("given", "said", "corrected"),
    [
        ({"lien": 17, "value": 1}, 'no argument "lien"; did you mean "line"?', {"line": 17, "value": 1}),
        ({"pin": 17, "state": "HIGH"}, 'no argument "pin"; did you mean "line"?', {"line": 17, "value": 1}),
        ({"Line": "17", "Value": "0"}, 'did you mean "value"?', {"line": "17", "value": 0}),
        ({"line": 17, "value": 1, "speed": 3}, 'no argument "speed"; leave it out', {"line": 17, "value": 1}),
        ({"line": 17}, "/value: is missing; expected: 0 is low, 1 is high", None),
        ({"line": 17, "value": 5}, "/value: 5 is ", None),
    ],
)
def test_a_fault_names_its_place_and_its_cure(given, said, corrected) -> None:
    found = GPIO_SET.check(given)
    assert said in "\n".join(map(str, found.faults))
    assert found.corrected == corrected
    assert found.arguments == given


def test_two_arguments_are_never_taken_for_one() -> None:
    found = GPIO_SET.check({"lin": 17, "lines": 18, "value": 1})
    assert [fault.reason for fault in found.faults] == [
        'there is no argument "lin"; did you mean "line"?',
        'there is no argument "lines"; leave it out',
    ]


def test_the_faults_of_one_call_are_bounded() -> None:
    found = GPIO_SET.check({f"x{number}": "y" * 100_000 for number in range(1000)})
    assert len(found.faults) == MOST_FAULTS
    assert sum(len(str(fault)) for fault in found.faults) < 5000


def test_faults_within_arrays_and_objects_name_the_whole_way() -> None:
    plan = Arguments(PLAN_DEFINITION["inputSchema"])
    found = plan.check({"intent": "i", "steps": [{"tool": "gpio_get"}, {"name": "gpio_get", "arguments": {"line": 1}}]})
    assert [fault.path for fault in found.faults] == ["/steps/1/name", "/steps/1/arguments"]
    assert found.corrected["steps"][1] == {"tool": "gpio_get", "args": {"line": 1}}


def test_a_combination_that_a_flat_schema_cannot_locate_is_still_explained() -> None:
    either = Arguments({"type": "object", "properties": {}, "required": [], "minProperties": 1})
    assert either.check({}).faults[0].path == ""


@pytest.mark.parametrize(
    ("data", "corrected"),
    [
        ([0, 255], {"port": "uart0", "hex": "00ff"}),
        ("0x01, 0x02", {"port": "uart0", "hex": "0102"}),
        ("hello there", {"port": "uart0", "text": "hello there"}),
        ("[0, 255]", {"port": "uart0", "hex": "00ff"}),
        ("[256]", None),
        # Decimal numbers, or hexadecimal ones without their "0x".
        ("10, 20", None),
        ("72 69", None),
        ("1, 2, 3", {"port": "uart0", "hex": "010203"}),
        ("104 101", {"port": "uart0", "hex": "6865"}),
        ("ff 69", {"port": "uart0", "hex": "ff69"}),
        ([256], None),
        (7, None),
        ("aGk=", {"port": "uart0", "data": "aGk="}),
    ],
)
def test_bytes_that_are_not_base64_are_suggested_as_text_or_hex(data, corrected) -> None:
    found = VIEW.arguments(VIEW.find("uart.write")).check({"port": "uart0", "data": data})
    assert found.fitting == corrected


def test_a_tool_without_base64_is_suggested_none() -> None:
    words = Arguments(flat({"properties": {"text": {"type": "string"}, "hex": {"type": "string"}}}))
    assert [fault.reason for fault in words.check({"data": "x"}).faults] == [
        'there is no argument "data"; leave it out'
    ]


def test_a_call_that_lacks_an_argument_is_corrected_up_to_that() -> None:
    found = GPIO_SET.check({"lien": 17})
    assert (found.corrected, found.lacking, found.fitting) == ({"line": 17}, ("value",), None)


def test_the_usage_of_a_tool_names_its_arguments() -> None:
    assert usage(OFFERED["gpio_set"]) == "It takes line (required), chip, value (required)."
    assert usage(OFFERED["hw_board"]) == "It takes no arguments."


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpio_sett", "gpio_set"),
        ("GPIO.Set", "gpio_set"),
        ("gpio_write", "gpio_set"),
        ("digital_write", "gpio_set"),
        ("write_pin", "gpio_set"),
        ("read_temperature", "hw_sensor_read"),
        ("i2c_detect", "i2c_scan"),
        ("serial_write", "uart_write"),
        ("list_gpio", "hw_gpio_list"),
        ("bash", "proc_exec"),
    ],
)
def test_a_name_of_another_library_leads_to_the_tool_of_this_one(name, meant) -> None:
    assert near_tools(name, VIEW.definitions())[0] == meant


@pytest.mark.parametrize("name", ["xyzzy", "", "....", "\ud800"])
def test_a_name_like_no_other_leads_nowhere(name) -> None:
    assert near_tools(name, VIEW.definitions()) == []


def test_a_search_finds_the_tools_of_a_task() -> None:
    names = [shown["name"] for shown in search("read the temperature sensor", VIEW.definitions(), 3)]
    assert names[0] == "hw_sensor_read"


# --- lines -------------------------------------------------------------------------------------------------------


def test_the_number_of_a_line_as_a_string_is_that_line_unless_a_line_has_that_name(tmp_path) -> None:
    (tmp_path / "board.toml").write_text(
        'name = "odd"\ndescription = "d"\n[[gpio]]\nlabel = "sim"\ndriver = "sim"\nnames = ["A", "B", "1", "C"]\n'
    )
    board = open_board(load_profile(str(tmp_path / "board.toml")))
    assert [board.line(None, line) for line in ("0", "1", "3", 1)] == [0, 2, 3, 1]
    assert [board.line_name(line) for line in ("0", "1", "3", "9")] == ["A", "1", "C", "9"]
