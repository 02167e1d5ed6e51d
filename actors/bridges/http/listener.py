"""The HTTP listener: accepts as the other TCP listeners do, and serves each connection with the application.

A principal for which no connection is left may still halt: its connection stays in its place for unknown peers, or in
one of `_last` where descriptors are scarce. A WebSocket there takes halt and halt.status, /mcp the call of the halt's
tool, and the page's files are served; the answer to all else is 503. A newcomer at a full place ends an older one.

It owns the order of start and stop. The application is opened with the first accept, since only then is there a
runtime. It is closed after the listening has stopped, so that answers under way are still sent.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import trio

from hearth.actors.bridges.http.app import HACP, HttpProblem
from hearth.actors.bridges.http.connection import PeerConnection
from hearth.actors.bridges.http.server import HttpConnection
from hearth.actors.listeners.accept import MOST_HALTING, AuthenticationFailed, Places
from hearth.actors.listeners.tcp import Listening, each_unknown_peer
from hearth.actors.listeners.tls import certificate_of, handshake
from hearth.actors.supervisor import contain
from hearth.actors.transport import CLOSING
from hearth.errors import QueueFull
from hearth.protocol.jsonrpc import dump_error
from hearth.transport.sockets import SocketTransport

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    import h11
    from starlette.types import ASGIApp

    from hearth.actors.bridges.http.app import Hosts
    from hearth.actors.listeners.accept import ConnectionLimiter, SessionHandler
    from hearth.actors.listeners.tcp import Report
    from hearth.actors.listeners.tls import Certificates
    from hearth.actors.listeners.websocket import WebSocketHandshake
    from hearth.actors.transport import Carrier
    from hearth.policy.principal import Principal

FLUSH_TIMEOUT = 0.5
"""Seconds for sending answers once all sessions have ended, before streams are ended too."""


class HttpListener(Listening):
    """One TCP address that speaks HTTP. Implements `accepting.Listener`; times in seconds.

    `open_app` opens the application; its background work ends when the context is left. `count` is entered, with the
    carrier's name, for each connection.
    """

    def __init__(
        self,
        listening: socket.socket,
        certificates: Certificates | None,
        open_app: Callable[[], AbstractAsyncContextManager[ASGIApp]],
        *,
        handshake_timeout: float,
        send_timeout: float,
        report: Report,
        count: Callable[[str], AbstractContextManager[None]],
        hosts: Hosts,
        websocket: WebSocketHandshake | None = None,
    ) -> None:
        self._scheme = "http" if certificates is None else "https"
        super().__init__(self._scheme, listening, certificates)
        self._open_app = open_app
        self._handshake_timeout = handshake_timeout
        self._send_timeout = send_timeout
        self._report = report
        self._count = count
        self._hosts = hosts
        self._websocket = websocket
        """Answers requests for HACP; None if there is no page that sends any."""
        self._connections: set[PeerConnection] = set()
        # Twice as many descriptors are free for them: a connection that must end takes a moment.
        self._last = Places(MOST_HALTING // 2, MOST_HALTING // 2)
        self._over = trio.Event()
        self._left = trio.Event()
        """Set when a connection has ended."""

    async def accept_all(self, nursery: trio.Nursery, limiter: ConnectionLimiter, handler: SessionHandler) -> None:
        """See Listener. Connections are served here, and by `handler` once they have become a WebSocket."""
        app = await nursery.start(self._serve_app)

        def begin(connected: socket.socket, peer: str, settled: Callable[[], None]) -> None:
            connection = PeerConnection(connected, peer, settled, limiter, timeout=self._handshake_timeout)
            nursery.start_soon(self._serve, app, connection, handler)

        await each_unknown_peer(self._listening, limiter, self._send_timeout, begin, self._last)

    async def _serve_app(self, *, task_status: trio.TaskStatus[ASGIApp]) -> None:
        try:
            async with self._open_app() as app:
                task_status.started(app)
                await self._over.wait()
                for connection in list(self._connections):
                    connection.finish()
                # Answers to requests whose session has ended are being sent; a stream ends only when the application
                # closes.
                with trio.move_on_after(FLUSH_TIMEOUT):
                    await self._wait_until_all_ended()
            await self._wait_until_all_ended()
        finally:
            # Sends are shielded from the cancellation of their request, but not from the end of the listener.
            for connection in list(self._connections):
                connection.cut()

    async def _wait_until_all_ended(self) -> None:
        while self._connections:
            self._left = trio.Event()
            await self._left.wait()

    async def _serve(self, app: ASGIApp, connection: PeerConnection, handler: SessionHandler) -> None:
        self._connections.add(connection)
        try:
            with self._count(self._scheme), connection.connected, connection.scope:
                await contain(
                    f"connection of {connection.peer}",
                    partial(self._serve_stream, app, connection, handler),
                    lambda _error: None,
                )
        finally:
            self._connections.discard(connection)
            self._left.set()
            connection.over()

    async def _serve_stream(self, app: ASGIApp, connection: PeerConnection, handler: SessionHandler) -> None:
        connected = connection.connected
        stream: trio.abc.Stream
        if self._certificates is None:
            stream = transport = SocketTransport(connected, send_timeout=self._send_timeout)
        else:
            try:
                secure = await handshake(connected, self._certificates, self._handshake_timeout, self._send_timeout)
            except AuthenticationFailed as unknown_peer:
                self._report(self._scheme, connection.peer, str(unknown_peer))
                return
            # Read once, as on the other carriers: a peer that was admitted stays when its certificate expires.
            connection.certificate = cache(partial(certificate_of, secure))
            stream, transport = secure, secure.transport_stream
        upgrades = None if self._websocket is None else partial(self._upgrades, connected.getsockname()[0])
        try:
            received = await HttpConnection(app, stream, transport, connection, upgrades).run()
            if received is not None:
                await self._serve_websocket(Replayed(received, stream), transport, connection, handler)
        finally:
            with trio.move_on_after(CLOSING) as closing:
                closing.shield = True
                await stream.aclose()

    def _upgrades(self, address: str, request: h11.Request) -> bool:
        """Return True for a request that WebSocketHandshake answers; one of a foreign page is refused as any other."""
        headers = list(request.headers)
        asked = any(name == b"upgrade" and value.lower() == b"websocket" for name, value in headers)
        if request.method != b"GET" or request.target != HACP.encode() or not asked:
            return False
        try:
            self._hosts.origin(headers, self._hosts.check(headers, address))
        except HttpProblem:
            return False
        return True

    async def _serve_websocket(
        self, stream: Replayed, transport: SocketTransport, connection: PeerConnection, handler: SessionHandler
    ) -> None:
        """Serve a connection whose first request is for a WebSocket, as the WebSocket listener does."""
        assert self._websocket is not None

        async def let_in(carrier: Carrier, principal: Principal) -> None:
            refusal = connection.let_in(principal)
            if isinstance(refusal, QueueFull):
                connection.stay()
                await handler(carrier, principal, halts_only=refusal)
                return
            if refusal is not None:
                await carrier.send([dump_error(None, refusal)])
                await carrier.aclose()
                return
            await handler(carrier, principal)

        try:
            await self._websocket.serve(
                stream, transport, connection.certificate, connection.scope.deadline, connection.peer, let_in
            )
        except AuthenticationFailed as unknown_peer:
            self._report(self._scheme, connection.peer, str(unknown_peer))

    def finish(self) -> None:
        """See Listener."""
        self._over.set()


class Replayed(trio.abc.Stream):
    """A stream of which some bytes have been read: they are received first."""

    def __init__(self, read: bytes, stream: trio.abc.Stream) -> None:
        self._read = read
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """See trio.abc.ReceiveStream."""
        if not self._read:
            return await self._stream.receive_some(max_bytes)
        await trio.lowlevel.checkpoint()
        data, self._read = self._read[:max_bytes], self._read[max_bytes:] if max_bytes is not None else b""
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See trio.abc.SendStream."""
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """See trio.abc.AsyncResource."""
        await self._stream.aclose()
