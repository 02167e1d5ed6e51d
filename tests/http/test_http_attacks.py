"""Hostile and odd requests: what each is answered, and whether the connection lives on."""

from typing import NamedTuple

import h11
import pytest
import trio
from support.http import Raw, hosting, passes, port_of
from trio.testing import wait_all_tasks_blocked

from hearth.actors.bridges.http.connection import GRACE, KEEP_ALIVE
from hearth.actors.bridges.http.server import HEADER_BYTES, Framing
from hearth.policy.principal import from_token


class Attack(NamedTuple):
    """What is sent, and the answers: a status, or the body of a 200, which is what the application was given."""

    sent: bytes
    answers: list[int | bytes]
    stays: bool = False
    """Whether the connection takes another request afterwards."""
    hangs_up: bool = False
    """Whether the client ends its side after what it sends."""


HOST = b"Host: localhost\r\n"
OTHER = b"GET /other HTTP/1.1\r\n" + HOST + b"\r\n"
SEEN, SEEN_OTHER = b"GET / 0", b"GET /other 0"
EMPTY, FIVE = b"POST / 0", b"POST / 5"


def get(more=b"", line=b"GET / HTTP/1.1"):
    return line + b"\r\n" + HOST + more + b"\r\n"


def post(more, body=b""):
    return get(more, b"POST / HTTP/1.1") + body


def chunked(body, more=b""):
    return post(b"Transfer-Encoding: chunked\r\n" + more, body)


CALLED = b"Expect: 100-continue\r\nContent-Length: 5\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: "

ATTACKS = {
    # Too much of it.
    "a long header": Attack(get(b"X: " + b"y" * HEADER_BYTES + b"\r\n"), [431]),
    "a header without end": Attack(get()[:-2] + b"X: " + b"y" * HEADER_BYTES, [431]),
    "a line without end": Attack(b"GET /" + b"y" * HEADER_BYTES, [431]),
    "many headers": Attack(get(b"X: y\r\n" * 4000), [431]),
    "a long trailer": Attack(chunked(b"0\r\nX: " + b"y" * HEADER_BYTES + b"\r\n\r\n"), [431]),
    "chunks that are mostly extension": Attack(chunked((b"1;" + b"e" * 100 + b"\r\nx\r\n") * 500), [431]),
    "a chunk size without end": Attack(chunked(b"5" + b" " * HEADER_BYTES), [431]),
    # Headers.
    "a header without a colon": Attack(get(b"hello\r\n"), [400]),
    "a space before the colon": Attack(get(b"X : y\r\n"), [400]),
    "a header without a name": Attack(get(b": y\r\n"), [400]),
    "NUL in a header": Attack(get(b"X: a\0b\r\n"), [400]),
    "a bare CR in a header": Attack(get(b"X: a\rb\r\n"), [400]),
    "a continued header": Attack(get(b"X: a\r\n b\r\n"), [400]),
    "no Host": Attack(b"GET / HTTP/1.1\r\n\r\n", [400]),
    "two Hosts": Attack(get(HOST), [400]),
    "lines that end in LF": Attack(b"GET / HTTP/1.1\nHost: localhost\n\n", [SEEN], stays=True),
    "an empty line first": Attack(b"\r\n" + get(), [400]),
    # The length of a body, in two ways or in none.
    "a length that is no number": Attack(post(b"Content-Length: x\r\n"), [400]),
    "a negative length": Attack(post(b"Content-Length: -1\r\n"), [400]),
    "a length with a sign": Attack(post(b"Content-Length: +5\r\n", b"hello"), [400]),
    "a length of 25 digits": Attack(post(b"Content-Length: " + b"9" * 25 + b"\r\n", b"hello"), [400]),
    "two lengths": Attack(post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello") + OTHER, [400]),
    "two lengths in one header": Attack(post(b"Content-Length: 5, 6\r\n", b"hello") + OTHER, [400]),
    "the same length twice": Attack(post(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello"), [FIVE], stays=True),
    "a length and chunks": Attack(chunked(b"0\r\n\r\n", b"Content-Length: 5\r\n") + OTHER, [400]),
    "chunks and a length of none": Attack(chunked(b"0\r\n\r\n", b"Content-Length: 0\r\n") + OTHER, [400]),
    "chunks in HTTP/1.0": Attack(get(b"Transfer-Encoding: chunked\r\n", b"POST / HTTP/1.0") + b"0\r\n\r\n", [400]),
    "an unknown coding": Attack(post(b"Transfer-Encoding: gzip\r\n") + OTHER, [501]),
    "an unknown coding before chunks": Attack(post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), [501]),
    "chunks twice": Attack(chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\n") + OTHER, [501]),
    "nearly chunks": Attack(post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n") + OTHER, [501]),
    "identity": Attack(post(b"Transfer-Encoding: identity\r\n") + OTHER, [501]),
    # Chunks.
    "a chunk size that is no number": Attack(chunked(b"xyz\r\nhello\r\n0\r\n\r\n") + OTHER, [400]),
    "a chunk size with a prefix": Attack(chunked(b"0x5\r\nhello\r\n0\r\n\r\n") + OTHER, [400]),
    "a chunk size with a sign": Attack(chunked(b"+5\r\nhello\r\n0\r\n\r\n") + OTHER, [400]),
    "a negative chunk size": Attack(chunked(b"-1\r\nx\r\n0\r\n\r\n") + OTHER, [400]),
    "a chunk size of 21 digits": Attack(chunked(b"f" * 21 + b"\r\nx"), [400]),
    "a chunk longer than its size": Attack(chunked(b"5\r\nhelloXX0\r\n\r\n") + OTHER, [400]),
    "a chunk without its end": Attack(chunked(b"5\r\nhel"), [400], hangs_up=True),
    "a chunk of lines that end in LF": Attack(chunked(b"5\nhello\n0\n\n"), [400], hangs_up=True),
    "trailers": Attack(chunked(b"5\r\nhello\r\n0\r\nX: y\r\n\r\n"), [FIVE], stays=True),
    # More than one request.
    "pipelined": Attack(get() + post(b"Content-Length: 5\r\n", b"hello") + OTHER, [SEEN, FIVE, SEEN_OTHER], stays=True),
    "pipelined after an error": Attack(get(b"bad\r\n") + OTHER, [400]),
    "an error after a request": Attack(get() + b"bad\r\n\r\n" + OTHER, [SEEN, 400]),
    "a long head after a request": Attack(get() + get(b"X: " + b"y" * HEADER_BYTES + b"\r\n") + OTHER, [SEEN, 431]),
    "pipelined after the last": Attack(get(b"Connection: close\r\n") + OTHER, [SEEN]),
    "more than the length": Attack(post(b"Content-Length: 5\r\n", b"hello@@") + OTHER, [FIVE, 400]),
    "an empty line after a body": Attack(post(b"Content-Length: 5\r\n", b"hello\r\n") + OTHER, [FIVE, 400]),
    # Half-closed.
    "nothing, half-closed": Attack(b"", [], hangs_up=True),
    "half-closed in the line": Attack(get()[:10], [400], hangs_up=True),
    "half-closed in the headers": Attack(get()[:25], [400], hangs_up=True),
    "half-closed in the body": Attack(post(b"Content-Length: 5\r\n", b"he"), [400], hangs_up=True),
    "half-closed after a request": Attack(get(), [SEEN], hangs_up=True),
    "half-closed after three": Attack(get() + OTHER + get(), [SEEN, SEEN_OTHER, SEEN], hangs_up=True),
    # Expect.
    "a body that waits to be called": Attack(post(CALLED), [100, 400], hangs_up=True),
    "one that does not wait": Attack(post(CALLED, b"hello"), [FIVE], stays=True),
    "another expectation": Attack(post(b"Expect: coffee\r\nContent-Length: 5\r\n", b"hello"), [FIVE], stays=True),
    # Targets and methods.
    "the absolute form": Attack(get(line=b"GET http://localhost/ HTTP/1.1"), [b"GET http://localhost/ 0"], stays=True),
    "another host in the absolute form": Attack(get(line=b"GET http://x/ HTTP/1.1"), [b"GET http://x/ 0"], stays=True),
    "the asterisk": Attack(get(line=b"OPTIONS * HTTP/1.1"), [b"OPTIONS * 0"], stays=True),
    "a tunnel": Attack(get(line=b"CONNECT localhost:80 HTTP/1.1"), [405], stays=True),
    "dots and escapes": Attack(get(line=b"GET /a/../%2e%2e/%00 HTTP/1.1"), [b"GET /a/../../\0 0"], stays=True),
    "a fragment": Attack(get(line=b"GET /#x HTTP/1.1"), [b"GET /#x 0"], stays=True),
    "a space in the target": Attack(get(line=b"GET / x HTTP/1.1"), [400]),
    "a byte beyond ASCII in the target": Attack(get(line=b"GET /\xff HTTP/1.1"), [400]),
    "no target": Attack(get(line=b"GET HTTP/1.1"), [400]),
    "a method in lower case": Attack(get(line=b"get / HTTP/1.1"), [b"get / 0"], stays=True),
    "an unknown method": Attack(get(line=b"FROB / HTTP/1.1"), [b"FROB / 0"], stays=True),
    "a method that is no token": Attack(get(line=b"G@T / HTTP/1.1"), [400]),
    # Versions and other protocols.
    "HTTP/1.0": Attack(get(line=b"GET / HTTP/1.0"), [SEEN]),
    "HTTP/1.0, pipelined": Attack(get(line=b"GET / HTTP/1.0") + OTHER, [SEEN]),
    "HTTP/1.0, kept alive": Attack(get(b"Connection: keep-alive\r\n", b"GET / HTTP/1.0") + OTHER, [SEEN]),
    "HTTP/0.9": Attack(b"GET /\r\n\r\n", [400]),
    "a version in lower case": Attack(get(line=b"GET / http/1.1"), [400]),
    "HTTP/2's preface": Attack(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [b"PRI * 0", 400]),
    "TLS": Attack(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", [400]),
    "an upgrade to HTTP/2": Attack(get(UPGRADE + b"h2c\r\n") + OTHER, [SEEN, SEEN_OTHER], stays=True),
    "an upgrade to a WebSocket": Attack(get(UPGRADE + b"websocket\r\n"), [SEEN], stays=True),
    "one with a body": Attack(get(UPGRADE + b"websocket\r\nContent-Length: 5\r\n") + b"hello", [400]),
}  # fmt: skip


async def tells(scope, receive, send):
    """Answer with what it was given; 405 for a tunnel."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    told = f"{scope['method']} {scope['path']} {len(body)}".encode()
    headers = [(b"content-length", b"%d" % len(told))]
    await send(
        {"type": "http.response.start", "status": 405 if scope["method"] == "CONNECT" else 200, "headers": headers}
    )
    await send({"type": "http.response.body", "body": told})


@pytest.fixture
async def connect():
    async with hosting(tells) as listener:
        yield lambda: Raw.connect(port_of(listener))


@pytest.mark.parametrize("size", [1 << 20, 7], ids=["in one segment", "in pieces"])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_each_attack_has_its_answer_and_leaves_no_other_request_behind(connect, attack, size, caplog) -> None:
    async with await connect() as raw:
        for start in range(0, len(attack.sent), size):
            await raw.send(attack.sent[start : start + size])
        if attack.hangs_up and attack.answers[:1] != [100]:
            await raw.stream.send_eof()
        for expected in attack.answers:
            if expected == 100:
                assert (await raw.head()).status == 100
                await raw.stream.send_eof()
                continue
            answer = await raw.answer()
            assert (answer.body if isinstance(expected, bytes) else answer.status) == expected
            if expected in (400, 431, 501):
                assert answer.headers["connection"] == "close"
                assert answer.detail
        if attack.stays:
            assert (await raw.ask("GET", "/other")).body == SEEN_OTHER
        else:
            assert await raw.ended() == b""
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# --- disconnects ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [b"", OTHER, OTHER[:10]], ids=["alone", "a request behind it", "half a request behind it"]
)
async def test_a_stream_ends_when_its_reader_leaves_in_the_middle(more) -> None:
    heard, served = [], []

    async def stream(scope, receive, send):
        served.append(scope["path"])
        assert (await receive())["type"] == "http.request"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        heard.append((await receive())["type"])

    async with hosting(stream) as listener, await Raw.connect(port_of(listener)) as raw:
        await raw.send(get() + more)
        assert (await raw.head()).status == 200
        assert await raw.chunk() == b"data: 1\n\n"
        await raw.aclose()
        await passes(lambda: heard)
    assert heard == ["http.disconnect"]
    assert served == ["/"]


async def test_a_body_is_taken_no_faster_than_the_application_takes_it() -> None:
    """What it does not read stays with the kernel: the sender stops, and nothing grows here."""
    begun, sizes = trio.Event(), []

    async def slow(_scope, receive, send):
        await begun.wait()
        more = True
        while more:
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    size = 30_000_000
    async with hosting(slow) as listener, await Raw.connect(port_of(listener)) as raw, trio.open_nursery() as nursery:
        await raw.send(post(b"Content-Length: %d\r\n" % size))
        nursery.start_soon(raw.stream.send_all, bytes(size))
        await wait_all_tasks_blocked()
        assert nursery.child_tasks, "the kernel does not take all of it"
        begun.set()
        assert (await raw.answer()).status == 204
    assert sum(sizes) == size
    assert max(sizes) <= HEADER_BYTES


async def test_a_refused_body_is_not_called_for() -> None:
    async def refuses(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async with hosting(refuses) as listener, await Raw.connect(port_of(listener)) as raw:
        await raw.send(post(CALLED))
        assert (await raw.head()).status == 413
        assert await raw.ended() == b""


async def test_a_body_that_comes_before_a_last_answer_is_not_parsed(monkeypatch) -> None:
    """Two thousand chunks of a byte take forty milliseconds of the event loop; peers that are refused would get it."""
    events, parsed = [], Framing.next_event
    monkeypatch.setattr(Framing, "next_event", lambda framing: events.append(parsed(framing)) or events[-1])

    async def refuses(_scope, _receive, send):
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body"})

    async with hosting(refuses) as listener, await Raw.connect(port_of(listener)) as raw:
        await raw.send(chunked(b"1\r\nx\r\n" * 2000))
        assert (await raw.answer()).status == 401
        assert await raw.ended() == b""
    assert not [event for event in events if isinstance(event, h11.Data)]


async def test_an_application_that_answers_against_the_rules_harms_only_its_own_connection(caplog) -> None:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}
    wrong = {
        "/twice": [start, start, {"type": "http.response.body", "body": b"four"}],
        "/short": [start, {"type": "http.response.body", "body": b"two"}],
        "/long": [start, {"type": "http.response.body", "body": b"three"}],
        "/split": [{**start, "headers": [(b"x", b"a\r\nset-cookie: b")]}],
        "/headless": [{"type": "http.response.body", "body": b"four"}],
        "/unknown": [{"type": "http.response.debug"}],
    }

    async def breaks(scope, _receive, send):
        for message in wrong[scope["path"]]:
            await send(message)

    async with hosting(breaks) as listener:
        for path in wrong:
            async with await Raw.connect(port_of(listener)) as raw:
                await raw.send(raw.request("GET", path))
                answer = await raw.head()
                assert answer is None or (answer.status, answer.headers["connection"]) == (500, "close")
                if answer is not None:
                    await raw.ended()
                assert b"set-cookie" not in raw.rest
    assert len([record for record in caplog.records if "crashed" in record.message]) == len(wrong)


async def test_a_half_sent_head_behind_an_answered_request_has_the_time_of_a_head() -> None:
    """Not that of a connection which is idle: its first bytes have come."""

    async def known(scope, receive, send):
        assert scope["state"]["connection"].let_in(from_token("hearth_known")) is None
        await tells(scope, receive, send)

    async with hosting(known) as listener, await Raw.connect(port_of(listener)) as raw:
        await raw.send(get() + OTHER[:10])
        assert (await raw.answer()).body == SEEN
        (connection,) = listener._connections
        await passes(lambda: connection.idle)
        assert connection.scope.deadline - trio.current_time() <= 30 < KEEP_ALIVE


async def test_an_unknown_peer_that_reads_drop_by_drop_has_no_longer_than_for_its_handshake() -> None:
    """A send is shielded from its request, and each byte that is read gives it another thirty seconds."""

    async def long(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": bytes(1_000_000), "more_body": True})

    async with hosting(long, handshake_timeout=0.3) as listener:
        raw = await Raw.connect(port_of(listener), receive_buffer=4096)
        await raw.send(get())
        await passes(lambda: listener._connections)
        with trio.fail_after(20):
            await passes(lambda: not listener._connections)
        await raw.aclose()


async def test_a_peer_that_ends_its_side_before_it_is_let_in_has_the_time_of_one_that_has_gone() -> None:
    begun = trio.Event()

    async def known(scope, receive, _send):
        connection = scope["state"]["connection"]
        while (await receive())["type"] != "http.disconnect":
            pass
        assert connection.let_in(from_token("hearth_known")) is None
        begun.set()
        await trio.sleep_forever()

    async with hosting(known) as listener, await Raw.connect(port_of(listener)) as raw:
        await raw.send(get())
        await raw.stream.send_eof()
        await begun.wait()
        (connection,) = listener._connections
        assert connection.scope.deadline - trio.current_time() <= GRACE
        connection.cut()
