"""One device behind several buses: a USB adapter that gives both GPIO lines and an I2C bus.

Owns the answer to "whose is it?". That buses which share a device take turns is for whoever runs their transactions
(see `Driver.shares`). It is needed because not every kernel driver orders its own halves: hid-mcp2221 (seen in Linux
7.2) fills the one buffer that it sends from without a lock, so that a line set while bytes go over I2C may be reported
as driven and is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def shared_device(entry: Path) -> str | None:
    """The HID device that a chip's or adapter's entry under /sys belongs to, by its path; None if to none."""
    try:
        device = entry.resolve(strict=True)
    except OSError:
        return None
    for parent in device.parents:
        subsystem = parent / "subsystem"
        if subsystem.exists() and subsystem.resolve().name == "hid":
            return str(parent)
    return None
