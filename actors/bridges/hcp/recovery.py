"""The end of sessions whose daemon ended before them: said at the next start (L2, Recovery; L4, Task Failure).

It says what the job store has: nothing is known of a step that was in flight. No job goes on by itself, since its
caller may be gone: a caller resubmits with `last_checkpoint`.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from hearth.actors.bridges.hcp.event_stream import EventWriter
from hearth.actors.bridges.hcp.execution import checkpoint_id
from hearth.actors.bridges.hcp.finish import AFTER_ABORT
from hearth.actors.bridges.hcp.message_log import MessageLog
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.hcp.codec import (
    write_payload,
)
from hearth.hcp.durable import unknown as unknown_of
from hearth.hcp.messages import ErrorDetails, TaskFailed
from hearth.hcp.report import summary

if TYPE_CHECKING:
    from hearth.actors.bridges.hcp.services import Services
    from hearth.actors.bridges.hcp.store.queries import SessionRow

MESSAGE: Final = "the daemon ended while the job was under way"

log = logging.getLogger("hearth.hcp")


async def recover(services: Services) -> None:
    """Bring every session that has none to its end; one that cannot be written to now is left to the next start."""
    for row in services.job_store.unfinished:
        try:
            await _end(services, row)
        except JobStoreError as error:
            log.error("HCP session %s is still without an end: %s", row.session_id, error)


async def _end(services: Services, row: SessionRow) -> None:
    lines = await services.job_store.message_log(row.session_id)
    duration_s, made, warnings = _measured(row, lines)
    unknown = [str(unknown_of(operation).operation) for operation in await services.job_store.begun(row.session_id)]
    message = f"{MESSAGE}; unknown is what came of {', '.join(unknown)}" if unknown else MESSAGE
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
    account = EventWriter(
        row.session_id,
        services.job_store,
        MessageLog(lines),
        services.clock,
        state=row.state,
        sequence=row.sequence,
        phase=row.phase,
    )
    if row.state == "PAUSED":
        # L2 has no way from there to the end.
        await account.move("RUNNING", "the daemon ended")
    if aborting:
        said = write_payload(failed)
        left = {name: said[name] for name in AFTER_ABORT if said.get(name)}
        await account.close("ABORTED", "daemon ended", closing=left)
    else:
        await account.close("FAILED", "daemon ended", failed)
    log.warning("HCP session %s (%s) had not ended; its last checkpoint is %s", row.session_id, row.capability, last)


def _measured(row: SessionRow, lines: list[bytes]) -> tuple[float, int, tuple[str, ...]]:
    """For how long it is known to have run (seconds), its checkpoints, and what it was warned of: by its messages."""
    messages: list[dict[str, Any]] = [orjson.loads(line) for line in lines]
    newest = datetime.fromisoformat(messages[-1]["timestamp"]).timestamp() if messages else row.created_at
    events = [message["payload"] for message in messages if message["type"] == "event"]
    warnings = tuple(str(event["data"]["message"]) for event in events if event["event_type"] == "warning")
    made = sum(event["event_type"] == "checkpoint_created" for event in events)
    return max(0.0, newest - row.created_at), made, warnings
