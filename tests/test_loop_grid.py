"""The grid of a control loop's periods, in nanoseconds: nothing drifts, and every period is counted once."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given, strategies as st

from hearth.loop import BOUNDS_US, SECOND, Grid, LoopStats

MS = SECOND // 1000
START = 5_000 * SECOND


def played(hz: float, script: list[tuple[int, int]]) -> tuple[Grid, int, list[bool], list[bool]]:
    """Run a grid by a script of (late to wake, time of the run); return also the time, and what begin and end said."""
    grid, now, begun, ended = Grid(hz, START), START, [], []
    for late, takes in script:
        now = max(now, grid.due) + late
        begun.append(grid.begin(now))
        now += takes
        ended.append(grid.end(now))
    return grid, now, begun, ended


def test_runs_that_end_in_time_miss_nothing() -> None:
    grid, _, begun, ended = played(1000, [(0, MS // 2)] * 100)
    assert (grid.runs, grid.missed, grid.overruns, grid.worst) == (100, 0, 0, 0)
    assert all(begun)
    assert all(ended)


@pytest.mark.parametrize("hz", [3, 7, 30, 333.3, 1000, 9999])
def test_no_drift_accumulates_whatever_the_rate_is(hz: float) -> None:
    grid, _, _, _ = played(hz, [(0, 1)] * 10_000)
    assert grid.runs == 10_000
    assert abs(grid.due - START - 10_000 * SECOND / hz) <= 1


def test_a_run_that_ends_exactly_when_the_next_period_is_due_has_not_overrun() -> None:
    grid, _, _, ended = played(1000, [(0, MS)] * 5)
    assert (grid.runs, grid.missed, grid.overruns) == (5, 0, 0)
    assert all(ended)


def test_an_overrun_misses_what_was_due_meanwhile_and_the_next_run_is_on_the_grid() -> None:
    grid, now, _, ended = played(1000, [(0, 1), (0, 3 * MS + 1), (0, 1)])
    # Period 1 ran from 1 ms to 4 ms and 1 ns: 2, 3 and 4 are missed, 5 is the next.
    assert ended == [True, False, True]
    assert (grid.runs, grid.missed, grid.overruns) == (3, 3, 1)
    assert now == START + 5 * MS + 1
    assert grid.due == START + 6 * MS


def test_a_thread_that_wakes_too_late_runs_the_newest_period_and_misses_those_before() -> None:
    grid, _, begun, _ = played(1000, [(0, 1), (2 * MS + 5, 1)])
    assert begun == [True, False]
    assert (grid.runs, grid.missed, grid.overruns) == (2, 2, 0)
    assert grid.latest == START + 3 * MS
    assert grid.worst == 2 * MS + 5, "late is counted from the period that it was to wake for"


@given(
    st.sampled_from([0.1, 3, 1000, 9999.9]),
    st.lists(st.tuples(st.integers(0, 30 * SECOND), st.integers(0, 30 * SECOND)), min_size=1, max_size=40),
)
def test_every_period_that_was_due_is_run_or_missed_and_none_is_both(hz: float, script: list[tuple[int, int]]) -> None:
    grid, now, begun, ended = played(hz, script)
    due = grid.runs + grid.missed
    assert grid.runs == len(script)
    assert grid.overruns == ended.count(False)
    assert (grid.missed == 0) == (all(begun) and all(ended))
    # Period `due` is the next one: it is after now, or exactly now after a run that ended in time.
    assert START + round(due * SECOND / hz) == grid.due >= now
    assert START + round((due - 1) * SECOND / hz) <= now
    assert sum(grid.histogram()) == len(script)


def stats(**changes) -> LoopStats:
    empty = dict.fromkeys(("runs", "missed", "overruns", "refused", "failed", "emitted", "dropped"), 0)
    made = LoopStats(
        hz=1000, scheduling="other", writes={}, last={}, lateness=[0] * (len(BOUNDS_US) + 1), worst_us=0.0, ended=None,
        **empty,
    )  # fmt: skip
    return evolve(made, **changes)


def test_a_share_of_the_lateness_is_a_bound_of_its_class_and_never_more_than_the_worst() -> None:
    grid, _, _, _ = played(100, [(5_000, 0)] * 98 + [(120_000, 0), (9 * MS, 0)])
    seen = stats(lateness=grid.histogram(), worst_us=grid.worst / 1000)
    assert seen.late_us(0.5) == 10
    assert seen.late_us(0.99) == 150
    assert seen.late_us(1.0) == 9_000, "its class is up to 10 ms"
    beyond, _, _, _ = played(0.1, [(3 * SECOND, 0)])
    assert stats(lateness=beyond.histogram(), worst_us=beyond.worst / 1000).late_us(0.99) == 3_000_000
    assert stats().late_us(0.99) == 0
