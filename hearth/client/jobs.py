"""Handing whole jobs over: what a client and an embedded runtime have in common for it (HCP L4).

`job = await client.delegate("bench-climate-survey", "How warm is the bench?", {"sensor": "temperature"})`; see
`hearth.api.JobHandle` for what comes back. What does the work is imported with the first call, so that a client that
hands nothing over pays nothing for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from hearth.client.job_handle import ClientJob
    from hearth.client.job_stream import JobRouter

CALLER = "hearth"
"""The `caller_id` of a job whose caller says none."""


class JobsClient(ABC):
    """Whoever can be handed jobs: a connection to a daemon, or a runtime in this process."""

    @abstractmethod
    def delegations(self) -> JobRouter:
        """The jobs that are followed here."""

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
        """Hand a job over and wait until it is accepted; it then goes on by itself.

        The arguments are L4's: `capability_version` is a range ("1.x"), `max_duration` a timedelta or ISO 8601
        ("PT10M"), `expected_output` an object with format, required_fields and schema, `context` one with purpose,
        references, notes and, to go on from a checkpoint of a job that failed, `last_checkpoint`.

        Whoever names a `message_id` may ask again with the same one, from another connection too: the job is done once,
        and all are answered with it. Without one, a caller that is cancelled before the answer has its job withdrawn.

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
        return await submit_payload(self.delegations(), payload, message_id)

    async def hand_over(self, document: Any, *, message_id: str | None = None) -> ClientJob:
        """As `delegate`, for a whole task_submit as HCP has it, or its payload alone; with its own `message_id`."""
        from hearth.client.job_handle import submit_document

        return await submit_document(self.delegations(), document, message_id)

    async def attach_job(self, session_id: str, from_sequence: int = 1) -> ClientJob:
        """A job of this principal that was handed over earlier, wherever it was: its events from there on, its outcome.

        Raises SessionInvalid for a job that is unknown here, somebody else's, or too old to be remembered.
        """
        from hearth.client.job_handle import attach

        return await attach(self.delegations(), session_id, from_sequence)

    async def capabilities(self) -> list[dict[str, Any]]:
        """The Capability Declarations (L3) of what this principal may hand over."""
        return await self._list("hcp.capabilities", "capabilities")

    async def jobs(self) -> list[dict[str, Any]]:
        """This principal's jobs that are still remembered, the newest first; before them those that wait for approval.

        One that waits has no `session_id` yet: its `state` is PENDING, and `withdraw` takes its `message_id`.
        """
        return await self._list("hcp.sessions", "sessions")

    async def withdraw(self, message_id: str, reason: str | None = None) -> None:
        """Take back a job of this principal's that has not been accepted, such as one that waits for an approval.

        Whoever submitted it gets JobRejected ("withdrawn"). Raises InvalidParams where none of this `message_id` waits;
        one that was accepted is ended with `abort`.
        """
        await self.delegations().post.call("hcp.withdraw", {"message_id": message_id, "reason": reason})

    async def pending_approvals(self) -> list[dict[str, Any]]:
        """The jobs that wait for a person's approval. Raises PermissionDenied for who may not give it."""
        return await self._list("hcp.pending", "approvals")

    async def decide(self, approval_id: str, *, approve: bool, reason: str | None = None) -> None:
        """Approve one of them, or do not. Raises InvalidParams (there is none such) and PermissionDenied."""
        params = {"approval_id": approval_id, "approve": approve, "reason": reason}
        await self.delegations().post.call("hcp.decide", params)

    async def artifact(self, uri: str) -> bytes:
        """The content of a file that a job left behind, checked.

        Raises InvalidParams (there is none of that URI for this principal) and ArtifactDamaged.
        """
        from hearth.client.job_handle import fetch

        return await fetch(self.delegations().post.call, uri)

    async def artifact_to(self, uri: str, path: str | os.PathLike[str]) -> int:
        """Put the artifact into a file: whole, or not at all; returns its size. Raises as `artifact`, and OSError."""
        from hearth.client.job_handle import fetch_to

        return await fetch_to(self.delegations().post.call, uri, Path(path))

    async def _list(self, method: str, name: str) -> list[dict[str, Any]]:
        from hearth.client.session import member

        found: list[dict[str, Any]] = member(await self.delegations().post.call(method, {}), name, list, method)
        return found


def _object(value: Any) -> Any:
    """A mapping as the object that it is in JSON; anything else as it is, to be refused by who reads it."""
    return dict(value) if isinstance(value, Mapping) else value
