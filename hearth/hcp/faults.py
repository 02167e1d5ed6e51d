"""A mistake in a capability: its place, its key, and the cure. All checks at start-up collect these."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth._util.text import suggest
from hearth._util.toml import dump_key, show
from hearth.fields import FieldErrors, FieldType, unknown_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
    """The path of a key within a table."""
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
_MOST = 2**53


class Table:
    """One table and its path. A getter that fails adds to the list of faults and returns None."""

    def __init__(self, content: Mapping[str, Any], path: str, faults: list[Fault]) -> None:
        self.content = content
        self._path = path
        self._known: list[str] = []
        self.faults = faults

    def at(self, key: str) -> str:
        """The path of a key of this table."""
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


def unsayable(value: object, path: str = "") -> Iterator[Fault]:
    """Yield a fault for each value without JSON: TOML's dates and times, inf, nan, and the largest integers.

    Other parties read integers beyond 2**53 as doubles, which are then other integers.
    """
    if isinstance(value, Mapping):
        for key, member in value.items():
            if isinstance(key, str):
                yield from unsayable(member, join(path, key))
            else:
                yield Fault(path, f"expected a key that JSON can hold, got {show(key)}; write it as a string")
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from unsayable(member, f"{path}[{index}]")
    elif isinstance(value, (bool, str)) or (isinstance(value, float) and isfinite(value)):
        return
    elif not isinstance(value, int):
        yield Fault(path, f"expected what JSON can hold, got {show(value)}; write it as a string")
    elif abs(value) > _MOST:
        yield Fault(path, f"expected an integer that JSON can hold, from -2^53 to 2^53, got {show(value)}")
