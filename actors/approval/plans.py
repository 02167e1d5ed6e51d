"""Plans: tasks that are prepared, shown with what they would change, perhaps approved, and executed at most once.

Theory of operation. A plan is a task that has passed every check of task.submit and has touched nothing. Its `document`
is the RFC 8785 form of `intent`, `constraints` and `steps`, each step with `tool`, `args`, `before` and `after`; its
hash is over these bytes. What is shown of a plan, what is approved and what runs are all parsed from these bytes: what
is shown is what runs. `hearth.shown` makes the lines that a person reads, once; args that a tool does not know are
refused, since they would be approved and do nothing.

    waiting <---> ready ----> executed        without a rule that asks for approvals it begins ready
       |            |
       +------------+----> rejected, or gone: expired

*Before.* The tool of a step says which read of risk 0 shows what it changes (`hearth.tools.Preview`). The reads are
the steps of an ordinary task of the same session: same policy, rates and records. If an earlier step of the plan
changes the same thing, the later step's `before` is the earlier one's `after`, and nothing is read for it.

*Reject.* The author's ends the plan. That of a principal which has approved it takes that approval back, at once, until
the plan is executed. Any other needs the right that the plan needs, and ends a plan that waits.

*Execute.* In this order: the plan is one's own, ready and not expired; the reads give what they gave before; then, in
one turn of the session, the policy in force still lets its approvers approve it, the task passes the checks of
task.submit once more, with the approvals counted again, the plan is marked executed, and the task starts. A refusal
before that leaves the plan as it was, but for approvals that have ended. The record of the execution goes to the audit
log in one write with that of the task. Another session may change a line between the second read and the first step.

Who may call what. `Plans` belongs to the runtime, `PlanRequests` to one session; both live in the Trio thread. The
methods of `PlanRequests` run in the session's turn and never wait; what waits runs beside it (`Host.wait_beside`).
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
import trio
from attrs import asdict, define, evolve, field

from hearth._util.ids import new_id
from hearth.actors.admission import ResolvedStep
from hearth.actors.approval import Decision, Question
from hearth.audit.record import canonical, timestamp
from hearth.errors import (
    ApprovalRequired,
    AuditUnavailable,
    InvalidParams,
    PermissionDenied,
    PlanStale,
    QueueFull,
    RpcError,
)
from hearth.policy.memory import PLAN_BYTES
from hearth.protocol.methods import METHODS, PlanApprove, PlanExecute, PlanGet, PlanList, PlanPrepare, PlanReject
from hearth.protocol.submissions import StepSpec, TaskSubmit
from hearth.shown import StepNotes, plan_lines, prose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from hearth.actors.approval import Approvals
    from hearth.actors.approval.standing import Claim, StandingApprovals
    from hearth.actors.bus.queue import HaltFlag
    from hearth.actors.messages import EventSink, Request, Verdicts
    from hearth.actors.step import StepRun
    from hearth.actors.task import TaskActor
    from hearth.config.model import LimitsConfig
    from hearth.policy.memory import Account
    from hearth.policy.principal import Principal
    from hearth.policy.rules import ApprovalRule, Grant
    from hearth.protocol.methods import Params, PlanParams
    from hearth.tools import Preview, Resolved, Tool

MOST_PLAN_BYTES: Final = 62 << 10
"""Bytes of a plan's document with the lines that show it: a person has to read them, and an answer has 64 KiB."""
MOST_PLANS: Final = 256
"""Plans of all principals that are kept at once."""
MOST_LISTED_BYTES: Final = 60 << 10
"""Bytes of the plans in one answer of plan.list; its `more` counts those that are left out."""
MOST_LISTED_INTENT: Final = 120
"""Characters of an intent in plan.list."""


@define(eq=False)
class PreparedPlan:
    """One prepared plan. Times are epoch seconds, but for `until`, which is the machine's uptime."""

    principal: str
    document: bytes
    shown: bytes
    """The lines that a person reads: a JSON array."""
    risk: int
    rule: ApprovalRule | None
    created_at: float
    expires_at: float
    until: float
    account: Account
    halts: int
    """The number of halts when it was prepared: what was prepared before a halt does not run after it."""
    _halt_flag: HaltFlag
    hash: str
    intent: str
    """Its beginning."""
    step_count: int
    plan_id: str = field(factory=new_id)
    question: Question | None = None
    task_id: str | None = None
    """The task that it became."""
    tainted_by: str | None = None
    """The tool through which foreign text had entered the conversation that prepared it."""
    resolved: Mapping[int, Resolved] = field(factory=dict)
    """By index, what the steps were asked for as, where that was another tool."""

    @property
    def state(self) -> str:
        """Return waiting, ready, executed or rejected."""
        if self.task_id is not None:
            return "executed"
        if self.question is None:
            return "ready"
        decision = self.decision
        return "waiting" if decision is None else "ready" if decision.approved else "rejected"

    @property
    def halted(self) -> bool:
        """True if the daemon was halted since: it does not run any more, and is kept only to say so."""
        return self.risk > 0 and self.task_id is None and self.halts != self._halt_flag.count

    @property
    def decision(self) -> Decision | None:
        """The decision on it, once there is one."""
        return None if self.question is None else self.question.decision

    @property
    def approved_by(self) -> Collection[str]:
        """The principals that have approved it."""
        return () if self.question is None else self.question.approved_by.keys()

    def submit(self, *, subscribe: bool = False) -> TaskSubmit:
        """Return the task that runs: the plan's document without what is only shown."""
        task = orjson.loads(self.document)
        task["steps"] = [{key: step[key] for key in step if key not in _SHOWN} for step in task["steps"]]
        submit = METHODS["task.submit"]({"task": task, "subscribe": subscribe})
        assert isinstance(submit, TaskSubmit)
        steps = list(submit.steps)
        for index, resolved in self.resolved.items():
            steps[index] = ResolvedStep(resolved.tool, resolved.args, steps[index].expect, resolved=resolved)
        return evolve(submit, steps=tuple(steps))

    def may_approve(self, by: str, grant: Grant) -> bool:
        """Return True if this principal's approval of it would count now."""
        rule = self.rule
        return (
            rule is not None
            and self.state == "waiting"
            and not self.halted
            and rule.right in grant.rights
            and rule.counts(by, self.principal)
            and by not in self.approved_by
        )

    def may_see(self, by: str, grant: Grant) -> bool:
        """Return True if plan.list and plan.get show it: one's own, one to decide on, or one that one has approved."""
        rule = self.rule
        waits = self.state == "waiting" and not self.halted
        may_decide = rule is not None and waits and rule.right in grant.rights
        return self.principal == by or may_decide or self.may_take_back(by)

    def may_take_back(self, by: str) -> bool:
        """Return True if this principal has approved the plan of another one, and it has not run."""
        return self.principal != by and by in self.approved_by and self.state in ("waiting", "ready")

    def to_wire(self, by: str, grant: Grant) -> dict[str, Any]:
        """Return it as the principal `by` sees it; its `hash` is over `intent`, `constraints` and `steps`."""
        return {**self.summary(by, grant), **orjson.loads(self.document), "shown": orjson.Fragment(self.shown)}

    def summary(self, by: str, grant: Grant) -> dict[str, Any]:
        """Return it as plan.list shows it to the principal `by`: without its contents."""
        wire = {
            "plan_id": self.plan_id,
            "hash": self.hash,
            "effective_risk": self.risk,
            "intent": self.intent,
            "step_count": self.step_count,
            "needs": None if self.rule is None else self.rule.to_wire(),
            "approved_by": list(self.approved_by),
            "state": self.state,
            "may_approve": self.may_approve(by, grant),
            "principal": self.principal,
            "own": self.principal == by,
            "created_at": timestamp(self.created_at),
            "expires_at": timestamp(self.expires_at),
        }
        if self.task_id is not None:
            wire["task_id"] = self.task_id
        if self.tainted_by is not None:
            wire["tainted_by"] = self.tainted_by
        decision = self.decision
        if decision is not None and not decision.approved:
            wire["rejected_by"] = decision.by
            if decision.reason is not None:
                wire["reason"] = decision.reason
        return wire


_SHOWN: Final = ("before", "after", "during", "asked")


@define(eq=False)
class Plans:
    """The plans of all principals, from their preparation to their expiry."""

    approvals: Approvals
    standing: StandingApprovals
    _limits: LimitsConfig
    _clock: Callable[[], float]
    _uptime: Callable[[], float]
    _wake_at: Callable[[str, float], None]
    """Asks for `expire` of a plan at a time of Trio's clock."""
    _drop_timer: Callable[[str], None]
    _plans: dict[str, PreparedPlan] = field(factory=dict, init=False)

    def make(
        self,
        principal: str,
        contents: Mapping[str, Any],
        notes: Sequence[StepNotes],
        risk: int,
        rule: ApprovalRule | None,
        account: Account,
        halts: int,
    ) -> PreparedPlan:
        """Return a plan that is not kept yet. Raises InvalidParams for one that is too long to be read."""
        document = canonical(contents)
        # Not of a longer one: that takes time.
        shown = orjson.dumps(plan_lines(contents, notes)) if len(document) <= MOST_PLAN_BYTES else b""
        if (size := len(document) + len(shown)) > MOST_PLAN_BYTES:
            reason = f"a plan has at most {MOST_PLAN_BYTES} bytes as it is shown, this one {size}; prepare smaller ones"
            raise InvalidParams(f"Invalid params: {reason}", data={"path": "/task", "reason": reason})
        now = self._clock()
        plan_hash = "sha256:" + hashlib.sha256(document).hexdigest()
        expires, until = (at + self._limits.plan_ttl_s for at in (now, self._uptime()))
        intent = contents["intent"]
        if len(intent) > MOST_LISTED_INTENT:
            intent = intent[: MOST_LISTED_INTENT - 1] + "…"
        count = len(contents["steps"])
        kept = (account, halts, self.standing.halt_flag)
        return PreparedPlan(
            principal, document, shown, risk, rule, now, expires, until, *kept, plan_hash, intent, count
        )

    def require_room(self, principal: str) -> None:
        """Raise QueueFull if this principal has prepared too many plans, after forgetting those that have ended."""
        own = [plan for plan in self._plans.values() if plan.principal == principal]
        most = self._limits.max_plans_per_principal
        if len(own) >= most and not self._forget_ended(own):
            reason = f"{len(own)} plans are prepared; execute or reject some of them, or let them expire"
            raise QueueFull(f"Queue full: {reason}", data={"reason": reason, "max_plans_per_principal": most})
        if len(self._plans) >= MOST_PLANS and not self._forget_ended(self._plans.values()):
            raise QueueFull("Queue full: too many plans are prepared", data={"max_plans": MOST_PLANS})

    def _forget_ended(self, plans: Iterable[PreparedPlan]) -> bool:
        """Forget the oldest of these plans that has ended; return False if none has."""
        ended = next((plan for plan in plans if plan.halted or plan.state in ("executed", "rejected")), None)
        if ended is not None:
            self._forget(ended)
        return ended is not None

    def keep(self, plan: PreparedPlan) -> None:
        """Keep a plan until it expires. Raises QueueFull."""
        self.require_room(plan.principal)
        plan.account.charge(_size(plan))
        self._plans[plan.plan_id] = plan
        if plan.rule is not None:
            acts = plan.risk > 0
            plan.question = Question(
                "plan",
                plan.principal,
                plan.rule,
                question_id=plan.plan_id,
                halts=plan.halts,
                acts=acts,
                asked_at=plan.created_at,
                expires_at=plan.expires_at,
            )
            self.approvals.open(plan.question)
        self._wake_at(plan.plan_id, trio.current_time() + self._limits.plan_ttl_s)

    def expire(self, plan_id: str) -> None:
        """Forget a plan whose time is over."""
        plan = self._plans.get(plan_id)
        if plan is not None:
            self._forget(plan)

    def _forget(self, plan: PreparedPlan) -> None:
        del self._plans[plan.plan_id]
        self._drop_timer(plan.plan_id)
        plan.account.release(_size(plan))
        if plan.question is not None:
            self.approvals.withdraw(plan.question)

    def ready(self, plan_id: str, principal: str) -> PreparedPlan | None:
        """Return a plan of this principal that needs no approval and has not run; None if it is no such plan."""
        plan = self._current(plan_id)
        if plan is None or principal != plan.principal:
            return None
        return plan if plan.halted or plan.state == "ready" else None

    def approved(self, plan_id: str, principal: str) -> PreparedPlan | None:
        """Return a plan of another principal that this one has approved and that has not run; None if there is none."""
        plan = self._current(plan_id)
        return plan if plan is not None and plan.may_take_back(principal) else None

    def withdraw(self, plan: PreparedPlan) -> None:
        """Forget a plan, unless it has run since."""
        if plan.task_id is None and plan.plan_id in self._plans:
            self._forget(plan)

    def _current(self, plan_id: str) -> PreparedPlan | None:
        """Return a plan that has not expired: a timer stands still while the machine sleeps, its uptime does not."""
        plan = self._plans.get(plan_id)
        if plan is not None and self._uptime() >= plan.until:
            self._forget(plan)
            return None
        return plan

    def find(self, plan_id: str, principal: str) -> PreparedPlan:
        """Return a plan of this principal's own. Raises PlanStale; the same for the plan of another principal."""
        plan = self._current(plan_id)
        if plan is None or plan.principal != principal:
            raise stale("there is no such plan: it has expired, or this principal has not prepared it")
        return plan

    def question(
        self, plan_id: str, plan_hash: str | None, principal: str, grant: Grant, *, approves: bool
    ) -> tuple[PreparedPlan, Question]:
        """Return a plan that waits for approval, and its question, to a principal that may know of it.

        Raises PlanStale if there is none, or if the hash is another one; PermissionDenied to a principal that may not
        decide, whether there is one or not.
        """
        plan, question = self._current(plan_id), self.approvals.find(plan_id, "plan")
        if plan is None or question is None:
            if not (plan is not None and plan.principal == principal):
                grant.require("approve")
            raise stale(f"no such plan waits for approval: {self.approvals.gone(plan_id)}")
        if approves or plan.principal != principal:
            grant.require(question.rule.right)
        if plan_hash is not None and plan.hash != plan_hash:
            raise stale("the hash is that of other content; read plan.get again, and decide on what it shows")
        return plan, question

    def listed(self, principal: str, grant: Grant) -> dict[str, Any]:
        """Return summaries of the plans that this principal may see: its own, then those of others, the oldest first.

        They are as many as fit into MOST_LISTED_BYTES; `more` counts the others, if there are any.
        """
        plans = [plan for plan in filter(None, map(self._current, list(self._plans))) if plan.may_see(principal, grant)]
        plans.sort(key=lambda plan: plan.principal != principal)
        shown: list[orjson.Fragment] = []
        left = MOST_LISTED_BYTES
        for plan in plans:
            summary = orjson.dumps(plan.summary(principal, grant))
            left -= len(summary)
            if left < 0:
                break
            shown.append(orjson.Fragment(summary))
        more = len(plans) - len(shown)
        return {"plans": shown, **({"more": more} if more else {}), "seq": self.approvals.seq}

    def has_words_of_others(self, principal: str) -> bool:
        """Return True if this principal is shown why another rejected its plan, or a plan of another's."""
        return any(
            one.may_take_back(principal)
            if one.principal != principal
            else one.decision is not None and not one.decision.approved and bool(one.decision.reason)
            for one in self._plans.values()
        )

    def get(self, plan_id: str, principal: str, grant: Grant) -> dict[str, Any]:
        """Return one of these plans with its contents. Raises PlanStale."""
        plan = self._current(plan_id)
        if plan is None or not plan.may_see(principal, grant):
            raise stale("there is no such plan: it has expired, or it is not this principal's to see")
        return plan.to_wire(principal, grant)


def _size(plan: PreparedPlan) -> int:
    return PLAN_BYTES + len(plan.document) + len(plan.shown)


def stale(reason: str, **data: Any) -> PlanStale:
    """Return the error for a plan that cannot be executed; nothing was done."""
    return PlanStale(f"Plan stale: {reason}", data={"reason": reason, **data})


# --- the requests of a session ----------------------------------------------------------------------------------------


class Host(Protocol):
    """The session, as its plans need it."""

    def resolve_steps(self, submit: TaskSubmit) -> TaskSubmit:
        """Return a submission with the steps that its calls mean. Raises InvalidParams."""
        ...

    def check_plan(self, submit: TaskSubmit, verdicts: Verdicts, request: Request) -> Sequence[StepRun]:
        """Check a task in every way but for its approval. Raises RpcError, Unchecked."""
        ...

    def start_task(
        self,
        submit: TaskSubmit,
        verdicts: Verdicts,
        request: Request,
        *,
        on_end: Callable[[TaskActor], None] | None = None,
        claim: Claim | None = None,
        first: Mapping[str, Any] | None = None,
    ) -> TaskActor:
        """Admit a task, with the approvals of `claim`, and start it; `first` is a record to write before its own.

        Raises RpcError, Unchecked.
        """
        ...

    def wait_beside(self, request: Request, wait: Callable[[], Awaitable[Callable[[], None]]]) -> None:
        """Run `wait` beside the session, then, in its turn, what that returns; the session's end answers `request`."""

    def recorded(self, request: Request, record: Mapping[str, Any], then: Callable[[], None]) -> None:
        """Write a record, then go on; if it cannot be written, `request` is answered with that."""

    def resume(self, request: Request, then: Callable[[], None]) -> None:
        """Run `then` in the session's turn."""

    def taint(self, source: str) -> None:
        """Note that an answer brings another principal's words into a conversation."""


@define(eq=False)
class PlanRequests:
    """The plan.* methods of one session."""

    _host: Host
    _session_id: str
    _who: Principal
    _grant: Grant
    _plans: Plans
    _registry: Mapping[str, Tool]
    _halt_flag: HaltFlag
    _account: Account
    _principal: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._principal = self._who.key

    def take_grant(self, grant: Grant) -> None:
        """Let another grant decide from now on."""
        self._grant = grant

    def handle(self, request: Request, params: PlanParams, verdicts: Verdicts) -> None:
        """Execute one request. Raises RpcError, Unchecked."""
        if isinstance(params, PlanPrepare):
            self._prepare(request, params.submit, verdicts)
        elif isinstance(params, PlanExecute):
            self._execute(request, params, verdicts, trio.current_time() + params.wait_ms / 1000)
        elif isinstance(params, PlanList):
            self._list(request, params)
        elif isinstance(params, PlanGet):
            request.result(self._told(self._plans.get(params.plan_id, self._principal, self._grant), "plan.get"))
        else:
            self._decide(request, params)

    # --- prepare

    def _prepare(self, request: Request, submit: TaskSubmit, verdicts: Verdicts) -> None:
        self._plans.require_room(self._principal)
        submit = self._host.resolve_steps(submit)
        steps = self._host.check_plan(submit, verdicts, request)
        risk = max(step.risk for step in steps)
        previews = self._previews(submit)

        def prepared(readings: Mapping[bytes, Mapping[str, Any]]) -> None:
            contents = _document(submit, previews, readings)
            notes = [_notes(*each, self._registry) for each in zip(steps, submit.steps, previews, strict=True)]
            rule = self._grant.approval_for(risk)
            plan = self._plans.make(self._principal, contents, notes, risk, rule, self._account, request.halts)
            plan.tainted_by = self._grant.tainted_by
            plan.resolved = {at: one.resolved for at, one in enumerate(submit.steps) if isinstance(one, ResolvedStep)}
            taint = {} if plan.tainted_by is None else {"tainted_by": plan.tainted_by}
            names = [step.tool.name for step in steps]
            record = self._record("plan.prepare", plan.plan_id, plan.hash, steps=names, **taint)

            def kept() -> None:
                self._plans.keep(plan)
                request.result(plan.to_wire(self._principal, self._grant))

            self._host.recorded(request, record, kept)

        self._read(request, previews, verdicts, prepared)

    def _previews(self, submit: TaskSubmit) -> list[Preview | None]:
        return [self._preview(spec) for spec in submit.steps]

    def _preview(self, spec: StepSpec) -> Preview | None:
        """Return the way to show a step; None if it has none, or if this session may not read it at risk 0."""
        declared = self._registry[spec.tool].preview
        preview = None if declared is None else declared(spec.args)
        if preview is None or preview.tool not in self._grant.allowed:
            return None
        reader = self._registry[preview.tool]
        try:
            # A line may be driven and not read.
            reader.bus(preview.args)
        except RpcError:
            return None
        return None if reader.risk_of(preview.args) else preview

    def _read(
        self,
        request: Request,
        previews: Sequence[Preview | None],
        verdicts: Verdicts,
        then: Callable[[Mapping[bytes, Mapping[str, Any]]], None],
    ) -> None:
        """Read what the previews name, in a task of this session; go on with the shown members, by preview.

        Raises RpcError, Unchecked.
        """
        wanted = {_key(preview): preview for preview in previews if preview is not None}
        if not wanted:
            then({})
            return

        def read(task: TaskActor) -> None:
            results = [(step.result, step.error) for step in task.steps]
            error = next((error for _, error in results if error is not None), None)
            readings = {
                key: {name: loaded.get(name) for name in preview.members}
                for (key, preview), (result, _) in zip(wanted.items(), results, strict=True)
                if result is not None and (loaded := orjson.loads(result)) is not None
            }

            def resumed() -> None:
                if error is not None:
                    raise error
                if len(readings) < len(wanted):
                    raise AuditUnavailable(data={"reason": "what the plan changes could not be read", "effect": "none"})
                then(readings)

            self._host.resume(request, resumed)

        specs = tuple([StepSpec(preview.tool, dict(preview.args)) for preview in wanted.values()])
        submit = TaskSubmit("read what a plan changes", specs)
        self._host.start_task(submit, verdicts, _Unanswered(submit, request.halts), on_end=read)

    # --- execute

    def _execute(self, request: Request, params: PlanExecute, verdicts: Verdicts, until: float) -> None:
        plan = self._usable(params)
        if plan.state == "waiting" and self._claim(plan) is None:
            if trio.current_time() >= until or self._plans.approvals.closed:
                raise self._not_approved(plan)
            self._host.wait_beside(request, partial(self._until_decided, request, params, verdicts, plan, until))
            return
        submit = plan.submit(subscribe=params.subscribe)
        previews = self._previews(submit)

        def checked(readings: Mapping[bytes, Mapping[str, Any]]) -> None:
            # Again: the plan may have been executed, rejected or forgotten during the reads.
            self._usable(params)
            found = _document(submit, previews, readings)["steps"]
            for index, (shown, now) in enumerate(zip(orjson.loads(plan.document)["steps"], found, strict=True)):
                if shown["before"] != orjson.loads(canonical(now["before"])):
                    raise stale(
                        f"step {index} ({shown['tool']}): what it changes is not as it was when the plan was prepared",
                        step_index=index,
                        before=shown["before"],
                        now=now["before"],
                    )
            approvals, question = self._plans.approvals, plan.question
            # In this turn the task starts: approvals that the policy no longer permits do not count for it.
            claim = self._claim(plan)
            if claim is None:
                raise self._not_approved(plan)
            record = self._record("plan.execute", plan.plan_id, plan.hash, approved_by=list(plan.approved_by))
            task = self._host.start_task(submit, verdicts, request, claim=claim, first=record)
            plan.task_id = task.task_id
            if question is not None:
                approvals.withdraw(question)
            approvals.note_change()

        self._read(request, previews, verdicts, checked)

    def _claim(self, plan: PreparedPlan) -> Claim | None:
        """Return the approvals that let a plan run now, or None."""
        steps = enumerate(plan.submit().steps)
        acts = [(at, one.tool, one.args) for at, one in steps if self._registry[one.tool].risk_of(one.args)]
        tainted = plan.tainted_by is not None or self._grant.tainted_by is not None
        claim = self._plans.standing.claim(plan.submit(), plan.principal, plan.question, tainted=tainted)
        if plan.question is None or self._plans.approvals.holds(plan.question):
            return claim
        return None if claim.missing(plan.question.rule, acts) else claim

    def _usable(self, params: PlanExecute) -> PreparedPlan:
        """Return the plan to execute. Raises PlanStale, PermissionDenied."""
        plan = self._plans.find(params.plan_id, self._principal)
        if params.hash is not None and params.hash != plan.hash:
            raise stale("the hash is not that of the plan; execute what was prepared", hash=plan.hash)
        if plan.task_id is not None:
            raise stale("it has been executed; prepare it again", task_id=plan.task_id)
        if plan.halts != self._halt_flag.count:
            raise stale("the daemon has been halted since it was prepared; prepare it again")
        decision = plan.decision
        if decision is not None and not decision.approved:
            reason = f"{decision.by} has rejected the plan" + (f": {prose(decision.reason)}" if decision.reason else "")
            quotes = {"quotes": ["reason"]} if decision.reason else {}
            data = {"reason": reason, "plan_id": plan.plan_id, **quotes}
            raise PermissionDenied(f"Permission denied: {reason}", data=data)
        return plan

    async def _until_decided(
        self, request: Request, params: PlanExecute, verdicts: Verdicts, plan: PreparedPlan, until: float
    ) -> Callable[[], None]:
        assert plan.question is not None
        with trio.move_on_at(until):
            await plan.question.settled.wait()
        return partial(self._execute, request, params, verdicts, until)

    def _not_approved(self, plan: PreparedPlan) -> ApprovalRequired:
        assert plan.rule is not None
        missing = plan.rule.missing(plan.approved_by, plan.principal)
        reason = f"the plan waits for {missing} of {plan.rule.persons} approvals"
        return plan.rule.refusal(reason, f"`hearth approvals approve {plan.plan_id}` gives one", plan_id=plan.plan_id)

    # --- list, approve, reject

    def _list(self, request: Request, params: PlanList) -> None:
        approvals = self._plans.approvals

        def answer() -> None:
            request.result(self._told(self._plans.listed(self._principal, self._grant), "plan.list"))

        async def until_changed() -> Callable[[], None]:
            with trio.move_on_after(params.wait_ms / 1000):
                while approvals.seq <= known:
                    await approvals.changed()
            return answer

        known = approvals.seq if params.after_seq is None else params.after_seq
        if params.wait_ms and approvals.seq <= known:
            self._host.wait_beside(request, until_changed)
        else:
            answer()

    def _decide(self, request: Request, params: PlanApprove | PlanReject) -> None:
        approves = isinstance(params, PlanApprove)
        plan_hash = params.hash if isinstance(params, PlanApprove) else None
        approvals = self._plans.approvals

        def question() -> tuple[PreparedPlan, Question]:
            found = self._plans.question(params.plan_id, plan_hash, self._principal, self._grant, approves=approves)
            approvals.check(found[1], self._principal, approves=approves)
            return found

        def decided() -> None:
            # Looked up again: it may have been decided, or have expired, while the record was written.
            _, waiting = question()
            approvals.decide(waiting, Decision(approves, self._who, params.reason))
            missing = waiting.rule.missing(waiting.approved_by, waiting.principal)
            request.result({"ok": True, "missing": missing} if approves else {"ok": True})

        ready = None if approves else self._plans.ready(params.plan_id, self._principal)
        if ready is not None:

            def withdrawn() -> None:
                self._plans.withdraw(ready)
                request.result({"ok": True})

            self._host.recorded(request, self._record("plan.reject", ready.plan_id, ready.hash), withdrawn)
            return
        given = None if approves else self._plans.approved(params.plan_id, self._principal)
        reason = {} if params.reason is None else {"reason": params.reason}
        if given is not None:
            assert given.question is not None
            self._grant.require(given.question.rule.right)
            # Before the record: what has been taken back must not run while a disk does not answer.
            approvals.end_approval(given.question, self._principal)
            missing = given.question.rule.missing(given.approved_by, given.principal)
            answer = {"ok": True, "taken_back": True, "missing": missing}
            record = self._record("plan.reject", given.plan_id, given.hash, taken_back=True, **reason)
            self._host.recorded(request, record, partial(request.result, answer))
            return
        plan, _ = question()
        event = "plan.approve" if approves else "plan.reject"
        self._host.recorded(request, self._record(event, plan.plan_id, plan.hash, **reason), decided)

    def _told(self, answer: dict[str, Any], method: str) -> dict[str, Any]:
        if self._plans.has_words_of_others(self._principal):
            self._host.taint(method)
        return answer

    # --- records

    def _record(self, event: str, plan_id: str, plan_hash: str, **members: Any) -> dict[str, Any]:
        return {
            "event": event,
            "session_id": self._session_id,
            "principal": self._principal,
            "plan_id": plan_id,
            "hash": plan_hash,
            **members,
        }


def _key(preview: Preview) -> bytes:
    return canonical([preview.tool, preview.args, list(preview.members)])


def _document(
    submit: TaskSubmit, previews: Sequence[Preview | None], readings: Mapping[bytes, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what a plan shows, as JSON."""
    levels = dict(readings)
    steps = []
    for spec, preview in zip(submit.steps, previews, strict=True):
        before = after = None
        if preview is not None:
            key = _key(preview)
            before = levels[key]
            after = levels[key] = before if preview.after is None else preview.after
        shown = {"tool": spec.tool, "args": spec.args, "before": before, "after": after}
        if preview is not None and preview.during is not None:
            shown["during"] = {"for_ms": preview.during_ms, "members": preview.during}
        if isinstance(spec, ResolvedStep):
            shown["asked"] = {"tool": spec.resolved.asked, "args": spec.resolved.asked_args}
        steps.append(shown if spec.expect is None else {**shown, "expect": spec.expect.to_wire()})
    constraints = {name: value for name, value in asdict(submit.constraints).items() if value is not None}
    return {"intent": submit.intent, "constraints": constraints, "steps": steps}


def _notes(step: StepRun, spec: StepSpec, preview: Preview | None, registry: Mapping[str, Tool]) -> StepNotes:
    """Return what the tools of a step say of it, for the lines that show it."""
    reads = {} if preview is None else registry[preview.tool].result_schema
    looks = None if spec.expect is None else registry[spec.expect.tool]
    expect = () if looks is None else (looks.params_schema, looks.result_schema)
    return StepNotes(step.risk, step.tool.supports_rollback, step.tool.params_schema, reads, *expect)


class _Unanswered:
    """The request of a task that the session starts for itself. Implements `messages.Request`."""

    def __init__(self, params: Params, halts: int) -> None:
        self.ignored: tuple[str, ...] = ()
        self.halts = halts
        self.params = params

    @property
    def follower(self) -> EventSink | None:
        """See Request."""
        return None

    def result(self, value: Any) -> None:
        """See Request."""

    def error(self, error: RpcError) -> None:
        """See Request."""
