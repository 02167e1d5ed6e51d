"""Members of a request's params, read strictly: the declared JSON types, without coercion, and a fault with its place.

`true` is not 1, and "5" is not 5. Null for an optional member is as good as absent. InvalidParams names the place by
JSON pointer. Integers are those that a double holds exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.errors import InvalidParams
from hearth.fields import whole
from hearth.protocol.jsonrpc import kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_SAFE = (1 << 53) - 1
"""Integers beyond this do not survive a peer that reads numbers as doubles (draft §2.4)."""


def wrong(pointer: str, expected: str, value: Any) -> InvalidParams:
    """Return the error for a member that is not as `expected`."""
    reason = f"expected {expected}, got {kind_of(value)}" if value is not None else f"expected {expected}"
    return InvalidParams(f"Invalid params: {pointer}: {reason}", data={"path": pointer, "reason": reason})


def read_text(params: Mapping[str, Any], name: str, at: str = "", *, most: int = 4096) -> str:
    """Return a member that must be a string."""
    value = params.get(name)
    if type(value) is not str:
        raise wrong(f"{at}/{name}", "a string", value)
    if len(value) > most:
        raise wrong(f"{at}/{name}", f"at most {most} characters", None)
    return value


def read_optional_text(params: Mapping[str, Any], name: str, at: str = "", *, most: int = 256) -> str | None:
    """Return a string, or None where it is absent or null."""
    return None if params.get(name) is None else read_text(params, name, at, most=most)


def read_flag(params: Mapping[str, Any], name: str, at: str, default: bool) -> bool:
    """Return a boolean, or the default where it is absent or null."""
    value = params.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise wrong(f"{at}/{name}", "a boolean", value)
    return value


def read_integer(params: Mapping[str, Any], name: str, at: str, low: int, high: int = MAX_SAFE) -> int | None:
    """Return an integer within bounds, or None where it is absent or null."""
    value = whole(params.get(name))
    if value is None:
        return None
    if type(value) is not int:
        raise wrong(f"{at}/{name}", "an integer", value)
    if not low <= value <= high:
        raise wrong(f"{at}/{name}", f"an integer from {low} to {high}", None)
    return value


def read_choice(params: Mapping[str, Any], name: str, at: str, choices: tuple[str, ...], default: str) -> str:
    """Return one of some strings, or the default where it is absent or null."""
    value = params.get(name)
    if value is None:
        return default
    if type(value) is not str or value not in choices:
        raise wrong(f"{at}/{name}", " or ".join(f'"{choice}"' for choice in choices), None)
    return value
