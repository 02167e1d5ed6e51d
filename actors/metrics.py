"""Counters of a runtime since its start, always kept, in plain numbers.

The journal owns the `Metrics` object, because every actor can reach the journal. Each fact is counted once, by the
component that owns it: records, steps and tasks by the journal, requests by connections, events by histories and send
queues. Names come from closed sets (methods, tools, statuses, symbols of errors, carriers), so memory does not grow
with what clients send. Plain dictionaries, because a Counter takes three times as long. This module knows no exposition
format; `bridges.http.metrics` writes one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

LATENCY_BOUNDS: Final = (0.000_25, 0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0)
"""Seconds: the inclusive upper bounds of the histogram's classes; one more class has no bound."""


class Latencies:
    """A histogram of the durations of one tool's steps."""

    __slots__ = ("classes", "seconds")

    def __init__(self) -> None:
        self.classes = [0] * (len(LATENCY_BOUNDS) + 1)
        """The number of steps in each class, not cumulative."""
        self.seconds = 0.0
        """The sum of all durations, in seconds."""

    def add(self, seconds: float) -> None:
        """Count one step."""
        self.classes[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self.seconds += seconds


class _Connected:
    """One connection while it is counted: no generator, because every idle connection has one of these."""

    __slots__ = ("_carrier", "_metrics")

    def __init__(self, metrics: Metrics, carrier: str) -> None:
        self._metrics = metrics
        self._carrier = carrier

    def __enter__(self) -> None:
        self._metrics.connections[self._carrier] += 1
        self._metrics.connected[self._carrier] += 1

    def __exit__(self, *_: object) -> None:
        self._metrics.connected[self._carrier] -= 1


@define(eq=False)
class Metrics:
    """Counters that only grow, and the gauge `connected`."""

    requests: Counter[tuple[str, str]] = field(factory=Counter, init=False)
    """Answered requests by method and outcome: "ok" or the symbol of an error."""
    refused_documents: int = field(default=0, init=False)
    """Documents and members of batches that were answered with an error before they became a request."""
    tasks: Counter[str] = field(factory=Counter, init=False)
    """Tasks that have ended, by status."""
    steps: Counter[tuple[str, str]] = field(factory=Counter, init=False)
    """Steps that have ended, by tool and status."""
    latencies: dict[str, Latencies] = field(factory=dict, init=False)
    """Durations of steps, by tool."""
    records: Counter[str] = field(factory=Counter, init=False)
    """Audit records by event."""
    events: Counter[str] = field(factory=Counter, init=False)
    """Task events by phase, each counted once for any number of subscribers."""
    sent: int = field(default=0, init=False)
    """Task events that were sent, counted once for each subscriber."""
    skipped: int = field(default=0, init=False)
    """Progress events that a slow subscriber missed, because newer ones had replaced them."""
    connections: Counter[str] = field(factory=Counter, init=False)
    """Accepted connections, by carrier."""
    connected: Counter[str] = field(factory=Counter, init=False)
    """Open connections, by carrier."""

    def count(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count audit records, and the steps and tasks whose ends they report."""
        for record in records:
            event = record["event"]
            self.records[event] += 1
            status = record.get("status")
            if status is None:
                continue
            if event == "task.step.finish":
                tool = record["tool"]
                self.steps[tool, status] += 1
                latencies = self.latencies.get(tool)
                if latencies is None:
                    latencies = self.latencies[tool] = Latencies()
                latencies.add(record["latency_ms"] / 1000)
            elif event == "task.finish":
                self.tasks[status] += 1

    def connection(self, carrier: str) -> AbstractContextManager[None]:
        """Count a connection while the body runs."""
        return _Connected(self, carrier)
