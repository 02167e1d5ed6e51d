"""A job's end: outputs against what was promised and asked for, error codes, and a summary of what was measured."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hcp.gatekit import approve, capability, submit

from hearth.errors import ERROR_TABLE
from hearth.hcp.codec import message, read_message, write_message
from hearth.hcp.messages import ErrorCode, ExecutionSummary, TaskCompleted
from hearth.hcp.report import ERROR_CODES, LONGEST_NOTE, MOST_NOTED, conform, error_code_of, recoverable, summary

OPEN = {"type": "object", "required": ["mean"], "properties": {"mean": {"type": "number"}, "confidence": {}}}


def shortfall(outputs, task, one=None):
    found = conform(outputs, approve(task, *([one] if one else [])), task)
    return found and (found.error_code, found.reason, found.message)


def test_outputs_that_are_as_declared_and_as_expected_conform():
    task = submit(
        constraints={"confidence_threshold": 0.9},
        expected_output={
            "required_fields": ("mean", "confidence"),
            "schema": {"type": "object", "required": ["mean"], "properties": {"mean": {"minimum": 10}}},
        },
    )
    assert shortfall({"mean": 21.5, "confidence": 0.9}, task) is None


OUTPUTS = {
    "against the capability's own schema": (
        {"mean": "warm"}, {}, "internal_error", "outputs_not_as_declared", ["/outputs/mean", "output_schema", "1.4.2"],
    ),
    "without what the capability promises": (
        {}, {}, "internal_error", "outputs_not_as_declared", ["mean"],
    ),
    "not JSON": (
        {"mean": {1, 2}}, {}, "internal_error", "outputs_not_json", ["JSON"],
    ),
    "an integer that JSON readers cannot hold": (
        {"mean": 1 << 70}, {}, "internal_error", "outputs_not_json", ["JSON"],
    ),
    "not a number, which the caller would read as null": (
        {"mean": math.nan}, {}, "internal_error", "outputs_not_as_declared", ["/outputs/mean", "null"],
    ),
    "without a required field": (
        {"mean": 1}, {"expected_output": {"required_fields": ("mean", "spread")}},
        "execution_error", "required_fields_missing", ["'spread'", "required_fields"],
    ),
    "against the caller's schema": (
        {"mean": 5}, {"expected_output": {"schema": {"properties": {"mean": {"minimum": 10}}}}},
        "execution_error", "outputs_not_as_expected", ["/outputs/mean", "10", "expected_output.schema"],
    ),
    "below the threshold": (
        {"mean": 5, "confidence": 0.949}, {"constraints": {"confidence_threshold": 0.95}},
        "execution_error", "confidence_below_threshold", ["0.949", "0.95"],
    ),
    "without the confidence that the threshold is about": (
        {"mean": 5}, {"constraints": {"confidence_threshold": 0}},
        "execution_error", "confidence_unknown", ["/outputs/confidence", "null"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTPUTS)
@pytest.mark.spec(
    "hcp L4 Expected Output",
    "MUST",
    "required_fields | string[] | Fields that MUST be present in the result",
)
@pytest.mark.spec(
    "hcp L4 TaskCompleted Fields",
    "is",
    "outputs | object | Yes | Structured result data, conforming to expected_output.schema if specified",
)
def test_outputs_fall_short(case):
    outputs, asked, code, reason, words = OUTPUTS[case]
    found = shortfall(outputs, submit(**asked))
    assert found is not None
    assert found[:2] == (code, reason)
    assert [word for word in words if word not in found[2]] == []


@pytest.mark.parametrize("confidence", [math.nan, True, "0.99", -0.1, 1.01, [1], "x" * 1000])
def test_what_is_no_confidence_never_reaches_a_threshold(confidence):
    task = submit(constraints={"confidence_threshold": 0})
    found = shortfall({"mean": 1, "confidence": confidence}, task, capability(outputs=OPEN))
    assert found is not None
    assert found[:2] == ("execution_error", "confidence_unknown")
    assert len(found[2]) < 200


@pytest.mark.parametrize(("confidence", "threshold"), [(0, 0), (1, 1), (0.95, 0.95), (1, 0.5)])
def test_a_confidence_at_the_threshold_reaches_it(confidence, threshold):
    task = submit(constraints={"confidence_threshold": threshold})
    assert shortfall({"mean": 1, "confidence": confidence}, task) is None


def test_a_low_confidence_is_no_failure_where_no_threshold_was_given():
    assert shortfall({"mean": 1, "confidence": 0.01}, submit()) is None


def test_outputs_too_large_for_the_callers_schema_are_not_vouched_for():
    rows = {"type": "object", "properties": {"rows": {"type": "array"}}}
    task = submit(expected_output={"schema": {"properties": {"rows": {"items": {"allOf": [{}] * 1900}}}}})
    one = capability(outputs=rows)
    assert shortfall({"rows": [1] * 100}, task, one) is None
    found = shortfall({"rows": [1] * 100_000}, task, one)
    assert found is not None
    assert found[:2] == ("execution_error", "outputs_too_large_to_check")


def test_many_missing_fields_are_named_by_their_first():
    names = tuple(f"f{number}" for number in range(100))
    found = shortfall({"mean": 1}, submit(expected_output={"required_fields": names}), capability(outputs=OPEN))
    assert found is not None
    assert "'f9'" in found[2]
    assert "'f10'" not in found[2]


# --- error codes ------------------------------------------------------------------------------------------------------


def test_every_code_that_a_step_can_fail_with_has_an_error_code_of_l4():
    assert set(ERROR_CODES) == set(ERROR_TABLE)
    assert set(ERROR_CODES.values()) <= set(ErrorCode.__args__)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-32602, "input_error"),
        (-32003, "safety_violation"),
        *((code, "safety_violation") for code in (-32012, -32013, -32014, -32016, -32017)),
        (-32015, "execution_error"),
        (-32004, "resource_unavailable"),
        (-32005, "resource_unavailable"),
        (-32006, "resource_unavailable"),
        (-32011, "resource_unavailable"),
        (-32009, "execution_error"),
        (-32010, "execution_error"),
        (-32007, "internal_error"),
        (-32603, "internal_error"),
        (-32099, "execution_error"),
        (None, "execution_error"),
    ],
)
@pytest.mark.spec("hcp L4 Standard Error Codes")
def test_a_steps_failure_has_the_error_code_that_tells_a_caller_what_to_do(code, expected):
    assert error_code_of(code) == expected


@pytest.mark.parametrize(
    ("code", "effect", "expected"),
    [
        (-32004, "none", True),
        (-32006, "none", True),
        (-32007, "none", True),
        (-32011, "none", True),
        (-32009, "none", True),
        (-32010, "none", True),
        (-32009, "unknown", False),
        (-32010, "done", False),
        (-32602, "none", False),
        (-32003, "none", False),
        (-32603, "unknown", False),
        (None, "unknown", False),
    ],
)
def test_a_failure_is_recoverable_where_going_on_from_the_checkpoint_may_do(code, effect, expected):
    assert recoverable(code, effect) is expected


# --- the summary ------------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "hcp L4 TaskCompleted Fields",
    "is",
    "execution_summary | object | No | Summary of execution metrics and notable events",
)
def test_a_summary_is_what_was_measured():
    assert summary(
        duration_s=8100.0004, steps=42, checkpoints=3, warnings=["Chamber pressure fluctuation"]
    ) == ExecutionSummary(
        duration=timedelta(hours=2, minutes=15),
        steps_executed=42,
        checkpoints_created=3,
        warnings=("Chamber pressure fluctuation",),
    )


@pytest.mark.parametrize("seconds", [0.0, 0.0004, 0.25, 59.9996, 86400 * 3])
def test_a_summary_reads_back_as_it_was_written(seconds):
    told = summary(duration_s=seconds, steps=0, checkpoints=0, risk_events=["over_temperature"])
    payload = TaskCompleted(outputs={}, execution_summary=told)
    document = write_message(message(payload, session_id="s", now=0.0))
    assert read_message(document).payload == payload
    assert told.duration == timedelta(milliseconds=round(seconds * 1000))


def test_notes_that_repeat_are_told_once_with_how_often():
    told = summary(duration_s=1, steps=1, checkpoints=0, warnings=["retry", "slow", "retry", "retry"])
    assert told.warnings == ("retry (3 times)", "slow")


def test_notes_beyond_the_bound_are_counted():
    told = summary(duration_s=1, steps=1, checkpoints=0, risk_events=[f"e{n}" for n in range(MOST_NOTED + 20)])
    assert len(told.risk_events) == MOST_NOTED
    assert told.risk_events[-2:] == (f"e{MOST_NOTED - 2}", "and 21 more")
    long = summary(duration_s=1, steps=1, checkpoints=0, warnings=["x" * 1000]).warnings[0]
    assert len(long) == LONGEST_NOTE
