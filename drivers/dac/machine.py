"""Converters of the machine: found, compared with a profile, and confined.

None is driven that no profile lists: only a person knows what its outputs can bear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.drivers.dac.linux import iio_outputs
from hearth.drivers.dac.spec import resting_power
from hearth.drivers.linux.machine import DeviceOrigin, Machine, origin_of
from hearth.drivers.linux.survey import Access, Inspection, Node, OnMachine, ProfileProblem, lacking, state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hearth.drivers.dac.spec import DacSpec

ACCESS: Final = Access(
    "gpio",
    "iio",
    'SUBSYSTEM=="iio", KERNEL=="iio:device*", RUN+="/usr/bin/find /sys%p/ -maxdepth 1 -name out_* '
    '-exec /bin/chgrp gpio {{}} + -exec /bin/chmod g=u {{}} +"',
)
DAC_REASON: Final = "only a person knows which values what is connected to its outputs bears"
"""Why generic-linux drives no converter."""


@frozen
class FoundDac:
    """An IIO device with outputs. `label` is its lasting name, `outputs` the kernel's names: "out_voltage0".

    `path` is the file to write for using it: the first of its outputs.
    """

    node: str
    label: str
    path: str
    outputs: tuple[str, ...]
    origin: DeviceOrigin


def find_dacs(machine: Machine) -> Iterator[FoundDac]:
    """Yield the IIO devices with outputs, by number."""
    for device in iio_outputs(machine.sys):
        path = str(device.at / f"{device.outputs[0]}_raw")
        origin = origin_of(device.place, machine)
        yield FoundDac(device.at.name, device.label, path, device.outputs, origin)


def problems(specs: Sequence[DacSpec], look: Inspection) -> Iterator[ProfileProblem]:
    """Yield what keeps the converters of a profile from working here."""
    for index, spec in enumerate(specs):
        if spec.driver != "sim":
            yield from _problems(f"dac[{index}]", spec, look.of("dac"))


def _problems(key: str, spec: DacSpec, devices: Sequence[FoundDac]) -> Iterator[ProfileProblem]:
    device = next((one for one in devices if one.label == spec.label), None)
    if device is None:
        there = ", ".join(f"{one.label!r} ({one.node})" for one in devices)
        what = f"an IIO device {spec.label!r} with outputs is not there; there is {there or 'none'}"
        cure = "is it plugged in, and its overlay or kernel module loaded? Else correct the profile"
        yield ProfileProblem(f"{key}.label", "fail", what, cure)
        return
    yield from lacking(f"{key}.label", device.path, ACCESS)
    for channel in spec.channels:
        if channel.output not in device.outputs:
            what = f"the device has {', '.join(device.outputs)}, and no {channel.output}"
            cure = "correct `channels`, where the index of a name is the output's number, or the channel's `quantity`"
            yield ProfileProblem(f"{key}.channel.{channel.name}", "fail", what, cure)


def gaps(specs: Sequence[DacSpec], _found: Sequence[DacSpec], look: Inspection) -> Iterator[ProfileProblem]:
    """Yield the channels whose "off" leaves their output open."""
    for place, told, cure in resting_power(specs, {device.label: device.path for device in look.of("dac")}):
        yield ProfileProblem(place, "warn", told, cure)


def report(look: Inspection) -> dict[str, Any]:
    """Return the converters for `hearth doctor`."""
    return {
        "dacs": [
            {
                "node": device.node,
                "label": device.label,
                "path": device.path,
                "outputs": list(device.outputs),
                **state(ACCESS, device.path, DAC_REASON, ()),
            }
            for device in look.of("dac")
        ]
    }


def _told(device: Mapping[str, Any]) -> str:
    return f'"{device["label"]}": {", ".join(device["outputs"])}'


def nodes(specs: Sequence[DacSpec], sys: Path) -> Iterator[Node]:
    """Yield the directories of the converters in /sys."""
    specs = [spec for spec in specs if spec.driver == "iio"]
    there = {device.label: device.place for device in iio_outputs(sys)} if specs else {}
    for spec in specs:
        yield Node(f"dac {spec.label}", there.get(spec.label), "attribute")


MACHINE: Final = OnMachine(
    access=ACCESS,
    find=find_dacs,
    report=report,
    told={"dacs": ("dac", _told)},
    problems=problems,
    gaps=gaps,
    drives=lambda _spec: True,
    nodes=nodes,
)
