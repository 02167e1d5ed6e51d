"""SPI devices of the machine: found, judged, compared with a profile, and confined.

A device has a node only where the firmware's description or a person says that programs may use it.
"""

from __future__ import annotations

import re
from os.path import realpath
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.drivers.linux.machine import DeviceOrigin, Machine, numbered, origin_of, text_of
from hearth.drivers.linux.survey import (
    Access,
    Inspection,
    Node,
    OnMachine,
    ProfileProblem,
    Search,
    in_use,
    lacking,
    open_in,
    real,
    state,
)
from hearth.drivers.spi.spec import SpiSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hearth.drivers.linux.device_users import Holder

ACCESS: Final = Access("spi", "spidev", 'SUBSYSTEM=="spidev", KERNEL=="spidev*", GROUP="spi", MODE="0660"')
OVERLAY: Final = "dtparam=spi=on in config.txt makes /dev/spidev0.0 and /dev/spidev0.1 at the next start"
_BOOT_MEMORY = re.compile(r"spidev10\.\d+")


@frozen
class FoundSpi:
    """An SPI device that the kernel offers to programs. `name` is the firmware's."""

    node: str
    path: str
    origin: DeviceOrigin
    name: str | None = None


def find_spi(machine: Machine) -> Iterator[FoundSpi]:
    """Yield the SPI devices that have a node, by controller and chip select."""
    for node in numbered(machine.sys / "class/spidev", "spidev*"):
        path = machine.dev / node.name
        if path.exists():
            name = (text_of(node / "device/modalias") or "").removeprefix("spi:") or None
            yield FoundSpi(node.name, str(path), origin_of(node / "device", machine), name)


def spi_reason(device: FoundSpi, holders: Sequence[Holder] = ()) -> str | None:
    """Return why generic-linux does not drive this SPI device, or None. `holders` are processes that have it open."""
    if _BOOT_MEMORY.fullmatch(device.node):
        return "on a Raspberry Pi 5 it is the memory that the machine starts from, and a wrong write can end that"
    return open_in(holders)


def survey(found: Sequence[FoundSpi], search: Search) -> Iterator[SpiSpec]:
    """Yield a spec for each device that may be driven."""
    listed = {realpath(spec.path) for spec in search.of("spi") if spec.path is not None}
    for device in found:
        if not search.asked(device.node, device.name) or realpath(device.path) in listed:
            continue
        reason = spi_reason(device, search.holders.nodes.get(device.path, ()))
        if not search.refused(ACCESS, device.node, device.path, device.name, reason=reason):
            yield SpiSpec(device.node, "spidev", device.path, device.name)


def pins(found: Sequence[FoundSpi]) -> dict[str, str]:
    """Return the pins of the controllers that are switched on, as a line's `functions` name them, with the reason."""
    used: dict[str, str] = {}
    for device in found:
        if named := re.fullmatch(r"spidev(\d+)\.(\d+)", device.node):
            for wire in ("MISO", "MOSI", "SCLK", "SIO0", "SIO1", f"CE{named[2]}", f"CE{named[2]}_N"):
                pin = f"SPI{named[1]}_{wire}"
                used[pin] = f"{pin} of an SPI controller that is switched on"
    return used


def problems(specs: Sequence[SpiSpec], look: Inspection) -> Iterator[ProfileProblem]:
    """Yield what keeps the devices of a profile from working here."""
    devices: tuple[FoundSpi, ...] = look.of("spi")
    for index, spec in enumerate(specs):
        key = f"spi[{index}].path"
        if spec.path is None:
            continue  # it is simulated
        if realpath(spec.path) in {device.path for device in devices}:
            yield from lacking(key, spec.path, ACCESS)
        else:
            there = ", ".join(device.path for device in devices) or "none"
            told = f"the SPI device {spec.path} is not there; there is {there}"
            yield ProfileProblem(key, "fail", told, OVERLAY)


def report(look: Inspection) -> dict[str, Any]:
    """Return the devices for `hearth doctor`."""
    shown = []
    for device in look.of("spi"):
        holders = look.holders.nodes.get(device.path, ())
        judged = state(ACCESS, device.path, spi_reason(device, holders), holders)
        shown.append({"node": device.node, "path": device.path, "name": device.name, **judged})
    return {"spi": shown}


def _told(device: Mapping[str, Any]) -> str:
    return f"({device['name'] or 'SPI device'}){in_use(device)}"


def hints(look: Inspection) -> Iterator[dict[str, Any]]:
    """Yield the setting of a Raspberry Pi that makes SPI devices."""
    if look.has_header and not look.of("spi"):
        yield {"kind": "spi", "hint": f"no SPI device is switched on; {OVERLAY}"}


def nodes(specs: Sequence[SpiSpec], _sys: Path) -> Iterator[Node]:
    """Yield the nodes of the devices."""
    for spec in specs:
        if spec.driver == "spidev":
            yield Node(f"spi device {spec.name}", real(spec.path))


MACHINE: Final = OnMachine(
    access=ACCESS,
    find=find_spi,
    held=True,
    survey=survey,
    pins=pins,
    report=report,
    told={"spi": ("spi", _told)},
    hints=hints,
    problems=problems,
    nodes=nodes,
)
