"""What the kernel's refusals of a sensor become: an error that names the sensor, the errno and the cure.

Owns the words; every one of them has effect "none", since a reading has none. When to refuse is decided by
`hearth.drivers.linux.sensors`.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from hearth.errors import DeviceError, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hearth.drivers.linux.sensors_sysfs import Channel, Device

_GONE = frozenset((errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESHUTDOWN))
SILENT = frozenset((errno.EIO, errno.ENXIO, errno.EREMOTEIO, errno.ETIMEDOUT))
"""What a device is like that does not answer, and will not at the next question."""
_WHY: Mapping[int, str] = {
    errno.EAGAIN: "it has no reading ready; ask again",
    errno.ENODATA: "it has no data: switched off, nothing connected, or no measurement yet",
    errno.ETIMEDOUT: "it did not answer in time",
    errno.EIO: "it does not answer; is it powered and connected?",
    errno.ENXIO: "nobody answers at its address; is it powered and connected?",
    errno.EREMOTEIO: "nobody answers at its address; is it powered and connected?",
}


def absent(name: str, reason: str) -> DeviceError:
    """No sensor has this name."""
    return DeviceError(
        f"there is no sensor {name!r}: {reason} (unplugged, or its driver not bound?); "
        "hw.sensor.list shows what is there",
        effect="none",
        data={"sensor": name, "errno": "ENODEV"},
    )


def cure(path: Path) -> str:
    """What gives the right to read an attribute, in words that a shell takes."""
    return (
        f"reading {path} needs root, as the kernel has it; to give it to the group hearth at every boot, put "
        f'"z {path} 0440 root hearth" into /etc/tmpfiles.d/hearth.conf and run systemd-tmpfiles --create'
    )


def failure(name: str, device: Device, channel: Channel, error: OSError) -> DeviceError | ResourceBusy:
    """The error that the kernel's becomes."""
    number = error.errno or errno.EIO
    symbol = errno.errorcode.get(number, str(number))
    data = {"sensor": name, "errno": symbol, "path": str(channel.path)}
    if number == errno.EBUSY:
        captured = "another program captures from it (its buffer is enabled); it answers when that ends"
        reason = captured if device.instance.startswith("iio:") else "it is busy; ask again"
        return ResourceBusy(
            f"sensor {name!r} ({device.kernel}): {reason} (EBUSY)",
            data={**data, "effect": "none"},
        )
    if number in _GONE:
        data["errno"] = "ENODEV"
        reason = f"has gone ({symbol}): unplugged, or its driver was unbound; hw.sensor.list shows what is there"
    elif number in (errno.EACCES, errno.EPERM):
        reason = f"({device.kernel}): {cure(channel.path)}"
    else:
        reason = f"({device.kernel}): {_WHY.get(number, os.strerror(number))} ({symbol})"
    return DeviceError(f"sensor {name!r} {reason}", effect="none", data=data)
