"""The kinds of value that HCP's tables know, each read strictly from JSON and written back to it.

Nothing is coerced: true is not 1, "5" is not 5, 5.0 is no integer. What does not fit is a `MessageError` that names the
place, what was expected there, what was there, and the cure. A kind knows no message; `hearth.hcp.payloads` has the
tables, and `hearth.hcp.shapes` the kinds that are made of others.
"""

from __future__ import annotations

import json
import math
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from attrs import frozen

from hearth.errors import HearthError
from hearth.hcp.values import (
    read_duration,
    read_instant,
    write_duration,
    write_instant,
)
from hearth.protocol.jsonrpc import kind_of

if TYPE_CHECKING:
    from datetime import datetime, timedelta

MAX_SAFE = (1 << 53) - 1
"""Integers beyond this do not survive a peer that reads numbers as doubles."""
ELIDED = "..."
"""What the pages' examples have where an id or an instant goes."""

T = TypeVar("T")
_SHOWN = 60


class MessageError(HearthError):
    """A document that is not the message it should be.

    `pointer` is the JSON pointer of the member at fault ("" for the whole), `reason` says what was expected there and
    what was there, `suggestion` what to do; `message_id` is the document's own where one could be read, and `code` the
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


class Kind(Protocol[T]):
    """One kind of value."""

    @property
    def expected(self) -> str:
        """It in words, to complete "expected …"."""
        ...

    @property
    def example(self) -> str:
        """One as JSON, for a cure."""
        ...

    def read(self, value: Any, at: str) -> T:
        """The value that a JSON value at this pointer stands for. Raises MessageError."""
        ...

    def write(self, value: T) -> Any:
        """The JSON value that reads back as it."""
        ...


def wrong(kind: Kind[Any], value: Any, at: str) -> MessageError:
    """What to raise for a value that is not of its kind."""
    cure = f"give {named(at)} {kind.expected}, for example {kind.example}"
    if type(value) is str and re.fullmatch(r"-?[0-9.]+|true|false", value) and kind.example[:1] != '"':
        cure = f"write the value of {named(at)} without quotes: {kind.example}"
    return MessageError(at, f"expected {kind.expected}, got {shown(value)}", suggestion=cure)


def shown(value: Any) -> str:
    """A JSON value for a message: its type, and itself where it is short."""
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
    """A place in words."""
    return at or "the message"


@frozen
class Text:
    """A string of at least one character: an empty name names nothing."""

    example: str = '"..."'
    most: int = 1 << 20
    least: int = 1
    expected: str = "a string"

    def read(self, value: Any, at: str) -> str:
        """See Kind."""
        if type(value) is not str:
            raise wrong(self, value, at)
        if not self.least <= len(value) <= self.most:
            bound = f"at most {self.most} characters" if value else "at least one character"
            cure = f"give {at} a string such as {self.example}"
            raise MessageError(at, f"expected {bound}, got {len(value)}", suggestion=cure)
        return value

    def write(self, value: str) -> str:
        """See Kind."""
        return value


@frozen
class Identifier:
    """Whatever a peer names its messages and sessions by: 1 to 200 printable characters (decision 0068)."""

    example: str = '"550e8400-e29b-41d4-a716-446655440000"'
    expected: str = "a string of 1 to 200 printable characters"

    def read(self, value: Any, at: str) -> str:
        """See Kind."""
        if type(value) is not str or not 1 <= len(value) <= 200 or not value.isprintable():
            raise wrong(self, value, at)
        return value

    def write(self, value: str) -> str:
        """See Kind."""
        return value


@frozen
class Choice:
    """One of a few words; letter case counts."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        """The words."""
        return ", ".join(f'"{word}"' for word in self.words[:-1]) + f' or "{self.words[-1]}"'

    @property
    def example(self) -> str:
        """The first."""
        return f'"{self.words[0]}"'

    def read(self, value: Any, at: str) -> Any:
        """See Kind."""
        if type(value) is not str or value not in self.words:
            near = self._near(value) if type(value) is str else None
            cure = f'did you mean "{near}" at {at}?' if near else f"write {self.expected} at {at}"
            raise MessageError(at, f"expected {self.expected}, got {shown(value)}", suggestion=cure)
        return value

    def _near(self, value: str) -> str | None:
        """The word that was meant, if one comes close in either case."""
        by_lower = {word.lower(): word for word in self.words}
        found = get_close_matches(value[:_SHOWN].lower(), by_lower, 1)
        return by_lower[found[0]] if found else None

    def write(self, value: str) -> str:
        """See Kind."""
        return value


@frozen
class Flag:
    """true or false."""

    expected: str = "true or false"
    example: str = "true"

    def read(self, value: Any, at: str) -> bool:
        """See Kind."""
        if type(value) is not bool:
            raise wrong(self, value, at)
        return value

    def write(self, value: bool) -> bool:
        """See Kind."""
        return value


@frozen
class Integer:
    """A whole number that a double holds exactly, written as one: 5.0 is not it."""

    least: int = 0
    most: int = MAX_SAFE
    example: str = "1"

    @property
    def expected(self) -> str:
        """With its bounds."""
        return f"an integer ≥ {self.least}" if self.most == MAX_SAFE else f"an integer {self.least} to {self.most}"

    def read(self, value: Any, at: str) -> int:
        """See Kind."""
        if type(value) is not int or not self.least <= value <= self.most:
            raise wrong(self, value, at)
        return value

    def write(self, value: int) -> int:
        """See Kind."""
        return value


@frozen
class Number:
    """A finite number from `least` to `most`."""

    least: float = -math.inf
    most: float = math.inf
    example: str = "0.95"

    @property
    def expected(self) -> str:
        """With its bounds."""
        return "a number" if self.least == -math.inf else f"a number from {self.least:g} to {self.most:g}"

    def read(self, value: Any, at: str) -> float:
        """See Kind."""
        # Neither NaN, which compares as false, nor an infinity, though no document from outside holds one.
        if type(value) not in (int, float) or not self.least <= value <= self.most or value in (math.inf, -math.inf):
            raise wrong(self, value, at)
        return value  # type: ignore[no-any-return]

    def write(self, value: float) -> float:
        """See Kind."""
        return value


@frozen
class Duration:
    """An ISO 8601 duration of a fixed length."""

    least: timedelta
    expected: str = "an ISO 8601 duration"
    example: str = '"PT10M"'

    def read(self, value: Any, at: str) -> timedelta:
        """See Kind."""
        if type(value) is not str:
            raise wrong(self, value, at)
        try:
            return read_duration(value, least=self.least)
        except ValueError as error:
            cure = f'write a duration such as "PT10M" or "P3DT12H" at {at}: P, days, T, hours, minutes, seconds'
            raise MessageError(at, str(error), suggestion=cure) from None

    def write(self, value: timedelta) -> str:
        """See Kind."""
        return write_duration(value)


@frozen
class Instant:
    """A date and time in UTC by ISO 8601; "..." is None where that is allowed."""

    elidable: bool = False
    expected: str = "an ISO 8601 date and time in UTC"
    example: str = '"2025-01-15T08:30:00.000Z"'

    def read(self, value: Any, at: str) -> datetime | None:
        """See Kind."""
        if self.elidable and value == ELIDED:
            return None
        if type(value) is not str:
            raise wrong(self, value, at)
        try:
            return read_instant(value)
        except ValueError as error:
            cure = f"write the date and time in UTC at {at}, with Z at its end, for example {self.example}"
            raise MessageError(at, str(error), suggestion=cure) from None

    def write(self, value: datetime | None) -> str:
        """See Kind."""
        return ELIDED if value is None else write_instant(value)


@frozen
class Anything:
    """Any JSON value."""

    expected: str = "a JSON value"
    example: str = "null"

    def read(self, value: Any, at: str) -> Any:
        """See Kind."""
        return value

    def write(self, value: Any) -> Any:
        """See Kind."""
        return value
