"""A task on behalf of one MCP request: asked about, submitted, followed, cancelled with it, and told as its result.

A call is a `Job` first, which says what would run and how risky it is; who serves a call otherwise than here (as an MCP
task, say) starts from the same job. Cancelling the request cancels the task, and a transaction that has begun finishes
all the same. Which tools there are is the providers' business, how a result reads `hearth.mcp.results`'s.

The person's word on what is dangerous: a call of risk 3 is put to a person before it is submitted.

Owns when a person is asked, what they are shown, and that one answer lets one call run: this one, with these
arguments, once. What cannot run anyway is refused before anybody is asked, and a client that cannot ask is refused with
the reason. Whether the session may do it at all is the daemon's policy, which no answer widens.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from abc import abstractmethod
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
import orjson
import trio
from attrs import evolve, field, frozen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from hearth.actors.bridges.mcp.provider import ANSWER_PATIENCE, Provider
from hearth.errors import CarrierError, HearthError, ParseError, PermissionDenied, RpcError, SessionInvalid
from hearth.mcp.names import META_TASK
from hearth.mcp.results import WORLD, ProtocolError, of_error, of_step, of_task
from hearth.protocol.client import read_task
from hearth.protocol.jsonrpc import require_depth
from hearth.tools import RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from hearth.actors.bridges.mcp.provider import Client, McpRequest, Outcome
    from hearth.api import Session, Step, Task, TaskEvent, TaskResult

# --- jobs -------------------------------------------------------------------------------------------------------------
# A tools/call as the HACP task that it is, before anything of it has been submitted.


def arguments_of(params: types.CallToolRequestParams) -> dict[str, Any]:
    """The arguments of a call.

    Raises MCPError for those that HACP takes from nobody, whatever the risk of the call, so that whatever is shown,
    hashed and submitted later can be: the SDK reads NaN, Infinity, integers of any length and lone surrogates, and
    nests more deeply.
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
    raise MCPError(
        code=types.INVALID_PARAMS,
        message=f"Invalid arguments for {params.name[:100]}: {reason}. Nothing has run.",
        data={"path": "", "reason": reason},
    )


def _require_finite(arguments: dict[str, Any]) -> None:
    """Refuse NaN and infinities, which orjson writes as null. Raises ValueError."""
    level: list[Any] = [arguments]
    while level:
        if not all(map(math.isfinite, [part for part in level if type(part) is float])):
            raise ValueError("not finite")
        arrays = chain.from_iterable(part for part in level if isinstance(part, list))
        objects = chain.from_iterable(part.values() for part in level if isinstance(part, dict))
        level = [*arrays, *objects]


@frozen(eq=False)
class ConsentRequest:
    """A tools/call as the HACP task that it is."""

    tool: str
    """The MCP name of the tool that is called."""
    intent: str
    steps: Sequence[Step]
    entries: Sequence[Mapping[str, Any]]
    """The tool.list entry of each step; its `risk_level` is the declared one until the step's own is known."""
    constraints: Mapping[str, Any] = field(factory=dict)
    plan: bool = False
    """True where the result tells of every step, and not just of the one there is."""

    @property
    def risk(self) -> int:
        """The highest risk level of what would run; 0 for a dry run."""
        return 0 if self.constraints.get("dry_run") else max(entry["risk_level"] for entry in self.entries)

    @property
    def least_risk(self) -> int:
        """The least that `risk` can be, whatever the arguments are."""
        least: int = max(entry.get("least_risk", entry["risk_level"]) for entry in self.entries)
        return least


# --- consent ----------------------------------------------------------------------------------------------------------

CONSENT_RISK: Final = 3
"""The risk level from which on a person is asked."""
MOST_QUESTION: Final = 6000
"""Characters of a question: nobody is asked to allow what they cannot see."""
MOST_HARMLESS: Final = 200
"""Characters that are shown of the arguments of a plan's other steps."""

KEY: Final = "consent"
"""The name of the question among a result's input requests."""

FORM: Final[types.ElicitRequestedSchema] = {"type": "object", "properties": {}}
"""A form with nothing to fill in: what the person decides is the action, accept or decline.

A box to tick was one decision asked for twice: a person who pressed Accept and left it alone had refused.
"""


async def consent(
    ask: McpRequest, params: types.CallToolRequestParams, job: ConsentRequest, rehearse: Callable[[], Awaitable[object]]
) -> types.InputRequiredResult | str | None:
    """None if a person allows the call; a question to put to them; or the reason why it is refused, as a sentence.

    `rehearse` raises for what could not run anyway; nobody is asked about that.
    """
    if not ask.can_elicit:
        return (
            "A person has to allow each such call, and this client cannot ask one: it has not declared elicitation. "
            "Do without it, or ask the person who operates the machine to do it"
        )
    answer = (params.input_responses or {}).get(KEY)
    about = _digest(job)
    if isinstance(answer, types.ElicitResult) and ask.client.questions.settle(params.request_state, about):
        return _verdict(answer)
    # Whatever is not an answer to this very question is not looked at: they are asked, or asked again.
    await rehearse()
    question = _question(job, await ask.client.board())
    if question is None:
        return "A person has to allow such a call, and it is too long to be shown to one: make it smaller"
    if not ask.modern:
        return await _asked(ask, question)
    request = types.ElicitRequest(params=types.ElicitRequestFormParams(message=question, requested_schema=FORM))
    return types.InputRequiredResult(input_requests={KEY: request}, request_state=ask.client.questions.ask(about))


async def _asked(ask: McpRequest, question: str) -> str | None:
    """Ask on the stream of the request, and wait."""
    try:
        with trio.fail_after(ANSWER_PATIENCE):
            answer = await ask.ctx.session.elicit_form(question, FORM, related_request_id=ask.ctx.request_id)
    except trio.TooSlowError:
        return f"No person has answered within {ANSWER_PATIENCE:g} s"
    except (MCPError, ValidationError) as error:
        return f"A person has to allow each such call, and the client could not ask one ({str(error).splitlines()[0]})"
    return _verdict(answer)


def _verdict(answer: types.ElicitResult) -> str | None:
    if answer.action == "cancel":
        return "The person who was asked has not decided: the question was dismissed. Do not ask again unless they wish"
    if answer.action == "accept":
        return None
    return "The person who was asked does not allow it. Do not try again, and not by another way either"


def refused(job: ConsentRequest, reason: str) -> dict[str, Any]:
    """The CallToolResult for a call that nobody has allowed."""
    text = f"{_what(job)} was not run. {reason.rstrip('.')}. {WORLD['none']}"
    return {"content": [{"type": "text", "text": text}], "isError": True}


# --- what is asked --------------------------------------------------------------------------------------------------


def _what(job: ConsentRequest) -> str:
    dangerous = dict.fromkeys(entry["name"] for entry in job.entries if entry["risk_level"] >= CONSENT_RISK)
    named = ", ".join(dangerous)
    risk = f"risk {job.risk}, {RISK_NAMES[job.risk]}"
    return f"The plan with {named} ({risk})" if job.plan else f"{named} ({risk})"


def _question(job: ConsentRequest, board: str | None) -> str | None:
    """What the person reads, with the arguments of what is dangerous in full; None if that is too long."""
    lines = []
    for number, (step, entry) in enumerate(zip(job.steps, job.entries, strict=True), 1):
        risk = entry["risk_level"]
        args = json.dumps(step.args, ensure_ascii=False)
        if risk < CONSENT_RISK and len(args) > MOST_HARMLESS:
            args = f"{_clean(args[:MOST_HARMLESS])} … ({len(args)} characters)"
        elif len(args) > MOST_QUESTION:
            return None
        else:
            args = _clean(args)
        back = "can be rolled back" if entry["supports_rollback"] else "cannot be rolled back"
        what = f"{step.tool} {args}  [risk {risk}, {RISK_NAMES[risk]}; {back}]"
        lines.append(f"{number}. {what}" if job.plan else what)
    where = f" on board {_clean(board[:100])}" if board else ""
    intent = f"\nIts intent, as the program says: {_clean(job.intent[:500])}" if job.plan else ""
    text = f"A program asks to run this{where}:\n" + "\n".join(lines) + f"{intent}\n{_ASKED}"
    return text if len(text) <= MOST_QUESTION else None


_ASKED: Final = "Accept lets it run once, with exactly these arguments. Anything else refuses it."


def _clean(text: str) -> str:
    """Without what could make the question look like another one: control characters, line ends, reversed writing."""
    return "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char)[0] == "C" or char in "\u2028\u2029" else char
        for char in text
    )


def _digest(job: ConsentRequest) -> bytes:
    steps = [[step.tool, dict(step.args)] for step in job.steps]
    said = orjson.dumps([job.tool, job.intent, steps, dict(job.constraints)], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(said).digest()


# --- progress ---------------------------------------------------------------------------------------------------------
# What a client hears of a task while it lives: that steps begin, what they tell, and that it still goes on.
#
# The number counts steps. Within a step nobody knows how much is left, so it creeps towards the next whole number, and
# never stands still (the protocol forbids that). What a result says is not known here.

BEAT: Final = 5.0
"""Seconds after which a task that has nothing to tell tells that it lives."""
MOST_DETAILS: Final = 500
"""Characters of what a step tells that are passed on: a message is read by a person."""


class ProgressReporter:
    """The progress of one request that asked for it."""

    def __init__(self, ask: McpRequest, steps: Sequence[Step], *, every: float = BEAT) -> None:
        self._session = ask.ctx.session
        self._steps = steps
        self._every = every
        self._began = trio.current_time()
        self._index = 0
        self._said = 0
        """How often something was said of the step that is on."""
        self.due = self._began + every
        """When a sign of life is due, in Trio's time."""

    async def take(self, event: TaskEvent) -> None:
        """A task event has come."""
        if event.step_index is None or event.phase not in ("start", "progress"):
            return
        if event.phase == "start":
            self._index, self._said = event.step_index, 0
            await self._say("begins")
            return
        await self._say(orjson.dumps(event.data.get("data")).decode()[:MOST_DETAILS])

    async def beat(self) -> None:
        """A sign of life."""
        await self._say(f"still running after {trio.current_time() - self._began:.0f} s")

    async def _say(self, what: str) -> None:
        count = len(self._steps)
        said, self._said = self._said, self._said + 1
        tool = self._steps[self._index].tool
        place = f"step {self._index + 1} of {count} ({tool})" if count > 1 else tool
        await self._session.report_progress(self._index + said / (said + 1), count, f"{place}: {what}")
        self.due = trio.current_time() + self._every


# --- calls ------------------------------------------------------------------------------------------------------------

PATIENCE: Final = 2.0
"""Seconds that a request which is being cancelled waits for the daemon to have heard of it."""


@frozen(eq=False)
class Running:
    """A job that was submitted."""

    client: Client
    session: Session
    job: ConsentRequest
    task: Task

    async def result(self, progress: ProgressReporter | None = None) -> TaskResult:
        """Follow the task to its end. Raises the RpcError or CarrierError because of which that cannot be learned."""
        finished: Mapping[str, Any] = {}
        status = ""
        events = self.task.events()
        while (event := await _next(events, progress)) is not None:
            if event.phase == "finish":
                finished = event.data
            elif event.phase == "task_finish":
                status = event.data.get("status", "")
            if progress is not None:
                await progress.take(event)
        if self.job.plan or not finished:
            return await self.task.get()
        # One step that has run: its events have told all there is.
        return read_task({"task_id": self.task.task_id, "status": status, "steps": [finished]})

    async def cancel(self) -> None:
        """Let the daemon cancel the task, whatever state the surrounding task is in."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + PATIENCE):
            try:
                await self.task.cancel()
            except HearthError:
                # It has ended, or its session has, or the daemon will see the connection end: nothing is left to stop.
                return


async def _next(events: AsyncIterator[TaskEvent], progress: ProgressReporter | None) -> TaskEvent | None:
    """The next event, None after the last; while none comes, a client that wants to hear hears that the task lives."""
    event: TaskEvent | None = None
    while progress is not None:
        with trio.move_on_at(progress.due) as waiting:
            event = await anext(events, None)
        if not waiting.cancelled_caught:
            return event
        await progress.beat()
    return await anext(events, None)


async def submit(client: Client, job: ConsentRequest) -> Running:
    """Submit a job in the client's session. Raises the RpcError it was refused with, or CarrierError."""
    try:
        return await _submit(client, job)
    except SessionInvalid:
        # The session had ended before, so nothing of this has been accepted: once more, in a new one.
        return await _submit(client, job)


async def _submit(client: Client, job: ConsentRequest) -> Running:
    session = await client.session()
    # What was read and checked until now took a turn; to hand it in takes another one.
    await trio.lowlevel.checkpoint()
    try:
        return Running(
            client, session, job, await session.submit(job.intent, job.steps, follow=True, **job.constraints)
        )
    except (SessionInvalid, CarrierError) as error:
        client.forget(session, error)
        raise


async def perform(
    ask: McpRequest, params: types.CallToolRequestParams, job: ConsentRequest, *, beat: float = BEAT
) -> Outcome:
    """Serve a tools/call as this job, from the question to a person, if there must be one, to the result.

    Raises MCPError for arguments that the tool's schema refuses.
    """
    client = ask.client
    try:
        if job.least_risk < CONSENT_RISK <= job.risk:
            job = await _at_effective_risk(client, job)
        if job.risk >= CONSENT_RISK:
            answer = await consent(ask, params, job, partial(_rehearse, client, _raised(job)))
            if isinstance(answer, str):
                return told(client, refused(job, answer))
            if answer is not None:
                return answer
            job = _raised(job)
        running = await submit(client, job)
    except HearthError as error:
        return told(client, of_error(error, plan=job.plan))
    try:
        result = await running.result(ProgressReporter(ask, job.steps, every=beat) if ask.wants_progress else None)
    except (RpcError, CarrierError) as error:
        return told(client, _lost(running, error))
    except BaseException:
        # Whoever gave up waiting is the only one who knows of the task.
        await running.cancel()
        raise
    return told(client, of_result(result, plan=job.plan))


def _lost(running: Running, error: RpcError | CarrierError) -> dict[str, Any]:
    """A task that was accepted, and of which nothing more can be learned: its session, or the daemon, has gone."""
    if isinstance(error, (SessionInvalid, CarrierError)):
        running.client.forget(running.session, error)
    task_id = running.task.task_id
    text = (
        f"Task {task_id} was accepted, and then nothing more could be learned of it: {str(error).rstrip('.')}. "
        f"{WORLD['unknown']} What the audit log says of it, a person can read with `hearth audit tail`."
    )
    return {"content": [{"type": "text", "text": text}], "isError": True, "_meta": {META_TASK: {"task_id": task_id}}}


async def _rehearse(client: Client, job: ConsentRequest) -> Running:
    """Let the daemon check and authorise a job without running it. Raises the RpcError it would be refused with."""
    return await submit(client, evolve(job, constraints={**job.constraints, "dry_run": True}))


async def _at_effective_risk(client: Client, job: ConsentRequest) -> ConsentRequest:
    """The job with the risk that its steps have with their arguments, which the daemon says of a dry run.

    One that needs no person is capped at that risk. Raises the RpcError that it would be refused with.
    """
    try:
        measured = await _measured(client, job, job)
    except PermissionDenied:
        # Perhaps for its risk only, which a person can allow up to the policy's ceiling. What needs none is not raised.
        measured = await _measured(client, job, _raised(job))
        if measured.risk < CONSENT_RISK:
            raise
        return measured
    if measured.risk >= CONSENT_RISK:
        return measured
    return evolve(measured, constraints={**job.constraints, "max_risk_level": measured.risk})


async def _measured(client: Client, job: ConsentRequest, rehearsed: ConsentRequest) -> ConsentRequest:
    steps = (await (await _rehearse(client, rehearsed)).result()).steps
    if len(steps) != len(job.steps):
        return job
    entries = [
        # The declared level holds where the daemon says none.
        {**entry, "risk_level": (step.result or {}).get("risk_level", entry["risk_level"])}
        for entry, step in zip(job.entries, steps, strict=True)
    ]
    return evolve(job, entries=entries)


def _raised(job: ConsentRequest) -> ConsentRequest:
    # As far as the policy lets a task raise its cap, and no further.
    return evolve(job, constraints={**job.constraints, "max_risk_level": CONSENT_RISK})


def of_result(result: TaskResult, *, plan: bool) -> dict[str, Any]:
    """A finished task as a CallToolResult."""
    if plan or not result.steps:
        return of_task(result)
    return of_step(result.steps[0], task_id=result.task_id)


def told(client: Client, outcome: dict[str, Any] | ProtocolError) -> dict[str, Any]:
    """A CallToolResult, with what the client must be told beside it. Raises MCPError where the call itself is wrong."""
    if isinstance(outcome, ProtocolError):
        raise MCPError(code=outcome.code, message=outcome.message, data=outcome.data)
    news = client.news()
    beside = [] if news is None else [{"type": "text", "text": news}]
    return {**outcome, "content": [*outcome["content"], *beside], "resultType": "complete"}


class TaskProvider(Provider):
    """A provider whose tools are tasks. `beat`: seconds between two signs of life of a task."""

    def __init__(self, *, beat: float = BEAT) -> None:
        self._beat = beat

    @abstractmethod
    async def job(self, ask: McpRequest, params: types.CallToolRequestParams) -> ConsentRequest | None:
        """What a call of one of its tools would run; None for a tool that is not its own. Raises MCPError."""

    async def call(self, ask: McpRequest, params: types.CallToolRequestParams) -> Outcome | None:
        """See Provider."""
        job = await self.job(ask, params)
        return None if job is None else await perform(ask, params, job, beat=self._beat)
