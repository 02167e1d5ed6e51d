"""The order of beginnings and ends (design §3): sessions, transactions in flight, safe states, journal."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import trio
from attrs import evolve
from support.waiting import passes, until
from support.world import BOB, BenchWorld, running

from hearth.actors import runtime as runtime_module
from hearth.actors.runtime import Runtime
from hearth.drivers.base import Style
from hearth.errors import ConfigError, DeviceError, ShuttingDown
from hearth.tools import Tool, ToolRegistry

# --- beginning ---------------------------------------------------------------------------------------------------


async def test_the_start_is_on_record_with_the_board_and_its_buses(world):
    await until(lambda: world.journal.records)
    assert world.journal.records[0] == {"event": "daemon.start", "board": "bench", "buses": ["a", "b"]}


async def test_a_dead_adapter_does_not_keep_the_others_from_serving():
    world = BenchWorld()
    world.drivers["a"].refuses = DeviceError("no such device", effect="none")
    async with running(world):
        session = await world.connect().open()
        assert (await session.run(("read", {"bus": "b"})))["status"] == "SUCCESS"
        failed = (await session.run(("read", {"bus": "a"})))["steps"][0]
        assert "no such device" in failed["error"]
        assert failed["error_data"]["effect"] == "none"
        health = world.runtime.health()
        assert health["ok"] is False
        assert health["buses"]["a"]["state"] == "down"
        assert "no such device" in health["buses"]["a"]["reason"]
        assert health["buses"]["b"]["state"] == "ready"


async def test_an_adapter_that_hangs_while_it_is_opened_keeps_neither_the_others_nor_the_end(monkeypatch):
    monkeypatch.setattr(runtime_module, "OPEN_TIMEOUT", 0.05)
    world = BenchWorld(buses={"a": Style.THREAD, "b": Style.THREAD})
    let_go = threading.Event()
    world.drivers["a"].open = let_go.wait
    try:
        async with running(world):
            session = await world.connect().open()
            # On a busy machine a thread may need longer than this short patience to open the other one.
            await passes(lambda: world.runtime.buses["b"].state == "ready")
            assert (await session.run(("read", {"bus": "b"})))["status"] == "SUCCESS"
            failed = (await session.run(("read", {"bus": "a"})))["steps"][0]
            assert failed["error_data"] == {"bus": "a", "effect": "none", "state": "opening"}
            assert world.runtime.health()["buses"]["a"]["state"] == "opening"
    finally:
        let_go.set()


@pytest.mark.parametrize("schema", ["params_schema", "result_schema"])
async def test_a_tool_with_a_schema_that_is_none_is_refused_before_anything_starts(schema):
    world = BenchWorld()
    bad = Tool(
        **{
            "name": "bench.bad",
            "risk_level": 0,
            "timeout_ms": 1,
            "description": "bad",
            "params_schema": {"type": "object"},
            "result_schema": {"type": "object"},
            "capability": "CAP_GPIO_READ",
            "bus": lambda _args: "a",
            "run": None,
            schema: {"type": "no such type"},
        }
    )
    await trio.lowlevel.checkpoint()
    with pytest.raises(ConfigError, match=f"bench.bad: {schema}"):
        Runtime(evolve(world.parts, registry=ToolRegistry([bad])))


async def test_health_says_how_things_are(world):
    await world.connect().open()
    health = world.runtime.health()
    assert health["ok"] is True
    assert health["sessions"] == 1
    assert health["memory"] == {
        "retained_bytes": world.runtime.memory.used,
        "max_retained_total_bytes": world.limits.max_retained_total_bytes,
    }
    assert health["memory"]["retained_bytes"] > 0
    assert health["audit"]["ok"] is True
    assert health["buses"]["a"] == {"state": "ready", "queued": 0, "transactions": 0}


async def test_no_session_is_opened_before_the_start_or_after_the_end():
    world = BenchWorld()
    runtime = Runtime(world.parts)
    opening = SimpleNamespace()
    with pytest.raises(ShuttingDown):
        runtime.open_session(BOB, opening, None)
    async with runtime.serve():
        pass
    with pytest.raises(ShuttingDown):
        runtime.open_session(BOB, opening, None)


# --- ending ------------------------------------------------------------------------------------------------------


def order_of(world, *kinds):
    """What happened at the end, in its order."""
    order = []
    for what in world.observer.seen:
        if what[0] == "record":
            order.append(what[1])
        elif what[0] in ("begin", "close"):
            order.append(f"{what[0]} {what[2]}" if what[0] == "begin" else "close")
    return [one for one in order if one in kinds or one.startswith("begin safe")]


async def test_sessions_end_first_then_outputs_are_safe_and_then_the_journal_is_closed(make_world, style):
    async with make_world(buses={"a": style}) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        await session.start(("wait", {}))
    assert order_of(world, "task.finish", "session.close", "daemon.stop", "close")[1:] == [
        "task.finish",
        "begin safe 1",
        "session.close",
        "daemon.stop",
        "close",
    ]
    assert world.journal.ended
    assert world.driver.levels == {1: 0}


async def test_the_end_waits_for_a_transaction_in_flight(make_world, slow_style):
    async with make_world(buses={"a": slow_style}) as world:
        session = await world.connect().open()
        await session.start(("set", {"line": 1, "value": 1, "gate": "x", "limit_ms": 60_000}))
        await world.gate("x").reached()
    # `running` opens the gates when it begins to end.
    world.observer.assert_whole()
    assert [record["status"] for record in world.journal.of("task.step.finish")] == ["SUCCESS"]
    assert world.driver.levels == {1: 0}
    assert world.journal.of("session.close")[0]["reason"] == "shutting down"


@pytest.mark.slow
async def test_a_transaction_that_never_returns_does_not_keep_the_process(make_world, slow_style):
    async with make_world(buses={"a": slow_style, "b": slow_style}, shutdown_grace_s=1.0, close_grace_s=0.05) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1, "bus": "b"}))
        await session.run(("set", {"line": 2, "value": 1, "bus": "a"}))
        task_id = await session.start(("read", {"gate": "x", "limit_ms": 60_000}))
        await world.gate("x").reached()
        await world.runtime.end_sessions()
        await until(lambda: world.journal.of("task.finish", task_id=task_id))
        assert world.runtime.sessions == 0
        (finish,) = world.journal.of("task.step.finish", task_id=task_id)
        assert (finish["status"], finish["effect"]) == ("FAILED", "unknown")
        assert world.journal.of("task.finish", task_id=task_id)[0]["status"] == "CANCELLED"
        assert world.journal.of("session.close")[0]["reason"] == "shutting down"
        # The other bus is not touched by that: what it drove is safe.
        assert world.drivers["b"].levels == {1: 0}
        assert "bus.wedged" not in [record["event"] for record in world.journal.records]


async def test_a_session_that_is_torn_down_while_it_closes_is_on_record_with_why_it_closed(make_world, slow_style):
    async with make_world(buses={"a": slow_style}, shutdown_grace_s=0.05, close_grace_s=5.0) as world:
        session = await world.connect().open()
        await session.start(("read", {"gate": "x", "limit_ms": 60_000}))
        await world.gate("x").reached()
        client = session.client
        await client.send(client.request("session.close", {"session_id": session.session_id}, 100))
        await passes(lambda: world.runtime.sessions == 0)
        await world.runtime.end_sessions()
        await until(lambda: world.journal.of("session.close"))
    assert [record["reason"] for record in world.journal.of("session.close")] == ["closed by the client"]


async def test_outputs_that_wait_behind_anothers_transaction_are_safe_before_the_driver_closes(
    make_world, autojump_clock
):
    async with make_world(buses={"a": Style.ASYNC}, close_grace_s=0.5) as world:
        client = world.connect()
        for line in (1, 2, 3):
            await (await client.open()).run(("set", {"line": line, "value": 1}))
        slow = await world.connect(BOB).open()
        world.driver.slow_safe = 0.3
        await slow.start(("read", {"ms": 3000, "limit_ms": 60_000}))
        await passes(lambda: world.observer.labels("begin")[-1] == "read")
    # The three sessions had given up waiting; the bus had not.
    world.observer.assert_whole()
    assert world.driver.levels == {1: 0, 2: 0, 3: 0}
    assert not world.observer.of("closed", "cut")


async def test_a_bus_that_is_down_at_the_end_gets_a_last_chance_to_make_its_outputs_safe(make_world, autojump_clock):
    async with make_world(close_grace_s=0.05) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        world.driver.break_pump()
        await until(lambda: world.bus.state == "down")
    assert world.driver.levels == {1: 0}


async def test_a_bus_that_crashes_while_it_makes_outputs_safe_is_asked_again(make_world, autojump_clock):
    async with make_world() as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        world.driver.safe_raises = RuntimeError("a bug")
        client = session.client
        await client.send(client.request("session.close", {"session_id": session.session_id}, 100))
        await until(lambda: world.bus.state == "down")
        world.driver.safe_raises = None
        await client.until(lambda: client.answers(100))
        assert "RuntimeError" in world.journal.of("session.close")[0]["safe"][0]["error"]
        await passes(lambda: world.driver.levels == {1: 0})


async def test_an_output_that_refuses_its_safe_state_is_on_record(make_world):
    async with make_world() as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        world.driver.safe_raises = DeviceError("the line is stuck", effect="unknown")
        await session.close()
        assert world.journal.of("session.close")[0]["safe"] == [{"error": "the line is stuck"}]


@pytest.mark.parametrize("rollback", [False, True])
async def test_a_body_that_is_cancelled_from_outside_still_ends_everything_in_order(autojump_clock, rollback):
    world = BenchWorld(buses={"a": Style.ASYNC})
    with trio.move_on_after(1) as program:
        async with running(world, release_at_end=False):
            session = await world.connect().open()
            await session.start(
                ("set", {"line": 1, "value": 1}),
                ("read", {"ms": 1500, "limit_ms": 60_000}),
                ("read", {"tag": "never"}),
                rollback_on_failure=rollback,
            )
            await trio.sleep_forever()
    assert program.cancelled_caught
    world.observer.assert_whole()
    assert set(world.driver.levels.values()) <= {0, None}
    assert ("undo set" in world.observer.labels("begin")) is rollback
    assert "never" not in world.observer.labels("begin")
    events = [record["event"] for record in world.journal.records]
    assert events[-3:] == ["task.finish", "session.close", "daemon.stop"]
    assert world.journal.of("session.close")[0]["reason"] == "shutting down"
    assert world.journal.ended
    assert not world.driver.is_open


async def test_an_exception_of_the_body_ends_everything_in_order_and_comes_out(autojump_clock):
    world = BenchWorld()

    async def program():
        async with running(world):
            session = await world.connect().open()
            await session.run(("set", {"line": 1, "value": 1}))
            raise ZeroDivisionError

    with pytest.raises(BaseExceptionGroup) as caught:
        await program()
    assert caught.group_contains(ZeroDivisionError)
    assert world.driver.levels == {1: 0}
    assert world.journal.records[-1]["event"] == "daemon.stop"


async def test_a_runtime_that_is_cancelled_while_it_starts_leaves_nothing_open(autojump_clock):
    world = BenchWorld()
    world.journal.hold()

    async def never(*, task_status):
        await trio.sleep_forever()

    world.journal.run = never
    with trio.move_on_after(1) as scope:
        async with running(world):
            raise AssertionError
    assert scope.cancelled_caught
    assert world.journal.ended
    assert not world.driver.is_open


async def test_a_journal_that_crashes_ends_the_runtime_and_the_outputs_are_safe(autojump_clock):
    # It is the one actor without which nothing may go on; a rollback must not wait for it for ever either.
    world = BenchWorld(buses={"a": Style.ASYNC}, close_grace_s=0.5, shutdown_grace_s=1)
    broken = trio.Event()
    run = world.journal.run

    async def crashing(*, task_status):
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: run(task_status=task_status))
            task_status.started()
            await broken.wait()
            raise ZeroDivisionError

    world.journal.run = crashing

    async def program():
        async with running(world):
            session = await world.connect().open()
            await session.start(("set", {"line": 1, "value": 1}), ("wait", {}), rollback_on_failure=True)
            await until(lambda: world.driver.levels == {1: 1})
            broken.set()
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await program()
    assert caught.group_contains(ZeroDivisionError)
    assert not world.driver.is_open
    assert trio.current_time() < 60


async def test_ending_twice_changes_nothing(world):
    await world.connect().open()
    await world.runtime.end_sessions()
    await world.runtime.end_sessions()
    assert len(world.journal.of("session.close")) == 1


async def test_a_second_signal_stops_waiting(make_world, autojump_clock):
    async with make_world(shutdown_grace_s=1000) as world:
        session = await world.connect().open()
        await session.start(("read", {"gate": "x", "limit_ms": 600_000}))
        await world.gate("x").reached()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.runtime.end_sessions)
            await trio.sleep(5)
            assert world.runtime.closing
            world.runtime.stop_waiting()
        assert trio.current_time() < 20
        (finish,) = world.journal.of("task.step.finish")
        assert finish["effect"] == "unknown"
