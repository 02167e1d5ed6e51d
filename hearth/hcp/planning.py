"""How a capability becomes work: the three small Protocols between what is declared and what is done.

A `Planner` reads a capability's plan once, at start-up. A `Plan` starts a `Course` for each job. A course is asked what
to do next, is told what came of it, and touches nothing: it names HACP steps and whoever runs the job has them done.
The one shipped is `recipe`; others come by the entry point group `hearth.planners`.

A resumable plan's course is a function of its order and of the outcomes it has been told: to go on from a checkpoint
is to tell a new course the outcomes that are on record, and to do none of those steps again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from attrs import field, frozen

from hearth.errors import HearthError
from hearth.hcp.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from hearth.hcp.values import ErrorCode
    from hearth.tools import ToolRegistry

Json: TypeAlias = Any


class PlanError(HearthError):
    """A plan that cannot be carried out, found at start-up: all that is wrong with it, the first fault first."""

    def __init__(self, key: str, reason: str, *, more: Sequence[Fault] = ()) -> None:
        self.faults: tuple[Fault, ...] = (Fault(key, reason), *more)
        super().__init__("\n".join(map(str, self.faults)))
        self.key = key
        self.reason = reason

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> PlanError:
        """One error of many faults; there is at least one."""
        first, *more = dict.fromkeys(faults)
        return cls(first.key, first.reason, more=more)


@frozen(kw_only=True)
class Order:
    """What a job is to do: approved inputs with defaults filled in, and how its course may speak of it."""

    session_id: str
    started_at: float
    """Epoch seconds."""
    inputs: Mapping[str, Json]
    intent: str = ""
    context: Mapping[str, Json] = field(factory=dict)
    max_steps: int = 10_000
    """How many steps a job may do before it fails."""


@frozen(kw_only=True)
class Outcome:
    """What came of a `Do`. A checkpoint is made of these, so all of it is JSON."""

    ok: bool
    elapsed_s: float
    """Seconds from the job's start to the step's end."""
    result: Mapping[str, Json] | None = None
    error: str | None = None
    error_code: int | None = None
    """HACP's, where it was one."""
    error_data: Mapping[str, Json] | None = None


@frozen(kw_only=True)
class Do:
    """Have this HACP step done."""

    tool: str
    args: Mapping[str, Json]
    name: str
    """The step as an account of the job calls it: "sample[3].read"."""
    phase: str


@frozen
class Wait:
    """Let this many seconds pass."""

    seconds: float


@frozen(kw_only=True)
class Tell:
    """Emit an event: `data` as L2's table has it for this type."""

    event_type: str
    """intermediate_result, log, warning or error."""
    data: Mapping[str, Json]


@frozen(kw_only=True)
class Finish:
    """All is done; these are the outputs."""

    outputs: Mapping[str, Json]


@frozen(kw_only=True)
class Fail:
    """It cannot go on."""

    error_code: ErrorCode
    message: str
    recoverable: bool = False
    risk_event: str | None = None
    """What the execution summary lists among its risk events."""


Action: TypeAlias = "Do | Wait | Tell | Finish | Fail"


@frozen(kw_only=True)
class Progress:
    """How far a course is."""

    stage: str
    done: int
    """Steps done."""
    total: int | None = None
    """Steps in all, where that is known."""
    remaining: timedelta | None = None
    message: str = ""


@frozen(kw_only=True)
class Keepsake:
    """A file that a job leaves behind: its content, or what a plot of it is drawn from."""

    name: str
    file: str
    """Letters, digits, '.', '_' and '-'."""
    type: str
    """MIME."""
    content: bytes | None = None
    plot: Mapping[str, Json] | None = None
    """For `hearth.hcp.plotting`, where there is no content: title, x, series, labels."""


class Course(Protocol):
    """One job under way."""

    @property
    def phase(self) -> str:
        """Where it is, by the plan's own names."""
        ...

    async def next(self, outcome: Outcome | None, elapsed_s: float) -> Action:
        """What to do now; `outcome` is of the `Do` before, and None after anything else."""
        ...

    def progress(self) -> Progress:
        """How far it is."""
        ...

    def partial_outputs(self) -> Mapping[str, Json]:
        """The outputs that can be said already; for a job that fails."""
        ...

    def keepsakes(self) -> Sequence[Keepsake]:
        """The files that what has been done so far amounts to."""
        ...


class Plan(Protocol):
    """A capability's plan, checked."""

    @property
    def tools(self) -> frozenset[str]:
        """Every tool that a course may name."""
        ...

    @property
    def resumable(self) -> bool:
        """Whether a course can be brought back by its outcomes."""
        ...

    def begin(self, order: Order) -> Course:
        """Start a job."""
        ...


class Planner(Protocol):
    """Makes plans of one kind."""

    def prepare(self, document: Mapping[str, Any], registry: ToolRegistry) -> Plan:
        """The plan of a capability file, whole, checked against the tools there are. Raises PlanError."""
        ...
