"""What one client can cost: long results, long answers, slow disks (draft §12.5)."""

from __future__ import annotations

import json

import pytest
import trio
from support.waiting import passes, until
from support.world import BOB

from hearth.actors import connection, task
from hearth.errors import PermissionDenied, QueueFull, RateLimited, SessionInvalid
from hearth.policy.rules import Match, PolicyEntry

# --- paths on a disk that takes its time ------------------------------------------------------------------------


async def test_a_path_that_has_to_be_looked_up_holds_up_its_own_submission_only(world):
    client = world.connect()
    session = await client.open()
    slow = session.submission([("file", {"path": "/allowed/slow", "tag": "slow"})])
    await client.send(client.request("task.submit", slow, 100))
    await passes(lambda: world.paths.looking)
    assert (await session.run(("read", {})))["status"] == "SUCCESS"
    assert client.answers(100) == []
    world.paths.spin_up()
    await client.until(lambda: client.answers(100))
    assert (await session.wait(client.answers(100)[0]["result"]["task_id"]))["status"] == "SUCCESS"


async def test_a_path_that_turns_out_to_be_forbidden_is_refused_as_any_other(world):
    session = await world.connect().open()
    world.paths.spin_up()
    with pytest.raises(PermissionDenied) as refused:
        await session.submit(("read", {}), ("file", {"path": "/forbidden/slow"}))
    assert refused.value.data["step_index"] == 1
    assert refused.value.data["reason"] == "not beneath an allowed root"
    await until(lambda: world.journal.of("task.reject"))


async def test_a_repeat_while_the_first_is_still_being_looked_up_actuates_once(world):
    client = world.connect()
    session = await client.open()
    submit = session.submission([("file", {"path": "/allowed/slow", "tag": "once"})], key="k")
    await client.send(client.request("task.submit", submit, 100), client.request("task.submit", submit, 101))
    await passes(lambda: world.paths.looking == 2)
    world.paths.spin_up()
    await client.until(lambda: client.answers(100) and client.answers(101))
    ids = {client.answers(id_)[0]["result"]["task_id"] for id_ in (100, 101)}
    assert len(ids) == 1
    await session.wait(ids.pop())
    assert world.observer.labels("begin") == ["once"]


async def test_a_rate_counts_from_when_a_submission_is_accepted_and_not_from_when_it_came(make_world, mock_clock):
    once = PolicyEntry(name="once", match=Match(any=True), rate={"bench.file": "1/s"})
    async with make_world(policy=[once]) as world:
        client = world.connect()
        session = await client.open()
        slow = session.submission([("file", {"path": "/allowed/slow"})])
        await client.send(client.request("task.submit", slow, 100))
        await until(lambda: world.paths.looking)
        mock_clock.jump(0.9)
        world.paths.spin_up()
        await client.until(lambda: client.answers(100))
        mock_clock.jump(0.5)
        mock_clock.autojump_threshold = 0  # so that the end of the world needs nobody to move the clock
        with pytest.raises(RateLimited) as limited:
            await session.submit(("file", {"path": "/allowed/b"}))
        assert limited.value.data["retry_after_ms"] == 500


async def test_the_end_of_the_session_answers_a_submission_that_is_being_looked_up(world):
    client = world.connect()
    session = await client.open()
    slow = session.submission([("file", {"path": "/allowed/slow", "tag": "never"})])
    await client.send(client.request("task.submit", slow, 100))
    await passes(lambda: world.paths.looking)
    assert await session.close() == {"ok": True}
    assert client.answers(100)[0]["error"]["code"] == SessionInvalid.code
    world.paths.spin_up()
    assert world.observer.of("begin") == []


async def test_a_guard_that_crashes_ends_its_session_and_leaves_no_submission_unanswered(world):
    client = world.connect()
    session, other = await client.open(), await client.open()
    world.paths.crashes = True
    for number in (100, 101):
        slow = session.submission([("file", {"path": "/allowed/slow"})])
        await client.send(client.request("task.submit", slow, number))
    await passes(lambda: world.paths.looking == 2)
    world.paths.spin_up()
    await client.until(lambda: client.answers(100) and client.answers(101))
    assert {client.answers(number)[0]["error"]["code"] for number in (100, 101)} <= {-32000, -32603}
    await until(lambda: world.journal.of("session.close"))
    assert world.journal.of("session.close")[0]["reason"] == "internal error"
    assert (await other.run(("read", {})))["status"] == "SUCCESS"


# --- results ------------------------------------------------------------------------------------------------------


async def test_the_results_of_one_task_are_bounded_together(world, monkeypatch):
    monkeypatch.setattr(task, "MOST_RESULT_BYTES", 10_000)
    session = await world.connect().open()
    done = await session.run(*[("big", {"n": 4000})] * 3, abort_on_step_failure=False)
    assert [step["status"] for step in done["steps"]] == ["SUCCESS", "SUCCESS", "FAILED"]
    failed = done["steps"][2]
    assert failed["error_code"] == QueueFull.code
    assert failed["error_data"]["effect"] == "done", "it has happened; only its result is too long to be kept"
    aborted = await session.run(("big", {"n": 20_000}), ("read", {}))
    assert [step["status"] for step in aborted["steps"]] == ["FAILED", "CANCELLED"]


async def test_events_with_long_results_are_sent_a_few_at_a_time(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(*[("big", {"n": 60_000})] * 20, subscribe=True)
    events = await client.finished(task_id)
    assert [event["seq"] for event in events] == list(range(1, 42))
    again = world.connect()
    await again.call("task.events.subscribe", session_id=session.session_id, task_id=task_id)
    assert [event["seq"] for event in await again.finished(task_id)] == list(range(1, 42))
    assert max(map(len, world.carriers[-1].sent)) < 400_000


async def test_a_client_that_asks_for_long_answers_and_does_not_read_costs_few_of_them(make_world, autojump_clock):
    async with make_world() as world:
        owner = world.connect()
        session = await owner.open()
        task_id = (await session.run(("big", {"n": 500_000})))["task_id"]
        stream = world.pipes(room=1000, send_timeout=1e6)
        lazy = world.carriers[-1].connection
        for number in range(100):
            params = {"session_id": session.session_id, "task_id": task_id}
            line = {"jsonrpc": "2.0", "id": number, "method": "task.get", "params": params}
            await stream.send_all(json.dumps(line).encode() + b"\n")
        await trio.testing.wait_all_tasks_blocked()
        assert lazy.send_queue.size < (connection.WEIGHTY_AT_ONCE + 4) * 500_000
        other = await world.connect(BOB).open()
        assert (await other.run(("read", {})))["status"] == "SUCCESS"


async def test_long_answers_are_all_given_to_who_reads(world):
    client = world.connect()
    session = await client.open()
    task_id = (await session.run(("big", {"n": 300_000})))["task_id"]
    params = {"session_id": session.session_id, "task_id": task_id}
    await client.send(*[client.request("task.get", params, number) for number in range(100, 140)])
    await client.until(lambda: all(client.answers(number) for number in range(100, 140)))
    assert {client.answers(number)[0]["result"]["status"] for number in range(100, 140)} == {"SUCCESS"}


async def test_a_batch_whose_answers_grow_too_long_gets_as_many_as_fit_one_line(world, monkeypatch):
    monkeypatch.setattr(connection, "BATCH_BYTES", 100_000)
    client = world.connect()
    session = await client.open()
    task_id = (await session.run(("big", {"n": 30_000})))["task_id"]
    params = {"session_id": session.session_id, "task_id": task_id}
    await client.send([client.request("task.get", params, number) for number in range(100, 110)])
    await client.until(lambda: client.answers(109))
    answers = [client.answers(number)[0] for number in range(100, 110)]
    assert ["result" in answer for answer in answers] == [True] * 4 + [False] * 6
    assert {answer["error"]["code"] for answer in answers[4:]} == {QueueFull.code}


# --- opening at the end ---------------------------------------------------------------------------------------------


async def test_a_session_that_is_being_opened_when_the_process_must_end_is_answered(make_world, autojump_clock):
    async with make_world(shutdown_grace_s=1) as world:
        client = world.connect()
        world.journal.hold()
        await client.send(client.request("session.open", {}, 100))
        await trio.testing.wait_all_tasks_blocked()
        await world.runtime.end_sessions()
        await client.until(lambda: client.answers(100))
        assert client.answers(100)[0]["error"]["code"] == -32007
        world.journal.release()
        await passes(lambda: world.journal.of("session.close"))


async def test_a_session_that_crashes_while_it_opens_is_answered(make_world, monkeypatch):
    async with make_world() as world:
        # A vendor's tool may do that: its capability is no text that can be sorted among the others.
        object.__setattr__(world.parts.registry["bench.read"], "capability", 7)
        client = world.connect()
        answer = await client.ask("session.open", {})
        assert answer["error"]["code"] == -32603
        await until(lambda: world.journal.of("session.close"))
        assert world.runtime.sessions == 0
