"""The table of running jobs, their quota, and the messages of each session (L3, concurrent_limit).

Submissions and the hcp.* methods share one `JobTable`. A submission over the quota is rejected at once, and may be sent
again: no submission queues here.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import trio

from hearth.actors.bridges.hcp.event_stream import MessageLog
from hearth.hcp.messages import Rejection
from hearth.policy.rules import Buckets, too_often

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.actors.bridges.hcp.job import RunningJob
    from hearth.actors.bridges.hcp.services import Services
    from hearth.hcp.capability import Capability
    from hearth.policy.principal import Principal
    from hearth.policy.rules import Rate

_CURE = "submit it again, with the same message_id, when one of them has ended"


class JobQuota:
    """The number of running jobs per principal and per capability, and the limits on them."""

    def __init__(self, max_jobs: int, max_per_principal: int, rate: Rate) -> None:
        self._max_jobs = max_jobs
        self._max_per_principal = max_per_principal
        self._rate = rate
        self._begun = Buckets(rate)
        self._by_principal: Counter[str] = Counter()
        self._by_capability: Counter[str] = Counter()

    @contextmanager
    def for_principal(self, principal: str) -> Iterator[None]:
        """Hold one slot for a job that runs or waits for an approval. Raises Rejection if no slot is free."""
        if (count := self._by_principal[principal]) >= self._max_per_principal:
            raise _full(f"{count} jobs of this principal are under way, and more are not taken")
        if (count := self._by_principal.total()) >= self._max_jobs:
            raise _full(f"{count} jobs are under way, and more are not taken")
        if wait := self._begun.take(principal, trio.current_time()):
            # Each job is audited from here on, however soon it ends: hence a rate limit.
            raise _full(too_often("jobs", self._rate, wait).message)
        with _counted(self._by_principal, principal):
            yield

    def check(self, capability: Capability) -> None:
        """Raise Rejection if `concurrent_limit` jobs of the capability run already."""
        if self._by_capability[capability.name] >= capability.concurrent_limit:
            most = f"{capability.concurrent_limit} at a time"
            raise _full(f"{capability.name} is in use: its concurrent_limit is {most}")

    @contextmanager
    def for_capability(self, capability: Capability) -> Iterator[None]:
        """Hold one slot of a capability's `concurrent_limit`. Raises Rejection if none is free."""
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


class JobTable:
    """The running jobs of one daemon. `services` is what all of them use."""

    def __init__(self, services: Services) -> None:
        self.services = services
        settings = services.settings
        self.quota = JobQuota(settings.max_jobs, settings.max_jobs_per_principal, services.rate)
        self.running: dict[str, RunningJob] = {}
        """The jobs that run or are being ended, by session id."""
        self.closing = False
        """True once no more jobs are accepted."""
        self._ended: WeakValueDictionary[str, MessageLog] = WeakValueDictionary()

    async def messages_of(self, session_id: str, owner: Principal) -> MessageLog | None:
        """Return a session's messages, running or ended; None if they are no longer kept.

        The bytes read from the job store are charged to `owner`, the session's principal. Raises JobStoreError.
        """
        job = self.running.get(session_id)
        if job is not None:
            return job.events.message_log
        if (message_log := self._ended.get(session_id)) is not None:
            return message_log
        lines = await self.services.job_store.message_log(session_id)
        if not lines:
            return None
        # One copy in memory, however many connections follow it.
        account = self.services.memory.for_principal(owner.key)
        message_log = MessageLog(lines, ended=True, metrics=self.services.journal.metrics, account=account)
        return self._ended.setdefault(session_id, message_log)
