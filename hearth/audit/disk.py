"""The system calls by which the log reaches the disk, and a double of them that fails and stalls on demand.

`Disk` is the seam where a test makes the disk full, slow or broken; `FaultyDisk` ships with the package, so
that whoever builds on hearth can test what their program does then. Neither knows what the bytes mean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Disk:
    """The real calls, without a detour: their contracts are those of write(2), fdatasync(2) and ftruncate(2)."""

    write = staticmethod(os.write)
    sync = staticmethod(os.fdatasync)
    truncate = staticmethod(os.ftruncate)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def sync_names(path: Path, existed: Path) -> None:
    """Bring a file's name to the disk, and those of the directories on the way to it, up to the one that `existed`.

    That of the directory that it lies in is always among them: it may be an earlier life's, which did not come so far.
    Raises OSError; what we may not look into is not ours to sync.
    """
    sync_directory(path.parent)
    for directory in path.parent.parents:
        with contextlib.suppress(PermissionError):
            sync_directory(directory)
        if existed.is_relative_to(directory):
            return


class FaultyDisk(Disk):
    """A disk on which `room` bytes are left (None: no limit), and which fails with an OSError that it is given.

    `write_error`, `sync_error` and `truncate_error` are raised by every call until they are set to None
    again. While `gate` is clear a sync does not return: close it with `gate.clear()`, open it with
    `gate.set()`. A write that is larger than the room is a short write, as on a real disk; the next one is
    ENOSPC. `writes` counts calls that wrote something, `syncs` those that returned; `syncing` is set once a
    sync has begun.
    """

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.write_error: OSError | None = None
        self.sync_error: OSError | None = None
        self.truncate_error: OSError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.syncing = threading.Event()
        self.writes = 0
        self.syncs = 0

    def write(self, fd: int, data: bytes | memoryview, /) -> int:  # type: ignore[override]
        """Write what there is room for."""
        if self.write_error is not None:
            raise self.write_error
        if self.room is not None:
            if self.room == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: self.room]
            self.room -= len(data)
        self.writes += 1
        return os.write(fd, data)

    def sync(self, fd: int, /) -> None:  # type: ignore[override]
        """Wait for the gate, then sync."""
        self.syncing.set()
        self.gate.wait()
        if self.sync_error is not None:
            raise self.sync_error
        os.fdatasync(fd)
        self.syncs += 1

    def truncate(self, fd: int, size: int, /) -> None:
        """Cut the file, which gives no room back."""
        if self.truncate_error is not None:
            raise self.truncate_error
        os.ftruncate(fd, size)
