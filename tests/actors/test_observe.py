"""The observer: one snapshot and one ordered stream of a runtime, for those who may (docs/reference/methods.md)."""

from __future__ import annotations

import json
import random

import orjson
import pytest
import trio
from attrs import evolve
from support.amounts import amount
from support.waiting import passes
from support.world import ALICE, BOB, OPEN, BenchWorld, BoardWorld, running, simulated

from hearth import step
from hearth.actors import observe
from hearth.client import observing
from hearth.errors import Halted, PermissionDenied, RpcError, TaskNotFound
from hearth.policy.principal import Principal
from hearth.policy.rules import ApprovalRule, Match, PolicyEntry

CAROL = Principal(kind="unix", uid=1003, gid=1003)
MAY_OBSERVE = PolicyEntry(name="watchers", match=Match(uid=1002), rights=["observe"])
POLICY = (
    MAY_OBSERVE,
    PolicyEntry(name="operators", match=Match(uid=1003), rights=["observe", "admin", "approve", "reset_halt"]),
    evolve(OPEN, approval=[ApprovalRule(from_risk=3)], max_risk=3, rights=["reset_halt"]),
)
PROFILE = {
    "name": "cell",
    "description": "A robot cell.",
    "gpio": [
        {
            "label": "sim",
            "driver": "sim",
            "names": ["ESTOP", "MOTOR", "LAMP", "VALVE"],
            "lines": {
                "ESTOP": {"direction": "input", "pull": "up"},
                "MOTOR": {"safe": 0, "limit": {"max_on_ms": 60_000}},
                "VALVE": {"reserved": "burnt"},
            },
        }
    ],
    "i2c": [{"bus": 1, "driver": "sim", "device": [{"addr": 0x48, "kind": "tmp102"}]}],
    "halt": {"inputs": [{"line": "ESTOP", "stop": 0}]},
}
SECRET = "the payload that no observer sees"


def a_cell(policy=POLICY):
    world = BoardWorld(PROFILE, policy=policy, session_rate="1000/s")
    world.parts = evolve(world.parts, halt=world.parts.board.profile.halt)
    return world


@pytest.fixture
async def cell():
    """A world on a board with a halt input, in virtual time."""
    async with running(a_cell()) as world:
        yield world


async def observed(events, state, until):
    """Apply events to a state until something is true of it; return them."""
    seen = []
    while not until(state):
        event = await anext(events)
        seen.append(event)
        observing.apply(state, event)
    return seen


async def drained(events, state):
    """Apply what still comes to a state, until nothing has come for a while."""
    with trio.move_on_after(2):
        while True:
            observing.apply(state, await anext(events))


def value(state, name):
    """The value of a line, by its name."""
    return next(line["value"] for line in state["lines"] if line["name"] == name)


def plain(state):
    """A state without what differs between two looks at the same world."""
    told = json.loads(orjson.dumps(state))
    for name in ("you", "ts", "seq", "health", "readings"):
        told.pop(name, None)
    for name, key in (("sessions", "session_id"), ("tasks", "task_id")):
        for entry in told[name]:
            entry.pop("opened_at", None)
            entry.pop("submitted_at", None)
        told[name].sort(key=lambda entry, key=key: entry[key])
    return told


# --- who may --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("design 14: observe.state")
async def test_without_the_right_there_is_no_data_in_any_answer(autojump_clock, cell) -> None:
    async with cell.client(ALICE) as client, client.open_session() as session:
        for method in ("observe.state", "observe.subscribe", "observe.unsubscribe", "observe.audit"):
            with pytest.raises(PermissionDenied, match="'observe' is not given by policy 'bench'"):
                await session.call(method)
    assert not cell.runtime.observer.awake


@pytest.mark.spec("design 14: observe.state")
async def test_the_state_shows_every_line_with_value_owner_safe_state_limit_and_role(autojump_clock, cell) -> None:
    async with cell.client(ALICE) as client, client.open_session(client_name="robot") as session:
        await session.gpio.set("MOTOR", 1)
        async with cell.client(BOB) as other, other.open_session() as watcher:
            state = await watcher.observe_state()
    lines = {line["name"]: line for line in state["lines"]}
    assert lines["MOTOR"]["value"] == 1
    assert lines["MOTOR"]["owner"] == {"session_id": session.session_id, "principal": "uid:1001"}
    assert (lines["MOTOR"]["safe"], lines["MOTOR"]["limit"]) == (0, {"max_on_ms": 60_000})
    assert (lines["ESTOP"]["role"], lines["ESTOP"]["direction"]) == ("halt input", "input")
    assert lines["VALVE"]["reserved"] == "burnt"
    assert {one["client_name"]: one["policy"] for one in state["sessions"]} == {"robot": "bench", None: "watchers"}
    assert state["you"] == {"principal": "uid:1002", "policy": "watchers", "rights": ["observe"]}
    assert state["board"] == {"name": "cell", "description": "A robot cell."}
    assert state["policy"]["entries"] == ["watchers", "operators", "bench"]
    assert set(state["buses"]) == {"gpio:sim", "i2c:1", "board"}


async def test_an_observer_sees_no_payload_of_a_task_and_no_content_of_a_plan(autojump_clock, cell) -> None:
    async with (
        cell.client(ALICE) as client,
        client.open_session() as session,
        cell.client(BOB) as other,
        other.open_session() as watcher,
    ):
        events = watcher.observe()
        state = {}
        await observed(events, state, lambda state: state)
        task = await session.submit("write", [step("i2c.write", bus=1, addr=0x48, text=SECRET[:8])])
        await task.wait()
        plan = await session.prepare("probe", [step("gpio.set", line="LAMP", value=1)])
        await session.close()
        seen = await observed(events, state, lambda state: len(state["sessions"]) == 1)
        everything = orjson.dumps([seen, await watcher.observe_state()]).decode()
    assert SECRET[:8] not in everything
    assert plan.plan_id in everything
    assert '"LAMP","value":1' not in everything
    submitted = next(one for event in seen for one in event.get("records", ()) if one["event"] == "task.submit")
    assert submitted["steps"][0]["args"] == {"bus": 1, "addr": 0x48}


@pytest.mark.spec("design 14: audited arguments")
@pytest.mark.parametrize("arguments", ["declared", "hash"])
async def test_the_log_has_the_arguments_that_a_tool_declares_safe_unless_it_is_to_have_hashes(
    tmp_path, arguments: str
) -> None:
    world = simulated(tmp_path, audit={"arguments": arguments, "reserve_bytes": 0})
    async with running(world), world.sessions().open_session() as session:
        await session.run("gpio.set", line="LED", value=1)
        await session.run("i2c.write", bus=1, addr=0x48, text="x" * 2)
    submitted = [record["steps"][0] for record in world.records("task.submit")]
    shown = [{"line": "LED", "value": 1}, {"bus": 1, "addr": 0x48}]
    assert [one.get("args") for one in submitted] == (shown if arguments == "declared" else [None, None])
    assert all(one["args_hash"].startswith("sha256:") for one in submitted)


def test_a_long_text_among_logged_arguments_is_cut_and_only_scalars_are_shown(tmp_path) -> None:
    registry = simulated(tmp_path).parts.registry
    assert registry["file.read"].logged_args({"path": "/" + "p" * 300, "len": 3}) == {
        "path": "/" + "p" * 127 + "…",
        "len": 3,
    }
    for tool in registry.values():
        assert set(tool.logged) <= set(tool.params_schema.get("properties", ())), tool.name
        assert not set(tool.logged) & {"data", "text", "hex", "write", "messages", "params", "until"}, tool.name


# --- the stream -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("design 14: observe.subscribe")
async def test_the_stream_begins_with_a_snapshot_and_its_numbers_have_no_gap(autojump_clock, cell) -> None:
    async with (
        cell.client(ALICE) as client,
        client.open_session() as session,
        cell.client(BOB) as other,
        other.open_session() as watcher,
    ):
        events = watcher.observe()
        state = {}
        first = (await observed(events, state, lambda state: state))[0]
        assert (first["kind"], first["missed"]) == ("snapshot", None)
        await session.gpio.set("LAMP", 1)
        await session.halt("smoke")
        seen = await observed(events, state, lambda state: state["halt"]["halted"])
        numbers = [event["seq"] for event in seen]
        assert numbers == list(range(first["seq"] + 1, first["seq"] + 1 + len(seen)))
        kinds = {event["kind"] for event in seen}
        assert {"records", "halt", "buses", "readings"} <= kinds
        reading = next(event["readings"][0] for event in seen if event["kind"] == "readings")
        assert (reading["tool"], reading["args"], reading["values"]) == (
            "gpio.set", {"line": "LAMP", "value": 1}, {"value": 1},
        )  # fmt: skip
        assert state["halt"]["by"] == "uid:1001"


@pytest.mark.spec("design 14: observe.subscribe")
async def test_after_a_lost_connection_the_stream_goes_on_where_it_was(autojump_clock, cell) -> None:
    async with cell.client(ALICE) as client, client.open_session() as session:
        async with cell.client(BOB) as other, other.open_session() as watcher:
            state = {}
            await observed(watcher.observe(), state, lambda state: state)
        await session.gpio.set("LAMP", 1)
        async with cell.client(BOB) as other, other.open_session() as watcher:
            events = watcher.observe(stream=state["stream"], from_seq=state["seq"] + 1)
            seen = await observed(events, state, lambda state: value(state, "LAMP") == 1)
            assert seen[0]["kind"] != "snapshot"
            assert seen[0]["seq"] == state["seq"] - len(seen) + 1
            await drained(events, state)
            assert plain(state) == plain(await watcher.observe_state())


@pytest.mark.spec("design 14: observe.subscribe")
async def test_an_observer_that_falls_behind_gets_a_snapshot_that_says_what_it_replaces_never_silence(
    autojump_clock, cell, monkeypatch
) -> None:
    monkeypatch.setattr(observe, "MOST_KEPT", 8)
    monkeypatch.setattr(observe, "MOST_GATHERED", 2)
    async with cell.client(ALICE) as client, client.open_session() as session:
        async with cell.client(BOB) as other, other.open_session() as watcher:
            state = {}
            await observed(watcher.observe(), state, lambda state: state)
        for number in range(10):
            await session.gpio.set("LAMP", number % 2)
            await trio.sleep(0.2)
        async with cell.client(BOB) as other, other.open_session() as watcher:
            known = state["seq"]
            events = watcher.observe(stream=state["stream"], from_seq=known + 1)
            first = await anext(events)
            assert first["kind"] == "snapshot"
            assert first["missed"] == first["seq"] - known
            observing.apply(state, first)
            assert plain(state) == plain(await watcher.observe_state())


@pytest.mark.parametrize("asked", [{"stream": "of another run", "from_seq": 3}, {"from_seq": 3}, {"from_seq": 10_000}])
async def test_numbers_of_another_stream_lead_to_a_snapshot_of_which_it_is_not_known_what_was_missed(
    autojump_clock, cell, asked
) -> None:
    async with cell.client(BOB) as client, client.open_session() as watcher:
        first = await anext(watcher.observe(**asked))
        assert (first["kind"], first["missed"]) == ("snapshot", None)


async def test_a_reader_in_this_process_that_does_not_read_gets_a_snapshot_instead_of_a_long_queue(
    autojump_clock, cell, monkeypatch
) -> None:
    monkeypatch.setattr(observing, "MOST_UNREAD", 4)
    async with (
        cell.client(ALICE) as client,
        client.open_session() as session,
        cell.client(BOB) as other,
        other.open_session() as watcher,
    ):
        events, state = watcher.observe(), {}
        await observed(events, state, lambda state: state)
        for number in range(10):
            await session.gpio.set("LAMP", number % 2)
            await trio.sleep(0.2)
        await trio.sleep(1)
        await session.gpio.set("MOTOR", 1)
        seen = await observed(events, state, lambda state: value(state, "MOTOR") == 1)
        assert "snapshot" in {event["kind"] for event in seen}
        await drained(events, state)
        assert plain(state) == plain(await watcher.observe_state())


async def test_a_connection_has_one_subscription_that_ends_on_request_and_with_its_session(
    autojump_clock, cell
) -> None:
    log = cell.runtime.observer.log
    async with cell.client(BOB) as client, client.open_session() as watcher:
        first, second = watcher.observe(), watcher.observe()
        await anext(first)
        await anext(second)
        assert len(log.readers) == 1
        async for event in first:
            assert event["kind"] != "snapshot"
        await second.aclose()
        await passes(lambda: not log.readers)
        await anext(watcher.observe())
        assert len(log.readers) == 1
        await watcher.close()
        assert not log.readers
    async with cell.sessions(BOB).open_session() as watcher:
        events = watcher.observe()
        assert (await anext(events))["kind"] == "snapshot"
        assert len(log.readers) == 1
        events.close()
        assert not log.readers


async def test_a_session_that_observes_does_not_become_idle_and_one_that_has_stopped_does(autojump_clock, cell) -> None:
    async with cell.client(BOB) as client, client.open_session() as watcher:
        events = watcher.observe()
        await anext(events)
        await trio.sleep(1000)
        await watcher.observe_state()
        await events.aclose()
        await trio.sleep(1000)
        with pytest.raises(RpcError):
            await watcher.observe_state()


async def test_a_runtime_without_observers_keeps_nothing_and_falls_asleep_again(autojump_clock, cell) -> None:
    observer = cell.runtime.observer
    async with cell.client(ALICE) as client, client.open_session() as session:
        await session.gpio.set("LAMP", 1)
        assert (observer.awake, observer.log.last_seq) == (False, 0)
        async with cell.client(BOB) as other, other.open_session() as watcher:
            first = await anext(watcher.observe())
            assert observer.awake
        await trio.sleep(observe.KEEP_S + 10)
        assert (observer.awake, observer.log.last_seq) == (False, 0)
        async with cell.client(BOB) as other, other.open_session() as watcher:
            again = await anext(watcher.observe(stream=first["stream"], from_seq=first["seq"] + 1))
            assert (again["kind"], again["missed"]) == ("snapshot", None)


# --- worlds at random -----------------------------------------------------------------------------------------------

WORLDS = amount("HEARTH_WORLDS", 1000) // 25


async def _act(session, rng: random.Random) -> None:
    """One request at random, whatever becomes of it."""
    steps = [
        step("gpio.set", line=rng.choice(["MOTOR", "LAMP"]), value=rng.randrange(2))
        if rng.random() < 0.6
        else step("hw.sensor.read", sensor="shoulder")
        if rng.random() < 0.5
        else step("gpio.pulse", line="LAMP", value=1, duration_ms=rng.randrange(1, 400))
        for _ in range(rng.randrange(1, 4))
    ]
    choice = rng.random()
    try:
        if choice < 0.6:
            task = await session.submit("at random", steps, dry_run=rng.random() < 0.1)
            if rng.random() < 0.3:
                await task.cancel()
        elif choice < 0.7:
            await session.halt("at random")
        elif choice < 0.85:
            await session.reset_halt()
        else:
            await session.prepare("at random", steps)
    except (RpcError, Halted):
        pass


async def _live(world, principal, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 4)):
        async with world.client(principal) as client, client.open_session() as session:
            for _ in range(rng.randrange(1, 8)):
                await _act(session, rng)
                await trio.sleep(rng.random() * rng.choice([0.0, 0.3, 2.0]))


async def _watch(world, rng: random.Random, state: dict, over: trio.Event) -> None:
    """Follow the stream with pauses and lost connections until all have left, and then to its end."""
    while True:
        async with world.client(BOB) as client, client.open_session() as watcher:
            more = {"stream": state["stream"], "from_seq": state["seq"] + 1} if state else {}
            events = watcher.observe(**more)
            with trio.move_on_after(rng.random() * 3):
                while True:
                    before = state.get("seq")
                    event = await anext(events)
                    assert event["kind"] == "snapshot" or event["seq"] == before + 1
                    observing.apply(state, event)
                    if rng.random() < 0.1:
                        await trio.sleep(rng.random() * 2)
        if over.is_set():
            return


@pytest.mark.parametrize("seed", range(WORLDS))
async def test_snapshot_and_events_add_up_to_what_a_fresh_snapshot_shows(
    autojump_clock, monkeypatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(observe, "MOST_KEPT", rng.choice([4, 32, 8192]))
    policy = (POLICY[0], POLICY[1], evolve(POLICY[2], approval=[ApprovalRule(from_risk=2)] if seed % 3 == 0 else []))
    async with running(a_cell(policy)) as world:
        states: list[dict] = [{} for _ in range(3)]
        over = trio.Event()
        async with trio.open_nursery() as watchers:
            for index, state in enumerate(states):
                watchers.start_soon(_watch, world, random.Random(f"{seed}.{index}"), state, over)
            async with trio.open_nursery() as nursery:
                for principal in (ALICE, CAROL, ALICE):
                    nursery.start_soon(_live, world, principal, random.Random(rng.random()))
            await trio.sleep(5)
            over.set()
        async with world.client(BOB) as client, client.open_session() as watcher:
            for state in states:
                events = watcher.observe(stream=state["stream"], from_seq=state["seq"] + 1)
                await drained(events, state)
                assert plain(state) == plain(await watcher.observe_state())


async def test_a_bug_in_a_driver_that_is_looked_at_ends_its_bus_and_neither_the_observer_nor_the_daemon(
    autojump_clock, cell, monkeypatch
) -> None:
    driver = cell.parts.drivers["gpio:sim"]
    get = driver.get
    bugs = [RuntimeError("a bug in the driver")]

    def looked_at(line):
        if bugs:
            raise bugs.pop()
        return get(line)

    async with (
        cell.client(ALICE) as client,
        client.open_session() as session,
        cell.client(BOB) as other,
        other.open_session() as watcher,
    ):
        events, state = watcher.observe(), {}
        await observed(events, state, lambda state: state)
        await session.gpio.set("LAMP", 1)
        monkeypatch.setattr(driver, "get", looked_at)
        await observed(events, state, lambda state: state["buses"]["gpio:sim"]["state"] == "down")
        await observed(events, state, lambda state: state["buses"]["gpio:sim"]["state"] == "ready")
        assert not bugs
        assert await session.gpio.get("LAMP") in (0, 1)


# --- what else an observer may do -----------------------------------------------------------------------------------


@pytest.mark.spec("design 14: task.cancel")
async def test_an_operator_with_the_right_admin_cancels_the_task_of_another_session_and_the_log_says_who(
    autojump_clock,
) -> None:
    async with running(BenchWorld(policy=POLICY)) as world:
        async with world.client(ALICE) as client, client.open_session() as session:
            task = await session.submit("wait", [step("bench.wait")])
            for who, may in ((BOB, False), (CAROL, True)):
                async with world.client(who) as other, other.open_session() as foreign:
                    if not may:
                        with pytest.raises(TaskNotFound):
                            await foreign.call("task.cancel", task_id=task.task_id)
                        continue
                    answer = await foreign.call("task.cancel", task_id=task.task_id)
                    assert answer == {"task_id": task.task_id, "status": "CANCELLING"}
                    with pytest.raises(TaskNotFound):
                        await foreign.call("task.cancel", task_id="no such task")
            assert (await task.wait()).status == "CANCELLED"
        (record,) = world.records("task.cancel")
        assert (record["principal"], record["task_id"]) == ("uid:1003", task.task_id)
        assert record["session_id"] == foreign.session_id


@pytest.mark.spec("design 14: observe.audit")
async def test_the_audit_log_is_read_by_range_and_its_end_is_said(tmp_path) -> None:
    world = simulated(tmp_path, audit={"rotate_bytes": 2048, "reserve_bytes": 0})
    async with running(world), world.sessions().open_session() as session:
        for number in range(12):
            await session.gpio.set("LED", number % 2)
        newest = await session.observe_audit(limit=5)
        last = newest["last_seq"]
        assert [record["seq"] for record in newest["records"]] == list(range(last - 4, last + 1))
        assert (newest["first_seq"], newest["next_seq"]) == (1, None)
        read, at = [], 1
        while at is not None:
            part = await session.observe_audit(from_seq=at, limit=7)
            read += [record["seq"] for record in part["records"]]
            at = part["next_seq"]
        assert read == list(range(1, part["last_seq"] + 1))
        assert (await session.observe_audit(from_seq=10**9))["records"] == []


def test_numbers_of_a_result_are_those_of_its_members_and_never_text() -> None:
    result = {"value": 21.5, "ok": True, "text": "42", "data": [1, 2], "inner": {"low": 1, "name": "x"}}
    assert observe.numbers(result) == {"value": 21.5, "ok": True, "inner.low": 1}
    assert len(observe.numbers({str(number): number for number in range(1000)})) == observe.MOST_VALUES
