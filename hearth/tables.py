"""Tables of TOML, read key by key into a list of faults: capability declarations, plan files and board profiles.

`Table` reads one table. The optional keys may be the attributes of an attrs class, whose annotations give their field
types (`kinds_of`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints

from attrs import NOTHING, fields

from hearth._util.text import suggest
from hearth._util.toml import show
from hearth.fields import (
    AnyMap,
    Choice,
    Fault,
    FieldErrors,
    FieldType,
    Flag,
    ListOf,
    MapOf,
    Text,
    key_text,
    kind_of,
    unknown_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def faults_of(kind: FieldType, value: object, path: str = "") -> list[Fault]:
    """Return the faults of the value at a path; none if it is of the type."""
    try:
        kind.read(value)
    except FieldErrors as error:
        return error.faults(path)
    return []


def join(path: str, key: str) -> str:
    """Return the path of a key within a table."""
    return f"{path}.{key_text(key)}" if path else key_text(key)


def near(name: str, there: Iterable[str]) -> str:
    """Return a suffix for a fault that suggests the nearest of the valid names, or ""."""
    said = suggest(name, there, show=repr)
    return f"; {said}" if said else ""


REQUIRED: Final = object()


@cache
def kinds_of(cls: type) -> Mapping[str, FieldType]:
    """Return the field types of an attrs class's optional attributes, as their annotations have them.

    A Literal is a choice, a bool a flag, a str a non-empty string, each perhaps None; `Annotated` carries any other
    type. An attribute of a further type is left out: other code reads it.
    """
    annotations = get_type_hints(cls, include_extras=True)
    found = {one.name: _kind_of(annotations[one.name]) for one in fields(cls) if one.default is not NOTHING}
    return {name: kind for name, kind in found.items() if kind is not None}


def _kind_of(annotation: Any) -> FieldType | None:
    options = get_args(annotation)
    if get_origin(annotation) is Literal:
        return Choice(*options)
    if options and options[-1] is NoneType:
        return _kind_of(options[0])
    return kind_of(annotation) or {bool: Flag(), str: Text()}.get(annotation)


class Table:
    """One table and its path. A getter that fails adds to the list of faults and returns None.

    Reading goes on after a fault, so that the author sees all of them at once. Rules between values are for a table
    that is `ok`.
    """

    def __init__(self, content: Mapping[str, Any], path: str, faults: list[Fault]) -> None:
        self.content = content
        self._path = path
        self._known: list[str] = []
        self.faults = faults
        self._before = len(faults)

    @property
    def ok(self) -> bool:
        """True if no fault was added since the table was opened, here or in a table within."""
        return len(self.faults) == self._before

    def at(self, key: str) -> str:
        """Return the path of a key of this table; "" is the table itself."""
        return join(self._path, key) if key else self._path

    def fault(self, key: str, why: str) -> None:
        """Add a fault of a key, or of the table itself."""
        self.faults.append(Fault(self.at(key), why))

    def take(self, key: str, kind: FieldType, default: Any = REQUIRED) -> Any:
        """Return the value, read by its type; the default where it is absent, None where it is wrong."""
        self._known.append(key)
        if key in self.content:
            return self._read(key, kind)
        if default is REQUIRED:
            self.fault(key, f"missing; it takes {kind.expected}")
            return None
        return default

    def given(self, kinds: Mapping[str, FieldType] | type) -> dict[str, Any]:
        """Return the values of those keys that are present, each read by its type; None where one is wrong.

        `kinds` may be an attrs class, for its optional attributes.
        """
        if isinstance(kinds, type):
            kinds = kinds_of(kinds)
        self._known += kinds
        return {key: self._read(key, kind) for key, kind in kinds.items() if key in self.content}

    def _read(self, key: str, kind: FieldType) -> Any:
        try:
            return kind.read(self.content[key])
        except FieldErrors as error:
            self.faults += error.faults(self.at(key))
            return None

    def table(self, key: str, *, required: bool = True) -> Table:
        """Return a table within; where it is wrong or missing, an empty one whose own faults are not reported."""
        content = self.take(key, AnyMap(), REQUIRED if required else {})
        return Table(content or {}, self.at(key), self.faults if content is not None else [])

    def named(self, key: str) -> Iterator[tuple[str, Table]]:
        """Yield the tables of a table of them, by name; it may be left out."""
        for name, content in (self.take(key, _TABLES, {}) or {}).items():
            yield name, Table(content, join(self.at(key), name), self.faults)

    def tables(self, key: str) -> Iterator[Table]:
        """Yield each table of an array of them, which may be left out; each is opened when it is reached."""
        self._known.append(key)
        given = self.content.get(key, [])
        if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
            header = re.sub(r"\[\d+\]", "", self.at(key))
            self.fault(key, f"expected an array of tables, written as [[{header}]]; got {show(given)}")
            given = []
        return (Table(one, f"{self.at(key)}[{index}]", self.faults) for index, one in enumerate(given))

    def done(self, *, packages: Callable[[], Iterable[str]] = tuple, or_else: str = "") -> None:
        """Add a fault for each unknown key. `packages` returns keys that are only suggested, see `unknown_key`."""
        for key in self.content:
            if key not in self._known:
                self.fault(key, unknown_key(key, self._known, packages=packages(), or_else=or_else))


_TABLES: Final = MapOf(AnyMap())
STRING: Final = Text("a string", "(?s:.*)")
"""A string, perhaps empty."""
STRINGS: Final = ListOf(STRING)
