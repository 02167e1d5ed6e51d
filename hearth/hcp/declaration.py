"""From a capability file's document to a Capability, or to all that is wrong with it.

It owns the tables of [capability], and that what they declare is no less than what the plan can do: its risk, the
hardware it drives, the person who is asked. It refuses to read files and to know a planner's own table.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.config_kinds import Choice, Flag, Integer, Kind, ListOf, Mismatch, Text
from hearth.hcp.capability import Capability, Escalation, Safety
from hearth.hcp.envelope import read_envelope
from hearth.hcp.expressions import ExpressionError, compile_expression
from hearth.hcp.names import Names
from hearth.hcp.planners import OURS
from hearth.hcp.planning import Fault, PlanError
from hearth.hcp.schemas import schema_faults
from hearth.hcp.tables import Table, unsayable
from hearth.hcp.values import CLASSIFICATIONS, LEAST_RISK, NEEDED_RISK_LEVEL, RISKS, read_duration
from hearth.hcp.versions import read_version
from hearth.schema import Validator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.hcp.envelope import SafetyEnvelope
    from hearth.hcp.planning import Plan, Planner
    from hearth.tools import Tool, ToolRegistry

LONGEST_NAME = 64
USUAL_MAX_DURATION = timedelta(hours=1)
"""How long a job may take whose capability says nothing."""

_RISK = Choice(*RISKS)
_APPROVED_FROM = "R3"
"""The least risk at which a person is asked (L3, Approval Flow)."""
_WORDS = ListOf(Text(limit=128))
_MACHINE = ("hw", "file", "sys", "proc")
"""First parts of the names of tools that drive no hardware: what tells of the board; files, the machine, processes."""


class _Read(Kind):
    """A string, read by a function that raises ValueError with what was expected."""

    def __init__(self, expected: str, read: Callable[[str], object]) -> None:
        self.expected = expected
        self._read = read

    def read(self, raw: object) -> object:
        """What the function makes of it. Raises Mismatch."""
        text = Text(self.expected).read(raw)
        try:
            return self._read(text)
        except ValueError as error:
            raise Mismatch([("", str(error))]) from None


_NAME = Text('a name such as "bench-climate-survey"', r"[a-z0-9]+(-[a-z0-9]+)*", limit=LONGEST_NAME)
_VERSION = _Read('a semver version such as "1.0.0"', read_version)
_DURATION = _Read('an ISO 8601 duration such as "PT10M"', read_duration)


@frozen
class Declared:
    """What came of a document: a capability, or faults."""

    capability: Capability | None
    faults: tuple[Fault, ...] = ()
    of_machine: bool = False
    """Whether all faults are the planner's: the file may be right, and wrong only for the tools of this machine."""


def declare(
    document: Mapping[str, Any], place: str, registry: ToolRegistry, planners: Mapping[str, Planner]
) -> Declared:
    """The capability of a file's document, or all that is wrong with it. `place` is the file, for messages."""
    faults = list(unsayable(document))
    if faults:
        return Declared(None, tuple(faults))
    top = Table(document, "", faults)
    said = _said(top.table("capability"), planners)
    inputs, planner = said["input_schema"], said["planner"]
    envelope = _envelope(top.mapping("safety_envelope", {}), inputs, faults)
    top.done([planner or OURS])
    plan: Plan | None = None
    unplanned: Sequence[Fault] = ()
    # Without its schemas a plan would be told to be wrong for names that the next look at the file will know.
    if None not in (planner, inputs, said["output_schema"]):
        try:
            plan = planners[planner].prepare(document, registry)
        except PlanError as error:
            unplanned = [fault for fault in error.faults if fault not in faults]
    if plan is not None and not any(fault.key.startswith("capability.safety") for fault in faults):
        faults += _less_than(said["safety"], plan, registry)
    if faults or unplanned:
        return Declared(None, (*faults, *unplanned), of_machine=not faults)
    assert plan is not None
    assert envelope is not None
    capability = Capability(
        **said,
        inputs=Validator(said["input_schema"]),
        outputs=Validator(said["output_schema"]),
        envelope=envelope,
        plan=plan,
        place=place,
    )
    return Declared(capability)


def _said(table: Table, planners: Mapping[str, Planner]) -> dict[str, Any]:
    """What [capability] says, by the names of Capability's fields; what is wrong is None, and a fault."""
    input_schema = _schema(table, "input_schema")
    said = {
        "name": table.take("name", _NAME),
        "version": table.take("version", _VERSION),
        "description": table.take("description", Text(limit=10_000)),
        "formats": table.take("formats", _WORDS, ()),
        "planner": _planner(table, planners),
        "input_schema": input_schema,
        "output_schema": _schema(table, "output_schema"),
        "safety": _safety(table.table("safety"), input_schema),
        **_constraints(table.table("constraints", required=False)),
    }
    table.done()
    return said


def _schema(table: Table, key: str) -> Any:
    """The schema, or None with at least one fault."""
    schema = table.mapping(key)
    if schema is None:
        return None
    found = list(schema_faults(schema, table.at(key)))
    table.faults += found
    return None if found else schema


def _planner(table: Table, planners: Mapping[str, Planner]) -> Any:
    name = table.take("planner", Text(), OURS)
    if name is None or name in planners:
        return name
    vendors = "a vendor's is known only if [hcp] planners in hearth.toml names it"
    table.fault("planner", f'there is no planner "{name}" here, but {", ".join(planners)}; {vendors}')
    return None


def _constraints(table: Table) -> dict[str, Any]:
    found = {
        "max_duration": table.take("max_duration", _DURATION, USUAL_MAX_DURATION),
        "concurrent_limit": table.take("concurrent_limit", Integer(1, 1000), 1),
        "data_classification": table.take("data_classification", Choice(*CLASSIFICATIONS), "T2"),
    }
    table.done()
    return found


def _safety(table: Table, input_schema: Mapping[str, Any] | None) -> Safety:
    """The declaration; to be used only if nothing in it is a fault."""
    ceiling = table.take("risk_ceiling", _RISK)
    floor = table.take("risk_floor", _RISK, ceiling)
    safety = Safety(
        risk_ceiling=ceiling,
        risk_floor=floor,
        requires_human_approval=table.take("requires_human_approval", Flag()),
        involves_physical_resources=table.take("involves_physical_resources", Flag()),
        resource_types=table.take("resource_types", _WORDS, ()),
        hazard_categories=table.take("hazard_categories", _WORDS, ()),
        escalate=tuple(_escalation(one, input_schema, ceiling, floor) for one in table.tables("escalate")),
    )
    table.done()
    if ceiling is None or floor is None:
        return safety
    if RISKS.index(floor) > RISKS.index(ceiling):
        table.fault("risk_floor", f'"{floor}" is above risk_ceiling = "{ceiling}"; lower it or raise risk_ceiling')
    highest = max([floor, *filter(None, (one.risk for one in safety.escalate))])
    if safety.requires_human_approval and highest < _APPROVED_FROM:
        table.fault(
            "requires_human_approval",
            f"a person is asked from {_APPROVED_FROM} on, and no job of this capability is above {highest}; raise "
            "risk_floor (or risk_ceiling, where that is not set), or say false",
        )
    return safety


def _escalation(table: Table, input_schema: Mapping[str, Any] | None, ceiling: Any, floor: Any) -> Escalation:
    text = table.take("when", Text())
    when: Any = None
    if text is not None and input_schema is not None:
        try:
            when = compile_expression(text, names=Names.of_inputs(input_schema))
        except ExpressionError as error:
            table.fault("when", str(error))
    said: dict[str, Any] = {"risk": table.take("risk", _RISK), "because": table.take("because", Text(limit=300))}
    table.done()
    if None not in (said["risk"], ceiling, floor) and not floor < said["risk"] <= ceiling:
        between = f'above risk_floor ("{floor}") and up to risk_ceiling ("{ceiling}")'
        table.fault("risk", f'expected a risk {between}, got "{said["risk"]}"')
    return Escalation(when=when, **said)


def _envelope(
    table: Mapping[str, Any] | None, input_schema: Mapping[str, Any] | None, faults: list[Fault]
) -> SafetyEnvelope | None:
    if table is None or input_schema is None:
        return None
    try:
        return read_envelope(table, input_schema)
    except PlanError as error:
        faults += error.faults
        return None


def _less_than(safety: Safety, plan: Plan, registry: ToolRegistry) -> Iterator[Fault]:
    """What the plan's tools can do, and the declaration does not say."""
    tools = [registry[name] for name in sorted(plan.tools)]
    if not tools:
        return
    # What a tool needs at least: a step that its args make riskier than the job is refused when it comes to it.
    riskiest = max(tools, key=lambda tool: tool.least_risk)
    least = LEAST_RISK[riskiest.least_risk]
    if safety.risk_floor < least:
        key = "risk_floor" if safety.risk_floor != safety.risk_ceiling else "risk_ceiling"
        yield Fault(
            f"capability.safety.{key}",
            f'expected at least "{least}", since the plan uses {riskiest.name}, which has risk level '
            f'{riskiest.least_risk}; got "{safety.risk_floor}"',
        )
    may = NEEDED_RISK_LEVEL[safety.risk_ceiling]
    driving = next((tool for tool in tools if min(tool.risk_level, may) > 0 and _drives(tool)), None)
    if driving is not None and not safety.involves_physical_resources:
        yield Fault(
            "capability.safety.involves_physical_resources",
            f"expected true, since the plan uses {driving.name}, which drives hardware",
        )


def _drives(tool: Tool) -> bool:
    return tool.name.partition(".")[0] not in _MACHINE
