"""The system calls by which the log reaches the disk.

`Disk` is the seam where a test makes the disk full, slow or broken. It does not know what the bytes mean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
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
