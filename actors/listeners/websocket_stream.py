"""The stream below trio-websocket: bounds the cost of a peer, detects its silence, and closes in order.

It makes only the frames that a server sends: a text message, a ping, a close. The library reads frames, and answers
pings and closes itself. This module does not know the principal or the content of messages.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

import h11
import trio
from attrs import define, field

from hearth.actors.listeners.accept import FOLDED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trio_websocket import CloseReason

    from hearth.transport.sockets import SocketTransport

HANDSHAKE_BYTES = 16 << 10
"""Bytes of a handshake's request line and headers at most."""
CLOSING_LIMIT = 1.0
"""Seconds for closing in order: to send a close frame, and to read the peer's stream to its end."""
GOING_AWAY, PROTOCOL_ERROR, INVALID_PAYLOAD, TOO_BIG = 1001, 1002, 1007, 1009
"""Close codes (RFC 6455 §7.4.1)."""
_TEXT, _CLOSE, _PING = 0x81, 0x88, 0x89
_SHORT = [bytes((_TEXT, size)) for size in range(126)]
_PING_FRAME = bytes((_PING, 0))
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@define(eq=False)
class Wire(trio.abc.Stream):
    """The stream under one WebSocket: plain (`stream` is `transport`), or TLS on it.

    It cuts off a peer that sends too much for its `meter`. After `frames`, call `tick` regularly: it pings a peer that
    has sent nothing for `ping_interval` seconds, and cuts it off when it sends nothing for `ping_timeout` more.
    """

    _stream: trio.abc.Stream
    _transport: SocketTransport
    meter: RateMeter = field(kw_only=True)
    _ping_interval: float = field(kw_only=True, alias="ping_interval")
    _ping_timeout: float = field(kw_only=True, alias="ping_timeout")
    _turn: trio.Lock | None = field(default=None, init=False)
    """Held while a send waits; made for the first one that does."""
    _waiting: bool = field(default=False, init=False)
    _quiet: trio.Event | None = field(default=None, init=False)
    _received: int = field(default=0, init=False)
    _received_before: int = field(default=0, init=False)
    _head: bytearray | None = field(factory=bytearray, init=False)
    """The part of the request that has been received, until its head is complete; then None."""
    _silent_since: float = field(factory=trio.current_time, init=False)
    _pinged: bool = field(default=False, init=False)
    _close_sent: bool = field(default=False, init=False)
    _closing: bool = field(default=False, init=False)
    _closed: trio.Event | None = field(default=None, init=False)
    """Made when the stream is closed, not for each one that is idle."""
    _nursery: trio.Nursery | None = field(default=None, init=False)
    _why_closed: Callable[[], CloseReason | None] | None = field(default=None, init=False)
    on_end: Callable[[], object] | None = field(default=None, init=False)
    """Called when the peer has ended the stream, or it is closed."""
    answered: bool = field(default=False, init=False)
    """True once anything was sent."""
    cut: str | None = field(default=None, init=False)
    """The reason why the peer was cut off, or None."""
    closing_code: int = field(default=GOING_AWAY, init=False)
    """The code of the close frame that `aclose` sends."""

    def frames(self, nursery: trio.Nursery, why_closed: Callable[[], CloseReason | None]) -> None:
        """Note that the handshake is over and frames follow.

        Pings are sent in `nursery`; `why_closed` returns the reason if the WebSocket is closed.
        """
        self._nursery = nursery
        self._why_closed = why_closed
        self.meter.frames = True

    # --- receiving ----------------------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """See trio.abc.ReceiveStream. Raises BrokenResourceError also for a peer that is cut off.

        Raises h11.RemoteProtocolError for a request whose line and headers are too long, or that has a folded header.
        """
        if self._closing:
            raise trio.ClosedResourceError("this WebSocket is closed")
        if self._head is not None:
            # Never read beyond the bound, so that the library does not see a complete request that is too long.
            room = HANDSHAKE_BYTES - len(self._head)
            if room == 0:
                self._ended()
                raise h11.RemoteProtocolError(f"line and headers are longer than {HANDSHAKE_BYTES} bytes")
            max_bytes = min(max_bytes or room, room)
        self._waiting = True
        try:
            data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._ended()
            if self.cut is not None:
                raise trio.BrokenResourceError(self.cut) from None
            raise
        finally:
            self._waiting = False
            if self._quiet is not None:
                self._quiet.set()
        if not data:
            self._ended()
            return data
        self._received += 1
        if self._head is not None:
            self._head = self._continued(self._head, data)
        if self.meter.count(data):
            self.cut = self.meter.too_much(trio.current_time())
            if self.cut is not None:
                self._ended()
                raise trio.BrokenResourceError(self.cut)
        return data

    def _continued(self, head: bytearray, data: bytes | bytearray) -> bytearray | None:
        """Return the head with data after it, or None once it is complete. Raises RemoteProtocolError for a fold."""
        searched = max(0, len(head) - 2)
        head += data
        ends = [at for end in (b"\n\r\n", b"\n\n") if (at := head.find(end, searched)) >= 0]
        if not ends:
            return head
        if FOLDED.search(head, 0, min(ends)):
            self._ended()
            raise h11.RemoteProtocolError("a header is continued on a second line")
        return None

    def _ended(self) -> None:
        if self.on_end is not None:
            self.on_end()

    # --- silence ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Ping the peer, or cut it off, if it has sent nothing since an earlier tick for too long.

        The time runs only while the daemon reads, and while it sends nothing: a daemon that does not read cannot tell
        that the peer is dead, and a send has its own bound.
        """
        if self._received != self._received_before or not self._waiting or self._sends:
            self._received_before = self._received
            self._silent_since = now
            self._pinged = False
        elif not self._pinged:
            if now - self._silent_since >= self._ping_interval and self._nursery is not None:
                self._pinged = True
                self._silent_since = now
                self._nursery.start_soon(self._ping)
        elif now - self._silent_since >= self._ping_timeout:
            self._cut_off(f"it was silent for {self._ping_interval:g} s, and for {self._ping_timeout:g} s after a ping")

    @property
    def _sends(self) -> bool:
        return self._turn is not None and self._turn.locked()

    async def _ping(self) -> None:
        try:
            await self._send(_PING_FRAME)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._cut_off(f"it was silent, and a ping could not be sent: {error}")

    def _cut_off(self, why: str) -> None:
        if not self._closing:
            self.cut = why
            # Wakes the library, which waits for the peer: its wait ends with ClosedResourceError.
            trio.lowlevel.notify_closing(self._transport.socket)

    # --- sending ------------------------------------------------------------------------------------------------

    async def send_messages(self, documents: Sequence[bytes]) -> None:
        """Send documents, each without its LF as a text message of its own, all with one system call.

        A server's frame is a header and the plain payload. The library would make each one in some twenty calls and a
        scheduling round, which would be most of the cost of an event with many subscribers.
        """
        parts: list[bytes] = []
        for document in documents:
            size = len(document) - 1
            if size < 126:
                parts.append(_SHORT[size])
            elif size < 65536:
                parts.append(struct.pack("!BBH", _TEXT, 126, size))
            else:
                parts.append(struct.pack("!BBQ", _TEXT, 127, size))
            parts.append(document[:size])
        await self._send(b"".join(parts))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send a whole frame or HTTP response of the library. See trio.abc.SendStream."""
        self.answered = True
        await self._send(data)

    async def _send(self, data: bytes | bytearray | memoryview) -> None:
        # No other data may come between two halves of a frame. After a send that was cut short the stream itself
        # refuses further sends.
        closes = data[0] == _CLOSE and self._nursery is not None
        turn = self._turn
        if turn is not None and turn.locked():
            await turn.acquire()
        else:
            if self._stream is self._transport and not closes and not self._close_sent:
                # Do not take the lock for a send that completes at once: events with many subscribers are such sends.
                sent = self._transport.send_nowait(data)
                if sent == len(data):
                    return
                data = memoryview(data)[sent:]
            if turn is None:
                turn = self._turn = trio.Lock()
            turn.acquire_nowait()
        try:
            if self._close_sent:
                # RFC 6455 §5.5.1: the close frame is the last one. A ping or a pong may have waited for its turn.
                raise trio.ClosedResourceError("the close frame has been sent")
            self._close_sent = closes
            await self._stream.send_all(data)
        finally:
            turn.release()

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        await self._stream.wait_send_all_might_not_block()

    # --- closing ------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Send the close frame and close, within CLOSING_LIMIT seconds, even if the peer neither reads nor closes.

        Called by the library when the peer has closed or broken the protocol, and by the carrier; the second call waits
        for the first. Data that the peer still sends is read and dropped: closing a socket with unread data resets the
        connection, and the peer would lose the answer or the close frame that is in flight.
        """
        if self._closed is not None:
            await self._closed.wait()
            return
        self._closed = closed = trio.Event()
        self._closing = True
        self._ended()
        try:
            if self.cut is None:
                gone = (trio.BrokenResourceError, trio.ClosedResourceError)
                with trio.move_on_after(CLOSING_LIMIT), contextlib.suppress(*gone):
                    await self._close_in_order()
        finally:
            closed.set()
            await trio.aclose_forcefully(self._transport)

    async def _close_in_order(self) -> None:
        if self._waiting:
            # Only one task may wait for the peer. Stop the library's task here, before it fails on a ping that comes
            # after the close.
            self._quiet = trio.Event()
            trio.lowlevel.notify_closing(self._transport.socket)
            await self._quiet.wait()
        closing = self._closing_bytes()
        if closing:
            await self._send(closing)
        if isinstance(self._stream, trio.SSLStream):
            # The peer's close frame may come after our close_notify. OpenSSL then fails, but ours has been sent.
            with contextlib.suppress(trio.BrokenResourceError):
                await self._stream.unwrap()
        with contextlib.suppress(OSError):
            self._transport.socket.shutdown(socket.SHUT_WR)
        while await self._transport.receive_some():
            pass

    def _closing_bytes(self) -> bytes:
        """Return the last bytes for the peer: a close frame, or the answer to an invalid request."""
        if self._why_closed is None:
            return _BAD_REQUEST if self._received and not self.answered else b""
        if self._close_sent:
            return b""
        closed = self._why_closed()
        # The library closes after a frame that breaks the protocol without a close frame, but it has the code.
        broken = closed is not None and closed.code in (PROTOCOL_ERROR, INVALID_PAYLOAD)
        return struct.pack("!BBH", _CLOSE, 2, closed.code if broken and closed is not None else self.closing_code)


class KeepAliveTimer:
    """Ticks for all wires of a listener, in one task for all of them, while there are any.

    A silence is noticed up to `period` seconds late.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._wires: set[Wire] = set()
        self._beating = False

    def watch(self, wire: Wire) -> None:
        """Tick from now on."""
        self._wires.add(wire)
        if not self._beating:
            self._beating = True
            # The task belongs to no connection, and a handshake has only the nurseries of connections.
            trio.lowlevel.spawn_system_task(self._beat, name="hearth.websocket.keepalive")

    def forget(self, wire: Wire) -> None:
        """Tick no more."""
        self._wires.discard(wire)

    async def _beat(self) -> None:
        try:
            while self._wires:
                await trio.sleep(self._period)
                now = trio.current_time()
                for wire in list(self._wires):
                    wire.tick(now)
        finally:
            self._beating = False


# --- the rate meter: no I/O, no clock

SLACK = 64 << 10
"""Bytes that a peer may send besides its messages: pings, and the headers of frames."""
REFILL = 4 << 10
"""Bytes by which the allowance grows back each second, so that a client may send pings for months."""
FRAME_COST, CONTROL_COST = 64, 1 << 10
"""Bytes that are counted for a frame besides its own, and for a ping, pong or close: the smallest one has six bytes,
and causes as much work as one of kilobytes."""


class RateMeter:
    """Counts the bytes that the peer of one WebSocket has sent since it completed a message, and compares a bound.

    The library bounds the size of messages, but not the number of empty frames between them, each of which causes work
    and may be kept. So bytes are counted here, and frames by their headers, before the library sees them. The carrier
    sets `spent` to 0 when it takes a message; `frames` is set when frames follow HTTP. `allowance` is in bytes; times
    are in seconds, of any clock.
    """

    __slots__ = ("_ahead", "_allowance", "_since", "_split", "frames", "spent")

    def __init__(self, allowance: int, now: float) -> None:
        self._allowance = allowance
        self._since = now
        self._ahead = 0
        self._split = b""
        self.frames = False
        self.spent = 0

    def count(self, data: bytes | bytearray) -> bool:
        """Count received bytes; return True if they exceed the allowance before any refill."""
        self.spent += len(data)
        if self.frames:
            self._count_frames(data)
        return self.spent > self._allowance

    def too_much(self, now: float) -> str | None:
        """Refill the allowance up to `now`; return the reason to cut the peer off, if it still exceeds it, or None."""
        self.spent = max(0, self.spent - int((now - self._since) * REFILL))
        self._since = now
        if self.spent <= self._allowance:
            return None
        return (
            f"it sent {self._allowance} bytes (counting {FRAME_COST} more for a frame, {CONTROL_COST} for a ping) "
            "and completed no message"
        )

    def _count_frames(self, data: bytes | bytearray) -> None:
        """Charge for the frames that begin in `data`, which continues the bytes before it."""
        if self._split:
            data = self._split + data
            self._split = b""
        at, end = self._ahead, len(data)
        while at < end:
            # RFC 6455 §5.2. A client's frames are masked; the library ends the connection at one that is not.
            size = data[at + 1] & 127 if at + 2 <= end else 0
            head = 6 if size < 126 else 8 if size == 126 else 14
            if at + head > end:
                self._split, at = bytes(data[at:]), end
                break
            if head > 6:
                size = int.from_bytes(data[at + 2 : at + head - 4], "big")
            self.spent += CONTROL_COST if data[at] & 8 else FRAME_COST
            at += head + size
        self._ahead = at - end
