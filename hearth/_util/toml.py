"""TOML documents read whole, with the place of what is no TOML, and TOML values written: `tomllib` only reads.

It writes plain values (strings, numbers, truth values, arrays, inline tables) so that they read back equal,
and shortens them for error messages. It knows no section and no key, and refuses values that TOML cannot express.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from hearth.errors import ConfigError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_SHOWN = 60
"""Limit of a wrong value in a message, in characters: enough to recognise it, and the reason stays in view."""
_SHOWN_BITS = 192
"""Limit of an integer that is written out, in bits; Python itself refuses to write more than 4,300 digits."""


def dump_string(text: str) -> str:
    """Return a TOML basic string, all printable. Raises ValueError for lone surrogates, which no TOML file can hold."""
    text.encode("utf-8")
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(one: str) -> str:
    if one in _ESCAPES:
        return _ESCAPES[one]
    if one.isprintable():
        return one
    return f"\\u{ord(one):04x}" if ord(one) < 0x10000 else f"\\U{ord(one):08x}"


def dump_key(key: str) -> str:
    """Return a TOML key: bare if the grammar allows it, else quoted."""
    return key if _BARE_KEY.match(key) else dump_string(key)


def dump_value(value: object) -> str:
    """Return a value on one line, arrays and tables inline. Raises TypeError for a type that TOML does not have."""
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
    """Return `value` as its author recognises it in an error message, on one line and shortened."""
    if isinstance(value, Mapping):
        return "a table" if value else "an empty table"
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    try:
        text = dump_value(value)
    except TypeError:
        text = str(value)
    except ValueError:  # it contains a number that Python refuses to write, or text that no file can hold
        text = "an array" if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def parse_toml(data: bytes, source: str) -> dict[str, Any]:
    """Return a document as plain values. Raises ConfigError with its source and the place in it."""
    import tomllib  # 10 ms, and most importers of this module read no file

    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        why = f"line {line}: byte 0x{byte:02x} is not UTF-8; save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        why = _syntax(str(error))
    except ValueError:
        # `tomllib` passes every run of digits to int(), which takes 4,300 at most.
        digits = re.search(rb"[0-9][0-9_]{4299}", data)
        line = data.count(b"\n", 0, digits.start() if digits else 0) + 1
        why = f"line {line}: a number of more than 4300 digits; no key takes one"
    except RecursionError:
        why = "arrays or tables are nested too deeply; flatten them"
    raise ConfigError(f"{source}: {why}")


def _syntax(message: str) -> str:
    """Return the standard library's "what (at line 3, column 5)" with the place in front."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if match is None:
        return message
    what, line, column = match.groups()
    return f"line {line}, column {column}: {what}" if line else f"at the end: {what}"
