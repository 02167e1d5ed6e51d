"""One document in, what JSON-RPC 2.0 and the draft make of it (draft §2.1–§2.5; design §8)."""

import json
import os
import subprocess
import sys

import orjson
import pytest
from hypothesis import given, strategies as st

from hearth.errors import DeviceError, InvalidRequest, MethodNotFound, ParseError, RpcError
from hearth.protocol.jsonrpc import (
    MAX_DEPTH,
    dump_error,
    dump_request,
    dump_result,
    join_batch,
    kind_of,
    load,
    read_request,
    reply_id_of,
)
from hearth.protocol.server import Answer, Call, Close, ServerProtocol

PARSE, INVALID, UNKNOWN, PARAMS = -32700, -32600, -32601, -32602


def receive(document, **limits):
    return ServerProtocol(**limits).receive(document + b"\n")


def answer_to(document, **limits):
    """The one answer a document gets, decoded; fails if it gets anything else."""
    (event,) = receive(document, **limits)
    assert isinstance(event, Answer)
    assert event.data.endswith(b"\n")
    assert event.data.count(b"\n") == 1
    return orjson.loads(event.data)


def call_of(document, **limits):
    (event,) = receive(document, **limits)
    assert isinstance(event, Call)
    return event


def with_id(text):
    return b'{"jsonrpc":"2.0","id":' + text + b',"method":"tool.list","params":{"session_id":"s"}}'


# --- requests -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("2.1", "MUST", "HACP MUST use JSON-RPC 2.0 [JSONRPC] over UTF-8 encoded JSON [RFC8259].")
def test_the_drafts_request_becomes_a_call_and_its_result_is_one_line():
    server = ServerProtocol()
    (call,) = server.receive(
        b'{ "jsonrpc": "2.0", "id": 7, "method": "tool.list", "params": { "session_id": "\xc3\xa9" } }\n'
    )
    assert (call.id, call.method, call.params) == (7, "tool.list", {"session_id": "é"})
    assert server.result(call, {"tools": [], "é": "ü"}) == (
        '{"jsonrpc":"2.0","id":7,"result":{"tools":[],"é":"ü"}}\n'.encode()
    )


@pytest.mark.spec("2.1", "MUST", "HACP MUST use JSON-RPC 2.0 [JSONRPC] over UTF-8 encoded JSON [RFC8259].")
def test_the_drafts_error_object_is_what_a_failed_request_gets():
    server = ServerProtocol()
    (call,) = server.receive(with_id(b"7") + b"\n")
    line = server.error(call, RpcError("Invalid params"))
    assert orjson.loads(line) == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {"code": -32603, "message": "Invalid params"},
    }
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b" \t\r\n", b"\n\n\r\n \n"])
@pytest.mark.parametrize("before", [b"", b"\n", b"\r\n\r\n", b" \t", b"\t\n \n"])
@pytest.mark.spec("2.2", "MUST", "Servers MUST accept arbitrary whitespace between documents.")
def test_white_space_between_documents_changes_nothing(before, newline):
    server = ServerProtocol()
    events = server.receive(before + with_id(b"1") + newline + before + with_id(b"2") + newline)
    assert [event.id for event in events] == [1, 2]


def test_white_space_alone_is_answered_with_nothing():
    server = ServerProtocol()
    assert server.receive(b"\n \n\t\r\n\r\n" * 1000) == []
    assert server.outstanding == 0


def test_member_order_and_white_space_inside_a_document_do_not_matter():
    call = call_of(b' { "params" :\t{ "session_id" : "s" } , "method":"tool.list" ,"id" : "x","jsonrpc":"2.0" } ')
    assert (call.id, call.method, call.params) == ("x", "tool.list", {"session_id": "s"})


@pytest.mark.spec("2.5", "MUST", "Servers MUST ignore unknown fields in params.")
def test_unknown_members_beside_params_and_in_it_are_ignored():
    call = call_of(
        b'{"jsonrpc":"2.0","id":1,"method":"tool.list","params":{"session_id":"s","new":{"a":[1]}},'
        b'"result":1,"error":2,"trace":{"x":null}}'
    )
    assert (call.id, call.method) == (1, "tool.list")


def test_a_request_without_params_has_empty_params_of_its_own():
    first = call_of(b'{"jsonrpc":"2.0","id":1,"method":"session.open"}')
    first.params["leak"] = True
    second = call_of(b'{"jsonrpc":"2.0","id":1,"method":"session.open"}')
    assert second.params == {}


@pytest.mark.parametrize(
    ("text", "kind"),
    [(b"[1]", "an array"), (b"[]", "an array"), (b'"x"', "a string"), (b"1", "an integer"), (b"1.5", "a number"),
     (b"true", "a boolean"), (b"null", "null")],
)  # fmt: skip
def test_params_that_are_not_an_object_are_invalid_params(text, kind):
    answer = answer_to(b'{"jsonrpc":"2.0","id":1,"method":"tool.list","params":' + text + b"}")
    assert answer["id"] == 1
    assert answer["error"]["code"] == PARAMS
    assert kind in answer["error"]["data"]["reason"]


def test_an_unknown_method_is_named_in_its_answer_but_not_at_any_length():
    answer = answer_to(b'{"jsonrpc":"2.0","id":"a","method":"' + b"m" * 10_000 + b'"}')
    assert answer["id"] == "a"
    assert answer["error"]["code"] == UNKNOWN
    assert answer["error"]["data"] == {"method": "m" * 200}
    assert len(answer["error"]["message"]) < 300


@pytest.mark.parametrize(
    "method", ["Tool.list", "tool.list ", "", "rpc.discover", "__class__", "task", "tool.list\x00"]
)
def test_a_method_name_is_compared_exactly(method):
    answer = answer_to(orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}))
    assert answer["error"]["code"] == UNKNOWN


@pytest.mark.parametrize(
    "document",
    [
        b"1", b"null", b"true", b'"text"', b"1.5", b"{}",
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"id":1,"method":"tool.list"}',
        b'{"jsonrpc":2.0,"id":1,"method":"tool.list"}',
        b'{"jsonrpc":"1.0","id":1,"method":"tool.list"}',
        b'{"jsonrpc":null,"id":1,"method":"tool.list"}',
        b'{"jsonrpc":"2.0","id":1,"method":1}',
        b'{"jsonrpc":"2.0","id":1,"method":null}',
        b'{"jsonrpc":"2.0","id":1,"method":["tool.list"]}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
    ],
)  # fmt: skip
def test_json_that_is_not_a_request_object_is_an_invalid_request(document):
    answer = answer_to(document)
    assert answer["error"]["code"] == INVALID
    assert answer["error"]["data"]["reason"]
    assert answer["id"] == (1 if b'"id":1' in document else None)


# --- ids ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        (b"0", 0),
        (b"-0", 0),
        (b"7", 7),
        (b"-1", -1),
        (b'""', ""),
        (b'"0"', "0"),
        (b'"\\u0000"', "\x00"),
        (b'"\xf0\x9f\xa4\x96"', "🤖"),
        (b"9007199254740993", 9007199254740993),
        (b"18446744073709551615", 2**64 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b'"' + b"i" * 1000 + b'"', "i" * 1000),
    ],
)
def test_strings_and_integers_are_ids_and_come_back_unchanged(text, id_):
    server = ServerProtocol()
    (call,) = server.receive(with_id(text) + b"\n")
    assert call.id == id_
    assert type(call.id) is type(id_)
    answer = orjson.loads(server.result(call, {}))
    assert answer == {"jsonrpc": "2.0", "id": id_, "result": {}}
    assert server.outstanding == 0


@pytest.mark.parametrize(
    "text",
    [
        b"true",
        b"false",
        b"1.0",
        b"1.5",
        b"1e2",
        b"[1]",
        b"{}",
        b'{"id":1}',
        b"18446744073709551616",
        b"1" * 100,
    ],
)
def test_anything_else_is_no_id_and_is_answered_with_a_null_one(text):
    answer = answer_to(with_id(text))
    assert answer["id"] is None
    assert answer["error"]["code"] == INVALID
    assert '"id"' in answer["error"]["data"]["reason"]


@pytest.mark.spec("2.3", "MUST", "id — JSON-RPC request identifier; MUST be unique per connection while outstanding.")
def test_an_id_may_not_be_used_again_while_it_is_outstanding():
    server = ServerProtocol()
    (call,) = server.receive(with_id(b"1") + b"\n")
    (reused,) = server.receive(with_id(b"1") + b"\n")
    answer = orjson.loads(reused.data)
    assert answer["error"]["code"] == INVALID
    assert answer["error"]["data"]["id"] == 1
    # With a null id: bearing the id, it would be taken for the answer to the request that is outstanding.
    assert answer["id"] is None
    assert server.outstanding == 1
    assert orjson.loads(server.result(call, {}))["id"] == 1


@pytest.mark.parametrize("how", ["result", "error"])
def test_an_id_may_be_used_again_once_it_is_answered(how):
    server = ServerProtocol()
    for _ in range(3):
        (call,) = server.receive(with_id(b'"x"') + b"\n")
        assert isinstance(call, Call)
        assert server.result(call, {}) if how == "result" else server.error(call, RpcError())
    assert server.outstanding == 0


def test_an_id_whose_request_was_refused_at_once_is_free_again():
    server = ServerProtocol()
    for rest in (b'"method":"no.such"', b'"method":1', b'"method":"tool.list","params":[]'):
        document = b'{"jsonrpc":"2.0","id":1,' + rest + b"}\n"
        (refused,) = server.receive(document)
        assert isinstance(refused, Answer)
        assert server.outstanding == 0
    assert isinstance(server.receive(with_id(b"1") + b"\n")[0], Call)


def test_a_number_and_its_text_are_two_ids():
    server = ServerProtocol()
    events = server.receive(with_id(b"1") + b"\n" + with_id(b'"1"') + b"\n")
    assert [event.id for event in events] == [1, "1"]
    assert server.outstanding == 2


def test_an_unknown_method_with_an_outstanding_id_is_not_answered_under_that_id():
    server = ServerProtocol()
    server.receive(with_id(b"1") + b"\n")
    (event,) = server.receive(b'{"jsonrpc":"2.0","id":1,"method":"no.such"}\n')
    assert orjson.loads(event.data)["id"] is None
    assert server.outstanding == 1


def test_an_invalid_request_with_an_outstanding_id_is_not_answered_under_that_id():
    server = ServerProtocol()
    server.receive(with_id(b"1") + b"\n")
    (event,) = server.receive(b'{"jsonrpc":"2.0","id":1,"method":null}\n')
    answer = orjson.loads(event.data)
    assert answer["error"]["code"] == INVALID
    assert answer["id"] is None
    assert server.outstanding == 1


def test_two_connections_may_use_the_same_id():
    one, other = ServerProtocol(), ServerProtocol()
    assert isinstance(one.receive(with_id(b"1") + b"\n")[0], Call)
    assert isinstance(other.receive(with_id(b"1") + b"\n")[0], Call)


# --- notifications --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", [b"", b'"id":null,'])
def test_a_notification_is_executed_and_never_answered(member):
    server = ServerProtocol()
    (call,) = server.receive(b'{"jsonrpc":"2.0",' + member + b'"method":"session.close","params":{"session_id":"s"}}\n')
    assert call.id is None
    assert call.params == {"session_id": "s"}
    assert server.outstanding == 0
    assert server.result(call, {"ok": True}) is None
    assert server.error(call, RpcError("no")) is None


@pytest.mark.parametrize(
    "document",
    [
        b'{"jsonrpc":"2.0","method":"no.such","params":{}}',
        b'{"jsonrpc":"2.0","id":null,"method":"no.such"}',
        b'{"jsonrpc":"2.0","method":"tool.list","params":[1]}',
        b'{"jsonrpc":"2.0","method":"tool.list","params":7}',
    ],
)
def test_a_notification_that_cannot_be_executed_is_not_answered_either(document):
    assert receive(document) == []


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (b'{"jsonrpc":"2.0","method":', PARSE),
        (b'{"jsonrpc":"1.0","method":"tool.list"}', INVALID),
        (b'{"jsonrpc":"2.0","id":null,"method":1}', INVALID),
    ],
)
def test_what_cannot_be_read_as_a_notification_is_answered_with_a_null_id(document, code):
    answer = answer_to(document)
    assert answer["id"] is None
    assert answer["error"]["code"] == code


# --- documents that are not JSON ------------------------------------------------------------------------------------

NOT_JSON = {
    "invalid utf-8": b'{"a":"\xff"}',
    "overlong utf-8": b'{"a":"\xc0\x80"}',
    "surrogate in utf-8": b'{"a":"\xed\xa0\x80"}',
    "past U+10FFFF": b'{"a":"\xf4\x90\x80\x80"}',
    "truncated utf-8": b'{"a":"\xe2\x82"}',
    "utf-16": '{"a":1}'.encode("utf-16-le"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":Infinity}',
    "-Infinity": b'{"a":-Infinity}',
    "beyond a double": b'{"a":1e999}',
    "below a double": b'{"a":-1e999}',
    "just beyond a double": b'{"a":1.7976931348623159e308}',
    "5000 digits": b'{"a":' + b"9" * 5000 + b"}",
    "lone high surrogate": rb'{"a":"\ud800"}',
    "lone low surrogate": rb'{"a":"\udc00"}',
    "surrogates reversed": rb'{"a":"\udc00\ud800"}',
    "surrogate and letter": rb'{"a":"\ud83dx"}',
    "lone surrogate in a name": rb'{"\ud800":1}',
    "bare NUL": b"\x00",
    "NUL in a string": b'{"a":"\x00"}',
    "NUL after a document": b"{}\x00",
    "tab in a string": b'{"a":"\t"}',
    "escape": rb'{"a":"\x41"}',
    "short escape": rb'{"a":"\u41"}',
    "two documents": b"{} {}",
    "half a document": b'{"a":',
    "trailing comma": b'{"a":1,}',
    "trailing comma in an array": b"[1,]",
    "single quotes": b"{'a':1}",
    "bare name": b"{a:1}",
    "comment": b"{} // x",
    "leading zero": b'{"a":01}',
    "plus": b'{"a":+1}',
    "hex": b'{"a":0x48}',
    "no digit after the point": b'{"a":1.}',
    "no digit before the point": b'{"a":.5}',
    "no exponent": b'{"a":1e}',
    "no-break space": b"\xc2\xa0{}",
    "form feed": b"\x0c{}",
    "arrays without end": b"[" * 19_000,
    "deep arrays": b"[" * 19_000 + b"]" * 19_000,
    "deep objects": b'{"a":' * 19_000 + b"1" + b"}" * 19_000,
    "python": b"True",
    "http": b"GET / HTTP/1.1",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("document", NOT_JSON.values(), ids=NOT_JSON)
@pytest.mark.spec("2.1", "MUST", "HACP MUST use JSON-RPC 2.0 [JSONRPC] over UTF-8 encoded JSON [RFC8259].")
def test_what_is_not_json_is_a_parse_error_and_the_connection_goes_on(document):
    server = ServerProtocol()
    refused, call = server.receive(document + b"\n" + with_id(b"1") + b"\n")
    answer = orjson.loads(refused.data)
    assert answer["id"] is None
    assert answer["error"]["code"] == PARSE
    assert answer["error"]["data"]["reason"]
    assert len(refused.data) < 1000
    assert call.id == 1
    assert not server.closed


@pytest.mark.parametrize("document", [b"", b" ", *NOT_JSON.values()])
def test_load_raises_parse_error_and_nothing_else(document):
    with pytest.raises(ParseError):
        load(document)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'"\\u0000"', "\x00"),
        (b'"\\ud83e\\udd16"', "🤖"),
        (b'"\x7f"', "\x7f"),
        (b'"\\/"', "/"),
        (b"-0.0", 0.0),
        (b"1E5", 1e5),
        (b"1e-999", 0.0),
        (b"1.7976931348623157e308", 1.7976931348623157e308),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", 2.0**64),
        (b"123456789012345678901234567890", 1.2345678901234568e29),
        (b"0." + b"1" * 5000, 1 / 9),
        (b"9" * 300, 1e300),
    ],
)
def test_unusual_but_valid_json_is_read(text, value):
    call = call_of(b'{"jsonrpc":"2.0","id":1,"method":"tool.list","params":{"v":' + text + b"}}")
    assert call.params["v"] == value
    assert type(call.params["v"]) is type(value)


REPEATED = {
    "in the request": rb'{"jsonrpc":"2.0","method":"halt","method":"tool.list","params":{},"id":2}',
    "in params": rb'{"jsonrpc":"2.0","method":"tool.list","params":{"session_id":"a","session_id":"b"},"id":2}',
    "with one value": rb'{"jsonrpc":"2.0","method":"tool.list","params":{"x":1,"x":1},"id":2}',
    "far down": rb'{"jsonrpc":"2.0","method":"tool.list","params":{"x":[[{"y":{"z":0,"y":1, "z" :0}}]]},"id":2}',
    "by an escape": rb'{"jsonrpc":"2.0","method":"tool.list","params":{"xy":1,"x\u0079":1},"id":2}',
    "hidden by an escaped colon": rb'{"jsonrpc":"2.0","method":"tool.list","params":{"x":1,"x":"\u003a\u003A"},"id":2}',
    "behind backslashes": rb'{"jsonrpc":"2.0","method":"tool.list","params":{"x":1,"x":"\\u003a"},"id":2}',
    "with a colon in the name": rb'{"jsonrpc":"2.0","method":"tool.list","params":{":":"::",":":":"},"id":2}',
    "of HCP": rb'{"hcp_version":"1.0","payload":{"task":"a","task":"b"},"id":2}',
}


@pytest.mark.parametrize("document", REPEATED.values(), ids=REPEATED)
def test_a_name_that_is_repeated_is_an_invalid_request(document):
    """RFC 8259 §4: names SHOULD be unique, as software differs in which it reads; RFC 7493 (I-JSON) §2.3: MUST."""
    answer = answer_to(document)
    assert (answer["id"], answer["error"]["code"]) == (2, INVALID)
    assert "two members of one name" in answer["error"]["data"]["reason"]


NAMES = st.text(alphabet='ab:"\\\u00e9', max_size=2)


@given(
    st.recursive(
        st.none() | st.integers(0, 9) | NAMES,
        lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(NAMES, inner), max_size=3).map(tuple),
    ),
    st.booleans(),
)
def test_a_document_is_refused_if_and_only_if_an_object_repeats_a_name(value, escaped):
    def written(part):
        if isinstance(part, tuple):
            return "{" + ",".join(f"{text(name)}:{written(inner)}" for name, inner in part) + "}"
        if isinstance(part, list):
            return "[" + ", ".join(map(written, part)) + "]"
        return text(part) if isinstance(part, str) else json.dumps(part)

    def text(part):
        return '"' + "".join(f"\\u{ord(one):04x}" for one in part) + '"' if escaped else json.dumps(part)

    def repeats(part):
        if isinstance(part, tuple):
            return len({name for name, _ in part}) < len(part) or any(repeats(inner) for _, inner in part)
        return isinstance(part, list) and any(map(repeats, part))

    document = written(value).encode()
    if repeats(value):
        with pytest.raises(InvalidRequest):
            load(document)
    else:
        assert load(document) == json.loads(document)


@pytest.mark.parametrize("beside", [b"", b'"beside":[[],[]],'], ids=["alone", "beside others"])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_nesting_is_read_to_the_limit_and_is_a_parse_error_past_it(opening, closing, beside):
    # The request itself and its params are two levels.
    def request(levels):
        deep = opening * levels + b"1" + closing * levels
        return b'{"jsonrpc":"2.0","id":1,"method":"tool.list","params":{' + beside + b'"v":' + deep + b"}}"

    assert call_of(request(MAX_DEPTH - 2)).id == 1
    answer = answer_to(request(MAX_DEPTH - 1))
    assert answer["id"] is None
    assert answer["error"]["code"] == PARSE
    assert str(MAX_DEPTH) in answer["error"]["data"]["reason"]


@pytest.mark.slow
def test_whatever_was_read_is_written_within_its_memory():
    """The allocator of a process of its own looks behind each buffer; of arrays that are deeper orjson overruns it."""
    code = (
        "import orjson\nfrom hearth.protocol.jsonrpc import MAX_DEPTH, load\n"
        "deep = b'[' * MAX_DEPTH + b']' * MAX_DEPTH\n"
        "for times in (1, 2, 3, 5, 8, 13):\n"
        "    value = [load(deep)] * times\n"
        "    for before in range(4200):\n"
        "        orjson.dumps(['x' * before, value])\n"
    )
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_whatever_was_read_can_be_sent_back_inside_an_error():
    deep = b"[" * (MAX_DEPTH - 2) + b"]" * (MAX_DEPTH - 2)
    call = call_of(b'{"jsonrpc":"2.0","id":1,"method":"tool.list","params":{"v":' + deep + b"}}")
    answer = orjson.loads(dump_error(1, InvalidRequest(data={"got": call.params})))
    assert answer["error"]["data"] == {"got": call.params}


def test_many_brackets_are_not_depth():
    wide = b"[" + b",".join([b"[]"] * 5000) + b"]"
    text = b'"' + b"[{" * 5000 + b'"'
    call = call_of(b'{"jsonrpc":"2.0","id":1,"method":"tool.list","params":{"v":' + wide + b',"t":' + text + b"}}")
    assert len(call.params["v"]) == 5000


# --- too long a line ------------------------------------------------------------------------------------------------


def padded(size, id_=1):
    head = b'{"jsonrpc":"2.0","id":%d,"method":"tool.list","params":{"p":"' % id_
    return head + b"p" * (size - len(head) - 3) + b'"}}'


def test_a_document_of_exactly_the_limit_is_executed():
    document = padded(4096)
    assert len(document) == 4096
    assert call_of(document, max_document_bytes=4096).id == 1
    assert call_of(document + b" \r", max_document_bytes=4096).id == 1


def test_one_byte_more_is_answered_and_ends_the_connection():
    server = ServerProtocol(max_document_bytes=4096)
    refused, close = server.receive(padded(4097) + b"\n")
    answer = orjson.loads(refused.data)
    assert answer["id"] is None
    assert answer["error"]["code"] == INVALID
    assert answer["error"]["data"]["max_document_bytes"] == 4096
    assert "4096" in answer["error"]["data"]["reason"]
    assert isinstance(close, Close)
    assert close.reason
    assert server.closed


def test_the_default_limit_is_one_mebibyte():
    assert call_of(padded(1 << 20)).id == 1
    assert [type(event) for event in receive(padded((1 << 20) + 1))] == [Answer, Close]


def test_a_line_that_never_ends_is_refused_without_waiting_for_its_end():
    server = ServerProtocol(max_document_bytes=1000)
    assert server.receive(b"x" * 1000) == []
    assert [type(event) for event in server.receive(b"x")] == [Answer, Close]


def test_documents_before_a_too_long_one_are_still_answered_and_those_after_it_are_not():
    server = ServerProtocol(max_document_bytes=200)
    stream = with_id(b"1") + b"\n!\n" + b"x" * 201 + b"\n" + with_id(b"2") + b"\n"
    call, parse_error, too_long, close = server.receive(stream)
    assert orjson.loads(parse_error.data)["error"]["code"] == PARSE
    assert orjson.loads(too_long.data)["error"]["code"] == INVALID
    assert isinstance(close, Close)
    assert server.receive(with_id(b"3") + b"\n") == []
    assert server.receive_document(with_id(b"3")) == []
    # What was asked before it is still answered.
    assert orjson.loads(server.result(call, {}))["id"] == 1


# --- carriers that frame by themselves ------------------------------------------------------------------------------


@pytest.mark.spec(
    "2.2",
    "MAY",
    "Alternative framings (Content-Length headers, WebSocket frames) MAY be negotiated by transport binding documents "
    "(see Section 10).",
)
def test_a_carrier_that_frames_by_itself_hands_over_whole_documents():
    server = ServerProtocol()
    (call,) = server.receive_document(b"\r\n" + with_id(b"1") + b"\n")
    assert call.id == 1
    (refused,) = server.receive_document(with_id(b"2") + with_id(b"3"))
    assert orjson.loads(refused.data)["error"]["code"] == PARSE
    (empty,) = server.receive_document(b"")
    assert orjson.loads(empty.data)["error"]["code"] == PARSE


def test_a_frame_past_the_limit_is_refused_as_a_line_is():
    server = ServerProtocol(max_document_bytes=200)
    assert isinstance(server.receive_document(padded(200))[0], Call)
    refused, close = server.receive_document(padded(201, id_=2))
    assert orjson.loads(refused.data)["error"]["data"]["max_document_bytes"] == 200
    assert isinstance(close, Close)
    assert server.closed


# --- writing --------------------------------------------------------------------------------------------------------


def test_a_result_that_is_not_json_is_refused_before_anything_is_answered():
    server = ServerProtocol()
    (call,) = server.receive(with_id(b"1") + b"\n")
    with pytest.raises(TypeError):
        server.result(call, {"data": object()})
    assert server.outstanding == 1
    assert orjson.loads(server.error(call, RpcError()))["error"]["code"] == -32603


@pytest.mark.parametrize(
    "data",
    [
        {"value": 1 << 70},
        {"name": "a\udcffb"},
        {"by_line": {17: 1}},
        {"bytes": b"\x00"},
        {"deep": None},
        {"what": object()},
    ],
    ids=["huge integer", "file name that is not UTF-8", "integer keys", "bytes", "bottomless", "an object"],
)
def test_an_error_can_always_be_sent_whatever_is_in_its_data(data):
    if "deep" in data:
        for _ in range(600):
            data["deep"] = [data["deep"]]
    line = dump_error(7, DeviceError("no", effect="done", data=data))
    answer = orjson.loads(line)
    assert answer["id"] == 7
    assert answer["error"]["code"] == -32009
    assert answer["error"]["message"] == "no"
    # What a caller must know to stay safe is never lost with the rest.
    assert answer["error"]["data"]["effect"] == "done"
    assert line.count(b"\n") == 1


def test_an_error_whose_message_is_not_unicode_is_sent_escaped():
    answer = orjson.loads(dump_error(None, RpcError("no such file: a\udcffb")))
    assert answer["error"]["message"] == r"no such file: a\udcffb"


def test_line_feeds_in_values_stay_inside_the_line():
    for line in (
        dump_result("a\nb", {"text": "1\r\n2\n"}),
        dump_error(1, MethodNotFound("x\ny", data={"method": "\n"})),
        dump_request(1, "a\nb", {"\n": "\n"}),
        dump_request(None, "a\nb", {"\n": "\n"}),
    ):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        orjson.loads(line)


def test_a_request_without_id_is_written_as_a_notification():
    assert dump_request(None, "task.event", {"a": 1}) == b'{"jsonrpc":"2.0","method":"task.event","params":{"a":1}}\n'
    assert dump_request(3, "tool.list", {}) == b'{"jsonrpc":"2.0","id":3,"method":"tool.list","params":{}}\n'


def test_a_batch_of_answers_is_one_array_line():
    assert join_batch([b'{"a":1}\n', b'{"b":2}\n']) == b'[{"a":1},{"b":2}]\n'


def test_results_made_earlier_can_be_sent_as_fragments():
    assert dump_result(1, orjson.Fragment(b'{"tools":[]}')) == b'{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}\n'


# --- small parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "null"), (True, "a boolean"), (0, "an integer"), (0.0, "a number"), ("", "a string"), ([], "an array"),
     ({}, "an object")],
)  # fmt: skip
def test_kinds_bear_the_names_json_gives_them(value, kind):
    assert kind_of(value) == kind


@pytest.mark.parametrize(
    ("value", "id_"),
    [({"id": 1}, 1), ({"id": "a"}, "a"), ({"id": None}, None), ({"id": True}, None), ({"id": 1.0}, None), ({}, None),
     ([1], None), (1, None)],
)  # fmt: skip
def test_an_invalid_request_is_answered_with_its_id_where_it_has_one(value, id_):
    assert reply_id_of(value) == id_


def test_read_request_tells_a_notification_by_its_id():
    assert read_request({"jsonrpc": "2.0", "method": "m"}).id is None
    assert read_request({"jsonrpc": "2.0", "method": "m", "id": 0}).id == 0
