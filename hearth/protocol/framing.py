"""Framing of line-delimited documents in a stream of bytes, and bounds on a document before it is parsed (draft §2.2).

A document ends at LF. CR before it, blank lines and surrounding white space are accepted and never reach the caller.
This module does not know JSON: the bytes between two LFs are a document, good or bad. It holds at most one incomplete
document, and refuses one that grows past the limit, so that a peer cannot use memory without end.

Two bounds are computed from the bytes: the number of a document's values, and the memory of its Python objects. Values
are objects, arrays, strings, numbers, true, false and null, at every level, the document itself included; the names of
members are not counted. Both cost a few passes over the bytes in C, so that a document with too many values is refused
before any object is built.
"""

from __future__ import annotations

from hearth.errors import HearthError

_BLANK = b" \t\r\n"


class DocumentTooLong(HearthError):
    """A document is longer than the limit; nothing that follows it can be trusted to be framed.

    `documents` holds those that were complete before it.
    """

    def __init__(self, limit: int, documents: list[bytes]) -> None:
        super().__init__(f"a document is longer than {limit} bytes")
        self.limit = limit
        self.documents = documents


class LineFramer:
    """One direction of one connection. `limit` counts a document's bytes without the white space around it."""

    __slots__ = ("_limit", "_pending")

    def __init__(self, limit: int = 1 << 20) -> None:
        self._limit = limit
        # The incomplete document. A bytearray, because it grows in place: bytes would be copied with every chunk, and
        # a list of chunks costs many times its content when a peer sends byte by byte.
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes; return the documents they complete, without their line ends, oldest first.

        How the stream is cut into chunks makes no difference. Raises DocumentTooLong as soon as a document,
        complete or not, is past the limit; the framer is of no use after that.
        """
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._pending:
            self._pending += lines[0]
            lines[0] = bytes(self._pending)
            self._pending = bytearray()
        documents: list[bytes] = []
        for line in lines:
            document = line.strip(_BLANK)
            if len(document) > self._limit:
                raise DocumentTooLong(self._limit, documents)
            if document:
                documents.append(document)
        if rest and self._overflows(rest):
            self._pending = bytearray()
            raise DocumentTooLong(self._limit, documents)
        return documents

    def _overflows(self, rest: bytes) -> bool:
        """Keep the beginning of a document; return True when that makes it longer than the limit.

        White space that may turn out to stand before or after the document never makes it too long, and once it is past
        the limit no more of it is kept, so that an endless stream of it costs no memory.
        """
        pending, limit = self._pending, self._limit
        if len(pending) > limit:
            # The bytes past the limit are blank, or this would have ended before.
            return bool(rest.strip(_BLANK))
        pending += rest if pending else rest.lstrip(_BLANK)
        return len(pending) > limit and len(pending.rstrip(_BLANK)) > limit

    @property
    def partial_bytes(self) -> int:
        """The bytes held of an incomplete document."""
        return len(self._pending)

    @property
    def has_partial(self) -> bool:
        """True when the bytes received so far end in the middle of a document."""
        return bool(self._pending)


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
