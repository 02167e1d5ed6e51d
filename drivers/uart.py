"""UART: what a port's driver must do, the buffer that received bytes wait in, and the machine over a descriptor.

A driver here is one port. Receiving never occupies the bus: a pump moves bytes into a bounded `Inbox` as they
come, a reader waits beside the bus and takes them in one short transaction, so that reading and writing go on
at the same time. `FdUart` does all of it over any non-blocking descriptor; who opened that descriptor is a
subclass's business.
"""

from __future__ import annotations

import errno
import os
from typing import Protocol

import trio
from attrs import frozen

from hearth.drivers.base import BaseDriver, Driver, Style
from hearth.drivers.wakeup import Wakeup
from hearth.errors import DeviceError, TimedOut

MAX_TAKE = 4096
"""Bytes that one read may return."""
INBOX_CAPACITY = 65_536
"""Bytes that wait for a reader, half a minute at 19200 baud; then the oldest go, and are counted."""


class Inbox:
    """Received bytes in order of arrival.

    Fed by the pump, emptied by transactions, watched by readers off the bus.
    """

    __slots__ = ("_capacity", "_closed", "_data", "_overflow", "_wakeup")

    def __init__(self, capacity: int = INBOX_CAPACITY) -> None:
        self._capacity = capacity
        self._data = bytearray()
        self._overflow = 0
        self._closed: str | None = None
        self._wakeup = Wakeup()

    def feed(self, data: bytes) -> None:
        """Append received bytes; beyond the capacity the oldest are dropped and counted as overflow."""
        self._data += data
        excess = len(self._data) - self._capacity
        if excess > 0:
            del self._data[:excess]
            self._overflow += excess
        self._wakeup.wake()

    def close(self, reason: str) -> None:
        """Let the readers know that nothing more will come, because of `reason`."""
        self._closed = reason
        self._wakeup.wake()

    def clear(self) -> int:
        """Forget what is there, and what was lost of it; return how many bytes were there."""
        size = len(self._data)
        self._data.clear()
        self._overflow = 0
        return size

    def _complete(self, length: int | None, until: bytes | None) -> int:
        """How many bytes answer this wish, 0 if those that are there do not."""
        have, most = len(self._data), min(length or MAX_TAKE, MAX_TAKE)
        if until is not None:
            at = self._data.find(until, 0, most)
            if at >= 0:
                return at + len(until)
            return most if have >= most else 0
        if length is not None:
            return most if have >= most else 0
        return min(have, most)

    def take(self, length: int | None, until: bytes | None, *, partial: bool = False) -> Taken:
        """Take `length` bytes, or up to and including `until`, whichever is first; with neither, what is there.

        When that much is not there: nothing, or with `partial` what there is. Never more than MAX_TAKE.
        """
        size = self._complete(length, until)
        complete = size > 0
        if not complete and partial:
            size = min(len(self._data), MAX_TAKE)
        data = bytes(self._data[:size])
        del self._data[:size]
        overflow = 0
        if complete or partial:
            overflow, self._overflow = self._overflow, 0
        return Taken(data, complete, overflow, inbox=self)

    async def wait(self, length: int | None, until: bytes | None) -> None:
        """Wait until `take` would be complete. Raises DeviceError when the port was closed meanwhile."""
        await self._wakeup.until(lambda: self._closed is not None or self._complete(length, until))
        if self._closed is not None and not self._complete(length, until):
            raise DeviceError(self._closed, effect="none")


@frozen(eq=False)
class Taken:
    """What a reader got.

    `overflow` counts bytes lost since the last read, `discarded` stale ones that an exchange dropped.
    """

    data: bytes
    complete: bool
    overflow: int
    discarded: int = 0
    inbox: Inbox | None = None
    """Where to wait, off the bus, for the rest."""


class UartDriver(Driver, Protocol):
    """One serial port, always a pollable descriptor: its operations are coroutine functions (Style.ASYNC)."""

    async def write(self, data: bytes, *, timeout_s: float) -> int:
        """Hand all of `data` to the kernel, in order.

        Raises TimedOut when it takes longer (flow control), DeviceError.
        """
        ...

    async def take(self, length: int | None, until: bytes | None, *, partial: bool = False) -> Taken:
        """Take received bytes without waiting, as `Inbox.take`."""
        ...

    async def exchange(self, data: bytes, *, length: int | None, until: bytes | None, timeout_s: float) -> Taken:
        """Drop stale input, write, and wait at most `timeout_s` for the reply: one indivisible transaction.

        A reply that is late or short comes back with `complete` false and what there is of it.
        """
        ...


def write_timeout_s(size: int, baud: int) -> float:
    """How long a write of `size` bytes may take: twice the time on the wire (10 bits a byte) and a second."""
    return 1.0 + 20.0 * size / baud


class FdUart(BaseDriver):
    """A `UartDriver` over a non-blocking descriptor; a subclass opens it and calls `_attach`."""

    style = Style.ASYNC

    def __init__(self, port: str, *, baud: int) -> None:
        self.port = port
        self.baud = baud
        self._fd = -1
        self._inbox = Inbox()

    def _attach(self, fd: int) -> None:
        self._fd = fd
        self._inbox = Inbox()

    def close(self) -> None:
        """Close the descriptor; a running pump returns, and readers off the bus get a DeviceError."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_descriptor(fd)
            self._inbox.close(f"uart {self.port}: the port was closed")

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise DeviceError(f"uart {self.port}: the port is not open", effect="none", data={"port": self.port})
        return self._fd

    def _failed(self, error: OSError, *, taken: int) -> DeviceError:
        return DeviceError(
            f"uart {self.port}: {error.strerror}; is it still plugged in?",
            effect="unknown" if taken else "none",
            data={"port": self.port, "errno": errno.errorcode.get(error.errno or 0, "EIO"), "taken": taken},
        )

    async def pump(self) -> None:
        """Move received bytes into the inbox until the port is closed.

        Raises DeviceError when the port fails.
        """
        fd, inbox = self._fd, self._inbox
        while fd >= 0:
            try:
                await trio.lowlevel.wait_readable(fd)
                if self._fd != fd:
                    return
                data = os.read(fd, MAX_TAKE)
                if not data:
                    raise OSError(errno.EIO, "the other side hung up")
            except BlockingIOError:
                continue
            except trio.ClosedResourceError:
                return
            except OSError as error:
                failure = self._failed(error, taken=0)
                inbox.close(failure.message)
                raise failure from error
            inbox.feed(data)

    async def write(self, data: bytes, *, timeout_s: float) -> int:
        """See `UartDriver.write`."""
        fd, rest = self._open_fd(), memoryview(data)
        try:
            with trio.move_on_after(timeout_s):
                while rest:
                    try:
                        rest = rest[os.write(fd, rest) :]
                    except BlockingIOError:
                        await trio.lowlevel.wait_writable(fd)
        except trio.ClosedResourceError:
            closed = OSError(errno.EBADF, "the port was closed")
            raise self._failed(closed, taken=len(data) - len(rest)) from None
        except OSError as error:
            raise self._failed(error, taken=len(data) - len(rest)) from error
        if rest:
            taken = len(data) - len(rest)
            raise TimedOut(
                f"uart {self.port}: {taken} of {len(data)} bytes were taken in {timeout_s:.1f} s; flow control?",
                effect="unknown" if taken else "none",
                data={"port": self.port, "taken": taken},
            )
        return len(data)

    async def take(self, length: int | None, until: bytes | None, *, partial: bool = False) -> Taken:
        """See `UartDriver.take`."""
        self._open_fd()
        return self._inbox.take(length, until, partial=partial)

    async def exchange(self, data: bytes, *, length: int | None, until: bytes | None, timeout_s: float) -> Taken:
        """See `UartDriver.exchange`."""
        inbox = self._inbox
        discarded = inbox.clear()
        await self.write(data, timeout_s=write_timeout_s(len(data), self.baud))
        try:
            with trio.move_on_after(timeout_s):
                await inbox.wait(length, until)
        except DeviceError as error:
            raise DeviceError(error.message, effect="unknown", data={"port": self.port}) from error
        reply = inbox.take(length, until, partial=True)
        return Taken(reply.data, reply.complete, reply.overflow, discarded, inbox)


def close_descriptor(fd: int) -> None:
    """Close `fd`, waking the tasks that wait for it when this is the Trio thread."""
    if trio.lowlevel.in_trio_run():
        trio.lowlevel.notify_closing(fd)
    os.close(fd)
