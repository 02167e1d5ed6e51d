"""HACP draft, section 2: the wire format. Bytes in, bytes out, against a running hearthd."""

from __future__ import annotations

import base64
import json
import re

import pytest

ID = re.compile(r"[0-9a-zA-Z_-]{1,64}\Z")


def request(id_: str, method: str = "session.open", params: str = "{}") -> bytes:
    return f'{{"jsonrpc":"2.0","id":{id_},"method":"{method}","params":{params}}}'.encode()


# --- 2.1 ------------------------------------------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.spec("2.1", "MUST", "HACP MUST use JSON-RPC 2.0 [JSONRPC] over UTF-8 encoded JSON [RFC8259].")
def test_2_1_requests_and_responses_are_json_rpc_2_0_in_utf_8(peer, session) -> None:
    task_id = peer.submit(session, ("gpio.get", {"line": 1}), intent="é → 🤖")
    raw = json.dumps(
        {"jsonrpc": "2.0", "id": "é", "method": "task.get", "params": {"session_id": session, "task_id": task_id}},
        ensure_ascii=False,
    )
    peer.send(raw.encode() + b"\n")
    answer = peer.raw()
    assert "é → 🤖".encode() in answer, "UTF-8 as it is, not escaped"
    read = json.loads(answer.decode("utf-8"))
    assert read["jsonrpc"] == "2.0"
    assert read["id"] == "é"


@pytest.mark.spec("2.1", "is", "Every request is a JSON object with at least:")
@pytest.mark.parametrize(
    ("document", "code"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"tool.list","params":{"session_id":"..."}}', -32000),
        (b'{"jsonrpc":"2.0","id":1,"method":"tool.list"}', -32602),
        (b'{"id":1,"method":"tool.list","params":{}}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"tool.list","params":{}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"params":{}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7,"params":{}}', -32600),
        (b'"tool.list"', -32600),
        (b"7", -32600),
        (b"null", -32600),
    ],
)
def test_2_1_a_request_has_these_members_and_what_has_not_is_refused(peer, document: bytes, code: int) -> None:
    assert peer.ask(document)["error"]["code"] == code


@pytest.mark.spec(
    "13",
    "is",
    "HACP itself does not transmit personally identifiable information as part of the protocol envelope.",
)
@pytest.mark.spec("2.1", "is", "Every response is either a result:")
def test_2_1_a_result_has_exactly_the_members_of_one(peer) -> None:
    answer = peer.ask(request("7"))
    assert set(answer) == {"jsonrpc", "id", "result"}
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", 7)


@pytest.mark.spec("2.1", "is", "or an error (see Section 6):")
def test_2_1_an_error_has_exactly_the_members_of_one(peer) -> None:
    answer = peer.ask(request("7", "tool.list"))
    assert set(answer) == {"jsonrpc", "id", "error"}
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", 7)
    assert set(answer["error"]) == {"code", "message", "data"}
    assert answer["error"]["code"] == -32602
    assert answer["error"]["message"].startswith("Invalid params")


# --- 2.2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "2.2",
    "is",
    "The default framing is line-delimited JSON: each request and response is a single JSON document followed by "
    "exactly one LF (0x0A).",
)
@pytest.mark.spec("10.1", "is", "Framing: line-delimited JSON.")
@pytest.mark.spec("design 8: framing")
@pytest.mark.parametrize(
    ("document", "lines"),
    [
        (request("1"), 1),
        (request("1", "no.such"), 1),
        (b"not json", 1),
        (b"[" + request("1") + b"," + request("2") + b"]", 1),
        (request("1") + b"\n" + request("2"), 2),
        (b"  " + request("1") + b" \t\r\n\r\n \n" + request("2") + b"\r", 2),
    ],
    ids=["result", "error", "parse error", "batch", "two", "two with white space"],
)
def test_2_2_each_response_is_one_document_and_exactly_one_line_feed(peer, document: bytes, lines: int) -> None:
    peer.send(document + b"\n" + request('"last"', "no.such") + b"\n")
    received = [peer.raw()]
    while b'"last"' not in received[-1]:
        received.append(peer.raw())
    assert len(received) >= 1
    while len(received) < lines + 1:
        received.append(peer.raw())
    for line in received:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert b"\r" not in line
        assert line[:1] in b"{["
        json.loads(line)


@pytest.mark.spec(
    "2.2",
    "is",
    "The default framing is line-delimited JSON: each request and response is a single JSON document followed by "
    "exactly one LF (0x0A).",
)
def test_2_2_notifications_are_framed_alike(peer, session) -> None:
    peer.start("task.submit", peer.submission(session, ("gpio.get", {"line": 1}), intent="two\nlines", subscribe=True))
    said = [peer.raw() for _ in range(4)]
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in said)
    assert [json.loads(line).get("method") for line in said] == [None, "task.event", "task.event", "task.event"]


@pytest.mark.spec("2.2", "MUST", "Servers MUST accept arbitrary whitespace between documents.")
@pytest.mark.parametrize("between", [b"\n", b"\r\n", b"\n\n\n", b" \t \n \r \n\t", b"\n" + b" " * 100_000 + b"\n"])
def test_2_2_servers_must_accept_arbitrary_whitespace_between_documents(peer, between: bytes) -> None:
    peer.send(between + request("1") + b" \n" + between + request("2", "no.such") + b"\t\n" + between)
    assert {peer.line()["id"], peer.line()["id"]} == {1, 2}
    assert peer.is_silent(), "white space is not answered"


# --- 2.3 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("2.3", "MUST", "id — JSON-RPC request identifier; MUST be unique per connection while outstanding.")
def test_2_3_an_id_that_is_outstanding_on_the_connection_is_refused_and_free_again_once_answered(peer, daemon) -> None:
    peer.send(request('"x"') + b"\n" + request('"x"') + b"\n")
    answers = [peer.line(), peer.line()]
    refused = next(answer for answer in answers if "error" in answer)
    assert refused["id"] is None, "it must not be taken for the answer to the first"
    assert refused["error"]["code"] == -32600
    assert refused["error"]["data"]["id"] == "x"
    assert "result" in peer.ask(request('"x"'))
    other = daemon.peer()
    peer.send(request('"y"') + b"\n")
    other.send(request('"y"') + b"\n")
    assert "result" in peer.line()
    assert "result" in other.line(), "another connection has ids of its own"


@pytest.mark.spec(
    "2.3", "is", "Strings, integers, or null are allowed; null indicates a notification (no response expected)."
)
@pytest.mark.parametrize("id_", ['"a"', '""', "0", "-1", "9007199254740993", '"\\u0000"', '"' + "i" * 500 + '"'])
def test_2_3_strings_and_integers_come_back_as_they_were(peer, id_: str) -> None:
    assert peer.ask(request(id_))["id"] == json.loads(id_)


@pytest.mark.spec(
    "2.3", "is", "Strings, integers, or null are allowed; null indicates a notification (no response expected)."
)
@pytest.mark.spec("design 8: id")
@pytest.mark.parametrize("id_", ["1.5", "1.0", "true", "false", "{}", "[]", "[1]"])
def test_2_3_any_other_id_is_an_invalid_request(peer, id_: str) -> None:
    answer = peer.ask(request(id_))
    assert answer["id"] is None
    assert answer["error"]["code"] == -32600


@pytest.mark.spec(
    "2.3", "is", "Strings, integers, or null are allowed; null indicates a notification (no response expected)."
)
def test_2_3_null_is_a_notification_and_gets_no_response(peer) -> None:
    peer.send(request("null") + b"\n" + request("null", "no.such") + b"\n" + request("null", "tool.list") + b"\n")
    assert peer.is_silent()


@pytest.mark.spec(
    "1.1",
    "is",
    "Session: An authenticated context between an agent and a server, identified by a server-generated session "
    "identifier.",
)
@pytest.mark.spec("2.3", "is", "session_id — opaque server-generated string returned by session.open.")
@pytest.mark.spec("2.3", "MUST", "MUST be at most 64 bytes drawn from [0-9a-zA-Z_-].")
def test_2_3_a_session_id_is_the_servers_own_and_of_at_most_64_of_these_bytes(peer) -> None:
    ids = [peer.open(session_id="mine", id="mine") for _ in range(20)]
    assert "mine" not in ids
    assert all(ID.match(id_) for id_ in ids)


@pytest.mark.spec(
    "2.3", "is", "task_id — opaque server-generated string returned by task.submit. Same constraints as session_id."
)
def test_2_3_a_task_id_is_the_servers_own_and_of_at_most_64_of_these_bytes(peer, session) -> None:
    submission = peer.submission(session, ("gpio.get", {"line": 1}))
    submission["task"]["task_id"] = submission["task_id"] = "mine"
    ids = [peer.result("task.submit", submission)["task_id"] for _ in range(20)]
    assert "mine" not in ids
    assert len(set(ids)) == 20
    assert all(ID.match(id_) for id_ in ids)


# --- 2.4 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("2.4", "is", "UTF-8 only.")
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16", "utf-32-le", "latin-1"])
def test_2_4_other_encodings_than_utf_8_are_not_taken(peer, encoding: str) -> None:
    document = request("1", params='{"client_name":"é"}').decode().encode(encoding).replace(b"\n", b"")
    answer = peer.ask(document)
    assert answer["id"] is None
    assert answer["error"]["code"] == -32700


def numbers_in(value):
    if isinstance(value, bool):
        return
    if isinstance(value, (int, float)):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from numbers_in(inner)


@pytest.mark.spec(
    "2.4", "is", "Numbers fit in IEEE 754 double precision unless explicitly declared otherwise in a method's schema."
)
def test_2_4_numbers_survive_a_reader_of_doubles_and_those_that_do_not_fit_are_refused(peer, session) -> None:
    for tool in ("hw.board", "hw.gpio.list", "sys.cpuinfo", "sys.memory", "sys.uptime", "sys.disk"):
        for number in numbers_in(peer.value(session, tool)):
            assert float(number) == number, tool
    assert peer.ask(request("1", params='{"heartbeat_ms":1e999}'))["error"]["code"] == -32700
    assert peer.ask(request("1", params='{"heartbeat_ms":9007199254740993}'))["error"]["code"] == -32602
    tools = {tool["name"]: tool for tool in peer.result("tool.list", {"session_id": session})["tools"]}
    edges = tools["gpio.watch"]["result_schema"]["properties"]["edges"]["items"]["properties"]
    assert "2^53" in edges["timestamp_ns"]["description"], "the one number that may not fit is declared"


@pytest.mark.spec(
    "2.4",
    "MUST",
    "Binary payloads (for example file.read contents) MUST be encoded using base64 as defined in [RFC4648].",
)
def test_2_4_binary_payloads_are_base64_in_both_directions(peer, session, daemon) -> None:
    everything = bytes(range(256))
    path = str(daemon.directory / "files" / "binary")
    peer.value(session, "file.write", path=path, data=base64.b64encode(everything).decode())
    assert (daemon.directory / "files" / "binary").read_bytes() == everything
    answer = peer.value(session, "file.read", path=path)
    assert base64.b64decode(answer["data"], validate=True) == everything
    assert base64.b64encode(everything).decode() == answer["data"], "the standard alphabet, padded, in one line"
    word = peer.value(session, "i2c.read", bus=1, addr="0x48", reg=0, len=2)["data"]
    assert len(base64.b64decode(word, validate=True)) == 2
    line = base64.b64encode(b"\xff\x00hi\n").decode()
    echo = peer.value(session, "uart.exchange", port="uart0", data=line, until="\n")
    assert base64.b64decode(echo["data"], validate=True) == b"\xff\x00hi\n"
    for bad in ("!!!!", "AAA", "AA-_", "AA==\n"):
        refused = peer.refused(session, ("file.write", {"path": path, "data": bad}))
        assert refused["code"] == -32602
    assert peer.refused(session, ("i2c.write", {"bus": 1, "addr": "0x50", "data": "!!!!"}))["code"] == -32602


# --- 2.5 ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("2.5", "MUST", "Servers MUST ignore unknown fields in params.")
def test_2_5_servers_must_ignore_unknown_fields_in_params(peer) -> None:
    strange = {"x-new": {"deep": [1, None]}, "": 0, "protocol": "hacp"}
    session = peer.open(client_name="test", **strange)
    assert peer.result("tool.list", {"session_id": session, **strange})["tools"]
    submission = peer.submission(session, ("gpio.get", {"line": 1, **strange}), max_duration_ms=5000, **strange)
    submission |= strange
    submission["task"] |= strange
    submission["task"]["steps"][0] |= strange
    task_id = peer.result("task.submit", submission)["task_id"]
    assert peer.finished(session, task_id)["status"] == "SUCCESS"
    for method in ("task.get", "task.cancel", "task.events.subscribe", "task.events.unsubscribe"):
        assert "result" in peer.call(method, {"session_id": session, "task_id": task_id, **strange}), method
    assert peer.result("session.close", {"session_id": session, **strange}) == {
        "ok": True,
        "ignored": ["/x-new", "/", "/protocol"],
    }


@pytest.mark.spec(
    "2.5",
    "SHOULD",
    "Tool authors SHOULD version breaking-change tools by appending .v2 (for example gpio.set.v2) rather than "
    "mutating the original.",
)
def test_2_5_a_tool_and_its_v2_live_side_by_side_and_none_of_ours_needed_one_so_far(peer, session) -> None:
    tools = {tool["name"]: tool for tool in peer.result("tool.list", {"session_id": session})["tools"]}
    assert {"com.example.slow", "com.example.slow.v2"} <= set(tools)
    ours = [name for name in tools if not name.startswith("com.")]
    assert ours
    assert not [name for name in ours if re.search(r"\.v\d+$", name)]
    assert {tools[name]["version"] for name in ours} == {1}
