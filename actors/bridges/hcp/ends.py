"""What may come of a job, and why one is to stop: values, which the job decides on and `ending` makes known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.values import ErrorCode, State


@frozen(kw_only=True)
class End:
    """What came of a job."""

    state: State
    outputs: Mapping[str, Any] = field(factory=dict)
    error_code: ErrorCode = "internal_error"
    message: str = ""
    reason: str | None = None
    """What a program may tell apart within one error code."""
    recoverable: bool = False
    """Whether going on from the newest checkpoint may help."""
    place: str | None = None
    """FILE:LINE of the capability that crashed, for the audit log."""

    @classmethod
    def failed(
        cls, error_code: ErrorCode, message: str, *, reason: str | None = None, recoverable: bool = False
    ) -> End:
        """An end that is a failure."""
        return cls(state="FAILED", error_code=error_code, message=message, reason=reason, recoverable=recoverable)

    @classmethod
    def crashed(cls, error: BaseException, *, place: str | None = None) -> End:
        """An end by a bug."""
        message = f"internal error: {type(error).__name__}"
        return cls(state="FAILED", error_code="internal_error", message=message, reason="crashed", place=place)


@frozen(kw_only=True)
class Cut:
    """Why a job is to stop, and until when (Trio's clock) it may wait for the step that is in flight."""

    message: str
    until: float
    aborts: bool = True
    """Whether its caller asked for it; else the daemon is ending."""

    def end(self) -> End:
        """What comes of a job that was cut short by this."""
        if self.aborts:
            return End(state="ABORTED", message=self.message)
        return End.failed("internal_error", self.message, reason="daemon_ended", recoverable=True)
