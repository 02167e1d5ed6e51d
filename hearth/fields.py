"""Field types: the accepted raw values, the resulting Python values, and the faults of all other values.

Nothing is coerced: "5" is not a number, 1 is not a truth value, 660 is not a mode. A field type knows no key, file or
message. It reads one raw value, of TOML or of JSON, and collects the faults of all its parts, each with its place in
the value. Three front ends put them into the words of their readers:

- the configuration: a type is attached to an attribute as `Annotated[float, Number(gt=0)]`. The loader
  (`hearth.config.file`) and the attrs classes (`checked`) both take it from there, so that a Config built in Python
  keeps the rules of one from a file;
- capability declarations and board profiles: `hearth.tables` reads TOML tables key by key into a list of `Fault`;
- HCP messages: `hearth.hcp.codec` turns the first fault into a MessageError, with a JSON pointer and the type's `cure`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

from attrs import evolve, frozen

from hearth._util.text import nearest, suggest
from hearth._util.toml import dump_key, show
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from attrs import Attribute

Place: TypeAlias = "tuple[str | int, ...]"
"""Keys and indices that lead from a value to a part of it; () is the value itself."""

_LARGEST: Final = 2**53
"""The largest integer that a JSON number holds exactly, and with it all smaller ones."""
_ENOUGH: Final = 100
"""Faults of one value after which reading ends: a document from outside may have tens of thousands."""
_COMPARED: Final = 60
"""Characters of a refused word that are compared with the choices, and of a key that are repeated."""


def whole(value: Any) -> Any:
    """Return a number such as `2.0`, which JSON Schema and JavaScript take for an integer, as that integer."""
    return int(value) if type(value) is float and value.is_integer() else value


class WrongKey(str):
    """A key that is itself at fault, at the end of a place."""

    __slots__ = ()


@frozen
class Problem:
    """One fault of a value. Its words are made when they are asked for, as the reader's notation has them."""

    kind: FieldType
    """The type that refused `value`."""
    value: object
    place: Place = ()
    expected: str = ""
    """The expectation that was not met, if it is another than the type's own."""
    said: str = ""
    """The whole reason, where it is not "expected …, got …"."""

    def reason(self, show: Callable[[object], str] = show) -> str:
        """Return the reason; `show` writes the refused value."""
        return self.said or f"expected {self.expected or self.kind.expected}, got {show(self.value)}"


@frozen
class Fault:
    """One mistake. Its text is "PLACE: KEY: REASON", without the parts that are empty."""

    key: str
    """Such as "risk_ceiling", "parameters.samples" or "capability.safety.risk_ceiling"; "" is the whole."""
    reason: str
    """The mistake and its cure."""
    place: str = ""
    """A file, with a line for a function: "survey.py:12"."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.key, self.reason) if part)


class FieldErrors(ValueError):
    """A value that does not fit its field type."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        super().__init__()
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults()))

    def faults(self, path: str = "") -> list[Fault]:
        """Return the faults of a value at this TOML path."""
        return [Fault((path + place_text(one.place)).removeprefix("."), one.reason()) for one in self.problems]


def place_text(place: Place) -> str:
    """Return the end of a TOML path: ".limits[2]"."""
    return "".join(map(_step, place))


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f" key {show(str(key))}" if isinstance(key, WrongKey) else f".{key_text(key)}"


def key_text(key: str) -> str:
    """Return a key as TOML has it, shortened: a file may use any key."""
    return dump_key(key) if len(key) <= _COMPARED else show(key)


class FieldType:
    """One type of value. `expected` completes the sentence "expected …, got …"; `example` is a good value as JSON."""

    expected = "a value"
    example = "null"

    def read(self, raw: object) -> object:
        """Return the Python value for a raw value. Raises FieldErrors."""
        raise NotImplementedError

    def dump(self, value: Any) -> object:
        """Return the raw value that reads back as `value`; an unsuitable value passes unchanged: `read` refuses it."""
        return value

    def check(self, value: object) -> None:
        """Check a value that was built in Python by the same rules, its type included. Raises FieldErrors."""
        if (right := self.read(self.dump(value))) != value:
            raise self.wrong(value, f"expected {self.expected} as {type(right).__name__}, got {value!r}")

    def cure(self, raw: object, at: str) -> str:
        """Return what to change for a refused value at a place, which is given in words."""
        if isinstance(raw, str) and self.example[:1] != '"' and re.fullmatch(r"-?[0-9.]+|true|false", raw):
            return f"write the value of {at} without quotes: {self.example}"
        return f"give {at} {self.expected}, for example {self.example}"

    def wrong(self, raw: object, said: str = "", *, expected: str = "") -> FieldErrors:
        """Return the error for a value that is wrong as a whole; see Problem."""
        return FieldErrors([Problem(self, raw, expected=expected, said=said)])

    def broken(self, raw: object, rule: str) -> FieldErrors:
        """Return the error for a value that breaks a rule of its type."""
        return self.wrong(raw, f"expected {self.expected}: {rule}; got {show(raw)}")


class Anything(FieldType):
    """Any value, which other code checks."""

    def read(self, raw: object) -> object:
        """Return the value unchanged."""
        return raw


class Flag(FieldType):
    """A truth value: true or false."""

    expected = "true or false"
    example = "true"

    def read(self, raw: object) -> bool:
        """Return a truth value; 0 and 1 are refused, because they are numbers."""
        if not isinstance(raw, bool):
            raise self.wrong(raw)
        return raw


class Integer(FieldType):
    """A whole number within bounds; the default upper bound is the largest that a JSON number holds exactly."""

    example = "1"

    def __init__(self, ge: int, le: int = _LARGEST) -> None:
        self._ge, self._le = ge, le
        self.expected = f"an integer from {ge} to {le}" if le < _LARGEST - 1 else f"an integer ≥ {ge}"

    def read(self, raw: object) -> int:
        """Return an integer; truth values are refused."""
        if not isinstance(raw, int) or isinstance(raw, bool) or raw < self._ge:
            raise self.wrong(raw)
        if raw > self._le:
            # Without a bound of its own, `expected` does not name the largest.
            raise self.wrong(raw, expected=f"at most {_LARGEST}" if self._le == _LARGEST else "")
        return raw


class Number(FieldType):
    """A finite number, greater than `gt` or at least `ge`, and at most `le` (1e9 seconds are thirty years)."""

    example = "0.95"

    def __init__(self, *, gt: float | None = None, ge: float = 0, le: float = 1e9) -> None:
        self._above, self._least, self._le = gt, ge, le
        self.expected = f"a number ≥ {ge:g}" if gt is None else f"a number > {gt:g}"
        if le != 1e9:
            bounds = f"from {ge:.12g} to {le:.12g}" if gt is None else f"above {gt:.12g} and at most {le:.12g}"
            self.expected = "a number" if le == sys.float_info.max else f"a number {bounds}"

    def read(self, raw: object) -> float:
        """Return an integer or a float, as written."""
        # NaN is found by `raw != raw`: math.isnan raises OverflowError for an integer beyond every double.
        if not isinstance(raw, (int, float)) or isinstance(raw, bool) or raw != raw:
            raise self.wrong(raw)
        if raw < self._least if self._above is None else raw <= self._above:
            raise self.wrong(raw)
        if raw > self._le:
            raise self.wrong(raw, expected=f"at most {self._le:.0f}" if self._le == 1e9 else "")
        return raw


ANY_NUMBER: Final = Number(ge=-sys.float_info.max, le=sys.float_info.max)
"""A finite number of either sign."""


class Text(FieldType):
    """A non-empty string, optionally of a given form; with the form "" any string that JSON can hold."""

    def __init__(
        self,
        expected: str = "a non-empty string",
        form: str = "(?s:.+)",
        *,
        least: int = 0,
        limit: int = 4096,
        example: str = '"..."',
    ) -> None:
        self.expected, self.example = expected, example
        self._form, self._least, self._limit = re.compile(form) if form else None, least, limit

    def read(self, raw: object) -> str:
        """Return a string; one of a form without NUL and lone surrogates: no argv, path or TOML file can hold those."""
        if not isinstance(raw, str):
            raise self.wrong(raw)
        if self._form is not None and (not self._form.fullmatch(raw) or re.search("[\0\ud800-\udfff]", raw)):
            raise self.wrong(raw)
        if not self._least <= len(raw) <= self._limit:
            bound = f"at most {self._limit} characters" if raw else "at least one character"
            raise self.wrong(raw, f"expected {bound}, got {len(raw)}")
        return raw


_NAME: Final = Text()


class Secret(Text):
    """A string that error messages do not repeat: a user may have put the secret where its digest belongs."""

    def wrong(self, raw: object, said: str = "", *, expected: str = "") -> FieldErrors:
        """Return the error, without the value."""
        return super().wrong(None, said or f"expected {self.expected}, got something else")


class Parsed(FieldType):
    """A string in a notation of its own; `parse` reads it, and raises ValueError with what it expected."""

    def __init__(
        self,
        expected: str,
        parse: Callable[[str], object],
        write: Callable[[Any], object] = str,
        *,
        example: str = '"..."',
        hint: str = "",
    ) -> None:
        self.expected, self.example = expected, example
        self._parse, self._write, self._hint = parse, write, hint

    def read(self, raw: object) -> object:
        """Return the parsed value."""
        if not isinstance(raw, str):
            raise self.wrong(raw)
        try:
            return self._parse(raw)
        except ValueError as error:
            raise self.wrong(raw, str(error)) from None

    def dump(self, value: Any) -> object:
        """Return the value in its notation."""
        return self._write(value)

    def cure(self, raw: object, at: str) -> str:
        """Return the hint about the notation, where a string was given."""
        return self._hint.format(at=at) if self._hint and isinstance(raw, str) else super().cure(raw, at)


class Choice(FieldType):
    """One of a few words or numbers."""

    def __init__(self, *options: str | float) -> None:
        self._options = options
        words = [f'"{option}"' if isinstance(option, str) else f"{option}" for option in options]
        self.expected = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
        self.example = words[0]

    def read(self, raw: object) -> str | float:
        """Return the option unchanged; the comparison is case-sensitive, and true is not 1."""
        for option in self._options:
            if raw == option and type(raw) is type(option):
                return option
        raise self.wrong(raw)

    def cure(self, raw: object, at: str) -> str:
        """Return the nearest option in either case, or all."""
        by_lower = {option.lower(): option for option in self._options if isinstance(option, str)}
        if isinstance(raw, str) and (near := nearest(raw[:_COMPARED].lower(), by_lower)):
            return f'did you mean "{by_lower[near[0]]}" at {at}?'
        return f"write {self.expected} at {at}"


class AbsolutePath(FieldType):
    """An absolute path: the files of a daemon must not depend on its working directory or its user."""

    expected = "an absolute path"
    example = '"/srv/data"'

    def __init__(self, *, max_bytes: int = 4095) -> None:
        self._max_bytes = max_bytes

    def read(self, raw: object) -> Path:
        """Return the path, not resolved: it need not exist yet."""
        if not isinstance(raw, str) or not raw.startswith("/"):
            raise self.wrong(raw)
        text = Text().read(raw)
        if (size := len(text.encode())) > self._max_bytes:
            raise self.wrong(raw, f"expected a path of at most {self._max_bytes} bytes, got {size}")
        return Path(text)

    def dump(self, value: Any) -> object:
        """Return the path as a string."""
        return str(value) if isinstance(value, Path) else value


class Mode(FieldType):
    """A file mode, in TOML a string of octal digits: the number 660 would silently be 0o1224."""

    expected = 'a string of octal digits such as "0660"'
    example = '"0660"'

    def read(self, raw: object) -> int:
        """Return the permission bits."""
        if not isinstance(raw, str) or not re.fullmatch("0?[0-7]{3}", raw):
            raise self.wrong(raw)
        return int(raw, 8)

    def dump(self, value: Any) -> object:
        """Return four octal digits."""
        return f"{value:04o}" if isinstance(value, int) and not isinstance(value, bool) else value


class ListOf(FieldType):
    """An array whose elements all have one field type; the Python value is a tuple."""

    def __init__(self, item: FieldType, *, least: int = 0, most: float = inf, expected: str = "") -> None:
        self.item, self._least, self._most = item, least, most
        self.expected = expected or (f"an array of at least {least}" if least else "an array")
        self.example = f"[{item.example}]"

    def read(self, raw: object) -> tuple[object, ...]:
        """Return all elements. Raises one FieldErrors with the faults of all elements."""
        if not isinstance(raw, list) or not self._least <= len(raw) <= self._most:
            raise self.wrong(raw)
        return tuple(gather((index, self.item.read, item) for index, item in enumerate(raw)).values())

    def check(self, value: object) -> None:
        """Check a tuple and its elements; a list is refused, because it could change inside a frozen configuration."""
        if not isinstance(value, tuple):
            raise self.wrong(value, f"expected {self.expected} as tuple, got {value!r}")
        super().check(value)

    def dump(self, value: Any) -> object:
        """Return a list of dumped elements."""
        return [self.item.dump(item) for item in value] if isinstance(value, tuple) else value


class AnyMap(FieldType):
    """A table with any content, which other code reads."""

    example = "{}"

    def __init__(self, expected: str = "a table", example: str = "{}") -> None:
        self.expected, self.example = expected, example

    def read(self, raw: object) -> Mapping[str, Any]:
        """Return the table unchanged."""
        if not isinstance(raw, Mapping):
            raise self.wrong(raw)
        return raw

    def dump(self, value: Any) -> object:
        """Return the table as a dict."""
        return dict(value) if isinstance(value, Mapping) else value


class MapOf(AnyMap):
    """A table from names to values of one field type; the Python value is a dict."""

    def __init__(self, item: FieldType, key: FieldType | None = _NAME, *, expected: str = "a table") -> None:
        super().__init__(expected)
        self.item, self._key = item, key

    def read(self, raw: object) -> dict[str, object]:
        """Return all entries. Raises one FieldErrors with the faults of all keys, or of all values."""
        given = super().read(raw)
        if self._key is not None:
            gather((WrongKey(key), self._key.read, key) for key in given)
        return gather((key, self.item.read, value) for key, value in given.items())

    def dump(self, value: Any) -> object:
        """Return a dict of dumped entries."""
        return {k: self.item.dump(v) for k, v in value.items()} if isinstance(value, Mapping) else value


class Fields(AnyMap):
    """A table with a fixed set of optional keys, each with its own field type; at least one key is required."""

    def __init__(self, **kinds: FieldType) -> None:
        super().__init__(f"a table with at least one of {', '.join(kinds)}")
        self.kinds = kinds

    def read(self, raw: object) -> dict[str, object]:
        """Return the entries that are present. Raises one FieldErrors with the faults of all entries."""
        if not (given := super().read(raw)):
            raise self.wrong(raw)
        return gather((key, partial(self._one, key), value) for key, value in given.items())

    def _one(self, key: str, raw: object) -> object:
        if key not in self.kinds:
            raise self.wrong(raw, unknown_key(key, self.kinds))
        return self.kinds[key].read(raw)


class OneOrMore(FieldType):
    """One value of a field type, or an array of several; the Python value is the value or a tuple."""

    def __init__(self, item: FieldType) -> None:
        self.item, self._many = item, ListOf(item, least=1)
        self.expected = f"{item.expected}, or an array of such"
        self.example = item.example

    def read(self, raw: object) -> object:
        """Return the value, or a tuple of values."""
        return self._many.read(raw) if isinstance(raw, list) else self.item.read(raw)

    def dump(self, value: Any) -> object:
        """Return the dumped value, or a list of dumped values."""
        return self._many.dump(value) if isinstance(value, tuple) else self.item.dump(value)


class JsonValue(FieldType):
    """A value that JSON can hold: no date or time of TOML, no infinity, no NaN.

    Other parties read an integer beyond 2**53 as a double, which is then another integer.
    """

    expected = "what JSON can hold"

    def read(self, raw: object) -> object:
        """Return a copy of plain dicts and lists. Raises one FieldErrors with the faults of all parts."""
        if isinstance(raw, Mapping):
            for key in raw:
                if not isinstance(key, str):
                    said = f"expected a key that JSON can hold, got {show(key)}; write it as a string"
                    raise self.wrong(raw, said)
            return gather((key, self.read, value) for key, value in raw.items())
        if isinstance(raw, (list, tuple)):
            return list(gather((index, self.read, item) for index, item in enumerate(raw)).values())
        if isinstance(raw, (bool, str)) or (isinstance(raw, float) and isfinite(raw)):
            return raw
        if not isinstance(raw, int):
            raise self.wrong(raw, f"expected {self.expected}, got {show(raw)}; write it as a string")
        if abs(raw) > _LARGEST:
            raise self.wrong(raw, expected="an integer that JSON can hold, from -2^53 to 2^53")
        return raw


def gather(work: Iterable[tuple[Any, Callable[[Any], object], object]]) -> dict[Any, Any]:
    """Read every part, given as its key, its reader and its raw value, and return the values by their keys.

    Raises one FieldErrors with the faults of all parts.
    """
    values: dict[Any, Any] = {}
    problems: list[Problem] = []
    for where, read, raw in work:
        try:
            values[where] = read(raw)
        except FieldErrors as error:
            problems += [evolve(one, place=(where, *one.place)) for one in error.problems]
            if len(problems) >= _ENOUGH:
                break
    if problems:
        raise FieldErrors(problems)
    return values


def unknown_key(key: str, known: Iterable[str], *, packages: Iterable[str] = (), or_else: str = "") -> str:
    """Return the reason for refusing an unknown key, with the nearest known key or, if none is near, all keys.

    Keys of `packages` are only suggested, because they differ between machines; `or_else` ends the list of all keys.
    """
    names = list(known)
    near = suggest(key, [*names, *packages])
    return f"unknown key; {near or 'expected ' + ', '.join([*names, or_else] if or_else else names)}"


def kind_of(annotation: object) -> FieldType | None:
    """Return the field type that an `Annotated[...]` type carries, or None."""
    return next((extra for extra in get_args(annotation)[1:] if isinstance(extra, FieldType)), None)


def checked(_cls: type, fields: list[Attribute[Any]]) -> list[Attribute[Any]]:
    """Validate attributes by their field types (an attrs field_transformer); a None that is the default passes."""
    return [field.evolve(validator=_check) if kind_of(field.type) else field for field in fields]


def _check(instance: object, attribute: Attribute[Any], value: object) -> None:
    kind = kind_of(attribute.type)
    if kind is None or (value is None and attribute.default is None):
        return
    try:
        kind.check(value)
    except FieldErrors as error:
        raise ConfigError("\n".join(map(str, error.faults(f"{type(instance).__name__}.{attribute.name}")))) from None
