"""One audit record as one JSON line, the hash of a step's args, and the hash chain. Knows no file and no clock.

Every function here accepts every input. A record that could not be encoded would be a hole in the log, and an args hash
that raised would let a caller choose which of its steps is accounted for. So values that JSON or RFC 8785 refuses have
a documented form of their own.
"""

from __future__ import annotations

import hashlib
import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import orjson

Record: TypeAlias = Mapping[str, Any]
"""An actor's report: `event` and the event's own fields. The log adds `seq`, `ts` and `prev`."""

RESERVED = ("seq", "ts", "prev")
"""The fields that only the log may set."""

_SCALARS = frozenset((str, int, bool, type(None)))
_WRITTEN = _SCALARS | {float, dict, list}
_TEXT = frozenset((str,))
_LAST_OF_16_BITS = (0xEE, 0xEF)
_BEYOND_16_BITS = (0xF0, 0xF1, 0xF2, 0xF3, 0xF4)
_AS_UTF16_SORTS = bytes.maketrans(b"\xee\xef\xf0\xf1\xf2\xf3\xf4", b"\xf3\xf4\xee\xef\xf0\xf1\xf2")
"""Maps first bytes of UTF-8: U+E000 to U+FFFF sort after the characters beyond U+FFFF."""
_MAGNITUDES = ((1e-6, 1e-5, -6), *((10.0**n, 10.0 ** (n + 1), n) for n in range(16, 21)), (1e21, math.inf, 21))
"""Ranges in which orjson writes otherwise than ECMAScript: from, to, and the exponent that orjson gives. Not for
wholes."""
_ORJSON_IS_KNOWN = orjson.dumps([1.5e-7, 1.5e-6, 1.5e-5, 1e15 + 0.5, 1.5e16, 1e20, 1.5e21]).replace(b"e+", b"e") == (
    b"[1.5e-7,1.5e-6,0.000015,1000000000000000.5,1.5e16,1e20,1.5e21]"
)
"""True if orjson writes floats in the known way; its releases differ by the sign of an exponent."""
_DEEPEST_WRITTEN = 100
"""Levels of nesting that orjson may write (decision 0096); a document from outside has no more."""
_MOST_EXAMINED = 1 << 20
"""Parts beyond which a value may be one that contains itself."""
_DEEPEST = 64
_LONGEST_INT_BITS = 64

_second: tuple[int, str] = (-1, "")


def timestamp(at: float) -> str:
    """Format epoch seconds as UTC with milliseconds: `2026-04-19T22:48:01.234Z` (draft §7)."""
    global _second  # noqa: PLW0603 - the last second's text; thousands of records share it
    seconds, milliseconds = divmod(round(at * 1000), 1000)
    cached, text = _second
    if cached != seconds:
        text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(seconds))
        _second = (seconds, text)
    return f"{text}{milliseconds:03d}Z"


def digest(line: bytes) -> str:
    """Return `"sha256:"` + the SHA-256 of `line`, which comes without its LF."""
    return "sha256:" + hashlib.sha256(line).hexdigest()


def encode(seq: int, ts: str, record: Record, prev: str) -> bytes:
    """Return one line without its LF, its fields in the order seq, ts, event, the record's own, prev.

    Never raises. A value that JSON does not have is written as text, and a record that uses a reserved name is put
    whole under `record`: both are bugs of the caller, but a log with a hole would hide them.
    """
    try:
        if "seq" in record or "ts" in record or "prev" in record:
            return _encode_anyway(seq, ts, {"event": record.get("event"), "record": record}, prev)
        return orjson.dumps({"seq": seq, "ts": ts, "event": record["event"], **record, "prev": prev})
    except (TypeError, KeyError):
        return _encode_anyway(seq, ts, record, prev)


def _encode_anyway(seq: int, ts: str, record: Record, prev: str) -> bytes:
    fields = {_text(key): _jsonable(value, 1) for key, value in record.items()}
    event = fields.pop("event", None)
    return orjson.dumps(
        {"seq": seq, "ts": ts, "event": event if isinstance(event, str) else "unknown", **fields, "prev": prev}
    )


def _text(value: object) -> str:
    """Return `value` as text that UTF-8 can hold: a lone surrogate is written as its escape."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def _jsonable(value: Any, depth: int) -> Any:
    """Return `value` with everything that JSON lacks replaced by text, and too deep levels by an ellipsis."""
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {_text(key): _jsonable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item, depth + 1) for item in value]
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() < _LONGEST_INT_BITS else hex(value)
    return _text(value)


def args_hash(args: Any) -> str:
    """Return `"sha256:"` + SHA-256 over the RFC 8785 form of `args`, as `canonical` gives it."""
    return "sha256:" + hashlib.sha256(canonical(args)).hexdigest()


def canonical(args: Any) -> bytes:
    """Return the RFC 8785 form of a JSON value, extended to values that RFC 8785 refuses; never raise.

    The extensions: an integer beyond ±(2^53 - 1) is its decimal digits (RFC 8785 knows doubles only, and would give
    neighbouring addresses one hash); NaN and the infinities are `NaN`, `Infinity`, `-Infinity`; a lone surrogate is its
    three-byte encoding; nesting has no limit. A Python object that is no JSON value counts as the string `<its type>`,
    one that contains itself as `<circular>`, a key that is no string as `<its repr>`: none of these comes over the
    wire.

    Time: a few microseconds for the args of a step; for a whole document, some tens of nanoseconds for each byte and at
    most a microsecond for each value, whatever the values are. All values of a document take the fast way; `_extended`
    is for values that only a program in this process can pass.
    """
    if type(args) is dict and {*map(type, args.values())} <= _SCALARS and _are_ascii(args):
        # HOT: the args of most steps. Keys of ASCII sort alike; a lone surrogate, or a long integer, raises below.
        try:
            return orjson.dumps(args, option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:
            return _extended(args)
    seen = _examine(args)
    if seen is None:
        return _extended(args)
    numbers = _ecmascript_forms(seen.floats) if seen.floats else {}
    try:
        if not numbers and not seen.objects:
            return orjson.dumps(args, option=orjson.OPT_SORT_KEYS)
        ranks = _utf16_ranks(seen.objects) if seen.objects else {}
        return orjson.dumps(_rewritten(args, numbers, ranks), option=None if ranks else orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, a lone surrogate
        return _extended(args)


def _are_ascii(keys: Mapping[Any, Any]) -> bool:
    return {*map(type, keys)} <= _TEXT and "".join(keys).isascii()


class _Seen(NamedTuple):
    """The parts to check before orjson's sorted output is the RFC 8785 form of a value."""

    floats: list[float]
    """All floats: orjson writes some in another form."""
    objects: list[dict[str, Any]]
    """All objects whose keys orjson, which sorts by UTF-8, may not write in the order of UTF-16, as RFC 8785 does."""


def _examine(args: Any) -> _Seen | None:
    """Return the parts that orjson writes otherwise than RFC 8785; None if orjson cannot write the value at all.

    A value is examined one level at a time, so that its parts cost the interpreter no step each.
    """
    floats: list[float] = []
    keys: list[str] = []
    found: list[dict[str, Any]] = []
    left = _MOST_EXAMINED
    parts = [args]
    for _ in range(_DEEPEST_WRITTEN + 1):
        kinds = {*map(type, parts)}
        if kinds <= _SCALARS:
            try:
                return _Seen(floats, found if _may_be_disordered("".join(keys)) else [])
            except UnicodeEncodeError:  # a lone surrogate
                return None
        if not kinds <= _WRITTEN:
            return None
        if float in kinds:
            floats += filter(_is_float, parts)
            if not all(map(math.isfinite, floats)):
                return None
        objects = [part for part in parts if type(part) is dict]
        arrays = [part for part in parts if type(part) is list]
        names = [*chain.from_iterable(objects)]
        if not {*map(type, names)} <= _TEXT:
            return None
        keys += names
        found += filter(None, objects)
        parts = [*chain.from_iterable(arrays), *chain.from_iterable(map(dict.values, objects))]
        left -= len(parts)
        if left < 0:
            return None
    return None


def _is_float(part: Any) -> bool:
    return type(part) is float


def _may_be_disordered(text: str) -> bool:
    """True if keys with these characters may have another order in UTF-16 than in UTF-8.

    They may where a character beyond U+FFFF meets one from U+E000 to U+FFFF: UTF-8 has first bytes for them alone.
    Raises UnicodeEncodeError.
    """
    if text.isascii():
        return False
    encoded = text.encode()
    return any(first in encoded for first in _LAST_OF_16_BITS) and any(first in encoded for first in _BEYOND_16_BITS)


def _utf16_ranks(objects: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Return, by the id of an object, the sort key for each of its keys.

    That is the key's UTF-8 with those first bytes exchanged that UTF-16 has in another order, as text of one byte a
    character, which Python compares fastest. All keys are encoded at once: byte FF, which UTF-8 never has, is between
    them.
    """
    joined = "\udcff".join(chain.from_iterable(objects)).encode("utf-8", "surrogateescape")
    ranks = iter(joined.translate(_AS_UTF16_SORTS).decode("latin-1").split("\xff"))
    return {id(each): [*islice(ranks, len(each))] for each in objects}


def _rewritten(value: Any, numbers: Mapping[float, Any], ranks: Mapping[int, list[str]]) -> Any:
    """Return a copy of a value, with these forms for its floats and with its keys in this order."""
    kind = type(value)
    if kind is not list and kind is not dict:
        return numbers.get(value, value) if kind is float else value
    parts = [
        part
        if (of := type(part)) in _SCALARS
        else numbers.get(part, part)
        if of is float
        else _rewritten(part, numbers, ranks)
        for part in (value if kind is list else value.values())
    ]
    if kind is list:
        return parts
    if len(parts) < 2 or not ranks:
        return dict(zip(value, parts, strict=True))
    # The keys and the parts in one order, without a step of the interpreter for each.
    in_order = itemgetter(*sorted(range(len(parts)), key=ranks[id(value)].__getitem__))
    return dict(zip(in_order([*value]), in_order(parts), strict=True))


def _ecmascript_forms(floats: list[float]) -> dict[float, Any]:
    """Return the ECMAScript form (RFC 8785 §3.2.2.3) of each finite float that orjson writes otherwise.

    Both write the shortest digits that lead back to the float; they differ in notation, by its magnitude. So all floats
    of one magnitude are written by orjson at once, and their texts changed together.
    """
    ordered = sorted({*floats})
    if not _ORJSON_IS_KNOWN:
        return {number: orjson.Fragment(_ecmascript(number)) for number in ordered}
    forms: dict[float, Any] = {}
    for sign in (1, -1):
        begin = bisect_left(ordered, 0.0)
        above = ordered[begin:] if sign > 0 else [-number for number in ordered[:begin]]
        above.sort()
        for low, high, exponent in _MAGNITUDES:
            group = above[bisect_left(above, low) : bisect_left(above, high)]
            if group:
                texts = _texts(group, exponent, sign)
                forms |= zip(group if sign > 0 else [-number for number in group], texts, strict=True)
    forms |= {number: int(number) for number in ordered if number.is_integer() and -1e16 < number < 1e16}
    return forms


def _texts(group: list[float], exponent: int, sign: int) -> Iterator[orjson.Fragment]:
    """Yield the ECMAScript forms of positive floats of one magnitude, or of their negatives."""
    text = orjson.dumps(group)[1:-1].replace(b"e+", b"e")
    minus = b"" if sign > 0 else b"-"
    if exponent > 20:
        texts = text.replace(b"e", b"e+").split(b",")
    else:
        # Only digits are left; the zeros of a fraction go before them, those of a whole number after them.
        texts = text.replace(b"e%d" % exponent, b"").replace(b".", b"").split(b",")
        minus += b"0.".ljust(1 - exponent, b"0") if exponent < 0 else b""
        texts = [digits.ljust(exponent + 1, b"0") for digits in texts] if exponent > 0 else texts
    return map(orjson.Fragment, [minus + text for text in texts] if minus else texts)


def _ecmascript(value: float) -> bytes:
    """Return a finite float as ECMAScript writes it (RFC 8785 §3.2.2.3)."""
    digits, _, power = repr(value).partition("e")
    digits = digits.removesuffix(".0")
    if not power:
        return b"0" if digits == "-0" else digits.encode()
    exponent = int(power)
    if -7 < exponent < 0:
        sign, digits = ("-", digits[1:]) if digits[0] == "-" else ("", digits)
        return f"{sign}0.{'0' * (-exponent - 1)}{digits.replace('.', '')}".encode()
    if 0 <= exponent < 21:
        whole, _, rest = digits.partition(".")
        return f"{whole}{rest.ljust(exponent, '0')}".encode()
    return f"{digits}e{exponent:+d}".encode()


class _Raw(bytes):
    """Finished output, on the stack of `_extended`."""

    __slots__ = ()


class _Leave:
    """A mark on the stack of `_extended`: the container with this id is complete."""

    __slots__ = ("ident",)

    def __init__(self, ident: int) -> None:
        self.ident = ident


def _extended(args: Any) -> bytes:
    """Return the canonical form of any value, without recursion; for values that the library takes, the same bytes."""
    out: list[bytes] = []
    inside: set[int] = set()
    stack: list[Any] = [args]
    while stack:
        value = stack.pop()
        if type(value) is _Raw:
            out.append(value)
        elif type(value) is _Leave:
            inside.discard(value.ident)
        elif isinstance(value, (Mapping, list, tuple)):
            if id(value) in inside:
                out.append(b'"<circular>"')
                continue
            inside.add(id(value))
            stack.append(_Leave(id(value)))
            stack += reversed(_object(value) if isinstance(value, Mapping) else _array(value))
        else:
            out.append(_scalar(value))
    return b"".join(out)


def _object(value: Mapping[Any, Any]) -> list[Any]:
    """Return the parts of an object: brackets, keys and commas as they are written, values as they come."""
    items = [(key if isinstance(key, str) else f"<{key!r}>", item) for key, item in value.items()]
    items.sort(key=lambda pair: pair[0].encode("utf-16-be", "surrogatepass"))
    parts: list[Any] = []
    for key, item in items:
        parts += (_Raw((b"," if parts else b"{") + _string(key) + b":"), item)
    return [*parts, _Raw(b"}")] if parts else [_Raw(b"{}")]


def _array(value: list[Any] | tuple[Any, ...]) -> list[Any]:
    parts: list[Any] = []
    for item in value:
        parts += (_Raw(b"," if parts else b"["), item)
    return [*parts, _Raw(b"]")] if parts else [_Raw(b"[]")]


def _string(value: str) -> bytes:
    import json  # its escapes are those of RFC 8785, and it takes lone surrogates

    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _scalar(value: Any) -> bytes:
    if value is None:
        return b"null"
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        # int -> decimal is bounded by the interpreter; hex is not, and no decimal starts with 0x
        return (str(int(value)) if value.bit_length() <= 1024 else hex(value)).encode()
    if isinstance(value, float):
        if math.isfinite(value):
            return _ecmascript(float(value))
        return b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity"
    return _string(f"<{type(value).__qualname__}>")


# --- the hash chain
# `Chain` seals one record after the other. It owns the head and nothing else: no file, no clock. Each line carries
# `prev`, the SHA-256 of the line before it (its exact bytes, without the LF), so that a line cannot be changed,
# removed, inserted or moved without breaking every line that follows.

GENESIS = "sha256:" + "0" * 64
"""`prev` of the first record of all."""

Head: TypeAlias = tuple[int, str]
"""The last record: its `seq` (0: there is none yet) and the hash of its line."""


class Chain:
    """The head of a log, and the writer of the next line.

    `seq` and `prev` are those of the last record sealed: (0, GENESIS) for a new log.
    """

    __slots__ = ("_at", "_ts", "prev", "seq")

    def __init__(self, seq: int = 0, prev: str = GENESIS) -> None:
        self.seq = seq
        self.prev = prev
        self._at, self._ts = 0.0, timestamp(0.0)

    @property
    def head(self) -> Head:
        """The last record sealed."""
        return (self.seq, self.prev)

    def seal(self, record: Record, at: float) -> bytes:
        """Return the next line, LF included, and make it the head. `at` is in epoch seconds. Never raises."""
        seq = self.seq + 1
        if at != self._at:  # records that are reported together share their moment
            self._at, self._ts = at, timestamp(at)
        line = encode(seq, self._ts, record, self.prev)
        self.seq = seq
        self.prev = "sha256:" + sha256(line).hexdigest()
        return line + b"\n"

    def seal_some(self, records: Sequence[tuple[float, Record]], most: int, room: int) -> list[bytes]:
        """Return the lines of the first of these records: at most `most`, and none once they have `room` bytes.

        HOT: the same as `seal` for each, in one pass.
        """
        lines: list[bytes] = []
        seq, prev, dumps = self.seq, self.prev, orjson.dumps
        for at, record in records:
            if room <= 0 or len(lines) == most:
                break
            if at != self._at:
                self._at, self._ts = at, timestamp(at)
            seq += 1
            try:
                if "seq" in record or "ts" in record or "prev" in record:
                    line = encode(seq, self._ts, record, prev)
                else:
                    line = dumps({"seq": seq, "ts": self._ts, "event": record["event"], **record, "prev": prev})
            except (TypeError, KeyError):
                line = encode(seq, self._ts, record, prev)
            prev = f"sha256:{sha256(line).hexdigest()}"
            line += b"\n"
            lines.append(line)
            room -= len(line)
        self.seq, self.prev = seq, prev
        return lines
