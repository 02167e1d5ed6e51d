"""What an invariant is: a sentence, and a pure function that finds where a reading of a tape breaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLACK = 1e-3
"""Seconds by which two virtual times may differ and still be the same moment: sums of floats are a little off."""


class Broken(NamedTuple):
    """Where an invariant does not hold: the entries that show it, what should have been, and what was."""

    numbers: tuple[int, ...]
    expected: str
    found: str


class Invariant(NamedTuple):
    """A promise. `check(reading, judged)` yields what breaks it, and calls `judged` for each thing it looked at."""

    name: str
    check: Callable[[Any, Callable[..., None]], Iterator[Broken]]


def invariant(sentence):
    """Make an invariant of a generator function; `sentence` is its name."""

    def make(check):
        return Invariant(sentence, check)

    return make
