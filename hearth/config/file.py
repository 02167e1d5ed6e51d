"""Reader and writer of a configuration file: bytes to TOML, TOML to attrs with every mistake named, attrs to TOML.

This module owns the form of an error line: file, `[table] key`, the expected and the actual value. It knows no
particular section: the attrs classes define them. It is imported only when a file is read or written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import repeat
from types import GenericAlias
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import attrs
from cattrs import BaseValidationError, Converter, ForbiddenExtraKeysError
from cattrs.errors import AttributeValidationNote, IterableValidationNote, StructureHandlerNotFoundError
from cattrs.gen import make_dict_structure_fn

from hearth._util.files import read_file, read_settled
from hearth._util.foreign import Raised
from hearth._util.toml import dump_key, dump_value, parse_toml
from hearth.config.exec import ExecTemplate
from hearth.errors import ConfigError
from hearth.fields import AnyMap, Anything, FieldErrors, FieldType, ListOf, Place, kind_of, place_text, unknown_key

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]
_TABLE = AnyMap()
_TABLES = ListOf(Anything(), expected="an array of tables")


def read_toml(path: Path, trusted: Collection[int] | None = None, *, settled: bool = False) -> dict[str, Any]:
    """Return the file as plain values.

    Raises ConfigError for a file that is unreadable, not UTF-8, or not TOML, or that a user could change who is neither
    root nor in `trusted` (None: any user may), or, if it must be `settled`, that is being written.
    """
    try:
        data = read_settled(path, trusted=trusted) if settled else read_file(path, trusted=trusted)[0]
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; create it, or leave --config out for defaults") from None
    except PermissionError:
        raise ConfigError(f"{path}: may not be read by this user; fix its owner or mode") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; expected a TOML file") from None
    return parse_toml(data, str(path))


def structure(cls: type[T], raw: Mapping[str, Any], source: str) -> T:
    """Return `raw` as a `cls`. Raises ConfigError with one line for each problem, in the order of the attributes."""
    try:
        return _converter().structure(raw, cls)
    except BaseValidationError as error:
        lines = [
            f"{source}: {_place_text(cls, place)}{_reason(cls, place, why)}" for place, why in _problems(error, ())
        ]
        raise ConfigError("\n".join(lines)) from None
    except StructureHandlerNotFoundError as error:
        raise ConfigError(
            f"{source}: a key is of a type that cannot be read, {error.type_}: its package is wrong"
        ) from None


@functools.cache  # cattrs compiles a function for each shape
def _converter() -> Converter:
    """Return a converter that coerces nothing: field types read the leaves, and unknown keys are refused."""
    converter = Converter(detailed_validation=True, forbid_extra_keys=True)

    def section(cls: Any) -> Hook:
        build: Hook = make_dict_structure_fn(
            cls, converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True
        )
        return lambda raw, _: build(_gathered(cls, _TABLE.read(raw)), cls)

    def collection(shape: type, kind: FieldType, finish: Callable[[Any], Any]) -> Callable[[Any], Hook]:
        def hook(cls: Any) -> Hook:
            items: Any = GenericAlias(shape, tuple(arg for arg in get_args(cls) if arg is not Ellipsis))
            return lambda raw, _: finish(converter.structure(kind.read(raw), items))

        return hook

    def leaf(annotation: object) -> Hook:
        kind = kind_of(annotation)
        assert kind is not None, "the predicate saw one"
        return lambda raw, _: kind.read(raw)

    converter.register_structure_hook_factory(attrs.has, section)
    converter.register_structure_hook_factory(_is_a(tuple), collection(list, _TABLES, tuple))
    converter.register_structure_hook_factory(_is_a(Mapping), collection(dict, _TABLE, dict))
    converter.register_structure_hook_factory(lambda t: kind_of(t) is not None, leaf)

    whole_template = section(ExecTemplate)
    converter.register_structure_hook(
        ExecTemplate, lambda raw, t: whole_template({"argv": raw} if isinstance(raw, list) else raw, t)
    )
    return converter


def _gathered(cls: type, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a table with the unknown keys that have an array under the attribute that takes them, where one does."""
    more: str | None = getattr(cls, "MORE", None)
    known = attrs.fields_dict(cls)
    found = {key: value for key, value in raw.items() if key not in known and isinstance(value, list)}
    if more is None or not found:
        return raw
    rest = {key: value for key, value in raw.items() if key not in found}
    return {**rest, more: {**rest.get(more, {}), **found}}


def _is_a(origin: object) -> Callable[[Any], bool]:
    return lambda annotation: get_origin(annotation) is origin


def _reason(cls: type, place: Place, why: str | BaseException) -> str:
    """Return the reason of a problem. Raises an exception of hearth's own sections: a bug, not a mistake in the file.

    That of another package's section is a reason: a reload must not end a daemon for it.
    """
    if isinstance(why, str):
        return why
    field = attrs.fields_dict(cls).get(str(place[0])) if place else None
    section = None if field is None else field.type
    if section is None or not attrs.has(section) or section.__module__.startswith("hearth."):
        raise why
    return f"cannot be read: {Raised(why)}"


def _problems(error: BaseException, place: Place) -> Iterator[tuple[Place, str | BaseException]]:
    """Yield every leaf of cattrs' tree of errors, with its place and the reason, or the exception that is none."""
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            place = (*place, note.name)
        elif isinstance(note, IterableValidationNote):
            place = (*place, note.index)
    if isinstance(error, BaseValidationError):
        for inner in error.exceptions:
            yield from _problems(inner, place)
    elif isinstance(error, ForbiddenExtraKeysError):
        for name in sorted(error.extra_fields):
            yield (*place, name), _unknown(error.cl, place, name)
    elif isinstance(error, FieldErrors):
        for one in error.problems:
            yield (*place, *one.place), one.reason()
    elif isinstance(error, KeyError):
        yield place, "missing; this key has no default"
    elif isinstance(error, ConfigError):
        yield from zip(repeat(place), str(error).splitlines(), strict=False)
    else:
        yield place, error


def _unknown(cls: type, place: Place, name: str) -> str:
    """Return the reason for refusing an unknown key; at the top of the file, with the table that has such a key."""
    fields = attrs.fields(cls)
    tables = [f.name for f in fields if attrs.has(f.type) and name in attrs.fields_dict(f.type)]
    if tables and not place:
        return f"unknown here; this key belongs under [{tables[0]}]"
    gone: Mapping[str, str] = getattr(cls, "GONE", {})
    explain: Callable[[str, list[str]], str] = getattr(cls, "unknown_key", unknown_key)
    return f"unknown key; {gone[name]}" if name in gone else explain(name, [f.name for f in fields])


def _place_text(cls: type, place: Place) -> str:
    """Return a place as its author knows it: `[limits] idle_ttl_s: `, `[[policy]] #2 tools[0]: `."""
    if not place:
        return ""
    head, rest = dump_key(str(place[0])), place[1:]
    field = attrs.fields_dict(cls).get(head)
    table = f"[{head}]"
    if field is not None and get_origin(field.type) is tuple:
        table = f"[[{head}]]"
        if rest:
            table, rest = f"{table} #{int(rest[0]) + 1}", rest[1:]
    inner = place_text(rest).removeprefix(".")
    return f"{table} {inner}: " if inner else f"{table}: "


def render(sections: Mapping[str, Any]) -> str:
    """Return a TOML document with every key, those that are None as comments; `structure` reads it back equal."""
    tables: list[str] = []
    for name, value in sections.items():
        if isinstance(value, tuple):
            tables += ["\n".join(_table("[[{}]]", name, entry)) for entry in value]
        else:
            tables.append("\n".join(_table("[{}]", name, value)))
    return "\n\n".join(tables) + "\n"


def _table(header: str, name: str, section: attrs.AttrsInstance) -> Iterator[str]:
    """Yield the lines of one table; its subtables come after its own keys, as TOML requires."""
    yield header.format(name)
    behind: list[str] = []
    for field in attrs.fields(type(section)):
        value, kind = getattr(section, field.name), kind_of(field.type)
        if value is None:
            yield f"# {field.name} is not set"
        elif kind is not None:
            yield f"{field.name} = {dump_value(kind.dump(value))}"
        elif isinstance(value, tuple):
            yield f"{field.name} = {dump_value([_inline(item) for item in value])}"
        elif attrs.has(type(value)):
            yield f"{field.name} = {dump_value(_inline(value))}"
        else:
            for key, item in value.items():
                behind += ["", *_table("[{}]", f"{name}.{field.name}.{dump_key(key)}", item)]
    yield from behind


def _inline(section: attrs.AttrsInstance) -> dict[str, object]:
    """Return a section within another as plain values that read back equal; none of its attributes may be None."""
    kinds = ((field.name, kind_of(field.type)) for field in attrs.fields(type(section)))
    return {name: kind.dump(getattr(section, name)) for name, kind in kinds if kind is not None}
