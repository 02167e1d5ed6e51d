"""docs/reference/openrpc.json and hacp.schema.json: they accept what the protocol does, and refuse what it refuses."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from support.method_params import MINIMAL, needs_a_session

from hearth.errors import RpcError
from hearth.protocol.known import KNOWN, read_params
from hearth.protocol.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Iterator

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
OPENRPC = json.loads((REFERENCE / "openrpc.json").read_text("utf-8"))
SCHEMA = json.loads((REFERENCE / "hacp.schema.json").read_text("utf-8"))
EXAMPLES = [
    json.loads(line)
    for line in re.findall(r"^[CS]: (.*)$", (REFERENCE / "methods.md").read_text("utf-8"), re.MULTILINE)
    if "hcp_version" not in line
]
WRONG = (None, True, -1, 0, 1, 1.5, 10**9, "", "x", "x" * 300, "x" * 5000, [], ["x"], {}, [{}] * 257)
NEEDED_HERE = {"task.events.subscribe": {"task_id": "t"}}
"""Params that are optional, but without which another param is refused."""


def minimal(method: str) -> dict[str, Any]:
    """The smallest params of a method, which the test may change."""
    session = {"session_id": "s"} if needs_a_session(method) else {}
    return deepcopy({**session, **MINIMAL.get(method, {}), **NEEDED_HERE.get(method, {})})


def schema_of(name: str) -> dict[str, Any]:
    return {**SCHEMA["$defs"][name], "$defs": SCHEMA["$defs"]}


def fits(value: Any, name: str) -> bool:
    return jsonschema.Draft202012Validator(schema_of(name)).is_valid(value)


def accepted(method: str, params: dict[str, Any]) -> bool:
    try:
        read_params(method, params)
    except RpcError:
        return False
    return True


def places(schema: dict[str, Any], at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every member that an object of the schema may have; items of an array by the first."""
    for name, inner in schema.get("properties", {}).items():
        yield (*at, name)
        yield from places(inner, (*at, name))
        yield from places(inner.get("items", {}), (*at, name, 0))


def put(params: Any, place: tuple[str | int, ...], value: Any) -> None:
    for part in place[:-1]:
        params = params[part] if isinstance(part, int) else params.setdefault(part, {})
    params[place[-1]] = value


PLACES = [(m, place) for m in METHODS for place in places(schema_of(f"{m}.params")) if place != ("session_id",)]


@pytest.mark.parametrize(("method", "place"), PLACES, ids=[f"{m}/{'/'.join(map(str, p))}" for m, p in PLACES])
def test_schema_and_server_accept_the_same_values(method: str, place: tuple[str | int, ...]) -> None:
    differ = []
    for wrong in WRONG:
        params = minimal(method)
        put(params, place, wrong)
        if accepted(method, params) != fits(params, f"{method}.params"):
            differ.append((wrong, accepted(method, params)))
    assert differ == []


@pytest.mark.parametrize("method", METHODS)
def test_the_schema_names_the_members_that_the_server_knows_and_requires(method: str) -> None:
    params: dict[str, Any] = minimal(method)
    assert fits(params, f"{method}.params")
    for name in schema_of(f"{method}.params").get("required", ()):
        assert not fits({key: value for key, value in params.items() if key != name}, f"{method}.params")
    for place in places(schema_of(f"{method}.params")):
        if 0 not in place:
            put(params, place, params.get(place[0], {}) if len(place) == 1 else {})
    assert KNOWN[method].knows(params)
    (described,) = [each for each in OPENRPC["methods"] if each["name"] == method]
    assert {each["name"] for each in described["params"]} == set(schema_of(f"{method}.params")["properties"])


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_of_the_page_fits(number: int) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(EXAMPLES[number])
    asked = {each["id"]: each["method"] for each in EXAMPLES if "method" in each and "id" in each}
    example = EXAMPLES[number]
    if "result" in example:
        jsonschema.Draft202012Validator(schema_of(f"{asked[example['id']]}.result")).validate(example["result"])


@pytest.mark.slow
def test_the_schemas_are_schemas() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert [each["name"] for each in OPENRPC["methods"]] == list(METHODS)
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid({"jsonrpc": "2.0", "id": 1, "method": "task.sumbit"})
