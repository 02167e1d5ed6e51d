"""The end of a job, and of the jobs whose daemon ended before them (L2, Recovery; L4).

`JobFinisher` keeps a job's files, checks its outputs against what was declared, and writes its last messages. It runs
when the job's HACP session has closed: nothing moves any more when the caller reads that the job is over. Every figure
of the summary was counted or measured, here or by the job.

`recover` gives each session without an end its final messages when the daemon starts. They say what the job store has
on record: the outcome of a step that was in flight is unknown. No job goes on by itself, since its caller may be gone;
a caller resubmits with `last_checkpoint` (`resumption`). A checkpoint belongs to its session's principal; another
principal's is answered as an unknown one. A resumed job must be the same work: the same capability, version and inputs.
Only a job that failed or was aborted is resumed, and once: what it has done, and a person's answers, count for one run.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import evolve, frozen

from hearth.actors.bridges.hcp.artifacts import StoreError
from hearth.actors.bridges.hcp.event_stream import EventWriter, MessageLog
from hearth.actors.bridges.hcp.execution import checkpoint_id
from hearth.actors.bridges.hcp.job import JobOutcome
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.actors.supervisor import contain
from hearth.audit.record import args_hash
from hearth.hcp.codec import write_payload
from hearth.hcp.durable import ANNOUNCED, Recorded, unknown as unknown_of
from hearth.hcp.messages import ErrorDetails, Rejection, TaskCompleted, TaskFailed, write_duration
from hearth.hcp.plot import PlotError, draw
from hearth.hcp.report import conform, summary
from hearth.policy.levels import CLASSIFICATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.actors.bridges.hcp.execution import ArtifactFile, Execution
    from hearth.actors.bridges.hcp.job import JobTable, RunningJob
    from hearth.actors.bridges.hcp.services import Services
    from hearth.actors.bridges.hcp.store.queries import SessionRow
    from hearth.hcp.messages import Artifact, TaskSubmit
    from hearth.hcp.safety import Approval

log = logging.getLogger("hearth.hcp")

MOST_OUTPUT_BYTES: Final = 512 << 10
"""Bytes of JSON of a job's outputs: a message is one document, and larger data belongs in an artifact (L1)."""
MOST_WARNINGS: Final = 100
"""Warnings that a summary lists, at most."""
DRAWING: Final = trio.CapacityLimiter(1)
"""Limits drawing to one plot at a time: a small machine's processor has more urgent work."""

AFTER_ABORT: Final = ("partial_outputs", "artifacts", "execution_summary")
"""The members that session_closed has for an aborted job, beside those of L2."""


class JobFinisher:
    """The end of one job that has stopped working."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._artifacts: list[Artifact] = []
        self._partial: dict[str, Any] = {}

    async def run(self) -> None:
        """End the session, whatever the capability's own code does."""
        job = self._job
        name = f"HCP job {job.row.session_id}"
        if (execution := job.execution) is not None:
            if job.end is not None and job.end.state != "COMPLETED":
                await contain(f"{name}: its partial outputs", partial(self._collect_partial, execution), self._crashed)
            await contain(f"{name}: its files", partial(self._keep_files, execution), self._crashed)
        await contain(f"{name}: its end", self._write_end, self._crashed)
        if not job.events.message_log.ended:
            # The partial outputs could not be written. Write at least that the job failed.
            self._partial = {}
            await self._write_end()

    def _crashed(self, error: BaseException) -> None:
        assert self._job.end is not None
        if self._job.end.state == "COMPLETED":
            self._job.end = JobOutcome.crashed(error)

    # --- files --------------------------------------------------------------------------------------------------

    async def _collect_partial(self, execution: Execution) -> None:
        self._partial = _within(self._job.approval.capability.unstructure(execution.partial))

    async def _keep_files(self, execution: Execution) -> None:
        job = self._job
        assert job.end is not None
        for artifact_file in execution.files.values():
            try:
                content = artifact_file.content
                if artifact_file.plot is not None:
                    # Abandoned when cancelled: only a picture is lost.
                    work = partial(draw, artifact_file.plot)
                    content = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=DRAWING)
                await self._keep(artifact_file, content or b"")
            except PlotError as error:
                await self._warn("plot_not_drawn", f"{artifact_file.file}: the plot was not drawn: {error}")
            except StoreError as error:
                await self._warn("artifact_not_kept", f"{artifact_file.file} could not be kept: {error}")
                if job.end.state == "COMPLETED":
                    self._partial = _within(job.end.outputs)
                    message = f"the artifact {artifact_file.name} could not be kept: {error}"
                    job.end = JobOutcome.failed(
                        "resource_unavailable", message, reason="artifact_lost", recoverable=True
                    )

    async def _warn(self, code: str, message: str) -> None:
        # A warning that cannot be sent now is still in the summary.
        with suppress(JobStoreError):
            await self._job.warn(code, message)

    async def _keep(self, artifact_file: ArtifactFile, content: bytes) -> None:
        job = self._job
        session_id = job.row.session_id
        artifact = await job.services.store.keep(
            session_id, artifact_file.name, artifact_file.file, artifact_file.type, content
        )
        self._artifacts.append(artifact)
        job.services.audit(
            "hcp.artifact",
            hcp_session=session_id,
            principal=job.row.principal,
            uri=artifact.uri,
            checksum=artifact.checksum,
            size=artifact.size_bytes,
            data_classification=job.row.data_classification,
        )

    # --- the last messages ------------------------------------------------------------------------------------------

    async def _write_end(self) -> None:
        job = self._job
        assert job.end is not None
        end = self._check_outputs(job.end)
        if job.events.state == "ABORTING":
            # Whatever else happened while it was being stopped: L2 has no other transition from ABORTING.
            end = evolve(end, state="ABORTED")
        done = summary(
            duration_s=job.duration_s,
            steps=job.begun,
            checkpoints=job.checkpoints_made,
            risk_events=tuple(job.risk_events),
            warnings=tuple(job.warnings[:MOST_WARNINGS]),
        )
        job.services.audit(
            "hcp.finish",
            hcp_session=job.row.session_id,
            principal=job.row.principal,
            state=end.state,
            error_code=end.error_code if end.state == "FAILED" else None,
            reason=end.reason,
            place=end.place,
            steps=job.begun,
            checkpoints=job.checkpoints_made,
            duration_s=round(job.duration_s, 3),
        )
        artifacts = tuple(self._artifacts)
        if end.state == "COMPLETED":
            completed = TaskCompleted(outputs=end.outputs, artifacts=artifacts, execution_summary=done)
            await job.events.close("COMPLETED", "completed", completed)
            return
        details = ErrorDetails(
            phase=job.events.phase or None,
            step=job.step or None,
            last_checkpoint=job.last_checkpoint,
            recoverable=end.recoverable,
            reason=end.reason,
            effect=end.effect,
        )
        failed = TaskFailed(
            error_code=end.error_code,
            error_message=end.message or end.error_code,
            error_details=details,
            partial_outputs=self._partial,
            artifacts=artifacts,
            execution_summary=done,
        )
        if end.state == "FAILED":
            await job.events.close("FAILED", end.reason or end.error_code, failed)
        else:
            # L4 has no message for the results of an aborted task: they go into session_closed.
            document = write_payload(failed)
            left = {name: document[name] for name in AFTER_ABORT if document.get(name)}
            await job.events.close("ABORTED", end.message or "aborted", closing=left)

    def _check_outputs(self, end: JobOutcome) -> JobOutcome:
        if end.state != "COMPLETED":
            return end
        job = self._job
        if (size := len(orjson.dumps(end.outputs))) > MOST_OUTPUT_BYTES:
            message = f"the outputs are {size} bytes, and at most {MOST_OUTPUT_BYTES} fit into a message"
            return JobOutcome.failed("execution_error", message, reason="outputs_too_large")
        short = conform(end.outputs, job.approval, job.submit)
        if short is None:
            return end
        self._partial = dict(end.outputs)
        return JobOutcome.failed(short.error_code, short.message, reason=short.reason)


def _within(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return partial outputs, or none if they are too large for a message."""
    return dict(outputs) if len(orjson.dumps(outputs)) <= MOST_OUTPUT_BYTES else {}


# --- recovery ---------------------------------------------------------------------------------------------------------

MESSAGE: Final = "the daemon ended while the job was under way"


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

MOST_SHOWN: Final = 20
"""Steps of each kind that a question about a resumption shows: the newest."""
MOST_VALUE: Final = 160
"""Characters of a reading that a question shows."""


@frozen(kw_only=True)
class Resumption:
    """The checkpoint that a job resumes from, with everything recorded up to it."""

    checkpoint: str
    row: SessionRow
    steps: tuple[Recorded, ...]
    recorded: tuple[dict[str, Any], ...]
    """The same steps, as the job store has them."""
    age_s: float
    """Seconds since the session that made it last changed."""

    @property
    def shown(self) -> dict[str, Any]:
        """Return what a person must know of it before deciding: its age, what was done, what is replayed as data."""
        done = [one for one in self.steps if one.outcome.acted]
        replayed = [one for one in self.steps if one.outcome.replayed]
        shown: dict[str, Any] = {
            "resumed_from": self.checkpoint,
            "checkpoint_age": write_duration(timedelta(seconds=round(self.age_s))),
            "done_before": [
                f"{one.operation}: {one.outcome.error or one.outcome.status}" for one in done[-MOST_SHOWN:]
            ],
            "replayed_readings": [
                f"{one.operation}: {orjson.dumps(one.outcome.value).decode()[:MOST_VALUE]}"
                for one in replayed[-MOST_SHOWN:]
            ],
        }
        for name, all_of_them in (("done_before", done), ("replayed_readings", replayed)):
            if (more := len(all_of_them) - MOST_SHOWN) > 0:
                shown[name].insert(0, f"{more} more before these")
        return shown


async def resumption(
    services: Services, principal: str, submit: TaskSubmit, approval: Approval, jobs: JobTable
) -> Resumption | None:
    """Return what a submission resumes from; None if it names no checkpoint. Raises Rejection, JobStoreError.

    The rejection's reason code is invalid_input.
    """
    job_store = services.job_store
    named = next(((name, given) for name in MEMBERS if (given := submit.context.get(name)) is not None), None)
    if named is None:
        return None
    at, checkpoint = named
    row, number = await _ended_session(services, principal, at, checkpoint, jobs)
    recorded = await job_store.outcomes(row.session_id, row.checkpoints)
    while 0 < number < row.checkpoints and recorded[number]["kind"] not in ANNOUNCED:
        # An operation that is not a step has no announced checkpoint: it belongs to the step before it.
        number += 1
    # The outcome of a step that was under way when the daemon died stays unknown: from now on that is recorded.
    begun = await job_store.begun(row.session_id) if number == row.checkpoints else []
    if number > row.checkpoints or not (number or begun):
        cure = f"name {checkpoint_id(row.session_id, row.checkpoints)}" if row.checkpoints else "leave it out"
        raise _no(at, f"session {row.session_id} has {row.checkpoints} checkpoints", cure)
    _require_same(row, approval, at)
    recorded = recorded[:number] + [unknown_of(operation).write() for operation in begun]
    steps = tuple(map(Recorded.read, recorded))
    # Last, and nothing is awaited from here to the note that this submission resumes it.
    now = await job_store.session(row.session_id)
    _require_first(row, None if now is None else now.resumed_by, jobs, at)
    age_s = max(0.0, services.clock() - row.updated_at)
    return Resumption(checkpoint=checkpoint, row=row, steps=steps, recorded=tuple(recorded), age_s=age_s)


async def _ended_session(
    services: Services, principal: str, at: str, checkpoint: object, jobs: JobTable
) -> tuple[SessionRow, int]:
    """Return the session of a checkpoint, and the checkpoint's number. Raises Rejection, JobStoreError."""
    found = _CHECKPOINT.fullmatch(checkpoint) if isinstance(checkpoint, str) else None
    row = None if found is None else await services.job_store.session(found[1])
    if found is None or row is None or row.principal != principal:
        raise _no(
            at,
            "this is no checkpoint of a session of yours that is still kept",
            "leave it out to start from the beginning",
        )
    if row.session_id in jobs.running:
        raise _no(at, f"session {row.session_id} is still running", "abort it first, or wait for its end")
    if row.ended_at is None:
        cure = "restart hearthd: its start ends the session, which can then be resumed"
        reason = f"the end of session {row.session_id} could not be stored"
        raise Rejection("resource_unavailable", reason, suggestion=cure)
    if row.state not in ("FAILED", "ABORTED"):
        cure = "leave it out to start a new job; only one that failed or was aborted goes on"
        raise _no(at, f"session {row.session_id} is {row.state}", cure)
    return row, int(found[2])


def _require_first(row: SessionRow, later: str | None, jobs: JobTable, at: str) -> None:
    """Refuse to resume a session twice; `later` has resumed it. Raises Rejection."""
    if later is not None or row.session_id in jobs.resuming:
        how = "is being resumed" if later is None else f"was resumed by session {later}"
        cure = "resume that one, from its own checkpoint" if later else "wait for the answer to that submission"
        raise _no(at, f"session {row.session_id} {how}, and what was done and answered in it counts once", cure)


def _require_same(row: SessionRow, approval: Approval, at: str) -> None:
    """Refuse to resume with another capability, other inputs or a lower classification. Raises Rejection."""
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


def _no(member: str, reason: str, cure: str) -> Rejection:
    return Rejection("invalid_input", f"/payload/context/{member}: {reason}", suggestion=cure)
