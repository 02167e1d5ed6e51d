"""Identifiers for sessions and tasks: ULIDs whose randomness comes from the system's CSPRNG (draft §2.3; design §8)."""

from __future__ import annotations

from ulid import ULID


def new_id() -> str:
    """A fresh identifier: 26 characters of Crockford's base32, sortable by the millisecond it was made in."""
    return str(ULID())
