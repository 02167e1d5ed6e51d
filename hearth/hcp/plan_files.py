"""Plan files: capabilities that are a list of steps, written in TOML.

This module owns their tables, and `{input}` within a step's args and what it expects. A string that is one placeholder
takes the input's value with its type; within other text the value is written out. `{{` and `}}` are braces.
`hearth.hcp.declaration` checks the declaration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth._util.toml import parse_toml
from hearth.errors import HearthError, InvalidParams
from hearth.fields import AnyMap, Anything, Fault, JsonValue, Text, unknown_key
from hearth.hcp.capability import CapabilitySource
from hearth.protocol.known import known_by
from hearth.protocol.submissions import read_expect
from hearth.schema import Validator
from hearth.tables import Table, faults_of, join, near

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from hearth.tools import Tool, ToolRegistry

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("name", "version", "description", "formats", "input_schema"),
    "safety": (
        "risk_ceiling", "risk_floor", "requires_human_approval", "involves_physical_resources", "resource_types",
        "hazard_categories",
    ),
    "constraints": ("max_duration", "concurrent_limit", "data_classification"),
}  # fmt: skip
"""The tables within [capability], and their keys: the parameters of @capability."""
_NO_INPUTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_OUTPUTS: Final = {
    "type": "object",
    "required": ["steps"],
    "properties": {"steps": {"type": "array", "items": {"type": "object"}, "description": "each step's result"}},
    "additionalProperties": False,
}
_RECIPE = (
    "hearth has no recipes any more; write it as a Python function, or as a plan file with [[steps]]: see "
    "docs/capabilities.md"
)
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
"""A brace that is text, a placeholder, or a stray brace."""


@frozen
class _FileStep:
    tool: str
    args: Mapping[str, Any]
    expect: Mapping[str, Any] | None = None


def read_plan(file: Path, data: bytes, registry: ToolRegistry) -> tuple[CapabilitySource | None, list[Fault]]:
    """Return a plan file's declaration, unchecked, and the faults of its keys and its steps.

    There is no declaration where the file is no plan file at all. Raises ConfigError for text that is not TOML.
    """
    document = parse_toml(data, str(file))
    if "recipe" in document:
        return None, [Fault("recipe", _RECIPE)]
    if faults := faults_of(JsonValue(), document):
        return None, faults
    top = Table(document, "", faults)
    about = top.table("capability")
    values, keys = _declared(about)
    steps = [_step(table, values["input_schema"], registry) for table in top.tables("steps")]
    if not document.get("steps"):
        top.fault("steps", "missing; write each step as [[steps]], with its tool and its args")
    top.done()
    if not about.content:
        return None, faults
    there = [step for step in steps if step is not None]
    values |= {"tools": sorted({tool for step in there for tool in _tools(step)}), "output_schema": _OUTPUTS}
    return CapabilitySource(function=_function(there), place=str(file), values=values, keys=keys), faults


def _declared(about: Table) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments of @capability that are given, and the key of each; add a fault for each unknown key."""
    values: dict[str, Any] = {"input_schema": _NO_INPUTS}
    places: dict[str, str] = {}
    for name, keys in _KEYS.items():
        table = about.table(name, required=False) if name else about
        places |= {key: table.at(key) for key in keys}
        values |= table.given(dict.fromkeys(keys, Anything()))
        if name:
            table.done()
    if "description" not in values and about.content:
        about.fault("description", "missing; it is what callers read")
        values["description"] = "missing"
    about.done()
    return values, places


def _step(table: Table, inputs: Any, registry: ToolRegistry) -> _FileStep | None:
    name, args = table.take("tool", Text("a tool's name")), table.take("args", AnyMap(), {})
    expect = table.take("expect", AnyMap(), None)
    table.done()
    before = len(table.faults)
    for key, value in (("args", args), ("expect", expect)):
        for place, text in _strings(value or {}, table.at(key)):
            wrong = (_wrong(part, inputs) for part in _PART.finditer(text))
            table.faults.extend(Fault(place, why) for why in dict.fromkeys(wrong) if why is not None)
    if name is None or args is None:
        return None
    if name not in registry:
        table.fault("tool", f"this daemon has no tool {name!r}{near(name, registry)}; tool.list has them all")
        return None
    if len(table.faults) == before:
        _check_args(table, args, registry[name])
        if expect is not None:
            _check_expect(Table(expect, table.at("expect"), table.faults), registry)
    return _FileStep(name, args, expect)


def _check_expect(table: Table, registry: ToolRegistry) -> None:
    """Check what a step expects, as far as it is constant; the rest is checked with each submission."""
    late = [name for name in ("equals", "min", "max", "within_ms") if _is_any_late(table.content.get(name))]
    constant = {name: value for name, value in table.content.items() if name not in late}
    try:
        read = read_expect({**constant, "equals": {"late": None}} if late else constant, "")
    except InvalidParams as error:
        data = error.data or {}
        table.faults.append(Fault(table.at("") + data["path"].replace("/", "."), data["reason"]))
        return
    if read.tool not in registry:
        table.fault("tool", f"this daemon has no tool {read.tool!r}{near(read.tool, registry)}")
    else:
        _check_args(table, read.args, registry[read.tool])


def _tools(step: _FileStep) -> tuple[str, ...]:
    """Return the tools that a step uses."""
    return (step.tool,) if step.expect is None else (step.tool, step.expect["tool"])


def _wrong(part: re.Match[str], inputs: Any) -> str | None:
    """Return the fault of a placeholder, or of a stray brace."""
    name = part[1]
    if name is None:
        return 'a brace alone; write "{{" or "}}" for one that is text' if len(part[0]) == 1 else None
    properties = inputs.get("properties") if isinstance(inputs, Mapping) else None
    properties = properties if isinstance(properties, Mapping) else {}
    if name not in properties:
        return f"{{{name}}} names no input{near(name, properties)}; there are {', '.join(properties) or 'none'}"
    property_, required = properties[name], inputs.get("required", [])
    if (isinstance(property_, Mapping) and "default" in property_) or (isinstance(required, list) and name in required):
        return None
    return f"{{{name}}} may be left out; give it a default in input_schema, or list it under required"


def _check_args(table: Table, args: Mapping[str, Any], tool: Tool) -> None:
    """Check a step's args against the tool's own schema, as far as they are constant."""
    at, schema = table.at("args"), tool.params_schema
    names = known_by(schema)
    if names is not None and (unknown_members := names.unknown_members(args)):
        for one in unknown_members:
            table.faults.append(Fault(at + one.pointer.replace("/", "."), unknown_key(one.name, sorted(one.known))))
        return
    late = {name for name, value in args.items() if _is_any_late(value)}
    if late:
        schema = _without(late, schema)
    known = {name: None if name in late else filled(value, {}) for name, value in args.items()}
    validator = Validator(schema)
    if not validator.accepts(known):
        pointer, reason = validator.explain(known)
        table.faults.append(Fault(at + pointer.replace("/", "."), f"{tool.name} does not take it: {reason}"))
    elif not late:
        try:
            # A bus, a line or a sensor that this board does not have.
            tool.bus(known)
        except HearthError as error:
            table.fault("args", str(error))


def _without(names: Collection[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of args in which these may have any value."""
    kept = {key: schema[key] for key in ("type", "required", "$defs") if key in schema}
    return {
        **kept,
        "properties": {name: one for name, one in schema.get("properties", {}).items() if name not in names},
    }


def _is_any_late(value: Any) -> bool:
    """Return True if a string in it has a placeholder, whose value only a job knows."""
    return any(part[1] is not None for _, text in _strings(value, "") for part in _PART.finditer(text))


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every string in a step's args, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, member in value.items():
            yield from _strings(member, join(path, name))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _strings(member, f"{path}[{index}]")


def filled(value: Any, inputs: Mapping[str, Any]) -> Any:
    """Return a copy of a step's args in which inputs replace their placeholders."""
    if isinstance(value, Mapping):
        return {name: filled(member, inputs) for name, member in value.items()}
    if isinstance(value, list):
        return [filled(member, inputs) for member in value]
    if not isinstance(value, str):
        return value
    whole = _PART.fullmatch(value)
    if whole is not None and whole[1] is not None:
        return inputs[whole[1]]
    return _PART.sub(lambda part: part[0][0] if part[1] is None else _text(inputs[part[1]]), value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _function(steps: Sequence[_FileStep]) -> Callable[..., Any]:
    """The function that does the steps, one after another."""

    async def run(job: Any, /, **inputs: Any) -> dict[str, Any]:
        results = []
        for step in steps:
            more = filled(step.args, inputs)
            if step.expect is not None:
                more["expect"] = read_expect(filled(step.expect, inputs), "/expect")
            results.append(await job.run(step.tool, **more))
        return {"steps": results}

    return run
