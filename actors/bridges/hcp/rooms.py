"""How many jobs there may be at once: of the daemon, of one principal, and of one capability (L3, concurrent_limit).

Whoever finds no room is told at once, and may come back: nothing queues here.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from hearth.hcp.rejection import Rejection
from hearth.policy.buckets import Buckets, too_often

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.hcp.capability import Capability
    from hearth.policy.rules import Rate

_CURE = "submit it again, with the same message_id, when one of them has ended"


class Rooms:
    """The places, and who has them."""

    def __init__(self, max_jobs: int, max_per_principal: int, rate: Rate) -> None:
        self._max_jobs = max_jobs
        self._max_per_principal = max_per_principal
        self._rate = rate
        self._begun = Buckets(rate)
        self._by_principal: Counter[str] = Counter()
        self._by_capability: Counter[str] = Counter()

    @contextmanager
    def place(self, principal: str) -> Iterator[None]:
        """One of the daemon's places, for a job that runs or waits for a person. Raises Rejection."""
        if (count := self._by_principal[principal]) >= self._max_per_principal:
            raise _full(f"{count} jobs of this principal are under way, and more are not taken")
        if (count := self._by_principal.total()) >= self._max_jobs:
            raise _full(f"{count} jobs are under way, and more are not taken")
        if wait := self._begun.take(principal, trio.current_time()):
            # Each is on record from here on, however soon it ends.
            raise _full(too_often("jobs", self._rate, wait).message)
        with _counted(self._by_principal, principal):
            yield

    def check(self, capability: Capability) -> None:
        """Raises Rejection where the capability could not be used now."""
        if self._by_capability[capability.name] >= capability.concurrent_limit:
            most = f"{capability.concurrent_limit} at a time"
            raise _full(f"{capability.name} is in use: its concurrent_limit is {most}")

    @contextmanager
    def use(self, capability: Capability) -> Iterator[None]:
        """Use a capability. Raises Rejection."""
        self.check(capability)
        with _counted(self._by_capability, capability.name):
            yield


@contextmanager
def _counted(counter: Counter[str], key: str) -> Iterator[None]:
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


def _full(reason: str) -> Rejection:
    return Rejection("resource_unavailable", reason, suggestion=_CURE)
