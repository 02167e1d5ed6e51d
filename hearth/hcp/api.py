"""The caller's interface of a job, with its values: `hearth.client.jobs` implements it over a connection.

As `hearth.api` for sessions and tasks: code that is written against this module runs unchanged over a carrier and in
the process. Nothing here does I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

from hearth.errors import JobFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from datetime import datetime

    from hearth.hcp.messages import Artifact, ErrorCode, ErrorDetails, ExecutionSummary, State, TaskAccepted

ENDED: frozenset[str] = frozenset(("COMPLETED", "FAILED", "ABORTED"))
"""The states that an accepted job can end in; it reaches exactly one of them (HCP L2, State Definitions)."""


@frozen(kw_only=True)
class JobEvent:
    """One event of a job (HCP L2, Event Envelope). `at` is the time at which it was sent, in UTC."""

    session_id: str
    sequence: int
    event_type: str
    """progress, checkpoint_created, …; a type that L2 does not define is passed on unchanged."""
    data: Mapping[str, Any]
    at: datetime | None = None


@frozen(kw_only=True)
class JobResult:
    """The outcome of a job, with its outputs and files (HCP L4, Task Completion and Task Failure)."""

    session_id: str
    state: State
    """One of `ENDED`."""
    outputs: Mapping[str, Any] = field(factory=dict)
    """For a job that did not complete: the partial outputs that it had by then."""
    artifacts: tuple[Artifact, ...] = ()
    """The files that the job made; `artifact(uri)` fetches one."""
    summary: ExecutionSummary | None = None
    reason: str | None = None
    """The reason for the end as one word, if the callee gave one."""
    error_code: ErrorCode | None = None
    error_message: str | None = None
    details: ErrorDetails | None = None
    """For a failure: the place, the last checkpoint, and whether a new job can resume from that checkpoint."""

    @property
    def completed(self) -> bool:
        """True if the job ended COMPLETED."""
        return self.state == "COMPLETED"

    def raise_for_state(self) -> JobResult:
        """Return self if the job completed; otherwise raise JobFailed with the reason."""
        if self.completed:
            return self
        why = self.error_message or self.reason or "no reason was given"
        code = f" ({self.error_code})" if self.error_code else ""
        raise JobFailed(f"job {self.session_id} {self.state}{code}: {why}", self.error_code)


class JobHandle(Protocol):
    """A submitted and accepted job: `job = await client.delegate("bench-climate-survey", …)`.

    The job runs on without a follower, and also after the end of its caller's connection.
    """

    @property
    def session_id(self) -> str:
        """The identifier of the job on any connection of the same principal; `attach_job` takes it."""
        ...

    @property
    def accepted(self) -> TaskAccepted | None:
        """The terms of acceptance: risk, data classification, limits. None for a job that was attached to later."""
        ...

    @property
    def state(self) -> State:
        """The newest state that the job's messages have reported."""
        ...

    @property
    def last_processed_sequence(self) -> int:
        """The number of the newest event that arrived in order; a caller keeps it to resume after it (HCP L2)."""
        ...

    def events(self, *, from_sequence: int | None = None) -> AsyncIterator[JobEvent]:
        """Yield every event from `from_sequence` on (default: from the attachment on), each once and in order.

        The iterator ends after the last event. Leaving the loop early ends only the reading; a timeout around one event
        loses none. Raises CarrierError when the connection ends before the job does.
        """
        ...

    async def wait(self) -> JobResult:
        """Wait until the job has ended; does not raise for one that failed. Raises CarrierError as `events` does.

        If the callee has reported the end of the job and does not close its session, the wait ends after 5 s.
        """
        ...

    async def abort(self, reason: str | None = None) -> State:
        """End the job in an orderly way: no further step begins, and a step that has begun on a bus finishes.

        Returns "ABORTING" once the abort is under way, or the final state of a job that has ended. Raises JobRejected.
        """
        ...
