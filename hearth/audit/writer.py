"""The file that is being written, as a position on a chain: `Writer` appends lines, whole or not at all.

After every call the file ends in a whole record, or the writer knows that it does not and cuts it before the next
write. A write that failed half way leaves the lines it finished. A failed sync leaves the lines of the last successful
one, since it is unknown which pages reached the disk. The chain's head always follows, so that nothing is written
twice.

`Disk` has the system calls by which the log reaches the disk. It does not know what the bytes mean. Tests replace it to
make the disk full, slow or broken.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from hearth.audit.record import Chain, Head, digest
from hearth.audit.tree import Tree
from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Disk:
    """The real calls: their contracts are those of write(2), fdatasync(2) and ftruncate(2)."""

    write = staticmethod(os.write)
    sync = staticmethod(os.fdatasync)
    truncate = staticmethod(os.ftruncate)

    def allocate(self, path: Path, size: int, /) -> None:
        """Allocate `size` bytes of disk to a file of the log's own, which may exist. Allocate all or nothing.

        At least as much stays free for other programs. Raises OSError.
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
        """Free the room of such a file, if it exists. Raises OSError."""
        path.unlink(missing_ok=True)


def _take_room(fd: int, size: int) -> None:
    """Allocate `size` bytes of the disk to a file: by fallocate(2), or by writing zeros where that is missing."""
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
    """Sync the names in a directory to the disk. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def sync_names(path: Path, existed: Path) -> None:
    """Sync a file's name to the disk, and those of the directories on the way to it, up to the one that `existed`.

    The file's own directory is always among them: an earlier process may have made it and died before the sync. Raises
    OSError; a directory that we may not open is not ours to sync.
    """
    sync_directory(path.parent)
    for directory in path.parent.parents:
        with contextlib.suppress(PermissionError):
            sync_directory(directory)
        if existed.is_relative_to(directory):
            return


class LogFailed(HearthError):
    """The error for records that were not all written. The first `written` are in the log; none of the others is.

    `full` is True if the disk was full.
    """

    def __init__(self, reason: str, written: int = 0, *, full: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.written = written
        self.full = full


class Writer:
    """The open file, its size in whole records, and the chain that stands at its end.

    With `sync`, records count as written (`kept`) once they are synced, else once they are in the kernel.
    `path` is for messages and for the directory.
    """

    def __init__(self, path: Path, *, sync: bool, disk: Disk) -> None:
        self.path = path
        self.fd = -1
        self.size = 0
        self.first_seq = 1
        self.kept = 0
        self.chain = Chain()
        self.tree = Tree()
        """The tree of the records that were written."""
        self._must_sync = sync
        self._disk = disk
        self._written: Head = self.chain.head
        self._synced = (0, self._written, self.tree)
        self._unsynced = 0
        self._uncut = ""
        """The reason why a partly written record could not be cut off, until it can be."""
        self._new_name = False

    def adopt(self, fd: int, size: int, head: Head, first_seq: int | None = None) -> None:
        """Continue at the end of `fd`, a file of `size` bytes in whole records whose last one is `head`."""
        self.fd, self.size = fd, size
        self.chain.seq, self.chain.prev = self._written = head
        self._synced = (size, head, self.tree.copy())
        self.first_seq = first_seq or head[0] + 1
        self._uncut, self._new_name = "", not size

    def begin(self) -> None:
        """Start to count the records of a batch (`kept`). Raises LogFailed if the file cannot be written at all."""
        self.kept = self._unsynced = 0
        if self.fd < 0:
            raise LogFailed(f"audit log {self.path}: closed")
        if self._uncut:
            self._cut()
            if self._uncut:
                reason = f"a record was written in part and cannot be cut off again: {self._uncut}"
                raise LogFailed(f"audit log {self.path}: {reason}")

    def write(self, lines: list[bytes], *, ours: bool = False) -> None:
        """Write lines that the chain has just sealed, in one call, and empty the list; `ours` do not count as kept.

        Raises LogFailed.
        """
        data = b"".join(lines)
        written = 0
        try:
            written = self._disk.write(self.fd, data)
            while written < len(data):
                more = self._disk.write(self.fd, data[written:])
                if not more:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written += more
        except OSError as error:
            if self._must_sync:
                self._roll_back()
            else:
                self._keep_whole(lines, written)
            raise self.failed(error) from error
        self.size += len(data)
        self._written = self.chain.seq, self.chain.prev
        add = self.tree.add
        for line in lines:
            add(line[:-1])
        if not ours:
            if self._must_sync:
                self._unsynced += len(lines)
            else:
                self.kept += len(lines)
        lines.clear()

    def sync(self) -> None:
        """Sync everything to the disk, the file's name included. Raises LogFailed."""
        try:
            self._disk.sync(self.fd)
            if self._new_name:
                sync_directory(self.path.parent)
                self._new_name = False
        except OSError as error:
            self._roll_back()
            raise self.failed(error) from error
        self.kept += self._unsynced
        self._unsynced = 0
        self._synced = (self.size, self._written, self.tree.copy())

    def restore(self) -> None:
        """Drop lines that were sealed and not written: for an interruption (Ctrl-C, a bug) between the two."""
        self.chain.seq, self.chain.prev = self._written
        self._cut()

    def failed(self, error: OSError) -> LogFailed:
        """Return the exception for a system call that failed."""
        return LogFailed(f"audit log {self.path}: {error.strerror}", full=error.errno in (errno.ENOSPC, errno.EDQUOT))

    def _keep_whole(self, lines: Sequence[bytes], written: int) -> None:
        """Repair the file after a write that ended early: keep the lines it finished, cut off the rest."""
        for line in lines:
            if written < len(line):
                break
            written -= len(line)
            self.size += len(line)
            self._written = (self._written[0] + 1, digest(line[:-1]))
            self.tree.add(line[:-1])
            self.kept += 1
        self.chain.seq, self.chain.prev = self._written
        self._cut()

    def _roll_back(self) -> None:
        """Return to the state that is known to be on the disk; without `sync` nothing was promised, so do nothing."""
        if self._must_sync:
            self.size, self._written, tree = self._synced
            self.tree = tree.copy()
            self.chain.seq, self.chain.prev = self._written
            self._cut()

    def _cut(self) -> None:
        """Cut the file to its whole records, or remember that this must be done before the next write."""
        try:
            if os.fstat(self.fd).st_size > self.size:
                self._disk.truncate(self.fd, self.size)
            self._uncut = ""
        except OSError as error:
            self._uncut = error.strerror or str(error)
