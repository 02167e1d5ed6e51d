"""From the devices of a machine to the specs of a board: which may be driven, and the reasons for the rest.

It decides which devices become buses, and under which names. A device that the profile lists itself is left out here.
It also finds missing permissions on device nodes, with the exact commands (groups, udev rules) that give them; it
changes nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from hearth.drivers.boards.discover import KERNEL
from hearth.drivers.boards.profile import Profile, Undriven, load_profile
from hearth.drivers.can.spec import CanSpec, listed_can
from hearth.drivers.channels import MOST_CHANNELS
from hearth.drivers.gpio.spec import MAX_OFFSET, ChipSpec, LineSpec
from hearth.drivers.i2c.spec import I2cSpec
from hearth.drivers.linux.device_users import NO_HOLDERS, group_name, lets_group_in, user_name
from hearth.drivers.pwm.driver import ChannelSpec
from hearth.drivers.pwm.spec import PwmSpec
from hearth.drivers.spi.spec import SpiSpec
from hearth.drivers.uart.spec import UartSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hearth.drivers.boards.discover import (
        DeviceOrigin,
        FoundAdapter,
        FoundChip,
        FoundDevices,
        FoundLine,
        FoundPort,
        FoundPwm,
        FoundSpi,
    )
    from hearth.drivers.boards.profile import BusKind
    from hearth.drivers.linux.device_users import Holder, Holders

GROUPS = {"gpio": "gpio", "i2c": "i2c", "uart": "dialout", "pwm": "gpio", "dac": "gpio", "spi": "spi"}
"""The groups that distributions use for each kind, where they have one."""

_RULES = {
    "gpio": 'SUBSYSTEM=="gpio", KERNEL=="gpiochip*", GROUP="gpio", MODE="0660"',
    "i2c": 'SUBSYSTEM=="i2c-dev", KERNEL=="i2c-[0-9]*", GROUP="i2c", MODE="0660"',
    "spi": 'SUBSYSTEM=="spidev", KERNEL=="spidev*", GROUP="spi", MODE="0660"',
    "uart": 'SUBSYSTEM=="tty", KERNEL=="{node}", GROUP="dialout", MODE="0660"',
    "pwm": 'SUBSYSTEM=="pwm", KERNEL=="pwmchip*", GROUP="gpio", MODE="0660", '
    'RUN+="/bin/chgrp -R gpio /sys%p", RUN+="/bin/chmod -R g=u /sys%p"',
    "dac": 'SUBSYSTEM=="iio", KERNEL=="iio:device*", RUN+="/usr/bin/find /sys%p/ -maxdepth 1 -name out_* '
    '-exec /bin/chgrp gpio {{}} + -exec /bin/chmod g=u {{}} +"',
}
_SUBSYSTEMS = {"gpio": "gpio", "i2c": "i2c-dev", "uart": "tty", "pwm": "pwm", "dac": "iio", "spi": "spidev"}


@frozen
class Lack:
    """A missing permission: the fact, and the commands that give it, one a line."""

    reason: str
    cure: str


def lack_of(path: str, kind: BusKind) -> Lack | None:
    """Return this process's missing permission to open a node for reading and writing; None if nothing is missing."""
    if os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        return None
    try:
        node = Path(path).stat()
    except OSError:
        return None
    user, owner, group = user_name(os.geteuid()), user_name(node.st_uid), group_name(node.st_gid)
    reason = f"{user} may not open {path} ({owner}:{group}, mode {stat.S_IMODE(node.st_mode):04o})"
    if lets_group_in(node):
        return Lack(reason, join(group, user))
    return Lack(reason, "\n".join((*rule(path, kind), join(GROUPS[kind], user))))


def join(group: str, user: str) -> str:
    """Return the command that makes `user` a member of `group`."""
    return f"sudo usermod -aG {group} {user}   # then log in again"


def rule(path: str, kind: BusKind) -> list[str]:
    """Return the commands that give a node that is root's alone to the kind's group, now and at each start."""
    group, subsystem = GROUPS[kind], _SUBSYSTEMS[kind]
    text = _RULES[kind].format(node=Path(path).resolve().name)
    return [
        f"sudo groupadd --system --force {group}",
        f"echo '{text}' | sudo tee -a /etc/udev/rules.d/60-hearth.rules",
        f"sudo udevadm control --reload && sudo udevadm trigger --subsystem-match={subsystem}",
    ]


HEADERS: Mapping[str, str] = {"pinctrl-bcm2711": "rpi4", "pinctrl-rp1": "rpi5"}
"""Labels of processors' own chips to the shipped profile that knows which of their lines are on a header."""

EVERYTHING = ("*",)
SHORTEST_US, LONGEST_US = 10.0, 1_000_000.0
"""The periods that callers may choose on a PWM channel that no profile describes."""
_NO_NAMES = frozenset({"", "-", "NC"})
_GONE = frozenset({"ENOENT", "ENODEV", "ENXIO"})


@frozen
class MachineSurvey:
    """The devices found: chips, adapters, ports and SPI devices that may be driven, and the rest with its reasons."""

    chips: tuple[ChipSpec, ...] = ()
    i2c: tuple[I2cSpec, ...] = ()
    uarts: tuple[UartSpec, ...] = ()
    pwm: tuple[PwmSpec, ...] = ()
    cans: tuple[CanSpec, ...] = ()
    spi: tuple[SpiSpec, ...] = ()
    undriven: tuple[Undriven, ...] = ()


def survey(profile: Profile, found: FoundDevices, holders: Holders = NO_HOLDERS) -> MachineSurvey:
    """Sort the devices that the profile's `discover` asks for, without those that the profile lists itself.

    `holders` are the processes that have ports open.
    """
    undriven: list[Undriven] = []
    wanted = profile.discover
    chips = [chip for chip in found.chips if _asked(wanted.get("gpio"), chip.node, chip.label)]
    adapters = [adapter for adapter in found.adapters if _asked(wanted.get("i2c"), adapter.node, adapter.name)]
    # A port without a device is a virtual machine's, of which many are unconnected: only if named.
    ports = [
        port
        for port in found.ports
        if _asked(wanted.get("uart"), port.node) and (port.origin.above or wanted["uart"] != EVERYTHING)
    ]
    pwm = [chip for chip in found.pwm if _asked(wanted.get("pwm"), chip.name, chip.device)]
    return MachineSurvey(
        tuple(_chips(profile, chips, undriven)),
        tuple(_adapters(profile, adapters, undriven)),
        tuple(_ports(profile, ports, holders, undriven)),
        tuple(_pwm(profile, pwm, undriven)),
        tuple(listed_can([one for one in found.cans if _asked(wanted.get("can"), one.name)], profile.cans)),
        tuple(_spi(profile, found.spi, holders, undriven)),
        tuple(undriven),
    )


def _asked(patterns: tuple[str, ...] | None, *names: str | None) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns or () for name in names if name is not None)


def _refused(
    undriven: list[Undriven], kind: BusKind, node: str, path: str, label: str | None, *, reason: str | None
) -> bool:
    """Return True and list this one as not driven: because of `reason`, or for lack of a permission."""
    if reason is not None:
        undriven.append(Undriven(kind, node, reason, path, label, NAME_IT, left_alone=True))
        return True
    lack = lack_of(path, kind)
    if lack is not None:
        undriven.append(Undriven(kind, node, lack.reason, path, label, lack.cure))
    return lack is not None


def _chips(profile: Profile, found: list[FoundChip], undriven: list[Undriven]) -> Iterable[ChipSpec]:
    listed = {chip.label for chip in profile.chips} | {chip.path for chip in profile.chips}
    labels = Counter(chip.label for chip in found)
    for chip in found:
        if chip.label in listed or chip.path in listed:
            continue
        header = HEADERS.get(chip.label or "")
        # A chip that may not be opened is unknown, and may be a header's: the permission comes first.
        reason = None if header or chip.label is None else chip_reason(chip)
        if _refused(undriven, "gpio", chip.node, chip.path, chip.label, reason=reason):
            continue
        if chip.error in _GONE:
            cure = "it is looked for once, at start: restart hearth when it is there again"
            undriven.append(Undriven("gpio", chip.node, "it went while it was looked at", chip.path, None, cure))
        elif chip.error is not None:
            why = f"{chip.path} cannot be opened ({chip.error})"
            undriven.append(Undriven("gpio", chip.node, why, chip.path, chip.label, "the kernel's log may say why"))
        elif not chip.lines:
            why = "it has no lines"
            undriven.append(Undriven("gpio", chip.node, why, chip.path, chip.label, None))
        elif header:
            (spec,) = (each for each in load_profile(header).chips if each.label == chip.label)
            yield evolve(spec, lines=tuple(_reserved(line, chip.lines) for line in spec.lines))
        elif chip.label and labels[chip.label] == 1:
            yield ChipSpec(chip.label, "gpiod", _lines(chip.lines), {})
        else:
            # Its label is not unique, so it goes by its node, as long as that stays the same.
            yield ChipSpec(chip.node, "gpiod", _lines(chip.lines), {}, path=chip.path)


def _lines(found: tuple[FoundLine, ...]) -> tuple[LineSpec, ...]:
    """Return the lines under the kernel's names; those without a name of their own get one from their offset."""
    names = Counter(line.name for line in found)
    lines = []
    for line in found[: MAX_OFFSET + 1]:
        name = line.name or ""
        if name in _NO_NAMES:
            name = f"line{line.offset}"
        if names[name] > (name == line.name):  # another line has this name too
            name = f"{name}@{line.offset}"
        lines.append(_reserved(LineSpec(line.offset, name), found))
    return tuple(lines)


def _reserved(spec: LineSpec, found: tuple[FoundLine, ...]) -> LineSpec:
    """Return the line, reserved if it is in use."""
    consumer = found[spec.offset].consumer if spec.offset < len(found) else None
    if consumer is None or spec.reserved is not None:
        return spec
    who = "the kernel" if consumer == KERNEL else f"{consumer!r}"
    return evolve(spec, reserved=f"in use by {who} since before hearth started")


def _adapters(profile: Profile, found: list[FoundAdapter], undriven: list[Undriven]) -> Iterable[I2cSpec]:
    listed = {spec.bus for spec in profile.i2c} | {spec.adapter for spec in profile.i2c if spec.adapter}
    for adapter in found:
        if adapter.bus in listed or adapter.name in listed:
            continue
        reason = adapter_reason(adapter)
        if not _refused(undriven, "i2c", adapter.node, adapter.path, adapter.name, reason=reason):
            yield I2cSpec(adapter.bus, "i2c-dev")


def _ports(profile: Profile, found: list[FoundPort], holders: Holders, undriven: list[Undriven]) -> Iterable[UartSpec]:
    paths = (*(spec.path for spec in profile.uarts), *(line.path for line in profile.modbus))
    listed = {_node_of(path) for path in paths if path is not None}
    names = {spec.port for spec in profile.uarts}
    for port in found:
        if _node_of(port.path) in listed:
            continue
        if port.node in names:
            why = "the profile gives its name to another port"
            undriven.append(Undriven("uart", port.node, why, port.path, port.origin.driver, "list it, or rename that"))
            continue
        reason = port_reason(port, holders.nodes.get(port.path, ()))
        if not _refused(undriven, "uart", port.node, port.path, port.origin.driver, reason=reason):
            yield UartSpec(port.node, "serial", port.path)


_ALL_AT_ONCE = {"pca9685-pwm": 16}
"""Channels by a kernel driver that are all other channels together."""


def _pwm(profile: Profile, found: list[FoundPwm], undriven: list[Undriven]) -> Iterable[PwmSpec]:
    listed = {spec.label for spec in profile.pwm}
    for chip in found:
        if chip.device in listed:
            continue
        if _refused(undriven, "pwm", chip.name, chip.path, chip.device, reason=pwm_reason(chip)):
            continue
        numbers = [
            n for n in range(min(chip.channels, MOST_CHANNELS)) if n != _ALL_AT_ONCE.get(chip.origin.driver or "")
        ]
        channels = [
            ChannelSpec(n, f"{chip.device}:{n}", min_period_us=SHORTEST_US, max_period_us=LONGEST_US) for n in numbers
        ]
        yield PwmSpec(chip.device, "pwm", tuple(channels))


def _spi(profile: Profile, found: Sequence[FoundSpi], holders: Holders, undriven: list[Undriven]) -> Iterable[SpiSpec]:
    listed = {_node_of(spec.path) for spec in profile.spi if spec.path is not None}
    for device in found:
        if not _asked(profile.discover.get("spi"), device.node, device.name) or _node_of(device.path) in listed:
            continue
        reason = spi_reason(device, holders.nodes.get(device.path, ()))
        if not _refused(undriven, "spi", device.node, device.path, device.name, reason=reason):
            yield SpiSpec(device.node, "spidev", device.path, device.name)


def _node_of(path: str) -> str:
    """Return the node that a path such as /dev/serial0 leads to."""
    from os.path import realpath

    return realpath(path)


# --- devices that generic-linux does not drive
# --- devices that generic-linux does not drive ------------------------------------------------------------------------
#
# The reasons: parts of a machine that it needs to run, and devices in use. A wrong level on a pin of the processor can
# cut the power, a wrong byte on a management bus can destroy a memory module or a display. So these are listed and not
# driven, until a profile names them. This part does not look at the machine, so that every verdict can be tested on any
# machine.

NAME_IT = "a board profile that lists it drives it; see docs/reference/boards.md"
"""The cure for everything here: a person who knows the wiring lists the device."""

_PLUGGED = frozenset({"usb", "hid"})
"""Subsystems of devices that were plugged in to be used."""
_CLIENTS = frozenset({"spi", "w1", "serial", "mdio_bus"})
_SIMULATED = frozenset({"gpio-sim", "gpio-mockup", "gpio-aggregator", "gpio-virtuser"})
"""Chips made on purpose, simulated or of chosen lines of other chips."""

_MANAGEMENT = re.compile(r"smbus(?! stub)|\bSPD\b", re.IGNORECASE)
_DISPLAY = re.compile(
    r"gmbus|\bDDC\b|DPDDC|\bDPMST\b|\bAUX\b|NVIDIA|nvkm|nouveau|AMDGPU|Radeon|\bHDMI\b|-hdmi|-dp\b|"
    r"card\d+-|fef0[49]500\.i2c|107d5082[08]0\.i2c",
    re.IGNORECASE,
)
"""Names that kernel drivers give to the buses of a display or a graphics card; the last two are the Pi 4's and 5's."""


_BOOT_MEMORY = re.compile(r"spidev10\.\d+")


def chip_reason(chip: FoundChip) -> str | None:
    """Return why generic-linux does not drive this GPIO chip, or None.

    It drives chips that are plugged in, expanders behind another bus, and simulated ones.
    """
    origin = chip.origin
    if origin.driver in _SIMULATED or _behind_a_bus(origin):
        return None
    if origin.described_by is not None or _is_a_card(origin):
        return (
            "its pins belong to the machine itself, whose storage, power and displays need them, and it is unknown "
            "which of them are free"
        )
    return None


def adapter_reason(adapter: FoundAdapter) -> str | None:
    """Return why generic-linux does not drive this I2C adapter, or None."""
    name, origin = adapter.name or "", adapter.origin
    if _PLUGGED & set(origin.above):
        return None
    if _DISPLAY.search(name) or "hdmi" in origin.compatible:
        return "it leads to a display or into a graphics card, where a wrong write can do lasting damage"
    if _MANAGEMENT.search(name):
        return "the machine manages itself over it: a wrong write can destroy memory modules or change their settings"
    if origin.described_by == "acpi" or _is_a_card(origin):
        return "the machine's own devices sit on it (touch pad, audio, sensors, charger)"
    return None


def port_reason(port: FoundPort, open_in: Sequence[Holder] = ()) -> str | None:
    """Return why generic-linux does not drive this serial port, or None. `open_in` are processes that have it open now.

    Most programs do not lock a port: two readers would each get half of the received bytes.
    """
    if port.console:
        return "the kernel writes its console to it"
    if port.terminal_of:
        return f"it is the terminal of {', '.join(port.terminal_of[:3])}"
    if open_in:
        return f"it is open in {', '.join(map(str, open_in[:3]))}"
    return None


def pwm_reason(chip: FoundPwm) -> str | None:
    """Return why generic-linux does not drive this PWM chip, or None."""
    if chip.origin.driver in _SIMULATED or _behind_a_bus(chip.origin):
        return None
    return (
        "its channels may drive the machine's own fans, lights and voltages, and it is unknown which of them are free"
    )


DAC_REASON = "only a person knows which values what is connected to its outputs bears"
"""Why generic-linux drives no converter."""


def spi_reason(device: FoundSpi, open_in: Sequence[Holder] = ()) -> str | None:
    """Return why generic-linux does not drive this SPI device, or None. `open_in` are processes that have it open now.

    A device has a node only where the firmware's description or a person says that programs may use it.
    """
    if _BOOT_MEMORY.fullmatch(device.node):
        return "on a Raspberry Pi 5 it is the memory that the machine starts from, and a wrong write can end that"
    if open_in:
        return f"it is open in {', '.join(map(str, open_in[:3]))}"
    return None


def _is_a_card(origin: DeviceOrigin) -> bool:
    return origin.described_by is None and "pci" in origin.above


def _behind_a_bus(origin: DeviceOrigin) -> bool:
    """Return True if the chip is a device on a bus, in contrast to a part of the processor or of the main board."""
    # An I2C client and its adapter are both of the subsystem "i2c", so a client has two of them above it.
    client = origin.above.count("i2c") >= 2 or bool(_CLIENTS & set(origin.above))
    return client or bool(_PLUGGED & set(origin.above))
