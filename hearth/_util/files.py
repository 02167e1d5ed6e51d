"""Writing files so that a crash leaves the old content or the new one, never a part.

Owns the flags by which a file that is written is one of our own making. Blocking; raises OSError.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def write_new(path: Path, content: bytes, mode: int, *, sync: bool = True) -> None:
    """Write a file that is not there yet; with `sync` its content is on the disk on return.

    On an error the file is removed again.
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
    """Put a new file in the place of the old one, whole or not at all.

    The draft beside it is `PATH.next`: one process at a time may do this.
    """
    draft = path.with_name(f"{path.name}.next")
    draft.unlink(missing_ok=True)  # a crash's, or another user's: what is written must be a file of our own making
    write_new(draft, content, mode, sync=sync)
    draft.replace(path)
