"""One audit record as one JSON line, and the hash that stands for a step's args. Knows no file, no chain and no clock.

Everything here answers for every input. A record that could not be encoded would be a hole in the log, and an
args hash that raised would let a caller choose which of its steps is accounted for; so what JSON or RFC 8785
refuses has a documented form of its own instead.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

import orjson

Record: TypeAlias = Mapping[str, Any]
"""What an actor reports: `event` and the event's own fields. The log adds `seq`, `ts` and `prev`."""

RESERVED = ("seq", "ts", "prev")
"""The fields that the log alone may set."""

_SCALARS = frozenset((str, int, bool, type(None)))
_CONTAINERS = frozenset((dict, list))
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
    """One line without its LF, its fields in the order seq, ts, event, the record's own, prev.

    Never raises. A value that JSON does not have is written as text, and a record that uses a reserved name
    is put whole under `record`: both are bugs of the caller, but a log with a hole would hide them.
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
    """`value` as text that UTF-8 can hold: a lone surrogate is written as its escape."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def _jsonable(value: Any, depth: int) -> Any:
    """`value` with everything that JSON lacks replaced by text, and what is too deep by an ellipsis."""
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
    """The RFC 8785 form of a JSON value, extended to what RFC 8785 refuses, so that it never raises.

    The extensions: an integer beyond ±(2^53 - 1) is its decimal digits (RFC 8785 knows doubles only, and
    would give neighbouring addresses one hash); NaN and the infinities are `NaN`, `Infinity`, `-Infinity`; a
    lone surrogate is its three-byte encoding; nesting has no limit. A Python object that is no JSON value
    counts as the string `<its type>`, one that contains itself as `<circular>`, a key that is no string as
    `<its repr>`: nothing of that comes over the wire.

    A value of strings, small integers, booleans, null, and objects with ASCII keys costs about a microsecond;
    one with floats or other keys about a microsecond for each of its parts.
    """
    if _is_plain(args):
        try:
            return orjson.dumps(args, option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:  # an integer beyond 64 bits, a lone surrogate, nested too deep
            return _extended(args)
    return _canonical_by_library(args)


def _is_plain(args: Any) -> bool:
    """True for values of which orjson's sorted output is the RFC 8785 form.

    The two differ in floats (orjson writes `1.0`, RFC 8785 `1`) and in the order of keys, where orjson
    compares UTF-8 and RFC 8785 UTF-16: ASCII keys have the same order in both. Subclasses and other types are
    left to the library.
    """
    stack = [args]
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is dict:
            try:
                if not "".join(value).isascii():
                    return False
            except TypeError:
                return False
            parts = value.values()
        elif kind is list:
            parts = value
        elif kind in _SCALARS:
            continue
        else:
            return False
        kinds = {*map(type, parts)}
        if not kinds <= _SCALARS:
            if not kinds - _SCALARS <= _CONTAINERS:
                return False
            stack += [part for part in parts if type(part) in _CONTAINERS]
    return True


def _canonical_by_library(args: Any) -> bytes:
    import rfc8785  # 30 ms, and most steps never need it

    try:
        return rfc8785.dumps(args)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError):
        return _extended(args)


class _Raw(bytes):
    """Output that is ready, on the stack of `_extended`."""

    __slots__ = ()


class _Leave:
    """A mark on the stack of `_extended`: the container with this id is complete."""

    __slots__ = ("ident",)

    def __init__(self, ident: int) -> None:
        self.ident = ident


def _extended(args: Any) -> bytes:
    """The canonical form of any value, without recursion: where the library takes a value, the same bytes."""
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
    """The parts of an object: brackets, keys and commas as they are written, values as they come."""
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
            return _canonical_by_library(float(value))
        return b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity"
    return _string(f"<{type(value).__qualname__}>")
