"""Writing of files so that a crash leaves the old content or the new one, never a part.

Owns the open flags that make sure that a written file is a new one. Blocking; raises OSError.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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
