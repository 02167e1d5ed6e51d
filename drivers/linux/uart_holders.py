"""Who has a device open: the processes behind a descriptor that is refused.

It owns a look through /proc, as good as this process's rights are: other users' processes stay unseen unless it is
root. It refuses to judge whether the holder ought to have the device.
"""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

_PROC = Path("/proc")


@frozen
class Holder:
    """A process that has the device open."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def holders(path: str, *, proc: Path = _PROC) -> list[Holder]:
    """The processes that have the device at `path` open, in order of their ids; this one is among them if it does.

    Empty when there is no such device, or none of them can be seen.
    """
    try:
        device = Path(path).stat().st_rdev
    except OSError:
        return []
    found: list[Holder] = []
    for pid in sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()):
        process = proc / str(pid)
        if _has_open(process, device):
            found.append(Holder(pid, _name(process)))
    return found


def _has_open(process: Path, device: int) -> bool:
    try:
        links = list((process / "fd").iterdir())
    except OSError:
        return False  # gone meanwhile, or another user's
    for link in links:
        try:
            # Read before it is followed: to follow a link to a file of a dead network mount may take for ever.
            if str(link.readlink()).startswith("/dev/") and link.stat().st_rdev == device:
                return True
        except OSError:
            continue
    return False


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "a process"
