"""The kinds of value a configuration holds: what TOML may say, what the program gets, words for a mismatch.

Nothing is coerced: "5" is no number, 1 is no truth value, 660 is no mode. A kind knows no key, section or
file; it is attached to an attribute as `Annotated[float, Number(gt=0)]`, from where both the loader
(`hearth.config.file`) and the attrs classes themselves (`checked`) take it, so that a Config built in Python
keeps the rules of one from a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hearth._util.text import suggest
from hearth._util.toml import dump_key, show
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from attrs import Attribute


class FieldErrors(ValueError):
    """A value that is not of its kind: (where inside the value, reason) pairs, all that were found."""

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{where}: {why}" if where else why for where, why in self.problems))


class FieldType:
    """One kind of value. `expected` completes the sentence "expected …, got …"."""

    expected = "a value"

    def read(self, raw: object) -> object:
        """The program's value for a TOML value. Raises Mismatch."""
        raise NotImplementedError

    def dump(self, value: object) -> object:
        """The TOML value that reads back as `value`; anything unsuitable passes, for `read` to refuse."""
        return value

    def check(self, value: object) -> None:
        """Hold a value built in Python to the same rules, its type included. Raises Mismatch."""
        if (right := self.read(self.dump(value))) != value:
            raise FieldErrors([("", f"expected {self.expected} as {type(right).__name__}, got {value!r}")])

    def wrong(self, raw: object) -> FieldErrors:
        """The mismatch of a whole value."""
        return FieldErrors([("", f"expected {self.expected}, got {show(raw)}")])


class Flag(FieldType):
    """true or false."""

    expected = "true or false"

    def read(self, raw: object) -> bool:
        """A truth value; 0 and 1 are numbers."""
        if not isinstance(raw, bool):
            raise self.wrong(raw)
        return raw


class Integer(FieldType):
    """A whole number within bounds; the upper one is by default what a JSON number holds exactly."""

    def __init__(self, ge: int, le: int = 2**53) -> None:
        self._ge, self._le = ge, le
        self.expected = f"an integer ≥ {ge}" if le == 2**53 else f"an integer from {ge} to {le}"

    def read(self, raw: object) -> int:
        """An integer; truth values are none."""
        if not isinstance(raw, int) or isinstance(raw, bool) or raw < self._ge:
            raise self.wrong(raw)
        if raw > self._le:
            raise FieldErrors([("", f"expected at most {self._le}, got {show(raw)}")])
        return raw


class Number(FieldType):
    """A finite number, greater than `gt` or at least `ge`, and at most `le`: 1e9 seconds are thirty years."""

    def __init__(self, *, gt: float | None = None, ge: float = 0, le: float = 1e9) -> None:
        self._above, self._least, self._le = gt, ge, le
        self.expected = f"a number ≥ {ge:g}" if gt is None else f"a number > {gt:g}"

    def read(self, raw: object) -> float:
        """An integer or a float, as written."""
        # Compared with itself, and not by math.isnan: a whole number may be past every double.
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
        """A string without NUL or lone surrogates: neither an argv, nor a path, nor TOML can hold those."""
        if not isinstance(raw, str) or not self._form.fullmatch(raw) or re.search("[\0\ud800-\udfff]", raw):
            raise self.wrong(raw)
        if len(raw) > self._limit:
            raise FieldErrors([("", f"expected at most {self._limit} characters, got {len(raw)}")])
        return raw


class Choice(FieldType):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.expected = ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'

    def read(self, raw: object) -> str:
        """The word as it is; letter case counts."""
        if not isinstance(raw, str) or raw not in self._words:
            raise self.wrong(raw)
        return raw


class AbsolutePath(FieldType):
    """An absolute path: what a daemon may touch must not depend on where or by whom it was started."""

    expected = "an absolute path"

    def __init__(self, *, max_bytes: int = 4095) -> None:
        self._max_bytes = max_bytes

    def read(self, raw: object) -> Path:
        """The path, not resolved: it need not exist yet."""
        if not isinstance(raw, str) or not raw.startswith("/"):
            raise self.wrong(raw)
        text = Text().read(raw)
        if (size := len(text.encode())) > self._max_bytes:
            raise FieldErrors([("", f"expected a path of at most {self._max_bytes} bytes, got {size}")])
        return Path(text)

    def dump(self, value: object) -> object:
        """The path as a string."""
        return str(value) if isinstance(value, Path) else value


class Mode(FieldType):
    """A file mode. TOML says it as a string of octal digits: the number 660 would silently be 0o1224."""

    expected = 'a string of octal digits such as "0660"'

    def read(self, raw: object) -> int:
        """The permission bits."""
        if not isinstance(raw, str) or not re.fullmatch("0?[0-7]{3}", raw):
            raise self.wrong(raw)
        return int(raw, 8)

    def dump(self, value: object) -> object:
        """Four octal digits."""
        return f"{value:04o}" if isinstance(value, int) and not isinstance(value, bool) else value


class ListOf(FieldType):
    """An array whose elements are all of one kind; the program gets a tuple."""

    def __init__(self, item: FieldType, *, least: int = 0) -> None:
        self.item, self._least = item, least
        self.expected = f"an array of at least {least}" if least else "an array"

    def read(self, raw: object) -> tuple[object, ...]:
        """All elements, or all that is wrong with them."""
        if not isinstance(raw, list) or len(raw) < self._least:
            raise self.wrong(raw)
        return tuple(_gather((f"[{i}]", self.item.read, item) for i, item in enumerate(raw)))

    def check(self, value: object) -> None:
        """A tuple whose elements keep the rules: a list could be changed behind a frozen configuration's back."""
        if not isinstance(value, tuple):
            raise FieldErrors([("", f"expected {self.expected} as tuple, got {value!r}")])
        super().check(value)

    def dump(self, value: object) -> object:
        """A list of dumped elements."""
        return [self.item.dump(item) for item in value] if isinstance(value, tuple) else value


class TableOf(FieldType):
    """A table from names to values of one kind; the program gets a dict."""

    expected = "a table"

    def __init__(self, item: FieldType, key: FieldType | None = None) -> None:
        self.item, self._key = item, key or Text()

    def read(self, raw: object) -> dict[str, object]:
        """All entries, or all that is wrong with them."""
        if not isinstance(raw, Mapping):
            raise self.wrong(raw)
        _gather((f" key {show(key)}", self._key.read, key) for key in raw)
        values = _gather((f".{dump_key(key)}", self.item.read, value) for key, value in raw.items())
        return dict(zip(raw, values, strict=True))

    def dump(self, value: object) -> object:
        """A dict of dumped entries."""
        return {k: self.item.dump(v) for k, v in value.items()} if isinstance(value, Mapping) else value


class Secret(Text):
    """A string that messages do not repeat: a mistaken digest may be the secret itself."""

    def wrong(self, raw: object) -> FieldErrors:
        """The mismatch, without the value."""
        return FieldErrors([("", f"expected {self.expected}, got something else")])


class Fields(FieldType):
    """A table with a fixed set of optional keys, each of its own kind; at least one must be there."""

    def __init__(self, **kinds: FieldType) -> None:
        self.kinds = kinds
        self.expected = f"a table with at least one of {', '.join(kinds)}"

    def read(self, raw: object) -> dict[str, object]:
        """The entries that are there, or all that is wrong with them."""
        if not isinstance(raw, Mapping) or not raw:
            raise self.wrong(raw)
        work = ((f".{dump_key(key)}", partial(self._one, key), value) for key, value in raw.items())
        return dict(zip(raw, _gather(work), strict=True))

    def _one(self, key: str, raw: object) -> object:
        if key not in self.kinds:
            raise FieldErrors([("", unknown_key(key, self.kinds))])
        return self.kinds[key].read(raw)


class OneOrMore(FieldType):
    """One value of a kind, or an array of several; the program gets the value or a tuple."""

    def __init__(self, item: FieldType) -> None:
        self.item, self._many = item, ListOf(item, least=1)
        self.expected = f"{item.expected}, or an array of such"

    def read(self, raw: object) -> object:
        """The value, or all of them."""
        return self._many.read(raw) if isinstance(raw, list) else self.item.read(raw)

    def dump(self, value: object) -> object:
        """The dumped value, or a list of them."""
        return self._many.dump(value) if isinstance(value, tuple) else self.item.dump(value)


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The reason against a key that nobody reads, with the nearest known one or, failing that, all."""
    names = list(known)
    return f"unknown key; {suggest(key.lower(), names) or 'expected ' + ', '.join(names)}"


def kind_of(annotation: object) -> FieldType | None:
    """The kind that an `Annotated[...]` type carries, or None."""
    return next((extra for extra in get_args(annotation)[1:] if isinstance(extra, FieldType)), None)


def checked(_cls: type, fields: list[Attribute[Any]]) -> list[Attribute[Any]]:
    """An attrs field_transformer that holds attributes to their kinds; a None that is the default passes."""
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
    """Read every part; raise one Mismatch that names them all when any is wrong."""
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
