"""HCP's tables (L1 to L4) as this program has them: which members a payload has, which it needs, of which kind.

Nothing but shape: whether a capability exists, a schema is one, or a session is the sender's is for others to find out.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

from hearth.hcp.kinds import (
    Anything,
    Choice,
    Duration,
    Flag,
    Identifier,
    Instant,
    Integer,
    Number,
    Text,
)
from hearth.hcp.messages import (
    Abort,
    AcceptedConstraints,
    Artifact,
    Constraints,
    ErrorDetails,
    Event,
    ExecutionSummary,
    ExpectedOutput,
    MessageType,
    TaskAccepted,
    TaskCompleted,
    TaskFailed,
    TaskRejected,
    TaskSubmit,
)
from hearth.hcp.shapes import (
    Checked,
    Free,
    ListOf,
    MapOf,
    Table,
)
from hearth.hcp.values import CLASSIFICATIONS, RISKS, ErrorCode, EventType, Priority, State

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = Text('"bench-climate-survey"', most=200)
_SENTENCE = Text('"..."')
_WORDS = Text('""', least=0)
_LONGER_THAN_NOTHING = Duration(timedelta(microseconds=1))
_MEASURED = Duration(timedelta(0))
_RISK = Choice(RISKS)
_CLASSIFICATION = Choice(CLASSIFICATIONS)
_STATE = Choice(get_args(State))
_ID = Identifier()

SAFETY_ENVELOPE: Table[dict[str, Any]] = Table(
    dict,
    {},
    {
        "parameters": MapOf(
            Table(dict, {}, {"min": Number(), "max": Number(), "unit": Text('"celsius"'), "hard_limit": Flag()})
        ),
        "prohibited_actions": ListOf(_SENTENCE),
        "emergency_procedures": MapOf(_SENTENCE),
    },
)
"""L3, Safety Envelope. What else a parameter has is its own affair."""

_CONSTRAINTS = Table(
    Constraints,
    {},
    {
        "max_duration": _LONGER_THAN_NOTHING,
        "confidence_threshold": Number(0, 1),
        "data_classification": _CLASSIFICATION,
        "priority": Choice(get_args(Priority)),
    },
)
_EXPECTED_OUTPUT = Table(
    ExpectedOutput, {}, {"format": _NAME, "required_fields": ListOf(Text('"confidence"')), "schema": Free()}
)
_ARTIFACT = Table(
    Artifact,
    {"name": _SENTENCE, "type": Text('"text/csv"'), "uri": Text('"hcp://session-abc/artifacts/samples.csv"')},
    {"size_bytes": Integer(), "checksum": Text('"sha256:abc..."')},
)
_SUMMARY = Table(
    ExecutionSummary,
    {"duration": _MEASURED, "steps_executed": Integer()},
    {"checkpoints_created": Integer(), "risk_events": ListOf(_SENTENCE), "warnings": ListOf(_SENTENCE)},
    always=frozenset(("checkpoints_created", "risk_events", "warnings")),
)
_DETAILS = Table(
    ErrorDetails,
    {},
    {
        "phase": _WORDS,
        "step": Integer(),
        "last_checkpoint": Text('"ckpt-002"'),
        "recoverable": Flag(),
        "reason": _WORDS,
    },
    always=frozenset(("recoverable",)),
)

PAYLOADS: Mapping[MessageType, Table[Any]] = {
    "task_submit": Table(
        TaskSubmit,
        {
            "capability": _NAME,
            "caller_id": Text('"harness-alpha-001"', most=256),
            "intent": Text('"Survey the climate of the bench"'),
            "inputs": Free(),
        },
        {
            "capability_version": Text('"1.x"', most=200),
            "constraints": _CONSTRAINTS,
            "expected_output": _EXPECTED_OUTPUT,
            "context": Free(),
        },
    ),
    "abort": Table(Abort, {}, {"reason": Text('"no longer needed"', most=4096, least=0), "session_token": _SENTENCE}),
    "task_accepted": Table(
        TaskAccepted,
        {
            "session_token": _SENTENCE,
            "risk_level": _RISK,
            "data_classification": _CLASSIFICATION,
            "constraints": Table(
                AcceptedConstraints, {"max_duration": _LONGER_THAN_NOTHING, "abort_timeout": _MEASURED}
            ),
        },
        {"safety_envelope": Checked(SAFETY_ENVELOPE), "in_reply_to": _ID},
        always=frozenset(("safety_envelope",)),
    ),
    "task_rejected": Table(
        TaskRejected,
        {"reason_code": _NAME, "reason_message": _SENTENCE},
        {
            "assessed_risk_level": _RISK,
            "suggestion": _SENTENCE,
            "in_reply_to": _ID,
            "final_state": Choice(get_args(State)),
        },
    ),
    "event": Table(
        Event,
        {"event_type": Choice(get_args(EventType)), "sequence": Integer()},
        {"data": Free()},
        always=frozenset(("data",)),
    ),
    "task_completed": Table(
        TaskCompleted, {"outputs": Free()}, {"artifacts": ListOf(_ARTIFACT), "execution_summary": _SUMMARY}
    ),
    "task_failed": Table(
        TaskFailed,
        {"error_code": Choice(get_args(ErrorCode)), "error_message": _SENTENCE},
        {
            "error_details": _DETAILS,
            "partial_outputs": Free(),
            "artifacts": ListOf(_ARTIFACT),
            "execution_summary": _SUMMARY,
        },
        always=frozenset(("error_details",)),
    ),
}
"""Message type -> its payload."""

EVENT_DATA: Mapping[EventType, Table[dict[str, Any]]] = {
    "session_created": Table(dict, {}, {"state": _STATE, "risk_level": _RISK, "session_token": _SENTENCE}),
    "state_changed": Table(dict, {}, {"from_state": _STATE, "to_state": _STATE, "reason": _WORDS}),
    "progress": Table(
        dict, {}, {"stage": _WORDS, "percent": Number(0, 100), "message": _WORDS, "remaining": _MEASURED}
    ),
    "intermediate_result": Table(dict, {}, {"result_type": _SENTENCE, "data": Anything(), "is_partial": Flag()}),
    "log": Table(
        dict, {}, {"level": Choice(("info", "warn", "error")), "message": _WORDS, "details": Anything()}
    ),
    "warning": Table(dict, {}, {"code": _SENTENCE, "message": _WORDS, "details": Anything()}),
    "error": Table(dict, {}, {"code": _SENTENCE, "message": _WORDS, "recoverable": Flag()}),
    "checkpoint_created": Table(
        dict,
        {},
        {"checkpoint_id": _SENTENCE, "description": _WORDS, "resumable": Flag(), "created_at": Instant(elidable=True)},
    ),
    "session_closed": Table(
        dict, {}, {"final_state": Choice(("REJECTED", "ABORTED", "COMPLETED", "FAILED")), "reason": _WORDS}
    ),
}  # fmt: skip
"""Event type -> the data fields that L2's table has for it; the page's own example leaves them out, so any may be."""

_SCHEMA = Free(example='{"type": "object"}')
DECLARATION: Table[dict[str, Any]] = Table(
    dict,
    {
        "name": _NAME,
        "version": Text('"1.0.0"', most=200),
        "description": _SENTENCE,
        "input_schema": _SCHEMA,
        "output_schema": _SCHEMA,
        "safety": Table(
            dict,
            {"risk_ceiling": _RISK, "requires_human_approval": Flag(), "involves_physical_resources": Flag()},
            {"resource_types": ListOf(_SENTENCE), "hazard_categories": ListOf(_SENTENCE)},
        ),
    },
    {"constraints": Table(dict, {}, {"max_duration": _LONGER_THAN_NOTHING, "concurrent_limit": Integer(1)})},
)
"""L3, Capability Declaration Fields and Safety Declaration Fields."""
