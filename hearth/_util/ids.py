"""Identifiers: ULIDs for sessions and tasks, by the system's CSPRNG (draft §2.3), and that of the machine's boot."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
"""The two characters of each number of ten bits."""


def boot_id() -> str:
    """Return the kernel's identifier of this boot of the machine."""
    # UTF-8 is always there; another codec is a module, which a process that changed its user may not be able to load.
    return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()


def new_id() -> str:
    """Return a new identifier: 26 characters of Crockford's base32, sortable by the millisecond of its creation."""
    # A library's constructor takes ten times as long, on the path of every task, to order identifiers within a
    # millisecond. Hearth does not rely on that order.
    ms, chance, pairs = time.time_ns() // 1_000_000, int.from_bytes(os.urandom(10), "big"), _PAIRS
    return (
        f"{pairs[ms >> 40]}{pairs[ms >> 30 & 1023]}{pairs[ms >> 20 & 1023]}{pairs[ms >> 10 & 1023]}{pairs[ms & 1023]}"
        f"{pairs[chance >> 70]}{pairs[chance >> 60 & 1023]}{pairs[chance >> 50 & 1023]}{pairs[chance >> 40 & 1023]}"
        f"{pairs[chance >> 30 & 1023]}{pairs[chance >> 20 & 1023]}{pairs[chance >> 10 & 1023]}{pairs[chance & 1023]}"
    )
