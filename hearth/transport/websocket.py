"""The ws:// and wss:// transports: the opening handshake with its token, refusals in words, and the open WebSocket."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, RejectConnection, Request, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from hearth._util.streams import accompanied
from hearth.errors import CarrierError
from hearth.protocol.client import MAX_ANSWER_BYTES
from hearth.transport.tls import TlsStream, context_for, find_token, in_time, open_tcp, secure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hearth.transport.address import WebSocketAddress


SUBPROTOCOL = "hacp.v0"
_HTTP = b"HTTP/1."


@asynccontextmanager
async def open_websocket(address: WebSocketAddress, token: str | None) -> AsyncIterator[WebSocketStream]:
    """Connect by WebSocket. Raises CarrierError (no answer, or a refusal), and ConfigError for bad credentials."""
    offered = find_token(address, token, os.environ)
    context = context_for(address) if address.secure else None
    with in_time(address):
        transport: trio.abc.Stream = await open_tcp(address)
        if context is not None:
            assert isinstance(transport, trio.SocketStream)
            transport = TlsStream(await secure(transport, address, context, https=True), address)
        try:
            protocol = await _handshake(transport, address, offered)
        except BaseException:
            await trio.aclose_forcefully(transport)
            raise
    stream = WebSocketStream(transport, protocol, address.place)
    async with accompanied(stream, stream.answer):
        stream.read()  # messages may have come together with the server's acceptance
        yield stream


async def _handshake(
    transport: trio.abc.Stream, address: WebSocketAddress, offered: tuple[str, str] | None
) -> WSConnection:
    host = f"[{address.host.partition('%')[0]}]" if ":" in address.host else address.host
    headers = [] if offered is None else [(b"Authorization", f"Bearer {offered[0]}".encode())]
    protocol = WSConnection(ConnectionType.CLIENT)
    request = Request(
        host=f"{host}:{address.port}", target=address.path, subprotocols=[SUBPROTOCOL], extra_headers=headers
    )
    failed = f"cannot connect to {address.place}"
    try:
        await transport.send_all(protocol.send(request))
        answer = await _answer_to_handshake(transport, protocol)
    except RemoteProtocolError as error:
        raise CarrierError(f"{failed}: what listens there is no WebSocket ({error}); {_other(address)}") from None
    except trio.BrokenResourceError as error:
        why = f"{error}".removeprefix(f"{address.place}: ") or "the connection ended"
        raise CarrierError(f"{failed}: {why}") from None
    if answer is None:
        raise CarrierError(f"{failed}: it closed the connection instead of answering; {_other(address)}")
    if isinstance(answer, RejectConnection):
        raise CarrierError(f"{failed}: {_refusal(answer, address, offered)}")
    if answer.subprotocol != SUBPROTOCOL:
        cure = "is it hearthd that listens there?"
        raise CarrierError(f"{failed}: it is a WebSocket, but does not speak {SUBPROTOCOL}; {cure}")
    return protocol


async def _answer_to_handshake(
    transport: trio.abc.Stream, protocol: WSConnection
) -> AcceptConnection | RejectConnection | None:
    """Return the server's answer to the handshake, None if it closes; later data stays in `protocol`."""
    first = b""
    while data := bytes(await transport.receive_some(RECEIVE_SIZE)):
        first = (first + data)[: len(_HTTP)]
        if not _HTTP.startswith(first):
            # The server speaks another protocol: without this check both sides could wait for each other for ever.
            raise RemoteProtocolError(f"it says {first!r}")
        protocol.receive_data(data)
        for event in protocol.events():
            if isinstance(event, (AcceptConnection, RejectConnection)):
                return event
    return None


def _other(address: WebSocketAddress) -> str:
    other = "ws" if address.secure else "wss"
    return f"is the port right, and should it be {other}:// ?"


def _refusal(answer: RejectConnection, address: WebSocketAddress, offered: tuple[str, str] | None) -> str:
    status = answer.status_code
    if status == 401:
        if offered is not None:
            return f"it does not know the token {offered[1]} (HTTP 401); its digest must be in a [[policy]] entry there"
        return "it cannot identify the caller (HTTP 401); give ?token_file=FILE, see `hearth admin token new`"
    if status == 403:
        return "it refuses this client (HTTP 403); if a proxy is in front of it, check that"
    if status == 404:
        return f"there is no WebSocket at {address.path} (HTTP 404); hearthd's own is at /"
    if status in (502, 503, 504):
        return f"the daemon is not to be reached, or has too much to do (HTTP {status}); try again later"
    if 300 <= status < 400:
        target = dict(answer.headers).get(b"location", b"elsewhere").decode("ascii", "replace")
        where = "".join(filter(str.isprintable, target))
        return f"it sends us to {where} (HTTP {status}); write that address as ws:// or wss://"
    return f"it refuses a WebSocket (HTTP {status}); is it hearthd that listens there?"


# --- the open WebSocket ---------------------------------------------------------------------------------------------
#
# A line is a text message (RFC 6455); the LF is added and removed here.
#
# This uses wsproto directly. trio-websocket, which is built on it, needs a task that reads ahead, and waits for its
# whole deadline if the server is not a WebSocket. Here data is read only when the user of the stream reads. A
# background task only sends the answers to pings and to a close, so that a reader never waits until the peer accepts
# them.

RECEIVE_SIZE = 1 << 16
CLOSE_TIMEOUT_S = 1.0
"""Seconds for the closing handshake; the connection is closed in any case."""
_NORMAL = frozenset((1000, 1001, 1005))
_CODES = {
    1002: "it reports a violation of the protocol",
    1003: "it cannot accept the message",
    1007: "it reports that the message is not text",
    1008: "it does not let us go on",
    1009: "what we sent is longer than it takes; see its [limits] max_document_bytes",
    1011: "the daemon has an internal error; see its log",
    1012: "the daemon restarts; connect again",
    1013: "it has too much to do; connect again later",
    1014: "a proxy before it cannot reach the daemon",
}
"""Close codes (RFC 6455 §7.4.1 and IANA's registry) that mean a failure."""


class WebSocketStream(trio.abc.Stream):
    """The lines of an open WebSocket. A line that is not UTF-8 is sent as a binary message; the daemon answers it.

    A message of more than `limit` bytes ends the connection (close code 1009).
    """

    def __init__(
        self, transport: trio.abc.Stream, protocol: WSConnection, place: str, *, limit: int = MAX_ANSWER_BYTES
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._place = place
        self._limit = limit
        self._sending = trio.Lock()
        self._torn = False
        """True while a frame is being sent, and for ever if that was cancelled: no data can follow half a frame."""
        self._unsent, self._received = bytearray(), bytearray()
        self._length = 0
        """Size in bytes of the message that is being received."""
        self._reply_due: Ping | CloseConnection | None = None
        """The peer's frame that needs an answer. Only the last ping is kept (§5.5.3): a flood takes no memory."""
        self._reply_wanted = trio.Event()
        self._over: str | None = None
        """Set when the peer sends no more: "" after a normal close, else the reason."""
        self._closed = False

    # --- sending ------------------------------------------------------------------------------------------------

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send the lines that `data` completes. See trio.abc.SendStream."""
        if self._closed:
            raise trio.ClosedResourceError
        head, newline, tail = bytes(data).rpartition(b"\n")
        lines = [bytes(self._unsent) + head] if newline else []
        self._unsent = bytearray(tail) if newline else self._unsent + tail
        if len(self._unsent) > self._limit:
            raise trio.BrokenResourceError(f"{self._place}: a line of more than {self._limit} bytes")
        messages = [_message(line) for some in lines for line in some.split(b"\n") if line.strip()]
        # One sender at a time: two tasks in the middle of a frame would mix their bytes.
        async with self._sending:
            if self._protocol.state is not ConnectionState.OPEN or self._torn:
                raise trio.BrokenResourceError(f"{self._place}: {self._over or 'it is being closed'}")
            if messages:
                await self._put(b"".join(map(self._protocol.send, messages)))

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        async with self._sending:
            await self._transport.wait_send_all_might_not_block()

    async def _put(self, frames: bytes) -> None:
        # Stays True if `send_all` is cancelled or fails: the peer may have half a frame then.
        self._torn = True
        await self._transport.send_all(frames)
        self._torn = False

    async def answer(self) -> None:
        """Answer the peer's pings and its close; runs in the background until it is cancelled."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the reader gets the same error
            while True:
                await self._reply_wanted.wait()
                async with self._sending:
                    due, self._reply_due, self._reply_wanted = self._reply_due, None, trio.Event()
                    # A side that has begun to close needs no pong any more.
                    with suppress(LocalProtocolError):
                        if due is not None and not self._torn:
                            await self._put(self._protocol.send(due.response()))

    # --- receiving ----------------------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See trio.abc.ReceiveStream. Raises BrokenResourceError, with the meaning of the peer's close code."""
        if self._closed:
            raise trio.ClosedResourceError
        if self._received or self._over is not None:
            await trio.lowlevel.checkpoint()
        while not self._received and self._over is None:
            self.take(await self._transport.receive_some(RECEIVE_SIZE))
        if self._over and not self._received:
            raise trio.BrokenResourceError(f"{self._place}: {self._over}")
        data = bytes(self._received if max_bytes is None else self._received[:max_bytes])
        del self._received[: len(data)]
        return data

    def take(self, data: bytes | bytearray) -> None:
        """Process data of the transport; b"" is its end."""
        if not data:
            self._over = "the connection ended without a close message"
            return
        self._protocol.receive_data(bytes(data))
        self.read()

    def read(self) -> None:
        """Process the events of the protocol."""
        for event in self._protocol.events():
            if isinstance(event, (TextMessage, BytesMessage)):
                self._read_message(event)
            elif isinstance(event, Ping):
                self._reply(event)
            elif isinstance(event, CloseConnection):
                self._over = _close_reason(event, theirs=self._protocol.state is not ConnectionState.OPEN)
                self._reply(event)
            if self._over is not None:
                return

    def _read_message(self, event: TextMessage | BytesMessage) -> None:
        data = event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
        self._length += len(data)
        if self._length > self._limit:
            self._over = f"a message of more than {self._limit} bytes"
            self._reply(CloseConnection(code=1009))
            return
        # A message may be formatted JSON; there a line end is white space, so a space has the same meaning.
        self._received += data.replace(b"\n", b" ")
        if event.message_finished:
            self._received += b"\n"
            self._length = 0

    def _reply(self, event: Ping | CloseConnection) -> None:
        self._reply_due = event
        self._reply_wanted.set()

    # --- closing ------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Do the closing handshake and close, all within CLOSE_TIMEOUT_S seconds."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        try:
            # Another task may still be reading. Then the peer's close cannot be read here, and closing interrupts that
            # task.
            over = (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError)
            with trio.move_on_after(CLOSE_TIMEOUT_S), suppress(*over):
                await self._closing_handshake()
                await self._transport.aclose()
        finally:
            await trio.aclose_forcefully(self._transport)

    async def _closing_handshake(self) -> None:
        async with self._sending:
            if self._torn:
                return
            if self._reply_due is not None and isinstance(self._reply_due, CloseConnection):
                with suppress(LocalProtocolError):
                    await self._put(self._protocol.send(self._reply_due.response()))
            elif self._protocol.state is ConnectionState.OPEN:
                await self._put(self._protocol.send(CloseConnection(code=1000)))
        while self._over is None:
            self.take(await self._transport.receive_some(RECEIVE_SIZE))
            self._received.clear()


def _message(line: bytes) -> TextMessage | BytesMessage:
    try:
        return TextMessage(line.decode())
    except UnicodeDecodeError:
        return BytesMessage(line)


def _close_reason(event: CloseConnection, *, theirs: bool) -> str:
    if not theirs:
        return f"it broke the protocol of WebSockets ({event.reason})"
    if event.code in _NORMAL:
        return ""
    words = _CODES.get(event.code, "it closed the connection")
    reason = "".join(filter(str.isprintable, event.reason or ""))
    return f"{words} (close code {event.code}{f': {reason}' if reason else ''})"
