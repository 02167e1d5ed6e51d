"""UART: the interface of a serial port's driver. `hearth.drivers.serial_port` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hearth.drivers.base import Driver

if TYPE_CHECKING:
    from hearth.drivers.serial_port.settings import ModemLines, Taken


class UartDriver(Driver, Protocol):
    """One serial port, always a pollable descriptor: its operations are coroutine functions (Style.ASYNC)."""

    async def write(self, data: bytes, *, timeout_s: float, drain: bool = False, reader: str = "") -> int:
        """Pass all of `data` to the kernel, in order; with `drain` wait until it has left the kernel's buffer too.

        `reader` will see all that comes after it.

        Raises TimedOut when it takes longer than `timeout_s` (flow control), and DeviceError; `taken` in their data is
        the number of bytes that the kernel took.
        """
        ...

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
        ...

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
        ...

    async def control(
        self, *, rts: bool | None = None, dtr: bool | None = None, break_s: float | None = None
    ) -> ModemLines:
        """Set RTS and DTR, then hold the line in the break state for `break_s`; return the levels of all lines.

        A break waits until earlier output has left. Raises DeviceError for what the port cannot do, and TimedOut for
        output that does not leave.
        """
        ...
