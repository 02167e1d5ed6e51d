"""How a session lives and ends (draft §3.1, §3.2, §5; design §3, §4, §8)."""

from __future__ import annotations

import gc

import pytest
import trio
import trio.testing
from support.waiting import until
from support.world import ALICE, BOB, OPEN, running, simulated

from hearth.actors.session import Session
from hearth.drivers.base import Style
from hearth.errors import InternalError, PermissionDenied, QueueFull, SessionInvalid, ShuttingDown, TaskNotFound
from hearth.policy.rules import Match, PolicyEntry


def closed(world, session):
    """The record of a session's end."""
    records = world.journal.of("session.close", session_id=session.session_id)
    assert len(records) <= 1
    return records[0] if records else None


# --- silence -----------------------------------------------------------------------------------------------------


async def test_an_idle_session_is_closed_after_its_time_to_live(world, autojump_clock):
    session = await world.connect().open()
    await trio.sleep(299)
    assert closed(world, session) is None
    await trio.sleep(2)
    assert closed(world, session)["reason"] == "idle"
    assert world.runtime.sessions == 0
    with pytest.raises(SessionInvalid):
        await session.call("tool.list")


@pytest.mark.parametrize("method", ["tool.list", "task.get", "task.cancel", "task.submit", "task.events.unsubscribe"])
async def test_a_request_that_names_the_session_keeps_it(world, autojump_clock, method):
    session = await world.connect().open()
    for _ in range(3):
        await trio.sleep(299)
        params = {"task_id": "none"} if method.startswith("task.") else {}
        if method == "task.submit":
            params = {"task": {"intent": "x", "steps": [{"tool": "bench.none"}]}}
        await session.client.ask(method, {"session_id": session.session_id, **params})
    assert closed(world, session) is None


async def test_a_running_task_alone_does_not_keep_a_session(world, autojump_clock):
    # An agent that vanished must not leave actuators moving.
    session = await world.connect().open()
    await session.start(("set", {"line": 1, "value": 1}), ("wait", {}))
    await trio.sleep(301)
    assert closed(world, session)["reason"] == "idle"
    assert closed(world, session)["safe"] == [{"line": 1, "safe": 0}]
    assert [record["reason"] for record in world.journal.of("task.finish")] == ["session closed"]


async def test_a_live_subscription_keeps_a_session(world, autojump_clock):
    session = await world.connect().open()
    task_id = await session.start(("wait", {"tag": "go"}))
    await session.subscribe(task_id)
    await trio.sleep(2000)
    assert closed(world, session) is None
    world.event("go").set()
    await session.client.finished(task_id)
    # The time to live counts from the end of the subscription.
    await trio.sleep(298)
    assert closed(world, session) is None
    await trio.sleep(3)
    assert closed(world, session)["reason"] == "idle"


async def test_a_session_wide_subscription_keeps_a_session_until_its_connection_ends(world, autojump_clock):
    client = world.connect()
    session = await client.open()
    await session.subscribe()
    await trio.sleep(2000)
    assert closed(world, session) is None
    await client.close()
    await trio.sleep(298)
    assert closed(world, session) is None
    await trio.sleep(3)
    assert closed(world, session)["reason"] == "idle"


async def test_the_end_of_a_connection_that_followed_nothing_does_not_prolong_its_session(world, autojump_clock):
    client = world.connect()
    session = await client.open()
    await trio.sleep(200)
    await client.close()
    await trio.sleep(101)
    assert closed(world, session)["reason"] == "idle"


async def test_a_subscription_of_a_connection_that_has_gone_keeps_nothing(world, autojump_clock):
    opener, watcher = world.connect(), world.connect()
    session = await opener.open()
    task_id = await session.start(("wait", {}))
    session.client = watcher
    await session.subscribe(task_id)
    await session.subscribe()
    await watcher.close()
    await trio.sleep(700)
    assert closed(world, session)["reason"] == "idle"


async def test_who_leaves_while_it_follows_one_session_does_not_keep_another(world, autojump_clock):
    client = world.connect()
    idle, busy = await client.open(), await client.open()
    await busy.subscribe(await busy.start(("wait", {})))
    await trio.sleep(200)
    await client.close()
    await trio.sleep(101)
    assert closed(world, idle)["reason"] == "idle"
    assert closed(world, busy) is None
    await trio.sleep(200)
    assert closed(world, busy)["reason"] == "idle"


async def test_unsubscribing_ends_what_kept_the_session(world, autojump_clock):
    session = await world.connect().open()
    await session.subscribe()
    await trio.sleep(1000)
    await session.call("task.events.unsubscribe")
    await trio.sleep(299)
    assert closed(world, session) is None
    await trio.sleep(2)
    assert closed(world, session)["reason"] == "idle"


async def test_a_session_without_a_heartbeat_is_closed_and_one_with_it_is_not(world, autojump_clock):
    client = world.connect()
    silent, alive = await client.open(heartbeat_ms=500), await client.open(heartbeat_ms=500)
    await silent.start(("set", {"line": 1, "value": 1}))
    for _ in range(10):
        await trio.sleep(0.4)
        await alive.call("tool.list")
    assert closed(world, silent)["reason"] == "no heartbeat within 500 ms"
    assert world.driver.levels == {1: 0}
    assert closed(world, alive) is None


async def test_a_subscription_is_no_heartbeat(world, autojump_clock):
    session = await world.connect().open(heartbeat_ms=500)
    await session.subscribe()
    await trio.sleep(0.6)
    assert closed(world, session)["reason"] == "no heartbeat within 500 ms"


async def test_a_heartbeat_longer_than_the_time_to_live_does_not_lengthen_it(world, autojump_clock):
    session = await world.connect().open(heartbeat_ms=3_600_000)
    await trio.sleep(301)
    assert closed(world, session)["reason"] == "idle"


async def test_waiting_for_a_long_heartbeat_wakes_no_task(world, autojump_clock):
    # Followed, silent for longer than the time to live, and not yet past the heartbeat.
    rung = []
    ring = world.runtime._notify_timer
    world.runtime._timers._ring = lambda name: (rung.append(name), ring(name))
    session = await world.connect().open(heartbeat_ms=3_600_000)
    await session.subscribe()
    await trio.sleep(3_599)
    assert closed(world, session) is None
    assert len(rung) < 30
    await trio.sleep(2)
    assert closed(world, session)["reason"] == "no heartbeat within 3600000 ms"


# --- disconnects -------------------------------------------------------------------------------------------------


async def test_a_session_outlives_its_connection_and_is_found_again_by_its_principal(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(("wait", {"tag": "go"}))
    await client.close()
    await trio.testing.wait_all_tasks_blocked()
    session.client = world.connect()
    world.event("go").set()
    assert (await session.wait(task_id))["status"] == "SUCCESS"


async def test_with_on_disconnect_close_a_controller_that_dies_leaves_a_robot_that_stops(world):
    client = world.connect()
    session = await client.open(on_disconnect="close")
    task_id = await session.start(("set", {"line": 1, "value": 1}), ("wait", {}))
    await session.subscribe(task_id)
    await client.until(lambda: any(event.get("step_index") == 1 for event in client.events))
    assert world.driver.levels == {1: 1}
    await client.close()
    await until(lambda: closed(world, session))
    assert closed(world, session)["reason"] == "its client disconnected"
    assert world.driver.levels == {1: 0}
    assert world.journal.of("task.finish", task_id=task_id)[0]["status"] == "CANCELLED"


async def test_on_disconnect_looks_at_the_connection_that_opened_the_session_only(world):
    opener, other = world.connect(), world.connect()
    session = await opener.open(on_disconnect="close")
    session.client = other
    await session.call("tool.list")
    await session.subscribe()
    await other.close()
    await trio.testing.wait_all_tasks_blocked()
    session.client = opener
    await session.call("tool.list")
    await opener.close()
    await until(lambda: closed(world, session))


async def test_connections_that_followed_and_went_are_forgotten(world):
    session = await world.connect().open()
    actor = world.runtime.find_session(session.session_id, ALICE.key)
    for _ in range(20):
        session.client = world.connect()
        await session.subscribe()
        await session.client.close()
        await trio.testing.wait_all_tasks_blocked()
    assert len(actor._subscribers.followers) <= 1


# --- closing -----------------------------------------------------------------------------------------------------


async def test_closing_answers_after_two_seconds_at_the_latest_and_says_who_still_yields(world, autojump_clock):
    session = await world.connect().open()
    for number in range(3):
        await session.start(("set", {"line": number, "value": 1, "gate": "x", "limit_ms": 600_000}))
    await world.gate("x").reached()
    began = trio.current_time()
    # One has begun and cannot be interrupted; the two behind it never begin.
    assert await session.close() == {"ok": True, "yielding": 1}
    assert trio.current_time() - began == pytest.approx(2)
    assert closed(world, session)["yielding"] == 1
    assert closed(world, session)["reason"] == "closed by the client"
    with pytest.raises(SessionInvalid):
        await session.call("tool.list")
    world.gate("x").open()
    await until(lambda: len(world.journal.of("task.finish")) == 3)
    await until(lambda: world.driver.levels == {0: 0})
    world.observer.assert_whole()


async def test_closing_answers_within_two_seconds_also_when_an_output_cannot_be_made_safe(world, autojump_clock):
    session, other = await world.connect().open(), await world.connect(BOB).open()
    await session.run(("set", {"line": 1, "value": 1}))
    await other.start(("read", {"gate": "x", "limit_ms": 600_000}))
    await world.gate("x").reached()
    began = trio.current_time()
    assert await session.close() == {"ok": True}
    assert trio.current_time() - began == pytest.approx(2)
    assert world.driver.levels == {1: 1}
    # Its turn comes when the bus comes free.
    world.gate("x").open()
    await trio.sleep(0.1)
    assert world.driver.levels == {1: 0}


async def test_closing_an_idle_session_answers_at_once(world, autojump_clock):
    session = await world.connect().open()
    await session.start(("wait", {}))
    began = trio.current_time()
    assert await session.close() == {"ok": True}
    assert trio.current_time() == began


async def test_every_request_after_the_close_gets_session_invalid_even_in_the_same_breath(world):
    client = world.connect()
    session = await client.open()
    params = {"session_id": session.session_id}
    await client.send(
        client.request("session.close", params, 1_000),
        client.request("session.close", params, 1_001),
        client.request("tool.list", params, 1_002),
        client.request("task.submit", session.submission([("read", {})]), 1_003),
    )
    await client.until(lambda: all(client.answers(1_000 + number) for number in range(4)))
    assert client.answers(1_000)[0]["result"] == {"ok": True}
    assert [client.answers(1_000 + number)[0]["error"]["code"] for number in (1, 2, 3)] == [-32000] * 3
    await until(lambda: closed(world, session))


async def test_the_end_of_a_session_is_recorded_before_it_is_told(world):
    client = world.connect()
    session = await client.open()
    world.journal.hold()
    await client.send(client.request("session.close", {"session_id": session.session_id}, 100))
    await trio.testing.wait_all_tasks_blocked()
    assert client.answers(100) == []
    world.journal.release()
    await client.until(lambda: client.answers(100))
    assert closed(world, session)["principal"] == ALICE.key


async def test_a_session_can_be_opened_and_closed_while_the_log_cannot_be_written(world):
    world.journal.fail("disk full")
    session = await world.connect().open()
    assert (await session.run(("read", {})))["status"] == "SUCCESS"
    assert await session.close() == {"ok": True}


# --- crashes -----------------------------------------------------------------------------------------------------


async def test_a_session_that_crashes_ends_alone_and_answers_everybody(world):
    client = world.connect()
    session, other = await client.open(), await client.open()
    task_id = await session.start(("set", {"line": 1, "value": 1, "tag": "x"}), ("wait", {}), subscribe=True)
    await client.until(lambda: len(client.events) == 3)
    params = {"session_id": session.session_id}
    await client.send(
        client.request("task.submit", session.submission([("badbus", {})]), 100),
        client.request("tool.list", params, 101),
        client.request("session.close", params, 102),
    )
    await client.until(lambda: all(client.answers(100 + number) for number in range(3)))
    assert client.answers(100)[0]["error"]["code"] == InternalError.code
    assert [client.answers(100 + number)[0]["error"]["code"] for number in (1, 2)] == [-32000] * 2
    await client.finished(task_id)
    finish = client.events_of(task_id)[-1]
    assert (finish["status"], finish["reason"]) == ("CANCELLED", "session crashed")
    await until(lambda: world.driver.levels == {1: 0})
    await until(lambda: closed(world, session))
    assert closed(world, session)["reason"] == "internal error"
    assert closed(world, session)["error"] == "KeyError"
    assert (await other.run(("read", {})))["status"] == "SUCCESS"
    assert world.runtime.sessions == 1


async def test_a_session_that_crashes_while_a_transaction_is_in_flight_is_gone_at_once(world):
    session = await world.connect().open()
    await session.start(("read", {"gate": "x", "limit_ms": 600_000}))
    await world.gate("x").reached()
    with pytest.raises(InternalError):
        await session.submit(("badbus", {}))
    with pytest.raises(SessionInvalid):
        await session.call("tool.list")
    world.gate("x").open()
    await until(lambda: closed(world, session))
    world.observer.assert_whole()


# --- who may -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tool.list", "task.get", "task.cancel", "session.close", "task.submit"])
async def test_another_principals_session_is_not_told_apart_from_none(world, method):
    session = await world.connect(ALICE).open()
    task_id = await session.start(("wait", {}))
    thief = world.connect(BOB)
    answers = []
    for session_id in (session.session_id, "01NOSUCHSESSION"):
        params = {"session_id": session_id, "task_id": task_id}
        if method == "task.submit":
            params = {**session.submission([("read", {})]), "session_id": session_id}
        answers.append(await thief.ask(method, params))
    assert answers[0]["error"] == answers[1]["error"]
    assert answers[0]["error"]["code"] == -32000
    assert (await session.get(task_id))["status"] in ("QUEUED", "RUNNING")


async def test_who_fits_no_policy_gets_no_session_and_is_on_record(make_world):
    nobody = PolicyEntry(name="root only", match=Match(uid=0))
    async with make_world(policy=[nobody]) as world:
        with pytest.raises(PermissionDenied):
            await world.connect().open()
        await until(lambda: world.journal.of("session.reject"))
        assert world.journal.of("session.reject")[0]["principal"] == ALICE.key
        assert world.journal.of("session.open") == []


@pytest.mark.slow
async def test_a_principal_has_at_most_so_many_sessions(make_world):
    async with make_world(max_sessions_per_principal=2) as world:
        client = world.connect()
        first = await client.open()
        await client.open()
        with pytest.raises(QueueFull) as full:
            await world.connect().open()
        assert full.value.data["max_sessions_per_principal"] == 2
        assert await world.connect(BOB).open(), "the bound is each principal's own"
        await first.close()
        assert await client.open()


async def test_capabilities_are_what_the_session_may_really_do(make_world):
    entries = [
        PolicyEntry(name="reader", match=Match(uid=1001), max_risk=0),
        PolicyEntry(name="nothing", match=Match(uid=1002), tools=[]),
        OPEN,
    ]
    async with make_world(policy=entries, buses={"a": Style.ASYNC}, widths={"a": 4}) as world:
        opened = await world.connect(ALICE).call("session.open")
        assert opened["capabilities"] == ["CAP_GPIO_READ", "CAP_STREAMING_TASK_EVENTS"]
        opened = await world.connect(BOB).call("session.open")
        assert opened["capabilities"] == ["CAP_STREAMING_TASK_EVENTS"]
        assert opened["protocol_version"] == "0.1.0"


async def test_the_opening_of_a_session_is_on_record_before_it_is_answered(world):
    client = world.connect()
    world.journal.hold()
    await client.send(client.request("session.open", {"client_name": "arm"}, 100))
    await trio.testing.wait_all_tasks_blocked()
    assert client.answers(100) == []
    world.journal.release()
    await client.until(lambda: client.answers(100))
    (opened,) = world.journal.of("session.open")
    assert opened["session_id"] == client.answers(100)[0]["result"]["session_id"]
    assert (opened["client_name"], opened["policy"], opened["principal"]) == ("arm", "bench", ALICE.key)


# --- the history --------------------------------------------------------------------------------------------------


async def test_so_many_ended_tasks_are_remembered_and_then_the_oldest_is_not_found(make_world):
    async with make_world(task_history=3) as world:
        session = await world.connect().open()
        ids = [await session.start(("read", {"tag": str(number)})) for number in range(4)]
        for task_id in ids[1:]:
            await session.wait(task_id)
        params = {"session_id": session.session_id}
        shown = [await session.client.ask("task.get", {**params, "task_id": one}) for one in ids]
        assert "error" in shown[0]
        assert shown[0]["error"]["code"] == -32001
        assert [answer["result"]["status"] for answer in shown[1:]] == ["SUCCESS"] * 3
        for method in ("task.cancel", "task.events.subscribe", "task.events.unsubscribe"):
            with pytest.raises(TaskNotFound):
                await session.call(method, task_id=ids[0])


# --- shutdown ----------------------------------------------------------------------------------------------------


async def test_at_shutdown_sessions_end_first_and_no_new_one_is_opened(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(("set", {"line": 1, "value": 1}), ("wait", {}), subscribe=True)
    await client.until(lambda: len(client.events) == 3)
    await world.runtime.end_sessions()
    assert closed(world, session)["reason"] == "shutting down"
    assert world.journal.of("task.finish", task_id=task_id)[0]["reason"] == "shutting down"
    assert world.driver.levels == {1: 0}
    assert (await client.finished(task_id))[-1]["status"] == "CANCELLED"
    with pytest.raises(ShuttingDown):
        await client.open()
    with pytest.raises(SessionInvalid):
        await session.call("tool.list")


async def test_the_memory_of_a_session_that_has_ended_is_free_without_the_garbage_collector(tmp_path):
    async with running(simulated(tmp_path)) as world:
        client = world.connect()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                session = await client.open()
                await session.close()
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            assert not [one for one in gc.garbage if isinstance(one, Session)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
