"""The devices of the machine, as /sys, /dev and /proc show them: read once, claiming none.

It reads names and states. It requests no line, transfers nothing on a bus, and does not guess what is connected. A GPIO
chip's node is opened to read the kernel's description of its lines, which claims none of them; a serial port is never
opened, since that moves its RTS and DTR. `generic` decides which devices may be driven.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from hearth.drivers.can.spec import FoundCan, find_can

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

_INNER = frozenset({"gpio", "serial-base", "tty"})
"""Subsystems that the kernel puts between a device and its chip or port; their drivers do not identify the device."""

_PLUGS = frozenset({"usb", "hid"})
_I2C_FUNCS = 0x0705

KERNEL = "kernel"
"""The consumer of a line that the kernel holds without a reason given: its pin has another function, for example."""


@frozen
class Machine:
    """The roots of /sys, /dev and /proc; other roots are for tests."""

    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")


THIS = Machine()


@frozen
class DeviceOrigin:
    """The place of a device: the subsystems above it, nearest first ("i2c", "usb", "pci"), and its description."""

    above: tuple[str, ...] = ()
    driver: str | None = None
    """The kernel driver of the device that the chip, adapter or port belongs to."""
    described_by: str | None = None
    """"devicetree" or "acpi" for what the machine's firmware lists as its own."""
    compatible: str = ""
    """The device tree's name of it."""


@frozen
class FoundLine:
    """A line as the kernel reports it. `consumer` is its present user, None if it has none."""

    offset: int
    name: str | None
    consumer: str | None
    output: bool = False


@frozen
class FoundChip:
    """A GPIO chip. Without `label` and `lines` it could not be opened, and `error` is the errno's name."""

    node: str
    path: str
    origin: DeviceOrigin
    label: str | None = None
    lines: tuple[FoundLine, ...] = ()
    error: str | None = None


@frozen
class FoundAdapter:
    """An I2C adapter; `name` is the kernel's."""

    node: str
    path: str
    bus: int
    origin: DeviceOrigin
    name: str | None = None


@frozen
class FoundPort:
    """A serial port. `terminal_of` are processes that have it as their terminal, `console` the kernel's own use."""

    node: str
    path: str
    origin: DeviceOrigin
    console: bool = False
    terminal_of: tuple[str, ...] = ()


@frozen
class FoundPwm:
    """A PWM chip. `device` is the kernel's name of its device, `node` its character device, if it has one.

    `path` is what must be written to use it: the node, else its directory's `export`.
    """

    name: str
    device: str
    path: str
    channels: int
    origin: DeviceOrigin
    node: str | None = None


@frozen
class FoundDac:
    """An IIO device with outputs. `label` is its lasting name, `outputs` the kernel's names: "out_voltage0".

    `path` is what must be written to use it: the first of its outputs.
    """

    node: str
    label: str
    path: str
    outputs: tuple[str, ...]
    origin: DeviceOrigin


@frozen
class FoundSpi:
    """An SPI device that the kernel offers to programs. `name` is what the firmware calls it."""

    node: str
    path: str
    origin: DeviceOrigin
    name: str | None = None


@frozen
class FoundDevices:
    """All devices found, of the kinds that were asked for."""

    chips: tuple[FoundChip, ...] = ()
    adapters: tuple[FoundAdapter, ...] = ()
    ports: tuple[FoundPort, ...] = ()
    pwm: tuple[FoundPwm, ...] = ()
    dacs: tuple[FoundDac, ...] = ()
    cans: tuple[FoundCan, ...] = ()
    spi: tuple[FoundSpi, ...] = ()


_KINDS = ("gpio", "i2c", "uart", "pwm", "dac", "can", "spi")


def find(kinds: Container[str] = _KINDS, machine: Machine = THIS) -> FoundDevices:
    """Return the devices of these kinds."""
    return FoundDevices(
        tuple(find_chips(machine)) if "gpio" in kinds else (),
        tuple(find_adapters(machine)) if "i2c" in kinds else (),
        tuple(find_ports(machine)) if "uart" in kinds else (),
        tuple(find_pwm(machine)) if "pwm" in kinds else (),
        tuple(find_dacs(machine)) if "dac" in kinds else (),
        tuple(find_can(machine.sys)) if "can" in kinds else (),
        tuple(find_spi(machine)) if "spi" in kinds else (),
    )


def find_chips(machine: Machine = THIS) -> list[FoundChip]:
    """Return the GPIO chips that have a node, by number, with the kernel's description of their lines."""
    found = []
    for node in _numbered(machine.sys / "bus/gpio/devices", "gpiochip*"):
        path = machine.dev / node.name
        if path.exists():
            found.append(_chip(node.name, str(path), _origin(node, machine)))
    return found


def find_adapters(machine: Machine = THIS) -> list[FoundAdapter]:
    """Return the I2C adapters that have a node, by number."""
    found = []
    for node in _numbered(machine.sys / "class/i2c-dev", "i2c-*"):
        path = machine.dev / node.name
        if path.exists():
            number = int(node.name.removeprefix("i2c-"))
            origin = _origin(node / "device", machine)
            found.append(FoundAdapter(node.name, str(path), number, origin, _read(node / "name")))
    return found


def find_ports(machine: Machine = THIS) -> list[FoundPort]:
    """Return the serial ports that have a node, by name. Virtual consoles and pseudo-terminals are none."""
    consoles = (_read(machine.sys / "class/tty/console/active") or "").split()
    ranges = list(_serial_ranges(machine))
    terminals = _terminals(machine)
    found = []
    for node in _numbered(machine.sys / "class/tty", "tty*"):
        path = machine.dev / node.name
        number = _device_number(node)
        serial = any(major == number[0] and first <= number[1] <= last for major, first, last in ranges)
        # Type 0 is a UART's slot without a UART in it.
        if not serial or not path.exists() or _read(node / "type") == "0":
            continue
        origin = _origin(node / "device", machine) if (node / "device").exists() else DeviceOrigin()
        users = tuple(terminals.get(os.makedev(*number), ()))
        found.append(FoundPort(node.name, str(path), origin, node.name in consoles, users))
    return found


def find_pwm(machine: Machine = THIS) -> list[FoundPwm]:
    """Return the PWM chips, by number. Which of their channels a kernel driver uses is not known."""
    from hearth.drivers.pwm.linux import pwm_chips

    found = []
    for chip in pwm_chips(machine.sys, machine.dev):
        path = chip.node or str(chip.path / "export")
        origin = _origin(chip.path / "device", machine)
        found.append(FoundPwm(chip.name, chip.device, path, chip.channels, origin, chip.node))
    return found


def find_dacs(machine: Machine = THIS) -> list[FoundDac]:
    """Return the IIO devices with outputs, by number."""
    from hearth.drivers.dac.linux import iio_outputs

    found = []
    for device in iio_outputs(machine.sys):
        path = str(device.at / f"{device.outputs[0]}_raw")
        origin = _origin(device.place, machine)
        found.append(FoundDac(device.at.name, device.label, path, device.outputs, origin))
    return found


def find_spi(machine: Machine = THIS) -> list[FoundSpi]:
    """Return the SPI devices that have a node, by controller and chip select."""
    found = []
    for node in _numbered(machine.sys / "class/spidev", "spidev*"):
        path = machine.dev / node.name
        if path.exists():
            name = (_read(node / "device/modalias") or "").removeprefix("spi:") or None
            found.append(FoundSpi(node.name, str(path), _origin(node / "device", machine), name))
    return found


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


def clients(bus: int, machine: Machine = THIS) -> dict[int, str]:
    """Return the addresses on an I2C bus that a kernel driver owns, with the driver's name."""
    owned = {}
    for device in (machine.sys / "bus/i2c/devices").glob(f"{bus}-*"):
        driver = device / "driver"
        if driver.exists():
            # The kernel puts a flag in front of a 10-bit address: "1-a148".
            owned[int(device.name.partition("-")[2], 16) & 0x3FF] = driver.resolve().name
    return owned


def _chip(node: str, path: str, origin: DeviceOrigin) -> FoundChip:
    import gpiod

    try:
        with gpiod.Chip(path) as chip:
            info = chip.get_info()
            lines = []
            for offset in range(info.num_lines):
                line = chip.get_line_info(offset)
                consumer = (line.consumer or KERNEL) if line.used else None
                output = line.direction is gpiod.line.Direction.OUTPUT
                lines.append(FoundLine(offset, line.name or None, consumer, output))
            return FoundChip(node, path, origin, info.label or None, tuple(lines))
    except OSError as error:
        # No permission, or gone between being listed and being opened.
        return FoundChip(node, path, origin, error=errno.errorcode.get(error.errno or 0, "EIO"))


def _numbered(directory: Path, pattern: str) -> list[Path]:
    """Return the entries of a directory of /sys, in the order of their numbers ("i2c-10" after "i2c-2")."""

    def key(path: Path) -> tuple[str, int]:
        match = re.fullmatch(r"(.*?)(\d*)", path.name)
        return (match[1], int(match[2] or -1)) if match else (path.name, -1)

    return sorted(directory.glob(pattern), key=key)


def _origin(device: Path, machine: Machine) -> DeviceOrigin:
    """Walk from a device up to the root of the device tree."""
    above: list[str] = []
    driver = described = None
    compatible = ""
    on_a_card = False
    place, root = device.resolve(), machine.sys.resolve()
    while place != root and root in place.parents:
        subsystem = (place / "subsystem").resolve().name if (place / "subsystem").exists() else None
        if subsystem is not None:
            above.append(subsystem)
        if driver is None and subsystem not in _INNER and (place / "driver").exists():
            driver = (place / "driver").resolve().name
        # A plugged-in device has no description of its own, but the port it is plugged into has. A card may bring one
        # for its parts: the chip behind a Raspberry Pi 5's header is such a card.
        if described is None and not on_a_card and not _PLUGS & set(above):
            if (place / "of_node").exists():
                described = "devicetree"
                compatible = (_read(place / "of_node/compatible") or "").replace("\0", " ").strip()
            elif (place / "firmware_node/path").exists() or (place / "firmware_node/hid").exists():
                described = "acpi"
        on_a_card = on_a_card or subsystem == "pci"
        place = place.parent
    return DeviceOrigin(tuple(above), driver, described, compatible)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _device_number(node: Path) -> tuple[int, int]:
    major, _, minor = (_read(node / "dev") or "-1:-1").partition(":")
    return int(major), int(minor)


def _serial_ranges(machine: Machine) -> Iterator[tuple[int, int, int]]:
    """Yield major number, first and last minor of each driver that the kernel counts as a serial one."""
    for line in (_read(machine.proc / "tty/drivers") or "").splitlines():
        # The driver's name may have spaces in it: "UML serial line  /dev/ttyS  4 64-127 serial".
        match = re.search(r"\s(\d+)\s+(\d+)(?:-(\d+))?\s+serial$", line.rstrip())
        if match:
            yield int(match[1]), int(match[2]), int(match[3] or match[2])


def _terminals(machine: Machine) -> dict[int, list[str]]:
    """Map each device number to the processes whose controlling terminal it is, as "agetty (pid 612)"."""
    terminals: dict[int, list[str]] = {}
    for stat in sorted(machine.proc.glob("[0-9]*/stat"), key=lambda stat: int(stat.parent.name)):
        # The name is in parentheses and may have any characters; tty_nr is the fifth field after it.
        head, _, tail = (_read(stat) or "").rpartition(")")
        words = tail.split()
        if len(words) > 4 and (encoded := int(words[4])):
            number = os.makedev(encoded >> 8 & 0xFFF, encoded & 0xFF | encoded >> 12 & 0xFFF00)
            terminals.setdefault(number, []).append(f"{head.partition('(')[2]} (pid {stat.parent.name})")
    return terminals
