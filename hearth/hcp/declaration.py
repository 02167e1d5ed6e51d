"""From a function and its author's declaration to a Capability, or to the list of all its faults.

It owns the rules of a declaration: each argument of `@capability`, the signature, and that the declaration covers what
the tools can do: their risk, the hardware that they drive, the approval by a person. A plan file is checked by the same
rules: its loader makes a `CapabilitySource` of it. This module reads no files.
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, frozen

from hearth.fields import (
    ANY_NUMBER,
    AnyMap,
    Choice,
    Fault,
    FieldType,
    Flag,
    Integer,
    JsonValue,
    ListOf,
    MapOf,
    Parsed,
    Text,
)
from hearth.hcp.capability import Capability, Escalation, Limit, Safety, SafetyEnvelope
from hearth.hcp.messages import LEAST_RISK, NEEDED_RISK_LEVEL, read_duration
from hearth.hcp.schemas import schema_faults
from hearth.hcp.signatures import checker, faults_over_inputs, outputs, read_signature
from hearth.hcp.versions import read_version
from hearth.policy.levels import CLASSIFICATIONS, RISKS
from hearth.schema import Validator
from hearth.tables import Table, faults_of, join, near

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.hcp.capability import CapabilitySource
    from hearth.policy.levels import Risk
    from hearth.tools import Tool, ToolRegistry

LONGEST_NAME = 64
USUAL_MAX_DURATION = timedelta(hours=1)
"""Longest run of a job whose capability declares no max_duration."""
USUAL_CLEAN_UP = timedelta(seconds=2)

_RISK = Choice(*RISKS)
_APPROVED_FROM = "R3"
"""The least risk at which a person must approve (L3, Approval Flow)."""
_WORDS = ListOf(Text(limit=128))
_MACHINE = ("hw", "file", "sys", "proc")
"""First parts of the names of tools that drive no hardware: board information, files, the machine, processes."""
_SENTENCE: Final = Text(limit=300)


class _Instance(FieldType):
    """An object of one class."""

    def __init__(self, expected: str, cls: type) -> None:
        self.expected = expected
        self._cls = cls

    def read(self, raw: object) -> object:
        if not isinstance(raw, self._cls):
            raise self.wrong(raw)
        return raw


_NAME = Text('a name such as "bench-climate-survey"', r"[a-z0-9]+(-[a-z0-9]+)*", limit=LONGEST_NAME)
_VERSION = Parsed('a semver version such as "1.0.0"', read_version)
_DURATION = Parsed('an ISO 8601 duration such as "PT10M"', read_duration)


@frozen
class DeclaredCapability:
    """The result for one source: a capability, or faults."""

    capability: Capability | None
    faults: tuple[Fault, ...] = ()
    of_machine: bool = False
    """True if all faults are tools that this machine does not have: the declaration may be right for another one."""


class _Values(Table):
    """The author's values, read strictly. A fault is reported at the key that the author wrote."""

    def __init__(self, source: CapabilitySource, faults: list[Fault]) -> None:
        super().__init__({key: _plain(value) for key, value in source.values.items()}, "", faults)
        self._keys = source.keys
        self.inputs: Mapping[str, Any] | None = None
        """The input schema, once it is known to be right."""

    def at(self, key: str) -> str:
        return self._keys.get(key, key)

    def hold(self, function: Any, key: str) -> None:
        """Check an author's function over the inputs."""
        self.faults += faults_over_inputs(function, self.inputs, key)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | set | frozenset) else value


def declare(source: CapabilitySource, registry: ToolRegistry) -> DeclaredCapability:
    """Return the capability of a source, or all its faults."""
    faults: list[Fault] = []
    values = _Values(source, faults)
    said: dict[str, Any] = {
        "name": values.take("name", _NAME),
        "version": values.take("version", _VERSION),
        "description": _description(source, values),
        "formats": values.take("formats", _WORDS, ()),
        "max_duration": values.take("max_duration", _DURATION, USUAL_MAX_DURATION),
        "concurrent_limit": values.take("concurrent_limit", Integer(1, 1000), 1),
        "data_classification": values.take("data_classification", Choice(*CLASSIFICATIONS), "T2"),
    }
    given = {key: _given_schema(values, key) for key in ("input_schema", "output_schema")}
    signature = None
    if not any(schema is None and key in values.content for key, schema in given.items()):
        signature = read_signature(source.function, given["input_schema"], given["output_schema"], faults)
        values.inputs = None if signature is None else signature.input_schema
    names = values.take("tools", _WORDS)
    tools, missing = _tools(names or (), values.at("tools"), registry)
    safety = _safety(values, tools)
    envelope = _envelope(values)
    check = values.content.get("check")
    if check is not None:
        values.hold(check, values.at("check"))
    clean_up, clean_up_s = _clean_up(values, names)
    if faults or missing or safety is None or signature is None:
        placed = [evolve(fault, place=source.place) for fault in dict.fromkeys((*faults, *missing))]
        return DeclaredCapability(None, tuple(placed), of_machine=not faults)
    return DeclaredCapability(
        Capability(
            **said,
            input_schema=signature.input_schema,
            output_schema=signature.output_schema,
            inputs=Validator(signature.input_schema),
            outputs=Validator(signature.output_schema),
            structure=signature.structure,
            unstructure=outputs,
            safety=safety,
            envelope=envelope,
            tools=frozenset(tool.name for tool in tools),
            function=source.function,
            place=source.place,
            check=checker(check, signature.structure),
            clean_up=clean_up,
            clean_up_s=clean_up_s,
        )
    )


def _description(source: CapabilitySource, values: _Values) -> Any:
    if "description" not in values.content:
        documented = inspect.getdoc(source.function)
        if not documented:
            values.fault("description", "missing; write a docstring, which is what callers read")
            return None
        values.content = {**values.content, "description": documented}
    return values.take("description", Text(limit=10_000))


def _tools(names: Sequence[str], key: str, registry: ToolRegistry) -> tuple[list[Tool], list[Fault]]:
    """Return the declared tools that exist, by name, and a fault for each other one."""
    missing = [
        Fault(key, f"this daemon has no tool {name!r}{near(name, registry)}; tool.list has them all")
        for name in dict.fromkeys(names)
        if name not in registry
    ]
    return [registry[name] for name in sorted(set(names)) if name in registry], missing


def _clean_up(values: _Values, tools: Sequence[str] | None) -> tuple[frozenset[str], float]:
    names = frozenset(values.take("clean_up", _WORDS, ()) or ())
    for name in sorted(names - set(names if tools is None else tools)):
        values.fault("clean_up", f"{name!r} is not among tools; a job may use no others, so put it there too")
    duration = values.take("clean_up_duration", _DURATION, USUAL_CLEAN_UP) or USUAL_CLEAN_UP
    return names, duration.total_seconds()


def _given_schema(values: _Values, key: str) -> Mapping[str, Any] | None:
    """The schema that the author gave; None without one, and where it is wrong."""
    schema: Mapping[str, Any] | None = values.take(key, AnyMap(), None)
    if schema is None:
        return None
    found = faults_of(JsonValue(), schema, values.at(key)) or [*schema_faults(schema, values.at(key))]
    values.faults += found
    return None if found else schema


def _safety(values: _Values, tools: list[Tool]) -> Safety | None:
    """Return the safety declaration, checked against the tools; None with at least one fault."""
    before = len(values.faults)
    ceiling: Risk | None = values.take("risk_ceiling", _RISK)
    floor: Risk | None = values.take("risk_floor", _RISK, ceiling)
    requires = values.take("requires_human_approval", Flag(), False)
    drives = values.take("involves_physical_resources", Flag(), None)
    types, hazards = (values.take(key, _WORDS, ()) for key in ("resource_types", "hazard_categories"))
    escalate = tuple(_escalations(values, ceiling, floor))
    if ceiling is None or floor is None:
        return None
    if RISKS.index(floor) > RISKS.index(ceiling):
        values.fault("risk_floor", f'"{floor}" is above risk_ceiling = "{ceiling}"; lower it or raise risk_ceiling')
    highest = max([floor, *(one.risk for one in escalate)])
    if requires and highest < _APPROVED_FROM:
        values.fault(
            "requires_human_approval",
            f"a person is asked from {_APPROVED_FROM} on, and no job of this capability is above {highest}; raise "
            "risk_floor (or risk_ceiling, where that is not set), or say false",
        )
    if len(values.faults) > before:
        return None
    may = NEEDED_RISK_LEVEL[ceiling]
    driving = next((tool for tool in tools if min(tool.risk_level, may) > 0 and _drives(tool)), None)
    values.faults += _less_than(values, floor, ceiling, tools)
    if driving is not None and drives is False:
        reason = f"expected true, since its tools include {driving.name}, which drives hardware"
        values.fault("involves_physical_resources", reason)
    return Safety(
        risk_ceiling=ceiling,
        risk_floor=floor,
        requires_human_approval=requires,
        involves_physical_resources=driving is not None if drives is None else drives,
        resource_types=types,
        hazard_categories=hazards,
        escalate=escalate,
    )


def _escalations(values: _Values, ceiling: Risk | None, floor: Risk | None) -> Iterator[Escalation]:
    """Yield the valid ones, with their `risk` as it stands; the others become faults."""
    given = values.take("escalate", ListOf(_Instance("an Escalation(when, risk, because, cure)", Escalation)), ())
    for index, one in enumerate(given or ()):
        at = f"{values.at('escalate')}[{index}]"
        table = Table({"risk": one.risk, "because": one.because, "cure": one.cure}, at, values.faults)
        risk = table.take("risk", _RISK)
        table.take("because", _SENTENCE)
        table.take("cure", _SENTENCE)
        values.hold(one.when, table.at("when"))
        if risk is not None and ceiling is not None and floor is not None:
            if floor <= ceiling and not floor < risk <= ceiling:
                between = f'above risk_floor ("{floor}") and up to risk_ceiling ("{ceiling}")'
                table.fault("risk", f'expected a risk {between}, got "{risk}"')
            yield one


def _less_than(values: _Values, floor: Risk, ceiling: Risk, tools: list[Tool]) -> Iterator[Fault]:
    """Yield a fault for a floor that is lower than the tools' risk."""
    if not tools:
        return
    # A tool's least risk counts. A step whose args make it riskier than the job is refused when the job comes to it.
    riskiest = max(tools, key=lambda tool: tool.least_risk)
    least = LEAST_RISK[riskiest.least_risk]
    if floor < least:
        yield Fault(
            values.at("risk_floor" if floor != ceiling else "risk_ceiling"),
            f'expected at least "{least}", since its tools include {riskiest.name}, which has risk level '
            f'{riskiest.least_risk}; got "{floor}"',
        )


def _drives(tool: Tool) -> bool:
    return tool.name.partition(".")[0] not in _MACHINE


def _envelope(values: _Values) -> SafetyEnvelope:
    limits = values.take("limits", MapOf(_Instance("a Limit(value, min=…, max=…)", Limit), Text(limit=128)), {}) or {}
    for name, limit in limits.items():
        given = {"min": limit.min, "max": limit.max, "unit": limit.unit}
        given = {key: value for key, value in given.items() if value is not None}
        table = Table(given, join(values.at("limits"), name), values.faults)
        low, high = table.take("min", ANY_NUMBER, None), table.take("max", ANY_NUMBER, None)
        table.take("unit", Text("a unit", limit=64), None)
        if "min" not in table.content and "max" not in table.content:
            table.fault("max", "a limit without `min` and `max` bounds nothing")
        elif low is not None and high is not None and low > high:
            table.fault("min", f"{low} is above max = {high}; nothing could hold")
        if limit.value is not None:
            values.hold(limit.value, table.at("value"))
    return SafetyEnvelope(
        parameters=limits,
        prohibited_actions=values.take("prohibited_actions", ListOf(Text()), ()) or (),
        emergency_procedures=values.take("emergency_procedures", MapOf(Text()), {}) or {},
    )
