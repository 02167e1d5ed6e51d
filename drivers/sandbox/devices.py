"""Which device nodes a board needs: exactly those of the buses it lists, or all of /dev where devices come and go.

Owns the way from a profile to nodes. It opens GPIO chips to read their labels, as the drivers do, and requests nothing.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from hearth.drivers.sandbox.system import plain_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.drivers.boards.profile import Profile

Reach: TypeAlias = tuple[Path, Literal["device", "list"], str]
DEV = Path("/dev")
_PLUG = re.compile(r"/(?:usb[0-9]|pcmcia|mmc)")


class Devices(NamedTuple):
    """What of /dev may be reached, and why it is all of it, if it is."""

    grants: tuple[Reach, ...]
    hotplug: str | None


def devices_of(profile: Profile, hotplug: bool | None, *, sys: Path = Path("/sys")) -> Devices:
    """What a profile, as it was opened, needs of /dev; `hotplug` decides whether all of it, None the board."""
    grants: list[Reach] = [(path, "device", "no device") for path in plain_nodes()]
    nodes = list(_nodes(profile))
    why = "[sandbox] hotplug" if hotplug else None
    if hotplug is None:
        pluggable = ((what, _plugged(node, sys)) for what, node in nodes)
        why = next((f"{what} {reason}" for what, reason in pluggable if reason is not None), None)
    if why is not None:
        return Devices(((DEV, "device", why),), why)
    if any(chip.driver == "gpiod" for chip in profile.chips):
        grants.append((DEV, "list", "GPIO chips are found by their labels"))
    grants.extend((node, "device", what) for what, node in nodes if node is not None)
    if any(port.driver == "sim" for port in profile.uarts):
        grants.extend((DEV / name, "device", "the simulated serial ports") for name in ("ptmx", "pts"))
    return Devices(tuple(grants), None)


def _plugged(node: Path | None, sys: Path) -> str | None:
    """Why a device is one that may come back under a new node; None if it stays where it is."""
    if node is None:
        return "is not there now"
    try:
        status = node.stat()
    except OSError:
        return "went while it was looked at"
    if not stat.S_ISCHR(status.st_mode):
        return None
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return "can be unplugged" if _PLUG.search(os.path.realpath(sys / f"dev/char/{number}")) else None


def _nodes(profile: Profile) -> Iterator[tuple[str, Path | None]]:
    """Each device that the profile lists, and its node; None where it is not there."""
    chips = [chip for chip in profile.chips if chip.driver == "gpiod"]
    labelled = _labels() if any(chip.path is None for chip in chips) else {}
    for chip in chips:
        path = chip.path if chip.path is not None else labelled.get(chip.label)
        yield f"gpio chip {chip.label}", _real(path)
    for adapter in profile.i2c:
        if adapter.driver == "i2c-dev":
            yield f"i2c bus {adapter.bus}", _adapter(adapter.bus, adapter.adapter)
    for port in profile.uarts:
        if port.driver == "serial":
            yield f"uart {port.port}", _real(port.path)


def _labels() -> dict[str, str]:
    from hearth.drivers.linux.gpio_chips import survey

    return {chip.label: chip.path for chip in survey().chips}


def _adapter(bus: int, name: str | None) -> Path | None:
    from hearth.drivers.linux.i2c_node import find_adapter
    from hearth.errors import DeviceError

    try:
        return _real(f"/dev/i2c-{find_adapter(bus, name)}")
    except (DeviceError, OSError):
        return None


def _real(path: str | None) -> Path | None:
    """The node that a path stands for, if there is one."""
    if path is None:
        return None
    real = Path(os.path.realpath(path))
    return real if real.exists() else None
