"""HCP messages from JSON documents and back: the envelope (L1), and the payload by the table of its type.

Reading raises MessageError, and nothing else, whatever a document holds. A message that is read and written reads as
the same message again. The meaning of a message and the sender's rights are not checked here.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

import orjson

from hearth.hcp.kinds import (
    Anything,
    Checked,
    Choice,
    Duration,
    Flag,
    Free,
    Identifier,
    Instant,
    Integer,
    ListOf,
    MapOf,
    MessageError,
    Number,
    Table,
    Text,
    missing,
    shown,
)
from hearth.hcp.messages import (
    CLASSIFICATIONS,
    HCP_VERSION,
    RISKS,
    Abort,
    AcceptedConstraints,
    Artifact,
    Constraints,
    ErrorCode,
    ErrorDetails,
    Event,
    EventType,
    ExecutionSummary,
    ExpectedOutput,
    Message,
    MessageType,
    Payload,
    Priority,
    State,
    TaskAccepted,
    TaskCompleted,
    TaskFailed,
    TaskRejected,
    TaskSubmit,
    new_id,
    whole_milliseconds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.kinds import ValueType

# --- HCP's tables (L1 to L4): which members a payload has, which it needs, and their types
# --- HCP's tables (L1 to L4): which members a payload has, which it needs, and their types ----------------------------
#
# Shape only. Whether a capability exists, a schema is valid, or a session is the sender's is checked elsewhere.

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
"""L3, Safety Envelope. A parameter may have further members."""

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
"""Event type -> the data fields of L2's table for it. The page's own example omits them, so each may be absent."""

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


TYPES: tuple[MessageType, ...] = get_args(MessageType)

_TYPE_OF: Mapping[type, MessageType] = {table.make: name for name, table in PAYLOADS.items()}  # type: ignore[misc]
_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_TIMESTAMP = Instant(elidable=True)
_ENVELOPE: Mapping[str, ValueType[Any]] = {
    "message_id": Identifier(),
    "hcp_version": Text(f'"{HCP_VERSION}"', expected='a version, "MAJOR.MINOR"'),
    "type": Choice(TYPES),
    "timestamp": _TIMESTAMP,
}
_SESSION_ID = Identifier(expected="the session's id, a string of 1 to 200 printable characters")
_DECLARED = Checked(Table(dict, {"capability": DECLARATION}, {"safety_envelope": SAFETY_ENVELOPE}))


def read_message(document: Any) -> Message:
    """Return the message of a JSON value. Raises MessageError."""
    if type(document) is not dict:
        raise MessageError("", f"expected an object, got {shown(document)}", suggestion="send one HCP message")
    message_id = None
    try:
        message_id = _member(document, "message_id")
        version = _version(document)
        kind = _member(document, "type")
        timestamp = _member(document, "timestamp")
        session_id = _session_id(document, kind)
        if "payload" not in document:
            raise missing("payload", PAYLOADS[kind], document, "")
        payload = read_payload(kind, document["payload"])
    except MessageError as error:
        error.message_id = message_id
        raise
    return Message(
        hcp_version=version,
        message_id=message_id,
        timestamp=timestamp,
        session_id=session_id,
        type=kind,
        payload=payload,
    )


def message_id_of(document: Mapping[str, Any]) -> str | None:
    """Return the id of a message, without reading the rest; None where it is no id."""
    try:
        given: str = _member(document, "message_id")
    except MessageError:
        return None
    return given


def _member(document: Mapping[str, Any], name: str) -> Any:
    kind = _ENVELOPE[name]
    if name not in document:
        raise missing(name, kind, document, "")
    return kind.read(document[name], f"/{name}")


def _version(document: Mapping[str, Any]) -> str:
    version: str = _member(document, "hcp_version")
    matched = _VERSION.fullmatch(version)
    if matched is None:
        raise MessageError(
            "/hcp_version", f'expected "MAJOR.MINOR", got {shown(version)}', suggestion=f'write "{HCP_VERSION}"'
        )
    if matched[1] != HCP_VERSION.partition(".")[0]:
        raise MessageError(
            "/hcp_version",
            f'expected a version of the major that is spoken here, "{HCP_VERSION}", got {shown(version)}',
            code="unsupported_version",
            suggestion=f'speak HCP "{HCP_VERSION}"',
        )
    return version


def _session_id(document: Mapping[str, Any], kind: MessageType) -> str | None:
    """L1: null in a task_submit, whose session is yet to be created, and a session's in all others.

    L3 has a task_rejected with null, for there never was a session.
    """
    given = document.get("session_id")
    if given is None and kind in ("task_submit", "task_rejected"):
        return None
    if kind == "task_submit":
        cure = "write null: a session is created when the task is accepted, and its id comes with the answer"
        raise MessageError("/session_id", f"expected null in a task_submit, got {shown(given)}", suggestion=cure)
    if "session_id" not in document:
        raise missing("session_id", _SESSION_ID, document, "")
    return _SESSION_ID.read(given, "/session_id")


def read_payload(kind: MessageType, payload: Any, at: str = "/payload") -> Payload:
    """Return the payload of a message of this type. Raises MessageError without a message_id."""
    read: Payload = PAYLOADS[kind].read(payload, at)
    if isinstance(read, Event):
        EVENT_DATA[read.event_type].members(read.data, f"{at}/data")
    return read


def read_declaration(document: Any, at: str = "") -> Mapping[str, Any]:
    """Check a Capability Declaration (L3) as hcp.capabilities lists it, with its safety envelope where it has one.

    It is returned unchanged. Raises MessageError.
    """
    read: Mapping[str, Any] = _DECLARED.read(document, at)
    return read


def read_submission(document: Any, *, now: float) -> Message:
    """Return a task_submit from a file: whole, or its payload alone, which gets an envelope of `now` (epoch seconds).

    Raises MessageError; its pointer is into the given document.
    """
    if type(document) is dict and "hcp_version" not in document and "payload" not in document:
        return message(read_payload("task_submit", document, ""), session_id=None, now=now)
    read = read_message(document)
    if not isinstance(read.payload, TaskSubmit):
        reason = f'expected "task_submit", got {shown(read.type)}'
        cure = "expected a task_submit, or its payload alone"
        raise MessageError("/type", reason, message_id=read.message_id, suggestion=cure)
    return read


def message(payload: Payload, *, session_id: str | None, now: float) -> Message:
    """A message of our own: a fresh id, and this moment (epoch seconds, UTC)."""
    return Message(
        hcp_version=HCP_VERSION,
        message_id=new_id(),
        timestamp=whole_milliseconds(now),
        session_id=session_id,
        type=_TYPE_OF[type(payload)],
        payload=payload,
    )


def write_message(message: Message) -> dict[str, Any]:
    """Return the document that reads back as this message. Empty optional members are left out."""
    return {
        "hcp_version": message.hcp_version,
        "message_id": message.message_id,
        "timestamp": _TIMESTAMP.write(message.timestamp),
        "session_id": message.session_id,
        "type": message.type,
        "payload": write_payload(message.payload),
    }


def write_payload(payload: Payload) -> dict[str, Any]:
    """The payload alone, as `read_payload` takes it."""
    return PAYLOADS[_TYPE_OF[type(payload)]].write(payload)


def dump(message: Message) -> bytes:
    """Return a message as one line with its line feed, in UTF-8. Raises TypeError for a member without JSON."""
    return orjson.dumps(write_message(message)) + b"\n"
