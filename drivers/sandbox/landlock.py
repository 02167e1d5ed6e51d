"""Landlock: the files, devices, ports and processes that the kernel lets this thread, and its children, use.

This module owns the three system calls and their structures (linux/landlock.h), and the rights that each version of the
interface knows. It decides nothing.

Theory of operation. A ruleset is made with the rights that it handles. Each rule grants some of them over one file, or
a directory and all beneath it. `enforce` puts the ruleset in force: from then on each handled right that no rule grants
is denied, for this thread and all that it starts, for good. A later ruleset can only deny more. Rights that the
kernel's version does not know cannot be handled, and so stay allowed; `enforce.confine` reports that. A rule refers to
the file and not to its name: another file that takes the name later is not covered.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from enum import IntFlag
from typing import TYPE_CHECKING, Final, Self

from hearth._util.files import closing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The same on every architecture that Python runs on."""
_VERSION = 1
_PATH_BENEATH = 1
NEWEST: Final = 7
"""The newest version of the interface that this module knows; of a newer one this much is used."""


class Fs(IntFlag):
    """Rights over files, as the kernel numbers them."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


_OF_A_FILE = Fs.EXECUTE | Fs.WRITE_FILE | Fs.READ_FILE | Fs.TRUNCATE | Fs.IOCTL_DEV
"""The rights that a rule on something else than a directory may have."""
_NET_PORT = 2
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_TCP = _BIND_TCP | _CONNECT_TCP
ABSTRACT_UNIX_SOCKETS, SIGNALS = 1 << 0, 1 << 1
"""Scopes: objects outside the domain that may not be used from within."""


class _RulesetAttr(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class _NetPortAttr(ctypes.Structure):
    _fields_ = (("allowed_access", ctypes.c_uint64), ("port", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)
_enforced: list[Fs] = []
"""The rights that rules of this process cover, for each time that some were put in force."""


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def version() -> int:
    """Return the kernel's version of the interface, at most NEWEST. Raises OSError; see `why_not`."""
    return min(_call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)), NEWEST)


def in_force() -> bool:
    """Return True if this process has put rules in force."""
    return bool(_enforced)


def why_not(error: OSError) -> str:
    """Return why there is no Landlock here, and the cure."""
    if error.errno == errno.ENOSYS:
        return "this kernel has no Landlock; it takes Linux 5.13 or later, built with CONFIG_SECURITY_LANDLOCK"
    if error.errno == errno.EOPNOTSUPP:
        return "Landlock is switched off at boot; put landlock first in the kernel's parameter lsm="
    return f"the kernel refuses Landlock: {error.strerror}"


def known_rights(abi: int) -> Fs:
    """Return the rights over files that a version of the interface knows."""
    # The kernel numbers the rights in the order of their versions: a version knows all up to its last one.
    last = Fs.MAKE_SYM if abi < 2 else Fs.REFER if abi < 3 else Fs.TRUNCATE if abi < 5 else Fs.IOCTL_DEV
    return Fs(2 * last - 1)


class Ruleset:
    """A set of rules, to be put in force once. Use as a context manager.

    All rights over files that version `abi` knows are denied where no rule grants them, with `tcp` TCP's bind and
    connect altogether, and the `scopes`.
    """

    def __init__(self, abi: int, scopes: int = 0, *, tcp: bool = True) -> None:
        self.rights = known_rights(abi)
        self._ports = tcp and abi >= 4
        attr = _RulesetAttr(int(self.rights), _TCP if self._ports else 0, scopes if abi >= 6 else 0)
        # An older kernel takes a shorter structure.
        size = 8 if abi < 4 else 16 if abi < 6 else 24
        self._fd = _call(_CREATE_RULESET, ctypes.byref(attr), ctypes.c_size_t(size), ctypes.c_uint32(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def allow(self, path: Path | str, rights: Fs) -> None:
        """Grant rights over what is at `path` now, links followed, and all beneath it. Raises OSError."""
        with closing(os.open(path, os.O_PATH | os.O_CLOEXEC)) as fd:
            # The kernel refuses a rule with a right that does not fit the file, or that the ruleset does not handle.
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= _OF_A_FILE
            rights &= self.rights
            if rights:
                attr = _PathBeneathAttr(int(rights), fd)
                _call(
                    _ADD_RULE, ctypes.c_int(self._fd), ctypes.c_int(_PATH_BENEATH), ctypes.byref(attr),
                    ctypes.c_uint32(0),
                )  # fmt: skip

    def allow_connect(self, port: int) -> None:
        """Grant connecting to a TCP port of any host; nothing where the rules do not cover TCP. Raises OSError."""
        if self._ports:
            attr = _NetPortAttr(_CONNECT_TCP, port)
            _call(
                _ADD_RULE, ctypes.c_int(self._fd), ctypes.c_int(_NET_PORT), ctypes.byref(attr), ctypes.c_uint32(0)
            )  # fmt: skip

    def allow_all(self, rules: Iterable[tuple[Path, Fs]]) -> list[tuple[Path, str]]:
        """Grant all rules that can be granted; return the paths that cannot, with the reason."""
        failed = []
        for path, rights in rules:
            try:
                self.allow(path, rights)
            except OSError as error:
                failed.append((path, error.strerror or str(error)))
        return failed

    def enforce(self) -> None:
        """Put the rules in force for this thread and all that it starts. Takes no_new_privs. Raises OSError."""
        _call(_RESTRICT_SELF, ctypes.c_int(self._fd), ctypes.c_uint32(0))
        # Remembered here, because a process cannot ask the kernel which rules hold for it.
        _enforced.append(self.rights)
