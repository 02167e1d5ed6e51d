"""I2C adapters of the machine: found, judged, compared with a profile, and confined. No transfer is made.

A wrong byte on a management bus can destroy a memory module or a display, so these are left alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.drivers.i2c.spec import I2cSpec
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
    real,
    state,
)
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

ACCESS: Final = Access("i2c", "i2c-dev", 'SUBSYSTEM=="i2c-dev", KERNEL=="i2c-[0-9]*", GROUP="i2c", MODE="0660"')
_I2C_FUNCS = 0x0705
_MANAGEMENT = re.compile(r"smbus(?! stub)|\bSPD\b", re.IGNORECASE)
_DISPLAY = re.compile(
    r"gmbus|\bDDC\b|DPDDC|\bDPMST\b|\bAUX\b|NVIDIA|nvkm|nouveau|AMDGPU|Radeon|\bHDMI\b|-hdmi|-dp\b|"
    r"card\d+-|fef0[49]500\.i2c|107d5082[08]0\.i2c",
    re.IGNORECASE,
)
"""Names that kernel drivers give to the buses of a display or a graphics card; the last two are the Pi 4's and 5's."""


@frozen
class FoundAdapter:
    """An I2C adapter; `name` is the kernel's."""

    node: str
    path: str
    bus: int
    origin: DeviceOrigin
    name: str | None = None


def find_adapters(machine: Machine) -> Iterator[FoundAdapter]:
    """Yield the I2C adapters that have a node, by number."""
    for node in numbered(machine.sys / "class/i2c-dev", "i2c-*"):
        path = machine.dev / node.name
        if path.exists():
            number = int(node.name.removeprefix("i2c-"))
            origin = origin_of(node / "device", machine)
            yield FoundAdapter(node.name, str(path), number, origin, text_of(node / "name"))


def functionality(path: str) -> tuple[str, ...] | None:
    """Return an adapter's functions by the kernel's names, None if it cannot be opened; the bus is not used."""
    from hearth.drivers.i2c.linux import functions_of

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


def adapter_reason(adapter: FoundAdapter) -> str | None:
    """Return why generic-linux does not drive this I2C adapter, or None."""
    name, origin = adapter.name or "", adapter.origin
    if origin.plugged:
        return None
    if _DISPLAY.search(name) or "hdmi" in origin.compatible:
        return "it leads to a display or into a graphics card, where a wrong write can do lasting damage"
    if _MANAGEMENT.search(name):
        return "the machine manages itself over it: a wrong write can destroy memory modules or change their settings"
    if origin.described_by == "acpi" or origin.is_a_card:
        return "the machine's own devices sit on it (touch pad, audio, sensors, charger)"
    return None


def survey(found: Sequence[FoundAdapter], search: Search) -> Iterator[I2cSpec]:
    """Yield a spec for each adapter that may be driven."""
    specs: tuple[I2cSpec, ...] = search.of("i2c")
    listed = {spec.bus for spec in specs} | {spec.adapter for spec in specs if spec.adapter}
    for one in found:
        if not search.asked(one.node, one.name) or one.bus in listed or one.name in listed:
            continue
        if not search.refused(ACCESS, one.node, one.path, one.name, reason=adapter_reason(one)):
            yield I2cSpec(one.bus, "i2c-dev")


def problems(specs: Sequence[I2cSpec], look: Inspection) -> Iterator[ProfileProblem]:
    """Yield what keeps the adapters of a profile from working here."""
    for index, spec in enumerate(specs):
        if spec.driver != "sim":
            yield from _problems(f"i2c[{index}]", spec, look.of("i2c"), look.machine)


def _problems(at: str, spec: I2cSpec, adapters: Sequence[FoundAdapter], machine: Machine) -> Iterator[ProfileProblem]:
    if spec.adapter is not None:
        key, wanted = f"{at}.adapter", f"an adapter called {spec.adapter!r}"
        matching = [adapter for adapter in adapters if adapter.name == spec.adapter]
        # Of several with the name, the one with the number too.
        matching = [adapter for adapter in matching if adapter.bus == spec.bus] or matching
    else:
        key, wanted = f"{at}.bus", f"/dev/i2c-{spec.bus}"
        matching = [adapter for adapter in adapters if adapter.bus == spec.bus]
    if len(matching) > 1:
        nodes = ", ".join(adapter.node for adapter in matching)
        yield ProfileProblem(key, "fail", f"{wanted} is there {len(matching)} times: {nodes}", "say which with `bus`")
    elif matching:
        yield from lacking(key, matching[0].path, ACCESS)
        yield from _owned(at, spec, clients(matching[0].bus, machine))
    else:
        there = ", ".join(f"{adapter.node} {adapter.name!r}" for adapter in adapters)
        cure = "is it switched on in the firmware's settings or the device tree? Else correct the profile"
        if not adapters:
            cure = "`sudo modprobe i2c-dev` makes the nodes; is the adapter switched on?"
        yield ProfileProblem(key, "fail", f"{wanted} is not there; there is {there or 'none'}", cure)


def _owned(at: str, spec: I2cSpec, owned: Mapping[int, str]) -> Iterator[ProfileProblem]:
    for index, device in enumerate(spec.devices):
        if device.addr in owned:
            yield ProfileProblem(
                f"{at}.device[{index}].addr",
                "warn",
                f"{device.addr:#04x} belongs to the kernel driver {owned[device.addr]!r}, and hearth leaves it alone",
                "read it with hw.sensor.read, or unbind the driver",
            )


def unreadable(name: str, specs: Mapping[str, tuple[Any, ...]], look: Inspection) -> tuple[str, str] | None:
    """Return why a sensor cannot be read here: a kernel driver owns its address."""
    sensor = next(one for one in specs["sensors"] if one.name == name)
    real_one = any(one.bus == sensor.bus and one.driver != "sim" for one in specs["i2c"])
    owner = clients(sensor.bus, look.machine).get(sensor.addr) if real_one else None
    if owner is None:
        return None
    cure = "name the kernel's own sensor (`hearth run hw.sensor.list`), or unbind the driver"
    return f"its address {sensor.addr:#04x} belongs to the kernel driver {owner!r}", cure


def report(look: Inspection) -> dict[str, Any]:
    """Return the adapters for `hearth doctor`."""
    shown = []
    for one in look.of("i2c"):
        abilities = functionality(one.path)
        shown.append(
            {
                "node": one.node,
                "path": one.path,
                "name": one.name,
                "functionality": None if abilities is None else list(abilities),
                **state(ACCESS, one.path, adapter_reason(one), look.holders.nodes.get(one.path, ())),
            }
        )
    return {"adapters": shown}


def _told(adapter: Mapping[str, Any]) -> str:
    return f'"{adapter["name"]}"{_able(adapter["functionality"])}{in_use(adapter)}'


def _able(abilities: Sequence[str] | None) -> str:
    if abilities is None:
        return ""
    if "i2c" in abilities:
        return ": raw I2C" + (", 10-bit addresses" if "10bit" in abilities else "")
    return f": SMBus only ({', '.join(abilities) or 'nothing'})"


def nodes(specs: Sequence[I2cSpec], _sys: Path) -> Iterator[Node]:
    """Yield the nodes of the adapters."""
    for spec in specs:
        if spec.driver == "i2c-dev":
            yield Node(f"i2c bus {spec.bus}", _node(spec))


def _node(spec: I2cSpec) -> Path | None:
    from hearth.drivers.i2c.linux_adapter import find_adapter

    try:
        return real(f"/dev/i2c-{find_adapter(spec.bus, spec.adapter)}")
    except (DeviceError, OSError):
        return None


MACHINE: Final = OnMachine(
    access=ACCESS,
    find=find_adapters,
    survey=survey,
    report=report,
    told={"adapters": ("adapter", _told)},
    problems=problems,
    unreadable=unreadable,
    nodes=nodes,
)
