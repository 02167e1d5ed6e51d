"""J1939 messages of more than 8 bytes, put together from the frames that carry them (SAE J1939-21, 5.10).

A node announces such a message (TP.CM), to all nodes (BAM) or to one (RTS), and sends it in frames of seven bytes
(TP.DT) with numbers from 1 on. This module only listens: it answers nobody, and asks for nothing again.

A message is whole if each frame came with the number after the last one's, and none came late. After any other frame
it is dropped: parts of two messages together would be another value. Numbers begin again with each message, and a lost
announcement shows in them, or in the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import define, field

from hearth.drivers.can.driver import EXTENDED, Frame, group_of, is_to_one

if TYPE_CHECKING:
    from collections.abc import Collection

CONTROL: Final = 0xEC00
"""The parameter group whose frames announce a message that comes in several (TP.CM)."""
_DATA: Final = 0xEB00
_LATEST_US: Final = {0x20: 750_000, 0x10: 1_250_000}
"""Microseconds between two frames of a message, by the first byte of its announcement: BAM (T1) and RTS (T3)."""
ANNOUNCING: Final = tuple(_LATEST_US)
_ANSWERING: Final = (0x11, 0x13)
"""The first bytes of frames by which a receiver answers (CTS, end of message): about a message of the other node."""
_SHORTEST: Final = 9
"""Bytes of the shortest message that comes in several frames."""
_PRIORITY: Final = 0x1C00_0000


@define(eq=False)
class _Coming:
    """A message of which not all frames have come."""

    key: int
    size: int
    count: int
    latest_us: int
    at_us: int
    parts: list[bytes] = field(factory=list)


@define(eq=False)
class Transport:
    """The messages of one bus that are on their way; `groups` are the parameter groups that are put together."""

    groups: Collection[int]
    _coming: dict[int, _Coming] = field(factory=dict, init=False)
    """By destination and source, the one first whose last frame is the oldest."""

    def feed(self, frame: Frame) -> Frame | None:
        """Take a frame that was received; return the message that is whole with it."""
        group, pair, data = group_of(frame.key), frame.key & 0xFFFF, frame.data
        if group not in (CONTROL, _DATA) or len(data) != 8:
            return None
        if group == CONTROL and data[0] in _ANSWERING:
            return None
        coming = self._coming.pop(pair, None)
        if group == CONTROL:
            wanted = int.from_bytes(data[5:], "little")
            size, count = int.from_bytes(data[1:3], "little"), data[3]
            if data[0] in _LATEST_US and wanted in self.groups and size >= _SHORTEST and -(-size // 7) == count:
                self._forget(frame.timestamp_us - max(_LATEST_US.values()))
                # A group to one node has the destination in its identifier.
                number = wanted | pair >> 8 if is_to_one(wanted) else wanted
                key = EXTENDED | frame.key & _PRIORITY | number << 8 | pair & 0xFF
                self._coming[pair] = _Coming(key, size, count, _LATEST_US[data[0]], frame.timestamp_us)
            return None
        if coming is None or data[0] != len(coming.parts) + 1 or frame.timestamp_us > coming.at_us + coming.latest_us:
            return None
        coming.parts.append(data[1:])
        coming.at_us = frame.timestamp_us
        if len(coming.parts) < coming.count:
            self._coming[pair] = coming
            return None
        whole = b"".join(coming.parts)[: coming.size]
        return Frame(coming.key, whole, parts=coming.count, timestamp_us=frame.timestamp_us)

    def _forget(self, before_us: int) -> None:
        """Forget messages whose next frame would come too late: there can be one from each address to each other."""
        while self._coming:
            pair = next(iter(self._coming))
            if self._coming[pair].at_us >= before_us:
                return
            del self._coming[pair]
