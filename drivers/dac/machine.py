"""Converters of the machine: found, compared with a profile, and confined.

None is driven that no profile lists: only a person knows what its outputs can bear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.drivers.dac.linux import iio_outputs
from hearth.drivers.dac.spec import resting_power
from hearth.drivers.linux.machine import FoundDevice, Machine, origin_of
from hearth.drivers.linux.survey import Access, DeviceNode, OnMachine, ProfileProblem, lacking, missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hearth.drivers.dac.spec import DacSpec
    from hearth.drivers.linux.device_users import Holder
    from hearth.drivers.linux.survey import Inspection

ACCESS: Final = Access(
    "gpio",
    "iio",
    'SUBSYSTEM=="iio", KERNEL=="iio:device*", RUN+="/usr/bin/find /sys%p/ -maxdepth 1 -name out_* '
    '-exec /bin/chgrp gpio {{}} + -exec /bin/chmod g=u {{}} +"',
)


@frozen
class FoundDac(FoundDevice):
    """An IIO device with outputs, by its lasting name. `outputs` are the kernel's names: "out_voltage0".

    `path` is the file to write for using it: the first of its outputs.
    """

    outputs: tuple[str, ...] = ()


class DacMachine(OnMachine):
    """Converters as the machine has them."""

    kind, member, word = "dac", "dacs", "dac"
    access = ACCESS

    def find(self, machine: Machine) -> Iterator[FoundDac]:
        """Yield the IIO devices with outputs, by number."""
        for device in iio_outputs(machine.sys):
            path = str(device.at / f"{device.outputs[0]}_raw")
            origin = origin_of(device.place, machine)
            yield FoundDac(device.at.name, path, origin, device.label, device.outputs)

    def reason(self, one: FoundDac, holders: Sequence[Holder]) -> str:
        """Return the reason. It drives none: only a person knows which values what is connected bears."""
        return "only a person knows which values what is connected to its outputs bears"

    def shown(self, one: FoundDac, look: Inspection) -> dict[str, Any]:
        """See `OnMachine.shown`."""
        return {"node": one.node, "label": one.label, "path": one.path, "outputs": list(one.outputs)}

    def told(self, entry: Mapping[str, Any]) -> str:
        """See `OnMachine.told`."""
        return f'"{entry["label"]}": {", ".join(entry["outputs"])}'

    def faults(self, at: str, spec: DacSpec, look: Inspection) -> Iterator[ProfileProblem]:
        """Yield a converter that is missing or not permitted, and channels that it does not have."""
        devices: Sequence[FoundDac] = look.of("dac")
        device = next((one for one in devices if one.label == spec.label), None)
        if device is None:
            there = (f"{one.label!r} ({one.node})" for one in devices)
            cure = "is it plugged in, and its overlay or kernel module loaded? Else correct the profile"
            yield missing(f"{at}.label", f"an IIO device {spec.label!r} with outputs", there, cure)
            return
        yield from lacking(f"{at}.label", device.path, ACCESS)
        for channel in spec.channels:
            if channel.output not in device.outputs:
                what = f"the device has {', '.join(device.outputs)}, and no {channel.output}"
                cure = (
                    "correct `channels`, where the index of a name is the output's number, or the channel's `quantity`"
                )
                yield ProfileProblem(f"{at}.channel.{channel.name}", "fail", what, cure)

    def gaps(self, specs: Sequence[DacSpec], found: Sequence[DacSpec], look: Inspection) -> Iterator[ProfileProblem]:
        """Yield the channels whose "off" leaves their output open."""
        for place, told, cure in resting_power(specs, {device.label: device.path for device in look.of("dac")}):
            yield ProfileProblem(place, "warn", told, cure)

    def drives(self, spec: DacSpec) -> bool:
        """Return True: all channels are outputs."""
        return True

    def files(self, spec: DacSpec, sys: Path) -> Iterator[DeviceNode]:
        """Yield the directory of a converter in /sys."""
        places = (device.place for device in iio_outputs(sys) if device.label == spec.label)
        yield DeviceNode(f"dac {spec.label}", next(places, None), "attribute")
