"""The steps of a job, each submitted as a HACP task in the job's own HACP session.

It turns tools and args into an `Outcome`. On cancellation it asks the task to stop and then waits for it: a transaction
that has begun finishes, and its outcome is not lost. It decides nothing about the job.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import define, evolve, field

from hearth.errors import (
    AuditUnavailable,
    Halted,
    HearthError,
    RateLimited,
    RpcError,
    SessionInvalid,
    ShuttingDown,
    TimedOut,
)
from hearth.hcp.durable import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hearth.api import Priority, Session, Step, StepResult, Task, TaskResult

MOST_OUTCOME_BYTES: Final = 1 << 20
"""Bytes of JSON of one operation's outcome: it is kept as long as its session."""
MOST_INTENT: Final = 1000
"""Characters of a HACP task's intent: the step's name and the job's intent."""
SHORTEST_PAUSE: Final = 0.05
"""Seconds to wait, at least, when a rate limit delays a step."""
_NO_EFFECT: Final = {"effect": "none"}


class StepsEnded(HearthError):
    """No step can run any more: the HACP session has ended, or the audit log cannot be written.

    `begun` is True if a step was under way; its outcome is unknown.
    """

    def __init__(self, message: str, *, audit: bool = False, begun: bool = False) -> None:
        super().__init__(message)
        self.audit = audit
        self.begun = begun


@define(eq=False)
class Steps:
    """The steps of one job.

    `stopping` is awaited before a step is stopped; it returns the time (Trio's clock) until which to wait for the step.
    """

    _session: Session
    priority: Priority = field(kw_only=True)
    intent: str = field(kw_only=True)
    elapsed: Callable[[], float] = field(kw_only=True)
    max_risk_level: int = field(kw_only=True)
    deadline: Callable[[], float] = field(kw_only=True)
    stopping: Callable[[], Awaitable[float]] = field(kw_only=True)
    throttled: Callable[[str], Awaitable[None]] = field(kw_only=True)
    begun: int = field(default=0, init=False)
    """Steps that were submitted."""
    _was_throttled: bool = field(default=False, init=False)
    _waits: set[trio.CancelScope] = field(factory=set, init=False)
    """One for each task that is being stopped."""

    def end_by(self, until: float) -> None:
        """Wait for the steps that are being stopped no longer than until this time (Trio's clock)."""
        for wait in self._waits:
            wait.deadline = min(wait.deadline, until)

    async def do(self, name: str, steps: Sequence[Step], **constraints: Any) -> Outcome:
        """Run steps as one task. Raises StepsEnded.

        The value of one step is its result; of several, the list of their results. When cancelled it still returns the
        known outcome ("unknown" if there is none); the cancellation is raised at the next checkpoint.
        """
        try:
            task = await self._submit(name, steps, constraints)
        except (SessionInvalid, ShuttingDown) as error:
            raise StepsEnded(error.message) from None
        except AuditUnavailable as error:
            raise StepsEnded(error.message, audit=True) from None
        except trio.Cancelled:
            # Before its turn came, which a rate limit may have delayed: nothing was submitted.
            return self._failed("cancelled", None, _NO_EFFECT)
        except RpcError as error:
            self.begun += len(steps)
            return self._failed(error.message, error.code, error.data)
        self.begun += len(steps)
        try:
            done = await task.wait()
        except trio.Cancelled:
            return await self._stop(task)
        except RpcError as error:
            raise StepsEnded(error.message, begun=True) from None
        if done.status == "CANCELLED" and done.error_code == Halted.code and not _all_done(done):
            effect = {"effect": "unknown"} if _began(done) else _NO_EFFECT
            return self._failed(done.error or Halted.title, Halted.code, effect)
        if done.status == "CANCELLED" and not _all_done(done):
            # This job did not ask for it: the session has ended.
            raise StepsEnded(done.error or "the HACP session has ended", begun=_began(done))
        return self._outcome(done)

    async def _submit(self, name: str, steps: Sequence[Step], constraints: Mapping[str, Any]) -> Task:
        """Submit the task; when a rate limit delays it, submit it again at the time the limit names."""
        while True:
            pause = 0.0
            # A cancellation may have come while the beginning was put on record; then there is no time left either.
            await trio.lowlevel.checkpoint_if_cancelled()
            remaining_ms = max(1.0, math.ceil((self.deadline() - trio.current_time()) * 1000))
            # Shielded: a submission that is not awaited could run without a record of it here.
            with trio.CancelScope(shield=True):
                try:
                    return await self._session.submit(
                        f"{name}: {self.intent}"[:MOST_INTENT],
                        steps,
                        max_duration_ms=remaining_ms,
                        priority=self.priority,
                        max_risk_level=self.max_risk_level,
                        **constraints,
                    )
                except RateLimited as error:
                    pause = float((error.data or {}).get("retry_after_ms", 0)) / 1000
            if not self._was_throttled:
                self._was_throttled = True
                await self.throttled(name)
            await trio.sleep(max(pause, SHORTEST_PAUSE))

    async def _stop(self, task: Task) -> Outcome:
        """Ask the task to stop, wait for it, and return its outcome."""
        with trio.CancelScope(shield=True) as wait:
            wait.deadline = await self.stopping()
            self._waits.add(wait)
            try:
                await task.cancel()
                done = await task.wait()
            except RpcError:
                return Outcome(status="unknown", elapsed_s=self.elapsed())
            finally:
                self._waits.discard(wait)
            if not _began(done):
                return self._failed("cancelled", None, _NO_EFFECT)
            return self._outcome(done)
        return Outcome(status="unknown", elapsed_s=self.elapsed())

    def _outcome(self, done: TaskResult) -> Outcome:
        if _all_done(done):
            results = [dict(step.result or {}) for step in done.steps]
            value = results[0] if len(results) == 1 else results
            if (size := len(orjson.dumps(value))) > MOST_OUTCOME_BYTES:
                reason = f"the result is {size} bytes, and of an operation at most {MOST_OUTCOME_BYTES} are kept"
                return self._failed(reason, None, {"effect": "done", "size": size})
            return Outcome(elapsed_s=self.elapsed(), value=value)
        index, step = next(
            ((index, step) for index, step in enumerate(done.steps) if step.status not in ("SUCCESS", "CANCELLED")),
            (0, None),
        )
        if step is None:
            # A task that failed without a failed step ran into its time limit.
            failed = self._failed(done.error or done.status, TimedOut.code, {"effect": "unknown"})
        else:
            failed = self._failed(step.error or "failed", step.error_code, step.error_data)
        if len(done.steps) == 1:
            return failed
        effect = "done" if _drove(done.steps) else failed.effect
        return evolve(failed, error_data={**(failed.error_data or {}), "step_index": index, "effect": effect})

    def _failed(self, error: str, code: int | None, data: Mapping[str, Any] | None) -> Outcome:
        details = None if data is None else dict(data)
        return Outcome(status="failed", elapsed_s=self.elapsed(), error=error, error_code=code, error_data=details)


def _all_done(done: TaskResult) -> bool:
    """Return True if every step succeeded, whatever the task's end: it may have been cancelled after the last step."""
    return bool(done.steps) and all(step.status == "SUCCESS" for step in done.steps)


def _began(done: TaskResult) -> bool:
    """Return True if any step of a task began."""
    return any(step.status != "CANCELLED" for step in done.steps)


def _drove(steps: Sequence[StepResult]) -> bool:
    """Return True if a step was done and not rolled back."""
    return any(step.status == "SUCCESS" and not step.rolled_back for step in steps)
