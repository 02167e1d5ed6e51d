"""Batches: an array in, at most one array line out (JSON-RPC 2.0 §6; design §8, row "batch")."""

import orjson
import pytest

from hearth.errors import RpcError
from hearth.protocol.server import Answer, Call, ServerProtocol

INVALID, UNKNOWN, PARAMS = -32600, -32601, -32602


def request(id_, method="tool.list", **more):
    return {"jsonrpc": "2.0", "id": id_, "method": method, "params": {"session_id": "s"}, **more}


def note(method="tool.list"):
    return {"jsonrpc": "2.0", "method": method, "params": {}}


def send(server, value):
    return server.receive(orjson.dumps(value) + b"\n")


def ids(answers):
    return [answer["id"] for answer in answers]


def codes(answers):
    return [answer["error"]["code"] for answer in answers]


def test_the_answers_of_a_batch_go_out_together_with_the_last_of_them():
    server = ServerProtocol()
    first, second, third = send(server, [request(1), request("b"), request(3)])
    assert server.outstanding == 3
    assert server.result(second, {"n": 2}) is None
    assert server.error(third, RpcError("no")) is None
    line = server.result(first, {"n": 1})
    answers = orjson.loads(line)
    assert line.count(b"\n") == 1
    assert line.endswith(b"]\n")
    assert sorted(ids(answers), key=str) == [1, 3, "b"]
    assert server.outstanding == 0


def test_a_batch_of_one_is_answered_with_an_array_of_one():
    server = ServerProtocol()
    (call,) = send(server, [request(1)])
    assert orjson.loads(server.result(call, {})) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


def test_an_empty_batch_is_one_invalid_request_and_not_an_array():
    (answer,) = send(ServerProtocol(), [])
    answer = orjson.loads(answer.data)
    assert answer["id"] is None
    assert answer["error"]["code"] == INVALID


@pytest.mark.parametrize("limit", [1, 3, 64])
def test_a_batch_may_be_as_long_as_the_limit_and_not_one_longer(limit):
    server = ServerProtocol(max_batch=limit)
    assert len(send(server, [request(index) for index in range(limit)])) == limit
    (refused,) = send(server, [request(1000 + index) for index in range(limit + 1)])
    answer = orjson.loads(refused.data)
    assert answer["id"] is None
    assert answer["error"]["code"] == INVALID
    assert answer["error"]["data"]["max_batch"] == limit
    assert server.outstanding == limit
    assert not server.closed


def test_the_default_limit_is_64():
    assert len(send(ServerProtocol(), [request(index) for index in range(64)])) == 64
    assert isinstance(send(ServerProtocol(), [request(index) for index in range(65)])[0], Answer)


def test_a_batch_too_long_that_holds_only_notifications_is_answered_all_the_same():
    assert isinstance(send(ServerProtocol(), [note()] * 65)[0], Answer)


def test_a_batch_of_notifications_is_executed_and_never_answered():
    server = ServerProtocol()
    calls = send(server, [note("session.open"), note(), note("tool.list")])
    assert [call.method for call in calls] == ["session.open", "tool.list", "tool.list"]
    assert [server.result(call, {}) for call in calls] == [None, None, None]


def test_a_batch_of_notifications_that_cannot_be_executed_is_silence():
    assert send(ServerProtocol(), [note("no.such"), {"jsonrpc": "2.0", "method": "tool.list", "params": []}]) == []


def test_a_notification_leaves_no_place_in_the_answer():
    server = ServerProtocol()
    first, quiet, last = send(server, [request(1), note(), request(2)])
    assert server.result(first, {}) is None
    assert server.result(quiet, {}) is None
    assert ids(orjson.loads(server.result(last, {}))) == [1, 2]


def test_a_notification_that_ends_last_does_not_send_the_batch_twice():
    server = ServerProtocol()
    asked, quiet = send(server, [request(1), note()])
    assert server.result(asked, {}) is not None
    assert server.error(quiet, RpcError()) is None


def test_members_that_are_no_requests_are_answered_each_in_its_place_of_the_array():
    (answer,) = send(
        ServerProtocol(),
        [1, "x", None, [], [request(1)], {"id": 5}, {"jsonrpc": "2.0", "id": True, "method": "m"}],
    )
    answers = orjson.loads(answer.data)
    assert codes(answers) == [INVALID] * 7
    assert ids(answers) == [None] * 5 + [5, None]


def test_refusals_wait_for_the_calls_of_their_batch():
    server = ServerProtocol()
    events = send(server, [1, request(1), request(2, "no.such"), {**request(3), "params": [1]}, note()])
    assert [type(event) for event in events] == [Call, Call]
    answers = orjson.loads(server.result(events[0], {}))
    assert sorted(ids(answers), key=str) == [1, 2, 3, None]
    assert sorted(answer["error"]["code"] for answer in answers if "error" in answer) == [
        PARAMS,
        UNKNOWN,
        INVALID,
    ]


def test_arrays_do_not_nest():
    (answer,) = send(ServerProtocol(), [[[request(1)]]])
    assert codes(orjson.loads(answer.data)) == [INVALID]


def test_an_id_used_twice_in_a_batch_is_refused_the_second_time():
    server = ServerProtocol()
    (call,) = send(server, [request(1), request(1)])
    answers = orjson.loads(server.result(call, {"n": 1}))
    assert {answer["id"]: "result" in answer for answer in answers} == {1: True, None: False}
    assert server.outstanding == 0


@pytest.mark.parametrize(
    "refused",
    [request(1, "no.such"), {**request(1), "params": []}, {**request(1), "jsonrpc": "1.0"}],
    ids=["unknown method", "wrong params", "no request"],
)
def test_no_two_answers_of_a_batch_bear_the_same_id_even_if_the_first_was_a_refusal(refused):
    server = ServerProtocol()
    (answer,) = send(server, [refused, request(1)])
    assert isinstance(answer, Answer)
    assert ids(orjson.loads(answer.data)) == [1, None]
    assert server.outstanding == 0
    assert isinstance(send(server, request(1))[0], Call)


def test_an_id_outstanding_outside_is_refused_inside_a_batch_and_the_reverse():
    server = ServerProtocol()
    (single,) = send(server, request(1))
    (batched,) = send(server, [request(1), request(2)])
    assert ids(orjson.loads(server.result(batched, {}))) == [None, 2]
    (held,) = send(server, [request(3)])
    (refused,) = send(server, request(3))
    assert orjson.loads(refused.data)["id"] is None
    assert server.result(held, {}) is not None
    assert server.result(single, {}) is not None
    assert server.outstanding == 0


def test_an_id_stays_outstanding_until_the_bytes_of_its_answer_exist():
    server = ServerProtocol()
    fast, slow = send(server, [request(1), request(2)])
    assert server.result(fast, {}) is None
    assert server.outstanding == 2
    (refused,) = send(server, request(1))
    assert orjson.loads(refused.data)["id"] is None
    assert ids(orjson.loads(server.result(slow, {}))) == [1, 2]
    assert server.outstanding == 0
    assert isinstance(send(server, request(1))[0], Call)


def test_two_batches_are_answered_each_by_its_own_line():
    server = ServerProtocol()
    a1, a2 = send(server, [request("a1"), request("a2")])
    b1, b2 = send(server, [request("b1"), request("b2")])
    assert server.result(a1, {}) is None
    assert server.result(b1, {}) is None
    assert ids(orjson.loads(server.result(b2, {}))) == ["b1", "b2"]
    assert ids(orjson.loads(server.result(a2, {}))) == ["a1", "a2"]


def test_a_batch_may_come_from_a_carrier_that_frames_by_itself():
    server = ServerProtocol()
    (call,) = server.receive_document(orjson.dumps([request(1), 2]))
    assert ids(orjson.loads(server.result(call, {}))) == [None, 1]


# --- the JSON-RPC 2.0 specification's own examples (§7), with this server's methods in the place of theirs ------------


def test_specification_example_call_of_a_non_existent_method():
    (event,) = ServerProtocol().receive(b'{"jsonrpc": "2.0", "method": "foobar", "id": "1"}\n')
    answer = orjson.loads(event.data)
    assert (answer["jsonrpc"], answer["id"], answer["error"]["code"]) == ("2.0", "1", UNKNOWN)
    assert answer["error"]["message"].startswith("Method not found")


def test_specification_example_call_with_named_parameters():
    server = ServerProtocol()
    (call,) = server.receive(
        b'{"jsonrpc": "2.0", "method": "task.get", "params": {"task_id": 23, "session_id": 42}, "id": 3}\n'
    )
    assert call.params == {"task_id": 23, "session_id": 42}
    assert orjson.loads(server.result(call, 19)) == {"jsonrpc": "2.0", "result": 19, "id": 3}


def test_specification_example_notifications():
    server = ServerProtocol()
    (call,) = server.receive(b'{"jsonrpc": "2.0", "method": "task.cancel", "params": {"a": 1}}\n')
    assert server.result(call, {}) is None
    assert server.receive(b'{"jsonrpc": "2.0", "method": "foobar"}\n') == []


def test_specification_example_call_with_invalid_json():
    (event,) = ServerProtocol().receive(b'{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]\n')
    answer = orjson.loads(event.data)
    assert answer["id"] is None
    assert answer["error"]["code"] == -32700
    assert answer["error"]["message"] == "Parse error"


def test_specification_example_call_with_an_invalid_request_object():
    (event,) = ServerProtocol().receive(b'{"jsonrpc": "2.0", "method": 1, "params": "bar"}\n')
    answer = orjson.loads(event.data)
    assert answer["id"] is None
    assert answer["error"]["code"] == INVALID
    assert answer["error"]["message"] == "Invalid Request"


def test_specification_example_batch_with_invalid_json():
    document = b'[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},{"jsonrpc": "2.0", "method"]\n'
    (event,) = ServerProtocol().receive(document)
    answer = orjson.loads(event.data)
    assert answer["id"] is None
    assert answer["error"]["code"] == -32700


def test_specification_example_empty_array():
    (event,) = ServerProtocol().receive(b"[]\n")
    assert orjson.loads(event.data)["error"]["code"] == INVALID


def test_specification_example_invalid_batches():
    (event,) = ServerProtocol().receive(b"[1]\n")
    answers = orjson.loads(event.data)
    assert codes(answers) == [INVALID]
    assert ids(answers) == [None]
    (event,) = ServerProtocol().receive(b"[1,2,3]\n")
    assert codes(orjson.loads(event.data)) == [INVALID] * 3


def test_specification_example_mixed_batch():
    server = ServerProtocol()
    events = server.receive(
        b'[{"jsonrpc": "2.0", "method": "tool.list", "params": {"a": 1}, "id": "1"},'
        b'{"jsonrpc": "2.0", "method": "task.cancel", "params": {"a": 7}},'
        b'{"jsonrpc": "2.0", "method": "task.get", "params": {"a": 42}, "id": "2"},'
        b'{"foo": "boo"},'
        b'{"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},'
        b'{"jsonrpc": "2.0", "method": "session.open", "id": "9"}]\n'
    )
    assert [event.id for event in events] == ["1", None, "2", "9"]
    lines = [server.result(event, [event.id]) for event in events]
    assert lines[:3] == [None, None, None]
    answers = {answer["id"]: answer for answer in orjson.loads(lines[3])}
    assert set(answers) == {"1", "2", "5", "9", None}
    assert answers["1"]["result"] == ["1"]
    assert answers["5"]["error"]["code"] == UNKNOWN
    assert answers[None]["error"]["code"] == INVALID


def test_specification_example_batch_of_notifications():
    server = ServerProtocol()
    events = server.receive(
        b'[{"jsonrpc": "2.0", "method": "task.cancel", "params": {"a": 1}},{"jsonrpc": "2.0", "method": "tool.list"}]\n'
    )
    assert [server.result(event, {}) for event in events] == [None, None]
