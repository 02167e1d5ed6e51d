"""Tool calls as HACP tasks: a call is checked, confirmed, submitted, followed, and answered with its result.

A call is a `ConsentRequest` first: the steps that would run, and their risk. A provider that serves a call in another
way (as an MCP task) starts from the same request. Cancelling the MCP request cancels the task; a transaction that has
begun still finishes. The providers own the tools, `hearth.mcp.results` the wording of results.

A call of risk 3 is put to a person before it is submitted. This module owns when a person is asked, what they are
shown, and that one answer lets one call run: this one, with these arguments, once. A call that cannot run anyway is
refused before a person is asked; for a client that cannot ask a person, the call is refused with the reason. The
daemon's policy decides whether the session may make the call at all, and no answer widens it.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
import orjson
import trio
from attrs import asdict, evolve, field, frozen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from hearth.actors.bridges.mcp.provider import ANSWER_TIMEOUT, Provider, Refused
from hearth.audit.record import canonical
from hearth.errors import (
    ApprovalRequired,
    CarrierError,
    HearthError,
    InvalidParams,
    ParseError,
    PermissionDenied,
    PlanStale,
    RpcError,
    SessionInvalid,
)
from hearth.mcp.advice import WORLD
from hearth.mcp.arguments import ArgumentFault, closest, usage
from hearth.mcp.names import LONGEST_SHOWN, META_KEY, META_TASK
from hearth.mcp.results import SuggestedCall, of_error, of_step, of_task, wrong_arguments
from hearth.protocol.jsonrpc import require_depth
from hearth.protocol.submissions import NO_CONSTRAINTS
from hearth.shown import StepNotes, plan_lines, prose
from hearth.tools import RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from hearth.actors.bridges.mcp.provider import Client, McpRequest, Outcome
    from hearth.api import Plan, Session, Step, Task, TaskEvent, TaskResult
    from hearth.mcp.arguments import Arguments

# --- consent requests -------------------------------------------------------------------------------------------------
# A tools/call as the HACP task that it is, before any of it has been submitted.


def arguments_of(params: types.CallToolRequestParams) -> dict[str, Any]:
    """Return the arguments of a call. Raises Refused for values that HACP never accepts, whatever the call's risk.

    The SDK accepts NaN, Infinity, integers of any length, lone surrogates and deeper nesting. Refusing them here
    guarantees that the arguments can be shown, hashed and submitted later.
    """
    arguments = params.arguments or {}
    try:
        require_depth(arguments)
        orjson.dumps(arguments)
        _require_finite(arguments)
    except ParseError as error:
        reason = (error.data or {})["reason"]
    except orjson.JSONEncodeError as error:
        reason = f"{error}; integers have 64 bits at most, and text is Unicode without lone surrogates"
    except ValueError:
        reason = "NaN and Infinity are no JSON; give numbers that a double holds"
    else:
        return arguments
    tool = params.name[:LONGEST_SHOWN].encode("utf-8", "backslashreplace").decode("utf-8")
    raise Refused(wrong_arguments(tool, (ArgumentFault("", reason),), "Send other values."))


def checked(params: types.CallToolRequestParams, arguments: Arguments, name: str) -> dict[str, Any]:
    """Return the arguments of a call of the tool `name` that fit its schema. Raises Refused with the cures."""
    given = arguments_of(params)
    found = arguments.check(given)
    if found.faults:
        corrected = None if found.corrected is None else SuggestedCall(name, found.corrected, found.lacking)
        raise Refused(wrong_arguments(name, found.faults, usage(arguments.schema), corrected=corrected))
    # What was read from a string is new, and checked as the rest was.
    return given if found.arguments is given else arguments_of(params.model_copy(update={"arguments": found.arguments}))


def _require_finite(arguments: dict[str, Any]) -> None:
    """Refuse NaN and infinities, which orjson writes as null. Raises ValueError."""
    left: list[Any] = [arguments]
    while left:
        part = left.pop()
        for value in part.values() if isinstance(part, dict) else part:
            if type(value) is float:
                if not math.isfinite(value):
                    raise ValueError("not finite")
            elif isinstance(value, (dict, list)):
                left.append(value)


_RISK: Callable[[Mapping[str, Any]], int] = itemgetter("risk_level")


@frozen(eq=False)
class ConsentRequest:
    """A tools/call as the HACP task that it is."""

    tool: str
    """The MCP name of the called tool."""
    intent: str
    steps: Sequence[Step]
    entries: Sequence[Mapping[str, Any]]
    """The tool.list entry of each step; `risk_level` is the declared one until the step's own is known."""
    constraints: Mapping[str, Any] = field(factory=dict)
    plan: bool = False
    """True if the result reports every step, and not only a single one."""
    key: str | None = None
    """The idempotency key; not for a dry run."""

    @property
    def risk(self) -> int:
        """The highest risk level of the steps; 0 for a dry run."""
        return 0 if self.constraints.get("dry_run") else max(map(_RISK, self.entries))

    @property
    def least_risk(self) -> int:
        """The lowest value that `risk` can have, whatever the arguments are."""
        least = 0
        for entry in self.entries:
            least = max(least, entry.get("least_risk", entry["risk_level"]))
        return least


# --- consent ----------------------------------------------------------------------------------------------------------

CONSENT_RISK: Final = 3
"""The risk level from which on a person is asked."""
MOST_QUESTION: Final = 6000
"""Characters of a question, at most: a person must see everything that they allow."""

KEY: Final = "consent"
"""The name of the question among a result's input requests."""

FORM: Final[types.ElicitRequestedSchema] = {"type": "object", "properties": {}}
"""A form without fields: the person decides by the action, accept or decline.

With a box to tick, the same decision was asked twice: a person who pressed Accept without ticking it had refused.
"""


async def consent(
    request: McpRequest,
    params: types.CallToolRequestParams,
    job: ConsentRequest,
    dry_run: Callable[[], Awaitable[object]],
    plan: Plan | None = None,
) -> types.InputRequiredResult | str | None:
    """Return None if a person allows the call, a question to put to them, or the reason of a refusal, as a sentence.

    `dry_run` raises for a call that could not run anyway; then no person is asked. With the `plan` that the call was
    prepared as, the person sees what it changes, and the answer is about exactly this plan.
    """
    if not request.can_elicit:
        return (
            "A person has to allow each such call, and this client cannot ask one: it has not declared elicitation. "
            "Do without it, or ask the person who operates the machine to do it"
        )
    answer = (params.input_responses or {}).get(KEY)
    # With the number of halts: an answer to what was asked before a halt lets nothing run after its reset.
    halts = await _halts(request)
    about = (_digest(job) if plan is None else plan.hash.encode()) + b" %d" % halts
    questions = request.client.questions if plan is None else request.client.plan_questions
    if isinstance(answer, types.ElicitResult) and questions.settle(params.request_state, about):
        return _verdict(answer)
    # Anything that is not an answer to this very question is ignored: the person is asked, or asked again.
    await dry_run()
    question = _question(job, await request.client.board(), plan)
    if question is None:
        return "A person has to allow such a call, and it is too long to be shown to one: make it smaller"
    if not request.modern:
        return await _asked(request, question, halts)
    form = types.ElicitRequest(params=types.ElicitRequestFormParams(message=question, requested_schema=FORM))
    return types.InputRequiredResult(input_requests={KEY: form}, request_state=questions.ask(about))


async def _halts(request: McpRequest) -> int:
    session = await request.client.session()
    return (await session.halt_status()).generation


async def _asked(request: McpRequest, question: str, halts: int) -> str | None:
    """Ask on the request's own stream, and wait for the answer."""
    try:
        with trio.fail_after(ANSWER_TIMEOUT):
            answer = await request.ctx.session.elicit_form(question, FORM, related_request_id=request.ctx.request_id)
    except trio.TooSlowError:
        return f"No person has answered within {ANSWER_TIMEOUT:g} s"
    except (MCPError, ValidationError) as error:
        return f"A person has to allow each such call, and the client could not ask one ({str(error).splitlines()[0]})"
    if answer.action == "accept" and await _halts(request) != halts:
        return "The daemon was halted after the person was asked: the answer came too late. Ask again after the reset"
    return _verdict(answer)


def _verdict(answer: types.ElicitResult) -> str | None:
    if answer.action == "cancel":
        return "The person who was asked has not decided: the question was dismissed. Do not ask again unless they wish"
    if answer.action == "accept":
        return None
    return "The person who was asked does not allow it. Do not try again, and not by another way either"


def refused(job: ConsentRequest, reason: str) -> dict[str, Any]:
    """Return the CallToolResult of a call that no person has allowed."""
    text = f"{_what(job)} was not run. {reason.rstrip('.')}. {WORLD['none']}"
    return {"content": [{"type": "text", "text": text}], "isError": True}


# --- what is asked --------------------------------------------------------------------------------------------------


def _what(job: ConsentRequest) -> str:
    dangerous = dict.fromkeys(entry["name"] for entry in job.entries if entry["risk_level"] >= CONSENT_RISK)
    named = ", ".join(dangerous)
    risk = f"risk {job.risk}, {RISK_NAMES[job.risk]}"
    return f"The plan with {named} ({risk})" if job.plan else f"{named} ({risk})"


def _question(job: ConsentRequest, board: str | None, plan: Plan | None = None) -> str | None:
    """Return the question to the person, with all that would run; None if that is too long."""
    if plan is not None:
        shown = plan.shown
    else:
        steps = [step.to_wire() for step in job.steps]
        notes = [StepNotes(one["risk_level"], one["supports_rollback"], one["params_schema"]) for one in job.entries]
        shown = plan_lines({"intent": job.intent, "constraints": job.constraints, "steps": steps}, notes)
    where = f" on board {prose(board[:100])}" if board else ""
    text = "\n".join([f"A program asks to run this{where}:", *shown, _ASKED])
    return text if len(text) <= MOST_QUESTION else None


_ASKED: Final = "Accept lets it run once, with exactly these arguments. Anything else refuses it."


def _digest(job: ConsentRequest) -> bytes:
    steps = [step.to_wire() for step in job.steps]
    content = orjson.dumps([job.tool, job.intent, steps, dict(job.constraints)], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).digest()


# --- progress ---------------------------------------------------------------------------------------------------------
# The progress that a client gets of a live task: the begin of each step, the step's own reports, and signs of life.
#
# The number counts steps. The rest of a step is unknown, so within a step the number creeps towards the next whole one;
# it never stands still, which the protocol forbids.

BEAT: Final = 5.0
"""Seconds without an event after which a task reports that it still runs."""
MOST_DETAILS: Final = 500
"""Characters of a step's own report that are passed on: a person reads the message."""


class ProgressReporter:
    """The progress of one request that asked for it."""

    def __init__(self, request: McpRequest, steps: Sequence[Step], *, every: float = BEAT) -> None:
        self._session = request.ctx.session
        self._steps = steps
        self._every = every
        self._began = trio.current_time()
        self._index = 0
        self._reports = 0
        """The number of messages about the current step."""
        self.due = self._began + every
        """The time of the next sign of life (Trio's clock)."""

    async def take(self, event: TaskEvent) -> None:
        """Report a task event, if it is the start or the progress of a step."""
        if event.step_index is None or event.phase not in ("start", "progress"):
            return
        if event.phase == "start":
            self._index, self._reports = event.step_index, 0
            await self._say("begins")
            return
        await self._say(orjson.dumps(event.data.get("data")).decode()[:MOST_DETAILS])

    async def beat(self) -> None:
        """Send a sign of life."""
        await self._say(f"still running after {trio.current_time() - self._began:.0f} s")

    async def _say(self, what: str) -> None:
        count = len(self._steps)
        reports, self._reports = self._reports, self._reports + 1
        tool = self._steps[self._index].tool
        place = f"step {self._index + 1} of {count} ({tool})" if count > 1 else tool
        await self._session.report_progress(self._index + reports / (reports + 1), count, f"{place}: {what}")
        self.due = trio.current_time() + self._every


# --- calls ------------------------------------------------------------------------------------------------------------

CANCEL_TIMEOUT: Final = 2.0
"""Seconds that a cancelled request waits for the daemon to take note."""


@frozen(eq=False)
class Running:
    """A submitted task, with its client and session."""

    client: Client
    session: Session
    job: ConsentRequest
    task: Task

    async def result(self, progress: ProgressReporter | None = None) -> TaskResult:
        """Follow the task to its end. Raises the RpcError or CarrierError that makes the result unavailable."""
        if progress is not None:
            events = self.task.events()
            while (event := await _next(events, progress)) is not None:
                await progress.take(event)
        return await self.task.wait()

    async def cancel(self) -> None:
        """Have the daemon cancel the task; cancellation of the caller does not stop this."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CANCEL_TIMEOUT):
            try:
                await self.task.cancel()
            except HearthError:
                # The task or its session has ended, or the daemon will see the connection end: nothing is left to stop.
                return


async def _next(events: AsyncIterator[TaskEvent], progress: ProgressReporter) -> TaskEvent | None:
    """Return the next event, None after the last; in between, send signs of life."""
    event: TaskEvent | None = None
    while True:
        with trio.move_on_at(progress.due) as waiting:
            event = await anext(events, None)
        if not waiting.cancelled_caught:
            return event
        await progress.beat()


async def submit(client: Client, job: ConsentRequest) -> Running:
    """Submit the request in the client's session. Raises the RpcError that it was refused with, or CarrierError."""
    try:
        return await _submit(client, job)
    except SessionInvalid:
        # The session had ended before, so nothing was accepted: try once more, in a new one.
        return await _submit(client, job)


SHORT: Final = 1000
"""Characters of a text that is checked and submitted in one turn of the event loop."""


def _is_long(job: ConsentRequest) -> bool:
    """Return True for a call that takes time: a plan, or one with long texts, arrays or objects."""
    for value in () if job.plan else job.steps[0].args.values():
        if isinstance(value, (dict, list)) or (isinstance(value, str) and len(value) > SHORT):
            return True
    return job.plan


async def _submit(client: Client, job: ConsentRequest) -> Running:
    session = await client.session()
    if _is_long(job):
        # Reading and checking it has used one turn of the event loop; submitting takes another.
        await trio.lowlevel.checkpoint()
    else:
        await trio.lowlevel.checkpoint_if_cancelled()
    try:
        key = None if job.constraints.get("dry_run") else job.key
        task = await session.submit(job.intent, job.steps, idempotency_key=key, **job.constraints)
        return Running(client, session, job, task)
    except (SessionInvalid, CarrierError) as error:
        client.forget(session, error)
        raise


async def perform(
    request: McpRequest, params: types.CallToolRequestParams, job: ConsentRequest, *, beat: float = BEAT
) -> Outcome:
    """Serve a tools/call: ask a person if needed, submit, follow, and return the result.

    A call that is refused is a result too, with the reason.
    """
    client = request.client
    try:
        if job.least_risk < CONSENT_RISK <= job.risk:
            job = await _at_effective_risk(client, job)
        if job.risk >= CONSENT_RISK:
            answer = await consent(request, params, job, partial(_dry_run, client, _raised(job)))
            if isinstance(answer, str):
                return with_note(client, refused(job, answer))
            if answer is not None:
                return answer
            job = _raised(job)
        running = await submit(client, job)
    except ApprovalRequired:
        try:
            found = await _by_plan(request, params, job)
        except HearthError as error:
            return with_note(client, of_error(error, plan=job.plan, corrected=_corrected(error, job)))
        if isinstance(found, types.InputRequiredResult):
            return found
        if isinstance(found, dict):
            return with_note(client, found)
        running = found
    except HearthError as error:
        return with_note(client, of_error(error, plan=job.plan, corrected=_corrected(error, job)))
    try:
        result = await running.result(
            ProgressReporter(request, job.steps, every=beat) if request.wants_progress else None
        )
    except (RpcError, CarrierError) as error:
        return with_note(client, _lost(running, error))
    except BaseException:
        # The caller that gave up is the only one that knows the task's id.
        await running.cancel()
        raise
    return with_note(client, of_result(result, plan=job.plan))


# --- calls that need an approval --------------------------------------------------------------------------------------
#
# Such a call is prepared as a plan. The person at the client is asked if the policy lets this principal approve it;
# otherwise the model is told the plan's id. The same call again finds its plan, and executes it once it is approved.


async def _by_plan(
    request: McpRequest, params: types.CallToolRequestParams, job: ConsentRequest
) -> Running | types.InputRequiredResult | dict[str, Any]:
    """Return the running plan of a call that needs approval, a question to put, or the result of one that waits."""
    client = request.client
    session = await client.session()
    plan = await _plan_of(session, job) or await _prepare(session, job)
    if plan.state == "waiting" and plan.may_approve and request.can_elicit:
        answer = await consent(request, params, job, trio.lowlevel.checkpoint, plan)
        if isinstance(answer, str):
            return refused(job, answer)
        if answer is not None:
            return answer
        if await session.approve(plan, reason="a person at the MCP client accepted it"):
            raise _waits(plan)
    elif plan.state == "waiting":
        raise _waits(plan)
    elif plan.state == "rejected":
        why = f": {prose(plan.reason)}" if plan.reason else ""
        return refused(job, f"{plan.rejected_by} has rejected it{why}. Do not try again, and not by another way either")
    try:
        return Running(client, session, job, await session.execute(plan))
    except PlanStale as error:
        # It was approved for a state that is no more: what is there now needs an approval of its own.
        raise _waits(await _prepare(session, job), f"{error.message}; ") from None


async def _plan_of(session: Session, job: ConsentRequest) -> Plan | None:
    """Return the newest plan that was prepared for exactly this call and has not been executed."""
    wanted = canonical([job.intent, [step.to_wire() for step in job.steps], _how(job.constraints)])
    for listed in reversed(await session.plans()):
        if not listed.own or listed.state == "executed" or listed.step_count != len(job.steps):
            continue
        try:
            plan = await session.plan(listed.plan_id)
        except PlanStale:
            continue  # it has expired since
        called = [step.asked or {"tool": step.tool, "args": step.args} for step in plan.steps]
        steps = [{**call, **_expected(step.expect)} for call, step in zip(called, plan.steps, strict=True)]
        if canonical([plan.intent, steps, _how(plan.constraints)]) == wanted:
            return plan
    return None


def _how(constraints: Mapping[str, Any]) -> dict[str, Any]:
    """Return all constraints but the risk cap, which `_prepare` may raise and which changes nothing of what runs."""
    every = {**asdict(NO_CONSTRAINTS), **constraints}
    del every["max_risk_level"]
    return every


def _expected(expect: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if expect is None else {"expect": expect}


async def _prepare(session: Session, job: ConsentRequest) -> Plan:
    try:
        return await session.prepare(job.intent, job.steps, **job.constraints)
    except PermissionDenied:
        if job.risk < CONSENT_RISK:
            raise
        # Refused for its risk only: a person who approves it allows that, up to the policy's ceiling.
        return await session.prepare(job.intent, job.steps, **_raised(job).constraints)


def _waits(plan: Plan, before: str = "") -> ApprovalRequired:
    needs = plan.needs or {}
    missing = needs.get("persons", 1) - len(plan.approved_by)
    other = ", other than the one you act for," if needs.get("other") else ""
    text = (
        f"{before}it is prepared as plan {plan.plan_id} and waits for {missing} person{'s' * (missing > 1)}{other} "
        f"to run: hearth approvals approve {plan.plan_id}"
    )
    data = {"plan_id": plan.plan_id, "hash": plan.hash, "needs": plan.needs, "expires_at": plan.expires_at}
    return ApprovalRequired(f"Approval required: {text}", data={**data, "reason": text, "effect": "none"})


def _corrected(error: HearthError, job: ConsentRequest) -> SuggestedCall | None:
    """Return the call with the name that was meant, for an unknown name of a bus, line, port or sensor.

    The daemon names those that there are; None if none of them is near, and there are several.
    """
    data = (error.data or {}) if isinstance(error, InvalidParams) and not job.plan else {}
    known = data.get("known")
    if not isinstance(known, list) or not known:
        return None
    args = job.steps[0].args
    wrong = next((name for name in args if name in data and data[name] == args[name]), None)
    if wrong is None:
        return None
    near = closest(str(args[wrong]), [name for name in known if isinstance(name, str)])
    right = near if near is not None else known[0] if len(known) == 1 else None
    return None if right is None else SuggestedCall(job.tool, {**args, wrong: right})


def _lost(running: Running, error: RpcError | CarrierError) -> dict[str, Any]:
    """Return the result for an accepted task whose outcome cannot be learned: its session or the daemon has gone."""
    if isinstance(error, (SessionInvalid, CarrierError)):
        running.client.forget(running.session, error)
    task_id = running.task.task_id
    text = (
        f"Task {task_id} was accepted, and then nothing more could be learned of it: {str(error).rstrip('.')}. "
        f"{WORLD['unknown']} What the audit log says of it, a person can read with `hearth audit tail`."
    )
    return {"content": [{"type": "text", "text": text}], "isError": True, "_meta": {META_TASK: {"task_id": task_id}}}


async def _dry_run(client: Client, job: ConsentRequest) -> Running:
    """Have the daemon check and authorise a request without running it.

    Raises the RpcError it would be refused with.
    """
    return await submit(client, evolve(job, constraints={**job.constraints, "dry_run": True}))


async def _at_effective_risk(client: Client, job: ConsentRequest) -> ConsentRequest:
    """Return the request with the risks of its steps with their arguments, which a dry run reports.

    A request that needs no person is capped at that risk. Raises the RpcError that it would be refused with.
    """
    try:
        measured = await _measured(client, job, job)
    except PermissionDenied:
        # Perhaps refused for its risk only, which a person can allow up to the policy's ceiling. A request that needs
        # no person is not raised.
        measured = await _measured(client, job, _raised(job))
        if measured.risk < CONSENT_RISK:
            raise
        return measured
    if measured.risk >= CONSENT_RISK:
        return measured
    return evolve(measured, constraints={**job.constraints, "max_risk_level": measured.risk})


async def _measured(client: Client, job: ConsentRequest, dry_run: ConsentRequest) -> ConsentRequest:
    steps = (await (await _dry_run(client, dry_run)).result()).steps
    if len(steps) != len(job.steps):
        return job
    entries = [
        # The declared level holds if the daemon reports none.
        {**entry, "risk_level": (step.result or {}).get("risk_level", entry["risk_level"])}
        for entry, step in zip(job.entries, steps, strict=True)
    ]
    return evolve(job, entries=entries)


def _raised(job: ConsentRequest) -> ConsentRequest:
    # The policy still limits how far a task may raise its cap.
    return evolve(job, constraints={**job.constraints, "max_risk_level": CONSENT_RISK})


def of_result(result: TaskResult, *, plan: bool) -> dict[str, Any]:
    """Return a finished task as a CallToolResult."""
    if not result.steps:
        return _known_by_its_key(result)
    if plan:
        return of_task(result)
    return of_step(result.steps[0], task_id=result.task_id)


def _known_by_its_key(result: TaskResult) -> dict[str, Any]:
    """Return the result for a call that was made before, in a session or a run of the daemon that has ended."""
    effect = "done" if result.status == "SUCCESS" else "unknown"
    why = f": {result.error}" if result.error else ""
    text = (
        f"A call with this {META_KEY} was made before, as task {result.task_id}, and ended {result.status}{why}. Its "
        f"result is not kept any more. {WORLD[effect]}"
    )
    meta = {META_TASK: {"task_id": result.task_id, "status": result.status}}
    return {"content": [{"type": "text", "text": text}], "isError": True, "_meta": meta}


def with_note(client: Client, outcome: dict[str, Any]) -> dict[str, Any]:
    """Return a CallToolResult with the client's pending note."""
    note = client.take_note()
    beside = [] if note is None else [{"type": "text", "text": note}]
    return {**outcome, "content": [*outcome["content"], *beside], "resultType": "complete"}


class TaskProvider(Provider):
    """A provider whose tools are HACP tasks. `beat`: seconds between two signs of life of a task."""

    def __init__(self, *, beat: float = BEAT) -> None:
        self._beat = beat

    @abstractmethod
    async def job(self, request: McpRequest, params: types.CallToolRequestParams) -> ConsentRequest | None:
        """Return the request behind a call of one of its tools; None for another provider's tool. Raises Refused."""

    async def call(self, request: McpRequest, params: types.CallToolRequestParams) -> Outcome | None:
        """See Provider."""
        job = await self.job(request, params)
        return None if job is None else await perform(request, params, job, beat=self._beat)
