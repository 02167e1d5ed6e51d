"""Changing a file as a whole, given the descriptor of its directory: the calls beneath `files`.

It owns temporary files, flushing and the translation of OSError. Every name is a last component used without
following links; where its directory is, and whether it may be touched, was settled before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from hearth.errors import DeviceError, Effect

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODE_BITS = 0o777
"""Kept when a file is replaced. Set-user-id is not: the new content has not earned it."""
_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


@contextlib.contextmanager
def os_errors(path: str, effect: Effect = "none") -> Iterator[None]:
    """Translate OSError into DeviceError with `effect` and `data` = {errno: its name, path}."""
    try:
        yield
    except OSError as error:
        raise device_error(path, error, effect) from error


def device_error(path: str, error: OSError, effect: Effect = "none") -> DeviceError:
    """The DeviceError for what the kernel said."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return DeviceError(f"{path}: {error.strerror}", effect=effect, data={"errno": name, "path": path})


def refused(path: str, number: int, reason: str) -> DeviceError:
    """The DeviceError for what we do not do ourselves; nothing has happened."""
    data = {"errno": errno.errorcode[number], "path": path}
    return DeviceError(f"{path}: {reason}", effect="none", data=data)


def type_of(status: os.stat_result) -> str:
    """The type as file.list and file.stat call it."""
    return _TYPES[stat.S_IFMT(status.st_mode)]


def look(path: str, parent: int, name: str) -> os.stat_result | None:
    """What is there, or None. Raises DeviceError unless it is a regular file."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    kind = type_of(status)
    if kind == "symlink":
        raise refused(path, errno.ELOOP, "it is a symbolic link; write to what it leads to")
    if kind == "directory":
        raise refused(path, errno.EISDIR, "it is a directory")
    if kind != "file":
        raise refused(path, errno.EPERM, f"it is a {kind}; only regular files can be written")
    return status


def open_regular(parent: int, name: str, flags: int) -> int:
    """Open what `look` has seen; what was put there meanwhile is not followed, waited for or written."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EPERM, "not a regular file any more")
    return descriptor


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """`length` bytes from `offset`, or what there is."""
    chunks = []
    while length > 0:
        chunk = os.pread(descriptor, length, offset)
        if not chunk:
            break
        chunks.append(chunk)
        offset += len(chunk)
        length -= len(chunk)
    return b"".join(chunks)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_directory(directory: int) -> None:
    """Put a changed directory on the disk; `directory` may be an O_PATH descriptor.

    A directory that may be searched but not read cannot be flushed: the file itself has been.
    """
    try:
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    except PermissionError:
        return
    try:
        os.fsync(readable)
    finally:
        os.close(readable)


def swap_in(parent: int, name: str, data: bytes, like: os.stat_result | None) -> None:
    """Put a new file with `data` in the place of `name` in one step, with owner and permissions of `like`.

    When this raises OSError, `name` is as it was.
    """
    # Its name does not derive from the file's, which may already be as long as a name can be.
    temporary = f".hearth-{os.urandom(8).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o666 if like is None else 0o600, dir_fd=parent)
    try:
        try:
            write_all(descriptor, data)
            if like is not None:
                if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    with contextlib.suppress(PermissionError):  # only root may give files away
                        os.fchown(descriptor, like.st_uid, like.st_gid)
                os.fchmod(descriptor, like.st_mode & _MODE_BITS)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise
