"""What a tape tells of, as things: transactions, the steps and tasks that they are for, sessions, lives of the daemon.

Plain holders of what was seen; how they are found on a tape is `observer_reading`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .observer_log import FOR_EVER

if TYPE_CHECKING:
    from .observer_log import Record
    from .observer_wire import Request


class Transaction:
    """One exchange with a device, from its beginning there to its end."""

    __slots__ = ("args", "begun", "begun_at", "bus", "ended", "ended_at", "number", "outcome", "step", "value", "what")

    def __init__(self, entry):
        what = entry.what
        self.bus: str = what["bus"]
        self.number = what["transaction"]
        self.what: str = what["what"]
        self.args: dict[str, Any] = what.get("args") or {}
        self.begun: int = entry.number
        self.begun_at: float = entry.at
        self.ended = FOR_EVER
        self.ended_at = float("inf")
        self.outcome: str | None = None
        self.value: Any = None
        """What a read of a line has found, or a read of a CAN bus's queue."""
        self.step: Step | None = None

    @property
    def must_run(self) -> bool:
        """It takes back what was begun: no queue and no lease holds it up, and no cancellation."""
        return self.what in ("undo", "end", "safe")


class Step:
    """One step of an accepted task: what was asked, what the log says of it, what the buses saw of it."""

    __slots__ = ("args", "bus", "finish", "index", "rollbacks", "start", "task", "tool", "transactions")

    def __init__(self, task, index, tool, args):
        self.task: Task = task
        self.index: int = index
        self.tool: str = tool
        self.args: dict[str, Any] = args
        self.bus: str | None = None
        self.start: Record | None = None
        self.finish: Record | None = None
        self.rollbacks: list[Record] = []
        self.transactions: list[Transaction] = []

    @property
    def status(self) -> str | None:
        """How it ended by the log."""
        return None if self.finish is None else self.finish.fields.get("status")

    def __str__(self) -> str:
        return f"step {self.index} ({self.tool}) of task {self.task.id}"


class Task:
    """One task that was accepted: by an answer that said so, or on record."""

    def __init__(self, task_id):
        self.id: str = task_id
        self.session: str | None = None
        self.asked: list[Request] = []
        """The submissions that were answered with its id: the first, and repeats by its idempotency key."""
        self.unheard: Request | None = None
        """The submission, by its steps, where nobody heard its answer."""
        self.submits: list[Record] = []
        self.finishes: list[Record] = []
        self.steps: dict[int, Step] = {}
        self.recovered: list[Record] = []
        """Records by which a later run of the daemon names it as one that was in flight."""

    @property
    def spec(self) -> dict[str, Any] | None:
        """The task as it was submitted, where a client heard that it was accepted."""
        return self.asked[0].params["task"] if self.asked else None

    @property
    def constraints(self) -> dict[str, Any]:
        if self.unheard is not None:
            return self.unheard.params["task"].get("constraints") or {}
        spec = self.spec
        return (spec.get("constraints") or {}) if spec else {}

    @property
    def accepted(self) -> int:
        """The first entry by which it is known to have been accepted."""
        numbers = [record.number for record in self.submits[:1]]
        numbers += [request.answer.number for request in self.asked[:1]]
        return min(numbers, default=FOR_EVER)


class Session:
    """One session: who opened it, and when it is known to have begun and ended."""

    def __init__(self, session_id):
        self.id: str = session_id
        self.principal: str | None = None
        self.request: Request | None = None
        self.opens: list[Record] = []
        self.closes: list[Record] = []
        self.requests: list[Request] = []
        """All that named it, notifications too, whoever sent them."""


class Life(NamedTuple):
    """One run of the daemon, from its start to its end, by the numbers of the entries."""

    begun: int
    told: int | None
    told_at: float | None
    signal: str | None
    signals: int
    ended: int
    ended_at: float | None
    error: str | None

    @property
    def killed(self) -> bool:
        """It was ended where it stood: nothing of it can be told after that."""
        return self.signal == "SIGKILL"
