"""The record of a capability function's operations, and its replay. Pure: no I/O, no clock, no concurrency.

A capability is an ordinary async function. Each call of a method of its `Job` is an *operation*: a step, a task of
several, a sleep, the time, a random number, a person's answer. Each has a *position*: its number in the order of the
calls, and within `job.gather` the position of the gather, the part's index and a number of its own ("7.1.3"). The
result of an operation is an `Outcome`, which is written to the job store before the function goes on.

To continue after a crash, the function runs again from its beginning with the recorded outcomes. As long as there is an
outcome at the position of a call, it is returned and nothing is done. So a function must make the same call at the same
position, given the same outcomes. A different call is a `ReplayMismatch`, and the job ends.

Two kinds of outcomes are not simply returned. A reading of a job that may act is made again, unless its call says
`replay=True`: what the job does next depends on how things are now. A person's answer is given for one run: it is
returned only while its `stamp` and its age say that nothing which the person may have relied on has changed since
(`Outcome.stamp`), else the person is asked again.

Three things may be on record of an operation:
- an outcome that is done or has failed: it is returned, or raised, again;
- only its beginning, which is written before a step that may have an effect: the process died while the step ran. Its
  outcome is unknown. It is never repeated automatically: the function gets `OutcomeUnknown`;
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
OperationKind: TypeAlias = Literal["run", "submit", "sleep", "every", "now", "random", "ask_person", "plan"]
"""The method of `Job` that was called."""
Status: TypeAlias = Literal["done", "failed", "unknown"]

STEPS: Final = frozenset(("run", "submit"))
"""The operations that hand steps to a HACP session."""
ANNOUNCED: Final = STEPS | {"ask_person", "plan"}
"""The operations that are sent to the HCP caller as checkpoints; the others are on record as well."""
CANCELLED: Final = "c"
"""Marks the positions of operations that run after a part has been cancelled."""
MOST_SHOWN: Final = 160
"""Characters of an operation in messages and on record."""


class StepFailed(HearthError):
    """A step that failed, raised by `job.run` and `job.submit`.

    `tool` is the step's; `code` is HACP's error code (None where there is none) and `data` its data; `error_code` is
    the HCP error code of the job if the function does not handle this. `effect` says what happened to the hardware:
    "none", "done" or "unknown".
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
        """True if the same job, submitted again from its last checkpoint, may succeed with nothing changed."""
        return recoverable(self.code, self.effect)

    @property
    def passing(self) -> bool:
        """True if a retry may help: neither the arguments nor a limit were at fault."""
        return self.error_code not in ("input_error", "safety_violation", "internal_error")


class OutcomeUnknown(HearthError):
    """A step that was running when the daemon died. Its effect is unknown, and it is not repeated."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"the daemon ended while {operation} was under way, so its outcome is unknown")
        self.operation = operation


class ReplayMismatch(HearthError):
    """A function that makes another call than the recorded one: it has changed since the record was made."""


class CapabilityFailed(HearthError):
    """Raised by a capability function to end its job as failed, with an error code of HCP (L4)."""

    def __init__(self, message: str, error_code: ErrorCode = "execution_error", *, recoverable: bool = False) -> None:
        super().__init__(message)
        self.error_code: ErrorCode = error_code
        self.recoverable = recoverable


class SafetyViolation(HearthError):
    """A measured value outside the capability's safety envelope, raised by `job.watch`."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(f"outside of the safety envelope: {message}")
        self.risk_event = f"safety_envelope.{parameter}"


@frozen
class Operation:
    """One call of a `Job`'s method: its position and its arguments."""

    position: str
    kind: OperationKind
    what: str
    """For messages: `gpio.set {"line":17,"value":1}`, shortened."""
    digest: str
    """Hash of all arguments."""

    @classmethod
    def of(cls, position: str, kind: OperationKind, title: str, asked: Json) -> Operation:
        """Make one; `asked` is JSON. Raises TypeError for other values."""
        text = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
        shown = title if asked is None else f"{title} {text.decode()}".strip()
        what = shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"
        return cls(position, kind, what, digest(kind.encode() + b" " + title.encode() + b" " + text))

    def __str__(self) -> str:
        return f"job.{self.kind}({self.what})" if self.kind not in STEPS else self.what


@frozen(kw_only=True)
class Outcome:
    """The result of an operation, all of it JSON."""

    status: Status = "done"
    elapsed_s: float = 0.0
    """Seconds from the job's start to the operation's end."""
    value: Json = None
    """A step's result, a task's results, an instant, a number, an answer."""
    error: str | None = None
    error_code: int | None = None
    """HCP's error code, where it was one."""
    error_data: Mapping[str, Json] | None = None
    missed: bool = False
    """True if the function did not see it: its part had been cancelled, because another part had failed."""
    acted: bool = False
    """True for a step that may have had an effect."""
    replayed: bool = False
    """True for a reading that a job which may act asked to have replayed, or made in one task with what moves."""
    stamp: str | None = None
    """Of a person's answer: the run of the daemon, its halts and its readings of the policy, when it was given."""
    given_at: float = 0.0
    """Of a person's answer: epoch seconds."""

    @property
    def effect(self) -> Effect:
        """Return the failure's effect on the hardware."""
        return effect_of(from_wire({"code": self.error_code, "message": self.error or "", "data": self.error_data}))


@frozen
class Recorded:
    """An operation with its recorded outcome."""

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
    """Return the record of an operation of which only the beginning is on record (`Operation` as JSON)."""
    return Recorded(Operation(**begun), Outcome(status="unknown"))


@define
class ReplayHistory:
    """The record of the job that this one continues, as far as the function has not used it yet."""

    _left: dict[str, Recorded] = field(factory=dict)

    @classmethod
    def of(cls, records: Iterable[Recorded]) -> ReplayHistory:
        """Make one; of several records of a position, the last counts: an answer that was asked for again."""
        return cls({one.operation.position: one for one in records})

    @property
    def replaying(self) -> bool:
        """True as long as the function has not used all records."""
        return bool(self._left)

    def awaits(self, prefix: str) -> bool:
        """Return True if parts of the function have unused records; the clean-up of cancelled parts comes last."""
        return any(one.startswith(prefix) and CANCELLED not in one for one in self._left)

    def take(self, operation: Operation) -> Outcome | None:
        """Return the recorded outcome, or None. Raises ReplayMismatch where another operation is recorded."""
        found = self._left.pop(operation.position, None)
        if found is None:
            return None
        was = found.operation
        if (was.kind, was.digest) != (operation.kind, operation.digest):
            raise ReplayMismatch(
                f"operation {operation.position} is {operation}, and on record it is {was}: the function's course has "
                "changed, or depends on something else than its inputs and outcomes; start a new job"
            )
        return found.outcome

    def forget(self, prefix: str) -> None:
        """Drop the records of parts that have ended: where a failed part cancels the others depends on timing."""
        for position in [one for one in self._left if one.startswith(prefix)]:
            del self._left[position]

    def check_complete(self) -> None:
        """Raise ReplayMismatch if a function that has returned has not used all records."""
        for recorded in self._left.values():
            was = recorded.operation
            raise ReplayMismatch(
                f"the function returned before operation {was.position}, which is on record as {was}: its course has "
                "changed; start a new job"
            )


def results_of(outcome: Outcome, operation: Operation, tools: Sequence[str]) -> Json:
    """Return the value of a step or task that was done. Raises StepFailed, OutcomeUnknown."""
    if outcome.status == "unknown":
        raise OutcomeUnknown(str(operation))
    if outcome.status == "failed":
        failed = (outcome.error_data or {}).get("step_index", 0) if len(tools) > 1 else 0
        raise StepFailed(tools[failed if type(failed) is int and 0 <= failed < len(tools) else 0], outcome)
    return outcome.value
