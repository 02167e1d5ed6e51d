"""A job's files: CSV that every reader takes, JSON in its own order, and the request that a plot is drawn from."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st
from support.recipes import drive, failed, order, prepare, sensible

from hearth.hcp.expressions import compile_expression
from hearth.hcp.recipe_shape import ArtifactSpec, Content, Plot, Rows
from hearth.hcp.rendering import RenderingError, render

if TYPE_CHECKING:
    from hearth.hcp.planning import Do, Keepsake

ROWS = compile_expression("rows")
CELL = compile_expression("cell")


def table(rows: Any, *, whole: bool = True, column: str = "cell") -> Keepsake | None:
    spec = ArtifactSpec(
        name="n", file="f.csv", type="text/csv", of=Rows(rows=ROWS, columns={"a,b": compile_expression(column)})
    )
    return render(spec, {"rows": rows}, whole=whole)


def content(value: Any, mime: str = "application/json") -> bytes | None:
    spec = ArtifactSpec(name="n", file="f", type=mime, of=Content(content=compile_expression("rows")))
    kept = render(spec, {"rows": value}, whole=False)
    return None if kept is None else kept.content


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), min_size=1))
def test_any_text_comes_back_out_of_the_csv(texts: list[str]) -> None:
    kept = table([{"cell": one} for one in texts])
    assert kept is not None
    assert kept.content is not None
    read = list(csv.reader(io.StringIO(kept.content.decode(), newline="")))
    assert read == [["a,b"], *([one] for one in texts)]


def test_cells_are_as_json_has_them_and_null_is_nothing() -> None:
    cells = [1, 0.1, 1e21, True, False, "x", {"a": [1]}, [1, None], "=1+1"]
    kept = table([{"cell": one} for one in cells])
    assert kept is not None
    assert kept.content is not None
    lines = list(csv.reader(io.StringIO(kept.content.decode())))
    assert [one[0] for one in lines[1:]] == [
        "1", "0.1", "1e+21", "true", "false", "x", '{"a":[1]}', "[1,null]", "=1+1",
    ]  # fmt: skip
    assert kept.content.startswith(b'"a,b"\r\n')
    empty = table([{}])
    assert empty is not None
    assert empty.content == b'"a,b"\r\n""\r\n'


def test_rows_may_be_numbers_and_a_column_may_look_at_everything() -> None:
    kept = table([1, 2], column="add(@, length(root().rows))")
    assert kept is not None
    assert kept.content == b'"a,b"\r\n3\r\n4\r\n'


def test_there_is_no_file_before_there_are_rows_and_a_header_alone_when_there_were_none() -> None:
    assert table(None) is None
    assert table([], whole=False) is None
    kept = table([])
    assert kept is not None
    assert kept.content == b'"a,b"\r\n'


@pytest.mark.parametrize(("rows", "column"), [({"a": 1}, "cell"), ("x", "cell"), ([{}], "div(`1`, `0`)")])
def test_rows_that_cannot_be_written_are_an_error(rows: Any, column: str) -> None:
    with pytest.raises(RenderingError):
        table(rows, column=column)


def test_json_is_indented_in_its_own_order() -> None:
    kept = content({"b": 1, "a": ["ü"]})
    assert kept == '{\n  "b": 1,\n  "a": [\n    "ü"\n  ]\n}\n'.encode()
    assert kept is not None
    assert json.loads(kept) == {"b": 1, "a": ["ü"]}
    assert content("x") == b'"x"\n'
    assert content("x", "application/geo+json; v=1") == b'"x"\n'
    assert content(None) is None


def test_text_is_text_and_what_is_no_text_is_json() -> None:
    assert content("grüß", "text/plain") == "grüß".encode()
    assert content([1], "text/plain") == b"[\n  1\n]\n"


def plot(rows: Any, x: str = "x", y: str = "y") -> Any:
    of = Plot(
        title="T", rows=ROWS, x=compile_expression(x), series={"Y %": compile_expression(y)}, x_label="s", y_label="%"
    )
    kept = render(ArtifactSpec(name="n", file="f.png", type="image/png", of=of), {"rows": rows}, whole=True)
    assert kept is not None
    assert kept.content is None
    return orjson.loads(orjson.dumps(kept.plot))


def test_a_plot_has_a_point_for_each_row_with_an_x_and_a_gap_where_a_line_has_none() -> None:
    assert plot([{"x": 1, "y": 2.5}, {"y": 3}, {"x": 2}, {"x": 3, "y": 4}]) == {
        "title": "T", "x": [1, 2, 3], "series": {"Y %": [2.5, None, 4]}, "x_label": "s", "y_label": "%",
    }  # fmt: skip


@pytest.mark.parametrize("row", [{"x": "1"}, {"x": True}, {"x": 1, "y": "2"}, {"x": 1, "y": [1]}])
def test_a_point_that_is_no_number_is_an_error(row: Any) -> None:
    with pytest.raises(RenderingError, match="no number"):
        plot([row])


async def test_a_job_that_fails_keeps_what_it_has() -> None:
    plan = prepare("""
[[recipe.steps]]
name = "sample"
tool = "sensor.read"
args = { sensor = "t" }
repeat = { count = 3 }
[[recipe.steps]]
name = "last"
tool = "a.note"
[[recipe.artifacts]]
name = "samples"
file = "samples.csv"
rows = "results.sample"
columns = ["index", "value"]
[[recipe.artifacts]]
name = "lasts"
file = "lasts.json"
content = "results.last"
[[recipe.artifacts]]
name = "spread"
file = "spread.json"
content = "sub(max(results.sample[].value), results.sample[2].value)"
[[recipe.artifacts]]
name = "plot"
file = "plot.png"
plot = { rows = "results.sample", x = "at_s", series = { t = "value" } }
""")
    fresh = plan.begin(order())
    assert fresh.keepsakes() == []

    def world(do: Do, now: float) -> Any:
        return failed(now) if do.name == "sample[2]" else sensible(do, now)

    course = plan.begin(order())
    run = await drive(course, world)
    assert run.failure.message.startswith("sample[2]")
    kept = {one.name: one for one in course.keepsakes()}
    assert set(kept) == {"samples", "plot"}
    assert kept["samples"].content == b"index,value\r\n0,20.0\r\n1,20.1\r\n"
    assert kept["plot"].plot is not None
    assert kept["plot"].plot["x"] == [0.1, 0.2]
    assert (kept["plot"].type, kept["samples"].type) == ("image/png", "text/csv")
