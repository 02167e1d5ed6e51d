"""Framing and JSON-RPC: a stream in arbitrary pieces, into the server's end of a connection or the client's.

The oracle reads the stream once more in the simplest words: lines, cut at LF, and for each the answers that are due.
The first byte of an input says which end, which limit and which carrier, the second seeds the pieces; the stream
follows.
"""

# ruff: noqa: PT017 - outside of pytest, an oracle looks at an error where it is caught

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import orjson

from hearth.api import TaskResult
from hearth.errors import ERROR_TABLE, InvalidParams, RpcError, UnsupportedVersion
from hearth.protocol.client import (
    Broken,
    ClientProtocol,
    HcpMessage,
    Notification,
    ProtocolViolation,
    Reply,
    TaskEventNotification,
    read_task,
)
from hearth.protocol.jsonrpc import reply_id_in
from hearth.protocol.methods import METHODS, read_session_id
from hearth.protocol.server import Answer, Call, Close, HcpDocument, ServerProtocol

from ..mutation import bytes_of, json_of, parts

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = (64, 200, 800, 3000)
MAX_BATCH = 4
ASKED = 5
_LARGEST = 400
BLANK = b" \t\r\n"

_MEMBERS = {
    "session_id": "s", "client_name": "c", "protocol_version": "0.1.0", "heartbeat_ms": 100, "on_disconnect": "close",
    "task_id": "t",
    "from_seq": 3, "subscribe": True, "uri": "hcp://s/artifacts/a", "offset": 1, "len": 2, "approval_id": "a",
    "approve": True,
    "task": {
        "intent": "i", "steps": [{"tool": "gpio.set", "args": {"line": 1}}], "idempotency_key": "k",
        "constraints": {"max_duration_ms": 5, "max_risk_level": 1, "on_busy": "fail", "priority": "low",
        "dry_run": False},
    },
}  # fmt: skip
_REQUESTS: list[Any] = [
    *({"jsonrpc": "2.0", "id": n % 4, "method": method, "params": _MEMBERS} for n, method in enumerate(METHODS)),
    {"jsonrpc": "2.0", "method": "tool.list"},
    {"jsonrpc": "2.0", "id": "a", "method": "no.such"},
    {"hcp_version": "1.0", "type": "abort"},
    [
        {"jsonrpc": "2.0", "id": n, "method": "task.get", "params": {"session_id": "s", "task_id": "t"}}
        for n in range(3)
    ],
    [{"jsonrpc": "2.0", "id": 1, "method": "tool.list", "params": []}, 5, {"jsonrpc": "2.0", "method": "mcp.info"}],
]
_ANSWERS: list[Any] = [
    {"jsonrpc": "2.0", "id": 1, "result": {"task_id": "t", "status": "SUCCESS", "steps": [
        {"tool": "gpio.set", "status": "FAILED", "error": "e", "error_code": -32009, "error_data": {},
        "latency_ms": 1.5}]}},
    {"jsonrpc": "2.0", "id": 2, "error": {"code": -32009, "message": "m", "data": {"effect": "none"}}},
    {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "m"}},
    {"jsonrpc": "2.0", "method": "task.event", "params":
        {"task_id": "t", "seq": 1, "phase": "start", "ts": "2026-04-19T22:48:01.234Z", "step_index": 0, "x": [1]}},
    {"jsonrpc": "2.0", "method": "other", "params": 5},
    {"hcp_version": "1.0"},
    [{"jsonrpc": "2.0", "id": 3, "result": None}, {"jsonrpc": "2.0", "id": 4, "result": []}],
]  # fmt: skip
_POOL = parts([*_REQUESTS, *_ANSWERS])
DICTIONARY = (
    *(b'"%s"' % name.encode() for name in METHODS), b'"jsonrpc":"2.0"', b'"id":1', b'"method":', b'"params":{}',
    b'"hcp_version":"1.0"',
    b'"result":null', b'"error":{"code":-32600,"message":""}', b"\r\n", b"\n[", b"]\n", b"\\ud800", b"1e999", b"NaN",
    b'"task.event"',
)  # fmt: skip


def check(data: bytes) -> None:
    """See the package."""
    mode = data[0] if data else 0
    stream = data[2:]
    limit = LIMITS[mode >> 1 & 3]
    if mode & 1:
        _client(_pieces(stream, data[1] if len(data) > 1 else 0), stream, limit)
    else:
        _server(_pieces(stream, data[1] if len(data) > 1 else 0), stream, limit, frames=bool(mode & 8))


def _pieces(stream: bytes, seed: int) -> Iterator[bytes]:
    """The stream, cut up; seed 0 gives single bytes."""
    rng, at = random.Random(seed), 0
    while at < len(stream):
        size = 1 if not seed else rng.choice((1, 2, 3, 7, 40, _LARGEST))
        yield stream[at : at + size]
        at += size


def _documents(stream: bytes, limit: int) -> tuple[list[bytes], bool]:
    """The documents that are whole, and whether the stream then has one that is too long."""
    *lines, rest = stream.split(b"\n")
    found = []
    for line in lines:
        if len(line.strip(BLANK)) > limit:
            return found, True
        if line.strip(BLANK):
            found.append(line.strip(BLANK))
    return found, len(rest.strip(BLANK)) > limit


def _bounded(end: Any, limit: int) -> None:
    """Beside a document of the limit's length no more is kept than the blanks of one piece."""
    kept = len(end._framer._pending)
    assert kept <= limit + _LARGEST, f"{kept} bytes are remembered, the limit is {limit}"


# --- the server's end -----------------------------------------------------------------------------------------------


def _server(pieces: Iterator[bytes], stream: bytes, limit: int, *, frames: bool) -> None:
    documents, too_long = _documents(stream, limit)
    whole = ServerProtocol(max_document_bytes=limit, max_batch=MAX_BATCH)
    events = whole.receive(stream)
    other = ServerProtocol(max_document_bytes=limit, max_batch=MAX_BATCH)
    if frames and not too_long:
        again = [event for document in documents for event in other.receive_document(document)]
    else:
        again = []
        for piece in pieces:
            again += other.receive(piece)
            _bounded(other, limit)
    assert [_plain(event) for event in events] == [_plain(event) for event in again], "pieces make a difference"
    assert whole.closed == too_long
    assert bool(events and type(events[-1]) is Close) == too_long
    if too_long:
        assert whole.receive(b'{"jsonrpc":"2.0","id":1,"method":"tool.list"}\n') == []
    due, hcp = _due(documents)
    if too_long:
        due.append((None, -32600))
    assert sum(type(event) is HcpDocument for event in events) == hcp
    answered = [answer for event in events if type(event) is Answer for answer in _answers(event.data)]
    for call in [event for event in events if type(event) is Call]:
        line = _executed(whole, call)
        answered += _answers(line) if line is not None else []
    assert whole.outstanding == 0
    assert sorted(map(repr, (id_ for id_, _ in answered))) == sorted(map(repr, (id_ for id_, _ in due)))
    # Of an error's code no more is said by the oracle than what the document alone decides.
    for id_, code in due:
        assert code is None or (id_, code) in answered, f"{code} is due to {id_!r}"


def _plain(event: Any) -> Any:
    if type(event) is Call:
        return event.id, event.method, event.params, event.batch is None
    return event.data if type(event) is Answer else event.value if type(event) is HcpDocument else event.reason


def _executed(server: ServerProtocol, call: Call) -> bytes | None:
    assert type(call.params) is dict
    try:
        value = METHODS[call.method](call.params)
        if not call.method.startswith("hcp.") and call.method != "session.open":
            read_session_id(call.params)
    except InvalidParams as error:
        assert error.data
        assert error.data["path"].startswith("/")
        assert error.data["reason"]
        return server.error(call, error)
    except UnsupportedVersion as error:
        return server.error(call, error)
    again = METHODS[call.method]({**call.params, "\x00unknown": 1})  # what is not known plays no part (draft §2.5)
    assert type(again) is type(value)
    return server.result(call, call.params)


def _answers(line: bytes) -> list[tuple[Any, int | None]]:
    """(id, error code) of each response on a line."""
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    value = orjson.loads(line)
    told = []
    for response in value if type(value) is list else [value]:
        assert response["jsonrpc"] == "2.0"
        assert ("result" in response) != ("error" in response)
        code = response["error"]["code"] if "error" in response else None
        assert code is None or (code in ERROR_TABLE and code != -32603), f"undeclared: {code}"
        told.append((response["id"], code))
    assert told
    return told


def _due(documents: list[bytes]) -> tuple[list[tuple[Any, int | None]], int]:
    """The answers due once every call is answered, as (id, code where only one can be); how many documents are HCP."""
    outstanding: set[Any] = set()
    due: list[tuple[Any, int | None]] = []
    hcp = 0
    for document in documents:
        try:
            value = orjson.loads(document)
        except orjson.JSONDecodeError:
            due.append((None, -32700))
            continue
        if _depth(value, 101):
            due.append((None, -32700))
        elif _repeats(document):
            id_ = reply_id_in(document)
            due.append((None if id_ in outstanding else id_, -32600))
        elif type(value) is dict and "hcp_version" in value:
            hcp += 1
        elif type(value) is not list:
            reply, held, _ = _one(value, outstanding, batch=False)
            due += reply
            outstanding |= held
        elif not 1 <= len(value) <= MAX_BATCH:
            due.append((None, -32600))
        else:
            ids, waits = set(), False
            for member in value:
                reply, held, opens = _one(member, outstanding | ids, batch=True)
                due += reply
                ids |= held
                waits |= opens
            if waits:
                outstanding |= ids
    return due, hcp


def _repeats(document: bytes) -> bool:
    """Return True if an object of a document has two members of one name."""
    found = []

    def members(pairs: list[tuple[str, Any]]) -> None:
        found.append(len({name for name, _ in pairs}) < len(pairs))

    json.loads(document, object_pairs_hook=members, parse_int=str)
    return any(found)


def _one(value: Any, outstanding: set[Any], *, batch: bool) -> tuple[list[Any], set[Any], bool]:
    """The answer due to one request object, the id that it holds until then, and whether it waits for an executor."""
    named = type(value) is dict and type(value.get("id")) in (str, int)
    id_ = value["id"] if named else None
    proper = (
        type(value) is dict
        and value.get("jsonrpc") == "2.0"
        and type(value.get("method")) is str
        and (value.get("id") is None or named)
    )
    if not proper:
        id_ = None if id_ in outstanding else id_
        return [(id_, -32600)], {id_} if batch and id_ is not None else set(), False
    if id_ is None:
        return [], set(), False
    if id_ in outstanding:
        return [(None, -32600)], set(), False
    if value["method"] in METHODS and type(value.get("params", {})) is dict:
        return [(id_, None)], {id_}, True
    return [(id_, -32601 if value["method"] not in METHODS else -32602)], {id_} if batch else set(), False


def _depth(value: Any, most: int) -> bool:
    """Whether containers are nested so deep, or deeper."""
    level = [value]
    for _ in range(most):
        level = [one for one in level if type(one) in (dict, list)]
        if not level:
            return False
        level = [child for one in level for child in (one.values() if type(one) is dict else one)]
    return True


# --- the client's end -----------------------------------------------------------------------------------------------


def _client(pieces: Iterator[bytes], stream: bytes, limit: int) -> None:
    told = _heard([stream], limit)
    assert told == _heard(pieces, limit), "pieces make a difference"


def _heard(pieces: Any, limit: int) -> list[Any]:
    client = ClientProtocol(max_document_bytes=limit)
    asked = {client.request("tool.list", {})[0] for _ in range(ASKED)}
    events = []
    for piece in pieces:
        events += client.receive(piece)
        _bounded(client, max(limit, len(piece)))
    told: list[Any] = []
    replied = set()
    for index, event in enumerate(events):
        match event:
            case Reply(id=id_, result=result, error=error):
                assert id_ in asked - replied
                replied.add(id_)
                assert error is None or isinstance(error, RpcError)
                told.append((id_, _comparable(error.to_wire() if error else result)))
                _task(result)
            case Broken(error=error):
                assert index == len(events) - 1
                assert str(error)
                told.append((type(error), str(error)))
            case TaskEventNotification():
                known = event.event
                told.append(
                    (known.task_id, known.seq, known.phase, known.ts, known.step_index, _comparable(known.data))
                )
            case Notification():
                told.append((event.method, _comparable(event.params)))
            case _:
                assert type(event) is HcpMessage
                told.append(_comparable(event.value))
    assert client.outstanding == asked - replied
    assert client.closed == bool(events and type(events[-1]) is Broken)
    assert not client.closed or client.receive(b"{}\n") == []
    return told


def _comparable(value: Any) -> Any:
    """A server may nest deeper than Python compares; what is so deep is only told to be."""
    return "deep" if _depth(value, 200) else value


def _task(result: Any) -> None:
    try:
        assert type(read_task(result)) is TaskResult
    except ProtocolViolation as violation:
        assert "task" in str(violation)


# --- inputs ---------------------------------------------------------------------------------------------------------


def seeds() -> list[bytes]:
    """A line for each method and each kind of answer, and all of them in one stream."""
    lines = [b"\x06\x03" + orjson.dumps(value) + b"\n" for value in _REQUESTS]
    lines += [b"\x07\x03" + orjson.dumps(value) + b"\n" for value in _ANSWERS]
    return [
        *lines,
        b"\x0e\x01" + b"".join(orjson.dumps(value) + b"\r\n" for value in _REQUESTS[:6]),
        b"\x07\x05" + b"".join(orjson.dumps(value) + b"\n" for value in _ANSWERS[:2]),
    ]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One line's document changed, put in, doubled or moved; now and then the pieces, or bytes of the whole."""
    head, stream = data[:2].ljust(2, b"\x06"), data[2:]
    match rng.randrange(8):
        case 0:
            return bytes([rng.randrange(16), rng.randrange(256)]) + stream
        case 1:
            return head + bytes_of(stream, rng)
        case 2:
            lines = stream.split(b"\n")
            lines.insert(rng.randrange(len(lines)), orjson.dumps(rng.choice(_ANSWERS if head[0] & 1 else _REQUESTS)))
        case 3:
            lines = stream.split(b"\n")
            one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
        case _:
            lines = stream.split(b"\n")
            at = rng.randrange(len(lines))
            lines[at] = json_of(lines[at], rng, _POOL)
    return head + b"\n".join(lines)
