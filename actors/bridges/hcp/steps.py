"""A job's steps, each done as one HACP task of one step in the job's own HACP session.

It owns the way from a `Do` to its `Outcome`. Whoever cancels it asks the task to stop and then waits for it: a
transaction that has begun finishes, and what it came to is not lost. It decides nothing about the job.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio

from hearth.api import Step
from hearth.errors import AuditUnavailable, HearthError, RateLimited, RpcError, SessionInvalid, ShuttingDown, TimedOut
from hearth.hcp.planning import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hearth.api import Session, Task, TaskResult
    from hearth.hcp.planning import Do

MOST_OUTCOME_BYTES: Final = 1 << 20
"""Bytes of JSON that one step may leave: it is kept for as long as the session is, and for those that go on from it."""
MOST_INTENT: Final = 1000
"""Characters of a HACP task's intent: the job's own, and the step's name."""
SHORTEST_PAUSE: Final = 0.05
"""Seconds to wait at least where a rate limit says that it is too early."""


class StepsEnded(HearthError):
    """No step can be done any more: the HACP session has ended, or the audit log cannot be written."""

    def __init__(self, message: str, *, audit: bool = False) -> None:
        super().__init__(message)
        self.audit = audit


class Steps:
    """The steps of one job."""

    def __init__(
        self, session: Session, *, priority: str, intent: str, elapsed: Callable[[], float], max_risk_level: int
    ) -> None:
        self._session = session
        self._priority = priority
        self._intent = intent
        self._elapsed = elapsed
        self._max_risk_level = max_risk_level
        self.begun = 0
        """Steps that were handed in."""
        self.throttled = False
        """True once a rate limit has made a step wait."""
        self._patience = trio.CancelScope()

    def hurry(self, until: float) -> None:
        """Wait for a step that is being stopped no longer than until this time of Trio's clock."""
        self._patience.deadline = min(self._patience.deadline, until)

    async def do(self, do: Do, limit_s: float, stopping: Callable[[], Awaitable[float]]) -> Outcome:
        """Have it done within the limit. Raises StepsEnded.

        Cancelled, it calls `stopping`, has the step's task cancelled, and waits for it until the time (of Trio's clock)
        that this returns; if the step has been done all the same, its outcome is returned and the cancellation comes at
        the next checkpoint.
        """
        try:
            task = await self._submit(do, limit_s)
        except (SessionInvalid, ShuttingDown) as error:
            raise StepsEnded(error.message) from None
        except AuditUnavailable as error:
            raise StepsEnded(error.message, audit=True) from None
        except RpcError as error:
            self.begun += 1
            return self._failed(error.message, error.code, error.data)
        self.begun += 1
        try:
            done = await task.wait()
        except trio.Cancelled:
            late = await self._stop(task, stopping)
            if late is None:
                raise
            return late
        except RpcError as error:
            raise StepsEnded(error.message) from None
        return self._outcome(done)

    async def _submit(self, do: Do, limit_s: float) -> Task:
        """Hand the step in; where a rate limit says that it is too early, come back when it says."""
        until = trio.current_time() + limit_s
        while True:
            remaining_ms = max(1.0, math.ceil((until - trio.current_time()) * 1000))
            pause = 0.0
            # Shielded: a submission that nobody waits for could be done without anybody knowing of it.
            with trio.CancelScope(shield=True):
                try:
                    return await self._session.submit(
                        f"{do.name}: {self._intent}"[:MOST_INTENT],
                        [Step(do.tool, do.args)],
                        max_duration_ms=remaining_ms,
                        priority=self._priority,
                        max_risk_level=self._max_risk_level,
                    )
                except RateLimited as error:
                    pause = float((error.data or {}).get("retry_after_ms", 0)) / 1000
            self.throttled = True
            await trio.sleep(max(pause, SHORTEST_PAUSE))

    async def _stop(self, task: Task, stopping: Callable[[], Awaitable[float]]) -> Outcome | None:
        """Ask the task to stop and wait for it; what its step came to, if it was done."""
        with trio.CancelScope(shield=True):
            self.hurry(await stopping())
        self._patience.shield = True
        with self._patience:
            try:
                await task.cancel()
                done = await task.wait()
            except RpcError:
                return None
            if done.steps and done.steps[0].status == "SUCCESS":
                return self._outcome(done)
        return None

    def _outcome(self, done: TaskResult) -> Outcome:
        step = done.steps[0] if done.steps else None
        if step is None or step.status == "CANCELLED":
            if done.status == "CANCELLED":
                # Nobody here asked for it.
                raise StepsEnded(done.error or "the HACP session has ended")
            # What fails a task of one step and not the step is its time limit.
            return self._failed(done.error or done.status, TimedOut.code, {"effect": "unknown"})
        if step.status == "SUCCESS":
            result: Mapping[str, Any] = step.result or {}
            if (size := len(orjson.dumps(result))) > MOST_OUTCOME_BYTES:
                reason = f"the result is {size} bytes, and of a step at most {MOST_OUTCOME_BYTES} are kept"
                return self._failed(reason, None, {"effect": "done", "size": size})
            return Outcome(ok=True, elapsed_s=self._elapsed(), result=result)
        return self._failed(step.error or "failed", step.error_code, step.error_data)

    def _failed(self, error: str, code: int | None, data: Mapping[str, Any] | None) -> Outcome:
        return Outcome(ok=False, elapsed_s=self._elapsed(), error=error, error_code=code, error_data=data)
