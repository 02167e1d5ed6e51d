"""Writing of files so that a crash leaves the old content or the new one, never a part; reading of trusted files.

Owns the open flags that make sure that a written file is a new one. Blocking; raises OSError.

`ownership_fault` checks whether untrusted users could replace files in a directory, there or on the path to it
(decision 0093). It examines owners, modes and links, as `namei -l` does, and returns the fault and its cure in words.
It refuses and changes nothing: the daemon refuses, for socket, log and halt latch, and `hearth doctor` reports.

`read_file` opens every file that decides what the daemon does: configuration, board profile, DBC and capability files,
certificates, keys (decision 0156). It examines the descriptor that it reads from, so that no other user can change what
is read between the check and the reading. Within `noting` the files that it reads are noted, for attestation.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
import time
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def write_new(path: Path, content: bytes, mode: int, *, sync: bool = True) -> None:
    """Write a file that does not exist yet; with `sync` its content is on the disk on return.

    Removes the file again on an error.
    """
    descriptor = os.open(path, _NEW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes, mode: int, *, sync: bool) -> None:
    """Replace a file by a new one, whole or not at all.

    The new content is first written to `PATH.next`, so only one process at a time may do this.
    """
    draft = path.with_name(f"{path.name}.next")
    draft.unlink(missing_ok=True)  # it may be left from a crash, or be another user's: write a new file only
    write_new(draft, content, mode, sync=sync)
    draft.replace(path)


MOST_LINKS = 40
"""Limit of symbolic links on the path; the kernel has the same."""
_ACL = "system.posix_acl_access"


LARGEST = 16 * 1024 * 1024
_NULL = os.makedev(1, 3)


_noted: ContextVar[set[Path] | None] = ContextVar("hearth_files_noted", default=None)


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of a block."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def noting() -> Iterator[None]:
    """Note the files that `read_file` reads in the block, but for private and secret ones.

    Within another such block it is that one that notes them. Also a decorator, of a function whose body is the block.
    """
    if _noted.get() is not None:
        yield
        return
    token = _noted.set(set())
    try:
        yield
    finally:
        _noted.reset(token)


def noted() -> Collection[Path]:
    """Return the files that were read in this `noting` block; it grows. Raises AssertionError outside of one."""
    found = _noted.get()
    assert found is not None, "files are noted in a `noting` block"
    return found


def read_file(
    path: Path,
    *,
    trusted: Collection[int] | None,
    most: int = LARGEST,
    private: bool = False,
    secret: bool = False,
) -> tuple[bytes, os.stat_result]:
    """Return the content of a regular file of at most `most` bytes, and its status.

    Raises OSError if it cannot be opened or read, and ConfigError, with path and cure, for a file that may not be used:
    one that a user could change who is neither root nor in `trusted` (None: any user may), and, if `private`, one that
    others can read. A group may read a private file of root's, such as Debian's ssl-cert: root chose its members.
    """
    # A FIFO in its place must not hold up the daemon, nor a terminal become its own.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL:
            return b"", status  # /dev/null: what others write to it is not there
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is not a regular file; name another one")
        others = 0o037 if status.st_uid == 0 else 0o077
        if private and status.st_mode & others:
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(f"{path} lets others use the key (mode {mode:04o}); `chmod {0o677 & ~others:o} {path}`")
        if trusted is not None and (fault := _file_fault(path, status, trusted)) is not None:
            raise ConfigError(fault)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(most + 1)
    finally:
        os.close(descriptor)
    if not (private or secret) and (read := _noted.get()) is not None:
        read.add(path.absolute())
    if len(data) > most:
        raise ConfigError(f"{path} has more than {most} bytes; name another file")
    return data, status


READINGS = 20


def read_settled(
    path: Path, *, trusted: Collection[int] | None, pause: Callable[[], None] = lambda: time.sleep(0.05)
) -> bytes:
    """Return the content of a file that is not being written: two readings, with a `pause` between them, are the same.

    Raises as `read_file`, and ConfigError if the file is still another after many readings.
    """
    former, content = None, b""
    for _ in range(READINGS):
        content, status = read_file(path, trusted=trusted)
        reading = (content, status.st_ino, status.st_mtime_ns)
        if reading == former:
            return content
        former = reading
        pause()
    raise ConfigError(f"{path} is being written; try again when that has ended")


def _file_fault(path: Path, status: os.stat_result, trusted: Collection[int]) -> str | None:
    """Return why the file that `status` is of could be another user's, or None."""
    try:
        fault = ownership_fault(path, trusted)
        if fault is None and not os.path.samestat(status, path.stat()):
            fault = f"{path} was replaced while it was read; try again"
    except OSError as error:
        fault = f"{error.filename} cannot be examined: {error.strerror}; let uid {os.geteuid()} examine it"
    return fault


def ownership_fault(directory: Path, trusted: Collection[int], *, may_be_missing: bool = False) -> str | None:
    """Return why users that are not `trusted` could replace files in `directory`, with the cure, or None if none can.

    `trusted` has uids; root is always trusted. Only trusted users may write in the directory itself. On the path to it,
    a sticky directory such as /tmp is acceptable if its entry on the path belongs to a trusted user. A file in the
    place of the directory is examined in the same way. Raises OSError if a part of the path cannot be examined, also if
    it does not exist, unless it `may_be_missing`.
    """
    _overflow_uid()
    trusted = {0, *trusted}
    place, links = Path("/"), 0
    ahead = list(reversed(directory.absolute().parts[1:]))
    while True:
        status = place.stat()
        if not _is_trusted(status.st_uid, trusted):
            can = "change it" if stat.S_ISREG(status.st_mode) else "put another one in its place"
            user = _user(status.st_uid)
            return f"{place} belongs to {user}, who could {can}; `chown root {place}`, or choose another"
        writers, sticky = _writers(place, status, trusted), status.st_mode & stat.S_ISVTX
        if not ahead:
            return writers
        step = place / ahead.pop()
        try:
            found = step.lstat()
        except FileNotFoundError:
            if not may_be_missing:
                raise
            return None if sticky else writers
        if writers is not None:
            if not sticky:
                return writers
            if not _is_trusted(found.st_uid, trusted):
                user = _user(found.st_uid)
                return f"{step} belongs to {user}, in a directory that others can write to; choose another"
        if not stat.S_ISLNK(found.st_mode):
            place = step
            continue
        links += 1
        if links > MOST_LINKS:
            return f"{directory} leads through more than {MOST_LINKS} links; choose another"
        target = step.readlink()
        if target.is_absolute():
            place, target = Path("/"), target.relative_to("/")
        ahead += reversed(target.parts)


def _writers(place: Path, status: os.stat_result, trusted: Collection[int]) -> str | None:
    if status.st_mode & stat.S_IWOTH:
        if status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode):
            return (
                f"{place} is writable by every user, who could create the file first; "
                f"choose a directory of its own: {place}/hearth, say"
            )
        return f"{place} is writable by every user; `chmod o-w {place}`"
    if status.st_mode & stat.S_IWGRP and not _all_members_trusted(place, status.st_gid, trusted):
        return f"{place} is writable by the members of {_group(status.st_gid)}; `chmod g-w {place}`"
    return None


def _all_members_trusted(place: Path, gid: int, trusted: Collection[int]) -> bool:
    """Return True if all members of a group are trusted: many systems give each user a group of its own."""
    try:
        # With an access control list, the mode's group bits are only the upper bound for the users and groups in it.
        os.getxattr(place, _ACL)
    except OSError:
        pass
    else:
        return False
    names = {entry.pw_name for entry in pwd.getpwall() if entry.pw_uid in trusted}
    members = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == gid}
    # A gid without a group entry has no further members.
    with contextlib.suppress(KeyError):
        members.update(grp.getgrgid(gid).gr_mem)
    return members <= names


def _is_trusted(uid: int, trusted: Collection[int]) -> bool:
    """Return True for a trusted user, and for the overflow uid: a user namespace shows it for owners from outside."""
    return uid in trusted or uid == _overflow_uid()


@cache  # a confined daemon cannot read these files, and a reload examines paths again
def _overflow_uid() -> int | None:
    with contextlib.suppress(OSError):
        begins, _, count = Path("/proc/self/uid_map").read_text("utf-8").split()[:3]
        if (begins, count) != ("0", "4294967295"):
            return int(Path("/proc/sys/kernel/overflowuid").read_text("utf-8"))
    return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    try:
        return f"the group {grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"group {gid}"
