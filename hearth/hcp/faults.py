"""A mistake in a capability: its place, its key, and the cure. Every check at start-up collects these."""

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
    """Words to add to a fault: the nearest of the names that there are, if one is near."""
    said = suggest(name, there, show=repr)
    return f"; {said}" if said else ""


# --- Reading a capability file's tables strictly, and going on after a fault: the author is told of all of them at once
#
# It owns the way from a TOML table to a list of faults, each with its key path and the cure. It refuses keys that
# nobody asked for, and what JSON cannot say: a plan's values go to callers and into the audit log. It knows no
# capability; the kinds of value are those of hearth.toml (`hearth.fields`), in the same words.

REQUIRED: Final = object()
_MOST = 2**53


class Table:
    """One table and the path to it. What a getter cannot give is on the list of faults, and None takes its place."""

    def __init__(self, content: Mapping[str, Any], path: str, faults: list[Fault]) -> None:
        self.content = content
        self._path = path
        self._known: list[str] = []
        self.faults = faults

    def at(self, key: str) -> str:
        """The path of a key of this table."""
        return join(self._path, key)

    def fault(self, key: str, why: str) -> None:
        """Put one on the list."""
        self.faults.append(Fault(self.at(key), why))

    def take(self, key: str, kind: FieldType, default: Any = REQUIRED) -> Any:
        """The value, as its kind reads it; the default where it is not there, None where it is wrong."""
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
        """A table within, as it is, for others to read."""
        return self.take(key, _Mapping(), default)

    def table(self, key: str, *, required: bool = True) -> Table:
        """A table within; an empty one where there is none, of which nothing more is said."""
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
        """Refuse the keys that nobody asked for; `also` are read by somebody else."""
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
    """A fault for each value that JSON has no notation for: TOML's dates and times, inf, nan, and the largest integers.

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
