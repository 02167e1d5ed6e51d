"""Rejections that the job server sends before the safety gate or instead of it, each with its text and its cure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.errors import ShuttingDown
from hearth.hcp.codec import dump, message
from hearth.hcp.messages import (
    TERMINAL,
    ReasonCode,
    Rejection,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.errors import QueueFull, RpcError
    from hearth.hcp.messages import State
    from hearth.policy.levels import Risk


def no_policy() -> Rejection:
    """Return the rejection of a caller that no policy entry matches."""
    cure = "ask the operator for a [[policy]] entry that matches this connection's principal"
    return Rejection("unauthorized", "no policy entry matches the caller", suggestion=cure)


def reused(message_id: str) -> Rejection:
    """Return the rejection of a message whose id belongs to another message."""
    reason = f"the message_id {message_id!r} has been used for another task_submit"
    return Rejection("message_id_reused", reason, suggestion="give every task_submit a fresh message_id (a UUID v4)")


def shutting_down() -> Rejection:
    """Return the rejection of a message that arrives while the daemon ends."""
    cure = "submit it again, with the same message_id, later"
    return Rejection("shutting_down", "the daemon is ending", suggestion=cure)


def no_memory(refusal: QueueFull) -> Rejection:
    """Return the rejection of a message that exceeds the memory budget of its principal, or of all."""
    said = refusal.data or {}
    return Rejection("resource_unavailable", said["reason"], suggestion=said["cure"])


def unknown_session(session_id: str) -> Rejection:
    """Return the rejection for an unknown session; another principal's session gets the same answer."""
    reason = f"there is no session {session_id[:200]!r} of yours"
    return Rejection("unknown_session", reason, suggestion="take the session_id that came with task_accepted")


def withdrawn(why: str | None, risk: Risk) -> Rejection:
    """Return the rejection of a submission that its caller withdrew before it was accepted."""
    reason = "its caller withdrew it" + (f": {why}" if why else "")
    return Rejection("withdrawn", reason, suggestion="submit it again under a new message_id", risk=risk)


def session_ended(session_id: str, state: State) -> Rejection:
    """Return the rejection of an abort whose session has ended: nothing is left to stop."""
    cure = "`hcp.attach` sends the session's messages again, its outcome among them"
    if state not in TERMINAL:
        # Its end could not be stored. The daemon's next start writes FAILED.
        return Rejection("session_ended", f"session {session_id} no longer runs", suggestion=cure)
    return Rejection("session_ended", f"session {session_id} has ended {state}", suggestion=cure, final_state=state)


def not_for_callers(type_: str) -> Rejection:
    """Return the rejection of a message of a type that only a callee sends."""
    reason = f"/type: only a callee sends {type_}"
    return Rejection("invalid_message", reason, suggestion='send "task_submit" or "abort"')


def wrong_token(why: str) -> Rejection:
    """Return the rejection of an abort whose session token is not valid."""
    cure = "send the session_token of this session's task_accepted, or none"
    return Rejection("unauthorized", f"/payload/session_token: {why}", suggestion=cure)


def crashed(error: BaseException) -> Rejection:
    """Return the rejection of a submission that met a bug in hearth."""
    return Rejection("internal_error", f"internal error: {type(error).__name__}")


def no_hacp_session(error: RpcError) -> Rejection:
    """Return the rejection of a job whose HACP session cannot be opened."""
    if isinstance(error, ShuttingDown):
        return shutting_down()
    reason = f"no HACP session can be opened for it: {error.message}"
    return Rejection("resource_unavailable", reason, suggestion="try again later")


def unread(document: Mapping[str, Any], reason_code: ReasonCode, reason: str, now: float) -> bytes:
    """Return the answer line to a message that is refused without being read."""
    message_id = document.get("message_id")
    rejection = Rejection(reason_code, reason, suggestion="send it again, with the same message_id, later")
    payload = rejection.payload(message_id if isinstance(message_id, str) else None)
    return dump(message(payload, session_id=None, now=now))
