"""A disk for the audit log that fails and stalls on demand."""

import errno
import os
import threading
from pathlib import Path

from hearth.audit.writer import Disk


class FaultyDisk(Disk):
    """A disk on which `room` bytes are left (None: no limit), and which fails with an OSError that it is given.

    `write_error`, `sync_error` and `truncate_error` are raised by every call until they are set to None
    again. While `gate` is clear a sync does not return: close it with `gate.clear()`, open it with
    `gate.set()`. A write that is larger than the room is a short write, as on a real disk; the next one is
    ENOSPC. What is allocated takes of the room, and gives it back when it is freed. `writes` counts calls that wrote
    something, `syncs` those that returned; `syncing` is set once a sync has begun.
    """

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.write_error: OSError | None = None
        self.sync_error: OSError | None = None
        self.truncate_error: OSError | None = None
        self.allocated: dict[Path, int] = {}
        """Bytes by file."""
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

    def allocate(self, path: Path, size: int, /) -> None:
        """Take the room, all of it or none, and no more than half of what there is."""
        wanted = size - self.allocated.get(path, 0)
        if self.room is not None:
            if wanted and self.room < 2 * size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= wanted
        super().allocate(path, size)
        self.allocated[path] = size

    def free(self, path: Path, /) -> None:
        """Give the room back."""
        super().free(path)
        if self.room is not None:
            self.room += self.allocated.get(path, 0)
        self.allocated.pop(path, None)

    def truncate(self, fd: int, size: int, /) -> None:
        """Cut the file, which gives no room back."""
        if self.truncate_error is not None:
            raise self.truncate_error
        os.ftruncate(fd, size)
