"""I2C: the interface of an adapter's driver, the messages of a transaction, and the rules for addresses.

A driver here is one adapter. A transaction is a list of messages between one START and one STOP, with a repeated START
between them, so other transfers cannot come in between. This module knows no device's registers.

It owns the rules that a board profile has for one adapter: `scope`, `reserved`, the declared devices with the width of
their register numbers, and the devices that interlocks go by, which clients only read. Every driver checks them
immediately before a transfer, for any caller; tools check them at submit too, so that a refusal comes before anything
moves. Whether a device is there is not known here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, TypeAlias

from attrs import field, frozen

from hearth.drivers.base import BaseDriver
from hearth.drivers.registers import Message, Outcome, Read, RegWidth, Write
from hearth.errors import DeviceError, Effect, PermissionDenied, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

Scope: TypeAlias = Literal["any", "declared"]

LAST_SEVEN_BIT = 0x7F
"""Above it an address has ten bits, also without the caller's `ten_bit`."""


@frozen
class Addresses:
    """The rules for one adapter. `declared` maps the address of each declared device to its register width, if known.

    `protected` maps the address of a device that is only read to the reason: an interlock goes by its readings.

    A 10-bit address that is also a 7-bit number names another device on the wire. Not every adapter distinguishes the
    two, so such an address is never taken for a declared one, and a number is reserved or protected in both widths.
    """

    declared: Mapping[int, RegWidth | None] = field(factory=dict)
    scope: Scope = "any"
    reserved: frozenset[int] = frozenset()
    protected: Mapping[int, str] = field(factory=dict)

    def reg_width(self, addr: int, *, ten_bit: bool = False) -> RegWidth | None:
        """Return the bits of a register number of the device at `addr`, None where the profile does not declare it."""
        return None if ten_bit and addr <= LAST_SEVEN_BIT else self.declared.get(addr)

    def refusal(self, addr: int, *, ten_bit: bool = False) -> str | None:
        """Return why `addr` may not be used, with the cure; None if it may."""
        if addr in self.reserved:
            return "the board profile reserves it ([[i2c]] reserved)"
        if self.scope == "declared" and (addr not in self.declared or (ten_bit and addr <= LAST_SEVEN_BIT)):
            cure = "add an [[i2c.device]] with this addr"
            return f'the board profile declares no device there (scope = "declared"); {cure}'
        return None

    def check(self, bus: int, addr: int, messages: Sequence[Message] = (), *, ten_bit: bool = False) -> None:
        """Refuse an address that may not be used, and writes to a protected one.

        A write of one byte is a register's number: a chip that is the sensor of an interlock has no commands.

        Raises PermissionDenied with effect "none".
        """
        if self.scope == "any" and addr not in self.reserved and addr not in self.protected:
            return
        reason = self.refusal(addr, ten_bit=ten_bit)
        if addr in self.protected and any(isinstance(one, Write) and len(one.data) > 1 for one in messages):
            reason = reason or self.protected[addr]
        if reason is not None:
            raise PermissionDenied(
                f"Permission denied: i2c bus {bus}, address {addr:#04x}: {reason}",
                data={"bus": bus, "addr": addr, "reason": reason, "effect": "none"},
            )


EVERY_ADDRESS = Addresses()
"""The rules of an adapter without rules in the profile."""


FIRST_ADDR, LAST_ADDR = 0x08, 0x77
"""The 7-bit addresses that devices use; the I2C specification reserves the rest."""

LAST_TEN_BIT = 0x3FF
"""The last 10-bit address; the first is 0."""

MAX_LENGTH = 4096
"""Bytes that a tool moves in one message:

well below the kernel's limit, so that one transaction cannot hold the bus for a second.
"""

MAX_MESSAGE, MAX_MESSAGES = 8192, 42
"""The kernel's limits: bytes in one message, messages in one exchange."""

BITS_PER_BYTE = 9
_SLACK_MS = 500.0
_PER_MESSAGE_MS = 5.0
_STRETCH = 5.0


@frozen
class Scan:
    """The result of a scan of the 7-bit addresses.

    `found` acknowledged, in ascending order. `owned` belong to a kernel driver, by its name, and were not touched; nor
    were `skipped`, each with the reason.
    """

    found: tuple[int, ...]
    owned: Mapping[int, str] = field(factory=dict)
    skipped: Mapping[int, str] = field(factory=dict)


class I2cDriver(BaseDriver, ABC):
    """One I2C adapter. `addresses` are checked before each transfer and each probe of a scan.

    `speed_hz` is the board's speed of the wire. The kernel gives a message `timeout_ms`, and repeats a lost arbitration
    `retries` times.
    """

    timeout_ms = 1000
    retries = 0

    def __init__(self, bus: int, speed_hz: int, addresses: Addresses) -> None:
        self.bus = bus
        self.speed_hz = speed_hz
        self.addresses = addresses

    @abstractmethod
    def transfer(self, addr: int, messages: Sequence[Message], *, ten_bit: bool = False) -> Outcome[bytes]:
        """Exchange `messages` with the device at `addr` as one transaction; return what was read, joined.

        With `ten_bit` the address goes over the wire in ten bits, also a small one; beyond 0x7f it always does.

        Raises DeviceError: effect "none" when no byte can have been taken but a register's number, else "unknown";
        `data.errno` is the errno's name. TimedOut when the device or the adapter did not answer in time, ResourceBusy
        when the address belongs to a driver of the kernel's (`data.owner`), PermissionDenied when `addresses` refuses
        it.
        """

    @abstractmethod
    def scan(self, include: Collection[int] = ()) -> Outcome[Scan]:
        """Return the addresses that acknowledge from 0x08 to 0x77.

        Not probed are addresses that `addresses` refuses, and, but for those in `include`, addresses at which a probe
        does harm (see the end of this module). Raises the errors of `transfer`, but for an address without a device.
        """

    def limit_ms(self, messages: Sequence[Message]) -> float:
        """Return the milliseconds after which a transaction of these messages counts as wedged; asks no hardware.

        The kernel may end a hung transfer first. It gives one attempt `timeout_ms`, and begins another one, if it may
        repeat a lost arbitration at all, as long as less than that has passed: so two of them at most. A device may
        stretch the clock, to a fifth of its speed here, and an adapter behind USB takes some milliseconds for each
        message.
        """
        size = 0
        for message in messages:  # HOT: a generator would take another frame for each
            size += (len(message.data) if isinstance(message, Write) else message.length) + 1
        wire_ms = size * BITS_PER_BYTE * 1000 / self.speed_hz
        attempts = 2 if self.retries else 1
        return attempts * self.timeout_ms + _SLACK_MS + len(messages) * _PER_MESSAGE_MS + _STRETCH * wire_ms


def _of_good_size(messages: Sequence[Message]) -> bool:
    for message in messages:
        if not 1 <= (len(message.data) if isinstance(message, Write) else message.length) <= MAX_MESSAGE:
            return False
    return True


def check_transfer(bus: int, addr: int, messages: Sequence[Message], addresses: Addresses, *, ten_bit: bool) -> None:
    """Refuse transfers that the board profile forbids or that no adapter can do.

    Raises PermissionDenied, and DeviceError with effect "none" and errno EINVAL.
    """
    addresses.check(bus, addr, messages, ten_bit=ten_bit)
    if not 0 <= addr <= LAST_TEN_BIT or not (ten_bit or addr > 0x7F or FIRST_ADDR <= addr <= LAST_ADDR):
        reason = f"there is no address {addr:#x}: devices have {FIRST_ADDR:#04x} to {LAST_ADDR:#04x}, or ten bits"
    elif not 1 <= len(messages) <= MAX_MESSAGES:
        reason = f"{len(messages)} messages; one exchange has 1 to {MAX_MESSAGES}"
    elif not _of_good_size(messages):
        reason = f"a message has 1 to {MAX_MESSAGE} bytes"
    else:
        return
    raise DeviceError(f"i2c bus {bus}: {reason}", effect="none", data={"bus": bus, "addr": addr, "errno": "EINVAL"})


def selects(messages: Sequence[Message], width: RegWidth | None) -> bool:
    """Return True for a read from a register: before its last address, a device has taken a register's number at most.

    `width` is the bits of that number. Where it is not known, it counts as 8: a second byte may be a register's value.
    """
    match messages:
        case [Write(data), Read()]:
            return len(data) <= (width or 8) // 8
        case _:
            return False


def refused_effect(messages: Sequence[Message], width: RegWidth | None) -> Effect:
    """Return the effect of an exchange that ended at an address, when it is unknown at which one.

    "none" if the first is the only one, and for a read from a register: a pointer that moved is no effect. `width` is
    the bits of a register's number, None where the board profile does not say.
    """
    return "none" if len(messages) == 1 or selects(messages, width) else "unknown"


def broken_effect(messages: Sequence[Message], width: RegWidth | None) -> Effect:
    """Return the effect of an exchange that may have ended behind any byte: "none" if it writes nothing.

    A register's number before a read is not written; `width` as for `refused_effect`.
    """
    writes = any(isinstance(one, Write) and one.data for one in messages)
    return "unknown" if writes and not selects(messages, width) else "none"


def nack(
    bus: int,
    addr: int,
    messages: Sequence[Message],
    width: RegWidth | None,
    *,
    errno: str = "ENXIO",
    byte: bool = False,
) -> DeviceError:
    """Return the error of an address without acknowledgement; with `byte` it may as well have been a byte after it."""
    if byte:
        # A reader does not acknowledge: without bytes to write, it was the address.
        effect = broken_effect(messages, width)
        message = f"the device at {addr:#04x} stopped acknowledging, or there is none; i2c.scan lists those that do"
    else:
        effect = refused_effect(messages, width)
        message = f"no device acknowledges address {addr:#04x}; i2c.scan lists those that do"
    return DeviceError(f"i2c bus {bus}: {message}", effect=effect, data={"bus": bus, "addr": addr, "errno": errno})


def owned(bus: int, addr: int, owner: str) -> ResourceBusy:
    """Return the error of an address that a driver of the kernel's has for itself."""
    return ResourceBusy(
        f"i2c bus {bus}: address {addr:#04x} belongs to the kernel's driver {owner!r}; unbind it, or use what it "
        "offers (hw.sensor.list)",
        data={"effect": "none", "bus": bus, "addr": addr, "errno": "EBUSY", "reason": "held", "owner": owner},
    )


def not_open(bus: int) -> DeviceError:
    """Return the error of a bus that is used before it is open or after it was closed."""
    return DeviceError(f"i2c bus {bus}: the bus is not open", effect="none", data={"bus": bus})


# The choice of a probe for each address, and the list of addresses that are not probed: a table, used by every driver.
# No probe on I2C is harmless. The choice is that of the common tool for it, i2cdetect: a quick write (an address and
# nothing more) is safest for most chips; but some EEPROMs take it as the beginning of a write, and some protect
# themselves for good at almost any write, so at their addresses a byte is received instead.

ADDRESSES = range(FIRST_ADDR, LAST_ADDR + 1)

RECEIVE_RANGES = (range(0x30, 0x38), range(0x50, 0x60))
"""EEPROMs and their write protection: probed by receiving a byte."""

DANGEROUS: Mapping[int, str] = {
    0x08: "the SMBus host: a message to it is a notification",
    0x09: "a smart battery's charger: what disturbs it may stop it",
    0x0B: "a smart battery: firmware talks to it at the same time",
    0x0C: "the SMBus alert response: asking takes a device's alert away from the program that waits for it",
    0x61: "the SMBus default address: asking begins the assignment of addresses",
    0x69: "clock generators live here, and some lock the bus when they are asked",
}
"""Addresses that a scan skips unless it has them in `include`."""

Kind = Literal["quick", "receive"]

_PROBE_NAMES: Mapping[Kind, str] = {"quick": "a quick write", "receive": "receiving a byte"}


@frozen
class Transfers:
    """The plan of a scan: a probe for each address that is probed, a reason for each other one."""

    probes: Mapping[int, Kind]
    skipped: Mapping[int, str]


def plan(
    include: Collection[int] = (),
    *,
    quick: bool = True,
    receive: bool = True,
    addresses: Addresses = EVERY_ADDRESS,
) -> Transfers:
    """Return the probes of an adapter that can do a quick write, receive a byte, or both.

    An adapter without one of them skips the addresses that need it: the other one is the wrong probe there. `include`
    names addresses to probe nevertheless, with any probe the adapter has; those that `addresses` refuses are never
    probed.
    """
    able: dict[Kind, bool] = {"quick": quick, "receive": receive}
    probes: dict[int, Kind] = {}
    skipped: dict[int, str] = {}
    for addr in ADDRESSES:
        kind: Kind = "receive" if any(addr in part for part in RECEIVE_RANGES) else "quick"
        other: Kind = "quick" if kind == "receive" else "receive"
        refused = addresses.refusal(addr)
        if refused is not None:
            skipped[addr] = refused
        elif addr in DANGEROUS and addr not in include:
            skipped[addr] = DANGEROUS[addr]
        elif able[kind]:
            probes[addr] = kind
        elif addr in include and able[other]:
            probes[addr] = other
        else:
            skipped[addr] = f"only {_PROBE_NAMES[kind]} is safe here, and the adapter cannot do that"
    return Transfers(probes, skipped)
