"""Opening a path beneath a directory, by one of two mechanisms with one result.

`by_openat2` is for Linux 5.6 and later, `by_walk` for kernels and sandboxes that have no openat2. Both follow symbolic
links that stay beneath the directory. They know descriptors, but no roots, principals or kinds of access.
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
"""Attempts: openat2 fails with EAGAIN when a `..` races with a rename anywhere on the machine."""

Beneath: TypeAlias = "Callable[[int, bytes, int], int]"
"""Opens `path` (relative, without NUL) beneath the directory `root`; the new descriptor is close-on-exec.

Called with (root, path, flags); `flags` are those of open(2), without O_CREAT. Raises OSError: EXDEV for a path that
leaves the root, ELOOP for a magic link or too many links, or the errno of open(2).
"""


def by_openat2(root: int, path: bytes, flags: int, /) -> int:
    """Open as `Beneath`, checked by the kernel in one system call."""
    return _openat2(root, path, flags, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)


def from_cache(root: int, path: bytes, flags: int, /) -> int:
    """Open as `by_openat2`, but never wait for a disk or a server: EAGAIN where it would have to (Linux 5.12)."""
    return _openat2(root, path, flags, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | _RESOLVE_CACHED)


@functools.cache
def works(mechanism: Beneath) -> bool:
    """Return True if this process can use a mechanism: a kernel may be too old for it, or a sandbox forbid it."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(mechanism(root, b".", os.O_PATH))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


def by_walk(root: int, path: bytes, flags: int, /) -> int:
    """Open as `Beneath`, without openat2: each component with O_NOFOLLOW from its directory's descriptor.

    A link's text is walked like the path's own components. No process can swap a directory for a link between a check
    and its use, because the walk enters the very descriptor that it checked. A `..` goes back to the directory that the
    walk came from, and never out of the root.
    """
    todo = _components(path)
    must_be_directory = _names_directory(path) or bool(flags & os.O_DIRECTORY)
    entered = [root]
    links = 0
    try:
        # `todo` is in reverse order, so that the components of a link's target are put before the rest of the path.
        while todo:
            name = todo.pop()
            # Back to a descriptor of this walk. The kernel's own ".." of a directory that is moved in the meantime
            # could lead out of the root.
            if name == b"..":
                if len(entered) == 1:
                    raise _error(errno.EXDEV)
                os.close(entered.pop())
                continue
            seen = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=entered[-1])
            kind = stat.S_IFMT(os.fstat(seen).st_mode)
            if kind == stat.S_IFDIR:
                entered.append(seen)
                continue
            try:
                if kind == stat.S_IFLNK:
                    links += 1
                    target = _target(seen, links)
                    # As in the kernel: a link at the end whose target ends in a slash must lead to a directory.
                    must_be_directory |= not todo and _names_directory(target)
                    todo += _components(target)
                    continue
                if todo or must_be_directory:
                    raise _error(errno.ENOTDIR)
                if flags & os.O_PATH:
                    return os.dup(seen)  # the name may be a link by now
                # By name again, because an O_PATH descriptor cannot be opened for use without /proc. If a link has
                # taken the name since, O_NOFOLLOW refuses it.
                return os.open(name, flags | os.O_NOFOLLOW, dir_fd=entered[-1])
            finally:
                os.close(seen)
        return os.open(b".", flags, dir_fd=entered[-1])
    finally:
        for descriptor in entered[1:]:
            os.close(descriptor)


def _target(link: int, links: int) -> bytes:
    """Return where a link leads, as one of so many on the way."""
    target = os.readlink(b"", dir_fd=link)
    if links > _MAX_LINKS:
        raise _error(errno.ELOOP)
    # As RESOLVE_BENEATH: an absolute target leaves the root, even if it would come back to it.
    if target.startswith(b"/"):
        raise _error(errno.EXDEV)
    return target


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
