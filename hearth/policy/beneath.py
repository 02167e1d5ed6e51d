"""Opening a path that must stay beneath a directory: two mechanisms, one verdict.

`by_openat2` lets the kernel decide (Linux 5.6 and later); `by_walk` does the same by hand, one component at a
time, for kernels and sandboxes that have no openat2. Both follow symbolic links that stay beneath the
directory, and fail with EXDEV for a path that leads out of it (a `..` too many, an absolute link) and with
ELOOP for a magic link of /proc or too many links. This module knows descriptors and nothing of roots,
principals or access.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import struct
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

_SYS_OPENAT2 = 437
"""The same number on every architecture, like all system calls since 5.1."""
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
_RESOLVE_CACHED = 0x20
_MAX_LINKS = 40
"""The kernel's own limit (path_resolution(7))."""
_ATTEMPTS = 128
"""A `..` that races with a rename anywhere on the machine makes openat2 ask to be called again."""

Beneath: TypeAlias = "Callable[[int, bytes, int], int]"
"""Opens `path` (relative, without NUL) beneath the directory `root`; the new descriptor is close-on-exec.

Called with (root, path, flags); `flags` are those of open(2), without O_CREAT. Raises OSError: EXDEV and ELOOP as
above, or what open(2) says.
"""


def by_openat2(root: int, path: bytes, flags: int, /) -> int:
    """`Beneath`, decided by the kernel in one system call."""
    return _openat2(root, path, flags, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)


def from_cache(root: int, path: bytes, flags: int, /) -> int:
    """`by_openat2` that never waits for a disk or a server: EAGAIN where it would have to (Linux 5.12)."""
    return _openat2(root, path, flags, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | _RESOLVE_CACHED)


@functools.cache
def works(mechanism: Beneath) -> bool:
    """Whether this process can use a mechanism: a kernel may be too old for it, or a sandbox forbid it."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(mechanism(root, b".", os.O_PATH))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


def by_walk(root: int, path: bytes, flags: int, /) -> int:
    """`Beneath`, by hand: every component is opened with O_NOFOLLOW from its directory's descriptor.

    A link's text is walked like the path's own components, so nobody can swap a directory for a link between
    the look and the step: what is entered is the descriptor that was looked at. A `..` goes back to the
    directory the walk came from, and out of the root never.
    """
    todo = _components(path)
    must_be_directory = _names_directory(path)
    entered: list[int] = []
    links = 0
    try:
        while todo:
            name = todo.pop()
            if name == b"..":
                if not entered:
                    raise _error(errno.EXDEV)
                os.close(entered.pop())
                continue
            here = entered[-1] if entered else root
            seen = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=here)
            kind = stat.S_IFMT(os.fstat(seen).st_mode)
            if kind == stat.S_IFDIR:
                entered.append(seen)
                continue
            try:
                if kind == stat.S_IFLNK:
                    links += 1
                    target = os.readlink(b"", dir_fd=seen)
                    if links > _MAX_LINKS:
                        raise _error(errno.ELOOP)
                    if target.startswith(b"/"):
                        raise _error(errno.EXDEV)
                    must_be_directory |= not todo and _names_directory(target)
                    todo += _components(target)
                    continue
                if todo or must_be_directory or flags & os.O_DIRECTORY:
                    raise _error(errno.ENOTDIR)
                if flags & os.O_PATH:
                    return os.dup(seen)  # the name may be a link by now
                return os.open(name, flags | os.O_NOFOLLOW, dir_fd=here)
            finally:
                os.close(seen)
        return os.open(b".", flags, dir_fd=entered[-1] if entered else root)
    finally:
        for descriptor in entered:
            os.close(descriptor)


def _components(path: bytes) -> list[bytes]:
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]


def _names_directory(path: bytes) -> bool:
    return path.endswith((b"/", b"/."))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _openat2(root: int, path: bytes, flags: int, resolve: int) -> int:
    flags |= os.O_CLOEXEC
    if not flags & os.O_PATH:
        flags |= os.O_LARGEFILE  # openat2 adds nothing by itself; 32-bit machines need it beyond 2 GiB
    call, errno_of_call = _syscall()
    how = struct.pack("=QQQ", flags, 0, resolve)
    number = errno.EAGAIN
    for _ in range(1 if resolve & _RESOLVE_CACHED else _ATTEMPTS):
        descriptor = call(_SYS_OPENAT2, root, path, how, len(how))
        if descriptor >= 0:
            return descriptor
        number = errno_of_call()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise _error(number)


@functools.cache
def _syscall() -> tuple[Callable[[int, int, bytes, bytes, int], int], Callable[[], int]]:
    import ctypes  # not at the top: a process without file roots does without it

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
    return call, ctypes.get_errno
