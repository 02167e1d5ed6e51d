"""A day in the life of a daemon: what must end ends when it should, and what must not grow does not.

These run in a guest whose clock is virtual (`time-travel=inf-cpu`): it stands still while anything runs, and jumps to
the next timer when everything sleeps. So a day takes seconds, a `sleep` here is no waiting but the passing of the time
that a sentence is about, and a time that is measured is exact but for what the kernel allows itself: it lets a sleeper
sleep on for a thousandth of its time, at most a tenth of a second, to wake several at once.
"""

from __future__ import annotations

import time
from contextlib import aclosing, asynccontextmanager

import pytest
import trio
from support.cell import Cell, closes

import hearth
from hearth import step
from hearth.audit.verify import verify
from hearth.errors import RateLimited, SessionInvalid

pytestmark = [pytest.mark.slow, pytest.mark.virtual_time]

MINUTE, HOUR, DAY = 60, 3600, 86_400
LONGEST_WATCH_MS = 600_000
EXACT = 0.25
"""Seconds within which something is on time: both sides sleep."""


@pytest.fixture
def cell(tmp_path):
    with Cell(tmp_path) as made:
        yield made


@asynccontextmanager
async def connected(daemon):
    """A client; the bound of every wait is two days."""
    with trio.fail_after(2 * DAY):
        async with hearth.connect(daemon.socket) as client:
            yield client


def now() -> float:
    return trio.current_time()


def watches(seconds, line="button"):
    """Steps that take `seconds` together when no edge comes."""
    count, rest = divmod(seconds * 1000, LONGEST_WATCH_MS)
    lengths = [LONGEST_WATCH_MS] * count + ([rest] if rest else [])
    return [step("gpio.watch", line=line, timeout_ms=length) for length in lengths]


async def every(seconds, act):
    while True:
        await trio.sleep(seconds)
        await act()


def closed(daemon, session):
    """Why a session was closed; None while it lives."""
    return next((record["reason"] for record in closes(daemon, session.session_id)), None)


async def test_a_task_ends_at_its_deadline_of_24_hours_and_a_heartbeat_each_minute_keeps_its_session(cell) -> None:
    daemon = cell.daemon("[limits]\nidle_ttl_s = 300\n").start()
    async with (
        connected(daemon) as client,
        client.open_session(client_name="arm", heartbeat_ms=90_000) as session,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(every, MINUTE, session.tools)
        began = now()
        task = await session.submit("a day", watches(DAY + HOUR), max_duration_ms=DAY * 1000)
        done = await task.wait()
        took = now() - began
        nursery.cancel_scope.cancel()
    assert took == pytest.approx(DAY, abs=EXACT)
    assert done.status == "FAILED"
    assert done.error == "the task did not finish within max_duration_ms = 86400000"
    statuses = [result.status for result in done.steps]
    assert statuses == ["SUCCESS"] * 143 + ["CANCELLED"] * (len(statuses) - 143)
    assert all(result.latency_ms == pytest.approx(LONGEST_WATCH_MS, abs=1000 * EXACT) for result in done.steps[:143])
    [record] = [record for record in daemon.records() if record["event"] == "task.finish"]
    assert record["duration_ms"] == pytest.approx(DAY * 1000, abs=1000 * EXACT)
    assert closed(daemon, session) == "closed by the client"


async def test_an_edge_in_the_thirteenth_hour_of_a_watch_arrives_when_it_is_made(cell) -> None:
    daemon = cell.daemon("[limits]\nidle_ttl_s = 300\n").start()
    cell.sim.push("button", 0)

    async with connected(daemon) as client, client.open_session() as session, trio.open_nursery() as nursery:

        async def press():
            await trio.sleep(13 * HOUR - 1)
            cell.sim.pull("button", 1)

        began = now()
        nursery.start_soon(press)
        task = await session.submit("watch", watches(DAY))
        async with aclosing(task.events()) as events:
            async for event in events:
                if event.phase == "progress":
                    break
        assert now() - began == pytest.approx(13 * HOUR - 1, abs=EXACT)
        edge = event.data["data"]
        assert (edge["line"], edge["edge"]) == ("button", "rising")
        assert edge["timestamp_ns"] / 1e9 == pytest.approx(time.monotonic(), abs=EXACT)


async def test_a_session_that_falls_silent_after_hours_is_closed_when_its_heartbeat_is_due(cell) -> None:
    daemon = cell.daemon().start()
    async with connected(daemon) as client, client.open_session(heartbeat_ms=90_000) as session:
        await session.run("gpio.set", line="relay", value=1)
        until = now() + 11 * HOUR
        while now() < until:
            await trio.sleep(MINUTE)
            await session.tools()
        due = now() + 90
        assert cell.level("relay") == 1
        await trio.sleep_until(due - EXACT)
        assert closed(daemon, session) is None
        assert cell.level("relay") == 1
        await trio.sleep_until(due + EXACT)
        assert closed(daemon, session) == "no heartbeat within 90000 ms"
        assert cell.level("relay") == 0
        with pytest.raises(SessionInvalid):
            await session.tools()


async def test_a_session_lives_its_idle_time_from_its_last_request_and_no_longer(cell) -> None:
    daemon = cell.daemon(f"[limits]\nidle_ttl_s = {HOUR}\n").start()
    async with (
        connected(daemon) as client,
        client.open_session() as idle,
        client.open_session() as working,
        client.open_session() as asking,
        client.open_session() as listening,
    ):
        task = await working.submit("a running task alone keeps no session", watches(DAY), follow=False)
        followed = await listening.submit("a live subscription does", watches(DAY))
        ended = []

        async def listen():
            ended.append(await followed.wait())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(every, HOUR - 1, asking.tools)
            nursery.start_soon(listen)
            began = now()
            await trio.sleep_until(began + HOUR - EXACT)
            assert closed(daemon, idle) is None
            assert closed(daemon, working) is None
            await trio.sleep_until(began + HOUR + EXACT)
            assert closed(daemon, idle) == "idle"
            assert closed(daemon, working) == "idle"
            await trio.sleep_until(began + DAY + MINUTE)
            assert [result.status for result in ended] == ["SUCCESS"]
            nursery.cancel_scope.cancel()
        assert closed(daemon, asking) is None
        assert closed(daemon, listening) is None
    [record] = [r for r in daemon.records() if r["event"] == "task.finish" and r["task_id"] == task.task_id]
    assert record["status"] == "CANCELLED"
    assert record["duration_ms"] == pytest.approx(HOUR * 1000, abs=1000 * EXACT)


async def test_a_rate_of_ten_an_hour_refills_by_one_in_six_minutes_and_never_beyond_ten(cell) -> None:
    policy = '[[policy]]\nname = "cell"\nmatch = { any = true }\nrate = { "gpio.set" = "10/h" }\n'
    daemon = cell.daemon(policy).start()

    async def sets(session):
        """How many pass at once, and when the next would."""
        passed = 0
        while True:
            try:
                await session.run("gpio.set", line="lamp", value=passed % 2)
            except RateLimited as refused:
                return passed, refused.data["retry_after_ms"] / 1000
            passed += 1

    async with connected(daemon) as client, client.open_session() as session, trio.open_nursery() as nursery:
        nursery.start_soon(every, 4 * MINUTE, session.tools)
        assert await sets(session) == (10, pytest.approx(HOUR / 10, abs=EXACT))
        await trio.sleep(HOUR / 10 - 1)
        assert await sets(session) == (0, pytest.approx(1, abs=EXACT))
        await trio.sleep(1)
        assert (await sets(session))[0] == 1
        await trio.sleep(HOUR / 2)
        assert (await sets(session))[0] == 5
        await trio.sleep(DAY)
        assert (await sets(session))[0] == 10
        nursery.cancel_scope.cancel()


async def test_a_day_of_work_rotates_the_log_by_its_size_and_grows_nothing_else(cell) -> None:
    daemon = cell.daemon("[limits]\nidle_ttl_s = 300\n", audit="rotate_bytes = 50_000").start()
    used = []

    async def work():
        await trio.sleep(2 * MINUTE)
        await session.run("gpio.set", line="lamp", value=1)
        await session.run("gpio.set", line="lamp", value=0)

    async with connected(daemon) as client, client.open_session(heartbeat_ms=180_000) as session:
        for _ in range(24):
            for _ in range(30):
                await work()
            used.append((daemon.memory(), daemon.descriptors(), daemon.threads()))
    assert daemon.stop() == 0
    # The first hours fill what has a bound: histories, caches, the allocator's arenas.
    (memory, descriptors, threads), (final_memory, final_descriptors, final_threads) = used[5], used[-1]
    assert final_memory <= memory + 2, used
    assert (final_descriptors, final_threads) == (descriptors, threads), used

    records = daemon.records()
    report = verify(daemon.audit, f"{daemon.audit}.key.pub")
    assert report.ok, report.first_bad
    assert report.records == len(records)
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert len(report.files) > 20
    assert all(file.stat().st_size <= 50_000 + 2000 for file in report.files)
    rotations = [record for record in records if record["event"] == "audit.rotate"]
    assert len(rotations) == len(report.files) - 1
    finished = [record["status"] for record in records if record["event"] == "task.finish"]
    assert finished == ["SUCCESS"] * (24 * 30 * 2)
