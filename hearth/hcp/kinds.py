"""The value types of HCP's tables, each read strictly from JSON and written back to it.

Nothing is coerced: true is not 1, "5" is not 5, 5.0 is no integer. A value of another type is a `MessageError` that
names the place, the expected type, the value, and the cure. A value type knows no message; `hearth.hcp.codec` has the
tables.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from attrs import NOTHING, Factory, field, fields, frozen

from hearth._util.text import nearest
from hearth.errors import HearthError
from hearth.hcp.messages import read_duration, read_instant, write_duration, write_instant
from hearth.protocol.jsonrpc import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime, timedelta

MAX_SAFE = (1 << 53) - 1
"""Integers beyond this do not survive a peer that reads numbers as doubles."""
ELIDED = "..."
"""Placeholder of the pages' examples for an id or an instant."""

T = TypeVar("T")
_SHOWN = 60


class MessageError(HearthError):
    """A document that is not a valid message.

    `pointer` is the JSON pointer of the member at fault ("" for the whole), `reason` says what was expected and what
    was found, `suggestion` is the cure; `message_id` is the document's own where one could be read, and `code` the
    `reason_code` of the task_rejected that answers it.
    """

    def __init__(
        self,
        pointer: str,
        reason: str,
        *,
        message_id: str | None = None,
        code: str = "invalid_message",
        suggestion: str | None = None,
    ) -> None:
        self.pointer = pointer
        self.reason = reason
        self.message_id = message_id
        self.code = code
        self.suggestion = suggestion
        super().__init__(f"{pointer or 'the message'}: {reason}")


class ValueType(Protocol[T]):
    """One type of value."""

    @property
    def expected(self) -> str:
        """Return its name, to complete "expected …"."""
        ...

    @property
    def example(self) -> str:
        """Return an example as JSON, for a cure."""
        ...

    def read(self, value: Any, at: str) -> T:
        """Return the value of a JSON value at this pointer. Raises MessageError."""
        ...

    def write(self, value: T) -> Any:
        """Return the JSON value that reads back as it."""
        ...


def type_error(kind: ValueType[Any], value: Any, at: str) -> MessageError:
    """Return the error for a value of another type."""
    cure = f"give {named(at)} {kind.expected}, for example {kind.example}"
    if type(value) is str and re.fullmatch(r"-?[0-9.]+|true|false", value) and kind.example[:1] != '"':
        cure = f"write the value of {named(at)} without quotes: {kind.example}"
    return MessageError(at, f"expected {kind.expected}, got {shown(value)}", suggestion=cure)


def shown(value: Any) -> str:
    """Return a JSON value for a message: its type, and the value where it is short."""
    if type(value) is int and abs(value) > MAX_SAFE:
        return "an integer beyond what a double holds"
    if value is None or type(value) is bool:
        return json.dumps(value)
    if type(value) is str and len(json.dumps(value[:_SHOWN])) > _SHOWN:
        return f"a string of {len(value)} characters"
    return f"{_kind(value)} ({json.dumps(value)})" if type(value) in (int, float, str) else _kind(value)


def _kind(value: Any) -> str:
    kind = kind_of(value)
    return f"a Python {type(value).__name__}" if kind == "?" else kind


def named(at: str) -> str:
    """Return a place in words."""
    return at or "the message"


class _Plain:
    """A type whose values are the same in the program as in JSON."""

    __slots__ = ()

    def write(self, value: Any) -> Any:
        """See ValueType."""
        return value


@frozen
class Text(_Plain):
    """A string of at least one character: an empty name names nothing."""

    example: str = '"..."'
    most: int = 1 << 20
    least: int = 1
    expected: str = "a string"

    def read(self, value: Any, at: str) -> str:
        """See ValueType."""
        if type(value) is not str:
            raise type_error(self, value, at)
        if not self.least <= len(value) <= self.most:
            bound = f"at most {self.most} characters" if value else "at least one character"
            cure = f"give {at} a string such as {self.example}"
            raise MessageError(at, f"expected {bound}, got {len(value)}", suggestion=cure)
        return value


@frozen
class Identifier(_Plain):
    """A peer's own name for a message or a session: 1 to 200 printable characters (decision 0068)."""

    example: str = '"550e8400-e29b-41d4-a716-446655440000"'
    expected: str = "a string of 1 to 200 printable characters"

    def read(self, value: Any, at: str) -> str:
        """See ValueType."""
        if type(value) is not str or not 1 <= len(value) <= 200 or not value.isprintable():
            raise type_error(self, value, at)
        return value


@frozen
class Choice(_Plain):
    """One of a few strings; letter case counts."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        """Return the choices."""
        return ", ".join(f'"{word}"' for word in self.words[:-1]) + f' or "{self.words[-1]}"'

    @property
    def example(self) -> str:
        """Return the first."""
        return f'"{self.words[0]}"'

    def read(self, value: Any, at: str) -> Any:
        """See ValueType."""
        if type(value) is not str or value not in self.words:
            near = self._near(value) if type(value) is str else None
            cure = f'did you mean "{near}" at {at}?' if near else f"write {self.expected} at {at}"
            raise MessageError(at, f"expected {self.expected}, got {shown(value)}", suggestion=cure)
        return value

    def _near(self, value: str) -> str | None:
        """Return the intended choice, if one is close in either case."""
        by_lower = {word.lower(): word for word in self.words}
        found = nearest(value[:_SHOWN].lower(), by_lower, 1)
        return by_lower[found[0]] if found else None


@frozen
class Flag(_Plain):
    """true or false."""

    expected: str = "true or false"
    example: str = "true"

    def read(self, value: Any, at: str) -> bool:
        """See ValueType."""
        if type(value) is not bool:
            raise type_error(self, value, at)
        return value


@frozen
class Integer(_Plain):
    """A whole number that a double holds exactly. 5.0 is refused."""

    least: int = 0
    most: int = MAX_SAFE
    example: str = "1"

    @property
    def expected(self) -> str:
        """With its bounds."""
        return f"an integer ≥ {self.least}" if self.most == MAX_SAFE else f"an integer {self.least} to {self.most}"

    def read(self, value: Any, at: str) -> int:
        """See ValueType."""
        if type(value) is not int or not self.least <= value <= self.most:
            raise type_error(self, value, at)
        return value


@frozen
class Number(_Plain):
    """A finite number from `least` to `most`."""

    least: float = -math.inf
    most: float = math.inf
    example: str = "0.95"

    @property
    def expected(self) -> str:
        """With its bounds."""
        return "a number" if self.least == -math.inf else f"a number from {self.least:g} to {self.most:g}"

    def read(self, value: Any, at: str) -> float:
        """See ValueType."""
        # Neither NaN, which compares as false, nor an infinity, though no document from outside holds one.
        if type(value) not in (int, float) or not self.least <= value <= self.most or value in (math.inf, -math.inf):
            raise type_error(self, value, at)
        return value  # type: ignore[no-any-return]


@frozen
class Duration:
    """An ISO 8601 duration of a fixed length."""

    least: timedelta
    expected: str = "an ISO 8601 duration"
    example: str = '"PT10M"'

    def read(self, value: Any, at: str) -> timedelta:
        """See ValueType."""
        if type(value) is not str:
            raise type_error(self, value, at)
        try:
            return read_duration(value, least=self.least)
        except ValueError as error:
            cure = f'write a duration such as "PT10M" or "P3DT12H" at {at}: P, days, T, hours, minutes, seconds'
            raise MessageError(at, str(error), suggestion=cure) from None

    def write(self, value: timedelta) -> str:
        """See ValueType."""
        return write_duration(value)


@frozen
class Instant:
    """A date and time in UTC by ISO 8601; "..." is None where that is allowed."""

    elidable: bool = False
    expected: str = "an ISO 8601 date and time in UTC"
    example: str = '"2025-01-15T08:30:00.000Z"'

    def read(self, value: Any, at: str) -> datetime | None:
        """See ValueType."""
        if self.elidable and value == ELIDED:
            return None
        if type(value) is not str:
            raise type_error(self, value, at)
        try:
            return read_instant(value)
        except ValueError as error:
            cure = f"write the date and time in UTC at {at}, with Z at its end, for example {self.example}"
            raise MessageError(at, str(error), suggestion=cure) from None

    def write(self, value: datetime | None) -> str:
        """See ValueType."""
        return ELIDED if value is None else write_instant(value)


@frozen
class Anything(_Plain):
    """Any JSON value."""

    expected: str = "a JSON value"
    example: str = "null"

    def read(self, value: Any, at: str) -> Any:
        """See ValueType."""
        return value


# --- arrays and objects of HCP's tables
# --- arrays and objects of HCP's tables -------------------------------------------------------------------------------
#
# Their members are read strictly, one by one, and written back. Unknown members are ignored at every level, because a
# later minor version may add some.

_LONGEST_NAME = 60
_COMPARED = 32


@frozen
class Checked(_Plain):
    """A value that is checked against a type and passed on unchanged, with members that its sender added."""

    kind: ValueType[Any]

    @property
    def expected(self) -> str:
        """Return the type's."""
        return self.kind.expected

    @property
    def example(self) -> str:
        """Return the type's."""
        return self.kind.example

    def read(self, value: Any, at: str) -> Any:
        """See ValueType."""
        self.kind.read(value, at)
        return value


@frozen
class Free:
    """An object with any members; passed on unchanged."""

    expected: str = "an object"
    example: str = "{}"

    def read(self, value: Any, at: str) -> dict[str, Any]:
        """See ValueType."""
        if type(value) is not dict:
            raise type_error(self, value, at)
        return value

    def write(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """See ValueType."""
        return dict(value)


@frozen
class ListOf(Generic[T]):
    """An array of values of one type; the program gets a tuple."""

    item: ValueType[T]

    @property
    def expected(self) -> str:
        """Return its name with the type of its items."""
        return f"an array, each item {self.item.expected}"

    @property
    def example(self) -> str:
        """One item."""
        return f"[{self.item.example}]"

    def read(self, value: Any, at: str) -> tuple[T, ...]:
        """See ValueType."""
        if type(value) is not list:
            raise type_error(self, value, at)
        return tuple([self.item.read(item, f"{at}/{index}") for index, item in enumerate(value)])

    def write(self, value: tuple[T, ...]) -> list[Any]:
        """See ValueType."""
        return [self.item.write(item) for item in value]


@frozen
class MapOf(Generic[T]):
    """An object with names of the sender's own and values of one type."""

    item: ValueType[T]
    example: str = "{}"

    @property
    def expected(self) -> str:
        """Return its name with the type of its values."""
        return f"an object, each value {self.item.expected}"

    def read(self, value: Any, at: str) -> dict[str, T]:
        """See ValueType."""
        if type(value) is not dict:
            raise type_error(self, value, at)
        return {str(name): self.item.read(item, step(at, str(name))) for name, item in value.items()}

    def write(self, value: Mapping[str, T]) -> dict[str, Any]:
        """See ValueType."""
        return {name: self.item.write(item) for name, item in value.items()}


def step(at: str, name: str) -> str:
    """The pointer to a member of what `at` points to (RFC 6901)."""
    return f"{at}/{name.replace('~', '~0').replace('/', '~1')}"


@frozen
class Table(Generic[T]):
    """An object of one of the pages' tables, and the class that holds it.

    A `required` member must be present and not null. An `optional` one that is absent or null has the class's default,
    and is left out when written, unless it is one of `always`.
    """

    make: Callable[..., T]
    required: Mapping[str, ValueType[Any]]
    optional: Mapping[str, ValueType[Any]] = field(factory=dict)
    always: frozenset[str] = frozenset()
    expected: str = "an object"

    @property
    def example(self) -> str:
        """With what is required."""
        return "{" + ", ".join(f'"{name}": {kind.example}' for name, kind in self.required.items()) + "}"

    def read(self, value: Any, at: str) -> T:
        """See ValueType."""
        return self.make(**self.members(value, at))

    def members(self, value: Any, at: str) -> dict[str, Any]:
        """Read the members of an object that the table has. Raises MessageError."""
        if type(value) is not dict:
            raise type_error(self, value, at)
        found: dict[str, Any] = {}
        for name, kind in self.required.items():
            if name not in value:
                raise missing(name, kind, value, at)
            found[name] = kind.read(value[name], f"{at}/{name}")
        for name, kind in self.optional.items():
            if (given := value.get(name)) is not None:
                found[name] = kind.read(given, f"{at}/{name}")
        return found

    def write(self, value: T) -> dict[str, Any]:
        """See ValueType."""
        return dict(self._written(value))

    def _written(self, value: T) -> Iterator[tuple[str, Any]]:
        made: Any = type(value)
        absent = _defaults(made)
        for name, kind in (*self.required.items(), *self.optional.items()):
            member = getattr(value, name)
            if name not in absent or name in self.always or member != absent[name]:
                yield name, kind.write(member)


@cache
def _defaults(made: type) -> Mapping[str, Any]:
    """Return the defaults of the optional members of an attrs class."""
    return {
        each.name: each.default.factory() if isinstance(each.default, Factory) else each.default  # type: ignore[arg-type]
        for each in fields(made)
        if each.default is not NOTHING
    }


def missing(name: str, kind: ValueType[Any], value: Mapping[str, Any], at: str) -> MessageError:
    """Return the error for a required member that is absent."""
    cure = f'add "{name}" to {named(at)}: {kind.expected}, for example {kind.example}'
    # The first few: comparing names takes time, and there may be thousands.
    unknown_members = [key for key in islice(value, _COMPARED) if type(key) is str and len(key) <= _LONGEST_NAME]
    if near := nearest(name, unknown_members, 1, 0.8):
        cure = f'write "{name}" where {named(at)} has {json.dumps(near[0])}'
    return MessageError(f"{at}/{name}", f"expected {kind.expected}, but there is no such member", suggestion=cure)
