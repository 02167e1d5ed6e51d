"""The execution of a capability function: each operation is done once and recorded, or replayed (decision 0107).

`Execution` stands behind the `Job` that a function gets (`capability_api`). Theory of operation:

- Every operation goes through `Execution.perform`. It takes the next position of the branch that asks, and looks it up
  in the `ReplayHistory`. If there is no record, it runs the operation and stores its outcome before it returns. A
  context variable holds the branch: the function's own, or that of a part of a gather.
- A job that resumes does two kinds of recorded operations again: readings, whose new values are not stored, and a
  person's answer that no longer holds, whose new one is stored behind it and counts from then on.
- A step that may have an effect (effective risk above 0) is noted as begun before it is submitted. Storing its outcome
  removes the note. So a note without an outcome, which a crash leaves, means an unknown outcome.
- A step that failed without any effect is stored only once the function goes on. If it is the last step of a job that
  fails, a job that resumes from the last checkpoint can try it again.
- When a part of a gather fails, the others are cancelled, and the operations they had not reached are never done. So in
  a replay, a part without further records waits until the other parts have reached their recorded positions
  (`_caught_up`). An operation that a part had completed when it was cancelled already is recorded as missed. In a
  replay, the part waits there to be cancelled again.
- Cancellation (abort, max_duration, the daemon's end, a failed sibling in a gather) reaches the function as Trio's. A
  step in flight is stopped cooperatively, and its outcome is stored first. In the `finally` blocks of a job that is
  ending, `Job.clean_up` allows more steps. Those are not part of the function's normal course, so they are not
  recorded.
- An error after which no operation can succeed (the job store or the HACP session is gone, or a replay does not match)
  is kept in `fatal`, whatever the function does with the exception.

`LimitWatch` reports code that holds the event loop. A capability's function is third-party Python on the daemon's one
event loop: while it computes, the daemon serves no other task. `LimitWatch.over` measures each stretch between two
awaits. A long stretch is reported when it ends. A thread reports one that does not end, with the line that it is at;
that is the last log entry before a service manager ends the daemon. The watch cannot stop the code: Python has no means
for it.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
import trio
from attrs import asdict, define, evolve, field, frozen

from hearth._util.foreign import Raised, awaited
from hearth.actors.approval import Question
from hearth.actors.bridges.hcp.event_stream import take
from hearth.actors.bridges.hcp.steps import StepsEnded
from hearth.actors.bridges.hcp.store import JobStoreError
from hearth.ask import ModelError
from hearth.errors import ConfigError, RpcError
from hearth.hcp.durable import (
    ANNOUNCED,
    CANCELLED,
    CapabilityFailed,
    Operation,
    Outcome,
    Recorded,
    ReplayHistory,
    ReplayMismatch,
    results_of,
)
from hearth.hcp.messages import Rejection, write_instant
from hearth.hcp.safety import ANOTHER_PERSON
from hearth.hcp.token import TokenError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from hearth.actors.bridges.hcp.event_stream import Entry, EventWriter
    from hearth.actors.bridges.hcp.planning import OpenPlanning
    from hearth.actors.bridges.hcp.services import Services
    from hearth.actors.bridges.hcp.steps import Steps
    from hearth.api import Step
    from hearth.errors import Effect
    from hearth.hcp.capability import Capability
    from hearth.hcp.durable import OperationKind
    from hearth.hcp.messages import TaskSubmit

    Live = Callable[[Operation], Awaitable[Outcome]]

T = TypeVar("T")

MOST_REPORT_BYTES: Final = 256 << 10
"""Bytes of JSON in one event of a function."""
MOST_FILES: Final = 64
"""Artifacts of one job, at most."""
REPLAY_TIMEOUT: Final = 1.0
"""Seconds that a part waits, in a replay, for another part that has recorded outcomes and does not ask for them."""
OPERATIONS_PER_STEP: Final = 4
"""Operations that a job may have for each step that it may do: sleeps, times and numbers are recorded as well."""
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@frozen(kw_only=True)
class ArtifactFile:
    """A file that a job keeps: its content, or the data of a plot."""

    name: str
    file: str
    """Letters, digits, '.', '_' and '-'."""
    type: str
    """The MIME type."""
    content: bytes | None = None
    plot: Mapping[str, Any] | None = None
    """The request to `hearth.hcp.plot` if there is no content: title, x, series, labels."""


@frozen
class Answer:
    """A person's answer to `Job.ask_person`; `by` is empty if there was none in time."""

    approved: bool
    by: str
    reason: str | None = None


@define(eq=False)
class Branch:
    """A function's course of operations, or one part of a gather: its used positions and its recorded time."""

    prefix: str = ""
    elapsed_s: float = 0.0
    cleaning: bool = False
    """True within `Job.clean_up`."""
    cancelled: bool = False
    """True if the clean-up began in a branch that was cancelled already."""
    _numbers: Counter[str] = field(factory=Counter)

    def next(self) -> str:
        """Return the next position.

        A cancelled branch counts apart: how far a part has come when its sibling fails depends on timing.
        """
        kind = CANCELLED if self.cancelled else ""
        self._numbers[kind] += 1
        return f"{self.prefix}{kind}{self._numbers[kind]}"


class TooMuch(CapabilityFailed):
    """A function asks for more than a job may do."""


FATAL: Final = (JobStoreError, StepsEnded, TokenError, ReplayMismatch, TooMuch)
"""Errors after which no operation can be done."""

BRANCH: ContextVar[Branch] = ContextVar("hearth_job_branch")


@define(eq=False, kw_only=True)
class Execution:
    """The operations of one job."""

    services: Services
    capability: Capability
    submit: TaskSubmit
    session_id: str
    principal: str
    halts: int
    """The number of halts when the job came."""
    acts: bool
    """False for a job that only reads."""
    about: Mapping[str, Any]
    """What a question says of the job, and of the one that it resumes."""
    events: EventWriter
    steps: Steps
    history: ReplayHistory
    done: int
    """Operations on record, those of the jobs it resumes from included: the number of the newest checkpoint."""
    elapsed: Callable[[], float]
    """Return the seconds since the first job of the chain began."""
    authorize: Callable[[], None]
    """Called before each step; raises TokenError."""
    progress: Callable[[float | None, str], Mapping[str, Any] | None]
    """Return the data of a progress event, if one is due, for the part that is done (0 to 1) and a message."""
    warn: Callable[[str, str, Mapping[str, Any]], Awaitable[None]]
    stopping: Callable[[], bool]
    """True once the job as a whole is being stopped."""
    abort_deadline: Callable[[], float]
    """Return the time (Trio's clock) until which a job that is being stopped may clean up."""
    watched: Callable[[Awaitable[Any]], Awaitable[Any]]
    """Wrap the capability's code, to detect that it holds the event loop."""
    planning: OpenPlanning
    """Opens the conversation of `Job.plan`."""
    announced: int = 0
    """Checkpoints that were announced with a checkpoint_created event."""
    steps_asked: int = 0
    """Steps that the function has asked for, recorded ones included."""
    files: dict[str, ArtifactFile] = field(factory=dict)
    partial: dict[str, Any] = field(factory=dict)
    begun: set[str] = field(factory=set)
    """Positions noted as begun that have no outcome yet."""
    halted: bool = False
    """True once the daemon is being halted."""
    _met: set[Effect] = field(factory=set)
    """The effects of the steps that a halt met."""
    fatal: Exception | None = None
    _asked: int = 0
    _reported: int = 0
    _failures: list[Recorded] = field(factory=list)
    """Steps that failed without effect and are not stored yet."""
    _keeping: trio.StrictFIFOLock = field(factory=trio.StrictFIFOLock)
    _replaying: set[Branch] = field(factory=set)
    """Branches that got a recorded outcome and have not asked for another operation since."""
    _repeated: int = 0
    """Questions that are being asked again: a person may take long to answer."""
    _advanced: trio.Event = field(factory=trio.Event)
    """Set when a branch has asked for an operation or has ended."""

    @property
    def effect(self) -> Effect:
        """The effect of the steps that a halt met, once they have ended."""
        return "unknown" if "unknown" in self._met else "done" if "done" in self._met else "none"

    # --- operations -----------------------------------------------------------------------------------------------

    async def perform(
        self,
        kind: OperationKind,
        title: str,
        asked: Any,
        live: Live,
        *,
        tools: Sequence[str] = (),
        again: Callable[[Outcome], bool] = lambda _found: False,
    ) -> Any:
        """Do or replay an operation, and return its value. Raises StepFailed, OutcomeUnknown and the `FATAL` errors.

        A recorded outcome that is `again` to be made is not replayed.
        """
        if self.fatal is not None:
            raise self.fatal
        branch = BRANCH.get()
        self._advance(branch)
        try:
            if branch.cancelled and self.stopping():
                # Clean-up of a stopped job: not recorded, so a job that resumes from here continues where this one was
                # stopped.
                operation = Operation.of("", kind, title, asked)
                return results_of(await live(operation), operation, tools)
            operation = Operation.of(branch.next(), kind, title, asked)
            self._check_amount(operation, len(tools))
            outcome = self.history.take(operation)
            if outcome is None:
                await self._caught_up("")
                outcome = await self._do(operation, live)
            elif outcome.missed:
                # The part that failed will cancel this one, as it did in the recorded run.
                with trio.move_on_after(REPLAY_TIMEOUT):
                    await trio.sleep_forever()
            elif again(outcome):
                found = outcome
                self._replaying.add(branch)
                # What moves waits for the person. A reading may wait for another part's step: it holds up nothing.
                asks = kind == "ask_person"
                self._repeated += asks
                try:
                    outcome = await live(operation)
                finally:
                    self._repeated -= asks
                if kind == "ask_person":
                    async with self._shielded():
                        await self._keep(Recorded(operation, outcome))
                else:
                    # Its place in time stays: what the function computed from that is on record.
                    outcome = evolve(outcome, elapsed_s=found.elapsed_s)
                await trio.lowlevel.checkpoint_if_cancelled()
            else:
                self._replaying.add(branch)
                await trio.lowlevel.checkpoint()
            branch.elapsed_s = max(branch.elapsed_s, outcome.elapsed_s)
        except FATAL as error:
            self.fatal = error
            raise
        return results_of(outcome, operation, tools)

    def _advance(self, branch: Branch) -> None:
        self._replaying.discard(branch)
        self._advanced.set()
        self._advanced = trio.Event()

    async def _caught_up(self, prefix: str) -> None:
        """Wait until the parts beneath a position have reached their last recorded operations.

        Otherwise a part could do an operation that it never reached, because another part had failed by then.
        """
        while self.history.awaits(prefix) or any(one.prefix.startswith(prefix) for one in self._replaying):
            with trio.move_on_after(REPLAY_TIMEOUT) as waiting:
                await self._advanced.wait()
            if waiting.cancelled_caught and not self._repeated:
                # The parts wait for each other by other means than the job's.
                return

    def _check_amount(self, operation: Operation, steps: int) -> None:
        most = self.services.settings.max_steps
        self._asked += 1
        self.steps_asked += steps
        if self.steps_asked > most:
            raise TooMuch(f"{operation} would be step {self.steps_asked}, and a job may do {most} ([hcp] max_steps)")
        if self._asked > (most := most * OPERATIONS_PER_STEP):
            raise TooMuch(f"{operation} would be operation {self._asked}, and a job may do {most} ([hcp] max_steps)")

    async def _do(self, operation: Operation, live: Live) -> Outcome:
        """Do an operation and store its outcome."""
        if self._failures or self._keeping.locked():
            async with self._keeping:
                # The function goes on after a step that failed: from here on the failure is part of its course.
                await self._keep_failures()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        outcome = await live(operation)
        cancelled = trio.current_effective_deadline() <= trio.current_time()
        missed = cancelled and self.fatal is None and not self.stopping()
        if outcome.status == "failed" and outcome.effect == "none":
            if not cancelled:
                self._failures.append(Recorded(operation, outcome))
        elif missed or outcome.status != "unknown":
            # At once, even if the job is being stopped: a job that resumes from here must not do it again.
            async with self._shielded():
                if missed:
                    outcome = evolve(outcome, missed=True)
                    await self._keep_failures()
                await self._keep(Recorded(operation, outcome))
        if cancelled:
            await trio.lowlevel.checkpoint_if_cancelled()
        return outcome

    async def _keep_failures(self) -> None:
        while self._failures:
            await self._keep(self._failures.pop(0))

    @asynccontextmanager
    async def _shielded(self) -> AsyncIterator[None]:
        with trio.CancelScope(shield=True):
            await take(self._keeping)
            try:
                yield
            finally:
                self._keeping.release()

    async def _keep(self, recorded: Recorded) -> None:
        """Store an outcome: from here on a job can resume after it. Raises JobStoreError."""
        number, operation, outcome = self.done + 1, recorded.operation, recorded.outcome
        entries: list[Entry] = []
        if operation.kind in ANNOUNCED:
            description = (
                operation.what if outcome.status == "done" else f"{operation.what}: {outcome.error or outcome.status}"
            )
            checkpoint = {
                "checkpoint_id": checkpoint_id(self.session_id, number),
                "description": description[:200],
                "resumable": True,
                "created_at": write_instant(self.services.clock()),
            }
            entries.append(("checkpoint_created", checkpoint))
            if (progress := self.progress(None, f"{self.steps_asked} steps done")) is not None:
                entries.append(("progress", progress))
        await self.events.record(number, recorded.write(), *entries)
        self.done = number
        self.begun.discard(operation.position)
        self.announced += len(entries) > 0

    # --- steps ----------------------------------------------------------------------------------------------------

    async def run_steps(
        self, kind: OperationKind, steps: Sequence[Step], constraints: Mapping[str, Any], *, replay: bool = False
    ) -> Any:
        """Run steps as one task. Raises as `perform`, and CapabilityFailed for a tool that is not declared.

        With `replay`, a job that resumes gets the recorded results of steps that only read.
        """
        reads = [step.expect.tool for step in steps if step.expect is not None]
        tools = [step.tool for step in steps]
        self._check_tools([*tools, *reads])
        asked: Any = [_asked(step) for step in steps]
        title = tools[0] if kind == "run" else ""
        if kind == "run" and not reads:
            asked = steps[0].args
        elif constraints:
            asked = {"steps": asked, **constraints}
        name = tools[0] if len(tools) == 1 else f"{tools[0]} and {len(tools) - 1} more"
        registry = self.services.registry
        reading = [(tool := registry.get(step.tool)) is not None and not tool.risk_of(step.args) for step in steps]
        reads_only = all(reading)
        # A reading made in one task with a step that moves is not made again: that would move again.
        replayed = replay if reads_only else any(reading)

        async def live(operation: Operation) -> Outcome:
            if not BRANCH.get().cleaning:
                # The token expires with max_duration. Clean-up may run later, within a time limit of its own.
                self.authorize()
            noted = not reads_only and await self._note(operation)
            meets = not reads_only and not self.halted
            try:
                outcome = await self.steps.do(name, steps, **constraints)
            except StepsEnded as error:
                if noted and not error.begun:
                    await self._withdraw(operation)
                if meets and self.halted and error.begun:
                    self._met.add("unknown")
                raise
            if meets and self.halted:
                self._met.add("done" if outcome.status == "done" else outcome.effect)
            if noted and outcome.status == "failed" and outcome.effect == "none":
                await self._withdraw(operation)
            elif not noted and outcome.status != "done":
                # A step without a possible effect is done again by a job that resumes from here.
                error_data = {**(outcome.error_data or {}), "effect": "none"}
                return evolve(outcome, status="failed", error=outcome.error or "unknown", error_data=error_data)
            return evolve(outcome, acted=not reads_only, replayed=replayed)

        def again(found: Outcome) -> bool:
            return self.acts and reads_only and not replay and found.status == "done"

        return await self.perform(kind, title, asked, live, tools=tools, again=again)

    def _check_tools(self, tools: Sequence[str]) -> None:
        cleaning = BRANCH.get().cleaning
        declared = self.capability.clean_up if cleaning else self.capability.tools
        for tool in tools:
            found = self.services.registry.get(tool)
            # A tool whose calls mean steps of other tools: the task admits the steps that are declared.
            if tool not in declared and (found is None or found.resolves_to.isdisjoint(declared)):
                where = "clean_up" if cleaning else "tools"
                reason = f"{self.capability.name} uses {tool}, which is not among the {where} that it declares"
                raise CapabilityFailed(f"{reason}; add it there", "internal_error")

    async def _note(self, operation: Operation) -> bool:
        """Note that steps begin, and return True; False in clean-up that is not recorded. Raises JobStoreError."""
        if not operation.position:
            return False
        # Shielded: cancelled in between, the store could have a note that `begun` lacks.
        with trio.CancelScope(shield=True):
            await self.services.job_store.begin(self.session_id, operation.position, asdict(operation))
        self.begun.add(operation.position)
        return True

    async def _withdraw(self, operation: Operation) -> None:
        with trio.CancelScope(shield=True):
            await self.services.job_store.withdraw(self.session_id, operation.position)
        self.begun.discard(operation.position)

    # --- operations that are not steps --------------------------------------------------------------------------------

    async def sleep_until(self, kind: OperationKind, asked: Any, until_s: float) -> None:
        """Wait until the job is this old, in seconds."""

        async def live(_operation: Operation) -> Outcome:
            await trio.sleep(max(0.0, until_s - self.elapsed()))
            return Outcome(elapsed_s=self.elapsed())

        await self.perform(kind, "", asked, live)

    async def value(self, kind: OperationKind, make: Callable[[], Any]) -> Any:
        """Make a value once and record it; a replay returns the same one."""

        async def live(_operation: Operation) -> Outcome:
            return Outcome(elapsed_s=self.elapsed(), value=make())

        return await self.perform(kind, "", None, live)

    async def plan(self, intent: str) -> Mapping[str, Any]:
        """Have a model propose steps; see `planning.propose`. Raises as `perform`."""

        async def live(_operation: Operation) -> Outcome:
            # Imported here: most jobs ask no model.
            from hearth.actors.bridges.hcp.planning import propose

            try:
                found = await propose(self.planning, self.services.model, intent, self.steps.max_risk_level)
            except (ModelError, ConfigError, RpcError) as error:
                none = {"effect": "none"}
                return Outcome(status="failed", elapsed_s=self.elapsed(), error=str(error), error_data=none)
            return Outcome(elapsed_s=self.elapsed(), value=found)

        found: Mapping[str, Any] = await self.perform("plan", "", intent, live, tools=("job.plan",))
        return found

    async def ask(self, question: str, *, steps: Sequence[Mapping[str, Any]] = ()) -> Answer:
        """Ask a person, about these steps if there are any; the job's state is PAUSED for that time."""

        async def live(_operation: Operation) -> Outcome:
            proposed = {"steps": list(steps)} if steps else {}
            about = {"question": question, **proposed, "message_id": "", "session_id": self.session_id, **self.about}
            asked = Question(
                "job",
                self.principal,
                ANOTHER_PERSON,
                about,
                halts=self.halts,
                acts=self.acts,
                session_id=self.session_id,
            )
            if self.events.state == "RUNNING":
                await self.events.move("PAUSED", f"asks a person: {question}"[:200])
            try:
                answer = await self._answer(asked)
                # In the turn of the decision: what changes while the next message is stored is newer than the answer.
                stamp, given_at = self.services.stamp(), self.services.clock()
            finally:
                if self.events.state == "PAUSED" and not self.stopping():
                    await self.events.move("RUNNING", "asks a person no longer")
            if answer.approved and stamp != self.services.stamp():
                return await live(_operation)
            return Outcome(elapsed_s=self.elapsed(), value=asdict(answer), stamp=stamp, given_at=given_at)

        asked_about: Any = [question, *steps] if steps else question
        return Answer(**await self.perform("ask_person", "", asked_about, live, again=self._expired))

    def _expired(self, found: Outcome) -> bool:
        """Return True for a recorded answer that is not for this run any more: a person is asked again."""
        age = self.services.clock() - found.given_at
        return found.stamp != self.services.stamp() or not 0 <= age <= self.services.settings.approval_timeout_s

    async def _answer(self, question: Question) -> Answer:
        try:
            decision = await self.services.ask(question)
        except Rejection as rejection:
            if rejection.reason_code != "approval_timeout":
                # The daemon is ending, or is halted, and cancels this job.
                await trio.sleep_forever()
            return Answer(approved=False, by="", reason=rejection.message)
        self.services.audit(
            "hcp.approve" if decision.approved else "hcp.deny",
            hcp_session=self.session_id,
            principal=self.principal,
            by=decision.by,
            capability=self.capability.name,
            reason=decision.reason,
        )
        return Answer(decision.approved, decision.by, decision.reason)

    async def gather(self, parts: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Run parts side by side, and return their results in order. Raises the failure of the first failed part."""
        parent = BRANCH.get()
        position = parent.next()
        self._advance(parent)
        branches = [
            Branch(f"{position}.{index}.", parent.elapsed_s, parent.cleaning, parent.cancelled)
            for index in range(len(parts))
        ]
        results: dict[int, T] = {}
        failures: dict[int, BaseException] = {}

        async def run(index: int) -> None:
            BRANCH.set(branches[index])
            try:
                results[index] = await awaited(self.watched(parts[index]()))
            except Raised as raised:
                failures[index] = raised.error
                self._advance(branches[index])
                # In a replay, the siblings first reach the positions that they had in the recorded run.
                await self._caught_up(f"{position}.")
                nursery.cancel_scope.cancel()
            finally:
                self._advance(branches[index])

        async with trio.open_nursery() as nursery:
            for index in range(len(parts)):
                nursery.start_soon(run, index)
        parent.elapsed_s = max([parent.elapsed_s, *(branch.elapsed_s for branch in branches)])
        self.history.forget(f"{position}.")
        if self.fatal is not None:
            raise self.fatal
        if failures:
            raise failures[min(failures)]
        return [results[index] for index in range(len(parts))]

    # --- events and files ---------------------------------------------------------------------------------------------

    async def report(self, *entries: Entry) -> None:
        """Send the function's events, except those that were sent before a crash. Raises JobStoreError."""
        if self.fatal is not None:
            raise self.fatal
        self._reported += 1
        if self.history.replaying or self._reported > self.services.settings.max_steps:
            return
        try:
            for one in entries:
                if isinstance(one, tuple) and (size := len(orjson.dumps(one[1]))) > MOST_REPORT_BYTES:
                    message = f"a capability's event of {size} bytes was left out: its place is an artifact"
                    await self.warn("event_too_large", message, {})
                else:
                    await self.events.write(one)
        except JobStoreError as error:
            self.fatal = error
            raise

    async def caution(self, code: str, message: str, more: Mapping[str, Any]) -> None:
        """Send a warning of the function, unless it was sent before a crash. Raises JobStoreError."""
        if self.fatal is not None:
            raise self.fatal
        if not self.history.replaying:
            try:
                await self.warn(code, message, more)
            except JobStoreError as error:
                self.fatal = error
                raise

    def leave(self, artifact: ArtifactFile) -> None:
        """Note a file to keep when the job ends. Raises CapabilityFailed, ValueError."""
        if not _FILE_NAME.fullmatch(artifact.file):
            raise ValueError(f"{artifact.file!r}: an artifact's file name takes letters, digits, '.', '_' and '-'")
        if artifact.file not in self.files and len(self.files) >= MOST_FILES:
            raise CapabilityFailed(f"{artifact.file} is one artifact too many: a job may leave {MOST_FILES}")
        most = self.services.settings.max_artifacts_bytes
        others = (one for name, one in self.files.items() if name != artifact.file)
        if sum(len(one.content or b"") for one in (artifact, *others)) > most:
            raise CapabilityFailed(f"with {artifact.file} the artifacts would have more than {most} bytes")
        self.files[artifact.file] = artifact


def _asked(step: Step) -> list[Any]:
    """Return a step as the record of operations has it."""
    return [step.tool, step.args] if step.expect is None else [step.tool, step.args, step.expect.to_wire()]


def checkpoint_id(session_id: str, number: int) -> str:
    """Return the name of the checkpoint after this many operations."""
    return f"ckpt-{session_id}-{number:06d}"


LONG_S: Final = 0.1
"""Seconds after which a stretch between two awaits is reported."""
STUCK_S: Final = 2.0
"""Seconds after which a stretch that has not ended is reported."""

log = logging.getLogger("hearth.hcp")


class LimitWatch:
    """The watch on one job's code. `report` is called after a long stretch, with its seconds."""

    def __init__(self, name: str, report: Callable[[float], None]) -> None:
        self._name = name
        self.report = report
        self.began: float | None = None
        """When the present stretch began, by `time.perf_counter`; None between two."""
        self._over = threading.Event()

    async def over(self, code: Awaitable[Any]) -> Any:
        """Await the job's code, measuring each stretch."""
        return await _Stretches(code, self)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Run the thread that looks for a stretch that does not end, until the block ends."""
        looking = threading.Thread(
            target=self._look, args=(threading.get_ident(),), name="hearth-hcp-watch", daemon=True
        )
        looking.start()
        try:
            yield
        finally:
            self._over.set()

    def _look(self, loop: int) -> None:
        reported: float | None = None
        while not self._over.wait(STUCK_S / 2):
            began = self.began
            if began is None or began == reported or time.perf_counter() - began < STUCK_S:
                continue
            reported = began
            frame = sys._current_frames().get(loop)
            place = "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
            log.error("%s has held the event loop for %g s, at %s: nothing else is served", self._name, STUCK_S, place)


class _Stretches(Generator[Any, Any, Any]):
    """An awaitable that runs another one, stretch by stretch."""

    def __init__(self, code: Awaitable[Any], watch: LimitWatch) -> None:
        self._code: Any = code.__await__()
        self._watch = watch

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def send(self, value: Any, /) -> Any:
        return self._stretch(self._code.send, value)

    def throw(self, *error: Any) -> Any:
        return self._stretch(self._code.throw, *error)

    def _stretch(self, resume: Callable[..., Any], *given: Any) -> Any:
        """Measure one stretch: the time until the code awaits something, or ends."""
        self._watch.began = began = time.perf_counter()
        try:
            return resume(*given)
        finally:
            self._watch.began = None
            if (seconds := time.perf_counter() - began) > LONG_S:
                self._watch.report(seconds)
