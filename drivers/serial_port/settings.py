"""Serial ports: their settings and their modem lines.

`fd` implements a port over a descriptor. Receiving never occupies the bus: a pump moves bytes into a bounded `Inbox` as
they come (`inbox`); a reader waits beside the bus and takes them in one short transaction, so that reading and writing
go on at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from attrs import field, frozen, validators

from hearth.fields import Choice, Flag, Integer

if TYPE_CHECKING:
    from collections.abc import Callable

    from attrs import Attribute

    from hearth.tables import Table


PORTS: Final = "uart"
"""The kind whose buses serial ports are, and the word for them in `[discover]`."""

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
    """The use of RTS for an RS-485 transceiver: the kernel switches it around each transmission.

    Delays are milliseconds between switching and the first or after the last bit; not every driver keeps them.
    """

    rts_on_send: bool = True
    """The level of RTS while sending; the other level is driven while receiving."""
    loopback: bool = False
    """True if the port receives its own transmissions."""
    before_ms: Annotated[int, Integer(0, 1000)] = field(default=0, validator=_between(0, 1000))
    after_ms: Annotated[int, Integer(0, 1000)] = field(default=0, validator=_between(0, 1000))


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
    """The settings of a serial port, applied when it is opened. Raises ValueError, naming the key, for impossible ones.

    `baud` may be any rate; the port refuses at open what it cannot do. `rts` and `dtr` are the levels that the lines
    get at open, after the kernel has raised both for a moment. With `hangup` the kernel lowers both when the port is
    closed (also by a crash); without it they stay as they are. With `low_latency` the driver hands on each byte at once
    (ASYNC_LOW_LATENCY): an FTDI adapter waits 1 ms for more in place of 16.
    """

    baud: Annotated[int, Integer(50, 20_000_000)] = field(default=115_200, validator=_between(50, 20_000_000))
    bits: Literal[5, 6, 7, 8] = field(default=8, validator=validators.in_((5, 6, 7, 8)))
    parity: Parity = field(default="none", validator=validators.in_(("none", "even", "odd", "mark", "space")))
    stop_bits: Annotated[float, Choice(1, 1.5, 2)] = field(default=1.0, validator=_stop_bits_fit)
    flow: Flow = field(default="none", validator=validators.in_(("none", "rtscts", "xonxoff")))
    rs485: Rs485 | None = field(default=None, converter=_rs485, validator=_rts_is_free)
    inbox_bytes: Annotated[int, Integer(4096, 16_777_216)] = field(
        default=INBOX_CAPACITY, validator=_between(4096, 16_777_216)
    )
    rts: bool = True
    dtr: bool = True
    hangup: bool = True
    low_latency: bool = False


@frozen
class ModemLines:
    """The levels of a port's modem lines: true is asserted, None where the port does not know the line."""

    rts: bool | None = None
    dtr: bool | None = None
    cts: bool | None = None
    dsr: bool | None = None
    ri: bool | None = None
    cd: bool | None = None


def write_timeout_s(size: int, baud: int) -> float:
    """Return the time limit of a write of `size` bytes: twice the time on the wire (10 bits a byte) and a second."""
    return 1.0 + 20.0 * size / baud


def parse_rs485(table: Table) -> Rs485 | None:
    """Read `rs485 = true`, or a table of its details."""
    if not isinstance(table.content.get("rs485"), dict):
        return Rs485() if table.take("rs485", Flag(), False) else None
    details = table.table("rs485")
    values = details.given(Rs485)
    details.done()
    return Rs485(**values) if details.ok else None
