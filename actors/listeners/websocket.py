"""WebSocket (draft §2.2): one JSON document per text message, over trio-websocket.

Each connection has a nursery of its own. It contains every exception that the library raises for a peer, which ends
only that connection. The library reads frames, fragments, the peer's pings and their UTF-8. The stream below it
(`websocket_stream`) bounds them. `examine` and `caller` check the request, and refuse it with one HTTP status that
discloses nothing else. An offered token appears in no exception, log or record.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import trio
import wsproto.utilities
from attrs import define, field
from trio_websocket import ConnectionClosed, wrap_server_stream

from hearth.actors.listeners import accept
from hearth.actors.listeners.accept import (
    AuthenticationFailed,
    Refused,
    has_body,
    is_cross_site,
    no_certificate,
    values,
)
from hearth.actors.listeners.tls import certificate_of, certificates_of, handshake
from hearth.actors.listeners.websocket_stream import SLACK, TOO_BIG, KeepAliveTimer, RateMeter, Wire
from hearth.actors.transport import PeerClosed, PeerGone, Unreadable
from hearth.policy.principal import from_loopback
from hearth.transport.sockets import SocketTransport

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence, Set as AbstractSet

    from trio_websocket import WebSocketConnection, WebSocketRequest

    from hearth.actors.listeners.accept import Certificate, ConnectionHandler, Listener, Opening
    from hearth.actors.listeners.tls import Certificates
    from hearth.policy.principal import Principal, Tokens

log = logging.getLogger("hearth.websocket")

RECEIVE_BYTES = 4 << 10
"""Bytes of one read. The library handles all their frames without a checkpoint: some ten milliseconds for the smallest
frames. With the read size of a line carrier it would take sixteen times as long."""
UNREAD_MESSAGES = 1
"""Messages that may wait for the connection. While one does, a later ping or close of the peer waits too. It waits only
if the client has the maximum of requests in flight, or does not read its answers; each further one could cost a
megabyte of memory."""
LOOKS = 8
"""Checks within the shorter of the two ping times: silence may be noticed later than configured by one such part."""
NO_REQUEST = "what it sent is no WebSocket request"
_LOST = 1006
"""The close code of a connection that was not closed but lost (RFC 6455 §7.4.1)."""

MALFORMED: tuple[type[Exception], ...] = (wsproto.utilities.ProtocolError, h11.ProtocolError, UnicodeError)
"""Exceptions of the library for a request that is not HTTP, or not ASCII."""
IN_SESSION: tuple[type[Exception], ...] = (
    ConnectionClosed,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    PeerGone,
    wsproto.utilities.ProtocolError,
)
"""Exceptions that a peer can cause in the library's tasks: a ping after the close has begun, a lost stream."""
IN_HANDSHAKE: tuple[type[Exception], ...] = (*IN_SESSION, *MALFORMED)


@define(eq=False)
class WebSocketCarrier:
    """A carrier over one WebSocket that has been accepted."""

    whole_documents = True

    _connection: WebSocketConnection
    _wire: Wire
    _max_document_bytes: int

    async def receive(self) -> bytes | None:
        """See Carrier. A message that has only white space is a document too, and an invalid one."""
        try:
            message = await self._connection.get_message()
        except ConnectionClosed:
            if not self._closed_in_order:
                raise PeerGone("the WebSocket was lost") from None
            return None
        self._wire.meter.spent = 0
        if not isinstance(message, str):
            raise Unreadable("a binary message; send text")
        document = message.encode()
        if len(document) > self._max_document_bytes:
            # The library counts characters, not bytes. The protocol refuses this document and ends the connection.
            self._wire.closing_code = TOO_BIG
        return document

    async def send(self, documents: Sequence[bytes]) -> None:
        """See Carrier."""
        # After a close frame nothing may follow (RFC 6455 §5.5.1).
        if self._connection.closed is not None:
            raise self._gone("the WebSocket is closed")
        try:
            await self._wire.send_messages(documents)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self._gone(str(error) or "connection lost while sending") from None

    @property
    def _closed_in_order(self) -> bool:
        closed = self._connection.closed
        return closed is not None and closed.code != _LOST

    def _gone(self, reason: str) -> PeerGone:
        return PeerClosed(reason) if self._closed_in_order else PeerGone(reason)

    async def aclose(self) -> None:
        """Send a close frame (code 1001 unless another one applies), and wait for the peer for about a second."""
        await self._wire.aclose()


@define(eq=False)
class WebSocketHandshake:
    """Answers WebSocket handshakes, over TLS where there are certificates. Implements `accept.Handshake`.

    `origins` are the pages that may connect, as a browser writes them ("http://127.0.0.1:8000"). Times are seconds;
    `handshake_timeout` is for TLS and HTTP together. `behind_proxy`: the peers are proxies that act for other users.
    `path` is what a client asks for. `origins` None: whoever calls `serve` has checked the origin.
    """

    _certificates: Certificates | None = field(kw_only=True, alias="certificates")
    _origins: AbstractSet[str] | None = field(kw_only=True, alias="origins")
    _tokens: Tokens = field(kw_only=True, alias="tokens")
    _max_document_bytes: int = field(kw_only=True, alias="max_document_bytes")
    _handshake_timeout: float = field(kw_only=True, alias="handshake_timeout")
    _send_timeout: float = field(kw_only=True, alias="send_timeout")
    _ping_interval: float = field(kw_only=True, alias="ping_interval")
    _ping_timeout: float = field(kw_only=True, alias="ping_timeout")
    _behind_proxy: bool = field(default=False, kw_only=True, alias="behind_proxy")
    _path: str = field(default="/", kw_only=True, alias="path")
    _keep_alive: KeepAliveTimer = field(init=False)
    scheme: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._keep_alive = KeepAliveTimer(min(self._ping_interval, self._ping_timeout) / LOOKS)
        self.scheme = "ws" if self._certificates is None else "wss"

    async def authenticate(self, connected: socket.socket, peer: str, handler: ConnectionHandler) -> None:
        """See Handshake."""
        deadline = trio.current_time() + self._handshake_timeout
        with connected:
            if self._certificates is None:
                transport = SocketTransport(connected, send_timeout=self._send_timeout)
                await self.serve(transport, transport, no_certificate, deadline, peer, handler)
            else:
                timeouts = self._handshake_timeout, self._send_timeout
                stream = await handshake(connected, self._certificates, *timeouts)
                certificate = partial(certificate_of, stream)
                await self.serve(stream, stream.transport_stream, certificate, deadline, peer, handler)

    def _wire(self, stream: trio.abc.Stream, transport: SocketTransport) -> Wire:
        # One message may wait while another is being received.
        allowance = (UNREAD_MESSAGES + 1) * self._max_document_bytes + SLACK
        return Wire(
            stream,
            transport,
            meter=RateMeter(allowance, trio.current_time()),
            ping_interval=self._ping_interval,
            ping_timeout=self._ping_timeout,
        )

    async def serve(
        self,
        stream: trio.abc.Stream,
        transport: SocketTransport,
        certificate: Certificate,
        deadline: float,
        peer: str,
        handler: ConnectionHandler,
    ) -> None:
        """Authenticate the peer by the request that comes, and serve the connection until it is closed.

        `transport` is the stream, or what lies beneath its TLS. Raises AuthenticationFailed.
        """
        wire, connected = self._wire(stream, transport), transport.socket
        failure: AuthenticationFailed | None = None
        contained = IN_HANDSHAKE
        try:
            async with trio.open_nursery() as nursery:
                try:
                    connection, principal = await self._admit(nursery, wire, connected, certificate, deadline)
                    contained = IN_SESSION
                    log.debug("%s: %s", peer, principal.key)
                    self._keep_alive.watch(wire)
                    await handler(WebSocketCarrier(connection, wire, self._max_document_bytes), principal)
                except AuthenticationFailed as refused:
                    failure = refused
                finally:
                    self._keep_alive.forget(wire)
                    with trio.CancelScope(shield=True):
                        await wire.aclose()
                nursery.cancel_scope.cancel()
        except* contained as errors:
            # Names only: some of these texts quote what the peer sent.
            log.debug("%s: connection ended by %s", peer, ", ".join(sorted(_names(errors))))
            if contained is IN_HANDSHAKE and errors.subgroup(MALFORMED) is not None:
                failure = AuthenticationFailed(NO_REQUEST)
        if wire.cut is not None:
            log.info("%s: connection cut: %s", peer, wire.cut)
        if failure is not None:
            raise failure

    async def _admit(
        self,
        nursery: trio.Nursery,
        wire: Wire,
        connected: socket.socket,
        certificate: Certificate,
        deadline: float,
    ) -> tuple[WebSocketConnection, Principal]:
        """Do the WebSocket handshake. Raises AuthenticationFailed; PeerGone or ConnectionClosed if the peer left."""
        with trio.CancelScope(deadline=deadline):
            request = await self._request(nursery, wire)
            try:
                subprotocol = examine(request, self._origins, self._path)
                principal = caller(request, self._tokens, certificate, connected, behind_proxy=self._behind_proxy)
            except Refused as refused:
                await request.reject(refused.status, extra_headers=refused.headers)
                raise
            connection = await request.accept(subprotocol=subprotocol)
            forget_handshake(connection)
            wire.frames(nursery, lambda: connection.closed)
            return connection, principal
        raise AuthenticationFailed(f"timed out: no WebSocket handshake within {self._handshake_timeout:g} s")

    async def _request(self, nursery: trio.Nursery, wire: Wire) -> WebSocketRequest:
        # The library would wait for a request for ever, also on a stream that has ended.
        with trio.CancelScope() as asking:
            wire.on_end = asking.cancel
            try:
                return await wrap_server_stream(nursery, wire, UNREAD_MESSAGES, self._max_document_bytes, RECEIVE_BYTES)
            finally:
                wire.on_end = None
        if wire.answered:
            raise AuthenticationFailed(NO_REQUEST)
        raise PeerGone("it disconnected before it sent a request")


class _NoEvents:
    """Takes the place of a handshake that is over."""

    def events(self) -> tuple[()]:
        """Return none."""
        return ()


_OVER: Any = _NoEvents()


def forget_handshake(connection: WebSocketConnection) -> None:
    """Release the HTTP part of an accepted connection: parser and request, a tenth of the memory of an idle one.

    The libraries keep it as long as the connection, and ask it for nothing but events, of which it has none any more.
    """
    connection._wsproto.handshake = _OVER


def _names(errors: BaseExceptionGroup[BaseException]) -> set[str]:
    names: set[str] = set()
    for error in errors.exceptions:
        names |= _names(error) if isinstance(error, BaseExceptionGroup) else {type(error).__name__}
    return names


# --- checks of the request (RFC 6455 §4.2.2); they send nothing

SUBPROTOCOL = "hacp.v0"
BEARER = "bearer."
"""The prefix of a subprotocol entry that carries a bearer token: a script in a page can set no header."""
_SHOWN = 100
"""Characters of the peer's text that a reason repeats at most."""


def examine(request: WebSocketRequest, origins: AbstractSet[str] | None, path: str = "/") -> str | None:
    """Return the subprotocol to answer with, or None. Raises Refused; checks path, Origin, body, subprotocol, in order.

    The Host header is not checked. It could reveal a page of another site whose name points at this machine (DNS
    rebinding). But a browser sends the Origin of that page with every WebSocket; a script cannot change it, and it is
    not among the allowed ones. A client that is no browser can send any Host.
    """
    # The path may contain a secret (a token in a query), so the reason does not repeat it.
    if request.path != path:
        raise Refused(404, f"it asked for a path other than {path}")
    given = [] if origins is None else values(request.headers, b"origin")
    if origins is not None and given and (len(given) > 1 or given[0] not in origins):
        shown = ", ".join(given)[:_SHOWN]
        raise Refused(403, f"origin {shown!r} is not in [websocket] origins")
    if origins is not None and is_cross_site(request.headers):
        raise Refused(403, "it comes from a page of another site (Sec-Fetch-Site) and has no Origin")
    if has_body(request.headers):
        raise Refused(400, "its request has a body")
    offered = request.proposed_subprotocols
    if offered and SUBPROTOCOL not in offered:
        raise Refused(400, f"it offers subprotocols, and {SUBPROTOCOL} is not among them")
    return SUBPROTOCOL if offered else None


def caller(
    request: WebSocketRequest,
    tokens: Tokens,
    certificate: Certificate,
    connected: socket.socket,
    *,
    behind_proxy: bool = False,
) -> Principal:
    """Return the caller's principal; see `accept.caller`. A token may also come as a subprotocol. Raises Refused."""
    return accept.caller(
        request.headers,
        tokens,
        certificate,
        partial(from_loopback, connected),
        offered=[entry[len(BEARER) :] for entry in request.proposed_subprotocols if entry.startswith(BEARER)],
        behind_proxy=behind_proxy,
    )


# --- the listener of [websocket]


def open_websocket(opening: Opening) -> Listener:
    """Open the listener of [websocket]. See Extra."""
    from hearth.actors.listeners.tcp import TcpListener, bind

    section = opening.config.websocket
    certificates = certificates_of("websocket", section)
    handshaker = handshaker_of(
        opening, certificates, origins=frozenset(section.origins), behind_proxy=section.plaintext
    )
    listening = bind("websocket", section.listen)
    send_timeout = opening.config.limits.send_timeout_s
    return TcpListener(listening, handshaker, certificates, send_timeout=send_timeout, report=opening.report)


def handshaker_of(opening: Opening, certificates: Certificates | None, **more: Any) -> WebSocketHandshake:
    """Return a handshake with the limits and the ping times of a configuration."""
    section, limits = opening.config.websocket, opening.config.limits
    return WebSocketHandshake(
        certificates=certificates,
        tokens=opening.policy.tokens,
        max_document_bytes=limits.max_document_bytes,
        handshake_timeout=limits.handshake_timeout_s,
        send_timeout=limits.send_timeout_s,
        ping_interval=section.ping_interval_s,
        ping_timeout=section.ping_timeout_s,
        **more,
    )
