"""Rate limits per session and tool (draft §12): token buckets that are told the time.

A rate "50/s" lets 50 uses pass at once and then one every 20 ms. This module owns the arithmetic and a
session's buckets; it reads no clock, and does not decide which rate applies to whom (`rules`).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from attrs import frozen

from hearth.errors import ConfigError, RateLimited

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.policy.rules import Grant

_FORM = re.compile(r"([0-9]{1,6})/([0-9]{0,6})([smh])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_SLACK_S = 1e-6
"""Whoever waits exactly as long as told gets through, although sums of floats are a little off."""


@frozen
class Rate:
    """At most `count` uses in `period_s` seconds on average, and at most `count` at once."""

    count: int
    period_s: int

    @classmethod
    def parse(cls, text: object) -> Rate:
        """Read "50/s", "10/m", "5/h" or "100/10s". Raises ConfigError for anything else."""
        match = _FORM.match(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(f'rate {text!r}: expected uses per time: "50/s", "10/m", "5/h" or "100/10s"')
        count, period = int(match[1]), int(match[2] or 1) * _SECONDS[match[3]]
        if count == 0:
            raise ConfigError(f"rate {text!r}: lets nothing through; to forbid a tool leave it out of tools")
        if period == 0:
            raise ConfigError(f"rate {text!r}: the time must be longer than zero")
        return cls(count, period)

    def __str__(self) -> str:
        return f"{self.count}/{'' if self.period_s == 1 else self.period_s}s"


class TokenBucket:
    """One rate being used up. Its whole state is the moment at which it will be full again."""

    __slots__ = ("_full_at", "_interval", "_period", "burst")

    def __init__(self, rate: Rate) -> None:
        self.burst = rate.count
        self._period = rate.period_s
        self._interval = rate.period_s / rate.count
        self._full_at = -math.inf

    def peek(self, now: float, n: int = 1) -> float:
        """Seconds until `n` tokens are there: 0.0 if they are, infinity if the bucket never holds so many."""
        if n > self.burst:
            return math.inf
        wait = max(self._full_at, now) + n * self._interval - now - self._period
        return wait if wait > _SLACK_S else 0.0

    def take(self, now: float, n: int = 1) -> float:
        """Take `n` tokens and return 0.0; or take none and return what `peek` says."""
        wait = self.peek(now, n)
        if not wait:
            self._full_at = max(self._full_at, now) + n * self._interval
        return wait

    def put_back(self, n: int = 1) -> None:
        """Undo a `take` of `n`."""
        self._full_at -= n * self._interval


class RateLimits:
    """The buckets of one session, each made when its tool is first used."""

    __slots__ = ("_buckets", "_rates")

    def __init__(self, grant: Grant) -> None:
        self._rates = grant.rates
        self._buckets: dict[str, TokenBucket] = {}

    def check(self, counts: Mapping[str, int], now: float) -> tuple[str, float] | None:
        """Take tokens for a submit that uses each tool so often: for all and return None, or for none.

        Otherwise returns the tool that has to wait longest, and its seconds: infinity when the submit asks
        for more than the tool's rate ever lets through at once, so that no waiting helps. HOT: once per
        submit.
        """
        rates = self._rates
        if not rates:
            return None
        wanted = []
        worst: tuple[str, float] | None = None
        for tool, n in counts.items():
            if tool not in rates:
                continue
            bucket = self._buckets.get(tool)
            if bucket is None:
                bucket = self._buckets[tool] = TokenBucket(rates[tool])
            wait = bucket.peek(now, n)
            if wait and (worst is None or wait > worst[1]):
                worst = (tool, wait)
            wanted.append((bucket, n))
        if worst is None:
            for bucket, n in wanted:
                bucket.take(now, n)
        return worst

    def put_back(self, counts: Mapping[str, int]) -> None:
        """Undo a `check` that returned None, for a submit that was refused later and so has used nothing."""
        for tool, n in counts.items():
            if tool in self._buckets:
                self._buckets[tool].put_back(n)

    def refusal(self, tool: str, wait_s: float) -> RateLimited:
        """The error for what `check` returned.

        `data` has tool, rate, reason and, unless no waiting helps, retry_after_ms (rounded up).
        """
        rate = self._rates[tool]
        data = {"tool": tool, "rate": str(rate)}
        if math.isinf(wait_s):
            reason = f"one task may use {tool} at most {rate.count} times (rate {rate}): submit smaller tasks"
            return RateLimited(reason, data={**data, "reason": reason})
        milliseconds = math.ceil(wait_s * 1000)
        reason = f"{tool} is limited to {rate} in this session: try again in {milliseconds} ms"
        return RateLimited(reason, data={**data, "reason": reason, "retry_after_ms": milliseconds})
