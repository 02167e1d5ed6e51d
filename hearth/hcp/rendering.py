"""The files of a job, from its results: CSV, JSON, text, and the request that a plot is drawn from.

Owns the form: CSV as RFC 4180 has it, in UTF-8, a header and a line for each row; JSON indented, members in their own
order. It never writes a file.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

import orjson

from hearth.errors import HearthError
from hearth.hcp.expressions import ExpressionError
from hearth.hcp.planning import Keepsake
from hearth.hcp.recipe_shape import Content, Plot, Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.expressions import Expression
    from hearth.hcp.recipe_shape import ArtifactSpec

Scope = dict[str, Any]
_JSON: Final = ("application/json", "+json")


class RenderingError(HearthError):
    """What there is cannot be made into the file that was declared."""


def render(spec: ArtifactSpec, scope: Scope, *, whole: bool) -> Keepsake | None:
    """The file as it is now, or None where there is nothing yet to put into it. Raises RenderingError.

    `whole`: the job has ended well, so no rows means that there are none.
    """
    try:
        if isinstance(spec.of, Content):
            return _content(spec, spec.of.content.value(scope))
        rows = spec.of.rows.value(scope)
        if rows is None or (rows == [] and not whole):
            return None
        if not isinstance(rows, list):
            raise RenderingError(f"{spec.of.rows.text} gives no array of rows")
        if isinstance(spec.of, Rows):
            return _keepsake(spec, _csv(spec.of, rows, scope))
        return _plot(spec, spec.of, rows, scope)
    except ExpressionError as error:
        raise RenderingError(str(error)) from None


def _keepsake(spec: ArtifactSpec, content: bytes) -> Keepsake:
    return Keepsake(name=spec.name, file=spec.file, type=spec.type, content=content)


def _content(spec: ArtifactSpec, value: Any) -> Keepsake | None:
    if value is None:
        return None
    mime = spec.type.partition(";")[0]
    if isinstance(value, str) and not mime.endswith(_JSON):
        return _keepsake(spec, value.encode("utf-8", "replace"))
    return _keepsake(spec, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _csv(table: Rows, rows: list[Any], scope: Scope) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(table.columns)
    for row in rows:
        writer.writerow([_cell(column.value_over(row, scope)) for column in table.columns.values()])
    return out.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    """A value as a cell: nothing for null, JSON's words for true and false, JSON for what has parts."""
    if value is None:
        return ""
    if isinstance(value, (bool, list, dict)):
        return orjson.dumps(value).decode()
    return value


def _plot(spec: ArtifactSpec, plot: Plot, rows: list[Any], scope: Scope) -> Keepsake:
    """A point for each row that has an x; where a line has no number there, it has a gap."""
    placed = [(x, row) for row in rows if (x := _number(plot.x, row, scope)) is not None]
    request: Mapping[str, Any] = {
        "title": plot.title,
        "x": [x for x, _ in placed],
        "series": {
            label: [_number(line, row, scope) for _, row in placed] for label, line in plot.series.items()
        },
        "x_label": plot.x_label,
        "y_label": plot.y_label,
    }
    return Keepsake(name=spec.name, file=spec.file, type=spec.type, plot=request)


def _number(expression: Expression, row: Any, scope: Scope) -> float | None:
    value = expression.value_over(row, scope)
    if value is None or type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    raise RenderingError(f"{expression.text} gives no number: {str(value)[:60]!r}")
