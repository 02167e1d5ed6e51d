"""Field types: the accepted TOML values, the resulting Python values, and the error messages for all others.

Nothing is coerced: "5" is not a number, 1 is not a truth value, 660 is not a mode. A field type knows no key, section
or file. It is attached to an attribute as `Annotated[float, Number(gt=0)]`. The loader (`hearth.config.file`) and the
attrs classes (`checked`) both take it from there, so that a Config built in Python keeps the rules of one from a file.

A mistake in a capability: its place, its key, and the cure. All checks at start-up collect these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from attrs import frozen

from hearth._util.text import suggest
from hearth._util.toml import dump_key, show
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attrs import Attribute

_LARGEST: Final = 2**53
"""The largest integer that a JSON number holds exactly, and with it all smaller ones."""


class FieldErrors(ValueError):
    """A value that does not fit its field type; `problems` has a (place in the value, reason) pair for each fault."""

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{where}: {why}" if where else why for where, why in self.problems))


class FieldType:
    """One type of value. `expected` completes the sentence "expected …, got …"."""

    expected = "a value"

    def read(self, raw: object) -> object:
        """Return the Python value for a TOML value. Raises FieldErrors."""
        raise NotImplementedError

    def dump(self, value: object) -> object:
        """Return the TOML value that reads back as `value`; an unsuitable value passes unchanged: `read` refuses it."""
        return value

    def check(self, value: object) -> None:
        """Check a value that was built in Python by the same rules, its type included. Raises FieldErrors."""
        if (right := self.read(self.dump(value))) != value:
            raise FieldErrors([("", f"expected {self.expected} as {type(right).__name__}, got {value!r}")])

    def wrong(self, raw: object) -> FieldErrors:
        """Return the error for a value that is wrong as a whole."""
        return FieldErrors([("", f"expected {self.expected}, got {show(raw)}")])


class Flag(FieldType):
    """A truth value: true or false."""

    expected = "true or false"

    def read(self, raw: object) -> bool:
        """Return a truth value; 0 and 1 are refused, because they are numbers."""
        if not isinstance(raw, bool):
            raise self.wrong(raw)
        return raw


class Integer(FieldType):
    """A whole number within bounds; the default upper bound is the largest that a JSON number holds exactly."""

    def __init__(self, ge: int, le: int = _LARGEST) -> None:
        self._ge, self._le = ge, le
        self.expected = f"an integer ≥ {ge}" if le == _LARGEST else f"an integer from {ge} to {le}"

    def read(self, raw: object) -> int:
        """Return an integer; truth values are refused."""
        if not isinstance(raw, int) or isinstance(raw, bool) or raw < self._ge:
            raise self.wrong(raw)
        if raw > self._le:
            # Without a bound of its own, `expected` does not name the largest.
            words = f"at most {_LARGEST}" if self._le == _LARGEST else self.expected
            raise FieldErrors([("", f"expected {words}, got {show(raw)}")])
        return raw


class Number(FieldType):
    """A finite number, greater than `gt` or at least `ge`, and at most `le` (1e9 seconds are thirty years)."""

    def __init__(self, *, gt: float | None = None, ge: float = 0, le: float = 1e9) -> None:
        self._above, self._least, self._le = gt, ge, le
        self.expected = f"a number ≥ {ge:g}" if gt is None else f"a number > {gt:g}"

    def read(self, raw: object) -> float:
        """Return an integer or a float, as written."""
        # NaN is found by `raw != raw`: math.isnan raises OverflowError for an integer beyond every double.
        if not isinstance(raw, (int, float)) or isinstance(raw, bool) or raw != raw:
            raise self.wrong(raw)
        if raw < self._least if self._above is None else raw <= self._above:
            raise self.wrong(raw)
        if raw > self._le:
            raise FieldErrors([("", f"expected at most {self._le:.0f}, got {show(raw)}")])
        return raw


class Text(FieldType):
    """A non-empty string, optionally of a given form."""

    def __init__(self, expected: str = "a non-empty string", form: str = "(?s:.+)", *, limit: int = 4096) -> None:
        self.expected = expected
        self._form, self._limit = re.compile(form), limit

    def read(self, raw: object) -> str:
        """Return a string without NUL and lone surrogates: neither an argv, nor a path, nor TOML can hold those."""
        if not isinstance(raw, str) or not self._form.fullmatch(raw) or re.search("[\0\ud800-\udfff]", raw):
            raise self.wrong(raw)
        if len(raw) > self._limit:
            raise FieldErrors([("", f"expected at most {self._limit} characters, got {len(raw)}")])
        return raw


class Choice(FieldType):
    """One of a few words or numbers."""

    def __init__(self, *options: str | float) -> None:
        self._options = options
        words = [f'"{option}"' if isinstance(option, str) else f"{option}" for option in options]
        self.expected = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))

    def read(self, raw: object) -> str | float:
        """Return the option unchanged; the comparison is case-sensitive, and true is not 1."""
        for option in self._options:
            if raw == option and type(raw) is type(option):
                return option
        raise self.wrong(raw)


class AbsolutePath(FieldType):
    """An absolute path: the files of a daemon must not depend on its working directory or its user."""

    expected = "an absolute path"

    def __init__(self, *, max_bytes: int = 4095) -> None:
        self._max_bytes = max_bytes

    def read(self, raw: object) -> Path:
        """Return the path, not resolved: it need not exist yet."""
        if not isinstance(raw, str) or not raw.startswith("/"):
            raise self.wrong(raw)
        text = Text().read(raw)
        if (size := len(text.encode())) > self._max_bytes:
            raise FieldErrors([("", f"expected a path of at most {self._max_bytes} bytes, got {size}")])
        return Path(text)

    def dump(self, value: object) -> object:
        """Return the path as a string."""
        return str(value) if isinstance(value, Path) else value


class Mode(FieldType):
    """A file mode, in TOML a string of octal digits: the number 660 would silently be 0o1224."""

    expected = 'a string of octal digits such as "0660"'

    def read(self, raw: object) -> int:
        """Return the permission bits."""
        if not isinstance(raw, str) or not re.fullmatch("0?[0-7]{3}", raw):
            raise self.wrong(raw)
        return int(raw, 8)

    def dump(self, value: object) -> object:
        """Return four octal digits."""
        return f"{value:04o}" if isinstance(value, int) and not isinstance(value, bool) else value


class ListOf(FieldType):
    """An array whose elements all have one field type; the Python value is a tuple."""

    def __init__(self, item: FieldType, *, least: int = 0) -> None:
        self.item, self._least = item, least
        self.expected = f"an array of at least {least}" if least else "an array"

    def read(self, raw: object) -> tuple[object, ...]:
        """Return all elements. Raises one FieldErrors with the faults of all elements."""
        if not isinstance(raw, list) or len(raw) < self._least:
            raise self.wrong(raw)
        return tuple(_gather((f"[{i}]", self.item.read, item) for i, item in enumerate(raw)))

    def check(self, value: object) -> None:
        """Check a tuple and its elements; a list is refused, because it could change inside a frozen configuration."""
        if not isinstance(value, tuple):
            raise FieldErrors([("", f"expected {self.expected} as tuple, got {value!r}")])
        super().check(value)

    def dump(self, value: object) -> object:
        """Return a list of dumped elements."""
        return [self.item.dump(item) for item in value] if isinstance(value, tuple) else value


class TableOf(FieldType):
    """A table from names to values of one field type; the Python value is a dict."""

    expected = "a table"

    def __init__(self, item: FieldType, key: FieldType | None = None) -> None:
        self.item, self._key = item, key or Text()

    def read(self, raw: object) -> dict[str, object]:
        """Return all entries. Raises one FieldErrors with the faults of all entries."""
        if not isinstance(raw, Mapping):
            raise self.wrong(raw)
        _gather((f" key {show(key)}", self._key.read, key) for key in raw)
        values = _gather((f".{dump_key(key)}", self.item.read, value) for key, value in raw.items())
        return dict(zip(raw, values, strict=True))

    def dump(self, value: object) -> object:
        """Return a dict of dumped entries."""
        return {k: self.item.dump(v) for k, v in value.items()} if isinstance(value, Mapping) else value


class Secret(Text):
    """A string that error messages do not repeat: a user may have put the secret where its digest belongs."""

    def wrong(self, raw: object) -> FieldErrors:
        """Return the error, without the value."""
        return FieldErrors([("", f"expected {self.expected}, got something else")])


class Fields(FieldType):
    """A table with a fixed set of optional keys, each with its own field type; at least one key is required."""

    def __init__(self, **kinds: FieldType) -> None:
        self.kinds = kinds
        self.expected = f"a table with at least one of {', '.join(kinds)}"

    def read(self, raw: object) -> dict[str, object]:
        """Return the entries that are present. Raises one FieldErrors with the faults of all entries."""
        if not isinstance(raw, Mapping) or not raw:
            raise self.wrong(raw)
        work = ((f".{dump_key(key)}", partial(self._one, key), value) for key, value in raw.items())
        return dict(zip(raw, _gather(work), strict=True))

    def _one(self, key: str, raw: object) -> object:
        if key not in self.kinds:
            raise FieldErrors([("", unknown_key(key, self.kinds))])
        return self.kinds[key].read(raw)


class OneOrMore(FieldType):
    """One value of a field type, or an array of several; the Python value is the value or a tuple."""

    def __init__(self, item: FieldType) -> None:
        self.item, self._many = item, ListOf(item, least=1)
        self.expected = f"{item.expected}, or an array of such"

    def read(self, raw: object) -> object:
        """Return the value, or a tuple of values."""
        return self._many.read(raw) if isinstance(raw, list) else self.item.read(raw)

    def dump(self, value: object) -> object:
        """Return the dumped value, or a list of dumped values."""
        return self._many.dump(value) if isinstance(value, tuple) else self.item.dump(value)


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the reason for refusing an unknown key, with the nearest known key or, if none is near, all keys."""
    names = list(known)
    return f"unknown key; {suggest(key, names) or 'expected ' + ', '.join(names)}"


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
    except FieldErrors as mismatch:
        name = f"{type(instance).__name__}.{attribute.name}"
        raise ConfigError("\n".join(f"{name}{where}: {why}" for where, why in mismatch.problems)) from None


def _gather(work: Iterable[tuple[str, Callable[[Any], object], object]]) -> list[object]:
    """Read every part; raise one FieldErrors that names all wrong parts if any is wrong."""
    values: list[object] = []
    problems: list[tuple[str, str]] = []
    for where, read, raw in work:
        try:
            values.append(read(raw))
        except FieldErrors as mismatch:
            problems += [(where + inner, why) for inner, why in mismatch.problems]
    if problems:
        raise FieldErrors(problems)
    return values


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


def join(path: str, key: str) -> str:
    """Return the path of a key within a table."""
    return f"{path}.{dump_key(key)}" if path else dump_key(key)


def near(name: str, there: Iterable[str]) -> str:
    """Return a suffix for a fault that suggests the nearest of the valid names, or ""."""
    said = suggest(name, there, show=repr)
    return f"; {said}" if said else ""


# --- tables of a capability file
# --- tables of a capability file --------------------------------------------------------------------------------------
#
# From a TOML table to values and a list of faults, each with its key path and the cure. Reading goes on after a fault,
# so that the author sees all of them at once. Unknown keys and values that JSON cannot express are faults, because a
# plan's values go to callers and into the audit log. The value types are those of hearth.toml (`hearth.fields`).

REQUIRED: Final = object()


class Table:
    """One table and its path. A getter that fails adds to the list of faults and returns None."""

    def __init__(self, content: Mapping[str, Any], path: str, faults: list[Fault]) -> None:
        self.content = content
        self._path = path
        self._known: list[str] = []
        self.faults = faults

    def at(self, key: str) -> str:
        """Return the path of a key of this table."""
        return join(self._path, key)

    def fault(self, key: str, why: str) -> None:
        """Add a fault."""
        self.faults.append(Fault(self.at(key), why))

    def take(self, key: str, kind: FieldType, default: Any = REQUIRED) -> Any:
        """Return the value, read by its type; the default where it is absent, None where it is wrong."""
        self._known.append(key)
        if key not in self.content:
            if default is REQUIRED:
                self.fault(key, f"missing; it takes {kind.expected}")
                return None
            return default
        try:
            return kind.read(self.content[key])
        except FieldErrors as mismatch:
            self.faults += [Fault(self.at(key) + where, why) for where, why in mismatch.problems]
            return None

    def mapping(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a table within, unread."""
        return self.take(key, _Mapping(), default)

    def table(self, key: str, *, required: bool = True) -> Table:
        """Return a table within; where it is absent, an empty one whose faults are not reported."""
        content = self.mapping(key, REQUIRED if required else {})
        return Table(content or {}, self.at(key), self.faults if content is not None else [])

    def tables(self, key: str) -> Iterator[Table]:
        """Each table of an array of them, which may be left out."""
        self._known.append(key)
        given = self.content.get(key, [])
        if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
            self.fault(key, f"expected an array of tables, written as [[{self.at(key)}]]; got {show(given)}")
            return
        for index, one in enumerate(given):
            yield Table(one, f"{self.at(key)}[{index}]", self.faults)

    def done(self, also: Sequence[str] = ()) -> None:
        """Add a fault for each unknown key; `also` are keys that other code reads."""
        known = [*self._known, *also]
        for key in self.content:
            if key not in known:
                self.fault(key, unknown_key(key, known))


class _Mapping(FieldType):
    expected = "a table"

    def read(self, raw: object) -> Mapping[str, Any]:
        if not isinstance(raw, Mapping):
            raise self.wrong(raw)
        return raw


def json_faults(value: object, path: str = "") -> Iterator[Fault]:
    """Yield a fault for each value without JSON: TOML's dates and times, inf, nan, and the largest integers.

    Other parties read integers beyond 2**53 as doubles, which are then other integers.
    """
    if isinstance(value, Mapping):
        for key, member in value.items():
            if isinstance(key, str):
                yield from json_faults(member, join(path, key))
            else:
                yield Fault(path, f"expected a key that JSON can hold, got {show(key)}; write it as a string")
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from json_faults(member, f"{path}[{index}]")
    elif isinstance(value, (bool, str)) or (isinstance(value, float) and isfinite(value)):
        return
    elif not isinstance(value, int):
        yield Fault(path, f"expected what JSON can hold, got {show(value)}; write it as a string")
    elif abs(value) > _LARGEST:
        yield Fault(path, f"expected an integer that JSON can hold, from -2^53 to 2^53, got {show(value)}")
