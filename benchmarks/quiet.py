"""Taking figures on a machine that others use too: turns that others disturbed are repeated, within reason.

A turn is judged by the CPU time that neither this process nor the servers under test used in it, never by its figures,
so leaving turns out favours nobody.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Generic, TypeVar

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.servers import Server

T = TypeVar("T")

QUIET = 0.1
"""CPUs that others may use in a quiet turn."""
REPEATS = 3
"""At most so many times as many turns as asked for, unless asked for otherwise."""
_TICK = 100
"""Per second: the unit of /proc/stat, fixed in the kernel's interface."""


@frozen
class Turns(Generic[T]):
    """The turns that were kept, in the order they were taken."""

    kept: list[T]
    others: float
    """The median over the kept turns of how many CPUs others used."""


def quietest(
    turn: Callable[[int], T], count: int, servers: Iterable[Server] = (), *, repeats: int = REPEATS
) -> Turns[T]:
    """Take turns until `count` were quiet, or until there are `repeats` times as many; keep the `count` quietest."""
    taken: list[tuple[float, int, T]] = []
    servers = list(servers)
    while len(taken) < count * repeats and sum(others < QUIET for others, _, _ in taken) < count:
        begun, busy, ours = time.perf_counter(), _busy(), _ours(servers)
        outcome = turn(len(taken))
        seconds = time.perf_counter() - begun
        others = max(0.0, (_busy() - busy - (_ours(servers) - ours)) / seconds)
        taken.append((others, len(taken), outcome))
    kept = sorted(taken, key=lambda one: one[0])[:count]
    kept.sort(key=lambda one: one[1])
    return Turns([outcome for _, _, outcome in kept], median(others for others, _, _ in kept))


def _busy() -> float:
    """CPU seconds that this machine has been busy, or kept waiting by its host, since it started."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICK


def _ours(servers: list[Server]) -> float:
    """CPU seconds of this process, of its children that have ended, and of the servers that run."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage) + sum(server.cpu_seconds() for server in servers)
