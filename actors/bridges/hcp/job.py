"""The job actor: one approved job, from its first step to its end, whoever is still listening (L2, L4; decision 0076).

It asks the plan's course what to do, has it done step by step, and keeps the account. Every step that is done is a
checkpoint before anything else happens. However it ends (done, failed, aborted, out of time, the daemon going down, a
bug in its planner), it stops cooperatively: a transaction in flight finishes, and what it came to is kept. The end
itself, with files and summary, is `ending`'s, when the HACP session has closed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import Factory, define, field

from hearth.actors.bridges.hcp.book import BookError
from hearth.actors.bridges.hcp.ends import Cut, End
from hearth.actors.bridges.hcp.pace import Pace
from hearth.actors.bridges.hcp.resuming import CannotGoOn, Recorded, catch_up, checkpoint_id
from hearth.actors.bridges.hcp.steps import Steps, StepsEnded
from hearth.actors.supervisor import contain
from hearth.errors import RpcError
from hearth.hcp.planning import Do, Fail, Finish, Order, Tell, Wait
from hearth.hcp.token import TokenError, verify
from hearth.hcp.values import NEEDED_RISK_LEVEL, write_instant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.actors.bridges.hcp.account import Account
    from hearth.actors.bridges.hcp.book_rows import SessionRow
    from hearth.actors.bridges.hcp.services import Services
    from hearth.api import Session
    from hearth.hcp.gate import Approval
    from hearth.hcp.messages import TaskSubmit
    from hearth.hcp.planning import Course, Outcome
    from hearth.hcp.values import EventType

KEEP_ALIVE: Final = 60.0
"""Seconds between two requests by which a job that waits keeps its HACP session, at most."""


EVENTS: Final[Mapping[str, EventType]] = {
    "intermediate_result": "intermediate_result",
    "log": "log",
    "warning": "warning",
    "error": "error",
}
"""What a plan may say; the rest is said of the job by itself."""
MOST_TOLD_BYTES: Final = 256 << 10
"""Bytes of JSON in one event of a plan's."""


@define(eq=False)
class Job:
    """One job. The desk makes it, runs it within its HACP session, and ends it when that has closed."""

    services: Services
    approval: Approval
    submit: TaskSubmit
    row: SessionRow
    token: str
    account: Account
    recorded: Sequence[Recorded] = ()
    """What is told to the course instead of being done: of the job that this one goes on with."""
    course: Course | None = None
    inherited: int = field(init=False, default=Factory(lambda self: len(self.recorded), takes_self=True))
    """How many those are."""
    done: int = field(init=False, default=Factory(lambda self: self.inherited, takes_self=True))
    """Steps whose outcome is on record, those of the job before included: the newest checkpoint."""
    risk_events: list[str] = field(factory=list)
    warnings: list[str] = field(factory=list)
    duration_s: float = 0.0
    end: End | None = None
    steps: Steps | None = None
    drawing: trio.CancelScope = field(factory=trio.CancelScope)
    """In which its plots are drawn, at its end: that may take longer than an ending daemon has time."""
    _began: float = field(factory=trio.current_time)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)
    _cut: Cut | None = None
    _pace: Pace = field(factory=Pace)

    # --- what others may do -------------------------------------------------------------------------------------

    def stop(self, cut: Cut) -> None:
        """Stop at the next chance, for this reason; the first reason counts, and the earliest time."""
        if self._cut is None and self.end is None:
            self._cut = cut
            self._scope.cancel()
        if self.steps is not None and self._cut is not None:
            self.steps.hurry(cut.until)
        if not cut.aborts:
            self.drawing.cancel()

    def check(self, token: str) -> None:
        """Raises TokenError for a token that is not this session's, or not any more.

        By the time that has passed, not by the clock on the wall: that may be set while a job runs.
        """
        now = self.row.created_at + (trio.current_time() - self._began)
        verify(self.services.book.key, token, now, session_id=self.row.session_id)

    @property
    def begun(self) -> int:
        """Steps that this job has begun."""
        return 0 if self.steps is None else self.steps.begun

    @property
    def checkpoints_made(self) -> int:
        """Checkpoints that this job has made."""
        return self.done - self.inherited

    @property
    def step(self) -> int:
        """The number of the newest step that has begun, counted from the first job of the line."""
        return self.inherited + self.begun

    @property
    def last_checkpoint(self) -> str | None:
        """The newest one's name."""
        return checkpoint_id(self.row.session_id, self.done) if self.done else None

    # --- the actor ----------------------------------------------------------------------------------------------

    async def run(self, session: Session) -> None:
        """Do the work; `end` says what came of it. Crashes stay here."""
        await contain(f"HCP job {self.row.session_id}", partial(self._run, session), self._crashed)
        self.duration_s = trio.current_time() - self._began

    def _crashed(self, error: BaseException) -> None:
        self.end = End.failed("internal_error", f"internal error: {type(error).__name__}", reason="crashed")

    async def _run(self, session: Session) -> None:
        self._scope.deadline = self._began + self.approval.max_duration.total_seconds()
        try:
            with self._scope:
                self.end = await self._work(session)
            if self.end is None:
                await self._say_aborting()
        except StepsEnded as error:
            if self._cut is None:
                self.end = _without_session(error)
        except BookError as error:
            self.end = End.failed("resource_unavailable", str(error), reason="book_unavailable", recoverable=True)
        except TokenError as error:
            self.end = End.failed("internal_error", f"the session token does not hold: {error}", reason="token")
        except CannotGoOn as error:
            self.end = End.failed("input_error", str(error), reason="checkpoint_does_not_fit")
        if self.end is None:
            self.end = self._cut_short()

    async def _work(self, session: Session) -> End:
        await self._say_created()
        approval, row = self.approval, self.row
        order = Order(
            session_id=row.session_id,
            started_at=row.started_at,
            inputs=approval.inputs,
            intent=self.submit.intent,
            context=self.submit.context,
            max_steps=self.services.settings.max_steps,
        )
        self.steps = Steps(
            session,
            priority=approval.priority,
            intent=self.submit.intent,
            elapsed=self._elapsed,
            # Args are computed as the job goes: none of them makes a step riskier than what was approved.
            max_risk_level=NEEDED_RISK_LEVEL[approval.risk],
        )
        course = self.course = approval.capability.plan.begin(order)
        outcome = await catch_up(course, self.recorded)
        self.recorded = ()
        failed: Recorded | None = None
        while True:
            action = await course.next(outcome, self._elapsed())
            self.account.phase = course.phase
            if failed is not None and not isinstance(action, Fail):
                # It goes on in spite of a step that failed: then that is part of where it is.
                await self._keep(failed)
            if outcome is not None and not isinstance(action, Fail):
                await self._say_how_far(course)
            outcome = failed = None
            await trio.lowlevel.checkpoint_if_cancelled()
            if isinstance(action, Do):
                outcome = await self._do(action, self.steps)
                did = Recorded(action.tool, action.name, outcome)
                if outcome.ok:
                    # At once, whatever comes of the job now: who goes on from here must not do it again.
                    await self._keep(did)
                else:
                    failed = did
            elif isinstance(action, (Finish, Fail)):
                return self._ended(action)
            else:
                await self._pass(action, session)

    def _ended(self, action: Finish | Fail) -> End:
        if isinstance(action, Finish):
            return End(state="COMPLETED", outputs=action.outputs)
        if action.risk_event is not None:
            self.risk_events.append(action.risk_event)
        return End.failed(action.error_code, action.message, recoverable=action.recoverable)

    async def _do(self, do: Do, steps: Steps) -> Outcome:
        self.check(self.token)
        throttled = steps.throttled
        outcome = await steps.do(do, self._scope.deadline - trio.current_time(), self._stopping)
        if steps.throttled and not throttled:
            await self.warn("rate_limited", f"{do.name}: the policy's rate limit makes this job wait")
        return outcome

    async def _keep(self, step: Recorded) -> None:
        """A step is over, and the job can go on from here: write it down."""
        number, outcome = self.done + 1, step.outcome
        checkpoint = {
            "checkpoint_id": checkpoint_id(self.row.session_id, number),
            "description": step.name if outcome.ok else f"{step.name}: {outcome.error}"[:200],
            "resumable": self.approval.capability.plan.resumable,
            "created_at": write_instant(self.services.clock()),
        }
        await self.account.keep(number, step.write(), ("checkpoint_created", checkpoint))
        self.done = number

    async def _say_how_far(self, course: Course) -> None:
        progress = self._pace.due(course.progress(), trio.current_time())
        if progress is not None:
            await self.account.tell(("progress", progress))

    async def _pass(self, action: Wait | Tell, session: Session) -> None:
        """What is no step."""
        if isinstance(action, Wait):
            await self._wait(action.seconds, session)
            return
        event_type = EVENTS[action.event_type]
        if (size := len(orjson.dumps(action.data))) > MOST_TOLD_BYTES:
            await self.warn("event_too_large", f"a plan's event of {size} bytes was left out: its place is an artifact")
        elif event_type == "warning":
            await self.warn(**{"code": "plan", "message": "", **action.data})
        else:
            await self.account.tell((event_type, action.data))

    async def _wait(self, seconds: float, session: Session) -> None:
        """Let time pass, and keep the HACP session meanwhile: one that nobody names would end."""
        until = trio.current_time() + seconds
        nap = min(KEEP_ALIVE, self.services.idle_ttl_s / 3)
        while (left := until - trio.current_time()) > nap:
            await trio.sleep(nap)
            try:
                await session.tools()
            except RpcError as error:
                raise StepsEnded(error.message) from None
        await trio.sleep(max(0.0, left))

    # --- what is said -------------------------------------------------------------------------------------------

    async def _say_created(self) -> None:
        row = self.row
        created = {"state": "PENDING", "risk_level": row.risk_level, "session_token": self.token}
        await self.account.open(created, "recovered_from_checkpoint" if self.inherited else "approved")
        for warning in self.approval.warnings:
            await self.warn("gate", warning)

    async def warn(self, code: str, message: str, **more: Any) -> None:
        """A warning: told now, and listed in the summary."""
        self.warnings.append(message)
        await self.account.tell(("warning", {"code": code, "message": message, **more}))

    async def _stopping(self) -> float:
        """A step is about to be stopped: say so, and for how long it may be waited for."""
        await self._say_aborting()
        if self._cut is not None:
            return self._cut.until
        return trio.current_time() + self.services.settings.abort_timeout_s

    async def _say_aborting(self) -> None:
        if self._cut is not None and self._cut.aborts and self.account.state == "RUNNING":
            await self.account.move("ABORTING", self._cut.message)

    def _cut_short(self) -> End:
        if self._cut is None:
            limit = self.approval.max_duration.total_seconds()
            message = f"the job was not done within max_duration, {limit:.15g} s"
            return End.failed("timeout", message, reason="timeout", recoverable=True)
        return self._cut.end()

    def _elapsed(self) -> float:
        """Seconds since the job began; for one that goes on from a checkpoint, since the first of its line did."""
        return (self.row.created_at - self.row.started_at) + (trio.current_time() - self._began)


def _without_session(error: StepsEnded) -> End:
    """The end of a job whose steps cannot be done any more."""
    if error.audit:
        return End.failed("resource_unavailable", str(error), reason="audit_unavailable", recoverable=True)
    return End.failed("internal_error", str(error), reason="hacp_session_ended", recoverable=True)
