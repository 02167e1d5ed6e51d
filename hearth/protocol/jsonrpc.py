"""JSON-RPC 2.0 objects: reading a document, writing a request, a notification, a response (draft §2.1, §2.3, §6).

Every way in which bytes can fail to be a request ends in a `ParseError` or `InvalidRequest` here, and nothing else:
orjson refuses invalid UTF-8, NaN, numbers beyond a double and lone surrogates, and `load` refuses deep nesting, so that
all of those are parse errors. A name that stands twice in one object is an invalid request: orjson takes the last one,
and a filter in front of it may have looked at the first. In the other direction a result must be JSON, but an error can
always be written. This module does not know HACP's methods.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
from attrs import define

from hearth.errors import InvalidRequest, ParseError, RpcError

if TYPE_CHECKING:
    from collections.abc import Iterator

Id: TypeAlias = "str | int"
"""Integers are those of 64 bits: orjson reads a larger one as a double, which is no id."""
MAX_DEPTH = 100
"""Limit on the depth of arrays and objects in a document. orjson reads 1,024 levels but writes only 254; for arrays
deeper than 125 it writes past the end of its buffer (3.13: 206). Python code that descends by recursion (RFC 8785, JSON
Schema) fails at about 900. Every document that is read must be safe for all of them, also when it is quoted in an error
(decision 0096)."""
_NESTS = (dict, list, tuple)
_LF = b"\n"
"""Added by concatenation, which copies: orjson's result keeps the 4 KiB buffer it was written into, however short it
is, and a thousand answers that wait for a slow client would take 4 MiB."""


@define(slots=True, eq=False)
class JsonRpcRequest:
    """A request object. `id` is None for a notification: it is executed and never answered."""

    id: Id | None
    method: str
    params: Any
    """As received: {} when absent; its method checks that it is an object."""


def load(document: bytes) -> Any:
    """Return the JSON value of a document. Raises ParseError, and InvalidRequest for a name that is repeated."""
    try:
        value = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise ParseError(data={"reason": str(error)}) from None
    # A level takes two bytes at least, so in a short document nothing needs counting.
    if len(document) > 2 * MAX_DEPTH and document.count(b"[") + document.count(b"{") > MAX_DEPTH:
        require_depth(value)
    # HOT: no JSON of our own has an escaped colon.
    colons = _colons(document) if b"\\u003" in document else document.count(b":")
    if colons > orjson.dumps(value).count(b":"):
        reason = "an object has two members of one name; send each name once"
        raise InvalidRequest(f"Invalid Request: {reason}", data={"reason": reason})
    return value


def _colons(document: bytes) -> int:
    """Return the number of colons that the JSON of a document's value has, if no object in it repeats a name.

    One follows each name, and the others are in strings, where one may be escaped.
    """
    unescaped = document.replace(rb"\\", b"").replace(rb"\u003a", b":").replace(rb"\u003A", b":")
    return unescaped.count(b":")


def require_depth(value: Any) -> None:
    """Refuse a value that is nested too deeply to be written again. Raises ParseError."""
    if is_deeper(value, MAX_DEPTH):
        reason = f"arrays and objects are nested more than {MAX_DEPTH} deep"
        raise ParseError(data={"reason": reason})


def is_deeper(value: Any, most: int) -> bool:
    """Return True if more than `most` arrays and objects are nested in each other; a program's tuples count too."""
    # Level by level: a recursion would itself fail on deep values.
    level = [value] if isinstance(value, _NESTS) else []
    for _ in range(most):
        # HOT: plain loops, because a comprehension takes another frame.
        children: list[Any] = []
        for parent in level:
            for child in parent.values() if isinstance(parent, dict) else parent:
                if isinstance(child, _NESTS):
                    children.append(child)  # noqa: PERF401
        if not children:
            return False
        level = children
    return True


def read_request(value: Any) -> JsonRpcRequest:
    """Return the request of a JSON value.

    Raises InvalidRequest, to be answered with the id that `reply_id_of` gives.
    """
    if type(value) is not dict:
        raise InvalidRequest(data={"reason": f"a request is an object, not {kind_of(value)}"})
    if value.get("jsonrpc") != "2.0":
        raise InvalidRequest(data={"reason": 'member "jsonrpc" must be "2.0"'})
    method = value.get("method")
    if type(method) is not str:
        raise InvalidRequest(data={"reason": f'member "method" must be a string, not {kind_of(method)}'})
    id_ = value.get("id")
    if id_ is not None:
        require_id(id_)
    # A fresh {} for each: a shared one that an executor writes into would reach other callers.
    return JsonRpcRequest(id_, method, value.get("params", {}))


def require_id(id_: Any) -> None:
    """Refuse an id of a request that is not a string or an integer. Raises InvalidRequest."""
    if type(id_) is not str and type(id_) is not int:
        great = type(id_) is float and abs(id_) >= 1 << 63
        kind = "one of more than 64 bits" if great else kind_of(id_)
        reason = f'member "id" must be a string or an integer, not {kind}'
        raise InvalidRequest(f"Invalid Request: {reason}", data={"reason": reason})


def reply_id_of(value: Any) -> Id | None:
    """Return the id to answer an invalid request with: its own if it is usable, else None (JSON-RPC 2.0 §5)."""
    if type(value) is dict:
        id_ = value.get("id")
        if type(id_) is str or type(id_) is int:
            return id_
    return None


_ID = rb'"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]{0,256}")\s*'
_ID_AT_START = re.compile(rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]{0,256}"\s*,\s*){0,2}' + _ID + rb",")
_ID_AT_END = re.compile(rb",\s*" + _ID + rb"\}\s*\Z")


def reply_id_in(document: bytes) -> Id | None:
    """Return the id of a request whose value is not used, if it is its last member or stands before `params`.

    None for an id elsewhere, and for one with escapes. Of two ids the last counts, as for a parser.
    """
    found = _ID_AT_END.search(document, max(0, len(document) - 512)) or _ID_AT_START.match(document)
    try:
        return None if found is None else reply_id_of({"id": load(found[1])})
    except ParseError:
        return None


def kind_of(value: Any) -> str:
    """Return JSON's name of a value's type, for error messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    return {str: "a string", float: "a number", list: "an array", dict: "an object"}.get(type(value), "?")


def dump_result(id_: Id | None, result: Any) -> bytes:
    """A response line. `result` is a value, which may hold `orjson.Fragment`s, or the JSON of one as bytes."""
    if type(result) is bytes:
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (orjson.dumps(id_), result)
    return orjson.dumps({"jsonrpc": "2.0", "id": id_, "result": result}) + _LF


PIECE = 1 << 16
"""Bytes of JSON that are made at once: more would take too long of one turn of an event loop."""


def json_size(value: Any) -> int:
    """Return about how many bytes the JSON of a value has; past PIECE it may stop counting."""
    size, left = 0, [value]
    while left and size <= PIECE:
        one = left.pop()
        if isinstance(one, str):
            size += 3 + len(one) * (1 if one.isascii() else 4)
        elif isinstance(one, _NESTS):
            size += 2 + 2 * len(one)
            if size <= PIECE:
                left += [*one, *one.values()] if isinstance(one, dict) else one
        else:
            size += len(orjson.dumps(one)) if type(one) is orjson.Fragment else 12
    return size


def pieces(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a value in pieces, of which the encoder makes each at once; none is much longer than PIECE.

    What is made already, a Fragment, is one piece. Raises JSONEncodeError.
    """
    if not value or json_size(value) <= PIECE or not isinstance(value, (str, *_NESTS)):
        yield orjson.dumps(value)
    elif isinstance(value, str):
        yield b'"'
        # A character has up to four bytes.
        for start in range(0, len(value), PIECE // 4):
            yield orjson.dumps(value[start : start + PIECE // 4])[1:-1]
        yield b'"'
    else:
        named = isinstance(value, dict)
        before = b"{" if named else b"["
        # A copy: the value may change between two pieces.
        for group in _groups([*(value.items() if isinstance(value, dict) else value)]):
            if len(group) > 1:
                yield before + orjson.dumps(dict(group) if named else group)[1:-1]
            else:
                # The encoder refuses a name that is not a text.
                yield before + (orjson.dumps({group[0][0]: None})[1:-5] if named else b"")
                yield from pieces(group[0][1] if named else group[0])
            before = b","
        yield b"}" if named else b"]"


def _groups(items: list[Any]) -> Iterator[list[Any]]:
    group: list[Any] = []
    room = PIECE
    for item in items:
        size = json_size(item)
        if group and size > room:
            yield group
            group, room = [], PIECE
        group.append(item)
        room -= size
    yield group


def dump_error(id_: Id | None, error: RpcError) -> bytes:
    """Return an error response line. Never fails: values that JSON cannot express become text, or are left out."""
    wire = error.to_wire()
    try:
        return orjson.dumps({"jsonrpc": "2.0", "id": id_, "error": wire}, default=repr) + _LF
    except TypeError:
        # A surrogate from a file name, an integer of more than 64 bits, a key that is not text, nesting without end.
        return orjson.dumps({"jsonrpc": "2.0", "id": id_, "error": _sendable(wire)}) + _LF


def sendable_error(error: RpcError) -> dict[str, Any]:
    """Return an error object that orjson accepts: values that JSON cannot express become text, or are left out."""
    wire = error.to_wire()
    try:
        orjson.dumps(wire)
    except TypeError:
        return _sendable(wire)
    return wire


def _sendable(wire: dict[str, Any]) -> dict[str, Any]:
    """Return an error object in which each member of `data` that orjson refuses is replaced by a note."""
    kept = {"code": wire["code"], "message": _utf8(wire["message"])}
    data: dict[str, Any] = {}
    for name, value in wire.get("data", {}).items():
        try:
            data[_utf8(str(name))] = orjson.Fragment(orjson.dumps(value, default=repr))
        except TypeError:
            data[_utf8(str(name))] = f"({type(value).__name__} that JSON cannot say)"
    if data:
        kept["data"] = data
    return kept


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def dump_request(id_: Id | None, method: str, params: Any) -> bytes:
    """A request line; without an id, a notification."""
    if id_ is None:
        return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params}) + _LF
    return orjson.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}) + _LF


def join_batch(lines: list[bytes]) -> bytes:
    """One array line from the response lines of a batch."""
    return b"[" + b",".join([line[:-1] for line in lines]) + b"]\n"
