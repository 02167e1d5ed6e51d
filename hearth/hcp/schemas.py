"""The schemas of a capability, held to what a job needs of them.

They are the operator's, so `hearth.schema` runs them; what a caller sends has a module of its own (`caller_schema`).
This one refuses what is no schema of an object, references to elsewhere (a validator would fetch them), and defaults
that the schema itself refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hearth._util.toml import show
from hearth.errors import ConfigError
from hearth.hcp.faults import Fault, join
from hearth.hcp.spelling import DATA, misplaced
from hearth.schema import Validator, check_schema

_REFERENCES = ("$ref", "$dynamicRef")
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema_faults(schema: Mapping[str, Any], key: str) -> Iterator[Fault]:
    """All that is against a capability's input_schema or output_schema; `key` is its path."""
    if schema.get("type") != "object":
        there = f"; got {show(schema['type'])}" if "type" in schema else ""
        yield Fault(join(key, "type"), f'expected type = "object": inputs and outputs are objects{there}')
        return
    for place in misplaced(schema, key):
        yield Fault(place, "is looked at only where `properties` and `items` alone lead to it; move it there")
    elsewhere = list(_elsewhere(schema, key))
    yield from elsewhere
    if elsewhere:
        return
    try:
        check_schema(schema, key)
        Validator(schema)
    except ConfigError as error:
        yield Fault(key, str(error).removeprefix(f"{key}: "))
    except ValueError as error:  # a $ref to nothing, which the check above cannot know
        yield Fault(key, f"cannot be used: {_first_line(error)}")
    else:
        yield from _default_faults(schema, key)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _elsewhere(value: object, path: str) -> Iterator[Fault]:
    if isinstance(value, list):
        for index, member in enumerate(value):
            yield from _elsewhere(member, f"{path}[{index}]")
    if not isinstance(value, Mapping):
        return
    for name, member in value.items():
        at = join(path, name)
        if name in _REFERENCES and isinstance(member, str) and not member.startswith("#"):
            yield Fault(at, f"leads out of the file, and nothing is fetched: {show(member)}; put it under $defs")
        elif name == "$schema" and isinstance(member, str) and member.rstrip("#") != _DRAFT:
            yield Fault(at, f"only JSON Schema 2020-12 is known, not {show(member)}; take it out")
        elif name not in DATA:
            yield from _elsewhere(member, at)


def _default_faults(schema: Mapping[str, Any], key: str) -> Iterator[Fault]:
    """Defaults of top-level properties, which are filled in: each must be what its property takes."""
    properties = schema.get("properties", {})
    surroundings = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    alone = {**surroundings, "properties": properties}
    validator = None
    for name, property_ in properties.items():
        if isinstance(property_, Mapping) and "default" in property_:
            validator = validator or Validator(alone)
            if not validator.accepts({name: property_["default"]}):
                _, why = validator.explain({name: property_["default"]})
                yield Fault(f"{join(join(key, 'properties'), name)}.default", f"its own schema refuses it: {why}")
