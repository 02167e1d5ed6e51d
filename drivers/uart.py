"""UART: how a serial port is set up, what its driver must do, and what a reader gets.

The vocabulary of serial ports; the machine that does it over a descriptor is `hearth.drivers.uart_fd`. A driver here is
one port. Receiving never occupies the bus: a pump moves bytes into a bounded `Inbox` as they come, a reader waits
beside the bus and takes them in one short transaction, so that reading and writing go on at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from attrs import field, frozen, validators

from hearth.drivers.base import Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from attrs import Attribute

    from hearth.drivers.uart_inbox import Taken

Parity: TypeAlias = Literal["none", "even", "odd", "mark", "space"]
Flow: TypeAlias = Literal["none", "rtscts", "xonxoff"]

MAX_TAKE = 4096
"""Bytes that one read may return."""
INBOX_CAPACITY = 65_536
"""Bytes that wait for a reader unless the port's settings say otherwise: half a minute at 19200 baud."""
MODEM_LINES = "lines"
"""The name under which a bus remembers that a session drove a port's RTS or DTR."""


def _between(least: int, most: int) -> Callable[[object, Attribute[int], int], None]:
    return validators.and_(validators.ge(least), validators.le(most))


@frozen
class Rs485:
    """How a port drives its RS-485 transceiver: the kernel switches RTS around each transmission.

    Delays are milliseconds between switching and the first or after the last bit; not every driver keeps them.
    """

    rts_on_send: bool = True
    """The level of RTS while sending; the other level is driven while receiving."""
    loopback: bool = False
    """Whether the port hears what it sends itself."""
    before_ms: int = field(default=0, validator=_between(0, 1000))
    after_ms: int = field(default=0, validator=_between(0, 1000))


def _rs485(value: Rs485 | bool | None) -> Rs485 | None:
    return Rs485() if value is True else value or None


def _stop_bits_fit(settings: UartSettings, _attribute: Attribute[float], value: float) -> None:
    if value not in (1, 1.5, 2):
        raise ValueError(f"stop_bits: {value} is not one of 1, 1.5, 2")
    # One setting of the kernel stands for both: it means 1.5 with five bits, 2 with more.
    if (value == 1.5 and settings.bits != 5) or (value == 2 and settings.bits == 5):
        raise ValueError(f"stop_bits: {value} does not go with bits = {settings.bits}: 1.5 with 5 bits, 2 with more")


def _rts_is_free(settings: UartSettings, _attribute: Attribute[Rs485 | None], value: Rs485 | None) -> None:
    if value is not None and settings.flow == "rtscts":
        raise ValueError('rs485: RTS switches the transceiver, so it cannot do flow = "rtscts" too')


@frozen
class UartSettings:
    """How a serial port is set up when it is opened. Raises ValueError for what no port can be, naming the key.

    `baud` may be any rate; the port refuses at open what it cannot do. `rts` and `dtr` are the levels that the lines
    get at open, after the kernel has raised both for a moment. With `hangup` the kernel lowers both when the port is
    closed (also by a crash); without it they stay as they are.
    """

    baud: int = field(default=115_200, validator=_between(50, 20_000_000))
    bits: int = field(default=8, validator=validators.in_((5, 6, 7, 8)))
    parity: Parity = field(default="none", validator=validators.in_(("none", "even", "odd", "mark", "space")))
    stop_bits: float = field(default=1.0, validator=_stop_bits_fit)
    flow: Flow = field(default="none", validator=validators.in_(("none", "rtscts", "xonxoff")))
    rs485: Rs485 | None = field(default=None, converter=_rs485, validator=_rts_is_free)
    inbox_bytes: int = field(default=INBOX_CAPACITY, validator=_between(4096, 16_777_216))
    rts: bool = True
    dtr: bool = True
    hangup: bool = True


@frozen
class ModemLines:
    """The levels of a port's lines besides data: true is asserted, None where the port does not know the line."""

    rts: bool | None = None
    dtr: bool | None = None
    cts: bool | None = None
    dsr: bool | None = None
    ri: bool | None = None
    cd: bool | None = None


class UartDriver(Driver, Protocol):
    """One serial port, always a pollable descriptor: its operations are coroutine functions (Style.ASYNC)."""

    async def write(self, data: bytes, *, timeout_s: float, drain: bool = False, reader: str = "") -> int:
        """Hand all of `data` to the kernel, in order; with `drain` wait until it has left the kernel's buffer too.

        `reader` will see all that comes after it.

        Raises TimedOut when it takes longer than `timeout_s` (flow control), and DeviceError; `taken` in their data is
        how many bytes the kernel took.
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

        `reader` skips and reads at its own cursor: other readers still get the stale input, and the reply too.
        A reply that is late or short comes back with `complete` false and what there is of it.
        """
        ...

    async def control(
        self, *, rts: bool | None = None, dtr: bool | None = None, break_s: float | None = None
    ) -> ModemLines:
        """Set RTS and DTR, then hold the line in the break state for so long; return the levels of all lines.

        A break waits until what was written before has left. Raises DeviceError for what the port cannot do, and
        TimedOut for output that does not leave.
        """
        ...


def write_timeout_s(size: int, baud: int) -> float:
    """How long a write of `size` bytes may take: twice the time on the wire (10 bits a byte) and a second."""
    return 1.0 + 20.0 * size / baud
