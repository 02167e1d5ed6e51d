"""Reading [[recipe.artifacts]]: which files a job leaves behind, and what each is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.config_kinds import Kind, Text
from hearth.hcp.expressions import ExpressionError, Names, compile_expression
from hearth.hcp.names import ANYTHING
from hearth.hcp.recipe_shape import ArtifactSpec, Content, Plot, Rows
from hearth.hcp.recipe_templates import read_expression
from hearth.hcp.tables import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.hcp.expressions import Expression
    from hearth.hcp.tables import Table

_NAME: Final = Text("a name", r"[\w][\w .:()-]*", limit=100)
_FILE: Final = Text("a file name of letters, digits, '.', '_' and '-'", r"[A-Za-z0-9][A-Za-z0-9._-]*", limit=100)
_MIME = r"[A-Za-z0-9][\w.+-]*/[A-Za-z0-9][\w.+-]*(; ?[\w-]+=[\w.-]+)?"
_TYPE: Final = Text('a MIME type such as "text/csv"', _MIME, limit=100)
_WORDS: Final = Text("words", "(?s:.*)", limit=200)
_KINDS: Final = {"rows": "text/csv", "content": "application/json", "plot": "image/png"}


class _Columns(Kind):
    expected = 'a table { header = "expression over the row" } or an array of the row\'s members'

    def read(self, raw: object) -> Mapping[str, str]:
        """Headers with expressions, as text."""
        if isinstance(raw, list) and raw and all(isinstance(one, str) and one for one in raw):
            return {one: one for one in raw}
        if isinstance(raw, dict) and raw and all(isinstance(one, str) and one for one in raw.values()):
            return raw
        raise self.wrong(raw)


def read_artifacts(table: Table, names: Names) -> Iterator[ArtifactSpec]:
    """The artifacts of a recipe; their faults are on the table's list."""
    found: list[ArtifactSpec] = []
    seen: dict[str, set[str]] = {"name": set(), "file": set()}
    for one in table.tables("artifacts"):
        name, file = one.take("name", _NAME), one.take("file", _FILE)
        for key, value in (("name", name), ("file", file)):
            if value is not None and value.lower() in seen[key]:
                one.fault(key, f"there is an artifact with the {key} {value!r} already; give this one another")
            seen[key].add((value or "").lower())
        kinds = [key for key in _KINDS if key in one.content]
        kind = kinds[0] if kinds else "rows"
        if len(kinds) != 1:
            one.fault(kind, "say what it is made of: one of `rows` with `columns`, `content`, `plot`")
        mime = one.take("type", _TYPE, _KINDS[kind])
        if mime is not None and kind != "content" and mime.partition(";")[0] != _KINDS[kind]:
            one.fault("type", f"{kind} makes {_KINDS[kind]}; leave type out")
        of: Any = {"rows": _rows, "content": _content, "plot": _plot}[kind](one, names) if kinds else None
        one.done(also=kinds)
        if name is not None and file is not None and mime is not None and of is not None:
            found.append(ArtifactSpec(name=name, file=file, type=mime, of=of))
    return iter(found)


def _rows(table: Table, names: Names) -> Rows | None:
    rows = read_expression(table, "rows", names)
    columns = table.take("columns", _Columns())
    if columns is None:
        return None
    compiled = _over_rows(_place(table, "columns"), columns, rows, names)
    return None if rows is None or len(compiled) < len(columns) else Rows(rows=rows, columns=compiled)


def _content(table: Table, names: Names) -> Content | None:
    content = read_expression(table, "content", names)
    return None if content is None else Content(content=content)


def _plot(table: Table, names: Names) -> Plot | None:
    inner = table.table("plot")
    rows = read_expression(inner, "rows", names, REQUIRED)
    x = inner.take("x", Text("an expression over a row"))
    series = inner.take("series", _Columns())
    labels = {key: inner.take(key, _WORDS, "") for key in ("title", "x_label", "y_label")}
    over = _over_rows(inner, {"x": x} if x is not None else {}, rows, names)
    lines = _over_rows(_place(inner, "series"), series or {}, rows, names)
    inner.done()
    if rows is None or not over or not lines or len(lines) < len(series) or None in labels.values():
        return None
    return Plot(rows=rows, x=over["x"], series=lines, **labels)


def _place(table: Table, key: str) -> Table:
    """Where faults of single columns belong: at their own keys, if they have some."""
    return table.table(key) if isinstance(table.content.get(key), dict) else table


def _over_rows(
    table: Table, texts: Mapping[str, str], rows: Expression | None, names: Names
) -> dict[str, Expression]:
    """Expressions over the rows that another expression gives."""
    items = rows.shape.get("items", ANYTHING) if rows is not None else ANYTHING
    row = names.over(items if isinstance(items, dict) else ANYTHING) if rows is not None else None
    compiled: dict[str, Expression] = {}
    for header, text in texts.items():
        try:
            compiled[header] = compile_expression(text, names=row)
        except ExpressionError as error:
            table.fault(header, f"over a row: {error}")
    return compiled
