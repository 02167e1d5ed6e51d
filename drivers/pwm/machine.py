"""PWM chips of the machine: found, judged, compared with a profile, and confined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, frozen

from hearth.drivers.channels import MOST_CHANNELS
from hearth.drivers.linux.machine import FoundDevice, Machine, origin_of
from hearth.drivers.linux.survey import (
    Access,
    DeviceNode,
    OnMachine,
    ProfileProblem,
    in_use,
    lacking,
    missing,
    real,
    some_of,
)
from hearth.drivers.profile import Undriven
from hearth.drivers.pwm.driver import ChannelSpec
from hearth.drivers.pwm.linux import pwm_chips
from hearth.drivers.pwm.spec import PwmSpec, resting_power

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hearth.drivers.linux.device_users import Holder
    from hearth.drivers.linux.survey import Inspection, Search, Severity

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
class FoundPwm(FoundDevice):
    """A PWM chip, by the kernel's name of its device; `chardev`: it has a character device.

    `path` is the file to write for using it: that node, else its directory's `export`.
    """

    channels: int = 0
    chardev: bool = False


def overlay_cure(overlay: str | None) -> str:
    """Return the commands that switch on an overlay of a Raspberry Pi."""
    return f"echo 'dtoverlay={overlay}' | sudo tee -a /boot/firmware/config.txt\nsudo reboot"


def _not_there(key: str, spec: PwmSpec, look: Inspection) -> ProfileProblem:
    cure = "is it plugged in, and its overlay or kernel module loaded? Else correct the profile"
    there = (f"{chip.label!r} ({chip.node})" for chip in look.of("pwm"))
    problem = missing(key, f"a PWM chip of the device {spec.label!r}", there, cure)
    if spec.overlay is None:
        return problem
    cure = overlay_cure(spec.overlay)
    told = f"{problem.problem}; to use it: {', then '.join(cure.splitlines())}"
    return evolve(problem, severity="note", problem=told, cure=cure)


def _problems(key: str, spec: PwmSpec, chip: FoundPwm) -> Iterator[ProfileProblem]:
    yield from lacking(f"{key}.label", chip.path, ACCESS)
    for channel in spec.channels:
        if channel.number >= chip.channels:
            what = f"the chip has the channels 0 to {chip.channels - 1}, and no {channel.number}"
            cure = "correct `channels`: the index of a name is the channel's number"
            yield ProfileProblem(f"{key}.channel.{channel.name}", "fail", what, cure)
    if spec.chardev and not chip.chardev:
        what = "the kernel's driver of this chip has no character device"
        yield ProfileProblem(f"{key}.chardev", "fail", what, "take it out: it is then used through /sys")


def _free(channel: ChannelSpec) -> bool:
    slow = channel.servo is not None and channel.servo.slew is not None
    return channel.limit is None and channel.reserved is None and not slow


class PwmMachine(OnMachine):
    """PWM chips as the machine has them."""

    kind, member, word = "pwm", "pwm", "pwm"
    access = ACCESS

    def find(self, machine: Machine) -> Iterator[FoundPwm]:
        """Yield the PWM chips, by number. Which of their channels a kernel driver uses is not known."""
        for chip in pwm_chips(machine.sys, machine.dev):
            path, has_node = chip.node or str(chip.path / "export"), chip.node is not None
            origin = origin_of(chip.path / "device", machine)
            yield FoundPwm(chip.name, path, origin, chip.device, chip.channels, has_node)

    def reason(self, one: FoundPwm, holders: Sequence[Holder]) -> str | None:
        """See `OnMachine.reason`. It drives chips that are plugged in, and those behind another bus."""
        if one.origin.apart:
            return None
        return (
            "its channels may drive the machine's own fans, lights and voltages, and it is unknown which of them are "
            "free"
        )

    def survey(self, found: Sequence[FoundPwm], search: Search) -> Iterator[PwmSpec]:
        """Yield a spec for each chip that may be driven."""
        listed = {spec.label for spec in search.of("pwm")}
        for chip in self.offered(found, search, lambda chip: chip.label in listed):
            all_at_once = _ALL_AT_ONCE.get(chip.origin.driver or "")
            numbers = [n for n in range(min(chip.channels, MOST_CHANNELS)) if n != all_at_once]
            periods: Any = {"min_period_us": SHORTEST_US, "max_period_us": LONGEST_US}
            channels = tuple([ChannelSpec(n, f"{chip.label}:{n}", **periods) for n in numbers])
            yield PwmSpec(chip.label, "pwm", channels)

    def absent(self, specs: Sequence[PwmSpec], machine: Machine) -> Iterator[Undriven]:
        """Yield the absent ones of these chips: an overlay switches each on."""
        there = {chip.device for chip in pwm_chips(machine.sys, machine.dev)}
        for spec in specs:
            if spec.label not in there:
                why = f"the machine has no such PWM chip now: the overlay {spec.overlay} switches it on"
                yield Undriven("pwm", spec.label, why, None, spec.label, overlay_cure(spec.overlay))

    def faults(self, at: str, spec: PwmSpec, look: Inspection) -> Iterator[ProfileProblem]:
        """Yield a chip that is missing or not permitted, and channels that it does not have."""
        chip = next((one for one in look.of("pwm") if one.label == spec.label), None)
        if chip is None:
            yield _not_there(f"{at}.label", spec, look)
        else:
            yield from _problems(at, spec, chip)

    def gaps(self, specs: Sequence[PwmSpec], found: Sequence[PwmSpec], look: Inspection) -> Iterator[ProfileProblem]:
        """Yield channels without a limit, and those whose load may have power while they are off."""
        there = {chip.label for chip in look.of("pwm")}
        for index, spec in enumerate(specs):
            free = [one.name for one in spec.channels if _free(one)]
            if free and (spec.driver == "sim" or spec.label in there):
                severity: Severity = "note" if spec.driver == "sim" else "warn"
                told = (
                    f"chip {spec.label}: no limit, so that a client may drive it to any value at once: {some_of(free)}"
                )
                cure = "give each channel a `limit`, such as { max = 0.8, max_step = 0.2 }, and each servo a `slew`"
                yield ProfileProblem(f"pwm[{index}].limit", severity, told, cure)
        for place, told, cure in resting_power(specs, {chip.label: chip.origin.driver for chip in look.of("pwm")}):
            yield ProfileProblem(place, "warn", told, cure)

    def drives(self, spec: PwmSpec) -> bool:
        """Return True: all channels are outputs."""
        return True

    def shown(self, one: FoundPwm, look: Inspection) -> dict[str, Any]:
        """See `OnMachine.shown`."""
        return {
            "node": one.node,
            "device": one.label,
            "path": one.path,
            "driver": one.origin.driver,
            "channels": one.channels,
            "chardev": one.chardev,
        }

    def told(self, entry: Mapping[str, Any]) -> str:
        """See `OnMachine.told`."""
        how = "waveforms" if entry["chardev"] else "through /sys"
        return f'"{entry["device"]}" ({entry["driver"]}): {entry["channels"]} channels, {how}{in_use(entry)}'

    def files(self, spec: PwmSpec, sys: Path) -> Iterator[DeviceNode]:
        """Yield the directory of a chip in /sys, and its node, where it has one."""
        what, chip = f"pwm chip {spec.label}", next((one for one in pwm_chips(sys) if one.device == spec.label), None)
        if chip is not None:
            yield DeviceNode(what, chip.path, "fixed")
        if chip is None or chip.node is not None:
            yield DeviceNode(what, None if chip is None else real(chip.node))
