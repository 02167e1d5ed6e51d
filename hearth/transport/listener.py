"""The process that listens at a Unix socket's path, as the kernel tells it: for messages where no daemon answers.

The kernel knows the path of a listening socket also when its file has been removed. Whose process it is can be seen by
root and by the process's own user.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from attrs import frozen

from hearth._util.processes import PROC, name_of, processes, target_of

if TYPE_CHECKING:
    from pathlib import Path

_ACCEPTS: Final = 0x10000
"""The flag of a listening socket in /proc/net/unix."""


@frozen
class ListeningProcess:
    """A process that listens at a path; `pid` is None where this user may not see whose socket it is."""

    pid: int | None
    name: str = ""
    stopped: bool = False
    """True for a process that was stopped (SIGSTOP, a debugger): it answers nobody."""

    def __str__(self) -> str:
        who = "a process of another user" if self.pid is None else f"process {self.pid} ({self.name})"
        return f"{who}, which is stopped," if self.stopped else who


def listening_process(path: Path) -> ListeningProcess | None:
    """Return the process that listens at a path, also at one whose file was removed; None if none does."""
    inodes = set()
    with suppress(OSError, ValueError):
        for line in (PROC / "net" / "unix").read_text(errors="surrogateescape").splitlines()[1:]:
            _, _, _, flags, _, _, inode, *place = line.split(None, 7)
            if int(flags, 16) & _ACCEPTS and place == [str(path)]:
                inodes.add(f"socket:[{inode}]")
    if not inodes:
        return None
    for process, descriptors in processes():
        if any(target_of(descriptor) in inodes for descriptor in descriptors or ()):
            stopped = False
            with suppress(OSError, IndexError):
                stopped = (process / "stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
            return ListeningProcess(int(process.name), name_of(process), stopped)
    return ListeningProcess(None)
