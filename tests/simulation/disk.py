"""The disk under a world's audit log: it fills and frees, fails, is slow, and tells the tape what it took.

Owns which file is which, however it is renamed. It stands where `hearth.audit.writer.Disk` stands, and knows nothing of
records. After the machine was switched off (`dead`) it takes nothing any more.
"""

from __future__ import annotations

import errno
import os

from hearth.audit.writer import Disk


class WorldDisk(Disk):
    """`room` bytes are left (None: as many as you like); `fails` maps the name of a call to the errno it ends in."""

    def __init__(self, tell) -> None:
        self._tell = tell
        self.room: int | None = None
        self.fails: dict[str, int] = {}
        self.dead = False
        self._reserved = 0
        """Bytes of the log's reserve."""
        self._names: dict[int, str] = {}
        self._sizes: dict[str, int] = {}

    def name(self, fd) -> str:
        """What the tape calls the file: its name follows it through a rotation."""
        inode = os.fstat(fd).st_ino
        if inode not in self._names:
            self._names[inode] = f"audit.log#{len(self._names)}"
        return self._names[inode]

    def _look(self, fd, call) -> str:
        if self.dead:
            raise OSError(errno.EIO, "the machine is off")
        name = self.name(fd)
        number = self.fails.get(call)
        if number is not None:
            self._tell("disk.fails", file=name, call=call, errno=number)
            raise OSError(number, os.strerror(number))
        return name

    def write(self, fd, data, /):
        """Write what there is room for."""
        name = self._look(fd, "write")
        if self.room is not None:
            if not self.room:
                self._tell("disk.fails", file=name, call="write", errno=errno.ENOSPC)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: self.room]
            self.room -= len(data)
        count = os.write(fd, data)
        self._sizes[name] = self._sizes.get(name, 0) + count
        self._tell("disk.write", file=name, data=bytes(data[:count]))
        return count

    def sync(self, fd, /):
        """Tell that what was written is safe now."""
        name = self._look(fd, "sync")
        self._tell("disk.sync", file=name)

    def truncate(self, fd, size, /):
        """Cut the file, which gives no room back."""
        name = self._look(fd, "truncate")
        os.ftruncate(fd, size)
        self._sizes[name] = size
        self._tell("disk.cut", file=name, size=size)

    def allocate(self, _path, size, /) -> None:
        """Keep room for the reserve, unless it has it."""
        if self.room is not None:
            if self.room + self._reserved < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= size - self._reserved
        self._reserved = size

    def free(self, _path, /) -> None:
        """Give back the room of the reserve."""
        if self.room is not None:
            self.room += self._reserved
        self._reserved = 0

    def found(self, path) -> None:
        """A new life has opened the log, and may have cut what was no record: tell so."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            name, size = self.name(fd), os.fstat(fd).st_size
            if size < self._sizes.get(name, 0):
                self._sizes[name] = size
                self._tell("disk.cut", file=name, size=size)
        finally:
            os.close(fd)
