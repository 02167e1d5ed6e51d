"""Reader and writer of a configuration file: bytes to TOML, TOML to attrs with every mistake named, attrs to TOML.

This module owns the form of an error line: file, `[table] key`, the expected and the actual value. It knows no
particular section: the attrs classes define them. It is imported only when a file is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import attrs

from hearth._util.toml import dump_key, dump_value, parse_toml
from hearth.config.exec import ExecTemplate
from hearth.errors import ConfigError
from hearth.fields import (
    AnyMap,
    FieldErrors,
    FieldType,
    ListOf,
    MapOf,
    Place,
    Problem,
    gather,
    key_text,
    kind_of,
    place_text,
    unknown_key,
)

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")


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
    return parse_toml(data, str(path))


def structure(cls: type[T], raw: Mapping[str, Any], source: str) -> T:
    """Return `raw` as a `cls`. Raises ConfigError with one line for each problem, in the order of the attributes."""
    try:
        built: T = _Section(cls, top=True).read(raw)
    except FieldErrors as error:
        lines = [f"{source}: {_place_text(cls, one.place)}{one.reason()}" for one in error.problems]
        raise ConfigError("\n".join(lines)) from None
    return built


def _type_of(annotation: Any) -> FieldType:
    """Return the field type of an attribute: its own, an array of sections, sections by their names, or a section."""
    if (kind := kind_of(annotation)) is not None:
        return kind
    if get_origin(annotation) is tuple:
        return ListOf(_type_of(get_args(annotation)[0]), expected="an array of tables")
    if get_origin(annotation) is Mapping:
        return MapOf(_type_of(get_args(annotation)[1]), None)
    return _Section(annotation)


class _Section(AnyMap):
    """A table that becomes an attrs class; unknown keys are refused."""

    def __init__(self, cls: Any, *, top: bool = False) -> None:
        super().__init__()
        self._cls, self._top = cls, top

    def read(self, raw: object) -> Any:
        """Return the instance. Raises one FieldErrors with the faults of all keys, or with those of the whole."""
        given = super().read({"argv": raw} if self._cls is ExecTemplate and isinstance(raw, list) else raw)
        values = gather(self._work(given))
        try:
            return self._cls(**values)
        except ConfigError as error:
            raise FieldErrors(Problem(self, raw, said=line) for line in str(error).splitlines()) from None

    def _work(self, given: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[Any], object], object]]:
        for field in attrs.fields(self._cls):
            if field.name in given:
                yield field.name, _type_of(field.type).read, given[field.name]
            elif field.default is attrs.NOTHING:
                yield field.name, partial(self._refuse, "missing; this key has no default"), None
        for name in sorted(given.keys() - attrs.fields_dict(self._cls).keys()):
            yield name, partial(self._refuse, self._unknown(name)), given[name]

    def _refuse(self, said: str, raw: object) -> object:
        raise self.wrong(raw, said)

    def _unknown(self, name: str) -> str:
        """Return the reason for refusing a key; at the top of the file, with the table that has such a key."""
        fields = attrs.fields(self._cls)
        tables = [f.name for f in fields if attrs.has(f.type) and name in attrs.fields_dict(f.type)]
        if tables and self._top:
            return f"unknown here; this key belongs under [{tables[0]}]"
        gone: Mapping[str, str] = getattr(self._cls, "GONE", {})
        return f"unknown key; {gone[name]}" if name in gone else unknown_key(name, [f.name for f in fields])


def _place_text(cls: type, place: Place) -> str:
    """Return a place as its author knows it: `[limits] idle_ttl_s: `, `[[policy]] #2 tools[0]: `."""
    if not place:
        return ""
    head, rest = key_text(str(place[0])), place[1:]
    field = attrs.fields_dict(cls).get(head)
    table = f"[{head}]"
    if field is not None and get_origin(field.type) is tuple:
        table = f"[[{head}]]"
        if rest:
            table, rest = f"{table} #{int(rest[0]) + 1}", rest[1:]
    inner = place_text(rest).removeprefix(".")
    return f"{table} {inner}: " if inner else f"{table}: "


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
