"""SPI devices of the machine: found, judged, compared with a profile, and confined.

A device has a node only where the firmware's description or a person says that programs may use it.
"""

from __future__ import annotations

import re
from os.path import realpath
from typing import TYPE_CHECKING, Any, Final

from hearth.drivers.linux.machine import FoundDevice, Machine, origin_of, text_of
from hearth.drivers.linux.survey import Access, DeviceNode, OnMachine, in_use, lacking, missing, real
from hearth.drivers.spi.spec import SpiSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hearth.drivers.linux.device_users import Holder
    from hearth.drivers.linux.survey import Inspection, ProfileProblem, Search

ACCESS: Final = Access("spi", "spidev", 'SUBSYSTEM=="spidev", KERNEL=="spidev*", GROUP="spi", MODE="0660"')
OVERLAY: Final = "dtparam=spi=on in config.txt makes /dev/spidev0.0 and /dev/spidev0.1 at the next start"
_BOOT_MEMORY = re.compile(r"spidev10\.\d+")


class SpiMachine(OnMachine):
    """SPI devices as the machine has them."""

    kind, member, word = "spi", "spi", "spi"
    access = ACCESS
    held = True

    def find(self, machine: Machine) -> Iterator[FoundDevice]:
        """Yield the SPI devices that have a node, by controller and chip select, under the firmware's names."""
        for entry, path in machine.nodes_of("class/spidev", "spidev*"):
            name = (text_of(entry / "device/modalias") or "").removeprefix("spi:") or None
            yield FoundDevice(entry.name, path, origin_of(entry / "device", machine), name)

    def reason(self, one: FoundDevice, holders: Sequence[Holder]) -> str | None:
        """See `OnMachine.reason`. It drives devices that no program has open, except the start memory of a Pi 5."""
        if _BOOT_MEMORY.fullmatch(one.node):
            return "on a Raspberry Pi 5 it is the memory that the machine starts from, and a wrong write can end that"
        return super().reason(one, holders)

    def survey(self, found: Sequence[FoundDevice], search: Search) -> Iterator[SpiSpec]:
        """Yield a spec for each device that may be driven."""
        listed = {realpath(spec.path) for spec in search.of("spi") if spec.path is not None}
        for one in self.offered(found, search, lambda one: realpath(one.path) in listed):
            yield SpiSpec(one.node, "spidev", one.path, one.label)

    def pins(self, found: Sequence[FoundDevice]) -> dict[str, str]:
        """Return the pins of the controllers that are switched on, as a line's `functions` name them."""
        used: dict[str, str] = {}
        for device in found:
            if named := re.fullmatch(r"spidev(\d+)\.(\d+)", device.node):
                for wire in ("MISO", "MOSI", "SCLK", "SIO0", "SIO1", f"CE{named[2]}", f"CE{named[2]}_N"):
                    pin = f"SPI{named[1]}_{wire}"
                    used[pin] = f"{pin} of an SPI controller that is switched on"
        return used

    def faults(self, at: str, spec: SpiSpec, look: Inspection) -> Iterator[ProfileProblem]:
        """Yield a device whose node is missing or not permitted."""
        assert spec.path is not None
        there = [device.path for device in look.of("spi")]
        if realpath(spec.path) in there:
            yield from lacking(f"{at}.path", spec.path, ACCESS)
        else:
            yield missing(f"{at}.path", f"the SPI device {spec.path}", there, OVERLAY)

    def shown(self, one: FoundDevice, look: Inspection) -> dict[str, Any]:
        """See `OnMachine.shown`."""
        return {"node": one.node, "path": one.path, "name": one.label}

    def told(self, entry: Mapping[str, Any]) -> str:
        """See `OnMachine.told`."""
        return f"({entry['name'] or 'SPI device'}){in_use(entry)}"

    def hints(self, look: Inspection) -> Iterator[dict[str, Any]]:
        """Yield the setting of a Raspberry Pi that makes SPI devices."""
        if look.has_header and not look.of("spi"):
            yield {"kind": "spi", "hint": f"no SPI device is switched on; {OVERLAY}"}

    def files(self, spec: SpiSpec, sys: Path) -> Iterator[DeviceNode]:
        """Yield the node of a device."""
        yield DeviceNode(f"spi device {spec.name}", real(spec.path))
