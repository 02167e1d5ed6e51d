"""The holds of a halt, and the latch: the file `<audit log>.halt` that keeps them over restarts.

Theory of operation. A daemon that finds the file at its start is halted, whatever the file contains: one that is empty
or damaged is a halt of unknown reason. `save` replaces the whole file, `remove` ends the halt.

A full disk. `open` makes a spare file beside the latch, with its blocks allocated. `save` overwrites the spare, syncs
it and gives it the name of the latch, for which the disk needs no free block, and makes the next spare. Without a
spare `save` writes a new file, and if not even that has room, it leaves an empty file.

`save` and `remove` work in a thread, one at a time and in the order of the calls, also if their caller was cancelled.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import asdict, fields, frozen

from hearth._util.files import replace_file
from hearth._util.formats import check_format
from hearth.audit.record import timestamp
from hearth.audit.writer import Disk, sync_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VERSION: Final = 2
"""Of the format. Version 1, which is read too, has `since`, `reason` and `by` of a single hold."""
MOST_TEXT: Final = 256
MOST_BYTES: Final = 1 << 20
"""Bytes of a latch file that are read."""
SPARE_BYTES: Final = 1 << 16
"""The size of the spare file: room for some 60 holds with long reasons."""


@frozen
class Hold:
    """What one principal, of the kind `source`, holds the daemon halted for: the first reason and the last, with times.

    `count` is the number of its halts, and `generation` the number of the last of them among all halts.
    """

    source: str
    by: str
    reason: str
    since: str
    last_reason: str
    last: str
    count: int
    generation: int

    @classmethod
    def read(cls, content: dict[str, Any]) -> Hold:
        """Return a hold from JSON, of version 1 too. Raises KeyError and TypeError."""
        if "source" not in content:
            by, reason, since = str(content["by"]), content["reason"], content["since"]
            source = "input" if by.startswith("input ") else "fleet" if by.startswith("amqp:") else "person"
            content = {**content, "source": source, "last_reason": reason, "last": since, "count": 1, "generation": 1}
        members: dict[str, Any] = {one.name: content[one.name] for one in fields(cls)}
        if any(type(members[one.name]).__name__ != one.type for one in fields(cls)):
            raise TypeError("a member has another type")
        return cls(**members)


class Latch:
    """The latch file. Without a path nothing is kept beyond the process."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.found: tuple[Hold, ...] = ()
        """The holds that an earlier run has left."""
        # A limiter of its own: threads of other components that hang on a disk must not delay the latch.
        self._limiter = trio.CapacityLimiter(1)

    def open(self, now: float) -> list[str]:
        """Read the file of an earlier run into `found`; return notes for a person. Blocking.

        `now` is in epoch seconds. Raises ConfigError for the file of a newer release.
        """
        if self.path is None:
            return []
        notes = []
        try:
            self.found = _read(self.path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else "its content is damaged"
            reason = f"the latch {self.path} cannot be read: {why}"
            self.found = (Hold("hearthd", "hearthd", reason, since := timestamp(now), reason, since, 1, 1),)
        cure = "`hearth halt reset` ends it when the cause is gone"
        notes += [f"starting halted, since {one.since} by {one.by}: {one.last_reason}; {cure}" for one in self.found]
        try:
            Disk().allocate(spare_of(self.path), SPARE_BYTES)
        except OSError as error:
            notes.append(
                f"no spare latch {spare_of(self.path)}: {error.strerror}; on a full disk a halt loses its reason"
            )
        return notes

    async def save(self, holds: Sequence[Hold]) -> bool:
        """Write the file durably; return False if the disk had room for an empty one only. Raises OSError."""
        if self.path is None:
            return True
        return await trio.to_thread.run_sync(_save, self.path, holds, abandon_on_cancel=True, limiter=self._limiter)

    async def remove(self) -> None:
        """Remove the file durably. Raises OSError."""
        if self.path is not None:
            await trio.to_thread.run_sync(_remove, self.path, abandon_on_cancel=True, limiter=self._limiter)


def spare_of(path: Path) -> Path:
    """Return the path of the spare file of a latch."""
    return path.with_name(f"{path.name}.spare")


def _read(path: Path) -> tuple[Hold, ...]:
    """Return the content of a latch file; () if there is no file.

    Raises OSError, also for a path that is not a regular file or is empty, and ValueError, KeyError and TypeError.
    """
    try:
        path.lstat()  # a link that leads nowhere is no absence
    except FileNotFoundError:
        return ()
    # Without O_NONBLOCK a pipe would hold up the start for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        text = file.read(MOST_BYTES)
    if not text:
        raise OSError(errno.ENODATA, "it is empty, as a full disk leaves it")
    content: Any = orjson.loads(text)
    if not isinstance(content, dict):
        raise TypeError("not an object")
    cure = "move it away when the cause of the halt is gone"
    check_format(f"latch {path}", content.get("version"), VERSION, cure)
    holds = content.get("holds", [content])
    if not holds:
        raise ValueError("no hold")
    return tuple(Hold.read(one) for one in holds)


def _save(path: Path, holds: Sequence[Hold]) -> bool:
    content = orjson.dumps({"version": VERSION, "holds": [asdict(one) for one in holds]}) + b"\n"
    spare, whole = spare_of(path), True
    try:
        _overwrite(spare, content)
        spare.replace(path)
    except OSError:
        try:
            replace_file(path, content, 0o600, sync=True)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Also in place of older holds: a halt of unknown reason is not the fleet's to end.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            whole = False
    sync_directory(path.parent)
    with suppress(OSError):
        Disk().allocate(spare, SPARE_BYTES)
    return whole


def _overwrite(path: Path, content: bytes) -> None:
    """Write over a file that exists, and cut and sync it. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.truncate()
        os.fsync(descriptor)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_directory(path.parent)
    with suppress(OSError):
        Disk().allocate(spare_of(path), SPARE_BYTES)
