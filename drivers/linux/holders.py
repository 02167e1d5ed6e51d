"""Which processes have a device open, from /proc: GPIO lines by chip and offset, other devices by their node.

Owns the reading of descriptors; holds nothing, ends nobody, and does not judge whether a holder ought to have the
device. Whoever is not root sees his own processes only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
