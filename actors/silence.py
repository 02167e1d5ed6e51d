"""How long a session has been silent, and whether that is too long (design §4, §8).

Two clocks, and no timer of its own. The deadman counts requests only. The idle time-to-live also counts from the end of
the last subscription, because until then somebody was listening; a running task alone does not keep a session.
"""

from __future__ import annotations


class Silence:
    """Times are Trio's, in seconds; `heartbeat_ms` None: no deadman."""

    __slots__ = ("_heartbeat_ms", "_opened_at", "_ttl", "followed_at", "heard_at", "until")

    def __init__(self, ttl: float, heartbeat_ms: float | None, now: float) -> None:
        self._ttl = ttl
        self._heartbeat_ms = heartbeat_ms
        self._opened_at = self.heard_at = self.followed_at = now
        """When somebody was last heard of, and when somebody was last known to listen."""
        self.until = now
        """When to look again, as of the last look."""

    @property
    def unbroken(self) -> bool:
        """True if nobody has been heard of since the session was opened."""
        return self.heard_at == self._opened_at

    def too_long(self, now: float, *, followed: bool) -> str | None:
        """Why the session must be closed, or None; `followed`: somebody listens at this moment."""
        heartbeat = self._heartbeat_ms
        due = self.heard_at + (self._ttl if heartbeat is None else heartbeat / 1000)
        if heartbeat is not None and now >= due:
            return f"no heartbeat within {heartbeat} ms"
        if followed:
            self.followed_at = now
        idle_at = max(self.heard_at, self.followed_at) + self._ttl
        if now >= idle_at:
            return "idle"
        self.until = idle_at if heartbeat is None else min(due, idle_at)
        return None
