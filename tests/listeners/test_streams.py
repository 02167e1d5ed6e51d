"""A Trio stream on a direct socket, and a carrier on any Trio stream: what arrives, what waits, and how each ends."""

from __future__ import annotations

import contextlib
import socket

import pytest
import trio
import trio.testing
from support.pki import Bench

from hearth.actors import transport as streams
from hearth.actors.listeners.tls import TlsCarrier
from hearth.actors.transport import PeerGone, StreamCarrier, reason_of
from hearth.transport.sockets import SocketTransport

BIG = b"x" * (16 << 20)
"""More than any socket buffer takes."""


@pytest.fixture
def pair():
    """A transport and the plain socket at the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    theirs.settimeout(60)
    with ours, theirs:
        yield SocketTransport(ours, send_timeout=0.2), theirs


@pytest.fixture
def carrier(pair):
    return StreamCarrier(pair[0])


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"))


async def read_exactly(peer, count):
    """`count` bytes from a plain socket, in a thread."""

    def read():
        received = bytearray()
        while len(received) < count:
            received.extend(peer.recv(1 << 16))
        return bytes(received)

    return await trio.to_thread.run_sync(read)


# --- the transport --------------------------------------------------------------------------------------------------


async def test_the_transport_keeps_trios_contract_but_for_the_checkpoint_in_send_all() -> None:
    class Polite(SocketTransport):
        async def send_all(self, data):
            await trio.lowlevel.checkpoint()
            await super().send_all(data)

    async def make():
        left, right = socket.socketpair()
        return Polite(left), Polite(right)

    # Nor does it refuse a second sender: that one waits, see below.
    await trio.testing.check_two_way_stream(make, None)


async def test_sending_into_room_is_no_checkpoint(pair) -> None:
    transport, peer = pair
    with trio.testing.assert_no_checkpoints():
        await transport.send_all(b"at once")
    assert peer.recv(100) == b"at once"


async def test_a_client_that_sends_while_another_waits_gets_the_next_turn(pair) -> None:
    transport, peer = pair
    transport._send_timeout = 20
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.send_all, BIG)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(transport.send_all, b"second")
        await trio.testing.wait_all_tasks_blocked()
        received = await read_exactly(peer, len(BIG) + len(b"second"))
    assert received == BIG + b"second"


@pytest.mark.slow
async def test_a_peer_that_takes_nothing_is_given_up_and_so_is_the_stream(pair) -> None:
    transport, _ = pair
    with trio.fail_after(60), pytest.raises(trio.BrokenResourceError, match=r"has read nothing for 0\.2 s"):
        await transport.send_all(BIG)
    with pytest.raises(trio.BrokenResourceError, match="an earlier send was cut short"):
        await transport.send_all(b"x")


async def test_a_cancelled_send_leaves_a_stream_that_says_so(pair) -> None:
    transport, _ = pair
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.send_all, BIG)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    with pytest.raises(trio.BrokenResourceError, match="an earlier send was cut short"):
        await transport.send_all(b"x")


async def test_what_the_kernel_takes_at_once_is_sent_without_a_turn_and_nothing_is_while_another_has_it(pair) -> None:
    transport, peer = pair
    assert transport.send_nowait(b"all of it") == 9
    assert peer.recv(100) == b"all of it"
    sent = transport.send_nowait(BIG)
    assert 0 < sent < len(BIG)
    assert transport.send_nowait(b"x") == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.send_all, BIG[sent:])
        await trio.testing.wait_all_tasks_blocked()
        assert transport.send_nowait(b"x") == 0
        assert await read_exactly(peer, len(BIG)) == BIG
    peer.close()
    with pytest.raises(trio.BrokenResourceError):
        transport.send_nowait(b"x")
    await transport.aclose()
    with pytest.raises(trio.ClosedResourceError):
        transport.send_nowait(b"x")


async def test_waiting_for_room_ends_when_the_peer_reads(pair) -> None:
    transport, peer = pair
    with contextlib.suppress(BlockingIOError):
        while True:
            transport.socket.send(BIG)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.wait_send_all_might_not_block)
        await trio.testing.wait_all_tasks_blocked()
        await read_exactly(peer, 150_000)


async def test_a_reset_is_a_broken_stream(pair) -> None:
    transport, peer = pair
    await transport.send_all(b"unread")
    peer.close()
    with pytest.raises(trio.BrokenResourceError, match="connection lost while receiving"):
        await transport.receive_some()


# --- the carrier ----------------------------------------------------------------------------------------------------


async def test_documents_are_joined_into_one_send(carrier, pair) -> None:
    await carrier.send([b"one\n", b"two\n"])
    assert pair[1].recv(100) == b"one\ntwo\n"
    await carrier.send([b"three\n"])
    assert pair[1].recv(100) == b"three\n"


async def test_receiving_ends_with_none_when_the_peer_closed(carrier, pair) -> None:
    pair[1].sendall(b"last")
    pair[1].shutdown(socket.SHUT_WR)
    assert await carrier.receive() == b"last"
    assert await carrier.receive() is None


@pytest.mark.slow
async def test_a_broken_stream_is_a_peer_that_has_gone(carrier, pair) -> None:
    with trio.fail_after(60), pytest.raises(PeerGone, match=r"has read nothing for 0\.2 s"):
        await carrier.send([BIG])
    await carrier.aclose()
    with pytest.raises(PeerGone, match="this stream is closed"):
        await carrier.receive()
    await carrier.aclose()


def test_an_error_that_says_nothing_is_told_by_its_cause() -> None:
    error = trio.BrokenResourceError()
    assert reason_of(error) == "connection lost"
    error.__cause__ = OSError("why")
    assert reason_of(error) == "why"


# --- over TLS -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def encrypted(bench):
    """A carrier over TLS, its transport, and the other end's stream."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = SocketTransport(ours, send_timeout=0.2)
        server = trio.SSLStream(transport, bench.server_context(), server_side=True)
        client = trio.SSLStream(SocketTransport(theirs), bench.client_context(), server_hostname="localhost")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.do_handshake)
                nursery.start_soon(client.do_handshake)
        yield TlsCarrier(server), transport, client


@pytest.mark.slow
async def test_over_tls_a_peer_that_takes_nothing_is_given_up_after_the_bound(encrypted) -> None:
    carrier, _, _ = encrypted
    with trio.fail_after(60), pytest.raises(PeerGone, match=r"has read nothing for 0\.2 s"):
        await carrier.send([BIG])


async def test_over_tls_closing_tells_the_peer(encrypted) -> None:
    carrier, _, client = encrypted
    await carrier.send([b"last\n"])
    await carrier.aclose()
    assert await client.receive_some() == b"last\n"
    assert await client.receive_some() == b""


async def test_over_tls_closing_tells_a_peer_of_which_not_all_was_read(encrypted) -> None:
    carrier, _, client = encrypted
    # Several records, of which what was received at once is decrypted one by one.
    await client.send_all(b"x" * (1 << 16))
    assert await carrier.receive()
    await carrier.send([b"last\n"])
    await carrier.aclose()
    assert await client.receive_some() == b"last\n"
    assert await client.receive_some() == b""


@pytest.mark.slow
async def test_over_tls_closing_does_not_wait_for_a_peer_that_stalls(encrypted, autojump_clock) -> None:
    carrier, transport, _ = encrypted
    transport._send_timeout = 1000
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:

            async def send():
                with pytest.raises(PeerGone):
                    await carrier.send([BIG])

            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            before = trio.current_time()
            await carrier.aclose()
    assert trio.current_time() - before == pytest.approx(streams.CLOSING)


async def test_over_tls_a_clean_close_ends_the_receiving(encrypted) -> None:
    carrier, _, client = encrypted
    await client.aclose()
    assert await carrier.receive() is None


async def test_over_tls_a_bare_close_is_a_peer_that_has_gone(encrypted) -> None:
    carrier, _, client = encrypted
    client.transport_stream.close()
    with pytest.raises(PeerGone, match="EOF"):
        await carrier.receive()
