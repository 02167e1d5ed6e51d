"""The system calls by which the log reaches the disk, and a double of them that fails and stalls on demand.

`Disk` is the seam where a test makes the disk full, slow or broken; `FaultyDisk` ships with the package, so
that whoever builds on hearth can test what their program does then. Neither knows what the bytes mean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Disk:
    """The real calls, without a detour: their contracts are those of write(2), fdatasync(2) and ftruncate(2)."""

    write = staticmethod(os.write)
    sync = staticmethod(os.fdatasync)
    truncate = staticmethod(os.ftruncate)

    def allocate(self, path: Path, size: int, /) -> None:
        """Have `size` bytes of room in a file of one's own, which may be there; if not all can be had, there is none.

        At least as much stays free for everybody else. Raises OSError.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(path, flags, 0o600)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            os.ftruncate(fd, size)
            if status.st_blocks * 512 < size:
                disk = os.fstatvfs(fd)
                if disk.f_bavail * disk.f_frsize < 2 * size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _take_room(fd, size)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            raise
        finally:
            os.close(fd)

    def free(self, path: Path, /) -> None:
        """Give the room of such a file up, if it is there. Raises OSError."""
        path.unlink(missing_ok=True)


def _take_room(fd: int, size: int) -> None:
    """Take `size` bytes of the disk for a file: by fallocate(2), or by writing zeros where there is no such thing."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        zeros = bytes(min(size, 1 << 16))
        written = 0
        while written < size:
            written += os.pwrite(fd, zeros[: size - written], written)


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
