"""Tasks and events as lines: what happened, what came of it, what became of the world."""

from __future__ import annotations

import click
import pytest

from hearth.api import TaskEvent
from hearth.cli import task_view
from hearth.cli.tasks import event_json

TS = "2026-04-19T22:48:01.234Z"


def event(phase, step_index=None, **data):
    return TaskEvent("01T", 3, phase, TS, step_index, data)


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (event("start", 0, tool="gpio.set"), "22:48:01.234  start        step 0  gpio.set"),
        (
            event("finish", 1, tool="gpio.set", status="SUCCESS", latency_ms=1.25, result={"line": 17, "value": 1}),
            "22:48:01.234  finish       step 1  gpio.set  SUCCESS  1.2 ms  line=17 value=1",
        ),
        (
            event(
                "finish", 1, tool="x.y", status="FAILED", latency_ms=0, error="no\x1b", error_data={"effect": "none"}
            ),
            "22:48:01.234  finish       step 1  x.y  FAILED  0.0 ms  no\\x1b (effect: none)",
        ),
        (
            event("finish", 0, tool="x.y", status="SUCCESS", result={"data": "YQo=", "text": "a\n", "n": 1}),
            "22:48:01.234  finish       step 0  x.y  SUCCESS   ms  text=a\\n n=1",
        ),
        (
            event("finish", 0, tool="x.y", status="SUCCESS", result={"data": "AP8=", "hex": "00ff"}),
            "22:48:01.234  finish       step 0  x.y  SUCCESS   ms  hex=00ff",
        ),
        (
            event("progress", 0, data={"data": "eHh4" * 30, "hex": "", "text": "x" * 90}),
            f"22:48:01.234  progress     step 0  text={'x' * 80}…",
        ),
        (event("progress", 0, data={"edge": "rising"}), "22:48:01.234  progress     step 0  edge=rising"),
        (event("progress", 0, rolled_back=True), "22:48:01.234  progress     step 0  rolled_back=yes"),
        (event("progress", 0, data=[1, 2]), "22:48:01.234  progress     step 0  1, 2"),
        (event("task_finish", status="SUCCESS"), "22:48:01.234  task_finish  SUCCESS"),
        (
            event("task_finish", status="CANCELLED", reason="session closed"),
            "22:48:01.234  task_finish  CANCELLED  session closed",
        ),
        (event("task_finish", status="FAILED", error="too late"), "22:48:01.234  task_finish  FAILED  too late"),
    ],
)
def test_an_event_is_one_line(shown, line):
    assert task_view.event_line(shown) == line


def test_an_event_as_json_is_what_the_wire_had():
    assert event_json(event("start", 0, tool="gpio.set")) == {
        "task_id": "01T",
        "seq": 3,
        "phase": "start",
        "ts": TS,
        "step_index": 0,
        "tool": "gpio.set",
    }
    assert "step_index" not in event_json(event("task_finish", status="SUCCESS"))


def test_rows_follow_the_events_from_plan_to_end():
    rows = task_view.planned_rows({"steps": [{"tool": "a.b"}, {"tool": "c.d"}]})
    task_view.enter(rows, event("start", 0, tool="a.b"))
    assert task_view.cells(rows) == [("0", "a.b", "RUNNING", "", ""), ("1", "c.d", "", "", "")]
    task_view.enter(rows, event("progress", 0, data={"edge": "rising"}))
    assert task_view.cells(rows)[0] == ("0", "a.b", "RUNNING", "", "edge=rising")
    task_view.enter(rows, event("finish", 0, tool="a.b", status="SUCCESS", latency_ms=2, result={"n": 1}))
    task_view.enter(rows, event("task_finish", status="CANCELLED"))
    assert task_view.cells(rows) == [("0", "a.b", "SUCCESS", "2.0", "n=1"), ("1", "c.d", "CANCELLED", "", "")]


def test_steps_that_no_plan_announced_get_their_rows():
    rows = []
    task_view.enter(rows, event("start", 1, tool="c.d"))
    assert task_view.cells(rows) == [("0", "", "", "", ""), ("1", "c.d", "RUNNING", "", "")]


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        ({}, ""),
        ({"status": "SUCCESS", "result": {"a": None}}, "a=-"),
        ({"error": "no"}, "no"),
        ({"error": "no", "error_data": {"effect": "unknown"}}, "no (effect: unknown)"),
        ({"result": {"a": 1}, "rolled_back": True}, "a=1 (rolled back)"),
        ({"result": {"a": 1}, "rolled_back": False}, "a=1 (could not be rolled back)"),
        ({"status": "SUCCESS", "progress": {"n": 1}}, ""),
    ],
)
def test_the_outcome_of_a_step_says_what_became_of_the_world(row, outcome):
    assert task_view.outcome(row) == outcome


def test_a_task_is_a_table_and_a_last_line():
    done = {
        "status": "FAILED",
        "intent": "blink\x1b",
        "steps": [{"tool": "a.b", "status": "FAILED", "latency_ms": 1, "error": "no"}],
        "error": "the task failed",
    }
    shown = [click.unstyle(line) for line in task_view.task_lines(done, "S/T")]
    assert shown == [
        "#  tool  status  ms   result",
        "0  a.b   FAILED  1.0  no",
        "FAILED  blink\\x1b  S/T",
        "  the task failed",
    ]
    assert [click.unstyle(line) for line in task_view.task_lines({"status": "QUEUED"}, "S/T")] == ["QUEUED    S/T"]
    assert len(task_view.task_lines(done, "S/T", steps=False)) == 2


@pytest.mark.parametrize(
    ("status", "code"), [("SUCCESS", 0), ("FAILED", 1), ("CANCELLED", 1), ("RUNNING", 0), ("QUEUED", 0)]
)
def test_only_a_task_that_ended_badly_is_a_failure(status, code):
    assert task_view.exit_code({"status": status}) == code
