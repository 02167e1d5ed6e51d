"""Which processes have a device open, from /proc: GPIO lines by chip and offset, other devices by their node.

Owns the reading of descriptors; holds nothing, ends nobody, and does not judge whether a holder ought to have the
device. Whoever is not root sees his own processes only.
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# --- owners -----------------------------------------------------------------------------------------------------------
# To whom a device node belongs, in names, and whether its group is the way in.
#
# Owns what the three kinds of devices have in common there; the advice itself differs by kind and is given elsewhere.


def user_name(uid: int) -> str:
    """A user's name, or the number where it has none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def group_name(gid: int) -> str:
    """A group's name, or the number where it has none."""
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


def kept_by_sandbox(path: str) -> str | None:
    """Why a node that was refused is refused although its owner and mode let this process in, with the cure; else None.

    A rule of the sandbox stands on the node that was there when the daemon started: one that came later is another.
    """
    from hearth.drivers.sandbox import landlock

    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True) or not landlock.in_force():
        return None
    return (
        f"the sandbox keeps hearthd from {path}, which is newer than the daemon or not of its board; for devices that "
        "come back set [sandbox] hotplug = true, and restart hearthd"
    )


def lets_group_in(node: os.stat_result) -> bool:
    """True if members of the node's group may read and write it, and that group is not root's own."""
    return node.st_gid != 0 and node.st_mode & 0o060 == 0o060


# --- shared -----------------------------------------------------------------------------------------------------------
# One device behind several buses: a USB adapter that gives both GPIO lines and an I2C bus.
#
# Owns the answer to "whose is it?". That buses which share a device take turns is for whoever runs their transactions
# (see `Driver.shares`). It is needed because not every kernel driver orders its own halves: hid-mcp2221 (seen in Linux
# 7.2) fills the one buffer that it sends from without a lock, so that a line set while bytes go over I2C may be
# reported as driven and is not.


def shared_device(entry: Path) -> str | None:
    """The HID device that a chip's or adapter's entry under /sys belongs to, by its path; None if to none."""
    try:
        device = entry.resolve(strict=True)
    except OSError:
        return None
    for parent in device.parents:
        subsystem = parent / "subsystem"
        if subsystem.exists() and subsystem.resolve().name == "hid":
            return str(parent)
    return None


# --- holders ----------------------------------------------------------------------------------------------------------

_Key = TypeVar("_Key")

_PROC = Path("/proc")
HEARTHD = "hearthd"


@frozen
class Holder:
    """A process that has the device open."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


@frozen
class Holders:
    """Who holds what. `lines` maps (chip node, offset), `nodes` device nodes, to processes."""

    lines: Mapping[tuple[str, int], tuple[Holder, ...]]
    nodes: Mapping[str, tuple[Holder, ...]]
    complete: bool
    """False if there are processes whose descriptors this one may not see."""


NOBODY = Holders({}, {}, complete=True)


def holders(path: str, *, proc: Path = _PROC) -> list[Holder]:
    """The processes that have the device at `path` open, in order of their ids; this one is among them if it does.

    Empty when there is no such device, or none of them can be seen.
    """
    try:
        device = Path(path).stat().st_rdev
    except OSError:
        return []
    return [
        _holder(process)
        for process, descriptors in _processes(proc)
        if any(_is_device(descriptor, device) for descriptor in descriptors or ())
    ]


def find_holders(proc: Path, dev: Path) -> Holders:
    """Look at every descriptor of every process that may be looked at. This process itself does not count."""
    lines: dict[tuple[str, int], list[Holder]] = {}
    nodes: dict[str, list[Holder]] = {}
    complete = True
    for process, descriptors in _processes(proc):
        if int(process.name) == os.getpid():
            continue
        if descriptors is None:
            complete = False
            continue
        holder = _holder(process)
        for descriptor in descriptors:
            for line in _lines_of(process, descriptor, target := _target(descriptor)):
                _note(lines, line, holder)
            if target.startswith(f"{dev}/"):
                _note(nodes, target, holder)
    return Holders(
        {line: tuple(held) for line, held in lines.items()},
        {node: tuple(held) for node, held in nodes.items()},
        complete,
    )


def _processes(proc: Path) -> Iterator[tuple[Path, list[Path] | None]]:
    """Every process, by id, with its descriptors; None for one that must not be looked into."""
    for process in sorted(proc.glob("[0-9]*"), key=lambda process: int(process.name)):
        try:
            descriptors: list[Path] | None = list((process / "fd").iterdir())
        except PermissionError:
            descriptors = None
        except OSError:
            continue  # it ended meanwhile
        yield process, descriptors


def _holder(process: Path) -> Holder:
    return Holder(int(process.name), _name(process))


def _name(process: Path) -> str:
    """What a process is called; a daemon of ours under whatever interpreter it runs is "hearthd"."""
    try:
        argv = (process / "cmdline").read_bytes().split(b"\0")[:3]
        if b"hearth.actors.daemon" in argv or any(word.endswith(b"/hearthd") for word in argv[:2]):
            return HEARTHD
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "a process"


def _note(table: dict[_Key, list[Holder]], key: _Key, holder: Holder) -> None:
    held = table.setdefault(key, [])
    if holder not in held:
        held.append(holder)


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


def _is_device(descriptor: Path, device: int) -> bool:
    # Read before it is followed: to follow a link to a file of a dead network mount may take for ever.
    try:
        return _target(descriptor).startswith("/dev/") and descriptor.stat().st_rdev == device
    except OSError:
        return False


def _lines_of(process: Path, descriptor: Path, target: str) -> list[tuple[str, int]]:
    """The lines of a request's descriptor, where the kernel tells them (Linux 6.7 and later)."""
    if target != "anon_inode:gpio-line":
        return []
    try:
        info = (process / "fdinfo" / descriptor.name).read_text()
    except OSError:
        return []
    chip = re.search(r"^gpio-chip:\s*(\S+)$", info, re.MULTILINE)
    offsets = re.findall(r"^gpio-line:\s*(\d+)$", info, re.MULTILINE)
    return [(chip[1], int(offset)) for offset in offsets] if chip else []
