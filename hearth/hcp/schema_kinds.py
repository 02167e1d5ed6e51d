"""What kinds of JSON value a schema admits, as far as that can be said without trying one, and words for them."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Shape: TypeAlias = "Mapping[str, Any]"
"""A JSON Schema of what a value can be, null apart; {} is anything."""

_KINDS = ("array", "boolean", "null", "number", "object", "string")


def kinds_of(shape: Shape | bool) -> frozenset[str] | None:
    """The JSON types that a schema admits, integers as numbers; None where it does not tell."""
    if isinstance(shape, bool):
        return None
    if "const" in shape:
        return frozenset({kind_of_value(shape["const"])})
    if isinstance(shape.get("enum"), list):
        return frozenset(map(kind_of_value, shape["enum"]))
    declared = shape.get("type")
    if isinstance(declared, str):
        return frozenset({"number" if declared == "integer" else declared})
    if isinstance(declared, list):
        return frozenset("number" if one == "integer" else one for one in declared)
    for key in ("anyOf", "oneOf"):
        if isinstance(shape.get(key), list):
            found = [kinds_of(one) for one in shape[key]]
            return None if None in found else frozenset[str]().union(*(one for one in found if one is not None))
    return None


def never_fits(given: Shape, wanted: Shape) -> str | None:
    """Why a value of one shape can never be one of the other; None where it may, and null is not looked at."""
    ours, theirs = kinds_of(given), kinds_of(wanted)
    if ours is None or theirs is None or ours & theirs:
        return None
    return f"it gives {words(ours)}, and {words(theirs)} is wanted"


def kind_of_value(value: Any) -> str:
    """The JSON type of a value; integers are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, types in (("number", (int, float)), ("string", str), ("array", list)):
        if isinstance(value, types):
            return kind
    return "object"


def words(kinds: Collection[str]) -> str:
    """Types in words: "a number or null"."""
    article = {"array": "an array", "object": "an object", "null": "null", "boolean": "true or false"}
    return " or ".join(article.get(kind, f"a {kind}") for kind in _KINDS if kind in kinds)


def near(name: str, there: Iterable[str]) -> str:
    """Words to add to a fault, where one of those that are there may have been meant."""
    found = get_close_matches(name, list(there), 1)
    return f"; did you mean {found[0]!r}?" if found else ""
