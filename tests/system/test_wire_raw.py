"""Bytes that no client of ours would send, against a live daemon: every row of the wire table (design §8; draft §2)."""

from __future__ import annotations

import json
import re

import pytest
from support.hearthd import Peer, request, submission

pytestmark = pytest.mark.slow


def code(answer) -> int:
    return answer["error"]["code"]


def assert_alive(peer: Peer) -> None:
    """The connection is of use still."""
    assert re.fullmatch(r"[0-9A-Za-z_-]{1,64}", peer.open())


# --- what is not a request ------------------------------------------------------------------------------------------

NOT_JSON = {
    "words": b"hello there\n",
    "half an object": b'{"jsonrpc": "2.0", "id": 1, "method"\n',
    "two documents on a line": request(1, "session.open").strip() + request(2, "session.open"),
    "invalid UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"client_name":"\xff\xfe"}}\n',
    "NaN": b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"x":NaN}}\n',
    "Infinity": b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"x":Infinity}}\n',
    "a number beyond a double": b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"x":1e999}}\n',
    "a number of 5,000 digits": b'{"jsonrpc":"2.0","id":1,"params":' + b"9" * 5000 + b"}\n",
    "a lone surrogate": rb'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"client_name":"\ud800"}}' + b"\n",
    "nesting without end": b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"x":' + b"[" * 15_000 + b"\n",
    "nesting that ends": b'{"id":1,"params":' + b"[" * 5000 + b"]" * 5000 + b"}\n",
    "zeros": b"\0" * 100 + b"\n",
    "a byte order mark": b"\xef\xbb\xbf" + request(1, "session.open"),
    "TLS": bytes.fromhex("16030100a5010000a10303") + b"\n",
    "HTTP": b"GET / HTTP/1.1\n",
}


@pytest.mark.parametrize("document", NOT_JSON.values(), ids=NOT_JSON)
def test_what_is_not_json_is_a_parse_error_and_the_connection_goes_on(peer, document: bytes) -> None:
    peer.send(document)
    answer = peer.line()
    assert (answer["id"], code(answer)) == (None, -32700)
    assert_alive(peer)


NOT_A_REQUEST = {
    "a number": (b"7", None),
    "a string": (b'"session.open"', None),
    "null": (b"null", None),
    "true": (b"true", None),
    "an empty object": (b"{}", None),
    "no jsonrpc": (b'{"id":5,"method":"session.open"}', 5),
    "another jsonrpc": (b'{"jsonrpc":"1.0","id":5,"method":"session.open"}', 5),
    "jsonrpc as a number": (b'{"jsonrpc":2.0,"id":5,"method":"session.open"}', 5),
    "no method": (b'{"jsonrpc":"2.0","id":"a"}', "a"),
    "method as a number": (b'{"jsonrpc":"2.0","id":5,"method":1}', 5),
    "a null method without id": (b'{"jsonrpc":"2.0","method":null}', None),
    "id as a fraction": (b'{"jsonrpc":"2.0","id":1.5,"method":"session.open"}', None),
    "id as a boolean": (b'{"jsonrpc":"2.0","id":true,"method":"session.open"}', None),
    "id as an array": (b'{"jsonrpc":"2.0","id":[1],"method":"session.open"}', None),
    "id as an object": (b'{"jsonrpc":"2.0","id":{},"method":"session.open"}', None),
    "id beyond 64 bits": (b'{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"session.open"}', None),
    "an empty batch": (b"[]", None),
    "a batch past the limit": (b"[" + b",".join([b"1"] * 65) + b"]", None),
    "an answer": (b'{"jsonrpc":"2.0","id":5,"result":{}}', 5),
}


@pytest.mark.parametrize(("document", "id_"), NOT_A_REQUEST.values(), ids=NOT_A_REQUEST)
def test_what_is_json_but_no_request_is_an_invalid_request(peer, document: bytes, id_) -> None:
    peer.send(document + b"\n")
    answer = peer.line()
    assert (answer["jsonrpc"], answer["id"], code(answer)) == ("2.0", id_, -32600)
    assert_alive(peer)


@pytest.mark.parametrize("params", [b"[]", b"[1]", b'"x"', b"7", b"true", b"null"])
def test_params_that_are_no_object_are_invalid_params(peer, params: bytes) -> None:
    peer.send(b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":' + params + b"}\n")
    assert code(peer.line()) == -32602
    assert_alive(peer)


@pytest.mark.parametrize("method", ["", "session.opem", "rpc.discover", "__class__", "session.open\0", "x" * 10_000])
def test_an_unknown_method_is_refused_and_not_repeated_without_end(peer, method: str) -> None:
    error = peer.refusal(method)
    assert error["code"] == -32601
    assert len(json.dumps(error)) < 1000
    assert_alive(peer)


# --- framing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b" \t\n", b"\n\n\r\n   \n"])
def test_white_space_around_documents_is_accepted(peer, end: bytes) -> None:
    peer.send(b"\n \t\r\n  " + request(1, "session.open").strip() + end + request(2, "session.open"))
    assert {peer.line()["id"], peer.line()["id"]} == {1, 2}


def test_a_document_may_come_byte_by_byte(peer) -> None:
    for byte in request("é☃", "session.open", {"client_name": "é☃\u0000"}):
        peer.send(bytes([byte]))
    assert peer.line()["id"] == "é☃"


def test_many_documents_may_come_as_one_piece(peer) -> None:
    peer.send(b"".join(request(n, "session.close", {"session_id": "x"}) for n in range(2000)))
    assert [peer.line()["id"] for _ in range(2000)] == list(range(2000))


def test_half_a_line_and_then_silence(shared) -> None:
    before = shared.descriptors()
    for part in (b"{", request(1, "session.open")[:-1], b"x" * 100_000):
        gone = Peer(shared.socket)
        gone.send(part)
        gone.close()
    with_answer = Peer(shared.socket)
    with_answer.send(request(1, "session.open")[:-1])
    with_answer.finish_sending()
    assert with_answer.rest() == [], "a document without its line end is not a document"
    with_answer.close()
    assert_alive(shared.peer())
    shared.peers.pop().close()
    shared.until(lambda: shared.descriptors() <= before)


def test_a_line_without_end_is_refused_and_the_connection_closed(shared) -> None:
    peer = Peer(shared.socket)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        peer.send(b"x" * (8 << 20))
    peer.close()
    # The same just past the limit, by a client that then listens.
    peer = Peer(shared.socket)
    peer.send(b"y" * ((1 << 20) + 1))
    [refusal] = peer.rest()
    assert (refusal["id"], code(refusal)) == (None, -32600)
    assert refusal["error"]["data"]["max_document_bytes"] == 1 << 20
    peer.close()


def test_what_came_before_a_line_without_end_is_answered(shared) -> None:
    peer = Peer(shared.socket)
    peer.send(request("before", "session.open") + b"z" * ((1 << 20) + 1))
    answers = {answer["id"]: answer for answer in peer.rest()}
    assert answers["before"]["result"]["session_id"]
    assert code(answers[None]) == -32600
    peer.close()


def test_a_document_of_exactly_the_limit_is_read(peer) -> None:
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"x":"', b'"}}'
    peer.send(head + b"x" * ((1 << 20) - len(head) - len(tail)) + tail + b"\n")
    assert "result" in peer.line()


def test_white_space_without_end_costs_nothing(shared, peer) -> None:
    before = shared.memory()
    for _ in range(512):
        peer.send(b" " * 65536)
    peer.send(request(1, "session.open"))
    assert peer.line()["id"] == 1
    assert shared.memory() < before + 16


# --- ids, notifications, batches ------------------------------------------------------------------------------------


def test_an_id_that_is_outstanding_cannot_be_used_again(peer) -> None:
    session = peer.open()
    watching = submission(session, ("gpio.watch", {"line": 4, "timeout_ms": 60_000}))
    peer.call("task.submit", watching)
    # The close is answered when the task has yielded, so it is outstanding while its id comes again.
    peer.send(request("one", "session.close", {"session_id": session}) + request("one", "session.open"))
    first, second = peer.line(), peer.line()
    refused, answered = (first, second) if "error" in first else (second, first)
    assert (refused["id"], code(refused)) == (None, -32600)
    assert refused["error"]["data"]["id"] == "one"
    assert answered == {"jsonrpc": "2.0", "id": "one", "result": {"ok": True}}
    peer.send(request("one", "session.open"))
    assert "result" in peer.line(), "once it is answered an id is free"


def test_ids_of_different_types_are_different_ids(peer) -> None:
    peer.send(request(1, "session.open") + request("1", "session.open") + request("", "session.open"))
    assert {peer.line()["id"] for _ in range(3)} == {1, "1", ""}


@pytest.mark.parametrize("member", [b"", b',"id":null'])
def test_a_notification_is_executed_and_never_answered(peer, member: bytes) -> None:
    session = peer.open()
    close = json.dumps({"session_id": session}).encode()
    peer.send(b'{"jsonrpc":"2.0","method":"session.close","params":' + close + member + b"}\n")
    peer.send(b'{"jsonrpc":"2.0","method":"no.such.method"' + member + b"}\n")
    peer.send(b'{"jsonrpc":"2.0","method":"tool.list","params":[1]' + member + b"}\n")
    peer.send(b'{"jsonrpc":"2.0","method":"tool.list","params":{"session_id":"nonesuch"}' + member + b"}\n")
    assert peer.refusal("tool.list", {"session_id": session})["code"] == -32000


def test_a_batch_is_answered_by_one_line_with_an_answer_for_each_id(peer) -> None:
    session = peer.open()
    batch = [
        {"jsonrpc": "2.0", "id": "list", "method": "tool.list", "params": {"session_id": session}},
        {"jsonrpc": "2.0", "method": "tool.list", "params": {"session_id": session}},
        7,
        {"jsonrpc": "2.0", "id": "list", "method": "session.open"},
        {"jsonrpc": "2.0", "id": "none", "method": "no.such"},
        {"jsonrpc": "2.0", "id": "open", "method": "session.open"},
        {"jsonrpc": "2.0", "id": 2, "params": {}},
    ]
    peer.send(json.dumps(batch).encode() + b"\n")
    answers = peer.line()
    by_id = {json.dumps(answer["id"]): answer for answer in answers}
    assert len(answers) == 6, "one for each but the notification"
    assert by_id['"list"']["result"]["tools"]
    assert by_id['"open"']["result"]["session_id"]
    assert code(by_id['"none"']) == -32601
    assert code(by_id["2"]) == -32600
    assert sorted(code(answer) for answer in answers if answer["id"] is None) == [-32600, -32600]


def test_a_batch_of_notifications_is_not_answered_at_all(peer) -> None:
    session = peer.open()
    params = {"session_id": session}
    peer.send(json.dumps([{"jsonrpc": "2.0", "method": "session.close", "params": params}] * 3).encode() + b"\n")
    assert peer.refusal("tool.list", params)["code"] == -32000


def test_a_batch_in_a_batch_is_no_request(peer) -> None:
    peer.send(b"[[" + request(1, "session.open").strip() + b"]]\n")
    [answer] = peer.line()
    assert code(answer) == -32600


def test_the_answer_to_a_batch_comes_before_the_events_it_asked_for(peer) -> None:
    session = peer.open()
    submit = {**submission(session, ("gpio.get", {"line": 4})), "subscribe": True}
    batch = [{"jsonrpc": "2.0", "id": n, "method": "task.submit", "params": submit} for n in range(64)]
    peer.send(json.dumps(batch).encode() + b"\n")
    answers = peer.line()
    assert {answer["id"] for answer in answers} == set(range(64))
    ended = 0
    while ended < 64:
        event = peer.line()
        assert event["method"] == "task.event"
        ended += event["params"]["phase"] == "task_finish"


# --- what is inside params ------------------------------------------------------------------------------------------


def test_unknown_members_are_ignored_at_every_level(peer) -> None:
    answer = peer.call("session.open", {"client_name": "x", "future": {"a": [1]}, "heartbeats": 7})
    session = answer["result"]["session_id"]
    task = {
        "intent": "look",
        "colour": "red",
        "steps": [{"tool": "gpio.get", "args": {"line": 4, "speed": 9}, "retries": 3}],
        "constraints": {"max_duration_ms": 5000, "politeness": "high"},
    }
    submitted = peer.call("task.submit", {"session_id": session, "task": task, "trace": "t"})
    assert peer.wait(session, submitted["result"]["task_id"])["status"] == "SUCCESS"


SHAPES = {
    "/session_id": {"session_id": 7},
    "/task": {"task": []},
    "/task/intent": {"task": {"intent": 7, "steps": [{"tool": "gpio.get", "args": {"line": 4}}]}},
    "/task/steps": {"task": {"intent": "x", "steps": {}}},
    "/task/steps/1": {"task": {"intent": "x", "steps": [{"tool": "gpio.get", "args": {"line": 4}}, 7]}},
    "/task/steps/0/tool": {"task": {"intent": "x", "steps": [{"args": {}}]}},
    "/task/steps/0/args": {"task": {"intent": "x", "steps": [{"tool": "gpio.get", "args": [4]}]}},
    "/task/constraints": {"task": {"intent": "x", "steps": [{"tool": "gpio.get"}], "constraints": 1}},
    "/task/constraints/max_duration_ms": {
        "task": {"intent": "x", "steps": [{"tool": "gpio.get"}], "constraints": {"max_duration_ms": "5"}}
    },
    "/task/constraints/max_risk_level": {
        "task": {"intent": "x", "steps": [{"tool": "gpio.get"}], "constraints": {"max_risk_level": True}}
    },
    "/task/idempotency_key": {"task": {"intent": "x", "steps": [{"tool": "gpio.get"}], "idempotency_key": ""}},
}


@pytest.mark.parametrize("pointer", SHAPES)
def test_a_wrong_shape_is_named_by_its_place(peer, pointer: str) -> None:
    session = peer.open()
    error = peer.refusal("task.submit", {"session_id": session, **SHAPES[pointer]})
    assert (error["code"], error["data"]["path"]) == (-32602, pointer)


def test_a_step_that_does_not_fit_keeps_every_step_from_running(shared, peer) -> None:
    session = peer.open()
    steps = [("gpio.set", {"line": 18, "value": 1}), ("gpio.set", {"line": 18, "value": 7})]
    error = peer.refusal("task.submit", submission(session, *steps))
    assert error["code"] == -32602
    assert error["data"]["step_index"] == 1
    assert error["data"]["tool"] == "gpio.set"
    assert error["data"]["path"] == "/value"
    assert peer.run(session, "gpio.get", line=18)["result"]["value"] == 0
    recorded = [record["event"] for record in shared.records() if record.get("session_id") == session]
    assert recorded[:3] == ["session.open", "task.reject", "task.submit"], "the submission of the read is the first"


def test_the_checks_of_a_submission_come_in_their_order(peer) -> None:
    """Each submission is wrong in every way from one check on: the first check that minds is the one that answers."""
    session = peer.open()
    unknown = {"tool": "no.tool", "args": {}}
    too_risky = {"tool": "file.delete", "args": {"path": "/etc/passwd"}}
    bad_args = {"tool": "gpio.set", "args": {"line": "?", "value": 7}}
    bad_path = {"tool": "file.read", "args": {"path": "/etc/passwd"}}

    def code_of(session_id: str, steps: list) -> int:
        return peer.refusal("task.submit", {"session_id": session_id, "task": {"intent": "x", "steps": steps}})["code"]

    everything = [bad_path, too_risky, bad_args, unknown]
    assert code_of("nonesuch", [*everything, 7]) == -32000
    assert code_of(session, [*everything, 7]) == -32602, "shape"
    assert code_of(session, everything) == -32002, "tool exists"
    assert code_of(session, everything[:3]) == -32602, "schema"
    error = peer.refusal("task.submit", {"session_id": session, "task": {"intent": "x", "steps": everything[:2]}})
    assert (error["code"], error["data"]["reason"]) == (-32003, "max_risk_level=2 < tool=3")
    error = peer.refusal("task.submit", {"session_id": session, "task": {"intent": "x", "steps": everything[:1]}})
    assert (error["code"], error["data"]["step_index"]) == (-32003, 0)


@pytest.mark.parametrize("version", ["0.1.0", "0.99.3", "0.1.0-rc.1+build.5"])
def test_a_version_of_our_major_is_spoken(peer, version: str) -> None:
    assert peer.call("session.open", {"protocol_version": version})["result"]["protocol_version"] == "0.1.0"


@pytest.mark.parametrize("version", ["1.0.0", "99.0.0", "1" * 200 + ".0.0"])
def test_a_higher_major_is_refused_with_what_is_supported(peer, version: str) -> None:
    error = peer.refusal("session.open", {"protocol_version": version})
    assert (error["code"], error["data"]["supported"]) == (-32008, ["0.1.0"])


MALFORMED = ["", "1", "0.1", "v0.1.0", "0.01.0", "0.1.0\n", "٠.١.٠", "1" * 5000 + ".0.0", 1, [0]]


@pytest.mark.parametrize("version", MALFORMED)
def test_a_malformed_version_is_invalid_params(peer, version) -> None:
    assert peer.refusal("session.open", {"protocol_version": version})["code"] == -32602


def test_every_method_without_its_session_is_invalid_params_and_with_another_session_invalid(peer) -> None:
    for method in ("session.close", "tool.list", "task.submit", "task.get", "task.cancel", "task.events.subscribe"):
        assert peer.refusal(method, {})["code"] == -32602
        for session_id in ("", "x", "../../etc", "0" * 4000, "\u0000"):
            assert peer.refusal(method, {"session_id": session_id})["code"] == -32000


def test_every_method_with_a_closed_session_is_session_invalid(peer) -> None:
    session = peer.open()
    task = peer.submit(session, ("gpio.get", {"line": 4}))
    assert peer.call("session.close", {"session_id": session})["result"]["ok"] is True
    for method in ("session.close", "tool.list", "task.get", "task.cancel", "task.events.subscribe"):
        assert peer.refusal(method, {"session_id": session, "task_id": task})["code"] == -32000


def test_binary_data_that_is_no_base64_is_refused_at_submit(peer) -> None:
    session = peer.open()
    for data in ("é", "QQ", "QQ==\n", "====", "Q Q=", 7, None):
        steps = ("i2c.write", {"bus": 1, "addr": "0x50", "reg": 0, "data": data})
        assert peer.refusal("task.submit", submission(session, steps))["code"] == -32602


def test_a_name_that_is_repeated_is_refused_and_nothing_runs(shared, peer) -> None:
    session = peer.open()
    once = request("d", "task.submit", submission(session, ("gpio.get", {"line": 5})))
    peer.send(once.replace(b'"line": 5', b'"line": 4, "line": 5'))
    assert peer.line()["error"]["code"] == -32600
    assert not [record for record in shared.records() if record.get("session_id") == session and "task_id" in record]
