"""Writing TOML: the other half of the standard library's `tomllib`, for the few sorts of value needed here.

It writes plain values (strings, numbers, truth values, arrays, inline tables) so that they read back equal,
and shortens them for error messages. It knows no section and no key, and refuses what TOML cannot say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_SHOWN = 60
"""Longest rendering of a wrong value in a message: enough to recognise it, too short to drown the reason."""
_SHOWN_BITS = 192
"""Of a whole number that is written out; Python itself refuses to from 4,300 digits on."""


def dump_string(text: str) -> str:
    """A TOML basic string, all printable. Raises ValueError for lone surrogates, which no TOML file can hold."""
    text.encode("utf-8")
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(one: str) -> str:
    if one in _ESCAPES:
        return _ESCAPES[one]
    if one.isprintable():
        return one
    return f"\\u{ord(one):04x}" if ord(one) < 0x10000 else f"\\U{ord(one):08x}"


def dump_key(key: str) -> str:
    """A TOML key: bare where the grammar allows it, quoted elsewhere."""
    return key if _BARE_KEY.match(key) else dump_string(key)


def dump_value(value: object) -> str:
    """One value on one line, arrays and tables inline. Raises TypeError for what TOML has no notation for."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return dump_string(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {"inf": "inf", "-inf": "-inf"}.get(repr(value), "nan")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(dump_value, value))}]"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{dump_key(key)} = {dump_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    raise TypeError(f"TOML has no notation for {type(value).__name__}")


def show(value: object) -> str:
    """`value` as its author would recognise it in an error message, on one line and shortened."""
    if isinstance(value, Mapping):
        return "a table" if value else "an empty table"
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    try:
        text = dump_value(value)
    except TypeError:
        text = str(value)
    except ValueError:  # a number within it that Python does not write out, or text that no file can hold
        text = "an array" if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def number_too_long(data: bytes) -> str:
    """What is wrong with a document that `tomllib` leaves with a plain ValueError, without a place.

    It hands every run of digits to int(), which takes 4,300 at most.
    """
    digits = re.search(rb"[0-9][0-9_]{4299}", data)
    line = data.count(b"\n", 0, digits.start() if digits else 0) + 1
    return f"line {line}: a number of more than 4300 digits; no key takes one"
