"""The kernel's GPIO chips: finding the one that a board means, and the style of its driver.

It owns the way from a label or a path to an open character device, and the errors on it, each with its cure. Chips are
found by label because their numbers follow the order in which drivers happened to start: the same header is `gpiochip0`
under one kernel and `gpiochip4` under the next. It keeps nothing open itself.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from hearth.drivers.base import Style
from hearth.drivers.linux.device_users import group_name, kept_by_sandbox, lets_group_in
from hearth.errors import DeviceError

if TYPE_CHECKING:
    import gpiod

_SYS = Path("/sys")

_MEMORY_MAPPED = frozenset({"platform", "pci", "pci_express", "amba", "acpi", "pnp", "auxiliary", "soc", "of"})
"""Buses whose devices answer within a few memory accesses. A device on another bus is accessed over a wire."""
_SLEEPERS = frozenset({"raspberrypi-exp-gpio", "gpio-aggregator", "gpio-virtuser"})
"""Drivers of platform devices that sleep for all that: a firmware's mailbox, chips made of other chips' lines."""


@frozen
class ChipNode:
    """A chip that exists: its device node, the kernel's name and label for it, and its number of lines."""

    path: str
    name: str
    label: str
    lines: int


@frozen
class ChipSurvey:
    """The chips in /dev; `refused` are nodes that could not be opened, with the errno."""

    chips: tuple[ChipNode, ...]
    refused: tuple[tuple[str, int], ...]


def survey(dev: Path = Path("/dev")) -> ChipSurvey:
    """Look at every GPIO chip that has a device node; read only its label."""
    import gpiod

    chips: list[ChipNode] = []
    refused: list[tuple[str, int]] = []
    seen: set[int] = set()
    # The shortest names first: a link to a chip (gpiochip4 on a Raspberry Pi 5) is no second chip.
    for path in sorted(dev.glob("gpiochip*"), key=lambda path: (path.is_symlink(), len(path.name), path.name)):
        try:
            device = path.stat()
            if not stat.S_ISCHR(device.st_mode) or device.st_rdev in seen:
                continue
            seen.add(device.st_rdev)
            with gpiod.Chip(str(path)) as chip:
                info = chip.get_info()
        except OSError as error:
            # The chip has just been unplugged; the others are still listed.
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
                refused.append((str(path), error.errno or 0))
            continue
        chips.append(ChipNode(str(path), info.name, info.label, info.num_lines))
    return ChipSurvey(tuple(chips), tuple(refused))


def find_chip(label: str, path: str | None = None) -> ChipNode:
    """Return the chip at `path`, else the one with this label. Raises DeviceError: absent, ambiguous, not permitted."""
    if path is not None:
        return _chip_at(label, path)
    found = survey()
    matching = [chip for chip in found.chips if chip.label == label]
    if len(matching) == 1:
        return matching[0]
    if matching:
        paths = [chip.path for chip in matching]
        raise DeviceError(
            f"gpio chip {label}: {len(paths)} chips have this label, {' and '.join(paths)}; say which one is meant "
            f'with `path = "{paths[0]}"` in the board profile',
            effect="none",
            data={"chip": label, "paths": paths},
        )
    for refused, code in found.refused:
        # The chip may be among the refused ones, so it must not be reported as absent.
        raise cannot_open(label, refused, code)
    there = ", ".join(f"{chip.path} {chip.label!r} ({chip.lines} lines)" for chip in found.chips)
    raise DeviceError(
        f"gpio chip {label}: no chip has this label; there are: {there or 'none'}. "
        f"Is it plugged in, and its kernel driver loaded?",
        effect="none",
        data={"chip": label, "errno": "ENODEV", "known": [chip.label for chip in found.chips]},
    )


def _chip_at(label: str, path: str) -> ChipNode:
    import gpiod

    try:
        with gpiod.Chip(path) as chip:
            info = chip.get_info()
    except OSError as error:
        raise cannot_open(label, path, error.errno or 0) from error
    return ChipNode(path, info.name, info.label, info.num_lines)


def open_chip(label: str, path: str | None = None) -> tuple[gpiod.Chip, ChipNode]:
    """Find a chip and open it; the caller closes it. Raises DeviceError."""
    import gpiod

    found = find_chip(label, path)
    try:
        return gpiod.Chip(found.path), found
    except OSError as error:
        raise cannot_open(label, found.path, error.errno or 0) from error


def cannot_open(label: str, path: str, code: int) -> DeviceError:
    """Return the error of a chip's device node that could not be opened, with the cure."""
    data = {"chip": label, "path": path, "errno": errno.errorcode.get(code, "EIO")}
    if code in (errno.EACCES, errno.EPERM):
        text = kept_by_sandbox(path) or f"no permission to use {path}, which {_permission(path)}"
    elif code == errno.ENOENT:
        known = [f"{chip.path} {chip.label!r}" for chip in survey().chips]
        text = f"there is no {path}; there are: {', '.join(known) or 'none'}. Is it plugged in?"
    elif code in (errno.ENODEV, errno.ENXIO) and not Path(path).exists():
        text = f"{path} is gone; is it still plugged in?"
    elif code in (errno.ENODEV, errno.ENOTTY, errno.EINVAL):
        text = f"{path} is not a GPIO chip; `gpiodetect` lists those that are there"
    else:
        text = f"{path} cannot be opened: {os.strerror(code)}"
    return DeviceError(f"gpio chip {label}: {text}", effect="none", data=data)


def _permission(path: str) -> str:
    """Return the owner of a device node, and the command that gives a user access."""
    try:
        device = Path(path).stat()
    except OSError:
        return "is no longer there"
    group, mode = group_name(device.st_gid), stat.S_IMODE(device.st_mode)
    if lets_group_in(device):
        return f"belongs to group {group} ({mode:04o}): `sudo usermod -aG {group} USER`, then log in again"
    rule = 'SUBSYSTEM=="gpio", KERNEL=="gpiochip*", GROUP="gpio", MODE="0660"'
    return (
        f"belongs to group {group} ({mode:04o}) alone: make a group with `sudo groupadd -f gpio`, put the rule {rule} "
        f"in /etc/udev/rules.d/60-gpio.rules, and run `sudo udevadm control --reload && sudo udevadm trigger`"
    )


def entry_of(name: str, sys: Path = _SYS) -> Path:
    """Return the path of a chip under /sys by the kernel's name for it ("gpiochip0"), existing or not."""
    return sys / "bus/gpio/devices" / name


def style_of(name: str, sys: Path = _SYS) -> Style:
    """Return INLINE for a chip ("gpiochip0") that is memory-mapped all the way up, else THREAD.

    The kernel knows if access to a chip may sleep, but does not show it; the chip's parent devices do. An unknown one
    counts as sleeping: a thread costs microseconds, a blocked event loop delays all clients.
    """
    try:
        device = entry_of(name, sys).resolve(strict=True)
    except OSError:
        return Style.THREAD
    buses: list[str] = []
    for parent in device.parents:
        if parent == sys or not (parent / "subsystem").exists():
            continue
        buses.append((parent / "subsystem").resolve().name)
        driver = parent / "driver"
        if driver.exists() and driver.resolve().name in _SLEEPERS:
            return Style.THREAD
    return Style.INLINE if buses and _MEMORY_MAPPED.issuperset(buses) else Style.THREAD
