"""The processes that have a device open, from /proc: GPIO lines by chip and offset, other devices by their node.

It reads descriptors, holds nothing and ends no process. It does not judge if a holder should have the device. A user
other than root sees only its own processes.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attrs import frozen

from hearth._util.processes import PROC, name_of, processes, target_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The owner and group of a device node, by name, and if the group gives access: the part that is common to the three
# kinds of devices. The advice differs by kind and is in the drivers.


def user_name(uid: int) -> str:
    """Return a user's name, or the number where it has none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def group_name(gid: int) -> str:
    """Return a group's name, or the number where it has none."""
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


def kept_by_sandbox(path: str) -> str | None:
    """Return why the sandbox refuses a node that owner and mode would allow, with the cure; else None.

    A rule of the sandbox refers to the node that existed when the daemon started. A later one is another node.
    """
    from hearth.drivers.sandbox import landlock

    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        return _kept_by_control_group(path)
    if not landlock.in_force():
        return None
    return (
        f"the sandbox keeps hearthd from {path}, which is newer than the daemon or not of its board; for devices that "
        "come back set [sandbox] hotplug = true, and restart hearthd"
    )


def _kept_by_control_group(path: str) -> str | None:
    """Return why a node cannot be used whose owner and mode would allow it: the service's DeviceAllow= does not."""
    try:
        node = Path(path).stat()
    except OSError:
        return None
    user = os.geteuid()
    share = 0o600 if node.st_uid == user else 0o060 if node.st_gid in (os.getegid(), *os.getgroups()) else 0o006
    if user != 0 and node.st_mode & share != share:
        return None
    named = Path(os.path.realpath(path)).name
    kinds = [name for number, name in _character_devices() if number == os.major(node.st_rdev)]
    kind = max((one for one in kinds if named.startswith(one)), key=len, default=(*kinds, "KIND")[0])
    return (
        f"the service's control group keeps hearthd from {path}, though its mode would not: DeviceAllow=char-{kind} rw "
        "in a drop-in lets it in (`systemctl edit hearth`, then restart it)"
    )


def _character_devices() -> Iterator[tuple[int, str]]:
    """Yield the major number and the name of each kind of character device that the kernel has."""
    with contextlib.suppress(OSError):
        listed = Path("/proc/devices").read_text("utf-8").partition("\n\n")[0]
        for number, _, name in (line.strip().partition(" ") for line in listed.splitlines()[1:]):
            yield int(number), name


def lets_group_in(node: os.stat_result) -> bool:
    """True if members of the node's group may read and write it, and that group is not root's own."""
    return node.st_gid != 0 and node.st_mode & 0o060 == 0o060


# One device behind several buses: a USB adapter that has both GPIO lines and an I2C bus. This part identifies the
# device; the bus actors make its buses take turns (see `Driver.shares`). This is needed because not every kernel driver
# locks its own halves: hid-mcp2221 (seen in Linux 7.2) fills its one send buffer without a lock, so that a line set
# while bytes go over I2C may be reported as driven and is not. (With both busy it was so of 86 lines in 300.) A
# transaction may wait for one on the other bus, which counts in its own limit. Other processes are not kept apart.


def shared_device(entry: Path) -> str | None:
    """Return the HID device that a chip's or adapter's entry under /sys belongs to, by its path; else None."""
    try:
        device = entry.resolve(strict=True)
    except OSError:
        return None
    for parent in device.parents:
        subsystem = parent / "subsystem"
        if subsystem.exists() and subsystem.resolve().name == "hid":
            return str(parent)
    return None


_Key = TypeVar("_Key")


@frozen
class Holder:
    """A process that has the device open."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


@frozen
class Holders:
    """All holders of devices. `lines` maps (chip node, offset), `nodes` device nodes, to processes."""

    lines: Mapping[tuple[str, int], tuple[Holder, ...]]
    nodes: Mapping[str, tuple[Holder, ...]]
    complete: bool
    """False if there are processes whose descriptors this one may not see."""


NO_HOLDERS = Holders({}, {}, complete=True)


def holders(path: str, *, proc: Path = PROC) -> list[Holder]:
    """Return the processes that have the device at `path` open, by process id; this one is among them if it has.

    Empty when there is no such device, or none of them can be seen.
    """
    try:
        device = Path(path).stat().st_rdev
    except OSError:
        return []
    return [
        _holder(process)
        for process, descriptors in processes(proc)
        if any(_is_device(descriptor, device) for descriptor in descriptors or ())
    ]


def find_holders(proc: Path, dev: Path) -> Holders:
    """Return the holders from every readable descriptor of every process. This process itself does not count."""
    lines: dict[tuple[str, int], list[Holder]] = {}
    nodes: dict[str, list[Holder]] = {}
    complete = True
    for process, descriptors in processes(proc):
        if int(process.name) == os.getpid():
            continue
        if descriptors is None:
            complete = False
            continue
        holder = _holder(process)
        for descriptor in descriptors:
            for line in _lines_of(process, descriptor, target := target_of(descriptor)):
                _note(lines, line, holder)
            if target.startswith(f"{dev}/"):
                _note(nodes, target, holder)
    return Holders(
        {line: tuple(held) for line, held in lines.items()},
        {node: tuple(held) for node, held in nodes.items()},
        complete,
    )


def _holder(process: Path) -> Holder:
    return Holder(int(process.name), name_of(process))


def _note(table: dict[_Key, list[Holder]], key: _Key, holder: Holder) -> None:
    held = table.setdefault(key, [])
    if holder not in held:
        held.append(holder)


def _is_device(descriptor: Path, device: int) -> bool:
    # Read the link before it is followed: following one to a file of a dead network mount may block for ever.
    try:
        return target_of(descriptor).startswith("/dev/") and descriptor.stat().st_rdev == device
    except OSError:
        return False


def _lines_of(process: Path, descriptor: Path, target: str) -> list[tuple[str, int]]:
    """Return the lines of a request's descriptor, where the kernel shows them (Linux 6.7 and later)."""
    if target != "anon_inode:gpio-line":
        return []
    try:
        info = (process / "fdinfo" / descriptor.name).read_text()
    except OSError:
        return []
    chip = re.search(r"^gpio-chip:\s*(\S+)$", info, re.MULTILINE)
    offsets = re.findall(r"^gpio-line:\s*(\d+)$", info, re.MULTILINE)
    return [(chip[1], int(offset)) for offset in offsets] if chip else []
