"""What an errno of the kernel's I2C layer means, and what became of the world when it came.

Owns the translation from OSError to hearth's errors: each with its errno's name, its place, its cure where there is
one, and the effect that can be proven: "none" only where no device can have taken more than a register's number. The
meanings are those of the kernel's fault codes (Documentation/i2c/fault-codes.rst); adapters differ in how closely they
keep to them. It refuses to touch an adapter.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from hearth.drivers.i2c import Message, Write, nack, refused_effect
from hearth.errors import DeviceError, Effect, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ENOTSUPP = 524
"""The kernel's own "not supported", which the C library does not know and some adapters let out."""

_NAMES: Mapping[int, str] = {_ENOTSUPP: "ENOTSUPP", errno.EOPNOTSUPP: "EOPNOTSUPP"}
"""Those that the C library has no name for, or two."""

_NOBODY = (errno.ENXIO, errno.ENODEV)
"""ENODEV of an adapter that is there: some have no better word for an address that nobody acknowledges."""
_NOT_SUPPORTED = (errno.EOPNOTSUPP, _ENOTSUPP, errno.ENOSYS)
_REFUSED: Mapping[int, str] = {
    errno.EAGAIN: "the adapter lost the arbitration to another controller, or was busy; try again",
    errno.EBUSY: "the bus stayed busy for longer than the adapter waits; something holds it, a power cycle may help",
    errno.EINVAL: "the adapter does not take such an exchange",
    errno.ENOMEM: "the kernel has no memory for such an exchange",
    errno.EACCES: "permission denied",
    errno.EPERM: "the kernel does not permit it",
}
"""What ends an exchange at an address or before it."""

_BROKEN: Mapping[int, str] = {
    errno.EIO: "the exchange broke off: a byte was not acknowledged, or the adapter failed",
    errno.EPROTO: "the device did what the protocol does not allow",
    errno.EBADMSG: "the checksum of the answer is wrong",
    errno.EOVERFLOW: "the answer is longer than the adapter can take",
    errno.EPIPE: "the adapter's USB connection stalled",
    errno.ESHUTDOWN: "the adapter is being shut down",
    errno.EINTR: "the exchange was interrupted by a signal",
}


def name_of(error: OSError) -> str:
    """The errno's name; "EIO" for an error without a number."""
    number = error.errno or errno.EIO
    return _NAMES.get(number) or errno.errorcode.get(number, str(number))


def failed(
    error: OSError, bus: int, addr: int, messages: Sequence[Message], *, able: str = "", retries: int = 0
) -> DeviceError:
    """The error of an exchange that the kernel ended with `error`, on an adapter that is still there.

    `able` says what the adapter can do in one exchange, for an exchange that it cannot do.
    """
    number = error.errno or errno.EIO
    if number in _NOBODY:
        return nack(bus, addr, messages, errno=name_of(error))
    if number == errno.EREMOTEIO:
        return nack(bus, addr, messages, errno="EREMOTEIO", byte=True)
    data = {"bus": bus, "addr": addr, "errno": name_of(error)}
    place = f"i2c bus {bus}, address {addr:#04x}"
    if number == errno.ETIMEDOUT:
        return TimedOut(
            f"{place}: the exchange did not end in the adapter's time: a device holds the clock, or the adapter hangs",
            effect="unknown",
            data=data,
        )
    effect: Effect
    if number in _NOT_SUPPORTED:
        reason, effect = f"the adapter cannot do {told(messages)} as one exchange{able}", "none"
    elif number in _REFUSED:
        reason, effect = _REFUSED[number], refused_effect(messages)
        if number == errno.EAGAIN:
            data["retries"] = retries
    else:
        reason, effect = _BROKEN.get(number, error.strerror or "the exchange failed"), "unknown"
    return DeviceError(f"{place}: {reason} ({data['errno']})", effect=effect, data=data)


def told(messages: Sequence[Message]) -> str:
    """A list of messages in words."""
    parts = [
        f"write {len(message.data)}" if isinstance(message, Write) else f"read {message.length}" for message in messages
    ]
    return f"{', '.join(parts)} (bytes)"


def gone(bus: int, path: str, *, effect: Effect) -> DeviceError:
    """The error of an adapter that has been unplugged."""
    return DeviceError(
        f"i2c bus {bus}: the adapter {path} is gone; it is opened again when it returns",
        effect=effect,
        data={"bus": bus, "path": path, "errno": "ENODEV"},
    )
