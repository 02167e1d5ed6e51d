"""Schemas of tools as MCP clients know them: flat input schemas, and schemas in the subset that all clients take.

Many clients pass schemas to models whose dialect allows one `type` per schema. `portable` rewrites a schema so that it
accepts and refuses the same values. `plain` rewrites a published schema, and `flat` the root of an input schema, so
that they refuse no more: some clients refuse or drop a tool whose input schema has a combinator at its root, and some
regular expressions. So `flat` returns a schema of one form: `type`, `properties`, `required` and
`additionalProperties`. It cannot say all that the tool's own schema says: the daemon checks each call by that one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

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
    """Return the schema with "object" as the type of its root, as MCP requires; args and results are objects in HACP.

    `named` rewrites the descriptions.
    """
    return {**_rewritten(schema, named), "type": "object"}


def _rewritten(schema: Any, named: Callable[[str], str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    made = _with_parts(schema, lambda part: _rewritten(part, named))
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


def _with_parts(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of a schema in which every schema directly within it has been changed."""
    made = dict(schema)
    for name in _MAPS:
        if isinstance(made.get(name), dict):
            made[name] = {key: change(value) for key, value in made[name].items()}
    for name in _LISTS:
        if isinstance(made.get(name), list):
            made[name] = [change(value) for value in made[name]]
    for name in _ONE:
        if name in made:
            made[name] = change(made[name])
    return made


_NOT_FOR_ALL: Final = {
    "enum", "const", "exclusiveMinimum", "exclusiveMaximum", "oneOf", "patternProperties", "propertyNames", "contains",
    "unevaluatedProperties", "unevaluatedItems", "dependentRequired", "dependentSchemas", "not", "if", "then", "else",
}  # fmt: skip
_ANY: Final = [{"type": kind} for kind in ("string", "number", "boolean", "object", "null")]


def plain(schema: Any) -> dict[str, Any]:
    """Return a schema in the subset of JSON Schema that Gemini's API takes; it may accept more.

    There `enum` has only strings, every schema has a `type` or alternatives, and bounds are inclusive
    (https://ai.google.dev/api/caching#Schema): one schema beyond it fails a request with all its tools.
    """
    if not isinstance(schema, dict):
        return {"anyOf": [*_ANY, {"type": "array", "items": {"anyOf": _ANY}}]}
    made = _plain_parts(schema)
    step = 1 if made.get("type") == "integer" else 0
    for name, exclusive, inwards in (("minimum", "exclusiveMinimum", step), ("maximum", "exclusiveMaximum", -step)):
        if exclusive in schema:
            made.setdefault(name, schema[exclusive] + inwards)
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None:
        made = _of_choices(made, choices)
    if made.get("type") == "array" and "items" not in made:
        made["items"] = {"anyOf": _ANY}
    if not made.keys() & {"type", "anyOf", "allOf", "$ref"}:
        made |= {"type": "object"} if "properties" in made else plain(True)
    return made


def _plain_parts(schema: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: part for name, part in schema.items() if name not in _NOT_FOR_ALL}
    if "patternProperties" in schema:
        kept.pop("additionalProperties", None)
    if "oneOf" in schema:
        either = {"anyOf": schema["oneOf"]}
        kept |= either if "anyOf" not in kept else {"allOf": [*kept.get("allOf", ()), either]}
    further = kept.pop("additionalProperties", None)
    made = _with_parts(kept, plain)
    if further is not None:
        made["additionalProperties"] = plain(further) if isinstance(further, dict) else further
    return made


def _of_choices(schema: dict[str, Any], choices: Sequence[Any]) -> dict[str, Any]:
    """Return a schema for some values: strings as a choice, numbers as a range, and for others their types."""
    of: dict[type, list[Any]]
    of = {kind: [one for one in choices if type(one) is kind] for kind in (str, int, float, bool)}
    texts = of[str]
    numbers: list[Any] = [*of[int], *of[float]]
    found: list[dict[str, Any]] = [{"type": "string", "enum": texts}] if texts else []
    if numbers:
        kind = "number" if of[float] else "integer"
        found.append({"type": kind, "minimum": min(numbers), "maximum": max(numbers)})
    found += [{"type": "boolean"}] * bool(of[bool]) + [{"type": "null"}] * (None in choices)
    kept = {name: part for name, part in schema.items() if name not in ("type", "anyOf")}
    if numbers and max(numbers) - min(numbers) >= len(numbers):
        kept["description"] = f"{kept.get('description', '')} ({' or '.join(map(str, choices))})".strip()
    return {**kept, **found[0]} if len(found) == 1 else {**kept, "anyOf": found or plain(True)["anyOf"]}


_LOCAL: Final = "#/"
_DEEPEST: Final = 16
"""Levels of references that are followed; a recursive schema ends there with one that accepts any value."""
_MOST_PARTS: Final = 4000
"""Schemas of one input schema in which references are replaced; a larger schema accepts any value beyond them."""

_NO_REGEX_FOR_ALL = re.compile(r"\(\?[=!<]|\\[1-9]|\\k<")
"""Look-ahead, look-behind, named groups and back references: RE2 and other engines in linear time have none."""


def flat(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input schema with only `type`, `properties`, `required` and `additionalProperties` at its root.

    Every name that a branch of the root has (`allOf`, `anyOf`, `oneOf`, `then`, `else`, `dependentSchemas`, `$ref`)
    becomes a property. The root's own schema of a name comes first; otherwise any of those of the branches may fit,
    also where the branch with the name does not apply. A name is required if the root, each branch of an `allOf`, or
    all alternatives require it. `additionalProperties` is False, unless the tool's own schema takes further names
    explicitly, or names none. References are replaced, and patterns that some clients cannot compile are left out, at
    every level.
    """
    root = _Inliner(schema).whole(schema)
    shape = _shape(root)
    return {
        "type": "object",
        "properties": {name: _either(kinds) for name, kinds in shape.properties.items()},
        "required": [name for name in shape.required if name in shape.properties],
        "additionalProperties": _further(root, shape),
    }


class _Inliner:
    """Replaces the local references of one document, and leaves out patterns that not every client can compile."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._left = _MOST_PARTS

    def whole(self, schema: Any, depth: int = 0) -> Any:
        """Return the schema without `$ref`, `$defs` and such patterns."""
        if not isinstance(schema, dict):
            return schema
        self._left -= 1
        if self._left < 0:
            return {}
        if isinstance(schema.get("$ref"), str):
            schema = self._replaced(schema, depth)
            if "$ref" in schema:
                return self.whole(schema, depth + 1)
            depth += 1
        return _with_parts(_compilable(schema), lambda part: self.whole(part, depth))

    def _replaced(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Return a schema that has the schema of its reference in place of it."""
        found = self._find(schema["$ref"]) if depth < _DEEPEST else {}
        more = {name: value for name, value in schema.items() if name != "$ref"}
        return {**found, **more} if not found.keys() & more.keys() - _WORDS else {"allOf": [found, more]}

    def _find(self, target: str) -> Mapping[str, Any]:
        """Return the schema at a local reference; one that accepts any value for every other reference."""
        found: Any = self._document if target == "#" or target.startswith(_LOCAL) else None
        for part in target.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def _compilable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without definitions, and without patterns that not every client can compile."""
    own = {name: value for name, value in schema.items() if name not in _NOT_SHOWN}
    pattern, names = own.get("pattern"), own.get("patternProperties")
    if isinstance(pattern, str) and _NO_REGEX_FOR_ALL.search(pattern):
        del own["pattern"]
    if isinstance(names, dict) and any(map(_NO_REGEX_FOR_ALL.search, names)):
        del own["patternProperties"]
        own.pop("additionalProperties", None)
    return own


_WORDS: Final = {"title", "description", "default", "examples", "deprecated", "$comment"}
_NOT_SHOWN: Final = {"$schema", "$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$defs", "definitions", "$comment"}


@frozen
class _Shape:
    """The names of an object: the schemas that each may have, and those that are required."""

    properties: Mapping[str, list[Any]]
    required: tuple[str, ...]


def _shape(schema: Mapping[str, Any]) -> _Shape:
    """Return the names of a schema and of the branches at its root."""
    own = {name: [kind] for name, kind in object_of(schema.get("properties")).items()}
    required = dict.fromkeys(name for name in schema.get("required", ()) if isinstance(name, str))
    for branch in map(_shape, _branches(schema, "allOf")):
        required |= dict.fromkeys(branch.required)
        _add(own, [branch])
    conditional = [schema[name] for name in ("then", "else") if isinstance(schema.get(name), dict)]
    dependent = [part for part in object_of(schema.get("dependentSchemas")).values() if isinstance(part, dict)]
    _add(own, map(_shape, (*conditional, *dependent)))
    for several in ("anyOf", "oneOf"):
        branches = [_shape(branch) for branch in _branches(schema, several)]
        _add(own, branches)
        if branches:
            each = set.intersection(*(set(branch.required) for branch in branches))
            required |= dict.fromkeys(name for name in branches[0].required if name in each)
    return _Shape(own, tuple(required))


def _add(own: dict[str, list[Any]], branches: Iterable[_Shape]) -> None:
    """Add the names of branches that the root does not have itself."""
    found: dict[str, list[Any]] = {}
    for branch in branches:
        for name, kinds in branch.properties.items():
            seen = found.setdefault(name, [])
            seen += [kind for kind in kinds if kind not in seen]
    for name, kinds in found.items():
        own.setdefault(name, kinds)


def _branches(schema: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [branch for branch in schema.get(name, ()) if isinstance(branch, dict)]


def object_of(value: Any) -> Mapping[str, Any]:
    """Return a value that is an object; {} for any other."""
    return value if isinstance(value, dict) else {}


def _either(kinds: list[Any]) -> Any:
    # `true` and `false` are schemas, which clients expect as objects.
    objects = [kind if isinstance(kind, dict) else {} for kind in kinds]
    return objects[0] if len(objects) == 1 else {"anyOf": objects}


def _further(root: Mapping[str, Any], shape: _Shape) -> Any:
    """Return `additionalProperties`: what the tool says itself; False for one that names its arguments, else True."""
    if root.get("patternProperties"):
        return True
    return root.get("additionalProperties", not (shape.properties or "properties" in root))
