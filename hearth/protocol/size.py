"""Bounds on a JSON document before it is parsed: its number of values and the memory of its Python objects.

Values are objects, arrays, strings, numbers, true, false and null, at every level, the document itself included; the
names of members are not counted. Both bounds cost a few passes over the bytes in C, so that a document with too many
values is refused before any object is built.
"""

from __future__ import annotations

MAX_VALUES = 20_000
"""The default of [limits] max_values. With all of them a document takes a few milliseconds at each place that looks at
every value: parsing, the schema, the hash of args."""
_WHITE = b" \t\r\n"


TOO_MANY = "a document holds at most {} values, this one has more"


def has_more_values(document: bytes, most: int) -> bool:
    """Return True when a JSON document holds more than `most` values; for other bytes the result is undefined."""
    # A value follows a comma or an opening bracket. Those within strings make this too large, never too small.
    if 1 + _marks(document) <= most:
        return False
    if b"\\" in document:
        # An escaped backslash first, because the character after it is not escaped.
        document = document.replace(rb"\\", b"").replace(rb"\"", b"")
    # Each string is a value or the name of one. Past this bound it need not be split into as many pieces.
    if document.count(b'"') > 4 * most:
        return True
    bare = b"0".join(document.split(b'"')[::2]).translate(None, _WHITE)
    return 1 + _marks(bare) - bare.count(b"[]") - bare.count(b"{}") > most


def _marks(document: bytes) -> int:
    return document.count(b",") + document.count(b"[") + document.count(b"{")


VALUE_BYTES = 120
"""Bytes that one value of a document takes beside its text. An empty array takes 56 and 16 more for the collector, an
object with one member 232 (it has a comma or another bracket to count), a number 32 and its place in the array 8."""


def parsed_bytes(document: bytes) -> int:
    """Return how many bytes of memory the Python value of a JSON document takes at most."""
    # One character beyond Latin-1 makes a string four bytes wide.
    wide = 1 if document.isascii() and b"\\u" not in document else 4
    values = document.count(b",") + document.count(b"[") + document.count(b"{")
    return 512 + wide * len(document) + VALUE_BYTES * values
