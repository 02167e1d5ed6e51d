"""Python annotations as JSON Schema 2020-12, JSON as values of these annotations, and such values as JSON.

The types are bool, int, float, str, None, Any, Literal, datetime, unions, list, tuple[T, ...], dict[str, T], attrs
classes, and TypedDict, whose schema takes members that it does not know. `Annotated` adds bounds of `annotated_types`,
a description (a plain str), and any other keywords of JSON Schema (a mapping; one with `type`, `anyOf` or `enum` is the
whole schema). Anything else is `NotJson`, with the parameter or field and the cure: a type that is silently taken for
"anything" would let a caller send anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import PurePath
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Protocol,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import attrs
from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen, MultipleOf

from hearth._util.foreign import Raised, called
from hearth.errors import HearthError
from hearth.fields import Fault
from hearth.schema import Validator

Member: TypeAlias = tuple[str, Any, Any]
"""A parameter or a field: its name, its annotation, and its default; MISSING where there is none."""
MISSING: Final = attrs.NOTHING
_ABSENT: Final = attrs.Factory(NoneType)
"""The default of a member that may be absent, and whose schema does not say its default."""

_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    NoneType: {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}
_BOUNDS: Final[dict[type, tuple[str, str]]] = {
    Ge: ("ge", "minimum"),
    Gt: ("gt", "exclusiveMinimum"),
    Le: ("le", "maximum"),
    Lt: ("lt", "exclusiveMaximum"),
    MultipleOf: ("multiple_of", "multipleOf"),
}
_SIZES: Final = {"string": "Length", "array": "Items", "object": "Properties"}
_CURES: Final[tuple[tuple[type, str], ...]] = (
    (set, 'write Annotated[list[T], {"uniqueItems": True}]'),
    (frozenset, 'write Annotated[list[T], {"uniqueItems": True}]'),
    (tuple, "write tuple[T, ...], or an attrs class for parts of several types"),
    (bytes, "write str, and say in its description whether that is hex or base64"),
    (timedelta, "write float, for seconds"),
    (PurePath, "write str"),
    (Enum, "write Literal[...]"),
)


class NotJson(HearthError):
    """A type or a value that has no JSON form, with everything that is wrong in it."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def wire_name(name: str) -> str:
    """The name in JSON of a parameter or a field: without the "_" that keeps it off Python's own words."""
    return name.removesuffix("_")


def write_datetime(instant: datetime) -> str:
    """Return a datetime as ISO 8601 with milliseconds; its finer digits are kept."""
    precision = "microseconds" if instant.microsecond % 1000 else "milliseconds"
    return instant.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def schema_of(annotation: Any, where: str = "") -> dict[str, Any]:
    """The schema of an annotation; `where` is its name for messages. Raises NotJson."""
    return _schema(annotation, where, ())


def open_object(members: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with these members, and perhaps others; "name?" is a member that may be absent."""
    named = {name.removesuffix("?"): schema for name, schema in members.items()}
    return {"type": "object", "properties": named, "required": [name for name in members if not name.endswith("?")]}


def object_schema(members: Iterable[Member], where: str = "", _within: tuple[type, ...] = ()) -> dict[str, Any]:
    """The schema of an object with these members and no others. Raises NotJson."""
    whole = open_object(_members(members, where, _within))
    required = whole.pop("required")
    return {**whole, "additionalProperties": False, **({"required": required} if required else {})}


def members_of(hints: Mapping[str, Any], defaults: Mapping[str, Any], where: str = "") -> dict[str, dict[str, Any]]:
    """The schemas of the members of an object, by name; "name?" is a member that may be absent.

    That is one with a default, and one whose annotation is NotRequired. A default of None is not in the schema: that
    member may be absent, and is not null. Raises NotJson.
    """
    given = ((name, hint, defaults.get(name, MISSING)) for name, hint in hints.items())
    return _members(
        ((name, _some(hint), _ABSENT) if one is None else (name, hint, one) for name, hint, one in given), where
    )


def _members(members: Iterable[Member], where: str, within: tuple[type, ...] = ()) -> dict[str, dict[str, Any]]:
    """The schemas of members, as `members_of`. Raises NotJson with all faults."""
    found: dict[str, dict[str, Any]] = {}
    faults: list[Fault] = []
    for name, annotation, default in members:
        at = f"{where}.{name}" if where else name
        try:
            more = _member(name, annotation, default, at, within)
        except NotJson as error:
            faults += error.faults
            continue
        if taken := {one.removesuffix("?") for one in found} & {one.removesuffix("?") for one in more}:
            reason = f"there is a {min(taken)!r} already, as JSON has it; give one of them another name"
            faults.append(Fault(at, reason))
        found |= more
    if faults:
        raise NotJson(*faults)
    return found


def _member(
    name: str, annotation: Any, default: Any, at: str, within: tuple[type, ...]
) -> Mapping[str, dict[str, Any]]:
    """The schema of one parameter or field; the several ones of an annotation with a `Members`."""
    if annotation is MISSING:
        raise NotJson(Fault(at, "has no annotation; write its type, such as int or Annotated[float, Ge(0)]"))
    wire = wire_name(name)
    may_be_absent = default is not MISSING
    if get_origin(annotation) is NotRequired:
        (annotation,), may_be_absent = get_args(annotation), True
    if (several := expansion(annotation)) is not None:
        return several.members(wire)
    schema = _schema(annotation, at, within)
    # To a type checker, Factory is a function.
    if default is not MISSING and not isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        schema["default"] = unstructure(default, f"{at}.default")
    return {f"{wire}?" if may_be_absent else wire: schema}


class Members(Protocol):
    """What an `Annotated` has where one parameter or field of Python is several members in JSON."""

    def members(self, name: str) -> Mapping[str, dict[str, Any]]:
        """Return their schemas by name; "name?" is a member that may be absent."""
        ...


def expansion(annotation: Any) -> Members | None:
    """Return the `Members` of an annotation, if it has one."""
    annotation = _some(annotation)
    more = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    # By its name: an isinstance of a Protocol takes as long as all the rest.
    return next((one for one in more if hasattr(one, "members")), None)


def base(annotation: Any) -> Any:
    """Return the type of an annotation, without what `Annotated` adds and without None."""
    annotation = _some(annotation)
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _some(annotation: Any) -> Any:
    """Return an annotation without None."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    return Union[tuple(one for one in get_args(annotation) if one is not NoneType)]  # noqa: UP007  no other form


def evaluated(annotation: Any, names: Mapping[str, Any], where: str) -> Any:
    """An annotation in which strings have been looked up in a module's names. Raises NotJson."""
    try:
        holder: Any = SimpleNamespace(__annotations__={"it": annotation})
        return called(get_type_hints, holder, dict(names), include_extras=True)["it"]
    except Raised as raised:
        cure = "define it at the top of the module, and import it outside of `if TYPE_CHECKING`"
        if isinstance(raised.error, TypeError) and "unhashable" in str(raised.error):
            cure = "write Annotated outermost: Annotated[T | None, {...}]"
        raise NotJson(Fault(where, f"cannot be evaluated: {raised.error}; {cure}")) from None


def structurer(annotation: Any) -> Callable[[Any], Any]:
    """Return the function that turns JSON which fits the schema of an annotation into its value.

    It raises what the initialiser of an attrs class raises, and ValueError for a date that does not exist.
    """
    annotation = _named(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return structurer(args[0])
    if origin in (Union, UnionType):
        members = [(Validator(schema_of(one)).accepts, structurer(one)) for one in args]
        return lambda value: _first(members, value)
    if origin in (list, tuple):
        item = structurer(args[0])
        return lambda value: origin(map(item, value))
    if origin is dict:
        member = structurer(args[1])
        return lambda value: {key: member(one) for key, one in value.items()}
    if annotation in (int, float):  # a JSON number of an integer may be 4.0, one of a float may be 4
        return cast("type[int | float]", annotation)
    if annotation is datetime:
        return _read_datetime
    if isinstance(annotation, type) and attrs.has(annotation):
        fields = [(wire_name(_alias(one)), _alias(one), structurer(one.type)) for one in _fields(annotation)]
        return lambda value: annotation(**{alias: make(value[wire]) for wire, alias, make in fields if wire in value})
    return deepcopy  # of Any it may be a list, which the function may change, and its approval keeps


def unstructure(value: Any, where: str = "") -> Any:
    """The JSON of a value: what `structurer` makes, with tuples and mappings besides. Raises NotJson."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | datetime):
        return _scalar(value, where)
    if isinstance(value, list | tuple):
        return [unstructure(one, f"{where}[{index}]") for index, one in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise NotJson(Fault(where, f"{key!r} is no name of a member; make it a str"))
        return {key: unstructure(one, f"{where}.{key}") for key, one in value.items()}
    if attrs.has(type(value)):
        return {
            wire_name(_alias(one)): unstructure(getattr(value, one.name), f"{where}.{one.name}")
            for one in attrs.fields(type(value))
            if one.init
        }
    raise _no_form(type(value), where)


def _scalar(value: float | datetime, where: str) -> float | str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise NotJson(Fault(where, f"{value} has no time zone; give it datetime.UTC"))
        return write_datetime(value)
    if not math.isfinite(value):
        raise NotJson(Fault(where, f"{value} has no JSON form; use None for a number that there is not"))
    return value


def _first(members: list[tuple[Callable[[Any], bool], Callable[[Any], Any]]], value: Any) -> Any:
    """The value of the first member of a union that takes it."""
    refusal = None
    for fits, make in members:
        if fits(value):
            try:
                return make(value)
            except ValueError as error:  # "now" fits the schema of a date: that it is none, only its reader knows
                refusal = refusal or error
    raise refusal or ValueError("it fits no type of the union")


def _read_datetime(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f'expected a date and time with its zone, such as "2025-01-15T08:30:00Z", got {text!r}')
    return instant.astimezone(UTC)


def _named(annotation: Any) -> Any:
    """The type that another name stands for: `type Metres = float`, `Metres = NewType("Metres", float)`."""
    named = getattr(annotation, "__value__", getattr(annotation, "__supertype__", annotation))
    return named if named is annotation else _named(named)


def _schema(annotation: Any, where: str, within: tuple[type, ...]) -> dict[str, Any]:
    annotation = NoneType if annotation is None else _named(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if (form := _FORMS.get(origin)) is not None:
        return form(args, where, within)
    if is_typeddict(annotation):
        return open_object(members_of(get_type_hints(annotation, include_extras=True), {}, where))
    if isinstance(annotation, type) and attrs.has(annotation):
        if annotation in within:
            raise NotJson(Fault(where, f"{annotation.__name__} contains itself; write dict for its inner parts"))
        fields = _fields(annotation, where)
        members = ((_alias(one), MISSING if one.type is None else one.type, one.default) for one in fields)
        return object_schema(members, where, (*within, annotation))
    try:
        return dict(_PLAIN[annotation])
    except (KeyError, TypeError):  # TypeError: not even hashable
        raise _no_form(origin or annotation, where) from None


def _annotated(args: tuple[Any, ...], where: str, within: tuple[type, ...]) -> dict[str, Any]:
    annotation, *more = args
    whole = any(isinstance(one, Mapping) and {"type", "anyOf", "enum"} & one.keys() for one in more)
    schema = {} if whole else _schema(annotation, where, within)
    for one in more:
        _refine(schema, one, where)
    return schema


def _literal(args: tuple[Any, ...], where: str, _within: tuple[type, ...]) -> dict[str, Any]:
    if all(one is None or type(one) in (str, int, bool) for one in args):
        return {"enum": list(args)}
    raise NotJson(Fault(where, "a Literal of JSON has strings, integers, True, False and None only"))


def _list(args: tuple[Any, ...], where: str, within: tuple[type, ...]) -> dict[str, Any]:
    return {"type": "array", "items": _schema(args[0], f"{where}[]", within)}


def _tuple(args: tuple[Any, ...], where: str, within: tuple[type, ...]) -> dict[str, Any]:
    if args[1:] != (...,):
        raise _no_form(tuple, where)
    return _list(args, where, within)


def _dict(args: tuple[Any, ...], where: str, within: tuple[type, ...]) -> dict[str, Any]:
    if args[0] is not str:
        raise NotJson(Fault(where, "names of members are strings in JSON; write dict[str, T]"))
    return {"type": "object", "additionalProperties": _schema(args[1], f"{where}.*", within)}


def _fields(cls: type, where: str = "") -> list[attrs.Attribute[Any]]:
    """The fields that the initialiser takes, with their types looked up. Raises NotJson."""
    try:
        called(attrs.resolve_types, cls)
    except Raised as raised:
        cure = "define it at the top of its module, and import it outside of `if TYPE_CHECKING`"
        raise NotJson(Fault(where, f"{cls.__name__} cannot be evaluated: {raised.error}; {cure}")) from None
    return [one for one in attrs.fields(cls) if one.init]


def _alias(field: attrs.Attribute[Any]) -> str:
    """The name by which the initialiser takes a field."""
    return field.alias or field.name


def _union(args: tuple[Any, ...], where: str, within: tuple[type, ...]) -> dict[str, Any]:
    """Return one schema of several. A type and null stay one schema, because `format` is checked only then."""
    schemas = [_schema(one, where, within) for one in args]
    if all(set(one) == {"type"} for one in schemas):
        return {"type": list(dict.fromkeys(kind for one in schemas for kind in _types(one)))}
    others = [one for one in schemas if one != {"type": "null"}]
    if len(others) == 1:
        (one,) = others
        if "enum" in one:
            return {**one, "enum": [*one["enum"], None]}
        if "type" in one:
            return {**one, "type": [*_types(one), "null"]}
    return {"anyOf": schemas}


_FORMS: Final[Mapping[Any, Callable[[tuple[Any, ...], str, tuple[type, ...]], dict[str, Any]]]] = {
    Annotated: _annotated,
    Literal: _literal,
    Union: _union,
    UnionType: _union,
    list: _list,
    tuple: _tuple,
    dict: _dict,
}


def _types(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _refine(schema: dict[str, Any], more: Any, where: str) -> None:
    """Add one item of `Annotated[...]` to a schema. Raises NotJson."""
    kinds = _types(schema)
    if isinstance(more, str):
        schema["description"] = more
    elif isinstance(more, Mapping):
        schema.update(more)
    elif isinstance(more, GroupedMetadata):
        for one in more:
            _refine(schema, one, where)
    elif type(more) in _BOUNDS:
        _bound(schema, more, where)
    elif isinstance(more, MinLen | MaxLen) and (sized := [_SIZES[kind] for kind in kinds if kind in _SIZES]):
        bound, size = ("min", more.min_length) if isinstance(more, MinLen) else ("max", more.max_length)
        schema.update({f"{bound}{what}": size for what in sized})
    else:
        cure = "use Ge, Gt, Le, Lt, MultipleOf, MinLen, MaxLen, Len, a text, or a mapping of keywords of JSON Schema"
        raise NotJson(Fault(where, f"{more!r} says nothing here; {cure}"))


def _bound(schema: dict[str, Any], more: Any, where: str) -> None:
    attribute, keyword = _BOUNDS[type(more)]
    number, kinds = getattr(more, attribute), _types(schema)
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise NotJson(Fault(where, f"{more}: expected a number; other types have no bounds in JSON"))
    if kinds and not {"integer", "number"} & set(kinds):
        reason = f"{more} bounds numbers, and this is {' or '.join(kinds)}; use MinLen or MaxLen"
        raise NotJson(Fault(where, reason))
    schema[keyword] = number


def _no_form(kind: Any, where: str) -> NotJson:
    cure = "use bool, int, float, str, None, Literal, datetime, a union, list, tuple[T, ...], dict[str, T], attrs"
    if isinstance(kind, type):
        cure = next((said for base, said in _CURES if issubclass(kind, base)), cure)
    return NotJson(Fault(where, f"{getattr(kind, '__name__', kind)} has no JSON form; {cure}"))
