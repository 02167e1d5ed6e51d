"""What a person is shown of a plan: every value, exactly, and nothing that looks like something else."""

from __future__ import annotations

import base64
import re
import unicodedata

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from hearth.audit.record import canonical
from hearth.shown import WIDTH, StepNotes, plan_lines, question_lines

BASE64 = {"type": "string", "contentEncoding": "base64"}
PARAMS = {
    "properties": {
        "data": BASE64,
        "messages": {"type": "array", "items": {"type": "object", "properties": {"write": BASE64}}},
    }
}
NOTES = StepNotes(2, True, PARAMS, {"properties": {"data": BASE64}}, PARAMS, {"properties": {"data": BASE64}})


def encoded(content):
    return base64.b64encode(content).decode()


def document(args, *, tool="bench.set", intent="", constraints=None, **step):
    return {"intent": intent, "constraints": constraints or {}, "steps": [{"tool": tool, "args": args, **step}]}


def call(args):
    """The text of a step with these args, its rows joined."""
    rows = plan_lines(document(args), [NOTES])[1:-1]
    return "".join([rows[0], *(row.removeprefix("     | ") for row in rows[1:])]).removeprefix("0. bench.set ")


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ({"line": "LED", "value": 1}, 'line="LED" value=1'),
        ({"value": "1"}, 'value="1"'),
        ({"path": "/a text=harmless"}, 'path="/a text=harmless"'),
        ({"path": '/a" text="harmless'}, r'path="/a\" text=\"harmless"'),
        ({"path": "/a” text=“harmless"}, r'path="/a\u201d text=\u201charmless"'),
        ({"path": "/a＂ text=＂harmless"}, r'path="/a\uff02 text=\uff02harmless"'),
        ({"path": "C:\\n"}, r'path="C:\\n"'),
        ({'a" b': 1, "a=b": 2, "": 3}, r'"a\" b"=1 "a=b"=2 ""=3'),
        ({"n": 2**53 + 1, "m": -(2**63), "x": 0.1, "big": 1e300},
         "n=9007199254740993 m=-9223372036854775808 x=0.1 big=1e+300"),
        ({"a": None, "b": True, "c": [1, "1", [], {}], "d": {"e": {"f": False}}},
         'a=null b=true c=[1, "1", [], {}] d={e={f=false}}'),
        ({"data": encoded(b"hi")}, 'data=bytes(2 bytes: 68 69, "hi")'),
        ({"data": encoded(b"\x00\xff")}, "data=bytes(2 bytes: 00 ff)"),
        ({"data": encoded(b"\x01")}, "data=bytes(1 byte: 01)"),
        ({"data": ""}, "data=bytes(0 bytes)"),
        ({"data": encoded(b"rm -rf /\n" * 8)}, 'data=bytes(72 bytes: "' + r"rm -rf /\n" * 8 + '")'),
        ({"data": encoded(b"\xff" * 65)}, f"data=bytes(65 bytes: {' '.join(['ff'] * 65)})"),
        ({"data": "aGk"}, 'data="aGk"'),
        ({"data": "aGl="}, 'data="aGl="'),
        ({"text": encoded(b"hi")}, 'text="aGk="'),
        ({"messages": [{"write": encoded(b"\x07")}, {"read": 2}]}, "messages=[{write=bytes(1 byte: 07)}, {read=2}]"),
        ({"a": "\x1b[2K\r\x9b\x00"}, r'a="\x1b[2K\r\x9b\x00"'),
        ({"a": "x\u2028y\u2029\u0085"}, r'a="x\u2028y\u2029\x85"'),
        ({"a": "\u202e\u2066\u200b\u200d\ufeff\u00ad\U000e0041"}, r'a="\u202e\u2066\u200b\u200d\ufeff\xad\U000e0041"'),
        ({"a": "\u3164\u2800e\u0301\ufe0f"}, r'a="\u3164\u2800e\u0301\ufe0f"'),
        ({"a": "שלום 1"}, r'a="\u05e9\u05dc\u05d5\u05dd 1"'),
        ({"a": "naïve 漢字 Ωmega 10 °C"}, 'a="naïve 漢字 Ωmega 10 °C"'),
        ({"a": "x   y"}, r'a="x \x20 y"'),
        ({"a": "\u00a0\u2003"}, r'a="\xa0\u2003"'),
    ],
    ids=ascii,
)  # fmt: skip
def test_every_value_is_shown_exactly_and_nothing_in_it_is_acted_upon(args, shown):
    assert call(args) == shown


def test_a_plan_is_shown_with_all_that_decides_what_it_does():
    shown = {
        "intent": 'all is well"\n1. gpio.get line="DOOR"\u202e',
        "constraints": {"abort_on_step_failure": False, "on_busy": "wait", "dry_run": True, "max_duration_ms": 100},
        "steps": [
            {"tool": "gpio.set", "args": {"line": "LED", "value": 1}, "before": {"value": 0}, "after": {"value": 1},
             "expect": {"tool": "gpio.get", "args": {"line": "LED"}, "equals": {"value": 1}, "within_ms": 1000}},
            {"tool": "gpio.set", "args": {"line": "LED", "value": 1}, "before": {"value": 1}, "after": {"value": 1}},
            {"tool": "gpio.pulse", "args": {"line": "RELAY"}, "before": {"value": 0}, "after": {"value": 0},
             "during": {"for_ms": 8000, "members": {"value": 1}}},
            {"tool": "gpio.pulse", "args": {"line": "RELAY"}, "before": {"value": 1}, "after": {"value": 1},
             "during": {"for_ms": 1500, "members": {"value": 1}}},
            {"tool": "i2c.write", "args": {}, "before": {"data": "AQ=="}, "after": {"data": "Ag=="}},
            {"tool": "file.delete", "args": {"path": "/a"}, "before": None, "after": None},
            {"tool": "gpio.get", "args": {"line": "LED"}, "before": None, "after": None,
             "expect": {"tool": "tank.read", "min": {"level": 3}, "max": {"level": 5}, "within_ms": 1500}},
            {"tool": "bench.call", "args": {}},
        ],
    }  # fmt: skip
    notes = [NOTES] * 8
    notes[5], notes[6] = StepNotes(3, False, {}), StepNotes(0, False, {})
    assert plan_lines(shown, notes) == [
        r'intent "all is well\"\n1. gpio.get line=\"DOOR\"\u202e"',
        "constraints abort_on_step_failure=false dry_run=true max_duration_ms=100",
        '0. gpio.set line="LED" value=1',
        "   value: 0 -> 1  [risk 2, medium; can be rolled back]",
        '   then gpio.get line="LED" must show equals value=1 within 1 s',
        '1. gpio.set line="LED" value=1',
        "   value: 1 -> 1 (it is so already)  [risk 2, medium; can be rolled back]",
        '2. gpio.pulse line="RELAY"',
        "   value: 0 -> 1 for 8 s -> 0  [risk 2, medium; can be rolled back]",
        '3. gpio.pulse line="RELAY"',
        "   value: 1 -> 1 for 1500 ms -> 1 (it is so already)",
        "   [risk 2, medium; can be rolled back]",
        "4. i2c.write",
        "   data: bytes(1 byte: 01) -> bytes(1 byte: 02)",
        "   [risk 2, medium; can be rolled back]",
        '5. file.delete path="/a"',
        "   what it changes cannot be read beforehand",
        "   [risk 3, high; cannot be rolled back]",
        '6. gpio.get line="LED"',
        "   [risk 0, safe]",
        "   then tank.read must show min level=3, max level=5 within 1500 ms",
        "7. bench.call",
        "   [risk 2, medium; can be rolled back]",
    ]


def test_a_long_value_goes_on_in_rows_that_no_value_can_imitate():
    script = "#!/bin/sh\n# harmless\nrm -rf /\n     | 1. gpio.get\n"
    rows = plan_lines(document({"data": encoded(script.encode() * 2)}, intent="w " * 60), [NOTES])
    assert all(len(row) <= WIDTH for row in rows)
    starts = [row for row in rows if not row.startswith("     | ")]
    assert [row[:9] for row in starts] == ['intent "w', "0. bench.", "   [risk "]
    assert r"     | rm -rf /\n" in rows, "each line of a script has a row of its own"
    assert rows[1] == "     | " + "w " * 25 + '"'


def test_a_wide_letter_counts_as_two_columns():
    rows = plan_lines(document({"a": "漢" * 100}), [NOTES])
    assert max(len(row) for row in rows) <= WIDTH // 2 + 8


def test_prose_keeps_the_letters_and_punctuation_of_all_languages_and_stays_on_its_line():
    assert plan_lines({"intent": "Don’t – «שלום» ٣  x\u200f\n", "constraints": {}, "steps": []}, []) == [
        r'intent "Don’t – «שלום» ٣ \x20x\u200f\n"'
    ]


def test_a_question_about_a_job_is_shown_member_by_member():
    about = {
        "capability": "water",
        "intent": 'ok"\nrisk_level 0',
        "inputs": {"path": "/a text=harmless", "n": 2**60},
        "risk_level": 3,
        "question": "Is the cell\u202e empty?",
        "odd name": [],
    }
    assert question_lines(about) == [
        'capability "water"',
        r'intent "ok\"\nrisk_level 0"',
        f'inputs {{path="/a text=harmless" n={2**60}}}',
        "risk_level 3",
        r'question "Is the cell\u202e empty?"',
        '"odd name" []',
    ]


# --- properties -------------------------------------------------------------------------------------------------------

TRICKY = st.sampled_from(
    ['"', "\\", "=", " ", "  ", "\n", "\r", "\t", "\x1b[", "\x9b", "\u2028", "\u202e", "\u2066", "\u200b", "\ufeff",
     "a", "b=1", '" b="', "“", "＂", "א", "١", "\u0301", "\u3164", "\U000e0020", "| ", "     | ", "0. bench.set ", "->",
     "\\x20", "bytes(0 bytes)", "漢"]
)  # fmt: skip
TEXT = st.lists(TRICKY | st.characters(exclude_categories=["Cs"]), max_size=12).map("".join)
NUMBER = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
DATA = st.binary(max_size=80).map(encoded) | TEXT | TEXT.map(lambda text: encoded(text.encode()))
ARGS = st.dictionaries(TEXT | st.sampled_from(["a", "data", "messages"]), JSON | DATA, max_size=3)
SEEN = st.fixed_dictionaries({}, optional={"data": DATA, "value": JSON})


@st.composite
def steps(draw):
    step = {"tool": draw(st.sampled_from(["bench.set", "bench.get"])), "args": draw(ARGS)}
    step |= {"before": None, "after": None}
    if draw(st.booleans()):
        names = draw(st.sampled_from([["value"], ["data"], ["data", "value"]]))
        step["before"], step["after"] = [{name: draw(JSON | DATA) for name in names} for _ in range(2)]
        if draw(st.booleans()):
            step["during"] = {"for_ms": draw(st.integers(1, 10_000)), "members": {names[0]: draw(JSON)}}
    if draw(st.booleans()):
        step["expect"] = {
            "tool": "bench.get",
            "args": draw(ARGS),
            draw(st.sampled_from(["equals", "min", "max"])): {"value": draw(JSON)},
            "within_ms": draw(st.integers(1, 10_000)),
        }
    return step


DOCUMENTS = st.fixed_dictionaries(
    {
        "intent": TEXT,
        "constraints": st.fixed_dictionaries(
            {"dry_run": st.booleans(), "on_busy": st.sampled_from(["wait", "fail"])},
            optional={"max_duration_ms": st.integers(1, 5)},
        ),
        "steps": st.lists(steps(), min_size=1, max_size=2),
    }
)


def rendered(shown):
    return plan_lines(shown, [NOTES] * len(shown["steps"]))


def varied(shown, other, draw):
    """A document that differs from `shown` in one part, which is that of `other`."""
    part = draw(st.sampled_from(["intent", "constraints", "steps", "args", "expect", "changes"]))
    if part in ("intent", "constraints", "steps"):
        return {**shown, part: other[part]}
    first, theirs = shown["steps"][0], other["steps"][0]
    names = {"args": ["args"], "expect": ["expect"], "changes": ["before", "after", "during"]}[part]
    kept = {name: one for name, one in first.items() if name not in names}
    return {**shown, "steps": [kept | {name: theirs[name] for name in names if name in theirs}, *shown["steps"][1:]]}


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(DOCUMENTS, DOCUMENTS, st.data())
def test_two_different_plans_never_look_alike(shown, other, data):
    near = varied(shown, other, data.draw)
    assume(canonical(shown) != canonical(near))
    assert rendered(shown) != rendered(near)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(ARGS, ARGS)
@example({"a": '1" b="2'}, {"a": "1", "b": "2"})
@example({"a": "1 b=2"}, {"a": 1, "b": 2})
@example({"data": ""}, {"data": "bytes(0 bytes)"})
@example({"data": encoded(b"a")}, {"data": 'bytes(1 byte: 61, "a")'})
def test_two_different_sets_of_arguments_never_look_alike(one, other):
    assume(canonical(one) != canonical(other))
    assert rendered(document(one)) != rendered(document(other))


STRING = re.compile(r'"(?:[^"\\]|\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[nrt"\\]))*"')


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(DOCUMENTS)
def test_what_is_shown_has_no_character_that_moves_hides_or_ends_a_row(shown):
    rows = rendered(shown)
    prose = 1 + sum(
        row.startswith("     | ") for row in rows[: next(i for i, row in enumerate(rows) if row[:2] == "0.")]
    )
    for number, row in enumerate(rows):
        assert "\n" not in row
        assert row.isprintable()
        for one in row:
            if not " " <= one <= "~":
                assert unicodedata.category(one)[0] in "LNPS"
                if number >= prose:
                    assert unicodedata.bidirectional(one) not in ("R", "AL", "AN")
    whole = "".join(row.removeprefix("     | ") if row.startswith("     | ") else f"\n{row}" for row in rows)
    # Outside of quotes there is nothing that a program chose.
    outside = STRING.sub("", whole)
    assert outside.isascii()
    assert '"' not in outside


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(ARGS)
def test_one_argument_never_looks_like_two(args):
    outside = STRING.sub('""', call(args)) if args else ""
    depth, top = 0, ""
    for one in outside:
        depth += one in "{[("
        top += one if depth == 0 else ""
        depth -= one in "}])"
    assert top.count("=") == len(args)
    assert len(top.split()) == len(args)
