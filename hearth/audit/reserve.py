"""The reserve of the audit log: a file of a fixed size beside it, whose room is freed when the disk is full.

Work that runs when a disk fills up must still be logged to its end. While the reserve is spent, the log accepts nothing
else; it accepts all records again once the reserve has been refilled. Blocking; used by the log alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from pathlib import Path

    from hearth.audit.writer import Disk


@define(eq=False)
class Reserve:
    """The file at `path`, of `size` bytes (0: there is none)."""

    path: Path
    size: int
    _disk: Disk
    held: bool = field(default=False, init=False)
    """True while the reserve holds its room."""
    spent: bool = field(default=False, init=False)
    """True from when its room was freed until it is held again."""
    problem: str | None = field(default=None, init=False)
    """The reason for a missing reserve."""

    def make(self) -> None:
        """Make the reserve, unless it is there. Raises OSError."""
        try:
            if self.size:
                self._disk.allocate(self.path, self.size)
            else:
                self._disk.free(self.path)
        except OSError as error:
            self.problem = f"{self.path}: cannot be kept: {error.strerror}; free space, or see [audit] reserve_bytes"
            raise
        self.held, self.spent, self.problem = self.size > 0, False, None

    def spend(self) -> None:
        """Free its room, if it is held. Raises OSError."""
        if self.held:
            self._disk.free(self.path)
            self.held, self.spent = False, True
