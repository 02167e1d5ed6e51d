"""`Job`: the interface that a capability function gets to its `Execution` (docs/capabilities.md is for authors).

It owns the names, the defaults and the bounds of the calls. `execution` owns how operations are recorded and replayed.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
import trio
from attrs import define

from hearth.actors.bridges.hcp.execution import BRANCH, ArtifactFile, Branch
from hearth.api import Expect, Step
from hearth.hcp.durable import CapabilityFailed, SafetyViolation, StepFailed
from hearth.hcp.messages import write_instant
from hearth.policy.rules import TAINTED_FROM_RISK
from hearth.protocol.submissions import read_expect
from hearth.shown import prose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from hearth.actors.bridges.hcp.execution import Answer, Execution

T = TypeVar("T")

MOST_PROPOSED_BYTES: Final = 48 << 10
"""Bytes of the steps of a model that a person is asked about: they are shown whole."""
LONGEST_SLEEP: Final = 366 * 86_400.0
"""Seconds of the longest sleep."""


class Job:
    """The object that a capability function gets: recorded operations, and calls that report to the caller.

    Everything a function does with time, chance, hardware and people goes through here. See docs/capabilities.md.
    """

    def __init__(self, execution: Execution, started_at: float) -> None:
        self._execution = execution
        self.session_id = execution.session_id
        """The HCP session's id."""
        self.intent = execution.submit.intent
        """The purpose of the job, in the caller's words."""
        self.context: Mapping[str, Any] = execution.submit.context
        """The caller's additional context."""
        self.started_at = datetime.fromtimestamp(started_at, UTC)
        """The start of the job; for a resumed one, the start of the first job of its chain."""

    # --- time -----------------------------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """The seconds from the job's start to the end of the last operation, as recorded."""
        return BRANCH.get().elapsed_s

    @property
    def at(self) -> datetime:
        """The time at which the last operation ended, in UTC, as recorded."""
        return self.started_at + timedelta(seconds=self.elapsed_s)

    async def now(self) -> datetime:
        """Return the time, in UTC; the same one when the function is replayed."""
        text: str = await self._execution.value("now", lambda: write_instant(self._execution.services.clock()))
        return datetime.fromisoformat(text)

    async def random(self) -> float:
        """Return a random number, 0 <= x < 1; the same one when the function is replayed. Not for secrets."""
        number: float = await self._execution.value("random", random.random)
        return number

    async def sleep(self, seconds: float) -> None:
        """Wait this long from the end of the last operation; time in which the daemon was down counts too."""
        if not 0 <= seconds <= LONGEST_SLEEP:
            raise ValueError(f"job.sleep takes 0 to {LONGEST_SLEEP:g} seconds, got {seconds!r}")
        await self._execution.sleep_until("sleep", seconds, self.elapsed_s + seconds)

    def every(self, interval_s: float, count: int | None = None) -> AsyncIterator[int]:
        """Iterate over 1, 2, … `count` (without one, for ever) at even intervals, the first at once.

        A round that takes longer than the interval is followed by the next at once. Rounds missed by more than one
        interval, as while the daemon was down, are skipped.
        """
        if not 0 <= interval_s <= LONGEST_SLEEP:
            raise ValueError(f"job.every takes an interval of 0 to {LONGEST_SLEEP:g} seconds, got {interval_s!r}")
        return _Every(self._execution, interval_s, count)

    # --- work -----------------------------------------------------------------------------------------------------

    async def run(
        self, tool: str, /, *, expect: Expect | None = None, replay: bool = False, **args: Any
    ) -> dict[str, Any]:
        """Run one step, and return its result (as the tool's result_schema has it); `expect` is as for `hearth.step`.

        A job that may act and resumes reads again what it had read, as it is now. With `replay` it gets the recorded
        result of a step that only reads: for data that are collected, on which nothing that moves depends.

        Raises StepFailed, and OutcomeUnknown for a step that was under way when the daemon died.
        """
        result: dict[str, Any] = await self._execution.run_steps("run", [Step(tool, args, expect)], {}, replay=replay)
        return result

    async def submit(
        self,
        steps: Sequence[Step],
        *,
        exclusive: bool = False,
        rollback_on_failure: bool = False,
        replay: bool = False,
    ) -> list[dict[str, Any]]:
        """Run several steps as one task, and return their results. `replay`, and what is raised, are as for `run`.

        `exclusive` reserves all buses of its steps for the task's whole time; `rollback_on_failure` undoes the
        completed steps if one fails.
        """
        if not steps:
            return []
        chosen = {"exclusive": exclusive, "rollback_on_failure": rollback_on_failure}
        constraints = {name: True for name, wanted in chosen.items() if wanted}
        results = await self._execution.run_steps("submit", list(steps), constraints, replay=replay)
        return [results] if len(steps) == 1 else results

    async def gather(self, *parts: Callable[[], Awaitable[T]]) -> list[T]:
        """Run parts side by side, and return their results in order.

        The first failure cancels the others and is raised, as it is; of several, that of the first part.
        """
        return await self._execution.gather(parts)

    async def retry(self, part: Callable[[], Awaitable[T]], *, times: int = 2, after_s: float = 0.0) -> T:
        """Run a part, and repeat it up to `times` times if a step of it fails for a reason that may pass."""
        while True:
            try:
                return await part()
            except StepFailed as failed:
                if not times or not failed.passing:
                    raise
                times -= 1
                await self.warn(f"{failed}; it is tried again", code="step_retried")
            if after_s:
                await self.sleep(after_s)

    async def ask_person(self, question: str) -> Answer:
        """Ask a person who may approve jobs, other than the caller; no answer within approval_timeout_s means no.

        A job that resumes asks again, unless it goes on within approval_timeout_s, in the same run of the daemon, and
        no halt and no change of the policy lies between.
        """
        return await self._execution.ask(question)

    async def plan(self, intent: str) -> list[Step]:
        """Have the daemon's language model ([ask]) propose steps for this intent, and run none of them.

        The model reads what it needs, and proposes within the tools that the capability declares and the risk that the
        job was approved for; [] if it proposes nothing. The words of a caller are a peer's text: from risk 2 on a
        person is asked, as by `ask_person`, before the steps are returned. Raises StepFailed if the model fails, and
        CapabilityFailed if the person refuses.
        """
        found = await self._execution.plan(intent)
        steps = [
            Step(one["tool"], one["args"], read_expect(one["expect"], "/expect") if "expect" in one else None)
            for one in found["steps"]
        ]
        if found["risk"] >= TAINTED_FROM_RISK:
            proposed = [one.to_wire() for one in steps]
            if len(orjson.dumps(proposed)) > MOST_PROPOSED_BYTES:
                raise CapabilityFailed("what a model proposed is too long to be shown to a person", "safety_violation")
            question = f"A model proposes steps for {intent!r}. May the job run them?"
            answer = await self._execution.ask(question, steps=proposed)
            if not answer.approved:
                why = f": {prose(answer.reason)}" if answer.reason else ""
                raise CapabilityFailed(f"a person has not approved what a model proposed{why}", "safety_violation")
        return steps

    @asynccontextmanager
    async def clean_up(self) -> AsyncIterator[None]:
        """Allow steps in a `finally` block, also in a job that is being stopped.

        The steps may use the tools that the capability declares as `clean_up`, for `clean_up_duration`; in a job that
        is being stopped, no longer than the daemon waits for it.
        """
        execution, branch = self._execution, BRANCH.get()
        deadline = trio.current_time() + execution.capability.clean_up_s
        if execution.stopping():
            deadline = min(deadline, execution.abort_deadline())
        before = branch.cleaning, branch.cancelled
        branch.cleaning = True
        branch.cancelled = branch.cancelled or trio.current_effective_deadline() <= trio.current_time()
        try:
            with trio.CancelScope(shield=True, deadline=deadline) as scope:
                yield
        finally:
            branch.cleaning, branch.cancelled = before
        if scope.cancelled_caught:
            await self.warn("clean-up took too long and was cut short", code="clean_up_cut_short")

    # --- reports ----------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """The job's stage, in the capability's own words."""
        return self._execution.events.phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self._execution.events.phase = phase

    async def report(
        self, progress: float | None = None, message: str = "", *, result_type: str = "progress", **data: Any
    ) -> None:
        """Report progress (0 to 1; sent once a second and percent at most), and intermediate results."""
        execution = self._execution
        if execution.history.replaying:
            return
        if progress is not None:
            due = execution.progress(progress, message or f"{execution.steps_asked} steps done")
            if due is not None:
                await execution.report(("progress", due))
        if data:
            await execution.report(
                ("intermediate_result", {"result_type": result_type, "data": data, "is_partial": True})
            )

    async def warn(self, message: str, *, code: str = "capability", **details: Any) -> None:
        """Report a problem that is not a failure; it is in the summary too."""
        await self._execution.caution(code, message, {"details": details} if details else {})

    def partial(self, **outputs: Any) -> None:
        """Set outputs that are known already: a job that fails or is aborted reports them."""
        self._execution.partial.update(outputs)

    def artifact(self, file: str, content: bytes | str, *, media_type: str, name: str | None = None) -> None:
        """Keep a file, whatever the job's end; one of the same name is replaced.

        `name` is the file's stem by default.
        """
        data = content.encode() if isinstance(content, str) else bytes(content)
        self._execution.leave(
            ArtifactFile(name=name or file.partition(".")[0], file=file, type=media_type, content=data)
        )

    def plot(
        self,
        file: str,
        *,
        series: Mapping[str, Sequence[float | None]],
        x: Sequence[float] | None = None,
        title: str = "",
        x_label: str = "",
        y_label: str = "",
        name: str | None = None,
    ) -> None:
        """Keep a plot of named series (PNG), drawn when the job has ended; a number may be missing (None)."""
        request = {"series": dict(series), "x": x, "title": title, "x_label": x_label, "y_label": y_label}
        asked = {key: value for key, value in request.items() if value not in (None, "")}
        self._execution.leave(
            ArtifactFile(name=name or file.partition(".")[0], file=file, type="image/png", plot=asked)
        )

    def watch(self, name: str, value: float) -> None:
        """Check a measured value against the limit of this name. Raises SafetyViolation."""
        violation = self._execution.capability.envelope.check_value(name, value)
        if violation is not None:
            raise SafetyViolation(name, violation.message)


@define(eq=False)
class _Every:
    """An iterator over even intervals. See Job.every."""

    _execution: Execution
    _interval_s: float
    _count: int | None
    _number: int = 0
    _due: float = 0.0

    def __aiter__(self) -> _Every:
        return self

    async def __anext__(self) -> int:
        if self._number == self._count:
            raise StopAsyncIteration
        self._number += 1
        if self._number == 1:
            self._due = BRANCH.get().elapsed_s
        elif self._interval_s:
            self._due += self._interval_s
            await self._execution.sleep_until("every", [self._interval_s, self._number], self._due)
            if (now := BRANCH.get().elapsed_s) - self._due > self._interval_s:
                self._due = now
        return self._number


async def run_function(execution: Execution, job: Job, arguments: Mapping[str, Any]) -> Any:
    """Run the capability's function in a branch of its own, and return its result."""
    token = BRANCH.set(Branch())
    try:
        result = await execution.watched(execution.capability.function(job, **arguments))
    finally:
        BRANCH.reset(token)
    if execution.fatal is None:
        execution.history.check_complete()
    return result
