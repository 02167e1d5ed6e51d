"""What a caller holds of a job: implements `hearth.api.Delegation` over `hearth.delegation_jobs`.

Owns what of the messages a user sees: events as `JobEvent`, the end as `JobResult`. Which message comes when, and how
often, is the jobs' business.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve

from hearth.api import ENDED, JobEvent, JobResult
from hearth.hcp.messages import Event, TaskCompleted, TaskFailed
from hearth.hcp.reading import MessageError, read_message, read_payload, read_submission, write_message
from hearth.hcp.values import HCP_VERSION, new_id, write_instant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.delegation_job import Job, Messages
    from hearth.delegation_jobs import Delegations
    from hearth.hcp.messages import Message, TaskAccepted
    from hearth.hcp.values import State

ELIDED = "..."
"""What the pages' examples have for an id: as good as none."""


async def submit_payload(jobs: Delegations, payload: Mapping[str, Any], message_id: str | None) -> DelegationFace:
    """Hand a job over: the payload of its task_submit. Raises MessageError for one that HCP does not have."""
    document = {
        "hcp_version": HCP_VERSION,
        "message_id": new_id() if message_id is None else message_id,
        "timestamp": write_instant(time.time()),
        "session_id": None,
        "type": "task_submit",
        "payload": payload,
    }
    return await _submit(jobs, read_message(document), keep=message_id is not None)


async def submit_document(jobs: Delegations, document: Any, message_id: str | None) -> DelegationFace:
    """Hand over what a file has: a task_submit, or its payload alone. Raises MessageError."""
    submit = read_submission(document, now=time.time())
    if message_id is not None:
        submit = read_message({**write_message(submit), "message_id": message_id})
    elif submit.message_id == ELIDED:
        submit = evolve(submit, message_id=new_id())
    return await _submit(jobs, submit, keep=submit.message_id in (message_id, document.get("message_id")))


async def _submit(jobs: Delegations, submit: Message, *, keep: bool) -> DelegationFace:
    job, messages = await jobs.submit(submit, keep=keep)
    return DelegationFace(jobs, job, 1, messages)


async def attach(jobs: Delegations, session_id: str, from_sequence: int) -> DelegationFace:
    """A job that was handed over earlier. Raises SessionInvalid."""
    job, messages = await jobs.attach(session_id, from_sequence)
    return DelegationFace(jobs, job, from_sequence, messages)


class JobMessages:
    """What `async for message in delegation.messages()` reads; whoever stops early may just walk away."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def __aiter__(self) -> JobMessages:
        return self

    async def __anext__(self) -> Message:
        message = await self._messages.next()
        if message is None:
            raise StopAsyncIteration
        return message


class JobEvents:
    """What `async for event in delegation.events()` reads."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def __aiter__(self) -> JobEvents:
        return self

    async def __anext__(self) -> JobEvent:
        while (message := await self._messages.next()) is not None:
            event = message.payload
            if isinstance(event, Event):
                return JobEvent(
                    session_id=cast("str", message.session_id),
                    sequence=event.sequence,
                    event_type=event.event_type,
                    data=event.data,
                    at=message.timestamp,
                )
        raise StopAsyncIteration


class DelegationFace:
    """Implements `hearth.api.Delegation`."""

    def __init__(self, jobs: Delegations, job: Job, from_sequence: int, messages: Messages) -> None:
        self._jobs = jobs
        self._job = job
        self._from_sequence = from_sequence
        self._unread: Messages | None = messages
        """The messages that came with the job, until somebody begins to read them."""

    def __repr__(self) -> str:
        return f"<job {self.session_id} {self.state}>"

    @property
    def session_id(self) -> str:
        """See hearth.api.Delegation."""
        return self._job.session_id

    @property
    def accepted(self) -> TaskAccepted | None:
        """See hearth.api.Delegation."""
        return self._job.accepted

    @property
    def state(self) -> State:
        """See hearth.api.Delegation."""
        return self._job.state

    @property
    def ended(self) -> bool:
        """True once its outcome has come."""
        return self._job.ended

    @property
    def entry(self) -> Mapping[str, Any]:
        """What `jobs` said of it when it was attached to; empty for one that was handed over here."""
        return self._job.entry

    @property
    def last_processed_sequence(self) -> int:
        """See hearth.api.Delegation."""
        return self._job.last_processed_sequence

    def events(self, *, from_sequence: int | None = None) -> JobEvents:
        """See hearth.api.Delegation."""
        return JobEvents(self._read(from_sequence))

    def messages(self, *, from_sequence: int | None = None) -> JobMessages:
        """As `events`, with the messages that are none in their places: the acceptance, and the outcome."""
        return JobMessages(self._read(from_sequence))

    def _read(self, from_sequence: int | None) -> Messages:
        if from_sequence in (None, self._from_sequence) and self._unread is not None:
            unread, self._unread = self._unread, None
            return unread
        return self._job.read(self._from_sequence if from_sequence is None else from_sequence)

    async def wait(self) -> JobResult:
        """See hearth.api.Delegation."""
        await self._job.end()
        return _result(self._job)

    async def abort(self, reason: str | None = None) -> State:
        """See hearth.api.Delegation."""
        return await self._jobs.abort(self._job, reason)


def _result(job: Job) -> JobResult:
    closing: Mapping[str, Any] = {} if job.closed is None else job.closed.data
    reason, outcome = closing.get("reason"), job.outcome
    if isinstance(outcome, TaskCompleted):
        return JobResult(
            session_id=job.session_id,
            state="COMPLETED",
            outputs=outcome.outputs,
            artifacts=outcome.artifacts,
            summary=outcome.execution_summary,
            reason=reason,
        )
    if isinstance(outcome, TaskFailed):
        return JobResult(
            session_id=job.session_id,
            state="FAILED",
            outputs=outcome.partial_outputs,
            artifacts=outcome.artifacts,
            summary=outcome.execution_summary,
            reason=reason or outcome.error_details.reason,
            error_code=outcome.error_code,
            error_message=outcome.error_message,
            details=outcome.error_details,
        )
    left = _left_behind(closing)
    state: State = job.state if job.state in ENDED else "FAILED"
    return JobResult(
        session_id=job.session_id,
        state=state,
        outputs=left.outputs,
        artifacts=left.artifacts,
        summary=left.execution_summary,
        reason=reason,
    )


def _left_behind(closing: Mapping[str, Any]) -> TaskCompleted:
    """What an aborted job's session_closed says of it: HCP has no message of its own for that."""
    said = {
        "outputs": closing.get("partial_outputs") or {},
        "artifacts": closing.get("artifacts"),
        "execution_summary": closing.get("execution_summary"),
    }
    try:
        return cast("TaskCompleted", read_payload("task_completed", said))
    except MessageError:
        return TaskCompleted(outputs={})
