"""From a function and what its author declares to a Capability, or to all that is wrong with it.

It owns the rules of a declaration: each argument of `@capability`, the signature, and that what is declared is no less
than what the tools can do: their risk, the hardware that they drive, the person who is asked. A plan file is checked by
the same rules: its loader makes a `CapabilitySource` of it. This module reads no files.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, frozen

from hearth.config_kinds import Choice, Flag, Integer, Kind, ListOf, Mismatch, TableOf, Text
from hearth.config_toml import show
from hearth.hcp.annotations import (
    MISSING,
    NotJson,
    evaluated,
    object_schema,
    schema_of,
    structurer,
    unstructure,
)
from hearth.hcp.capability import Capability, Escalation, Limit, Safety
from hearth.hcp.envelope import SafetyEnvelope
from hearth.hcp.faults import Fault, join, near
from hearth.hcp.inputs import InputRefused, ask, named, pointer, wire_name
from hearth.hcp.schemas import schema_faults
from hearth.hcp.source_check import source_warnings
from hearth.hcp.tables import Table, unsayable
from hearth.hcp.values import CLASSIFICATIONS, LEAST_RISK, NEEDED_RISK_LEVEL, RISKS, read_duration
from hearth.hcp.versions import read_version
from hearth.schema import Validator

if TYPE_CHECKING:
    from hearth.hcp.capability import CapabilitySource
    from hearth.hcp.values import Risk
    from hearth.tools import Tool, ToolRegistry

LONGEST_NAME = 64
USUAL_MAX_DURATION = timedelta(hours=1)
"""How long a job may take whose capability says nothing."""
USUAL_CLEAN_UP = timedelta(seconds=2)

_RISK = Choice(*RISKS)
_APPROVED_FROM = "R3"
"""The least risk at which a person is asked (L3, Approval Flow)."""
_WORDS = ListOf(Text(limit=128))
_MACHINE = ("hw", "file", "sys", "proc")
"""First parts of the names of tools that drive no hardware: what tells of the board; files, the machine, processes."""
_SENTENCE: Final = Text(limit=300)


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


class _Bound(Kind):
    """A finite number of either sign."""

    expected = "a number"

    def read(self, raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
            raise self.wrong(raw)
        return raw


class _Instance(Kind):
    """An object of one class."""

    def __init__(self, expected: str, cls: type) -> None:
        self.expected = expected
        self._cls = cls

    def read(self, raw: object) -> object:
        if not isinstance(raw, self._cls):
            raise self.wrong(raw)
        return raw


_NAME = Text('a name such as "bench-climate-survey"', r"[a-z0-9]+(-[a-z0-9]+)*", limit=LONGEST_NAME)
_VERSION = _Read('a semver version such as "1.0.0"', read_version)
_DURATION = _Read('an ISO 8601 duration such as "PT10M"', read_duration)


@frozen
class Declared:
    """The result for one source: a capability, or faults."""

    capability: Capability | None
    faults: tuple[Fault, ...] = ()
    of_machine: bool = False
    """Whether all faults are tools that this machine does not have: the declaration may be right for another one."""


@frozen
class _Signature:
    """How a function takes its inputs and gives its outputs."""

    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any]
    structure: Callable[[Mapping[str, Any]], dict[str, Any]]
    unstructure: Callable[[Any], Any]


class _Values(Table):
    """What an author gave, read strictly; a fault is at the key that the author knows."""

    def __init__(self, source: CapabilitySource, faults: list[Fault]) -> None:
        super().__init__({key: _plain(value) for key, value in source.values.items()}, "", faults)
        self._keys = source.keys

    def at(self, key: str) -> str:
        return self._keys.get(key, key)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | set | frozenset) else value


def declare(source: CapabilitySource, registry: ToolRegistry) -> Declared:
    """The capability of a source, or everything that is wrong with it."""
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
    signature = _signature(source, values)
    known = _Inputs(signature, faults)
    names = values.take("tools", _WORDS)
    tools, missing = _tools(names or (), values.at("tools"), registry)
    safety = _safety(values, known, tools)
    envelope = _envelope(values, known)
    check = values.take("check", _Instance("a function of the inputs", Callable), None)  # type: ignore[arg-type]
    if check is not None:
        known.hold(check, values.at("check"))
    clean_up, clean_up_s = _clean_up(values, names)
    if faults or missing or safety is None or signature is None:
        told = [evolve(fault, place=source.place) for fault in dict.fromkeys((*faults, *missing))]
        return Declared(None, tuple(told), of_machine=not faults)
    return Declared(
        Capability(
            **said,
            input_schema=signature.input_schema,
            output_schema=signature.output_schema,
            inputs=Validator(signature.input_schema),
            outputs=Validator(signature.output_schema),
            structure=signature.structure,
            unstructure=signature.unstructure,
            safety=safety,
            envelope=envelope,
            tools=frozenset(tool.name for tool in tools),
            function=source.function,
            place=source.place,
            check=_checker(check, signature.structure),
            clean_up=clean_up,
            clean_up_s=clean_up_s,
            source_warnings=tuple(source_warnings(source.function)),
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
    """The declared tools that there are, by name, and a fault for each that there is not."""
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


# --- the function ---------------------------------------------------------------------------------------------------


def _signature(source: CapabilitySource, values: _Values) -> _Signature | None:
    """How the function is called; None with at least one fault."""
    function, faults = source.function, values.faults
    before = len(faults)
    given_in, given_out = _given_schema(values, "input_schema"), _given_schema(values, "output_schema")
    if not inspect.iscoroutinefunction(function):
        faults.append(Fault("function", "expected an async function (`async def`) that returns its outputs"))
        return None
    signature = inspect.signature(function)
    job = next(iter(signature.parameters.values()), None)
    if job is None or job.kind not in (job.POSITIONAL_ONLY, job.POSITIONAL_OR_KEYWORD):
        faults.append(Fault("function", "expected the job as its first parameter: (job, *, inputs…)"))
        return None
    rest = [one for one in signature.parameters.values() if one is not job]
    whole = next((one for one in rest if one.kind is one.VAR_KEYWORD), None)
    parameters = [one for one in rest if one.kind is one.KEYWORD_ONLY]
    faults += [
        Fault(f"parameters.{one.name}", "inputs are keyword-only: write (job, *, inputs…)")
        for one in rest
        if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)
    ]
    input_schema: Mapping[str, Any] = given_in or {}
    structure: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    if given_in is not None:
        structure = _taking(given_in, parameters, whole, faults)
    elif "input_schema" not in values.content:
        if whole is not None:
            cure = "name each input as a parameter, or give input_schema"
            faults.append(Fault(f"parameters.{whole.name}", f"**{whole.name} declares no inputs; {cure}"))
        input_schema, structure = _from_parameters(function, parameters, faults)
    output_schema = given_out or {}
    if "output_schema" not in values.content:
        output_schema = _from_return(function, signature, faults)
    if len(faults) > before:
        return None
    return _Signature(input_schema, output_schema, structure, _outputs)


def _given_schema(values: _Values, key: str) -> Mapping[str, Any] | None:
    """The schema that the author gave; None without one, and where it is wrong."""
    schema: Mapping[str, Any] | None = values.mapping(key, None)
    if schema is None:
        return None
    found = [*unsayable(schema, values.at(key))] or [*schema_faults(schema, values.at(key))]
    values.faults += found
    return None if found else schema


def _taking(
    schema: Mapping[str, Any],
    parameters: list[inspect.Parameter],
    whole: inspect.Parameter | None,
    faults: list[Fault],
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """With input_schema the function gets JSON values as they are, by the names of its parameters."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    by_wire = {wire_name(one.name): one for one in parameters}
    for wire, one in by_wire.items():
        always = wire in schema.get("required", ()) or "default" in properties.get(wire, {})
        if wire not in properties:
            cure = f"input_schema has no property {wire!r}{near(wire, properties)}"
            faults.append(Fault(f"parameters.{one.name}", f"is no input: {cure}"))
        elif one.default is one.empty and not always:
            cure = "give it a default here or there, or require it in input_schema"
            faults.append(Fault(f"parameters.{one.name}", f"may be missing in inputs; {cure}"))
    if whole is None:
        faults += [
            Fault("function", f"has no parameter for input {wire!r}; add one, or take **inputs")
            for wire in properties
            if wire not in by_wire
        ]

    def structure(inputs: Mapping[str, Any]) -> dict[str, Any]:
        names = {wire: by_wire[wire].name if wire in by_wire else wire for wire in inputs}
        return {names[wire]: value for wire, value in inputs.items() if whole is not None or wire in by_wire}

    return structure


def _from_parameters(
    function: Callable[..., Any], parameters: list[inspect.Parameter], faults: list[Fault]
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """The input schema of annotated parameters, and the way from JSON to their values."""
    found = []
    for one in parameters:
        at = f"parameters.{one.name}"
        if one.annotation is one.empty:
            faults.append(Fault(at, "has no annotation; write its type, such as int or Annotated[float, Ge(0)]"))
            continue
        try:
            annotation = evaluated(one.annotation, _globals(function), at)
        except NotJson as error:
            faults += error.faults
            continue
        found.append((one.name, annotation, MISSING if one.default is one.empty else one.default))
    try:
        schema = object_schema(found, "parameters")
    except NotJson as error:
        faults += error.faults
        return {}, dict
    wrong = [evolve(fault, key=_of_author(fault.key)) for fault in schema_faults(schema, "parameters")]
    faults += wrong
    if wrong:
        return {}, dict
    makers = {wire_name(name): (name, structurer(annotation)) for name, annotation, _default in found}

    def structure(inputs: Mapping[str, Any]) -> dict[str, Any]:
        made = {}
        for wire, value in inputs.items():
            name, make = makers[wire]
            try:
                made[name] = make(value)
            except Exception as error:
                cure = f"Give {pointer(name)} a value that it takes"
                raise InputRefused(str(error) or type(error).__name__, cure=cure, at=wire) from error
        return made

    return schema, structure


def _of_author(key: str) -> str:
    """A place in a derived schema as the author knows it."""
    return key.replace("parameters.properties.", "parameters.", 1).replace("returns.properties.", "returns.", 1)


def _from_return(function: Callable[..., Any], signature: inspect.Signature, faults: list[Fault]) -> dict[str, Any]:
    """The output schema of the return annotation."""
    at = "returns"
    if signature.return_annotation is signature.empty:
        cure = "write `-> Outputs`, an attrs class of the outputs, or give output_schema"
        faults.append(Fault(at, f"the function does not say what it returns; {cure}"))
        return {}
    try:
        annotation = evaluated(signature.return_annotation, _globals(function), at)
        if annotation is type(None):
            return object_schema([])
        schema = schema_of(annotation, at)
    except NotJson as error:
        faults += error.faults
        return {}
    if schema.get("type") != "object":
        cure = "return an attrs class, or dict[str, T], whose members are the outputs"
        faults.append(Fault(at, f"outputs are an object in JSON; {cure}"))
    else:
        faults += [evolve(fault, key=_of_author(fault.key)) for fault in schema_faults(schema, at)]
    return schema


def _globals(function: Callable[..., Any]) -> Mapping[str, Any]:
    return getattr(inspect.unwrap(function), "__globals__", {})


def _outputs(value: Any) -> Any:
    """The outputs of a job: a function that returns nothing has none."""
    return {} if value is None else unstructure(value, "outputs")


def _checker(
    check: Callable[..., None] | None, structure: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> Callable[[Mapping[str, Any]], None]:
    def checked(inputs: Mapping[str, Any]) -> None:
        if check is None:
            return
        try:
            ask(check, structure(inputs))
        except InputRefused:
            raise
        except Exception as error:
            names = named(check)
            reason = f"cannot be checked: {type(error).__name__}: {error}"
            cure = f"Change {' or '.join(map(pointer, names)) or 'them'}"
            raise InputRefused(reason, cure=cure, at=names[0] if len(names) == 1 else "") from error

    return checked


class _Inputs:
    """The inputs that an author's functions may name."""

    def __init__(self, signature: _Signature | None, faults: list[Fault]) -> None:
        self._signature = signature
        self._faults = faults

    def hold(self, function: Callable[..., Any], key: str) -> None:
        """Look at the parameters of a function over the inputs; a fault for each that is no input."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            self._faults.append(Fault(key, "has no signature that can be read; wrap it in a lambda"))
            return
        if inspect.iscoroutinefunction(function):
            self._faults.append(Fault(key, "is async; it is called before there is a job, so write `def`"))
        for one in parameters:
            if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                self._faults.append(Fault(key, f"parameter {one.name!r}: name each input that it looks at"))
            elif self._signature is not None:
                self._known(one.name, self._signature, key)

    def _known(self, name: str, signature: _Signature, key: str) -> None:
        there: Mapping[str, Any] = signature.input_schema.get("properties", {})
        if wire_name(name) not in there:
            known = ", ".join(there) or "none"
            self._faults.append(Fault(key, f"there is no input {name!r}{near(name, there)}; there are {known}"))


# --- safety ---------------------------------------------------------------------------------------------------------


def _safety(values: _Values, known: _Inputs, tools: list[Tool]) -> Safety | None:
    """The safety declaration, held against what the tools can do; None with at least one fault."""
    before = len(values.faults)
    ceiling: Risk | None = values.take("risk_ceiling", _RISK)
    floor: Risk | None = values.take("risk_floor", _RISK, ceiling)
    requires = values.take("requires_human_approval", Flag(), False)
    drives = values.take("involves_physical_resources", Flag(), None)
    types, hazards = (values.take(key, _WORDS, ()) for key in ("resource_types", "hazard_categories"))
    escalate = tuple(_escalations(values, known, ceiling, floor))
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


def _escalations(values: _Values, known: _Inputs, ceiling: Risk | None, floor: Risk | None) -> Iterator[Escalation]:
    """Those that are right, with their `risk` as it stands; the others are faults."""
    given = values.take("escalate", ListOf(_Instance("an Escalation(when, risk, because, cure)", Escalation)), ())
    for index, one in enumerate(given or ()):
        at = f"{values.at('escalate')}[{index}]"
        table = Table({"risk": one.risk, "because": one.because, "cure": one.cure}, at, values.faults)
        risk = table.take("risk", _RISK)
        table.take("because", _SENTENCE)
        table.take("cure", _SENTENCE)
        if not callable(one.when):
            table.fault("when", f"expected a function of the inputs, got {show(one.when)}")
        else:
            known.hold(one.when, table.at("when"))
        if risk is not None and ceiling is not None and floor is not None:
            if floor <= ceiling and not floor < risk <= ceiling:
                between = f'above risk_floor ("{floor}") and up to risk_ceiling ("{ceiling}")'
                table.fault("risk", f'expected a risk {between}, got "{risk}"')
            yield one


def _less_than(values: _Values, floor: Risk, ceiling: Risk, tools: list[Tool]) -> Iterator[Fault]:
    """A floor that is lower than what the tools can do."""
    if not tools:
        return
    # What a tool needs at least: a step that its args make riskier than the job is refused when it comes to it.
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


def _envelope(values: _Values, known: _Inputs) -> SafetyEnvelope:
    limits = values.take("limits", TableOf(_Instance("a Limit(value, min=…, max=…)", Limit), Text(limit=128)), {}) or {}
    for name, limit in limits.items():
        given = {"min": limit.min, "max": limit.max, "unit": limit.unit}
        given = {key: value for key, value in given.items() if value is not None}
        table = Table(given, join(values.at("limits"), name), values.faults)
        low, high = table.take("min", _Bound(), None), table.take("max", _Bound(), None)
        table.take("unit", Text("a unit", limit=64), None)
        if "min" not in table.content and "max" not in table.content:
            table.fault("max", "a limit without `min` and `max` bounds nothing")
        elif low is not None and high is not None and low > high:
            table.fault("min", f"{low} is above max = {high}; nothing could hold")
        if limit.value is not None and not callable(limit.value):
            table.fault("value", f"expected a function of the inputs, got {show(limit.value)}")
        elif limit.value is not None:
            known.hold(limit.value, table.at("value"))
    return SafetyEnvelope(
        parameters=limits,
        prohibited_actions=values.take("prohibited_actions", ListOf(Text()), ()) or (),
        emergency_procedures=values.take("emergency_procedures", TableOf(Text()), {}) or {},
    )
