"""One connection: what it answers, in which order, and what one client can cost (design §3, §8)."""

from __future__ import annotations

import json

import pytest
import trio
from support.waiting import until
from support.world import BOB, OPEN

from hearth.actors.connection import LINGER


def line(client, method, id_=None, **params):
    return client.request(method, params, id_)


# --- answers -----------------------------------------------------------------------------------------------------


async def test_answers_that_are_ready_leave_in_one_send(world):
    client = world.connect()
    session = await client.open()
    carrier = world.carriers[-1]
    before = len(carrier.sent)
    params = {"session_id": session.session_id}
    await client.send(*[client.request("tool.list", params, number) for number in range(100, 106)])
    await client.until(lambda: all(client.answers(n) for n in range(100, 106)))
    assert len(carrier.sent) - before <= 2
    assert sum(data.count(b"\n") for data in carrier.sent[before:]) == 6


async def test_each_request_gets_one_answer_and_a_notification_none(world):
    client = world.connect()
    session = await client.open()
    params = {"session_id": session.session_id}
    submit = session.submission([("read", {"tag": "told nobody"})])
    await client.send(
        {"jsonrpc": "2.0", "method": "task.submit", "params": submit},
        {"jsonrpc": "2.0", "id": None, "method": "tool.list", "params": params},
        {"jsonrpc": "2.0", "method": "task.get", "params": {**params, "task_id": "none"}},
        {"jsonrpc": "2.0", "method": "tool.list", "params": {"session_id": "none"}},
        {"jsonrpc": "2.0", "method": "no.such.method"},
        {"jsonrpc": "2.0", "id": "last", "method": "tool.list", "params": params},
    )
    await client.until(lambda: client.answers("last"))
    await until(lambda: world.observer.labels("begin") == ["told nobody"])
    assert len(client.documents) == 2, "the session, and the last"


async def test_notifications_do_not_use_up_what_may_be_outstanding(make_world):
    async with make_world(max_outstanding=2) as world:
        client = world.connect()
        session = await client.open()
        notification = {"jsonrpc": "2.0", "method": "tool.list", "params": {"session_id": session.session_id}}
        for _ in range(10):
            await client.send(*[notification] * 5)
        weighty = {**notification, "method": "task.get", "params": {**notification["params"], "task_id": "x"}}
        await client.send(*[weighty] * 20)
        assert (await session.run(("read", {})))["status"] == "SUCCESS"


async def test_an_id_may_be_used_again_once_it_is_answered_and_not_before(world):
    client = world.connect()
    session = await client.open()
    world.journal.hold()
    await client.send(line(client, "task.submit", 7, **session.submission([("read", {})])))
    await trio.testing.wait_all_tasks_blocked()
    await client.send(line(client, "tool.list", 7, session_id=session.session_id))
    await client.until(lambda: client.answers(None))
    refused = client.answers(None)[0]["error"]
    assert refused["code"] == -32600
    assert refused["data"]["id"] == 7
    world.journal.release()
    await client.until(lambda: client.answers(7))
    assert "task_id" in client.answers(7)[0]["result"]
    await client.send(line(client, "tool.list", 7, session_id=session.session_id))
    await client.until(lambda: len(client.answers(7)) == 2)
    assert "tools" in client.answers(7)[1]["result"]


async def test_the_session_is_looked_at_before_the_shape_of_the_rest(world):
    client = world.connect()
    session = await client.open()
    wrong = {"task": "no object"}
    answer = await client.ask("task.submit", {"session_id": "none", **wrong})
    assert answer["error"]["code"] == -32000
    answer = await client.ask("task.submit", {"session_id": session.session_id, **wrong})
    assert answer["error"]["code"] == -32602
    answer = await client.ask("task.submit", wrong)
    assert answer["error"]["code"] == -32602
    assert answer["error"]["data"]["path"] == "/session_id"


async def test_what_is_no_request_is_answered_and_the_connection_goes_on(world):
    client = world.connect()
    await client.send(b"{", b"", b"[]", b'{"jsonrpc":"2.0","id":1.5,"method":"x"}', b'{"id":3}')
    await client.until(lambda: len(client.documents) == 4)
    assert [document["error"]["code"] for document in client.documents] == [-32700, -32600, -32600, -32600]
    assert await client.open()


async def test_a_line_that_is_too_long_closes_the_connection_after_the_answer(make_world):
    async with make_world(max_document_bytes=1000) as world:
        client = world.connect()
        session = await client.open()
        await client.send(line(client, "tool.list", 5, session_id=session.session_id), b"x" * 2000)
        await client.until_ended()
        assert "tools" in client.answers(5)[0]["result"], "what was asked before it is answered"
        assert client.answers(None)[0]["error"]["code"] == -32600
        assert "1000" in str(client.answers(None)[0]["error"]["data"])
        assert world.carriers[-1].closed


async def test_a_peer_that_has_finished_sending_still_gets_its_answers(world):
    client = world.connect()
    session = await client.open()
    world.journal.hold()
    await client.send(line(client, "task.submit", 5, **session.submission([("read", {})])))
    await client.stream.send_eof()
    await trio.testing.wait_all_tasks_blocked()
    assert not client.ended
    world.journal.release()
    await client.until_ended()
    assert "task_id" in client.answers(5)[0]["result"]


async def test_a_peer_that_has_finished_sending_does_not_linger_for_ever(world, autojump_clock):
    client = world.connect()
    session = await client.open()
    await client.send(line(client, "tool.list", 4, session_id=session.session_id))
    await client.until(lambda: client.answers(4))
    world.journal.hold()
    await client.send(line(client, "task.submit", 5, **session.submission([("read", {})])))
    await client.stream.send_eof()
    began = trio.current_time()
    await client.until_ended()
    assert trio.current_time() - began == pytest.approx(LINGER)
    assert client.answers(5) == []
    world.journal.release()


# --- batches -----------------------------------------------------------------------------------------------------


async def test_a_batch_is_answered_by_one_line_when_all_of_it_is_there(world):
    client = world.connect()
    session = await client.open()
    params = {"session_id": session.session_id}
    world.journal.hold()
    await client.send(
        [
            line(client, "tool.list", "list", **params),
            line(client, "task.submit", "submit", **session.submission([("read", {})])),
            {"jsonrpc": "2.0", "method": "tool.list", "params": params},
            line(client, "no.such", "wrong"),
            7,
        ]
    )
    await trio.testing.wait_all_tasks_blocked()
    assert len(client.documents) == 1
    world.journal.release()
    await client.until(lambda: len(client.documents) == 2)
    assert {one["id"] for one in client.documents[1]} == {"list", "submit", "wrong", None}


async def test_inside_a_batch_too_the_answer_comes_before_the_events_it_asks_for(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(("read", {}))
    params = {"session_id": session.session_id}
    world.journal.hold()
    await client.send(
        [
            line(client, "task.events.subscribe", "old", **params, task_id=task_id),
            line(client, "task.submit", "new", **session.submission([("read", {})], subscribe=True)),
        ]
    )
    await trio.testing.wait_all_tasks_blocked()
    assert client.events == []
    world.journal.release()
    await client.until(lambda: len([e for e in client.events if e["phase"] == "task_finish"]) == 2)
    assert isinstance(client.documents[2], list)
    answered = {one["id"]: one["result"]["task_id"] for one in client.documents[2]}
    assert {event["task_id"] for event in client.events} == set(answered.values())


async def test_a_batch_of_notifications_is_answered_by_nothing_and_holds_nothing_up(world):
    client = world.connect()
    session = await client.open()
    params = {"session_id": session.session_id}
    await client.send([{"jsonrpc": "2.0", "method": "tool.list", "params": params}] * 3)
    task_id = await session.start(("read", {}), subscribe=True)
    await client.finished(task_id)


async def test_a_batch_longer_than_what_may_be_outstanding_is_served(make_world):
    async with make_world(max_outstanding=2) as world:
        client = world.connect()
        session = await client.open()
        batch = [line(client, "tool.list", n, session_id=session.session_id) for n in range(10, 30)]
        await client.send(batch)
        await client.until(lambda: any(isinstance(document, list) for document in client.documents))
        assert {one["id"] for one in client.documents[-1]} == set(range(10, 30))


# --- bounds ------------------------------------------------------------------------------------------------------


async def test_past_so_many_outstanding_requests_nothing_more_is_read(make_world):
    async with make_world(max_outstanding=3) as world:
        client = world.connect()
        session = await client.open()
        world.journal.hold()
        for number in range(6):
            submit = session.submission([("read", {"tag": str(number)})])
            await client.send(line(client, "task.submit", number + 10, **submit))
            await trio.testing.wait_all_tasks_blocked()
        connection = world.carriers[-1].connection
        assert connection._in_flight == 3
        world.journal.release()
        await client.until(lambda: all(client.answers(number + 10) for number in range(6)))
        assert connection._in_flight == 0


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_cut_off_and_no_other_notices(make_world, autojump_clock):
    async with make_world(task_history=1000) as world:
        stream = world.pipes(room=10_000, send_timeout=30)
        lazy = world.carriers[-1]
        other = world.connect(BOB)
        session = await other.open()
        # It asks and asks, and never takes an answer.
        request = b'{"jsonrpc":"2.0","id":%d,"method":"session.open","params":{}}\n'
        flood = b"".join(request % number for number in range(60))
        await stream.send_all(flood)
        tools = b'{"jsonrpc":"2.0","id":%d,"method":"tool.list","params":{"session_id":"none"}}\n'
        for number in range(1000, 6000):
            await stream.send_all(tools % number)
        began = trio.current_time()
        assert (await session.run(("read", {"ms": 5})))["status"] == "SUCCESS"
        assert trio.current_time() - began < 1
        await trio.sleep(31)
        assert lazy.closed
        assert (await session.run(("read", {"ms": 5})))["status"] == "SUCCESS"


async def test_a_client_that_does_not_read_stops_being_read(make_world, autojump_clock):
    async with make_world() as world:
        stream = world.pipes(room=1000, send_timeout=1e6)
        connection = world.carriers[-1].connection
        world_session = await world.connect().open()
        request = b'{"jsonrpc":"2.0","id":%d,"method":"tool.list","params":{"session_id":"%s"}}\n'
        for number in range(2000):
            await stream.send_all(request % (number, world_session.session_id.encode()))
        await trio.testing.wait_all_tasks_blocked()
        # Its requests stay where they are; what waits for it is bounded.
        assert connection.send_queue.size < 3 << 20
        assert connection._in_flight <= 256


async def test_a_slow_reader_of_events_holds_up_neither_the_task_nor_other_readers(make_world, autojump_clock):
    async with make_world() as world:
        stream = world.pipes(room=100, send_timeout=1e6)
        lazy = world.carriers[-1].connection
        client = world.connect()
        session = await client.open()
        task_id = await session.start(("progress", {"n": 5000}), ("read", {"ms": 3}), ("wait", {"tag": "go"}))
        subscribe = client.request("task.events.subscribe", {"session_id": session.session_id, "task_id": task_id}, 1)
        await stream.send_all(json.dumps(subscribe).encode() + b"\n")
        await session.subscribe(task_id)
        await client.until(lambda: any(event.get("step_index") == 2 for event in client.events))
        await trio.testing.wait_all_tasks_blocked()
        assert lazy.send_queue.size == 0, "a history costs its reader's connection a cursor"
        world.event("go").set()
        events = await client.finished(task_id)
        assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


# --- sessions of a connection -------------------------------------------------------------------------------------


async def test_many_sessions_share_a_connection_and_end_with_it_as_each_wants(world):
    client = world.connect()
    keep = [await client.open() for _ in range(3)]
    close = [await client.open(on_disconnect="close") for _ in range(3)]
    await keep[0].close()
    await client.close()
    await until(lambda: len(world.journal.of("session.close")) == 4)
    assert world.runtime.sessions == 2
    ended = {record["session_id"]: record["reason"] for record in world.journal.of("session.close")}
    assert {ended[session.session_id] for session in close} == {"its client disconnected"}
    assert ended.keys() == {session.session_id for session in [keep[0], *close]}


async def test_events_of_a_whole_session_come_from_all_its_tasks_old_and_new(world):
    client, watcher = world.connect(), world.connect()
    session = await client.open()
    old = (await session.run(("read", {})))["task_id"]
    running = await session.start(("wait", {"tag": "go"}))
    await watcher.call("task.events.subscribe", session_id=session.session_id)
    new = await session.start(("read", {}))
    world.event("go").set()
    for task_id in (old, running, new):
        events = await watcher.finished(task_id)
        assert [event["seq"] for event in events] == [1, 2, 3]
    await watcher.call("task.events.unsubscribe", session_id=session.session_id)
    await session.run(("read", {}))
    await trio.testing.wait_all_tasks_blocked()
    assert len(watcher.events) == 9


async def test_unsubscribing_from_a_task_stops_its_events(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(("wait", {"tag": "go"}), ("read", {}), subscribe=True)
    await client.until(lambda: len(client.events) == 1)
    await session.call("task.events.unsubscribe", task_id=task_id)
    world.event("go").set()
    await until(lambda: world.journal.of("task.finish"))
    await session.get(task_id)
    assert len(client.events) == 1


async def test_nothing_is_lost_between_submit_and_subscribe(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(("read", {}))
    await until(lambda: world.journal.of("task.finish"))
    answer = await session.subscribe(task_id)
    assert answer == {"ok": True, "task_id": task_id, "last_seq": 3}
    assert [event["seq"] for event in await client.finished(task_id)] == [1, 2, 3]
    at = [index for index, document in enumerate(client.documents) if "method" in document]
    answered = next(i for i, d in enumerate(client.documents) if d.get("result") == answer)
    assert answered < at[0], "the answer comes first"


async def test_a_subscription_to_what_is_not_there_is_refused(world):
    client = world.connect()
    session = await client.open()
    for method in ("task.events.subscribe", "task.events.unsubscribe"):
        answer = await client.ask(method, {"session_id": session.session_id, "task_id": "none"})
        assert answer["error"]["code"] == -32001


async def test_a_submission_that_subscribes_is_answered_before_its_first_event(world):
    client = world.connect()
    session = await client.open()
    task_id = await session.start(("read", {}), subscribe=True)
    await client.finished(task_id)
    kinds = ["event" if "method" in document else "answer" for document in client.documents]
    assert kinds == ["answer", "answer", "event", "event", "event"]


async def test_finish_sends_what_is_due_and_then_closes(world):
    client = world.connect()
    session = await client.open()
    await client.send(line(client, "tool.list", 9, session_id=session.session_id))
    await client.until(lambda: client.answers(9))
    world.carriers[-1].connection.finish()
    await client.until_ended()


async def test_a_connection_whose_carrier_fails_ends_and_tells_its_sessions(make_world):
    async with make_world(policy=[OPEN]) as world:
        client = world.connect()
        await client.open(on_disconnect="close")
        carrier = world.carriers[-1]

        async def receive():
            raise carrier._gone("reset")

        carrier.receive = receive
        carrier.connection._carrier.receive = receive
        carrier._in.end()
        await until(lambda: world.runtime.sessions == 0)
