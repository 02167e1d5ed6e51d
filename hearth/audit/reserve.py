"""The reserve: a file of a fixed size beside the log whose room is given up when the disk is full.

What runs when a disk fills up must still be told to its end. While the reserve is spent, the log takes nothing but
that; it counts as written again once the reserve has been made anew. Blocking; used by the log alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hearth.audit.disk import Disk


class Reserve:
    """The file at `path`, of `size` bytes (0: there is none)."""

    __slots__ = ("_disk", "held", "path", "size", "spent", "trouble")

    def __init__(self, path: Path, size: int, disk: Disk) -> None:
        self.path = path
        self.size = size
        self.held = False
        """True while there is room to give up."""
        self.spent = False
        """True from when its room was given up until it is there again."""
        self.trouble: str | None = None
        """Why there is none although there should be."""
        self._disk = disk

    def make(self) -> None:
        """Make it, unless it is there. Raises OSError."""
        try:
            if self.size:
                self._disk.allocate(self.path, self.size)
            else:
                self._disk.free(self.path)
        except OSError as error:
            self.trouble = f"{self.path}: cannot be kept: {error.strerror}; free space, or see [audit] reserve_bytes"
            raise
        self.held, self.spent, self.trouble = self.size > 0, False, None

    def spend(self) -> None:
        """Give its room up, if it is held. Raises OSError."""
        if self.held:
            self._disk.free(self.path)
            self.held, self.spent = False, True
