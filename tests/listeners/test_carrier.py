"""Bytes over a stream socket: what is sent arrives whole, and what can go wrong comes out as PeerGone."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from hearth.actors.transport import PeerGone, SocketCarrier


@pytest.fixture
def pair():
    """A carrier and the socket at the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    theirs.settimeout(60)
    with ours, theirs:
        yield SocketCarrier(ours, send_timeout=0.2), theirs


async def test_much_is_sent_whole_to_a_peer_that_reads(pair) -> None:
    carrier, peer = pair
    data = bytes(range(256)) * 20_000
    received = bytearray()

    def read():
        while len(received) < len(data):
            received.extend(peer.recv(100_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, read)
        await carrier.send([data])
    assert bytes(received) == data


@pytest.mark.slow
async def test_a_peer_that_takes_nothing_is_given_up_after_the_bound(pair) -> None:
    carrier, _ = pair
    with trio.fail_after(60), pytest.raises(PeerGone, match=r"has read nothing for 0\.2 s"):
        await carrier.send([b"x" * (16 << 20)])


async def test_a_peer_that_closed_is_gone_for_both_directions(pair) -> None:
    carrier, peer = pair
    peer.sendall(b"last")
    peer.close()
    assert await carrier.receive() == b"last"
    assert await carrier.receive() is None
    with pytest.raises(PeerGone):
        await carrier.send([b"x"])


async def test_a_peer_that_closed_without_reading_is_gone(pair) -> None:
    carrier, peer = pair
    await carrier.send([b"unread"])
    peer.close()
    with pytest.raises(PeerGone):
        await carrier.receive()


async def test_closing_ends_pending_receives_and_sends(pair) -> None:
    carrier, _ = pair
    ended = []

    async def expect(call, *args):
        with pytest.raises(PeerGone):
            await call(*args)
        ended.append(call)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect, carrier.receive)
        nursery.start_soon(expect, carrier.send, [b"x" * (16 << 20)])
        await trio.testing.wait_all_tasks_blocked()
        await carrier.aclose()
    assert len(ended) == 2
    await carrier.aclose()
