"""Records of refusals: one by one up to a rate for each principal, above it as a count.

A refused request costs its caller nothing, so one record for each would let any caller fill the disk. Above the rate,
and while the log cannot be written, refusals are counted by error code. Every `INTERVAL_S`, and at the end of the
runtime, the counts become one `audit.refusals` record for each principal and event, so every refusal is accounted for.
A daemon that is killed loses the counts of the last interval.

Peers that failed to authenticate share one count for each carrier, because an attacker chooses its addresses.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio
from attrs import Factory, define, field

from hearth.audit.record import timestamp
from hearth.policy.rules import MOST_NAMES, Buckets, Rate, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.actors.journal import Journal

INTERVAL_S: Final = 60.0
"""Seconds between two records of the counts."""
ADDRESS_RATE: Final = Rate(10, 60)
"""The rate at which failed authentications of one address are recorded singly: ten at once, then one in 6 seconds."""
TOTAL_RATE: Final = Rate(60, 60)
"""The same for all addresses together."""


class _Key(NamedTuple):
    """The key of a count: the event, and the principal or the carrier (None: all others)."""

    event: str
    field: str
    who: str | None


@define
class _Count:
    since: float
    count: int = 0
    codes: Counter[str] = Factory(Counter)


@define(eq=False)
class Refusals:
    """The refusals of one runtime. `rate` is for each principal and event; `clock` gives epoch seconds."""

    _journal: Journal
    _rate: Rate
    _clock: Callable[[], float]
    _buckets: dict[str, Buckets] = field(factory=dict, init=False)
    _addresses: Buckets = field(factory=lambda: Buckets(ADDRESS_RATE), init=False)
    _all_addresses: TokenBucket = field(factory=lambda: TokenBucket(TOTAL_RATE), init=False)
    _counts: dict[_Key, _Count] = field(factory=dict, init=False)
    _counted: trio.Event = field(factory=trio.Event, init=False)

    def admit(self, event: str, principal: str, code: object) -> bool:
        """Return True if the caller is to record this refusal; otherwise count it. HOT: called in floods."""
        if self._journal.failure is None:
            buckets = self._buckets.get(event)
            if buckets is None:
                buckets = self._buckets[event] = Buckets(self._rate)
            if not buckets.take(principal, trio.current_time()):
                return True
        self._count(_Key(event, "principal", principal), code)
        return False

    def admit_unauthenticated(self, event: str, carrier: str, peer: str) -> bool:
        """Do as `admit` for a peer that failed to authenticate."""
        now = trio.current_time()
        if (
            self._journal.failure is None
            and not self._addresses.take(f"{carrier} {peer}", now)
            and not self._all_addresses.take(now)
        ):
            return True
        self._count(_Key(event, "carrier", carrier), None)
        return False

    def _count(self, key: _Key, code: object) -> None:
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= MOST_NAMES:
                key = key._replace(who=None)
            found = self._counts.setdefault(key, _Count(self._clock()))
            self._counted.set()
        found.count += 1
        if code is not None:
            found.codes[str(code)] += 1

    def flush(self) -> None:
        """Record the counts and reset them."""
        counts, self._counts = self._counts, {}
        for key, found in counts.items():
            record: dict[str, Any] = {"event": "audit.refusals", "of": key.event}
            if key.who is not None:
                record[key.field] = key.who
            record["count"] = found.count
            record["since"] = timestamp(found.since)
            if found.codes:
                record["codes"] = dict(found.codes)
            self._journal.post(record)

    async def run(self) -> None:
        """Record the counts every `INTERVAL_S`, until cancelled; while the log cannot be written, go on counting."""
        while True:
            await self._counted.wait()
            await trio.sleep(INTERVAL_S)
            if self._journal.failure is None:
                self._counted = trio.Event()
                self.flush()
