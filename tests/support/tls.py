"""The TLS handshake of the daemon behind an accept loop of its own, and raw clients that know nothing of hearth."""

from __future__ import annotations

import os
import socket
from contextlib import asynccontextmanager, closing

import trio
from support.waiting import passes

from hearth.actors.listeners.accept import AuthenticationFailed
from hearth.actors.listeners.tls import Certificates, TlsHandshake


class TlsServer:
    """An echo server: `rejected` has the reasons of failed handshakes, `principals` the peers, in their order."""

    def __init__(self, bench, *, handshake_timeout=60.0, send_timeout=60.0, client="required"):
        self.bench = bench
        self.certificates = Certificates("tls", bench.server_cert, bench.server_key, bench.ca, client=client)
        self.handshake = TlsHandshake(self.certificates, handshake_timeout=handshake_timeout, send_timeout=send_timeout)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.port = self.listening.getsockname()[1]
        self.rejected = []
        self.principals = []
        self.connections = 0
        self.open_sockets = 0
        self._clients = []

    def close(self):
        """Close what is still open, on both sides."""
        self.listening.close()
        for client in self._clients:
            client.close()

    async def run(self):
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(self.listening)
                connected, _ = self.listening.accept()
                connected.setblocking(False)
                self.open_sockets += 1
                nursery.start_soon(self._serve, connected)

    async def _serve(self, connected):
        try:
            await self.handshake.authenticate(connected, "127.0.0.1", self.echo)
        except AuthenticationFailed as failure:
            self.rejected.append(str(failure))
        finally:
            assert connected.fileno() == -1
            self.open_sockets -= 1

    async def echo(self, carrier, principal):
        """Send everything back that comes."""
        self.principals.append(principal)
        self.connections += 1
        try:
            while data := await carrier.receive():
                await carrier.send([data])
        finally:
            self.connections -= 1

    def connect(self):
        """A plain TCP connection, blocking, with a bound on every wait; closed with the server."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        self._clients.append(client)
        return client

    async def client(self, context=None, session=None):
        """A TLS stream, as the bench's client or with another context; closed with the server."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self._clients.append(stream.socket)
        stream = trio.SSLStream(stream, context or self.bench.client_context(), server_hostname="localhost")
        if session is not None:
            stream.session = session
        await stream.do_handshake()
        return stream

    async def refusal(self, context):
        """What a client that is refused sees at last, its stream's error; it may learn of it only when it reads."""
        try:
            stream = await self.client(context)
            await stream.receive_some()
        except trio.BrokenResourceError as error:
            return error.__cause__
        raise AssertionError("it was not refused")

    async def quiet(self):
        """Wait until no connection is open."""
        await passes(lambda: not self.open_sockets)


async def echoed(stream, data=b"hello\n"):
    """Whether the other side serves: what is sent comes back."""
    await stream.send_all(data)
    received = b""
    while len(received) < len(data):
        piece = await stream.receive_some()
        if not piece:
            return False
        received += piece
    return received == data


def descriptors():
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def opened(bench, **options):
    """`async with opened(bench, handshake_timeout=…) as server`; an exception of the handshake's fails the test."""
    server = TlsServer(bench, **options)
    with closing(server):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            with trio.fail_after(60):
                yield server
            nursery.cancel_scope.cancel()
