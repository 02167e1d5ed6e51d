"""What generic-linux keeps its hands off: the parts of a machine that it needs to stay alive, or that somebody uses.

Owns the reasons. A wrong level on a pin of the processor can cut the power, a wrong byte on a management bus can
destroy a memory module or a display: what runs the machine is listed and not driven, until a profile names it. Refuses
to look at the machine itself, so that every verdict can be tested on any machine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.drivers.boards.discover import FoundAdapter, FoundChip, FoundPort, Origin
    from hearth.drivers.linux.holders import Holder

NAME_IT = "a board profile that lists it drives it; see docs/reference/boards.md"
"""The cure for everything here: somebody who knows the wiring says so."""

_PLUGGED = frozenset({"usb", "hid"})
"""What hangs on these was plugged in to be used."""
_CLIENTS = frozenset({"spi", "w1", "serial", "mdio_bus"})
_SIMULATED = frozenset({"gpio-sim", "gpio-mockup", "gpio-aggregator", "gpio-virtuser"})
"""Chips that somebody made on purpose, out of nothing or out of chosen lines of other chips."""

_MANAGEMENT = re.compile(r"smbus(?! stub)|\bSPD\b", re.IGNORECASE)
_DISPLAY = re.compile(
    r"gmbus|\bDDC\b|DPDDC|\bDPMST\b|\bAUX\b|NVIDIA|nvkm|nouveau|AMDGPU|Radeon|\bHDMI\b|-hdmi|-dp\b|"
    r"card\d+-|fef0[49]500\.i2c|107d5082[08]0\.i2c",
    re.IGNORECASE,
)
"""How the kernel's drivers name the buses to a display or a graphics card; the last two are the Pi 4's and 5's."""


def chip_reason(chip: FoundChip) -> str | None:
    """Why generic-linux does not drive this GPIO chip, or None.

    Driven are chips that one plugs in, expanders behind another bus, and simulated ones.
    """
    origin = chip.origin
    if origin.driver in _SIMULATED or _behind_a_bus(origin):
        return None
    if origin.described_by is not None or _is_a_card(origin):
        return (
            "its pins belong to the machine itself, whose storage, power and displays hang on them, and nothing tells "
            "which of them are free"
        )
    return None


def adapter_reason(adapter: FoundAdapter) -> str | None:
    """Why generic-linux does not drive this I2C adapter, or None."""
    name, origin = adapter.name or "", adapter.origin
    if _PLUGGED & set(origin.above):
        return None
    if _DISPLAY.search(name) or "hdmi" in origin.compatible:
        return "it leads to a display or into a graphics card, where a wrong write can do lasting damage"
    if _MANAGEMENT.search(name):
        return "the machine manages itself over it: a wrong write can destroy memory modules or change their settings"
    if origin.described_by == "acpi" or _is_a_card(origin):
        return "the machine's own devices sit on it (touch pad, audio, sensors, charger)"
    return None


def port_reason(port: FoundPort, open_in: Sequence[Holder] = ()) -> str | None:
    """Why generic-linux does not drive this serial port, or None. `open_in` are processes that have it open now.

    Most programs do not lock a port: two readers would each get half of what comes.
    """
    if port.console:
        return "the kernel writes its console to it"
    if port.terminal_of:
        return f"it is the terminal of {', '.join(port.terminal_of[:3])}"
    if open_in:
        return f"it is open in {', '.join(map(str, open_in[:3]))}"
    return None


def _is_a_card(origin: Origin) -> bool:
    return origin.described_by is None and "pci" in origin.above


def _behind_a_bus(origin: Origin) -> bool:
    """Whether the chip is a device on a bus, in contrast to a part of the processor or of the main board."""
    # An I2C client and its adapter are both of the subsystem "i2c", so a client has two of them above it.
    client = origin.above.count("i2c") >= 2 or bool(_CLIENTS & set(origin.above))
    return client or bool(_PLUGGED & set(origin.above))
