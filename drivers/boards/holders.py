"""Which processes hold a device open, from /proc: GPIO lines by chip and offset, other devices by their node.

Owns the reading of descriptors; holds nothing and ends nobody. Whoever is not root sees his own processes only, and
`complete` says so.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, TypeVar

from attrs import frozen

from hearth.drivers.linux.uart_holders import Holder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_Key = TypeVar("_Key")

HEARTHD = "hearthd"


@frozen
class Holders:
    """Who holds what. `lines` maps (chip node, offset), `nodes` device nodes, to processes."""

    lines: Mapping[tuple[str, int], tuple[Holder, ...]]
    nodes: Mapping[str, tuple[Holder, ...]]
    complete: bool
    """False if there are processes whose descriptors this one may not see."""


NOBODY = Holders({}, {}, complete=True)


def find_holders(proc: Path, dev: Path) -> Holders:
    """Look at every descriptor of every process that may be looked at. This process itself does not count."""
    lines: dict[tuple[str, int], list[Holder]] = {}
    nodes: dict[str, list[Holder]] = {}
    complete = True
    for process in sorted(proc.glob("[0-9]*"), key=lambda process: int(process.name)):
        if int(process.name) == os.getpid():
            continue
        try:
            descriptors = list((process / "fd").iterdir())
            holder = Holder(int(process.name), _name(process))
        except PermissionError:
            complete = False
            continue
        except OSError:
            continue  # it ended meanwhile
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


def _name(process: Path) -> str:
    """What a process is called; a daemon of ours under whatever interpreter it runs is "hearthd"."""
    argv = (process / "cmdline").read_bytes().split(b"\0")[:3]
    if b"hearth.actors.daemon" in argv or any(word.endswith(b"/hearthd") for word in argv[:2]):
        return HEARTHD
    return (process / "comm").read_text(errors="replace").strip()


def _note(table: dict[_Key, list[Holder]], key: _Key, holder: Holder) -> None:
    held = table.setdefault(key, [])
    if holder not in held:
        held.append(holder)


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


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
