"""The devices and the confinement of this machine, for a person.

It gathers JSON objects for `hearth doctor`, which judges them: the devices and their users, missing permissions, the
fit of a profile, and the gaps in its physical safety; and the confinement that this kernel offers, that a daemon would
use, and that a running one has. It changes nothing, claims nothing, transfers nothing on a bus, puts nothing in force,
opens no device but as a plan does, connects to no address but the profile's, and raises for nothing that it finds.
"""

from __future__ import annotations

import os
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import frozen

from hearth._util.processes import HEARTHD
from hearth.config.model import default_socket, default_state_dir
from hearth.drivers.boards.board import overlay_cure
from hearth.drivers.boards.discover import KERNEL, THIS, clients, find, functionality
from hearth.drivers.boards.generic import (
    DAC_REASON,
    HEADERS,
    NAME_IT,
    Lack,
    adapter_reason,
    chip_reason,
    lack_of,
    port_reason,
    pwm_reason,
    spi_reason,
    survey,
)
from hearth.drivers.boards.profile import load_profile
from hearth.drivers.can.spec import can_json_found, can_problems
from hearth.drivers.dac.spec import resting_power as resting_dacs
from hearth.drivers.gpio.spec import resting_power as resting_lines
from hearth.drivers.i2c.spec import only_read
from hearth.drivers.iio.spec import iio_problems
from hearth.drivers.linux.device_users import find_holders
from hearth.drivers.modbus.spec import unreachable, writable
from hearth.drivers.pwm.spec import resting_power as resting_channels
from hearth.drivers.sandbox import landlock
from hearth.drivers.sandbox.cage import cannot_hold, program_notes
from hearth.drivers.sandbox.enforce import available
from hearth.drivers.sandbox.plan import Places, make_plan
from hearth.drivers.sensor import SENSORS_BUS
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hearth.config.model import Config
    from hearth.drivers.boards.discover import (
        FoundAdapter,
        FoundChip,
        FoundDac,
        FoundDevices,
        FoundPort,
        FoundPwm,
        FoundSpi,
        Machine,
    )
    from hearth.drivers.boards.profile import BusKind, Profile
    from hearth.drivers.dac.spec import DacSpec
    from hearth.drivers.gpio.spec import ChipSpec, LineSpec
    from hearth.drivers.i2c.spec import I2cSpec
    from hearth.drivers.linux.device_users import Holder, Holders
    from hearth.drivers.pwm.spec import PwmSpec

# --- fit --------------------------------------------------------------------------------------------------------------
#
# The fit of a profile to a machine: devices it names that are absent, and devices that are present but in use. It
# compares, and does not look at the machine itself. Each problem has the key path in the profile, the cause and the
# cure.

Severity: TypeAlias = Literal["note", "warn", "fail"]

W1_OVERLAY = "dtoverlay=w1-gpio in config.txt makes one on GPIO4 at the next start, and its thermometers become sensors"
SPI_OVERLAY = "dtparam=spi=on in config.txt makes /dev/spidev0.0 and /dev/spidev0.1 at the next start"

OURS = "hearth"
"""The consumer that hearth's own requests have: a daemon that runs is no obstacle to itself."""


@frozen
class ProfileProblem:
    """`severity` is "fail" for what cannot work, "warn" for what depends on the daemon's user, or looks wrong."""

    key: str
    severity: Severity
    problem: str
    cure: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the problem for doctor --json."""
        return {"key": self.key, "severity": self.severity, "problem": self.problem, "cure": self.cure}


def mismatches(
    profile: Profile, found: FoundDevices, holders: Holders, machine: Machine = THIS
) -> Iterator[ProfileProblem]:
    """Yield the problems that keep the profile from working here.

    A device that it merely looks for (`discover`) need not be there; one that is there and cannot be used is reported.
    """
    for index, chip in enumerate(profile.chips):
        if chip.driver != "sim":
            yield from _chip_mismatches(f"gpio[{index}]", chip, found.chips, holders)
    for index, adapter in enumerate(profile.i2c):
        if adapter.driver != "sim":
            yield from _adapter_mismatches(f"i2c[{index}]", adapter, found.adapters, machine)
    for key, path in _serial_ports(profile):
        yield from _port_mismatches(key, path, found.ports, holders)
    yield from _signal_mismatches(profile, found)
    for key, *problem in can_problems(profile.cans, found.cans):
        yield ProfileProblem(key, "fail", *problem)
    for key, *problem in unreachable(profile.modbus, machine.proc):
        yield ProfileProblem(key, "fail", *problem)
    for key, *problem in iio_problems(profile.iio, machine):
        yield ProfileProblem(key, "fail", *problem)
    yield from _spi_mismatches(profile, found.spi)
    for entry in survey(profile, found, holders).undriven:
        if not entry.left_alone:
            yield ProfileProblem(f"discover.{entry.kind}", "warn", f"{entry.name}: {entry.reason}", entry.cure)


def _serial_ports(profile: Profile) -> Iterator[tuple[str, str]]:
    for index, port in enumerate(profile.uarts):
        if port.path is not None:
            yield f"uart[{index}]", port.path
    for index, line in enumerate(profile.modbus):
        if line.path is not None:
            yield f"modbus[{index}]", line.path


def _lack_mismatches(key: str, path: str, kind: BusKind) -> Iterator[ProfileProblem]:
    lack = lack_of(path, kind)
    if lack is not None:
        yield ProfileProblem(key, "warn", f"{lack.reason}: hearthd could not either, as this user", lack.cure)


def _chip_mismatches(
    key: str, spec: ChipSpec, chips: tuple[FoundChip, ...], holders: Holders
) -> Iterator[ProfileProblem]:
    if spec.path is not None:
        key = f"{key}.path"
        matching = [chip for chip in chips if chip.path == realpath(spec.path)]
        wanted = spec.path
    else:
        key = f"{key}.label"
        matching = [chip for chip in chips if chip.label == spec.label]
        wanted = f"a chip labelled {spec.label!r}"
    if len(matching) > 1:
        nodes = ", ".join(chip.path for chip in matching)
        yield ProfileProblem(key, "fail", f"{wanted} is there {len(matching)} times: {nodes}", "say which with `path`")
    elif not matching:
        closed = [chip for chip in chips if chip.label is None]
        for chip in closed:
            yield from _lack_mismatches(key, chip.path, "gpio")
        there = ", ".join(f"{chip.label!r} ({chip.node})" for chip in chips if chip.label is not None)
        cure = "is it plugged in and its kernel module loaded? One of those that could not be opened may be it"
        yield ProfileProblem(
            key,
            "warn" if closed else "fail",
            f"{wanted} is not there; there is {there or 'none that could be opened'}",
            cure if closed else "is it plugged in, and its kernel module loaded? Else correct the profile",
        )
    else:
        yield from _lack_mismatches(key, matching[0].path, "gpio")
        yield from _line_mismatches(key.partition(".")[0], spec, matching[0], holders)


def _line_mismatches(key: str, spec: ChipSpec, chip: FoundChip, holders: Holders) -> Iterator[ProfileProblem]:
    if chip.error is not None:
        return
    for line in spec.lines:
        place = f"{key}.lines.{line.name}"
        if line.offset >= len(chip.lines):
            what = f"the chip has the lines 0 to {len(chip.lines) - 1}, and no {line.offset}"
            yield ProfileProblem(place, "fail", what, "correct `names`: the index of a name is the line's offset")
            continue
        found = chip.lines[line.offset]
        if line.reserved is None and found.consumer not in (None, OURS):
            processes = ", ".join(map(str, holders.lines.get((chip.node, line.offset), ())))
            who = "the kernel" if found.consumer == KERNEL else repr(found.consumer)
            yield ProfileProblem(
                place,
                "fail",
                f"line {line.offset} is held by {who}{f', which is {processes}' if processes else ''}",
                "free it (a device tree overlay or a driver may hold it), or give the line a `reserved`",
            )
        elsewhere = [other.offset for other in chip.lines if other.name == line.name]
        if elsewhere and line.offset not in elsewhere:
            what = f"the kernel gives this name to line {elsewhere[0]}, the profile to line {line.offset}"
            yield ProfileProblem(place, "warn", what, "correct `names`: the index of a name is the line's offset")


def _adapter_mismatches(
    key: str, spec: I2cSpec, adapters: tuple[FoundAdapter, ...], machine: Machine
) -> Iterator[ProfileProblem]:
    if spec.adapter is not None:
        key = f"{key}.adapter"
        matching = [adapter for adapter in adapters if adapter.name == spec.adapter]
        wanted = f"an adapter called {spec.adapter!r}"
    else:
        key = f"{key}.bus"
        matching = [adapter for adapter in adapters if adapter.bus == spec.bus]
        wanted = f"/dev/i2c-{spec.bus}"
    if len(matching) > 1 and spec.bus in (adapter.bus for adapter in matching):
        matching = [adapter for adapter in matching if adapter.bus == spec.bus]
    if len(matching) > 1:
        nodes = ", ".join(adapter.node for adapter in matching)
        yield ProfileProblem(key, "fail", f"{wanted} is there {len(matching)} times: {nodes}", "say which with `bus`")
        return
    if not matching:
        there = ", ".join(f"{adapter.node} {adapter.name!r}" for adapter in adapters)
        cure = "is it switched on in the firmware's settings or the device tree? Else correct the profile"
        if not adapters:
            cure = "`sudo modprobe i2c-dev` makes the nodes; is the adapter switched on?"
        yield ProfileProblem(key, "fail", f"{wanted} is not there; there is {there or 'none'}", cure)
        return
    yield from _lack_mismatches(key, matching[0].path, "i2c")
    owned = clients(matching[0].bus, machine)
    for index, device in enumerate(spec.devices):
        if device.addr in owned:
            yield ProfileProblem(
                f"{key.partition('.')[0]}.device[{index}].addr",
                "warn",
                f"{device.addr:#04x} belongs to the kernel driver {owned[device.addr]!r}, and hearth leaves it alone",
                "read it with hw.sensor.read, or unbind the driver",
            )


def _signal_mismatches(profile: Profile, found: FoundDevices) -> Iterator[ProfileProblem]:
    for index, spec in enumerate(profile.pwm):
        if spec.driver != "sim":
            yield from _pwm_mismatches(f"pwm[{index}]", spec, found.pwm)
    for index, dac in enumerate(profile.dacs):
        if dac.driver != "sim":
            yield from _dac_mismatches(f"dac[{index}]", dac, found.dacs)


def _pwm_mismatches(key: str, spec: PwmSpec, chips: tuple[FoundPwm, ...]) -> Iterator[ProfileProblem]:
    matching = [chip for chip in chips if chip.device == spec.label]
    if not matching:
        there = ", ".join(f"{chip.device!r} ({chip.name})" for chip in chips)
        what = f"a PWM chip of the device {spec.label!r} is not there; there is {there or 'none'}"
        if spec.overlay is not None:
            cure = overlay_cure(spec.overlay)
            told = f"{what}; to use it: {', then '.join(cure.splitlines())}"
            yield ProfileProblem(f"{key}.label", "note", told, cure)
        else:
            cure = "is it plugged in, and its overlay or kernel module loaded? Else correct the profile"
            yield ProfileProblem(f"{key}.label", "fail", what, cure)
        return
    chip = matching[0]
    yield from _lack_mismatches(f"{key}.label", chip.path, "pwm")
    for channel in spec.channels:
        if channel.number >= chip.channels:
            what = f"the chip has the channels 0 to {chip.channels - 1}, and no {channel.number}"
            cure = "correct `channels`: the index of a name is the channel's number"
            yield ProfileProblem(f"{key}.channel.{channel.name}", "fail", what, cure)
    if spec.chardev and chip.node is None:
        what = "the kernel's driver of this chip has no character device"
        yield ProfileProblem(f"{key}.chardev", "fail", what, "take it out: it is then used through /sys")


def _dac_mismatches(key: str, spec: DacSpec, devices: tuple[FoundDac, ...]) -> Iterator[ProfileProblem]:
    device = next((one for one in devices if one.label == spec.label), None)
    if device is None:
        there = ", ".join(f"{one.label!r} ({one.node})" for one in devices)
        what = f"an IIO device {spec.label!r} with outputs is not there; there is {there or 'none'}"
        cure = "is it plugged in, and its overlay or kernel module loaded? Else correct the profile"
        yield ProfileProblem(f"{key}.label", "fail", what, cure)
        return
    yield from _lack_mismatches(f"{key}.label", device.path, "dac")
    for channel in spec.channels:
        if channel.output not in device.outputs:
            what = f"the device has {', '.join(device.outputs)}, and no {channel.output}"
            cure = "correct `channels`, where the index of a name is the output's number, or the channel's `quantity`"
            yield ProfileProblem(f"{key}.channel.{channel.name}", "fail", what, cure)


def _port_mismatches(key: str, path: str, ports: tuple[FoundPort, ...], holders: Holders) -> Iterator[ProfileProblem]:
    node = realpath(path)
    key = f"{key}.path"
    lack = list(_lack_mismatches(key, path, "uart"))
    port = next((port for port in ports if port.path == node), None)
    if port is None and (lack or os.access(node, os.F_OK)):
        yield from lack  # it is there, a pseudo-terminal say: the profile lists it on purpose
        return
    if port is None:
        there = ", ".join(port.path for port in ports if port.origin.above)
        cure = "is it plugged in? /dev/serial/by-id has names that stay the same"
        yield ProfileProblem(key, "fail", f"{path} is not there; there is {there or 'none'}", cure)
        return
    yield from lack
    if port.console:
        cure = "take its console= from the kernel's command line"
        yield ProfileProblem(key, "fail", f"the kernel writes its console to {node}", cure)
    others = [holder for holder in holders.nodes.get(node, ()) if holder.name != HEARTHD]
    if port.terminal_of:
        who = ", ".join(port.terminal_of[:3])
        cure = f"sudo systemctl disable --now serial-getty@{port.node}.service"
        yield ProfileProblem(key, "fail", f"{node} is the terminal of {who}", cure)
    elif others:
        yield ProfileProblem(key, "fail", f"{node} is open in {', '.join(map(str, others))}", "end that program")


def _spi_mismatches(profile: Profile, devices: tuple[FoundSpi, ...]) -> Iterator[ProfileProblem]:
    for index, spec in enumerate(profile.spi):
        key = f"spi[{index}].path"
        if spec.path is None:
            continue  # it is simulated
        if realpath(spec.path) in {device.path for device in devices}:
            yield from _lack_mismatches(key, spec.path, "spi")
        else:
            there = ", ".join(device.path for device in devices) or "none"
            told = f"the SPI device {spec.path} is not there; there is {there}"
            yield ProfileProblem(key, "fail", told, SPI_OVERLAY)


# --- safety -----------------------------------------------------------------------------------------------------------
#
# The gaps in a profile's physical safety: outputs without a safe level or a limit, interlocks whose sensors cannot be
# read, no halt input. Lines that share a finding are one problem. On a simulated chip it is a "note": nothing moves.

MOST_NAMED = 6
"""Limit of the lines that one problem names; the others are counted."""

_Test: TypeAlias = "Callable[[LineSpec], bool]"
_OUTPUTS: tuple[tuple[str, _Test, str, str], ...] = (
    (
        "safe",
        lambda line: line.safe == "input" and line.pull in ("as-is", "none"),
        "no safe level, since nothing that hearth knows of holds a released line",
        'give each output `safe` = 0 or 1, or safe = "input" with a `pull`; give the others direction = "input"',
    ),
    (
        "limit",
        lambda line: line.limit is None,
        "no limit, so that a client may drive it for as long and as often as it likes",
        "give each output a `limit`, such as { max_on_ms = 5000, max_rate_hz = 2 }",
    ),
    (
        "hold",
        lambda line: line.hold == "keep",
        "stays driven when its session or hearthd ends",
        'use hold = "release" unless the machine is safe at either level',
    ),
)
"""Findings about outputs: the key, the lines that it is about, the problem, and the cure."""
_HALT_EXAMPLE = '[halt] inputs = ["ESTOP"], a line with direction = "input" and a normally closed contact to ground'


def safety_gaps(
    profile: Profile, found: FoundDevices, holders: Holders, machine: Machine = THIS
) -> Iterator[ProfileProblem]:
    """Yield the gaps in the physical safety of a profile, with the chips that it looks for and that are there."""
    severity: Severity
    chips = (*profile.chips, *survey(profile, found, holders).chips)
    for index, chip in enumerate(chips):
        place = f"gpio[{index}]" if index < len(profile.chips) else "discover.gpio"
        for key, concerns, problem, cure in _OUTPUTS:
            names = [line.name for line in _outputs(chip) if concerns(line)]
            severity = "note" if chip.driver == "sim" else "warn"
            if names:
                told = f"chip {chip.label}: {problem}: {_names(names)}"
                yield ProfileProblem(f"{place}.{key}", severity, told, cure)
    for index, told, cure in resting_lines(profile.chips):
        severity = "note" if profile.chips[index].driver == "sim" else "warn"
        yield ProfileProblem(f"gpio[{index}].pull", severity, told, cure)
    of_pwm = resting_channels(profile.pwm, {chip.device: chip.origin.driver for chip in found.pwm})
    of_dacs = resting_dacs(profile.dacs, {device.label: device.path for device in found.dacs})
    for place, told, cure in (*of_pwm, *of_dacs):
        yield ProfileProblem(place, "warn", told, cure)
    yield from _free_channels(profile, found)
    signals = profile.signal_chips
    if not profile.halt.inputs and (any(map(_outputs, chips)) or signals):
        real = any(driver != "sim" for driver in [*(chip.driver for chip in chips), *(chip.driver for chip in signals)])
        severity = "warn" if real else "note"
        told = "no halt input, so that no button stops the outputs"
        yield ProfileProblem("halt.inputs", severity, told, f"name an input: {_HALT_EXAMPLE}")
    yield from _unreadable(profile, machine)
    yield from leaned_on(profile)


def leaned_on(profile: Profile) -> Iterator[ProfileProblem]:
    """Yield the devices that clients only read because an interlock goes by them, and what clients could still set.

    A required line with direction = "output" is one that clients switch on purpose: a valve before its pump.
    """
    lines = {(chip.bus, line.offset): line for chip in profile.chips for line in chip.lines}
    for index, lock in enumerate(profile.interlocks):
        for number, one in enumerate(lock.requires):
            if one.line is not None and lines[one.bus, one.line].direction == "any":
                told = f"clients may drive {one.name}, by which the interlock of {lock.what} goes"
                cure = 'give the line direction = "input", or "output" where clients are to switch it'
                yield ProfileProblem(f"interlock[{index}].requires[{number}].line", "warn", told, cure)
    for place, told, cure in (*only_read(profile.i2c), *writable(profile.modbus)):
        yield ProfileProblem(place, "warn" if place.endswith("registers") else "note", told, cure)


def _free_channels(profile: Profile, found: FoundDevices) -> Iterator[ProfileProblem]:
    """Yield the PWM channels that may be driven to anything, of chips that are there."""
    there = {chip.device for chip in found.pwm}
    for index, chip in enumerate(profile.pwm):
        free = [
            channel.name
            for channel in chip.channels
            if channel.limit is None
            and channel.reserved is None
            and (channel.servo is None or channel.servo.slew is None)
        ]
        if free and (chip.driver == "sim" or chip.label in there):
            severity: Severity = "note" if chip.driver == "sim" else "warn"
            told = f"chip {chip.label}: no limit, so that a client may drive it to any value at once: {_names(free)}"
            cure = "give each channel a `limit`, such as { max = 0.8, max_step = 0.2 }, and each servo a `slew`"
            yield ProfileProblem(f"pwm[{index}].limit", severity, told, cure)


def _outputs(chip: ChipSpec) -> list[LineSpec]:
    return [line for line in chip.lines if line.reserved is None and line.direction != "input"]


def _names(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _unreadable(profile: Profile, machine: Machine) -> Iterator[ProfileProblem]:
    """Yield the interlocks whose sensors cannot be read here: each keeps its output from being driven."""
    sensors = {spec.name: spec for spec in profile.sensors}
    kernel: set[str] | None = None
    for index, interlock in enumerate(profile.interlocks):
        for number, condition in enumerate(interlock.requires):
            spec = sensors.get(condition.name)
            if condition.line is not None or (spec is None and condition.bus != SENSORS_BUS):
                continue
            if spec is not None:
                real = any(adapter.bus == spec.bus and adapter.driver != "sim" for adapter in profile.i2c)
                owner = clients(spec.bus, machine).get(spec.addr) if real else None
                why = None if owner is None else f"its address {spec.addr:#04x} belongs to the kernel driver {owner!r}"
                cure = "name the kernel's own sensor (`hearth run hw.sensor.list`), or unbind the driver"
            else:
                kernel = _kernel_sensors(machine) if kernel is None else kernel
                why = None if condition.name in kernel else "the kernel has no such sensor now"
                cure = "is its device plugged in, and its kernel module loaded? `hearth run hw.sensor.list` names them"
            if why is not None:
                stays = f"{interlock.name} cannot be driven to {interlock.region}"
                told = f"sensor {condition.name} cannot be read ({why}), so that the interlock is open: {stays}"
                yield ProfileProblem(f"interlock[{index}].requires[{number}].sensor", "fail", told, cure)


def _kernel_sensors(machine: Machine) -> set[str]:
    from hearth.drivers.iio.kernel import KernelSensors

    return {sensor.name for sensor in KernelSensors(sys=machine.sys).scan()}


# --- findings ---------------------------------------------------------------------------------------------------------


def look(board: str | None = None, *, machine: Machine = THIS) -> dict[str, Any]:
    """Return all devices; with `board`, a profile's name or path, also the fit of that profile.

    Raises ConfigError for a profile that cannot be read.
    """
    profile = None if board is None else load_profile(board, any_owner=True)
    found = find(machine=machine)
    holders = find_holders(machine.proc, machine.dev)
    result: dict[str, Any] = {
        "chips": [_chip(chip, holders) for chip in found.chips],
        "adapters": [
            {
                "node": adapter.node,
                "path": adapter.path,
                "name": adapter.name,
                "functionality": _listed(functionality(adapter.path)),
                **_state("i2c", adapter.path, adapter_reason(adapter), holders.nodes.get(adapter.path, ())),
            }
            for adapter in found.adapters
        ],
        "ports": [
            {
                "node": port.node,
                "path": port.path,
                "driver": port.origin.driver,
                **_state("uart", port.path, port_reason(port), open_in),
            }
            # An unconnected port of a virtual machine is listed only if the profile names it.
            for port in found.ports
            for open_in in [holders.nodes.get(port.path, ())]
            if port.origin.above or port.console or port.terminal_of or open_in
        ],
        "pwm": [
            {
                "node": chip.name,
                "device": chip.device,
                "path": chip.path,
                "driver": chip.origin.driver,
                "channels": chip.channels,
                "chardev": chip.node is not None,
                **_state("pwm", chip.path, pwm_reason(chip), holders.nodes.get(chip.path, ())),
            }
            for chip in found.pwm
        ],
        "dacs": [
            {
                "node": device.node,
                "label": device.label,
                "path": device.path,
                "outputs": list(device.outputs),
                **_state("dac", device.path, DAC_REASON, ()),
            }
            for device in found.dacs
        ],
        "cans": can_json_found(found.cans),
        "spi": [
            {
                "node": device.node,
                "path": device.path,
                "name": device.name,
                **_state("spi", device.path, spi_reason(device, open_in), open_in),
            }
            for device in found.spi
            for open_in in [holders.nodes.get(device.path, ())]
        ],
        "hints": list(_hints(found, machine)),
        "sensors": _sensors(machine),
        "everybody_seen": holders.complete,
    }
    if profile is not None:
        result["profile"] = {
            "name": profile.name,
            "source": profile.source,
            "wants": _wants(profile),
            "problems": [problem.to_json() for problem in mismatches(profile, found, holders, machine)],
            "safety": [problem.to_json() for problem in safety_gaps(profile, found, holders, machine)],
        }
    return result


def _hints(found: FoundDevices, machine: Machine) -> Iterator[dict[str, Any]]:
    """Yield what a Raspberry Pi has and its firmware's settings leave off."""
    if not any(chip.label in HEADERS for chip in found.chips):
        return
    if not found.spi:
        yield {"kind": "spi", "hint": f"no SPI device is switched on; {SPI_OVERLAY}"}
    if not any((machine.sys / "bus/w1/devices").glob("w1_bus_master*")):
        yield {"kind": "1-wire", "hint": f"no 1-Wire bus is switched on; {W1_OVERLAY}"}


def _chip(chip: FoundChip, holders: Holders) -> dict[str, Any]:
    used = [
        {
            "line": line.offset,
            "name": line.name,
            "consumer": None if line.consumer == KERNEL else line.consumer,
            "by": [_holder(holder) for holder in holders.lines.get((chip.node, line.offset), ())],
        }
        for line in chip.lines
        if line.consumer is not None
    ]
    reason = None if chip.label is None or chip.label in HEADERS else chip_reason(chip)
    return {
        "node": chip.node,
        "path": chip.path,
        "label": chip.label,
        "driver": chip.origin.driver,
        "lines": len(chip.lines) if chip.error is None else None,
        "names": [line.name or "" for line in chip.lines],
        "used": used,
        "error": chip.error,
        **_state("gpio", chip.path, reason, holders.nodes.get(chip.path, ())),
    }


def _state(kind: BusKind, path: str, reason: str | None, holders: tuple[Holder, ...]) -> dict[str, Any]:
    lack = lack_of(path, kind)
    return {
        "not_driven": None if reason is None else {"reason": reason, "cure": NAME_IT},
        "lack": None if lack is None else _lack(lack),
        "open_in": [_holder(holder) for holder in holders],
    }


def _lack(lack: Lack) -> dict[str, Any]:
    return {"reason": lack.reason, "cure": lack.cure}


def _holder(holder: Holder) -> dict[str, Any]:
    return {"pid": holder.pid, "name": holder.name}


def _listed(abilities: tuple[str, ...] | None) -> list[str] | None:
    return None if abilities is None else list(abilities)


def _sensors(machine: Machine) -> int:
    from hearth.drivers.iio.kernel import KernelSensors

    return len(KernelSensors(sys=machine.sys).scan())


def _wants(profile: Profile) -> bool:
    """Return True if the profile needs a device of this machine; a simulated board does not."""
    buses = (
        profile.chips, profile.i2c, profile.uarts, profile.signal_chips, profile.cans, profile.spi, profile.modbus
    )  # fmt: skip
    drivers = (spec.driver for specs in buses for spec in specs)
    return bool(profile.discover) or any(driver != "sim" for driver in drivers)


_SHOWN = ("Uid", "Gid", "NoNewPrivs", "Seccomp", "CapPrm", "CapEff", "CapBnd", "CapAmb")
"""Fields of /proc/PID/status that show confinement. The kernel does not show a process's Landlock rules."""


def look_at_sandbox(config: Config) -> dict[str, Any]:
    """Return the kernel's confinement, part by part, and a plan for a daemon that this user starts."""
    try:
        abi = landlock.version()
    except OSError:
        abi = 0
    return {
        "kernel": {
            "landlock": abi,
            "parts": [{"name": part.name, "can_be": part.in_force, "detail": part.detail} for part in available()],
        },
        "planned": _planned(config),
    }


def _planned(config: Config) -> dict[str, Any]:
    """Return the plan, as far as it can be known without opening the board; the reason for none in `off` or `error`."""
    if not config.sandbox.enable:
        return {"off": "[sandbox] enable = false"}
    audit = config.audit.path or default_state_dir(os.environ, os.geteuid()) / "audit.log"
    places = Places(
        audit=audit,
        key=config.audit.key or Path(f"{audit}.key"),
        socket=config.server.socket or default_socket(os.environ, os.geteuid()),
    )
    # Shipped tools need no more than this, unless they are enabled by name.
    tools = ({"sys.network"} | set(config.tools.enable)) - set(config.tools.disable)
    try:
        profile = load_profile(config.board.profile, any_owner=True)
        plan = make_plan(config, profile, places, tools=tools, environ=os.environ, uid=os.geteuid())
    except ConfigError as error:
        return {"error": str(error)}
    runs = "proc.exec" in tools
    programs = {
        "programs": sorted(config.tools.exec) if runs else [],
        "programs_refused": cannot_hold(config),
        "notes": [*plan.notes, *(program_notes(config, os.geteuid()) if runs else ())],
    }
    return {**plan.to_json(), **programs, "require": config.sandbox.require}


def process_sandbox(pid: int) -> dict[str, Any] | None:
    """Return the kernel's view of a process and all its threads; None where there is none, or nothing may be seen."""
    facts: dict[str, set[str]] = {name: set() for name in _SHOWN}
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for line in (thread / "status").read_text("ascii", "replace").splitlines():
                name, _, value = line.partition(":")
                if name in facts:
                    facts[name].add(" ".join(value.split()))
    except OSError:
        return None
    return {"pid": pid, **{name: sorted(values) for name, values in facts.items()}}
