"""What becomes of a task.submit before anything runs: the order of checks, the limits, idempotency (design §8)."""

from __future__ import annotations

import itertools
import threading

import pytest
import trio
import trio.testing
from support.waiting import until
from support.world import ALICE, BOB, OPEN

from hearth.actors import step as step_module
from hearth.actors.task import LONG_ARGS
from hearth.errors import (
    AuditUnavailable,
    InvalidParams,
    PermissionDenied,
    QueueFull,
    RateLimited,
    ResourceBusy,
    SessionInvalid,
    ToolNotFound,
)
from hearth.policy.rules import Match, PolicyEntry

NARROW = PolicyEntry(
    name="narrow",
    match=Match(any=True),
    max_risk=2,
    tools=[f"bench.{name}" for name in ("read", "set", "file", "rates", "limited", "danger", "wait", "fail")],
)

STEPS = {
    "good": ("read", {}),
    "unknown tool": ("none", {}),
    "not allowed": ("many", {"n": 1}),
    "schema": ("set", {"line": "one"}),
    "no such bus": ("read", {"bus": "nowhere"}),
    "risk": ("danger", {}),
    "path": ("file", {"path": "/etc/shadow"}),
    "rate": ("rates", {}),
}
CODES = {
    "session": -32000,
    "shape": -32602,
    "unknown tool": -32002,
    "not allowed": -32003,
    "schema": -32602,
    "no such bus": -32602,
    "risk": -32003,
    "path": -32003,
    "rate": -32006,
    "capacity": -32005,
}
ORDER = ["session", "shape", "unknown tool", "not allowed", "schema", "risk", "path", "rate", "capacity"]


class Submitter:
    """A session whose rate and capacity are used up when a case wants them to be."""

    def __init__(self, world, client, session):
        self.world, self.client, self.session = world, client, session

    async def error_of(self, *faults):
        """The answer to one submission that has all these faults, each in a step of its own, the last one first."""
        steps = [STEPS[fault] for fault in reversed(faults) if fault in STEPS] or [STEPS["good"]]
        params = self.session.submission(steps)
        if "session" in faults:
            params["session_id"] = "no-such-session"
        if "shape" in faults:
            params["task"]["constraints"] = {"exclusive": "yes"}
        if "capacity" in faults:
            for _ in range(2):
                await self.session.start(("wait", {}))
        if "rate" in faults:
            await self.session.start(STEPS["rate"])
        return (await self.client.ask("task.submit", params))["error"]


def reason_of(error):
    data = error["data"]
    return data.get("reason") or data.get("path") or data


REASONS = {
    "not allowed": "allowlist",
    "risk": "max_risk_level=2 < tool=3",
    "path": "allowed root",
}


@pytest.mark.parametrize(("earlier", "later"), list(itertools.combinations(ORDER, 2)))
async def test_a_submission_that_is_wrong_in_two_ways_gets_the_earlier_error(make_world, earlier, later):
    limit = 3 if "rate" in (earlier, later) else 2
    async with make_world(policy=[NARROW], max_tasks_per_session=limit) as world:
        client = world.connect()
        submitter = Submitter(world, client, await client.open())
        error = await submitter.error_of(earlier, later)
    assert error["code"] == CODES[earlier]
    if earlier in REASONS:
        assert REASONS[earlier] in reason_of(error)


async def test_every_refusal_names_its_step_and_reason_and_is_on_record(make_world):
    async with make_world(policy=[NARROW]) as world:
        session = await world.connect().open()
        for number, (fault, wrong) in enumerate(STEPS.items()):
            if fault in ("good", "rate"):
                continue
            answer = await session.client.ask("task.submit", session.submission([STEPS["good"], wrong]))
            error = answer["error"]
            assert error["code"] == CODES[fault]
            assert error["data"]["step_index"] == 1
            assert error["data"]["tool"] == f"bench.{wrong[0]}"
            if fault == "schema":
                assert error["data"]["path"] in ("/line", "")
                assert error["data"]["reason"]
            del number
        await until(lambda: len(world.journal.of("task.reject")) == 6)
        rejected = world.journal.of("task.reject", session_id=session.session_id)
        assert [record["error_code"] for record in rejected] == [
            CODES[fault] for fault in STEPS if fault not in ("good", "rate")
        ]
        assert rejected[0]["tools"] == ["bench.read", "bench.none"]
        assert rejected[0]["principal"] == ALICE.key
        assert world.journal.of("task.submit") == []
    assert world.observer.of("begin") == []


@pytest.mark.parametrize(("size", "beside"), [(10, False), (LONG_ARGS, True)])
async def test_the_args_of_a_long_step_are_hashed_beside_the_loop(make_world, monkeypatch, size, beside):
    threads = []
    hash_of = step_module.args_hash
    monkeypatch.setattr(step_module, "args_hash", lambda args: threads.append(threading.get_ident()) or hash_of(args))
    async with make_world() as world:
        session = await world.connect().open()
        done = await session.run(("read", {"tag": "x" * size}))
        assert done["status"] == "SUCCESS"
    assert [thread != threading.get_ident() for thread in threads] == [beside]


@pytest.mark.parametrize("fault", [fault for fault in CODES if fault not in ("session", "shape")])
async def test_nothing_is_hashed_of_a_submission_that_is_refused(make_world, monkeypatch, fault):
    hashed = []
    monkeypatch.setattr(step_module, "args_hash", lambda args: hashed.append(args) or "sha256:0")
    async with make_world(policy=[NARROW], max_tasks_per_session=2) as world:
        client = world.connect()
        session = await client.open()
        submitter = Submitter(world, client, session)
        if fault in ("rate", "capacity"):
            await submitter.error_of(fault)
        before = len(hashed)
        steps = [STEPS["good"]] if fault == "capacity" else [STEPS["good"], STEPS[fault]]
        answer = await client.ask("task.submit", session.submission(steps, key="k"))
        assert answer["error"]["code"] == CODES[fault]
        assert len(hashed) == before
    if fault not in ("rate", "capacity"):
        assert hashed == []


async def test_a_task_has_at_most_so_many_steps(make_world):
    async with make_world(max_steps=3) as world:
        session = await world.connect().open()
        assert (await session.run(*[("read", {})] * 3))["status"] == "SUCCESS"
        with pytest.raises(InvalidParams, match="at most 3 steps, this one has 4") as refused:
            await session.submit(*[("read", {})] * 4)
        assert refused.value.data["path"] == "/task/steps"


async def test_a_session_has_at_most_so_many_live_tasks(make_world):
    async with make_world(max_tasks_per_session=2) as world:
        client = world.connect()
        session, other = await client.open(), await client.open()
        first = await session.start(("wait", {"tag": "a"}))
        await session.start(("wait", {"tag": "b"}))
        with pytest.raises(QueueFull) as full:
            await session.submit(("read", {}))
        assert full.value.data["max_tasks_per_session"] == 2
        assert await other.submit(("read", {})), "the bound is each session's own"
        world.event("a").set()
        await session.wait(first)
        assert await session.submit(("read", {}))


# --- rates -------------------------------------------------------------------------------------------------------


async def test_a_rate_lets_a_burst_through_and_then_says_when_to_come_back(make_world, autojump_clock):
    async with make_world() as world:
        session = await world.connect().open()
        for _ in range(2):
            await session.submit(("limited", {}))
        with pytest.raises(RateLimited) as limited:
            await session.submit(("limited", {}))
        assert limited.value.data["tool"] == "bench.limited"
        assert limited.value.data["retry_after_ms"] == 30_000
        other = await world.connect().open()
        with pytest.raises(RateLimited, match="over all your sessions together"):
            await other.submit(("limited", {}))
        await (await world.connect(BOB).open()).submit(("limited", {}))
        await trio.sleep(limited.value.data["retry_after_ms"] / 1000)
        assert await session.submit(("limited", {}))
        with pytest.raises(RateLimited):
            await session.submit(("limited", {}))


async def test_a_dry_run_needs_room_under_the_rate_and_takes_none_of_it(make_world, autojump_clock):
    async with make_world() as world:
        session = await world.connect().open()
        await session.submit(("limited", {}))
        for _ in range(3):
            await session.submit(("limited", {}), dry_run=True)
        await session.submit(("limited", {}))
        with pytest.raises(RateLimited):
            await session.submit(("limited", {}), dry_run=True)


async def test_a_task_that_wants_more_than_its_rate_ever_lets_through_is_told_that_waiting_does_not_help(world):
    session = await world.connect().open()
    with pytest.raises(RateLimited, match="at most 2 times") as limited:
        await session.submit(*[("limited", {})] * 3)
    assert "retry_after_ms" not in limited.value.data
    assert await session.submit(("limited", {})), "the session goes on, and nothing was used up"


async def test_a_policys_rate_replaces_the_tools_own(make_world):
    fast = PolicyEntry(name="fast", match=Match(any=True), rate={"bench.limited": "5/s"})
    async with make_world(policy=[fast]) as world:
        session = await world.connect().open()
        for _ in range(5):
            await session.submit(("limited", {}))
        with pytest.raises(RateLimited):
            await session.submit(("limited", {}))


@pytest.mark.parametrize("why", ["capacity", "busy", "audit"])
async def test_a_submission_that_is_refused_after_its_rate_was_checked_has_used_nothing_up(make_world, why):
    async with make_world(max_tasks_per_session=1) as world:
        session = await world.connect().open()
        if why == "audit":
            world.journal.fail("disk full")
            with pytest.raises(AuditUnavailable):
                await session.submit(("rates", {}))
            world.journal.heal()
        else:
            more = {"exclusive": True} if why == "busy" else {}
            holder = session if why == "capacity" else await world.connect().open()
            held = await holder.start(("read", {"gate": "x"}), **more)
            await world.gate("x").reached()
            with pytest.raises((QueueFull, ResourceBusy)):
                await session.submit(("rates", {}), on_busy="fail")
            world.gate("x").open()
            await holder.wait(held)
        assert await session.submit(("rates", {}))
        with pytest.raises((RateLimited, QueueFull)):
            await session.submit(("rates", {}))


# --- idempotency --------------------------------------------------------------------------------------------------


async def test_a_repeated_key_returns_the_first_task_and_where_it_stands(world):
    session = await world.connect().open()
    steps = [("set", {"line": 1, "value": 1, "tag": "once", "gate": "x"})]
    first = await session.submit(*steps, key="k")
    await world.gate("x").reached()
    again = await session.submit(*steps, key="k")
    assert again == {"task_id": first["task_id"], "status": "RUNNING", "repeated": True}
    world.gate("x").open()
    await session.wait(first["task_id"])
    assert (await session.submit(*steps, key="k"))["status"] == "SUCCESS"
    assert world.observer.labels("begin") == ["once"]


@pytest.mark.parametrize(
    "change",
    [
        {"intent": "another"},
        {"priority": "high"},
        {"steps": [("read", {"tag": "y"})]},
        {"steps": [("limited", {"tag": "x"})]},
        {"steps": [("read", {"tag": "x"}), ("read", {"tag": "x"})]},
    ],
)
async def test_a_key_that_stands_for_another_task_is_refused(world, change):
    session = await world.connect().open()
    first = await session.submit(("read", {"tag": "x"}), key="k")
    steps = change.pop("steps", [("read", {"tag": "x"})])
    with pytest.raises(InvalidParams) as refused:
        await session.submit(*steps, key="k", **change)
    assert refused.value.data["path"] == "/task/idempotency_key"
    assert refused.value.data["task_id"] == first["task_id"]


async def test_the_order_of_members_does_not_make_another_task(world):
    session = await world.connect().open()
    first = await session.submit(("set", {"line": 1, "value": 1}), key="k")
    again = await session.submit(("set", {"value": 1, "line": 1}), key="k")
    assert again["task_id"] == first["task_id"]


async def test_a_repeat_is_told_by_what_was_written_without_hashing_each_steps_args(world, monkeypatch):
    with trio.fail_after(60):
        session = await world.connect().open()
        first = await session.start(("set", {"line": 1, "value": 1}), ("read", {"tag": "é"}), key="k")
        await session.wait(first)
        monkeypatch.setattr(step_module, "args_hash", None)
        again = await session.submit(("set", {"value": 1, "line": 1}), ("read", {"tag": "é"}), key="k")
        assert again["task_id"] == first
        for line in (1.5, True, "1", 2):
            with pytest.raises(InvalidParams) as refused:
                await session.submit(("set", {"value": 1, "line": line}), ("read", {"tag": "é"}), key="k")
            assert refused.value.data["task_id"] == first


async def test_a_number_that_is_written_otherwise_does_not_make_another_task(world):
    """RFC 8785 §3.2.2.3: `1.0` and `1`, `5e3` and `5000` are one value, as `args_hash` says of an approved plan."""
    with trio.fail_after(60):
        session = await world.connect().open()
        first = await session.submit(("set", {"line": 1, "value": 1}), key="k", max_duration_ms=5000, max_risk_level=2)
        for number, args in enumerate(('{"line": 1.0, "value": 1}', '{"value": 1e0, "line": 10e-1}')):
            task = f'{{"intent": "test", "idempotency_key": "k", "steps": [{{"tool": "bench.set", "args": {args}}}], '
            task += '"constraints": {"max_duration_ms": 5e3, "max_risk_level": 2.0}}'
            params = f'{{"session_id": "{session.session_id}", "task": {task}}}'
            text = f'{{"jsonrpc": "2.0", "id": {9000 + number}, "method": "task.submit", "params": {params}}}\n'
            await session.client.stream.send_all(text.encode())
            await session.client.until(lambda number=number: session.client.answers(9000 + number))
            (answer,) = session.client.answers(9000 + number)
            assert (answer["result"]["task_id"], answer["result"]["repeated"]) == (first["task_id"], True)


async def test_a_key_belongs_to_its_principal_and_not_to_its_session(world):
    client = world.connect()
    one, other = await client.open(), await client.open()
    stranger = await world.connect(BOB).open()
    first = await one.start(("read", {}), key="k")
    assert await other.start(("read", {}), key="k") == first
    assert await stranger.start(("read", {}), key="k") != first


async def test_a_repeat_in_another_session_can_follow_and_cancel_the_first_sessions_task(world):
    one = await world.connect().open()
    other = await world.connect().open()
    task_id = await one.start(("wait", {"tag": "x"}), key="k")
    await other.submit(("wait", {"tag": "x"}), key="k", subscribe=True)
    assert (await other.get(task_id))["status"] in ("QUEUED", "RUNNING")
    assert await other.cancel(task_id) == "CANCELLING"
    assert [event["phase"] for event in await other.client.finished(task_id)][-1] == "task_finish"
    assert (await other.get(task_id))["status"] == "CANCELLED"


async def test_a_repeat_after_the_end_of_the_first_session_has_the_status_of_its_task(world):
    one = await world.connect().open()
    task_id = await one.start(("read", {"tag": "once"}), key="k")
    await one.wait(task_id)
    await one.close()
    other = await world.connect().open()
    again = await other.submit(("read", {"tag": "once"}), key="k")
    assert again == {"task_id": task_id, "status": "SUCCESS", "repeated": True}
    assert await other.wait(task_id) == {"task_id": task_id, "status": "SUCCESS", "intent": "", "steps": []}
    assert world.observer.labels("begin").count("once") == 1


@pytest.mark.parametrize("ended", [False, True], ids=["the first session lives", "the first session has ended"])
async def test_a_subscription_to_all_tasks_of_a_session_leaves_out_those_of_other_sessions(world, ended):
    one, other = await world.connect().open(), await world.connect().open()
    task_id = await one.start(("read", {}), key="k")
    await one.wait(task_id)
    if ended:
        await one.close()
    assert (await other.submit(("read", {}), key="k"))["task_id"] == task_id
    await other.subscribe()
    own = await other.start(("read", {"tag": "own"}))
    await other.client.finished(own)
    assert {event["task_id"] for event in other.client.events} == {own}
    # It is known all the same, to a subscription that names it.
    await other.subscribe(task_id)
    assert (await other.client.finished(task_id))[-1]["status"] == "SUCCESS"


async def test_the_key_of_a_refused_submission_stands_for_nothing(make_world):
    async with make_world() as world:
        session = await world.connect().open()
        with pytest.raises(ToolNotFound):
            await session.submit(("none", {}), key="k")
        world.journal.fail("disk full")
        with pytest.raises(AuditUnavailable):
            await session.submit(("fail", {}), key="k")
        world.journal.heal()
        assert (await session.run(("read", {}), key="k"))["status"] == "SUCCESS"


async def test_a_key_outlives_the_memory_of_its_task(make_world):
    with trio.fail_after(60):
        async with make_world(task_history=1) as world:
            session = await world.connect().open()
            first = await session.start(("read", {"tag": "once"}), key="k")
            await session.wait(first)
            for _ in range(2):
                await session.run(("read", {}))
            again = await session.submit(("read", {"tag": "once"}), key="k", subscribe=True)
            assert again == {"task_id": first, "status": "SUCCESS", "repeated": True, "subscribed": True}
            assert [event["phase"] for event in await session.client.finished(first)][-1] == "task_finish"
    assert world.observer.labels("begin").count("once") == 1


async def test_a_repeat_of_a_task_that_no_history_has_is_answered_once_and_subscribes_to_nothing(make_world):
    with trio.fail_after(60):
        async with make_world(task_history=0) as world:
            session = await world.connect().open()
            first = await session.start(("read", {}), key="k", subscribe=True)
            await session.client.finished(first)
            again = await session.submit(("read", {}), key="k", subscribe=True)
            assert again == {"task_id": first, "status": "SUCCESS", "repeated": True}
            assert (await session.call("tool.list"))["tools"]


async def test_a_repeat_that_subscribes_gets_the_first_tasks_events(world):
    # Its first connection was lost, and with it the answer and the subscription.
    first = world.connect()
    session = await first.open()
    task_id = await session.start(("read", {"tag": "x", "gate": "x"}), key="k", subscribe=True)
    await world.gate("x").reached()
    await first.close()
    second = world.connect()
    session.client = second
    again = await session.submit(("read", {"tag": "x", "gate": "x"}), key="k", subscribe=True)
    assert again["task_id"] == task_id
    world.gate("x").open()
    assert [event["seq"] for event in await second.finished(task_id)] == [1, 2, 3]


async def test_subscriptions_that_overlap_deliver_each_event_once(world):
    """Draft §8: all tasks, the submission's own, a repeat's and the task's by its id; then all tasks again."""
    with trio.fail_after(60):
        client = world.connect()
        session = await client.open()
        await session.subscribe()
        call = [("read", {"tag": "x"}), ("read", {"tag": "y", "gate": "y"})]
        task_id = await session.start(*call, key="k", subscribe=True)
        await client.until(lambda: len(client.events) >= 3)
        assert (await session.submit(*call, key="k", subscribe=True))["subscribed"] is True
        await session.subscribe(task_id)
        await session.subscribe()
        world.gate("y").open()
        assert [event["seq"] for event in await client.finished(task_id)] == [1, 2, 3, 4, 5]


async def test_a_repeat_is_answered_only_when_the_first_submission_is_on_record(world):
    with trio.fail_after(60):
        client = world.connect()
        session = await client.open()
        world.journal.hold()
        sent = [session.submission([("read", {"tag": "once"})], key="k", subscribe=True) for _ in range(3)]
        requests = [client.request("task.submit", params) for params in sent]
        await client.send(*requests)
        await trio.testing.wait_all_tasks_blocked()
        assert not any(client.answers(request["id"]) for request in requests)
        world.journal.release()
        await client.until(lambda: all(client.answers(request["id"]) for request in requests))
        first, *repeats = [client.answers(request["id"])[0]["result"] for request in requests]
        for repeat in repeats:
            assert repeat == {
                "task_id": first["task_id"],
                "status": repeat["status"],
                "repeated": True,
                "subscribed": True,
            }
        await client.finished(first["task_id"])
    assert world.observer.labels("begin") == ["once"]


async def test_a_repeat_of_a_submission_that_could_not_be_recorded_is_refused_with_it(world):
    client = world.connect()
    session = await client.open()
    world.journal.hold()
    params = session.submission([("fail", {})], key="k")
    requests = [client.request("task.submit", params) for _ in range(2)]
    await client.send(*requests)
    await trio.testing.wait_all_tasks_blocked()
    world.journal.fail("disk full")
    world.journal.release()
    await client.until(lambda: all(client.answers(request["id"]) for request in requests))
    for request in requests:
        assert client.answers(request["id"])[0]["error"]["code"] == AuditUnavailable.code
    world.journal.heal()
    assert (await session.run(("read", {}), key="k"))["status"] == "SUCCESS"


async def test_a_principal_that_uses_up_its_keys_is_told_and_none_is_forgotten(make_world):
    async with make_world(max_keys=2) as world:
        await _uses_up_its_keys(world)


async def _uses_up_its_keys(world):
    with trio.fail_after(60):
        session = await world.connect().open()
        first = await session.start(("read", {}), key="a")
        await session.start(("read", {}), key="b")
        with pytest.raises(QueueFull) as full:
            await session.submit(("read", {}), key="c")
        assert full.value.data["max_idempotency_keys"] == 2
        assert await session.start(("read", {}), key="a") == first
        assert await session.submit(("read", {}))


# --- write-ahead --------------------------------------------------------------------------------------------------


async def test_a_submission_is_acknowledged_only_when_it_is_on_record(world):
    client = world.connect()
    session = await client.open()
    world.journal.hold()
    await client.send(client.request("task.submit", session.submission([("read", {"tag": "x"})]), 100))
    await trio.testing.wait_all_tasks_blocked()
    assert client.answers(100) == []
    assert world.observer.of("begin") == []
    world.journal.release()
    await client.until(lambda: client.answers(100))
    assert [record["event"] for record in world.journal.records[-2:]] >= ["task.submit"]


async def test_what_has_an_effect_is_refused_while_the_log_cannot_be_written_and_reads_go_on(world):
    session = await world.connect().open()
    world.journal.fail("disk full")
    with pytest.raises(AuditUnavailable) as refused:
        await session.submit(("set", {"line": 1, "value": 1}))
    assert refused.value.data["reason"] == "disk full"
    assert refused.value.data["effect"] == "none"
    assert (await session.run(("read", {"tag": "x"})))["status"] == "SUCCESS"
    assert world.runtime.health()["audit"]["reason"] == "disk full"
    assert world.runtime.health()["ok"] is False
    world.journal.heal()
    assert (await session.run(("set", {"line": 1, "value": 1, "tag": "y"})))["status"] == "SUCCESS"
    assert world.observer.labels("begin")[:2] == ["x", "y"]


async def test_a_submission_whose_record_fails_is_refused_and_has_had_no_effect(world):
    # The log breaks between the check and the writing of the record.
    client = world.connect()
    session = await client.open()
    world.journal.hold()
    await client.send(
        client.request("task.submit", session.submission([("set", {"line": 1, "value": 1})], subscribe=True), 100)
    )
    await trio.testing.wait_all_tasks_blocked()
    world.journal.fail("disk full")
    world.journal.release()
    await client.until(lambda: client.answers(100))
    assert client.answers(100)[0]["error"]["code"] == AuditUnavailable.code
    await session.call("tool.list")
    assert world.observer.of("begin") == []


async def test_a_submission_whose_record_fails_while_its_session_is_torn_down_is_refused(make_world, autojump_clock):
    async with make_world(shutdown_grace_s=0.1, close_grace_s=5.0) as world, trio.open_nursery() as nursery:
        client = world.connect()
        session = await client.open()
        world.journal.hold()
        await client.send(client.request("task.submit", session.submission([("set", {"line": 1, "value": 1})]), 100))
        await trio.testing.wait_all_tasks_blocked()
        # Its task is cancelled in the first wait for the log, and in the last one.
        nursery.start_soon(world.runtime.end_sessions)
        await trio.sleep(1)
        assert client.answers(100) == []
        world.journal.fail("disk full")
        world.journal.release()
        await client.until(lambda: client.answers(100))
        assert client.answers(100)[0]["error"]["code"] == AuditUnavailable.code
    assert world.observer.of("begin") == []


async def test_a_step_whose_start_cannot_be_recorded_runs_if_it_reads_and_else_fails_and_ends_its_task(world):
    session = await world.connect().open()
    task_id = await session.start(
        ("wait", {"tag": "go"}),
        ("read", {"tag": "read"}),
        ("set", {"line": 1, "value": 1, "tag": "never"}),
        ("read", {"tag": "never either"}),
        abort_on_step_failure=False,
    )
    world.journal.fail("disk full")
    world.event("go").set()
    done = await session.wait(task_id)
    assert [step["status"] for step in done["steps"]] == ["SUCCESS", "SUCCESS", "FAILED", "CANCELLED"]
    assert done["steps"][2]["error_code"] == AuditUnavailable.code
    assert done["status"] == "FAILED"
    assert world.observer.labels("begin") == ["read"]


async def test_a_submission_that_cannot_be_recorded_and_is_cancelled_meanwhile_ends_no_other(world):
    client = world.connect()
    session = await client.open()
    bystander = await session.start(("wait", {"tag": "go"}))
    world.journal.hold()
    submit = session.submission([("set", {"line": 1, "value": 1})], max_duration_ms=10)
    await client.send(client.request("task.submit", submit, 100))
    await trio.sleep(0.02)
    world.journal.fail("disk full")
    world.journal.release()
    await client.until(lambda: client.answers(100))
    assert client.answers(100)[0]["error"]["code"] == AuditUnavailable.code
    world.journal.heal()
    world.event("go").set()
    assert (await session.wait(bystander))["status"] == "SUCCESS"
    assert world.observer.of("begin") == []


async def test_what_a_principal_may_use_is_what_its_session_lists(make_world):
    some = PolicyEntry(name="some", match=Match(uid=1001), tools=["bench.re*"], max_risk=0)
    async with make_world(policy=[some, OPEN]) as world:
        session = await world.connect().open()
        listed = await session.call("tool.list")
        assert [tool["name"] for tool in listed["tools"]] == ["bench.read"]
        with pytest.raises(PermissionDenied, match="allowlist of policy 'some'"):
            await session.submit(("wait", {}))
        with pytest.raises(SessionInvalid):
            await world.connect().call("tool.list", session_id="x")
