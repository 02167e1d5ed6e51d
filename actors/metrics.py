"""What has happened in a runtime since it was started, in plain numbers: always counted, whether or not anybody asks.

A tally lies with the journal, which everybody in the house has at hand. Each fact is counted once, by whoever owns it:
steps and tasks by the journal as their records pass, requests by connections, events by histories and those who follow
them. Names come from closed sets (methods, tools, statuses, symbols of errors, carriers), so it cannot grow with what
clients send. It is made of plain dictionaries, because a Counter takes three times as long, and knows no format and no
program that watches: `bridges.http.metrics` is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LATENCY_BOUNDS: Final = (0.000_25, 0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0)
"""Seconds: the upper bounds, inclusive, of the classes that steps are counted in; the last class has none."""


class Latencies:
    """How long the steps of one tool took."""

    __slots__ = ("classes", "seconds")

    def __init__(self) -> None:
        self.classes = [0] * (len(LATENCY_BOUNDS) + 1)
        """How many steps by class, not added up."""
        self.seconds = 0.0
        """The sum."""

    def add(self, seconds: float) -> None:
        """One more step."""
        self.classes[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.seconds += seconds


class Metrics:
    """Counters that only grow, but for `connected`."""

    __slots__ = (
        "connected",
        "connections",
        "events",
        "latencies",
        "records",
        "refused_documents",
        "requests",
        "sent",
        "skipped",
        "steps",
        "tasks",
    )

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Answered requests by method and outcome: "ok" or the symbol of an error."""
        self.refused_documents = 0
        """Documents and members of batches that were answered without having become a request."""
        self.tasks: defaultdict[str, int] = defaultdict(int)
        """Tasks that have ended, by status."""
        self.steps: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Steps that have ended, by tool and status."""
        self.latencies: dict[str, Latencies] = {}
        """By tool."""
        self.records: defaultdict[str, int] = defaultdict(int)
        """Audit records by event."""
        self.events: defaultdict[str, int] = defaultdict(int)
        """Task events by phase, each once however many follow."""
        self.sent = 0
        """Task events that went to somebody who follows, once for each."""
        self.skipped = 0
        """Progress events that a follower was too slow for: they had given way to newer ones."""
        self.connections: defaultdict[str, int] = defaultdict(int)
        """Connections that were let in, by carrier."""
        self.connected: defaultdict[str, int] = defaultdict(int)
        """Those that are there."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Count an audit record, and what it tells of."""
        event = record["event"]
        self.records[event] += 1
        status = record.get("status")
        if status is None:
            return
        if event == "task.step.finish":
            tool = record["tool"]
            self.steps[tool, status] += 1
            latencies = self.latencies.get(tool)
            if latencies is None:
                latencies = self.latencies[tool] = Latencies()
            latencies.add(record["latency_ms"] / 1000)
        elif event == "task.finish":
            self.tasks[status] += 1

    @contextmanager
    def connection(self, carrier: str) -> Iterator[None]:
        """Count a connection while the body runs."""
        self.connections[carrier] += 1
        self.connected[carrier] += 1
        try:
            yield
        finally:
            self.connected[carrier] -= 1
