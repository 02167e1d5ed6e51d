"""What a process does to the files of one directory: every call that changes them, on a tape, and death at one of them.

`Calls` stands between a program and the calls by which Python changes files: open, write, fsync, fdatasync, ftruncate,
rename, link, unlink, mkdir. Each call on a path beneath `root` is a point; points are numbered from 1. The process can
be made to kill itself (SIGKILL, no handler, no cleaning up) before the n-th, after it, or in the middle: for a write,
with half of its bytes in the file. What was done stands on the tape, one JSON line for each call, appended in one
write: the tape outlives the process, and others append to it too, so that its order is the order of things.

Files that Python's own `open` would change from C are opened with `_pyio` instead, which makes the same calls from
Python. It does not see what libraries do by themselves: SQLite's files are not beneath its eyes.
"""

from __future__ import annotations

import _pyio
import base64
import builtins
import io
import json
import os
import signal
import threading
from typing import Any

MOMENTS = ("before", "middle", "after")


def say(tape: int, **entry: Any) -> None:
    """Append one line to a tape, whole."""
    os_write(tape, json.dumps(entry, separators=(",", ":")).encode() + b"\n")


os_write = os.write
os_open = os.open


class Calls:
    """The calls of this process beneath `root`, from `install` on; see the module."""

    def __init__(self, tape: int, root: str, at: int = 0, moment: str = "after") -> None:
        self.count = 0
        self._tape, self._root, self._at, self._moment = tape, root, at, moment
        self._files: dict[int, tuple[str, str]] = {}
        self._directories: dict[int, str] = {}
        self._opened = 0
        self._lock = threading.RLock()

    def install(self) -> None:
        """Stand in the way of the calls of this process, for ever."""
        for name in ("open", "close", "write", "fsync", "fdatasync", "ftruncate", "mkdir", "unlink", "link"):
            setattr(self, f"_os_{name}", getattr(os, name))
            setattr(os, name, getattr(self, name))
        os.remove = self.unlink
        self._os_rename = os.rename
        os.rename = os.replace = self.rename
        self._io_open = io.open
        io.open = builtins.open = self.open_file

    # --- the points

    def _point(self, kind: str, path: str, act: Any, entry: Any, half: Any = None) -> Any:
        with self._lock:
            self.count += 1
            here = self.count == self._at
            # What the kernel does whole has no middle.
            moment = "after" if self._moment == "middle" and half is None else self._moment
            if here and moment == "before":
                self._die(kind, path, moment)
            if here and moment == "middle":
                act = half
            result = act()
            say(self._tape, op=kind, **entry(result))
            if here:
                self._die(kind, path, moment)
            return result

    def _die(self, kind: str, path: str, moment: str) -> None:
        say(self._tape, killed=self.count, at=kind, path=path, moment=moment)
        os.kill(os.getpid(), signal.SIGKILL)
        while True:
            signal.pause()

    def _mine(self, path: Any) -> bool:
        if isinstance(path, int):
            return path in self._files
        text = os.fspath(path)
        return isinstance(text, str) and (text == self._root or text.startswith(self._root + "/"))

    # --- the calls

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_DIRECTORY and dir_fd is None and self._root.startswith(os.fspath(path)):
            # The directory itself, or one above it, in which its name is.
            fd = self._os_open(path, flags)
            self._directories[fd] = os.fspath(path)
            return fd
        if dir_fd is not None or not self._mine(path):
            return self._os_open(path, flags, mode, dir_fd=dir_fd)
        path = os.fspath(path)
        self._opened += 1
        handle = f"{os.getpid()}-{self._opened}"
        new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        if new or flags & os.O_TRUNC:
            fd = self._point(
                "create",
                path,
                lambda: self._os_open(path, flags, mode),
                lambda _: {"path": path, "handle": handle, "new": new, "mode": mode, "empty": bool(flags & os.O_TRUNC)},
            )
        else:
            fd = self._os_open(path, flags, mode)
            if flags & (os.O_WRONLY | os.O_RDWR):
                say(self._tape, op="open", path=path, handle=handle)
        self._files[fd] = (handle, path)
        return fd

    def close(self, fd: int) -> None:
        self._files.pop(fd, None)
        self._directories.pop(fd, None)
        self._os_close(fd)

    def open_file(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, (str, int, os.PathLike)) and set(mode) & set("wax+") and self._mine(file):
            return _pyio.open(file, mode, *args, **kwargs)
        return self._io_open(file, mode, *args, **kwargs)

    def write(self, fd: int, data: Any) -> int:
        if fd not in self._files:
            return self._os_write(fd, data)
        handle, path = self._files[fd]
        data = bytes(data)
        offset = os.lseek(fd, 0, os.SEEK_CUR)
        # A file that is appended to is written at its end, wherever its position is.
        if _appends(fd):
            offset = os.fstat(fd).st_size
        return self._point(
            "write",
            path,
            lambda: self._os_write(fd, data),
            lambda done: {"handle": handle, "offset": offset, "data": base64.b64encode(data[:done]).decode()},
            lambda: self._os_write(fd, data[: len(data) // 2]),
        )

    def _sync(self, fd: int, call: Any) -> None:
        if fd in self._files:
            handle, path = self._files[fd]
            self._point("sync", path, lambda: call(fd), lambda _: {"handle": handle})
        elif fd in self._directories:
            path = self._directories[fd]
            self._point("sync directory", path, lambda: call(fd), lambda _: {"path": path})
        else:
            call(fd)

    def fsync(self, fd: int) -> None:
        self._sync(fd, self._os_fsync)

    def fdatasync(self, fd: int) -> None:
        self._sync(fd, self._os_fdatasync)

    def ftruncate(self, fd: int, size: int) -> None:
        if fd not in self._files:
            return self._os_ftruncate(fd, size)
        handle, path = self._files[fd]
        act = lambda: self._os_ftruncate(fd, size)  # noqa: E731
        return self._point("truncate", path, act, lambda _: {"handle": handle, "size": size})

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None or not self._mine(path):
            return self._os_mkdir(path, mode, dir_fd=dir_fd)
        path = os.fspath(path)
        return self._point("mkdir", path, lambda: self._os_mkdir(path, mode), lambda _: {"path": path})

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None or not self._mine(path) or not os.path.lexists(path):
            return self._os_unlink(path, dir_fd=dir_fd)
        path = os.fspath(path)
        return self._point("unlink", path, lambda: self._os_unlink(path), lambda _: {"path": path})

    def rename(self, old: Any, new: Any, **where: Any) -> None:
        if where or not self._mine(new):
            return self._os_rename(old, new, **where)
        old, new = os.fspath(old), os.fspath(new)
        for fd, (handle, path) in list(self._files.items()):
            if path == old:
                self._files[fd] = (handle, new)
        return self._point("rename", new, lambda: self._os_rename(old, new), lambda _: {"old": old, "new": new})

    def link(self, old: Any, new: Any, **where: Any) -> None:
        if where or not self._mine(new):
            return self._os_link(old, new, **where)
        old, new = os.fspath(old), os.fspath(new)
        return self._point("link", new, lambda: self._os_link(old, new), lambda _: {"old": old, "new": new})


def _appends(fd: int) -> bool:
    import fcntl

    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND)
