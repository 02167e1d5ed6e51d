"""/metrics: the figures are those of what really ran, read by Prometheus's own parser, in both formats."""

from __future__ import annotations

import os
import re
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from starlette.applications import Starlette
from support.http import TOKENS, passes
from support.world import BenchWorld, World, listening, running, simulated

from hearth.actors.bridges.amqp.extra import AmqpService
from hearth.actors.bridges.http import metrics
from hearth.actors.build import build_parts
from hearth.actors.metrics import Latencies
from hearth.actors.runtime import Runtime
from hearth.api import Step
from hearth.client.connection import connect
from hearth.config.model import AuditConfig, Config, PolicyConfig
from hearth.errors import PermissionDenied, QueueFull, RpcError, SessionInvalid
from hearth.protocol.methods import METHODS

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
OPEN_METRICS = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5"
"""What Prometheus says."""


class Served(World):
    """A world on the simulated board behind a Unix socket, and its metrics."""

    @property
    def path(self):
        return Path(self.runtime.listeners[0].removeprefix("unix:"))

    def client(self):
        return connect(self.path)

    async def scrape(self, accept=None):
        """Every sample, by name and labels."""
        return samples(await fetch(app_of(self), accept))


def app_of(world):
    return Starlette(routes=metrics.routes(world.runtime))


@asynccontextmanager
async def opened(directory, **audit):
    policy = PolicyConfig(name="us", match={"uid": os.geteuid()}, rate={"gpio.get": "2/m"})
    world = simulated(directory, audit=audit, policy=(policy,), kind=Served)
    async with running(world), listening(world, directory) as listeners:
        listeners.open(world.config)
        yield world


@pytest.fixture
async def served(tmp_path):
    async with opened(tmp_path) as world:
        yield world


async def fetch(app, accept=None, method="GET"):
    """A request to the application: the answer's head and its text."""
    headers = [] if accept is None else [(b"accept", accept.encode("latin-1"))]
    scope = {"type": "http", "method": method, "path": "/metrics", "headers": headers, "query_string": b""}
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    head, *bodies = sent
    told = {name.decode().lower(): value.decode() for name, value in head["headers"]}
    return head["status"], told, b"".join(body["body"] for body in bodies).decode()


def families(answer):
    """The metric families of an answer, by the parser for its format."""
    status, headers, text = answer
    assert status == 200
    parse = parse_open_metrics if headers["content-type"].startswith(metrics.OPEN_METRICS) else parse_text
    return list(parse(text))


def samples(answer):
    """The samples of an answer: {(name, label value…): value}, in the order of the labels' names."""
    found = {}
    for family in families(answer):
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def named(found, name):
    """The samples of one name that are not 0, by their label values."""
    return {key[1] if len(key) == 2 else key[1:]: value for key, value in found.items() if key[0] == name and value}


# --- what ran is what is told ----------------------------------------------------------------------------------------


async def test_requests_tasks_and_steps_are_told_exactly_as_they_were(served):
    async with served.client() as client, client.open_session() as session:
        for value in (1, 0, 1):
            await session.run("gpio.set", line=17, value=value)
        done = await (
            await session.submit("two", [Step("gpio.set", {"line": 17, "value": 0}), Step("hw.board", {})])
        ).wait()
        assert done.status == "SUCCESS"
        absent = await session.submit("nobody there", [Step("i2c.read", {"bus": 1, "addr": 0x11, "len": 1})])
        assert (await absent.wait()).status == "FAILED"
        watching = await session.submit("watch", [Step("gpio.watch", {"line": 4, "timeout_ms": 60_000})])
        assert named(await served.scrape(), "hearth_tasks_live") == {(): 1}
        await watching.cancel()
        assert (await watching.wait()).status == "CANCELLED"
        with pytest.raises(RpcError):
            await session.run("no.such.tool")
        with pytest.raises(PermissionDenied):
            await session.submit("too much", [Step("file.delete", {"path": "/x"})])
        with pytest.raises(QueueFull):
            served.runtime.memory.for_principal("uid:0").charge(1 << 40)
        own, before = 0, -1
        while own != before:  # the log adds its first checkpoint once its key is read, and others later
            await passes(lambda: served.records("audit.checkpoint"))
            before, found = own, await served.scrape()
            own = len(served.records("audit.checkpoint"))
    assert named(found, "hearth_tasks_total") == {"SUCCESS": 4, "FAILED": 1, "CANCELLED": 1}
    assert named(found, "hearth_tasks_live") == {}
    assert named(found, "hearth_steps_total") == {
        ("SUCCESS", "gpio.set"): 4,
        ("SUCCESS", "hw.board"): 1,
        ("FAILED", "i2c.read"): 1,
        ("CANCELLED", "gpio.watch"): 1,
    }
    requests = named(found, "hearth_requests_total")
    assert requests["session.open", "ok"] == 1
    assert requests["task.submit", "ok"] == 6
    assert requests["task.submit", "RPC_TOOL_NOT_FOUND"] == 1
    assert requests["task.submit", "RPC_PERMISSION_DENIED"] == 1
    assert requests["task.cancel", "ok"] == 1
    assert named(found, "hearth_sessions") == {(): 1}
    assert named(found, "hearth_retained_bytes")[()] > 10_000
    assert named(found, "hearth_retained_limit_bytes") == {(): served.runtime.memory.total}
    assert named(found, "hearth_retained_refusals_total") == {(): 1}
    records = named(found, "hearth_audit_records_total")
    assert (records["task.submit"], records["task.step.start"], records["task.finish"]) == (6, 7, 6)
    assert records["task.reject"] == 2
    # Each record is in the log, whose newest one has this number; the log itself has added its checkpoints.
    assert own >= 1
    assert named(found, "hearth_audit_seq") == {(): sum(records.values()) + own}


async def test_a_latency_is_in_its_class_and_in_the_sum_of_its_tool(served):
    async with served.client() as client, client.open_session() as session:
        took = []
        for duration in (30, 1):
            steps = [Step("gpio.pulse", {"line": 17, "value": 1, "duration_ms": duration})]
            done = await (await session.submit("pulse", steps)).wait()
            took.append(done.steps[0].latency_ms / 1000)
        found = await served.scrape()
    assert named(found, "hearth_step_latency_seconds_count") == {"gpio.pulse": 2}
    assert found["hearth_step_latency_seconds_sum", "gpio.pulse"] == pytest.approx(sum(took))
    told = {float(key[1]): value for key, value in found.items() if key[0] == "hearth_step_latency_seconds_bucket"}
    assert told == {bound: sum(one <= bound for one in took) for bound in told}
    assert told[float("inf")] == 2
    assert told[0.01] <= 1


async def test_connections_are_told_by_carrier_while_they_are_there_and_ever_after(served):
    assert named(await served.scrape(), "hearth_connections_opened_total") == {}
    assert ("hearth_connections", "unix") in await served.scrape(), (
        "a carrier that is configured is told before anybody uses it"
    )
    async with served.client() as client:
        await client.call("session.open", {})
        async with served.client() as other:
            await other.call("session.open", {})
            assert named(await served.scrape(), "hearth_connections") == {"unix": 2}
    while served.runtime.parts.journal.metrics.connected["unix"]:
        await trio.lowlevel.checkpoint()
    assert named(await served.scrape(), "hearth_connections") == {}
    assert named(await served.scrape(), "hearth_connections_opened_total") == {"unix": 2}


async def test_what_is_no_request_is_counted_and_nothing_a_client_sends_becomes_a_label(served):
    before = (await served.scrape()).keys()
    stream = await trio.open_unix_socket(served.path)
    async with stream:
        await stream.send_all(b'nonsense\n[]\n{"jsonrpc": "2.0", "id": 1, "method": "evil.method", "params": {}}\n')
        answers = b""
        while answers.count(b"\n") < 3:
            answers += await stream.receive_some()
    async with served.client() as client:
        with pytest.raises(SessionInvalid):
            await client.call("task.get", {"session_id": "evil-session", "task_id": "evil-task"})
        async with client.open_session(client_name="evil-name") as session:
            with pytest.raises(RpcError):
                await session.run("evil.tool")
    status, _, text = await fetch(app_of(served))
    assert status == 200
    assert "evil" not in text
    found = await served.scrape()
    assert named(found, "hearth_documents_refused_total") == {(): 3}
    new = {key[:3] for key in found.keys() - before}
    assert new == {
        *((name, method, outcome) for name in ("hearth_requests_total",) for method, outcome in [
            ("task.get", "RPC_SESSION_INVALID"), ("task.submit", "RPC_TOOL_NOT_FOUND"),
        ]),
        *(("hearth_audit_records_total", event) for event in ("session.open", "session.close", "task.reject")),
    }  # fmt: skip


# --- buses, under a clock that can be read --------------------------------------------------------------------------


async def test_a_bus_tells_how_long_it_was_waited_for_and_how_long_it_worked(autojump_clock):
    async with running(BenchWorld()) as world:
        session = await world.connect().open()
        first = await session.start(("read", {"bus": "a", "ms": 30}))
        second = await session.start(("read", {"bus": "a", "ms": 20}))
        third = await session.start(("read", {"bus": "b", "ms": 5}), exclusive=True)
        for task in (first, second, third):
            await session.wait(task)
        found = samples(await fetch(Starlette(routes=metrics.routes(world.runtime))))
    assert named(found, "hearth_bus_transactions_total") == {"a": 2, "b": 1}
    assert found["hearth_bus_wait_seconds_total", "a"] == pytest.approx(0.030)
    assert found["hearth_bus_wait_seconds_total", "b"] == 0
    assert found["hearth_bus_busy_seconds_total", "a"] == pytest.approx(0.050)
    assert found["hearth_bus_busy_seconds_total", "b"] == pytest.approx(0.005)


async def test_who_waits_for_a_lease_is_counted_as_waiting(autojump_clock):
    async with running(BenchWorld()) as world:
        session = await world.connect().open()
        holder = await session.start(("nap", {"bus": "a", "ms": 40}), exclusive=True)
        waiting = await session.start(("read", {"bus": "a"}), exclusive=True)
        for task in (holder, waiting):
            await session.wait(task)
        assert world.runtime.buses["a"].waited == pytest.approx(0.040)


async def test_a_bus_that_does_not_answer_is_told_with_those_who_wait_for_it(autojump_clock):
    async with running(BenchWorld(bus_queue=2)) as world:
        app = Starlette(routes=metrics.routes(world.runtime))

        async def states():
            return {bus for bus, state in named(samples(await fetch(app)), "hearth_bus_state") if state == "wedged"}

        session = await world.connect().open()
        await session.start(("read", {"bus": "a", "gate": "stuck", "limit_ms": 50}))
        await world.gate("stuck").reached()
        await session.start(("read", {"bus": "a"}))
        await trio.testing.wait_all_tasks_blocked()
        found = samples(await fetch(app))
        assert named(found, "hearth_bus_queued") == {"a": 1}
        assert named(found, "hearth_bus_state") == {("a", "ready"): 1, ("b", "ready"): 1}
        await trio.sleep(0.1)
        assert await states() == {"a"}
        world.gate("stuck").open()
        await trio.sleep(0.1)
        assert await states() == set()


async def test_an_inline_bus_is_timed_by_the_processor(served):
    async with served.client() as client, client.open_session() as session:
        await session.run("gpio.set", line=17, value=1)
    found = await served.scrape()
    assert named(found, "hearth_bus_transactions_total")["gpio:sim"] >= 1
    assert 0 < found["hearth_bus_busy_seconds_total", "gpio:sim"] < 1


# --- events and audit -----------------------------------------------------------------------------------------------


async def test_events_are_told_by_phase_as_often_as_they_are_sent_and_as_often_as_they_are_not(autojump_clock):
    async with running(BenchWorld()) as world:
        session = await world.connect().open()
        task = await session.start(("progress", {"n": 200}))
        await session.wait(task)
        found = samples(await fetch(Starlette(routes=metrics.routes(world.runtime))))
    assert named(found, "hearth_events_published_total") == {"start": 1, "progress": 200, "finish": 1, "task_finish": 1}
    # All 200 were there before the one who follows had its turn, and a history keeps 64 of them.
    assert named(found, "hearth_events_coalesced_total") == {(): 136}
    assert named(found, "hearth_events_sent_total") == {(): 67}


async def test_records_that_are_not_yet_safe_are_the_lag_of_the_audit(autojump_clock):
    async with running(BenchWorld()) as world:
        app = Starlette(routes=metrics.routes(world.runtime))
        session = await world.connect().open()
        await trio.testing.wait_all_tasks_blocked()
        assert named(samples(await fetch(app)), "hearth_audit_lag_records") == {}
        world.journal.hold()
        client = session.client
        await client.send(client.request("task.submit", session.submission([("read", {})])))
        await trio.testing.wait_all_tasks_blocked()
        assert named(samples(await fetch(app)), "hearth_audit_lag_records") == {(): 2}
        world.journal.release()
        await trio.testing.wait_all_tasks_blocked()
        assert named(samples(await fetch(app)), "hearth_audit_lag_records") == {}


# --- the page ---------------------------------------------------------------------------------------------------------


async def test_both_formats_tell_the_same_and_each_is_asked_for_by_its_name(served):
    plain, open_ = await fetch(app_of(served), "text/plain"), await fetch(app_of(served), OPEN_METRICS)
    assert plain[1]["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert open_[1]["content-type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert open_[2].endswith("# EOF\n")
    assert plain[1]["vary"] == "Accept"
    assert plain[1]["cache-control"] == "no-store"

    def ours(answer):
        return {key: value for key, value in samples(answer).items() if key[0].startswith("hearth_")}

    assert ours(plain) == ours(open_)


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("application/openmetrics-text", True),
        ("text/plain;q=0.3, Application/OpenMetrics-Text; Version=1.0.0; q=0.7", True),
        ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4", True),
        ("application/openmetrics-text;version=x.y;escaping=\xff", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.000,*/*", False),
        ("application/openmetrics-text;q=0.01", True),
        (";;;,,,", False),
    ],
)
async def test_whatever_is_accepted_gets_an_answer_that_can_be_read(served, accept, is_open):
    answer = await fetch(app_of(served), accept)
    assert answer[1]["content-type"].startswith("application/openmetrics-text") is is_open
    assert families(answer)


async def test_every_metric_is_ours_or_the_processs_says_what_it_is_and_has_its_own_name(served):
    found = families(await fetch(app_of(served)))
    names = [family.name for family in found]
    assert len(names) == len(set(names))
    assert all(name.startswith(("hearth_", "process_")) for name in names)
    assert all(
        family.documentation and not family.documentation.endswith(".") for family in found if family.name[0] == "h"
    )
    assert {"hearth_build_info", "process_start_time_seconds"} <= {
        key[0] for key in samples(await fetch(app_of(served)))
    }
    registry = CollectorRegistry(auto_describe=True)
    registry.register(metrics.RuntimeCollector(served.runtime))
    with pytest.raises(ValueError, match="hearth_tasks"):
        registry.register(metrics.RuntimeCollector(served.runtime))


async def test_a_tool_a_method_and_a_status_are_there_from_the_start(served):
    found = await served.scrape()
    tools = served.runtime.parts.registry
    assert {key[1:] for key in found if key[0] == "hearth_steps_total"} == {
        (status, tool) for tool in tools for status in ("SUCCESS", "FAILED", "CANCELLED")
    }
    assert {key[1] for key in found if key[0] == "hearth_requests_total"} == set(METHODS)


async def test_a_scrape_writes_nothing_waits_for_no_actor_and_has_as_many_lines_as_the_board_has_parts(served):
    journal = served.runtime.parts.journal
    await passes(lambda: journal.head[0] >= 2)  # the start, and its signature: its key is made in a thread
    before = journal.head
    here = trio.lowlevel.current_task()
    sizes = set()
    for _ in range(3):
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(5) as scope:
                _, _, text = await fetch(app_of(served))
            assert not nursery.child_tasks
        assert not scope.cancelled_caught
        sizes.add(text.count("\n"))
    assert trio.lowlevel.current_task() is here
    assert journal.head == before
    tools, buses = len(served.runtime.parts.registry), len(served.runtime.buses)
    assert len(sizes) == 1
    assert max(sizes) < 200 + 3 * tools + 9 * buses


async def test_head_is_answered_as_get_is(served):
    (_, got, _), (status, told, _) = await fetch(app_of(served)), await fetch(app_of(served), method="HEAD")
    assert status == 200
    assert told.keys() == got.keys()
    assert told["content-type"] == got["content-type"]


async def test_the_listener_tells_it_to_whom_the_policy_lets_in_and_to_no_other(serve):
    async with serve() as listening:
        answer = await listening.ask("GET", "/metrics")
        found = samples((answer.status, answer.headers, answer.body.decode()))
        assert found["hearth_build_info", "sim", listening.runtime.health()["version"]] == 1
        assert {key[1] for key in found if key[0] == "hearth_connections"} >= {"unix", "http"}
        refused = await listening.ask("GET", "/metrics", Authorization=f"Bearer {TOKENS['eve']}")
        assert refused.status in (401, 403)
        assert b"hearth_" not in refused.body
        head = await listening.ask("HEAD", "/metrics", Accept=OPEN_METRICS)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-type"].startswith(metrics.OPEN_METRICS)


def test_the_page_about_metrics_names_each_of_them_and_no_other(tmp_path):
    parts = build_parts(Config(audit=AuditConfig(path=tmp_path / "audit.log")), default_policy=())
    parts.open_records()
    parts.journal.metrics.latencies["gpio.set"] = Latencies()
    runtime = Runtime(parts)
    figures = ("connected", "outbox", "outbox_bytes", "published", "taken", "reconnects")
    uplink = SimpleNamespace(status=lambda: dict.fromkeys(figures, 0))
    runtime.extras["amqp"] = AmqpService(Config(), uplink=uplink)
    families = list(metrics.RuntimeCollector(runtime).collect())
    told = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    told = {f"{name}_info" if name == "hearth_build" else name for name in told}
    named = re.findall(r"^\| `(hearth_\w+)", PAGE.read_text("utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(told)
    parts.journal._log.close()
