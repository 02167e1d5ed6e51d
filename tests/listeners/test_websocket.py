"""WebSocket: who may come in and what each is told, one document per message, silence, and an end in good order."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import select
import socket
import struct

import h11
import pytest
import trio
import trio.testing
from support.raw_websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    close,
    descriptors,
    frame,
    mask,
    request,
    served,
)
from support.waiting import passes, until
from wsproto.handshake import H11Handshake

import hearth
from hearth.actors.connection import Connection
from hearth.actors.listeners.tls import Certificates
from hearth.actors.listeners.websocket_stream import (
    CLOSING_LIMIT,
    CONTROL_COST,
    FRAME_COST,
    HANDSHAKE_BYTES,
    REFILL,
    RateMeter,
)
from hearth.actors.transport import PeerClosed, PeerGone, Unreadable
from hearth.config.model import ApprovalConfig, AuditConfig, Config, PolicyConfig
from hearth.errors import ConfigError
from hearth.policy.principal import Tokens, from_token

ALICE, BOB = "hearth_alice", "hearth_bob"
TOKENS = Tokens(from_token(token).token_sha256 for token in (ALICE, BOB))
UNKNOWN = "hearth_nobody-was-given-this"
PAGE = "http://127.0.0.1:8000"


class Inside:
    """What happens to those who are let in: each message is answered with itself, unless a test serves otherwise."""

    def __init__(self):
        self.principals = []
        self.carriers = []
        self.ended = []
        self.done = trio.Event()
        self.reading = True

    async def __call__(self, carrier, principal):
        self.principals.append(principal)
        self.carriers.append(carrier)
        try:
            if not self.reading:
                await self.done.wait()
            while (document := await self._receive(carrier)) is not None:
                await carrier.send([document + b"\n"])
            self.ended.append("closed")
        except PeerGone as error:
            self.ended.append(str(error))
        finally:
            with trio.CancelScope(shield=True):
                await carrier.aclose()

    async def _receive(self, carrier):
        try:
            return await carrier.receive()
        except Unreadable as error:
            return json.dumps({"unreadable": str(error)}).encode()


@pytest.fixture
def inside():
    return Inside()


@pytest.fixture
async def place(inside):
    """A listener with two tokens and one page that may connect."""
    with trio.fail_after(60):
        async with served(inside, tokens=TOKENS, origins=frozenset([PAGE]), handshake_timeout=60) as opened:
            yield opened


def fill(connected):
    """Fill what the kernel holds on both sides, past the carrier, so that nothing is under way and nothing fits."""
    while select.select([], [connected], [], 0.05)[1]:
        with contextlib.suppress(BlockingIOError):
            connected.send(b"x" * (1 << 20))
    # To the brim: what is too full to be told as writable may still take a few bytes.
    with contextlib.suppress(BlockingIOError):
        while True:
            connected.send(b"x")


# --- documents ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536])
async def test_a_text_message_is_a_document_both_ways_whatever_its_length(inside, size) -> None:
    async with served(inside, max_document_bytes=1 << 17) as place, await place.open() as peer:
        await peer.text("x" * size)
        assert await peer.message() == "x" * size


async def test_an_open_connection_keeps_nothing_of_the_http_request_that_opened_it(place) -> None:
    def kept():
        gc.collect()
        return sum(isinstance(found, (h11.Connection, H11Handshake)) for found in gc.get_objects())

    before = kept()
    async with await place.open() as peer:
        await peer.text("x")
        assert await peer.message() == "x"
        assert kept() == before


async def test_a_message_in_fragments_with_a_ping_between_is_one_document(place) -> None:
    async with await place.open() as peer:
        half = "née".encode()[:2]
        await peer.send(frame(TEXT, half, fin=False), frame(PING, b"?"), frame(0, b"\xa9e"))
        assert await peer.receive() == (PONG, b"?")
        assert await peer.message() == "née"


async def test_documents_that_are_due_together_are_messages_of_their_own_in_one_piece(place, inside) -> None:
    async with await place.open() as peer:
        await until(lambda: inside.carriers)
        await inside.carriers[0].send([b"{}\n", b"[1]\n", b"x" * 70_000 + b"\n"])
        # What was written with one call is there at once.
        assert peer.socket._sock.recv(1 << 20, socket.MSG_PEEK).startswith(b"\x81\x02{}\x81\x03[1]\x81\x7f")
        assert [await peer.message() for _ in range(3)] == ["{}", "[1]", "x" * 70_000]


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 11, 4096])
async def test_frames_may_come_in_any_pieces(place, inside, piece) -> None:
    """Whatever counts them on the way must not lose count, or an honest peer would be cut."""
    lengths = [0, 1, 125, 126, 300, 1000]
    sent = b"".join(frame(PONG) + frame(TEXT, b"x" * length) for length in lengths)
    async with await place.open() as peer:
        for start in range(0, len(sent), piece):
            await peer.send(sent[start : start + piece])
            await trio.testing.wait_all_tasks_blocked()
        assert [len(await peer.message()) for _ in lengths] == lengths
        meter = inside.carriers[0]._wire.meter
        assert (meter.spent, meter._ahead, meter._split) == (0, 0, b"")


async def test_a_message_in_many_small_fragments_is_within_what_a_peer_may_send(inside) -> None:
    async with served(inside, max_document_bytes=1 << 16) as place, await place.open() as peer:
        fragments = [frame(CONTINUATION, b"x" * 100, fin=False)] * 600
        await peer.send(frame(TEXT, b"", fin=False), *fragments, frame(CONTINUATION))
        assert await peer.message() == "x" * 60_000


async def test_a_binary_message_is_unreadable_and_the_next_one_is_served(place) -> None:
    async with await place.open() as peer:
        await peer.send(frame(BINARY, b"{}"))
        assert json.loads(await peer.message()) == {"unreadable": "a binary message; send text"}
        await peer.text("{}")
        assert await peer.message() == "{}"


@pytest.mark.slow
async def test_a_pong_waits_until_a_message_that_is_on_its_way_is_whole(place, inside) -> None:
    async with await place.open(receive_buffer=4096) as peer:
        await until(lambda: inside.carriers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inside.carriers[0].send, [b"x" * (8 << 20) + b"\n"])
            await trio.testing.wait_all_tasks_blocked()
            await peer.send(frame(PING, b"?"))
            await trio.testing.wait_all_tasks_blocked()
            assert len(await peer.message()) == 8 << 20
            assert await peer.receive() == (PONG, b"?")


# --- who may come in ------------------------------------------------------------------------------------------------


async def refused(place, *headers, **how):
    """Ask, and be refused; returns the answer."""
    async with await place.connect() as peer:
        answer = await peer.handshake(*headers, **how)
        assert await peer.receive() is None
        assert not peer.reset
    await until(lambda: place.refused)
    assert answer.headers["content-length"] == "0"
    assert answer.headers["connection"] == "close"
    return answer


async def test_a_local_program_without_an_origin_is_the_user_that_the_kernel_names(place, inside) -> None:
    async with await place.open():
        await until(lambda: inside.principals)
    assert [who.key for who in inside.principals] == [f"uid:{os.geteuid()}"]


@pytest.mark.parametrize(
    "headers",
    [
        [f"Authorization: Bearer {ALICE}"],
        [f"authorization: bearer  {ALICE}"],
        [f"Sec-WebSocket-Protocol: hacp.v0, bearer.{ALICE}"],
        [f"Sec-WebSocket-Protocol: bearer.{ALICE}", "Sec-WebSocket-Protocol: hacp.v0"],
        [f"Authorization: Bearer {ALICE}", f"Sec-WebSocket-Protocol: hacp.v0, bearer.{ALICE}"],
        [f"Authorization: Bearer {ALICE}", f"Origin: {PAGE}", "X-Forwarded-For: 203.0.113.7"],
    ],
)
async def test_a_bearer_of_a_token_is_its_principal(place, inside, headers) -> None:
    async with await place.open(*headers) as peer:
        await peer.text("{}")
        assert await peer.message() == "{}"
    assert [who.key for who in inside.principals] == [from_token(ALICE).key]


async def test_the_subprotocol_is_answered_and_a_token_is_never_echoed(place) -> None:
    async with await place.connect() as peer:
        answer = await peer.handshake(f"Sec-WebSocket-Protocol: bearer.{ALICE}, hacp.v0, other")
        assert answer.status == 101
        assert answer.headers["sec-websocket-protocol"] == "hacp.v0"
        assert ALICE not in str(answer)


async def test_who_offers_no_subprotocol_is_answered_with_none(place) -> None:
    async with await place.connect() as peer:
        answer = await peer.handshake()
        assert "sec-websocket-protocol" not in answer.headers
        assert "sec-websocket-extensions" not in answer.headers


async def test_compression_is_not_agreed_to(place) -> None:
    async with await place.connect() as peer:
        answer = await peer.handshake("Sec-WebSocket-Extensions: permessage-deflate")
        assert "sec-websocket-extensions" not in answer.headers


@pytest.mark.parametrize("offer", ["other", f"bearer.{ALICE}", "HACP.v0", ""])
async def test_other_subprotocols_alone_are_refused(place, inside, offer) -> None:
    assert (await refused(place, f"Sec-WebSocket-Protocol: {offer}")).status == 400
    assert place.refused == ["it offers subprotocols, and hacp.v0 is not among them"]
    assert not inside.principals


@pytest.mark.parametrize("path", ["/other", "/?token=" + ALICE, "//", "/./"])
async def test_there_is_one_path_only_and_others_are_not_repeated(place, path) -> None:
    answer = await refused(place, path=path)
    assert answer.status == 404
    assert place.refused == ["it asked for a path other than /"]


async def test_a_page_that_is_allowed_may_connect(place, inside) -> None:
    async with await place.open(f"Origin: {PAGE}"):
        await until(lambda: inside.principals)


@pytest.mark.parametrize(
    "origins",
    [
        ["https://evil.example"],
        [PAGE + "0"],
        [PAGE + ".evil.example"],
        [PAGE.replace("http", "https")],
        ["null"],
        [""],
        [PAGE, "https://evil.example"],
        [PAGE, PAGE],
        ["http://evil.example/ " + PAGE],
        ["\xff" * 500],
    ],
)
async def test_any_other_origin_is_refused_whatever_else_it_offers(place, inside, origins) -> None:
    lines = [f"Origin: {origin}" for origin in origins]
    answer = await refused(place, *lines, f"Authorization: Bearer {ALICE}")
    assert answer.status == 403
    assert "www-authenticate" not in answer.headers
    (reason,) = place.refused
    assert "[websocket] origins" in reason
    assert len(reason) < 200
    assert not inside.principals


async def test_a_page_of_another_site_that_sends_no_origin_is_refused(place, inside) -> None:
    cross = "Sec-Fetch-Site: cross-site"
    assert (await refused(place, cross, f"Authorization: Bearer {ALICE}")).status == 403
    assert place.refused == ["it comes from a page of another site (Sec-Fetch-Site) and has no Origin"]
    assert not inside.principals
    async with await place.open(f"Origin: {PAGE}", cross):
        await until(lambda: inside.principals)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["X: a", " b"], "what it sent is no WebSocket request"),
        (["X: a", "\tb"], "what it sent is no WebSocket request"),
        (["Content-Length: 2"], "its request has a body"),
        (["Transfer-Encoding: chunked"], "its request has a body"),
    ],
)
async def test_a_header_on_two_lines_and_a_body_are_refused(place, inside, lines, reason) -> None:
    assert (await refused(place, *lines, f"Authorization: Bearer {ALICE}")).status == 400
    assert place.refused == [reason]
    assert not inside.principals


async def test_a_frame_that_comes_with_the_request_is_no_header(place, inside) -> None:
    async with await place.connect() as peer:
        await peer.send(request(f"Authorization: Bearer {ALICE}", "Content-Length: 0") + frame(TEXT, b'{"a":\n 1}'))
        assert (await peer.answer()).status == 101
        await until(lambda: inside.principals)


async def test_an_origin_that_is_not_allowed_comes_before_the_subprotocol_and_after_the_path(place) -> None:
    evil = "Origin: https://evil.example"
    assert (await refused(place, evil, "Sec-WebSocket-Protocol: other")).status == 403
    assert (await refused(place, evil, path="/other")).status == 404


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        ([f"Authorization: Bearer {UNKNOWN}"], 401, "its bearer token is unknown"),
        ([f"Sec-WebSocket-Protocol: hacp.v0, bearer.{UNKNOWN}"], 401, "its bearer token is unknown"),
        (["Sec-WebSocket-Protocol: hacp.v0, bearer."], 401, "its bearer token is unknown"),
        (["Authorization: Bearer"], 401, "its bearer token is unknown"),
        (["Authorization: Bearer \xff\xfe"], 401, "its bearer token is unknown"),
        ([f"Authorization: Bearer {ALICE[:-1]}"], 401, "its bearer token is unknown"),
        ([f"Authorization: Basic {ALICE}"], 401, "its Authorization is not of the Bearer scheme"),
        ([f"Authorization: Bearer {ALICE}", f"Authorization: Bearer {BOB}"], 400, "it offers two different tokens"),
        (
            [f"Authorization: Bearer {ALICE}", f"Sec-WebSocket-Protocol: hacp.v0, bearer.{UNKNOWN}"],
            400,
            "it offers two different tokens",
        ),
        (["X-Forwarded-For: 203.0.113.7"], 401, "it comes through a proxy and offers no bearer token"),
        (["Forwarded: for=203.0.113.7"], 401, "it comes through a proxy and offers no bearer token"),
    ],
)
async def test_who_cannot_prove_who_it_is_learns_a_status_only(place, inside, caplog, headers, status, reason) -> None:
    caplog.set_level(logging.DEBUG)
    answer = await refused(place, *headers)
    assert answer.status == status
    assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    assert place.refused == [reason]
    assert not inside.principals
    assert ALICE not in caplog.text
    assert UNKNOWN not in caplog.text


async def test_behind_a_proxy_no_peer_is_a_local_user_whatever_the_headers_say(inside) -> None:
    async with served(inside, tokens=TOKENS, behind_proxy=True) as place:
        assert (await refused(place)).status == 401
        assert place.refused == ["it comes through a proxy and offers no bearer token"]
        async with await place.open(f"Authorization: Bearer {ALICE}"):
            await until(lambda: inside.principals)
    assert [principal.kind for principal in inside.principals] == ["token"]


async def test_a_local_peer_whom_the_kernel_does_not_name_is_refused(place) -> None:
    async with await place.connect() as peer:
        # In one go, so that it has finished sending before anybody looks.
        peer.socket._sock.send(request())
        peer.socket._sock.shutdown(socket.SHUT_WR)
        answer = await peer.answer()
    assert answer.status == 401
    await until(lambda: place.refused)
    assert place.refused[0].startswith("it offers no bearer token, and ")


async def test_a_token_appears_in_no_log_even_where_headers_cannot_be_read(place, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    async with await place.connect() as peer:
        answer = await peer.handshake(f"Sec-WebSocket-Protocol: hacp.v0, bearer.{ALICE}\xff")
        assert answer.status == 400
        assert await peer.receive() is None
    await until(lambda: place.refused)
    assert place.refused == ["what it sent is no WebSocket request"]
    assert ALICE not in caplog.text


# --- what is no handshake -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n{}", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (request(upgrade=None), 400),
        (request(sec_websocket_key=None), 400),
        (request(sec_websocket_version=None), 400),
        (request(sec_websocket_version="12"), 426),
        (request(host=None), 400),
        (request(host="\xff"), 400),
        (request("Sec-WebSocket-Protocol: \xff"), 400),
        (request("X: " + "x" * (64 << 10)), 400),
    ],
)
async def test_what_is_no_websocket_request_gets_an_http_answer(place, inside, sent, status) -> None:
    async with await place.connect() as peer:
        await peer.send(sent)
        answer = await peer.answer()
        assert answer is not None
        assert answer.status == status
        assert await peer.receive() is None
        assert not peer.reset
    await until(lambda: place.refused)
    assert place.refused == ["what it sent is no WebSocket request"]
    assert not inside.principals


@pytest.mark.parametrize("size", [1 << 20, 1000], ids=["in one segment", "in segments"])
@pytest.mark.parametrize(("beyond", "status"), [(0, 101), (1, 400), (1000, 400), (40_000, 400)])
async def test_the_bound_on_a_handshakes_headers_is_exact_however_they_arrive(place, size, beyond, status) -> None:
    bare = request(f"Sec-WebSocket-Protocol: hacp.v0, bearer.{ALICE}", "X: ")
    sent = bare.replace(b"X: ", b"X: " + b"x" * (HANDSHAKE_BYTES + beyond - len(bare)))
    async with await place.connect() as peer:
        with contextlib.suppress(trio.BrokenResourceError):
            for start in range(0, len(sent), size):
                await peer.send(sent[start : start + size])
        assert (await peer.answer()).status == status


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX: "])
async def test_a_peer_that_hangs_up_before_it_has_asked_is_not_reported_and_not_waited_for(place, sent) -> None:
    before = descriptors()
    async with await place.connect() as peer:
        await peer.send(sent)
    await passes(lambda: descriptors() <= before)
    assert place.refused == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [request()[:-2], b"GET /", b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{}}\n'],
)
async def test_a_handshake_has_a_deadline(inside, sent) -> None:
    async with served(inside, handshake_timeout=1) as place, await place.connect() as peer:
        await peer.send(sent)
        answer = await peer.answer()
        assert answer is not None
        assert answer.status == 400
        assert await peer.receive() is None
        await peer.aclose()
        await until(lambda: place.refused)
        assert place.refused == ["timed out: no WebSocket handshake within 1 s"]


async def test_who_leaves_during_the_answer_does_no_harm(place, inside) -> None:
    for _ in range(20):
        async with await place.connect() as peer:
            peer.socket._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await peer.send(request("Authorization: Bearer " + ALICE))
    async with await place.open() as peer:
        await peer.text("{}")
        assert await peer.message() == "{}"


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificates(papers):
    return Certificates("websocket", papers.server_cert, papers.server_key, papers.ca, client="optional")


@pytest.fixture
async def secure(inside, certificates):
    with trio.fail_after(60):
        async with served(inside, tokens=TOKENS, certificates=certificates, handshake_timeout=60) as opened:
            yield opened


async def test_over_tls_the_certificate_says_who_is_calling_unless_there_is_a_token(secure, inside, papers) -> None:
    context, anonymous = papers.client_context(papers.clients["arm-7"]), papers.client_context(anonymous=True)
    for tls, headers in ((context, []), (context, [f"Authorization: Bearer {ALICE}"]), (anonymous, [])):
        async with await secure.open(*headers, tls=tls) as peer:
            await peer.text("{}")
            assert await peer.message() == "{}"
    assert [who.key.partition(":")[0] for who in inside.principals] == ["cert", "token", "uid"]
    assert secure.listener.address.startswith("wss://")


async def test_an_unknown_token_is_refused_even_with_a_certificate(secure, inside, papers) -> None:
    async with await secure.connect(tls=papers.client_context(papers.clients["arm-7"])) as peer:
        answer = await peer.handshake(f"Authorization: Bearer {UNKNOWN}")
        assert answer.status == 401
    assert not inside.principals


async def test_a_certificate_without_a_name_is_refused_but_not_the_token_beside_it(secure, inside, papers) -> None:
    from support.pki import certify, name

    pair = papers.write("an-authority", *certify(name("sub CA"), papers.authority, ca=True, signs=True))
    context = papers.client_context(pair)
    async with await secure.open(f"Authorization: Bearer {ALICE}", tls=context):
        await until(lambda: inside.principals)
    async with await secure.connect(tls=context) as peer:
        answer = await peer.handshake()
        assert answer.status == 401
    await until(lambda: secure.refused)
    assert "wrong purpose" in secure.refused[0]


async def test_what_tls_refuses_never_asks_for_anything(secure, papers) -> None:
    async with await secure.connect() as peer:
        await peer.send(request())
        while await peer._more():
            pass
    await until(lambda: secure.refused)


@pytest.mark.proof
async def test_the_deadline_is_for_tls_and_http_together(inside, certificates, papers) -> None:
    async with served(inside, certificates=certificates, handshake_timeout=2) as place:
        async with await place.connect(tls=papers.client_context(anonymous=True)) as peer:
            assert await peer.receive() is None
        await until(lambda: place.refused)
        assert place.refused == ["timed out: no WebSocket handshake within 2 s"]


async def test_over_tls_the_end_is_in_good_order_too(secure, inside, papers) -> None:
    async with await secure.open(tls=papers.client_context(anonymous=True)) as peer:
        await until(lambda: inside.carriers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inside.carriers[0].aclose)
            assert await peer.receive() == (CLOSE, struct.pack("!H", 1001))
            await peer.send(close(1001))
            # With TLS's own farewell, or this would raise.
            assert await peer.stream.receive_some() == b""
            await peer.aclose()


async def test_reload_reads_the_certificates_again_and_without_tls_there_are_none(secure, place, papers) -> None:
    place.listener.reload()
    secure.listener.reload()
    saved = papers.server_cert.read_bytes()
    papers.server_cert.write_text("nothing")
    try:
        with pytest.raises(ConfigError, match="websocket"):
            secure.listener.reload()
    finally:
        papers.server_cert.write_bytes(saved)
    async with await secure.open(tls=papers.client_context(anonymous=True)):
        pass


# --- silence --------------------------------------------------------------------------------------------------------


async def test_a_silent_peer_is_pinged_and_stays_while_it_answers(inside, autojump_clock) -> None:
    async with served(inside, ping_interval=20, ping_timeout=10) as place, await place.open() as peer:
        for turn in range(1, 50):
            assert await peer.receive() == (PING, b"")
            assert 20 * turn <= trio.current_time() <= 24 * turn
            await peer.send(frame(PONG))
        await peer.text("{}")
        assert await peer.message() == "{}"


async def test_a_silent_peer_that_answers_no_ping_is_cut(inside, autojump_clock, caplog) -> None:
    caplog.set_level(logging.INFO, "hearth")
    async with served(inside, ping_interval=20, ping_timeout=10) as place, await place.open() as peer:
        assert await peer.receive() == (PING, b"")
        assert await peer.receive() is None
        assert 30 <= trio.current_time() <= 35
        await until(lambda: inside.ended)
    assert inside.ended == ["the WebSocket was lost"]
    assert "127.0.0.1: connection cut: it was silent for 20 s, and for 10 s after a ping" in caplog.text


@pytest.mark.slow
async def test_one_who_pings_each_second_may_do_so_for_ever(inside, autojump_clock) -> None:
    async with served(inside) as place, await place.open() as peer:
        for _ in range(1000):
            await trio.sleep(1)
            await peer.send(frame(PING, b"are you there?"))
            assert await peer.receive() == (PONG, b"are you there?")
        await peer.text("{}")
        assert await peer.message() == "{}"


async def test_a_peer_that_talks_is_not_pinged(inside, autojump_clock) -> None:
    async with served(inside, ping_interval=20, ping_timeout=10) as place, await place.open() as peer:
        for _ in range(100):
            await trio.sleep(15)
            await peer.text("{}")
            assert await peer.message() == "{}"


async def test_a_peer_is_not_silent_because_it_is_us_who_do_not_read(inside, autojump_clock) -> None:
    inside.reading = False
    async with served(inside, ping_interval=20, ping_timeout=10) as place, await place.open() as peer:
        for _ in range(4):
            await peer.text("{}")
        await trio.sleep(1000)
        inside.done.set()
        assert [await peer.message() for _ in range(4)] == ["{}"] * 4


@pytest.mark.proof
async def test_a_ping_that_cannot_be_sent_ends_the_connection(inside, autojump_clock, caplog) -> None:
    caplog.set_level(logging.INFO, "hearth")
    # The kernel counts the send timeout in real time, and filling the socket takes some.
    options = {"ping_interval": 20, "ping_timeout": 100, "send_timeout": 60}
    async with served(inside, **options) as place, await place.open(receive_buffer=4096):
        await until(lambda: inside.carriers)
        fill(inside.carriers[0]._wire._transport.socket)
        await passes(lambda: inside.ended)
        assert 80 <= trio.current_time() <= 85
    assert "it was silent, and a ping could not be sent: the peer has read nothing for 60 s" in caplog.text


# --- what a peer may send before a message is complete ----------------------------------------------------------------


@pytest.fixture
def meter():
    counting = RateMeter(100_000, 0.0)
    counting.frames = True
    return counting


def test_the_smallest_frames_count_for_the_work_they_make_and_pings_for_more(meter) -> None:
    meter.count(frame(CONTINUATION, b"", fin=False) * 10)
    assert meter.spent == 10 * (6 + FRAME_COST)
    meter.spent = 0
    meter.count(frame(PING) * 5 + frame(PONG, b"x" * 125) * 5)
    assert meter.spent == 10 * CONTROL_COST + 5 * 6 + 5 * 131


def test_http_is_counted_by_its_bytes_alone(meter) -> None:
    meter.frames = False
    meter.count(request())
    assert meter.spent == len(request())


def test_more_than_the_allowance_is_too_much_until_enough_of_it_has_come_back(meter) -> None:
    assert not meter.count(frame(TEXT, b"x" * 90_000))
    assert meter.count(frame(TEXT, b"x" * 20_000))
    assert "it sent 100000 bytes" in (meter.too_much(1.0) or "")
    assert meter.too_much(4.0) is None
    assert meter.spent == pytest.approx(110_156 - 4 * REFILL, abs=50)
    assert meter.too_much(1000.0) is None
    assert meter.spent == 0


# --- the end --------------------------------------------------------------------------------------------------------


async def test_a_peer_that_closes_is_answered_and_let_go(place, inside) -> None:
    async with await place.open() as peer:
        await peer.send(close(1000))
        assert await peer.close_code() == 1000
        assert not peer.reset
    await until(lambda: inside.ended)
    assert inside.ended == ["closed"]


async def test_a_peer_that_is_lost_is_gone(place, inside) -> None:
    async with await place.open():
        await until(lambda: inside.carriers)
    await passes(lambda: inside.ended)
    assert inside.ended == ["the WebSocket was lost"]
    with pytest.raises(PeerGone, match="closed"):
        await inside.carriers[0].send([b"{}\n"])


async def test_nothing_is_sent_after_the_close_frame(place, inside) -> None:
    inside.reading = False
    async with await place.open() as peer:
        await until(lambda: inside.carriers)
        await peer.send(close(1000))
        assert await peer.receive() == (CLOSE, struct.pack("!H", 1000))
        with pytest.raises(PeerClosed, match="the WebSocket is closed"):
            await inside.carriers[0].send([b"{}\n"])
        inside.done.set()
        assert await peer.receive() is None


def call(method, **params):
    """A request as a text frame."""
    return frame(TEXT, json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}).encode())


class Noting:
    """A carrier that notes in `sent` what was to be sent."""

    whole_documents = True

    def __init__(self, carrier, sent):
        self._carrier, self._sent = carrier, sent
        self.receive, self.aclose = carrier.receive, carrier.aclose

    async def send(self, documents):
        try:
            await self._carrier.send(documents)
        finally:
            self._sent.extend(map(json.loads, documents))


@contextlib.asynccontextmanager
async def runtime_behind(log, sent, **options):
    """A listener before a runtime, whose policy wants approvals."""
    here = PolicyConfig("here", {"any": True}, approval=(ApprovalConfig(from_risk=1),))
    config = Config(audit=AuditConfig(path=log), policy=(here,))
    with trio.fail_after(60):
        async with hearth.open_runtime(board="sim", config=config) as runtime:

            async def welcome(carrier, principal):
                await Connection(Noting(carrier, sent), principal, runtime._runtime, **options).run()

            async with served(welcome) as place:
                yield place


async def test_what_a_peer_asked_for_before_it_closed_is_done_although_an_event_finds_it_closed(tmp_path) -> None:
    """As by a page that is closed right after a person asked for something in it."""
    sent: list[dict[str, object]] = []
    look, light = (
        {"intent": tool, "steps": [{"tool": tool, "args": {"line": "LED", **args}}]}
        for tool, args in (("gpio.get", {}), ("gpio.set", {"value": 1}))
    )
    async with (
        # With one request in flight the next one waits in the connection's reader.
        runtime_behind(tmp_path / "audit.log", sent, max_outstanding=1) as place,
        await place.open() as page,
        await place.open() as other,
    ):
        session = (await page.ask("session.open"))["result"]["session_id"]
        assert "result" in await page.ask("task.events.subscribe", session_id=session)
        waiting = call("plan.list", session_id=session, wait_ms=60_000)
        await page.send(waiting, call("session.close", session_id=session), close(1000))
        assert await page.receive() == (CLOSE, struct.pack("!H", 1000))
        assert "result" in await other.ask("task.submit", session_id=session, task=look)
        await passes(lambda: any(document.get("method") == "task.event" for document in sent))
        # What the page's first request waited for: a plan that a person has to approve.
        assert "result" in await other.ask("plan.prepare", session_id=session, task=light)
        while "result" in await other.ask("tool.list", session_id=session):
            await trio.lowlevel.checkpoint()


async def test_a_session_whose_opener_closed_before_the_answer_ends_with_it(tmp_path) -> None:
    log = tmp_path / "audit.log"
    async with runtime_behind(log, []) as place, await place.open() as peer:
        await peer.send(call("session.open"), close(1000))
        assert await peer.close_code() == 1000
        await passes(lambda: b'"event":"session.close"' in log.read_bytes())
    assert b"its client never learned of it" in log.read_bytes()


@pytest.mark.slow
async def test_what_waited_behind_the_close_frame_is_not_sent_after_it(place, inside) -> None:
    inside.reading = False
    refused = []

    async def late(wire):
        with pytest.raises(trio.ClosedResourceError, match="close frame has been sent"):
            await wire.send_messages([b"{}\n"])
        refused.append(True)

    async with await place.open(receive_buffer=4096) as peer:
        await until(lambda: inside.carriers)
        carrier = inside.carriers[0]
        fill(carrier._wire._transport.socket)
        async with trio.open_nursery() as nursery:
            for call, *arguments in ((carrier.aclose,), (late, carrier._wire)):
                nursery.start_soon(call, *arguments)
                await trio.testing.wait_all_tasks_blocked()
            while await peer._more():
                pass
            assert peer._rest.endswith(b"x\x88\x02\x03\xe9")
            await peer.aclose()
        inside.done.set()
    assert refused


async def test_one_who_comes_late_with_a_frame_is_told_that_the_end_was_said(inside, place) -> None:
    inside.reading = False
    async with await place.open() as peer:
        await until(lambda: inside.carriers)
        carrier = inside.carriers[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carrier.aclose)
            assert await peer.receive() == (CLOSE, struct.pack("!H", 1001))
            with pytest.raises(PeerGone):
                await carrier.send([b"{}\n"])
            assert await peer.receive() is None
            await peer.aclose()
        inside.done.set()


async def test_the_end_of_the_server_is_told_to_the_peer(inside) -> None:
    async with served(inside) as place, await place.open() as peer:
        await peer.text("{}")
        assert await peer.message() == "{}"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inside.carriers[0].aclose)
            assert await peer.receive() == (CLOSE, struct.pack("!H", 1001))
            assert await peer.receive() is None
            assert not peer.reset
            await peer.aclose()


async def test_a_cancelled_server_still_says_that_it_goes(inside) -> None:
    codes = []

    async def watch(peer):
        async with peer:
            codes.append(await peer.close_code())

    async with trio.open_nursery() as watching, served(inside) as place:
        watching.start_soon(watch, await place.open())
        await until(lambda: inside.carriers)
    assert codes == [1001]


async def test_a_peer_that_neither_reads_nor_leaves_is_waited_for_a_moment_only(inside, autojump_clock) -> None:
    async with served(inside) as place, await place.open() as peer:
        await until(lambda: inside.carriers)
        begun = trio.current_time()
        await inside.carriers[0].aclose()
        await inside.carriers[0].aclose()
        assert trio.current_time() - begun <= CLOSING_LIMIT + 0.1
        assert await peer.close_code() == 1001


async def test_a_peer_that_is_still_sending_does_not_lose_the_close_frame(place, inside) -> None:
    async with await place.open() as peer:
        await peer.send(frame(TEXT, b"x" * 1000, announced=60_000))
        await until(lambda: inside.carriers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inside.carriers[0].aclose)
            for _ in range(20):
                await peer.send(mask(b"x" * 1000))
                await trio.testing.wait_all_tasks_blocked()
            assert await peer.close_code() == 1001
            assert not peer.reset
            await peer.aclose()


@pytest.mark.slow
async def test_a_close_in_the_middle_of_a_frame_is_no_frame(inside) -> None:
    """The peer must not take half a message and our farewell for a message."""
    async with served(inside, send_timeout=60) as place, await place.open(receive_buffer=4096) as peer:
        await until(lambda: inside.carriers)
        with trio.move_on_after(0.1) as scope:
            await inside.carriers[0].send([b"x" * (32 << 20) + b"\n"])
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inside.carriers[0].aclose)
            received = 0
            while await peer._more():
                received += len(peer._rest)
                assert not peer._rest.strip(b"x").strip(b"\x81\x7f\x00\x02")
                peer._rest = b""
            assert received < 32 << 20
            await peer.aclose()


# --- with a connection behind it ------------------------------------------------------------------------------------


async def test_a_document_between_the_bound_in_characters_and_in_bytes_ends_with_1009(place) -> None:
    limits = Config().limits

    async def connection(carrier, principal):
        await Connection(carrier, principal, None, max_document_bytes=limits.max_document_bytes).run()

    async with served(connection, max_document_bytes=limits.max_document_bytes) as there, await there.open() as peer:
        await peer.send(frame(BINARY, b"{}"))
        assert json.loads(await peer.message())["error"]["code"] == -32700
        await peer.text("é" * (limits.max_document_bytes * 2 // 3))
        assert json.loads(await peer.message())["error"]["message"] == "Invalid Request: document too long"
        assert await peer.close_code() == 1009
