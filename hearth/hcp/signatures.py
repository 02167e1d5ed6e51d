"""Signatures of capability functions: the schemas of inputs and outputs, the conversion from JSON to a call and back.

The schemas come from the annotations. A function with an `input_schema` of its own gets the JSON values unchanged. This
module also checks the author's functions over the inputs (checks, limits, escalations): the names of their parameters
must be inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from attrs import evolve, frozen

from hearth._util.foreign import Raised, called
from hearth.annotations import MISSING, NotJson, evaluated, object_schema, schema_of, structurer, unstructure, wire_name
from hearth.fields import (
    Fault,
)
from hearth.hcp.inputs import InputRefused, ask, named, pointer
from hearth.hcp.schemas import schema_faults
from hearth.tables import near

Structure: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
Schema: TypeAlias = Mapping[str, Any]


@frozen
class Signature:
    """The schemas of a function's inputs and outputs, and the conversions from and to JSON."""

    input_schema: Schema
    output_schema: Schema
    structure: Structure
    """From valid JSON inputs to keyword arguments. Raises InputRefused."""


def read_signature(
    function: Callable[..., Any], input_schema: Schema | None, output_schema: Schema | None, faults: list[Fault]
) -> Signature | None:
    """Read a function's signature; a given schema replaces its annotations. None with at least one fault."""
    before = len(faults)
    if not inspect.iscoroutinefunction(function):
        faults.append(Fault("function", "expected an async function (`async def`) that returns its outputs"))
        return None
    signature = inspect.signature(function)
    job = next(iter(signature.parameters.values()), None)
    if job is None or job.kind not in (job.POSITIONAL_ONLY, job.POSITIONAL_OR_KEYWORD):
        faults.append(Fault("function", "expected the job as its first parameter: (job, *, inputs…)"))
        return None
    whole, parameters = _inputs([*signature.parameters.values()][1:], faults)
    if whole is not None and job.kind is not job.POSITIONAL_ONLY:
        cure = f"write ({job.name}, /, **{whole.name})"
        faults.append(Fault("function", f"an input may be called {job.name!r} too: {cure}"))
    if input_schema is not None:
        structure = _as_given(input_schema, parameters, whole is not None, faults)
    else:
        if whole is not None:
            cure = "name each input as a parameter, or give input_schema"
            faults.append(Fault(f"parameters.{whole.name}", f"**{whole.name} declares no inputs; {cure}"))
        input_schema, structure = _from_parameters(function, parameters, faults)
    if output_schema is None:
        output_schema = _from_return(function, signature.return_annotation, faults)
    return None if len(faults) > before else Signature(input_schema, output_schema, structure)


def _inputs(
    rest: Sequence[inspect.Parameter], faults: list[Fault]
) -> tuple[inspect.Parameter | None, list[inspect.Parameter]]:
    """Return `**inputs`, if there is one, and the keyword-only parameters; add a fault for each other one."""
    faults += [
        Fault(f"parameters.{one.name}", "inputs are keyword-only: write (job, *, inputs…)")
        for one in rest
        if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)
    ]
    whole = next((one for one in rest if one.kind is one.VAR_KEYWORD), None)
    return whole, [one for one in rest if one.kind is one.KEYWORD_ONLY]


def outputs(value: Any) -> Any:
    """Return the outputs of a job as JSON; a function that returns nothing has none. Raises NotJson."""
    return {} if value is None else unstructure(value, "outputs")


def checker(check: Callable[..., None] | None, structure: Structure) -> Callable[[Mapping[str, Any]], None]:
    """Return the author's check as a function of JSON inputs, which raises InputRefused and nothing else."""

    def checked(inputs: Mapping[str, Any]) -> None:
        if check is None:
            return
        try:
            called(ask, check, structure(inputs))
        except Raised as raised:
            if isinstance(raised.error, InputRefused):
                raise raised.error from None
            names = named(check)
            cure = f"Change {' or '.join(map(pointer, names)) or 'them'}"
            at = names[0] if len(names) == 1 else ""
            raise InputRefused(f"cannot be checked: {raised}", cure=cure, at=at) from raised.error

    return checked


def faults_over_inputs(function: Any, schema: Schema | None, key: str) -> Iterator[Fault]:
    """Yield the faults of an author's function over the inputs; without their schema, names are not checked."""
    if not callable(function):
        yield Fault(key, "expected a function of the inputs, such as `lambda samples: samples > 500`")
        return
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        yield Fault(key, "has no signature that can be read; wrap it in a lambda")
        return
    if inspect.iscoroutinefunction(function):
        yield Fault(key, "is async; it is called before there is a job, so write `def`")
    there: Mapping[str, Any] = {} if schema is None else schema.get("properties", {})
    for one in parameters:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            yield Fault(key, f"parameter {one.name!r}: name each input that it looks at")
        elif schema is not None and wire_name(one.name) not in there:
            known = ", ".join(there) or "none"
            yield Fault(key, f"there is no input {one.name!r}{near(one.name, there)}; there are {known}")


def _as_given(
    schema: Schema, parameters: Sequence[inspect.Parameter], takes_all: bool, faults: list[Fault]
) -> Structure:
    """Return the structure for a given schema: JSON values as they are, by the names of the function's parameters."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    always = {name for name, one in properties.items() if isinstance(one, Mapping) and "default" in one}
    always.update(schema.get("required", ()))
    names = {wire_name(one.name): one.name for one in parameters}
    for wire, one in zip(names, parameters, strict=True):
        if wire not in properties:
            reason = f"is no input: input_schema has no property {wire!r}{near(wire, properties)}"
            faults.append(Fault(f"parameters.{one.name}", reason))
        elif one.default is one.empty and wire not in always:
            cure = "give it a default here or there, or require it in input_schema"
            faults.append(Fault(f"parameters.{one.name}", f"may be missing in inputs; {cure}"))
    if takes_all:
        return lambda inputs: {names.get(wire, wire): value for wire, value in deepcopy(inputs).items()}
    faults += [
        Fault("function", f"has no parameter for input {wire!r}; add one, or take **inputs")
        for wire in properties
        if wire not in names
    ]
    return lambda inputs: {names[wire]: deepcopy(value) for wire, value in inputs.items() if wire in names}


def _from_parameters(
    function: Callable[..., Any], parameters: Sequence[inspect.Parameter], faults: list[Fault]
) -> tuple[Schema, Structure]:
    """The input schema of annotated parameters, and the way from JSON to their values."""
    found = []
    for one in parameters:
        at = f"parameters.{one.name}"
        annotation, default = (MISSING if given is one.empty else given for given in (one.annotation, one.default))
        try:
            found.append((one.name, evaluated(annotation, _globals(function), at), default))
        except NotJson as error:
            faults += error.faults
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
                made[name] = called(make, value)
            except Raised as raised:
                cure, error = f"Give {pointer(name)} a value that it takes", raised.error
                raise InputRefused(str(error) or type(error).__name__, cure=cure, at=wire) from error
        return made

    return schema, structure


def _from_return(function: Callable[..., Any], returned: Any, faults: list[Fault]) -> Schema:
    """The output schema of the return annotation."""
    at = "returns"
    if returned is inspect.Signature.empty:
        cure = "write `-> Outputs`, an attrs class of the outputs, or give output_schema"
        faults.append(Fault(at, f"the function does not say what it returns; {cure}"))
        return {}
    try:
        annotation = evaluated(returned, _globals(function), at)
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


def _of_author(key: str) -> str:
    """Return a place in a derived schema by the author's name for it."""
    return key.replace("parameters.properties.", "parameters.", 1).replace("returns.properties.", "returns.", 1)


def _globals(function: Callable[..., Any]) -> Mapping[str, Any]:
    return getattr(inspect.unwrap(function), "__globals__", {})
