"""The identity of a process: its user and groups, its capabilities, and the ban on new privileges.

This module owns the ways to give these up, none of which can be undone. It decides nothing.
"""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from hearth._util.files import closing
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION = 0x20080522
CAPABILITIES: Final = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "SETPCAP": 8,
}  # fmt: skip
"""Capabilities that a plan may name, by the kernel's numbers."""


class ProcessIdentity(NamedTuple):
    """A user, with the groups it is in."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def find_user(name: str) -> ProcessIdentity:
    """Return a user of this machine. Raises ConfigError."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(
            f"[sandbox] user: there is no user {name!r}; create it with `useradd --system {name}`"
        ) from None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return ProcessIdentity(entry.pw_name, entry.pw_uid, entry.pw_gid, tuple(sorted(groups)))


def become(who: ProcessIdentity) -> None:
    """Become this user, in its groups and no other, for good. Takes root. Raises OSError."""
    # In this order: each call takes root's powers, which the last one gives up. The saved ids change too, so that there
    # is no way back.
    os.setgroups(who.groups)
    os.setresgid(who.gid, who.gid, who.gid)
    os.setresuid(who.uid, who.uid, who.uid)


def in_words(who: ProcessIdentity) -> str:
    """Return the user and its groups, in words."""
    names = []
    for gid in who.groups:
        with suppress(KeyError):
            names.append(grp.getgrgid(gid).gr_name)
    return f"{who.name} ({', '.join(names) or 'no group'})"


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _prctl(option: int, value: int = 0) -> int:
    zero = ctypes.c_ulong(0)
    return _checked(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero))


def no_new_privs() -> None:
    """Forbid new privileges: programs that run from now on get no more than this process, not even by set-uid bits."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def bound_capabilities(keep: Collection[str]) -> None:
    """Reduce the bounding set to these, as far as permitted (it takes root): no program can get others."""
    kept = {CAPABILITIES[name] for name in keep}
    if _capabilities()[0].permitted & 1 << CAPABILITIES["SETPCAP"]:
        for number in range(64):
            with suppress(OSError):  # past the last one that this kernel knows
                if number not in kept and _prctl(_PR_CAPBSET_READ, number):
                    _prctl(_PR_CAPBSET_DROP, number)
    with suppress(OSError):  # older than Linux 4.3, which has no ambient ones
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def keep_capabilities(keep: Collection[str]) -> None:
    """Give up all capabilities but these, for this process and all that it starts. Raises OSError."""
    bound_capabilities(keep)
    low, high = _capabilities()
    left = low.permitted & sum(1 << CAPABILITIES[name] for name in keep)
    wanted = ((left, left, 0), (0, 0, 0))
    if [(half.effective, half.permitted, half.inheritable) for half in (low, high)] != list(wanted):
        header = _Header(_CAPABILITY_VERSION, 0)
        sets = (_Sets * 2)(*(_Sets(*half) for half in wanted))
        _checked(_libc.capset(ctypes.byref(header), ctypes.byref(sets)))


def _capabilities() -> tuple[_Sets, _Sets]:
    """Return the capabilities of this process: the lower 32 of each set, and the upper."""
    header = _Header(_CAPABILITY_VERSION, 0)
    sets = (_Sets * 2)()
    _checked(_libc.capget(ctypes.byref(header), ctypes.byref(sets)))
    return sets[0], sets[1]


def make_over(paths: Iterable[Path], to: ProcessIdentity) -> None:
    """Give root's files, and directories with their content, to a user. Absent ones are skipped.

    Links are not followed, and files with another name elsewhere are skipped: neither is root's to give here. Raises
    OSError.
    """
    for path in paths:
        with suppress(FileNotFoundError):
            _make_over(str(path), None, to)


def _make_over(name: str, directory: int | None, to: ProcessIdentity) -> None:
    status = os.lstat(name) if directory is None else os.stat(name, dir_fd=directory, follow_symlinks=False)
    folder = stat.S_ISDIR(status.st_mode)
    if not folder and not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
        return
    # By descriptor from here on: the daemon's user may be able to replace the name. O_NONBLOCK: by a FIFO, too.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with closing(os.open(name, flags | (os.O_DIRECTORY if folder else 0), dir_fd=directory)) as fd:
        now = os.fstat(fd)
        if not os.path.samestat(now, status):
            return  # it was replaced while we looked
        if folder:
            for inner in os.listdir(fd):  # noqa: PTH208 - by descriptor
                _make_over(inner, fd, to)
        # A second link may be the name of another program's file.
        if now.st_uid == 0 and (folder or now.st_nlink == 1):
            os.fchown(fd, to.uid, to.gid)
