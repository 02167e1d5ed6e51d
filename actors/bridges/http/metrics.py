"""/metrics: the figures of the runtime's metrics, buses and journal at the time of a scrape, for Prometheus.

This module counts nothing and keeps nothing between two scrapes: every figure is read from its owner. Label values come
from closed sets (the registry's tools, the board's buses, methods, statuses, error symbols, carriers), never from a
client's input. So the number of series depends on the board alone.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, get_args

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.routing import Route

from hearth._version import __version__
from hearth.actors.bus.actor import BusState
from hearth.actors.metrics import LATENCY_BOUNDS
from hearth.protocol.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from hearth.actors.metrics import Metrics
    from hearth.actors.runtime import Runtime
    from hearth.actors.service import Figure, Service

PATH: Final = "/metrics"
OPEN_METRICS: Final = "application/openmetrics-text"
ENDS: Final = ("SUCCESS", "FAILED", "CANCELLED")
"""The final states of tasks and steps."""
PHASES: Final = ("start", "progress", "finish", "task_finish")
_HEADERS = {"Cache-Control": "no-store", "Vary": "Accept"}


def routes(runtime: Runtime) -> list[Route]:
    """Return the route of /metrics: text format 0.0.4 or, if Accept names it, OpenMetrics 1.0.0.

    Raises ValueError if two metrics have the same name.
    """
    registry = CollectorRegistry(auto_describe=True)
    registry.register(RuntimeCollector(runtime))
    ProcessCollector(registry=registry)

    async def metrics(request: Request) -> Response:
        # The library raises for a header that it does not understand, so it gets one of two fixed values.
        wanted = wants_open_metrics(request.headers.get("accept", ""))
        encode, kind = choose_encoder(f"{OPEN_METRICS}; version=1.0.0" if wanted else "")
        return Response(encode(registry), headers={**_HEADERS, "Content-Type": kind})

    return [Route(PATH, metrics)]


def wants_open_metrics(accept: str) -> bool:
    """Return True if an Accept header names OpenMetrics with a weight that is not 0."""
    for accepted in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in accepted.split(";"))
        if kind == OPEN_METRICS and not any(parameter.rstrip("0.") == "q=" for parameter in parameters):
            return True
    return False


class RuntimeCollector(Collector):
    """A runtime's figures, read in one turn of the event loop: they are consistent with each other."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        metrics = self._runtime.parts.journal.metrics
        yield InfoMetricFamily(
            "hearth_build", "What runs here", {"version": __version__, "board": self._runtime.parts.board.name}
        )
        yield from self._work(metrics)
        halted = self._runtime.halt.flag.halted
        yield GaugeMetricFamily("hearth_halted", "1 while the daemon is halted: nothing with an effect begins", halted)
        yield from self._buses()
        yield from _events(metrics)
        yield from self._audit(metrics)
        yield from self._clients(metrics)
        for name, service in self._runtime.extras.items():
            yield from self._runtime.ask_extra(name, partial(_figures, name, service)) or ()

    def _work(self, metrics: Metrics) -> Iterator[Metric]:
        tasks = CounterMetricFamily("hearth_tasks", "Tasks that have ended, by status", labels=["status"])
        for status in ENDS:
            tasks.add_metric([status], metrics.tasks.get(status, 0))
        yield tasks
        live = metrics.records.get("task.submit", 0) - metrics.records.get("task.finish", 0)
        yield GaugeMetricFamily("hearth_tasks_live", "Tasks that were accepted and have not ended", live)
        steps = CounterMetricFamily(
            "hearth_steps", "Steps that have ended, by tool and status", labels=["tool", "status"]
        )
        for tool in self._runtime.parts.registry:
            for status in ENDS:
                steps.add_metric([tool, status], metrics.steps.get((tool, status), 0))
        yield steps
        latency = HistogramMetricFamily(
            "hearth_step_latency_seconds",
            "How long steps took, from the end of what came before to their own",
            labels=["tool"],
        )
        for tool, latencies in metrics.latencies.items():
            latency.add_metric([tool], _cumulative(latencies.classes), latencies.seconds)
        yield latency

    def _buses(self) -> Iterator[Metric]:
        def counter(name: str, what: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"hearth_bus_{name}", what, labels=["bus"])

        transactions = counter("transactions", "Transactions that have begun")
        wait = counter("wait_seconds", "How long requests, for exclusive use too, waited for their turn, all together")
        busy = counter("busy_seconds", "How long transactions took, all together")
        queued = GaugeMetricFamily("hearth_bus_queued", "Requests that wait for their turn", labels=["bus"])
        state = GaugeMetricFamily(
            "hearth_bus_state", "1 for the state that the bus is in, 0 for the others", labels=["bus", "state"]
        )
        for bus_id, bus in self._runtime.buses.items():
            transactions.add_metric([bus_id], bus.transactions)
            wait.add_metric([bus_id], bus.waited)
            busy.add_metric([bus_id], bus.worked)
            queued.add_metric([bus_id], bus.queued)
            for name in get_args(BusState):
                state.add_metric([bus_id, name], bus.state == name)
        yield from (transactions, wait, busy, queued, state)

    def _audit(self, metrics: Metrics) -> Iterator[Metric]:
        journal = self._runtime.parts.journal
        records = CounterMetricFamily(
            "hearth_audit_records", "Audit records that were reported, by event", labels=["event"]
        )
        for event, count in metrics.records.items():
            records.add_metric([event], count)
        yield records
        yield GaugeMetricFamily(
            "hearth_audit_lag_records", "Audit records that are not yet as durable as configured", journal.lag
        )
        yield GaugeMetricFamily("hearth_audit_ok", "1 while the audit log can be written", journal.failure is None)
        yield CounterMetricFamily(
            "hearth_audit_failures", "How often the audit log has become one that cannot be written", journal.failures
        )
        head = self._runtime.parts.audit_head
        if head is not None:
            yield GaugeMetricFamily("hearth_audit_seq", "The number of the newest audit record written", head()[0])

    def _clients(self, metrics: Metrics) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "hearth_requests",
            "HACP requests that were answered on a connection, by method and outcome: ok, or an error's symbol",
            labels=["method", "outcome"],
        )
        for method in METHODS:
            requests.add_metric([method, "ok"], metrics.requests.get((method, "ok"), 0))
        for (method, outcome), count in metrics.requests.items():
            if outcome != "ok":
                requests.add_metric([method, outcome], count)
        yield requests
        yield CounterMetricFamily(
            "hearth_documents_refused", "Documents that were no HACP request", metrics.refused_documents
        )
        yield GaugeMetricFamily("hearth_sessions", "Sessions that are open", self._runtime.sessions)
        memory = self._runtime.memory
        yield GaugeMetricFamily(
            "hearth_retained_bytes", "Memory that is kept for all principals, as charged to them", memory.used
        )
        yield GaugeMetricFamily(
            "hearth_retained_limit_bytes", "Memory that may be kept for all principals", memory.total
        )
        yield CounterMetricFamily(
            "hearth_retained_refusals", "Requests and results for which there was no memory left", memory.refusals
        )
        connected = GaugeMetricFamily("hearth_connections", "Connections that are there", labels=["carrier"])
        opened = CounterMetricFamily("hearth_connections_opened", "Accepted connections", labels=["carrier"])
        configured = (address.partition(":")[0] for address in self._runtime.listeners)
        for carrier in dict.fromkeys([*configured, *metrics.connections]):
            connected.add_metric([carrier], metrics.connected.get(carrier, 0))
            opened.add_metric([carrier], metrics.connections.get(carrier, 0))
        yield from (connected, opened)


def _figures(extra: str, service: Service) -> list[Metric]:
    return [_metric(extra, figure) for figure in service.figures()]


def _metric(extra: str, figure: Figure) -> Metric:
    family = CounterMetricFamily if figure.counter else GaugeMetricFamily
    return family(f"hearth_{extra}_{figure.name}", figure.help, float(figure.value))


def _events(metrics: Metrics) -> Iterator[Metric]:
    published = CounterMetricFamily(
        "hearth_events_published", "Task events by phase, each once however many follow", labels=["phase"]
    )
    for phase in PHASES:
        published.add_metric([phase], metrics.events.get(phase, 0))
    yield published
    yield CounterMetricFamily("hearth_events_sent", "Task events sent, counted for each subscriber", metrics.sent)
    yield CounterMetricFamily(
        "hearth_events_coalesced", "Progress events that gave way before a slow follower's turn came", metrics.skipped
    )


def _cumulative(classes: list[int]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    count = 0
    for bound, here in zip((*map(str, LATENCY_BOUNDS), "+Inf"), classes, strict=True):
        count += here
        found.append((bound, count))
    return found
