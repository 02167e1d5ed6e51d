"""Parts of the hardware tools' JSON Schemas (2020-12), and readers of the values that they allow.

It owns the forms of an argument that several tools share: a line, an address, binary data. Unknown fields are ignored
on the wire (draft §2.5), so no schema forbids them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from hearth.drivers.i2c import FIRST_ADDR, LAST_ADDR, MAX_LENGTH
from hearth.errors import InvalidParams

Schema = Mapping[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

# Without looking ahead or behind: clients compile them with RE2.
_HEX_ADDR = r"^0[xX](?:0?[89a-fA-F]|[1-6][0-9a-fA-F]|7[0-7])$"
_HEX_BYTE = r"^0[xX][0-9a-fA-F]{1,2}$"
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def args(properties: Mapping[str, Schema], *, required: Sequence[str] = ()) -> Schema:
    """Return the schema of a tool's args."""
    return {"$schema": DIALECT, "type": "object", "properties": dict(properties), "required": list(required)}


def result(properties: Mapping[str, Schema], *, optional: Sequence[str] = ()) -> Schema:
    """Return the schema of a tool's result: every member is required but the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"$schema": DIALECT, "type": "object", "properties": dict(properties), "required": required}


def integer(description: str, low: int, high: int, **more: Any) -> Schema:
    """An integer in a closed range."""
    return {"type": "integer", "minimum": low, "maximum": high, "description": description, **more}


def text(description: str, *, most: int = 64, **more: Any) -> Schema:
    """A short string."""
    return {"type": "string", "minLength": 1, "maxLength": most, "description": description, **more}


def flag(description: str) -> Schema:
    """A boolean."""
    return {"type": "boolean", "description": description}


def listed(description: str, items: Schema | None = None) -> Schema:
    """An array."""
    schema: dict[str, Any] = {"type": "array", "description": description}
    return schema if items is None else {**schema, "items": items}


def json_object(description: str) -> Schema:
    """An object with members of its own."""
    return {"type": "object", "description": description}


LEVEL: Schema = {"type": "integer", "enum": [0, 1], "description": "0 is low, 1 is high"}


def base64_data(description: str, *, least: int = 0, most: int = MAX_LENGTH) -> Schema:
    """Binary data of `least` to `most` bytes in base64 (draft §2.4)."""
    return {
        "type": "string",
        "contentEncoding": "base64",
        "minLength": (least + 2) // 3 * 4,
        "maxLength": (most + 2) // 3 * 4,
        "pattern": _BASE64,
        "description": f"{description}; base64 of {least} to {most} bytes",
    }


def address() -> Schema:
    """A 7-bit I2C address."""
    return {
        "description": 'the device\'s 7-bit address, 0x08 to 0x77: an integer (72) or a string ("0x48")',
        "anyOf": [
            {"type": "integer", "minimum": FIRST_ADDR, "maximum": LAST_ADDR},
            {"type": "string", "pattern": _HEX_ADDR},
        ],
    }


def register(description: str) -> Schema:
    """An 8-bit register number."""
    return {
        "description": f'{description}: an integer from 0 to 255 or a string ("0x00")',
        "anyOf": [{"type": "integer", "minimum": 0, "maximum": 255}, {"type": "string", "pattern": _HEX_BYTE}],
    }


def number(value: int | str) -> int:
    """Return the number of a valid `addr` or `reg`."""
    return int(value, 16) if isinstance(value, str) else int(value)


def decode(data: str) -> bytes:
    """Return the bytes of valid base64. Raises InvalidParams for one or two bytes too many, which its length hides."""
    raw = base64.b64decode(data)
    if len(raw) > MAX_LENGTH:
        raise InvalidParams(f"data has {len(raw)} bytes; send at most {MAX_LENGTH} in one step")
    return raw


def encode(data: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(data).decode("ascii")
