"""What the machine has, as /sys and /dev show it: read-only, without opening any device.

Owns the reading of names; refuses to open, to request, and to guess what is connected.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.drivers.boards.profile import Kind


@frozen
class Found:
    """A device node of a kind that hearth knows; `label` is what the kernel calls it, where it says so."""

    kind: Kind
    name: str
    path: str
    label: str | None = None


def discover(kinds: Iterable[Kind], *, sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> list[Found]:
    """The GPIO chips, I2C adapters and serial ports that have a node in `dev`, sorted by kind and number."""
    finders = {"gpio": _gpio, "i2c": _i2c, "uart": _uart}
    found = [entry for kind in kinds for entry in finders[kind](sys, dev) if Path(entry.path).exists()]
    return sorted(found, key=lambda entry: (entry.kind, len(entry.name), entry.name))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _gpio(sys: Path, dev: Path) -> list[Found]:
    chips = (sys / "bus/gpio/devices").glob("gpiochip*")
    return [Found("gpio", chip.name, str(dev / chip.name), _read(chip / "label")) for chip in chips]


def _i2c(sys: Path, dev: Path) -> list[Found]:
    adapters = (sys / "class/i2c-dev").glob("i2c-*")
    return [Found("i2c", adapter.name, str(dev / adapter.name), _read(adapter / "name")) for adapter in adapters]


def _uart(sys: Path, dev: Path) -> list[Found]:
    found: list[Found] = []
    for tty in (sys / "class/tty").glob("tty*"):
        # Virtual consoles and pseudo-terminals have no device; type 0 is a UART slot without a UART in it.
        if (tty / "device").exists() and _read(tty / "type") != "0":
            driver = tty / "device/driver"
            found.append(
                Found("uart", tty.name, str(dev / tty.name), driver.resolve().name if driver.exists() else None)
            )
    return found
