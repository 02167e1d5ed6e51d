"""How often a job says how far it is."""

from __future__ import annotations

from hearth.actors.bridges.hcp.job import ProgressThrottle


def said(steps, *, total, every, stage=lambda _n: "sampling"):
    """The progress events of a job whose steps take `every` seconds each."""
    pace = ProgressThrottle()
    told = []
    for n in range(1, steps + 1):
        done = None if total is None else n / total
        told.append(pace.due(stage(n), "", done, n * every, n * every))
    return [one for one in told if one is not None]


def test_a_long_job_says_each_percent_once():
    told = said(10_000, total=10_000, every=1.5)
    assert len(told) == 101
    assert [one["percent"] for one in told][:3] == [0.0, 1.0, 2.0]
    assert told[-1]["percent"] == 100


def test_a_quick_job_says_something_once_a_second():
    assert len(said(1000, total=1000, every=0.01)) == 10


def test_where_the_whole_is_unknown_it_says_less_and_less_often():
    assert len(said(36_000, total=None, every=0.1)) < 600
    assert "percent" not in said(2, total=None, every=2)[0]


def test_a_new_stage_is_said_at_once():
    assert [one["stage"] for one in said(4, total=4, every=0, stage=lambda n: f"stage-{n}")] == [
        "stage-1",
        "stage-2",
        "stage-3",
        "stage-4",
    ]


def test_percent_never_goes_back_when_there_turns_out_to_be_more_to_do():
    pace = ProgressThrottle()
    first = pace.due("a", "", 0.5, 0, 0)
    second = pace.due("b", "", 0.3, 5, 5)
    assert (first["percent"], second["percent"]) == (50.0, 50.0)


def test_the_remaining_time_is_a_duration_reckoned_from_the_time_so_far():
    told = ProgressThrottle().due("a", "half", 0.5, 90, 90)
    assert told == {"stage": "a", "message": "half", "percent": 50.0, "remaining": "PT1M30S"}


def test_a_count_of_steps_takes_no_percent_of_a_function_that_says_itself_how_far_it_is():
    pace = ProgressThrottle()
    pace.due("a", "", 0.1, 1, 1)
    assert pace.due("a", "17 steps done", None, 3, 3) is None
    assert pace.due("a", "", 0.2, 3, 3)["percent"] == 20.0
