"""Strict reading of a TOML table: every key is read by its type, and unknown keys are refused.

It owns the errors, which name file, key path and cure. Hand-written, without cattrs, whose import costs more than the
rest of a daemon's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T")

REQUIRED: Any = object()
_SHOWN = 60
_LONGEST = 400


def shown(value: object) -> str:
    """Return a wrong value for an error message: short, whatever it is."""
    if isinstance(value, int) and value.bit_length() > _SHOWN:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # Python does not write out such a long number
        text = "a list" if isinstance(value, list) else "a table"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def printable(text: str) -> str:
    """Return the text as one printable line: a profile may give its lines any names."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class Table:
    """One TOML table and the path to it.

    Every getter raises ConfigError; `done` refuses the keys that are left.
    """

    def __init__(self, source: str, path: str, content: object) -> None:
        self._source = source
        self._path = path
        if not isinstance(content, dict):
            self.refuse("", f"expected a table, found {shown(content)}")
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

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a non-empty string, or the default."""
        value = self._take(key, default)
        if value is not default and not (isinstance(value, str) and value):
            self.refuse(key, f"expected a non-empty string, found {shown(value)}")
        return value

    def integer(self, key: str, low: int, high: int, default: int = REQUIRED) -> int:
        """Return an integer in a closed range, or the default."""
        value = self._take(key, default)
        if value is not default and not (type(value) is int and low <= value <= high):
            self.refuse(key, f"expected an integer from {low} to {high}, found {shown(value)}")
        return int(value)

    def number(self, key: str, low: float, high: float, default: float = REQUIRED) -> float:
        """Return a number in a closed range, or the default."""
        value = self._take(key, default)
        if value is not default and not (type(value) in (int, float) and low <= value <= high):
            self.refuse(key, f"expected a number from {low:g} to {high:g}, found {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean, or the default."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            self.refuse(key, f"expected true or false, found {shown(value)}")
        return value

    def optional_flag(self, key: str) -> bool | None:
        """Return a boolean, or None when it is absent."""
        return self.flag(key, False) if self.has(key) else self._take(key, None)

    def has(self, key: str) -> bool:
        """Return True if the key is there and has not been read yet."""
        return key in self._left

    def is_table(self, key: str) -> bool:
        """Return True if the key is there and its value is a table."""
        return isinstance(self._left.get(key), dict)

    def is_list(self, key: str) -> bool:
        """Return True if the key is there and its value is a list."""
        return isinstance(self._left.get(key), list)

    def choice(self, key: str, options: Sequence[T], default: T = REQUIRED) -> T:
        """Return one of the options, exactly (`true` is not 1); the default is one of them too."""
        value = self._take(key, default)
        chosen = [option for option in options if value == option and type(value) is type(option)]
        if not chosen:
            listed = ", ".join(repr(option).replace("'", '"') for option in options if option is not None)
            self.refuse(key, f"expected one of {listed}, found {shown(value)}")
        return chosen[0]

    def texts(self, key: str, default: Sequence[str] = REQUIRED) -> tuple[str, ...]:
        """Return a list of strings, or the default."""
        value = self._take(key, default)
        if not (isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)):
            self.refuse(key, f"expected a list of strings, found {shown(value)}")
        return tuple(value)

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """Return a list of integers in a closed range; empty when it is absent."""
        value = self._take(key, [])
        if not (isinstance(value, list) and all(type(item) is int and low <= item <= high for item in value)):
            self.refuse(key, f"expected a list of integers from {low} to {high}, found {shown(value)}")
        return tuple(value)

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """Return a list of pairs of strings; empty when it is absent."""
        value = self._take(key, [])
        if not isinstance(value, list):
            self.refuse(key, f"expected a list of pairs, found {shown(value)}")
        for pair in value:
            if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(item, str) for item in pair)):
                self.refuse(key, f"expected pairs of line names, found {shown(pair)}")
        return tuple((one, other) for one, other in value)

    def mapping(self, key: str) -> Mapping[str, str]:
        """Return a table of strings; empty when it is absent."""
        value = self._take(key, {})
        table = Table(self._source, self._at(key), value)
        return {name: table.text(name) for name in value}

    def table(self, key: str) -> Table:
        """Return a sub-table; an empty one when it is absent."""
        return Table(self._source, self._at(key), self._take(key, {}))

    def named(self, key: str) -> Iterator[tuple[str, Table]]:
        """Yield the sub-tables of a table, by name; none when it is absent."""
        value = self._take(key, {})
        Table(self._source, self._at(key), value)
        for name, content in value.items():
            yield name, Table(self._source, self._at(f"{key}.{name}"), content)

    def tables(self, key: str) -> Iterator[Table]:
        """Yield the elements of an array of tables; none when it is absent."""
        value = self._take(key, [])
        if not isinstance(value, list):
            self.refuse(key, f"expected an array of tables ([[{self._at(key)}]]), found {shown(value)}")
        for index, content in enumerate(value):
            yield Table(self._source, self._at(f"{key}[{index}]"), content)

    def done(self) -> None:
        """Refuse the keys that were not read."""
        for key in self._left:
            self.refuse(key, f"unknown key; this table has {', '.join(sorted(self._known))}")
