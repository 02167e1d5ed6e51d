"""The messages of HCP as values (L1 envelope, L2 events, L3 answers, L4 payloads), one class for each table.

`hearth.hcp.reading` makes them from documents and documents from them. Members that a table has as optional are None
or empty here, and are left out on the wire when they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from hearth.hcp.values import Classification, ErrorCode, EventType, Priority, Risk, State

Json: TypeAlias = Any
Object: TypeAlias = "Mapping[str, Json]"

MessageType: TypeAlias = Literal[
    "task_submit", "abort", "task_accepted", "task_rejected", "event", "task_completed", "task_failed"
]


@frozen(kw_only=True)
class Constraints:
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
    constraints: Constraints = Constraints()
    expected_output: ExpectedOutput = ExpectedOutput()
    context: Object = field(factory=dict)


@frozen(kw_only=True)
class Abort:
    """L2, Abort Protocol."""

    reason: str | None = None
    session_token: str | None = None


@frozen(kw_only=True)
class AcceptedConstraints:
    """What holds for the session (L3, TaskAccepted Response)."""

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
    """L3, TaskRejected Response; also what answers a message that cannot be read or acted upon.

    `final_state` is ours: how the session has ended that an abort came too late for.
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
    """L4, TaskFailed Schema. `reason` is ours: what a program may tell apart within one error code."""

    phase: str | None = None
    step: int | None = None
    last_checkpoint: str | None = None
    recoverable: bool = False
    reason: str | None = None


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
