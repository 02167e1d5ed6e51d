"""An AgentCard as it comes: an object, or JSON text of one, once or twice (draft-aevum-agentcard-00 §3).

This module owns what is JSON here and how much of it is read; it refuses to know what a card must contain.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from hearth.agentcard.findings import Finding, kind


class NotJson(Exception):
    """A text that is no JSON document; the message is a problem, `cure` its cure. Never leaves this package."""

    def __init__(self, problem: str, cure: str = "give one JSON object, encoded in UTF-8") -> None:
        super().__init__(problem)
        self.cure = cure


def read_object(document: object) -> tuple[Mapping[str, Any] | None, list[Finding]]:
    """The object that a document is or contains, or why there is none.

    Takes an object as it is, text or UTF-8 bytes with the JSON of an object, and either of these embedded in a JSON
    string, as MCP tools hand cards on (§3). A name that occurs twice counts with its last value, as in every common
    reader. No input raises.
    """
    try:
        value = document
        # Bytes of a file may hold a JSON string that holds the card: two readings, and never a third.
        for _ in range(2):
            if not isinstance(value, (str, bytes, bytearray, memoryview)):
                break
            value = _parse(value)
    except NotJson as error:
        return None, [Finding("", "§3", str(error), error.cure)]
    if not isinstance(value, Mapping):
        return None, [
            Finding("", "§3", f"is {kind(value)}, not an object", "give one JSON object with the card's fields")
        ]
    return value, []


def _parse(document: str | bytes | bytearray | memoryview) -> Any:
    try:
        text = document if isinstance(document, str) else bytes(document).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJson(f"is not UTF-8 at byte {error.start}", "encode the card in UTF-8") from None
    if text.startswith("\ufeff"):
        raise NotJson("begins with a byte order mark", "save it as UTF-8 without one (RFC 8259 §8.1)")
    try:
        return json.loads(text, parse_int=_integer, parse_float=_double, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NotJson(f"is not JSON: {error.msg} at {where}", "correct the JSON there") from None
    except RecursionError:
        raise NotJson("is nested too deeply to be read", "nest it less deeply: a card needs some ten levels") from None


def _integer(digits: str) -> int | float:
    # Python reads at most 4300 digits as an integer; to everybody else a JSON number is a double (RFC 8259 §6).
    return int(digits) if len(digits) <= _MOST_DIGITS else _double(digits)


def _double(text: str) -> float:
    """The double for a number; the largest there is for one that is larger still, since JSON has no infinity."""
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


_MOST_DIGITS = 400


def _no_constant(word: str) -> NoReturn:
    raise NotJson(f"is not JSON: it has {word}, which is no JSON number", "leave the field out, or give a number")
