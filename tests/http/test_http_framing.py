"""Where a request ends and how long it may be: the same answer wherever its bytes are cut into segments."""

import h11
import pytest
import trio
from hypothesis import given, settings, strategies as st
from support.http import Raw, hosting, port_of

from hearth.actors.bridges.http.server import FRAMING_EACH, HEADER_BYTES, Framing

BOUND = HEADER_BYTES
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


async def counts(_scope, receive, send):
    """Answer with how long the body was."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    told = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(told))]})
    await send({"type": "http.response.body", "body": told})


@pytest.fixture
async def connect():
    async with hosting(counts) as listener:
        yield lambda: Raw.connect(port_of(listener))


def padded(before, after, length):
    """The two with as much between them as makes `length` bytes."""
    return before + b"y" * (length - len(before) - len(after)) + after


def long_headers(length):
    return padded(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"\r\n\r\n", length)


def many_headers(length):
    lines = b"A: b\r\n" * ((length - 100) // 6)
    return padded(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + lines + b"X: ", b"\r\n\r\n", length)


def long_line(length):
    return padded(b"GET /", b" HTTP/1.1\r\nHost: localhost\r\n\r\n", length)


def trailers(length):
    return CHUNKED + padded(b"0\r\nX: ", b"\r\n\r\n", length)


def extension(length):
    """The rest of its framing, "\\r\\n0\\r\\n\\r\\n", is paid for by its body."""
    return CHUNKED + padded(b"A;x=", b"\r\n", length) + b"0123456789\r\n0\r\n\r\n"


SHAPES = [long_headers, many_headers, long_line, trailers, extension]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)


async def sent(raw, data, size):
    """Send it in pieces, until the other side has heard enough."""
    for start in range(0, len(data), size):
        try:
            await raw.send(data[start : start + size])
        except trio.BrokenResourceError:
            return


@pytest.mark.slow
@shapes
@pytest.mark.parametrize("size", [1 << 20, 1000, 16], ids=["in one segment", "in segments", "bit by bit"])
async def test_the_bound_on_headers_and_framing_is_exact_however_they_arrive(connect, shape, size) -> None:
    async with await connect() as raw:
        await sent(raw, shape(BOUND), size)
        assert (await raw.answer()).status == 200
    async with await connect() as raw:
        await sent(raw, shape(BOUND + 1), size)
        answer = await raw.answer()
        assert (answer.status, answer.headers["connection"]) == (431, "close")
        assert str(BOUND) in answer.detail
        assert await raw.ended() == b""


@shapes
async def test_far_beyond_the_bound_is_refused_in_one_segment_too(connect, shape) -> None:
    async with await connect() as raw:
        await raw.send(shape(60_000))
        assert (await raw.answer()).status == 431


async def test_a_long_head_behind_a_request_in_the_same_segment_is_refused(connect) -> None:
    async with await connect() as raw:
        await raw.send(long_headers(100) + long_headers(BOUND) + long_headers(40_000))
        assert [(await raw.answer()).status for _ in range(3)] == [200, 200, 431]
        assert await raw.ended() == b""


SMUGGLED = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD"])
@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1\r\nHost: localhost\r\nContent-Length: 51\r\nTransfer-Encoding: chunked",
        "HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: Chunked\r\ncontent-length: 0",
        "HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked",
    ],
    ids=["length first", "length last", "HTTP/1.0"],
)
async def test_a_request_whose_length_is_given_in_two_ways_is_refused_and_the_connection_closed(
    connect, method, head
) -> None:
    async with await connect() as raw:
        await raw.send(long_headers(100))
        assert (await raw.answer()).status == 200
        await raw.send(f"{method} / {head}\r\n\r\n".encode() + SMUGGLED)
        answer = await raw.answer(head=method == "HEAD")
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert await raw.ended() == b"", "what was smuggled has no answer"


UPGRADE = "HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "


@pytest.mark.parametrize("size", [1 << 20, 1], ids=["in one segment", "bit by bit"])
@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\n\tevil.example\r\n\r\n",
        "GET / HTTP/1.1\nHost: localhost\nX: a\n \n\n",
        f"{CHUNKED.decode()}1\r\nx\r\n0\r\nX: a\r\n b\r\n\r\n",
        f"GET / {UPGRADE}websocket\r\nContent-Length: 5\r\n\r\nhello",
        f"POST / {UPGRADE}h2c, WebSocket\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["obs-fold", "of the Host", "of nothing", "in a trailer", "a WebSocket with a body", "among others, chunked"],
)
async def test_a_header_continued_on_a_second_line_and_an_upgrade_to_a_websocket_with_a_body_are_refused(
    connect, head, size
) -> None:
    async with await connect() as raw:
        await sent(raw, head.encode(), size)
        answer = await raw.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert "second line" in answer.detail
        assert "WebSocket" in answer.detail
        assert await raw.ended() == b""


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (f"POST / {UPGRADE}h2c\r\nContent-Length: 5\r\n\r\nhello", b"5"),
        (f"GET / {UPGRADE}websocket\r\nContent-Length: 0\r\n\r\n", b"0"),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\nA: b\n ", b"6"),
        (CHUNKED.decode() + "6\r\nA: b\n \r\n1\r\n \r\n0\r\nX: y\r\n\r\n", b"7"),
    ],
    ids=["h2c with a body", "a WebSocket with an empty body", "a fold in a body", "in a chunk"],
)
async def test_other_upgrades_with_a_body_and_bodies_that_look_like_headers_are_served(connect, data, body) -> None:
    async with await connect() as raw:
        for _ in range(2):
            await raw.send(data.encode())
            answer = await raw.answer()
            assert (answer.status, answer.body) == (200, body)


@pytest.mark.proof
async def test_small_chunks_are_no_framing_too_much(connect) -> None:
    async with await connect() as raw:
        await raw.send(CHUNKED + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        answer = await raw.answer()
        assert (answer.status, answer.body) == (200, b"50000")


async def test_chunks_that_are_mostly_extension_are_refused(connect) -> None:
    async with await connect() as raw:
        await sent(raw, CHUNKED + (b"1;" + b"e" * 100 + b"\r\nx\r\n") * 500, 1 << 20)
        assert (await raw.answer()).status == 431


def outcome(segments):
    """What a connection makes of these bytes; each request's answer goes out before the next is read."""
    framing, found = Framing(), []
    for segment in segments:
        data = segment
        while data:
            room = framing.room
            framing.receive_data(data[:room])
            data = data[room:]
            while True:
                try:
                    event = framing.next_event()
                except h11.RemoteProtocolError as error:
                    return [*found, error.error_status_hint]
                if event in (h11.NEED_DATA, h11.PAUSED):
                    break
                if isinstance(event, h11.EndOfMessage):
                    framing.http.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
                    framing.http.send(h11.EndOfMessage())
                    framing.start_next_cycle()
                    found.append(200)
    return found


@st.composite
def requests(draw):
    """Some requests near the bounds, and where their bytes are cut."""
    near = st.sampled_from([-1, 0, 1, 2, 3, 4, 5])
    parts = [draw(st.sampled_from(SHAPES))(BOUND + draw(near)) for _ in range(draw(st.integers(1, 3)))]
    data = b"".join(parts)
    cuts = sorted(draw(st.lists(st.integers(1, len(data) - 1), max_size=8)))
    return data, [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(requests())
def test_where_the_segments_end_changes_nothing(given_):
    whole, segments = given_
    assert outcome(segments) == outcome([whole])


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_byte_by_byte_the_bound_is_the_same(shape):
    for length, expected in ((BOUND, [200]), (BOUND + 1, [431])):
        data = shape(length)
        assert outcome(data[at : at + 1] for at in range(len(data))) == expected
        assert outcome([data]) == expected


def test_a_chunk_of_one_byte_costs_less_than_each_byte_may_add():
    assert len(b"1\r\n\r\n") < FRAMING_EACH
