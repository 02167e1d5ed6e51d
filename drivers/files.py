"""Files: a pool of threads that reads, writes, lists and deletes through a path guard.

This driver owns the way a file changes: whole or not at all, synced to the disk where it says so, and reversible where
that is promised. The guard decides which paths may be used: each operation is given one, and touches no path without
it.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import itertools
import os
import stat
import weakref
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import orjson
from attrs import frozen

from hearth._util.files import closing
from hearth.drivers.base import BaseDriver, Style
from hearth.errors import DeviceError, Effect
from hearth.tools import Done, Undo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hearth.tools import GuardedPaths

WriteMode: TypeAlias = Literal["replace", "append", "create"]

READ_MAX = 256 * 1024
"""Bytes per read: 350 kB of base64, well within a document."""
WRITE_MAX = 1024 * 1024
"""Bytes per write; over the wire the bound on a document comes first."""
UNDO_MAX = 1024 * 1024
"""A larger file is replaced without a way back: its former content would have to wait in memory."""
UNDO_TOTAL = 32 * 1024 * 1024
"""Former content that may wait in memory at a time, over all tasks."""
LIST_MAX = 2000
"""Entries in a listing."""
LIST_BYTES = 512 * 1024
"""A listing's entries in JSON: names and link targets can be long."""
_SCAN_MAX = 65_536
"""Names that are read to find the first ones."""


@frozen
class _Written:
    """A step's bytes in a file, from `start` to its end: an undo must check that they are still there."""

    start: int
    size: int
    digest: bytes

    @classmethod
    def of(cls, data: bytes, start: int = 0) -> _Written:
        return cls(start, len(data), hashlib.sha256(data).digest())


class _Former:
    """A replaced file's former content and status, for as long as an undo may need them."""

    __slots__ = ("__weakref__", "data", "status")

    def __init__(self, data: bytes, status: os.stat_result) -> None:
        self.data = data
        self.status = status


class FileDriver(BaseDriver):
    """The files beneath the guard's roots. Operations raise PermissionDenied, or DeviceError with errno, path."""

    style = Style.THREAD
    width = 4

    def __init__(self) -> None:
        # Sizes of the living _Former objects by id. Each change is one dict operation, so the threads need no lock;
        # those that read the sum at the same time can pass the bound by one file each.
        self._held: dict[int, int] = {}

    def describe(self) -> Mapping[str, Any]:
        """Return limits in bytes, and the size of the former content that is kept for undo."""
        held = sum(self._held.copy().values())
        return {"kind": "files", "read_max": READ_MAX, "write_max": WRITE_MAX, "undo_held": held}

    def read(
        self,
        guard: GuardedPaths,
        path: str,
        offset: int = 0,
        length: int = READ_MAX,
        show: Callable[[bytes], Mapping[str, Any]] = lambda data: {"data": data},
    ) -> dict[str, Any]:
        """Read at most `length` (up to READ_MAX) bytes from `offset`: {data (bytes), size, eof}.

        `size` is the whole file's, 0 for most files of /proc and /sys; `eof` is true if nothing follows. `show` makes
        the members for the bytes; it runs in the driver's thread, because that takes milliseconds for READ_MAX bytes.
        """
        length = min(length, READ_MAX)
        with os_errors(path), closing(guard.open(path, os.O_RDONLY, access="read")) as descriptor:
            size = os.fstat(descriptor).st_size
            data = read_at(descriptor, length, offset)
            eof = len(data) < length or not os.pread(descriptor, 1, offset + length)
        return {**show(data), "size": size, "eof": eof}

    def stat(self, guard: GuardedPaths, path: str) -> dict[str, Any]:
        """Return {path, type, size (bytes), mtime (seconds since 1970), mode ("0644")} of the target of `path`."""
        with os_errors(path), closing(guard.open(path, os.O_PATH, access="read")) as descriptor:
            status = os.fstat(descriptor)
        return {"path": path, **_facts(status), "mode": f"{stat.S_IMODE(status.st_mode):04o}"}

    def list(self, guard: GuardedPaths, path: str) -> dict[str, Any]:
        """Return {path, entries: [{name, type, size, mtime}], truncated}, by name; links are not followed.

        An entry that cannot be examined has type "unknown", and neither size nor mtime; a link has its `target`. A name
        that is not UTF-8 is shown with escapes, and losslessly as `name_base64`.
        """
        entries = []
        room = LIST_BYTES
        flags = os.O_RDONLY | os.O_DIRECTORY
        with os_errors(path), closing(guard.open(path, flags, access="read")) as directory:
            with os.scandir(directory) as found:
                names = sorted(os.fsencode(one.name) for one in itertools.islice(found, _SCAN_MAX + 1))
            truncated = len(names) > LIST_MAX
            for name in names[:LIST_MAX]:
                try:
                    entry = _entry(directory, name)
                except FileNotFoundError:  # deleted since the names were read
                    continue
                room -= len(orjson.dumps(entry)) + 1
                if room < 0:
                    truncated = True
                    break
                entries.append(entry)
        return {"path": path, "entries": entries, "truncated": truncated}

    def write(self, guard: GuardedPaths, path: str, data: bytes, mode: WriteMode = "replace") -> Done:
        """Write `data` and return {path, size, created, reversible}, with the undo.

        "replace" swaps in a new file, so that a reader sees the old content or the new; it keeps the permissions, and
        the owner if we may. "create" fails where anything is. "append" adds at the end, or creates. The content is on
        the disk when this returns. The directory must exist and the last component must not be a link. Only a replaced
        file that is too large, or that we may not read, has no undo: then `reversible` is false.
        """
        with os_errors(path):
            parent, name = guard.open_parent(path, access="write")
            with closing(parent):
                old = None if mode == "create" else look(path, parent, name)
                if old is None and mode != "replace":
                    return self._create(guard, path, parent, name, data)
                if old is not None and mode == "append":
                    return self._append(guard, path, parent, name, data)
                return self._replace(guard, path, parent, name, data, old)

    def delete(self, guard: GuardedPaths, path: str) -> dict[str, Any]:
        """Delete a file, an empty directory, or a link but not its target: {path, deleted: its type}."""
        guard.check(path, "write")
        with os_errors(path):
            parent, name = guard.open_parent(path, access="write")
            with closing(parent):
                kind = type_of(os.stat(name, dir_fd=parent, follow_symlinks=False))
                if kind == "directory":
                    os.rmdir(name, dir_fd=parent)
                elif kind in ("file", "symlink"):
                    os.unlink(name, dir_fd=parent)
                else:
                    raise refused(path, errno.EPERM, f"it is a {kind}; only files and directories go")
                with os_errors(path, "done"):
                    sync_directory(parent)
        return {"path": path, "deleted": kind}

    # Undo operations. Each is a transaction of its own, and leaves a file alone that has changed since the step.

    def restore(self, guard: GuardedPaths, path: str, written: _Written, former: _Former) -> None:
        """Restore a replaced file's former content."""
        with _unchanged(guard, path, written) as (parent, name):
            swap_in(parent, name, former.data, former.status)
            with os_errors(path, "done"):
                sync_directory(parent)

    def remove(self, guard: GuardedPaths, path: str, written: _Written) -> None:
        """Remove a file that the step created."""
        with _unchanged(guard, path, written) as (parent, name):
            os.unlink(name, dir_fd=parent)
            with os_errors(path, "done"):
                sync_directory(parent)

    def cut_back(self, guard: GuardedPaths, path: str, written: _Written) -> None:
        """Cut off the bytes that the step appended."""
        with (
            _unchanged(guard, path, written) as (parent, name),
            closing(open_regular(parent, name, os.O_WRONLY)) as descriptor,
        ):
            os.ftruncate(descriptor, written.start)
            with os_errors(path, "done"):
                os.fsync(descriptor)

    def _replace(
        self, guard: GuardedPaths, path: str, parent: int, name: str, data: bytes, old: os.stat_result | None
    ) -> Done:
        former = None if old is None else self._keep(parent, name, old)
        swap_in(parent, name, data, old)
        with os_errors(path, "done"):
            sync_directory(parent)
        undo = None
        written = _Written.of(data)
        if old is None:
            undo = Undo(lambda driver: driver.remove(guard, path, written), f"remove {path}")
        elif former is not None:
            back = f"{path} back to its former {len(former.data)} bytes"
            undo = Undo(lambda driver: driver.restore(guard, path, written, former), back)
        return _done(path, len(data), undo, created=old is None)

    def _create(self, guard: GuardedPaths, path: str, parent: int, name: str, data: bytes) -> Done:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(name, flags, 0o666, dir_fd=parent)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=parent)
            raise
        finally:
            os.close(descriptor)
        with os_errors(path, "done"):
            sync_directory(parent)
        written = _Written.of(data)
        undo = Undo(lambda driver: driver.remove(guard, path, written), f"remove {path}")
        return _done(path, len(data), undo, created=True)

    def _append(self, guard: GuardedPaths, path: str, parent: int, name: str, data: bytes) -> Done:
        with closing(open_regular(parent, name, os.O_WRONLY | os.O_APPEND)) as descriptor:
            before = os.lseek(descriptor, 0, os.SEEK_END)
            try:
                write_all(descriptor, data)
            except OSError as error:
                # Appended bytes stay: another program may have appended since, and would lose its bytes.
                nothing = os.fstat(descriptor).st_size == before
                raise device_error(path, error, "none" if nothing else "unknown") from error
            # The kernel reports where our data ended, even if another writer came before it.
            end = os.lseek(descriptor, 0, os.SEEK_CUR)
            with os_errors(path, "done"):
                os.fsync(descriptor)
        written = _Written.of(data, end - len(data))
        back = f"{path} back to its former {written.start} bytes"
        undo = Undo(lambda driver: driver.cut_back(guard, path, written), back)
        return _done(path, end, undo, created=False)

    def _keep(self, parent: int, name: str, old: os.stat_result) -> _Former | None:
        """Return the content of a file that is about to be replaced, or None if it cannot be kept."""
        if old.st_size > UNDO_MAX or sum(self._held.copy().values()) + old.st_size > UNDO_TOTAL:
            return None
        try:
            descriptor = open_regular(parent, name, os.O_RDONLY)
        except PermissionError:
            return None
        with closing(descriptor):
            data = read_at(descriptor, UNDO_MAX + 1, 0)
        if len(data) > UNDO_MAX:  # it has grown since
            return None
        former = _Former(data, old)
        self._held[id(former)] = len(data)
        weakref.finalize(former, self._held.pop, id(former)).atexit = False
        return former


@contextlib.contextmanager
def _unchanged(guard: GuardedPaths, path: str, written: _Written) -> Iterator[tuple[int, str]]:
    """Yield parent and name of a file that still ends in the written bytes. Raises DeviceError if it does not."""
    with os_errors(path):
        parent, name = guard.open_parent(path, access="write")
        with closing(parent):
            with closing(open_regular(parent, name, os.O_RDONLY)) as descriptor:
                found = read_at(descriptor, written.size + 1, written.start)
            if _Written.of(found, written.start) != written:
                raise refused(path, errno.ESTALE, "it has changed since this step, and stays so")
            yield parent, name


def _done(path: str, size: int, undo: Undo | None, *, created: bool) -> Done:
    return Done({"path": path, "size": size, "created": created, "reversible": undo is not None}, undo)


def _facts(status: os.stat_result) -> dict[str, Any]:
    return {"type": type_of(status), "size": status.st_size, "mtime": round(status.st_mtime, 3)}


def _entry(directory: int, name: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name.decode("utf-8", "backslashreplace")}
    try:
        entry["name"] = name.decode("utf-8")
    except UnicodeDecodeError:
        entry["name_base64"] = base64.b64encode(name).decode("ascii")
    try:
        entry |= _facts(os.stat(name, dir_fd=directory, follow_symlinks=False))
        if entry["type"] == "symlink":
            entry["target"] = os.readlink(name, dir_fd=directory).decode("utf-8", "backslashreplace")
    except FileNotFoundError:
        raise
    except OSError:
        entry["type"] = "unknown"
    return entry


# The calls beneath `FileDriver`, given the descriptor of the file's directory: temporary files, flushing and the
# translation of OSError. Every name is a last component used without following links; the guard has checked the
# directory before.

_MODE_BITS = 0o777
"""Kept when a file is replaced. Set-user-id is dropped: the new content must not get another user's rights."""
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
    """Return the DeviceError for the kernel's error."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return DeviceError(f"{path}: {error.strerror}", effect=effect, data={"errno": name, "path": path})


def refused(path: str, number: int, reason: str) -> DeviceError:
    """Return the DeviceError for a refusal of our own; its effect is "none"."""
    data = {"errno": errno.errorcode[number], "path": path}
    return DeviceError(f"{path}: {reason}", effect="none", data=data)


def type_of(status: os.stat_result) -> str:
    """Return the type's name in file.list and file.stat."""
    return _TYPES[stat.S_IFMT(status.st_mode)]


def look(path: str, parent: int, name: str) -> os.stat_result | None:
    """Return the file's status, or None. Raises DeviceError unless it is a regular file."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    kind = type_of(status)
    if kind == "symlink":
        raise refused(path, errno.ELOOP, "it is a symbolic link; write to its target")
    if kind == "directory":
        raise refused(path, errno.EISDIR, "it is a directory")
    if kind != "file":
        raise refused(path, errno.EPERM, f"it is a {kind}; only regular files can be written")
    return status


def open_regular(parent: int, name: str, flags: int) -> int:
    """Open the file that `look` has examined; a file put there since is not followed, waited for or written."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EPERM, "not a regular file any more")
    return descriptor


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Return `length` bytes from `offset`, fewer where the file ends."""
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
    """Sync a changed directory to the disk; `directory` may be an O_PATH descriptor.

    A directory that may be searched but not read cannot be synced: the file itself has been.
    """
    try:
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    except PermissionError:
        return
    with closing(readable):
        os.fsync(readable)


def swap_in(parent: int, name: str, data: bytes, like: os.stat_result | None) -> None:
    """Put a new file with `data` in the place of `name` in one step, with owner and permissions of `like`.

    When this raises OSError, `name` is as it was.
    """
    # Its name does not derive from the file's, which may already be as long as a name can be.
    temporary = f".hearth-{os.urandom(8).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o666 if like is None else 0o600, dir_fd=parent)
    try:
        with closing(descriptor):
            write_all(descriptor, data)
            if like is not None:
                if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    with contextlib.suppress(PermissionError):  # only root may give files away
                        os.fchown(descriptor, like.st_uid, like.st_gid)
                os.fchmod(descriptor, like.st_mode & _MODE_BITS)
            os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise
