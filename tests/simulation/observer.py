"""The judge of a simulated world: reads its tape, and says which promise was broken first, or that none was.

It shares no code with the runtime: it imports nothing of it, parses lines with json and hashes with hashlib, so that a
mistake made there cannot be made here by the same stroke. What must hold is in `invariants`, one function each, whose
name is its sentence; what they read is the tape put together into sessions, tasks, steps and transactions
(`observer_reading`).

An invariant that never had anything to judge proves nothing, so each counts what it has judged.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .invariants import ALL
from .marks import reached
from .observer_reading import Reading


class Violation(NamedTuple):
    """A promise that was broken: which, by which entries of the tape, what should have been and what was."""

    invariant: str
    numbers: tuple[int, ...]
    expected: str
    found: str

    def __str__(self) -> str:
        places = ", ".join(f"#{number}" for number in self.numbers)
        return f"{self.invariant}\n  at {places}\n  expected: {self.expected}\n  found: {self.found}"


class Verdict(NamedTuple):
    """What the observer says of a tape."""

    violations: tuple[Violation, ...]
    work: Counter[str]
    """How often each invariant had something to judge."""
    reached: tuple[str, ...] = ()
    """The rare states that the world came to."""

    @property
    def violation(self) -> Violation | None:
        """The one that was broken first, by the entry at which that could be seen."""
        return min(self.violations, key=lambda violation: violation.numbers[-1:] or (0,), default=None)


class Judged:
    """Counts what an invariant had to judge."""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def __call__(self, more: int = 1) -> None:
        self.count += more


def judge(tape) -> Verdict:
    """Judge a tape, or a list of its entries."""
    reading = Reading(getattr(tape, "entries", tape))
    work: Counter[str] = Counter()
    violations = []
    for invariant in ALL:
        judged = Judged()
        broken = next(invariant.check(reading, judged), None)
        work[invariant.name] = judged.count
        if broken is not None:
            violations.append(Violation(invariant.name, tuple(broken.numbers), broken.expected, broken.found))
    return Verdict(tuple(violations), work, tuple(reached(reading)))
