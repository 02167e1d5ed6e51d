"""Whether what a long run took stayed flat: a robust line through each series, and how much it may rise.

A series is flat if it does not grow, from the end of its warm-up to the end of the run, by more than its tolerance.
Growth is read twice, and the larger reading counts: along the line of Theil and Sen, which a third of wild samples
cannot turn, and from the median of the first fifth to that of the last, which sees a step that came late. Falling is
no fault. This module knows no daemon and no clock.
"""

from __future__ import annotations

from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_POINTS = 400
"""A line is laid through so many medians at most, so that hours cost no more to judge than minutes."""
WARM_UP = 0.4
"""The share of a run in which caches, histories and arenas fill up. It is not judged."""
LONGEST_WARM_UP = 900.0
"""Seconds; a run of many hours need not wait longer."""
FEWEST, ENOUGH = 8, 0.2
"""Samples of a series in the judged part, and their share of all, without which there is no verdict."""


@frozen
class Tolerance:
    """By how much a series may grow over the judged part: the larger of an amount, and a share of where it began."""

    series: str
    what: str
    unit: str
    amount: float
    share: float = 0.0

    def allowed(self, begin: float) -> float:
        """In the series' unit."""
        return max(self.amount, self.share * abs(begin))


@frozen
class Verdict:
    """What became of one series."""

    series: str
    what: str
    unit: str
    begin: float
    """Where the line begins, after the warm-up."""
    end: float
    growth: float
    allowed: float
    seconds: float
    """How long the judged part was."""

    @property
    def flat(self) -> bool:
        """Whether it grew by no more than allowed."""
        return self.growth <= self.allowed

    def __str__(self) -> str:
        word = "flat" if self.flat else "GROWS"
        return (
            f"{self.what:32} {word:5}  {self.begin:.5g} -> {self.end:.5g} {self.unit}, "
            f"growth {self.growth:+.3g}, at most {self.allowed:.3g}"
        )


def theil_sen(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The slope and the value at 0 of the line through points of different times."""
    slope = median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2))
    return slope, median(y - slope * x for x, y in points)


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most so many points: medians of equal numbers of neighbours."""
    size = -(-len(points) // most)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [(median(x for x, _ in group), median(y for _, y in group)) for group in groups]


def warm_up(seconds: float) -> float:
    """How much of the beginning of a run of this length is not judged."""
    return min(WARM_UP * seconds, LONGEST_WARM_UP)


def verdict(points: Iterable[tuple[float, float]], tolerance: Tolerance) -> Verdict:
    """Judge a series' points (seconds, value) after the warm-up, in order. Raises ValueError if they are too few."""
    points = list(points)
    if len(points) < FEWEST:
        raise ValueError(
            f"{tolerance.series}: {len(points)} samples after the warm-up are too few to judge; run longer"
        )
    points = thinned(points)
    first, last = points[0][0], points[-1][0]
    slope, at_0 = theil_sen(points)
    begin = at_0 + slope * first
    fifth = max(1, len(points) // 5)
    step = median(y for _, y in points[-fifth:]) - median(y for _, y in points[:fifth])
    growth = max(slope * (last - first), step)
    return Verdict(
        tolerance.series, tolerance.what, tolerance.unit, begin, begin + slope * (last - first), growth,
        tolerance.allowed(begin), last - first,
    )  # fmt: skip


def judge(samples: Sequence[Mapping[str, Any]], tolerances: Iterable[Tolerance]) -> list[Verdict]:
    """Judge each series of which there are samples enough. A sample has its time as `t`, in seconds."""
    begin = warm_up(samples[-1]["t"]) if samples else 0.0
    judged = [sample for sample in samples if sample["t"] >= begin]
    found = []
    for tolerance in tolerances:
        points = [
            (sample["t"], sample[tolerance.series]) for sample in judged if sample.get(tolerance.series) is not None
        ]
        if len(points) >= max(FEWEST, ENOUGH * len(judged)):
            found.append(verdict(points, tolerance))
    return found
