"""The hash chain: `Chain` seals one record after the other. Owns the head and nothing else: no file, no clock.

Each line carries `prev`, the SHA-256 of the line before it (its exact bytes, without the LF), so that a line
cannot be changed, removed, inserted or moved without breaking every line that follows.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeAlias

from hearth.audit.record import Record, encode, timestamp

GENESIS = "sha256:" + "0" * 64
"""`prev` of the first record of all."""

Head: TypeAlias = tuple[int, str]
"""The last record: its `seq` (0: there is none yet) and the hash of its line."""


class Chain:
    """The head of a log, and the pen that writes the next line.

    `seq` and `prev` are those of the last record sealed: (0, GENESIS) for a new log.
    """

    __slots__ = ("_at", "_ts", "prev", "seq")

    def __init__(self, seq: int = 0, prev: str = GENESIS) -> None:
        self.seq = seq
        self.prev = prev
        self._at, self._ts = 0.0, timestamp(0.0)

    @property
    def head(self) -> Head:
        """The last record sealed."""
        return (self.seq, self.prev)

    def seal(self, record: Record, at: float) -> bytes:
        """Return the next line, LF included, and make it the head. `at` is in epoch seconds. Never raises."""
        seq = self.seq + 1
        if at != self._at:  # records that are reported together share their moment
            self._at, self._ts = at, timestamp(at)
        line = encode(seq, self._ts, record, self.prev)
        self.seq = seq
        self.prev = "sha256:" + sha256(line).hexdigest()
        return line + b"\n"
