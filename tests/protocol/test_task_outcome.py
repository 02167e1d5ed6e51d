"""The result of a task by its events: what task.get would say, or that only task.get can say it."""

from __future__ import annotations

from typing import Any

import pytest

from hearth.protocol.client import TaskOutcome, read_event, read_task

TOOLS = ["gpio.set", "i2c.read", "gpio.get"]
SET = {"tool": "gpio.set", "status": "SUCCESS", "result": {"line": 17, "value": 1}, "latency_ms": 0.1}
BROKEN = {
    "tool": "i2c.read",
    "status": "FAILED",
    "latency_ms": 0.2,
    "error": "no device",
    "error_code": -32009,
    "error_data": {"effect": "none"},
}
READ = {"tool": "i2c.read", "status": "SUCCESS", "result": {"data": ""}, "seen": {"data": ""}}
GOT = {"tool": "gpio.get", "status": "SUCCESS", "result": {"line": 17, "value": 1}, "new": [1]}
NEVER = {"tool": "gpio.get", "status": "CANCELLED"}
TOO_LATE = {"error": "too late", "error_code": -32010, "error_data": {"limit_ms": 5}}


def start(index: int) -> dict[str, Any]:
    return {"phase": "start", "step_index": index, "tool": TOOLS[index]}


def finish(index: int, step: dict[str, Any]) -> dict[str, Any]:
    return {"phase": "finish", "step_index": index, **step}


def back(index: int, *, rolled_back: bool = True) -> dict[str, Any]:
    return {"phase": "progress", "step_index": index, "rolled_back": rolled_back}


def end(status: str, **more: Any) -> dict[str, Any]:
    return {"phase": "task_finish", "status": status, **more}


def outcome(*events: dict[str, Any], numbers: list[int] | None = None) -> TaskOutcome:
    found = TaskOutcome()
    for seq, event in zip(numbers or range(1, len(events) + 1), events, strict=True):
        found.take(read_event({"task_id": "T", "seq": seq, "ts": "", **event}))
    return found


def task(*events: dict[str, Any], numbers: list[int] | None = None) -> dict[str, Any] | None:
    return outcome(*events, numbers=numbers).task("T", "why", TOOLS)


DONE = [start(0), finish(0, SET), start(1), finish(1, READ), start(2), finish(2, GOT), end("SUCCESS")]
FAILED = [start(0), finish(0, SET), start(1), finish(1, BROKEN), end("FAILED")]
CANCELLED = [start(0), finish(0, {"tool": "gpio.set", "status": "CANCELLED"}), end("CANCELLED", reason="cancelled")]
STEP_CANCELLED = {"tool": "i2c.read", "status": "CANCELLED"}

WHOLE = {
    "a success": (DONE, "SUCCESS", [SET, READ, GOT], {}),
    "a failure": (FAILED, "FAILED", [SET, BROKEN, NEVER], {}),
    "a failure that was taken back": (
        [*FAILED[:-1], back(0), FAILED[-1]],
        "FAILED",
        [{**SET, "rolled_back": True}, BROKEN, NEVER],
        {},
    ),
    "a failure that could not be taken back": (
        [*FAILED[:-1], back(0, rolled_back=False), FAILED[-1]],
        "FAILED",
        [{**SET, "rolled_back": False}, BROKEN, NEVER],
        {},
    ),
    "a cancellation": (
        CANCELLED,
        "CANCELLED",
        [{"tool": "gpio.set", "status": "CANCELLED"}, STEP_CANCELLED, NEVER],
        {},
    ),
    "a task that never began": (
        [end("FAILED", **TOO_LATE)],
        "FAILED",
        [{"tool": "gpio.set", "status": "CANCELLED"}, STEP_CANCELLED, NEVER],
        TOO_LATE,
    ),
    "a tool's own reports": (
        [DONE[0], {"phase": "progress", "step_index": 0, "data": {"rolled_back": True}}, *DONE[1:]],
        "SUCCESS",
        [SET, READ, GOT],
        {},
    ),
}


@pytest.mark.parametrize(("events", "status", "steps", "more"), WHOLE.values(), ids=WHOLE)
def test_the_events_of_a_task_are_its_result(events, status, steps, more) -> None:
    shown = task(*events)
    assert shown == {"task_id": "T", "status": status, "intent": "why", "steps": steps, **more}
    assert read_task(shown).status == status


def test_progress_that_was_missed_hides_nothing_of_a_success() -> None:
    assert task(*DONE, numbers=[1, 4, 5, 6, 7, 9, 10]) == task(*DONE)
    assert task(*DONE, numbers=[0] * 7) == task(*DONE), "a server that does not number its events"


INSUFFICIENT = {
    "no end": DONE[:-1],
    "an end without a status": [*DONE[:-1], {"phase": "task_finish"}],
    "a success without a step": [*DONE[:4], DONE[-1]],
    "another tool": [finish(0, {**SET, "tool": "gpio.get"}), *DONE[2:]],
    "a status that is not the end": [*DONE[:-1], end("RUNNING")],
    "a step that still runs": [finish(0, {**SET, "status": "RUNNING"}), *DONE[2:]],
    "a status that is no text": [finish(0, {**SET, "status": ["SUCCESS"]}), *DONE[2:]],
    "a step without a status": [finish(0, {"tool": "gpio.set"}), *DONE[2:]],
    "a rollback of no step": [*FAILED[:-1], back(3), FAILED[-1]],
    "a rollback of the step before the first": [*FAILED[:-1], back(-1), FAILED[-1]],
    "a rollback of the task": [*FAILED[:-1], {"phase": "progress", "rolled_back": True}, FAILED[-1]],
}


@pytest.mark.parametrize("events", INSUFFICIENT.values(), ids=INSUFFICIENT)
def test_events_that_do_not_say_everything_are_no_result(events) -> None:
    assert task(*events) is None


def test_progress_that_was_missed_may_have_been_a_rollback() -> None:
    assert task(*FAILED, numbers=[1, 2, 3, 4, 6]) is None


RESULT = [start(0), finish(0, SET), end("SUCCESS")]


def test_the_result_of_the_only_step_is_read_from_its_event() -> None:
    assert outcome(*RESULT).result_of("gpio.set") == SET["result"]


NO_RESULT = {
    "no end": RESULT[:-1],
    "no step": [end("SUCCESS")],
    "two steps": DONE,
    "a task that failed": [*RESULT[:-1], end("FAILED")],
    "a step that failed": [finish(0, {**BROKEN, "tool": "gpio.set"}), end("SUCCESS")],
    "another tool": [finish(0, READ), end("SUCCESS")],
    "a result that is no object": [finish(0, {**SET, "result": [1]}), end("SUCCESS")],
    "no result": [finish(0, {"tool": "gpio.set", "status": "SUCCESS"}), end("SUCCESS")],
}


@pytest.mark.parametrize("events", NO_RESULT.values(), ids=NO_RESULT)
def test_anything_but_a_success_with_a_result_is_left_to_the_whole_result(events) -> None:
    assert outcome(*events).result_of("gpio.set") is None
