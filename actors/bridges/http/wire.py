"""HTTP/1.1 on one connection: hypercorn's protocol and ASGI, over a stream and a clock of our own.

What hypercorn reads and writes is hypercorn's; when a connection ends, and that one which ends takes its tasks with
it, is decided here. Spoken is HTTP/1.1 and nothing else: what asks for HTTP/2 or a WebSocket is answered as if it had
not asked.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from hearth.actors.bridges.http.framing import HEADER_BYTES, Framing
from hearth.actors.bridges.http.problems import MEDIA_TYPE, document
from hearth.actors.bridges.http.visit import GRACE
from hearth.actors.listeners.streams import CLOSING
from hearth.actors.supervisor import contain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.events import Event
    from hypercorn.typing import AppWrapper, H11SendableEvent
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hearth.actors.bridges.http.visit import Visit
    from hearth.actors.listeners.streams import SocketTransport

log = logging.getLogger("hearth.http")

QUEUED = 8
"""Pieces of a body that wait for the application, of at most what the stream reads at once."""
_WHY = {
    400: "this is no HTTP/1.1 request that can be read, or its length is given in two ways",
    431: f"the request's headers, or its chunk extensions and trailers, are longer than {HEADER_BYTES} bytes",
}


def settings() -> Config:
    """What hypercorn goes by, as far as it is not decided here."""
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
        self, app: ASGIApp, config: Config, stream: trio.abc.Stream, transport: SocketTransport, visit: Visit
    ) -> None:
        self._app = app
        self._config = config
        self._stream = stream
        self._transport = transport
        self._visit = visit
        self._turn = trio.Lock()
        self._reading = trio.CancelScope()
        self._closing = False
        """Whether the last answer has gone out, and what still comes is read past."""
        self._deaf = False
        """Whether what comes is read no more, but an answer is still due."""

    async def run(self) -> None:
        """Returns when the connection has ended, its requests with it."""
        encrypted = self._stream is not self._transport
        try:
            connected = self._transport.socket
            client, server = connected.getpeername()[:2], connected.getsockname()[:2]
        except OSError:  # it was reset meanwhile
            return
        async with trio.open_nursery() as nursery:
            requests = self._requests = _Requests(nursery, self._visit)
            state = ConnectionState({"visit": self._visit})
            self._protocol = _Protocol(requests, self._app, self._config, state, encrypted, client, server, self._send)
            with self._reading:
                await self._read()
            if not self._deaf:
                await self._protocol.handle(Closed())
                self._visit.hurry(GRACE)

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
                self._visit.heard()
            await self._protocol.receive(bytes(data), lambda: self._closing or self._deaf)
            if not data or self._deaf:
                return

    async def _send(self, event: Event) -> None:
        if isinstance(event, Updated):
            if event.idle:
                self._requests.answering = False
                self._visit.answered()
            else:
                self._visit.begun()
        elif isinstance(event, RawData):
            if not await self._sent(event.data):
                await self._protocol.handle(Closed())
                self._reading.cancel()
        elif isinstance(event, Closed):
            unfinished = self._protocol.connection.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)
            if unfinished and self._requests.answering and self._protocol.stream is not None:
                # What follows the request is nonsense; it is answered all the same, and the connection closed then.
                self._deaf = True
                return
            self._close()
            await self._protocol.handle(Closed())

    async def _sent(self, data: bytes) -> bool:
        """Whether all of it went out. Whoever gives up an answer must not tear it: only the connection's end may."""
        async with self._turn:
            with trio.CancelScope(shield=True) as self._visit.sending:
                try:
                    await self._stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return False
                return True
        return False

    def _close(self) -> None:
        """No more answers. What the peer still sends is read for a moment: else it might never see the last one."""
        self._closing = True
        self._reading.deadline = trio.current_time() + CLOSING
        if self._stream is self._transport:
            with suppress(OSError):
                self._transport.socket.shutdown(socket.SHUT_WR)


class _Protocol(H11Protocol):
    """Hypercorn's HTTP/1.1, without its ways out of it."""

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
        """An answer's head that waits for its body: one packet, and one time that the peer is woken, instead of two."""

    async def receive(self, data: bytes, is_over: Callable[[], bool]) -> None:
        """Take what has come, empty at the end, in pieces that h11's bounds hold for, until it `is_over`."""
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
        """Nobody is moved to HTTP/2."""

    async def _create_stream(self, request: h11.Request) -> None:
        headers = [(name, value) for name, value in request.headers if name != b"upgrade"]
        await super()._create_stream(
            h11.Request(
                method=request.method, target=request.target, headers=headers, http_version=request.http_version
            )
        )

    async def _send_error_response(self, status_code: int) -> None:
        if self._requests.answering:
            # See HttpConnection._send: what is wrong follows a request that is whole, and has its answer.
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
    """The tasks of a connection's requests; what one raises ends that request alone."""

    def __init__(self, nursery: trio.Nursery, visit: Visit) -> None:
        self._nursery = nursery
        self._visit = visit
        self.answering = False
        """Whether there is a request that is whole and not yet answered."""

    async def spawn_app(
        self, app: AppWrapper, config: Config, scope: Scope, send: Callable[[Message | None], Awaitable[None]]
    ) -> Callable[[Message], Awaitable[None]]:
        """Begin a request; returns where what comes of it is put."""
        to_app, from_peer = trio.open_memory_channel["Message"](config.max_app_queue_size)

        async def receive() -> Message:
            try:
                return await from_peer.receive()
            except trio.EndOfChannel:
                return {"type": "http.disconnect"}

        async def put(message: Message) -> None:
            if message["type"] == "http.disconnect":
                # It must arrive, however much of the body lies unread before it.
                to_app.close()
                return
            self.answering = not message.get("more_body", False)
            # An application that has answered reads no more: the rest of the body is nobody's.
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await to_app.send(message)

        async def serve() -> None:
            with from_peer:
                application: Any = app
                await contain(
                    f"a request of {self._visit.peer}",
                    partial(_run, application, scope, receive, send),
                    lambda _error: None,
                )
            await send(None)

        self.answering = False
        self._nursery.start_soon(serve)
        return put


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
