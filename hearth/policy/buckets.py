"""Token buckets of one rate for many names: made when a name is first used, deleted when full again.

Names come from outside (principals, addresses), so their number is bounded. This module reads no clock.
"""

from __future__ import annotations

import math
from typing import Final

from hearth.errors import RateLimited
from hearth.policy.rules import Rate, TokenBucket

MOST_NAMES: Final = 1000
"""Names that have a bucket of their own. Further names share one bucket."""


def too_often(what: str, rate: Rate, wait_s: float) -> RateLimited:
    """Return the error for a principal that has to wait `wait_s` seconds."""
    milliseconds = math.ceil(wait_s * 1000)
    reason = f"{what} of one principal are limited to {rate}: try again in {milliseconds} ms"
    return RateLimited(reason, data={"rate": str(rate), "reason": reason, "retry_after_ms": milliseconds})


class Buckets:
    """Token buckets of one rate, by name."""

    __slots__ = ("_buckets", "_others", "_rate")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._buckets: dict[str, TokenBucket] = {}
        self._others = TokenBucket(rate)

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float) -> float:
        """Take a token of this name and return 0.0; or take none and return the seconds until one is there."""
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= MOST_NAMES:
                self.forget(now)
            if len(self._buckets) >= MOST_NAMES:
                return self._others.take(now)
            bucket = self._buckets[name] = TokenBucket(self._rate)
        return bucket.take(now)

    def forget(self, now: float) -> None:
        """Delete the buckets that are full again: a new bucket is equal to them."""
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.peek(now, bucket.burst)}
