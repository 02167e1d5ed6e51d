"""PWM chips of the machine: found, judged, compared with a profile, and confined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.drivers.channels import MOST_CHANNELS
from hearth.drivers.linux.machine import DeviceOrigin, Machine, origin_of
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
    some_of,
    state,
)
from hearth.drivers.profile import Undriven
from hearth.drivers.pwm.driver import ChannelSpec
from hearth.drivers.pwm.linux import pwm_chips
from hearth.drivers.pwm.spec import PwmSpec, resting_power

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hearth.drivers.linux.survey import Severity

ACCESS: Final = Access(
    "gpio",
    "pwm",
    'SUBSYSTEM=="pwm", KERNEL=="pwmchip*", GROUP="gpio", MODE="0660", '
    'RUN+="/bin/chgrp -R gpio /sys%p", RUN+="/bin/chmod -R g=u /sys%p"',
)
SHORTEST_US, LONGEST_US = 10.0, 1_000_000.0
"""The periods that callers may choose on a channel that no profile describes."""
_ALL_AT_ONCE = {"pca9685-pwm": 16}
"""Channels by a kernel driver that are all other channels together."""


@frozen
class FoundPwm:
    """A PWM chip. `device` is the kernel's name of its device, `node` its character device, if it has one.

    `path` is the file to write for using it: the node, else its directory's `export`.
    """

    name: str
    device: str
    path: str
    channels: int
    origin: DeviceOrigin
    node: str | None = None


def find_pwm(machine: Machine) -> Iterator[FoundPwm]:
    """Yield the PWM chips, by number. Which of their channels a kernel driver uses is not known."""
    for chip in pwm_chips(machine.sys, machine.dev):
        path = chip.node or str(chip.path / "export")
        origin = origin_of(chip.path / "device", machine)
        yield FoundPwm(chip.name, chip.device, path, chip.channels, origin, chip.node)


def pwm_reason(chip: FoundPwm) -> str | None:
    """Return why generic-linux does not drive this PWM chip, or None."""
    if chip.origin.apart:
        return None
    return (
        "its channels may drive the machine's own fans, lights and voltages, and it is unknown which of them are free"
    )


def survey(found: Sequence[FoundPwm], search: Search) -> Iterator[PwmSpec]:
    """Yield a spec for each chip that may be driven."""
    listed = {spec.label for spec in search.of("pwm")}
    for chip in found:
        if not search.asked(chip.name, chip.device) or chip.device in listed:
            continue
        if search.refused(ACCESS, chip.name, chip.path, chip.device, reason=pwm_reason(chip)):
            continue
        all_at_once = _ALL_AT_ONCE.get(chip.origin.driver or "")
        numbers = [n for n in range(min(chip.channels, MOST_CHANNELS)) if n != all_at_once]
        channels = [
            ChannelSpec(n, f"{chip.device}:{n}", min_period_us=SHORTEST_US, max_period_us=LONGEST_US) for n in numbers
        ]
        yield PwmSpec(chip.device, "pwm", tuple(channels))


def absent(specs: Sequence[PwmSpec], machine: Machine) -> Iterator[Undriven]:
    """Yield those of these chips that are not there: an overlay switches each on."""
    there = {chip.device for chip in pwm_chips(machine.sys, machine.dev)}
    for spec in specs:
        if spec.label not in there:
            why = f"the machine has no such PWM chip now: the overlay {spec.overlay} switches it on"
            yield Undriven("pwm", spec.label, why, None, spec.label, overlay_cure(spec.overlay))


def overlay_cure(overlay: str | None) -> str:
    """Return the commands that switch on an overlay of a Raspberry Pi."""
    return f"echo 'dtoverlay={overlay}' | sudo tee -a /boot/firmware/config.txt\nsudo reboot"


def problems(specs: Sequence[PwmSpec], look: Inspection) -> Iterator[ProfileProblem]:
    """Yield what keeps the chips of a profile from working here."""
    for index, spec in enumerate(specs):
        if spec.driver != "sim":
            chip = next((one for one in look.of("pwm") if one.device == spec.label), None)
            key = f"pwm[{index}]"
            yield from (_missing(f"{key}.label", spec, look) if chip is None else _problems(key, spec, chip))


def _missing(key: str, spec: PwmSpec, look: Inspection) -> Iterator[ProfileProblem]:
    there = ", ".join(f"{chip.device!r} ({chip.name})" for chip in look.of("pwm"))
    what = f"a PWM chip of the device {spec.label!r} is not there; there is {there or 'none'}"
    if spec.overlay is not None:
        cure = overlay_cure(spec.overlay)
        yield ProfileProblem(key, "note", f"{what}; to use it: {', then '.join(cure.splitlines())}", cure)
    else:
        cure = "is it plugged in, and its overlay or kernel module loaded? Else correct the profile"
        yield ProfileProblem(key, "fail", what, cure)


def _problems(key: str, spec: PwmSpec, chip: FoundPwm) -> Iterator[ProfileProblem]:
    yield from lacking(f"{key}.label", chip.path, ACCESS)
    for channel in spec.channels:
        if channel.number >= chip.channels:
            what = f"the chip has the channels 0 to {chip.channels - 1}, and no {channel.number}"
            cure = "correct `channels`: the index of a name is the channel's number"
            yield ProfileProblem(f"{key}.channel.{channel.name}", "fail", what, cure)
    if spec.chardev and chip.node is None:
        what = "the kernel's driver of this chip has no character device"
        yield ProfileProblem(f"{key}.chardev", "fail", what, "take it out: it is then used through /sys")


def gaps(specs: Sequence[PwmSpec], _found: Sequence[PwmSpec], look: Inspection) -> Iterator[ProfileProblem]:
    """Yield the channels that may be driven to anything, of chips that are there."""
    there = {chip.device for chip in look.of("pwm")}
    for index, spec in enumerate(specs):
        free = [one.name for one in spec.channels if _free(one)]
        if free and (spec.driver == "sim" or spec.label in there):
            severity: Severity = "note" if spec.driver == "sim" else "warn"
            told = f"chip {spec.label}: no limit, so that a client may drive it to any value at once: {some_of(free)}"
            cure = "give each channel a `limit`, such as { max = 0.8, max_step = 0.2 }, and each servo a `slew`"
            yield ProfileProblem(f"pwm[{index}].limit", severity, told, cure)
    for place, told, cure in resting_power(specs, {chip.device: chip.origin.driver for chip in look.of("pwm")}):
        yield ProfileProblem(place, "warn", told, cure)


def _free(channel: ChannelSpec) -> bool:
    slow = channel.servo is not None and channel.servo.slew is not None
    return channel.limit is None and channel.reserved is None and not slow


def report(look: Inspection) -> dict[str, Any]:
    """Return the chips for `hearth doctor`."""
    return {
        "pwm": [
            {
                "node": chip.name,
                "device": chip.device,
                "path": chip.path,
                "driver": chip.origin.driver,
                "channels": chip.channels,
                "chardev": chip.node is not None,
                **state(ACCESS, chip.path, pwm_reason(chip), look.holders.nodes.get(chip.path, ())),
            }
            for chip in look.of("pwm")
        ]
    }


def _told(chip: Mapping[str, Any]) -> str:
    how = "waveforms" if chip["chardev"] else "through /sys"
    return f'"{chip["device"]}" ({chip["driver"]}): {chip["channels"]} channels, {how}{in_use(chip)}'


def nodes(specs: Sequence[PwmSpec], sys: Path) -> Iterator[Node]:
    """Yield the directories of the chips in /sys, and their nodes, where they have one."""
    specs = [spec for spec in specs if spec.driver == "pwm"]
    chips = {chip.device: chip for chip in pwm_chips(sys)} if specs else {}
    for spec in specs:
        what, chip = f"pwm chip {spec.label}", chips.get(spec.label)
        if chip is not None:
            yield Node(what, chip.path, "fixed")
        if chip is None or chip.node is not None:
            yield Node(what, None if chip is None else real(chip.node))


MACHINE: Final = OnMachine(
    access=ACCESS,
    find=find_pwm,
    survey=survey,
    absent=absent,
    report=report,
    told={"pwm": ("pwm", _told)},
    problems=problems,
    gaps=gaps,
    drives=lambda _spec: True,
    nodes=nodes,
)
