"""What people are shown: aligned, complete, and without a character that a terminal would obey."""

from __future__ import annotations

import base64
import unicodedata

import click
import pytest
from hypothesis import given, strategies as st

from hearth.cli import common, tools

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.text())
def test_cleaned_text_holds_no_control_character_but_newline_and_tab(text):
    cleaned = common.clean(text)
    assert not [c for c in cleaned if unicodedata.category(c) == "Cc" and c not in "\n\t"]


@pytest.mark.parametrize(
    ("text", "shown"), [("\x1b[2J", "\\x1b[2J"), ("a\u202eb", "a\\u202eb"), ("°C — ok", "°C — ok")]
)
def test_escapes_are_shown_and_letters_are_left_alone(text, shown):
    assert common.clean(text) == shown


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans())
def test_any_object_can_be_shown(value, as_binary):
    binary = frozenset(value) if as_binary else frozenset()
    lines = common.fields(value, binary=binary)
    assert len(lines) >= len(value)
    assert "\x07" not in "".join(lines)


def plain(lines):
    return [click.unstyle(line) for line in lines]


def test_names_and_values_are_aligned():
    assert plain(common.fields({"line": 17, "value": 1, "chip": "sim"})) == ["line   17", "value  1", "chip   sim"]


def test_nothing_yes_no_and_lists_read_as_words():
    shown = plain(common.fields({"a": None, "b": True, "c": False, "d": [1, "x"], "e": [], "f": [[1]], "g": {}}))
    assert shown == ["a  -", "b  yes", "c  no", "d  1, x", "e  -", "f  [[1]]", "g  -"]


def test_a_list_of_objects_is_a_table():
    shown = plain(common.fields({"cores": [{"core": 0, "mhz": 1.5}, {"core": 1, "max": 2}]}))
    assert shown == ["cores", "  core  mhz  max", "  0     1.5  -", "  1     -    2"]


def test_an_object_is_below_its_name_and_an_object_of_objects_is_a_table():
    shown = plain(common.fields({"audit": {"ok": True}, "buses": {"a": {"n": 1}, "b": {"n": 22}}}))
    assert shown == ["audit", "  ok  yes", "buses", "  name  n", "  a     1", "  b     22"]


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", ["0 bytes"]),
        (b"\x19", ["19  (1 byte)"]),
        (b"\x13\xd0", ["13 d0  (2 bytes)"]),
        (b"AB", ["41 42  (2 bytes)"]),
        (b"hello\nyou\n", ["10 bytes", "hello", "you"]),
        (bytes(20), ["20 bytes", " ".join(["00"] * 16), "00 00 00 00"]),
        (b"a\x1b[2J", ["61 1b 5b 32 4a  (5 bytes)"]),
    ],
)
def test_bytes_are_shown_as_text_or_in_hex(content, shown):
    assert common.shown_bytes(encoded(content)) == shown


def test_of_many_bytes_the_first_are_shown_and_the_rest_is_counted():
    shown = common.shown_bytes(encoded(bytes(100)))
    assert shown[0] == "100 bytes"
    assert len(shown) == 1 + 4 + 1
    assert shown[-1] == "… and 36 more; --json has them all"


def test_what_claims_to_be_base64_and_is_not_is_shown_as_it_is():
    assert common.shown_bytes("no\x1b!") == ["no\\x1b!"]


def test_binary_members_are_decoded_and_others_are_not():
    data = encoded(b"\x01\x02")
    assert plain(common.fields({"data": data, "other": data}, binary=frozenset(["data"]))) == [
        "data   01 02  (2 bytes)",
        f"other  {data}",
    ]
    assert plain(common.fields({"data": encoded(b"one\ntwo")}, binary=frozenset(["data"]))) == [
        "data  7 bytes",
        "  one",
        "  two",
    ]


def test_bytes_in_several_forms_are_shown_in_hex_and_as_text():
    values = {"data": encoded(b"one\ntwo"), "hex": b"one\ntwo".hex(), "text": "one\ntwo", "eof": True}
    assert plain(common.fields(values, binary=frozenset(["data"]))) == [
        "hex   6f 6e 65 0a 74 77 6f",
        "text",
        "  one",
        "  two",
        "eof   yes",
    ]
    assert plain(common.fields({"data": encoded(b"x\x1b"), "hex": "781b"})) == ["hex  78 1b"]


@pytest.mark.parametrize(
    "values", [{"data": "AA==", "text": "other"}, {"data": "?", "hex": "00"}, {"data": 1, "hex": "01"}, {"hex": ["00"]}]
)
def test_members_that_are_not_one_value_in_several_forms_are_all_shown(values):
    assert len(common.fields(values)) == len(values)


def test_rows_within_a_row_are_a_table_of_their_own():
    chips = [{"chip": "a", "lines": [{"line": 0}, {"line": 1, "name": "X"}]}, {"chip": "b", "lines": []}]
    assert plain(common.fields({"chips": chips})) == [
        "chips",
        "  chip",
        "  a",
        "  b",
        "  lines of chip a",
        "    line  name",
        "    0     -",
        "    1     X",
    ]
    assert plain(common.fields({"a": [{"b": [{"c": 1}]}]})) == ["a", "  b", "    c", "    1"]


def test_a_table_without_rows_is_its_header():
    assert plain(common.table(("a", "bb"), [])) == ["a  bb"]


def test_the_last_column_wraps_at_the_edge_of_the_terminal(monkeypatch):
    monkeypatch.setattr(common, "width", lambda: 40)
    shown = plain(common.table(("name", "text"), [("x", "one two three four five six seven eight"), ("y", "")]))
    assert shown == ["name  text", "x     one two three four five six seven", "      eight", "y"]


def test_without_a_terminal_nothing_is_wrapped():
    words = "word " * 100
    assert common.width() is None
    assert plain(common.table(("name", "text"), [("x", words)]))[1] == f"x     {words}".rstrip()


def test_the_width_is_the_terminals(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "77")
    assert common.width() == 77


def test_line_breaks_and_escapes_in_cells_do_not_break_the_table():
    assert plain(common.table(("a", "b"), [("x\ny", "\x1b[0m")])) == ["a    b", "x y  \\x1b[0m"]


def test_a_status_has_its_colour_and_an_unknown_one_has_none():
    assert common.status("SUCCESS") == click.style("SUCCESS", fg="green", bold=True)
    assert click.unstyle(common.status("PAUSED")) == "PAUSED"


def test_json_is_one_line_or_several():
    assert common.compact({"a": [1, 2]}) == '{"a":[1,2]}'
    assert common.pretty({"a": 1}) == '{\n  "a": 1\n}'


def test_a_tool_that_declares_little_is_shown_with_what_there_is():
    args = {"properties": {"a": {"type": ["integer", "null"]}}}
    entry = {"name": "com.acme.x", "risk_level": 7, "params_schema": args}
    shown = plain(tools.details(entry))
    assert shown[:4] == ["com.acme.x", "", "", "risk        7"]
    assert "a    integer | null" in shown
    assert "result_schema" not in shown


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({}, "any"),
        ({"type": "integer"}, "integer"),
        ({"enum": [0, 1]}, "0 | 1"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "integer | string"),
    ],
)
def test_the_type_of_an_arg_is_a_word_or_two(schema, kind):
    assert tools.kind(schema) == kind
