"""Parts of the hardware tools' JSON Schemas (2020-12), and readers of the values that they allow.

It owns the forms of an argument that several tools share: a line, an address, binary data. Unknown fields are ignored
on the wire (draft §2.5), so no schema forbids them. The root of a schema is flat (no allOf, anyOf, oneOf, if or not),
because the Anthropic API refuses a whole request that has one tool with any other, and some clients drop the tool. What
a flat schema cannot say, such as "exactly one of", a tool's `bus` checks, with the errors of `wrong`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from hearth.annotations import open_object
from hearth.errors import InvalidParams

Schema = Mapping[str, Any]

MAX_LENGTH: Final = 4096
"""Bytes of one argument or result, as the tools of all buses have them."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"

# Without looking ahead or behind: clients compile them with RE2.
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def root(properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of a tool's args or of its result; see `open_object`."""
    return {"$schema": DIALECT, **open_object(properties)}


def integer(description: str, low: int, high: int, **more: Any) -> Schema:
    """An integer in a closed range."""
    return {"type": "integer", "minimum": low, "maximum": high, "description": description, **more}


def text(description: str, *, most: int = 64) -> Schema:
    """A short string."""
    return _string(description, 1, most)


def number_or(description: str, low: int, high: int, **form: Any) -> Schema:
    """An integer in a closed range, or a string of this form; RE2 compiles its pattern, so it looks neither way."""
    forms = [{"type": "integer", "minimum": low, "maximum": high}, {"type": "string", **form}]
    return {"description": description, "anyOf": forms}


def flag(description: str, **more: Any) -> Schema:
    """A boolean."""
    return {"type": "boolean", "description": description, **more}


def listed(description: str, items: Schema | None = None) -> Schema:
    """An array."""
    schema: dict[str, Any] = {"type": "array", "description": description}
    return schema if items is None else {**schema, "items": items}


def clamped(members: str, what: str = "registers whose limit has changed what was written") -> Schema:
    """The reports of values that a limit has changed; `members` are those that name the output."""
    return listed(what, json_object(f"{members}, asked, written"))


def json_object(description: str) -> Schema:
    """An object with members of its own."""
    return {"type": "object", "description": description}


def base64_data(description: str, *, least: int = 0, most: int = MAX_LENGTH) -> Schema:
    """Binary data of `least` to `most` bytes in base64 (draft §2.4)."""
    # For megabytes a pattern would take fifty times as long as `read_bytes`, which checks the form in any case.
    form = {"pattern": _BASE64} if most <= MAX_LENGTH else {}
    return {
        "type": "string",
        "contentEncoding": "base64",
        "minLength": (least + 2) // 3 * 4,
        "maxLength": (most + 2) // 3 * 4,
        **form,
        "description": f"{description}; base64 of {least} to {most} bytes",
    }


def number(value: int | str) -> int:
    """Return the number of a valid `addr` or `reg`."""
    return int(value, 16) if isinstance(value, str) else int(value)


def wrong(pointer: str, reason: str, **more: Any) -> InvalidParams:
    """Return the error for args that fit their schema and are wrong; `pointer` is the place, "" for the args."""
    return InvalidParams(f"{pointer or 'args'}: {reason}", data={"path": pointer, "reason": reason, **more})


MOST_HEX = 256
"""Bytes up to which a result has them in hex, too. Longer ones have no `hex`: a part could be taken for the whole."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


@frozen
class Bytes:
    """An argument of type bytes: members of which exactly one gives them, its own in base64, `text` or `hex`.

    `other` is an arg that may stand for the bytes, whose default is None then.
    """

    description: str
    least: int = 1
    most: int = MAX_LENGTH
    other: str = ""

    def members(self, name: str) -> dict[str, Schema]:
        """Return the members of the args."""
        instead = f"instead of `{name}`: the bytes"
        in_hex = f'{instead} in hex, two digits each, such as "48 65 6c" or "48656c"'
        return {
            f"{name}?": base64_data(self.description, least=self.least, most=self.most),
            "text?": _string(f"{instead} as text, sent as UTF-8", self.least, self.most),
            "hex?": _string(in_hex, 2 * self.least, 3 * self.most),
        }

    def read(self, args: Mapping[str, Any], name: str) -> bytes:
        """Return the bytes. Raises InvalidParams."""
        return read_bytes(args, name, least=self.least, most=self.most)

    def found(self, args: Mapping[str, Any], name: str) -> bool:
        """Return True if the args have any of the members. Raises InvalidParams unless they or `other` are there."""
        if self.other:
            return only_one(args, (name, "text", "hex", self.other)) != self.other
        return any(one in args for one in (name, "text", "hex"))


@frozen
class ShownBytes:
    """Bytes in a result: the members that `shown_bytes` makes."""

    description: str
    least: int = 0
    most: int = MAX_LENGTH

    def members(self, _name: str) -> dict[str, Schema]:
        """Return the members of the result."""
        as_text = "the same as text, where it is UTF-8 without control characters but tabs and line ends"
        return {
            "data": base64_data(self.description, least=self.least, most=self.most),
            "hex?": {"type": "string", "description": f"the same in hex, for at most {MOST_HEX} bytes"},
            "text?": {"type": "string", "description": as_text},
        }


def _string(description: str, least: int, most: int) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most, "description": description}


def read_bytes(
    args: Mapping[str, Any], name: str = "data", *, least: int = 1, most: int = MAX_LENGTH, at: str = ""
) -> bytes:
    """Return the bytes of args that fit `Bytes`; `at` is the JSON pointer of `args`.

    Raises InvalidParams unless exactly one of `name`, `text` and `hex` is there, is well formed, and has `least` to
    `most` bytes.
    """
    given = only_one(args, (name, "text", "hex"), at)
    read, form = _FORMS.get(given, _BASE64_FORM)
    try:
        raw = read(args[given])
    except ValueError:  # binascii.Error and UnicodeEncodeError are subclasses
        raise wrong(f"{at}/{given}", f"expected {form}") from None
    if not least <= len(raw) <= most:
        raise wrong(f"{at}/{given}", f"expected {least} to {most} bytes in one step, got {len(raw)}")
    return raw


def _from_base64(value: str) -> bytes:
    raw = binascii.a2b_base64(value, strict_mode=True)
    padding = len(value) - len(value.rstrip("="))
    if len(raw) != len(value) // 4 * 3 - padding:  # strict_mode lets superfluous "=" pass
        raise ValueError("excess padding")
    return raw


_BASE64_FORM = (_from_base64, "base64 with padding and without line breaks")
_FORMS = {
    "hex": (bytes.fromhex, 'two hexadecimal digits for each byte, such as "48 65 6c"'),
    "text": (str.encode, "text that UTF-8 can encode"),
}


def only_one(args: Mapping[str, Any], names: Sequence[str], at: str = "") -> str:
    """Return which of the names is there. Raises InvalidParams unless it is exactly one."""
    there = [name for name in names if name in args]
    if len(there) != 1:
        found = " and ".join(there) if there else "none"
        pointer = f"{at}/{there[1]}" if there else at
        raise wrong(pointer, f"give exactly one of {', '.join(names[:-1])} and {names[-1]}; there is {found}")
    return there[0]


def given(**args: Any) -> dict[str, Any]:
    """Return the args that are there: those that are not None."""
    return {name: value for name, value in args.items() if value is not None}


def encode(data: bytes) -> str:
    """Bytes as base64."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def shown_bytes(data: bytes) -> dict[str, str]:
    """Return bytes as members of a result: `data`, and `hex` and `text` as `ShownBytes` describes them."""
    members = {"data": encode(data)}
    if len(data) <= MOST_HEX:
        members["hex"] = data.hex()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return members
    if not _CONTROL.search(text):
        members["text"] = text
    return members
