"""Peers that are slow, silent, greedy or gone: each costs little, for a bounded time, and nobody else notices."""

import os
import random
import socket
import ssl
import struct
from contextlib import suppress

import pytest
import trio
from support.http import (
    BOTH,
    JSON,
    LISTEN,
    TOKENS,
    descriptors,
    envelope,
    initialize,
    message,
    modern,
    passes,
)

from hearth.actors.bridges.http import connection as http_connection
from hearth.actors.listeners.accept import MOST_UNKNOWN_PEERS_EACH
from hearth.config.listen import HttpConfig

ALICE = {"Authorization": f"Bearer {TOKENS['alice']}"}
NOBODY = {"Authorization": "Bearer nobody-knows-this"}


async def trickle(raw, data, every=0.02):
    """Send byte by byte; returns how many went out before the other side closed."""
    for sent, byte in enumerate(data):
        try:
            await raw.send(bytes((byte,)))
        except trio.BrokenResourceError:
            return sent
        with trio.move_on_after(every):
            if not await raw.more():
                return sent
    return len(data)


async def gone(server):
    """Wait until there is no connection any more."""
    await passes(lambda: not server.open_connections)
    assert (server.unauthenticated, server.authenticated) == (0, 0)


# --- slow and silent ------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_who_says_nothing_is_gone_when_the_handshake_should_be_over(serve) -> None:
    async with serve(handshake_timeout_s=0.2) as server, await server.connect() as raw:
        await passes(lambda: server.unauthenticated)
        assert await raw.ended() == b""
        await gone(server)


@pytest.mark.slow
async def test_headers_that_trickle_do_not_keep_a_connection(serve) -> None:
    async with serve(handshake_timeout_s=0.3) as server, await server.connect() as raw:
        assert await trickle(raw, raw.request("GET", "/healthz", X="y" * 1000)) < 100
        await gone(server)


@pytest.mark.slow
async def test_an_unknown_peer_has_the_handshakes_time_for_all_it_wants(serve) -> None:
    """A body that trickles in is no reason to stay, either: nobody knows whose it is."""
    async with serve(handshake_timeout_s=0.6, send_timeout_s=30) as server, await server.connect() as raw:
        await raw.send(raw.request("POST", "/healthz", Content_Length="100000", **NOBODY))
        answer = await raw.answer()
        assert answer.status == 405
        assert await trickle(raw, b"x" * 1000) < 1000
        await gone(server)


@pytest.mark.slow
async def test_headers_that_trickle_are_no_better_from_a_known_principal(serve) -> None:
    async with serve(handshake_timeout_s=0.6) as server, await server.connect() as raw:
        assert (await raw.ask("GET", "/healthz", **ALICE)).status == 200
        assert server.authenticated == 1
        assert await trickle(raw, raw.request("GET", "/healthz", X="y" * 1000)) < 100
        await gone(server)


@pytest.mark.slow
async def test_a_body_that_trickles_is_given_up(serve) -> None:
    async with serve(send_timeout_s=0.3) as server, await server.connect() as raw:
        await raw.send(raw.request("POST", "/mcp", Content_Length="100000", Content_Type=JSON, Accept=BOTH, **ALICE))
        assert await trickle(raw, b"x" * 1000, 0.01) < 1000 or raw.rest
        answer = await raw.answer()
        assert answer.status == 408
        assert "0.3 s" in answer.detail
        await raw.aclose()
        await gone(server)


async def test_an_unwanted_body_is_not_waited_for(server) -> None:
    async with await server.connect() as raw:
        await raw.send(raw.request("POST", "/mcp", Content_Length="1000", **NOBODY))
        assert (await raw.answer()).status == 401
        assert await raw.ended() == b""


@pytest.mark.slow
async def test_a_connection_on_which_nothing_is_asked_any_more_is_closed(serve, monkeypatch) -> None:
    monkeypatch.setattr(http_connection, "KEEP_ALIVE", 0.2)
    async with serve() as server, await server.connect() as raw:
        for _ in range(3):
            assert (await raw.ask("GET", "/healthz", **ALICE)).status == 200
        assert server.authenticated == 1
        assert await raw.ended() == b""
        await gone(server)


async def test_an_unknown_peer_gets_one_answer_on_a_connection(server) -> None:
    async with await server.connect() as raw:
        await raw.send(raw.request("GET", "/healthz", **NOBODY) * 3)
        answer = await raw.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await raw.ended() == b""


# --- many -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_a_user_with_many_unauthenticated_connections_keeps_no_other_user_out(server) -> None:
    crowd = [await server.connect() for _ in range(MOST_UNKNOWN_PEERS_EACH)]
    await passes(lambda: server.unauthenticated == MOST_UNKNOWN_PEERS_EACH)
    async with await server.connect() as one_more:
        # The oldest that is silent goes, not the newcomer.
        assert await crowd[0].ended() == b""
        assert (await one_more.ask("GET", "/healthz", **ALICE)).status == 200
        assert (await server.ask("GET", "/healthz", how={"as_nobody": True}, **ALICE)).status == 200
        # Whoever of the crowd turns out to be known gives its place back.
        assert (await crowd[1].ask("GET", "/healthz", **ALICE)).status == 200
        await passes(lambda: server.unauthenticated == MOST_UNKNOWN_PEERS_EACH - 2)
    assert (await crowd[2].ask("GET", "/healthz")).status == 200
    for raw in crowd:
        await raw.aclose()
    await gone(server)


async def test_who_is_not_in_the_policy_stays_unauthenticated(serve) -> None:
    async with serve(policy=()) as server:
        for _ in range(MOST_UNKNOWN_PEERS_EACH + 4):
            assert (await server.ask("GET", "/mcp")).status == 403
        await gone(server)


async def test_beyond_the_most_connections_one_more_is_told_to_try_later(serve) -> None:
    async with serve(max_connections=2) as server:
        inside = [await server.connect() for _ in range(2)]
        for raw in inside:
            assert (await raw.ask("GET", "/healthz", **ALICE)).status == 200
        answer = await server.ask("GET", "/healthz", **ALICE)
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert "max_connections" not in answer.detail
        # Somebody who has none must not be locked out by one who takes them all.
        assert (await server.ask("GET", "/healthz", Authorization=f"Bearer {TOKENS['bob']}")).status == 200
        for raw in inside:
            await raw.aclose()
        await passes(lambda: server.authenticated == 0)


@pytest.mark.slow
async def test_five_hundred_requests_at_once_are_answered_one_after_the_other(server) -> None:
    async with await server.connect() as raw, trio.open_nursery() as nursery:
        nursery.start_soon(raw.send, raw.request("GET", "/healthz", **ALICE) * 500)
        for _ in range(500):
            assert (await raw.answer()).status == 200


@pytest.mark.proof
async def test_after_some_hundred_visits_everything_is_as_before(server) -> None:
    async def visit(number):
        async with await server.connect() as raw:
            if number % 5 == 0:
                await raw.send(b"GET /healthz HTTP/1.1\r\nHost:")
            elif number % 5 == 1:
                await raw.ask("GET", "/mcp", **NOBODY)
            elif number % 5 == 2:
                await raw.send(raw.request("POST", "/mcp", Content_Length="100", **ALICE) + b"x")
            else:
                await raw.ask("GET", "/healthz", **ALICE)
                await raw.ask("GET", "/healthz", **ALICE)

    await visit(3)
    await gone(server)
    before = descriptors()
    for start in range(0, 300, 10):
        async with trio.open_nursery() as nursery:
            for number in range(start, start + 10):
                nursery.start_soon(visit, number)
        await passes(lambda: server.unauthenticated < 4)
    await gone(server)
    assert descriptors() <= before
    assert not server.limiter._held
    assert not len(server.limiter.unknown_peers)


# --- greedy and gone ------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_who_reads_no_answer_is_cut_off(serve) -> None:
    async with serve(send_timeout_s=0.3) as server, await server.connect(receive_buffer=4096) as raw:
        ask = message("tools/list", envelope())
        request = raw.request("POST", "/mcp", ask, **modern("tools/list"), **ALICE)
        with pytest.raises(trio.BrokenResourceError):
            await raw.send(request * 2000)
        await gone(server)


async def test_a_long_body_for_which_there_is_no_use_is_read_past(server) -> None:
    """More pieces than wait for an application: nobody must wait for one that has answered and gone."""
    async with await server.connect() as raw:
        await raw.send(raw.request("POST", "/nothing", Content_Length="900000", **ALICE))
        assert (await raw.answer()).status == 404
        with suppress(trio.BrokenResourceError):
            await raw.send(b"x" * 900_000)
        assert await raw.ended() == b""
    await gone(server)


async def test_who_resets_its_connection_at_any_time_leaves_nothing_behind(server, caplog) -> None:
    for sent in (b"", b"GET /healthz HT", b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"):
        for _ in range(10):
            raw = await server.connect()
            if sent:
                await raw.send(sent)
            raw.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await raw.aclose()
    await gone(server)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.slow
async def test_a_client_that_goes_away_while_it_is_served_leaves_nothing_behind(server) -> None:
    bus = server.runtime.buses["gpio:sim"]
    before = bus.transactions
    async with await server.connect() as raw:
        params = envelope(name="gpio_watch", arguments={"line": 4, "timeout_ms": 60_000})
        await raw.send(
            raw.request("POST", "/mcp", message("tools/call", params), **modern("tools/call", "gpio_watch"), **ALICE)
        )
        await passes(lambda: server.runtime.sessions == 1)
        await passes(lambda: bus.transactions > before)
    await gone(server)
    assert (await server.recorded(event="task.finish"))["status"] == "CANCELLED"


@pytest.mark.slow
async def test_whatever_is_sent_nothing_crashes(server, caplog) -> None:
    chance = random.Random(7)
    good = (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    good += b"5\r\nhello\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _ in range(120):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
        async with await server.connect() as raw:
            await raw.send(bytes(data))
            if chance.random() < 0.5:
                await raw.stream.send_eof()
                await raw.ended()
    await gone(server)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


# --- at the end -----------------------------------------------------------------------------------------------------


async def test_connections_on_which_nothing_is_under_way_do_not_hold_up_the_end(serve) -> None:
    async with serve() as server:
        raw = await server.connect()
        assert (await raw.ask("GET", "/healthz", **ALICE)).status == 200
    assert not server.cut
    async with raw:
        assert await raw.ended() == b""


@pytest.mark.slow
async def test_who_listens_to_a_stream_at_the_end_sees_it_end(serve) -> None:
    async with serve() as server:
        opened = await server.ask("POST", "/mcp", initialize(), Content_Type=JSON, Accept=BOTH, **ALICE)
        raw = await server.connect()
        session = opened.headers["mcp-session-id"]
        await raw.send(raw.request("GET", "/mcp", Accept=BOTH, Mcp_Session_Id=session, **ALICE))
        assert (await raw.head()).status == 200
    assert not server.cut
    async with raw:
        while await raw.chunk() is not None:
            pass
        assert await raw.ended() == b""


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_who_speaks_no_tls_to_a_tls_listener_is_rejected(serve, bench) -> None:
    http = HttpConfig(listen=LISTEN, cert=bench.server_cert, key=bench.server_key)
    async with serve(http, handshake_timeout_s=0.5) as server:
        assert server.url.startswith("https://")
        async with await server.connect() as raw:
            await raw.send(raw.request("GET", "/healthz"))
            await raw.ended()
        (record,) = server.world.records(event="auth.reject")
        assert (record["carrier"], record["reason"]) == ("https", "not TLS, but plain HTTP")
        async with await server.connect() as silent:
            await silent.ended()
        await gone(server)
        context = ssl.create_default_context(cafile=str(bench.ca))
        assert (await server.ask("GET", "/healthz", how={"tls": context})).status == 200
        await gone(server)
        server.listener.reload()
        assert server.listener.warnings() == []
