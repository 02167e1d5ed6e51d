"""A task from accepted to its one terminal status (draft §3.4–§3.6, §5; design §4, §7, §8), seen from the wire."""

from __future__ import annotations

import itertools

import pytest
import trio
from support.doubles import Op
from support.waiting import until
from support.world import ALICE, BOB

from hearth.drivers.base import Style
from hearth.errors import DeviceError, InternalError, ResourceBusy
from hearth.tools import Done, Tool, Undo

STATUSES = {"SUCCESS", "FAILED", "CANCELLED"}


def audit_of(world, task_id):
    """A task's records: event and step."""
    return [
        (record["event"].removeprefix("task."), record.get("step_index"))
        for record in world.journal.records
        if record.get("task_id") == task_id
    ]


# --- steps -------------------------------------------------------------------------------------------------------


async def test_a_task_is_on_record_from_submit_to_finish(world):
    session = await world.connect().open()
    done = await session.run(("set", {"line": 1, "value": 1}), ("fail", {}), ("read", {}), intent="look here")
    task_id = done["task_id"]
    assert audit_of(world, task_id) == [
        ("submit", None),
        ("step.start", 0),
        ("step.finish", 0),
        ("step.start", 1),
        ("step.finish", 1),
        ("finish", None),
    ]
    submit = world.journal.of("task.submit")[0]
    assert submit["intent"] == "look here"
    assert [step["tool"] for step in submit["steps"]] == ["bench.set", "bench.fail", "bench.read"]
    assert "value" not in str(submit), "args themselves are not logged"
    start = world.journal.of("task.step.start", task_id=task_id)[0]
    assert start["args_hash"] == submit["steps"][0]["args_hash"]
    assert (start["tool"], start["bus"], start["principal"]) == ("bench.set", "a", ALICE.key)
    finishes = world.journal.of("task.step.finish", task_id=task_id)
    assert [finish["status"] for finish in finishes] == ["SUCCESS", "FAILED"]
    assert (finishes[1]["error_code"], finishes[1]["effect"]) == (-32009, "none")
    assert world.journal.of("task.finish")[0]["status"] == "FAILED"


async def test_a_step_begins_only_after_its_start_is_on_record(world):
    session = await world.connect().open()
    task_id = await session.start(("wait", {"tag": "go"}), ("set", {"line": 1, "value": 1, "tag": "x"}))
    await session.subscribe(task_id)
    await session.client.until(lambda: session.client.events)
    world.journal.hold()
    world.event("go").set()
    await trio.testing.wait_all_tasks_blocked()
    assert world.observer.of("begin") == []
    world.journal.release()
    await session.wait(task_id)
    assert world.observer.labels("begin") == ["x"]
    seen = world.observer.seen
    start = next(
        index
        for index, what in enumerate(seen)
        if what[:2] == ("record", "task.step.start") and what[2]["step_index"] == 1
    )
    assert start < world.observer.index("begin", "a", "x", 1)


async def test_what_is_told_is_on_record_already(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(("wait", {"tag": "go"}), subscribe=True)
    await client.until(lambda: len(client.events) == 1)
    world.journal.hold()
    world.event("go").set()
    await trio.testing.wait_all_tasks_blocked()
    assert len(client.events) == 1, "neither the finish of the step nor that of the task is told"
    assert (await session.get(task_id))["status"] == "RUNNING"
    world.journal.release()
    assert [event["phase"] for event in await client.finished(task_id)] == ["start", "finish", "task_finish"]


@pytest.mark.parametrize("tool", ["bug", "crash"])
async def test_a_bug_fails_its_task_with_an_internal_error_that_keeps_its_secrets(world, tool):
    session = await world.connect().open()
    done = await session.run((tool, {}), ("read", {}))
    assert done["status"] == "FAILED"
    assert done["steps"][0]["error_code"] == InternalError.code
    assert done["steps"][0]["error_data"]["effect"] == "unknown"
    assert "a bug" not in str(done)
    finish = world.journal.of("task.step.finish", task_id=done["task_id"])[0]
    assert (finish["status"], finish["error_code"], finish["effect"]) == ("FAILED", -32603, "unknown")


def a_tool(run, **more):
    """A tool bench.extra that does `run`."""
    return Tool(
        **{
            "name": "bench.extra",
            "risk_level": 1,
            "timeout_ms": 1000,
            "description": "bench.extra",
            "params_schema": {"type": "object"},
            "result_schema": {"type": "object"},
            "capability": "CAP_GPIO_RW",
            "bus": lambda _args: "a",
            "run": run,
            **more,
        }
    )


async def test_an_error_from_a_tools_own_nursery_is_that_error(make_world):
    async def run(_ctx, _args):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise DeviceError("from inside", effect="none")

    async with make_world(extra_tools=[a_tool(run)]) as world:
        session = await world.connect().open()
        done = await session.run(("extra", {}), ("read", {}), abort_on_step_failure=False)
    assert [step["status"] for step in done["steps"]] == ["FAILED", "SUCCESS"]
    assert (done["steps"][0]["error"], done["steps"][0]["error_code"]) == ("from inside", -32009)


async def test_a_bug_in_a_tools_own_nursery_is_named_for_what_it_is(make_world):
    async def run(_ctx, _args):
        async with trio.open_nursery():
            raise ZeroDivisionError

    async with make_world(extra_tools=[a_tool(run)]) as world:
        session = await world.connect().open()
        done = await session.run(("extra", {}))
    assert done["steps"][0]["error"] == "internal error: ZeroDivisionError"


@pytest.mark.parametrize("what", ["result", "progress", "surrogate", "bytes"])
async def test_what_json_cannot_say_fails_the_step_and_loses_no_event(world, what):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(
        ("unsayable", {"tag": what}), ("read", {}), abort_on_step_failure=False, subscribe=True
    )
    events = await client.finished(task_id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    done = await session.get(task_id)
    assert done["status"] == "FAILED"
    assert done["steps"][0]["status"] == "FAILED"
    if what == "surrogate":
        assert done["steps"][0]["error"] == "no file \\udcff"
        assert done["steps"][0]["error_data"]["effect"] == "none"
    if what == "bytes":
        assert done["steps"][0]["error_data"]["effect"] == "done"
        assert "xff" in str(done["steps"][0]["error_data"]["value"])
    assert (await session.run(("read", {})))["status"] == "SUCCESS", "the session goes on"


async def test_a_step_whose_result_cannot_be_told_is_taken_back_all_the_same(make_world):
    async def run(ctx, _args):
        await ctx.transact(Op("x"), drives=1)
        return Done({"value": object()}, Undo(Op("undo x"), "x back"))

    async with make_world(extra_tools=[a_tool(run, supports_rollback=True)]) as world:
        session = await world.connect().open()
        done = await session.run(("extra", {}), rollback_on_failure=True)
        assert done["steps"][0]["rolled_back"] is True
        assert world.observer.labels("begin")[:2] == ["x", "undo x"]


async def test_a_step_that_makes_many_transactions_keeps_no_other_waiting(make_world, style):
    # On an INLINE bus a transaction runs in place: a loop of them must still give others their turn.
    async with make_world(buses={"a": style, "b": style}) as world:
        session = await world.connect().open()
        task_id = await session.start(("many", {"n": 1_000_000}))
        assert (await session.run(("read", {"bus": "b"})))["status"] == "SUCCESS"
        assert await session.cancel(task_id) == "CANCELLING"
        done = await session.wait(task_id)
        assert done["status"] == "CANCELLED"
        assert done["steps"][0]["status"] == "CANCELLED"
    world.observer.assert_whole()


# --- cancelling in each phase ------------------------------------------------------------------------------------


async def test_a_task_cancelled_while_its_submission_is_being_recorded_starts_nothing(world):
    client = world.connect()
    session = await client.open()
    world.journal.hold()
    submit = session.submission([("set", {"line": 1, "value": 1})], subscribe=True)
    await client.send(client.request("task.submit", submit, 100))
    await trio.testing.wait_all_tasks_blocked()
    await client.send(client.request("session.close", {"session_id": session.session_id}, 101))
    await trio.testing.wait_all_tasks_blocked()
    world.journal.release()
    await client.until(lambda: client.answers(100) and client.answers(101))
    task_id = client.answers(100)[0]["result"]["task_id"]
    events = await client.finished(task_id)
    assert events[-1]["status"] == "CANCELLED"
    assert [event["phase"] for event in events] == ["start", "finish", "task_finish"]
    assert events[1]["status"] == "CANCELLED"
    assert audit_of(world, task_id) == [("submit", None), ("step.start", 0), ("step.finish", 0), ("finish", None)]
    assert world.observer.of("begin") == []


async def test_a_task_cancelled_between_two_steps_loses_no_event_and_leaves_no_step_running(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(("wait", {"tag": "go"}), ("read", {"tag": "never"}), subscribe=True)
    await client.until(lambda: client.events)
    world.journal.hold()
    world.event("go").set()
    await trio.testing.wait_all_tasks_blocked()
    # The finish of the first step and the start of the second wait for the log.
    assert await session.cancel(task_id) == "CANCELLING"
    await trio.testing.wait_all_tasks_blocked()
    world.journal.release()
    events = await client.finished(task_id)
    assert [(event["phase"], event.get("step_index")) for event in events] == [
        ("start", 0),
        ("finish", 0),
        ("start", 1),
        ("finish", 1),
        ("task_finish", None),
    ]
    done = await session.get(task_id)
    assert [step["status"] for step in done["steps"]] == ["SUCCESS", "CANCELLED"]
    assert world.observer.of("begin") == []


async def test_a_task_cancelled_while_it_waits_for_its_lease_gives_back_what_it_has(world):
    session = await world.connect().open()
    holder = await session.start(("wait", {"tag": "go", "bus": "b"}), exclusive=True)
    await until(lambda: world.runtime.buses["b"].health().get("leased"))
    waiter = await session.start(("read", {"bus": "b"}), ("read", {"bus": "a"}), exclusive=True)
    await until(lambda: world.runtime.buses["a"].health().get("leased"))
    assert (await session.get(waiter))["status"] == "QUEUED"
    assert await session.cancel(waiter) == "CANCELLING"
    done = await session.wait(waiter)
    assert done["status"] == "CANCELLED"
    assert [step["status"] for step in done["steps"]] == ["CANCELLED", "CANCELLED"]
    assert audit_of(world, waiter) == [("submit", None), ("finish", None)]
    assert "leased" not in world.runtime.buses["a"].health()
    world.event("go").set()
    assert (await session.wait(holder))["status"] == "SUCCESS"
    assert "leased" not in world.runtime.buses["b"].health()


async def test_a_task_cancelled_while_it_rolls_back_goes_on_rolling_back(world):
    with trio.fail_after(60):
        client = world.connect()
        session = await client.open()
        task_id = await session.start(
            ("set", {"line": 1, "value": 1}), ("fail", {"gate": "x"}), rollback_on_failure=True, subscribe=True
        )
        await world.gate("x").reached()
        world.journal.hold()
        world.gate("x").open()
        await trio.testing.wait_all_tasks_blocked()
        # The failure is decided, and the record of the undo waits for the log.
        assert await session.cancel(task_id) == "CANCELLING"
        assert (await session.get(task_id))["status"] == "RUNNING"
        assert world.driver.levels == {1: 1}
        world.journal.release()
        assert (await client.finished(task_id))[-1]["status"] == "FAILED"
        done = await session.get(task_id)
        assert (done["status"], done["steps"][0]["rolled_back"]) == ("FAILED", True)
        assert world.driver.levels == {1: None}


@pytest.mark.parametrize(("tool", "answer"), [("fail", "CANCELLING"), ("read", "SUCCESS")])
async def test_a_cancel_of_a_task_that_is_ending_promises_nothing_that_does_not_come(world, tool, answer):
    """Draft §3.6: CANCELLING until `task_finish`; a task whose success is decided cannot be cancelled (0007)."""
    with trio.fail_after(60):
        client = world.connect()
        session = await client.open()
        task_id = await session.start((tool, {"gate": "x"}), subscribe=True)
        await world.gate("x").reached()
        world.journal.hold()
        world.gate("x").open()
        await trio.testing.wait_all_tasks_blocked()
        assert await session.cancel(task_id) == answer
        world.journal.release()
        ended = (await client.finished(task_id))[-1]["status"]
        assert ended == await session.cancel(task_id) == {"fail": "FAILED", "read": "SUCCESS"}[tool]


async def test_a_cancel_that_comes_during_the_last_step_still_cancels(world):
    session = await world.connect().open()
    task_id = await session.start(("read", {"gate": "x"}))
    await world.gate("x").reached()
    assert await session.cancel(task_id) == "CANCELLING"
    world.gate("x").open()
    done = await session.wait(task_id)
    assert (done["status"], done["steps"][0]["status"]) == ("CANCELLED", "SUCCESS")


# --- deadlines ----------------------------------------------------------------------------------------------------


async def test_max_duration_counts_from_the_submission(make_world, autojump_clock):
    async with make_world() as world:
        session = await world.connect().open()
        await session.start(("read", {"ms": 800}))
        began = trio.current_time()
        done = await session.run(("read", {"tag": "queued"}), max_duration_ms=500)
        assert trio.current_time() - began == pytest.approx(0.5)
        assert done["status"] == "FAILED"
        assert done["error_code"] == -32010
        assert done["error_data"]["limit_ms"] == 500
        assert [step["status"] for step in done["steps"]] == ["CANCELLED"]
    assert world.observer.labels("begin") == ["read"]


async def test_max_duration_lets_the_transaction_in_flight_finish_and_then_stops(make_world, autojump_clock):
    async with make_world() as world:
        session = await world.connect().open()
        began = trio.current_time()
        done = await session.run(("read", {"ms": 800}), ("read", {"tag": "never"}), max_duration_ms=500)
        assert trio.current_time() - began == pytest.approx(0.8)
        assert (done["status"], done["error_code"]) == ("FAILED", -32010)
        assert [step["status"] for step in done["steps"]] == ["SUCCESS", "CANCELLED"]
    world.observer.assert_whole()


async def test_a_task_that_ends_in_time_has_no_trace_of_its_deadline(make_world, autojump_clock):
    async with make_world() as world:
        session = await world.connect().open()
        done = await session.run(("read", {"ms": 400}), max_duration_ms=500)
        assert done["status"] == "SUCCESS"
        assert "error" not in done


async def test_the_deadline_also_ends_a_wait_for_leases(make_world, autojump_clock):
    async with make_world() as world:
        session = await world.connect().open()
        await session.start(("wait", {}), exclusive=True)
        done = await session.run(("read", {}), exclusive=True, max_duration_ms=300)
        assert (done["status"], done["error_code"]) == ("FAILED", -32010)


@pytest.mark.parametrize(
    ("held_by", "steps", "options", "effect"),
    [
        pytest.param("a transaction", [("set", {"line": 1, "value": 1})], {}, "none", id="queue"),
        pytest.param("a lease", [("set", {"line": 1, "value": 1})], {}, "none", id="lease"),
        pytest.param("a lease", [("set", {"line": 1, "value": 1})], {"exclusive": True}, "none", id="exclusive"),
        pytest.param("nothing", [("read", {"ms": 400})], {}, "none", id="only reads"),
        pytest.param("nothing", [("fail", {}), ("nap", {"ms": 400})], {}, "none", id="a step that had no effect"),
        pytest.param("nothing", [("set", {"line": 1, "value": 1, "ms": 400})], {}, "unknown", id="it had begun"),
        pytest.param(
            "nothing", [("set", {"line": 1, "value": 1}), ("nap", {"ms": 400})], {}, "unknown", id="an earlier step"
        ),
    ],
)
async def test_a_deadline_says_none_if_nothing_with_an_effect_had_begun(
    make_world, autojump_clock, held_by, steps, options, effect
):
    """Draft §3.5: by `effect` a client decides whether to repeat; "unknown" only where something may have moved."""
    async with make_world() as world:
        session = await world.connect().open()
        if held_by != "nothing":
            await session.start(("read", {"ms": 800}), exclusive=held_by == "a lease")
        done = await session.run(*steps, max_duration_ms=300, abort_on_step_failure=False, **options)
        assert (done["status"], done["error_code"], done["error_data"]["effect"]) == ("FAILED", -32010, effect)
        assert world.driver.levels.get(1) == (None if effect == "none" else 1)


# --- rollback -----------------------------------------------------------------------------------------------------


async def test_each_undo_is_recorded_before_it_begins_and_when_it_is_done(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(
        ("set", {"line": 1, "value": 1, "tag": "one"}),
        ("read", {}),
        ("set", {"line": 2, "value": 1, "tag": "two"}),
        ("fail", {}),
        rollback_on_failure=True,
        subscribe=True,
    )
    events = await client.finished(task_id)
    rollbacks = world.journal.of("task.step.rollback", task_id=task_id)
    assert [(record["step_index"], record.get("undo"), record.get("rolled_back")) for record in rollbacks] == [
        (2, "line 2 back to None", None),
        (2, None, True),
        (0, "line 1 back to None", None),
        (0, None, True),
    ]
    told = [(event["step_index"], event["rolled_back"]) for event in events if "rolled_back" in event]
    assert told == [(2, True), (0, True)]
    order = [
        what[2] if what[0] == "begin" else what[2]["step_index"]
        for what in world.observer.seen
        if what[0] == "begin" or what[1] == "task.step.rollback"
    ]
    assert order == ["one", "read", "two", "fail", 2, "undo two", 2, 0, "undo one", 0]


async def test_an_undo_that_fails_is_told_and_the_others_are_still_done(make_world):
    async def run(ctx, args):
        await ctx.transact(Op("x"))
        return Done({}, Undo(Op("undo", raises=DeviceError("stuck", effect="unknown")), "x back"))

    async with make_world(extra_tools=[a_tool(run, supports_rollback=True)]) as world:
        session = await world.connect().open()
        done = await session.run(
            ("set", {"line": 1, "value": 1}), ("extra", {}), ("fail", {}), rollback_on_failure=True
        )
        assert [step.get("rolled_back") for step in done["steps"]] == [True, False, None]
        assert world.driver.levels == {1: None}
        events = session.client.events_of(done["task_id"])
        (failed,) = [event for event in events if event.get("rolled_back") is False]
        assert failed["error"] == "stuck"


async def test_an_undo_that_crashes_its_bus_is_told_and_the_others_wait_for_the_bus(make_world, autojump_clock):
    async def run(ctx, args):
        await ctx.transact(Op("x"))
        return Done({}, Undo(Op("undo", raises=RuntimeError("a bug")), "x back"))

    async with make_world(extra_tools=[a_tool(run, supports_rollback=True)]) as world:
        session = await world.connect().open()
        steps = [("set", {"line": 1, "value": 1}), ("extra", {}), ("fail", {})]
        done = await session.run(*steps, rollback_on_failure=True)
        assert [step.get("rolled_back") for step in done["steps"]] == [True, False, None]
        assert world.driver.opened == 2
        assert world.driver.levels == {1: None}


async def test_a_rollback_passes_a_full_queue_and_anothers_lease(make_world):
    async with make_world(bus_queue=1) as world:
        session = await world.connect().open()
        task_id = await session.start(
            ("set", {"line": 1, "value": 1}), ("wait", {"tag": "go"}), rollback_on_failure=True
        )
        await session.subscribe(task_id)
        await session.client.until(lambda: any(event.get("step_index") == 1 for event in session.client.events))
        holder = await session.start(("wait", {"tag": "hold"}), exclusive=True)
        await until(lambda: world.bus.health().get("leased"))
        await session.start(("read", {"tag": "queued"}))
        await until(lambda: world.bus.health()["queued"] == 1)
        await session.cancel(task_id)
        done = await session.wait(task_id)
        assert done["steps"][0]["rolled_back"] is True
        assert world.driver.levels == {1: None}
        assert world.observer.labels("begin") == ["set", "undo set"]
        world.event("hold").set()
        await session.wait(holder)


async def test_a_rollback_happens_also_when_the_session_ends(world):
    client = world.connect()
    session = await client.open()
    await session.start(("set", {"line": 1, "value": 1}), ("wait", {}), rollback_on_failure=True, subscribe=True)
    await client.until(lambda: len(client.events) == 3)
    await session.close()
    assert world.observer.labels("begin")[:2] == ["set", "undo set"]


async def test_without_the_constraint_nothing_is_taken_back(world):
    session = await world.connect().open()
    done = await session.run(("set", {"line": 1, "value": 1}), ("fail", {}))
    assert "rolled_back" not in done["steps"][0]
    assert world.driver.levels == {1: 1}


# --- leases -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", list(itertools.permutations(["ab", "ba", "ab"], 3))[:2])
async def test_exclusive_tasks_with_opposite_step_orders_do_not_deadlock(make_world, autojump_clock, orders):
    async with make_world() as world:
        session = await world.connect().open()
        ids = [
            await session.start(
                *[("read", {"bus": bus, "ms": 5, "tag": f"{number}.{bus}"}) for bus in order], exclusive=True
            )
            for number, order in enumerate(orders)
        ]
        with trio.fail_after(5):
            for task_id in ids:
                assert (await session.wait(task_id))["status"] == "SUCCESS"
    # Each had both buses from its first step to its last.
    order = [label.split(".")[0] for label in world.observer.labels("begin")]
    assert [key for key, _ in itertools.groupby(order)] == sorted(set(order), key=order.index)


@pytest.mark.parametrize("how", ["succeeds", "fails", "is cancelled", "crashes", "times out"])
async def test_leases_are_released_however_the_task_ends(world, how):
    endings = {"succeeds": ("read", {}), "fails": ("fail", {}), "crashes": ("bug", {})}
    last = endings.get(how, ("wait", {"tag": "never"}))
    more = {"max_duration_ms": 10} if how == "times out" else {}
    session = await world.connect().open()
    task_id = await session.start(("read", {"bus": "a"}), ("read", {"bus": "b"}), last, exclusive=True, **more)
    if how == "is cancelled":
        await session.subscribe(task_id)
        await session.client.until(lambda: any(event.get("step_index") == 2 for event in session.client.events))
        await session.cancel(task_id)
    await session.wait(task_id)
    for bus in world.runtime.buses.values():
        assert "leased" not in bus.health()
    other = await world.connect(BOB).open()
    assert (await other.run(("read", {}), on_busy="fail"))["status"] == "SUCCESS"


async def test_a_lease_survives_a_crash_of_its_bus(make_world, autojump_clock):
    async with make_world() as world:
        session, other = await world.connect().open(), await world.connect(BOB).open()
        task_id = await session.start(
            ("crash", {"tag": "crash"}),
            ("wait", {"tag": "go"}),
            ("read", {"tag": "mine"}),
            exclusive=True,
            abort_on_step_failure=False,
        )
        await until(lambda: world.bus.state == "down")
        await trio.sleep(1)
        assert world.bus.state == "ready"
        refused = await other.client.ask("task.submit", other.submission([("read", {})], on_busy="fail"))
        assert refused["error"]["data"]["reason"] == "leased"
        waiting = await other.start(("read", {"tag": "yours"}))
        world.event("go").set()
        done = await session.wait(task_id)
        assert [step["status"] for step in done["steps"]] == ["FAILED", "SUCCESS", "SUCCESS"]
        await other.wait(waiting)
    assert world.observer.labels("begin") == ["crash", "mine", "yours"]


async def test_pools_are_not_leased(make_world):
    async with make_world(widths={"a": 4}) as world:
        session = await world.connect().open()
        holder = await session.start(("wait", {"tag": "go"}), ("read", {"bus": "b"}), exclusive=True)
        await until(lambda: world.runtime.buses["b"].health().get("leased"))
        assert (await session.run(("read", {"bus": "a"}), on_busy="fail"))["status"] == "SUCCESS"
        world.event("go").set()
        await session.wait(holder)


# --- busy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("principal", [ALICE, BOB])
@pytest.mark.parametrize("why", ["leased", "wedged", "queue full"])
async def test_with_on_busy_fail_what_is_known_at_submit_is_told_at_once(make_world, autojump_clock, principal, why):
    async with make_world(bus_queue=1) as world:
        holder = await world.connect(ALICE).open()
        holder_id = await holder.start(
            ("read", {"gate": "x", "limit_ms": 10 if why == "wedged" else 600_000}), exclusive=why == "leased"
        )
        await world.gate("x").reached()
        if why == "wedged":
            await trio.sleep(0.02)
        if why == "queue full":
            await holder.start(("read", {}))
            await until(lambda: world.bus.health()["queued"] == 1)
        session = await world.connect(principal).open()
        with pytest.raises(ResourceBusy) as busy:
            await session.submit(("set", {"line": 1, "value": 1, "tag": "never"}), on_busy="fail")
        assert busy.value.data["bus"] == "a"
        assert busy.value.data["reason"] == why
        assert busy.value.data["held_ms"] >= 0
        assert busy.value.data.get("holder_task") == (holder_id if principal is ALICE else None)
        # Nothing is touched by a dry run, so nothing is in its way.
        assert (await session.run(("read", {}), on_busy="fail", dry_run=True))["status"] == "SUCCESS"
        world.gate("x").open()
    assert "never" not in world.observer.labels("begin")


async def test_with_on_busy_fail_a_lease_is_not_waited_for_either(world):
    session = await world.connect().open()
    holder = await session.start(("read", {"gate": "x"}))
    await world.gate("x").reached()
    done = await session.run(("read", {"bus": "b"}), ("read", {"bus": "a"}), exclusive=True, on_busy="fail")
    assert done["status"] == "FAILED"
    assert done["error_code"] == -32004
    assert done["error_data"]["holder_task"] == holder
    assert "leased" not in world.runtime.buses["b"].health()
    world.gate("x").open()


async def test_an_exclusive_task_that_does_not_want_to_wait_does_not_trip_over_those_who_do(world):
    session = await world.connect().open()
    task_id = await session.start(("wait", {"tag": "go"}), ("read", {"tag": "mine"}), exclusive=True, on_busy="fail")
    await until(lambda: world.bus.health().get("leased"))
    await session.start(("read", {"tag": "waiting"}))
    await until(lambda: world.bus.health()["queued"] == 1)
    world.event("go").set()
    assert (await session.wait(task_id))["status"] == "SUCCESS"
    assert world.observer.labels("begin") == ["mine", "waiting"]


async def test_a_bus_that_is_down_is_known_at_submit_too(make_world):
    async with make_world() as world:
        session = await world.connect().open()
        await session.run(("crash", {}))
        await until(lambda: world.bus.state == "down")
        world.driver.refuses = DeviceError("unplugged", effect="none")
        with pytest.raises(DeviceError, match="bus a is down"):
            await session.submit(("read", {}), on_busy="fail")
        done = await session.run(("read", {}))
        assert done["steps"][0]["error_data"]["state"] == "down"
        assert done["steps"][0]["error_data"]["effect"] == "none"


async def test_urgent_steps_go_first_and_equal_ones_in_the_order_they_came(world):
    session = await world.connect().open()
    await session.start(("read", {"gate": "x", "tag": "held"}))
    await world.gate("x").reached()
    ids = []
    for number, priority in enumerate(["low", "normal", "urgent", "high", "normal", "urgent"]):
        ids.append(await session.start(("read", {"tag": f"{priority} {number}"}), priority=priority))
        await until(lambda: world.bus.health()["queued"] == len(ids))
    world.gate("x").open()
    for task_id in ids:
        await session.wait(task_id)
    assert world.observer.labels("begin") == [
        "held",
        "urgent 2",
        "urgent 5",
        "high 3",
        "normal 1",
        "normal 4",
        "low 0",
    ]


# --- dry run ------------------------------------------------------------------------------------------------------


async def test_a_dry_run_is_on_record_and_touches_nothing(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(
        ("set", {"line": 1, "value": 1}), ("crash", {}), exclusive=True, dry_run=True, subscribe=True
    )
    events = await client.finished(task_id)
    assert [event["phase"] for event in events] == ["task_finish"]
    assert audit_of(world, task_id) == [("submit", None), ("finish", None)]
    assert world.journal.of("task.submit")[0]["dry_run"] is True
    done = await session.get(task_id)
    assert [step["status"] for step in done["steps"]] == ["SUCCESS", "SUCCESS"]
    assert done["steps"][0]["result"] == {"dry_run": True, "bus": "a", "risk_level": 2}
    assert world.observer.of("begin") == []
    assert world.driver.levels == {}


# --- teardown -----------------------------------------------------------------------------------------------------


async def test_a_task_that_is_torn_down_with_a_silent_log_is_still_told_its_end(make_world, autojump_clock):
    async with make_world(shutdown_grace_s=1) as world:
        client = world.connect()
        session = await client.open()
        task_id = await session.start(("wait", {}), subscribe=True)
        await client.until(lambda: client.events)
        world.journal.hold()
        await world.runtime.end_sessions()
        events = await client.finished(task_id)
        assert [event["phase"] for event in events] == ["start", "finish", "task_finish"]
        assert (events[-1]["status"], events[-1]["reason"]) == ("CANCELLED", "shutting down")
        world.journal.release()


async def test_a_submission_that_is_torn_down_before_it_is_on_record_is_answered(make_world, autojump_clock):
    async with make_world(shutdown_grace_s=1) as world:
        client = world.connect()
        session = await client.open()
        world.journal.hold()
        await client.send(client.request("task.submit", session.submission([("set", {"line": 1, "value": 1})]), 100))
        await trio.testing.wait_all_tasks_blocked()
        await world.runtime.end_sessions()
        await client.until(lambda: client.answers(100))
        assert client.answers(100)[0]["error"]["code"] == -32007
        world.journal.release()
    assert world.observer.of("begin") == []


async def test_every_style_runs_a_task_of_every_kind(make_world, style):
    async with make_world(buses={"a": style, "b": Style.INLINE}) as world:
        session = await world.connect().open()
        done = await session.run(
            ("set", {"line": 1, "value": 1}), ("read", {"bus": "b"}), ("fail", {}), rollback_on_failure=True
        )
        assert done["status"] == "FAILED"
        assert done["status"] in STATUSES
        assert world.driver.levels == {1: None}
    world.observer.assert_whole()
