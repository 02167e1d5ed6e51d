"""A task as `task.submit` and `plan.prepare` take it (draft §3.4): its steps, what they expect, and its constraints.

Unknown members are ignored at every level (draft §2.5), except in `expect`: a misspelt condition is not checked.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from attrs import fields, frozen

from hearth.api import WITHIN_MS, Expect
from hearth.errors import InvalidParams
from hearth.fields import whole
from hearth.protocol.params import MAX_SAFE, read_choice, read_flag, read_integer, read_optional_text, read_text, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping

Priority: TypeAlias = Literal["low", "normal", "high", "urgent"]
PRIORITIES: Mapping[str, int] = {"low": 0, "normal": 1, "high": 2, "urgent": 3}

MOST_KEY = 256
"""Characters of an idempotency key."""
MOST_STEPS = 4096
"""Upper bound on steps that are read: a server's own limit is lower, and refusing must not take it long."""

EXPECT = tuple(one.name for one in fields(Expect))
"""The members of a step's `expect`."""
_EXPECT = frozenset(EXPECT)
MOST_MEMBERS = 16
"""Members of a result that each of equals, min and max may name."""
LONGEST_WITHIN_MS = 600_000
"""Upper bound of `expect.within_ms`: the step holds its bus for that long."""


@frozen(eq=False)
class StepSpec:
    """One step as submitted."""

    tool: str
    args: Mapping[str, Any]
    expect: Expect | None = None


@frozen(eq=False)
class Constraints:
    """task.constraints (draft §3.4)."""

    max_duration_ms: float | None = None
    abort_on_step_failure: bool = True
    max_risk_level: int | None = None
    rollback_on_failure: bool = False
    exclusive: bool = False
    on_busy: Literal["wait", "fail"] = "wait"
    dry_run: bool = False
    priority: Priority = "normal"


NO_CONSTRAINTS = Constraints()
CONSTRAINTS = tuple(one.name for one in fields(Constraints))
"""The names of all constraints."""


@frozen(eq=False)
class TaskSubmit:
    """task.submit (draft §3.4)."""

    intent: str
    steps: tuple[StepSpec, ...]
    constraints: Constraints = NO_CONSTRAINTS
    idempotency_key: str | None = None
    subscribe: bool = False
    strict: bool = False


def _read_step(value: Any, index: int) -> StepSpec:
    at = f"/task/steps/{index}"
    if type(value) is not dict:
        raise wrong(at, "an object", value)
    tool = value.get("tool")
    if type(tool) is not str:
        raise wrong(f"{at}/tool", "a string", tool)
    # A fresh object for each: a tool that writes into a shared one would change the steps of other sessions.
    args = value.get("args", {})
    if type(args) is not dict:
        raise wrong(f"{at}/args", "an object", args)
    expected = value.get("expect")
    return StepSpec(tool, args, None if expected is None else read_expect(expected, f"{at}/expect"))


def read_expect(value: Any, at: str) -> Expect:
    """Return the expected effect of a step; `at` is its JSON pointer. Raises InvalidParams.

    Unknown members are refused here, in every request: a misspelt condition would be one that is not checked.
    """
    if type(value) is not dict:
        raise wrong(at, "an object", value)
    if not value.keys() <= _EXPECT:
        raise _unknown_condition(value, at)
    tool, args = value.get("tool"), value.get("args", {})
    if type(tool) is not str:
        raise wrong(f"{at}/tool", "a string", tool)
    if type(args) is not dict:
        raise wrong(f"{at}/args", "an object", args)
    equals, low, high = [_read_members(value, name, at) for name in ("equals", "min", "max")]
    if not (equals or low or high):
        raise wrong(at, "a member of the result in equals, min or max", None)
    for name, bound in (("min", low), ("max", high)):
        for member, number in bound.items():
            if type(number) not in (int, float):
                raise wrong(f"{at}/{name}/{member}", "a number", number)
    for member in low.keys() & high.keys():
        if low[member] > high[member]:
            raise wrong(f"{at}/min/{member}", f"at most its max, which is {high[member]}", None)
    within_ms = read_integer(value, "within_ms", at, 1, LONGEST_WITHIN_MS)
    return Expect(tool, args, equals, low, high, WITHIN_MS if within_ms is None else within_ms)


def _unknown_condition(value: Mapping[str, Any], at: str) -> InvalidParams:
    from hearth.fields import unknown_key

    name = next(name for name in value if name not in _EXPECT)[:64]
    pointer, reason = f"{at}/{name}", unknown_key(name, EXPECT)
    return InvalidParams(f"Invalid params: {pointer}: {reason}", data={"path": pointer, "reason": reason})


def _read_members(value: Mapping[str, Any], name: str, at: str) -> dict[str, Any]:
    members = value.get(name)
    if members is None:
        return {}
    if type(members) is not dict or not 1 <= len(members) <= MOST_MEMBERS:
        raise wrong(f"{at}/{name}", f"an object with 1 to {MOST_MEMBERS} members of the result", None)
    return members


def _read_constraints(value: Any) -> Constraints:
    at = "/task/constraints"
    if value is None:
        return NO_CONSTRAINTS
    if type(value) is not dict:
        raise wrong(at, "an object", value)
    duration = whole(value.get("max_duration_ms"))
    if duration is not None and (type(duration) not in (int, float) or not 0 < duration <= MAX_SAFE):
        raise wrong(f"{at}/max_duration_ms", "a number of milliseconds above 0", None)
    return Constraints(
        duration,
        read_flag(value, "abort_on_step_failure", at, default=True),
        read_integer(value, "max_risk_level", at, 0, 3),
        read_flag(value, "rollback_on_failure", at, default=False),
        read_flag(value, "exclusive", at, default=False),
        cast("Any", read_choice(value, "on_busy", at, ("wait", "fail"), "wait")),
        read_flag(value, "dry_run", at, default=False),
        cast("Any", read_choice(value, "priority", at, tuple(PRIORITIES), "normal")),
    )


def read_task(params: Mapping[str, Any], *, subscribe: bool = False, strict: bool = False) -> TaskSubmit:
    """Return the task of params. Raises InvalidParams."""
    task = params.get("task")
    if type(task) is not dict:
        raise wrong("/task", "an object", task)
    steps = task.get("steps")
    if type(steps) is not list:
        raise wrong("/task/steps", "an array", steps)
    if not steps:
        raise wrong("/task/steps", "at least one step", None)
    if len(steps) > MOST_STEPS:
        raise wrong("/task/steps", f"at most {MOST_STEPS} steps", None)
    key = read_optional_text(task, "idempotency_key", "/task", most=MOST_KEY) if "idempotency_key" in task else None
    if key == "":
        # A client that fills in every member would otherwise get the first task's answer for all its tasks.
        raise wrong("/task/idempotency_key", "at least one character", None)
    return TaskSubmit(
        read_text(task, "intent", "/task"),
        (_read_step(steps[0], 0),) if len(steps) == 1 else tuple(map(_read_step, steps, count())),
        _read_constraints(task["constraints"]) if "constraints" in task else NO_CONSTRAINTS,
        key,
        subscribe,
        strict or ("strict" in params and read_flag(params, "strict", "", default=False)),
    )
