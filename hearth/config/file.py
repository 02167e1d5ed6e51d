"""Reader and writer of a configuration file: bytes to TOML, TOML to attrs with every mistake named, attrs to TOML.

This module owns the form of an error line: file, `[table] key`, the expected and the actual value. It knows no
particular section: the attrs classes define them. It is imported only when a file is read or written.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from types import GenericAlias
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import attrs
from cattrs import BaseValidationError, Converter, ForbiddenExtraKeysError
from cattrs.errors import AttributeValidationNote, IterableValidationNote
from cattrs.gen import make_dict_structure_fn

from hearth._util.toml import dump_key, dump_value, number_too_long, show
from hearth.config.exec import ExecTemplate
from hearth.errors import ConfigError
from hearth.fields import FieldErrors, kind_of, unknown_key

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
"""A place in a document: keys and indices from the top; the last may be a `_Within`."""
Hook = Callable[[Any, Any], Any]


class _Within(str):
    """The end of a place as a field type reports it, `[1]` or `.host`: its keys are quoted already."""

    __slots__ = ()


def read_toml(path: Path) -> dict[str, Any]:
    """Return the file as plain values. Raises ConfigError for a file that is unreadable, not UTF-8, or not TOML."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; create it, or leave --config out for defaults") from None
    except PermissionError:
        raise ConfigError(f"{path}: may not be read by this user; fix its owner or mode") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; expected a TOML file") from None
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise ConfigError(f"{path}: line {line}: byte 0x{byte:02x} is not UTF-8; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {_syntax(str(error))}") from None
    except ValueError:
        raise ConfigError(f"{path}: {number_too_long(data)}") from None
    except RecursionError:
        raise ConfigError(f"{path}: arrays or tables are nested too deeply; flatten them") from None


def _syntax(message: str) -> str:
    """Return the standard library's "what (at line 3, column 5)" with the place in front."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if match is None:
        return message
    what, line, column = match.groups()
    return f"line {line}, column {column}: {what}" if line else f"at the end: {what}"


def structure(cls: type[T], raw: Mapping[str, Any], source: str) -> T:
    """Return `raw` as a `cls`. Raises ConfigError with one line for each problem, in the order of the attributes."""
    try:
        return _converter().structure(raw, cls)
    except BaseValidationError as error:
        lines = [f"{source}: {_place_text(cls, place)}{why}" for place, why in _problems(error, ())]
        raise ConfigError("\n".join(lines)) from None


@functools.cache  # cattrs compiles a function for each shape
def _converter() -> Converter:
    """Return a converter that coerces nothing: field types read the leaves, and unknown keys are refused."""
    converter = Converter(detailed_validation=True, forbid_extra_keys=True)

    def section(cls: Any) -> Hook:
        build: Hook = make_dict_structure_fn(
            cls, converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True
        )
        return lambda raw, _: build(_shaped(raw, dict, "a table"), cls)

    def collection(shape: type, expected: str, finish: Callable[[Any], Any]) -> Callable[[Any], Hook]:
        def hook(cls: Any) -> Hook:
            items: Any = GenericAlias(shape, tuple(arg for arg in get_args(cls) if arg is not Ellipsis))
            return lambda raw, _: finish(converter.structure(_shaped(raw, shape, expected), items))

        return hook

    def leaf(annotation: object) -> Hook:
        kind = kind_of(annotation)
        assert kind is not None, "the predicate saw one"
        return lambda raw, _: kind.read(raw)

    converter.register_structure_hook_factory(attrs.has, section)
    converter.register_structure_hook_factory(_is_a(tuple), collection(list, "an array of tables", tuple))
    converter.register_structure_hook_factory(_is_a(Mapping), collection(dict, "a table", dict))
    converter.register_structure_hook_factory(lambda t: kind_of(t) is not None, leaf)

    whole_template = section(ExecTemplate)
    converter.register_structure_hook(
        ExecTemplate, lambda raw, t: whole_template({"argv": raw} if isinstance(raw, list) else raw, t)
    )
    return converter


def _is_a(origin: object) -> Callable[[Any], bool]:
    return lambda annotation: get_origin(annotation) is origin


def _shaped(raw: T, shape: type, expected: str) -> T:
    if not isinstance(raw, shape):
        raise FieldErrors([("", f"expected {expected}, got {show(raw)}")])
    return raw


def _problems(error: BaseException, place: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Yield every leaf of cattrs' tree of errors, with its place and the reason."""
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
        for where, why in error.problems:
            yield (*place, _Within(where)) if where else place, why
    elif isinstance(error, KeyError):
        yield place, "missing; this key has no default"
    elif isinstance(error, ConfigError):
        yield from zip(repeat(place), str(error).splitlines(), strict=False)
    else:
        raise error  # a bug in hearth, not a mistake in the file


def _unknown(cls: type, place: KeyPath, name: str) -> str:
    """Return the reason for refusing an unknown key; at the top of the file, with the table that has such a key."""
    fields = attrs.fields(cls)
    tables = [f.name for f in fields if attrs.has(f.type) and name in attrs.fields_dict(f.type)]
    if tables and not place:
        return f"unknown here; this key belongs under [{tables[0]}]"
    gone: Mapping[str, str] = getattr(cls, "GONE", {})
    return f"unknown key; {gone[name]}" if name in gone else unknown_key(name, [f.name for f in fields])


def _place_text(cls: type, place: KeyPath) -> str:
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
    inner = "".join(map(_part, rest)).removeprefix(".")
    return f"{table} {inner}: " if inner else f"{table}: "


def _part(part: str | int) -> str:
    return part if isinstance(part, _Within) else f".{dump_key(str(part))}"


def render(config: attrs.AttrsInstance) -> str:
    """Return a TOML document with every key, those that are None as comments; `structure` reads it back equal."""
    tables: list[str] = []
    for field in attrs.fields(type(config)):
        value = getattr(config, field.name)
        if isinstance(value, tuple):
            tables += ["\n".join(_table("[[{}]]", field.name, entry)) for entry in value]
        else:
            tables.append("\n".join(_table("[{}]", field.name, value)))
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
