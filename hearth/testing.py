"""Run a capability in a test: on a simulated board, in virtual time, with faults and crashes.

    from hearth.testing import run_capability

    def test_survey() -> None:
        result = run_capability(survey, {"samples": 5, "interval_s": 60})  # 4 virtual minutes
        assert result.state == "COMPLETED"
        assert result.outputs["samples"] == 5

It runs hearth itself: the gate, the job store, sessions, buses and the audit log, in a temporary directory that is
removed afterwards. Two things differ from hearthd. The clock jumps over every wait as soon as nothing is left to do.
The policy allows every risk, since a test is about the capability.
"""

from __future__ import annotations

import inspect
import math
import random
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import trio
from attrs import define, evolve, field, frozen

from hearth._util import threads
from hearth._util.exceptions import sole
from hearth.actors.bridges.hcp.store.queries import JobStoreError
from hearth.actors.build import build_parts
from hearth.actors.embedded import EmbeddedRuntime, open_all, serve_parts
from hearth.client.jobs import JobsClient
from hearth.config.model import AuditConfig, Config
from hearth.drivers.base import Style
from hearth.drivers.boards import Board, load_profile, open_board
from hearth.errors import DeviceError
from hearth.hcp import require
from hearth.hcp.capability import CapabilitySet
from hearth.policy.principal import from_token
from hearth.policy.rules import Match, PolicyEntry
from hearth.tools import Done, ToolRegistry

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping

    from hearth.actors.bridges.hcp.store import JobStore
    from hearth.actors.runtime import RuntimeParts
    from hearth.client.job_handle import ClientJob
    from hearth.hcp.api import JobEvent, JobResult
    from hearth.hcp.capability import Capability
    from hearth.tools import Args, StepContext, Tool

NEW_YEAR = 1_767_225_600.0
"""Epoch seconds at which each run begins: 2026-01-01T00:00:00Z."""
_POLICY = (PolicyEntry(name="test", match=Match(any=True), max_risk=3, rights=["approve"]),)
_PATIENCE_S = 30.0
"""Real seconds that a disk may take: virtual time stands still for it."""
_OUTSIDE = ("trio._threads", "to_thread_run_sync")
"""The function (module, name) that waits for a thread."""


@frozen(kw_only=True)
class RanStep:
    """A step that a capability executed. A step that is replayed after a crash is not executed, and is not listed."""

    tool: str
    args: Mapping[str, Any]
    result: Mapping[str, Any] | None = None
    """None for a step that failed."""
    error: str | None = None


@frozen(kw_only=True)
class CapabilityRun:
    """The outcome of a job."""

    state: Literal["COMPLETED", "FAILED", "ABORTED"]
    outputs: Mapping[str, Any]
    """For a job that did not complete: the values that it had given to `job.partial`."""
    error_code: str | None
    error_message: str | None
    artifacts: Mapping[str, bytes]
    """The files of `job.artifact` and `job.plot`, by file name."""
    warnings: tuple[str, ...]
    events: tuple[JobEvent, ...]
    """The events that the caller received, in order, those before a crash included."""
    steps: tuple[RanStep, ...]
    """The executed steps, in the order in which they ended, those before a crash included."""
    done_twice: tuple[str, ...]
    """Operations that were on record when hearth crashed and were executed again: none, unless hearth has a bug."""
    duration_s: float
    """Seconds of virtual time from the submission to the end."""


def run_capability(
    function: Callable[..., Any],
    inputs: Mapping[str, Any] | None = None,
    *,
    board: str | os.PathLike[str] | Board = "sim",
    prepare: Callable[[Board], Any] | None = None,
    crash_at: int | str | None = None,
    answer: bool | Callable[[str], bool] = True,
    seed: int = 0,
    config: Config | None = None,
) -> CapabilityRun:
    """Run one job of a capability to its end, in virtual time, and return its outcome.

    `function` is decorated with @capability. `board` is a profile, by its name or file, or a Board that was opened with
    `Style.ASYNC`; all of its buses are simulated. `prepare` gets the board once it is in use, to set the readings and
    faults of its devices; a coroutine function runs beside the job, in the same virtual time.

    With an integer `crash_at`, hearth is killed once that many operations of the job are on record. With the name of a
    tool, hearth is killed when the tool's first step is done and not on record yet. The job is then resumed from its
    last checkpoint; a job without a checkpoint has failed. `answer` is the person's answer to an approval and to
    `job.ask_person`; a callable gets the question. `seed` fixes the readings of the simulated devices and the values of
    `job.random`. `config` is for tools that need one, such as [files].

    Call it from a plain function, not from a coroutine. Raises JobRejected if the gate refuses the job, ValueError,
    with all faults, for a function that hearthd would refuse, and ConfigError without the packages of hearthd[hcp].
    """
    require("run_capability")
    run = _TestRun(function, dict(inputs or {}), _simulated(board, seed), config or Config(), answer, crash_at)
    clock, state, patience = _Clock(), random.getstate(), threads.PATIENCE_S
    random.seed(seed)
    threads.PATIENCE_S = _PATIENCE_S
    try:
        with tempfile.TemporaryDirectory(prefix="hearth-testing-") as directory:
            return trio.run(run.whole, Path(directory), prepare, clock=clock, instruments=[clock])
    except BaseExceptionGroup as group:
        raise sole(group) from None
    finally:
        random.setstate(state)
        threads.PATIENCE_S = patience


# --- time -----------------------------------------------------------------------------------------------------------


class _Clock(trio.abc.Clock, trio.abc.Instrument):
    """A clock that jumps to the next deadline once nothing is left to do before it.

    Nothing is left to do if a poll of all descriptors made no task run, and no task waits for a thread. A thread takes
    real time: the clock stands still until it ends, however busy the machine is.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._looked = False
        """True if the descriptors were polled and no task has run since."""
        self._ran: set[trio.lowlevel.Task] = set()
        """Tasks that have run since it was last determined what they wait for."""
        self._outside: set[trio.lowlevel.Task] = set()
        """Tasks that wait for a thread."""

    def start_clock(self) -> None:
        """See trio.abc.Clock."""

    def current_time(self) -> float:
        """See trio.abc.Clock."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """See trio.abc.Clock. Trio calls it when no task can run, and waits for descriptors for that many seconds."""
        # First poll the descriptors without waiting: a task may become runnable by what is already there.
        if not self._looked:
            self._looked = True
            return 0.0
        for task in self._ran:
            (self._outside.add if _waits_outside(task) else self._outside.discard)(task)
        self._ran.clear()
        if self._outside or deadline == math.inf:
            return math.inf
        self._now = max(self._now, deadline)
        self._looked = False
        return 0.0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """See trio.abc.Instrument."""
        self._looked = False
        self._ran.add(task)


def _waits_outside(task: trio.lowlevel.Task) -> bool:
    return any(
        (frame.f_globals.get("__name__"), frame.f_code.co_name) == _OUTSIDE for frame, _ in task.iter_await_frames()
    )


# --- the run --------------------------------------------------------------------------------------------------------


@define(eq=False)
class _TestRun:
    """One job, over one life of a runtime, or over two with a crash between them."""

    _function: Callable[..., Any]
    _inputs: Mapping[str, Any]
    _board: Board
    _config: Config
    _answer: bool | Callable[[str], bool]
    _crash_at: int | str | None
    _steps: list[RanStep] = field(factory=list)
    _events: list[JobEvent] = field(factory=list)
    _lives: list[dict[str, str]] = field(factory=list)
    """For each life of the runtime, the operations that it put on record: position -> operation."""
    _kill: Callable[[], Awaitable[None]] | None = None
    """Kills hearth; None in a life that is not to be killed, and once it was killed."""
    _killed: bool = False
    _submitted: float = math.inf
    _life: trio.CancelScope = field(factory=trio.CancelScope)
    _asked: trio.Event = field(factory=trio.Event)
    """Set while a person may be asked something."""

    async def whole(self, directory: Path, prepare: Callable[[Board], Any] | None) -> CapabilityRun:
        """Run the job to its end."""
        first, second = directory / "first", directory / "second"
        first.mkdir()
        async with trio.open_nursery() as world:
            run = await self._live(first, second, partial(_prepared, prepare, self._board, world))
            if run is None:
                run = await self._live(second, None)
            elif self._crash_at is not None:
                done = f"it put {len(self._lives[0])} operations on record"
                raise ValueError(f"crash_at={self._crash_at!r}: the job ended before; {done}")
            world.cancel_scope.cancel()
        assert run is not None
        return run

    async def _live(
        self, place: Path, after_crash: Path | None, begin: Callable[[], None] = lambda: None
    ) -> CapabilityRun | None:
        """Run one life of a runtime; return None if it was killed. The disk is then copied to `after_crash`."""
        self._lives.append({})
        parts = self._parts(place)
        (name,) = parts.extras["hcp"].capabilities
        storage = open_all(parts).extras["hcp"].storage
        self._watch(storage.open(parts.clock()).job_store, place, after_crash)
        run = None
        async with serve_parts(parts) as runtime, trio.open_nursery() as nursery:
            begin()
            nursery.start_soon(self._person, runtime)
            jobs = JobsClient(runtime)
            with trio.CancelScope() as self._life:
                ended = await self._job(jobs, name)
                run = await self._outcome(jobs, ended, trio.current_time() - self._submitted)
            nursery.cancel_scope.cancel()
        return run

    async def _job(self, jobs: JobsClient, name: str) -> JobResult:
        """Submit the job, or resume the one that the crash ended, and wait for its end."""
        context = None
        if self._killed:
            (crashed,) = await jobs.jobs()
            ended = await (await jobs.attach_job(crashed["session_id"])).wait()
            if ended.details is None or ended.details.last_checkpoint is None:
                return ended
            context = {"last_checkpoint": ended.details.last_checkpoint}
        self._submitted = min(self._submitted, trio.current_time())
        self._asked.set()
        job = await jobs.delegate(name, "a test", self._inputs, context=context)
        self._asked = trio.Event()
        async with trio.open_nursery() as following:
            following.start_soon(self._follow, job)
            return await job.wait()

    # --- the parts of a runtime ---

    def _parts(self, place: Path) -> RuntimeParts:
        audit = AuditConfig(path=place / "audit.log", reserve_bytes=0)
        jobs = evolve(self._config.hcp, capabilities=(), shipped=())
        config = evolve(self._config, audit=audit, policy=(), extras={**self._config.extras, "hcp": jobs})
        parts = build_parts(
            config, default_policy=_POLICY, board=self._board, clock=lambda: NEW_YEAR + trio.current_time()
        )
        _require_simulated(parts.board)  # a vendor's tools may have added drivers
        for driver in parts.drivers.values():
            if driver.style is Style.THREAD:
                # Run the driver in the loop: the clock would have to wait for its thread, in real time.
                driver.style = Style.ASYNC
        tools = ToolRegistry([self._noting(tool) for tool in parts.registry.values()])
        parts.extras["hcp"].capabilities = CapabilitySet([_declared(self._function, tools)])
        return evolve(parts, registry=tools)

    def _noting(self, tool: Tool) -> Tool:
        """Return the tool, recording each step, and failing once hearth was killed."""
        life = len(self._lives)

        async def run(ctx: StepContext, args: Args) -> Mapping[str, Any] | Done:
            if self._killed and life == 1:
                raise DeviceError("hearth was killed", effect="none")
            try:
                value = await tool.run(ctx, args)
            except BaseException as error:
                self._steps.append(RanStep(tool=tool.name, args=args, error=str(error) or type(error).__name__))
                raise
            result = value.result if isinstance(value, Done) else value
            self._steps.append(RanStep(tool=tool.name, args=args, result=result))
            if tool.name == self._crash_at and self._kill is not None:
                await self._kill()
                raise DeviceError("hearth was killed", effect="unknown")
            return value

        return evolve(tool, run=run)

    def _watch(self, job_store: JobStore, place: Path, after_crash: Path | None) -> None:
        """Note each operation that is put on record, and kill hearth at `crash_at`."""
        record, on_record = job_store.record, self._lives[-1]

        async def kill() -> None:
            self._killed, self._kill = True, None
            # Copy the disk as a crash would leave it, in the one thread that writes to the job store: no write is cut.
            await job_store.read(_copied, place, after_crash)
            self._life.cancel()

        async def watched(session_id: str, number: int, outcome: Mapping[str, Any], *args: Any, **more: Any) -> None:
            if self._killed and after_crash is not None:
                raise JobStoreError("hearth was killed")
            await record(session_id, number, outcome, *args, **more)
            on_record[outcome["position"]] = outcome["what"]
            if len(on_record) == self._crash_at and self._kill is not None:
                await self._kill()
                raise JobStoreError("hearth was killed")

        self._kill = None if after_crash is None else kill
        job_store.record = watched  # type: ignore[method-assign]

    # --- the caller and the person ---

    async def _follow(self, job: ClientJob) -> None:
        async for event in job.events():
            self._events.append(event)
            if event.event_type == "state_changed":
                asked = trio.Event()
                if event.data.get("to_state") == "PAUSED":
                    asked.set()
                self._asked.set()
                self._asked = asked

    async def _person(self, runtime: EmbeddedRuntime) -> None:
        """Answer the questions to a person, as another principal: a caller cannot approve its own jobs."""
        principal = from_token("the person of hearth.testing")
        async with trio.open_nursery() as nursery:
            person = JobsClient(EmbeddedRuntime(runtime._runtime, principal, nursery))
            while True:
                await self._asked.wait()
                for question in await person.pending_approvals():
                    text = question.get("question") or f"Approve a job of {question['capability']}?"
                    yes = self._answer(text) if callable(self._answer) else self._answer
                    await person.decide(question["approval_id"], approve=yes)
                await trio.sleep(0.1)

    async def _outcome(self, jobs: JobsClient, ended: JobResult, duration_s: float) -> CapabilityRun:
        files = {one.uri.rpartition("/")[2]: await jobs.artifact(one.uri) for one in ended.artifacts}
        first, *later = self._lives
        return CapabilityRun(
            state=cast("Any", ended.state),
            outputs=ended.outputs,
            error_code=ended.error_code,
            error_message=ended.error_message,
            artifacts=files,
            warnings=tuple(
                one.data["message"]
                for one in self._events
                # How long the function computes is measured in real time, and differs from run to run.
                if one.event_type == "warning" and one.data["code"] != "event_loop_held"
            ),
            events=tuple(self._events),
            steps=tuple(self._steps),
            done_twice=tuple(what for life in later for position, what in life.items() if position in first),
            duration_s=duration_s,
        )


def _prepared(prepare: Callable[[Board], Any] | None, board: Board, world: trio.Nursery) -> None:
    begun = None if prepare is None else prepare(board)
    if inspect.isawaitable(begun):

        async def go_on() -> None:
            await begun

        world.start_soon(go_on)


def _declared(function: Callable[..., Any], tools: ToolRegistry) -> Capability:
    source = getattr(function, "__hearth_capability__", None)
    if source is None:
        raise ValueError(f"{function!r} is no capability: put @capability(…) from hearth above it")
    from hearth.hcp.declaration import declare  # needs the packages of hearthd[hcp]

    declared = declare(source, tools)
    if declared.capability is None:
        raise ValueError("\n".join(str(fault) for fault in declared.faults))
    return declared.capability


def _require_simulated(board: Board) -> None:
    """Raise ValueError for a board with a driver that does not say that it is simulated."""
    if real := ", ".join(board.real_buses()):
        raise ValueError(
            f'board {board.name!r} drives real hardware ({real}); name one whose buses have driver = "sim"'
        )


def _simulated(board: str | os.PathLike[str] | Board, seed: int) -> Board:
    if isinstance(board, Board):
        opened = board
    else:
        name = board if isinstance(board, str) else str(Path(board).absolute())
        opened = open_board(load_profile(name), style=Style.ASYNC, seed=seed)
    _require_simulated(opened)
    for bus, driver in opened.drivers.items():
        if driver.style is Style.THREAD:
            cure = "open the board with open_board(load_profile(…), style=Style.ASYNC)"
            raise ValueError(f"board {opened.name!r}: {bus} works in a thread, and its waits are real time; {cure}")
    return opened


def _copied(_file: object, place: Path, to: Path) -> None:
    shutil.copytree(place, to)
