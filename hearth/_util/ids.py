"""Identifiers for sessions and tasks: ULIDs whose randomness comes from the system's CSPRNG (draft §2.3; design §8)."""

from __future__ import annotations

import os
import time

from ulid.base32 import encode


def new_id() -> str:
    """A fresh identifier: 26 characters of Crockford's base32, sortable by the millisecond it was made in."""
    # The library's own constructor costs ten times this, on the path of every task, for an order within the millisecond
    # that nobody relies on.
    return encode((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10))
