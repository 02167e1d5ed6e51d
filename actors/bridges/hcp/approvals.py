"""Approvals: jobs that wait for a person's decision, which is made once and lost with the process (L3; decision 0077).

It owns the open questions and their time limits, and refuses a decision about one's own job. The caller checks the
right to approve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field, frozen

from hearth.errors import InvalidParams, PermissionDenied
from hearth.hcp.messages import Rejection, new_id, write_instant
from hearth.hcp.safety import shutting_down

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.messages import TaskSubmit
    from hearth.hcp.safety import Approval


@frozen(kw_only=True)
class Question:
    """A question to a person about a job, with what is needed to decide."""

    principal: str
    message_id: str
    about: Mapping[str, Any]
    """JSON: capability, capability_version, caller_id, intent, inputs, risk_level, data_classification and more."""
    session_id: str | None = None
    """The session of a running job that asks; None for a question about starting a job."""


def question_of(approval: Approval, submit: TaskSubmit, principal: str, message_id: str) -> Question:
    """Return the question about a job that has passed the gate."""
    capability = approval.capability
    about: dict[str, Any] = {
        "capability": capability.name,
        "capability_version": capability.version,
        "caller_id": submit.caller_id,
        "intent": submit.intent,
        "inputs": approval.inputs,
        "risk_level": approval.risk,
        "data_classification": approval.classification,
    }
    if capability.safety.hazard_categories:
        about["hazard_categories"] = list(capability.safety.hazard_categories)
    return Question(principal=principal, message_id=message_id, about=about)


@frozen
class Decision:
    """A person's answer, and the person's principal (`by`)."""

    approved: bool
    by: str
    reason: str | None


@define(eq=False)
class _Open:
    question: Question
    submitted_at: float
    expires_at: float
    approval_id: str = field(factory=new_id)
    decided: trio.Event = field(factory=trio.Event)
    decision: Decision | None = None


class Approvals:
    """The open questions of one job server; times are epoch seconds."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._open: dict[str, _Open] = {}
        self._closed = False

    async def ask(self, question: Question, now: float) -> Decision:
        """Wait for a decision. Raises Rejection: approval_timeout, or shutting_down."""
        waiting = _Open(question, now, now + self._timeout_s)
        if not self._closed:
            self._open[waiting.approval_id] = waiting
            try:
                with trio.move_on_after(self._timeout_s):
                    await waiting.decided.wait()
            finally:
                self._open.pop(waiting.approval_id, None)
        if waiting.decision is not None:
            return waiting.decision
        if self._closed:
            raise shutting_down()
        reason = f"no person approved it within {self._timeout_s:g} s"
        cure = "make sure that a person who may approve jobs is there, then submit it again under a new message_id"
        raise Rejection("approval_timeout", reason, suggestion=cure)

    def pending(self, by: str) -> list[dict[str, Any]]:
        """Return the open questions, the oldest first; `own` marks those that `by` asked and cannot decide."""
        return [
            {
                "approval_id": waiting.approval_id,
                "principal": waiting.question.principal,
                "message_id": waiting.question.message_id,
                **waiting.question.about,
                "submitted_at": write_instant(waiting.submitted_at),
                "expires_at": write_instant(waiting.expires_at),
                "own": waiting.question.principal == by,
            }
            for waiting in self._open.values()
        ]

    def waiting(self, principal: str) -> list[dict[str, Any]]:
        """Return a principal's jobs that wait for approval, the newest first, as hcp.sessions shows them."""
        newest_first = (waiting for waiting in reversed(self._open.values()) if waiting.question.session_id is None)
        return [_entry_of(waiting) for waiting in newest_first if waiting.question.principal == principal]

    def decide(self, approval_id: str, *, approved: bool, by: str, reason: str | None) -> None:
        """Answer a question. Raises InvalidParams for an unknown question, PermissionDenied for the asker's own."""
        waiting = self._open.get(approval_id)
        if waiting is None or waiting.decision is not None:
            why = "no such approval is open: it was decided, timed out, or never asked for"
            raise InvalidParams(data={"path": "/approval_id", "reason": why})
        if waiting.question.principal == by:
            raise PermissionDenied(
                data={"reason": "a job is approved by another principal than the one that submitted it"}
            )
        waiting.decision = Decision(approved, by, reason)
        waiting.decided.set()

    def close(self) -> None:
        """End every wait: the daemon is ending."""
        self._closed = True
        for waiting in self._open.values():
            waiting.decided.set()


def _entry_of(waiting: _Open) -> dict[str, Any]:
    """Return the entry of a job without a session, with the same members as one that has a session."""
    question, since = waiting.question, write_instant(waiting.submitted_at)
    about = ("capability", "capability_version", "caller_id", "intent", "risk_level", "data_classification")
    return {
        "session_id": None,
        "message_id": question.message_id,
        "state": "PENDING",
        **{name: question.about[name] for name in about},
        "created_at": since,
        "updated_at": since,
        "last_sequence": 0,
        "checkpoints": 0,
        "waits_for": "approval",
        "approval_id": waiting.approval_id,
        "expires_at": write_instant(waiting.expires_at),
    }
