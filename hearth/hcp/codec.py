"""HCP messages from JSON documents and back: the envelope (L1), and the payload by the table of its type.

Reading raises MessageError, and nothing else, whatever a document holds. A message that is read and written reads as
the same message again. The meaning of a message and the sender's rights are not checked here.

The types of the members are those of `hearth.fields`. This module adds `ObjectOf`, which makes an attrs class of an
object and writes it back, and the words of a refusal: a JSON pointer, the expected type, the value, and the cure.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import orjson
from attrs import NOTHING, Factory, fields

from hearth._util.text import nearest
from hearth.fields import (
    ANY_NUMBER,
    AnyMap,
    Anything,
    Choice,
    FieldErrors,
    FieldType,
    Flag,
    Integer,
    ListOf,
    MapOf,
    Number,
    Parsed,
    Text,
    gather,
    whole,
)
from hearth.hcp.messages import (
    HCP_VERSION,
    Abort,
    AcceptedConstraints,
    Artifact,
    ErrorCode,
    ErrorDetails,
    Event,
    EventType,
    ExecutionSummary,
    ExpectedOutput,
    JobConstraints,
    Message,
    MessageError,
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
    read_duration,
    read_instant,
    whole_milliseconds,
    write_duration,
    write_instant,
)
from hearth.policy.levels import CLASSIFICATIONS, RISKS
from hearth.protocol.jsonrpc import kind_of
from hearth.schema import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from attrs import Attribute

MAX_SAFE: Final = (1 << 53) - 1
"""Integers beyond this do not survive a peer that reads numbers as doubles."""
ELIDED: Final = "..."
"""Placeholder of the pages' examples for an id or an instant."""
_SHOWN = 60
_LONGEST_NAME = 60
_COMPARED = 32


class _Filled(Text):
    """A string of at least one character: an empty name names nothing."""

    def __init__(
        self, example: str = '"..."', *, least: int = 1, limit: int = 1 << 20, expected: str = "a string"
    ) -> None:
        super().__init__(expected, "", least=least, limit=limit, example=example)

    def cure(self, raw: object, at: str) -> str:
        return f"give {at} a string such as {self.example}" if isinstance(raw, str) else super().cure(raw, at)


class _Identifier(FieldType):
    """A peer's own name for a message or a session: 1 to 200 printable characters (decision 0068)."""

    example = '"550e8400-e29b-41d4-a716-446655440000"'

    def __init__(self, expected: str = "a string of 1 to 200 printable characters") -> None:
        self.expected = expected

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or not 1 <= len(raw) <= 200 or not raw.isprintable():
            raise self.wrong(raw)
        return raw


class ObjectOf(FieldType):
    """An object of one of the pages' tables, and the attrs class that holds it; without a class it is only checked.

    A required member must be present and not null: one that is among `required`, or without a default in the class. Any
    other that is absent or null has the default, and is left out when written, unless it is one of `always`. Unknown
    members are ignored at every level, because a later minor version may add some.
    """

    expected = "an object"

    def __init__(
        self,
        kinds: Mapping[str, FieldType],
        make: Callable[..., Any] | None = None,
        *,
        required: Collection[str] = (),
        always: Collection[str] = (),
    ) -> None:
        self.kinds, self.make, self._always = kinds, make, always
        self._defaults = {} if make is None else {each.name: _default(each) for each in fields(cast("Any", make))}
        needed = [name for name in kinds if name in required or self._defaults.get(name) is NOTHING]
        absent = {name: _Absent(name, kinds[name]).read for name in needed}
        self._readers = [(name, kind.read, absent.get(name)) for name, kind in kinds.items()]
        # None for a member that is written as it is.
        self._writers = [
            (name, None if type(kind).dump is FieldType.dump else kind.dump) for name, kind in kinds.items()
        ]
        self.example = "{" + ", ".join(f'"{name}": {kinds[name].example}' for name in needed) + "}"

    def read(self, raw: object) -> Any:
        """Return an instance of the class, or the object unchanged. Raises FieldErrors."""
        if not isinstance(raw, dict):
            raise self.wrong(raw)
        work: list[tuple[str, Callable[[Any], object], object]] = []
        for name, read, absent in self._readers:
            value = raw.get(name)
            if value is not None or (absent is not None and name in raw):
                work.append((name, read, value))
            elif absent is not None:
                work.append((name, absent, raw))
        found = gather(work)
        return self.make(**found) if self.make else raw

    def dump(self, value: Any) -> dict[str, Any]:
        """Return the JSON object that reads back as it."""
        if self.make is None:
            return dict(value)
        # HOT: for each message of a job, several times.
        made: dict[str, Any] = {}
        for name, write in self._writers:
            member = getattr(value, name)
            if name in self._always or member != self._defaults[name]:
                made[name] = member if write is None else write(member)
        return made


def _default(attribute: Attribute[Any]) -> Any:
    default: Any = attribute.default
    return default.factory() if isinstance(default, Factory) else default  # type: ignore[arg-type]


class _Absent(FieldType):
    """In place of the type of a required member that is absent: it refuses the object that lacks it."""

    def __init__(self, name: str, kind: FieldType) -> None:
        self._name, self._kind = name, kind

    def read(self, raw: object) -> object:
        raise self.wrong(raw, f"expected {self._kind.expected}, but there is no such member")

    def cure(self, raw: Any, at: str) -> str:
        """Return the misspelt member, or the one to add; the place is that of the absent member."""
        place = at.removesuffix(f"/{self._name}") or "the message"
        # The first few: comparing names takes time, and there may be thousands.
        others = [key for key in islice(raw, _COMPARED) if isinstance(key, str) and len(key) <= _LONGEST_NAME]
        if near := nearest(self._name, others, 1, 0.8):
            return f'write "{self._name}" where {place} has {json.dumps(near[0])}'
        return f'add "{self._name}" to {place}: {self._kind.expected}, for example {self._kind.example}'


def read_value(kind: FieldType, value: object, at: str) -> Any:
    """Return the value of a JSON value at this pointer. Raises MessageError for its first fault."""
    try:
        return kind.read(value)
    except FieldErrors as error:
        first = error.problems[0]
        at += "".join(f"/{escaped(str(key))}" for key in first.place)
        cure = first.kind.cure(first.value, at or "the message")
        raise MessageError(at, first.reason(_shown), suggestion=cure) from None


def _shown(value: object) -> str:
    """Return a JSON value for a message: its type, and the value where it is short."""
    if type(value) is int and abs(value) > MAX_SAFE:
        return "an integer beyond what a double holds"
    if value is None or type(value) is bool:
        return json.dumps(value)
    if type(value) is str and len(json.dumps(value[:_SHOWN])) > _SHOWN:
        return f"a string of {len(value)} characters"
    kind = kind_of(value)
    named = f"a Python {type(value).__name__}" if kind == "?" else kind
    return f"{named} ({json.dumps(value)})" if type(value) in (int, float, str) else named


class _Whole(Integer):
    """An integer, which may be written `2.0`."""

    def read(self, raw: object) -> int:
        return super().read(whole(raw))


class _Schema(AnyMap):
    """A JSON Schema: an object, or a truth value, which stands for one (JSON Schema 2020-12, 4.3.2)."""

    def read(self, raw: object) -> Mapping[str, Any]:
        return super().read(({} if raw else {"not": {}}) if isinstance(raw, bool) else raw)


def _list(item: FieldType) -> ListOf:
    return ListOf(item, expected=f"an array, each item {item.expected}")


def _map(item: FieldType) -> MapOf:
    return MapOf(item, None, expected=f"an object, each value {item.expected}")


def _duration(least: timedelta) -> Parsed:
    hint = 'write a duration such as "PT10M" or "P3DT12H" at {at}: P, days, T, hours, minutes, seconds'
    read = partial(read_duration, least=least)
    return Parsed("an ISO 8601 duration", read, write_duration, example='"PT10M"', hint=hint)


def _read_timestamp(text: str) -> datetime | None:
    return None if text == ELIDED else read_instant(text)


def _write_timestamp(instant: datetime | None) -> str:
    return ELIDED if instant is None else write_instant(instant)


# Shape only. Whether a capability exists, a schema is valid, or a session is the sender's is checked elsewhere.

_NAME = _Filled('"bench-climate-survey"', limit=200)
_SENTENCE = _Filled()
_SENTENCES = _list(_SENTENCE)
_WORDS = _Filled('""', least=0)
_COUNT = _Whole(0, MAX_SAFE)
_OBJECT = AnyMap("an object")
_LONGER_THAN_NOTHING = _duration(timedelta(microseconds=1))
_MEASURED = _duration(timedelta(0))
_TIMESTAMP = Parsed(
    "an ISO 8601 date and time in UTC",
    _read_timestamp,
    _write_timestamp,
    example='"2025-01-15T08:30:00.000Z"',
    hint='write the date and time in UTC at {at}, with Z at its end, for example "2025-01-15T08:30:00.000Z"',
)
_RISK = Choice(*RISKS)
_CLASSIFICATION = Choice(*CLASSIFICATIONS)
_STATE = Choice(*get_args(State))
_ID = _Identifier()

SAFETY_ENVELOPE = ObjectOf(
    {
        "parameters": _map(
            ObjectOf({"min": ANY_NUMBER, "max": ANY_NUMBER, "unit": _Filled('"celsius"'), "hard_limit": Flag()})
        ),
        "prohibited_actions": _SENTENCES,
        "emergency_procedures": _map(_SENTENCE),
    },
)
"""L3, Safety Envelope. A parameter may have further members."""

_ARTIFACT = ObjectOf(
    {
        "name": _SENTENCE, "type": _Filled('"text/csv"'), "uri": _Filled('"hcp://session-abc/artifacts/samples.csv"'),
        "size_bytes": _COUNT, "checksum": _Filled('"sha256:abc..."'),
    },
    Artifact,
)  # fmt: skip
_ARTIFACTS = _list(_ARTIFACT)
_SUMMARY = ObjectOf(
    {
        "duration": _MEASURED, "steps_executed": _COUNT, "checkpoints_created": _COUNT, "risk_events": _SENTENCES,
        "warnings": _SENTENCES,
    },
    ExecutionSummary,
    always=("checkpoints_created", "risk_events", "warnings"),
)  # fmt: skip

PAYLOADS: Mapping[MessageType, ObjectOf] = {
    "task_submit": ObjectOf(
        {
            "capability": _NAME,
            "caller_id": _Filled('"harness-alpha-001"', limit=256),
            "intent": _Filled('"Survey the climate of the bench"'),
            "inputs": _OBJECT,
            "capability_version": _Filled('"1.x"', least=0, limit=200),
            "constraints": ObjectOf(
                {
                    "max_duration": _LONGER_THAN_NOTHING, "confidence_threshold": Number(ge=0, le=1),
                    "data_classification": _CLASSIFICATION, "priority": Choice(*get_args(Priority)),
                },
                JobConstraints,
            ),
            "expected_output": ObjectOf(
                {
                    "format": _NAME, "required_fields": _list(_Filled('"confidence"')),
                    "schema": _Schema("a JSON Schema"),
                },
                ExpectedOutput,
            ),
            "context": _OBJECT,
        },
        TaskSubmit,
    ),
    "abort": ObjectOf(
        {"reason": _Filled('"no longer needed"', limit=4096, least=0), "session_token": _SENTENCE}, Abort
    ),
    "task_accepted": ObjectOf(
        {
            "session_token": _SENTENCE,
            "risk_level": _RISK,
            "data_classification": _CLASSIFICATION,
            "constraints": ObjectOf(
                {"max_duration": _LONGER_THAN_NOTHING, "abort_timeout": _MEASURED}, AcceptedConstraints
            ),
            "safety_envelope": SAFETY_ENVELOPE,
            "in_reply_to": _ID,
        },
        TaskAccepted,
        always=("safety_envelope",),
    ),
    "task_rejected": ObjectOf(
        {
            "reason_code": _NAME, "reason_message": _SENTENCE, "assessed_risk_level": _RISK, "suggestion": _SENTENCE,
            "in_reply_to": _ID, "final_state": _STATE,
        },
        TaskRejected,
    ),
    "event": ObjectOf(
        {"event_type": Choice(*get_args(EventType)), "sequence": _COUNT, "data": _OBJECT}, Event, always=("data",)
    ),
    "task_completed": ObjectOf(
        {"outputs": _OBJECT, "artifacts": _ARTIFACTS, "execution_summary": _SUMMARY}, TaskCompleted
    ),
    "task_failed": ObjectOf(
        {
            "error_code": Choice(*get_args(ErrorCode)),
            "error_message": _SENTENCE,
            "error_details": ObjectOf(
                {
                    "phase": _WORDS, "step": _COUNT, "last_checkpoint": _Filled('"ckpt-002"'), "recoverable": Flag(),
                    "reason": _WORDS, "effect": Choice("none", "done", "unknown"),
                },
                ErrorDetails,
                always=("recoverable",),
            ),
            "partial_outputs": _OBJECT,
            "artifacts": _ARTIFACTS,
            "execution_summary": _SUMMARY,
        },
        TaskFailed,
        always=("error_details",),
    ),
}  # fmt: skip
"""Message type -> its payload."""

EVENT_DATA: Mapping[EventType, ObjectOf] = {
    "session_created": ObjectOf({"state": _STATE, "risk_level": _RISK, "session_token": _SENTENCE}),
    "state_changed": ObjectOf({"from_state": _STATE, "to_state": _STATE, "reason": _WORDS}),
    "progress": ObjectOf(
        {"stage": _WORDS, "percent": Number(ge=0, le=100), "message": _WORDS, "remaining": _MEASURED}
    ),
    "intermediate_result": ObjectOf({"result_type": _SENTENCE, "data": Anything(), "is_partial": Flag()}),
    "log": ObjectOf(
        {"level": Choice("info", "warn", "error"), "message": _WORDS, "details": Anything()}
    ),
    "warning": ObjectOf({"code": _SENTENCE, "message": _WORDS, "details": Anything()}),
    "error": ObjectOf({"code": _SENTENCE, "message": _WORDS, "recoverable": Flag()}),
    "checkpoint_created": ObjectOf(
        {"checkpoint_id": _SENTENCE, "description": _WORDS, "resumable": Flag(), "created_at": _TIMESTAMP},
    ),
    "session_closed": ObjectOf(
        {"final_state": Choice("REJECTED", "ABORTED", "COMPLETED", "FAILED"), "reason": _WORDS}
    ),
}  # fmt: skip
"""Event type -> the data fields of L2's table for it. The page's own example omits them, so each may be absent."""

_SCHEMA = AnyMap("an object", '{"type": "object"}')
DECLARATION = ObjectOf(
    {
        "name": _NAME,
        "version": _Filled('"1.0.0"', limit=200),
        "description": _SENTENCE,
        "input_schema": _SCHEMA,
        "output_schema": _SCHEMA,
        "safety": ObjectOf(
            {
                "risk_ceiling": _RISK, "requires_human_approval": Flag(), "involves_physical_resources": Flag(),
                "resource_types": _SENTENCES, "hazard_categories": _SENTENCES,
            },
            required=("risk_ceiling", "requires_human_approval", "involves_physical_resources"),
        ),
        "constraints": ObjectOf({"max_duration": _LONGER_THAN_NOTHING, "concurrent_limit": _Whole(1, MAX_SAFE)}),
    },
    required=("name", "version", "description", "input_schema", "output_schema", "safety"),
)  # fmt: skip
"""L3, Capability Declaration Fields and Safety Declaration Fields."""


TYPES: tuple[MessageType, ...] = get_args(MessageType)

_TYPE_OF: Mapping[type, MessageType] = {table.make: name for name, table in PAYLOADS.items()}  # type: ignore[misc]
_MAJOR_MINOR = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_VERSION = _Filled(f'"{HCP_VERSION}"', expected='a version, "MAJOR.MINOR"')
_TYPE = Choice(*TYPES)
_SESSION_ID = _Identifier("the session's id, a string of 1 to 200 printable characters")
_DECLARED = ObjectOf({"capability": DECLARATION, "safety_envelope": SAFETY_ENVELOPE}, required=("capability",))


def read_message(document: Any) -> Message:
    """Return the message of a JSON value. Raises MessageError."""
    if type(document) is not dict:
        raise MessageError("", f"expected an object, got {_shown(document)}", suggestion="send one HCP message")
    message_id = None
    try:
        message_id = _member(document, "message_id", _ID)
        version = _version(document)
        kind = _member(document, "type", _TYPE)
        timestamp = _member(document, "timestamp", _TIMESTAMP)
        session_id = _session_id(document, kind)
        there = "payload" in document
        payload = read_payload(kind, document["payload"]) if there else _member(document, "payload", PAYLOADS[kind])
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
        given: str = _member(document, "message_id", _ID)
    except MessageError:
        return None
    return given


def _member(document: Mapping[str, Any], name: str, kind: FieldType) -> Any:
    at = f"/{name}"
    return read_value(kind, document[name], at) if name in document else read_value(_Absent(name, kind), document, at)


def _version(document: Mapping[str, Any]) -> str:
    version: str = _member(document, "hcp_version", _VERSION)
    matched = _MAJOR_MINOR.fullmatch(version)
    if matched is None:
        raise MessageError(
            "/hcp_version", f'expected "MAJOR.MINOR", got {_shown(version)}', suggestion=f'write "{HCP_VERSION}"'
        )
    if matched[1] != HCP_VERSION.partition(".")[0]:
        raise MessageError(
            "/hcp_version",
            f'expected a version of the major that is spoken here, "{HCP_VERSION}", got {_shown(version)}',
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
        raise MessageError("/session_id", f"expected null in a task_submit, got {_shown(given)}", suggestion=cure)
    session_id: str = _member(document, "session_id", _SESSION_ID)
    return session_id


def read_payload(kind: MessageType, payload: Any, at: str = "/payload") -> Payload:
    """Return the payload of a message of this type. Raises MessageError without a message_id."""
    read: Payload = read_value(PAYLOADS[kind], payload, at)
    if isinstance(read, Event):
        read_value(EVENT_DATA[read.event_type], read.data, f"{at}/data")
    return read


def read_declaration(document: Any, at: str = "") -> Mapping[str, Any]:
    """Check a Capability Declaration (L3) as hcp.capabilities lists it, with its safety envelope where it has one.

    It is returned unchanged. Raises MessageError.
    """
    read: Mapping[str, Any] = read_value(_DECLARED, document, at)
    return read


def read_submission(document: Any, *, now: float) -> Message:
    """Return a task_submit from a file: whole, or its payload alone, which gets an envelope of `now` (epoch seconds).

    Raises MessageError; its pointer is into the given document.
    """
    if type(document) is dict and "hcp_version" not in document and "payload" not in document:
        return message(read_payload("task_submit", document, ""), session_id=None, now=now)
    read = read_message(document)
    if not isinstance(read.payload, TaskSubmit):
        reason = f'expected "task_submit", got {_shown(read.type)}'
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
        "timestamp": _TIMESTAMP.dump(message.timestamp),
        "session_id": message.session_id,
        "type": message.type,
        "payload": write_payload(message.payload),
    }


def write_payload(payload: Payload) -> dict[str, Any]:
    """The payload alone, as `read_payload` takes it."""
    return PAYLOADS[_TYPE_OF[type(payload)]].dump(payload)


def dump(message: Message) -> bytes:
    """Return a message as one line with its line feed, in UTF-8. Raises TypeError for a member without JSON."""
    return orjson.dumps(write_message(message)) + b"\n"
