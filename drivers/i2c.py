"""I2C: what an adapter's driver must do, and the messages that a transaction is made of.

A driver here is one adapter. A transaction is a list of messages between one START and one STOP, with a
repeated START between them, so nobody else's bytes can come in between. This module refuses to know any
device's registers.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from attrs import frozen

from hearth.drivers.base import Driver
from hearth.errors import DeviceError

T = TypeVar("T")

Outcome: TypeAlias = T | Coroutine[Any, Any, T]
"""What an operation returns: its value (INLINE, THREAD), or a coroutine that the bus drives to its value."""

FIRST_ADDR, LAST_ADDR = 0x08, 0x77
"""The 7-bit addresses that devices use; the rest is reserved by the I2C specification."""

MAX_LENGTH = 4096
"""Bytes in one message:

well below the kernel's 8192, so that one transaction cannot hold the bus for a second.
"""

_LIMIT_BASE_MS = 1_500.0
_LIMIT_PER_BYTE_MS = 0.5


@frozen
class Write:
    """Send these bytes."""

    data: bytes


@frozen
class Read:
    """Receive this many bytes."""

    length: int


Message: TypeAlias = Write | Read


class I2cDriver(Driver, Protocol):
    """One I2C adapter."""

    def transfer(self, addr: int, messages: Sequence[Message]) -> Outcome[bytes]:
        """Exchange `messages` with the device at `addr` as one transaction; return what was read, joined.

        Raises DeviceError: effect "none" when no byte was taken, else "unknown"; `data.errno` is the errno's
        name.
        """
        ...

    def scan(self) -> Outcome[list[int]]:
        """The addresses from 0x08 to 0x77 that acknowledge, in order."""
        ...


def limit_ms(messages: Sequence[Message]) -> float:
    """When a transaction of these messages counts as wedged.

    The base is beyond the kernel's own adapter timeout of one second, which is allowed to end a hung transfer
    first; a byte takes 0.09 ms at 100 kHz, and a device may stretch the clock.
    """
    size = sum(len(message.data) if isinstance(message, Write) else message.length for message in messages)
    return _LIMIT_BASE_MS + _LIMIT_PER_BYTE_MS * size


def nack(bus: int, addr: int, *, taken: int = 0) -> DeviceError:
    """The error of a byte that nobody acknowledged, after `taken` data bytes had been."""
    if taken:
        return DeviceError(
            f"i2c bus {bus}: the device at {addr:#04x} stopped acknowledging after {taken} bytes",
            effect="unknown",
            data={"addr": addr, "errno": "EREMOTEIO", "taken": taken},
        )
    return DeviceError(
        f"i2c bus {bus}: no device acknowledges address {addr:#04x}; i2c.scan lists those that do",
        effect="none",
        data={"addr": addr, "errno": "ENXIO"},
    )
