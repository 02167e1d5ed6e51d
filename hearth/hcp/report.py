"""The result of a job's end: the check of its outputs, the error code of a failure, and the summary.

docs/hcp.md has the tables. A summary holds only measured values. Outputs that cannot be verified are a failure.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import orjson
from attrs import frozen

from hearth.errors import (
    ApprovalRequired,
    AuditUnavailable,
    DeviceError,
    EffectNotSeen,
    Halted,
    InterlockOpen,
    InternalError,
    InvalidParams,
    InvalidRequest,
    LimitViolated,
    MethodNotFound,
    ParseError,
    PermissionDenied,
    PlanStale,
    QueueFull,
    RateLimited,
    ResourceBusy,
    SessionInvalid,
    ShuttingDown,
    TaskNotFound,
    TimedOut,
    ToolNotFound,
    UnsupportedVersion,
)
from hearth.hcp.messages import ExecutionSummary
from hearth.hcp.schemas import explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.errors import Effect
    from hearth.hcp.messages import ErrorCode, TaskSubmit
    from hearth.hcp.safety import Approval

Reason: TypeAlias = Literal[
    "outputs_not_json",
    "outputs_not_as_declared",
    "required_fields_missing",
    "outputs_not_as_expected",
    "outputs_too_large_to_check",
    "confidence_unknown",
    "confidence_below_threshold",
]
"""The `error_details.reason` of refused outputs."""

MOST_NOTED: Final = 100
"""Entries of each list in a summary; further ones are counted."""
LONGEST_NOTE: Final = 300


@frozen
class Shortfall:
    """The fault of a job's outputs: the job fails with it."""

    error_code: ErrorCode
    reason: Reason
    message: str


def conform(outputs: Mapping[str, Any], approval: Approval, submit: TaskSubmit) -> Shortfall | None:
    """Return the first fault of the outputs against the capability's and the caller's schema; None if they are right.

    The check reads what the caller will read, so a number that JSON has no notation for is null here too.
    """
    try:
        plain = orjson.loads(orjson.dumps(outputs))
    except TypeError as error:
        return Shortfall("internal_error", "outputs_not_json", f"/outputs cannot be written as JSON: {error}")
    capability, expected = approval.capability, submit.expected_output
    if not capability.outputs.accepts(plain):
        wrong = explain(capability.output_schema, plain)
        what = f"/outputs{wrong.pointer}: {wrong.reason}"
        said = f"{what}, which is not what {capability.name} {capability.version} declares in its output_schema"
        return Shortfall("internal_error", "outputs_not_as_declared", said)
    missing = [name for name in expected.required_fields if name not in plain]
    if missing:
        said = f"/outputs has no {', '.join(map(repr, missing[:10]))}, which expected_output.required_fields asks for"
        return Shortfall("execution_error", "required_fields_missing", said)
    if approval.expected is not None and (mismatch := approval.expected.mismatch_of(plain)) is not None:
        said = f"/outputs{mismatch.pointer}: {mismatch.reason}, against expected_output.schema"
        reason: Reason = "outputs_too_large_to_check" if mismatch.too_much else "outputs_not_as_expected"
        return Shortfall("execution_error", reason, said)
    return _confident(plain, approval.confidence_threshold)


def _confident(outputs: Mapping[str, Any], threshold: float | None) -> Shortfall | None:
    if threshold is None:
        return None
    confidence: Any = outputs.get("confidence")
    if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
        said = f"/outputs/confidence is {_short(confidence)}, so it is not known to reach {threshold:g}"
        return Shortfall("execution_error", "confidence_unknown", said)
    if confidence < threshold:
        said = f"the confidence of the results is {confidence:g}, below the confidence_threshold of {threshold:g}"
        return Shortfall("execution_error", "confidence_below_threshold", said)
    return None


ERROR_CODES: Final[Mapping[int, ErrorCode]] = {
    # The args made from the inputs turned out to be impossible.
    InvalidParams.code: "input_error",
    # Allowlist, risk cap, path guard, halt and the like: limits that hearth enforces and no caller can relax.
    PermissionDenied.code: "safety_violation",
    Halted.code: "safety_violation",
    LimitViolated.code: "safety_violation",
    InterlockOpen.code: "safety_violation",
    ApprovalRequired.code: "safety_violation",
    PlanStale.code: "safety_violation",
    ResourceBusy.code: "resource_unavailable",
    QueueFull.code: "resource_unavailable",
    RateLimited.code: "resource_unavailable",
    AuditUnavailable.code: "resource_unavailable",
    # A step's own limit; `timeout` is said of the job's max_duration alone.
    TimedOut.code: "execution_error",
    DeviceError.code: "execution_error",
    EffectNotSeen.code: "execution_error",
    # The daemon wrote the step: a wrong request is not the caller's fault.
    ParseError.code: "internal_error",
    InvalidRequest.code: "internal_error",
    MethodNotFound.code: "internal_error",
    InternalError.code: "internal_error",
    SessionInvalid.code: "internal_error",
    TaskNotFound.code: "internal_error",
    ToolNotFound.code: "internal_error",
    UnsupportedVersion.code: "internal_error",
    ShuttingDown.code: "internal_error",
}
"""HACP's code of a step's failure -> the error code of its job (L4, Standard Error Codes)."""

_PASSING: Final = frozenset({
    ResourceBusy.code, QueueFull.code, RateLimited.code, AuditUnavailable.code, ShuttingDown.code,
})  # fmt: skip


def error_code_of(hacp_code: int | None) -> ErrorCode:
    """Return the error code of a job whose step failed with this; an unknown code is a failure of the step."""
    return ERROR_CODES.get(hacp_code, "execution_error") if hacp_code is not None else "execution_error"


def recoverable(hacp_code: int | None, effect: Effect) -> bool:
    """Return True if the same job, submitted again from its last checkpoint, may succeed with nothing changed.

    This is so where the obstacle passes by itself, and for a device's failure that is known to have had no effect: the
    failed step is done again then.
    """
    return hacp_code in _PASSING or (hacp_code in (DeviceError.code, TimedOut.code) and effect == "none")


def summary(
    *,
    duration_s: float,
    steps: int,
    checkpoints: int,
    risk_events: Iterable[str] = (),
    warnings: Iterable[str] = (),
) -> ExecutionSummary:
    """Return the measured summary, to the millisecond; equal notes appear once, with their number."""
    return ExecutionSummary(
        duration=timedelta(milliseconds=round(duration_s * 1000)),
        steps_executed=steps,
        checkpoints_created=checkpoints,
        risk_events=_noted(risk_events),
        warnings=_noted(warnings),
    )


def _noted(notes: Iterable[str]) -> tuple[str, ...]:
    counted: dict[str, int] = {}
    for note in notes:
        short = note if len(note) <= LONGEST_NOTE else f"{note[: LONGEST_NOTE - 1]}…"
        counted[short] = counted.get(short, 0) + 1
    texts = [note if times == 1 else f"{note} ({times} times)" for note, times in counted.items()]
    if len(texts) > MOST_NOTED:
        texts[MOST_NOTED - 1 :] = [f"and {len(texts) - MOST_NOTED + 1} more"]
    return tuple(texts)


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"
