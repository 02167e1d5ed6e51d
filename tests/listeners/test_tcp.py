"""TCP listeners: addresses that cannot be had, unknown peers, and peers there is no room for."""

from __future__ import annotations

import errno
import json
import os
import socket

import pytest
import trio
import trio.testing

from hearth.actors.listeners import tcp
from hearth.actors.listeners.accept import (
    MOST_UNKNOWN_PEERS_EACH,
    AuthenticationFailed,
    ConnectionLimiter,
    Places,
)
from hearth.actors.transport import SocketCarrier
from hearth.config.listen import Endpoint
from hearth.errors import ConfigError
from hearth.policy.principal import Principal


class NameHandshake:
    """A handshake for which a name on the first line is proof enough."""

    scheme = "test"

    def __init__(self):
        self.authenticating = []

    async def authenticate(self, connected, peer, handler):
        carrier = SocketCarrier(connected)
        try:
            self.authenticating.append(peer)
            name = await carrier.receive()
            if name is None or not name.strip().isalpha():
                raise AuthenticationFailed("no name")
            await handler(carrier, Principal("tls", cert_subject=f"CN={name.decode().strip()}"))
        finally:
            await carrier.aclose()


class Papers:
    """Certificates that count how often they are read again."""

    def __init__(self):
        self.reloads = 0

    def reload(self):
        self.reloads += 1

    def warnings(self):
        return [f"read {self.reloads} times"]


class TcpServer:
    """A TCP listener that is open, and what came of those who used it."""

    def __init__(self, host="127.0.0.1", most=100):
        self.handshake = NameHandshake()
        self.papers = Papers()
        self.limiter = ConnectionLimiter(most)
        self.refused = []
        self.served = []
        self.listener = tcp.TcpListener(
            tcp.bind("test", Endpoint(host, 0)),
            self.handshake,
            self.papers,
            send_timeout=10,
            report=lambda *what: self.refused.append(what),
        )
        self.address = (host, int(self.listener.address.rpartition(":")[2]))

    async def welcome(self, carrier, principal):
        self.served.append(principal.key)
        await carrier.send([b"welcome\n"])
        while await carrier.receive() is not None:
            pass

    async def run(self):
        async with trio.open_nursery() as connections:
            await self.listener.accept_all(connections, self.limiter, self.welcome)

    def connect(self, source=None):
        return socket.create_connection(self.address, 10, source_address=(source, 0) if source else None)


@pytest.fixture
async def make_server():
    async with trio.open_nursery() as nursery:
        made = []

        def make(*args, **more):
            made.append(TcpServer(*args, **more))
            nursery.start_soon(made[-1].run)
            return made[-1]

        yield make
        nursery.cancel_scope.cancel()
    for server in made:
        server.listener.close()


async def until(condition):
    with trio.fail_after(60):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.005)


async def line(connected):
    with connected.makefile("rb") as lines:
        return await trio.to_thread.run_sync(lines.readline)


async def test_who_proves_who_it_is_is_served_and_who_does_not_is_reported(make_server) -> None:
    server = make_server()
    with server.connect() as known, server.connect() as unknown:
        known.sendall(b"alice")
        assert await line(known) == b"welcome\n"
        unknown.sendall(b"???")
        assert await line(unknown) == b""
        await until(lambda: server.refused)
    assert server.served == ["cert:CN=alice"]
    assert server.refused == [("test", "127.0.0.1", "no name")]


async def test_few_unknown_peers_of_one_user_are_held_and_other_users_are_still_served(
    make_server, monkeypatch
) -> None:
    # As if each address were another user's; that the kernel tells users apart is test_loopback's.
    monkeypatch.setattr(tcp, "peer_uid", lambda connected: int(connected.getpeername()[0].rpartition(".")[2]))
    server = make_server()
    unknown_peers = [server.connect("127.0.0.2") for _ in range(MOST_UNKNOWN_PEERS_EACH)]
    await until(lambda: len(server.handshake.authenticating) == MOST_UNKNOWN_PEERS_EACH)
    with server.connect("127.0.0.2") as one_more, server.connect("127.0.0.3") as other:
        for who in (one_more, other):
            who.sendall(b"bob")
            assert await line(who) == b"welcome\n"
        # The oldest of that user made room; another's place was not needed.
        assert await trio.to_thread.run_sync(unknown_peers[0].recv, 10) == b""
    unknown_peers[1].sendall(b"carol")
    assert await line(unknown_peers[1]) == b"welcome\n"
    for other in unknown_peers:
        other.close()


def test_silent_peers_make_room_before_one_that_has_begun_to_say_who_it_is() -> None:
    places = Places(8, 2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pairs = []
        for word in (b"?", b"", b""):
            peer = socket.create_connection(listening.getsockname(), 10)
            peer.sendall(word)
            pairs.append((peer, listening.accept()[0]))
        pairs[0][1].recv(1)
        for _, connected in pairs:
            places.take(connected, "one of them")
    for peer, connected in pairs:
        peer.settimeout(0 if peer is not pairs[1][0] else 10)
        if peer is pairs[1][0]:
            assert peer.recv(1) == b""
        else:
            with pytest.raises(BlockingIOError):
                peer.recv(1)
        peer.close()
        connected.close()


def test_few_unknown_peers_are_held_in_all() -> None:
    class Peer:
        ended = False

        def getsockopt(self, *_place):
            raise OSError

        def shutdown(self, _how):
            self.ended = True

    places, peers = Places(8, 4), [Peer() for _ in range(10)]
    leave = [places.take(peer, owner) for peer, owner in zip(peers[:8], "aabbbbcc", strict=True)]
    places.take(peers[8], "d")
    assert [peer.ended for peer in peers].index(True) == 2
    leave[2]()
    assert len(places) == 8
    leave[0]()
    leave[0]()
    assert len(places) == 7
    places.take(peers[9], "e")
    assert sum(peer.ended for peer in peers) == 1


async def test_past_the_limit_who_has_connections_is_refused_and_who_has_none_is_not(make_server) -> None:
    server = make_server(most=2)
    clients = []
    for name in (b"alice", b"alice", b"alice", b"bob"):
        clients.append(server.connect())
        clients[-1].sendall(name)
        await until(lambda: len(server.handshake.authenticating) == len(clients))
        if len(clients) != 3:
            assert await line(clients[-1]) == b"welcome\n"
    refusal = json.loads(await line(clients[2]))
    assert refusal["error"]["code"] == -32005
    assert refusal["error"]["data"] == {"max_connections": 2}
    for client in clients:
        client.close()
    await until(lambda: not server.limiter._inside)
    assert not server.limiter._held
    assert not server.limiter.unknown_peers


async def test_a_connection_that_is_reset_before_it_is_looked_at_is_passed_over(make_server, monkeypatch) -> None:
    server = make_server()

    def gone(_self):
        raise OSError(errno.ENOTCONN, "not connected")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "getpeername", gone)
        with server.connect() as lost:
            assert await trio.to_thread.run_sync(lost.recv, 10) == b""
    with server.connect() as client:
        client.sendall(b"alice")
        assert await line(client) == b"welcome\n"


async def test_an_ipv6_listener_has_brackets(make_server) -> None:
    try:
        server = make_server("::1")
    except ConfigError as error:
        pytest.skip(f"{error}; this machine has no IPv6: `sysctl net.ipv6.conf.lo.disable_ipv6=0`")
    assert server.listener.address.startswith("test://[::1]:")
    with server.connect() as client:
        client.sendall(b"alice")
        assert await line(client) == b"welcome\n"
    assert server.handshake.authenticating == ["::1"]


def test_an_address_that_is_taken_is_an_error_with_section_and_address() -> None:
    with tcp.bind("tls", Endpoint("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = rf"\[tls\] listen: cannot listen on 127\.0\.0\.1:{port}: Address already in use; choose another"
        with pytest.raises(ConfigError, match=message):
            tcp.bind("tls", Endpoint("127.0.0.1", port))


def test_a_64_of_ipv6_counts_as_one_place_and_so_does_a_user_of_this_machine() -> None:
    def place(peer):
        return tcp._origin(peer, ours)

    listening = tcp.bind("test", Endpoint("127.0.0.1", 0))
    with listening, socket.create_connection(listening.getsockname()) as theirs:
        ours, _ = listening.accept()
        with ours:
            assert place("2001:db8::1") == place("2001:db8::2:3") != place("2001:db8:0:1::1")
            assert place("fe80::1%eth0") == "fe80::/64"
            assert place("192.0.2.1") == "192.0.2.1"
            assert place("127.0.0.1") == f"uid:{os.geteuid()}"
            theirs.close()
            # Who has gone, or whom the kernel does not know, counts by address.
            assert place("127.0.0.1") == "127.0.0.1"


async def test_reloading_and_warning_are_the_certificates_business(make_server) -> None:
    server = make_server()
    server.listener.reload()
    assert server.papers.reloads == 1
    assert server.listener.warnings() == ["read 1 times"]
