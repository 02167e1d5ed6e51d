"""The Session interface that an embedded program and a remote client share, and the values it speaks in.

Two things implement it: `hearth.client` over a carrier and `hearth.actors.runtime` in the process. Code written against
this module runs unchanged on either. Nothing here does I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from attrs import field, frozen

from hearth.errors import TaskFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

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
    """One task.event notification (draft §8). `data` holds the fields beyond those of the draft."""

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

    async def submit(
        self, intent: str, steps: Sequence[Step | Mapping[str, Any]], *, follow: bool = False, **constraints: Any
    ) -> Task:
        """Submit a task (draft §3.4); keyword arguments are its constraints, `idempotency_key` is the task's own.

        `follow` asks for its events in the same request, for whoever is about to read them: it saves a round trip.
        Raises the RpcError subclass the server answered with.
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
