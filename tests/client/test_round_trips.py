"""What a task costs on the wire: the requests that a real hearthd gets over a real socket, from every client.

Each program opens a session through a relay that notes the requests, does its work, and closes the session. `sent` is
what came between the two.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from support.core_only import Requests, relayed
from support.hearthd import BOUND, Hearthd
from support.mcp import RawMcp
from support.waiting import passes

import hearth
from hearth import step
from hearth._util.portal import Portal
from hearth.mcp.names import PLAN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from hearth.client.connection import Client
    from hearth.client.session import ClientSession

pytestmark = pytest.mark.slow

RUN = ["task.submit"]
SET = {"line": 17, "value": 1}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hearthd]:
    hearthd = Hearthd(tmp_path_factory.mktemp("trips")).start()
    yield hearthd
    hearthd.end()


@pytest.fixture
async def relay(daemon: Hearthd, tmp_path: Path) -> AsyncIterator[tuple[Path, Requests]]:
    path = tmp_path / "relay.sock"
    async with relayed(daemon.socket, path) as requests:
        yield path, requests


def sent(requests: Requests) -> list[str]:
    """The methods between session.open and session.close."""
    first, *between, last = requests.methods()
    assert (first, last) == ("session.open", "session.close")
    return between


# --- Trio -----------------------------------------------------------------------------------------------------------


async def run(session: ClientSession) -> None:
    assert await session.run("gpio.set", line=17, value=1) == SET


async def submit_and_wait(session: ClientSession) -> None:
    task = await session.submit("two", [step("gpio.set", line=17, value=1), step("gpio.get", line=17)])
    done = await task.wait()
    assert [one.result for one in done.steps] == [SET, SET]
    assert await task.wait() == done


async def follow_and_wait(session: ClientSession) -> None:
    task = await session.submit("one", [step("gpio.set", line=17, value=1)])
    assert [event.phase async for event in task.events()] == ["start", "finish", "task_finish"]
    assert (await task.wait()).status == "SUCCESS"


async def wait_and_then_read_the_events(session: ClientSession) -> None:
    task = await session.submit("one", [step("gpio.set", line=17, value=1)])
    assert (await task.wait()).status == "SUCCESS"
    assert [event.phase async for event in task.events()] == ["start", "finish", "task_finish"]


async def fail(session: ClientSession) -> None:
    with pytest.raises(hearth.RpcError, match="no device"):
        await session.run("i2c.read", bus=1, addr=0x10, len=1)


async def fail_and_take_back(session: ClientSession) -> None:
    steps = [step("gpio.set", line=17, value=1), step("i2c.read", bus=1, addr=0x10, len=1), step("gpio.get", line=17)]
    task = await session.submit("back", steps, rollback_on_failure=True)
    done = await task.wait()
    assert [one.status for one in done.steps] == ["SUCCESS", "FAILED", "CANCELLED"]
    assert done.steps[0].rolled_back is True


async def fifty_at_once(session: ClientSession) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(run, session)


async def leave_it_to_itself(session: ClientSession) -> None:
    task = await session.submit("one", [step("gpio.set", line=17, value=1)], follow=False)
    assert task.task_id


async def prepare_and_execute(session: ClientSession) -> None:
    plan = await session.prepare("one", [step("gpio.set", line=17, value=1)])
    done = await (await session.execute(plan)).wait()
    assert (done.intent, done.steps[0].result) == ("one", SET)


GET = ["task.submit", "task.get"]


async def run_dry(session: ClientSession) -> None:
    """Its steps have no events."""
    task = await session.submit("dry", [step("gpio.set", line=17, value=1)], dry_run=True)
    done = await task.wait()
    assert done.steps[0].result is not None
    assert done.steps[0].result["dry_run"] is True


async def execute_by_its_id(session: ClientSession) -> None:
    """What the plan does is not known here."""
    plan = await session.prepare("one", [step("gpio.set", line=17, value=1)])
    done = await (await session.execute(plan.plan_id)).wait()
    assert done.steps[0].result == SET


TRIO: list[tuple[Callable[[ClientSession], Awaitable[None]], list[str]]] = [
    (run, RUN),
    (submit_and_wait, RUN),
    (follow_and_wait, RUN),
    (wait_and_then_read_the_events, RUN),
    (fail, RUN),
    (fail_and_take_back, RUN),
    (fifty_at_once, RUN * 50),
    (leave_it_to_itself, RUN),
    (prepare_and_execute, ["plan.prepare", "plan.execute"]),
    (run_dry, GET),
    (execute_by_its_id, ["plan.prepare", "plan.execute", "task.get"]),
]


@pytest.mark.parametrize(("program", "expected"), TRIO, ids=lambda value: getattr(value, "__name__", "as"))
async def test_a_task_takes_one_request(relay, program, expected) -> None:
    path, requests = relay
    async with hearth.connect(path) as client, client.open_session() as session:
        await program(session)
    assert sent(requests) == expected


async def test_a_session_that_was_opened_elsewhere_takes_one_request_for_a_task_too(relay) -> None:
    path, requests = relay
    async with (
        hearth.connect(path) as client,
        client.open_session() as session,
        hearth.connect(path) as other,
    ):
        attached = other.attach(session.session_id)
        await run(attached)
        await submit_and_wait(attached)
    assert sent(requests) == ["task.submit"] * 2


# --- other event loops, and commands ----------------------------------------------------------------------------------


async def test_a_task_takes_one_request_from_asyncio(relay) -> None:
    path, requests = relay

    async def program() -> None:
        async with hearth.aio.connect(path) as client, client.open_session() as session:
            assert await session.run("gpio.set", line=17, value=1) == SET
            task = await session.submit("one", [step("gpio.set", line=17, value=1)])
            assert [event.phase async for event in task.events()] == ["start", "finish", "task_finish"]
            assert (await task.wait()).status == "SUCCESS"
            await session.gpio.set(17, 0)

    await trio.to_thread.run_sync(asyncio.run, program())
    assert sent(requests) == RUN * 3


async def test_a_task_takes_one_request_without_an_event_loop(relay) -> None:
    path, requests = relay

    def program() -> None:
        with hearth.sync.connect(path) as client, client.open_session() as session:
            assert session.run("gpio.set", line=17, value=1) == SET
            task = session.submit("one", [step("gpio.set", line=17, value=1)])
            assert [event.phase for event in task.events()] == ["start", "finish", "task_finish"]
            assert task.wait(timeout=BOUND).status == "SUCCESS"
            session.gpio.set(17, 0)

    await trio.to_thread.run_sync(program)
    assert sent(requests) == RUN * 3


ONE_STEP = {"intent": "one", "steps": [{"tool": "gpio.set", "args": SET}]}


async def command(path: Path, *words: str) -> str:
    python = [sys.executable, "-m", "hearth.cli.main", "--to", f"unix:{path}", "--json", *words]
    done = await trio.run_process(python, capture_stdout=True, capture_stderr=True)
    return done.stdout.decode()


@pytest.mark.slow
async def test_a_command_makes_one_request_for_its_task(relay, tmp_path: Path) -> None:
    path, requests = relay
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(ONE_STEP))
    assert json.loads(await command(path, "run", "gpio.set", "line=17", "value=1")) == SET
    assert sent(requests) == ["tool.list", "task.submit"]
    requests.clear()
    done = json.loads(await command(path, "plan", "submit", str(plan)))
    assert (done["status"], done["steps"][0]["result"]) == ("SUCCESS", SET)
    assert sent(requests) == ["tool.list", "task.submit"]
    requests.clear()
    *events, last = map(json.loads, (await command(path, "plan", "submit", str(plan), "--watch")).splitlines())
    assert [event["phase"] for event in events] == ["start", "finish", "task_finish"]
    assert (last["status"], last["steps"][0]["result"]) == ("SUCCESS", SET)
    assert sent(requests) == ["tool.list", "task.submit"]


@pytest.mark.slow
async def test_a_call_of_an_mcp_client_makes_one_request(relay, tmp_path: Path) -> None:
    path, requests = relay

    def program() -> None:
        with RawMcp(f"unix:{path}", env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}) as raw:
            raw.initialize()
            raw.tool("gpio_get", line=17)
            requests.clear()
            assert not raw.tool("gpio_set", line=17, value=1)["result"].get("isError")
            steps = [{"tool": "gpio.set", "args": SET}, {"tool": "gpio.get", "args": {"line": 17}}]
            assert not raw.tool(PLAN, intent="two", steps=steps)["result"].get("isError")
            assert raw.end()[0] == 0

    await trio.to_thread.run_sync(program)
    assert [name for name in requests.methods() if name.startswith("task")] == RUN * 2


# --- what is left behind ----------------------------------------------------------------------------------------------

WATCH = {"line": 18, "timeout_ms": 60_000}


def awaited(client: Client) -> int:
    """The number of tasks whose events the client waits for."""
    return len(client._subscriptions)


async def test_a_run_that_is_given_up_cancels_its_task_and_leaves_no_subscription(relay) -> None:
    path, requests = relay
    async with hearth.connect(path) as client, client.open_session() as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(session.run, "gpio.watch", **WATCH))
            await passes(lambda: awaited(client))
            nursery.cancel_scope.cancel()
        assert awaited(client) == 0
        await passes(lambda: "task.cancel" in requests.methods())
        await run(session)
    assert sent(requests) == ["task.submit", "task.cancel", "task.events.unsubscribe", "task.submit"]


async def test_a_wait_that_is_given_up_leaves_the_task_alone_and_another_wait_takes_no_request(relay) -> None:
    path, requests = relay
    async with hearth.connect(path) as client, client.open_session() as session:
        task = await session.submit("watch", [step("gpio.watch", **WATCH)])
        with trio.move_on_after(0) as given_up:
            await task.wait()
        assert given_up.cancelled_caught
        await task.cancel()
        assert (await task.wait()).status == "CANCELLED"
        assert awaited(client) == 0
    assert sent(requests) == ["task.submit", "task.cancel"]


async def test_a_task_that_is_dropped_before_its_end_leaves_no_subscription(relay) -> None:
    path, requests = relay
    async with hearth.connect(path) as client, client.open_session() as session:
        task = await session.submit("watch", [step("gpio.watch", **WATCH)])
        assert awaited(client) == 1
        del task
        gc.collect()
        assert awaited(client) == 0
    assert sent(requests) == ["task.submit", "task.events.unsubscribe"]


async def test_a_task_that_ends_unread_leaves_no_subscription(relay) -> None:
    path, requests = relay
    async with hearth.connect(path) as client, client.open_session() as session:
        task = await session.submit("one", [step("gpio.set", line=17, value=1)])
        await passes(lambda: not awaited(client))
        assert (await task.wait()).status == "SUCCESS"
    assert sent(requests) == RUN


async def test_a_task_that_another_thread_drops_leaves_no_subscription(relay) -> None:
    path, requests = relay

    def program() -> None:
        with hearth.sync.connect(path) as client, client.open_session() as session:
            task = session.submit("watch", [step("gpio.watch", **WATCH)])
            del task
            gc.collect()
            session.tools()  # a turn of the Trio thread
            assert awaited(client._inner) == 0

    await trio.to_thread.run_sync(program)
    assert "task.events.unsubscribe" in sent(requests)


async def test_a_submission_with_a_key_that_is_given_up_is_not_followed_once_it_is_answered(relay) -> None:
    path, requests = relay
    async with hearth.connect(path) as client, client.open_session() as session:
        with trio.move_on_after(0) as given_up:
            await session.submit("one", [step("gpio.set", line=17, value=1)], idempotency_key="k")
        assert given_up.cancelled_caught
        await passes(lambda: not client._abandoned)
        assert awaited(client) == 0
    assert sent(requests)[:2] == ["task.submit", "task.events.unsubscribe"]


async def test_a_reader_that_closes_the_events_early_leaves_a_wait_its_result(relay) -> None:
    path, _requests = relay
    async with hearth.connect(path) as client, client.open_session() as session:
        task = await session.submit("watch", [step("gpio.watch", **WATCH)])
        results = []

        async def wait() -> None:
            results.append(await task.wait())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await task.events().aclose()
            await task.cancel()
        assert results[0].status == "CANCELLED"
        assert awaited(client) == 0


# --- how much the client does for it ----------------------------------------------------------------------------------


class Spawned(trio.abc.Instrument):
    """Counts the Trio tasks that begin."""

    def __init__(self) -> None:
        self.count = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        del task
        self.count += 1


@asynccontextmanager
async def spawned() -> AsyncIterator[Spawned]:
    instrument = Spawned()
    trio.lowlevel.add_instrument(instrument)
    try:
        yield instrument
    finally:
        trio.lowlevel.remove_instrument(instrument)


def test_events_that_have_come_together_take_one_call_from_another_thread(
    daemon: Hearthd, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    submit = Portal._submit

    def counted(portal: Portal, call: Any) -> None:
        calls.append(call)
        submit(portal, call)

    with hearth.sync.connect(daemon.socket) as client, client.open_session() as session:
        task = session.submit("two", [step("gpio.set", line=17, value=value) for value in (0, 1)])
        assert task.wait().status == "SUCCESS"
        monkeypatch.setattr(Portal, "_submit", counted)
        events = task.events()
        assert next(events).seq == 1
        assert [event.seq for event in events] == [2, 3, 4, 5]
        assert len(calls) == 2, "for the events, and for their end"


async def test_calls_events_and_notifications_start_no_trio_task(daemon: Hearthd) -> None:
    async with hearth.connect(daemon.socket) as client, client.open_session() as session:
        async with spawned() as tasks:
            for _ in range(3):
                await run(session)
                await follow_and_wait(session)
                client.notify("task.cancel", {"session_id": session.session_id, "task_id": "no-such-task"})
        assert tasks.count == 0
