"""Expressions: what they give, what they refuse, and that nothing they meet makes them do anything else."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from hearth.hcp.expressions import ExpressionError, Names, compile_expression, truthy
from hearth.hcp.functions import TABLE

SCHEMA = {
    "type": "object",
    "properties": {
        "samples": {"type": "integer"},
        "name": {"type": "string"},
        "range": {"type": "object", "properties": {"min": {"type": "number"}, "max": {"type": "number"}}},
        "rows": {"type": "array", "items": {"type": "object", "properties": {"v": {"type": "number"}}}},
        "free": {"type": "object"},
        "open": {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        "either": {"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "string"}]},
    },
}
NAMES = Names.of_inputs(SCHEMA)
INPUTS = {"samples": 5, "name": "x", "range": {"min": 1.5, "max": 9}, "rows": [{"v": 1}, {"v": 4.0}, {"v": 7}]}


def value(text: str, inputs: Any = INPUTS) -> Any:
    return compile_expression(text).value({"inputs": inputs})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add(`1`, `2`, inputs.samples)", 8),
        ("sub(inputs.samples, `7`)", -2),
        ("mul(inputs.range.min, `2`, `2`)", 6.0),
        ("div(`1`, `4`)", 0.25),
        ("mod(`7`, `4`)", 3),
        ("pow(`2`, `10`)", 1024.0),
        ("sqrt(`9`)", 3.0),
        ("round(`2.6`)", 3),
        ("round(`2.345678`, `2`)", 2.35),
        ("round(`0.5`)", 0),
        ("clamp(`12`, `0`, `10`)", 10),
        ("clamp(`-1`, `0`, `10`)", 0),
        ("median(inputs.rows[].v)", 4.0),
        ("median(`[]`)", None),
        ("stddev(`[1, 2, 3]`)", 1.0),
        ("stddev(`[1]`)", None),
        ("avg(`[]`)", None),
        ("percentile(`[10, 20, 30, 40, 50]`, `25`)", 20.0),
        ("percentile(`[1, 2]`, `50`)", 1.5),
        ("percentile(`[]`, `50`)", None),
        ("slope(`[0, 1, 2]`, `[1, 3, 5]`)", 2.0),
        ("slope(`[1, 1]`, `[1, 3]`)", None),
        ("deltas(`[1, 4, 9]`)", [3, 5]),
        ("range(`3`)", [0, 1, 2]),
        ('difference(`[1, true, "a", {"b": [1]}]`, `[1, {"b": [1]}]`)', [True, "a"]),
        ("each(inputs.rows, {most: inputs.samples})[?v > most].v", [7]),
        ("each(`[1, {}]`, {a: `2`})", [1, {"a": 2}]),
        ("inputs.rows[?v > root().inputs.samples].v", [7]),
        ("if(inputs.samples > `3`, 'many', 'few')", "many"),
        ("if(inputs.samples > `9`, 'many', 'few')", "few"),
        ("if(`true`, `1`, div(`1`, `0`))", 1),
        ("convert(`25`, 'celsius', 'kelvin')", 298.15),
        ("convert(`[0, 100]`, 'celsius', 'kelvin')", [273.15, 373.15]),
        ("convert(inputs.nothing, 'celsius', 'kelvin')", None),
        ("to_base64(`[1, 255]`)", "Af8="),
        ("sort_by(inputs.rows, &v)[-1].v", 7),
        ("inputs.nothing.at.all", None),
        ('unique(`[1, true, 1, "a", {"b": 1}, {"b": 1}]`)', [1, True, "a", {"b": 1}]),
        ("'a `b` c'", "a `b` c"),
        ('`"a \\`b"`', "a `b"),
    ],
)
def test_an_expression_gives_its_value(text: str, expected: Any) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("div(`1`, `0`)", "division by zero"),
        ("mod(`1`, `0`)", "division by zero"),
        ("mul(`1e308`, `10`)", "no finite number"),
        ("pow(`10`, `400`)", "too large"),
        ("mul(`9223372036854775807`, `2`)", "64 bits"),
        ("sqrt(`-1`)", "domain"),
        ("to_number('nan')", "no finite number"),
        ("to_number('inf')", "no finite number"),
        ("`[NaN]`", "no finite number"),
        ("`18446744073709551616`", "64 bits"),
        ("round(`1`, `99`)", "digits"),
        ("round(`1`, `-999999999999`)", "digits"),
        ("round(`1`, 'x')", "digits"),
        ("range(`-1`)", "whole number"),
        ("range(`1e9`)", "whole number"),
        ("percentile(`[1]`, `101`)", "0 to 100"),
        ("slope(`[1, 2]`, `[1]`)", "as many"),
        ("to_base64(`[256]`)", "bytes"),
        ("add(inputs.nothing, `1`)", "null"),
        ("contains('abc', `5`)", "string"),
        ("`1` < 'a'", "not supported"),
        ("inputs.rows[::0]", "zero"),
        ("convert(`1`, 'celsius', 'metre')", "cannot be converted"),
        ("convert('x', 'celsius', 'kelvin')", "convert()"),
        ("convert(`[\"x\"]`, 'celsius', 'kelvin')", "expected numbers"),
        ("convert(`1`, '9**9**9**9', 'kelvin')", "expected a unit"),
        ("sort_by(inputs.rows, &missing)", "sort_by"),
        ("&inputs", "no JSON"),
    ],
)
def test_what_has_no_value_says_why(text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        value(text)
    assert said in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("inputs.sampels", "did you mean 'samples'?"),
        ("input.samples", "did you mean 'inputs'?"),
        ("results.x", "no name that an expression can begin from"),
        ("inputs.range.mid", "did you mean 'min'?"),
        ("inputs.range.wide", "there is min, max"),
        ("inputs.samples.x", "what comes before it is a number"),
        ("inputs.rows.v", 'write "[]" before it'),
        ("inputs.rows[].w", "there is v"),
        ("inputs.rows[?w > `1`]", "there is v"),
        ("inputs.name[0]", "is for arrays"),
        ("inputs.name[]", "is for arrays"),
        ("avg(inputs.name)", "avg() takes an array, got a string"),
        ("avg(inputs.rows)", "an array of a number, got one of an object"),
        ("add(`1`)", "at least 2 arguments"),
        ("sub(`1`, `2`, `3`)", "2 arguments"),
        ("agv(inputs.rows[].v)", "did you mean 'avg'?"),
        ("sort_by(inputs.rows, v)", "&expressions"),
        ("max_by(inputs.rows, &w)", "there is v"),
        ("map(&w, inputs.rows)", "there is v"),
        ("root().inputs.sampels", "did you mean 'samples'?"),
        ("each(inputs.rows, {most: inputs.samples})[?v > moost]", "did you mean 'most'?"),
        ("{a: inputs.rows}.b", "there is a"),
        ("inputs.rows[0] | w", "there is v"),
        ("!inputs.nothing", "comes before it is true or false"),  # JMESPath: "!" binds closer than "."
        ("!(inputs.nothing)", "there is no 'nothing'"),
        ("inputs.samples || inputs.nothing", "there is no 'nothing'"),
        ("convert(inputs.samples, 'celsius', 'metre')", "cannot be converted"),
        ("convert(inputs.samples, inputs.name, 'florp')", "not a unit that is known"),
    ],
)
def test_a_name_that_cannot_be_there_is_found_before_anything_runs(text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text, names=NAMES)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "inputs.free.anything.goes",
        "inputs.open.other",
        "inputs.either.whatever",
        "inputs.*",
        "inputs.range.* | [0]",
        "inputs.rows[*].v",
        "inputs.rows[1:].v",
        "inputs.rows[][].v",
        "[inputs.samples, inputs.name]",
        "[inputs.samples, inputs.samples][0]",
        "sort(inputs.rows[].v)[0]",
        "min(inputs.rows[].v)",
        "not_null(inputs.samples, inputs.name)",
        "if(inputs.samples, inputs.name, inputs.range)",
        "inputs.samples && inputs.name",
        "reverse(inputs.name)",
        "keys(inputs.range)[0]",
        "merge(inputs.range, {x: `1`}).x",
        "map(&add(@, `1`), inputs.rows[].v)",
        "each(inputs.free.list, {a: `1`})[0].whatever",
        "convert(inputs.samples, inputs.name, inputs.free.unit)",
        "convert(inputs.samples, 'celsius', 'kelvin')",
    ],
)
def test_what_a_schema_leaves_open_is_taken_to_be_there(text: str) -> None:
    assert compile_expression(text, names=NAMES).text == text


@pytest.mark.parametrize("text", ["", "foo(", "a..b", "`{`", "'", "a b", "[?", "(" * 3000, "a" * 5000, "`bare`"])
def test_what_is_no_expression_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ExpressionError):
        compile_expression(text)


@pytest.mark.parametrize(
    ("text", "roots"),
    [
        ("inputs.a.b", {"inputs"}),
        ("add(inputs.a, results.b[0].c)", {"inputs", "results"}),
        ("results.a[?b > `1`].c", {"results"}),
        ("sort_by(results.a, &b)", {"results"}),
        ("results.a[?b > root().inputs.c]", {"results", "*"}),
        ("sort_by(results.a, &root().x)", {"results", "*"}),
        ("@", {"*"}),
        ("[item, index][0:1]", {"item", "index"}),
        ("{a: item}", {"item"}),
        ("`1`", set()),
    ],
)
def test_an_expression_knows_the_names_that_it_begins_from(text: str, roots: set[str]) -> None:
    assert compile_expression(text).roots == roots


def test_truth_is_that_of_jmespath() -> None:
    assert [truthy(one) for one in (0, "0", [0], {"a": None}, True)] == [True] * 5
    assert [truthy(one) for one in (None, False, "", [], {})] == [False] * 5


def test_an_evaluation_that_takes_too_many_steps_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hearth.hcp.expressions.MOST_VISITS", 20_000)
    text = "map(&map(&root().inputs.rows[?v > `5`], root().inputs.many), inputs.many)"
    with pytest.raises(ExpressionError, match="too many steps"):
        value(text, {"rows": [{"v": 1}], "many": list(range(800))})


def test_a_value_that_grows_out_of_shared_parts_is_refused_before_it_is_written_out() -> None:
    text = "map(&root().inputs.a, inputs.a)"
    for _ in range(3):
        text = f"[{', '.join([text] * 4)}]"
    with pytest.raises(ExpressionError, match="too large"):
        value(text, {"a": [1] * 300})


def test_a_value_nested_too_deeply_is_refused() -> None:
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    with pytest.raises(ExpressionError, match="nested too deeply"):
        value("inputs", deep)
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(ExpressionError):
        value("to_string(inputs)", deep)


def test_text_beyond_the_bound_is_refused() -> None:
    with pytest.raises(ExpressionError, match="too long"):
        value("join('', inputs)", ["x" * (1 << 20)] * 17)
    with pytest.raises(ExpressionError, match="too long"):
        value("[join('', inputs)]", ["x" * (1 << 20)] * 17)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "v"]), inner, max_size=3),
    max_leaves=8,
)
_CALLS = sorted(set(TABLE) - {"convert"})


@settings(max_examples=120, deadline=None)
@given(name=st.sampled_from(_CALLS), first=_JSON, second=_JSON, arity=st.integers(0, 3), form=st.integers(0, 5))
def test_whatever_an_expression_meets_it_gives_json_or_an_expression_error(
    name: str, first: Any, second: Any, arity: int, form: int
) -> None:
    args = ["inputs.first", "inputs.second", "&v"][form % 2 :][:arity]
    calls = f"{name}({', '.join(args)})"
    text = [calls, f"[{calls}, `1`][0]", f"inputs.first[].{calls}", f"{calls} > inputs.second", f"!{calls}"][form % 5]
    try:
        found = compile_expression(text).value({"inputs": {"first": first, "second": second}})
    except ExpressionError:
        return
    again = orjson.loads(orjson.dumps(found))
    assert again == found
    assert not (isinstance(found, float) and math.isnan(found))


@pytest.mark.parametrize(
    ("schema", "text", "said"),
    [
        ({"properties": {"a": {"const": 5}}}, "inputs.a.b", "a number"),
        ({"properties": {"a": {"enum": ["x", None]}}}, "inputs.a.b", "null or a string"),
        ({"properties": {"a": {"type": ["array", "null"]}}}, "inputs.a.b", "an array or null"),
        ({"properties": {"a": {"const": [1]}}}, "inputs.a.b", "an array"),
        ({"properties": {"a": {"enum": [True]}}}, "inputs.a[0]", "true or false"),
        (
            {"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}},
            "inputs.a.b", "a number or a string",
        ),
        ({"properties": {"a": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}}},
         "inputs.a[].b", "a string"),
        ({"properties": {}}, "inputs.a", "there is nothing"),
        ({"properties": {f"p{n}": {} for n in range(20)}}, "inputs.zzz", "p11, …"),
    ],
)  # fmt: skip
def test_every_way_in_which_a_schema_tells_a_kind_is_read(schema: Any, text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(text, names=Names.of_inputs(schema))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": True}}, "inputs.a.b"),
        ({"properties": {"a": {"anyOf": [True, {"type": "string"}]}}}, "inputs.a.b"),
        ({"properties": {"a": {"type": "array", "prefixItems": [{}], "items": {"type": "string"}}}}, "inputs.a[0].b"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}}, "inputs.a.b.c"),
        ({"additionalProperties": True}, "inputs.a.b"),
        ({"properties": {}, "patternProperties": {"^a": {}}}, "inputs.a.b"),
    ],
)
def test_a_schema_that_leaves_it_open_lets_anything_through(schema: Any, text: str) -> None:
    assert compile_expression(text, names=Names.of_inputs(schema)).roots == {"inputs"}
