"""The bounded buffer in which received bytes wait for their reader.

It owns the order of bytes, when a read is complete, and the count of what it had to drop; it refuses to know where
bytes come from. Fed by a port's pump, emptied by transactions, watched by readers off the bus.
"""

from __future__ import annotations

import math
from functools import partial

import trio
from attrs import frozen

from hearth.drivers.uart import INBOX_CAPACITY, MAX_TAKE
from hearth.drivers.wakeup import Wakeup
from hearth.errors import DeviceError


class Inbox:
    """Received bytes in order of arrival; beyond `capacity` the oldest go, and are counted."""

    __slots__ = ("_capacity", "_closed", "_data", "_fed_at", "_feeds", "_overflow", "_wakeup")

    def __init__(self, capacity: int = INBOX_CAPACITY) -> None:
        self._capacity = capacity
        self._data = bytearray()
        self._fed_at = 0.0
        self._feeds = 0
        self._overflow = 0
        self._closed: DeviceError | None = None
        self._wakeup = Wakeup()

    @property
    def room(self) -> int:
        """How many bytes may come before the next one pushes another one out."""
        return self._capacity - len(self._data)

    @property
    def closed(self) -> bool:
        """True if nothing more will come."""
        return self._closed is not None

    def feed(self, data: bytes, *, now: float = 0.0) -> None:
        """Append bytes that were received at the time `now` (of Trio's clock)."""
        self._data += data
        self._fed_at = now
        self._feeds += 1
        excess = len(self._data) - self._capacity
        if excess > 0:
            del self._data[:excess]
            self._overflow += excess
        self._wakeup.wake()

    def close(self, error: DeviceError) -> None:
        """Let the readers know that nothing more will come; only the first reason counts."""
        if self._closed is None:
            self._closed = error
        self._wakeup.wake()

    def clear(self) -> int:
        """Forget what is there, and what was lost of it; return how many bytes were there."""
        size = len(self._data)
        self._data.clear()
        self._overflow = 0
        self._wakeup.wake()
        return size

    def complete(self, length: int | None, until: bytes | None, gap_s: float | None = None) -> int:
        """How many bytes answer this wish, 0 if those that are there do not.

        Must be called within Trio where a gap is wished for.
        """
        have, most = len(self._data), min(length or MAX_TAKE, MAX_TAKE)
        if until is not None:
            at = self._data.find(until, 0, most)
            if at >= 0:
                return at + len(until)
        if have >= most:
            return most
        if gap_s is not None:
            return have if have and trio.current_time() >= self._fed_at + gap_s else 0
        return have if length is None and until is None else 0

    def take(
        self, length: int | None, until: bytes | None, *, gap_s: float | None = None, partial: bool = False
    ) -> Taken:
        """Take `length` bytes, or up to and including `until`, or what came before the line was quiet for `gap_s`.

        Whichever is first; with none of them, what is there. When that much is not there: nothing, or with `partial`
        what there is. Never more than MAX_TAKE.
        """
        size = self.complete(length, until, gap_s)
        complete = size > 0
        if not complete and partial:
            size = min(len(self._data), MAX_TAKE)
        data = bytes(self._data[:size])
        del self._data[:size]
        overflow = 0
        if complete or partial:
            overflow, self._overflow = self._overflow, 0
            self._wakeup.wake()
        return Taken(data, complete, overflow, inbox=self)

    async def wait(self, length: int | None, until: bytes | None, gap_s: float | None = None) -> None:
        """Wait until `take` would be complete. Raises DeviceError when nothing more will come."""
        while not self.complete(length, until, gap_s):
            if self._closed is not None:
                raise DeviceError(self._closed.message, data={**(self._closed.data or {}), "effect": "none"})
            deadline = self._fed_at + gap_s if gap_s is not None and self._data else math.inf
            with trio.move_on_at(deadline):
                await self._wakeup.until(partial(self._news_since, self._feeds))

    def _news_since(self, feeds: int) -> bool:
        return self._feeds != feeds or self._closed is not None

    async def wait_for_room(self) -> None:
        """Wait until a byte can come without pushing another one out, or none will."""
        await self._wakeup.until(lambda: self.room > 0 or self._closed is not None)


@frozen(eq=False)
class Taken:
    """What a reader got.

    `overflow` counts bytes that hearth dropped since the last read because nobody read them, `overrun` characters that
    the device or the kernel lost, `discarded` stale bytes that an exchange dropped.
    """

    data: bytes
    complete: bool
    overflow: int
    discarded: int = 0
    overrun: int = 0
    inbox: Inbox | None = None
    """Where to wait, off the bus, for the rest."""
