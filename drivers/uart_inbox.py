"""The bounded buffer of received bytes, in which each reader has its own place.

It owns the order of bytes, the place up to which each reader has read, when a read is complete, and the count of what a
reader missed; it refuses to know where bytes come from. Fed by a port's pump, read by transactions, watched by readers
off the bus.

A place is a cursor: an offset in the stream since the port was opened. Reading moves the reader's own cursor and takes
nothing from others. A reader's first use begins at the first byte that no reader has read yet, so that readers who come
one after the other share the stream as if they were one. The newest `capacity` bytes are kept; a cursor that they have
passed has a gap, which its next read tells.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial

import trio
from attrs import define, frozen

from hearth.drivers.uart import INBOX_CAPACITY, MAX_TAKE
from hearth.drivers.wakeup import Wakeup
from hearth.errors import DeviceError

MOST_CURSORS = 1024
"""Readers whose place is kept; more, and the one that has not read for the longest begins anew."""


@define
class _Cursor:
    """`at`: the offset of the reader's next byte; `overruns`: how many lost characters it has been told of."""

    at: int
    overruns: int


class Inbox:
    """Received bytes in order of arrival, the newest `capacity` of them; `reader` names whose cursor is meant."""

    __slots__ = (
        "_capacity",
        "_closed",
        "_cursors",
        "_data",
        "_fed_at",
        "_feeds",
        "_overruns",
        "_read",
        "_start",
        "_told",
        "_wakeup",
    )

    def __init__(self, capacity: int = INBOX_CAPACITY) -> None:
        self._capacity = capacity
        self._data = bytearray()
        self._start = 0
        """The offset of the first byte that is kept."""
        self._read = 0
        """The offset of the first byte that no reader has read."""
        self._cursors: OrderedDict[str, _Cursor] = OrderedDict()
        self._overruns = self._told = 0
        self._fed_at = 0.0
        self._feeds = 0
        self._closed: DeviceError | None = None
        self._wakeup = Wakeup()

    @property
    def room(self) -> int:
        """How many bytes may come before one goes that nobody has read."""
        return self._capacity - (self._end - max(self._read, self._start))

    @property
    def lost(self) -> int:
        """How many bytes have gone that nobody has read, since somebody last read."""
        return max(0, self._start - self._read)

    @property
    def closed(self) -> bool:
        """True if nothing more will come."""
        return self._closed is not None

    @property
    def _end(self) -> int:
        return self._start + len(self._data)

    def begin(self, reader: str) -> None:
        """Give a reader its place, if it has none: it will see what comes from now on, whoever reads meanwhile."""
        self._cursor(reader)

    def forget(self, reader: str) -> None:
        """Drop a reader's place."""
        self._cursors.pop(reader, None)

    def _cursor(self, reader: str) -> _Cursor:
        cursor = self._cursors.get(reader)
        if cursor is None:
            cursor = self._cursors[reader] = _Cursor(self._read, self._told)
            if len(self._cursors) > MOST_CURSORS:
                self._cursors.popitem(last=False)
        else:
            self._cursors.move_to_end(reader)
        return cursor

    def _offset(self, reader: str) -> int:
        """Where in the data the reader's next byte is."""
        return max(0, self._cursor(reader).at - self._start)

    def feed(self, data: bytes, *, now: float = 0.0) -> None:
        """Append bytes that were received at the time `now` (of Trio's clock)."""
        self._data += data
        self._fed_at = now
        self._feeds += 1
        excess = len(self._data) - self._capacity
        if excess > 0:
            del self._data[:excess]
            self._start += excess
        self._wakeup.wake()

    def overran(self, count: int) -> None:
        """Note that the device or the kernel has lost so many characters."""
        self._overruns += count

    def close(self, error: DeviceError) -> None:
        """Let the readers know that nothing more will come; only the first reason counts."""
        if self._closed is None:
            self._closed = error
        self._wakeup.wake()

    def skip(self, reader: str = "") -> int:
        """Move a reader to the end, past what it missed too; return how many bytes were there for it."""
        cursor = self._cursor(reader)
        size = self._end - max(cursor.at, self._start)
        cursor.overruns = self._overruns
        self._move(cursor, self._end)
        return size

    def _move(self, cursor: _Cursor, at: int) -> None:
        cursor.at = at
        self._read = max(self._read, at)
        self._told = max(self._told, cursor.overruns)
        self._wakeup.wake()

    def complete(self, length: int | None, until: bytes | None, gap_s: float | None = None, reader: str = "") -> int:
        """How many bytes answer this wish, 0 if those that are there do not.

        Must be called within Trio where a gap is wished for.
        """
        first = self._offset(reader)
        have, most = len(self._data) - first, min(length or MAX_TAKE, MAX_TAKE)
        if until is not None:
            at = self._data.find(until, first, first + most)
            if at >= 0:
                return at + len(until) - first
        if have >= most:
            return most
        if gap_s is not None:
            return have if have and trio.current_time() >= self._fed_at + gap_s else 0
        return have if length is None and until is None else 0

    def take(
        self,
        length: int | None,
        until: bytes | None,
        *,
        gap_s: float | None = None,
        partial: bool = False,
        reader: str = "",
    ) -> Taken:
        """Read `length` bytes, or up to and including `until`, or what came before the line was quiet for `gap_s`.

        Whichever is first; with none of them, what is there. When that much is not there: nothing, or with `partial`
        what there is. Never more than MAX_TAKE. The reader's cursor moves behind what it got.
        """
        cursor = self._cursor(reader)
        size = self.complete(length, until, gap_s, reader)
        complete = size > 0
        if not (complete or partial):
            return Taken(b"", complete=False, overflow=0, inbox=self)
        first = max(cursor.at, self._start)
        at = first - self._start
        data = bytes(self._data[at : at + (size or MAX_TAKE)])
        overflow, overrun = first - cursor.at, self._overruns - cursor.overruns
        cursor.overruns = self._overruns
        self._move(cursor, first + len(data))
        return Taken(data, complete, overflow, overrun=overrun, inbox=self)

    async def wait(
        self, length: int | None, until: bytes | None, gap_s: float | None = None, reader: str = ""
    ) -> None:
        """Wait until `take` would be complete. Raises DeviceError when nothing more will come."""
        while not self.complete(length, until, gap_s, reader):
            if self._closed is not None:
                raise DeviceError(self._closed.message, data={**(self._closed.data or {}), "effect": "none"})
            there = len(self._data) > self._offset(reader)
            deadline = self._fed_at + gap_s if gap_s is not None and there else math.inf
            with trio.move_on_at(deadline):
                await self._wakeup.until(partial(self._news_since, self._feeds))

    def _news_since(self, feeds: int) -> bool:
        return self._feeds != feeds or self._closed is not None

    async def wait_for_room(self) -> None:
        """Wait until a byte can come without pushing an unread one out, or none will."""
        await self._wakeup.until(lambda: self.room > 0 or self._closed is not None)


@frozen(eq=False)
class Taken:
    """What a reader got.

    `overflow` counts bytes between this reader's last read and this one that hearth no longer has, `overrun` characters
    that the device or the kernel lost, `discarded` stale bytes that an exchange skipped.
    """

    data: bytes
    complete: bool
    overflow: int
    discarded: int = 0
    overrun: int = 0
    inbox: Inbox | None = None
    """Where to wait, off the bus, for the rest."""
