"""One TOML table of a board profile, read key by key with the field types of `hearth.fields`.

Each getter names a key and its type. The first fault raises ConfigError with file, key path and cure; `done` refuses
the keys that no getter has asked for.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from hearth._util.toml import show
from hearth.errors import ConfigError
from hearth.fields import Choice, FieldErrors, FieldType, Flag, Integer, ListOf, Number, TableOf, Text, unknown_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T", bound="str | float | None")

REQUIRED: Any = object()
_LONGEST = 400


class _Pair(FieldType):
    """An array of two strings; the Python value is a tuple."""

    expected = "a pair of line names"

    def read(self, raw: object) -> tuple[str, str]:
        if not isinstance(raw, list) or len(raw) != 2:
            raise self.wrong(raw)
        one, other = (_ANY_TEXT.read(name) for name in raw)
        return one, other


# Made once: a profile asks for hundreds of values.
_ANY_TEXT = Text("a string", "(?s:.*)")
_TEXT, _FLAG, _TEXTS, _PAIRS, _MAPPING = Text(), Flag(), ListOf(_ANY_TEXT), ListOf(_Pair()), TableOf(Text())
_integer = lru_cache(Integer)
_choice = lru_cache(typed=True)(Choice)  # typed: 1 and true are different options


def printable(text: str) -> str:
    """Return the text on one line, shortened: a profile may use any name."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class Table:
    """One TOML table and the path to it; each getter raises ConfigError."""

    def __init__(self, source: str, path: str, content: object) -> None:
        self._source = source
        self._path = path
        if not isinstance(content, dict):
            self.refuse("", f"expected a table, got {show(content)}")
        self._left: dict[str, Any] = dict(content)
        self._known: list[str] = []

    def _at(self, key: str) -> str:
        return ".".join(part for part in (self._path, key) if part)

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise ConfigError for this key, or for the table itself."""
        raise ConfigError(f"{self._source}: {printable(self._at(key) or 'the file')}: {printable(why)}")

    def _take(self, key: str, default: object) -> Any:
        self._known.append(key)
        value = self._left.pop(key, default)
        if value is REQUIRED:
            self.refuse(key, "is missing")
        return value

    def read(self, key: str, kind: FieldType, default: Any = REQUIRED) -> Any:
        """Return the value as its type reads it, or the default."""
        if key not in self._left:
            return self._take(key, default)
        try:
            return kind.read(self._take(key, default))
        except FieldErrors as error:
            where, why = error.problems[0]
            self.refuse(key + where, why)

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a non-empty string, or the default."""
        return self.read(key, _TEXT, default)

    def integer(self, key: str, low: int, high: int, default: int = REQUIRED) -> int:
        """Return an integer in a closed range, or the default."""
        return int(self.read(key, _integer(low, high), default))

    def number(self, key: str, low: float, high: float, default: float = REQUIRED) -> float:
        """Return a number in a closed range, or the default."""
        return float(self.read(key, Number(ge=low, le=high), default))

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value, or the default."""
        return bool(self.read(key, _FLAG, default))

    def optional_flag(self, key: str) -> bool | None:
        """Return a truth value, or None where the key is absent."""
        return cast("bool | None", self.read(key, _FLAG, None))

    def has(self, key: str) -> bool:
        """Return True if the key is present and no getter has asked for it."""
        return key in self._left

    def is_table(self, key: str) -> bool:
        """Return True if the key is present with a table."""
        return isinstance(self._left.get(key), dict)

    def is_list(self, key: str) -> bool:
        """Return True if the key is present with an array."""
        return isinstance(self._left.get(key), list)

    def choice(self, key: str, options: Sequence[T], default: T = REQUIRED) -> T:
        """Return one of the options, or the default, which may be None."""
        return cast("T", self.read(key, _choice(*(one for one in options if one is not None)), default))

    def texts(self, key: str, default: Sequence[str] = REQUIRED) -> tuple[str, ...]:
        """Return an array of strings, or the default."""
        return tuple(self.read(key, _TEXTS, default))

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """Return an array of integers in a closed range; empty where the key is absent."""
        return tuple(self.read(key, ListOf(_integer(low, high)), ()))

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """Return an array of pairs of strings; empty where the key is absent."""
        return tuple(self.read(key, _PAIRS, ()))

    def mapping(self, key: str) -> Mapping[str, str]:
        """Return a table of strings; empty where the key is absent."""
        return cast("Mapping[str, str]", self.read(key, _MAPPING, {}))

    def table(self, key: str) -> Table:
        """Return a sub-table; an empty one where the key is absent."""
        return Table(self._source, self._at(key), self._take(key, {}))

    def named(self, key: str) -> Iterator[tuple[str, Table]]:
        """Yield the sub-tables of a table, by name; none where the key is absent."""
        value = self._take(key, {})
        Table(self._source, self._at(key), value)
        for name, content in value.items():
            yield name, Table(self._source, self._at(f"{key}.{name}"), content)

    def tables(self, key: str) -> Iterator[Table]:
        """Yield the elements of an array of tables; none where the key is absent."""
        value = self._take(key, [])
        if not isinstance(value, list):
            self.refuse(key, f"expected an array of tables, written as [[{self._at(key)}]]; got {show(value)}")
        for index, content in enumerate(value):
            yield Table(self._source, self._at(f"{key}[{index}]"), content)

    def done(self) -> None:
        """Refuse the keys that no getter has asked for."""
        for key in self._left:
            self.refuse(key, unknown_key(key, self._known))
