"""Identifiers for sessions and tasks: ULIDs whose randomness comes from the system's CSPRNG (draft §2.3)."""

from __future__ import annotations

import os
import time

from ulid.base32 import encode


def new_id() -> str:
    """Return a new identifier: 26 characters of Crockford's base32, sortable by the millisecond of its creation."""
    # The library's own constructor takes ten times as long, on the path of every task, to order identifiers within a
    # millisecond. Hearth does not rely on that order.
    return encode((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10))
