"""The client's end: requests out, replies and notifications in, and what ends a connection (draft §2, §8)."""

import orjson
import pytest

from hearth.api import TaskEvent
from hearth.errors import (
    CarrierError,
    DeviceError,
    InvalidParams,
    InvalidRequest,
    QueueFull,
    RpcError,
    SessionInvalid,
)
from hearth.protocol.client import (
    Broken,
    ClientProtocol,
    Notification,
    ProtocolViolation,
    RefusedByServer,
    Reply,
    TaskEventNotification,
)


def asked(count=1, **limits):
    """A client with so many requests outstanding: ids 1 to count."""
    client = ClientProtocol(**limits)
    for _ in range(count):
        client.request("tool.list", {"session_id": "s"})
    return client


def line(**members):
    return orjson.dumps({"jsonrpc": "2.0", **members}) + b"\n"


def broken(client, data):
    """Feed what must break the connection; return why it broke."""
    *_, last = client.receive(data)
    assert isinstance(last, Broken)
    assert client.closed
    return last.error


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_request_is_one_line_with_a_fresh_id():
    client = ClientProtocol()
    ids = []
    for index in range(100):
        id_, data = client.request("task.get", {"session_id": "s", "task_id": str(index)})
        ids.append(id_)
        assert orjson.loads(data) == {
            "jsonrpc": "2.0",
            "id": id_,
            "method": "task.get",
            "params": {"session_id": "s", "task_id": str(index)},
        }
    assert all(type(id_) is int for id_ in ids)
    assert len(set(ids)) == 100
    assert client.outstanding == set(ids)


@pytest.mark.spec("2.2", "MUST NOT", "Clients MUST NOT split a single document across multiple LF boundaries.")
@pytest.mark.parametrize("text", ["plain", "two\nlines", "\r\n", "\n\n\n", "\u2028\u2029\x85", "é🤖", "\x00"])
def test_whatever_is_in_a_request_it_holds_one_line_feed_and_that_at_its_end(text):
    client = ClientProtocol()
    for data in (client.request(text, {text: [text, {"a": text}]})[1], client.notify(text, {text: text})):
        assert data.count(b"\n") == 1
        assert data.endswith(b"\n")
        assert orjson.loads(data)["method"] == text


@pytest.mark.spec("2.3", "MUST", "id — JSON-RPC request identifier; MUST be unique per connection while outstanding.")
def test_ids_are_not_used_again_even_when_they_are_free():
    client = ClientProtocol()
    seen = set()
    for _ in range(50):
        id_, _ = client.request("tool.list", {})
        assert id_ not in seen
        seen.add(id_)
        client.receive(line(id=id_, result={}))
    assert client.outstanding == frozenset()


def test_a_notification_has_no_id_and_is_not_waited_for():
    client = ClientProtocol()
    assert orjson.loads(client.notify("session.close", {"session_id": "s"})) == {
        "jsonrpc": "2.0",
        "method": "session.close",
        "params": {"session_id": "s"},
    }
    assert client.outstanding == frozenset()


@pytest.mark.parametrize("value", [b"bytes", Ellipsis, {1: 2}, 1 << 64, "a\udcff", {1, 2}], ids=repr)
def test_params_that_are_not_json_are_the_callers_error_and_use_up_no_id(value):
    client = ClientProtocol()
    for ask in (client.request, client.notify):
        with pytest.raises(InvalidParams) as caught:
            ask("task.submit", {"v": value})
        assert caught.value.data["reason"]
    assert client.outstanding == frozenset()
    assert client.request("tool.list", {})[0] == 1


def test_params_may_be_any_mapping():
    from types import MappingProxyType

    _, data = ClientProtocol().request("tool.list", MappingProxyType({"session_id": "s"}))
    assert orjson.loads(data)["params"] == {"session_id": "s"}


# --- replies --------------------------------------------------------------------------------------------------------


def test_a_result_is_handed_out_with_the_id_it_answers():
    client = asked(2)
    (reply,) = client.receive(line(id=2, result={"tools": []}))
    assert isinstance(reply, Reply)
    assert (reply.id, reply.result, reply.error) == (2, {"tools": []}, None)
    assert client.outstanding == {1}


@pytest.mark.spec("2.5", "MUST", "Clients MUST ignore unknown fields in result.")
def test_unknown_members_beside_a_result_and_in_it_do_no_harm():
    (reply,) = asked().receive(line(id=1, result={"session_id": "s", "new": {"a": 1}}, trace="x", error=None))
    assert reply.result["session_id"] == "s"
    assert reply.error is None


@pytest.mark.spec(
    "3.3",
    "MUST",
    "Clients MUST treat unknown additional tool fields as opaque and preserve them when forwarding.",
)
def test_unknown_members_of_a_tool_come_through_untouched():
    tool = {
        "name": "gpio.set",
        "version": 1,
        "x-vendor": {"nested": [1, None, {"deep": 1.5}]},
        "result_schema": {},
    }
    (reply,) = asked().receive(line(id=1, result={"tools": [tool]}))
    assert reply.result == {"tools": [tool]}


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}, "text", [1]])
def test_a_result_may_be_any_value(result):
    (reply,) = asked().receive(line(id=1, result=result))
    assert reply.result == result
    assert reply.error is None


def test_an_error_becomes_the_exception_of_its_code():
    client = asked(3)
    first, second, third = client.receive(
        line(id=1, error={"code": -32000, "message": "gone"})
        + line(
            id=2,
            error={"code": -32009, "message": "NACK", "data": {"effect": "done", "addr": 72}},
            result=None,
        )
        + line(id=3, error={"code": -32602, "message": "no", "data": {"path": "/task"}, "more": 1})
    )
    assert type(first.error) is SessionInvalid
    assert first.error.message == "gone"
    assert type(second.error) is DeviceError
    assert second.error.data == {"effect": "done", "addr": 72}
    assert type(third.error) is InvalidParams
    assert (first.result, second.result, third.result) == (None, None, None)
    assert client.outstanding == frozenset()


@pytest.mark.spec("2.5", "MUST", "New error codes MUST be additive (no re-purposing of existing numbers).")
def test_an_error_code_from_the_future_keeps_its_number():
    (reply,) = asked().receive(line(id=1, error={"code": -32077, "message": "too hot", "data": {"celsius": 91}}))
    assert type(reply.error) is RpcError
    assert reply.error.code == -32077
    assert reply.error.message == "too hot"
    assert reply.error.data == {"celsius": 91}


def test_replies_may_come_in_any_order_and_in_any_pieces():
    client = asked(3)
    stream = line(id=3, result="c") + b"\r\n \n" + line(id=1, result="a") + line(id=2, result="b")
    replies = [event for index in range(len(stream)) for event in client.receive(stream[index : index + 1])]
    assert [(reply.id, reply.result) for reply in replies] == [(3, "c"), (1, "a"), (2, "b")]


def test_a_batch_of_replies_is_taken_apart():
    client = asked(3)
    batch = [
        {"jsonrpc": "2.0", "id": 2, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}},
        {"jsonrpc": "2.0", "method": "x.note", "params": {}},
    ]
    first, second, third = client.receive(orjson.dumps(batch) + b"\n")
    assert (first.id, second.id, second.error.code) == (2, 1, -32601)
    assert isinstance(third, Notification)
    assert client.outstanding == {3}


def test_a_carrier_that_frames_by_itself_hands_over_whole_documents():
    client = asked(2)
    (reply,) = client.receive_document(line(id=2, result=1).rstrip())
    assert reply.id == 2
    assert isinstance(client.receive_document(b"")[0], Broken)
    assert client.receive_document(line(id=1, result=1)) == []


# --- notifications --------------------------------------------------------------------------------------------------


def test_the_drafts_task_event_is_read():
    params = {"task_id": "t", "step_index": 0, "phase": "start", "ts": "2026-04-19T22:48:01.234Z"}
    (event,) = ClientProtocol().receive(line(method="task.event", params=params))
    assert isinstance(event, TaskEventNotification)
    assert event.event == TaskEvent("t", 0, "start", "2026-04-19T22:48:01.234Z", 0, {})


def test_a_notification_from_the_future_is_handed_out_as_it_is():
    first, second = ClientProtocol().receive(line(method="bus.event", params=[1]) + line(method="bus.event", id=None))
    assert isinstance(first, Notification)
    assert (first.method, first.params) == ("bus.event", [1])
    assert second.params == {}


# --- what ends a connection -----------------------------------------------------------------------------------------

REPLY = {"jsonrpc": "2.0", "id": 1, "result": {}}
VIOLATIONS = {
    "not json": b"{\n",
    "not utf-8": b'"\xff"\n',
    "html": b"<html>\n",
    "a number": b"7\n",
    "null": b"null\n",
    "an empty batch": b"[]\n",
    "an array in a batch": b"[[]]\n",
    "no version": orjson.dumps({"id": 1, "result": {}}) + b"\n",
    "another version": orjson.dumps({**REPLY, "jsonrpc": "1.0"}) + b"\n",
    "neither result nor error": line(id=1),
    "both result and error": line(id=1, result={}, error={"code": 1, "message": ""}),
    "an error of text": line(id=1, error="no"),
    "an error without code": line(id=1, error={"message": "no"}),
    "an error with a code of text": line(id=1, error={"code": "-32000", "message": "no"}),
    "an error with a boolean code": line(id=1, error={"code": True, "message": "no"}),
    "no id": line(result={}),
    "a null id": line(id=None, result={}),
    "an unknown id": line(id=99, result={}),
    "an unknown id of an error": line(id=99, error={"code": -32000, "message": "no"}),
    "an id of text": line(id="1", result={}),
    "a fractional id": b'{"jsonrpc":"2.0","id":1.0,"result":{}}\n',
    "a boolean id": line(id=True, result={}),
    "an id that is an array": line(id=[1], result={}),
    "a request": line(id=1, method="roots.list", params={}),
    "a method of no text": line(method=7),
    "an event without task": line(method="task.event", params={"phase": "start"}),
    "an event without params": line(method="task.event"),
    "an event of an array": line(method="task.event", params=["t"]),
}


@pytest.mark.parametrize("data", VIOLATIONS.values(), ids=VIOLATIONS)
def test_what_the_protocol_does_not_allow_breaks_the_connection(data):
    client = asked()
    error = broken(client, data)
    assert isinstance(error, ProtocolViolation)
    assert isinstance(error, CarrierError)
    assert str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize("data", VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_violation_loses_nothing_that_came_before_it_and_takes_nothing_after_it(data):
    client = asked(3)
    after = line(id=2, result="after")
    reply, last = client.receive(line(id=3, result="before") + data + after)
    assert (reply.id, reply.result) == (3, "before")
    assert isinstance(last, Broken)
    assert client.receive(after) == []
    # Those that will never be answered are still known, so that they can be told.
    assert client.outstanding == {1, 2}


def test_a_violation_inside_a_batch_keeps_the_replies_before_it():
    client = asked(2)
    reply, last = client.receive(orjson.dumps([REPLY, REPLY]) + b"\n")
    assert reply.id == 1
    assert "1" in str(last.error)
    assert client.outstanding == {2}


def test_an_id_is_not_answered_twice():
    client = asked()
    client.receive(line(id=1, result={}))
    assert isinstance(broken(client, line(id=1, result={})), ProtocolViolation)


def test_an_answer_longer_than_the_limit_breaks_the_connection():
    client = asked(2, max_document_bytes=100)
    reply, last = client.receive(line(id=1, result={}) + b'"' + b"x" * 100)
    assert reply.id == 1
    assert isinstance(last.error, ProtocolViolation)
    assert "100" in str(last.error)
    framed = asked(max_document_bytes=100)
    (last,) = framed.receive_document(line(id=1, result="x" * 100))
    assert "100" in str(last.error)
    assert framed.closed


def test_a_long_answer_within_the_limit_is_taken():
    client = asked()
    (reply,) = client.receive(line(id=1, result="x" * (3 << 20)))
    assert len(reply.result) == 3 << 20


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": -32600, "message": "document too long", "data": {"max_document_bytes": 9}}, InvalidRequest),
        ({"code": -32005, "message": "too many connections"}, QueueFull),
    ],
)
def test_a_refusal_that_names_no_request_breaks_the_connection_and_says_why(error, kind):
    client = asked(2)
    cause = broken(client, line(id=None, error=error) + line(id=1, result={}))
    assert isinstance(cause, RefusedByServer)
    assert isinstance(cause, CarrierError)
    assert not isinstance(cause, ProtocolViolation)
    assert type(cause.error) is kind
    assert cause.error.data == error.get("data")
    assert error["message"] in str(cause)
    assert client.outstanding == {1, 2}


def test_after_the_break_nothing_can_be_asked():
    client = asked()
    broken(client, b"!\n")
    with pytest.raises(CarrierError):
        client.request("tool.list", {})
