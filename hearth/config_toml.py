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
_MUST_ESCAPE = re.compile(r'["\\\x00-\x1f\x7f]')
_SHOWN = 60
"""Longest rendering of a wrong value in a message: enough to recognise it, too short to drown the reason."""


def dump_string(text: str) -> str:
    """A TOML basic string. Raises ValueError for lone surrogates, which no TOML file can hold."""
    text.encode("utf-8")
    quoted = _MUST_ESCAPE.sub(lambda m: _ESCAPES.get(m[0]) or f"\\u{ord(m[0]):04x}", text)
    return f'"{quoted}"'


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
    try:
        text = dump_value(value)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
