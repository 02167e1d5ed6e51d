"""What the desk refuses by itself, before or beside the gate: one place for the words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.errors import ShuttingDown
from hearth.hcp.codec import dump, message
from hearth.hcp.messages import TERMINAL, Rejection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.errors import QueueFull, RpcError
    from hearth.hcp.messages import ReasonCode, Risk, State


def no_policy() -> Rejection:
    """Somebody whom no policy entry matches."""
    cure = "ask the operator for a [[policy]] entry that matches this connection's principal"
    return Rejection("unauthorized", "no policy entry matches who is calling", suggestion=cure)


def reused(message_id: str) -> Rejection:
    """Another message under an id that has been used."""
    reason = f"the message_id {message_id!r} has been used for another task_submit"
    return Rejection("message_id_reused", reason, suggestion="give every task_submit a fresh message_id (a UUID v4)")


def shutting_down() -> Rejection:
    """Everything, at the end."""
    cure = "submit it again, with the same message_id, later"
    return Rejection("shutting_down", "the daemon is ending", suggestion=cure)


def no_memory(refusal: QueueFull) -> Rejection:
    """More than may be kept for one principal, or for all."""
    said = refusal.data or {}
    return Rejection("resource_unavailable", said["reason"], suggestion=said["cure"])


def unknown_session(session_id: str) -> Rejection:
    """A session that is not there, or is another's: the two are not told apart."""
    reason = f"there is no session {session_id[:200]!r} of yours"
    return Rejection("unknown_session", reason, suggestion="take the session_id that came with task_accepted")


def withdrawn(why: str | None, risk: Risk) -> Rejection:
    """A submission that its caller took back before it was accepted."""
    reason = "its caller withdrew it" + (f": {why}" if why else "")
    return Rejection("withdrawn", reason, suggestion="submit it again under a new message_id", risk=risk)


def session_ended(session_id: str, state: State) -> Rejection:
    """An abort of a session that has ended: nothing is left to stop."""
    cure = "`hcp.attach` sends the session's messages again, its outcome among them"
    if state not in TERMINAL:
        # Its end could not be written down: the daemon's next start will say FAILED.
        return Rejection("session_ended", f"session {session_id} runs no more", suggestion=cure)
    return Rejection("session_ended", f"session {session_id} has ended {state}", suggestion=cure, final_state=state)


def not_for_callers(type_: str) -> Rejection:
    """A message of a type that only a callee sends."""
    reason = f"/type: {type_} is a callee's to send"
    return Rejection("invalid_message", reason, suggestion='send "task_submit" or "abort"')


def wrong_token(why: str) -> Rejection:
    """An abort that bears a token which does not hold."""
    cure = "send the session_token of this session's task_accepted, or none"
    return Rejection("unauthorized", f"/payload/session_token: {why}", suggestion=cure)


def crashed(error: BaseException) -> Rejection:
    """A bug of ours, contained."""
    return Rejection("internal_error", f"internal error: {type(error).__name__}")


def no_hacp_session(error: RpcError) -> Rejection:
    """A job that cannot have the HACP session that its steps would run in."""
    if isinstance(error, ShuttingDown):
        return shutting_down()
    reason = f"no HACP session can be opened for it: {error.message}"
    return Rejection("resource_unavailable", reason, suggestion="try again later")


def unread(document: Mapping[str, Any], reason_code: ReasonCode, reason: str, now: float) -> bytes:
    """The answer to a message that nobody looks at: a whole line."""
    message_id = document.get("message_id")
    rejection = Rejection(reason_code, reason, suggestion="send it again, with the same message_id, later")
    payload = rejection.payload(message_id if isinstance(message_id, str) else None)
    return dump(message(payload, session_id=None, now=now))
