"""What is kept for a principal is charged to it, refused past its budget, and released exactly (draft §12.5)."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import asynccontextmanager

import orjson
import pytest
import trio
from hypothesis import given, strategies as st
from support.waiting import passes
from support.world import ALICE, BOB

from hearth.actors.embedded import LocalRequest
from hearth.actors.events import EventLog
from hearth.actors.send_queue import SendQueue
from hearth.errors import QueueFull, TaskNotFound
from hearth.policy import memory
from hearth.policy.memory import MemoryBudget
from hearth.policy.rules import Match, PolicyEntry
from hearth.protocol.framing import parsed_bytes
from hearth.protocol.methods import METHODS

MIB = 1 << 20
BIG = "x" * 60_000


def kept(world, who=ALICE):
    """The bytes that are charged to a principal now."""
    return world.runtime.memory.for_principal(who.key).used


# --- the accounts ----------------------------------------------------------------------------------------------


class Dropped:
    """A droppable that says when it went."""

    def __init__(self, account, size, went):
        self.account, self.size, self.went = account, size, went
        account.add(size)
        account.offer(self)

    def drop(self):
        self.account.withdraw(self)
        self.account.release(self.size)
        self.went.append(self)


def test_a_charge_past_the_budget_is_refused_with_the_reason_and_changes_nothing():
    account = MemoryBudget(each=1000, total=5000).for_principal("uid:1")
    account.charge(900)
    with pytest.raises(QueueFull) as refused:
        account.charge(101)
    assert account.used == 900
    data = refused.value.data
    assert (data["limit"], data["max_retained_bytes"]) == ("max_retained_bytes", 1000)
    assert (data["retained_bytes"], data["needed_bytes"]) == (900, 101)
    assert "max_retained_bytes" in data["reason"]
    assert "close sessions" in data["cure"]
    account.charge(100)


def test_the_budget_of_all_is_refused_without_saying_what_others_keep():
    budget = MemoryBudget(each=1000, total=1500)
    one, other = budget.for_principal("a"), budget.for_principal("b")
    one.charge(1000)
    with pytest.raises(QueueFull) as refused:
        other.charge(501)
    assert refused.value.data["limit"] == "max_retained_total_bytes"
    assert refused.value.data["retained_bytes"] == 0
    assert "1000" not in refused.value.message
    other.charge(500)


def test_a_principal_that_keeps_nothing_costs_nothing():
    budget = MemoryBudget()
    for number in range(100):
        account = budget.for_principal(f"uid:{number}")
        account.charge(10)
        account.release(10)
    del account
    assert list(budget.accounts()) == []
    assert budget.used == 0


def test_what_may_be_dropped_gives_way_oldest_first_and_only_as_much_as_is_needed():
    account, went = MemoryBudget(each=1000, total=5000).for_principal("a"), []
    first, second, third = (Dropped(account, 300, went) for _ in range(3))
    account.charge(350)
    assert went == [first]
    account.add(300)
    assert went == [first, second]
    assert not account.fits(10_000), "nothing gives way to what can never fit"
    assert went == [first, second]
    with pytest.raises(QueueFull):
        account.charge(900)
    assert went == [first, second, third]


def test_where_all_keep_too_much_the_one_who_keeps_most_gives_way():
    budget, went = MemoryBudget(each=1000, total=1500), []
    small, large = budget.for_principal("a"), budget.for_principal("b")
    old = Dropped(small, 100, went)
    new = Dropped(large, 900, went)
    budget.for_principal("c").charge(600)
    assert went == [new]
    assert old not in went


@pytest.mark.proof
@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(max_size=50), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=20),
    inner), max_leaves=200))  # fmt: skip
def test_a_document_takes_no_more_memory_than_it_is_charged_for(value):
    assert weight_of(orjson.dumps(value)) <= parsed_bytes(orjson.dumps(value))


@pytest.mark.parametrize(
    "document",
    [
        b"[" + b",".join([b"[]"] * 20_000) + b"]",
        b"[" + b",".join([b"{}"] * 20_000) + b"]",
        b"[" + b",".join([b'{"a":1}'] * 10_000) + b"]",
        b"[" + b",".join([b'{"a":{"b":[]}}'] * 5_000) + b"]",
        b"[" + b",".join([b"1.5"] * 20_000) + b"]",
        b"[" + b",".join([b'"ab"'] * 20_000) + b"]",
        b"{" + b",".join(b'"k%d":1.5' % n for n in range(20_000)) + b"}",
        b'"' + b"a" * 500_000 + "\N{GRINNING FACE}".encode() + b'"',
        b'"' + b"a" * 500_000 + b'\\ud83d\\ude00"',
        b'"' + b"a" * 1_000_000 + b'"',
    ],
    ids=["arrays", "objects", "members", "nested", "numbers", "texts", "keys", "wide", "escaped", "long"],
)
def test_the_documents_that_grow_most_take_no_more_memory_than_they_are_charged_for(document):
    assert weight_of(document) <= parsed_bytes(document)


def weight_of(document):
    """The bytes that the value of a document takes."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        value = orjson.loads(document)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        del value


# --- what the runtime charges is what Python takes ------------------------------------------------------------------


class Local:
    """A client without a wire, so that what is measured is the runtime's alone."""

    def __init__(self, world, who=ALICE):
        self.world, self.who = world, who

    async def open(self, **params):
        ask = LocalRequest(METHODS["session.open"](params))
        session = self.world.runtime.open_session(self.who, ask.params, ask)
        await ask.slot.get()
        return session

    async def ask(self, session, method, params, follower=None):
        ask = LocalRequest(METHODS[method](orjson.loads(orjson.dumps(params))), follower)
        session.post(ask)
        return await ask.slot.get()

    async def submit(self, session, *steps, key=None, intent="test", follower=None, **members):
        task = {"intent": intent, "steps": [{"tool": f"bench.{tool}", "args": args} for tool, args in steps]}
        if key is not None:
            task["idempotency_key"] = key
        return (await self.ask(session, "task.submit", {"task": task, **members}, follower))["task_id"]


def forget(world):
    """Drop what the test's own doubles remember."""
    world.journal.records.clear()
    world.observer.seen.clear()


@asynccontextmanager
async def weighed(world, *, least=0.9, most=4.0):
    """Hold what is charged in the body against what Python takes for it."""
    forget(world)
    for _ in range(3):
        gc.collect()
    charged = kept(world)
    tracemalloc.start()
    try:
        yield
        await trio.testing.wait_all_tasks_blocked()
        forget(world)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    charged = kept(world) - charged
    print(f"charged {charged}, taken {taken}: {charged / taken:.2f}")
    assert least * taken <= charged <= most * taken, f"{charged} bytes are charged for {taken}"


@pytest.fixture
async def roomy(make_world, autojump_clock):
    """A world with room for whatever is measured."""
    roomy = {"max_sessions_per_principal": 1000, "max_tasks_per_session": 1000, "task_history": 1000}
    often = PolicyEntry(name="often", match=Match(any=True), rate={"bench.*": "100000/s"})
    async with make_world(policy=[often], **roomy) as world:
        local = Local(world)
        # What is made once is made before.
        session = await local.open()
        await local.submit(session, ("read", {}), key="first", follower=SendQueue(), subscribe=True)
        await trio.testing.wait_all_tasks_blocked()
        yield world, local, session


@pytest.mark.proof
async def test_sessions_are_charged_for_what_they_take(roomy):
    world, local, _ = roomy
    async with weighed(world):
        for _ in range(200):
            await local.open(client_name="n" * 200)


@pytest.mark.slow
async def test_connections_are_charged_for_what_they_take(roomy):
    world, _, _ = roomy
    async with weighed(world, least=0.6):  # the pipes of the test's own end are among it
        for _ in range(200):
            world.pipes()


@pytest.mark.proof
@pytest.mark.parametrize("args", [{}, {"tag": "x", "n": 7}, {"junk": [[], {}, 1.5] * 500}], ids=["none", "few", "many"])
async def test_live_tasks_are_charged_for_what_they_take(roomy, args):
    world, local, session = roomy
    async with weighed(world):
        for _ in range(200):
            await local.submit(session, ("wait", args))


@pytest.mark.proof
@pytest.mark.usefixtures("unmeasured_here")
async def test_steps_are_charged_for_what_they_take(roomy):
    world, local, session = roomy
    async with weighed(world):
        for _ in range(20):
            await local.submit(session, *[("big", {"n": 230})] * 200, ("wait", {}))


@pytest.mark.proof
async def test_ended_tasks_are_charged_for_what_they_take(roomy):
    world, local, session = roomy
    async with weighed(world):
        for _ in range(200):
            await local.submit(session, ("read", {"tag": "x"}), ("read", {}), ("big", {"n": 3000}))


@pytest.mark.slow
async def test_intents_are_charged_for_what_they_take(roomy):
    world, local, session = roomy
    async with weighed(world):
        for _ in range(100):
            await local.submit(session, ("wait", {}), intent="\N{GRINNING FACE}" * 4000)


@pytest.mark.proof
async def test_keys_are_charged_for_what_they_take(roomy):
    world, local, session = roomy
    async with weighed(world, most=5):
        for number in range(300):
            await local.submit(session, ("read", {}), key=f"{number:04}" + "k" * 200)


@pytest.mark.proof
async def test_subscriptions_are_charged_for_what_they_take(roomy):
    world, local, session = roomy
    tasks = [await local.submit(session, ("wait", {})) for _ in range(100)]
    account = world.runtime.memory.for_principal(ALICE.key)
    followers = [SendQueue(account) for _ in range(30)]
    for follower in followers:
        follower.hold()  # as one whose client does not read
    async with weighed(world):
        for follower in followers:
            for task in tasks:
                await local.ask(session, "task.events.subscribe", {"task_id": task}, follower)


@pytest.mark.proof
async def test_answers_that_wait_are_charged_for_what_they_take(roomy):
    world, _, _ = roomy
    send_queue = SendQueue(world.runtime.memory.for_principal(ALICE.key))
    async with weighed(world):
        for number in range(2000):
            send_queue.push(b'{"jsonrpc":"2.0","id":%d,"result":{}}\n' % number)


# --- past the budget ------------------------------------------------------------------------------------------------


@pytest.fixture
async def tight(make_world, autojump_clock):
    """A world with a mebibyte for each, and three for all."""
    many = {"max_sessions_per_principal": 1000, "max_tasks_per_session": 10_000, "task_history": 10_000}
    async with make_world(max_retained_bytes=MIB, max_retained_total_bytes=3 * MIB, **many) as world:
        yield world


async def until_full(action):
    """Do it again and again until it is refused; returns how often it worked, and the refusal."""
    for times in range(10_000):
        try:
            await action(times)
        except QueueFull as refusal:
            return times, refusal
    raise AssertionError("it was never refused")


async def others_are_served(world):
    session = await world.connect(BOB).open()
    assert (await session.run(("read", {})))["status"] == "SUCCESS"
    await session.close()


async def test_sessions_are_refused_past_the_budget(tight):
    client = tight.connect()
    times, refusal = await until_full(lambda _: client.open(client_name="n" * 250))
    assert 50 < times < 100
    assert refusal.data["limit"] == "max_retained_bytes"
    assert kept(tight) <= MIB
    await others_are_served(tight)


@pytest.mark.spec("12", "MUST", "A conformant server MUST: Bound resource use.")
async def test_tasks_with_large_arguments_are_refused_before_anything_is_done(tight):
    session = await tight.connect().open()
    times, refusal = await until_full(lambda _: session.submit(("wait", {"junk": BIG})))
    assert 3 < times < 10
    assert refusal.data["limit"] == "max_retained_bytes"
    assert len(tight.journal.of("task.submit")) == times
    tight.event("wait").set()
    await passes(lambda: len(tight.journal.of("task.finish")) == times)
    await others_are_served(tight)
    assert (await session.run(("read", {"junk": BIG})))["status"] == "SUCCESS", "there is room again"


@pytest.mark.proof
async def test_idempotency_keys_are_refused_past_the_budget_and_never_forgotten(tight):
    session = await tight.connect().open()
    first = await session.start(("read", {}), key="the first")
    times, _ = await until_full(lambda n: session.submit(("read", {}), key=f"{n}{'k' * 240}"))
    assert times > 400
    again = await session.submit(("read", {}), key="the first")
    assert again == {"task_id": first, "status": "SUCCESS", "repeated": True}
    await others_are_served(tight)


async def test_unread_subscriptions_are_refused_past_the_budget(tight):
    session = await tight.connect().open()
    tasks = [await session.start(("wait", {})) for _ in range(40)]
    connections = [tight.connect(room=0, send_timeout=1e9) for _ in range(40)]

    async def subscribe(number):
        deaf = connections[number]
        await deaf.send(
            *(deaf.request("task.events.subscribe", {"session_id": session.session_id, "task_id": task}, task)
              for task in tasks)
        )  # fmt: skip
        await trio.testing.wait_all_tasks_blocked()
        await session.submit(("wait", {}))

    await until_full(subscribe)
    assert kept(tight) <= MIB + 64 * 1024
    await others_are_served(tight)
    for connection in connections:
        await connection.close()
    await passes(lambda: kept(tight) < MIB // 2)
    await session.submit(("wait", {}))


async def test_histories_that_are_still_to_be_sent_stay_charged(tight):
    session = await tight.connect().open()
    stream = tight.pipes(room=0, send_timeout=1e9)
    deaf = {"jsonrpc": "2.0", "id": 1, "method": "task.events.subscribe", "params": {"session_id": session.session_id}}
    await stream.send_all(orjson.dumps(deaf) + b"\n")
    await trio.testing.wait_all_tasks_blocked()

    async def run(_):
        await session.submit(("big", {"n": 50_000}))
        await trio.testing.wait_all_tasks_blocked()
        assert not list_failed(tight), "a result was refused"

    with pytest.raises(AssertionError, match="a result was refused"):
        await until_full(run)
    assert kept(tight) <= MIB + 64 * 1024
    await others_are_served(tight)
    await stream.aclose()
    await passes(lambda: kept(tight) < MIB)
    assert (await session.run(("big", {"n": 50_000})))["status"] == "SUCCESS"


def list_failed(world):
    return [record for record in world.journal.of("task.finish") if record["status"] == "FAILED"]


async def test_unread_answers_are_refused_past_the_budget(tight):
    session = await tight.connect().open()
    task = await session.start(("big", {"n": 100_000}))
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(40):
        stream = tight.pipes(room=0, send_timeout=1e9)
        for number in range(8):
            params = {"session_id": session.session_id, "task_id": task}
            line = {"jsonrpc": "2.0", "id": number, "method": "task.get", "params": params}
            await stream.send_all(orjson.dumps(line) + b"\n")
            await trio.testing.wait_all_tasks_blocked()
    # Connections are let in whatever they cost, and an answer that was begun comes on top.
    assert kept(tight) <= MIB + 40 * memory.CONNECTION_BYTES + 150_000
    await others_are_served(tight)


async def test_requests_that_wait_for_a_disk_are_charged_until_they_are_answered(tight):
    client = tight.connect()
    session = await client.open()
    before = kept(tight)
    for number in range(100, 140):
        slow = session.submission([("file", {"path": "/allowed/slow", "junk": BIG})])
        await client.send(client.request("task.submit", slow, number))
    await client.until(lambda: client.answers(139))
    assert client.answers(139)[0]["error"]["code"] == QueueFull.code
    assert MIB // 2 < kept(tight) <= MIB
    await others_are_served(tight)
    tight.paths.spin_up()
    await client.until(lambda: all(client.answers(number) for number in range(100, 140)))
    await session.close()
    assert kept(tight) < before


async def test_documents_that_never_come_whole_are_refused_past_the_budget(tight):
    streams = [tight.pipes() for _ in range(30)]
    for stream in streams:
        await stream.send_all(b'{"x":"' + b"x" * 100_000)
        await trio.testing.wait_all_tasks_blocked()
    assert kept(tight) <= MIB
    said = await streams[-1].receive_some()
    assert orjson.loads(said)["error"]["code"] == QueueFull.code
    assert await streams[-1].receive_some() == b"", "what follows could not be told from the rest of it"
    await others_are_served(tight)
    for stream in streams:
        await stream.aclose()
    await passes(lambda: kept(tight) == 0)


async def test_a_batch_whose_answers_wait_for_each_other_is_charged_for_them(tight):
    client = tight.connect()
    session = await client.open()
    task = (await session.run(("big", {"n": 100_000})))["task_id"]
    before = kept(tight)
    get = {"session_id": session.session_id, "task_id": task}
    slow = session.submission([("file", {"path": "/allowed/slow"})])
    batch = [client.request("task.get", get, 100), client.request("task.submit", slow, 101)]
    await client.send(batch)
    await trio.testing.wait_all_tasks_blocked()
    assert kept(tight) >= before + 100_000
    tight.paths.spin_up()
    await client.until(lambda: client.answers(101))
    await passes(lambda: kept(tight) < before + 20_000)


async def test_a_principal_without_room_can_still_make_some(tight):
    client = tight.connect()
    session = await client.open()
    tasks = []

    async def submit(_):
        tasks.append(await session.start(("wait", {"junk": "x" * 10_000})))

    await until_full(submit)
    for task in tasks:
        assert await session.cancel(task) == "CANCELLING"
    await passes(lambda: len(tight.journal.of("task.finish")) == len(tasks))
    await session.start(("wait", {"junk": "x" * 10_000}))
    assert await session.close() == {"ok": True}


@pytest.mark.slow
async def test_ended_tasks_give_way_to_new_ones_the_oldest_first(tight):
    one, two = await tight.connect().open(), await tight.connect().open()
    with trio.fail_after(1000):
        ids = [((await s.run(("big", {"n": 40_000})))["task_id"], s) for _ in range(20) for s in (one, two)]
    with pytest.raises(TaskNotFound):
        await ids[0][1].get(ids[0][0])
    assert (await ids[-1][1].get(ids[-1][0]))["status"] == "SUCCESS"
    assert kept(tight) <= MIB
    await until_full(lambda _: one.submit(("wait", {"junk": BIG})))
    with pytest.raises(TaskNotFound):
        await ids[-1][1].get(ids[-1][0])


async def test_a_result_for_which_there_is_no_room_fails_its_step_and_says_that_it_has_acted(tight):
    client = tight.connect()
    session = await client.open()
    running = await session.start(("wait", {"tag": "go"}), ("big", {"n": 200_000}), ("read", {}), subscribe=True,
                                  abort_on_step_failure=False)  # fmt: skip
    await until_full(lambda _: session.submit(("wait", {"junk": BIG})))
    tight.event("go").set()
    await client.finished(running)
    waited, big, read = (await session.get(running))["steps"]
    assert (waited["status"], big["status"], read["status"]) == ("SUCCESS", "FAILED", "SUCCESS")
    assert big["error_code"] == QueueFull.code
    assert big["error_data"]["effect"] == "done"
    assert big["error_data"]["limit"] == "max_retained_bytes"


async def test_progress_is_bounded_in_bytes_too(tight):
    log = EventLog("task", account=tight.runtime.memory.for_principal("p"))
    for number in range(1000):
        log.publish("progress", "", {"data": "x" * 10_000, "n": number})
    assert kept_bytes(log) == tight.runtime.memory.for_principal("p").used <= 80_000
    log.publish("progress", "", {"data": "x" * 500_000})
    assert len(log.lines(1, 64)[0]) == 1, "the newest is kept however long it is"
    log.publish("task_finish", "", {})
    assert kept_bytes(log) == tight.runtime.memory.for_principal("p").used
    log.let_go()
    assert tight.runtime.memory.used == 0


def kept_bytes(log):
    return sum(len(line) + 160 for line in log.lines(1, 1000)[0])


async def test_the_budget_of_all_principals_holds_and_ended_tasks_of_the_greatest_give_way(make_world, autojump_clock):
    async with make_world(max_retained_bytes=2 * MIB, max_retained_total_bytes=2 * MIB) as world:
        alice = await world.connect(ALICE).open()
        for _ in range(30):
            task = (await alice.run(("big", {"n": 40_000})))["task_id"]
        assert kept(world) > MIB
        bob = await world.connect(BOB).open()
        _, refusal = await until_full(lambda _: bob.submit(("wait", {"junk": BIG})))
        assert refusal.data["limit"] == "max_retained_total_bytes"
        assert world.runtime.memory.used <= 2 * MIB
        with pytest.raises(TaskNotFound):
            await alice.get(task)
        assert (await alice.run(("read", {})))["status"] == "SUCCESS"
