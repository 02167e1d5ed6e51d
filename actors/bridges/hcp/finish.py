"""The end of a job: keep its files, check its outputs against what was declared, and write its last messages.

It runs when the job's HACP session has closed: nothing moves any more when the caller reads that the job is over. Every
figure of the summary was counted or measured, here or by the job.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import evolve

from hearth.actors.bridges.hcp.artifacts import StoreError
from hearth.actors.bridges.hcp.job import JobOutcome
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.actors.supervisor import contain
from hearth.hcp.codec import write_payload
from hearth.hcp.messages import ErrorDetails, TaskCompleted, TaskFailed
from hearth.hcp.plot import PlotError, draw
from hearth.hcp.report import conform, summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.actors.bridges.hcp.execution import ArtifactFile, Execution
    from hearth.actors.bridges.hcp.job import RunningJob
    from hearth.hcp.messages import Artifact

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
