"""How many values a document has is known before anything is built of it."""

from __future__ import annotations

import sys
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from hearth.protocol import server as server_module
from hearth.protocol.framing import MAX_VALUES, has_more_values
from hearth.protocol.server import Answer, Call, HcpDocument, ServerProtocol

TRICKY = st.text(st.sampled_from('a",:[]{}\\ é\n'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | TRICKY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TRICKY, inner, max_size=4),
    max_leaves=30,
)


def count(value: Any) -> int:
    """Values, one by one."""
    if isinstance(value, dict):
        return 1 + sum(map(count, value.values()))
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


@pytest.mark.slow
@given(VALUES, st.booleans())
@settings(deadline=None, max_examples=500)
def test_the_values_of_a_document_are_counted_exactly(value: Any, indent: bool) -> None:
    document = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None)
    there = count(value)
    assert not has_more_values(document, there)
    assert has_more_values(document, there - 1) or there == 1


@pytest.mark.parametrize(
    ("document", "values"),
    [
        (b"0", 1),
        (b"[]", 1),
        (b"[ \r\n]", 1),
        (b'[""]', 2),
        (b'{"a":{}}', 2),
        (rb'["\\",",",[],{}]', 5),
        (rb'["\"],[\"","\\\"",{"\\":"\\\\"}]', 5),
        (b'{"' + b"," * 90_000 + b'":"' + b"[{" * 90_000 + b'"}', 2),
    ],
)
def test_marks_within_strings_are_not_counted(document: bytes, values: int) -> None:
    assert count(orjson.loads(document)) == values
    assert not has_more_values(document, values)
    assert values == 1 or has_more_values(document, values - 1)


WORST = [
    b"[" + b",".join([b"0"] * 500_000) + b"]",
    b"[" + b",".join([b"{}"] * 340_000) + b"]",
    b"[" + b",".join([b'""'] * 340_000) + b"]",
    b'{"' + b'":0,"'.join(b"%x" % n for n in range(100_000)) + b'":0}',
    b'["' + b"\\\\" * 400_000 + b'",' + b",".join([b"0"] * 100_000) + b"]",
    b"[" * 500_000,
]


@pytest.mark.parametrize("document", WORST, ids=lambda document: document[:6].decode())
def test_nothing_is_built_of_a_document_that_has_too_many(document: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "load", None)
    built = 0

    def watch(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal built
        built += event in ("call", "c_call")

    sys.setprofile(watch)
    try:
        assert has_more_values(document, MAX_VALUES)
    finally:
        sys.setprofile(None)
    assert built < 50
    (answer,) = ServerProtocol().receive_document(document)
    assert isinstance(answer, Answer)
    refused = orjson.loads(answer.data)
    assert (refused["id"], refused["error"]["code"]) == (None, -32600)
    assert refused["error"]["data"]["max_values"] == MAX_VALUES


@pytest.mark.parametrize("kind", ["call", "batch", "message of HCP"])
def test_every_dialect_has_the_same_bound(kind: str) -> None:
    def document(more: int) -> bytes:
        call = b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"x":[%s]}}' % b",".join([b"0"] * more)
        if kind == "call":
            return call
        return b"[%s]" % call if kind == "batch" else b'{"hcp_version":"1.0",' + call[1:]

    others = count(orjson.loads(document(0)))
    server = ServerProtocol(max_values=100)
    (taken,) = server.receive(document(100 - others) + b"\n")
    assert isinstance(taken, HcpDocument if kind == "message of HCP" else Call)
    (refused,) = ServerProtocol(max_values=100).receive(document(101 - others) + b"\n")
    assert isinstance(refused, Answer)
    assert orjson.loads(refused.data)["error"]["code"] == -32600


MANY = b"[%s]" % b",".join([b"0"] * 200)
WITH_ID = [
    (b'{"jsonrpc":"2.0","id":7,"method":"x","params":%s}', 7),
    (b'{ "id" : "seven" , "jsonrpc": "2.0", "params": %s}', "seven"),
    (b'{"method":"x","jsonrpc":"2.0","id":-7,"params":%s}', -7),
    (b'{"jsonrpc":"2.0","method":"x","params":%s,"id":7}', 7),
    (b'{"jsonrpc":"2.0","method":"x","params":%s,\r\n "id": "a,b}" \n}', "a,b}"),
    (b'{"jsonrpc":"2.0","id":6,"method":"x","params":%s,"id":7}', 7),
    (b'{"jsonrpc":"2.0","method":"x","params":%s}', None),
    (b'{"jsonrpc":"2.0","id":null,"method":"x","params":%s}', None),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"x","params":%s}', None),
    (b'{"jsonrpc":"2.0","id":007,"method":"x","params":%s}', None),
    (b'{"jsonrpc":"2.0","id":99999999999999999999,"method":"x","params":%s}', None),
    (b'{"jsonrpc":"2.0","id":"\xff","method":"x","params":%s}', None),
    (rb'{"jsonrpc":"2.0","id":"\u0037","method":"x","params":%s}', None),
    (b'[{"jsonrpc":"2.0","id":7,"method":"x","params":%s}]', None),
    (b'{"jsonrpc":"2.0","method":"x","params":{"a":%s,"id":7}}', None),
    (rb'{"jsonrpc":"2.0","params":%s,"method":",\"id\":\"7"}', None),
]


@pytest.mark.parametrize(("document", "id_"), WITH_ID)
def test_a_document_of_too_many_values_is_answered_with_its_id_where_that_can_be_read(
    document: bytes, id_: Any
) -> None:
    (refused,) = ServerProtocol(max_values=100).receive_document(document % MANY)
    assert isinstance(refused, Answer)
    answer = orjson.loads(refused.data)
    assert (answer["id"], answer["error"]["data"]["max_values"]) == (id_, 100)


def test_the_id_of_a_request_that_is_outstanding_answers_no_document_of_too_many_values() -> None:
    server = ServerProtocol(max_values=100)
    (call,) = server.receive_document(b'{"jsonrpc":"2.0","id":7,"method":"session.open","params":{}}')
    (refused,) = server.receive_document(WITH_ID[0][0] % MANY)
    assert isinstance(call, Call)
    assert isinstance(refused, Answer)
    assert orjson.loads(refused.data)["id"] is None


def test_a_document_is_read_when_what_came_before_it_has_been_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    load = server_module.load
    monkeypatch.setattr(server_module, "load", lambda document: read.append(document) or load(document))
    server = ServerProtocol()
    server.feed(b"1\n" * 30_000)
    events = server.waiting()
    assert not read
    for taken in range(1, 4):
        next(events)
        assert len(read) == taken
