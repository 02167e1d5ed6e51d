"""Jobs as lines: what every message says in one, and what of the wire a terminal must not obey."""

from __future__ import annotations

import io
import time
from datetime import timedelta

import pytest

from hearth.cli import hcp_account, hcp_view
from hearth.hcp.api import JobResult
from hearth.hcp.codec import message
from hearth.hcp.messages import (
    AcceptedConstraints,
    Artifact,
    ErrorDetails,
    Event,
    ExecutionSummary,
    TaskAccepted,
    TaskCompleted,
    TaskFailed,
    TaskRejected,
)

SESSION = "6a1b3f9e-9f0e-4a57-8f5c-2d7c0a5b1e42"
LIMITS = AcceptedConstraints(max_duration=timedelta(hours=72), abort_timeout=timedelta(seconds=10))
ENVELOPE = {
    "parameters": {"temperature": {"max": 1000, "unit": "celsius", "hard_limit": True}, "flow": {"min": 1, "max": 2}},
    "prohibited_actions": ["mixing"],
    "emergency_procedures": {"gas_leak": "close_all"},
}


def said(payload):
    line = hcp_view.message_line(message(payload, session_id=SESSION, now=1_700_000_000.25))
    assert line.startswith("22:13:20.250  ")
    return " ".join(line.split()[1:])


def event(kind, **data):
    return Event(event_type=kind, sequence=1, data=data)


def accepted(**more):
    return TaskAccepted(session_token="t", risk_level="R3", constraints=LIMITS, data_classification="T2", **more)


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (accepted(), "accepted risk R3, data T2, at most 72 h"),
        (TaskCompleted(outputs={"mean": 21.5, "ok": True}), "completed mean=21.5 ok=yes"),
        (TaskFailed(error_code="timeout", error_message="too late"), "failed timeout: too late"),
        (TaskRejected(reason_code="x", reason_message="y"), "task_rejected"),
        (event("session_created", state="PENDING", session_token="secret"), "session PENDING"),
        (
            event("state_changed", from_state="PENDING", to_state="RUNNING", reason="approved"),
            "state PENDING → RUNNING approved",
        ),
        (
            event("progress", stage="sampling", percent=20, message="2 of 10", remaining="PT2M5S"),
            "progress 20 % sampling 2 of 10 2 min 5 s left",
        ),
        (event("progress", stage="sampling", remaining="soon"), "progress sampling soon left"),
        (event("intermediate_result", result_type="n", data={"a": 1}), "result n a=1"),
        (event("log", level="info", message="hot"), "log info hot"),
        (event("warning", code="w", message="hot"), "warning w hot"),
        (event("error", code="e", message="hot"), "error e hot"),
        (event("checkpoint_created", description="sample[3]", checkpoint_id="ckpt-3"), "checkpoint sample[3] ckpt-3"),
        (event("session_closed", final_state="FAILED", reason="timeout"), "closed FAILED timeout"),
        (event("tool_start", tool="x"), "tool_start tool=x"),
    ],
)
def test_every_message_says_what_it_is_in_a_line(payload, line):
    assert said(payload) == line


def test_what_comes_from_elsewhere_is_shown_and_not_obeyed():
    line = hcp_view.message_line(
        message(event("log", level="info", message="\x1b[2Jgone\nand more"), session_id=SESSION, now=0)
    )
    assert "\x1b" not in line
    assert "\n" not in line
    assert "\\x1b[2Jgone" in line


def test_long_outputs_do_not_fill_the_screen_before_they_are_shown():
    line = hcp_view.message_line(message(TaskCompleted(outputs={"all": "x" * 9999}), session_id=SESSION, now=0))
    assert len(line) < 400
    assert line.endswith("x…")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.0123, "0.0123 s"), (12.34, "12.3 s"), (125, "2 min 5 s"), (3600, "1 h"), (90061, "25 h 1 min 1 s")],
)
def test_a_duration_is_told_in_the_units_of_a_person(seconds, words):
    assert hcp_view.took(timedelta(seconds=seconds)) == words


def test_an_envelope_is_told_bound_by_bound():
    assert hcp_view.envelope_facts(ENVELOPE) == {
        "temperature": "at most 1000 celsius",
        "flow": "at least 1, at most 2",
        "never": ["mixing"],
        "on gas_leak": "close_all",
    }
    assert hcp_view.envelope_facts({"parameters": {"a": 1}, "emergency_procedures": None}) == {}
    assert hcp_view.envelope_facts({"parameters": "none"}) == {}


def failed(**details):
    return JobResult(
        session_id=SESSION,
        state="FAILED",
        outputs={"n": 3},
        artifacts=(Artifact(name="log", type="text/csv", uri="hcp://s/artifacts/log.csv"),),
        summary=ExecutionSummary(
            duration=timedelta(seconds=2), steps_executed=3, risk_events=("hot",), warnings=("a", "b")
        ),
        reason="slow",
        error_code="timeout",
        error_message="too late",
        details=ErrorDetails(**details),
    )


def test_a_failure_says_how_to_go_on_where_one_can():
    result = failed(phase="sampling", step=3, last_checkpoint="ckpt-3", recoverable=True)
    text = "\n".join(hcp_view.result_lines(result))
    assert "timeout: too late" in text
    assert "submit it again with this checkpoint as context.last_checkpoint" in text
    assert "outputs so far" in text
    for word in ("hot", "ckpt-3", "log.csv"):
        assert word in text
    document = hcp_view.result_json(result)
    assert document["error_details"]["last_checkpoint"] == "ckpt-3"
    assert document["partial_outputs"] == {"n": 3}
    assert "submit it again" not in "\n".join(hcp_view.result_lines(failed(last_checkpoint="ckpt-3")))
    assert "submit it again from the beginning" in "\n".join(hcp_view.result_lines(failed(recoverable=True)))


def test_an_abort_has_no_error_to_tell():
    result = JobResult(session_id=SESSION, state="ABORTED", reason="enough")
    assert hcp_view.result_lines(result) == [f"{hcp_view.state('ABORTED')}  \x1b[2m{SESSION}\x1b[0m  enough"]
    assert hcp_view.result_json(result) == {
        "session_id": SESSION, "state": "ABORTED", "reason": "enough", "outputs": {},
    }  # fmt: skip


def test_a_long_report_leaves_out_the_middle_and_says_how_much():
    count = hcp_account.SHOWN_FIRST + hcp_account.SHOWN_LAST + 7
    messages = [message(accepted(safety_envelope=ENVELOPE), session_id=SESSION, now=time.time())]
    for number in range(count):
        done = Event(event_type="log", sequence=number + 1, data={"level": "info", "message": f"line {number:03d}"})
        messages.append(message(done, session_id=SESSION, now=time.time()))
    out = io.StringIO()
    hcp_account.show({"state": "RUNNING", "capability": "\x1b]0;x\x07"}, messages, None, file=out)
    text = out.getvalue()
    assert "7 more; --json has them all" in text
    assert f"line {hcp_account.SHOWN_FIRST - 1:03d}" in text
    assert f"line {hcp_account.SHOWN_FIRST:03d}" not in text
    assert f"line {count - 1:03d}" in text
    assert "at most 1000 celsius" in text
    assert "\x1b" not in text
