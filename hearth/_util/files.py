"""Writing of files so that a crash leaves the old content or the new one, never a part.

Owns the open flags that make sure that a written file is a new one. Blocking; raises OSError.

A check whether untrusted users could replace files in a directory, there or on the path to it (decision 0093).

It examines owners, modes and links, as `namei -l` does, and returns the fault and its cure in words. It refuses and
changes nothing: the daemon refuses, for its socket, and `hearth doctor` reports.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

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


def ownership_fault(directory: Path, trusted: Collection[int]) -> str | None:
    """Return why users that are not `trusted` could replace files in `directory`, with the cure, or None if none can.

    `trusted` has uids; root is always trusted. Only trusted users may write in the directory itself. On the path to it,
    a sticky directory such as /tmp is acceptable if its entry on the path belongs to a trusted user. Raises OSError
    if a part of the path cannot be examined.
    """
    trusted = {0, *trusted}
    place, links = Path("/"), 0
    ahead = list(reversed(directory.absolute().parts[1:]))
    while True:
        status = place.stat()
        if status.st_uid not in trusted and not _is_overflow_uid(status.st_uid):
            return f"{place} belongs to {_user(status.st_uid)}, who could put another one in its place; choose another"
        writers = _writers(place, status, trusted)
        if not ahead:
            return writers
        step = place / ahead.pop()
        found = step.lstat()
        if writers is not None and not status.st_mode & stat.S_ISVTX:
            return writers
        if writers is not None and found.st_uid not in trusted and not _is_overflow_uid(found.st_uid):
            return f"{step} belongs to {_user(found.st_uid)}, in a directory that others can write to; choose another"
        if not stat.S_ISLNK(found.st_mode):
            place = step
            continue
        links += 1
        if links > MOST_LINKS:
            return f"{directory} leads through more than {MOST_LINKS} links; choose another"
        target = step.readlink()
        ahead += reversed([part for part in target.parts if part != "/"])
        if target.is_absolute():
            place = Path("/")


def _writers(place: Path, status: os.stat_result, trusted: Collection[int]) -> str | None:
    if status.st_mode & stat.S_IWOTH:
        if status.st_mode & stat.S_ISVTX:
            return (
                f"{place} is writable by every user, who could create the socket first; "
                f"choose a directory of its own: {place}/NAME/hearth.sock, say"
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


def _is_overflow_uid(uid: int) -> bool:
    """Return True for the overflow uid, inside a user namespace: the kernel shows it for owners from outside, as root.

    Raises OSError.
    """
    if uid != int(Path("/proc/sys/kernel/overflowuid").read_text("utf-8")):
        return False
    begins, _, count = Path("/proc/self/uid_map").read_text("utf-8").split()[:3]
    return (begins, count) != ("0", "4294967295")


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
