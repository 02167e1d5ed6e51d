"""The receiving half of a serial port over a non-blocking descriptor: pump, inbox, and what a failure is called.

It owns the descriptor while the port is open and knows which transactions still need what comes in. It refuses to send
anything, and to open the descriptor: what that is, and what can be asked of the device behind it, is a subclass's
business.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import trio

from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.uart_inbox import Inbox, Taken
from hearth.drivers.wakeup import Wakeup
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.drivers.uart import UartSettings
    from hearth.errors import Effect

_READ_SIZE = 65_536


class Receiver(BaseDriver):
    """What a `UartDriver` does about input; a subclass opens the descriptor and calls `_attach`."""

    style = Style.ASYNC

    def __init__(self, port: str, settings: UartSettings) -> None:
        self.port = port
        self.settings = settings
        self._fd = -1
        self._inbox = Inbox(settings.inbox_bytes)
        self._flights = 0
        self._landed = Wakeup()

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
        """Give the descriptor back; a subclass may have more to give."""
        os.close(fd)

    def _new_overruns(self) -> int:
        """How many characters the device or the kernel has lost since this was last asked."""
        return 0

    # --- errors ---------------------------------------------------------------------------------------------------

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
    def _flight(self) -> Iterator[int]:
        """A transaction that needs the pump: it goes on receiving until this has landed."""
        fd = self._open_fd()
        self._flights += 1
        try:
            yield fd
        finally:
            self._flights -= 1
            self._landed.wake()

    # --- receiving ------------------------------------------------------------------------------------------------

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
                # A transaction that begins in this very moment is seen after one more turn.
                await trio.lowlevel.checkpoint()
                if self._flights and self._fd == fd:
                    await self._receive_until_landed(fd, inbox, receiving)
            raise

    async def _receive_until_landed(self, fd: int, inbox: Inbox, receiving: trio.CancelScope) -> None:
        async def landing() -> None:
            await self._landed.until(lambda: not self._flights)
            receiving.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(landing)
            # Who waits for bytes has been told of a failure, and this pump is ending already.
            with suppress(DeviceError):
                await self._receive(fd, inbox)
            nursery.cancel_scope.cancel()

    async def _receive(self, fd: int, inbox: Inbox) -> None:
        while fd >= 0:
            try:
                if not self._appetite(inbox):
                    await inbox.wait_for_room()
                await trio.lowlevel.wait_readable(fd)
                if self._fd != fd:
                    return
                size = self._appetite(inbox)
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

    def _appetite(self, inbox: Inbox) -> int:
        """How much to read at once.

        With flow control no more than there is room for: what is not read stays in the kernel, which stops the sender.
        """
        return _READ_SIZE if self.settings.flow == "none" or inbox.closed else inbox.room

    def _pull(self, fd: int) -> None:
        """Fetch what the kernel has received by now; a failure is the pump's to report."""
        inbox = self._inbox
        for _ in range(16):
            try:
                data = os.read(fd, self._appetite(inbox))
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
        """See `UartDriver.take`."""
        fd, inbox = self._open_fd(), self._inbox
        if gap_s is not None:
            # While this process was busy bytes may have come that belong before the gap.
            self._pull(fd)
        inbox.overran(self._new_overruns())
        return inbox.take(length, until, gap_s=gap_s, partial=partial, reader=reader)

    def forget(self, session_id: str) -> None:
        """See `Driver.forget`."""
        self._inbox.forget(session_id)
