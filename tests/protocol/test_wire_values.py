"""The values of the public interface, read from what a server sends (draft §2.5, §3.5, §8)."""

import pytest

from hearth.api import StepResult, TaskEvent, TaskResult
from hearth.protocol.client import ProtocolViolation, read_event, read_task

TASK = {
    "task_id": "01J9",
    "status": "SUCCESS",
    "intent": "...",
    "steps": [
        {"tool": "i2c.read", "status": "SUCCESS", "result": {"data": "ABcd"}, "latency_ms": 4},
        {"tool": "gpio.set", "status": "SUCCESS", "result": {"line": 17, "value": 1}, "latency_ms": 1},
    ],
}
FAILED = {
    "tool": "gpio.set", "status": "FAILED", "latency_ms": 0.25, "error": "no such line", "error_code": -32009,
    "error_data": {"effect": "none"}, "rolled_back": False,
}  # fmt: skip


def test_the_drafts_task_is_read():
    assert read_task(TASK) == TaskResult(
        "01J9",
        "SUCCESS",
        "...",
        (
            StepResult("i2c.read", "SUCCESS", {"data": "ABcd"}, 4),
            StepResult("gpio.set", "SUCCESS", {"line": 17, "value": 1}, 1),
        ),
    )
    assert read_task(TASK).done


def test_a_failed_step_bears_all_that_is_known_of_it():
    (step,) = read_task({**TASK, "status": "FAILED", "steps": [FAILED], "error": "step 0 failed"}).steps
    assert step == StepResult(
        "gpio.set", "FAILED", None, 0.25, "no such line", -32009, {"effect": "none"}, rolled_back=False
    )


@pytest.mark.spec("2.5", "MUST", "Clients MUST ignore unknown fields in result.")
def test_unknown_members_of_a_task_and_its_steps_are_ignored():
    steps = [{**step, "x": {"y": 1}, "bus": "i2c:1"} for step in TASK["steps"]]
    assert read_task({**TASK, "steps": steps, "priority": "high", "x": [1]}) == read_task(TASK)


def test_a_task_that_has_not_begun_needs_no_more_than_id_and_status():
    assert read_task({"task_id": "t", "status": "QUEUED"}) == TaskResult("t", "QUEUED", "", ())


def test_null_is_as_good_as_absent():
    step = {"tool": "a", "status": "RUNNING"}
    nulls = dict.fromkeys(("result", "latency_ms", "error", "error_code", "error_data", "rolled_back"))
    got = read_task({"task_id": "t", "status": "RUNNING", "intent": None, "error": None, "steps": [{**step, **nulls}]})
    assert got == TaskResult("t", "RUNNING", "", (StepResult("a", "RUNNING"),))
    assert read_task({"task_id": "t", "status": "QUEUED", "steps": None}).steps == ()


def test_a_status_from_the_future_is_passed_on_and_is_not_taken_for_an_end():
    got = read_task({"task_id": "t", "status": "SUSPENDED"})
    assert got.status == "SUSPENDED"
    assert not got.done


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (None, "task"),
        ([], "task"),
        ("x", "task"),
        ({"status": "QUEUED"}, "task.task_id"),
        ({**TASK, "task_id": 7}, "task.task_id"),
        ({**TASK, "status": None}, "task.status"),
        ({**TASK, "intent": 7}, "task.intent"),
        ({**TASK, "error": {}}, "task.error"),
        ({**TASK, "steps": {}}, "task.steps"),
        ({**TASK, "steps": [1]}, "task.steps[0]"),
        ({**TASK, "steps": [{"status": "SUCCESS"}]}, "task.steps[0].tool"),
        ({**TASK, "steps": [{"tool": "a"}]}, "task.steps[0].status"),
        *[
            ({**TASK, "steps": [FAILED, {**FAILED, name: wrong}]}, f"task.steps[1].{name}")
            for name, wrong in [
                ("tool", None),
                ("status", 1),
                ("result", []),
                ("latency_ms", "4"),
                ("latency_ms", True),
                ("error", 1),
                ("error_code", "1"),
                ("error_code", True),
                ("error_data", "x"),
                ("rolled_back", 1),
            ]
        ],
    ],
)
def test_a_known_member_of_another_type_is_a_violation_that_names_its_place(value, place):
    with pytest.raises(ProtocolViolation) as caught:
        read_task(value)
    assert f" for {place}, where " in str(caught.value)


def test_an_event_keeps_what_goes_beyond_the_draft():
    got = read_event(
        {
            "task_id": "t",
            "seq": 5,
            "phase": "progress",
            "ts": "T",
            "step_index": 2,
            "edge": "rising",
            "n": {"a": 1},
        }
    )
    assert got == TaskEvent("t", 5, "progress", "T", 2, {"edge": "rising", "n": {"a": 1}})


def test_an_event_of_a_server_that_does_not_count_has_number_zero():
    assert read_event({"task_id": "t", "phase": "task_finish", "status": "SUCCESS"}) == TaskEvent(
        "t", 0, "task_finish", "", None, {"status": "SUCCESS"}
    )


def test_a_phase_from_the_future_is_passed_on():
    assert read_event({"task_id": "t", "phase": "paused"}).phase == "paused"


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (None, "task.event"),
        ([], "task.event"),
        ({}, "task.event.task_id"),
        ({"task_id": "t"}, "task.event.phase"),
        ({"task_id": "t", "phase": 1}, "task.event.phase"),
        ({"task_id": "t", "phase": "start", "seq": "1"}, "task.event.seq"),
        ({"task_id": "t", "phase": "start", "step_index": 0.5}, "task.event.step_index"),
        ({"task_id": "t", "phase": "start", "ts": 1}, "task.event.ts"),
    ],
)
def test_an_event_of_another_shape_is_a_violation_that_names_its_place(value, place):
    with pytest.raises(ProtocolViolation) as caught:
        read_event(value)
    assert f" for {place}, where " in str(caught.value)
