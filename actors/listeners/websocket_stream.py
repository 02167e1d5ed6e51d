"""What trio-websocket stands on: a stream that bounds what a peer may cost, notes its silence, and parts in order.

It knows frames only as far as a server must make them: a text message, a ping, a close. Reading frames is the
library's, and so is all it answers by itself; who is at the other end and what the messages say is not known here.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

import h11
import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trio_websocket import CloseReason

    from hearth.actors.transport import SocketTransport

HANDSHAKE_BYTES = 16 << 10
"""A handshake's request line and headers at most."""
PARTING = 1.0
"""Seconds for the last words: a close frame sent, and the peer's end of the stream heard."""
GOING_AWAY, PROTOCOL_ERROR, INVALID_PAYLOAD, TOO_BIG = 1001, 1002, 1007, 1009
"""Close codes (RFC 6455 §7.4.1)."""
_TEXT, _CLOSE, _PING = 0x81, 0x88, 0x89
_SHORT = [bytes((_TEXT, size)) for size in range(126)]
_PING_FRAME = bytes((_PING, 0))
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Wire(trio.abc.Stream):
    """The stream under one WebSocket: plain (`stream` is `transport`), or TLS on it.

    It cuts off a peer that sends too much for its `meter`. Once `frames` are spoken, `tick` is to be called now and
    then: it pings a peer of whom nothing was heard for `ping_interval` seconds, and cuts it off when nothing is heard
    for `ping_timeout` more.
    """

    __slots__ = (
        "_close_sent",
        "_closed",
        "_head",
        "_heard",
        "_nursery",
        "_parting",
        "_ping_interval",
        "_ping_timeout",
        "_pinged",
        "_quiet",
        "_seen",
        "_silent_since",
        "_stream",
        "_transport",
        "_turn",
        "_waiting",
        "_why_closed",
        "answered",
        "closing_code",
        "cut",
        "meter",
        "on_end",
    )

    def __init__(
        self,
        stream: trio.abc.Stream,
        transport: SocketTransport,
        *,
        meter: RateMeter,
        ping_interval: float,
        ping_timeout: float,
    ) -> None:
        self._stream = stream
        self._transport = transport
        self.meter = meter
        self._ping_interval = ping_interval
        self._ping_timeout = ping_timeout
        self._turn = trio.Lock()
        self._waiting = False
        self._quiet: trio.Event | None = None
        self._heard = self._seen = 0
        self._head: bytearray | None = bytearray()
        """What came of the request until its head is whole."""
        self._silent_since = trio.current_time()
        self._pinged = False
        self._close_sent = False
        self._parting = False
        self._closed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._why_closed: Callable[[], CloseReason | None] | None = None
        self.on_end: Callable[[], object] | None = None
        """Called when the peer has ended the stream, or it is closed."""
        self.answered = False
        """Whether anything was sent."""
        self.cut: str | None = None
        """Why the peer was cut off, if it was."""
        self.closing_code = GOING_AWAY
        """The code of the close frame with which we part."""

    def frames(self, nursery: trio.Nursery, why_closed: Callable[[], CloseReason | None]) -> None:
        """From now on frames are spoken. Pings are sent in `nursery`; `why_closed` says why the WebSocket is, if so."""
        self._nursery = nursery
        self._why_closed = why_closed
        self.meter.frames = True

    # --- receiving ----------------------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """See trio.abc.ReceiveStream. Raises BrokenResourceError also for a peer that is cut off.

        Raises h11.RemoteProtocolError for a request whose line and headers are too long.
        """
        if self._parting:
            raise trio.ClosedResourceError("this WebSocket is closed")
        if self._head is not None:
            # Never more than the bound, so that a request which is whole only beyond it is not seen whole.
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
        self._heard += 1
        if self._head is not None:
            looked = max(0, len(self._head) - 2)
            self._head += data
            if any(self._head.find(end, looked) >= 0 for end in (b"\n\r\n", b"\n\n")):
                self._head = None
        if self.meter.count(data):
            self.cut = self.meter.too_much(trio.current_time())
            if self.cut is not None:
                self._ended()
                raise trio.BrokenResourceError(self.cut)
        return data

    def _ended(self) -> None:
        if self.on_end is not None:
            self.on_end()

    # --- silence ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look whether the peer was heard since the last look, and ping it or cut it off when its time has come.

        Its time runs only while we listen, and while nothing of ours is on its way: a peer is not dead because it is us
        who do not read, and how long it may take to read is bounded by the send itself.
        """
        if self._heard != self._seen or not self._waiting or self._turn.locked():
            self._seen = self._heard
            self._silent_since = now
            self._pinged = False
        elif not self._pinged:
            if now - self._silent_since >= self._ping_interval and self._nursery is not None:
                self._pinged = True
                self._silent_since = now
                self._nursery.start_soon(self._ping)
        elif now - self._silent_since >= self._ping_timeout:
            self._cut_off(f"it was silent for {self._ping_interval:g} s, and for {self._ping_timeout:g} s after a ping")

    async def _ping(self) -> None:
        try:
            await self._send(_PING_FRAME)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._cut_off(f"it was silent, and a ping could not be sent: {error}")

    def _cut_off(self, why: str) -> None:
        if not self._parting:
            self.cut = why
            # Wakes the library, which waits for the peer: its wait ends with ClosedResourceError.
            trio.lowlevel.notify_closing(self._transport.socket)

    # --- sending ------------------------------------------------------------------------------------------------

    async def send_messages(self, documents: Sequence[bytes]) -> None:
        """Send documents, each without its LF as a text message of its own, all with one system call.

        A server's frames are a header and the payload as it is. The library would make each of them in some twenty
        steps of Python and a scheduling round, which is most of what telling an event to many costs.
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
        """See trio.abc.SendStream: what the library sends, a whole frame or HTTP response at a time."""
        self.answered = True
        await self._send(data)

    async def _send(self, data: bytes | bytearray | memoryview) -> None:
        # Nothing between two halves of a frame. What was cut short leaves a stream that refuses to go on, by itself.
        closes = data[0] == _CLOSE and self._nursery is not None
        if self._turn.locked():
            await self._turn.acquire()
        else:
            if self._stream is self._transport and not closes and not self._close_sent:
                # No turn is taken for what is over at once: that is what telling an event to many consists of.
                sent = self._transport.send_nowait(data)
                if sent == len(data):
                    return
                data = memoryview(data)[sent:]
            self._turn.acquire_nowait()
        try:
            if self._close_sent:
                # RFC 6455 §5.5.1: the close frame is the last one. A ping or a pong may have waited for its turn.
                raise trio.ClosedResourceError("the close frame has been sent")
            self._close_sent = closes
            await self._stream.send_all(data)
        finally:
            self._turn.release()

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        await self._stream.wait_send_all_might_not_block()

    # --- parting ------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Say farewell and close, within PARTING seconds, also when the peer does not read or does not leave.

        Called by the library when the peer has closed or spoken nonsense, and by the carrier; who comes second waits
        for the first. What the peer still sends is read and dropped: a socket that is closed with bytes unread resets
        the connection, and the peer would lose the answer or the close frame that is on its way.
        """
        if self._parting:
            await self._closed.wait()
            return
        self._parting = True
        self._ended()
        try:
            if self.cut is None:
                gone = (trio.BrokenResourceError, trio.ClosedResourceError)
                with trio.move_on_after(PARTING), contextlib.suppress(*gone):
                    await self._part()
        finally:
            self._closed.set()
            await trio.aclose_forcefully(self._transport)

    async def _part(self) -> None:
        if self._waiting:
            # One task at a time may wait for the peer. The library's stops here, before it can trip over a ping that
            # comes after the close.
            self._quiet = trio.Event()
            trio.lowlevel.notify_closing(self._transport.socket)
            await self._quiet.wait()
        words = self._last_words()
        if words:
            await self._send(words)
        if isinstance(self._stream, trio.SSLStream):
            # The peer's close frame may come after our close_notify, which OpenSSL takes amiss, but then ours is out.
            with contextlib.suppress(trio.BrokenResourceError):
                await self._stream.unwrap()
        with contextlib.suppress(OSError):
            self._transport.socket.shutdown(socket.SHUT_WR)
        while await self._transport.receive_some():
            pass

    def _last_words(self) -> bytes:
        """What is owed to the peer before the end: a close frame, or an answer to a request that was none."""
        if self._why_closed is None:
            return _BAD_REQUEST if self._heard and not self.answered else b""
        if self._close_sent:
            return b""
        closed = self._why_closed()
        # The library closes upon a frame that breaks the rules without telling the peer; it has the code.
        broken = closed is not None and closed.code in (PROTOCOL_ERROR, INVALID_PAYLOAD)
        return struct.pack("!BBH", _CLOSE, 2, closed.code if broken and closed is not None else self.closing_code)


class KeepAliveTimer:
    """Ticks for all wires of a listener: one task while there are any, instead of a task or a timer for each.

    A silence is noticed up to a `period` (seconds) late.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._wires: set[Wire] = set()
        self._beating = False

    @contextlib.contextmanager
    def watching(self, wire: Wire) -> Iterator[None]:
        """Tick while the body runs."""
        self._wires.add(wire)
        if not self._beating:
            self._beating = True
            # It belongs to no connection, and a greeter has no nursery but those.
            trio.lowlevel.spawn_system_task(self._beat, name="hearth.websocket.keepalive")
        try:
            yield
        finally:
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


# --- What a WebSocket's peer has sent since it last completed a message, and when that is too much. No I/O, no clock
#
# A library that puts messages together bounds their size; it does not bound how many frames of nothing come in between,
# each of which makes work, and may be kept. So bytes are counted here, and frames by their headers, before it sees
# them.

SLACK = 64 << 10
"""Bytes that a peer may send beside its messages: pings, and the frames' own headers."""
REFILL = 4 << 10
"""Bytes of the allowance which come back each second, so that a client may ping for months and never be cut."""
FRAME_COST, CONTROL_COST = 64, 1 << 10
"""Bytes that a frame counts beside those it has, and a ping, pong or close: the smallest one has six bytes, and makes
as much work as one of kilobytes."""


class RateMeter:
    """Counts for one connection; `spent` is set back to 0 by whoever takes a message.

    `frames` is set once frames are spoken instead of HTTP. `allowance` is in bytes; times are seconds, of any clock.
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
        """Count received bytes; True if they are more than the allowance, as far as it is known without a clock."""
        self.spent += len(data)
        if self.frames:
            self._count_frames(data)
        return self.spent > self._allowance

    def too_much(self, now: float) -> str | None:
        """Why the peer is to be cut off, if it is after what has come back of its allowance meanwhile."""
        self.spent = max(0, self.spent - int((now - self._since) * REFILL))
        self._since = now
        if self.spent <= self._allowance:
            return None
        return (
            f"it sent {self._allowance} bytes (counting {FRAME_COST} more for a frame, {CONTROL_COST} for a ping) "
            "and completed no message"
        )

    def _count_frames(self, data: bytes | bytearray) -> None:
        """Charge for the frames that begin in `data`, which goes on where the bytes before it ended."""
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
