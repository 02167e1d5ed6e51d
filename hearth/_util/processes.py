"""The processes of this machine and what they have open, from /proc. A user other than root sees only its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC: Final = Path("/proc")
HEARTHD: Final = "hearthd"


def processes(proc: Path = PROC) -> Iterator[tuple[Path, list[Path] | None]]:
    """Yield every process, by id, with its descriptors; None for one that must not be looked into."""
    for process in sorted(proc.glob("[0-9]*"), key=lambda process: int(process.name)):
        try:
            descriptors: list[Path] | None = list((process / "fd").iterdir())
        except PermissionError:
            descriptors = None
        except OSError:
            continue  # it has ended since
        yield process, descriptors


def target_of(descriptor: Path) -> str:
    """Return what a descriptor is open on, as the kernel shows it; "" for one that was closed."""
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


def name_of(process: Path) -> str:
    """Return a process's name; a daemon of ours is "hearthd", whatever interpreter runs it."""
    try:
        argv = (process / "cmdline").read_bytes().split(b"\0")[:3]
        if b"hearth.actors.daemon" in argv or any(word.endswith(b"/hearthd") for word in argv[:2]):
            return HEARTHD
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "a process"
