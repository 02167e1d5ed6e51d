"""The record of a capability function's operations, and its replay. Pure: no I/O, no clock, no concurrency.

A capability is an ordinary async function. What it asks of its `Job` is an *operation*: a step, a task of several, a
sleep, the time, a random number, a person's answer. Each has a *position*: its number in the order in which the
function asks, and within `job.gather` the position of the gather, the part's index and a number of its own ("7.1.3").
What came of an operation is an `Outcome`, which is written down before the function goes on.

To go on after a crash is to run the function again, from its beginning, with the outcomes that are on record. As long
as there is one at the position that is asked for, it is returned and nothing is done. So a function must ask the same
at the same position, given the same outcomes: what it asks differently is a `ReplayMismatch`, and the job ends.

Three things may be on record of an operation:
- an outcome that is done or has failed: it is returned, or raised, again;
- only that it was begun, which is written before a step that may have an effect: then the process died while the step
  was under way. Its outcome is unknown. It is never done again by itself: the function gets `OutcomeUnknown`;
- nothing: it is done now. That includes a step that failed without any effect at the end of a job: it may be tried
  again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import orjson
from attrs import asdict, define, field, frozen

from hearth.audit.record import digest
from hearth.errors import HearthError, effect_of, from_wire
from hearth.hcp.report import error_code_of, recoverable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hearth.errors import Effect
    from hearth.hcp.messages import ErrorCode

Json: TypeAlias = Any
OperationKind: TypeAlias = Literal["run", "submit", "sleep", "every", "now", "random", "ask_person"]
"""The method of `Job` that was called."""
Status: TypeAlias = Literal["done", "failed", "unknown"]

STEPS: Final = frozenset(("run", "submit"))
"""The operations that hand steps to a HACP session."""
ANNOUNCED: Final = STEPS | {"ask_person"}
"""The operations that HCP is told of as checkpoints; the others are on record as well."""
CANCELLED: Final = "c"
"""In the positions of what is done when a part has been cancelled."""
MOST_SHOWN: Final = 160
"""Characters of an operation in messages and on record."""


# --- what a capability function may have to deal with ---------------------------------------------------------------


class StepFailed(HearthError):
    """A step that could not be done, raised by `job.run` and `job.submit`.

    `tool` is the step's; `code` is HACP's error code (None where there is none) and `data` its data; `error_code` is
    what the job fails with if nothing handles this. `effect` says what happened to the hardware: "none", "done" or
    "unknown".
    """

    def __init__(self, tool: str, outcome: Outcome) -> None:
        super().__init__(f"{tool} failed: {outcome.error or 'no reason was given'}")
        self.tool = tool
        self.reason = outcome.error or "no reason was given"
        self.code = outcome.error_code
        self.data: Mapping[str, Json] = outcome.error_data or {}
        self.effect: Effect = outcome.effect

    @property
    def error_code(self) -> ErrorCode:
        """The HCP error code of a job that fails with this (L4, Standard Error Codes)."""
        return error_code_of(self.code)

    @property
    def recoverable(self) -> bool:
        """True if the same job, handed in again from its last checkpoint, may well succeed with nothing changed."""
        return recoverable(self.code, self.effect)

    @property
    def passing(self) -> bool:
        """True if asking once more may help: neither the arguments nor a limit were at fault."""
        return self.error_code not in ("input_error", "safety_violation", "internal_error")


class OutcomeUnknown(HearthError):
    """A step that was under way when the daemon died: nothing says whether it was done. It is not done again."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"the daemon ended while {operation} was under way, so its outcome is unknown")
        self.operation = operation


class ReplayMismatch(HearthError):
    """A function that asks something else than what is on record: it is not the one that made the record."""


class CapabilityFailed(HearthError):
    """Raised by a capability function to end its job as failed, with an error code of HCP (L4)."""

    def __init__(self, message: str, error_code: ErrorCode = "execution_error", *, recoverable: bool = False) -> None:
        super().__init__(message)
        self.error_code: ErrorCode = error_code
        self.recoverable = recoverable


class SafetyViolation(HearthError):
    """A measured value outside of the capability's safety envelope, raised by `job.watch`."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"outside of the safety envelope: {message}")
        self.risk_event = f"safety_envelope.{parameter}"


# --- operations and their outcomes ----------------------------------------------------------------------------------


@frozen
class Operation:
    """One call of a `Job`'s method: where in the function's course, and what was asked."""

    position: str
    kind: OperationKind
    what: str
    """For messages: `gpio.set {"line":17,"value":1}`, shortened."""
    digest: str
    """Of all that was asked."""

    @classmethod
    def of(cls, position: str, kind: OperationKind, title: str, asked: Json) -> Operation:
        """Make one; `asked` is JSON. Raises TypeError for what is not."""
        text = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
        shown = title if asked is None else f"{title} {text.decode()}".strip()
        what = shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"
        return cls(position, kind, what, digest(kind.encode() + b" " + title.encode() + b" " + text))

    def __str__(self) -> str:
        return f"job.{self.kind}({self.what})" if self.kind not in STEPS else self.what


@frozen(kw_only=True)
class Outcome:
    """What came of an operation: JSON, all of it."""

    status: Status = "done"
    elapsed_s: float = 0.0
    """Seconds from the job's start to the operation's end."""
    value: Json = None
    """A step's result, a task's results, an instant, a number, an answer."""
    error: str | None = None
    error_code: int | None = None
    """HACP's, where it was one."""
    error_data: Mapping[str, Json] | None = None
    missed: bool = False
    """True if the function was not told: its part had been cancelled, because another part had failed."""

    @property
    def effect(self) -> Effect:
        """What a failure says became of the hardware."""
        return effect_of(from_wire({"code": self.error_code, "message": self.error or "", "data": self.error_data}))


@frozen
class Recorded:
    """An operation with its outcome, as they are on record."""

    operation: Operation
    outcome: Outcome

    def write(self) -> dict[str, Any]:
        """For the job store."""
        return {**asdict(self.operation), "outcome": asdict(self.outcome)}

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Recorded:
        """From the job store."""
        operation = {name: written[name] for name in ("position", "kind", "what", "digest")}
        return cls(Operation(**operation), Outcome(**written["outcome"]))


def unknown(begun: Mapping[str, Any]) -> Recorded:
    """The record of an operation of which only the beginning is on record (`Operation` as JSON)."""
    return Recorded(Operation(**begun), Outcome(status="unknown"))


@define
class ReplayHistory:
    """What is on record of the job that this one goes on from, until the function has asked for it."""

    _left: dict[str, Recorded] = field(factory=dict)

    @classmethod
    def of(cls, records: Iterable[Recorded]) -> ReplayHistory:
        """Make one; of each position there is one record."""
        return cls({one.operation.position: one for one in records})

    @property
    def replaying(self) -> bool:
        """True as long as something is on record that the function has not asked for."""
        return bool(self._left)

    def awaits(self, prefix: str) -> bool:
        """Look whether parts of the function will ask for more; the clean-up of those that are cancelled comes last."""
        return any(one.startswith(prefix) and CANCELLED not in one for one in self._left)

    def take(self, operation: Operation) -> Outcome | None:
        """The outcome on record, None where there is none. Raises ReplayMismatch where something else is."""
        found = self._left.pop(operation.position, None)
        if found is None:
            return None
        was = found.operation
        if (was.kind, was.digest) != (operation.kind, operation.digest):
            raise ReplayMismatch(
                f"operation {operation.position} is {operation}, and on record it is {was}: the function's course has "
                "changed, or depends on something else than its inputs and outcomes; start anew"
            )
        return found.outcome

    def forget(self, prefix: str) -> None:
        """Leave out what is on record of parts that have ended: one that failed cancels the others, by chance where."""
        for position in [one for one in self._left if one.startswith(prefix)]:
            del self._left[position]

    def check_complete(self) -> None:
        """Look whether a function that has returned has asked for all. Raises ReplayMismatch."""
        for recorded in self._left.values():
            was = recorded.operation
            raise ReplayMismatch(
                f"the function returned before operation {was.position}, which is on record as {was}: its course has "
                "changed; start anew"
            )


def results_of(outcome: Outcome, operation: Operation, tools: Sequence[str]) -> Json:
    """The value of a step or task that was done. Raises StepFailed, OutcomeUnknown."""
    if outcome.status == "unknown":
        raise OutcomeUnknown(str(operation))
    if outcome.status == "failed":
        failed = (outcome.error_data or {}).get("step_index", 0) if len(tools) > 1 else 0
        raise StepFailed(tools[failed if type(failed) is int and 0 <= failed < len(tools) else 0], outcome)
    return outcome.value
