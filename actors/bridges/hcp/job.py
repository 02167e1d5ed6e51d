"""The job actor: one approved job, from its first operation to its end (HCP L2, L4; decisions 0076, 0107).

It runs the capability's function, whose operations an `Execution` does or replays, and reports events and state. A job
may end in these ways: done, failed, aborted, out of time, by a halt, by the daemon's end, by a bug in its function. In
each case it stops cooperatively: a transaction in flight finishes, and its outcome is stored. `finish` writes the end
itself, with files and summary, when the HACP session has closed.

A halt ends every job that may act in the turn in which it comes, whether its function runs, sleeps or waits for a
person. Nothing that the function still does acts: its session counts every step as older than the halt.

Submissions and the hcp.* methods share one `JobTable`: the running jobs, their quota, and the messages of each session.
A submission over the quota (L3, concurrent_limit) is rejected at once, and may be sent again: none queues here.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import trio
from attrs import define, evolve, field, frozen

from hearth._util.foreign import Raised, awaited
from hearth.actors.bridges.hcp.capability_api import Job, run_function
from hearth.actors.bridges.hcp.event_stream import MessageLog
from hearth.actors.bridges.hcp.execution import FATAL, Execution, LimitWatch, checkpoint_id
from hearth.actors.bridges.hcp.steps import Steps, StepsEnded
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.actors.supervisor import contain
from hearth.annotations import NotJson
from hearth.errors import RpcError
from hearth.hcp.durable import (
    CapabilityFailed,
    OutcomeUnknown,
    ReplayHistory,
    ReplayMismatch,
    SafetyViolation,
    StepFailed,
)
from hearth.hcp.messages import NEEDED_RISK_LEVEL, Rejection, write_duration
from hearth.hcp.token import TokenError, verify
from hearth.policy.rules import Buckets, too_often
from hearth.shown import prose

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.actors.bridges.hcp.event_stream import EventWriter
    from hearth.actors.bridges.hcp.planning import OpenPlanning
    from hearth.actors.bridges.hcp.services import Services
    from hearth.actors.bridges.hcp.store.queries import SessionRow
    from hearth.api import Session
    from hearth.errors import Effect
    from hearth.hcp.capability import Capability
    from hearth.hcp.durable import Recorded
    from hearth.hcp.messages import ErrorCode, State, TaskSubmit
    from hearth.hcp.safety import Approval
    from hearth.policy.principal import Principal
    from hearth.policy.rules import Rate


# --- Progress events: one a second and one a percent at most, so that a long stream stays readable ------------------

LEAST_S: Final = 1.0
"""Seconds between two progress events, unless the stage changes."""
PART: Final = 0.01
"""The fraction of the time so far that must pass between two events of a job whose total is unknown."""


@define(eq=False)
class ProgressThrottle:
    """The last progress event that was sent; times are Trio's."""

    _stage: str | None = None
    _percent: float = -1.0
    _first: float = 0.0
    _last: float = 0.0

    def due(self, stage: str, message: str, done: float | None, elapsed_s: float, now: float) -> dict[str, Any] | None:
        """Return the data of a progress event, if one is due; `done` is the part that is done, 0 to 1, if known."""
        # If there turns out to be more to do, the percentage stands still; it never falls.
        percent = None if done is None else max(self._percent, min(100.0, round(100 * done, 1)))
        begins = percent is not None and self._percent < 0
        if percent is None and self._percent >= 0:
            # The function reports its own percentage: a count of steps must not use up the second of the next percent.
            percent = self._percent
        if self._stage is None:
            self._first = now
        elif stage == self._stage and not begins:
            if now - self._last < LEAST_S:
                return None
            if percent is None:
                if now - self._last < (now - self._first) * PART:
                    return None
            elif int(percent) <= int(self._percent):
                return None
        self._stage, self._last = stage, now
        self._percent = self._percent if percent is None else percent
        data: dict[str, Any] = {"stage": stage, "message": message}
        if percent is not None:
            data["percent"] = percent
        if done and done <= 1:
            data["remaining"] = write_duration(timedelta(seconds=round(elapsed_s * (1 - done) / done)))
        return data


KEEP_ALIVE: Final = 60.0
"""Seconds, at most, between two requests that keep a job's HACP session open."""

log = logging.getLogger("hearth.hcp")


@define(eq=False)
class RunningJob:
    """One job. A `Submission` creates it, runs it within its HACP session, and finishes it when that has closed."""

    services: Services
    approval: Approval
    submit: TaskSubmit
    row: SessionRow
    token: str
    events: EventWriter
    planning: OpenPlanning
    halts: int
    """The number of halts when it came."""
    recorded: Sequence[Recorded] = ()
    """The records that are replayed: those of the job that this one resumes."""
    resumed: Mapping[str, Any] = field(factory=dict)
    """What a question says of that job."""
    execution: Execution | None = None
    risk_events: list[str] = field(factory=list)
    warnings: list[str] = field(factory=list)
    duration_s: float = 0.0
    end: JobOutcome | None = None
    steps: Steps | None = None
    _began: float = field(factory=trio.current_time)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)
    _stop_request: StopRequest | None = None
    _throttle: ProgressThrottle = field(factory=ProgressThrottle)
    _held_s: list[float] = field(factory=list)
    """The stretches, in seconds, for which the function held the event loop."""

    # --- for other actors -------------------------------------------------------------------------------------------

    def stop(self, request: StopRequest) -> None:
        """Stop the job as soon as possible; the first request's reason counts, and the earliest `until`."""
        if self._stop_request is None and self.end is None:
            self._stop_request = request
            self._scope.cancel()
        # A later request can only shorten the wait for the step in flight.
        if self.steps is not None and self._stop_request is not None:
            self.steps.end_by(request.until)

    def halt(self, reason: str) -> None:
        """End the job, if it may act, because the daemon is being halted."""
        if self.approval.acts and self.end is None:
            until = trio.current_time() + self.services.settings.abort_timeout_s
            if self.execution is not None:
                self.execution.halted = True
            message = f"the daemon was halted: {prose(reason)}"
            self.stop(StopRequest(message=message, until=until, aborts=False, halts=True))

    def check(self, token: str) -> None:
        """Check a session token. Raises TokenError for one that is not this session's, or has expired.

        Age is the time that has passed, not the wall clock's, which may be set while a job runs.
        """
        now = self.row.created_at + (trio.current_time() - self._began)
        verify(self.services.job_store.key, token, now, session_id=self.row.session_id)

    @property
    def begun(self) -> int:
        """The steps that this job has begun."""
        return 0 if self.steps is None else self.steps.begun

    @property
    def checkpoints_made(self) -> int:
        """The checkpoints that this job has announced."""
        return 0 if self.execution is None else self.execution.announced

    @property
    def step(self) -> int:
        """The number of the newest step that the function has asked for, counted from the first job of the chain."""
        return 0 if self.execution is None else self.execution.steps_asked

    @property
    def last_checkpoint(self) -> str | None:
        """The name of the newest checkpoint; None if there is none."""
        execution = self.execution
        done = len(self.recorded) if execution is None else execution.done
        # Also before the first checkpoint, if there is a step that must not be done again.
        named = done or (execution is not None and execution.begun)
        return checkpoint_id(self.row.session_id, done) if named else None

    # --- the actor ----------------------------------------------------------------------------------------------

    async def run(self, session: Session) -> None:
        """Run the job; `end` is its outcome. Exceptions are contained here."""
        await contain(f"HCP job {self.row.session_id}", partial(self._run, session), self._crashed)
        self.duration_s = trio.current_time() - self._began

    def _crashed(self, error: BaseException) -> None:
        self.end = JobOutcome.crashed(error, place=_place_of(error, self.approval.capability.place))

    async def _run(self, session: Session) -> None:
        self._scope.deadline = self._began + self.approval.max_duration.total_seconds()
        try:
            with self._scope:
                self.end = await self._work(session)
            if self.end is None:
                await self._announce_aborting()
            if self.events.state == "PAUSED":
                # L2 has no transition from PAUSED to an end.
                await self.events.move("RUNNING", "asks a person no longer")
        except FATAL as error:
            # A stop request explains an ended HACP session; then it decides the outcome.
            if not (isinstance(error, StepsEnded) and self._stop_request is not None):
                self.end = _of_fatal(error)
        if self.end is None:
            self.end = self._stopped_outcome()

    async def _work(self, session: Session) -> JobOutcome | None:
        await self._announce_created()
        approval, capability = self.approval, self.approval.capability
        self.steps = Steps(
            session,
            priority=approval.priority,
            intent=self.submit.intent,
            elapsed=self._elapsed,
            # Args are computed while the job runs: none of them may raise a step's risk above the approved one.
            max_risk_level=NEEDED_RISK_LEVEL[approval.risk],
            deadline=trio.current_effective_deadline,
            stopping=self._stopping,
            throttled=self._throttled,
        )
        watch = LimitWatch(f"capability {capability.name} ({capability.place})", self._note_held)
        execution = self.execution = Execution(
            services=self.services,
            capability=capability,
            submit=self.submit,
            session_id=self.row.session_id,
            principal=self.row.principal,
            halts=self.halts,
            acts=approval.acts,
            about={**about_job(approval, self.submit), **self.resumed},
            events=self.events,
            steps=self.steps,
            history=ReplayHistory.of(self.recorded),
            done=len(self.recorded),
            elapsed=self._elapsed,
            authorize=lambda: self.check(self.token),
            progress=self._progress,
            warn=self.warn,
            stopping=lambda: self._scope.cancel_called,
            abort_deadline=self._abort_deadline,
            watched=watch.over,
            planning=self.planning,
        )
        self.recorded = ()
        job = Job(execution, self.row.started_at)
        # Until the function names one: error_details and progress always have a phase (L4, TaskFailed Schema).
        job.phase = "running"
        end: JobOutcome | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_alive, session, execution, nursery.cancel_scope)
            with watch.looking():
                end = await self._call(execution, job)
            nursery.cancel_scope.cancel()
        if self._held_s:
            await self.warn("event_loop_held", self._held_message())
        if execution.fatal is not None:
            raise execution.fatal
        return end

    async def _call(self, execution: Execution, job: Job) -> JobOutcome | None:
        """Run the function and return its outcome; None if the outcome is `execution.fatal`."""
        try:
            return JobOutcome(state="COMPLETED", outputs=await awaited(self._outputs(execution, job)))
        except Raised as raised:
            error = raised.error
        if isinstance(error, CapabilityFailed | StepFailed):
            return JobOutcome.failed(error.error_code, str(error), recoverable=error.recoverable)
        if isinstance(error, SafetyViolation):
            self.risk_events.append(error.risk_event)
            return JobOutcome.failed("safety_violation", str(error))
        if isinstance(error, NotJson):
            return JobOutcome.failed("internal_error", f"/outputs: {error}", reason="outputs_not_json")
        if isinstance(error, OutcomeUnknown):
            return JobOutcome.failed("execution_error", str(error), reason="outcome_unknown")
        if isinstance(error, FATAL):
            execution.fatal = execution.fatal or error
            return None
        capability = self.approval.capability
        place = _place_of(error, capability.place)
        log.error("capability %s: %s at %s", capability.name, type(error).__name__, place, exc_info=error)
        return JobOutcome.crashed(error, place=place)

    async def _outputs(self, execution: Execution, job: Job) -> dict[str, Any]:
        capability = self.approval.capability
        outputs = capability.unstructure(await run_function(execution, job, capability.structure(self.approval.inputs)))
        if not isinstance(outputs, dict):
            raise TypeError(f"{capability.name} returned {type(outputs).__name__}, and outputs are an object")
        return outputs

    async def _keep_alive(self, session: Session, execution: Execution, function: trio.CancelScope) -> None:
        """Send requests that keep the HACP session open while the function waits: an idle session would be ended."""
        interval = min(KEEP_ALIVE, self.services.idle_ttl_s / 3)
        while True:
            await trio.sleep(interval)
            try:
                await session.tools()
            except RpcError as error:
                # Cancel the function, which may be in a wait of a day: its next operation cannot succeed.
                execution.fatal = execution.fatal or StepsEnded(error.message)
                function.cancel()
                return

    # --- events -----------------------------------------------------------------------------------------------------

    async def _announce_created(self) -> None:
        row = self.row
        created = {"state": "PENDING", "risk_level": row.risk_level, "session_token": self.token}
        await self.events.open(created, "recovered_from_checkpoint" if self.recorded else "approved")
        for warning in self.approval.warnings:
            await self.warn("gate", warning)

    async def warn(self, code: str, message: str, more: Mapping[str, Any] | None = None) -> None:
        """Send a warning, and list it in the summary."""
        self.warnings.append(message)
        await self.events.write(("warning", {"code": code, "message": message, **(more or {})}))

    async def _throttled(self, name: str) -> None:
        await self.warn("rate_limited", f"{name}: the policy's rate limit makes this job wait")

    def _held_message(self) -> str:
        capability = self.approval.capability
        return (
            f"{capability.name} ({capability.place}) held the daemon's event loop {len(self._held_s)} times, for up to "
            f"{max(self._held_s):.1f} s: have long computations done in a thread"
        )

    def _note_held(self, seconds: float) -> None:
        self._held_s.append(seconds)
        if len(self._held_s) == 1:
            # Log the first stretch now, and not only at the job's end, which may be far away.
            log.warning("%s", self._held_message())

    def _progress(self, done: float | None, message: str) -> dict[str, Any] | None:
        return self._throttle.due(self.events.phase, message, done, self._elapsed(), trio.current_time())

    async def _stopping(self) -> float:
        """Report ABORTING if the whole job is being stopped; return the time until which to wait for the step."""
        if self._scope.cancel_called:
            await self._announce_aborting()
        return self._abort_deadline()

    def _abort_deadline(self) -> float:
        if self._stop_request is not None:
            return self._stop_request.until
        return trio.current_time() + self.services.settings.abort_timeout_s

    async def _announce_aborting(self) -> None:
        if self._stop_request is not None and self._stop_request.aborts and self.events.state in ("RUNNING", "PAUSED"):
            await self.events.move("ABORTING", self._stop_request.message)

    def _stopped_outcome(self) -> JobOutcome:
        if self._stop_request is None:
            limit = self.approval.max_duration.total_seconds()
            message = f"the job was not done within max_duration, {limit:.15g} s"
            return JobOutcome.failed("timeout", message, reason="timeout", recoverable=True)
        if self._stop_request.halts:
            effect = "none" if self.execution is None else self.execution.effect
            return evolve(self._stop_request.end(), effect=effect)
        return self._stop_request.end()

    def _elapsed(self) -> float:
        """Return the seconds since the job began; for a resumed job, since the first job of its chain began."""
        return (self.row.created_at - self.row.started_at) + (trio.current_time() - self._began)


def _of_fatal(error: Exception) -> JobOutcome:
    """Return the outcome of a job that met a fatal error."""
    if isinstance(error, CapabilityFailed):
        return JobOutcome.failed(error.error_code, str(error))
    if isinstance(error, JobStoreError):
        return JobOutcome.failed("resource_unavailable", str(error), reason="book_unavailable", recoverable=True)
    if isinstance(error, TokenError):
        return JobOutcome.failed("internal_error", f"the session token does not hold: {error}", reason="token")
    if isinstance(error, ReplayMismatch):
        return JobOutcome.failed("input_error", str(error), reason="checkpoint_does_not_fit")
    if isinstance(error, StepsEnded) and error.audit:
        return JobOutcome.failed("resource_unavailable", str(error), reason="audit_unavailable", recoverable=True)
    return JobOutcome.failed("internal_error", str(error), reason="hacp_session_ended", recoverable=True)


def _place_of(error: BaseException, place: str) -> str:
    """Return FILE:LINE of the innermost frame in the capability's file; without such a frame, the function's place."""
    file = place.rpartition(":")[0]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == Path(file)]
    return f"{file}:{lines[-1]}" if lines else place


def about_job(approval: Approval, submit: TaskSubmit) -> dict[str, Any]:
    """Return what a person must know of a job, whether it is to start or asks a question."""
    return {
        "capability": approval.capability.name,
        "capability_version": approval.capability.version,
        "caller_id": submit.caller_id,
        "intent": submit.intent,
        "context": dict(submit.context),
        "max_duration": write_duration(approval.max_duration),
        "risk_level": approval.risk,
        "data_classification": approval.classification,
    }


# --- Values: a job's outcome, and a request to stop it. `finish` reports the outcome ----------------------------------


@frozen(kw_only=True)
class JobOutcome:
    """The outcome of a job."""

    state: State
    outputs: Mapping[str, Any] = field(factory=dict)
    error_code: ErrorCode = "internal_error"
    message: str = ""
    reason: str | None = None
    """A machine-readable reason within one error code."""
    recoverable: bool = False
    """True if resuming from the newest checkpoint may help."""
    effect: Effect | None = None
    """The effect of the step that a halt met."""
    place: str | None = None
    """FILE:LINE in the capability that crashed, for the audit log."""

    @classmethod
    def failed(
        cls, error_code: ErrorCode, message: str, *, reason: str | None = None, recoverable: bool = False
    ) -> JobOutcome:
        """Return the outcome of a job that failed."""
        return cls(state="FAILED", error_code=error_code, message=message, reason=reason, recoverable=recoverable)

    @classmethod
    def crashed(cls, error: BaseException, *, place: str | None = None) -> JobOutcome:
        """Return the outcome of a job that met a bug."""
        message = f"internal error: {type(error).__name__}"
        return cls(state="FAILED", error_code="internal_error", message=message, reason="crashed", place=place)


@frozen(kw_only=True)
class StopRequest:
    """A request to stop a job: the reason, and the time (Trio's clock) until which its step in flight may finish."""

    message: str
    until: float
    aborts: bool = True
    """True if the caller asked for it; False if the daemon is ending, or is being halted."""
    halts: bool = False
    """True if the daemon is being halted."""

    def end(self) -> JobOutcome:
        """Return the outcome of a job that this request stopped."""
        if self.aborts:
            return JobOutcome(state="ABORTED", message=self.message)
        if self.halts:
            return JobOutcome.failed("safety_violation", self.message, reason="halted", recoverable=True)
        return JobOutcome.failed("internal_error", self.message, reason="daemon_ended", recoverable=True)


# --- all jobs of a daemon ---------------------------------------------------------------------------------------------

_CURE = "submit it again, with the same message_id, when one of them has ended"


class JobQuota:
    """The number of running jobs per principal and per capability, and the limits on them."""

    def __init__(self, max_jobs: int, max_per_principal: int, rate: Rate) -> None:
        self._max_jobs = max_jobs
        self._max_per_principal = max_per_principal
        self._rate = rate
        self._begun = Buckets(rate)
        self._by_principal: Counter[str] = Counter()
        self._by_capability: Counter[str] = Counter()

    @contextmanager
    def for_principal(self, principal: str) -> Iterator[None]:
        """Hold one slot for a job that runs or waits for an approval. Raises Rejection if no slot is free."""
        if (count := self._by_principal[principal]) >= self._max_per_principal:
            raise _full(f"{count} jobs of this principal are under way, and more are not taken")
        if (count := self._by_principal.total()) >= self._max_jobs:
            raise _full(f"{count} jobs are under way, and more are not taken")
        if wait := self._begun.take(principal, trio.current_time()):
            # Each job is audited from here on, however soon it ends: hence a rate limit.
            raise _full(too_often("jobs", self._rate, wait).message)
        with _counted(self._by_principal, principal):
            yield

    def check(self, capability: Capability) -> None:
        """Raise Rejection if `concurrent_limit` jobs of the capability run already."""
        if self._by_capability[capability.name] >= capability.concurrent_limit:
            most = f"{capability.concurrent_limit} at a time"
            raise _full(f"{capability.name} is in use: its concurrent_limit is {most}")

    @contextmanager
    def for_capability(self, capability: Capability) -> Iterator[None]:
        """Hold one slot of a capability's `concurrent_limit`. Raises Rejection if none is free."""
        self.check(capability)
        with _counted(self._by_capability, capability.name):
            yield


@contextmanager
def _counted(counter: Counter[str], key: str) -> Iterator[None]:
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


def _full(reason: str) -> Rejection:
    return Rejection("resource_unavailable", reason, suggestion=_CURE)


class JobTable:
    """The running jobs of one daemon. `services` is what all of them use."""

    def __init__(self, services: Services) -> None:
        self.services = services
        settings = services.settings
        self.quota = JobQuota(settings.max_jobs, settings.max_jobs_per_principal, services.rate)
        self.running: dict[str, RunningJob] = {}
        """The jobs that run or are being ended, by session id."""
        self.resuming: set[str] = set()
        """The sessions that a submission under way resumes: each is resumed once."""
        self.closing = False
        """True once no more jobs are accepted."""
        self._ended: WeakValueDictionary[str, MessageLog] = WeakValueDictionary()

    @contextmanager
    def resumes(self, session_id: str) -> Iterator[None]:
        """Note, until the block ends, that a submission resumes a session."""
        self.resuming.add(session_id)
        try:
            yield
        finally:
            self.resuming.discard(session_id)

    async def messages_of(self, session_id: str, owner: Principal) -> MessageLog | None:
        """Return a session's messages, running or ended; None if they are no longer kept.

        The bytes read from the job store are charged to `owner`, the session's principal. Raises JobStoreError.
        """
        job = self.running.get(session_id)
        if job is not None:
            return job.events.message_log
        if (message_log := self._ended.get(session_id)) is not None:
            return message_log
        lines = await self.services.job_store.message_log(session_id)
        if not lines:
            return None
        # One copy in memory, however many connections follow it.
        account = self.services.memory.for_principal(owner.key)
        message_log = MessageLog(lines, ended=True, metrics=self.services.journal.metrics, account=account)
        return self._ended.setdefault(session_id, message_log)
