"""The messages of HCP as values (L1 envelope, L2 events, L3 answers, L4 payloads), one class for each table.

`hearth.hcp.codec` makes them from documents and documents from them. Members that a table has as optional are None or
empty here, and are then left out on the wire.

This module also owns the types of their values (instants, durations, risk levels, data classes, priorities; L1, L3,
L4), each with one reader and one writer that raise ValueError for anything else; the table of session states and
transitions (L2, Session State Machine); and `Rejection`, the refusal of a message as a value (L3, TaskRejected), with
all reason codes. Components that decide to refuse raise it.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args
from uuid import uuid4

from attrs import field, frozen

from hearth.annotations import write_datetime
from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.policy.levels import Classification, Risk

Json: TypeAlias = Any
Object: TypeAlias = "Mapping[str, Json]"

MessageType: TypeAlias = Literal[
    "task_submit", "abort", "task_accepted", "task_rejected", "event", "task_completed", "task_failed"
]


@frozen(kw_only=True)
class JobConstraints:
    """L4, Constraints."""

    max_duration: timedelta | None = None
    confidence_threshold: float | None = None
    data_classification: Classification | None = None
    priority: Priority | None = None


@frozen(kw_only=True)
class ExpectedOutput:
    """L4, Expected Output."""

    format: str | None = None
    required_fields: tuple[str, ...] = ()
    schema: Object | None = None


@frozen(kw_only=True)
class TaskSubmit:
    """L4, TaskSubmit Fields. `context` is as received: it is validated against nothing."""

    capability: str
    caller_id: str
    intent: str
    inputs: Object
    capability_version: str | None = None
    constraints: JobConstraints = JobConstraints()
    expected_output: ExpectedOutput = ExpectedOutput()
    context: Object = field(factory=dict)


@frozen(kw_only=True)
class Abort:
    """L2, Abort Protocol."""

    reason: str | None = None
    session_token: str | None = None


@frozen(kw_only=True)
class AcceptedConstraints:
    """The constraints of the session (L3, TaskAccepted Response)."""

    max_duration: timedelta
    abort_timeout: timedelta


@frozen(kw_only=True)
class TaskAccepted:
    """L3, TaskAccepted Response. `in_reply_to` is ours: the message_id of the task_submit."""

    session_token: str
    risk_level: Risk
    constraints: AcceptedConstraints
    data_classification: Classification
    safety_envelope: Object = field(factory=dict)
    in_reply_to: str | None = None


@frozen(kw_only=True)
class TaskRejected:
    """L3, TaskRejected Response; also the answer to a message that cannot be read or acted upon.

    `final_state` is ours: the state of a session that had ended before an abort arrived.
    """

    reason_code: str
    reason_message: str
    assessed_risk_level: Risk | None = None
    suggestion: str | None = None
    in_reply_to: str | None = None
    final_state: State | None = None


@frozen(kw_only=True)
class Event:
    """L2, Event Envelope."""

    event_type: EventType
    sequence: int
    data: Object = field(factory=dict)


@frozen(kw_only=True)
class Artifact:
    """L4, Artifacts."""

    name: str
    type: str
    uri: str
    size_bytes: int | None = None
    checksum: str | None = None


@frozen(kw_only=True)
class ExecutionSummary:
    """L4, Task Completion: measured, never invented."""

    duration: timedelta
    steps_executed: int
    checkpoints_created: int = 0
    risk_events: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@frozen(kw_only=True)
class TaskCompleted:
    """L4, TaskCompleted Fields."""

    outputs: Object
    artifacts: tuple[Artifact, ...] = ()
    execution_summary: ExecutionSummary | None = None


@frozen(kw_only=True)
class ErrorDetails:
    """L4, TaskFailed Schema. `reason` and `effect` are ours.

    `reason` distinguishes causes within one error code. `effect` says what the step that a halt met has done: "none",
    "done" or "unknown".
    """

    phase: str | None = None
    step: int | None = None
    last_checkpoint: str | None = None
    recoverable: bool = False
    reason: str | None = None
    effect: str | None = None


@frozen(kw_only=True)
class TaskFailed:
    """L4, Task Failure."""

    error_code: ErrorCode
    error_message: str
    error_details: ErrorDetails = ErrorDetails()
    partial_outputs: Object = field(factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    execution_summary: ExecutionSummary | None = None


Payload: TypeAlias = "TaskSubmit | Abort | TaskAccepted | TaskRejected | Event | TaskCompleted | TaskFailed"


@frozen(kw_only=True)
class Message:
    """L1, Envelope Fields. `timestamp` is None where it is elided ("..."), as in the pages' examples."""

    message_id: str
    timestamp: datetime | None
    session_id: str | None
    type: MessageType
    payload: Payload
    hcp_version: str = "1.0"


HCP_VERSION: Final = "1.0"
"""The version we speak (L1, Envelope Fields)."""

Priority: TypeAlias = Literal["low", "normal", "high", "urgent"]
State: TypeAlias = Literal["PENDING", "REJECTED", "RUNNING", "PAUSED", "ABORTING", "ABORTED", "COMPLETED", "FAILED"]
"""Of an HCP session (L2, State Definitions)."""
EventType: TypeAlias = Literal[
    "session_created", "state_changed", "progress", "intermediate_result", "log", "warning", "error",
    "checkpoint_created", "session_closed",
]  # fmt: skip
"""The type of an event (L2, Standard Event Types)."""
ErrorCode: TypeAlias = Literal[
    "execution_error", "timeout", "safety_violation", "resource_unavailable", "internal_error", "input_error"
]
"""The cause of a task's failure (L4, Standard Error Codes)."""

NEEDED_RISK_LEVEL: Final[dict[Risk, int]] = {"R1": 0, "R2": 1, "R3": 2, "R4": 2, "R5": 3}
"""The HACP risk level (draft §3.3) that a caller's policy must allow for a task of this risk."""
LEAST_RISK: Final[dict[int, Risk]] = {0: "R1", 1: "R2", 2: "R3", 3: "R5"}
"""The least risk that a capability may declare which uses a tool of this HACP risk level."""


_LEAST: Final = timedelta(microseconds=1)
# Checked before the two libraries parse: they accept a final line feed, any character for the T, "PT", and more.
_INSTANT: Final = re.compile(r"[0-9W-]{7,10}T[0-9:.,]{2,40}(Z|[+-]00(:?00)?)")
_PART: Final = r"[0-9]{1,12}([.,][0-9]{1,12})?"
_DURATION: Final = re.compile(f"P(?=.)({_PART}[YMWD])*(T({_PART}[HMS])+)?")


def new_id() -> str:
    """A fresh UUID v4, for a message or a session (L1, Envelope Fields)."""
    return str(uuid4())


def write_instant(instant: float | datetime) -> str:
    """Return epoch seconds, or a UTC datetime, as ISO 8601 with milliseconds; finer digits of a datetime are kept."""
    if not isinstance(instant, datetime):
        return write_instant(whole_milliseconds(instant))
    return write_datetime(instant)


def whole_milliseconds(epoch_s: float) -> datetime:
    """Return epoch seconds as a datetime that `write_instant` writes exactly."""
    return datetime.fromtimestamp(math.floor(epoch_s * 1000) / 1000, UTC)


def read_instant(text: str) -> datetime:
    """An ISO 8601 date and time in UTC, in any of the standard's forms. Raises ValueError."""
    try:
        instant = datetime.fromisoformat(text) if _INSTANT.fullmatch(text) else None
    except ValueError:
        instant = None
    if instant is None:
        raise ValueError(f'expected an instant in UTC such as "2025-01-15T08:30:00.000Z", got {ascii(text)[:60]}')
    return instant


def read_duration(text: str, *, least: timedelta = _LEAST) -> timedelta:
    """An ISO 8601 duration of a fixed length (no years, no months), by default more than nothing. Raises ValueError."""
    import isodate  # 30 ms, and most importers of this module read no duration

    try:
        duration = isodate.parse_duration(text) if _DURATION.fullmatch(text) else None
    except (isodate.ISO8601Error, ArithmeticError):
        duration = None
    shown = ascii(text)[:60]
    if duration is not None and type(duration) is not timedelta:
        said = "expected a duration of a fixed length, which years and months do not have (one minute is PT1M)"
        raise ValueError(f"{said}, got {shown}")
    if duration is None:
        raise ValueError(f'expected an ISO 8601 duration such as "PT10M", got {shown}')
    if duration < least:
        raise ValueError(f"expected a duration that is more than nothing, got {shown}")
    return duration


def write_duration(duration: timedelta) -> str:
    """A duration as ISO 8601, in the form of the pages' examples: PT2H15M, PT0.25S, and PT0S for none."""
    import isodate

    return cast("str", isodate.duration_isoformat(duration)) if duration else "PT0S"


STATES: Final[tuple[State, ...]] = get_args(State)

TRANSITIONS: Final[Mapping[State, Mapping[State, str]]] = {
    "PENDING": {"RUNNING": "L3 safety check passed", "REJECTED": "L3 safety check failed"},
    "REJECTED": {},
    "RUNNING": {
        "PAUSED": "Callee pauses execution",
        "ABORTING": "Caller sends `abort`",
        "COMPLETED": "Task finishes successfully",
        "FAILED": "Unrecoverable error",
    },
    "PAUSED": {"RUNNING": "Callee resumes execution", "ABORTING": "Caller sends `abort` while paused"},
    "ABORTING": {"ABORTED": "Callee finishes cleanup"},
    "ABORTED": {},
    "COMPLETED": {},
    "FAILED": {},
}
"""From -> to -> what triggers it (L2, Valid State Transitions)."""

TERMINAL: Final[frozenset[State]] = frozenset(state for state, ways in TRANSITIONS.items() if not ways)
"""REJECTED, ABORTED, COMPLETED, FAILED: none leads on."""


def move(state: State, to: State) -> State:
    """The new state. Raises ValueError for a transition that the table does not have."""
    if to not in TRANSITIONS[state]:
        ways = " or ".join(TRANSITIONS[state]) or "nowhere"
        raise ValueError(f"an HCP session goes from {state} to {ways}, not to {to}")
    return to


ReasonCode: TypeAlias = Literal[
    # L3's own
    "unauthorized", "forbidden", "invalid_input", "risk_too_high",
    # what else the gate finds
    "unknown_capability", "version_mismatch", "safety_violation", "classification_too_high",
    # # other refusals, before or after the gate
    "invalid_message", "unsupported_version", "unknown_session", "message_id_reused", "approval_denied",
    "approval_timeout", "withdrawn", "session_ended", "expired", "resource_unavailable", "shutting_down",
    "internal_error",
]  # fmt: skip
"""The reasons for rejecting a message: every `reason_code` that this daemon sends."""

LONGEST: Final = 600
"""Characters of a sentence to the caller, which may quote from a message of a megabyte."""
_QUOTED = 80
_LISTED = 12


class Rejection(HearthError):
    """The refusal of a message: the members of task_rejected, apart from the message that it answers."""

    def __init__(
        self,
        reason_code: ReasonCode,
        message: str,
        *,
        suggestion: str | None = None,
        risk: Risk | None = None,
        final_state: State | None = None,
    ) -> None:
        self.reason_code: ReasonCode = reason_code
        self.message = _clipped(message)
        self.suggestion = None if suggestion is None else _clipped(suggestion)
        self.risk: Risk | None = risk
        self.final_state: State | None = final_state
        super().__init__(f"{reason_code}: {self.message}")

    def payload(self, in_reply_to: str | None) -> TaskRejected:
        """Return the answer to the message of this id."""
        return TaskRejected(
            reason_code=self.reason_code,
            reason_message=self.message,
            assessed_risk_level=self.risk,
            suggestion=self.suggestion,
            in_reply_to=in_reply_to,
            final_state=self.final_state,
        )


class MessageError(HearthError):
    """A document that is not a valid message.

    `pointer` is the JSON pointer of the member at fault ("" for the whole), `reason` says what was expected and what
    was found, `suggestion` is the cure; `message_id` is the document's own where one could be read, and `code` the
    `reason_code` of the task_rejected that answers it.
    """

    def __init__(
        self,
        pointer: str,
        reason: str,
        *,
        message_id: str | None = None,
        code: str = "invalid_message",
        suggestion: str | None = None,
    ) -> None:
        self.pointer = pointer
        self.reason = reason
        self.message_id = message_id
        self.code = code
        self.suggestion = suggestion
        super().__init__(f"{pointer or 'the message'}: {reason}")


def quoted(text: str) -> str:
    """Quote untrusted text for a sentence: unprintable characters are escaped, long text is cut."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…")


def listed(names: Iterable[str]) -> str:
    """Return the first of some names, and the number of further ones."""
    every = list(names)
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return (", ".join(every[:_LISTED]) or "none") + more


def one_of(names: Iterable[str]) -> str:
    """Return a choice of names."""
    return " or ".join(map(quoted, names))


def _clipped(text: str) -> str:
    if not text.isprintable():
        text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
