"""A serial port over any non-blocking descriptor: the part that the simulated and the real ports share.

`FdUart` owns input, writing, exchanging and the order in which lines are driven. A subclass opens the descriptor, and
knows what the device behind it can do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import termios
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import trio
from attrs import evolve

from hearth.drivers.base import BaseDriver, Style, Wakeup
from hearth.drivers.serial_port.inbox import Inbox, Taken
from hearth.drivers.serial_port.settings import ModemLines, write_timeout_s
from hearth.errors import DeviceError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.drivers.serial_port.settings import UartSettings
    from hearth.errors import Effect

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
"""Seconds between two checks of output that is leaving; its end cannot be polled."""
_NOT_THERE = (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP)
"""Errnos of a driver that does not support an operation."""
_READ_SIZE = 65_536


class FdUart(BaseDriver):
    """One serial port, always a pollable descriptor: its operations are coroutine functions (Style.ASYNC).

    It owns the descriptor while the port is open; a subclass opens it and calls `_attach`.
    """

    style = Style.ASYNC

    def __init__(self, port: str, settings: UartSettings) -> None:
        self.port = port
        self.settings = settings
        self._fd = -1
        self._inbox = Inbox(settings.inbox_bytes)
        self._transactions = 0
        self._idle = Wakeup()

    def _attach(self, fd: int) -> None:
        self._fd = fd
        self._inbox = Inbox(self.settings.inbox_bytes)

    def close(self) -> None:
        """Close the descriptor; a running pump returns, and readers off the bus get a DeviceError."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._inbox.close(self._error("the port was closed"))
            if trio.lowlevel.in_trio_run():
                trio.lowlevel.notify_closing(fd)
            self._release(fd)

    def _release(self, fd: int) -> None:
        """Close the descriptor; a subclass may have more to release."""
        os.close(fd)

    def _new_overruns(self) -> int:
        """Return the number of characters that the device or the kernel has lost since the last call."""
        return 0

    @property
    def inbox(self) -> Inbox:
        """Return the buffer of received bytes, to wait on."""
        return self._inbox

    def _error(
        self, what: str, *, taken: int | None = None, number: int | None = None, effect: Effect = "none"
    ) -> DeviceError:
        data: dict[str, Any] = {"port": self.port, "errno": errno.errorcode.get(number or errno.EIO, "EIO")}
        if taken is not None:
            data["taken"] = taken
        return DeviceError(f"uart {self.port}: {what}", effect=effect, data=data)

    def _failed(self, error: OSError, *, taken: int | None = None) -> DeviceError:
        what = f"{error.strerror}; is it still plugged in?"
        return self._error(what, taken=taken, number=error.errno, effect="unknown" if taken else "none")

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise self._error("the port is not open", number=errno.EBADF)
        return self._fd

    @contextmanager
    def transaction(self) -> Iterator[int]:
        """Keep the pump receiving until the transaction that needs it has ended."""
        fd = self._open_fd()
        self._transactions += 1
        try:
            yield fd
        finally:
            self._transactions -= 1
            self._idle.wake()

    async def pump(self) -> None:
        """Move received bytes into the inbox until the port is closed.

        Cancelled while a transaction is in flight it goes on until that has its reply. Raises DeviceError when the
        port fails.
        """
        fd, inbox = self._fd, self._inbox
        try:
            await self._receive(fd, inbox)
        except trio.Cancelled:
            with trio.CancelScope(shield=True) as receiving:
                # A transaction that begins at this moment is seen after one more turn.
                await trio.lowlevel.checkpoint()
                if self._transactions and self._fd == fd:
                    await self._receive_until_idle(fd, inbox, receiving)
            raise

    async def _receive_until_idle(self, fd: int, inbox: Inbox, receiving: trio.CancelScope) -> None:
        async def cancel_when_idle() -> None:
            await self._idle.until(lambda: not self._transactions)
            receiving.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when_idle)
            # The readers have got the error, and this pump is ending already.
            with suppress(DeviceError):
                await self._receive(fd, inbox)
            nursery.cancel_scope.cancel()

    async def _receive(self, fd: int, inbox: Inbox) -> None:
        while fd >= 0:
            try:
                if not self._read_size(inbox):
                    await inbox.wait_for_room()
                await trio.lowlevel.wait_readable(fd)
                if self._fd != fd:
                    return
                size = self._read_size(inbox)
                if not size:
                    continue
                data = os.read(fd, size)
                if not data:
                    raise OSError(errno.EIO, "the other side hung up")
            except BlockingIOError:
                continue
            except trio.ClosedResourceError:
                return
            except OSError as error:
                failure = self._failed(error)
                inbox.close(failure)
                raise failure from error
            inbox.feed(data, now=trio.current_time())

    def _read_size(self, inbox: Inbox) -> int:
        """Return the number of bytes to read at once.

        With flow control no more than fit: unread bytes stay in the kernel, which stops the sender.
        """
        return _READ_SIZE if self.settings.flow == "none" or inbox.closed else inbox.room

    def _pull(self, fd: int) -> None:
        """Fetch the bytes that the kernel has by now; the pump reports a failure."""
        inbox = self._inbox
        for _ in range(16):
            try:
                data = os.read(fd, self._read_size(inbox))
            except OSError:
                return
            if not data:
                return
            inbox.feed(data, now=trio.current_time())

    async def take(
        self,
        length: int | None,
        until: bytes | None,
        *,
        gap_s: float | None = None,
        partial: bool = False,
        reader: str = "",
    ) -> Taken:
        """Read received bytes at the cursor of `reader` (a session's id) without waiting, as `Inbox.take`."""
        fd, inbox = self._open_fd(), self._inbox
        if gap_s is not None:
            # While this process was busy, bytes may have come that belong before the gap.
            self._pull(fd)
        inbox.overran(self._new_overruns())
        return inbox.take(length, until, gap_s=gap_s, partial=partial, reader=reader)

    def forget(self, session_id: str) -> None:
        """See `Driver.forget`."""
        self._inbox.forget(session_id)

    async def _get_lines(self) -> ModemLines:
        return ModemLines()

    async def _set_lines(self, *, rts: bool | None, dtr: bool | None) -> None:
        """Set the lines that are not None. Raises OSError."""
        raise OSError(errno.ENOTTY, "the port has no modem lines")

    async def _set_break(self, on: bool) -> None:
        """Begin or end the break state. Raises OSError."""
        raise OSError(errno.ENOTTY, "the port cannot send a break")

    def _unsent(self, fd: int) -> int:
        """Return the number of written bytes that have not left yet."""
        return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), "little")

    async def write(self, data: bytes, *, timeout_s: float, drain: bool = False, reader: str = "") -> int:
        """Pass all of `data` to the kernel, in order; with `drain` wait until it has left the kernel's buffer too.

        `reader` will see all that comes after it.

        Raises TimedOut when it takes longer than `timeout_s` (flow control), and DeviceError; `taken` in their data is
        the number of bytes that the kernel took.
        """
        with self.transaction() as fd:
            self._inbox.begin(reader)
            deadline = trio.current_time() + timeout_s
            await self._send(fd, data, deadline, timeout_s)
            if drain:
                unsent = await self._drained(fd, deadline)
                if unsent:
                    raise TimedOut(
                        f"uart {self.port}: the last of {len(data)} bytes are still there after {timeout_s:.1f} s; "
                        "flow control?",
                        effect="unknown",
                        data={"port": self.port, "taken": len(data), "unsent": unsent},
                    )
            return len(data)

    async def _send(self, fd: int, data: bytes, deadline: float, timeout_s: float) -> None:
        rest = memoryview(data)
        try:
            with trio.move_on_at(deadline):
                while rest:
                    try:
                        rest = rest[os.write(fd, rest) :]
                    except BlockingIOError:
                        await trio.lowlevel.wait_writable(fd)
        except trio.ClosedResourceError:
            closed = OSError(errno.EBADF, "the port was closed")
            raise self._failed(closed, taken=len(data) - len(rest)) from None
        except OSError as error:
            failure = self._failed(error, taken=len(data) - len(rest))
            if _hung_up(fd):
                # A pump that does not read does not see the end of the device by itself.
                self._inbox.close(failure)
            raise failure from error
        if rest:
            taken = len(data) - len(rest)
            raise TimedOut(
                f"uart {self.port}: {taken} of {len(data)} bytes were taken in {timeout_s:.1f} s; flow control?",
                effect="unknown" if taken else "none",
                data={"port": self.port, "taken": taken},
            )

    async def _drained(self, fd: int, deadline: float) -> int:
        """Wait until the written bytes have left; return how many have not by `deadline`."""
        while True:
            try:
                unsent = self._unsent(fd)
            except OSError as error:
                raise self._error(f"{error.strerror}; is it still plugged in?", effect="unknown") from error
            left_s = deadline - trio.current_time()
            if not unsent or left_s <= 0:
                return unsent
            pause = min(max(5.0 * unsent / self.settings.baud, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            await trio.sleep(min(pause, left_s))

    async def exchange(
        self,
        data: bytes,
        *,
        length: int | None,
        until: bytes | None,
        timeout_s: float,
        gap_s: float | None = None,
        reader: str = "",
    ) -> Taken:
        """Skip stale input, write, and wait at most `timeout_s` for the reply: one indivisible transaction.

        `reader` skips and reads at its own cursor: other readers still get the stale input, and the reply too. A reply
        that is late or short is returned with `complete` false and the bytes that have come.
        """
        with self.transaction() as fd:
            inbox = self._inbox
            self._pull(fd)
            inbox.overran(self._new_overruns())
            discarded = inbox.skip(reader)
            write_s = write_timeout_s(len(data), self.settings.baud)
            await self._send(fd, data, trio.current_time() + write_s, write_s)
            try:
                with trio.move_on_after(timeout_s):
                    while not inbox.complete(length, until, gap_s, reader):
                        await inbox.wait(length, until, gap_s, reader)
                        self._pull(fd)
            except DeviceError as error:
                raise DeviceError(error.message, data={**(error.data or {}), "effect": "unknown"}) from error
            inbox.overran(self._new_overruns())
            reply = inbox.take(length, until, gap_s=gap_s, partial=True, reader=reader)
            return evolve(reply, discarded=discarded)

    async def control(
        self, *, rts: bool | None = None, dtr: bool | None = None, break_s: float | None = None
    ) -> ModemLines:
        """Set RTS and DTR, then hold the line in the break state for `break_s`; return the levels of all lines.

        A break waits until earlier output has left. Raises DeviceError for what the port cannot do, and TimedOut for
        output that does not leave.
        """
        with self.transaction() as fd:
            owner = self._rts_owner()
            if rts is not None and owner is not None:
                raise self._error(f"RTS belongs to {owner} on this port, so it cannot be set", number=errno.EBUSY)
            if rts is not None or dtr is not None:
                try:
                    await self._set_lines(rts=rts, dtr=dtr)
                except OSError as error:
                    effect: Effect = "none" if error.errno in _NOT_THERE else "unknown"
                    what = f"RTS and DTR cannot be set: {error.strerror}"
                    raise self._error(what, number=error.errno, effect=effect) from error
            if break_s is not None:
                await self._send_break(fd, break_s)
            return await self._get_lines()

    def _rts_owner(self) -> str | None:
        if self.settings.rs485 is not None:
            return "RS-485"
        return "flow control" if self.settings.flow == "rtscts" else None

    async def _send_break(self, fd: int, break_s: float) -> None:
        # The kernel would wait for this itself, and for ever.
        wait_s = write_timeout_s(4096, self.settings.baud)
        unsent = await self._drained(fd, trio.current_time() + wait_s)
        if unsent:
            raise TimedOut(
                f"uart {self.port}: no break was sent: output is still there after {wait_s:.1f} s; flow control?",
                effect="none",
                data={"port": self.port, "unsent": unsent},
            )
        try:
            await self._set_break(True)
        except OSError as error:
            what = f"no break was sent: {error.strerror}"
            raise self._error(what, number=error.errno) from error
        try:
            await trio.sleep(break_s)
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await self._set_break(False)
                except OSError as error:
                    what = f"the break could not be ended: {error.strerror}"
                    raise self._error(what, number=error.errno, effect="unknown") from error


def _hung_up(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))
