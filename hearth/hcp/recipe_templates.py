"""Templates: the values of a recipe that are literal in part and computed in part, for args and for outputs.

Owns how they are written, how they are checked against a schema as far as that can be done before anything runs, and
how they are filled in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.config_kinds import Text
from hearth.config_toml import show
from hearth.hcp.expressions import ExpressionError, compile_expression
from hearth.hcp.functions import converted
from hearth.hcp.names import ANYTHING
from hearth.hcp.recipe_shape import Computed, Constant, Items, Members
from hearth.hcp.schema_kinds import kinds_of, near, never_fits
from hearth.hcp.tables import REQUIRED, Table
from hearth.hcp.units import UnitError, check_unit, check_units
from hearth.schema import Validator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.expressions import Expression, Names
    from hearth.hcp.planning import Fault
    from hearth.hcp.recipe_shape import Template
    from hearth.hcp.schema_kinds import Shape

BROKEN: Final = Constant(None)
"""In the place of a template with a fault, of which nothing more is said."""
_EXPRESSION: Final = Text("an expression")
_UNIT: Final = Text("a unit", limit=64)
_WHOLE = ("$schema", "$defs", "definitions")


def read_expression(table: Table, key: str, names: Names | None, default: Any = None) -> Expression | None:
    """The expression at a key, or None where there is none, or one with a fault."""
    text = table.take(key, _EXPRESSION, default)
    if text is None:
        return None
    try:
        return compile_expression(text, names=names)
    except ExpressionError as error:
        table.fault(key, str(error))
        return None


# --- args -----------------------------------------------------------------------------------------------------------


def read_args(table: Table, key: str, names: Names | None, schema: Shape) -> Members:
    """The args of a tool: literal, or tables with `expr`. What its schema can never accept is a fault."""
    faults: list[Fault] = []
    content = table.mapping(key, {})
    if content is None:
        return Members({})
    inner = Table(content, table.at(key), faults)
    members = {name: _arg(inner, name, names) for name in inner.content}
    inner.done(also=list(members))
    _check_args(inner, members, schema)
    table.faults += faults
    if not faults and (reason := _whole_misfit(members, schema)):
        table.fault(key, reason)
    return Members(members)


class _Elements(Table):
    """An array as a table, so that what is wrong with an element is said of its place."""

    def at(self, key: str) -> str:
        """The place of an element."""
        return f"{self._path}[{key}]"


def _arg(table: Table, key: str, names: Names | None) -> Template:
    value = table.content[key]
    if isinstance(value, dict):
        if "expr" in value or set(value) == {"literal"}:
            return _computed(table.table(key), names)
        inner = table.table(key)
        found = {name: _arg(inner, name, names) for name in value}
        if all(isinstance(one, Constant) for one in found.values()):
            return Constant(value)
        return Members(found)
    if isinstance(value, list):
        rows = _Elements({str(index): one for index, one in enumerate(value)}, table.at(key), table.faults)
        items = tuple(_arg(rows, name, names) for name in rows.content)
        return Constant(value) if all(isinstance(one, Constant) for one in items) else Items(items)
    return Constant(value)


def _computed(table: Table, names: Names | None) -> Template:
    if "literal" in table.content:
        return Constant(table.content["literal"])
    expression = read_expression(table, "expr", names, REQUIRED)
    source, unit = table.take("from", _UNIT, None), table.take("unit", _UNIT, None)
    unit_of = read_expression(table, "unit_of", names)
    table.done()
    _check_units(table, source, unit)
    if expression is None:
        return BROKEN
    return Computed(expression=expression, source=source, unit_of=unit_of, unit=unit)


def _check_units(table: Table, source: str | None, unit: str | None) -> None:
    given = {key for key in ("from", "unit_of") if key in table.content}
    if len(given) > 1:
        table.fault("from", "say from or unit_of, not both")
    elif given and "unit" not in table.content:
        table.fault("unit", "missing: the unit that the value is wanted in")
    elif "unit" in table.content and not given:
        table.fault("unit", "say in which unit the value comes: `from`, or `unit_of` for an expression that tells")
    elif unit is not None:
        try:
            check_unit(unit) if source is None else check_units(source, unit)
        except UnitError as error:
            table.fault("unit", str(error))


def _check_args(table: Table, args: Mapping[str, Template], schema: Shape) -> None:
    """What can be said of args before an expression has a value."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    open_ended = not isinstance(properties, dict) or "patternProperties" in schema or schema.get("additionalProperties")
    for name, template in args.items():
        if isinstance(known.get(name), dict):
            _check_one(table, name, template, known[name], schema)
        elif name not in known and not open_ended:
            there = ", ".join(known) or "none"
            table.fault(name, f"the tool has no such arg{near(name, known)}; its args are: {there}")
    for name in schema.get("required", ()):
        if name not in args:
            said = known[name].get("description", "") if isinstance(known.get(name), dict) else ""
            table.fault(name, f"missing; the tool needs it{': ' + said if said else ''}")


def _whole_misfit(args: Mapping[str, Template], schema: Shape) -> str | None:
    """Why args that are all literal do not fit together, though each by itself does."""
    if not all(isinstance(one, Constant) for one in args.values()):
        return None
    value = {name: one.value for name, one in args.items() if isinstance(one, Constant)}
    whole = Validator(schema)
    return None if whole.accepts(value) else whole.explain(value)[1]


def _check_one(table: Table, name: str, template: Template, wanted: Shape, schema: Shape) -> None:
    if template is BROKEN:
        return
    if isinstance(template, Constant):
        if reason := _misfit(template.value, wanted, schema, name):
            table.fault(name, reason)
    elif not isinstance(template, Members) and (reason := never_fits(shape_of(template), wanted)):
        table.fault(name, reason)


def _misfit(value: Any, wanted: Shape, schema: Shape, name: str) -> str | None:
    """Why a literal does not fit the schema of its own property."""
    one = Validator({**{key: schema[key] for key in _WHOLE if key in schema}, "properties": {name: wanted}})
    return None if one.accepts({name: value}) else one.explain({name: value})[1]


# --- outputs --------------------------------------------------------------------------------------------------------


def read_outputs(table: Table, key: str, names: Names | None, schema: Shape) -> Members:
    """The outputs mapping: "EXPR", a table with `expr`, or a table of such. What can never fit is a fault."""
    inner = table.table(key, required=False)
    return _outputs(inner, names, schema)


def _outputs(table: Table, names: Names | None, schema: Shape) -> Members:
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    members: dict[str, Template] = {}
    for name, value in table.content.items():
        wanted = known.get(name, ANYTHING)
        wanted = wanted if isinstance(wanted, dict) else ANYTHING
        template = members[name] = _output(table, name, value, names, wanted)
        if closed and name not in known:
            table.fault(name, f"output_schema has no such output; it has {', '.join(known) or 'none'}")
        else:
            _check_one(table, name, template, wanted, schema)
    for name in schema.get("required", ()):
        if name not in members:
            table.fault(name, "missing; output_schema requires it")
    table.done(also=list(members))
    nullable = {name for name in members if "null" in (kinds_of(known.get(name, ANYTHING)) or ())}
    return Members(members, frozenset(nullable))


def _output(table: Table, name: str, value: Any, names: Names | None, wanted: Shape) -> Template:
    if isinstance(value, str):
        expression = read_expression(table, name, names)
        return BROKEN if expression is None else Computed(expression=expression)
    if not isinstance(value, dict):
        table.fault(name, f"expected an expression in quotes, or a table with `expr` or `literal`, got {show(value)}")
        return BROKEN
    if "expr" in value or set(value) == {"literal"}:
        return _computed(table.table(name), names)
    return _outputs(table.table(name), names, wanted)


# --- their values ---------------------------------------------------------------------------------------------------


def shape_of(template: Template) -> Shape:
    """What a template gives, as far as that is known."""
    if isinstance(template, Computed):
        return template.expression.shape
    if isinstance(template, Constant):
        return {"const": template.value}
    return {"type": "object" if isinstance(template, Members) else "array"}


def fill(template: Template, scope: Mapping[str, Any]) -> Any:
    """A template's value. Raises ExpressionError."""
    if isinstance(template, Constant):
        return template.value
    if isinstance(template, Computed):
        return compute(template, scope)
    if isinstance(template, Items):
        return [fill(one, scope) for one in template.items]
    filled = {name: fill(one, scope) for name, one in template.members.items()}
    return {
        name: value
        for name, value in filled.items()
        if value is not None or name in template.nullable or isinstance(template.members[name], Constant)
    }


def fill_what_can(template: Members, scope: Mapping[str, Any]) -> dict[str, Any]:
    """The members that have a value already; of the others nothing is said."""
    found: dict[str, Any] = {}
    for name, one in template.members.items():
        if isinstance(one, Members):
            if inner := fill_what_can(one, scope):
                found[name] = inner
            continue
        try:
            value = fill(one, scope)
        except ExpressionError:
            continue
        if value is not None:
            found[name] = value
    return found


def compute(computed: Computed, scope: Mapping[str, Any]) -> Any:
    """A computed value, in the unit that is wanted. Raises ExpressionError."""
    value = computed.expression.value(scope)
    if computed.unit is None or value is None:
        return value
    source = computed.source if computed.unit_of is None else computed.unit_of.value(scope)
    try:
        return converted(value, source, computed.unit)  # type: ignore[arg-type]
    except (UnitError, ValueError) as error:
        raise ExpressionError(f"`{computed.expression.text}` in {computed.unit}: {error}") from None
