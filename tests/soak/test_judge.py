"""The judge of a soak on series that we made: noise is flat, however wild, and a leak is found, however it comes."""

from __future__ import annotations

import random

import pytest
from soak.judge import Tolerance, judge, theil_sen, thinned, verdict, warm_up
from soak.limits import TOLERANCES

pytestmark = pytest.mark.slow

BY_NAME = {tolerance.series: tolerance for tolerance in TOLERANCES}
MINUTES_10 = 600


def series(name, leak, *, seconds=MINUTES_10, level, noise, seed=1, every=1.0):
    """Samples of a series that begins at a level, jitters by so much, and has `leak(t)` more."""
    rng = random.Random(seed)
    times = [every * n for n in range(int(seconds / every))]
    return [{"t": t, name: level + rng.gauss(0, noise) + leak(t)} for t in times]


def found(name, leak, **how):
    """The verdict on it."""
    (one,) = judge(series(name, leak, **how), [BY_NAME[name]])
    return one


USUAL = {
    "private": {"level": 75.0, "noise": 0.25},
    "blocks": {"level": 520_000, "noise": 1_500},
    "held": {"level": 18, "noise": 3},
    "threads": {"level": 12, "noise": 1},
    "quiet_p50": {"level": 2.0, "noise": 0.4},
    "quiet_p99": {"level": 12.0, "noise": 6.0},
    "quiet_work": {"level": 4.0, "noise": 0.3},
}
"""What the series of a sound daemon look like on a machine that others use too."""


def test_each_series_that_is_judged_is_looked_at_here() -> None:
    assert set(USUAL) == set(BY_NAME)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", USUAL)
def test_noise_is_flat(name, seed) -> None:
    one = found(name, lambda _t: 0, seed=seed, **USUAL[name])
    assert one.flat, one


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("name", "a_second"),
    [
        # What the page says can be found in ten minutes.
        ("private", 16 / 1024),
        ("blocks", 50),
        ("held", 1 / 60),
        ("threads", 1 / 60),
        ("quiet_p50", 3 / 600),
        ("quiet_p99", 40 / 600),
        ("quiet_work", 4 / 600),
    ],
)
def test_a_steady_leak_is_found_in_ten_minutes(name, a_second, seed) -> None:
    one = found(name, lambda t: a_second * t, seed=seed, **USUAL[name])
    assert not one.flat, one


def test_1_kib_a_second_in_small_objects_is_found_in_an_hour_and_any_in_three() -> None:
    assert not found("blocks", lambda t: t * 1024 / 100, seconds=3600, **USUAL["blocks"]).flat
    assert not found("private", lambda t: t / 1024, seconds=3 * 3600, **USUAL["private"]).flat


def test_memory_that_comes_in_arenas_of_1_mib_is_seen_as_what_it_is() -> None:
    assert not found("private", lambda t: t * 16 // 1024, **USUAL["private"]).flat


def test_a_step_that_comes_late_is_found() -> None:
    assert not found("held", lambda t: 20 if t > 500 else 0, **USUAL["held"]).flat


def test_what_fills_up_in_the_warm_up_is_no_leak() -> None:
    assert found("private", lambda t: 30 * min(t / 200, 1), **USUAL["private"]).flat


def test_falling_is_no_fault() -> None:
    one = found("private", lambda t: -t / 20, **USUAL["private"])
    assert one.growth < 0
    assert one.flat


def test_a_third_of_wild_samples_neither_hides_a_leak_nor_makes_one() -> None:
    rng = random.Random(3)

    def wild(leak):
        samples = series("quiet_p50", leak, **USUAL["quiet_p50"])
        return [
            one | {"quiet_p50": one["quiet_p50"] + (rng.uniform(0, 500) if rng.random() < 0.33 else 0)}
            for one in samples
        ]

    (flat,) = judge(wild(lambda _t: 0), [BY_NAME["quiet_p50"]])
    (leak,) = judge(wild(lambda t: t / 60), [BY_NAME["quiet_p50"]])
    assert flat.flat, flat
    assert not leak.flat, leak


def test_hours_are_judged_as_minutes_are() -> None:
    points = [(float(n), n / 10) for n in range(20_000)]
    thin = thinned(points)
    assert len(thin) <= 400
    assert theil_sen(thin)[0] == pytest.approx(0.1)


def test_a_line_is_found_exactly() -> None:
    assert theil_sen([(1.0, 5.0), (2.0, 7.0), (3.0, 9.0), (4.0, 1000.0), (5.0, 13.0)]) == (2.0, 3.0)


def test_a_share_counts_where_it_is_more_than_the_amount() -> None:
    tolerance = Tolerance("x", "x", "", 2.0, 0.1)
    assert [tolerance.allowed(level) for level in (5, 100)] == [2.0, 10.0]


def test_too_few_samples_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="too few to judge; run longer"):
        verdict([(0.0, 1.0)], BY_NAME["threads"])


def test_a_series_that_was_not_taken_is_not_judged() -> None:
    assert judge(series("private", lambda _t: 0, **USUAL["private"]), [BY_NAME["blocks"]]) == []


def test_the_warm_up_of_hours_does_not_grow_for_ever() -> None:
    assert warm_up(600) == 240
    assert warm_up(10 * 3600) == 900
