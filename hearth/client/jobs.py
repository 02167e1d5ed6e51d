"""Submission of jobs: the methods that HCP adds to a client and to an embedded runtime (HCP L4).

`job = await client.delegate("bench-climate-survey", "How warm is the bench?", {"sensor": "temperature"})` returns a
`hearth.JobHandle`. The first call imports the implementation, so that a client without jobs does not pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from hearth.client.extension import Extended
    from hearth.client.job_handle import ClientJob
    from hearth.client.job_stream import JobRouter

CALLER = "hearth"
"""The default `caller_id` of a job."""


class JobsClient:
    """The jobs of a client: of a connection to a daemon, or of a runtime in this process.

    Its methods are also the client's own: `client.delegate(…)` is `JobsClient(client).delegate(…)`.
    """

    def __init__(self, client: Extended) -> None:
        self._client = client

    def job_router(self) -> JobRouter:
        """Return the router of the jobs that are followed over the client's connection."""
        from hearth.client.job_stream import JobRouter

        link = self._client.message_link()
        if link.receiver is None:
            link.attach_receiver(JobRouter(link))
        router = link.receiver
        assert isinstance(router, JobRouter), "no other extra has messages"
        return router

    async def delegate(
        self,
        capability: str,
        intent: str,
        inputs: Mapping[str, Any],
        *,
        capability_version: str | None = None,
        caller_id: str = CALLER,
        max_duration: timedelta | str | None = None,
        confidence_threshold: float | None = None,
        data_classification: str | None = None,
        priority: str | None = None,
        expected_output: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        message_id: str | None = None,
    ) -> ClientJob:
        """Submit a job and wait until it is accepted; it then runs without this caller.

        The arguments are L4's: `capability_version` is a range ("1.x"), `max_duration` a timedelta or ISO 8601
        ("PT10M"), `expected_output` an object with format, required_fields and schema, `context` an object with
        purpose, references, notes and, to resume a failed job, `last_checkpoint`.

        A caller with a `message_id` may repeat the call with the same one, from another connection too: the job runs
        once, and all calls return it. Without one, the job is withdrawn if the caller is cancelled before the answer.

        Raises JobRejected, with the reason and a suggestion; MessageError for an argument that HCP does not have; and
        CarrierError.
        """
        from hearth.client.job_handle import submit_payload
        from hearth.hcp.messages import write_duration

        constraints = {
            "max_duration": write_duration(max_duration) if isinstance(max_duration, timedelta) else max_duration,
            "confidence_threshold": confidence_threshold,
            "data_classification": data_classification,
            "priority": priority,
        }
        payload = {
            "capability": capability,
            "capability_version": capability_version,
            "caller_id": caller_id,
            "intent": intent,
            "inputs": _object(inputs),
            "constraints": constraints,
            "expected_output": _object(expected_output),
            "context": _object(context),
        }
        return await submit_payload(self.job_router(), payload, message_id)

    async def hand_over(self, document: Any, *, message_id: str | None = None) -> ClientJob:
        """Submit a job as `delegate` does, from a whole HCP task_submit (whose `message_id` is kept) or its payload."""
        from hearth.client.job_handle import submit_document

        return await submit_document(self.job_router(), document, message_id)

    async def attach_job(self, session_id: str, from_sequence: int = 1) -> ClientJob:
        """Return a job of this principal that was submitted earlier, here or elsewhere; events from `from_sequence` on.

        Raises SessionInvalid for a job that is unknown, belongs to another principal, or is no longer kept.
        """
        from hearth.client.job_handle import attach

        return await attach(self.job_router(), session_id, from_sequence)

    async def capabilities(self) -> list[dict[str, Any]]:
        """Return the Capability Declarations (L3) of the capabilities that this principal may use."""
        return await self._list("hcp.capabilities", "capabilities")

    async def jobs(self) -> list[dict[str, Any]]:
        """Return this principal's jobs: first those that wait for approval, then all others, newest first.

        A job that waits has no `session_id` yet: its `state` is PENDING, and `withdraw` takes its `message_id`.
        """
        return await self._list("hcp.sessions", "sessions")

    async def withdraw(self, message_id: str, reason: str | None = None) -> None:
        """Withdraw a job of this principal that has not been accepted, such as one that waits for an approval.

        Its submitter gets JobRejected ("withdrawn"). Raises InvalidParams if no job with this `message_id` waits; use
        `abort` for an accepted job.
        """
        await self.job_router().link.call("hcp.withdraw", {"message_id": message_id, "reason": reason})

    async def pending_approvals(self) -> list[dict[str, Any]]:
        """Return the jobs that wait for approval. Raises PermissionDenied for a principal that may not approve."""
        return await self._list("hcp.pending", "approvals")

    async def decide(self, approval_id: str, *, approve: bool, reason: str | None = None) -> None:
        """Approve or refuse a waiting job. Raises InvalidParams (unknown `approval_id`) and PermissionDenied."""
        params = {"approval_id": approval_id, "approve": approve, "reason": reason}
        await self.job_router().link.call("hcp.decide", params)

    async def artifact(self, uri: str) -> bytes:
        """Return the content of a file that a job made, after a check of its size and checksum.

        Raises InvalidParams (this principal has no artifact with this URI) and ArtifactDamaged.
        """
        from hearth.client.job_handle import fetch

        return await fetch(self.job_router().link.call, uri)

    async def artifact_to(self, uri: str, path: str | os.PathLike[str]) -> int:
        """Write the artifact to a file, whole or not at all; return its size. Raises as `artifact`, and OSError."""
        from hearth.client.job_handle import fetch_to

        return await fetch_to(self.job_router().link.call, uri, Path(path))

    async def _list(self, method: str, name: str) -> list[dict[str, Any]]:
        from hearth.client.session import member

        found: list[dict[str, Any]] = member(await self.job_router().link.call(method, {}), name, list, method)
        return found


def _object(value: Any) -> Any:
    """Return a mapping as a dict, and any other value unchanged: the reader of the message refuses it."""
    return dict(value) if isinstance(value, Mapping) else value
