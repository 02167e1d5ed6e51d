"""Reading the [recipe] of a capability file whole: every fault of its steps and outputs, each with its place and cure.

It walks the steps in the order in which they run and keeps account of what there is by then to be named: a step's
result, by its tool's own result_schema, is there after it and not before. What is left to be found out in a job is
values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import evolve

from hearth.config_kinds import Choice, Integer, Number, Text
from hearth.errors import HearthError
from hearth.hcp.decoding import read_decoding
from hearth.hcp.envelope import KEY, read_envelope
from hearth.hcp.expressions import Names
from hearth.hcp.names import ANYTHING
from hearth.hcp.planning import PlanError
from hearth.hcp.recipe_artifacts import read_artifacts
from hearth.hcp.recipe_shape import Call, Constant, Recipe, Report, Retry, Rounds, Step
from hearth.hcp.recipe_sight import FAILED, RESERVED, STAMPS, Sight
from hearth.hcp.recipe_templates import read_args, read_expression, read_outputs
from hearth.hcp.schema_kinds import near
from hearth.hcp.tables import REQUIRED, Table
from hearth.schema import Validator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.hcp.decoding import Decoding
    from hearth.hcp.expressions import Expression
    from hearth.hcp.planning import Fault
    from hearth.hcp.recipe_shape import Members
    from hearth.hcp.recipe_sight import Results
    from hearth.hcp.schema_kinds import Shape
    from hearth.tools import Tool, ToolRegistry

_NAME: Final = re.compile("[a-z][a-z0-9_]*")
STEP_NAME: Final = Text("a name of small letters, digits and _", _NAME.pattern, limit=64)
MOST_ROUNDS: Final = 1_000_000
_PHASE: Final = Text("a phase in words", limit=100)
_SECONDS: Final = Number(le=86_400 * 366)
_OPEN: Final = ("additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf")
def read_recipe(document: Mapping[str, Any], registry: ToolRegistry) -> Recipe:
    """The recipe of a capability file. Raises PlanError with all of its faults."""
    faults: list[Fault] = []
    capability = document.get("capability")
    declared = capability if isinstance(capability, dict) else {}
    inputs: Shape = {"type": "object", **_schema(declared, "input_schema")}
    top = Table(document, "", faults)
    table = top.table("recipe")
    sight = Sight(inputs=inputs, results={}, here={})
    sight = evolve(sight, here=sight.results)
    steps = tuple(_Reader(registry).steps(table, sight, ""))
    if "recipe" in document and not faults and not steps:
        table.fault("steps", "missing; a recipe has at least one [[recipe.steps]]")
    names = Names({key: shape for key, shape in sight.names().roots.items() if key != "here"})
    outputs = read_outputs(table, "outputs", names, _schema(declared, "output_schema"))
    artifacts = read_artifacts(table, names)
    table.done()
    envelope = None
    try:
        content = document.get(KEY, {})
        envelope = read_envelope(content if isinstance(content, dict) else {}, inputs, watched=names)
    except PlanError as error:
        faults += error.faults
    if faults or envelope is None:
        raise PlanError.of(faults)
    return Recipe(steps=steps, outputs=outputs, artifacts=tuple(artifacts), envelope=envelope)


def _schema(declared: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = declared.get(key)
    return found if isinstance(found, dict) else {}


class _Reader:
    """Reads steps; of a step with a fault what can be read is, so that all of its faults are found."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    def steps(self, table: Table, sight: Sight, phase: str) -> Iterator[Step]:
        """The steps of a table, in order; each is in sight for those after it."""
        for one in table.tables("steps"):
            step = self._step(one, sight, phase)
            if step is not None:
                yield step

    def _step(self, table: Table, sight: Sight, phase: str) -> Step | None:
        name = table.take("name", STEP_NAME)
        if name in RESERVED:
            table.fault("name", f"{name!r} is a member that results have of themselves; give the step another name")
        elif name is not None and name in sight.here:
            table.fault("name", f"there is a step {name!r} already; give this one another name")
        label = name or "?"
        phase = table.take("phase", _PHASE, phase or label) or label
        names = sight.names()
        when = read_expression(table, "when", names)
        delay = _number(table, "delay_s", names)
        on_failure: Literal["fail", "continue"] = table.take("on_failure", Choice("fail", "continue"), "fail")
        loop = _Loop(table, sight)
        if name is not None and loop:
            sight.here[name] = {"type": "array"}  # a round can look back at those before it
        do, result = self._work(table, sight, label, phase, loop, on_failure)
        if name is not None:
            sight.here[name] = loop.whole(result)
        after = evolve(sight, loop={**sight.loop, **loop.names()}).names(latest=result)
        rounds = loop.rounds(after)
        report = _report(table, after, label)
        table.done()
        if name is None or do is None:
            return None
        return Step(
            name=name,
            phase=phase,
            do=do,
            when=when,
            delay_s=delay,
            rounds=rounds,
            on_failure=on_failure,
            report=report,
        )

    def _work(
        self, table: Table, sight: Sight, name: str, phase: str, loop: _Loop, on_failure: str
    ) -> tuple[Call | tuple[Step, ...] | None, Shape]:
        """What a step does, and the shape of what a round of it gives."""
        failed = {**FAILED, **STAMPS} if on_failure == "continue" else {}
        grouped = "steps" in table.content
        if grouped == ("tool" in table.content):
            said = "a step has a `tool`, or `steps` of its own, and not both" if grouped else "missing; or give `steps`"
            table.fault("tool", said)
        if not grouped:
            call, result, more = self._call(table, sight, loop)
            members = {**loop.names(), **STAMPS, **failed, **result}
            return call, {"type": "object", "properties": members, "additionalProperties": more}
        for key in ("args", "decode", "retry", "tool"):
            if key in table.content:
                table.take(key, _Anything(), None)
                if key != "tool":
                    table.fault(key, "is for a step with a `tool`; this is a group of steps")
        here: Results = dict(loop.names())
        # What a group has given so far can be named within it; of rounds before this one, all of it.
        inner = dict(sight.results)
        known = {**loop.names(), **_later(table), **failed} if loop else here
        inner[name] = loop.whole({"type": "object", "properties": known})
        within = evolve(sight, results=inner, here=here, loop={**sight.loop, **loop.names()})
        steps = tuple(self.steps(table, within, phase))
        if not steps and not table.faults:
            table.fault("steps", "a group has at least one step")
        return steps, {"type": "object", "properties": {**here, **failed}}

    def _call(self, table: Table, sight: Sight, loop: _Loop) -> tuple[Call | None, Results, bool]:
        """A tool's call, the members of what it gives, and whether there may be others."""
        tool = self._tool(table)
        result = dict(tool.result_schema) if tool is not None else {}
        members: Results = dict(result.get("properties", {}))
        more = not members or any(result.get(key) for key in _OPEN)
        names = evolve(sight, loop={**sight.loop, **loop.names()}).names()
        if tool is None:
            # Its args cannot be judged, but what they name can.
            args = read_args(table, "args", names, ANYTHING)
        else:
            args = read_args(table, "args", names, tool.params_schema)
            self._bus(table, tool, args)
        decodings = tuple(_decodings(table, result, members))
        for one in decodings:
            members.update(one.shape())
        retry = _retry(table)
        if tool is None:
            return None, members, more
        valid = Validator(tool.params_schema)
        return Call(tool=tool.name, args=args, valid=valid, decodings=decodings, retry=retry), members, more

    def _tool(self, table: Table) -> Tool | None:
        name = table.take("tool", Text("a tool's name"), None)
        if name is None:
            return None
        if name not in self._registry:
            table.fault("tool", f"this daemon has no tool {name!r}{near(name, self._registry)}; tool.list has them all")
            return None
        return self._registry[name]

    def _bus(self, table: Table, tool: Tool, args: Members) -> None:
        """A bus, a line or a sensor that this board does not have, where the args say which."""
        if any(fault.key.startswith(table.at("args")) for fault in table.faults):
            return
        if not all(isinstance(one, Constant) for one in args.members.values()):
            return
        try:
            tool.bus({name: one.value for name, one in args.members.items() if isinstance(one, Constant)})
        except HearthError as error:
            table.fault("args", str(error))


class _Loop:
    """The rounds of a step: how many, and what is bound in each."""

    def __init__(self, table: Table, sight: Sight) -> None:
        names = sight.names()
        self.each = read_expression(table, "for_each", names)
        self._declared = "for_each" in table.content or "repeat" in table.content
        self._repeat = table.table("repeat", required=False)
        self._count = _number(self._repeat, "count", names, whole=True)
        self._every = _number(self._repeat, "every_s", names)
        if "for_each" in table.content and "count" in self._repeat.content:
            self._repeat.fault("count", "for_each says how many rounds there are; leave count out, or for_each")
        elif "for_each" not in table.content and "repeat" in table.content and "count" not in self._repeat.content:
            self._repeat.fault("count", "missing: how many rounds, and with `until` the most of them")

    def __bool__(self) -> bool:
        return self._declared

    def names(self) -> dict[str, Shape]:
        """What is bound in each round."""
        if not self._declared:
            return {}
        bound: dict[str, Shape] = {"index": {"type": "integer"}}
        if self.each is not None:
            items = self.each.shape.get("items")
            bound["item"] = items if isinstance(items, dict) else ANYTHING
        return bound

    def whole(self, shape: Shape) -> Shape:
        """The shape of a step's result, from that of one round."""
        return {"type": "array", "items": shape} if self._declared else shape

    def rounds(self, after: Names) -> Rounds | None:
        """Read what is looked at after a round, and give the whole."""
        until = read_expression(self._repeat, "until", after)
        self._repeat.done()
        if not self._declared:
            return None
        return Rounds(count=self._count, items=self.each, every_s=self._every, until=until)


class _Anything(Text):
    def read(self, raw: object) -> Any:
        return raw


def _later(table: Table) -> Results:
    """The steps of a repeated group, of which earlier rounds have results."""
    steps = table.content.get("steps")
    found = [one.get("name") for one in steps if isinstance(one, dict)] if isinstance(steps, list) else []
    return {name: ANYTHING for name in found if isinstance(name, str)}


def _number(table: Table, key: str, names: Names, *, whole: bool = False) -> float | Expression | None:
    """A number, or an expression that gives one."""
    if isinstance(table.content.get(key), str):
        expression = read_expression(table, key, names)
        if expression is not None and expression.shape.get("type") not in (None, "number", "integer"):
            table.fault(key, f"expected a number, and it gives a {expression.shape['type']}")
        return expression
    found: float | None = table.take(key, Integer(0, MOST_ROUNDS) if whole else _SECONDS, None)
    return found


def _report(table: Table, names: Names, step: str) -> Report | None:
    if "report" not in table.content:
        return None
    if isinstance(table.content["report"], str):
        expression = read_expression(table, "report", names)
        return None if expression is None else Report(expression=expression, type=step)
    inner = table.table("report")
    expression = read_expression(inner, "expr", names, REQUIRED)
    kind = inner.take("type", Text(limit=100), step)
    every = inner.take("every", Integer(1, MOST_ROUNDS), 1)
    inner.done()
    if expression is None or kind is None or every is None:
        return None
    return Report(expression=expression, type=kind, every=every)


def _retry(table: Table) -> Retry | None:
    if "retry" not in table.content:
        return None
    inner = table.table("retry")
    times, after = inner.take("times", Integer(1, 100)), inner.take("after_s", _SECONDS, 0)
    inner.done()
    return None if times is None or after is None else Retry(times=times, after_s=after)


def _decodings(table: Table, result: Shape, members: Results) -> Iterator[Decoding]:
    inner = table.table("decode", required=False)
    for name in inner.content:
        if not _NAME.fullmatch(name):
            inner.fault(name, f"expected {STEP_NAME.expected}")
        if name in members:
            inner.fault(name, "the tool's result has a member of that name; give this one another")
        one = read_decoding(inner.table(name), name, result)
        if one is not None:
            yield one
