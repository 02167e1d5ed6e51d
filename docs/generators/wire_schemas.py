"""The wire in machine-readable form: reference/openrpc.json and reference/hacp.schema.json.

Both are made from the tables of reference/methods.md, which tests hold to the code. A type that this module cannot read
is an error: the page keeps to the words of `_TYPES`.
"""  # noqa: INP001  docs/ is a folder of pages, not a package

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hearth import __version__
from hearth.errors import ERROR_TABLE
from hearth.protocol.submissions import MOST_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator

_TYPES: Final[dict[str, dict[str, Any]]] = {
    "": {},
    "string": {"type": "string"},
    "string, 16 to 64 bytes in hex": {"type": "string", "pattern": r"^(?:[0-9a-f]{2}){16,64}$"},
    "string, a semantic version": {"type": "string", "maxLength": 256, "pattern": r"^\d+\.\d+\.\d+"},
    "string, of any length": {"type": "string"},
    "string; another value counts as none": {},
    "string or null": {"type": ["string", "null"]},
    "integer": {"type": "integer"},
    "integer or null": {"type": ["integer", "null"]},
    "number": {"type": "number"},
    "number above 0": {"type": "number", "exclusiveMinimum": 0},
    "boolean": {"type": "boolean"},
    "`true`": {"const": True},
    "object": {"type": "object"},
    "object or `null`": {"type": ["object", "null"]},
    "array of strings": {"type": "array", "items": {"type": "string"}},
    "array of integers": {"type": "array", "items": {"type": "integer"}},
    "array of objects": {"type": "array", "items": {"type": "object"}},
}
_BOUNDED: Final[tuple[tuple[str, str, dict[str, str]], ...]] = (
    (r"string, at most (\d+) characters", "string", {"maxLength": "1"}),
    (r"string, (\d+) to (\d+) characters", "string", {"minLength": "1", "maxLength": "2"}),
    (r"integer, (\d+) to (\d+)", "integer", {"minimum": "1", "maximum": "2"}),
    (r"integer, (\d+) or more", "integer", {"minimum": "1"}),
    (r"array of (\d+) to (\d+) objects", "array", {"minItems": "1", "maxItems": "2"}),
)
_METHODS: Final = Path(__file__).parents[1] / "reference" / "methods.md"
LONGEST: Final = 4096
"""Characters of a param that is a string, where its row says nothing else."""
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_STRICT: Final = {
    "type": ["boolean", "null"],
    "description": "Refuse the request if it has a member that the server does not know.",
}
_IGNORED: Final = {
    "type": "array",
    "items": {"type": "string"},
    "maxItems": 16,
    "description": "Members of the params that the server did not know, as JSON pointers.",
}


class Row(NamedTuple):
    """One member of a table: its path, its schema, and if it may be left out or null."""

    path: str
    schema: dict[str, Any]
    required: bool
    null: bool


def schema_of(words: str) -> dict[str, Any]:
    """Return the JSON Schema of a type as the page says it. Raises ValueError."""
    if (known := _TYPES.get(words)) is not None:
        return json.loads(json.dumps(known))
    for pattern, type_, bounds in _BOUNDED:
        if found := re.fullmatch(pattern, words):
            items = {"items": {"type": "object"}} if type_ == "array" else {}
            return {"type": type_, **items, **{name: int(found[int(group)]) for name, group in bounds.items()}}
    choices = re.findall(r'`"([^"`]*)"`', words)
    if choices and re.fullmatch(r'(?:`"[^"`]*"`(?:, | or )?)+', words):
        return {"enum": choices}
    raise ValueError(f"methods.md has a type that has no JSON Schema here: {words!r}")


def _rows(section: str, heading: str) -> Iterator[Row]:
    """Yield the members of the first table with that heading, one by one."""
    found = re.search(rf"^\| {heading} \|.*\n\|[- |]*\n((?:\|.*\n)*)", section, re.MULTILINE)
    for line in found[1].splitlines() if found else ():
        names, types, *default, meaning = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        paths = re.findall(r"`([^`]+)`", names)
        each = types.split(", ") if len(paths) > 1 and types.count(", ") == len(paths) - 1 else [types] * len(paths)
        for path, words in zip(paths, each, strict=True):
            required = default == ["required"]
            null = bool(default) and not required and "`null` is not" not in meaning
            schema = schema_of(words)
            if default and words == "string":
                schema["maxLength"] = LONGEST
            yield Row(path, {**schema, "description": meaning}, required, null)


def _object(rows: Iterator[Row]) -> dict[str, Any]:
    """Return the schema of an object whose members are named by paths such as `task.steps[].tool`."""
    whole: dict[str, Any] = {"type": "object", "properties": {}}
    for path, schema, required, null in rows:
        *parents, name = path.split(".")
        at = whole
        for parent in parents:
            at = at["properties"][parent.removesuffix("[]")]
            at = at["items"] if parent.endswith("[]") else at
        if required:
            at.setdefault("required", []).append(name)
        at.setdefault("properties", {})[name] = _or_null(schema) if null else schema
    return whole


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A member that may be left out may as well be null."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]} if "type" in schema else schema


class Method(NamedTuple):
    """A method as the page describes it."""

    name: str
    summary: str
    params: dict[str, Any]
    result: dict[str, Any]
    errors: list[int]


def methods(page: str) -> Iterator[Method]:
    """Yield the methods of the page, in its order."""
    submitted: dict[str, Any] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        name, _, text = section.partition("\n")
        if " " in name:
            continue
        params = _object(_rows(text, "Param"))
        if constraints := params["properties"].get("task", {}).get("properties", {}).get("constraints"):
            constraints["properties"] = _object(_rows(text, "Constraint"))["properties"]
            _describe_expect(params["properties"]["task"]["properties"]["steps"]["items"]["properties"]["expect"], text)
            submitted = params["properties"]["task"]
        if name == "plan.prepare":
            told = params["properties"]["task"]["description"]
            params["properties"]["task"] = {**json.loads(json.dumps(submitted)), "description": told}
            del params["properties"]["task"]["properties"]["idempotency_key"]
        params["properties"]["strict"] = _STRICT
        result = _object(_rows(text, "Result"))
        result["properties"]["ignored"] = _IGNORED
        errors = re.search(r"^Errors: ((?:.+\n)+)", text, re.MULTILINE)
        codes = [int(code) for code in re.findall(r"(?<!\d)-32\d{3}", errors[1])] if errors else []
        yield Method(name, _summary(text), params, result, codes)


def _describe_expect(expect: dict[str, Any], text: str) -> None:
    """Add to the schema of `expect` its members, and what its table cannot say: one condition, and no other member."""
    inside = _object(_rows(text, "Expectation"))
    conditions = ("equals", "min", "max")
    for name in conditions:
        inside["properties"][name] |= {"minProperties": 1, "maxProperties": MOST_MEMBERS}
    for name in ("min", "max"):
        inside["properties"][name]["additionalProperties"] = {"type": "number"}
    given = [{"properties": {name: {"type": "object"}}, "required": [name]} for name in conditions]
    expect |= {name: value for name, value in inside.items() if name != "type"}
    expect |= {"additionalProperties": False, "anyOf": given}


def _summary(text: str) -> str:
    """Return the first sentence of a section."""
    first = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.)]) (?=[A-Z])|: ", first)[0]


def openrpc(page: str) -> dict[str, Any]:
    """Return the OpenRPC document of the page's methods."""
    return {
        "openrpc": "1.3.2",
        "info": {
            "title": "HACP, the Hardware Agent Capability Protocol, as hearth speaks it",
            "version": __version__,
            "license": {"name": "Apache-2.0"},
        },
        "methods": [
            {
                "name": method.name,
                "summary": method.summary,
                "paramStructure": "by-name",
                "params": [
                    {"name": name, "required": name in method.params.get("required", ()), "schema": schema}
                    for name, schema in method.params["properties"].items()
                ],
                "result": {"name": "result", "schema": method.result},
                "errors": [{"code": code, "message": ERROR_TABLE[code].title} for code in sorted(set(method.errors))],
            }
            for method in methods(page)
        ],
    }


def json_schema(page: str) -> dict[str, Any]:
    """Return the JSON Schema of every document that client and server may send (HACP; batches included)."""
    definitions: dict[str, Any] = {
        "id": {"type": ["string", "integer"]},
        "error": {
            "type": "object",
            "properties": {
                "code": {"enum": sorted(ERROR_TABLE)},
                "message": {"type": "string"},
                "data": {"type": "object"},
            },
            "required": ["code", "message"],
        },
        "task.event": _object(_rows(page, "Member")),
        "observe.event": _object(_rows(page, "Field")),
    }
    described = list(methods(page))
    for method in described:
        definitions[f"{method.name}.params"] = method.params
        definitions[f"{method.name}.result"] = method.result
    call = {
        "type": "object",
        "properties": {"jsonrpc": {"const": "2.0"}, "id": {"$ref": "#/$defs/id"}},
        "required": ["jsonrpc", "method"],
        "oneOf": [
            {"properties": {"method": {"const": m.name}, "params": {"$ref": f"#/$defs/{m.name}.params"}}}
            for m in described
        ],
    }
    answer = {
        "type": "object",
        "properties": {"jsonrpc": {"const": "2.0"}, "id": {"type": ["string", "integer", "null"]}},
        "required": ["jsonrpc", "id"],
        "oneOf": [
            {"properties": {"result": {"type": "object"}}, "required": ["result"]},
            {"properties": {"error": {"$ref": "#/$defs/error"}}, "required": ["error"]},
        ],
    }
    event = {
        "type": "object",
        "properties": {"jsonrpc": {"const": "2.0"}},
        "required": ["jsonrpc", "method", "params"],
        "oneOf": [
            {"properties": {"method": {"const": name}, "params": {"$ref": f"#/$defs/{name}"}}}
            for name in ("task.event", "observe.event")
        ],
    }
    definitions |= {"request": call, "answer": answer, "notification": event}
    one = [{"$ref": f"#/$defs/{name}"} for name in ("request", "answer", "notification")]
    return {
        "$schema": _DIALECT,
        "title": "HACP, the Hardware Agent Capability Protocol, as hearth speaks it",
        "anyOf": [*one, {"type": "array", "items": {"anyOf": one[:2]}, "minItems": 1, "maxItems": 64}],
        "$defs": definitions,
    }


def openrpc_page() -> str:
    """Return the content of reference/openrpc.json."""
    return _json(openrpc(_METHODS.read_text("utf-8")))


def json_schema_page() -> str:
    """Return the content of reference/hacp.schema.json."""
    return _json(json_schema(_METHODS.read_text("utf-8")))


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
