"""The interfaces that an embedded program and a remote client share, and the values they speak in: sessions and jobs.

Two things implement them: `hearth.client` over a carrier and `hearth.actors.runtime` in the process. Code written
against this module runs unchanged on either. Nothing here does I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from attrs import field, frozen

from hearth.errors import JobFailed, TaskFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from datetime import datetime

    from hearth.hcp.messages import Artifact, ErrorCode, ErrorDetails, ExecutionSummary, State, TaskAccepted

Status: TypeAlias = Literal["QUEUED", "RUNNING", "SUCCESS", "FAILED", "CANCELLED"]
Phase: TypeAlias = Literal["start", "progress", "finish", "task_finish"]

TERMINAL: frozenset[str] = frozenset(("SUCCESS", "FAILED", "CANCELLED"))
"""The statuses a task ends in; it reaches exactly one of them (draft §5)."""


@frozen
class Step:
    """One tool invocation (draft §3.4)."""

    tool: str
    args: Mapping[str, Any] = field(factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """The element of `task.steps`."""
        return {"tool": self.tool, "args": dict(self.args)}


def step(tool: str, /, **args: Any) -> Step:
    """Build a step: `step("gpio.set", line=17, value=1)`."""
    return Step(tool, args)


@frozen
class StepResult:
    """What became of one step (draft §3.5). `error*` are set only when it failed; times are in milliseconds."""

    tool: str
    status: Status
    result: Mapping[str, Any] | None = None
    latency_ms: float | None = None
    error: str | None = None
    error_code: int | None = None
    error_data: Mapping[str, Any] | None = None
    rolled_back: bool | None = None


@frozen
class TaskResult:
    """A task as task.get shows it (draft §3.5)."""

    task_id: str
    status: Status
    intent: str
    steps: Sequence[StepResult] = ()
    error: str | None = None

    @property
    def done(self) -> bool:
        """True once the status is terminal."""
        return self.status in TERMINAL

    def raise_for_status(self) -> TaskResult:
        """Return self if the task succeeded; otherwise raise TaskFailed naming the first step that did not."""
        if self.status == "SUCCESS":
            return self
        for index, result in enumerate(self.steps):
            if result.status != "SUCCESS":
                why = result.error or result.status.lower()
                raise TaskFailed(f"task {self.task_id} {self.status}: step {index} ({result.tool}): {why}")
        raise TaskFailed(f"task {self.task_id} {self.status}: {self.error or 'no step failed'}")


@frozen
class TaskEvent:
    """One task.event notification (draft §8). `data` holds the fields beyond those of the draft.

    From a server that sends no events they are made from task.get: `ts` is then when this client saw the change, and
    there is no `progress`.
    """

    task_id: str
    seq: int
    phase: Phase
    ts: str
    step_index: int | None = None
    data: Mapping[str, Any] = field(factory=dict)


class Task(Protocol):
    """A submitted task."""

    @property
    def task_id(self) -> str:
        """The identifier task.submit returned."""
        ...

    def events(self, *, from_seq: int = 1) -> AsyncIterator[TaskEvent]:
        """Every event from `from_seq` on, ending after `task_finish`.

        Leaving the loop early ends the subscription; a timeout around one event loses none.
        """
        ...

    async def wait(self) -> TaskResult:
        """Wait until the task is terminal and return its result; does not raise for a failed task."""
        ...

    async def get(self) -> TaskResult:
        """The task as it stands (task.get)."""
        ...

    async def cancel(self) -> str:
        """Ask for cooperative cancellation (task.cancel); returns "CANCELLING", or how the task has ended already."""
        ...


class Session(Protocol):
    """An open session: `async with ....open_session(client_name="arm") as session`."""

    @property
    def session_id(self) -> str:
        """The identifier session.open returned."""
        ...

    @property
    def capabilities(self) -> Sequence[str]:
        """The capability flags the session may really use."""
        ...

    async def tools(self) -> list[dict[str, Any]]:
        """The entries of tool.list."""
        ...

    async def call(self, method: str, /, **params: Any) -> Mapping[str, Any]:
        """Ask this session something that there is no coroutine for here. Raises RpcError.

        Params that the server does not know are refused (`strict`, docs/reference/methods.md); strict=False lets it
        ignore them.
        """
        ...

    async def submit(
        self, intent: str, steps: Sequence[Step | Mapping[str, Any]], *, follow: bool = False, **constraints: Any
    ) -> Task:
        """Submit a task (draft §3.4); keyword arguments are its constraints, `idempotency_key` is the task's own.

        `follow` asks for its events in the same request, for whoever is about to read them: it saves a round trip.
        Raises the RpcError subclass the server answered with; InvalidParams for a constraint, or an argument of a
        tool, that nobody knows.
        """
        ...

    async def run(self, tool: str, /, **args: Any) -> Mapping[str, Any]:
        """Submit one step, wait, and return its result; a step that failed raises its error's class."""
        ...

    async def task(self, task_id: str) -> Task:
        """A handle on a task submitted earlier. Raises TaskNotFound."""
        ...

    async def close(self) -> int:
        """Close the session; returns how many of its tasks are still yielding (0 when all have)."""
        ...


# --- whole jobs (HCP) -----------------------------------------------------------------------------------------------

ENDED: frozenset[str] = frozenset(("COMPLETED", "FAILED", "ABORTED"))
"""The states that a job which was accepted ends in; it reaches exactly one of them (HCP L2, State Definitions)."""


@frozen(kw_only=True)
class JobEvent:
    """One event of a job (HCP L2, Event Envelope). `at` is when it was sent, in UTC."""

    session_id: str
    sequence: int
    event_type: str
    """progress, checkpoint_created, …; one that is not L2's is passed on as it came."""
    data: Mapping[str, Any]
    at: datetime | None = None


@frozen(kw_only=True)
class JobResult:
    """How a job has ended, and what it leaves behind (HCP L4, Task Completion and Task Failure)."""

    session_id: str
    state: State
    """One of `ENDED`."""
    outputs: Mapping[str, Any] = field(factory=dict)
    """Of a job that did not complete: what it had by then."""
    artifacts: tuple[Artifact, ...] = ()
    """Files it leaves behind; `artifact(uri)` fetches one."""
    summary: ExecutionSummary | None = None
    reason: str | None = None
    """In a word, why it ended, where that was said."""
    error_code: ErrorCode | None = None
    error_message: str | None = None
    details: ErrorDetails | None = None
    """Of a failure: where it was, its last checkpoint, and whether it is of use to go on from there."""

    @property
    def completed(self) -> bool:
        """True if it did what it was asked to."""
        return self.state == "COMPLETED"

    def raise_for_state(self) -> JobResult:
        """Return self if the job completed; otherwise raise JobFailed with the reason."""
        if self.completed:
            return self
        why = self.error_message or self.reason or "no reason was given"
        code = f" ({self.error_code})" if self.error_code else ""
        raise JobFailed(f"job {self.session_id} {self.state}{code}: {why}", self.error_code)


class JobHandle(Protocol):
    """A job that was handed over and accepted: `job = await client.delegate("bench-climate-survey", …)`.

    It goes on whether or not anybody follows it, and when its caller's connection has ended, too.
    """

    @property
    def session_id(self) -> str:
        """Names the job on any connection of the same principal; `attach_job` takes it."""
        ...

    @property
    def accepted(self) -> TaskAccepted | None:
        """What was promised: risk, data classification, limits. None for a job attached to after its beginning."""
        ...

    @property
    def state(self) -> State:
        """As far as its messages have told."""
        ...

    @property
    def last_processed_sequence(self) -> int:
        """The newest event that has come in order: what a caller keeps who wants to go on after it (HCP L2)."""
        ...

    def events(self, *, from_sequence: int | None = None) -> AsyncIterator[JobEvent]:
        """Every event from there on, or from where this was attached, each once and in order; ends after the last.

        Leaving the loop early ends nothing but the reading; a timeout around one event loses none. Raises CarrierError
        when the connection ends before the job does.
        """
        ...

    async def wait(self) -> JobResult:
        """Wait until the job has ended; does not raise for one that failed. Raises CarrierError as `events` does.

        A callee that has said how the job ended and does not close its session is waited for no longer than 5 s.
        """
        ...

    async def abort(self, reason: str | None = None) -> State:
        """Have it end in an orderly way: no step begins any more, and one that has begun on a bus finishes.

        Returns once that is under way ("ABORTING") or the job has ended, how it did. Raises JobRejected.
        """
        ...
