"""This machine as /sys, /dev and /proc show it: the roots, and the place of a device among the others.

It reads names and states; it claims nothing and decides nothing. Each kind of hardware finds its devices with it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

_INNER = frozenset({"gpio", "serial-base", "tty"})
"""Subsystems that the kernel puts between a device and its chip or port; their drivers do not identify the device."""
_PLUGS = frozenset({"usb", "hid"})
"""Subsystems of devices that were plugged in to be used."""
_CLIENTS = frozenset({"spi", "w1", "serial", "mdio_bus"})
_SIMULATED = frozenset({"gpio-sim", "gpio-mockup", "gpio-aggregator", "gpio-virtuser"})
"""Chips made on purpose, simulated or of chosen lines of other chips."""

HEADERS: Final = {"pinctrl-bcm2711": "rpi4", "pinctrl-rp1": "rpi5"}
"""Labels of processors' own chips to the shipped profile that knows which of their lines are on a header."""


@frozen
class Machine:
    """The roots of /sys, /dev and /proc; other roots are for tests."""

    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")

    def nodes_of(self, directory: str, pattern: str) -> Iterator[tuple[Path, str]]:
        """Yield the entries of a directory of /sys that have a node, by number, each with the path of the node."""
        for entry in numbered(self.sys / directory, pattern):
            if (path := self.dev / entry.name).exists():
                yield entry, str(path)


THIS = Machine()


@frozen
class DeviceOrigin:
    """The place of a device: the subsystems above it, nearest first ("i2c", "usb", "pci"), and its description."""

    above: tuple[str, ...] = ()
    driver: str | None = None
    """The kernel driver of the device that the chip, adapter or port belongs to."""
    described_by: str | None = None
    """"devicetree" or "acpi" for what the machine's firmware lists as its own."""
    compatible: str = ""
    """The device tree's name of it."""

    @property
    def plugged(self) -> bool:
        """True if the device was plugged in."""
        return bool(_PLUGS & set(self.above))

    @property
    def is_a_card(self) -> bool:
        """True for a part of a card that the machine's firmware does not describe."""
        return self.described_by is None and "pci" in self.above

    @property
    def apart(self) -> bool:
        """True if the chip is simulated, or a device on a bus, in contrast to a part of the processor or main board."""
        # An I2C client and its adapter are both of the subsystem "i2c", so a client has two of them above it.
        client = self.above.count("i2c") >= 2 or bool(_CLIENTS & set(self.above))
        return self.driver in _SIMULATED or client or self.plugged


@frozen
class FoundDevice:
    """A device of the machine: its name in /sys, the file to open for using it, and its place among the others.

    `label` is the name by which a profile lists it, None for a device without one.
    """

    node: str
    path: str
    origin: DeviceOrigin
    label: str | None = None


def numbered(directory: Path, pattern: str) -> list[Path]:
    """Return the entries of a directory of /sys, in the order of their numbers ("i2c-10" after "i2c-2")."""

    def key(path: Path) -> tuple[str, int]:
        match = re.fullmatch(r"(.*?)(\d*)", path.name)
        return (match[1], int(match[2] or -1)) if match else (path.name, -1)

    return sorted(directory.glob(pattern), key=key)


def entries(folder: Path, pattern: str) -> list[Path]:
    """Return the entries of `folder` that fit, in the order of the numbers in the names; none without the folder."""
    try:
        found = list(folder.glob(pattern))
    except OSError:
        return []  # it was removed while it was being listed
    return sorted(found, key=lambda at: ([int(number[:18]) for number in re.findall("[0-9]+", at.name)], at.name))


def origin_of(device: Path, machine: Machine) -> DeviceOrigin:
    """Walk from a device up to the root of the device tree."""
    above: list[str] = []
    driver = described = None
    compatible = ""
    on_a_card = False
    place, root = device.resolve(), machine.sys.resolve()
    while place != root and root in place.parents:
        subsystem = (place / "subsystem").resolve().name if (place / "subsystem").exists() else None
        if subsystem is not None:
            above.append(subsystem)
        if driver is None and subsystem not in _INNER and (place / "driver").exists():
            driver = (place / "driver").resolve().name
        # A plugged-in device has no description of its own, but the port it is plugged into has. A card may bring one
        # for its parts: the chip behind a Raspberry Pi 5's header is such a card.
        if described is None and not on_a_card and not _PLUGS & set(above):
            described, compatible = _description(place)
        on_a_card = on_a_card or subsystem == "pci"
        place = place.parent
    return DeviceOrigin(tuple(above), driver, described, compatible)


def _description(place: Path) -> tuple[str | None, str]:
    """Return what lists a device as the machine's own, and the device tree's name of it."""
    if (place / "of_node").exists():
        return "devicetree", (text_of(place / "of_node/compatible") or "").replace("\0", " ").strip()
    listed = (place / "firmware_node/path").exists() or (place / "firmware_node/hid").exists()
    return ("acpi" if listed else None), ""


def text_of(path: Path) -> str | None:
    """Return the text of a file of /sys or /proc; None if it is empty or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip(" \t\r\n\0") or None
    except OSError:
        return None
