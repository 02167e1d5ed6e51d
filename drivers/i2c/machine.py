"""I2C adapters of the machine: found, judged, compared with a profile, and confined. No transfer is made.

A wrong byte on a management bus can destroy a memory module or a display, so these are left alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from typing import TYPE_CHECKING, Any, Final

from hearth.drivers.i2c.spec import I2cSpec
from hearth.drivers.linux.machine import FoundDevice, Machine, origin_of, text_of
from hearth.drivers.linux.survey import Access, DeviceNode, OnMachine, ProfileProblem, in_use, lacking, missing, real
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hearth.drivers.linux.device_users import Holder
    from hearth.drivers.linux.survey import Inspection, Search

ACCESS: Final = Access("i2c", "i2c-dev", 'SUBSYSTEM=="i2c-dev", KERNEL=="i2c-[0-9]*", GROUP="i2c", MODE="0660"')
_I2C_FUNCS = 0x0705
_MANAGEMENT = re.compile(r"smbus(?! stub)|\bSPD\b", re.IGNORECASE)
_DISPLAY = re.compile(
    r"gmbus|\bDDC\b|DPDDC|\bDPMST\b|\bAUX\b|NVIDIA|nvkm|nouveau|AMDGPU|Radeon|\bHDMI\b|-hdmi|-dp\b|"
    r"card\d+-|fef0[49]500\.i2c|107d5082[08]0\.i2c",
    re.IGNORECASE,
)
"""Names that kernel drivers give to the buses of a display or a graphics card; the last two are the Pi 4's and 5's."""


class FoundAdapter(FoundDevice):
    """An I2C adapter; `label` is the kernel's name of it."""

    @property
    def bus(self) -> int:
        """Return its number."""
        return int(self.node.removeprefix("i2c-"))


def functionality(path: str) -> tuple[str, ...] | None:
    """Return an adapter's functions by the kernel's names, None if it cannot be opened; the bus is not used."""
    from hearth.drivers.i2c.smbus import functions_of

    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        answer = fcntl.ioctl(fd, _I2C_FUNCS, bytes(struct.calcsize("L")))
    except OSError:
        return None
    finally:
        os.close(fd)
    return tuple(functions_of(*struct.unpack("L", answer)))


def clients(bus: int, machine: Machine) -> dict[int, str]:
    """Return the addresses on an I2C bus that a kernel driver owns, with the driver's name."""
    owned = {}
    for device in (machine.sys / "bus/i2c/devices").glob(f"{bus}-*"):
        driver = device / "driver"
        if driver.exists():
            # The kernel puts a flag in front of a 10-bit address: "1-a148".
            owned[int(device.name.partition("-")[2], 16) & 0x3FF] = driver.resolve().name
    return owned


def _owned(at: str, spec: I2cSpec, owned: Mapping[int, str]) -> Iterator[ProfileProblem]:
    for index, device in enumerate(spec.devices):
        if device.addr in owned:
            yield ProfileProblem(
                f"{at}.device[{index}].addr",
                "warn",
                f"{device.addr:#04x} belongs to the kernel driver {owned[device.addr]!r}, and hearth leaves it alone",
                "read it with hw.sensor.read, or unbind the driver",
            )


def _able(abilities: Sequence[str] | None) -> str:
    if abilities is None:
        return ""
    if "i2c" in abilities:
        return ": raw I2C" + (", 10-bit addresses" if "10bit" in abilities else "")
    return f": SMBus only ({', '.join(abilities) or 'nothing'})"


def _node(spec: I2cSpec) -> Path | None:
    from hearth.drivers.i2c.linux_adapter import find_adapter

    try:
        return real(f"/dev/i2c-{find_adapter(spec.bus, spec.adapter)}")
    except (DeviceError, OSError):
        return None


class I2cMachine(OnMachine):
    """I2C adapters as the machine has them."""

    kind, member, word = "i2c", "adapters", "adapter"
    access = ACCESS

    def find(self, machine: Machine) -> Iterator[FoundAdapter]:
        """Yield the I2C adapters that have a node, by number."""
        for entry, path in machine.nodes_of("class/i2c-dev", "i2c-*"):
            yield FoundAdapter(entry.name, path, origin_of(entry / "device", machine), text_of(entry / "name"))

    def reason(self, one: FoundAdapter, holders: Sequence[Holder]) -> str | None:
        """Return the reason, or None. It drives adapters that are plugged in or in a device tree, but no display's."""
        name, origin = one.label or "", one.origin
        if origin.plugged:
            return None
        if _DISPLAY.search(name) or "hdmi" in origin.compatible:
            return "it leads to a display or into a graphics card, where a wrong write can do lasting damage"
        if _MANAGEMENT.search(name):
            return (
                "the machine manages itself over it: a wrong write can destroy memory modules or change their settings"
            )
        if origin.described_by == "acpi" or origin.is_a_card:
            return "the machine's own devices sit on it (touch pad, audio, sensors, charger)"
        return None

    def survey(self, found: Sequence[FoundAdapter], search: Search) -> Iterator[I2cSpec]:
        """Yield a spec for each adapter that may be driven."""
        specs: tuple[I2cSpec, ...] = search.of("i2c")
        listed = {spec.bus for spec in specs} | {spec.adapter for spec in specs if spec.adapter}
        for one in self.offered(found, search, lambda one: one.bus in listed or one.label in listed):
            yield I2cSpec(one.bus, "i2c-dev")

    def faults(self, at: str, spec: I2cSpec, look: Inspection) -> Iterator[ProfileProblem]:
        """Yield an adapter that is missing, there twice or not permitted, and devices that a kernel driver owns."""
        adapters: Sequence[FoundAdapter] = look.of("i2c")
        if spec.adapter is not None:
            key, wanted = f"{at}.adapter", f"an adapter called {spec.adapter!r}"
            matching = [adapter for adapter in adapters if adapter.label == spec.adapter]
            # Of several with the name, the one with the number too.
            matching = [adapter for adapter in matching if adapter.bus == spec.bus] or matching
        else:
            key, wanted = f"{at}.bus", f"/dev/i2c-{spec.bus}"
            matching = [adapter for adapter in adapters if adapter.bus == spec.bus]
        if len(matching) > 1:
            nodes = ", ".join(adapter.node for adapter in matching)
            yield ProfileProblem(
                key, "fail", f"{wanted} is there {len(matching)} times: {nodes}", "say which with `bus`"
            )
        elif matching:
            yield from lacking(key, matching[0].path, ACCESS)
            yield from _owned(at, spec, clients(matching[0].bus, look.machine))
        else:
            cure = "is it switched on in the firmware's settings or the device tree? Else correct the profile"
            if not adapters:
                cure = "`sudo modprobe i2c-dev` makes the nodes; is the adapter switched on?"
            yield missing(key, wanted, (f"{adapter.node} {adapter.label!r}" for adapter in adapters), cure)

    def unreadable(self, name: str, specs: Mapping[str, tuple[Any, ...]], look: Inspection) -> tuple[str, str] | None:
        """Return why a sensor cannot be read here: a kernel driver owns its address."""
        sensor = next(one for one in specs["sensors"] if one.name == name)
        real_one = any(one.bus == sensor.bus and one.driver != "sim" for one in specs["i2c"])
        owner = clients(sensor.bus, look.machine).get(sensor.addr) if real_one else None
        if owner is None:
            return None
        cure = "name the kernel's own sensor (`hearth run hw.sensor.list`), or unbind the driver"
        return f"its address {sensor.addr:#04x} belongs to the kernel driver {owner!r}", cure

    def shown(self, one: FoundAdapter, look: Inspection) -> dict[str, Any]:
        """See `OnMachine.shown`."""
        abilities = functionality(one.path)
        able = None if abilities is None else list(abilities)
        return {"node": one.node, "path": one.path, "name": one.label, "functionality": able}

    def told(self, entry: Mapping[str, Any]) -> str:
        """See `OnMachine.told`."""
        return f'"{entry["name"]}"{_able(entry["functionality"])}{in_use(entry)}'

    def files(self, spec: I2cSpec, sys: Path) -> Iterator[DeviceNode]:
        """Yield the node of an adapter."""
        yield DeviceNode(f"i2c bus {spec.bus}", _node(spec))
