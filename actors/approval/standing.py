"""Standing approvals: given in advance, for calls of one tool within bounds, by one principal, a number of times.

Theory of operation.

    given ----> used, once for each step ----> used up
      |
      +-------> ended: revoked, expired, a halt came, its giver may no longer approve

*What it permits.* Calls of one tool by one principal, each of whose args is within its bound: a value, a range of
numbers, or anything. An arg that it does not name must not be there, and one that it names must be, unless anything
goes: a default would be a value that was not approved.

*Use.* It counts as an approval of its giver, beside those of the plan if there is one, by the rule that holds when the
task is admitted. Every step that does more than read must be covered, and each takes one use, in the turn in which the
task is admitted and its records are made (`Claim`): of two tasks that race for the last use one is admitted. A task
that is refused takes none. One that fails later has taken its uses.

*It is not used* for a rollback, which drives what no one has given bounds for, a control loop, a job, or what a tainted
conversation prepares. All else that a task is checked for is checked as ever: limits, interlocks, rates, the halt.

*Where.* In memory, for this process: none outlives the profile whose limits its giver knew.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import define, field, frozen

from hearth._util.ids import new_id
from hearth._util.text import suggestions
from hearth.audit.record import canonical, timestamp
from hearth.errors import InvalidParams, PermissionDenied, QueueFull, ToolNotFound
from hearth.policy.memory import PLAN_BYTES
from hearth.protocol.known import refusal
from hearth.protocol.methods import ApprovalGrant, ApprovalList
from hearth.protocol.submissions import TaskSubmit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.actors.admission import Act, Checks
    from hearth.actors.approval import Approvals, Question
    from hearth.actors.bus.queue import HaltFlag
    from hearth.actors.messages import Request
    from hearth.policy.memory import Account
    from hearth.policy.principal import Principal
    from hearth.policy.rules import ApprovalRule, Grant
    from hearth.protocol.methods import ApprovalParams
    from hearth.tools import Tool

MOST_GIVEN: Final = 32
"""Standing approvals of one principal."""
MOST_BYTES: Final = 4096
"""Bytes of the args of one, as JSON: a person reads them."""


@define(eq=False)
class StandingApproval:
    """One standing approval. Times are epoch seconds, but for `until`, which is the machine's uptime."""

    who: Principal
    principal: str
    tool: str
    args: Mapping[str, Mapping[str, Any]]
    times: int
    right: str
    halts: int
    """The number of halts when it was asked for: none is used after a halt."""
    created_at: float
    expires_at: float
    until: float
    account: Account
    reason: str | None = None
    approval_id: str = field(factory=new_id)
    used: int = 0

    def covers(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Return True if a call is within its bounds."""
        return (
            tool == self.tool
            and args.keys() <= self.args.keys()
            and all(_within(bound, name, args) for name, bound in self.args.items())
        )

    @property
    def text(self) -> str:
        """What it permits, in words."""
        args = ", ".join(_words(name, bound) for name, bound in self.args.items())
        times = "once" if self.times == 1 else f"{self.times} times"
        rest = f"with {args}, and no other args" if args else "without args"
        return f"{_word(self.principal)} may run {self.tool} {times} until {timestamp(self.expires_at)}, {rest}"

    def to_wire(self, by: str, grant: Grant) -> dict[str, Any]:
        """Return it as the principal `by` sees it."""
        wire = {
            "approval_id": self.approval_id,
            "text": self.text,
            "tool": self.tool,
            "args": self.args,
            "principal": self.principal,
            "by": self.who.key,
            "times": self.times,
            "left": self.times - self.used,
            "created_at": timestamp(self.created_at),
            "expires_at": timestamp(self.expires_at),
            "may_revoke": self.may_revoke(by, grant),
        }
        return wire if self.reason is None else {**wire, "reason": self.reason}

    def may_revoke(self, by: str, grant: Grant) -> bool:
        """Return True if this principal may revoke it: its giver, or one that may give it."""
        return self.who.key == by or self.right in grant.rights


def _within(bound: Mapping[str, Any], name: str, args: Mapping[str, Any]) -> bool:
    if "any" in bound:
        return True
    if name not in args:
        return False
    value = args[name]
    if "equals" in bound:
        return canonical(value) == canonical(bound["equals"])
    # A boolean is an int for Python.
    return type(value) in (int, float) and bound.get("min", value) <= value <= bound.get("max", value)


def _words(name: str, bound: Mapping[str, Any]) -> str:
    name = _word(name)
    if "any" in bound:
        return f"any {name}"
    if "equals" in bound:
        return f"{name} {json.dumps(bound['equals'])}"
    low, high = bound.get("min"), bound.get("max")
    if low is None or high is None:
        return f"{name} {high} or less" if low is None else f"{name} {low} or more"
    return f"{name} from {low} to {high}"


def _word(name: str) -> str:
    """Return a name with an escape for all but printable ASCII, and in quotes where it would not stand alone."""
    quoted = json.dumps(name)
    return quoted[1:-1] if name.isprintable() and not set(name) & set(' ,"') else quoted


@define(eq=False)
class StandingApprovals:
    """The standing approvals of one runtime."""

    approvals: Approvals
    halt_flag: HaltFlag
    clock: Callable[[], float]
    uptime: Callable[[], float]
    rule_of: Callable[[str, int], ApprovalRule | None]
    """Returns the rule for a risk of a principal that has a session."""
    _given: dict[str, StandingApproval] = field(factory=dict, init=False)

    def __iter__(self) -> Iterator[StandingApproval]:
        """Yield those that may still be used, the oldest first; forget the others."""
        now = self.uptime()
        for one in [*self._given.values()]:
            if one.halts != self.halt_flag.count or now >= one.until:
                self.end(one)
            else:
                yield one

    def claim(
        self, submit: TaskSubmit, author: str, question: Question | None = None, *, tainted: bool = False
    ) -> Claim:
        """Return the approvals of a task that is about to be admitted."""
        constraints = submit.constraints
        plain = type(submit) is TaskSubmit and not tainted and not constraints.rollback_on_failure
        return Claim(self, author, question, uses_standing=plain, spends=not constraints.dry_run)

    def keep(self, one: StandingApproval) -> None:
        """Keep one. Raises QueueFull."""
        self.require_room(one.who.key)
        one.account.charge(_size(one))
        self._given[one.approval_id] = one
        self.approvals.note_change()

    def require_room(self, by: str) -> None:
        """Raise QueueFull if this principal has given too many."""
        if sum(one.who.key == by for one in self) >= MOST_GIVEN:
            reason = f"{MOST_GIVEN} standing approvals of yours are in force; revoke some of them, or let them expire"
            raise QueueFull(f"Queue full: {reason}", data={"reason": reason})

    def end(self, one: StandingApproval) -> None:
        """Forget one."""
        del self._given[one.approval_id]
        one.account.release(_size(one))
        self.approvals.note_change()

    def find(self, approval_id: str) -> StandingApproval | None:
        """Return the one of this id that may still be used, or None."""
        return next((one for one in self if one.approval_id == approval_id), None)

    def recheck(self) -> None:
        """End, on record, those whose giver may no longer approve: the policy was read again."""
        for one in self:
            if not self.approvals.may(one.who, one.right):
                self.end(one)
                self.approvals.note_end("standing", one.approval_id, one.who.key, one.right)


def _size(one: StandingApproval) -> int:
    return PLAN_BYTES + len(canonical(one.args))


class Claim:
    """The approvals of one task: those of its question, and the uses of standing ones that `spend` takes.

    Ask and spend in one turn.
    """

    def __init__(
        self, standing: StandingApprovals, author: str, question: Question | None, *, uses_standing: bool, spends: bool
    ) -> None:
        self._standing = standing
        self._author = author
        self._question = question
        self._uses_standing = uses_standing
        self._spends = spends
        self._uses: list[tuple[int, StandingApproval]] = []

    def missing(self, rule: ApprovalRule, acts: Sequence[Act]) -> int:
        """Return how many approvals of these steps are missing by a rule."""
        approvals, author = self._standing.approvals, self._author
        missing = approvals.missing(self._question, author, rule)
        if not missing or not self._uses_standing:
            return missing
        asked = {} if self._question is None else self._question.approved_by
        in_force = [one for one in self._standing if one.principal == author]
        for index, tool, args in acts:
            mine = [one.who for at, one in self._uses if at == index]
            givers = {who.key for who in (*asked.values(), *mine) if approvals.may(who, rule.right)}
            for one in in_force:
                if not rule.missing(givers, author):
                    break
                left = one.times - one.used - sum(used is one for _, used in self._uses)
                useful = one.who.key not in givers and rule.counts(one.who.key, author)
                if useful and left > 0 and approvals.may(one.who, rule.right) and one.covers(tool, args):
                    self._uses.append((index, one))
                    givers.add(one.who.key)
            if missing := rule.missing(givers, author):
                break
        return missing

    def spend(self) -> list[dict[str, Any]]:
        """Take the uses that `missing` has found; return them for the record. A dry run takes none."""
        if not self._spends:
            return []
        for _, one in self._uses:
            one.used += 1
            if one.used == one.times:
                self._standing.end(one)
        if self._uses:
            self._standing.approvals.note_change()
        return [{"step": at, "approval_id": one.approval_id, "by": one.who.key} for at, one in self._uses]


# --- the requests of a session ----------------------------------------------------------------------------------------


class Host(Protocol):
    """The session, as these requests need it."""

    session_id: str
    who: Principal

    def recorded(self, request: Request, record: Mapping[str, Any], then: Callable[[], None]) -> None:
        """Write a record, then run `then` in the session's turn; the record's failure is the answer."""
        ...

    def taint(self, source: str) -> None:
        """Note that an answer brings another principal's words into a conversation."""


@frozen(eq=False)
class StandingRequests:
    """The approval.* methods, for one request of a session."""

    _host: Host
    _grant: Grant
    _standing: StandingApprovals
    _checks: Checks
    _account: Account

    def handle(self, request: Request, params: ApprovalParams) -> None:
        """Execute it. Raises RpcError."""
        by = self._host.who.key
        if isinstance(params, ApprovalGrant):
            self._give(request, params)
        elif isinstance(params, ApprovalList):
            seen = [one for one in self._standing if by == one.principal or one.may_revoke(by, self._grant)]
            if any(one.who.key != by for one in seen):
                self._host.taint("approval.list")
            request.result({"approvals": [one.to_wire(by, self._grant) for one in seen]})
        else:
            one = self._standing.find(params.approval_id)
            if one is None or not one.may_revoke(by, self._grant):
                reason = "no such standing approval is in force, or it is not yours to revoke"
                raise PermissionDenied(f"Permission denied: {reason}", data={"reason": reason})
            # Before the record: what was revoked must not be used while a disk does not answer.
            self._standing.end(one)
            record = self._record("approval.revoke", one)
            self._host.recorded(request, record, partial(request.result, {"ok": True, "approval_id": one.approval_id}))

    def _give(self, request: Request, params: ApprovalGrant) -> None:
        standing, by = self._standing, self._host.who
        # Also of a halt that is in force: an approval that is older than a reset must not count after it.
        if standing.halt_flag.stops(request.halts):
            raise standing.halt_flag.error()
        principal = params.principal or by.key
        tool = self._tool(params)
        rule = standing.rule_of(principal, tool.risk_level)
        right = "approve" if rule is None else rule.right
        self._grant.require(right)
        if rule is not None and not rule.counts(by.key, principal):
            why = "another principal than the one that it is for must give this approval"
            raise PermissionDenied(f"Permission denied: {why}", data={"reason": why, "needs": rule.to_wire()})
        now = standing.clock()
        one = StandingApproval(
            by,
            principal,
            tool.name,
            params.args,
            params.times,
            right,
            request.halts,
            now,
            now + params.within_s,
            standing.uptime() + params.within_s,
            self._account,
            params.reason,
        )
        standing.require_room(by.key)
        if params.dry_run:
            shown = one.to_wire(by.key, self._grant)
            del shown["approval_id"]
            request.result(shown)
            return

        def kept() -> None:
            if standing.halt_flag.stops(request.halts):
                raise standing.halt_flag.error()
            if not standing.approvals.may(by, right):
                reason = f"the policy has taken the right {right!r} from this principal"
                raise PermissionDenied(f"Permission denied: {reason}", data={"reason": reason})
            standing.keep(one)
            request.result(one.to_wire(by.key, self._grant))

        self._host.recorded(request, self._record("approval.grant", one), kept)

    def _tool(self, params: ApprovalGrant) -> Tool:
        """Return the tool. Raises ToolNotFound, and InvalidParams for unknown args and those that have no bound."""
        tool = self._checks.registry.by_name.get(params.tool)
        if tool is None:
            cure, near = suggestions(params.tool[:100], sorted(self._checks.registry))
            raise ToolNotFound(f"Tool not found: {params.tool[:100]}{cure}", data={"tool": params.tool[:100], **near})
        if tool.name in self._checks.resolved:
            reason = f"no step is of {tool.name}: give it for a tool of its signals, with the args that a plan shows"
            raise InvalidParams(f"Invalid params: /tool: {reason}", data={"path": "/tool", "reason": reason})
        known = self._checks.known.get(tool.name)
        if known is not None and (unknown := known.unknown_members(params.args, "/args")):
            raise refusal(unknown)
        if (size := len(canonical(params.args))) > MOST_BYTES:
            reason = f"they have {size} bytes, and {MOST_BYTES} are the most; bound fewer or shorter values"
            raise InvalidParams(f"Invalid params: /args: {reason}", data={"path": "/args", "reason": reason})
        for name in tool.params_schema.get("required", ()):
            if name not in params.args:
                reason = f"{tool.name} needs {name}: bound it by equals, by min and max, or say any"
                raise InvalidParams(f"Invalid params: /args: {reason}", data={"path": "/args", "reason": reason})
        return tool

    def _record(self, event: str, one: StandingApproval) -> dict[str, Any]:
        shown = one.to_wire(self._host.who.key, self._grant)
        named = ("approval_id", "tool", "args", "times", "left", "expires_at", "reason")
        record = {name: shown[name] for name in named if name in shown}
        about = {"session_id": self._host.session_id, "principal": self._host.who.key}
        return {"event": event, **about, "by": one.who.key, "for": one.principal, **record}
