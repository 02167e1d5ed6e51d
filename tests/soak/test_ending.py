"""What is held against the log of a soak: the words of its clients. Logs here are lists of records that we made."""

from __future__ import annotations

import pytest
from soak.ending import acknowledged, check_records


def task(name, *, submits=1, ends=("SUCCESS",)):
    """The records of a task."""
    submitted = [{"event": "task.submit", "task_id": name}] * submits
    return [*submitted, *({"event": "task.finish", "task_id": name, "status": status} for status in ends)]


def test_a_log_that_has_all_of_it_is_whole() -> None:
    assert check_records(
        [*task("a"), *task("b", ends=("FAILED",)), *task("c")], {"a": "SUCCESS", "b": "", "c": ""}
    ) == (3, [])


@pytest.mark.parametrize(
    ("log", "told", "said"),
    [
        ([], {"a": ""}, "a is acknowledged and not on record"),
        (task("a", submits=2), {}, "a is submitted twice on record"),
        (task("a", ends=("SUCCESS", "FAILED")), {}, "a is ended twice on record"),
        (task("a", ends=()), {}, "a is submitted and without an end on record"),
        (task("a", ends=("RUNNING",)), {}, "a is submitted and without an end on record"),
        (task("a"), {"a": "CANCELLED"}, "a is ended otherwise than its client was told"),
        ([{"event": "session.open"}], {}, "1 sessions and 0 steps have begun and not ended"),
        ([{"event": "task.step.start"}], {}, "0 sessions and 1 steps have begun and not ended"),
    ],
)
def test_what_is_wrong_with_a_log_is_said(log, told, said) -> None:
    _, wrong = check_records(log, told)
    assert any(said in one for one in wrong), wrong


def test_what_is_wrong_a_thousand_times_is_said_in_a_few_lines() -> None:
    _, wrong = check_records([], {f"t{n}": "" for n in range(1000)})
    assert len(wrong) == 11
    assert wrong[-1] == "and 990 more tasks are acknowledged and not on record"


def test_the_last_word_on_a_task_counts_and_an_acknowledgement_alone_is_none(tmp_path) -> None:
    told = tmp_path / "crowd.tasks"
    told.write_text("one \none SUCCESS\ntwo \none \n")
    assert acknowledged([told]) == {"one": "SUCCESS", "two": ""}
