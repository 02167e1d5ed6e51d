"""The buffer of received bytes, with a cursor for each reader.

It owns the order of bytes, each reader's cursor, the completeness of a read, and the count of bytes that a reader
missed. Fed by a port's pump, read by transactions, waited on by readers off the bus.

A cursor is an offset in the stream since the port was opened. Reading moves the reader's own cursor and takes nothing
from others. A new reader begins at the first byte that no reader has read yet, so that consecutive readers share the
stream as if they were one. The newest `capacity` bytes are kept. A cursor that they have passed has a gap, which its
next read reports.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial

import trio
from attrs import define, field, frozen

from hearth.drivers.base import Wakeup
from hearth.drivers.serial_port.settings import INBOX_CAPACITY, MAX_TAKE
from hearth.errors import DeviceError

MOST_CURSORS = 1024
"""Readers whose cursor is kept. One more, and the cursor that was not used for the longest time is dropped."""


@define
class _ReadPosition:
    """`at`: the offset of the reader's next byte; `overruns`: the number of lost characters reported to it."""

    at: int
    overruns: int


@define(eq=False)
class Inbox:
    """Received bytes in order of arrival, the newest `capacity` of them; `reader` names the cursor to use."""

    _capacity: int = INBOX_CAPACITY
    _data: bytearray = field(factory=bytearray, init=False)
    _start: int = field(default=0, init=False)
    """The offset of the first byte that is kept."""
    _read: int = field(default=0, init=False)
    """The offset of the first byte that no reader has read."""
    _cursors: OrderedDict[str, _ReadPosition] = field(factory=OrderedDict, init=False)
    _overruns: int = field(default=0, init=False)
    _reported: int = field(default=0, init=False)
    _fed_at: float = field(default=0.0, init=False)
    _feeds: int = field(default=0, init=False)
    _closed: DeviceError | None = field(default=None, init=False)
    _wakeup: Wakeup = field(factory=Wakeup, init=False)

    @property
    def room(self) -> int:
        """Return how many bytes may come before an unread one is dropped."""
        return self._capacity - (self._end - max(self._read, self._start))

    @property
    def lost(self) -> int:
        """Return how many unread bytes have been dropped since the last read."""
        return max(0, self._start - self._read)

    @property
    def closed(self) -> bool:
        """Return True if nothing more will come."""
        return self._closed is not None

    @property
    def fed_at(self) -> float:
        """Return the time at which bytes were received last, 0 if none were."""
        return self._fed_at

    @property
    def _end(self) -> int:
        return self._start + len(self._data)

    def begin(self, reader: str) -> None:
        """Give a reader a cursor, if it has none: it will see all bytes from now on, whatever other readers do."""
        self._cursor(reader)

    def forget(self, reader: str) -> None:
        """Drop a reader's cursor."""
        self._cursors.pop(reader, None)

    def _cursor(self, reader: str) -> _ReadPosition:
        cursor = self._cursors.get(reader)
        if cursor is None:
            cursor = self._cursors[reader] = _ReadPosition(self._read, self._reported)
            if len(self._cursors) > MOST_CURSORS:
                self._cursors.popitem(last=False)
        else:
            self._cursors.move_to_end(reader)
        return cursor

    def _offset(self, reader: str) -> int:
        """Return the index of the reader's next byte in the data."""
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
        """Count characters that the device or the kernel has lost."""
        self._overruns += count

    def close(self, error: DeviceError) -> None:
        """Wake the readers because nothing more will come; only the first reason counts."""
        if self._closed is None:
            self._closed = error
        self._wakeup.wake()

    def skip(self, reader: str = "") -> int:
        """Move a reader to the end, past its gap too; return the number of bytes that it skipped."""
        cursor = self._cursor(reader)
        size = self._end - max(cursor.at, self._start)
        cursor.overruns = self._overruns
        self._move(cursor, self._end)
        return size

    def _move(self, cursor: _ReadPosition, at: int) -> None:
        cursor.at = at
        self._read = max(self._read, at)
        self._reported = max(self._reported, cursor.overruns)
        self._wakeup.wake()

    def complete(self, length: int | None, until: bytes | None, gap_s: float | None = None, reader: str = "") -> int:
        """Return the number of bytes that complete this read, 0 if the present ones do not.

        Must be called within Trio where `gap_s` is given.
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
        """Read `length` bytes, or up to and including `until`, or the bytes before the line was quiet for `gap_s`.

        The first of these ends the read; without any, all present bytes are returned. If the read is not complete:
        nothing, or with `partial` the present bytes. Never more than MAX_TAKE. The reader's cursor moves behind the
        returned bytes.
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

    async def wait(self, length: int | None, until: bytes | None, gap_s: float | None = None, reader: str = "") -> None:
        """Wait until `take` would be complete. Raises DeviceError when nothing more will come."""
        while not self.complete(length, until, gap_s, reader):
            if self._closed is not None:
                raise DeviceError(self._closed.message, data={**(self._closed.data or {}), "effect": "none"})
            there = len(self._data) > self._offset(reader)
            deadline = self._fed_at + gap_s if gap_s is not None and there else math.inf
            with trio.move_on_at(deadline):
                await self._wakeup.until(partial(self._changed_since, self._feeds))

    def _changed_since(self, feeds: int) -> bool:
        return self._feeds != feeds or self._closed is not None

    async def wait_for_room(self) -> None:
        """Wait until a byte can come without dropping an unread one, or none will come."""
        await self._wakeup.until(lambda: self.room > 0 or self._closed is not None)


@frozen(eq=False)
class Taken:
    """The result of a read.

    `overflow` counts bytes between this reader's last read and this one that hearth no longer has, `overrun` characters
    that the device or the kernel lost, `discarded` stale bytes that an exchange skipped.
    """

    data: bytes
    complete: bool
    overflow: int
    discarded: int = 0
    overrun: int = 0
    inbox: Inbox | None = None
    """The inbox to wait on, off the bus, for the rest."""
