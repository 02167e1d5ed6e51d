"""Whatever comes in, only what the protocol knows comes out (draft §2; design §8)."""

import string

import orjson
import pytest
from hypothesis import HealthCheck, assume, example, given, settings, strategies as st

from hearth.errors import ERROR_TABLE, InvalidParams, RpcError, UnsupportedVersion
from hearth.protocol.client import Broken, ClientProtocol, Notification, Reply, TaskEventNotification
from hearth.protocol.methods import METHODS
from hearth.protocol.server import Answer, Call, Close, ServerProtocol

SOME = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False), st.integers(-3, 3)
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
IDS = st.one_of(st.integers(0, 3), st.sampled_from(["", "a", None, 1.5, True, [], 2**64 - 1]), JSON)
METHOD_NAMES = st.one_of(st.sampled_from([*METHODS, "no.such", ""]), JSON)

MEMBERS = {
    "session_id": "s",
    "client_name": "c",
    "protocol_version": "0.1.0",
    "heartbeat_ms": 100,
    "on_disconnect": "close",
    "task_id": "t",
    "from_seq": 3,
    "subscribe": True,
    "task": {
        "intent": "i",
        "steps": [{"tool": "gpio.set", "args": {"line": 1}}],
        "idempotency_key": "k",
        "constraints": {
            "max_duration_ms": 5,
            "max_risk_level": 1,
            "on_busy": "fail",
            "priority": "low",
            "dry_run": False,
        },
    },
}
VALID = [{"jsonrpc": "2.0", "id": number, "method": method, "params": MEMBERS} for number, method in enumerate(METHODS)]


@st.composite
def swapped(draw, value):
    """`value` with one member somewhere in it replaced by any JSON value, taken out, or joined by another."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 5)) == 0:
        return draw(JSON)
    if isinstance(value, list):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(swapped(value[at])), *value[at + 1 :]]
    name = draw(st.sampled_from(sorted(value)))
    rest = {key: member for key, member in value.items() if key != name}
    match draw(st.sampled_from(["swap", "swap", "drop", "rename", "add"])):
        case "swap":
            return {**value, name: draw(swapped(value[name]))}
        case "drop":
            return rest
        case "rename":
            return {**rest, draw(TEXT): value[name]}
        case _:
            return {**value, draw(TEXT): draw(JSON)}


@st.composite
def mangled(draw, data):
    """`data` with a few bytes flipped, inserted, doubled or cut off."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "insert", "cut", "double", "tail"])):
            case "flip" if at < len(data):
                data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
            case "insert":
                data = (
                    data[:at] + draw(st.one_of(st.binary(min_size=1, max_size=3), st.sampled_from(TOKENS))) + data[at:]
                )
            case "cut":
                data = data[:at] + data[at + draw(st.integers(1, 20)) :]
            case "double":
                data = data[:at] + data[max(0, at - 10) :]
            case _:
                data = data[:at]
    return data


TOKENS = [
    b"\n",
    b"\r\n",
    b"[",
    b"]",
    b"{",
    b"}",
    b'"',
    b",",
    b":",
    b"\\",
    b"\\ud800",
    b"NaN",
    b"1e999",
    b"null",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
]

SHAPED = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.one_of(st.just("2.0"), st.just("2.0"), JSON),
        "id": IDS,
        "method": METHOD_NAMES,
        "params": st.one_of(st.just(MEMBERS), JSON),
    },
)
ONE = st.one_of(JSON, SHAPED, SHAPED, st.sampled_from(VALID), st.sampled_from(VALID).flatmap(swapped))
ANY_JSON = st.one_of(ONE, st.lists(ONE, max_size=6)).map(orjson.dumps)
DOCUMENTS = st.one_of(
    ANY_JSON,
    st.sampled_from(VALID).map(orjson.dumps).flatmap(mangled),
    st.binary(max_size=40),
    st.sampled_from([b"", b" ", b"\r", b"[]", b"[1]", b"1e999", b"[" * 2000, b"x" * 900, b"\xff"]),
)
STREAMS = st.lists(st.tuples(DOCUMENTS, st.sampled_from([b"\n", b"\r\n", b" \n\n"])), max_size=6).map(
    lambda pairs: b"".join([document + end for document, end in pairs])
)
LIMITS = {"max_document_bytes": 800, "max_batch": 4}


def check_line(data):
    """An answer is one JSON document with exactly one LF, at its end; return the response objects in it."""
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    value = orjson.loads(data)
    responses = value if isinstance(value, list) else [value]
    assert responses
    for response in responses:
        assert response["jsonrpc"] == "2.0"
        assert ("result" in response) != ("error" in response)
        assert response["id"] is None or type(response["id"]) in (str, int)
        if "error" in response:
            assert response["error"]["code"] in ERROR_TABLE
            assert isinstance(response["error"]["message"], str)
    return responses


def run(chunks, server=None):
    """Feed a server, check every event, answer every call; returns what happened in a form that can be compared."""
    server = server or ServerProtocol(**LIMITS)
    events = [event for chunk in chunks for event in server.receive(chunk)]
    happened = []
    for index, event in enumerate(events):
        if isinstance(event, Answer):
            assert all("error" in response for response in check_line(event.data))
            happened.append(event.data)
        elif isinstance(event, Close):
            assert event.reason
            assert index == len(events) - 1
            happened.append(event.reason)
        else:
            assert isinstance(event, Call)
            assert event.method in METHODS
            assert type(event.params) is dict
            assert event.id is None or type(event.id) in (str, int)
            happened.append((event.id, event.method, event.params, event.batch is None))
    calls = [event for event in events if isinstance(event, Call)]
    open_ids = [call.id for call in calls if call.id is not None]
    assert len(open_ids) == len(set(open_ids))
    assert server.outstanding >= len(open_ids)
    answered = []
    for number, call in enumerate(calls):
        line = server.result(call, number) if number % 2 else server.error(call, RpcError())
        if line is not None:
            answered += [response["id"] for response in check_line(line)]
            happened.append(line)
    # Each call is answered exactly once; refusals that shared its batch may stand beside it.
    assert [id_ for id_ in open_ids if answered.count(id_) != 1] == []
    assert server.outstanding == 0
    return happened


@pytest.mark.slow
@SOME
@given(st.lists(st.binary(max_size=60), max_size=8))
@example([b"\x00\n\xff\n", b"{}", b"\n[]\n"])
def test_arbitrary_bytes_make_nothing_but_calls_answers_and_a_close(chunks):
    run(chunks)


@pytest.mark.proof
@SOME
@given(STREAMS)
def test_arbitrary_documents_make_nothing_but_calls_answers_and_a_close(stream):
    run([stream])


@pytest.mark.slow
@SOME
@given(STREAMS, st.data())
def test_every_split_of_a_stream_makes_what_the_whole_makes(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = run([stream])
    assert run(chunks) == whole
    assert run([bytes([byte]) for byte in stream]) == whole


@pytest.mark.slow
@SOME
@given(DOCUMENTS.filter(lambda document: b"\n" not in document and document.strip(b" \t\r")))
def test_a_document_means_the_same_on_a_line_and_in_a_frame(document):
    by_line, by_frame = ServerProtocol(**LIMITS), ServerProtocol(**LIMITS)
    stripped = document.strip(b" \t\r")
    lines = by_line.receive(document + b"\n")
    frames = by_frame.receive_document(stripped)
    assert [type(event) for event in lines] == [type(event) for event in frames]
    assert [event.data for event in lines if isinstance(event, Answer)] == [
        event.data for event in frames if isinstance(event, Answer)
    ]


@pytest.mark.slow
@SOME
@given(ANY_JSON)
def test_a_document_that_is_json_is_never_a_parse_error(document):
    for event in ServerProtocol().receive(document + b"\n"):
        if isinstance(event, Answer):
            assert all(response["error"]["code"] != -32700 for response in check_line(event.data))


@pytest.mark.slow
@SOME
@given(st.sampled_from(sorted(METHODS)), st.one_of(swapped(MEMBERS), st.dictionaries(TEXT, JSON, max_size=4)))
def test_any_params_object_is_read_or_refused_by_its_place(method, params):
    assume(isinstance(params, dict))
    refusal = None
    try:
        value = METHODS[method](params)
    except (InvalidParams, UnsupportedVersion) as error:
        refusal = error
    if refusal is None:
        # What is not known plays no part.
        assert type(METHODS[method]({**params, "\x00unknown": [params]})) is type(value)
    elif isinstance(refusal, InvalidParams):
        assert refusal.data["path"].startswith("/")
        assert refusal.data["reason"]
    else:
        assert refusal.data["supported"]


@pytest.mark.slow
@SOME
@given(JSON, JSON)
def test_answers_hold_what_was_put_in_them(result, detail):
    server = ServerProtocol()
    one, two = server.receive(orjson.dumps(VALID[0]) + b"\n" + orjson.dumps(VALID[1]) + b"\n")
    (response,) = check_line(server.result(one, result))
    assert response == {"jsonrpc": "2.0", "id": 0, "result": orjson.loads(orjson.dumps(result))}
    (response,) = check_line(server.error(two, RpcError("why", data={"detail": detail})))
    assert response["error"] == {
        "code": -32603,
        "message": "why",
        "data": {"detail": orjson.loads(orjson.dumps(detail))},
    }


# --- the client's end -----------------------------------------------------------------------------------------------

RESPONSES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": st.one_of(st.integers(1, 5), st.none(), JSON),
        "result": JSON,
        "error": st.one_of(
            st.fixed_dictionaries({"code": st.integers(-32700, -32000), "message": TEXT}, optional={"data": JSON}),
            JSON,
        ),
        "method": st.sampled_from(["task.event", "x.y"]),
        "params": st.one_of(st.just({"task_id": "t", "phase": "start"}), JSON),
    },
)
FROM_SERVER = st.lists(
    st.one_of(
        st.one_of(RESPONSES, st.lists(RESPONSES, max_size=3)).map(orjson.dumps),
        st.binary(max_size=30),
        st.sampled_from([b"", b"[]", b"[" * 2000, b"x" * 900, b"1e999"]),
    ),
    max_size=6,
).map(lambda documents: b"".join([document + b"\n" for document in documents]))


def hear(chunks):
    """Feed a client that has asked five times; check every event and return them in a form that can be compared."""
    client = ClientProtocol(max_document_bytes=800)
    asked = {client.request("tool.list", {})[0] for _ in range(5)}
    events = [event for chunk in chunks for event in client.receive(chunk)]
    replied = [event.id for event in events if isinstance(event, Reply)]
    assert len(set(replied)) == len(replied)
    assert client.outstanding == asked - set(replied)
    assert client.closed == any(isinstance(event, Broken) for event in events)
    happened = []
    for index, event in enumerate(events):
        match event:
            case Reply(id=id_, result=result, error=error):
                happened.append((id_, result, error and error.to_wire()))
            case TaskEventNotification(event=value):
                happened.append(value)
            case Notification(method=method, params=params):
                happened.append((method, params))
            case Broken(error=error):
                assert index == len(events) - 1
                happened.append((type(error), str(error)))
            case _:
                pytest.fail(f"{event!r} is no event of a client")
    return happened


@pytest.mark.slow
@SOME
@given(FROM_SERVER, st.data())
def test_whatever_a_server_sends_a_client_reports_it_and_does_not_raise(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert hear(chunks) == hear([stream])


@pytest.mark.slow
@SOME
@given(st.text(st.sampled_from(string.printable + "é\u2028\x00🤖"), max_size=20), JSON)
def test_every_request_is_one_line_that_a_server_understands(text, value):
    client, server = ClientProtocol(), ServerProtocol()
    id_, data = client.request("tool.list", {text: value})
    assert data.count(b"\n") == 1
    (call,) = server.receive(data)
    assert (call.id, call.method) == (id_, "tool.list")
    assert call.params == orjson.loads(orjson.dumps({text: value}))
