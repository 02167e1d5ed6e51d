"""Arrays and objects of HCP's tables: what is in them is read strictly, member by member, and written back.

An object may have members that its table does not: they are ignored, at every level, as a later minor version's would
have to be. As in `hearth.hcp.kinds`, what does not fit is a `MessageError`.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attrs import NOTHING, Factory, field, fields, frozen

from hearth.hcp.kinds import Kind, MessageError, named, wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")
_LONGEST_NAME = 60
_COMPARED = 32


@frozen
class Checked:
    """What must be of some kind, and is handed on as it is, with what its sender added."""

    kind: Kind[Any]

    @property
    def expected(self) -> str:
        """The kind's."""
        return self.kind.expected

    @property
    def example(self) -> str:
        """The kind's."""
        return self.kind.example

    def read(self, value: Any, at: str) -> Any:
        """See Kind."""
        self.kind.read(value, at)
        return value

    def write(self, value: Any) -> Any:
        """See Kind."""
        return value


@frozen
class Free:
    """An object with members of its sender's own; handed on as it is."""

    expected: str = "an object"
    example: str = "{}"

    def read(self, value: Any, at: str) -> dict[str, Any]:
        """See Kind."""
        if type(value) is not dict:
            raise wrong(self, value, at)
        return value

    def write(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """See Kind."""
        return dict(value)


@frozen
class ListOf(Generic[T]):
    """An array of values of one kind; the program gets a tuple."""

    item: Kind[T]

    @property
    def expected(self) -> str:
        """With the kind of its items."""
        return f"an array, each item {self.item.expected}"

    @property
    def example(self) -> str:
        """One item."""
        return f"[{self.item.example}]"

    def read(self, value: Any, at: str) -> tuple[T, ...]:
        """See Kind."""
        if type(value) is not list:
            raise wrong(self, value, at)
        return tuple([self.item.read(item, f"{at}/{index}") for index, item in enumerate(value)])

    def write(self, value: tuple[T, ...]) -> list[Any]:
        """See Kind."""
        return [self.item.write(item) for item in value]


@frozen
class MapOf(Generic[T]):
    """An object whose member names are the sender's own, and whose values are of one kind."""

    item: Kind[T]
    example: str = "{}"

    @property
    def expected(self) -> str:
        """With the kind of its values."""
        return f"an object, each value {self.item.expected}"

    def read(self, value: Any, at: str) -> dict[str, T]:
        """See Kind."""
        if type(value) is not dict:
            raise wrong(self, value, at)
        return {str(name): self.item.read(item, step(at, str(name))) for name, item in value.items()}

    def write(self, value: Mapping[str, T]) -> dict[str, Any]:
        """See Kind."""
        return {name: self.item.write(item) for name, item in value.items()}


def step(at: str, name: str) -> str:
    """The pointer to a member of what `at` points to (RFC 6901)."""
    return f"{at}/{name.replace('~', '~0').replace('/', '~1')}"


@frozen
class Table(Generic[T]):
    """An object as one of the pages' tables has it, and the class that holds it.

    A `required` member must be there and not be null; an `optional` one that is absent, or null, is what the class has
    by default, and is left out again on the way back, unless it is one of `always`.
    """

    make: Callable[..., T]
    required: Mapping[str, Kind[Any]]
    optional: Mapping[str, Kind[Any]] = field(factory=dict)
    always: frozenset[str] = frozenset()
    expected: str = "an object"

    @property
    def example(self) -> str:
        """With what is required."""
        return "{" + ", ".join(f'"{name}": {kind.example}' for name, kind in self.required.items()) + "}"

    def read(self, value: Any, at: str) -> T:
        """See Kind."""
        return self.make(**self.members(value, at))

    def members(self, value: Any, at: str) -> dict[str, Any]:
        """Those members of an object that the table has, read. Raises MessageError."""
        if type(value) is not dict:
            raise wrong(self, value, at)
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
        """See Kind."""
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
    """What the optional members of an attrs class are where nothing is said of them."""
    return {
        each.name: each.default.factory() if isinstance(each.default, Factory) else each.default  # type: ignore[arg-type]
        for each in fields(made)
        if each.default is not NOTHING
    }


def missing(name: str, kind: Kind[Any], value: Mapping[str, Any], at: str) -> MessageError:
    """What to raise for a required member that is not there."""
    cure = f'add "{name}" to {named(at)}: {kind.expected}, for example {kind.example}'
    # The first few: comparing names takes time, and there may be thousands.
    strangers = [key for key in islice(value, _COMPARED) if type(key) is str and len(key) <= _LONGEST_NAME]
    if near := get_close_matches(name, strangers, 1, 0.8):
        cure = f'write "{name}" where {named(at)} has {json.dumps(near[0])}'
    return MessageError(f"{at}/{name}", f"expected {kind.expected}, but there is no such member", suggestion=cure)
