"""The kernel's sensors and their buffers on this machine, for `hearth doctor` and for the sandbox."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hearth.drivers import sysfs
from hearth.drivers.iio.kernel import KernelSensors
from hearth.drivers.linux.survey import DeviceNode, OnMachine, ProfileProblem, missing, real
from hearth.drivers.sensor import SENSORS_BUS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hearth.drivers.base import Driver
    from hearth.drivers.iio.spec import IioSpec
    from hearth.drivers.linux.machine import Machine
    from hearth.drivers.linux.survey import Inspection

_W1_OVERLAY = (
    "dtoverlay=w1-gpio in config.txt makes one on GPIO4 at the next start, and its thermometers become sensors"
)


class IioMachine(OnMachine):
    """The kernel's sensors, and the devices that are captured from, as the machine has them."""

    kind = "iio"

    def buses(self, specs: Mapping[str, tuple[Any, ...]], machine: Machine) -> Mapping[str, Driver]:
        """Return the sensors that the kernel has, as one bus."""
        triggers = {spec.label: spec.trigger for spec in specs.get("iio", ()) if spec.trigger is not None}
        return {SENSORS_BUS: KernelSensors(sys=machine.sys, dev=machine.dev, triggers=triggers)}

    def unreadable(self, name: str, specs: Mapping[str, tuple[Any, ...]], look: Inspection) -> tuple[str, str] | None:
        """Return why a sensor cannot be read here: the kernel does not have it."""
        if any(name == wave.sensor for spec in specs.get("iio", ()) for wave in spec.channels):
            return None
        if name in {sensor.name for sensor in KernelSensors(sys=look.machine.sys).scan()}:
            return None
        cure = "is its device plugged in, and its kernel module loaded? `hearth run hw.sensor.list` names them"
        return "the kernel has no such sensor now", cure

    def report(self, look: Inspection) -> dict[str, Any]:
        """Return the number of sensors for `hearth doctor`."""
        return {"sensors": len(KernelSensors(sys=look.machine.sys).scan())}

    def hints(self, look: Inspection) -> Iterator[dict[str, Any]]:
        """Yield the setting of a Raspberry Pi that makes a 1-Wire bus, and thermometers whose power-on value counts."""
        if look.has_header and not any((look.machine.sys / "bus/w1/devices").glob("w1_bus_master*")):
            yield {"kind": "1-wire", "hint": f"no 1-Wire bus is switched on; {_W1_OVERLAY}"}
        for sensor in KernelSensors(sys=look.machine.sys).scan():
            if "-w1-" in sensor.name and sensor.problem is not None:
                yield {"kind": "1-wire", "hint": f"{sensor.name}: {sensor.problem}"}

    def faults(self, at: str, spec: IioSpec, look: Inspection) -> Iterator[ProfileProblem]:
        """Yield a device that is missing, not permitted or without a buffer, and a trigger that is missing."""
        key, machine = f"{at}.label", look.machine
        device = sysfs.iio_device(machine.sys, spec.label)
        if device is None:
            there = (repr(one.stem) for one in sysfs.iio_devices(machine.sys))
            cure = "is it plugged in, and its kernel module loaded? Else correct the profile"
            yield missing(key, f"an IIO device {spec.label!r}", there, cure)
            return
        if not (device.at / "buffer/enable").exists():
            cure = "take the table out: hw.sensor.read reads its sensors one at a time"
            yield ProfileProblem(key, "fail", "the kernel's driver of this device has no buffer", cure)
        elif not os.access(machine.dev / device.instance, os.R_OK, effective_ids=True):
            cure = "use the rules in docs/reference/boards.md, under Permissions"
            yield ProfileProblem(key, "fail", f"this user may not read {machine.dev / device.instance}", cure)
        if spec.trigger is not None and sysfs.iio_trigger(device.at, spec.trigger) is None:
            cure = f"for a timer: `sudo mkdir /sys/kernel/config/iio/triggers/hrtimer/{spec.trigger}`"
            yield ProfileProblem(f"{at}.trigger", "fail", f"there is no trigger {spec.trigger!r} now", cure)

    def files(self, spec: IioSpec, sys: Path) -> Iterator[DeviceNode]:
        """Yield the node of a buffer, and the directories in /sys of its device and of a trigger that has a rate."""
        what, device = f"iio device {spec.label}", sysfs.iio_device(sys, spec.label)
        if device is None:
            yield from (DeviceNode(what, None), DeviceNode(what, None, "attribute"))
            return
        yield DeviceNode(what, real(f"/dev/{device.instance}"))
        yield DeviceNode(what, device.parent or device.at, "attribute")
        name = spec.trigger or sysfs.text(device.at / "trigger/current_trigger")
        if (trigger := sysfs.iio_trigger(device.at, name)) is not None:
            yield DeviceNode(f"the trigger of {what}", trigger, "attribute")
