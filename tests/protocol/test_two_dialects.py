"""One connection, two dialects: an object with `hcp_version` is HCP's, at both ends, and no request nor answer."""

import orjson
import pytest

from hearth.errors import InvalidParams
from hearth.protocol.client import Broken, ClientProtocol, HcpMessage, ProtocolViolation, Reply
from hearth.protocol.hcp_methods import (
    MOST_READ,
    HcpArtifact,
    HcpAttach,
    HcpCapabilities,
    HcpDecide,
    HcpPending,
    HcpSessions,
    HcpWithdraw,
)
from hearth.protocol.methods import METHODS
from hearth.protocol.server import Answer, Call, Close, HcpDocument, ServerProtocol

SUBMIT = {"hcp_version": "1.0", "message_id": "m", "session_id": None, "type": "task_submit", "payload": {}}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "hcp.sessions", "params": {}}


def line(value):
    return orjson.dumps(value) + b"\n"


def received(*values, **limits):
    return ServerProtocol(**limits).receive(b"".join(map(line, values)))


# --- the server's end -----------------------------------------------------------------------------------------------


def test_both_dialects_are_read_from_one_connection_in_their_order():
    events = received(SUBMIT, LIST, {**SUBMIT, "type": "abort"})
    assert [type(event) for event in events] == [HcpDocument, Call, HcpDocument]
    assert events[0].value == SUBMIT
    assert events[2].value["type"] == "abort"


@pytest.mark.parametrize("version", ["1.0", "9.9", "", None, 1, [], {}])
def test_whatever_the_version_is_it_is_for_hcp_to_say(version):
    (event,) = received({"hcp_version": version})
    assert isinstance(event, HcpDocument)
    assert event.value == {"hcp_version": version}


@pytest.mark.parametrize("more", [{"id": 1}, {}, {"id": None}])
def test_with_hcp_version_beside_jsonrpc_it_is_hcps_and_takes_no_id(more):
    protocol = ServerProtocol()
    (event,) = protocol.receive(line({"jsonrpc": "2.0", "method": "hcp.sessions", "hcp_version": "1.0", **more}))
    assert isinstance(event, HcpDocument)
    assert protocol.outstanding == 0
    (call,) = protocol.receive(line(LIST))
    assert isinstance(call, Call)


def test_hcp_version_inside_params_makes_no_difference():
    (event,) = received({**LIST, "params": {"hcp_version": "1.0"}})
    assert isinstance(event, Call)


def test_in_a_batch_an_hcp_message_is_an_invalid_request_and_the_others_are_executed():
    events = received([SUBMIT, LIST])
    assert [type(event) for event in events] == [Call]
    call = events[0]
    (refused,) = [orjson.loads(found) for found in call.batch.lines]
    assert (refused["id"], refused["error"]["code"]) == (None, -32600)


def test_a_batch_of_hcp_messages_is_answered_as_one_of_invalid_requests():
    (event,) = received([SUBMIT, SUBMIT])
    assert isinstance(event, Answer)
    assert [each["error"]["code"] for each in orjson.loads(event.data)] == [-32600, -32600]


def test_the_methods_of_jobs_may_be_notifications_as_any_other():
    (event,) = received({"jsonrpc": "2.0", "method": "hcp.attach", "params": {"session_id": "s"}})
    assert (event.method, event.id) == ("hcp.attach", None)
    assert ServerProtocol().result(event, {}) is None


def test_an_hcp_message_may_be_a_whole_document_of_a_carrier_that_frames():
    (event,) = ServerProtocol().receive_document(b"\n " + orjson.dumps(SUBMIT, option=orjson.OPT_INDENT_2) + b"\n")
    assert isinstance(event, HcpDocument)


def test_an_hcp_message_that_is_too_long_is_refused_as_any_document_and_nothing_is_read_behind_it():
    long = {**SUBMIT, "payload": {"intent": "x" * 200}}
    events = received(SUBMIT, long, SUBMIT, max_document_bytes=150)
    assert [type(event) for event in events] == [HcpDocument, Answer, Close]
    assert orjson.loads(events[1].data)["error"]["data"]["max_document_bytes"] == 150


def test_after_a_close_no_hcp_message_is_read():
    protocol = ServerProtocol(max_document_bytes=150)
    assert isinstance(protocol.receive(b"x" * 200)[-1], Close)
    assert protocol.receive(line(SUBMIT)) == []
    assert protocol.receive_document(orjson.dumps(SUBMIT)) == []


@pytest.mark.parametrize("at", range(1, len(line(SUBMIT))))
def test_however_its_bytes_are_cut_it_is_one_message(at):
    protocol = ServerProtocol()
    data = line(SUBMIT)
    (event,) = protocol.receive(data[:at]) + protocol.receive(data[at:])
    assert event.value == SUBMIT


def test_nested_too_deep_it_is_a_parse_error():
    (event,) = ServerProtocol().receive(b'{"hcp_version":"1.0","payload":' + b"[" * 200 + b"]" * 200 + b"}\n")
    assert isinstance(event, Answer)
    assert orjson.loads(event.data)["error"]["code"] == -32700


# --- the methods beside the messages --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "read"),
    [
        ("hcp.capabilities", {"more": 1}, HcpCapabilities()),
        ("hcp.sessions", {}, HcpSessions()),
        ("hcp.pending", {}, HcpPending()),
        ("hcp.attach", {"session_id": "s"}, HcpAttach("s", 0)),
        ("hcp.attach", {"session_id": "s", "from_sequence": 7}, HcpAttach("s", 7)),
        ("hcp.artifact", {"uri": "hcp://s/artifacts/f"}, HcpArtifact("hcp://s/artifacts/f", 0, MOST_READ)),
        ("hcp.artifact", {"uri": "u", "offset": 9, "len": 1}, HcpArtifact("u", 9, 1)),
        ("hcp.decide", {"approval_id": "a"}, HcpDecide("a", approve=False, reason=None)),
        ("hcp.withdraw", {"message_id": "m"}, HcpWithdraw("m", None)),
        ("hcp.withdraw", {"message_id": "m", "reason": "r"}, HcpWithdraw("m", "r")),
        ("hcp.decide", {"approval_id": "a", "approve": True, "reason": "r"}, HcpDecide("a", approve=True, reason="r")),
    ],
)
def test_the_methods_take_their_params_and_no_session(method, params, read):
    assert METHODS[method](params) == read


@pytest.mark.parametrize(
    ("method", "params", "path"),
    [
        ("hcp.attach", {}, "/session_id"),
        ("hcp.attach", {"session_id": 7}, "/session_id"),
        ("hcp.attach", {"session_id": "s", "from_sequence": -1}, "/from_sequence"),
        ("hcp.attach", {"session_id": "s", "from_sequence": 1.5}, "/from_sequence"),
        ("hcp.artifact", {}, "/uri"),
        ("hcp.artifact", {"uri": "u", "len": 0}, "/len"),
        ("hcp.artifact", {"uri": "u", "len": MOST_READ + 1}, "/len"),
        ("hcp.artifact", {"uri": "u", "offset": True}, "/offset"),
        ("hcp.decide", {"approve": True}, "/approval_id"),
        ("hcp.withdraw", {}, "/message_id"),
        ("hcp.decide", {"approval_id": "a", "approve": "yes"}, "/approve"),
        ("hcp.decide", {"approval_id": "a", "reason": "x" * 257}, "/reason"),
    ],
)
def test_a_param_that_is_not_as_it_should_be_is_named(method, params, path):
    with pytest.raises(InvalidParams) as refused:
        METHODS[method](params)
    assert refused.value.data["path"] == path


# --- the client's end -----------------------------------------------------------------------------------------------


def test_a_client_tells_messages_from_replies():
    client = ClientProtocol()
    id_, _ = client.request("hcp.sessions", {})
    events = client.receive(line(SUBMIT) + line({"jsonrpc": "2.0", "id": id_, "result": {}}) + line(SUBMIT))
    assert [type(event) for event in events] == [HcpMessage, Reply, HcpMessage]
    assert events[0].value == SUBMIT


def test_a_message_that_says_jsonrpc_too_answers_no_request():
    client = ClientProtocol()
    id_, _ = client.request("hcp.sessions", {})
    (event,) = client.receive(line({"jsonrpc": "2.0", "id": id_, "result": {}, "hcp_version": "1.0"}))
    assert isinstance(event, HcpMessage)
    assert client.outstanding == {id_}


def test_messages_in_an_array_are_read_as_each_would_be():
    events = ClientProtocol().receive(line([SUBMIT, SUBMIT]))
    assert [type(event) for event in events] == [HcpMessage, HcpMessage]


def test_a_message_without_end_breaks_the_connection_as_any_answer_does():
    client = ClientProtocol(max_document_bytes=100)
    *_, last = client.receive(line({**SUBMIT, "payload": "x" * 200}))
    assert isinstance(last, Broken)
    assert isinstance(last.error, ProtocolViolation)
    assert client.receive(line(SUBMIT)) == []
