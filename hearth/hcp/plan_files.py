"""Plan files: capabilities that are a list of steps and nothing more, written in TOML instead of Python.

It owns the file's tables, and `{input}` within a step's args. A string that is one placeholder takes the input's value
with its type; within other text the value is written out. `{{` and `}}` are braces. What may be declared, and whether
it is enough for the tools, `hearth.hcp.declaration` checks as it does for a Python function.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth._util.toml import number_too_long
from hearth.errors import ConfigError, HearthError
from hearth.fields import FieldType, Text, unknown_key
from hearth.hcp.capability import CapabilitySource
from hearth.hcp.faults import Fault, Table, join, near, unsayable
from hearth.protocol.known import known_by
from hearth.schema import Validator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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
"""A brace that is text, a placeholder, or a brace that is neither."""


@frozen
class _Step:
    tool: str
    args: Mapping[str, Any]


class _Raw(FieldType):
    """Whatever is there, which `declare` reads."""

    def read(self, raw: object) -> Any:
        return raw


def read_plan(file: Path, data: bytes, registry: ToolRegistry) -> tuple[CapabilitySource | None, list[Fault]]:
    """Return what a plan file declares, unchecked, and what is wrong with its keys and its steps.

    There is no declaration where it is no plan file at all. Raises ConfigError for what is not TOML.
    """
    document = _parse(file, data)
    if "recipe" in document:
        return None, [Fault("recipe", _RECIPE)]
    if faults := list(unsayable(document)):
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
    values |= {"tools": sorted({step.tool for step in there}), "output_schema": _OUTPUTS}
    return CapabilitySource(function=_function(there), place=str(file), values=values, keys=keys), faults


def _parse(file: Path, data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from None
    except ValueError:
        raise ConfigError(f"{file}: {number_too_long(data)}") from None
    except RecursionError:
        raise ConfigError(f"{file}: arrays or tables are nested too deeply; flatten them") from None


def _declared(about: Table) -> tuple[dict[str, Any], dict[str, str]]:
    """The arguments of @capability that are there, and the key of each; a fault for each unknown key."""
    values: dict[str, Any] = {"input_schema": _NO_INPUTS}
    places: dict[str, str] = {}
    for name, keys in _KEYS.items():
        table = about.table(name, required=False) if name else about
        places |= {key: table.at(key) for key in keys}
        found = {key: table.take(key, _Raw(), None) for key in keys}
        values |= {key: value for key, value in found.items() if value is not None}
        if name:
            table.done()
    if "description" not in values and about.content:
        about.fault("description", "missing; it is what callers read")
        values["description"] = "missing"
    about.done()
    return values, places


def _step(table: Table, inputs: Any, registry: ToolRegistry) -> _Step | None:
    name, args = table.take("tool", Text("a tool's name")), table.mapping("args", {})
    table.done()
    before = len(table.faults)
    for place, text in _strings(args or {}, table.at("args")):
        wrong = (_wrong(part, inputs) for part in _PART.finditer(text))
        table.faults.extend(Fault(place, why) for why in dict.fromkeys(wrong) if why is not None)
    if name is None or args is None:
        return None
    if name not in registry:
        table.fault("tool", f"this daemon has no tool {name!r}{near(name, registry)}; tool.list has them all")
        return None
    if len(table.faults) == before:
        _check_args(table, args, registry[name])
    return _Step(name, args)


def _wrong(part: re.Match[str], inputs: Any) -> str | None:
    """What is wrong with a placeholder, or with a brace that is none."""
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
    """Hold a step's args against the tool's own schema, as far as they are constant."""
    at, schema = table.at("args"), tool.params_schema
    names = known_by(schema)
    if names is not None and (unknown_members := names.unknown_members(args)):
        for one in unknown_members:
            table.faults.append(Fault(at + one.pointer.replace("/", "."), unknown_key(one.name, sorted(one.known))))
        return
    late = {name for name, value in args.items() if any(_is_late(text) for _, text in _strings(value, ""))}
    if late:
        kept = {key: schema[key] for key in ("type", "required", "$defs") if key in schema}
        properties: Mapping[str, Any] = schema.get("properties", {})
        schema = {**kept, "properties": {name: one for name, one in properties.items() if name not in late}}
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


def _is_late(text: str) -> bool:
    """Whether it has a placeholder, whose value only a job knows."""
    return any(part[1] is not None for part in _PART.finditer(text))


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
    """Return a copy of a step's args in which inputs stand for their placeholders."""
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


def _function(steps: Sequence[_Step]) -> Callable[..., Any]:
    """The function that does the steps, one after another."""

    async def run(job: Any, /, **inputs: Any) -> dict[str, Any]:
        return {"steps": [await job.run(step.tool, **filled(step.args, inputs)) for step in steps]}

    return run
