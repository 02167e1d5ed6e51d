"""Approvals: the questions that wait for a person, whatever asks them: a plan, or a whole job (HCP).

It owns the open questions, counts the approvals of each, and refuses a decision by a principal that may not make it. It
lives in the Trio thread and nothing in it waits but `changed` and `settled`. The questions are lost with the process:
then nothing runs that has not been approved since.

    open <---> approved ----> used: its run has started
      |           |
      +-----------+---------> rejected, withdrawn, or ended by a halt

A question is approved when as many different principals have approved it as its rule asks for. Until it is used, an
approval can end: its principal takes it back, or the policy, read again, no longer lets that principal approve. The
question is open again then. `holds` asks the policy, and the halt, in the turn in which the run starts. Every change
wakes those who wait for one, so an approval given in one client releases the other.

A halt ends every question of something that acts, and what had been approved: a person's answer to what was asked
before a halt lets nothing run after it. A decision that comes too late for its question is refused with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import trio
from attrs import define, field, frozen

from hearth._util.ids import new_id
from hearth.audit.record import timestamp
from hearth.errors import InvalidParams, PermissionDenied
from hearth.shown import prose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hearth.actors.bus.queue import HaltFlag
    from hearth.policy.principal import Principal
    from hearth.policy.rules import ApprovalRule


@frozen
class Decision:
    """A person's answer, and that person's principal."""

    approved: bool
    who: Principal
    reason: str | None = None

    @property
    def by(self) -> str:
        """The principal's key."""
        return self.who.key


@define(eq=False)
class Question:
    """A question to a person, with what is needed to decide. `principal` asks it."""

    kind: Literal["plan", "job"]
    principal: str
    rule: ApprovalRule
    about: Mapping[str, Any] = field(factory=dict)
    """JSON: what would be done."""
    question_id: str = field(factory=new_id)
    halts: int = 0
    """The number of halts when what it asks for came (`bus.queue.HaltFlag`)."""
    acts: bool = True
    """False if what it asks for only reads: then a halt does not end it."""
    approved_by: dict[str, Principal] = field(factory=dict)
    """The principals that have approved it so far, by key: the policy is asked about them again."""
    decision: Decision | None = None
    asked_at: float = 0.0
    """Epoch seconds, as `expires_at`."""
    expires_at: float = 0.0
    session_id: str | None = None
    """The HCP session of a running job that asks; None for a question about starting one."""
    settled: trio.Event = field(factory=trio.Event)
    """Set once `decision` is, and when no decision can come any more."""


MOST_GONE: Final = 256
"""Questions that are no longer open, of which the reason is kept."""


class Approvals:
    """The questions of one runtime that are open, or approved and not used.

    `may` returns True if the policy in force gives a principal a right.
    """

    def __init__(self, may: Callable[[Principal, str], bool], audit: Callable[..., None], halt_flag: HaltFlag) -> None:
        self.may = may
        self._audit = audit
        self._halt_flag = halt_flag
        self._gone: dict[str, str] = {}
        self._open: dict[str, Question] = {}
        self._approved: dict[str, Question] = {}
        self._closed = False
        self.seq = 0
        """The number of changes so far."""
        self._changed = trio.Event()

    def __iter__(self) -> Iterator[Question]:
        """Yield the open questions, the oldest first."""
        return iter(list(self._open.values()))

    def overview(self) -> list[dict[str, Any]]:
        """Return the open questions as observers see them: without what they are about."""
        return [
            {
                "kind": question.kind,
                "approval_id": question.question_id,
                "principal": question.principal,
                "needs": question.rule.to_wire(),
                "approved_by": list(question.approved_by),
                "asked_at": timestamp(question.asked_at),
                "expires_at": timestamp(question.expires_at),
            }
            for question in self
        ]

    @property
    def closed(self) -> bool:
        """True when no question can be decided any more: the runtime is ending."""
        return self._closed

    def open(self, question: Question) -> None:
        """Add a question; once the runtime is ending it is settled at once, without a decision."""
        if self._closed or self._halted(question):
            question.settled.set()
        else:
            self._open[question.question_id] = question
            self.note_change()

    def withdraw(self, question: Question) -> None:
        """Remove a question that no longer matters. Idempotent."""
        self._approved.pop(question.question_id, None)
        if self._open.pop(question.question_id, None) is not None:
            self._note_gone(question)
            question.settled.set()
            self.note_change()

    def _note_gone(self, question: Question) -> None:
        decision = question.decision
        if self._halted(question):
            reason = prose(self._halt_flag.reason)
            why = f"the daemon was halted after it was asked ({reason}); submit or prepare it again"
        elif decision is not None:
            why = f"{decision.by} has {'approved' if decision.approved else 'rejected'} it"
        else:
            why = "it has expired, or who asked has withdrawn it"
        self._gone[question.question_id] = why
        while len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def gone(self, question_id: str) -> str:
        """Return why a decision on a question comes too late, of the last MOST_GONE; else that it was never asked."""
        return self._gone.get(question_id, "it was never asked for, or that was long ago")

    def _halted(self, question: Question) -> bool:
        return question.acts and self._halt_flag.stops(question.halts)

    def halt(self) -> None:
        """End every question of something that acts, open or approved: the daemon is being halted."""
        for question in (*self._open.values(), *self._approved.values()):
            if self._halted(question):
                question.decision = None
                if self._approved.pop(question.question_id, None) is not None:
                    self._note_gone(question)
                    self.note_change()
                self.withdraw(question)

    async def ask(self, question: Question, timeout_s: float) -> Decision | None:
        """Wait for the decision on a question; None if the time is over, or the runtime is ending."""
        self.open(question)
        try:
            with trio.move_on_after(timeout_s):
                # Again if an approval ends before this task wakes: the question has another event then.
                while question.question_id in self._open and not self._closed:
                    await question.settled.wait()
        finally:
            self.withdraw(question)
        return question.decision

    def find(self, question_id: str, kind: str) -> Question | None:
        """Return an open question of this kind, or None."""
        question = self._open.get(question_id)
        return question if question is not None and question.kind == kind else None

    def check(self, question: Question, by: str, *, approves: bool) -> None:
        """Raise PermissionDenied or InvalidParams if a principal that has the right may not decide so."""
        if approves and not question.rule.counts(by, question.principal):
            why = "another principal than the one that asked for it must approve this"
            raise PermissionDenied(f"Permission denied: {why}", data={"reason": why})
        if approves and by in question.approved_by:
            why = "this principal has approved it already; another one must approve it too"
            raise InvalidParams(f"Invalid params: {why}", data={"reason": why})

    def decide(self, question: Question, decision: Decision) -> None:
        """Count a decision that `check` has permitted; a question that was settled since stays as it is."""
        if question.settled.is_set():
            return
        if decision.approved:
            question.approved_by[decision.by] = decision.who
        if not decision.approved or not question.rule.missing(question.approved_by, question.principal):
            question.decision = decision
            self.withdraw(question)
            if decision.approved:
                self._approved[question.question_id] = question
        else:
            self.note_change()

    def missing(self, question: Question | None, author: str, rule: ApprovalRule) -> int:
        """Return how many approvals are missing by a rule, of principals that the policy in force lets approve."""
        given = {} if question is None else question.approved_by
        return rule.missing([by for by, who in given.items() if self.may(who, rule.right)], author)

    def holds(self, question: Question) -> bool:
        """Return True if a question is approved by the policy in force; approvals that it no longer permits end here.

        Ask it in the turn in which the run starts.
        """
        if self._halted(question):
            return False
        right = question.rule.right
        for by, who in [*question.approved_by.items()]:
            if not self.may(who, right):
                self.end_approval(question, by)
                self.note_end(question.kind, question.question_id, by, right)
        return question.decision is not None and question.decision.approved

    def recheck(self) -> None:
        """Ask the policy, which was read again, about every approval that has not been used."""
        for question in (*self._open.values(), *self._approved.values()):
            self.holds(question)

    def end_approval(self, question: Question, by: str) -> None:
        """End one principal's approval; the question is open again if it was approved and still matters."""
        del question.approved_by[by]
        question.decision = None
        if self._approved.pop(question.question_id, None) is None:
            self.note_change()
        else:
            question.settled = trio.Event()
            self.open(question)

    def note_end(self, kind: str, approval_id: str, by: str, right: str) -> None:
        """Record that an approval has ended, because the policy in force does not give its principal the right."""
        reason = f"the policy gives this principal no right {right!r}"
        self._audit("approval.end", kind=kind, approval_id=approval_id, principal=by, reason=reason)

    def note_change(self) -> None:
        """Wake all who wait for a change."""
        self.seq += 1
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def close(self) -> None:
        """End every wait: the runtime is ending."""
        self._closed = True
        for question in self:
            question.settled.set()
        self.note_change()
