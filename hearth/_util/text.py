"""Suggestions of the nearest known names, for messages about an unknown name.

Identifiers for sessions and tasks: ULIDs whose randomness comes from the system's CSPRNG (draft §2.3).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ulid.base32 import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

def suggest(name: str, known: Iterable[str], *, most: int = 1, show: Callable[[str], str] = str) -> str:
    """Return "did you mean NAME?", with up to `most` near names, each as `show` writes it; "" where none is near."""
    from difflib import get_close_matches  # 5 ms, and only when something is misspelt

    near = get_close_matches(name, list(known), most)
    return f"did you mean {', '.join(map(show, near))}?" if near else ""


def new_id() -> str:
    """Return a new identifier: 26 characters of Crockford's base32, sortable by the millisecond of its creation."""
    # The library's own constructor takes ten times as long, on the path of every task, to order identifiers within a
    # millisecond. Hearth does not rely on that order.
    return encode((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10))
