"""Admission of a task.submit: its checks, the accepted task, and the record of a rejection.

The checks run in the order that the draft promises (draft §3.4, §12). The shape has been read before. Then, each over
all steps, and the reads that look for their effects (`expect`), before the next one: the tool exists, it is allowed,
its args fit its schema, its effective risk is within the cap, its paths are within the guard, the limits of the board
profile could permit what it drives, the rates of the session and of its principal permit it. The checks touch no
hardware, so a rejected submission has had no effect, and change nothing but the rate buckets. They compute no hash of
args, which only an accepted submission needs. The session decides when an accepted task runs and who follows it.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from attrs import Factory, define, evolve, field, frozen

from hearth._util.ids import new_id
from hearth._util.text import suggest, suggestions
from hearth.actors.bus.queue import Requester
from hearth.actors.events import to_keep
from hearth.actors.loop import LoopSubmit
from hearth.actors.step import Expectation, StepRun
from hearth.actors.task import TaskActor, cost_of
from hearth.errors import AuditUnavailable, InvalidParams, PermissionDenied, RpcError, ToolNotFound
from hearth.policy.memory import FEED_BYTES
from hearth.policy.rules import TAINTED_FROM_RISK, Rate, too_often
from hearth.policy.uses import check_use
from hearth.protocol.known import MOST_NAMED, refusal
from hearth.protocol.submissions import StepSpec
from hearth.schema import Validator
from hearth.tools import SIGNALS, Use, no_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from hearth.actors.bus.actor import Bus
    from hearth.actors.bus.interlocks import Interlock, Interlocks
    from hearth.actors.messages import Request, Verdicts
    from hearth.actors.step import TaskServices
    from hearth.actors.task_registry import TaskRegistry
    from hearth.api import Expect
    from hearth.drivers.named import BoardSignals
    from hearth.policy.memory import Account
    from hearth.policy.rules import ApprovalRule, Grant, RateLimits
    from hearth.protocol.known import KnownMembers, UnknownMember
    from hearth.protocol.submissions import TaskSubmit
    from hearth.tools import Drive, GuardedPaths, PathUse, Resolved, Tool, ToolRegistry

RpcErrorT = TypeVar("RpcErrorT", bound=RpcError)
Act: TypeAlias = "tuple[int, str, Mapping[str, Any]]"
"""A step that does more than read: its index, tool and args."""
Missing: TypeAlias = "Callable[[ApprovalRule, Sequence[Act]], int]"
"""Returns how many approvals of these steps are missing by a rule."""


def all_missing(rule: ApprovalRule, _acts: Sequence[Act]) -> int:
    """Return how many approvals are missing of steps that have none."""
    return rule.persons


# --- checks of a submission -------------------------------------------------------------------------------------------


@frozen(eq=False)
class ResolvedStep(StepSpec):
    """A step that came as a call of another tool, which means it."""

    resolved: Resolved = field(kw_only=True)


@frozen(eq=False)
class Checks:
    """The tools, schemas, buses, paths and bounds that submissions are checked against, in all sessions."""

    registry: ToolRegistry
    validators: Mapping[str, Validator]
    buses: Mapping[str, Bus]
    paths: GuardedPaths
    max_steps: int
    known: Mapping[str, KnownMembers]
    """The args that a tool's schema names, for tools whose schema allows no others."""
    interlocks: Interlocks | None = None
    """The interlocks of the board, if it has any."""
    signals: BoardSignals | None = None
    """What the board's profile names; None: nothing."""
    resolved: frozenset[str] = field(
        init=False,
        default=Factory(lambda checks: frozenset(checks.registry.resolved), takes_self=True),
    )
    """The tools whose calls mean steps of other tools."""

    def meaning(self, call: StepSpec | Expect) -> Resolved | None:
        """Return the step that a call means; None for a call that is a step itself, or whose args do not fit.

        Raises InvalidParams.
        """
        if call.tool not in self.resolved or not self.validators[call.tool].accepts(call.args):
            return None
        resolve = self.registry[call.tool].resolve
        assert resolve is not None
        return resolve(call.args)


NO_HARDWARE: Final = frozenset(("board", "exec", "files", "processes", "system"))
"""The buses that are no line, I2C device or port: a scope of hardware does not concern them."""


class Unchecked(Exception):
    """Some paths must be checked in a thread, or interlocks be read; the submission is then checked with the verdicts.

    `verdicts` are those that it had already.
    """

    def __init__(self, verdicts: Verdicts, uses: Sequence[PathUse] = (), locks: Sequence[Interlock] = ()) -> None:
        super().__init__(uses, locks)
        self.verdicts = verdicts
        self.uses = uses
        self.locks = locks


def check(
    submit: TaskSubmit,
    checks: Checks,
    grant: Grant,
    rates: RateLimits,
    now: float,
    verdicts: Verdicts,
    missing: Missing = all_missing,
) -> tuple[list[StepRun], dict[str, int]]:
    """Return the steps of an acceptable submission, ready to run, and the tokens it took from the rate limits, by tool.

    Raises InvalidParams, ToolNotFound, PermissionDenied, ApprovalRequired, LimitViolated, InterlockOpen or RateLimited;
    `data` names the step and the reason. Raises Unchecked for paths that are neither in `verdicts` nor can be checked
    without waiting for a disk, and for interlocks that are not in `verdicts`.
    """
    specs = submit.steps
    if len(specs) > checks.max_steps:
        reason = f"a task has at most {checks.max_steps} steps, this one has {len(specs)}"
        raise InvalidParams(f"Invalid params: {reason}", data={"path": "/task/steps", "reason": reason})
    tools = checks.registry.by_name
    calls = _calls(specs, checks)
    for call in calls:
        if call.tool not in tools:
            raise _not_found(call, grant)
    for call in calls:
        if call.tool not in grant.allowed:
            raise _denied(call, f"not in the allowlist of policy {grant.policy!r}")
    runs, has_paths = [], False
    for call in calls:
        run = _resolve(call, tools[call.tool], checks, strict=submit.strict)
        has_paths = has_paths or run.tool.paths is not no_paths
        runs.append(run)
    _check_risks(submit, calls, runs, grant, missing, checks.signals)
    steps = runs[: len(specs)]
    for call, run in zip(calls[len(specs) :], runs[len(specs) :], strict=True):
        steps[call.index].expectation = _expectation(call, run)
    if has_paths:
        _check_paths(calls, runs, checks.paths, verdicts)
    _check_drives(calls[: len(specs)], steps, checks, verdicts)
    return steps, _take_tokens(runs, rates, now)


def _check_drives(calls: Sequence[RequestedCall], steps: Sequence[StepRun], checks: Checks, verdicts: Verdicts) -> None:
    """Refuse steps that limits or interlocks refuse. Raises LimitViolated, Halted, InterlockOpen or Unchecked."""
    drives: list[Sequence[Drive]] = []
    for call, step in zip(calls, steps, strict=True):
        foresees = step.risk and step.bus.guard.foresees
        drives.append(step.tool.drives(call.args) if foresees or (step.risk and checks.interlocks is not None) else ())
        if foresees:
            _foresee(call, drives[-1], checks.buses)
    if checks.interlocks is not None and any(drives):
        _check_interlocks(calls, steps, drives, checks.interlocks, verdicts)


def _calls(specs: Sequence[StepSpec], checks: Checks) -> list[RequestedCall]:
    """Return the calls of all steps, and then the reads that look for their effects. Raises InvalidParams."""
    # HOT: plain loops, because a comprehension takes another frame, and most submissions have one step.
    calls = []
    for index, spec in enumerate(specs):
        calls.append(RequestedCall(index, spec))
    for index, spec in enumerate(specs):
        if spec.expect is not None:
            calls.append(RequestedCall(index, spec.expect, "/expect"))
            if spec.expect.tool in checks.resolved:
                _take_meaning(calls[-1], checks)
    return calls


def _take_meaning(call: RequestedCall, checks: Checks) -> None:
    """Let a call that means a step of another tool be that step. Raises InvalidParams."""
    try:
        call.resolved = checks.meaning(cast("Expect", call.spec))
    except InvalidParams as error:
        raise _named(error, call) from None
    if call.resolved is not None:
        call.tool, call.args = call.resolved.tool, call.resolved.args


class RequestedCall:
    """The call of a tool that a submission asks for: a step, or the read that looks for a step's effect.

    `at` is the JSON pointer within the step: "" for the step itself.
    """

    __slots__ = ("args", "at", "index", "resolved", "spec", "tool")

    def __init__(self, index: int, spec: StepSpec | Expect, at: str = "") -> None:
        self.index = index
        self.spec = spec
        self.at = at
        self.tool = spec.tool
        self.args = spec.args
        self.resolved = spec.resolved if type(spec) is ResolvedStep else None

    @property
    def inside(self) -> str:
        """The way from `at` to its args: the faults of a step itself have pointers into its args."""
        return self.at and "/args"


def _expectation(call: RequestedCall, run: StepRun) -> Expectation:
    """Return what is expected of a step. Raises InvalidParams for conditions that no result can fulfil."""
    expect, tool = cast("Expect", call.spec), run.tool
    if run.risk:
        cure = ", with other args 0: see its description" if tool.least_risk == 0 else ""
        raise _invalid(call, "/tool", f"expected a read of risk 0, and this one has {run.risk}{cure}")
    members: Mapping[str, Any] = tool.result_schema.get("properties", {})
    for name, condition in expect.wanted().items():
        for member in condition:
            if member not in members:
                shown = member[:64]
                raise _invalid(call, f"/{name}/{shown}", f"no member of its result; {_known(shown, members)}")
            types = members[member].get("type", "number")
            if name != "equals" and {"number", "integer"}.isdisjoint([types] if isinstance(types, str) else types):
                raise _invalid(call, f"/{name}/{member}", "no number; give its value in equals")
    if expect.equals:
        beside = {name: tool.result_schema[name] for name in ("$defs", "definitions") if name in tool.result_schema}
        possible = Validator({**beside, "properties": {member: members[member] for member in expect.equals}})
        if not possible.accepts(expect.equals):
            pointer, reason = possible.explain(expect.equals)
            raise _invalid(call, f"/equals{pointer}", f"no value that its result can have: {reason}")
    return Expectation(expect, run)


def _known(name: str, members: Mapping[str, Any]) -> str:
    return suggest(name, members) or f"it has {', '.join(members) or 'none that its schema names'}"


def _invalid(call: RequestedCall, pointer: str, reason: str) -> InvalidParams:
    path = call.at + pointer
    return InvalidParams(
        f"Invalid params: step {call.index} ({call.tool}): {path or 'args'}: {reason}",
        data={"step_index": call.index, "tool": call.tool, "path": path, "reason": reason},
    )


def _foresee(call: RequestedCall, drives: Sequence[Drive], buses: Mapping[str, Bus]) -> None:
    """Refuse a step that drives what no limit of the board profile would let pass. Raises LimitViolated or Halted."""
    for drive in drives:
        try:
            buses[drive.bus].guard.foresee(drive)
        except RpcError as error:
            raise _at_step(error, call) from None


LONGEST_INSTANT_MS: Final = 5_000
"""A step whose tool may take longer may wait for the very condition that the next step needs."""


def _check_interlocks(
    calls: Sequence[RequestedCall],
    steps: Sequence[StepRun],
    driven: Sequence[Sequence[Drive]],
    interlocks: Interlocks,
    verdicts: Verdicts,
) -> None:
    """Refuse a step whose output may not be driven now. Raises InterlockOpen or Unchecked.

    Nothing is said about a step after one that may wait, or may change what the interlock requires: the bus asks then.
    A task of one step, before which nothing moves, is not held up for new readings while the last ones are good.
    """
    unread: list[Interlock] = []
    now = interlocks.now()
    changed: set[tuple[str, Hashable]] = set()
    for call, step, drives in zip(calls, steps, driven, strict=True):
        for lock in interlocks.asked(drives):
            if lock.depends_on(changed):
                continue
            if lock not in verdicts:
                if len(steps) > 1 or not lock.met(now):
                    unread.append(lock)
            elif (refusal := verdicts[lock]) is not None:
                raise _at_step(refusal, call)
        for drive in drives:
            changed.add((drive.bus, drive.output))
        if (step.risk and not drives) or step.expectation is not None or step.tool.timeout_ms > LONGEST_INSTANT_MS:
            break
    if unread:
        raise Unchecked(verdicts, locks=unread)


def _check_scope(
    calls: Sequence[RequestedCall], runs: Sequence[StepRun], grant: Grant, signals: BoardSignals | None
) -> None:
    """Raise PermissionDenied for a call that uses hardware outside of the policy entry's scope."""
    for call, run in zip(calls, runs, strict=True):
        run.scope = grant.scope
        if SIGNALS in grant.scope.patterns and run.bus.bus_id not in NO_HARDWARE:
            for use in (Use(SIGNALS, ()),) if signals is None else signals.uses(run.tool, call.args):
                if not grant.scope.permits(use):
                    raise _denied(call, beyond_signals(use, run.tool.name, grant.policy))
        if run.tool.uses is not None:
            for use in run.tool.uses(call.args):
                if not grant.scope.permits(use):
                    raise _denied(call, f"{use.names[0]} is not in `{use.kind}` of policy {grant.policy!r}")
        elif run.bus.bus_id not in NO_HARDWARE:
            scoped = f"policy {grant.policy!r} permits only some hardware"
            raise _denied(call, f"{scoped}, and {call.tool} does not say what it uses on {run.bus.bus_id}")


def beyond_signals(use: Use, tool: str, policy: str) -> str:
    """Return why an entry with `signals` refuses a step that would reach this, with the cure."""
    if use.names:
        return f"{use.names[0]} is not in `{SIGNALS}` of policy {policy!r}"
    cure = "signal.list has the signals that it permits, for signal.read and signal.set"
    return f"policy {policy!r} permits only some signals, and {tool} with these args may reach others; {cure}"


def _check_risks(
    submit: TaskSubmit,
    calls: Sequence[RequestedCall],
    runs: Sequence[StepRun],
    grant: Grant,
    missing: Missing,
    signals: BoardSignals | None,
) -> None:
    """Raise PermissionDenied for a step above the risk cap or outside of the scope, ApprovalRequired without it."""
    level = submit.constraints.max_risk_level
    cap = grant.max_risk if level is None else grant.risk_cap(level)
    for call, run in zip(calls, runs, strict=True):
        if run.risk > cap:
            raise _too_risky(call, run, cap, grant)
        if run.tool.resolves_to:
            run.allowed = grant.allowed
        if run.asked is not None and (rate := grant.rates.get(run.tool.name)) is not None:
            run.every_s = rate.period_s / rate.count
    if grant.scope.bounded:
        _check_scope(calls, runs, grant, signals)
    if not grant.approval:
        return
    call, run = max(zip(calls, runs, strict=True), key=lambda each: each[1].risk)
    rule = grant.approval_for(run.risk)
    acts = [(each.index, each.tool, each.args) for each, run in zip(calls, runs, strict=True) if run.risk]
    if rule is not None and missing(rule, acts):
        asked = f"policy {grant.policy!r} asks for it from risk {rule.from_risk} on"
        if grant.tainted_by is not None and rule.from_risk == TAINTED_FROM_RISK:
            asked = f"text from {grant.tainted_by} has entered the conversation, so a person decides from risk 2 on"
        reason = f"{asked}, and step {call.index} ({call.tool}) has risk {run.risk}"
        cure = "prepare it as a plan (plan.prepare, `hearth plan prepare`), have it approved, then execute it"
        raise _at_step(rule.refusal(reason, cure), call)


def _check_paths(
    calls: Sequence[RequestedCall], runs: Sequence[StepRun], paths: GuardedPaths, verdicts: Verdicts
) -> None:
    """Check paths with the guard, without waiting for a disk. Raises PermissionDenied or Unchecked."""
    uses = []
    for call, run in zip(calls, runs, strict=True):
        uses.append(() if run.tool.paths is no_paths else run.tool.paths(call.args))
    for call, use in ((call, use) for call, each in zip(calls, uses, strict=True) for use in each):
        try:
            if use in verdicts:
                denied = verdicts[use]
                if denied is not None:
                    raise denied
            elif not paths.check_nowait(use.path, use.access):
                raise Unchecked(verdicts, [use for each in uses for use in each])
        except PermissionDenied as error:
            raise _at_step(error, call) from None


def check_paths_blocking(uses: Sequence[PathUse], paths: GuardedPaths) -> Verdicts:
    """Return the guard's verdict on each path; blocks for as long as a disk takes."""
    verdicts: dict[PathUse | Interlock, RpcError | None] = {}
    for use in uses:
        try:
            paths.check(use.path, use.access)
        except PermissionDenied as error:
            verdicts[use] = error
        else:
            verdicts[use] = None
    return verdicts


def ignored_args(submit: TaskSubmit, checks: Checks, most: int) -> tuple[str, ...]:
    """Return JSON pointers to the first `most` members of args that the tools' schemas do not name."""
    unknown_members = chain.from_iterable(
        _unknown_members(spec, checks, f"/task/steps/{index}/args") for index, spec in enumerate(submit.steps)
    )
    return tuple([one.pointer for one in islice(unknown_members, most)])


def _has_unknown_args(submit: TaskSubmit, checks: Checks) -> bool:
    """Return True if `ignored_args` has something to name. HOT: once per submit."""
    for spec in submit.steps:
        tool, args = (spec.tool, spec.args) if type(spec) is StepSpec else _as_asked(spec)
        known = checks.known.get(tool)
        if known is not None and not known.knows(args):
            return True
    return False


def _unknown_members(spec: StepSpec | Expect, checks: Checks, at: str) -> list[UnknownMember]:
    tool, args = _as_asked(spec)
    known = checks.known.get(tool)
    return [] if known is None else known.unknown_members(args, at)


def _as_asked(spec: StepSpec | Expect) -> tuple[str, Mapping[str, Any]]:
    """Return the call as it came."""
    return (spec.resolved.asked, spec.resolved.asked_args) if type(spec) is ResolvedStep else (spec.tool, spec.args)


def _resolve(call: RequestedCall, tool: Tool, checks: Checks, *, strict: bool) -> StepRun:
    """Check args against the tool's schema, and find the bus they name."""
    # A misspelt arg of a read would look for the effect at another place, so there none is ignored.
    if (strict or call.at) and (unknown_members := _unknown_members(call.spec, checks, call.at + call.inside)):
        # Before the schema check, which would only report that the misspelt member is missing.
        raise _at_step(refusal(unknown_members, f"step {call.index} ({call.tool}): "), call)
    validator = checks.validators[call.tool]
    if not validator.accepts(call.args):
        pointer, reason = validator.explain(call.args)
        raise _invalid(call, call.inside + pointer, reason)
    try:
        bus_id = tool.bus(call.args)
    except RpcError as error:
        raise _named(error, call) from None
    run = StepRun(tool, to_keep(call.args), checks.buses[bus_id], tool.risk_of(call.args))
    if call.resolved is not None:
        declared = checks.registry[call.resolved.asked].risk_level
        if run.risk > declared:
            # The MCP bridge asks a person by the risk of the tool that was asked for.
            asked = f"{call.resolved.asked} has risk {declared} at most, and means this step of risk {run.risk} here"
            raise _denied(call, f"{asked}; call {call.tool} itself")
        run.tool, run.asked = call.resolved.adapt(tool), call.resolved.asked
    return run


def _named(error: RpcError, call: RequestedCall) -> RpcError:
    """Return the refusal of a call, with its step; one of an arg as it would come from the schema."""
    if isinstance(error, InvalidParams) and "path" in (error.data or {}):
        data = {**(error.data or {}), "path": f"{call.at}{call.inside}{(error.data or {})['path']}"}
        error = InvalidParams(f"Invalid params: step {call.index} ({call.tool}): {error.message}", data=data)
    return _at_step(error, call)


def _take_tokens(steps: list[StepRun], rates: RateLimits, now: float) -> dict[str, int]:
    counts: dict[str, int] = {}
    for step in steps:
        name = step.tool.name
        counts[name] = counts.get(name, 0) + 1
    refused = rates.check(counts, now)
    if refused is not None:
        raise rates.refusal(*refused)
    return counts


def _not_found(call: RequestedCall, grant: Grant) -> ToolNotFound:
    """Return the refusal of an unknown tool; it suggests only tools that the session may use."""
    shown = call.tool[:100]
    cure, near = suggestions(call.tool, sorted(grant.allowed))
    error = ToolNotFound(f"Tool not found: {shown}{cure}", data={"step_index": call.index, "tool": shown, **near})
    return _at_step(error, call)


def _denied(call: RequestedCall, reason: str) -> PermissionDenied:
    denied = PermissionDenied(f"Permission denied: step {call.index} ({call.tool}): {reason}", data={"reason": reason})
    return _at_step(denied, call)


def _too_risky(call: RequestedCall, run: StepRun, cap: int, grant: Grant) -> PermissionDenied:
    """Return the refusal with the draft's reason, and a cure if other args of this tool would be within the cap."""
    denied = _denied(call, f"max_risk_level={cap} < tool={run.risk}")
    least = run.tool.least_risk
    if least <= cap:
        denied.message += f"; {call.tool} has risk {least} with other args: see its description"
        denied.data = {**(denied.data or {}), "least_risk": least}
    if cap == 0 and grant.conversation:
        denied.message += "; a conversation only reads: prepare a plan (plan.prepare)"
    return denied


def _at_step(error: RpcErrorT, call: RequestedCall) -> RpcErrorT:
    """Return the error with the step in its data, and with the place in the step if that is not the step itself."""
    place = {"path": f"{call.at}/tool"} if call.at else {}
    error.data = {"step_index": call.index, "tool": call.tool, **place, **(error.data or {})}
    return error


# --- admission --------------------------------------------------------------------------------------------------------

DRY_RUN_RATE: Final = Rate(1000, 10)
"""The rate of dry runs (`dry_run`) for one principal."""


@define(eq=False)
class Admission:
    """The admission of one session's submissions: accepts them as tasks, or rejects and records them."""

    _session_id: str
    _principal: str
    _grant: Grant
    _rates: RateLimits
    _task_registry: TaskRegistry
    _services: TaskServices
    _checks: Checks
    _account: Account
    _clock: Callable[[], float]
    """Trio's."""
    deadman: bool = field(kw_only=True)

    def take_grant(self, grant: Grant, rates: RateLimits) -> None:
        """Let another grant decide from now on."""
        self._grant, self._rates = grant, rates

    def resolve(self, submit: TaskSubmit) -> TaskSubmit:
        """Return a submission with the steps that its calls mean (`hearth.tools.Resolved`).

        From here on everything is about those. Raises InvalidParams, after recording it.
        """
        # HOT: once per submit, of which most have one step.
        for spec in submit.steps:
            if spec.tool in self._checks.resolved:
                break
        else:
            return submit
        steps: list[StepSpec] = []
        for index, spec in enumerate(submit.steps):
            try:
                found = self._checks.meaning(spec)
            except InvalidParams as error:
                refused = _named(error, RequestedCall(index, spec))
                self._record_rejection([step.tool for step in submit.steps[:16]], refused)
                raise refused from None
            steps.append(spec if found is None else ResolvedStep(found.tool, found.args, spec.expect, resolved=found))
        return evolve(submit, steps=tuple(steps))

    def accept(
        self,
        submit: TaskSubmit,
        verdicts: Verdicts,
        request: Request,
        now: float,
        on_end: Callable[[TaskActor], None],
        followers: int,
        missing: Missing = all_missing,
    ) -> TaskActor:
        """Return a task that is registered and ready to run; it answers `request` when its submission is on record.

        `followers` is the number of followers of the session, each of which will follow the task. `now` is the present
        Trio time, not the time of the submission, whose paths may have taken long to check. Raises
        RpcError for a rejected submission, after recording it, and Unchecked.
        """
        try:
            steps, tokens = check(submit, self._checks, self._grant, self._rates, now, verdicts, missing)
            if isinstance(submit, LoopSubmit):
                steps = [submit.step(steps)]
            requester = Requester(self._session_id, new_id(), self._principal, self.deadman, request.halts)
            try:
                cost = self._require_room(submit, steps, requester, followers)
                if submit.constraints.dry_run:
                    self._require_dry_run_rate(now)
            except RpcError:
                self._rates.put_back(tokens, now)
                raise
        except RpcError as error:
            self._record_rejection((step.tool for step in submit.steps[:16]), error)
            raise

        def acknowledge(error: RpcError | None) -> None:
            if error is not None:
                request.error(error)
                self._task_registry.settle_key(requester.task_id, error)
                return
            follower = request.follower if submit.subscribe else None
            accepted = {"task_id": requester.task_id, "status": "QUEUED"}
            request.result(accepted if follower is None else {**accepted, "subscribed": True})
            if follower is not None:
                follower.follow(task.log, None)
            if kept is not None:
                self._task_registry.settle_key(requester.task_id, None)

        kept = None if submit.idempotency_key is None else self._task_registry.enter_key(requester.task_id, submit)
        task = TaskActor(
            requester,
            submit.intent,
            steps,
            submit.constraints,
            self._services,
            cost,
            account=self._account,
            clock=self._clock,
            now=now,
            acknowledge=acknowledge,
            on_end=on_end,
            kept=kept,
        )
        if _has_unknown_args(submit, self._checks):
            self.name_ignored(request, submit)
        self._task_registry.enter(task)
        if submit.constraints.dry_run:
            # A dry run passes the same checks as the task itself, but does nothing that a tool's rate bounds.
            self._rates.put_back(tokens, now)
        return task

    def prepare(self, submit: TaskSubmit, verdicts: Verdicts, request: Request, now: float) -> list[StepRun]:
        """Return the steps of a plan that passes every check but that for its approval.

        It takes no tokens of a tool, and counts as a dry run. Raises RpcError, after recording it, and Unchecked.
        """
        try:
            steps, tokens = check(submit, self._checks, self._grant, self._rates, now, verdicts, lambda _rule, _acts: 0)
            self._rates.put_back(tokens, now)
            self._require_not_halted(submit, steps, request.halts)
            self._require_dry_run_rate(now)
        except RpcError as error:
            self._record_rejection((step.tool for step in submit.steps[:16]), error)
            raise
        return steps

    def name_ignored(self, request: Request, submit: TaskSubmit) -> None:
        """Add to `request.ignored`, which the answer names, the args that the submission's tools do not know."""
        request.ignored += ignored_args(submit, self._checks, MOST_NAMED - len(request.ignored))

    def permit(self, name: str, now: float) -> dict[str, Any]:
        """Return the record of one use of a tool that the MCP bridge serves itself; write it before the use.

        Raises RpcError for a use that is rejected, after recording it.
        """
        try:
            tool = check_use(name, self._grant, self._rates, now)
            if self._services.halt_flag.halted and tool.risk_level:
                self._rates.put_back({name: 1}, now)
                raise self._services.halt_flag.error()
            failure = self._services.journal.failure
            if failure is not None and tool.risk_level:
                self._rates.put_back({name: 1}, now)
                raise AuditUnavailable(data={"reason": failure, "effect": "none"})
        except RpcError as error:
            self._record_rejection([name], error)
            raise
        return {"event": "mcp.use", "session_id": self._session_id, "principal": self._principal, "tool": name}

    def _require_room(
        self, submit: TaskSubmit, steps: Sequence[StepRun], requester: Requester, followers: int
    ) -> tuple[int, int]:
        """Return the memory that a valid submission takes, see `cost_of`.

        Raises RpcError for one that cannot be served now: no room, no audit log, a busy bus.
        """
        cost = cost_of(submit.intent, steps)
        self._task_registry.check_room(submit, cost[0] + cost[1] + FEED_BYTES * followers)
        self._require_not_halted(submit, steps, requester.halts)
        failure = self._services.journal.failure
        if failure is not None and any(step.guarded for step in steps):
            raise AuditUnavailable(data={"reason": failure, "effect": "none"})
        if submit.constraints.on_busy == "fail" and not submit.constraints.dry_run:
            for step in steps:
                busy = step.bus.known_busy(requester)
                if busy is not None:
                    raise busy
        return cost

    def _require_not_halted(self, submit: TaskSubmit, steps: Sequence[StepRun], halts: int) -> None:
        if self._services.halt_flag.stops(halts):
            for index, step in enumerate(steps):
                if step.risk:
                    raise _at_step(self._services.halt_flag.error(), RequestedCall(index, submit.steps[index]))

    def _require_dry_run_rate(self, now: float) -> None:
        """Raise RateLimited for a dry run that comes too soon: it takes no tokens of a tool, but two audit records."""
        wait = self._services.dry_runs.take(self._principal, now)
        if wait:
            raise too_often("dry runs", DRY_RUN_RATE, wait)

    def _record_rejection(self, tools: Iterable[str], error: RpcError) -> None:
        """Record a rejection, or count it. No task waits for the record, because nothing was done."""
        if not self._services.refusals.admit("task.reject", self._principal, error.code):
            return
        record: dict[str, Any] = {
            "event": "task.reject",
            "session_id": self._session_id,
            "principal": self._principal,
            "tools": [tool[:100] for tool in tools],
            "error_code": error.code,
            "reason": error.message[:256],
        }
        self._services.journal.post(record, minor=True)
