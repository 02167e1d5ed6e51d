"""Peers that break WebSocket on purpose, over TCP against a real runtime.

Whatever they do, who was there before is served meanwhile, whoever comes after gets in, and nothing is left of them.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
from contextlib import asynccontextmanager

import pytest
import trio
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

import hearth
from hearth.actors.connection import Connection
from hearth.actors.listeners.accept import MOST_UNKNOWN_PEERS_EACH
from hearth.actors.listeners.tls import Certificates
from hearth.config.model import AuditConfig, Config, LimitsConfig, PolicyConfig
from hearth.policy.principal import Tokens, from_token

pytestmark = pytest.mark.slow

TOKEN = "hearth_the-right-one"
PAGE = "http://127.0.0.1:8000"
MAX = 1 << 16


class Fort:
    """A listener in front of a runtime, and one who was inside before anybody attacked."""

    def __init__(self, place, bystander, principals):
        self.open = place.open
        self.connect = place.connect
        self.refused = place.refused
        self.port = place.port
        self.principals = principals
        self._bystander = bystander

    async def stands(self):
        """The bystander is served, within seconds also on a busy machine."""
        with trio.fail_after(60):
            await works(self._bystander)

    @asynccontextmanager
    async def besieged(self):
        """The bystander asks one thing after the other while the body runs."""
        turns, over = 0, False

        async def ask():
            nonlocal turns
            while not over:
                await self.stands()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            yield
            reached = turns
            with trio.fail_after(60):
                await passes(lambda: turns > reached)
            # Not cancelled, so that no request of the bystander's is torn.
            over = True


async def works(peer):
    session = (await peer.ask("session.open"))["result"]["session_id"]
    assert (await peer.ask("tool.list", session_id=session))["result"]["tools"]
    assert "result" in await peer.ask("session.close", session_id=session)


@pytest.fixture
def storm(tmp_path):
    """`async with storm(**options) as fort`: afterwards newcomers get in, and all descriptors have come back."""

    @asynccontextmanager
    async def opened(**options):
        here = PolicyConfig("here", {"any": True})
        # The bystander opens one session after the other, as fast as the machine can.
        limits = LimitsConfig(session_rate="999999/s")
        config = Config(audit=AuditConfig(path=tmp_path / "audit.log"), policy=(here,), limits=limits)
        principals = []
        async with hearth.open_runtime(board="sim", config=config) as runtime:

            async def welcome(carrier, principal):
                principals.append(principal)
                await Connection(
                    carrier, principal, runtime._runtime, max_outstanding=limits.max_outstanding, max_document_bytes=MAX
                ).run()

            settings = {
                "tokens": Tokens([from_token(TOKEN).token_sha256]),
                "origins": frozenset([PAGE]),
                "max_document_bytes": MAX,
                "handshake_timeout": 5,
                "send_timeout": 5,
                **options,
            }
            tls = settings.pop("client_tls", None)
            with trio.fail_after(60):
                async with (
                    served(welcome, **settings) as place,
                    await place.open(tls=tls) as bystander,
                ):
                    await works(bystander)
                    before = descriptors()
                    fort = Fort(place, bystander, principals)
                    yield fort
                    await fort.stands()
                    async with await place.open(tls=tls) as newcomer:
                        await works(newcomer)
                    await passes(lambda: descriptors() <= before)

    return opened


async def ended(peer):
    """Receive, whatever it is, until there is no more; returns the code of the close frame if there was one."""
    code = None
    while (found := await peer.receive()) is not None:
        if found[0] == CLOSE:
            code = int.from_bytes(found[1][:2], "big")
    return code


async def flood(peer, piece):
    """Send the same over and over until the server has had enough."""
    try:
        while True:
            await peer.send(piece)
    except trio.BrokenResourceError:
        pass


async def in_vain(peer, piece, *, reading=True):
    """Flood, reading what comes or not, until the connection is over."""
    async with trio.open_nursery() as nursery:
        if reading:
            nursery.start_soon(ended, peer)
        await flood(peer, piece)


# --- before the handshake is done -----------------------------------------------------------------------------------


@pytest.mark.proof
async def test_half_open_handshakes_are_few_and_have_an_end(storm) -> None:
    async with storm(handshake_timeout=2) as fort:
        silent = [await fort.connect(as_nobody=True) for _ in range(3 * MOST_UNKNOWN_PEERS_EACH)]
        async with fort.besieged():
            if os.geteuid() == 0:
                # Of another user than those: there are so many places for each.
                async with await fort.open() as newcomer:
                    await works(newcomer)
            for peer in silent:
                assert await peer.receive() is None
                await peer.aclose()
        await until(lambda: len(fort.refused) >= MOST_UNKNOWN_PEERS_EACH)
        assert len(fort.refused) < 2 * MOST_UNKNOWN_PEERS_EACH
        assert set(fort.refused) == {"timed out: no WebSocket handshake within 2 s"}


@pytest.mark.proof
async def test_a_request_that_comes_byte_by_byte_has_the_same_deadline(storm) -> None:
    async with storm(handshake_timeout=0.5) as fort, fort.besieged(), await fort.connect() as peer:

        async def drip():
            for byte in request("X: " + "x" * 8000):
                await peer.send(bytes([byte]))
                await trio.sleep(0.01)

        with pytest.raises(trio.BrokenResourceError):
            await drip()
        await until(lambda: fort.refused)
        assert fort.refused == ["timed out: no WebSocket handshake within 0.5 s"]


async def test_headers_without_an_end_are_not_read_to_it(storm) -> None:
    async with storm() as fort, fort.besieged(), await fort.connect() as peer:
        await peer.send(b"GET / HTTP/1.1\r\n")
        await in_vain(peer, b"X-More: of the same\r\n" * 50, reading=False)
        await passes(lambda: fort.refused)
        assert fort.refused == ["what it sent is no WebSocket request"]


async def test_64_kib_of_headers_are_answered_and_refused(storm) -> None:
    async with storm() as fort, await fort.connect() as peer:
        answer = await peer.handshake(*(f"X-{number}: {'x' * 1000}" for number in range(64)))
        assert answer.status == 400
        assert await peer.receive() is None


async def test_frames_before_the_handshake_is_answered_do_no_harm(storm) -> None:
    async with storm() as fort, await fort.connect() as peer:
        await peer.send(request(), frame(TEXT, b"{}") * 100, close())
        assert (await peer.answer()).status == 101


@pytest.mark.proof
async def test_many_wrong_tokens_do_not_keep_the_right_one_out(storm) -> None:
    async with storm() as fort, fort.besieged():
        guesses = 0

        async def guess():
            nonlocal guesses
            for _ in range(40):
                guesses += 1
                async with await fort.connect(as_nobody=True) as peer:
                    answer = await peer.handshake(f"Authorization: Bearer hearth_guess-{guesses}")
                    assert answer.status == 401

        async with trio.open_nursery() as nursery:
            for _ in range(MOST_UNKNOWN_PEERS_EACH - 1):
                nursery.start_soon(guess)
            async with await fort.open(f"Authorization: Bearer {TOKEN}") as peer:
                await peer.text("{}")
                assert await peer.message()
        async with await fort.open(f"Authorization: Bearer {TOKEN}") as peer:
            await peer.text("{}")
            assert await peer.message()
        await until(lambda: len(fort.refused) == guesses)
        assert set(fort.refused) == {"its bearer token is unknown"}
        assert [who.kind for who in fort.principals].count("token") == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Origin: https://evil.example"], 403),
        (["Origin: https://evil.example", f"Authorization: Bearer {TOKEN}"], 403),
        (["Origin: http://127.0.0.1"], 403),
        ([f"Origin: {PAGE}", "Authorization: Bearer hearth_guess"], 401),
        ([f"Origin: {PAGE}", "X-Forwarded-For: 203.0.113.7"], 401),
    ],
)
async def test_an_origin_that_lies_gains_nothing(storm, headers, status) -> None:
    async with storm() as fort, await fort.connect() as peer:
        answer = await peer.handshake(*headers)
        assert answer.status == status
        assert await peer.receive() is None
        assert len(fort.principals) == 1


# --- frames that break the rules ------------------------------------------------------------------------------------

BROKEN = {
    "not masked": frame(TEXT, b"{}", masked=False),
    "a reserved bit": frame(TEXT, b"{}", reserved=4),
    "all reserved bits": frame(PING, b"", reserved=7),
    "a reserved opcode": frame(3, b"{}"),
    "a reserved control opcode": frame(11, b"{}"),
    "a ping in fragments": frame(PING, b"", fin=False),
    "a ping that is too long": frame(PING, b"x" * 126),
    "a continuation of nothing": frame(CONTINUATION, b"{}"),
    "a message inside another": frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"),
    "a binary message inside a text": frame(TEXT, b"{", fin=False) + frame(BINARY, b"}"),
    "a long form of a short length": bytes((0x81, 0xFE, 0, 5)) + bytes(9),
    "a longer form of a short length": bytes((0x81, 0xFF)) + struct.pack("!Q", 5) + bytes(9),
    "a length of 2^63": frame(TEXT, b"x", announced=1 << 63),
    "half a close code": frame(CLOSE, b"\x03"),
    "a close code that is never sent": close(1005),
    "a close code that means nothing": close(999),
}
UNREADABLE = {
    "no UTF-8": frame(TEXT, b"\xff\xfe"),
    "half a character at the end": frame(TEXT, "née".encode()[:2]),
    "no UTF-8 in a fragment": frame(TEXT, b'{"', fin=False) + frame(CONTINUATION, b"\xff", fin=False),
    "an encoded surrogate": frame(TEXT, b"\xed\xa0\x80"),
    "a close reason that is no UTF-8": frame(CLOSE, b"\x03\xe8\xff"),
}


@pytest.mark.parametrize(
    ("sent", "code"),
    [pytest.param(sent, 1002, id=what) for what, sent in BROKEN.items()]
    + [pytest.param(sent, 1007, id=what) for what, sent in UNREADABLE.items()],
)
async def test_frames_that_break_the_rules_close_with_the_code_for_it(storm, sent, code) -> None:
    async with storm() as fort, await fort.open() as peer:
        await peer.send(sent, frame(PING, b"and on") * 3)
        assert await peer.close_code() == code
        assert not peer.reset


@pytest.mark.parametrize(
    "sent",
    [
        frame(TEXT, b"x" * (MAX + 1)) + frame(PING) * 3,
        frame(BINARY, b"x" * (MAX + 1)),
        frame(TEXT, b"x" * MAX, fin=False) + frame(CONTINUATION, b"x"),
        frame(TEXT, b"x" * 4, announced=1 << 62),
    ],
    ids=["a text", "a binary message", "fragments", "endless"],
)
async def test_a_message_that_is_too_long_closes_with_1009_though_its_sender_goes_on(storm, sent) -> None:
    async with storm() as fort, await fort.open() as peer:
        await peer.send(sent, mask(b"x" * (4 * MAX)))
        assert await peer.close_code() == 1009
        assert not peer.reset


async def test_a_message_of_exactly_the_bound_is_read(storm) -> None:
    async with storm() as fort, await fort.open() as peer:
        await peer.text('"' + "x" * (MAX - 2) + '"')
        assert "Invalid Request" in await peer.message()


async def test_an_announced_length_alone_costs_nothing(storm) -> None:
    async with storm() as fort:
        peers = [await fort.open() for _ in range(20)]
        for peer in peers:
            await peer.send(frame(TEXT, b"x", announced=1 << 62))
        await fort.stands()
        for peer in peers:
            await peer.aclose()


@pytest.mark.parametrize("after", [frame(PING), frame(TEXT, b"{}"), frame(TEXT, b"\xff"), close(), b"\0" * 100])
async def test_whatever_comes_after_a_close_is_dropped(storm, after) -> None:
    async with storm() as fort:
        async with await fort.open() as peer:
            await peer.send(close(), after * 10)
            assert await peer.close_code() == 1000
            assert not peer.reset
        async with await fort.open() as peer:
            await peer.send(close())
            assert await peer.receive() == (CLOSE, struct.pack("!H", 1000))
            await peer.send(after * 10)
            assert await peer.receive() is None


async def test_one_who_never_leaves_after_the_close_is_left(storm) -> None:
    async with storm() as fort, await fort.open() as peer:
        await peer.send(close())
        await in_vain(peer, frame(PING) * 100)


# --- much of what is allowed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "piece", "reading"),
    [
        pytest.param(b"", frame(PING), True, id="pings"),
        pytest.param(b"", frame(PING, b"x" * 125), False, id="pings by one who does not read"),
        pytest.param(b"", frame(PONG, b"x" * 100), True, id="pongs"),
        pytest.param(frame(TEXT, b"", fin=False), frame(CONTINUATION, b"", fin=False), True, id="empty fragments"),
        pytest.param(
            frame(TEXT, b"[", fin=False), frame(CONTINUATION, b"", fin=False) + frame(PONG), True, id="a mixture"
        ),
    ],
)
async def test_a_flood_that_completes_no_message_is_cut(storm, caplog, begin, piece, reading) -> None:
    caplog.set_level(logging.INFO, "hearth")
    async with storm(send_timeout=2) as fort, fort.besieged(), await fort.open() as peer:
        await peer.send(begin)
        await in_vain(peer, piece * 100, reading=reading)
        await passes(lambda: "127.0.0.1: connection cut: it sent " in caplog.text or not reading)


async def test_fragments_without_an_end_are_too_long_in_the_end(storm) -> None:
    async with storm() as fort, fort.besieged(), await fort.open() as peer:
        await peer.send(frame(TEXT, b"[", fin=False))
        codes = []

        async def read():
            codes.append(await ended(peer))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await flood(peer, frame(CONTINUATION, b" " * 1000, fin=False))
        assert codes == [1009]


async def test_documents_that_are_none_are_answered_one_by_one(storm) -> None:
    async with storm() as fort, fort.besieged(), await fort.open() as peer:
        for _ in range(200):
            await peer.send(frame(TEXT, b"{"), frame(BINARY, b"{}"), frame(TEXT, b""))
            for _ in range(3):
                assert "-32700" in await peer.message()


async def test_one_who_reads_nothing_is_cut_after_its_bound_and_slows_no_other(storm) -> None:
    async with storm(send_timeout=0.5) as fort, fort.besieged(), await fort.open(receive_buffer=4096) as peer:
        session = (await peer.ask("session.open"))["result"]["session_id"]
        params = {"session_id": session}
        calls = ({"jsonrpc": "2.0", "id": id_, "method": "tool.list", "params": params} for id_ in range(100, 200))
        await flood(peer, b"".join(frame(TEXT, json.dumps(call).encode()) for call in calls))


@pytest.mark.proof
async def test_coming_and_going_leaves_nothing_behind(storm) -> None:
    async with storm() as fort, fort.besieged():
        for turn in range(200):
            peer = await fort.open()
            if turn % 4 == 0:
                await peer.send(close())
            elif turn % 4 == 1:
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif turn % 4 == 2:
                await peer.send(frame(TEXT, b"{}") * 10)
            await peer.aclose()


# --- over TLS -------------------------------------------------------------------------------------------------------


@pytest.fixture
def wss(storm, papers):
    certificates = Certificates("websocket", papers.server_cert, papers.server_key, papers.ca, client="optional")
    context = papers.client_context(anonymous=True)
    return lambda **more: storm(certificates=certificates, client_tls=context, **more), context


async def test_what_is_no_tls_in_the_middle_of_a_connection_ends_it(wss) -> None:
    storm, context = wss
    async with storm() as fort, await fort.open(tls=context) as peer:
        await peer.stream.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + b"x" * 32 + b"nonsense" * 100)
        assert await peer.close_code() is None


async def test_a_flood_over_tls_is_cut_and_a_silent_end_is_noticed(wss) -> None:
    storm, context = wss
    async with storm() as fort, fort.besieged():
        async with await fort.open(tls=context) as peer:
            await in_vain(peer, frame(PING) * 100)
        async with await fort.open(tls=context) as peer:
            # The end of TCP without the end of TLS.
            await peer.stream.transport_stream.send_eof()
            assert await peer.close_code() is None
