"""What tests of recipes share: a few tools, the way from TOML to a plan, and somebody who has a course's steps done."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from hearth.drivers.tools import schemas
from hearth.errors import InvalidParams
from hearth.hcp.planning import Action, Course, Do, Fail, Finish, Order, Outcome, PlanError, Tell, Wait
from hearth.hcp.recipe import RecipePlan, RecipePlanner
from hearth.tools import Tool, ToolRegistry

World = Callable[[Do, float], "Outcome | Mapping[str, Any]"]
"""What comes of a step at this second: the whole outcome, or the result of one that took 0.1 s."""

STARTED_AT = 1_700_000_000.0


def _tool(
    name: str, params: Mapping[str, Any], required: Sequence[str], result: Mapping[str, Any], **more: Any
) -> Tool:
    async def run(_ctx: Any, _args: Any) -> Mapping[str, Any]:
        raise AssertionError("a plan runs no tool")

    return Tool(
        name=name,
        risk_level=0,
        timeout_ms=1000,
        description=name,
        params_schema={**schemas.args(params, required=required), **more.get("together", {})},
        result_schema=schemas.result(result),
        capability="CAP_TEST",
        bus=more.get("bus", lambda _args: "test:bus"),
        run=run,
    )


def _line_bus(args: Mapping[str, Any]) -> str:
    if args["line"] == 13:
        raise InvalidParams("the board has no line 13")
    return "gpio:test"


LINE = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1023}, {"type": "string", "minLength": 1}]}

REGISTRY = ToolRegistry(
    [
        _tool(
            "sensor.read",
            {"sensor": schemas.text("its name"), "scale": {"type": "number"}},
            ["sensor"],
            {"value": {"type": "number"}, "unit": schemas.text("the unit")},
        ),
        _tool(
            "line.set",
            {"line": LINE, "value": schemas.LEVEL, "chip": schemas.text("the chip")},
            ["line", "value"],
            {"line": LINE, "value": schemas.LEVEL},
            bus=_line_bus,
        ),
        _tool(
            "bytes.read",
            {"bus": schemas.integer("its number", 0, 255), "len": schemas.integer("how many", 1, 32)},
            ["bus", "len"],
            {"data": schemas.base64_data("what was read"), "count": {"type": "integer"}},
        ),
        _tool(
            "pair.set",
            {"a": {"type": "integer"}, "b": {"type": "integer"}},
            [],
            {},
            together={"not": {"required": ["a", "b"]}},
        ),
        _tool("a.note", {"anything": {}}, [], {"said": schemas.json_object("anything")}),
    ]
)

HEAD = """
[capability]
name = "under-test"
[capability.input_schema]
type = "object"
[capability.input_schema.properties]
sensor = { type = "string" }
samples = { type = "integer" }
limit = { type = "number" }
unit = { type = "string" }
lines = { type = "array", items = { type = "object", properties = { out = { type = "integer" } } } }
[capability.output_schema]
type = "object"
"""


def prepare(text: str) -> RecipePlan:
    """The plan of a capability file whose [capability] is HEAD."""
    return RecipePlanner().prepare(tomllib.loads(HEAD + text), REGISTRY)


def faults(text: str, head: str = HEAD) -> dict[str, str]:
    """All faults of it: key -> reason."""
    try:
        RecipePlanner().prepare(tomllib.loads(head + text), REGISTRY)
    except PlanError as error:
        return {fault.key: fault.reason for fault in error.faults}
    return {}


def order(inputs: Mapping[str, Any] | None = None, **more: Any) -> Order:
    """A job with these inputs."""
    return Order(session_id="s-1", started_at=STARTED_AT, inputs=inputs or {}, **more)


@define
class Run:
    """What came of driving a course."""

    course: Course
    actions: list[Action] = field(factory=list)
    """All of them, the end last; those of a replay are left out."""
    outcomes: list[Outcome] = field(factory=list)

    @property
    def dos(self) -> list[Do]:
        return [one for one in self.actions if isinstance(one, Do)]

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.dos]

    @property
    def waits(self) -> list[float]:
        return [round(one.seconds, 6) for one in self.actions if isinstance(one, Wait)]

    def told(self, event_type: str) -> list[Any]:
        return [one.data for one in self.actions if isinstance(one, Tell) and one.event_type == event_type]

    @property
    def outputs(self) -> Mapping[str, Any]:
        end = self.actions[-1]
        assert isinstance(end, Finish), end
        return end.outputs

    @property
    def failure(self) -> Fail:
        end = self.actions[-1]
        assert isinstance(end, Fail), end
        return end


def sensible(do: Do, now: float) -> Mapping[str, Any]:
    """A world in which all goes well; what a sensor reads rises with the seconds."""
    if do.tool == "sensor.read":
        return {"value": round(20 + now, 3), "unit": "celsius"}
    if do.tool == "line.set":
        return {"line": do.args["line"], "value": do.args["value"]}
    if do.tool == "bytes.read":
        return {"data": "GYA=", "count": 2}
    return {"said": dict(do.args)}


def failed(now: float, message: str = "no answer", code: int | None = -32009, **data: Any) -> Outcome:
    """A step that failed."""
    return Outcome(ok=False, elapsed_s=now, error=message, error_code=code, error_data=data or None)


async def drive(course: Course, world: World = sensible, recorded: Sequence[Outcome] = (), *, most: int = 5000) -> Run:
    """Have a course's steps done until it ends; those on record are told, and not done."""
    run = Run(course)
    outcome: Outcome | None = None
    now = 0.0
    replay = list(recorded)
    for _ in range(most):
        action = await course.next(outcome, now)
        outcome = None
        replaying = bool(replay)
        if not replaying:
            run.actions.append(action)
        if isinstance(action, Do):
            if replaying:
                outcome = replay.pop(0)
            else:
                came = world(action, now)
                outcome = (
                    came if isinstance(came, Outcome) else Outcome(ok=True, elapsed_s=round(now + 0.1, 6), result=came)
                )
            now = outcome.elapsed_s
            run.outcomes.append(outcome)
        elif isinstance(action, Wait):
            now = round(now + (0.0 if replaying else action.seconds), 6)
        elif isinstance(action, (Fail, Finish)):
            if replaying:
                run.actions.append(action)
            return run
    raise AssertionError(f"no end after {most} actions")
