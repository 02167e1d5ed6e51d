"""What a WebSocket's peer has sent since it last completed a message, and when that is too much. No I/O, no clock.

A library that puts messages together bounds their size; it does not bound how many frames of nothing come in between,
each of which makes work, and may be kept. So bytes are counted here, and frames by their headers, before it sees them.
"""

from __future__ import annotations

SLACK = 64 << 10
"""Bytes that a peer may send beside its messages: pings, and the frames' own headers."""
REFILL = 4 << 10
"""Bytes of the allowance which come back each second, so that a client may ping for months and never be cut."""
FRAME_COST, CONTROL_COST = 64, 1 << 10
"""Bytes that a frame counts beside those it has, and a ping, pong or close: the smallest one has six bytes, and makes
as much work as one of kilobytes."""


class Meter:
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
