"""Serial ports of the machine: found, judged and compared with a profile, for every kind that uses one.

A port is never opened here, since that moves its RTS and DTR.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from attrs import frozen

from hearth._util.processes import HEARTHD
from hearth.drivers.linux.machine import DeviceOrigin, FoundDevice, Machine, origin_of, text_of
from hearth.drivers.linux.survey import Access, ProfileProblem, lacking, missing
from hearth.drivers.serial_port.settings import PORTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hearth.drivers.linux.survey import Inspection


ACCESS: Final = Access("dialout", "tty", 'SUBSYSTEM=="tty", KERNEL=="{node}", GROUP="dialout", MODE="0660"')


@frozen
class FoundPort(FoundDevice):
    """A serial port; `label` is the kernel driver of its device.

    `terminal_of` are processes that have it as their terminal, `console` is the kernel's own use.
    """

    console: bool = False
    terminal_of: tuple[str, ...] = ()


def find_ports(machine: Machine) -> Iterator[FoundPort]:
    """Yield the serial ports that have a node, by name. Virtual consoles and pseudo-terminals are none."""
    consoles = (text_of(machine.sys / "class/tty/console/active") or "").split()
    ranges = list(_serial_ranges(machine))
    terminals = _terminals(machine)
    for node, path in machine.nodes_of("class/tty", "tty*"):
        number = _device_number(node)
        serial = any(major == number[0] and first <= number[1] <= last for major, first, last in ranges)
        # Type 0 is a UART's slot without a UART in it.
        if not serial or text_of(node / "type") == "0":
            continue
        origin = origin_of(node / "device", machine) if (node / "device").exists() else DeviceOrigin()
        users = tuple(terminals.get(os.makedev(*number), ()))
        yield FoundPort(node.name, path, origin, origin.driver, node.name in consoles, users)


def _device_number(node: Path) -> tuple[int, int]:
    major, _, minor = (text_of(node / "dev") or "-1:-1").partition(":")
    return int(major), int(minor)


def _serial_ranges(machine: Machine) -> Iterator[tuple[int, int, int]]:
    """Yield major number, first and last minor of each driver that the kernel counts as a serial one."""
    for line in (text_of(machine.proc / "tty/drivers") or "").splitlines():
        # The driver's name may have spaces in it: "UML serial line  /dev/ttyS  4 64-127 serial".
        match = re.search(r"\s(\d+)\s+(\d+)(?:-(\d+))?\s+serial$", line.rstrip())
        if match:
            yield int(match[1]), int(match[2]), int(match[3] or match[2])


def _terminals(machine: Machine) -> dict[int, list[str]]:
    """Map each device number to the processes whose controlling terminal it is, as "agetty (pid 612)"."""
    terminals: dict[int, list[str]] = {}
    for stat in sorted(machine.proc.glob("[0-9]*/stat"), key=lambda stat: int(stat.parent.name)):
        # The name is in parentheses and may have any characters; tty_nr is the fifth field after it.
        head, _, tail = (text_of(stat) or "").rpartition(")")
        words = tail.split()
        if len(words) > 4 and (encoded := int(words[4])):
            number = os.makedev(encoded >> 8 & 0xFFF, encoded & 0xFF | encoded >> 12 & 0xFFF00)
            terminals.setdefault(number, []).append(f"{head.partition('(')[2]} (pid {stat.parent.name})")
    return terminals


def port_problems(key: str, path: str, look: Inspection) -> Iterator[ProfileProblem]:
    """Yield what keeps a port that the profile names at `key` from working here."""
    node, ports = os.path.realpath(path), look.of(PORTS)
    lack = list(lacking(key, path, ACCESS))
    port = next((port for port in ports if port.path == node), None)
    if port is None:
        if lack or os.access(node, os.F_OK):
            yield from lack  # it is there, a pseudo-terminal say: the profile lists it on purpose
            return
        cure = "is it plugged in? /dev/serial/by-id has names that stay the same"
        yield missing(key, path, (port.path for port in ports if port.origin.above), cure)
        return
    yield from lack
    if port.console:
        cure = "take its console= from the kernel's command line"
        yield ProfileProblem(key, "fail", f"the kernel writes its console to {node}", cure)
    others = [holder for holder in look.holders.nodes.get(node, ()) if holder.name != HEARTHD]
    if port.terminal_of:
        who = ", ".join(port.terminal_of[:3])
        cure = f"sudo systemctl disable --now serial-getty@{port.node}.service"
        yield ProfileProblem(key, "fail", f"{node} is the terminal of {who}", cure)
    elif others:
        yield ProfileProblem(key, "fail", f"{node} is open in {', '.join(map(str, others))}", "end that program")
