"""A tool's JSON Schema in the words that more MCP clients understand, with exactly the same meaning.

Many clients hand schemas to models whose dialect has one `type` per schema. What is there twice is said once; no value
is accepted that was not, and none refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAPS = ("properties", "patternProperties", "$defs", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = (
    "items",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)


def portable(schema: Mapping[str, Any], named: Callable[[str], str] = str) -> dict[str, Any]:
    """The schema of an object: its root says so, as MCP asks, since args and results are objects in HACP anyway.

    `named` rewrites what descriptions say.
    """
    return {**_rewritten(schema, named), "type": "object"}


def _rewritten(schema: Any, named: Callable[[str], str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in _MAPS:
        if isinstance(made.get(name), dict):
            made[name] = {key: _rewritten(value, named) for key, value in made[name].items()}
    for name in _LISTS:
        if isinstance(made.get(name), list):
            made[name] = [_rewritten(value, named) for value in made[name]]
    for name in _ONE:
        if name in made:
            made[name] = _rewritten(made[name], named)
    if isinstance(made.get("description"), str):
        made["description"] = named(made["description"])
    kinds = made.get("type")
    if isinstance(kinds, list):
        del made["type"]
        either = [{"type": kind} for kind in kinds]
        if "anyOf" in made:
            made["allOf"] = [*made.get("allOf", ()), {"anyOf": either}]
        else:
            made["anyOf"] = either
    return made
