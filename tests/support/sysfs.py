"""What the kernel has of a class of devices, read while adapters of other tests come and go."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def named(directory: str | Path) -> dict[str, str]:
    """The kernel's names of a class's devices, by entry; one that goes while it is looked at is left out."""
    found = {}
    for entry in Path(directory).iterdir():
        with suppress(OSError):
            found[entry.name] = (entry / "name").read_text().strip()
    return found
