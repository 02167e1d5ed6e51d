"""The HTTP listener: accepts as the other TCP listeners do, and serves each connection with the application.

A principal for which no connection is left may still halt: its connection stays in its place for unknown peers, or in
one of `_last` where descriptors are scarce. A WebSocket there takes halt and halt.status, /mcp the call of the halt's
tool, and the page's files are served; the answer to all else is 503. A newcomer at a full place ends an older one.

It owns the order of start and stop. The application is opened with the first accept, since only then is there a
runtime. It is closed after the listening has stopped, so that answers under way are still sent.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from hearth.actors.bridges.http.app import HACP, HttpProblem
from hearth.actors.bridges.http.connection import GRACE, PeerConnection
from hearth.actors.listeners.accept import FOLDED, MOST_HALTING, AuthenticationFailed, Places, has_body, values
from hearth.actors.listeners.tcp import Listening, each_unknown_peer
from hearth.actors.listeners.tls import certificate_of, handshake
from hearth.actors.supervisor import contain
from hearth.actors.transport import CLOSING
from hearth.errors import QueueFull
from hearth.protocol.jsonrpc import dump_error
from hearth.transport.problems import MEDIA_TYPE, document
from hearth.transport.sockets import SocketTransport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from hypercorn.events import Event
    from hypercorn.typing import AppWrapper, H11SendableEvent
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hearth.actors.bridges.http.app import Hosts
    from hearth.actors.listeners.accept import ConnectionLimiter, SessionHandler
    from hearth.actors.listeners.tcp import Report
    from hearth.actors.listeners.tls import Certificates
    from hearth.actors.listeners.websocket import WebSocketHandshake
    from hearth.actors.transport import Carrier
    from hearth.policy.principal import Principal

# --- listener ---------------------------------------------------------------------------------------------------------

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
        self._settings = settings()
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
            http = HttpConnection(app, self._settings, stream, transport, connection, upgrades)
            await http.run()
            if http.upgraded is not None:
                await self._serve_websocket(Replayed(http.upgraded, stream), transport, connection, handler)
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


# --- The framing of requests: where one ends, and how many bytes it may use beside its body --------------------------
#
# h11 parses. Its own limit holds only while an event is incomplete: a head that arrives in one segment passes it,
# whatever its size. Here both limits are exact, however the bytes are cut into segments: `HEADER_BYTES` for request
# line and headers, and as much again for the framing of a chunked body (chunk lines with their extensions, and
# trailers). They hold if the connection never gets more than `room` bytes before its events are taken.
#
# A request that a proxy may frame differently is refused: one with both Content-Length and Transfer-Encoding, and one
# of HTTP/1.0 with Transfer-Encoding (RFC 9112, section 6.1); one with a header that is continued on a second line
# (section 5.2); and one to upgrade to a WebSocket with a body, which a proxy may take for frames.

HEADER_BYTES: Final = 16 << 10
"""Bytes of a request's line and headers, at most; a longer head is answered 431."""
FRAMING_EACH: Final = 8
"""Bytes of framing that each byte of a chunked body may add: a chunk of one byte takes five."""


class Framing(h11.Connection):
    """The server's end of one connection."""

    def __init__(self) -> None:
        # h11 refuses an incomplete event beyond this size: HEADER_BYTES of head without its end are already too long.
        super().__init__(h11.SERVER, max_incomplete_event_size=HEADER_BYTES - 1)
        self._unread = b""
        """The bytes received and not yet parsed."""
        self._framing = 0
        self._body = 0
        self.answers_head = False
        """True for a HEAD request, whose answer has no body."""

    @property
    def room(self) -> int:
        """Return the number of bytes that `receive_data` may get next, at most."""
        return max(1, HEADER_BYTES - len(self._unread))

    def receive_data(self, data: bytes) -> None:
        """See h11.Connection."""
        self._unread += data
        super().receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """See h11.Connection.

        Raises RemoteProtocolError for a head or framing that is too long, or that another reader may take differently.
        """
        before = self._unread
        event = super().next_event()
        self._unread = self.trailing_data[0]
        parsed = len(before) - len(self._unread)
        if isinstance(event, (h11.Request, h11.EndOfMessage)) and FOLDED.search(before, 0, parsed):
            raise h11.RemoteProtocolError("a header is continued on a second line", error_status_hint=400)
        if isinstance(event, h11.Request):
            self._framing = self._body = 0
            self.answers_head = event.method == b"HEAD"
            _require_one_reading(event)
            return event
        carried = len(event.data) if isinstance(event, h11.Data) else 0
        self._framing += parsed - carried
        # Compared before its data are added: each line has to fit what came before it, wherever the segments end.
        if self._framing > HEADER_BYTES + FRAMING_EACH * self._body:
            raise h11.RemoteProtocolError("too much framing for the body", error_status_hint=431)
        self._body += carried
        return event


def _require_one_reading(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version < b"1.1"):
        raise h11.RemoteProtocolError("the request's length is given in two ways", error_status_hint=400)
    to_websocket = any("websocket" in value.lower() for value in values(request.headers, b"upgrade"))
    if to_websocket and has_body(request.headers):
        raise h11.RemoteProtocolError("a request to upgrade to a WebSocket has a body", error_status_hint=400)


# --- HTTP/1.1 on one connection: hypercorn's protocol and ASGI, over a Trio stream -----------------------------------
#
# Hypercorn reads and writes the messages. This part decides when a connection ends, and ends its tasks with it. It
# speaks HTTP/1.1 only: a request to upgrade to HTTP/2 is answered as a plain request, and so is one to upgrade to a
# WebSocket, unless it is the first on its connection and `upgrades` says that it is for another part of the daemon.

log = logging.getLogger("hearth.http")

QUEUED = 8
"""Pieces of a body that wait for the application, each at most one read of the stream."""
_WHY = {
    400: "this is no HTTP/1.1 request that can be read; or its length is given in two ways, a header is continued on a "
    "second line, or it asks for a WebSocket and has a body",
    431: f"the request's headers, or its chunk extensions and trailers, are longer than {HEADER_BYTES} bytes",
}


def settings() -> Config:
    """Return hypercorn's configuration."""
    config = Config()
    config.include_server_header = False
    config.keep_alive_max_requests = 1 << 60
    config.max_app_queue_size = QUEUED
    config.errorlog = log
    config.accesslog = None
    return config


class HttpConnection:
    """Serves `app` on one connection until it ends; `transport` is the stream, or what lies beneath its TLS."""

    def __init__(
        self,
        app: ASGIApp,
        config: Config,
        stream: trio.abc.Stream,
        transport: SocketTransport,
        connection: PeerConnection,
        upgrades: Callable[[h11.Request], bool] | None = None,
    ) -> None:
        self._upgrades = upgrades
        self._received = b""
        """All bytes up to the first request, while that may be one to upgrade."""
        self.upgraded: bytes | None = None
        """After `run`: what was received, if the first request is for another protocol, which has to answer it."""
        self._app = app
        self._config = config
        self._stream = stream
        self._transport = transport
        self._connection = connection
        self._turn = trio.Lock()
        self._reading = trio.CancelScope()
        self._closing = False
        """True once the last answer is sent: what the peer still sends is read and dropped."""
        self._ignoring_input = False
        """True once reading has stopped while an answer is still due."""

    async def run(self) -> None:
        """Serve the connection until it and its requests have ended."""
        encrypted = self._stream is not self._transport
        try:
            connected = self._transport.socket
            client, server = connected.getpeername()[:2], connected.getsockname()[:2]
        except OSError:  # the peer has reset it
            return
        async with trio.open_nursery() as nursery:
            requests = self._requests = _Requests(nursery, self._connection)
            state = ConnectionState({"connection": self._connection})
            self._protocol = _Protocol(requests, self._app, self._config, state, encrypted, client, server, self._send)
            self._protocol.upgrades = self._upgrades
            with self._reading:
                await self._read()
            if self.upgraded is None and not self._ignoring_input:
                await self._protocol.handle(Closed())
                self._connection.close_within(GRACE)

    async def _read(self) -> None:
        while True:
            try:
                data = await self._stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if self._closing:
                if not data:
                    return
                continue
            if data:
                self._connection.note_data()
            if self._protocol.upgrades is not None:
                self._received += data
            try:
                await self._protocol.receive(bytes(data), lambda: self._closing or self._ignoring_input)
            except _Upgraded:
                self.upgraded = self._received
                return
            if not data or self._ignoring_input:
                return

    async def _send(self, event: Event) -> None:
        if isinstance(event, Updated):
            if event.idle:
                self._requests.answering = False
                self._connection.answered()
            else:
                self._connection.begun()
        elif isinstance(event, RawData):
            if not await self._sent(event.data):
                await self._protocol.handle(Closed())
                self._reading.cancel()
        elif isinstance(event, Closed):
            unfinished = self._protocol.connection.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)
            if unfinished and self._requests.answering and self._protocol.stream is not None:
                # The bytes after the request are invalid. The request is still answered; then the connection closes.
                self._ignoring_input = True
                return
            self._close()
            await self._protocol.handle(Closed())

    async def _sent(self, data: bytes) -> bool:
        """Send data whole; False if the connection broke.

        Cancelling a request must not cut its answer in half: only the connection's end may.
        """
        async with self._turn:
            with trio.CancelScope(shield=True) as self._connection.sending:
                try:
                    await self._stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return False
                return True
        return False

    def _close(self) -> None:
        """End the sending side, and read on for a moment: otherwise the peer might never see the last answer."""
        self._closing = True
        self._reading.deadline = trio.current_time() + CLOSING
        if self._stream is self._transport:
            with suppress(OSError):
                self._transport.socket.shutdown(socket.SHUT_WR)


class _Upgraded(Exception):
    """The request is for another protocol."""


class _Protocol(H11Protocol):
    """Hypercorn's HTTP/1.1 without its upgrades to other protocols."""

    upgrades: Callable[[h11.Request], bool] | None = None
    """Asked about the first request, and None from then on."""

    def __init__(
        self,
        requests: _Requests,
        app: ASGIApp,
        config: Config,
        state: ConnectionState,
        encrypted: bool,
        client: tuple[str, int],
        server: tuple[str, int],
        send: Callable[[Event], Awaitable[None]],
    ) -> None:
        application: Any = app  # only `_Requests` calls it, as the ASGI application that it is
        tasks: Any = requests  # as much of a task group as is used
        super().__init__(application, config, WorkerContext(None), tasks, state, encrypted, client, server, send)
        self._requests = requests
        self.connection = self._framing = Framing()
        self._head = b""
        """An answer's head that waits for its body: one packet, and one wake-up of the peer, instead of two."""

    async def receive(self, data: bytes, is_over: Callable[[], bool]) -> None:
        """Take received bytes (empty at the end) in pieces that keep h11's limits exact, until `is_over`."""
        while True:
            room = self._framing.room
            piece, data = data[:room], data[room:]
            await self.handle(RawData(piece))
            if not data or is_over():
                return

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        try:
            data = self._head + (self.connection.send(event) or b"")
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        self._head = b""
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._head = data
        elif data:
            await self.send(RawData(data=data))

    async def _check_protocol(self, event: h11.Request) -> None:
        """Refuse every upgrade to HTTP/2. Raises _Upgraded for a first request that another protocol answers."""
        upgrades, self.upgrades = self.upgrades, None
        if upgrades is not None and upgrades(event):
            raise _Upgraded

    async def _create_stream(self, request: h11.Request) -> None:
        headers = [(name, value) for name, value in request.headers if name != b"upgrade"]
        await super()._create_stream(
            h11.Request(
                method=request.method, target=request.target, headers=headers, http_version=request.http_version
            )
        )

    async def _send_error_response(self, status_code: int) -> None:
        if self._requests.answering:
            # See HttpConnection._send: the error follows a complete request, which gets its own answer.
            return
        body = document(status_code, _WHY.get(status_code, "the request cannot be served"))
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        if not self._framing.answers_head:
            await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class _Requests:
    """The tasks of a connection's requests; an exception ends only its own request."""

    def __init__(self, nursery: trio.Nursery, connection: PeerConnection) -> None:
        self._nursery = nursery
        self._connection = connection
        self.answering = False
        """True while a complete request has no answer yet."""

    async def spawn_app(
        self, app: AppWrapper, config: Config, scope: Scope, send: Callable[[Message | None], Awaitable[None]]
    ) -> Callable[[Message], Awaitable[None]]:
        """Begin a request; return the function that passes it the peer's messages."""
        to_app, from_peer = trio.open_memory_channel["Message"](config.max_app_queue_size)

        async def receive() -> Message:
            try:
                return await from_peer.receive()
            except trio.EndOfChannel:
                return {"type": "http.disconnect"}

        async def put(message: Message) -> None:
            if message["type"] == "http.disconnect":
                # The disconnect must arrive, however much of the body is unread.
                to_app.close()
                return
            self.answering = not message.get("more_body", False)
            # An application that has answered reads no more; the rest of the body is dropped.
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await to_app.send(message)

        async def serve() -> None:
            with from_peer:
                application: Any = app
                await contain(
                    f"a request of {self._connection.peer}",
                    partial(_run, application, scope, receive, send),
                    lambda _error: None,
                )
            await send(None)

        self.answering = False
        self._nursery.start_soon(serve)
        return put


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
