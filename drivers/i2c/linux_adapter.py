"""The kernel's I2C adapters: the node of one, the owners of its addresses, and its errors.

It owns the information of /sys and /dev about adapters. It exchanges no byte.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hearth.drivers.i2c.driver import broken_effect, nack, refused_effect
from hearth.drivers.linux.device_users import kept_by_sandbox
from hearth.drivers.linux.node import ENOTSUPP, errno_name, who_may
from hearth.drivers.registers import Message, Write
from hearth.errors import DeviceError, Effect, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.registers import RegWidth

# The translation from OSError to hearth's errors: each with its errno's name, its place, its cure where there is one,
# and the effect that can be proven: "none" only where no device can have taken more than a register's number. The
# meanings are those of the kernel's fault codes (Documentation/i2c/fault-codes.rst); adapters differ in how closely
# they keep to them.

_NOT_ACKNOWLEDGED = (errno.ENXIO, errno.ENODEV)
"""Errnos of an address without acknowledgement. Some adapters that are present return ENODEV for it."""
_NOT_SUPPORTED = (errno.EOPNOTSUPP, ENOTSUPP, errno.ENOSYS)
_REFUSED: Mapping[int, str] = {
    errno.EAGAIN: "the adapter lost the arbitration to another controller, or was busy; try again",
    errno.EBUSY: "the bus stayed busy for longer than the adapter waits; something holds it, a power cycle may help",
    errno.EINVAL: "the adapter does not take such an exchange",
    errno.ENOMEM: "the kernel has no memory for such an exchange",
    errno.EACCES: "permission denied",
    errno.EPERM: "the kernel does not permit it",
}
"""Causes that end an exchange at an address or before it."""

_BROKEN: Mapping[int, str] = {
    errno.EIO: "the exchange broke off: a byte was not acknowledged, or the adapter failed",
    errno.EPROTO: "the device broke the protocol",
    errno.EBADMSG: "the checksum of the answer is wrong",
    errno.EOVERFLOW: "the answer is longer than the adapter can take",
    errno.EPIPE: "the adapter's USB connection stalled",
    errno.ESHUTDOWN: "the adapter is being shut down",
    errno.EINTR: "the exchange was interrupted by a signal",
}


def failed(
    error: OSError,
    bus: int,
    addr: int,
    messages: Sequence[Message],
    width: RegWidth | None,
    *,
    able: str = "",
    retries: int = 0,
) -> DeviceError:
    """Return the error of an exchange that the kernel ended with `error`, on an adapter that is still there.

    `width` is the bits of a register's number, if the board profile says. `able` says what the adapter can do in one
    exchange, for an exchange that it cannot do.
    """
    number = error.errno or errno.EIO
    if number in _NOT_ACKNOWLEDGED:
        return nack(bus, addr, messages, width, errno=errno_name(error))
    if number == errno.EREMOTEIO:
        return nack(bus, addr, messages, width, errno="EREMOTEIO", byte=True)
    data = {"bus": bus, "addr": addr, "errno": errno_name(error)}
    place = f"i2c bus {bus}, address {addr:#04x}"
    if number == errno.ETIMEDOUT:
        return TimedOut(
            f"{place}: the exchange did not end in the adapter's time: a device holds the clock, or the adapter hangs",
            effect=broken_effect(messages, width),
            data=data,
        )
    effect: Effect
    if number in _NOT_SUPPORTED:
        reason, effect = f"the adapter cannot do {in_words(messages)} as one exchange{able}", "none"
    elif number in _REFUSED:
        reason, effect = _REFUSED[number], refused_effect(messages, width)
        if number == errno.EAGAIN:
            data["retries"] = retries
    else:
        reason, effect = _BROKEN.get(number, error.strerror or "the exchange failed"), broken_effect(messages, width)
    return DeviceError(f"{place}: {reason} ({data['errno']})", effect=effect, data=data)


def in_words(messages: Sequence[Message]) -> str:
    """Return a list of messages in words."""
    parts = [
        f"write {len(message.data)}" if isinstance(message, Write) else f"read {message.length}" for message in messages
    ]
    return f"{', '.join(parts)} (bytes)"


def gone(bus: int, path: str, *, effect: Effect) -> DeviceError:
    """Return the error of an adapter that has been unplugged."""
    return DeviceError(
        f"i2c bus {bus}: the adapter {path} is gone; it is opened again when it returns",
        effect=effect,
        data={"bus": bus, "path": path, "errno": "ENODEV"},
    )


SYS = Path("/sys")
DEV = Path("/dev")

_TEN_BIT_OFFSET = 0xA000


def adapters() -> dict[int, str]:
    """Return the adapters that have a character device, by number, with the kernel's names of them. Raises OSError."""
    found: dict[int, str] = {}
    for entry in (SYS / "class/i2c-dev").glob("i2c-*"):
        with suppress(OSError, ValueError):  # it was removed while we looked
            found[int(entry.name.removeprefix("i2c-"))] = (entry / "name").read_text(encoding="utf-8").strip()
    return dict(sorted(found.items()))


def find_adapter(bus: int, name: str | None) -> int:
    """Return the number of the adapter: `bus`, or with a name the one of that name.

    Raises DeviceError (effect "none", errno ENODEV) naming the adapters there are, and OSError where /sys cannot be
    read.
    """
    if name is None:
        return bus
    present = adapters()
    numbers = [number for number, called in present.items() if called == name]
    if len(numbers) == 1:
        return numbers[0]
    if bus in numbers:
        return bus
    if numbers:
        which = " and ".join(f"i2c-{number}" for number in numbers)
        raise _missing(bus, f"{which} are all called {name!r}; leave the name out and give the number")
    raise _missing(bus, f"no adapter is called {name!r}; there are: {listed(present)}")


def listed(present: dict[int, str]) -> str:
    """Return adapters in words."""
    return ", ".join(f"i2c-{number} ({name})" for number, name in present.items()) or "none (is i2c-dev loaded?)"


def _missing(bus: int, reason: str) -> DeviceError:
    return DeviceError(f"i2c bus {bus}: {reason}", effect="none", data={"bus": bus, "errno": "ENODEV"})


def cannot_open(bus: int, path: str, error: OSError) -> DeviceError:
    """Return the error of an adapter's node that cannot be opened, with the cure."""
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        present = adapters()
        reason = f"{path} is not there; adapters: {listed(present)}"
        if any(path.endswith(f"/i2c-{number}") for number in present):
            # The kernel's entry comes first, and in a container the node may never come.
            reason = f"{path} is not there, though the kernel has the adapter: its node has not been made (yet)"
    elif error.errno in (errno.EACCES, errno.EPERM):
        reason = kept_by_sandbox(path) or f"no permission for {path}{who_may(path)}"
    elif error.errno == errno.ENOTTY:
        reason = f"{path} is not an I2C adapter"
    else:
        reason = f"{path} cannot be opened: {error.strerror}"
    data = {"bus": bus, "path": path, "errno": errno_name(error)}
    return DeviceError(f"i2c bus {bus}: {reason}", effect="none", data=data)


def owner_of(number: int, addr: int, *, ten_bit: bool) -> str | None:
    """Return the name of the kernel's driver that has an address of adapter `number` for itself, or None."""
    wire = addr | _TEN_BIT_OFFSET if ten_bit else addr
    try:
        return (SYS / f"bus/i2c/devices/{number}-{wire:04x}/driver").readlink().name
    except OSError:
        return None
