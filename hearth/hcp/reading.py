"""HCP messages from JSON documents and back: the envelope (L1), and the payload by the table of its type.

Reading raises MessageError, and nothing else, for whatever a document may hold; what was read and is written reads as
the same again. What a message means, and whether it may be heeded, is not asked here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

import orjson

from hearth.hcp.kinds import Choice, Identifier, Instant, MessageError as MessageError, Text, shown
from hearth.hcp.messages import Event, Message, MessageType, Payload, TaskSubmit
from hearth.hcp.payloads import DECLARATION, EVENT_DATA, PAYLOADS, SAFETY_ENVELOPE
from hearth.hcp.shapes import Checked, Table, missing
from hearth.hcp.values import HCP_VERSION, new_id, whole_milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.kinds import Kind

TYPES: tuple[MessageType, ...] = get_args(MessageType)

_TYPE_OF: Mapping[type, MessageType] = {table.make: name for name, table in PAYLOADS.items()}  # type: ignore[misc]
_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_TIMESTAMP = Instant(elidable=True)
_ENVELOPE: Mapping[str, Kind[Any]] = {
    "message_id": Identifier(),
    "hcp_version": Text(f'"{HCP_VERSION}"', expected='a version, "MAJOR.MINOR"'),
    "type": Choice(TYPES),
    "timestamp": _TIMESTAMP,
}
_SESSION_ID = Identifier(expected="the session's id, a string of 1 to 200 printable characters")
_DECLARED = Checked(Table(dict, {"capability": DECLARATION}, {"safety_envelope": SAFETY_ENVELOPE}))


def read_message(document: Any) -> Message:
    """The message that a JSON value is. Raises MessageError."""
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
    """The id of a message of which nothing else is read; None where it is no id."""
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
    """The payload of a message of this type. Raises MessageError without a message_id."""
    read: Payload = PAYLOADS[kind].read(payload, at)
    if isinstance(read, Event):
        EVENT_DATA[read.event_type].members(read.data, f"{at}/data")
    return read


def read_declaration(document: Any, at: str = "") -> Mapping[str, Any]:
    """A Capability Declaration (L3) as hcp.capabilities lists it: checked, with its safety envelope where it has one.

    It is handed on as it is. Raises MessageError.
    """
    read: Mapping[str, Any] = _DECLARED.read(document, at)
    return read


def read_submission(document: Any, *, now: float) -> Message:
    """A task_submit from a file: whole, or its payload alone, which gets an envelope of this moment (epoch seconds).

    Raises MessageError; its pointer is into what was given.
    """
    if type(document) is dict and "hcp_version" not in document and "payload" not in document:
        return message(read_payload("task_submit", document, ""), session_id=None, now=now)
    read = read_message(document)
    if not isinstance(read.payload, TaskSubmit):
        reason = f'expected "task_submit", got {shown(read.type)}'
        cure = "what is submitted is a task_submit, or its payload alone"
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
    """The document that reads back as this message. Members that say nothing are left out."""
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
    """A message as one line with its line feed, in UTF-8. Raises TypeError for a member that JSON cannot say."""
    return orjson.dumps(write_message(message)) + b"\n"
