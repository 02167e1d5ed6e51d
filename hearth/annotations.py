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


def _unannotated(where: str) -> Fault:
    return Fault(where, "has no annotation; write its type, such as int or Annotated[float, Ge(0)]")


def open_object(members: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with these members, and perhaps others; "name?" is a member that may be absent."""
    named = {name.removesuffix("?"): schema for name, schema in members.items()}
    return {"type": "object", "properties": named, "required": [name for name in members if not name.endswith("?")]}


def object_schema(members: Iterable[Member], where: str = "", _within: tuple[type, ...] = ()) -> dict[str, Any]:
    """The schema of an object with these members and no others. Raises NotJson."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    faults: list[Fault] = []
    for name, annotation, default in members:
        wire = wire_name(name)
        at = f"{where}.{name}" if where else name
        try:
            if annotation is MISSING:
                raise NotJson(_unannotated(at))
            if wire in properties:
                raise NotJson(Fault(at, f"there is a {wire!r} already, as JSON has it; give one of them another name"))
            properties[wire] = schema = _schema(annotation, at, _within)
            if default is MISSING:
                required.append(wire)
            elif not isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # to a type checker, Factory is a function
                schema["default"] = unstructure(default, f"{at}.default")
        except NotJson as error:
            faults += error.faults
    if faults:
        raise NotJson(*faults)
    whole: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**whole, "required": required} if required else whole


def members_of(hints: Mapping[str, Any], defaults: Mapping[str, Any], where: str = "") -> dict[str, dict[str, Any]]:
    """The schemas of the members of an object, by name; "name?" is a member that may be absent.

    That is one with a default, which the schema has unless it is None, and one whose annotation is NotRequired. An
    annotation with a `Members` is as many members as that says. Raises NotJson.
    """
    members: dict[str, dict[str, Any]] = {}
    for name, hint in hints.items():
        absent = name in defaults or get_origin(hint) is NotRequired
        if hint is MISSING:
            raise NotJson(_unannotated(name))
        one = get_args(hint)[0] if get_origin(hint) is NotRequired else hint
        wire = wire_name(name)
        if (several := expansion(one)) is not None:
            more = several.members(wire)
            if taken := members.keys() & more.keys():
                said = min(taken).removesuffix("?")
                raise NotJson(Fault(name, f"there is a {said!r} already, as JSON has it; one tool takes bytes once"))
            members |= more
            continue
        # An arg whose default is None may be absent, and is not null.
        schema = _schema(_some(one) if defaults.get(name, MISSING) is None else one, f"{where}.{name}".strip("."), ())
        if (default := defaults.get(name)) is not None:
            schema["default"] = unstructure(default, name)
        members[f"{wire}?" if absent else wire] = schema
    return members


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
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise NotJson(Fault(where, f"{value} has no JSON form; use None for a number that there is not"))
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise NotJson(Fault(where, f"{value} has no time zone; give it datetime.UTC"))
        return write_datetime(value)
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


# --- schemas --------------------------------------------------------------------------------------------------------


def _schema(annotation: Any, where: str, within: tuple[type, ...]) -> dict[str, Any]:
    annotation = NoneType if annotation is None else _named(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotated(args[0], args[1:], where, within)
    if origin is Literal:
        if all(one is None or type(one) in (str, int, bool) for one in args):
            return {"enum": list(args)}
        raise NotJson(Fault(where, "a Literal of JSON has strings, integers, True, False and None only"))
    if origin in (Union, UnionType):
        return _union([_schema(one, where, within) for one in args])
    if origin is list or (origin is tuple and args[1:] == (...,)):
        return {"type": "array", "items": _schema(args[0], f"{where}[]", within)}
    if origin is dict:
        if args[0] is not str:
            raise NotJson(Fault(where, "names of members are strings in JSON; write dict[str, T]"))
        return {"type": "object", "additionalProperties": _schema(args[1], f"{where}.*", within)}
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


def _annotated(annotation: Any, more: tuple[Any, ...], where: str, within: tuple[type, ...]) -> dict[str, Any]:
    whole = any(isinstance(one, Mapping) and {"type", "anyOf", "enum"} & one.keys() for one in more)
    schema = {} if whole else _schema(annotation, where, within)
    for one in more:
        _refine(schema, one, where)
    return schema


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


def _union(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one schema of several. A type and null stay one schema, because `format` is checked only then."""
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
        attribute, keyword = _BOUNDS[type(more)]
        number = getattr(more, attribute)
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise NotJson(Fault(where, f"{more}: expected a number; other types have no bounds in JSON"))
        if kinds and not {"integer", "number"} & set(kinds):
            reason = f"{more} bounds numbers, and this is {' or '.join(kinds)}; use MinLen or MaxLen"
            raise NotJson(Fault(where, reason))
        schema[keyword] = number
    elif isinstance(more, MinLen | MaxLen) and (sized := [_SIZES[kind] for kind in kinds if kind in _SIZES]):
        bound, size = ("min", more.min_length) if isinstance(more, MinLen) else ("max", more.max_length)
        schema.update({f"{bound}{what}": size for what in sized})
    else:
        cure = "use Ge, Gt, Le, Lt, MultipleOf, MinLen, MaxLen, Len, a text, or a mapping of keywords of JSON Schema"
        raise NotJson(Fault(where, f"{more!r} says nothing here; {cure}"))


def _no_form(kind: Any, where: str) -> NotJson:
    cure = "use bool, int, float, str, None, Literal, datetime, a union, list, tuple[T, ...], dict[str, T], attrs"
    if isinstance(kind, type):
        cure = next((said for base, said in _CURES if issubclass(kind, base)), cure)
    return NotJson(Fault(where, f"{getattr(kind, '__name__', kind)} has no JSON form; {cure}"))
