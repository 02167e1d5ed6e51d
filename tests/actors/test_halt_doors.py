"""A halt needs no session, and no bound of its connection comes before it (hearth/actors/connection.py)."""

from __future__ import annotations

import os
from itertools import pairwise, product

import pytest
import trio
from attrs import evolve
from support.waiting import passes
from support.world import ALICE, BOB, OPEN, BenchWorld, running

from hearth.actors.bus.halt import MOST_HOLDS
from hearth.actors.bus.latch import Latch
from hearth.actors.connection import HIGH_WATER, Connection
from hearth.actors.runtime import Runtime
from hearth.actors.transport import RECEIVE_SIZE
from hearth.policy.principal import Principal
from hearth.policy.rules import Match

ROOT = Principal(kind="unix", uid=0, gid=0)
OWN = Principal(kind="unix", uid=os.geteuid(), gid=os.getegid())
STRANGER = Principal(kind="unix", uid=4242, gid=4242)
ALICES = evolve(OPEN, match=Match(uid=ALICE.uid))
GO_ON = {"bus": "a", "gate": "held"}


def halted(world):
    return world.runtime.halt.flag.halted


def halts(world):
    return world.journal.of("halt")


# --- who may halt ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_id", [None, "unknown", 7, "x" * 200, {"a": 1}])
async def test_a_halt_without_a_session_halts_for_the_principal_of_its_connection(session_id, autojump_clock):
    world = BenchWorld(policy=(evolve(ALICES, rights=["observe"]),))
    async with running(world):
        client = world.connect()
        params = {"reason": "smoke"} if session_id is None else {"reason": "smoke", "session_id": session_id}
        status = await client.call("halt", **params)
        assert (status["halted"], status["reason"], status["by"]) == (True, "smoke", ALICE.key)
        [record] = halts(world)
        assert record["principal"] == ALICE.key
        assert "session_id" not in record
        assert (await client.call("halt.status"))["by"] == ALICE.key


async def test_a_session_of_the_caller_is_in_the_record_and_one_of_another_is_not(autojump_clock):
    for owner, noted in ((ALICE, True), (BOB, False)):
        world = BenchWorld()
        async with running(world):
            session = await world.connect(owner).open()
            await world.connect(ALICE).call("halt", session_id=session.session_id)
            [record] = halts(world)
            assert record["principal"] == ALICE.key
            assert record.get("session_id") == (session.session_id if noted else None)


async def test_a_halt_counts_as_a_sign_of_life_of_its_session(autojump_clock):
    world = BenchWorld()
    async with running(world):
        session = await world.connect().open(heartbeat_ms=1000)
        for _ in range(5):
            await trio.sleep(0.7)
            await session.call("halt.status")
        assert world.runtime.sessions == 1


@pytest.mark.parametrize("principal", [ROOT, OWN], ids=["root", "own"])
async def test_root_and_the_daemons_own_user_halt_whatever_the_policy_says(principal, autojump_clock):
    world = BenchWorld(policy=(ALICES,))
    async with running(world):
        client = world.connect(principal)
        assert (await client.ask("session.open", {}))["error"]["data"]["reason"] == (
            "no policy entry matches this principal"
        )
        assert (await client.call("halt"))["halted"]
        status = await client.call("halt.status")
        assert (status["halted"], status["by"]) == (True, principal.key)


async def test_a_principal_without_a_policy_entry_does_not_halt_and_is_on_record(autojump_clock):
    world = BenchWorld(policy=(ALICES,))
    async with running(world):
        client = world.connect(STRANGER)
        for method in ("halt", "halt.status"):
            assert (await client.ask(method, {}))["error"]["code"] == -32003
        assert not halted(world)
        assert world.records("session.reject", principal=STRANGER.key)


async def test_a_certificate_of_a_user_named_root_is_not_root(autojump_clock):
    world = BenchWorld(policy=(ALICES,))
    async with running(world):
        for other in (Principal(kind="tls", cert_subject="CN=root"), Principal(kind="token", token_sha256="0" * 64)):
            assert (await world.connect(other).ask("halt", {}))["error"]["code"] == -32003
        assert not halted(world)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"halt"}',
        b'{"jsonrpc":"2.0","method":"halt"}',
        b'{"jsonrpc":"2.0","method":"h\\u0061lt","params":{}}',
        b'[{"jsonrpc":"2.0","id":1,"method":"halt"}]',
        b'{"jsonrpc":"2.0","id":1,"method":"halt","params":{"strict":true,"why":"smoke"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"halt","params":{"strict":7,"reason":[]}}',
    ],
)
async def test_one_raw_line_halts(line, autojump_clock):
    world = BenchWorld()
    async with running(world):
        await world.connect().send(line)
        await trio.testing.wait_all_tasks_blocked()
        assert halted(world)


# --- what does not hold it up ---------------------------------------------------------------------------------------


async def spend_sessions(world, client):
    while "error" not in await client.ask("session.open", {}):
        pass


async def spend_openings(world, client):
    # No session is left open; the rate of openings alone refuses.
    while (answer := await client.ask("session.open", {})).get("result"):
        await client.call("session.close", session_id=answer["result"]["session_id"])


async def spend_memory(world, client):
    account = world.runtime.memory.for_principal(ALICE.key)
    account.add(world.limits.max_retained_bytes)
    assert account.full


async def fill_in_flight(world, client):
    session = await client.open()
    await session.submit(("read", GO_ON))
    waiting = [client.request("plan.list", {"session_id": session.session_id, "wait_ms": 60_000}) for _ in range(300)]
    await client.send(*waiting)


async def fill_weighty(world, client):
    session = await client.open()
    world.journal.hold()
    params = {"session_id": session.session_id, "wait_ms": 60_000}
    await client.send(*[client.request("plan.list", params) for _ in range(20)])


async def hang_the_log(world, client):
    session = await client.open()
    world.journal.hold()
    await client.send(*[client.request("task.submit", session.submission([("read", {})])) for _ in range(20)])


LOADS = [spend_sessions, spend_openings, spend_memory, fill_in_flight, fill_weighty, hang_the_log]


def cases():
    """Each load with each form of a request, on the same connection and on another; what takes long is a proof."""
    for load, form, same in product(LOADS, ("request", "notification", "batch"), (True, False)):
        long = load is spend_openings and (form, same) != ("request", True)
        which = "same connection" if same else "another"
        marks = pytest.mark.proof if long else ()
        yield pytest.param(load, form, same, id=f"{which}-{form}-{load.__name__}", marks=marks)


@pytest.mark.parametrize(("load", "form", "same"), [*cases()])
async def test_no_load_of_ones_own_holds_up_a_halt(load, form, same, autojump_clock):
    async with running(BenchWorld()) as world:
        client = world.connect()
        await load(world, client)
        await trio.testing.wait_all_tasks_blocked()
        assert not halted(world)
        other = client if same else world.connect()
        request = other.request("halt", {"reason": "smoke"}, "stop")
        if form == "notification":
            del request["id"]
        began = trio.current_time()
        await other.send([request] if form == "batch" else request)
        await trio.testing.wait_all_tasks_blocked()
        assert halted(world)
        if form != "notification":
            await other.until(lambda: other.answers("stop"))
        assert trio.current_time() <= began + 1


async def test_answers_that_are_not_taken_do_not_hold_up_a_halt(autojump_clock):
    world = BenchWorld()
    async with running(world):
        stream = world.pipes(room=0)
        big = b'{"jsonrpc":"2.0","id":"%s","method":"no.such"}\n' % (b"x" * 4000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, big * (HIGH_WATER // len(big) + 25))
            await trio.testing.wait_all_tasks_blocked()
            [connection] = world.connections
            assert connection.send_queue.size > HIGH_WATER
            await stream.send_all(b'{"jsonrpc":"2.0","id":1,"method":"halt"}\n')
            await trio.testing.wait_all_tasks_blocked()
            assert halted(world)
            nursery.cancel_scope.cancel()


async def test_a_halt_overtakes_what_came_before_it_in_the_same_piece(autojump_clock):
    world = BenchWorld()
    async with running(world):
        client = world.connect()
        session = await client.open()
        sets = [client.request("task.submit", session.submission([("set", {"line": 1, "value": 1})]), n) for n in "abc"]
        await client.send(*sets, client.request("halt", {}, "stop"))
        await client.until(lambda: all(client.answers(n) for n in "abc"))
        assert [client.answers(n)[0]["error"]["code"] for n in "abc"] == [-32012] * 3
        assert world.driver.levels.get(1) is None


@pytest.mark.parametrize("batch", [False, True])
async def test_a_halt_does_not_overtake_a_reset_that_came_before_it(batch, autojump_clock):
    world = BenchWorld(policy=(evolve(OPEN, rights=["reset_halt"]),))
    async with running(world):
        client = world.connect()
        session = await client.open()
        await client.call("halt")
        requests = [
            client.request("halt.reset", {"session_id": session.session_id}, "reset"),
            client.request("halt", {"reason": "again"}, "stop"),
        ]
        await client.send(*([requests] if batch else requests))
        await client.until(lambda: client.answers("reset") and client.answers("stop"))
        assert halted(world)


async def test_a_batch_that_a_halt_overtakes_is_answered_whole_and_once(autojump_clock):
    world = BenchWorld()
    async with running(world):
        client = world.connect()
        session = await client.open()
        submit = client.request("task.submit", session.submission([("read", {})], subscribe=True), "task")
        await client.send([submit, client.request("halt", {}, "stop"), client.request("no.such", {}, "none")])
        await client.until(lambda: any(isinstance(document, list) for document in client.documents))
        assert [len(client.answers(id_)) for id_ in ("task", "stop", "none")] == [1, 1, 1]
        # Events that were held back until the batch was answered come now.
        await client.finished(client.answers("task")[0]["result"]["task_id"])


class HangingLatch(Latch):
    """A latch on a disk that does not answer."""

    async def save(self, record):
        await trio.sleep_forever()


async def test_the_answer_to_a_halt_waits_a_second_at_most_for_the_disk(autojump_clock):
    world = BenchWorld()
    world.parts = evolve(world.parts, latch=HangingLatch())
    async with running(world):
        began = trio.current_time()
        status = await world.connect().call("halt")
        assert (status["halted"], status["latched"]) == (True, False)
        assert trio.current_time() <= began + 1.5


async def test_what_is_read_ahead_is_bounded_and_charged_to_its_principal(autojump_clock):
    world = BenchWorld()
    async with running(world):
        client = world.connect()
        await fill_in_flight(world, client)
        await trio.testing.wait_all_tasks_blocked()
        before = world.runtime.memory.used
        line = b'{"jsonrpc":"2.0","id":"x","method":"task.get","params":{}}\n'
        for _ in range(50):
            await client.stream.send_all(line * 100)
            await trio.testing.wait_all_tasks_blocked()
        assert RECEIVE_SIZE <= world.runtime.memory.used - before <= 3 * RECEIVE_SIZE
        await client.close()
        await passes(lambda: not world.connections)
        assert world.runtime.memory.used < before


async def test_a_flood_of_halts_and_of_questions_about_them_lets_others_have_their_turn(autojump_clock, monkeypatch):
    # Each document takes a millisecond of this test's clock; a turn is two.
    world = BenchWorld()
    async with running(world):
        client = world.connect()
        handled, turns = [], []
        dispatch = Connection._dispatch

        def slow(connection, call):
            handled.append(call.method)
            autojump_clock.jump(0.001)
            dispatch(connection, call)

        monkeypatch.setattr(Connection, "_dispatch", slow)
        flood = b'{"jsonrpc":"2.0","method":"halt.status"}\n{"jsonrpc":"2.0","method":"halt"}\n' * 20
        async with trio.open_nursery() as nursery:

            async def others():
                while len(handled) < 40:
                    turns.append(len(handled))
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(others)
            await client.stream.send_all(flood)
        steps = [later - earlier for earlier, later in pairwise(turns)]
        assert max(steps) <= 8, f"of {len(handled)}"


async def test_a_halt_from_before_the_start_runs_its_stop_sequence_and_can_be_reset(autojump_clock):
    runtime = Runtime(BenchWorld().parts)
    halt = runtime.halt
    halt.halt("early", ALICE.key)
    async with runtime.serve():
        await passes(lambda: not halt.status()["stopping"])
        await halt.reset(ALICE.key, halt.flag.count)
        assert not halt.flag.halted


async def test_the_shared_hold_shows_no_other_principals_to_those_without_the_right_to_observe(autojump_clock):
    world = BenchWorld()
    async with running(world):
        for number in range(MOST_HOLDS + 1):
            world.runtime.halt.halt("secret machine", f"uid:{7000 + number}")
        shown = str(world.runtime.halt.status(by=ALICE.key)["holds"][-1])
        assert "uid:" not in shown
        assert "secret" not in shown
