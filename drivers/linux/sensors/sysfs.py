"""The kernel's sensor classes in /sys: devices, their channels, their numbers and their lasting names.

It owns the reading of one attribute and the name of the chip behind a device. The module of each class chooses the
attributes that are sensors; `hearth.drivers.linux.sensors` turns a failed reading into an error.
"""

from __future__ import annotations

import errno
import os
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import field, frozen

from hearth.errors import DeviceError, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PAGE = 4096
"""Longest attribute in bytes."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,24}(?:\.[0-9]{1,24})?")
_ODD = re.compile(r"[^A-Za-z0-9._:+-]+")


@frozen
class SensorDevice:
    """One device of a sensor class.

    `stem` is its lasting name; `instance` the kernel's number for it in this boot ("hwmon3"), which distinguishes those
    of one stem; `at` its directory, links resolved, so that a number that is given to another chip leads nowhere;
    `parent` the hardware behind it, where there is some.
    """

    stem: str
    instance: str
    at: Path
    kernel: str
    """The kernel's name for it: the chip's, zone's or supply's."""
    parent: Path | None = None


@frozen
class SensorChannel:
    """One quantity of a device: (`path` + `offset`) * `scale` * `factor` is its value in `unit`."""

    name: str
    """Its name in the device; empty where the device has only one quantity."""
    kind: str
    unit: str
    path: Path
    factor: Fraction = Fraction(1)
    scale: Path | None = None
    offset: Path | None = None
    label: Path | None = None
    status: Path | None = None
    """A text about it that is no number ("Charging")."""
    limits: Mapping[str, Path] = field(factory=dict)
    """Name to attribute, in the kernel's unit of `path`."""
    of: str | None = None
    """The channel that this one is an alarm of: it is listed there."""
    description: str | None = None


@frozen
class SensorClass:
    """A class of /sys: its devices, and the channels of one of them.

    `devices` takes the root of /sys and, for a search, the stem: devices that cannot have it may be left out, which
    saves most of the work.
    """

    devices: Callable[[Path, str | None], Iterator[SensorDevice]]
    channels: Callable[[SensorDevice], Iterator[SensorChannel]]


def names(folder: Path) -> list[str]:
    """Return the attributes of a device, those of a kind in the order of their numbers. Raises OSError."""
    found = (entry.name for entry in folder.iterdir())
    return sorted(found, key=lambda name: (re.sub(r"\d+", "", name), len(name), name))


def entries(folder: Path, pattern: str) -> list[Path]:
    """Return the entries of `folder` that fit, in the order of the numbers in the names; none without the folder."""
    try:
        found = list(folder.glob(pattern))
    except OSError:
        return []  # it was removed while it was being listed
    return sorted(found, key=lambda at: ([int(number[:18]) for number in re.findall("[0-9]+", at.name)], at.name))


def read(path: Path) -> str:
    """Return the attribute's text, by one read: the kernel measures once. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _PAGE).decode("utf-8", "replace").strip(" \t\r\n\0")
    finally:
        os.close(fd)


def text(path: Path) -> str | None:
    """Return the same for an optional attribute: None when it is missing, does not answer, or is empty."""
    try:
        return read(path) or None
    except OSError:
        return None


def number(given: str) -> Fraction | None:
    """Return the number of an attribute's text, exactly; None where it is none."""
    return Fraction(given) if _NUMBER.fullmatch(given) else None


def numeric(path: Path) -> Fraction | None:
    """Return the attribute's number, or None where it is missing, does not answer, or is no number."""
    found = text(path)
    return None if found is None else number(found)


def plain(name: str) -> str:
    """Return a kernel's name as a part of a sensor's: without blanks, "/" and "@"."""
    return _ODD.sub("_", name).strip("_") or "unnamed"


def linked(path: Path) -> Path | None:
    """Return the target of a link, or None where there is none. By one step: links of /sys have no more."""
    try:
        to = os.readlink(path)  # noqa: PTH115 - half the time of a lookup otherwise
    except OSError:
        return None
    return Path(os.path.normpath(path.parent / to))


def real(path: Path) -> Path:
    """Return the target of a link, or the path itself."""
    return linked(path) or path


def driver(parent: Path | None) -> str | None:
    """Return the kernel driver that is bound to the hardware behind a device."""
    found = None if parent is None else linked(parent / "driver")
    return None if found is None else found.name


def subsystem(at: Path | None) -> str | None:
    """Return the bus or class that a device belongs to ("i2c", "thermal")."""
    found = None if at is None else linked(at / "subsystem")
    return None if found is None else found.name


def may_be(name: str, stem: str | None) -> bool:
    """Return True if a chip of this kernel name can have that stem; without a stem every chip can."""
    return stem is None or stem.startswith(plain(name))


def chip(name: str, parent: Path | None) -> str:
    """Return a chip's lasting name: its kernel name, its bus and its address there, as far as it has them.

    The nearest device above that is on a bus counts ("nvme0" is a class device on a PCI one). A HID device gets a new
    number each time it is plugged in, so the USB port or I2C address beneath it counts instead.
    """
    fallback = None
    at = parent
    while at is not None and at != at.parent:
        bus = linked(at / "subsystem")
        if bus is not None and bus.parent.name == "bus":
            if bus.name != "hid":
                return f"{plain(name)}-{plain(_address(bus.name, at.name))}"
            fallback = fallback or f"{plain(name)}-hid-{plain(at.name.rpartition('.')[0])}"
        at = at.parent
    return fallback or plain(name)


def _address(bus: str, device: str) -> str:
    """Return bus and address as lm-sensors writes them, from the kernel's name of the device; else just that name."""
    if bus == "i2c" and (found := re.fullmatch(r"(\d+)-0*([0-9a-f]{2,})", device)):
        return f"i2c-{found[1]}-{found[2]}"
    if bus == "spi" and (found := re.fullmatch(r"spi(\d+)\.(\d+)", device)):
        return f"spi-{found[1]}-{int(found[2]):x}"
    if bus == "pci" and (found := re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)\.([0-7])", device)):
        domain, number, slot, function = (int(part, 16) for part in found.groups())
        return f"pci-{domain << 16 | number << 8 | slot << 3 | function:04x}"
    if bus == "platform":
        found = re.fullmatch(r".*\.(\d+)(?:\.auto)?", device)
        return f"isa-{int(found[1]):04x}" if found else device
    return f"{bus}-{device}"


# --- errors -----------------------------------------------------------------------------------------------------------
#
# The errors for the kernel's refusals of a sensor: each names the sensor, the errno and the cure. Every one has effect
# "none", since a reading has none. `hearth.drivers.linux.sensors` raises them.

_GONE = frozenset((errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESHUTDOWN))
SILENT = frozenset((errno.EIO, errno.ENXIO, errno.EREMOTEIO, errno.ETIMEDOUT))
"""Errnos of a device that does not answer, and will not at the next read."""
_WHY: Mapping[int, str] = {
    errno.EAGAIN: "it has no reading ready; ask again",
    errno.ENODATA: "it has no data: switched off, nothing connected, or no measurement yet",
    errno.ETIMEDOUT: "it did not answer in time",
    errno.EIO: "it does not answer; is it powered and connected?",
    errno.ENXIO: "no device answers at its address; is it powered and connected?",
    errno.EREMOTEIO: "no device answers at its address; is it powered and connected?",
}


def absent(name: str, reason: str) -> DeviceError:
    """Return the error for a name that no sensor has."""
    return DeviceError(
        f"there is no sensor {name!r}: {reason} (unplugged, or its driver not bound?); "
        "hw.sensor.list shows what is there",
        effect="none",
        data={"sensor": name, "errno": "ENODEV"},
    )


def cure(path: Path) -> str:
    """Return the command that gives the right to read an attribute."""
    return (
        f"reading {path} needs root, as the kernel has it; to give it to the group hearth at every boot, put "
        f'"z {path} 0440 root hearth" into /etc/tmpfiles.d/hearth.conf and run systemd-tmpfiles --create'
    )


def failure(name: str, device: SensorDevice, channel: SensorChannel, error: OSError) -> DeviceError | ResourceBusy:
    """Return hearth's error for the kernel's."""
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
