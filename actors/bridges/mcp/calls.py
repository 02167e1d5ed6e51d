"""A task on behalf of one MCP request: asked about, submitted, followed, cancelled with it, and told as its result.

A call is a `Job` first, which says what would run and how risky it is; who serves a call otherwise than here (as an MCP
task, say) starts from the same job. Cancelling the request cancels the task, and a transaction that has begun finishes
all the same. Which tools there are is the providers' business, how a result reads `hearth.mcp.results`'s.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import evolve, frozen
from mcp.shared.exceptions import MCPError

from hearth.actors.bridges.mcp.consent import CONSENT_RISK, consent, refused
from hearth.actors.bridges.mcp.provider import Provider
from hearth.errors import CarrierError, HearthError, PermissionDenied, RpcError, SessionInvalid
from hearth.mcp.names import META_TASK
from hearth.mcp.results import WORLD, ProtocolError, of_error, of_step, of_task
from hearth.protocol.client import read_task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import mcp_types as types

    from hearth.actors.bridges.mcp.consent import ConsentRequest
    from hearth.actors.bridges.mcp.provider import Client, McpRequest, Outcome
    from hearth.api import Session, Step, Task, TaskEvent, TaskResult

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
