"""HTTP/1.1 on one connection, and ASGI above it: h11 parses, Trio carries.

Two tasks serve a connection. `_read` feeds bytes to `Framing`, which holds at most `HEADER_BYTES` of them, and thus
notices the end of the peer also while a request is answered. `_serve` takes one request after the other and runs the
application for each. Nothing else is queued: an application's `receive` takes its events from `Framing`, and makes room
for `_read` with that. Both wait in `_changed`, which is unparked after every change of what they look at; they look and
park without a checkpoint between, so no change is missed.

The states of a request are h11's, and two more. `_body_due`: the end of the body has not been taken. `_cut`: no more of
this answer is sent, because the peer broke HTTP or the connection; sends then do nothing, and `receive` says
http.disconnect. A request whose body is not here in full when its answer ends closes the connection, as does everything
after which h11 takes no other one.

Cancellation: each wait of `receive`, and the wait for the turn to send, may be cancelled, and nothing is lost. A send
that has begun is shielded from its request; only `PeerConnection` ends it. An exception of the application ends its
request, and with it the connection unless the answer was complete.

This module does not know routes, principals or deadlines: `PeerConnection` hears of bytes, requests and answers, and
ends the connection. HTTP/2 and WebSockets are not spoken. `upgrades` may claim a connection by its first request.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import h11
import trio

from hearth.actors.listeners.accept import FOLDED, has_body, values
from hearth.actors.supervisor import contain
from hearth.actors.transport import CLOSING
from hearth.transport.problems import MEDIA_TYPE, document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import ASGIApp, Message

    from hearth.actors.bridges.http.connection import PeerConnection
    from hearth.transport.sockets import SocketTransport

HEADER_BYTES: Final = 16 << 10
"""Bytes of a request's line and headers, at most; a longer head is answered 431."""
FRAMING_EACH: Final = 8
"""Bytes of framing that each byte of a chunked body may add: a chunk of one byte takes five."""
_WHY: Final = {
    400: "this is no HTTP/1.1 request that can be read; or its length is given in two ways, a header is continued on a "
    "second line, or it asks for a WebSocket and has a body",
    431: f"the request's headers, or its chunk extensions and trailers, are longer than {HEADER_BYTES} bytes",
    500: "an internal error; see the daemon's log",
}


class Framing:
    """Where a request ends, and how many bytes it may use beside its body. No I/O.

    h11's own limit holds only while an event is incomplete: a head that arrives in one segment passes it, whatever its
    size. Both limits here are exact, however the bytes are cut into segments: `HEADER_BYTES` for request line and
    headers, and as much again for the framing of a chunked body (chunk lines with their extensions, and trailers). They
    hold if `receive_data` never gets more than `room` bytes.

    A request that a proxy may frame differently is refused: one with both Content-Length and Transfer-Encoding, and one
    of HTTP/1.0 with Transfer-Encoding (RFC 9112, section 6.1); one with a header that is continued on a second line
    (section 5.2); and one to upgrade to a WebSocket with a body, which a proxy may take for frames.
    """

    def __init__(self) -> None:
        # h11 refuses an incomplete event beyond this size: HEADER_BYTES of head without its end are already too long.
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES - 1)
        self.unread = b""
        """The bytes received and not yet parsed."""
        self.head = b""
        """The bytes of the last request's line and headers."""
        self.method = b""
        """The method of the request under way."""
        self._framing = 0
        self._body = 0

    @property
    def room(self) -> int:
        """Return the number of bytes that `receive_data` may get next, at most."""
        return HEADER_BYTES - len(self.unread)

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the peer; none are its end."""
        self.unread += data
        self.http.receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """Return the next event.

        Raises RemoteProtocolError for a head or framing that is too long, or that another reader may take differently.
        """
        before = self.unread
        event = self.http.next_event()
        self.unread = self.http.trailing_data[0]
        parsed = len(before) - len(self.unread)
        if isinstance(event, (h11.Request, h11.EndOfMessage)) and FOLDED.search(before, 0, parsed):
            raise h11.RemoteProtocolError("a header is continued on a second line", error_status_hint=400)
        if isinstance(event, h11.Request):
            self._framing = self._body = 0
            self.head, self.method = before[:parsed], event.method
            _require_one_reading(event)
            return event
        carried = len(event.data) if isinstance(event, h11.Data) else 0
        self._framing += parsed - carried
        # Compared before its data are added: each line has to fit what came before it, wherever the segments end.
        if self._framing > HEADER_BYTES + FRAMING_EACH * self._body:
            raise h11.RemoteProtocolError("too much framing for the body", error_status_hint=431)
        self._body += carried
        return event

    def start_next_cycle(self) -> None:
        """Expect another request. Raises LocalProtocolError where the connection takes no other one."""
        self.http.start_next_cycle()
        self.method = b""


def _require_one_reading(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version < b"1.1"):
        raise h11.RemoteProtocolError("the request's length is given in two ways", error_status_hint=400)
    to_websocket = any("websocket" in value.lower() for value in values(request.headers, b"upgrade"))
    if to_websocket and has_body(request.headers):
        raise h11.RemoteProtocolError("a request to upgrade to a WebSocket has a body", error_status_hint=400)


class HttpConnection:
    """Serves `app` on one connection until it ends; `transport` is the stream, or what lies beneath its TLS."""

    def __init__(
        self,
        app: ASGIApp,
        stream: trio.abc.Stream,
        transport: SocketTransport,
        connection: PeerConnection,
        upgrades: Callable[[h11.Request], bool] | None = None,
    ) -> None:
        self._app = app
        self._stream = stream
        self._transport = transport
        self._connection = connection
        self._upgrades = upgrades
        """Asked about the first request, and None from then on."""
        self._framing = Framing()
        self._http = self._framing.http
        self._changed = trio.lowlevel.ParkingLot()
        self._turn = trio.Lock()
        self._ended = False
        """True once the peer has ended its side."""
        self._closing = False
        """True once the last answer is sent: what the peer still sends is read and dropped."""
        self._cut = False
        self._body_due = False
        self._bodiless = False
        self._held: list[h11.Response] = []
        """An answer's head that waits for its body: one packet, and one wake-up of the peer, instead of two."""

    async def run(self) -> bytes | None:
        """Serve the connection until it and its requests have ended.

        Returns all received bytes if the first request is for another protocol, which has to answer it; else None.
        """
        connected = self._transport.socket
        try:
            addresses = {"client": connected.getpeername()[:2], "server": connected.getsockname()[:2]}
        except OSError:  # the peer has reset it
            return None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            upgraded = await self._serve(addresses)
            if not upgraded:
                await self._close()
            nursery.cancel_scope.cancel()
        return self._framing.head + self._framing.unread if upgraded else None

    async def _read(self) -> None:
        while not self._ended:
            room = None if self._closing else self._framing.room
            if room == 0:  # more requests have come than may wait
                await self._changed.park()
                continue
            try:
                data = bytes(await self._stream.receive_some(room))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            self._ended = not data
            if not self._closing:
                self._framing.receive_data(data)
                if data:
                    self._connection.note_data()
                else:
                    self._connection.gone()
            self._changed.unpark_all()

    async def _serve(self, addresses: dict[str, tuple[str, int]]) -> bool:
        """Answer requests until the connection takes no other one; return True for one that `upgrades` claims."""
        while (request := await self._request()) is not None:
            self._connection.begun()
            upgrades, self._upgrades = self._upgrades, None
            if upgrades is not None and upgrades(request):
                return True
            self._body_due = True
            path, _, query = request.target.partition(b"?")
            scope = {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.3"},
                "http_version": request.http_version.decode(),
                "method": request.method.decode(),
                "scheme": "http" if self._stream is self._transport else "https",
                "path": unquote(path.decode()),
                "raw_path": path,
                "query_string": query,
                "root_path": "",
                "headers": list(request.headers),
                "state": {"connection": self._connection},
                "extensions": {},
                **addresses,
            }
            answer = partial(self._app, scope, self._receive, self._send)
            await contain(f"a request of {self._connection.peer}", answer, lambda _error: None)
            if self._answering() and self._http.our_state is h11.SEND_RESPONSE and not self._ended:
                await self._refuse(500)
            if not self._reusable():
                return False
            self._connection.answered()
            if self._framing.unread:
                self._connection.note_data()
        return False

    async def _request(self) -> h11.Request | None:
        """Return the next request, or None at the end or after a refusal."""
        try:
            while (event := self._take()) is h11.NEED_DATA:
                await self._changed.park()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint)
            return None
        return event if isinstance(event, h11.Request) else None

    def _take(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        event = self._framing.next_event()
        if isinstance(event, h11.EndOfMessage):
            self._body_due = False
        self._changed.unpark_all()
        return event

    def _body(self) -> bytes:
        """Return what has come of the body since the last time. Raises RemoteProtocolError."""
        body = b""
        while self._body_due and (event := self._take()) is not h11.NEED_DATA:
            body += event.data if isinstance(event, h11.Data) else b""
        return body

    def _reusable(self) -> bool:
        if self._http.our_state is not h11.DONE:  # the answer is the last one, or was not sent whole
            return False
        try:
            # The application may have left a body that is there. One that is still coming is not waited for.
            self._body()
            self._framing.start_next_cycle()
        except h11.ProtocolError:
            return False
        return not self._cut

    def _answering(self) -> bool:
        return not self._cut and self._http.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    async def _receive(self) -> Message:
        """See ASGI: the request's body as it comes, then the end of the peer or of the answer."""
        while self._body_due and self._answering():
            try:
                body = self._body()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                break
            if body or not self._body_due:
                return {"type": "http.request", "body": body, "more_body": self._body_due}
            if self._http.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            else:
                await self._changed.park()
        while self._answering() and not self._ended:
            await self._changed.park()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        """See ASGI. h11 raises LocalProtocolError for a message that is not the next one of an answer."""
        if message["type"] == "http.response.start":
            response = self._response(message["status"], message.get("headers", ()))
            self._held.append(response)
            if not any(name == b"content-length" for name, _ in response.headers):
                await self._write()
        elif message["type"] == "http.response.body":
            data, ends = message.get("body", b""), not message.get("more_body", False)
            await self._write(*([h11.Data(data=data)] if data else []), *([h11.EndOfMessage()] if ends else []))
        else:
            raise ValueError(f"{message['type']} is not a message of an HTTP answer")

    def _response(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> h11.Response:
        return h11.Response(status_code=status, headers=[*headers, (b"date", formatdate(usegmt=True).encode())])

    async def _refuse(self, status: int) -> None:
        """Answer for an application that does not or must not, if it has not begun to, and cut its own answer."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._held.clear()
            body = document(status, _WHY.get(status, "the request cannot be served"))
            about = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body))]
            response = self._response(status, [*about, (b"connection", b"close")])
            await self._write(response, h11.Data(data=body), h11.EndOfMessage())
        self._cut = True
        self._changed.unpark_all()

    async def _write(self, *events: h11.Event) -> None:
        """Send the head that is held, and events: whole, unless the connection breaks or ends."""
        async with self._turn:
            if self._cut:
                return
            held, self._held = self._held, []
            data = b"".join(filter(None, map(self._bytes_of, (*held, *events))))
            sent = False
            with (
                self._connection.shielded(),
                suppress(trio.BrokenResourceError, trio.ClosedResourceError),
            ):
                await self._stream.send_all(data)
                sent = True
            if not sent:
                self._cut = True
                self._connection.gone()
        self._changed.unpark_all()

    def _bytes_of(self, event: h11.Event) -> bytes | None:
        if isinstance(event, h11.Response):
            self._bodiless = self._framing.method == b"HEAD" or event.status_code in (204, 304)
        return None if isinstance(event, h11.Data) and self._bodiless else self._http.send(event)

    async def _close(self) -> None:
        """End the sending side, and read on for a moment: otherwise the peer might never see the last answer."""
        self._closing = True
        self._changed.unpark_all()
        if self._stream is self._transport:
            with suppress(OSError):
                self._transport.socket.shutdown(socket.SHUT_WR)
        with trio.move_on_after(CLOSING):
            while not self._ended:
                await self._changed.park()
