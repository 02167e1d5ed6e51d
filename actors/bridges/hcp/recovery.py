"""Recovery: ends the sessions whose daemon ended before them, and resumes jobs from checkpoints (L2, Recovery; L4).

At start, each session without an end gets its final messages. They say what the job store has on record: the outcome of
a step that was in flight is unknown. No job goes on by itself, since its caller may be gone; a caller resubmits with
`last_checkpoint`.

A checkpoint belongs to its session's principal; another principal's is answered as an unknown one. A resumed job must
be the same work: the same capability, version and inputs.
"""

from __future__ import annotations

import logging
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import orjson
from attrs import frozen

from hearth.actors.bridges.hcp.event_stream import EventWriter, MessageLog
from hearth.actors.bridges.hcp.execution import checkpoint_id
from hearth.actors.bridges.hcp.finish import AFTER_ABORT
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.audit.record import args_hash
from hearth.hcp.codec import (
    write_payload,
)
from hearth.hcp.durable import ANNOUNCED, Recorded, unknown as unknown_of
from hearth.hcp.messages import CLASSIFICATIONS, ErrorDetails, Rejection, TaskFailed
from hearth.hcp.report import summary

if TYPE_CHECKING:
    from collections.abc import Container

    from hearth.actors.bridges.hcp.services import Services
    from hearth.actors.bridges.hcp.store import JobStore
    from hearth.actors.bridges.hcp.store.queries import SessionRow
    from hearth.hcp.messages import TaskSubmit
    from hearth.hcp.safety import Approval

MESSAGE: Final = "the daemon ended while the job was under way"

log = logging.getLogger("hearth.hcp")


async def recover(services: Services) -> None:
    """End every unfinished session. One whose end cannot be stored now is left to the next start."""
    for row in services.job_store.unfinished:
        try:
            await _end(services, row)
        except JobStoreError as error:
            log.error("HCP session %s could not be ended: %s; the next start tries again", row.session_id, error)


async def _end(services: Services, row: SessionRow) -> None:
    lines = await services.job_store.message_log(row.session_id)
    duration_s, made, warnings = _measured(row, lines)
    unknown = [str(unknown_of(operation).operation) for operation in await services.job_store.begun(row.session_id)]
    message = f"{MESSAGE}; outcome unknown: {', '.join(unknown)}" if unknown else MESSAGE
    last = checkpoint_id(row.session_id, row.checkpoints) if row.checkpoints or unknown else None
    aborting = row.state == "ABORTING"
    services.audit(
        "hcp.recover",
        hcp_session=row.session_id,
        principal=row.principal,
        last_checkpoint=last,
        unknown=unknown or None,
    )
    services.audit(
        "hcp.finish",
        hcp_session=row.session_id,
        principal=row.principal,
        state="ABORTED" if aborting else "FAILED",
        error_code=None if aborting else "internal_error",
        reason="daemon_ended",
        steps=made,
        checkpoints=made,
        duration_s=round(duration_s, 3),
    )
    failed = TaskFailed(
        error_code="internal_error",
        error_message=message,
        error_details=ErrorDetails(
            phase=row.phase or None,
            step=row.checkpoints + 1,
            last_checkpoint=last,
            recoverable=row.resumable,
            reason="daemon_ended",
        ),
        artifacts=tuple(await services.job_store.artifacts(row.session_id)),
        execution_summary=summary(
            duration_s=duration_s, steps=made, checkpoints=made, risk_events=(), warnings=warnings
        ),
    )
    events = EventWriter(
        row.session_id,
        services.job_store,
        MessageLog(lines),
        services.clock,
        state=row.state,
        sequence=row.sequence,
        phase=row.phase,
    )
    if row.state == "PAUSED":
        # L2 has no transition from PAUSED to an end.
        await events.move("RUNNING", "the daemon ended")
    if aborting:
        document = write_payload(failed)
        left = {name: document[name] for name in AFTER_ABORT if document.get(name)}
        await events.close("ABORTED", "daemon ended", closing=left)
    else:
        await events.close("FAILED", "daemon ended", failed)
    log.warning("HCP session %s (%s) had not ended; its last checkpoint is %s", row.session_id, row.capability, last)


def _measured(row: SessionRow, lines: list[bytes]) -> tuple[float, int, tuple[str, ...]]:
    """Return the known run time (seconds), the checkpoints made and the warnings, as the stored messages have them."""
    messages: list[dict[str, Any]] = [orjson.loads(line) for line in lines]
    newest = datetime.fromisoformat(messages[-1]["timestamp"]).timestamp() if messages else row.created_at
    events = [message["payload"] for message in messages if message["type"] == "event"]
    warnings = tuple(str(event["data"]["message"]) for event in events if event["event_type"] == "warning")
    made = sum(event["event_type"] == "checkpoint_created" for event in events)
    return max(0.0, newest - row.created_at), made, warnings


MEMBERS: Final = ("last_checkpoint", "resume_from")
"""The members of `context` that may name the checkpoint to resume from; error_details uses the first name."""
_CHECKPOINT: Final = re.compile(r"ckpt-(.{1,200})-(\d{6,9})", re.DOTALL)


@frozen(kw_only=True)
class Resumption:
    """The checkpoint that a job resumes from, with everything recorded up to it."""

    checkpoint: str
    row: SessionRow
    steps: tuple[Recorded, ...]
    recorded: tuple[dict[str, Any], ...]
    """The same steps, as the job store has them."""


async def resumption(
    job_store: JobStore, principal: str, submit: TaskSubmit, approval: Approval, live: Container[str]
) -> Resumption | None:
    """Return what a submission resumes from; None if it names no checkpoint. Raises Rejection, JobStoreError.

    The rejection's reason code is invalid_input.
    """
    named = next(((name, given) for name in MEMBERS if (given := submit.context.get(name)) is not None), None)
    if named is None:
        return None
    at, checkpoint = named
    found = _CHECKPOINT.fullmatch(checkpoint) if isinstance(checkpoint, str) else None
    row = None if found is None else await job_store.session(found[1])
    if found is None or row is None or row.principal != principal:
        raise _no(
            at,
            "this is no checkpoint of a session of yours that is still kept",
            "leave it out to start from the beginning",
        )
    number = int(found[2])
    recorded = await job_store.outcomes(row.session_id, row.checkpoints)
    while 0 < number < row.checkpoints and recorded[number]["kind"] not in ANNOUNCED:
        # An operation that is not a step has no announced checkpoint: it belongs to the step before it.
        number += 1
    # The outcome of a step that was under way when the daemon died stays unknown: from now on that is recorded.
    begun = await job_store.begun(row.session_id) if number == row.checkpoints else []
    if number > row.checkpoints or not (number or begun):
        cure = f"name {checkpoint_id(row.session_id, row.checkpoints)}" if row.checkpoints else "leave it out"
        raise _no(at, f"session {row.session_id} has {row.checkpoints} checkpoints", cure)
    if row.session_id in live:
        raise _no(at, f"session {row.session_id} is still running", "abort it first, or wait for its end")
    capability = approval.capability
    if (row.capability, row.version) != (capability.name, capability.version):
        was = f"{row.capability} {row.version}"
        raise _no(
            at,
            f"the checkpoint is of {was}, not of {capability.name} {capability.version}",
            "leave it out to start from the beginning",
        )
    if row.inputs_hash != args_hash(approval.inputs):
        raise _no(at, "the inputs are not those that the checkpoint was made with", "submit the same inputs")
    if CLASSIFICATIONS.index(approval.classification) < CLASSIFICATIONS.index(row.data_classification):
        was = row.data_classification
        raise _no(at, f"the checkpoint holds data of class {was}", f"submit it with data_classification {was}")
    recorded = recorded[:number] + [unknown_of(operation).write() for operation in begun]
    steps = tuple(map(Recorded.read, recorded))
    return Resumption(checkpoint=checkpoint, row=row, steps=steps, recorded=tuple(recorded))


def _no(member: str, reason: str, cure: str) -> Rejection:
    return Rejection("invalid_input", f"/payload/context/{member}: {reason}", suggestion=cure)
