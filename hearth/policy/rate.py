"""Rate limits per (session, tool) and per (principal, tool) (draft §12): token buckets that are told the time.

A rate "50/s" lets 50 uses pass at once and then one every 20 ms. The same rate bounds one session and all sessions of
one principal together, so that opening more sessions gives no more uses. This module owns the arithmetic and the
buckets; it reads no clock, and does not decide which rate applies to whom (`rules`).
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
MOST_PRINCIPALS = 1024
"""Principals whose uses are counted at once, over all their sessions."""
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

    __slots__ = ("_interval", "_period", "burst", "full_at")

    def __init__(self, rate: Rate) -> None:
        self.burst = rate.count
        self._period = rate.period_s
        self._interval = rate.period_s / rate.count
        self.full_at = -math.inf
        """When it will be full again if nothing else is taken."""

    def peek(self, now: float, n: int = 1) -> float:
        """Seconds until `n` tokens are there: 0.0 if they are, infinity if the bucket never holds so many."""
        if n > self.burst:
            return math.inf
        wait = max(self.full_at, now) + n * self._interval - now - self._period
        return wait if wait > _SLACK_S else 0.0

    def take(self, now: float, n: int = 1) -> float:
        """Take `n` tokens and return 0.0; or take none and return what `peek` says."""
        wait = self.peek(now, n)
        if not wait:
            self.full_at = max(self.full_at, now) + n * self._interval
        return wait

    def put_back(self, n: int = 1) -> None:
        """Undo a `take` of `n`."""
        self.full_at -= n * self._interval


class PrincipalRates:
    """The buckets of all principals, by policy entry; they outlive sessions and are forgotten with the process.

    At most `most` are kept. For one more, those whose buckets are all full are forgotten, which changes nothing; if
    there is none, the one that would be full soonest.
    """

    __slots__ = ("_most", "_used")

    def __init__(self, most: int = MOST_PRINCIPALS) -> None:
        self._most = most
        self._used: dict[tuple[str, str], dict[str, TokenBucket]] = {}

    def __len__(self) -> int:
        return len(self._used)

    def buckets(self, principal: str, policy: str, now: float) -> dict[str, TokenBucket]:
        """The buckets of one principal under one policy entry, by tool. HOT: once per submit."""
        found = self._used.get((principal, policy))
        if found is None:
            if len(self._used) >= self._most:
                self._forget(now)
            found = self._used[principal, policy] = {}
        return found

    def _forget(self, now: float) -> None:
        full_at = {
            key: max((bucket.full_at for bucket in buckets.values()), default=-math.inf)
            for key, buckets in self._used.items()
        }
        soonest = min(full_at, key=lambda key: full_at[key])
        for key in [key for key, at in full_at.items() if at <= now or key == soonest]:
            del self._used[key]


class RateLimits:
    """What one session may use: its own buckets, each made when its tool is first used, and its principal's."""

    __slots__ = ("_buckets", "_policy", "_principal", "_principals", "_rates")

    def __init__(self, grant: Grant, principal: str, principals: PrincipalRates) -> None:
        self._rates = grant.rates
        self._policy = grant.policy
        self._principal = principal
        self._principals = principals
        self._buckets: dict[str, TokenBucket] = {}

    def check(self, counts: Mapping[str, int], now: float) -> tuple[str, float] | None:
        """Take tokens for a submit that uses each tool so often: for all, at both levels, and return None; or none.

        Otherwise returns the tool that has to wait longest, and its seconds: infinity when the submit asks
        for more than the tool's rate ever lets through at once, so that no waiting helps. HOT: once per
        submit.
        """
        levels = (self._buckets, self._principals.buckets(self._principal, self._policy, now))
        wanted = []
        worst: tuple[str, float] | None = None
        for tool, n in counts.items():
            rate = self._rates[tool]
            for buckets in levels:
                bucket = buckets.get(tool)
                if bucket is None:
                    bucket = buckets[tool] = TokenBucket(rate)
                wait = bucket.peek(now, n)
                if wait and (worst is None or wait > worst[1]):
                    worst = (tool, wait)
                wanted.append((bucket, n))
        if worst is None:
            for bucket, n in wanted:
                bucket.take(now, n)
        return worst

    def put_back(self, counts: Mapping[str, int], now: float) -> None:
        """Undo a `check` that returned None, for a submit that was refused later and so has used nothing."""
        for buckets in (self._buckets, self._principals.buckets(self._principal, self._policy, now)):
            for tool, n in counts.items():
                if tool in buckets:
                    buckets[tool].put_back(n)

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
        reason = f"{tool} is limited to {rate}, over all your sessions together: try again in {milliseconds} ms"
        return RateLimited(reason, data={**data, "reason": reason, "retry_after_ms": milliseconds})
