"""A watch on one file that tells, without polling, when it is removed, moved, or its attributes change (inotify)."""

from __future__ import annotations

import ctypes
import os

_IN_ATTRIB, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x4, 0x400, 0x800


def watch_file(path: str) -> int | None:
    """Return a descriptor that becomes readable then; None where the kernel has no more watches, or no such file."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    # A file that is unlinked while it is open loses a link, which is a change of its attributes.
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF) < 0:
        os.close(descriptor)
        return None
    return descriptor
