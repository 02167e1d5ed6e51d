"""Whether a capability's input_schema or output_schema is a JSON Schema 2020-12 (draft-aevum-agentcard-00 §2.4.3).

This module owns the bounds within which a stranger's schema is looked at, and asks `hearth.schema` for the verdict. A
schema is held to the meta-schema of 2020-12 whatever its own `$schema` says; its `$ref`s are not followed.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING

from hearth.agentcard.findings import escaped, shown
from hearth.schema import Validator

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH = 64
"""Levels of objects and arrays in a schema: what the authority on schemas follows in Python's own stack."""
MAX_VALUES = 100_000
"""Values in a schema, each object, array, string and number counted: the time that a look takes is bounded by it."""
EXPLAINED_BYTES = 128 * 1024
"""Of a schema as JSON, up to which the place of a fault is found; there are few alternatives in the meta-schema."""

_META = "https://json-schema.org/draft/2020-12/schema"


def why_no_schema(value: Mapping[str, object]) -> tuple[str, str] | None:
    """Where in an object, and why, it is no JSON Schema 2020-12; None if it is one. Never raises."""
    if (strange := _no_json(value)) is not None:
        return strange
    validator = _meta()
    return None if validator.accepts(value) else validator.explain(value, within=EXPLAINED_BYTES)


@cache
def _meta() -> Validator:
    return Validator({"$schema": _META, "$ref": _META})


def _no_json(schema: object) -> tuple[str, str] | None:
    """Where, and why, a value built in Python is not JSON, or more of it than is looked at."""
    left = MAX_VALUES
    waiting: list[tuple[str, int, object]] = [("", 0, schema)]
    while waiting:
        pointer, depth, value = waiting.pop()
        if left <= 0:
            return "", f"it has more than {MAX_VALUES} values"
        left -= 1
        if depth > MAX_DEPTH:
            return "", f"it is nested in more than {MAX_DEPTH} levels"
        if isinstance(value, dict):
            for name, member in value.items():
                if not isinstance(name, str) or _LONE.search(name):
                    return pointer, f"it has a member whose name is {shown(name)}"
                waiting.append((f"{pointer}/{escaped(name)}", depth + 1, member))
        elif isinstance(value, list):
            waiting += [(f"{pointer}/{index}", depth + 1, member) for index, member in enumerate(value)]
        elif (why := _why_no_scalar(value)) is not None:
            return pointer, why
    return None


def _why_no_scalar(value: object) -> str | None:
    if isinstance(value, str):
        return f"{shown(value)} is no Unicode text" if _LONE.search(value) else None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is no number that JSON can hold"
    if value is None or isinstance(value, int):
        return None
    return f"a {type(value).__name__} is no JSON value; where one is built in Python, dicts and lists are"


_LONE = re.compile("[\ud800-\udfff]")
"""Lone surrogates, which no UTF-8 can hold (§3)."""
