"""The bus contract (design §3), sentence by sentence, on one bus and from the wire down."""

from __future__ import annotations

import gc
import signal
import weakref
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve
from support.doubles import Op, device_error
from support.steps import seeded
from support.waiting import until
from support.world import ALICE, BOB

from hearth.actors.bus.actor import Bus
from hearth.actors.bus.queue import Requester, Ticket
from hearth.drivers.base import BaseDriver, Style
from hearth.errors import DeviceError, HearthError, InternalError, ResourceBusy, TimedOut, effect_of

ME = Requester("session", "task", "me")
YOU = Requester("other session", "other task", "you")


def ticket(op, requester=ME, *, limit=60.0, **more):
    return Ticket(op, requester, limit=limit, **more)


async def transact(bus, op, requester=ME, **more):
    return await bus.request(ticket(op, requester, **more)).get()


async def blocked():
    """Let everything that can run do so; for tests without threads."""
    await trio.testing.wait_all_tasks_blocked()


class Outcomes:
    """Askers in tasks of their own, and what became of each."""

    def __init__(self, bus, nursery):
        self.of = {}
        self._bus = bus
        self._nursery = nursery

    def ask(self, op, requester=ME, **more):
        """Start an asker; returns the scope that cancels it."""
        scope = trio.CancelScope()

        async def run():
            with scope:
                try:
                    self.of[op.label] = await transact(self._bus, op, requester, **more)
                except trio.Cancelled:
                    self.of[op.label] = "cancelled"
                    raise
                except HearthError as error:
                    self.of[op.label] = error

        self._nursery.start_soon(run)
        return scope


@pytest.fixture
def held(bus_bench):
    """`async with held(style, op) as (bench, outcomes, gate)`: a bus at work on `op`, and others who may ask."""

    @asynccontextmanager
    async def held(style, op, *, queue_bound=128, **asked):
        async with bus_bench(style, queue_bound=queue_bound) as bench, trio.open_nursery() as nursery:
            gate = bench.driver.gate()
            outcomes = Outcomes(bench.bus, nursery)
            outcomes.ask(evolve(op, gate=gate), **asked)
            await gate.reached()
            yield bench, outcomes, gate

    return held


# --- a transaction that has begun is never interrupted ----------------------------------------------------------


async def test_cancelling_its_asker_does_not_interrupt_a_transaction_that_has_begun(bus_bench, slow_style):
    async with bus_bench(slow_style) as bench, trio.open_nursery() as nursery:
        gate = bench.driver.gate()
        outcomes = Outcomes(bench.bus, nursery)
        scope = outcomes.ask(Op("x", gate=gate))
        await gate.reached()
        scope.cancel()
        await blocked()
        assert outcomes.of == {}
        assert bench.observer.labels("end") == []
        gate.open()
    assert outcomes.of == {"x": "x"}
    bench.observer.assert_whole()


async def test_an_asker_that_was_cancelled_meanwhile_learns_the_outcome_before_it_is_told(bus_bench, slow_style):
    async with bus_bench(slow_style) as bench, trio.open_nursery() as nursery:
        gate = bench.driver.gate()

        async def opener():
            await gate.reached()
            scope.cancel()
            gate.open()

        nursery.start_soon(opener)
        with trio.CancelScope() as scope:
            error = None
            try:
                await transact(bench.bus, Op("x", gate=gate, raises=device_error(effect="done")))
            except DeviceError as raised:
                error = raised
            assert effect_of(error) == "done"
            with pytest.raises(trio.Cancelled):
                await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught


async def test_the_deadline_of_its_asker_does_not_interrupt_a_transaction_that_has_begun(bus_bench, slow_style):
    async with bus_bench(slow_style) as bench, trio.open_nursery() as nursery:
        gate = bench.driver.gate()

        async def opener():
            await gate.reached()
            # From now on, however long the transaction took to begin.
            scope.deadline = trio.current_time() + 0.01
            await trio.sleep_until(scope.deadline)
            await blocked()
            gate.open()

        nursery.start_soon(opener)
        with trio.CancelScope() as scope:
            assert await transact(bench.bus, Op("x", gate=gate)) == "x"
            assert scope.cancel_called
    bench.observer.assert_whole()


async def test_the_end_of_the_bus_waits_for_a_transaction_that_has_begun(bus_bench, slow_style, nursery):
    outcomes = {}

    async def requester(bench, op):
        try:
            outcomes[op.label] = await transact(bench.bus, op)
        except DeviceError as error:
            outcomes[op.label] = error

    async def open_late(gate, driver):
        await blocked()
        assert driver.is_open
        assert outcomes == {}
        gate.open()

    async with trio.open_nursery() as buses, bus_bench(slow_style) as bench:
        gate = bench.driver.gate()
        bench.driver.gates.clear()
        nursery.start_soon(requester, bench, Op("x", gate=gate))
        await gate.reached()
        nursery.start_soon(requester, bench, Op("queued"))
        await blocked()
        nursery.start_soon(open_late, gate, bench.driver)
        buses.cancel_scope.cancel()
    await blocked()
    assert outcomes["x"] == "x"
    assert effect_of(outcomes["queued"]) == "none"
    assert outcomes["queued"].data["state"] == "closed"
    assert [what[0] for what in bench.observer.of("end", "close")] == ["end", "close"]
    bench.observer.assert_whole()


async def test_a_pump_that_crashes_does_not_interrupt_a_transaction_that_has_begun(held, slow_style):
    async with held(slow_style, Op("x")) as (bench, outcomes, gate):
        bench.driver.break_pump()
        await blocked()
        assert bench.observer.of("end", "close") == []
        gate.open()
        await until(lambda: bench.crashes)
    assert outcomes.of == {"x": "x"}
    assert [what[0] for what in bench.observer.of("end", "close")] == ["end", "close"]
    bench.observer.assert_whole()


async def test_a_pump_that_crashes_ends_the_bus_although_requests_keep_coming(bus_bench, autojump_clock):
    # Each finished transaction finds another one waiting, so the bus never comes to rest by itself.
    refused = []

    async def ask_for_ever(bus):
        try:
            while True:
                await transact(bus, Op("x", seconds=0.001))
        except DeviceError as error:
            refused.append(error.data)

    with trio.fail_after(5):
        async with bus_bench(Style.ASYNC) as bench, trio.open_nursery() as askers:
            askers.start_soon(ask_for_ever, bench.bus)
            askers.start_soon(ask_for_ever, bench.bus)
            await trio.sleep(0.01)
            bench.driver.break_pump()
    assert refused == [{"effect": "none", "bus": "a", "state": "down"}] * 2
    assert len(bench.crashes) == 1
    bench.observer.assert_whole()


def test_ctrl_c_does_not_interrupt_a_transaction_that_runs_in_place(bus_bench):
    # An embedding program has Trio's own handling of SIGINT, which raises in whatever code happens to run.
    finished = []

    def interrupted(_driver):
        signal.raise_signal(signal.SIGINT)
        finished.append("whole")
        return "whole"

    async def main():
        async with bus_bench(Style.INLINE) as bench:

            async def requester():
                finished.append(await transact(bench.bus, interrupted))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(requester)

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    assert caught.value.split(KeyboardInterrupt)[1] is None
    assert finished[0] == "whole"


HOWS = {
    "a cancel": lambda scene: scene.session.cancel(scene.task_id),
    "the task's deadline": lambda scene: scene.pass_deadline(),
    "the end of the session": lambda scene: scene.close_in_background(),
    "a client that disconnects": lambda scene: scene.client.close(),
    "a session that crashes elsewhere": lambda scene: scene.crash_another_session(),
    "a bus that crashes elsewhere": lambda scene: scene.crash_another_bus(),
    "the crash of its own session": lambda scene: scene.crash_own_session(),
    "the end of the runtime": lambda scene: scene.end_runtime(),
}


class Scene:
    """A task whose only step stands in the middle of a transaction, and ways to disturb it."""

    def __init__(self, world, nursery, max_duration_ms=None):
        self.world = world
        self.nursery = nursery
        self.client = None
        self.limit = {} if max_duration_ms is None else {"max_duration_ms": max_duration_ms}

    async def begin(self):
        self.client = self.world.connect()
        self.session = await self.client.open(on_disconnect="close")
        self.task_id = await self.session.start(("read", {"tag": "x", "gate": "x", "limit_ms": 60_000}), **self.limit)
        await self.world.gate("x").reached()
        self.world.observer.note("disturbed", "a", "x")

    async def pass_deadline(self):
        await trio.sleep(self.limit["max_duration_ms"] / 1000)

    async def close_in_background(self):
        self.nursery.start_soon(self.session.close)
        await trio.lowlevel.checkpoint()

    async def crash_another_session(self):
        other = await self.world.connect(BOB).open()
        with pytest.raises((InternalError, DeviceError)):
            await other.submit(("badbus", {}))

    async def crash_own_session(self):
        with pytest.raises(InternalError):
            await self.session.submit(("badbus", {}))

    async def crash_another_bus(self):
        other = await self.world.connect(BOB).open()
        assert (await other.run(("crash", {"bus": "b"})))["status"] == "FAILED"

    async def end_runtime(self):
        self.nursery.start_soon(self.world.runtime.end_sessions)
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("how", HOWS)
async def test_a_transaction_that_has_begun_is_never_interrupted_by(how, make_world, slow_style):
    buses = {"a": slow_style, "b": slow_style}
    async with make_world(buses=buses, close_grace_s=0.05) as world, trio.open_nursery() as nursery:
        # Long enough to begin on a busy machine, before it is over.
        scene = Scene(world, nursery, 500 if how == "the task's deadline" else None)
        await scene.begin()
        await HOWS[how](scene)
        await blocked()
        # Nothing has happened to it: it still stands where it stood.
        assert world.observer.labels("end", "a") == []
        assert world.observer.of("close") == [] or how == "a bus that crashes elsewhere"
        world.gate("x").open()
    world.observer.assert_whole()
    steps = world.journal.of("task.step.finish", task_id=scene.task_id)
    assert [step["status"] for step in steps] == ["SUCCESS"]
    assert len(world.journal.of("task.finish", task_id=scene.task_id)) == 1


# --- a queued request whose asker is cancelled never begins ------------------------------------------------------


async def test_a_queued_request_whose_asker_is_cancelled_never_begins(held, slow_style):
    async with held(slow_style, Op("first")) as (bench, outcomes, gate):
        scope = outcomes.ask(Op("withdrawn"))
        outcomes.ask(Op("last"))
        await blocked()
        assert bench.bus.health()["queued"] == 2
        scope.cancel()
        await blocked()
        assert outcomes.of == {"withdrawn": "cancelled"}
        assert bench.bus.health()["queued"] == 1, "its place is free at once"
        gate.open()
    assert bench.observer.labels("begin") == ["first", "last"]


async def test_a_queued_request_whose_askers_deadline_passes_never_begins(held, slow_style):
    async with held(slow_style, Op("first")) as (bench, _outcomes, gate):
        with trio.move_on_after(0.01) as scope:
            await transact(bench.bus, Op("late"))
        assert scope.cancelled_caught
        gate.open()
    assert bench.observer.labels("begin") == ["first"]


async def test_a_request_of_an_asker_that_is_cancelled_already_never_begins(bus_bench, slow_style):
    async with bus_bench(slow_style) as bench:
        with trio.CancelScope() as scope:
            scope.cancel()
            await transact(bench.bus, Op("x"))
        assert scope.cancelled_caught
        await transact(bench.bus, Op("y"))
    assert bench.observer.labels("begin") == ["y"]


@pytest.mark.parametrize("durability", ["os", "relaxed"])
async def test_a_task_that_is_cancelled_before_its_turn_begins_nothing(make_world, style, durability, monkeypatch):
    # A session whose machine is slow lets others have a turn between the two messages: the task, that is.
    monkeypatch.setattr("hearth.actors.turns.TURN", 60)
    async with make_world(buses={"a": style}, durability=durability) as world:
        client = world.connect()
        session = await client.open()
        # One piece of bytes, so that the session reads the close before the task has had its first turn.
        await client.send(
            client.request("task.submit", session.submission([("set", {"line": 1, "value": 1, "tag": "x"})]), 100),
            client.request("session.close", {"session_id": session.session_id}, 101),
        )
        await client.until(lambda: client.answers(101))
        task_id = client.answers(100)[0]["result"]["task_id"]
        assert world.journal.of("task.finish", task_id=task_id)[0]["status"] == "CANCELLED"
    assert world.observer.labels("begin") == []


@pytest.mark.parametrize("how", ["cancel", "close", "disconnect", "deadline", "shutdown"])
async def test_a_queued_step_never_begins_once_its_task_is_ended_by(how, make_world, slow_style):
    async with make_world(buses={"a": slow_style}, close_grace_s=0.05) as world, trio.open_nursery() as nursery:
        other = await world.connect(BOB).open()
        await other.start(("read", {"tag": "first", "gate": "x", "limit_ms": 60_000}))
        await world.gate("x").reached()
        client = world.connect()
        session = await client.open(on_disconnect="close")
        limit = {"max_duration_ms": 10} if how == "deadline" else {}
        task_id = await session.start(("read", {"tag": "queued"}), **limit)
        if how == "cancel":
            assert await session.cancel(task_id) == "CANCELLING"
        elif how == "close":
            await session.close()
        elif how == "disconnect":
            await client.close()
        elif how == "shutdown":
            nursery.start_soon(world.runtime.end_sessions)
        await client_gone(world, task_id)
        world.gate("x").open()
    assert world.observer.labels("begin") == ["first"]
    finish = world.journal.of("task.finish", task_id=task_id)[0]
    assert finish["status"] == ("FAILED" if how == "deadline" else "CANCELLED")


async def client_gone(world, task_id):
    """Wait until the task is on record as ended, while the bus is still held by somebody else."""
    while not world.journal.of("task.finish", task_id=task_id):
        await trio.lowlevel.checkpoint()


# --- two transactions on one bus never overlap -------------------------------------------------------------------


async def test_two_transactions_on_one_bus_never_overlap(bus_bench, style):
    async with bus_bench(style) as bench, trio.open_nursery() as nursery:

        async def requester(name):
            for number in range(20):
                label = f"{name}.{number}"
                assert await transact(bench.bus, Op(label)) == label

        for name in range(10):
            nursery.start_soon(requester, name)
    assert len(bench.observer.of("begin")) == 200
    bench.observer.assert_whole()


async def test_a_pool_runs_as_many_transactions_at_once_as_it_is_wide_and_no_more(bus_bench, slow_style):
    async with bus_bench(slow_style, width=3) as bench, trio.open_nursery() as nursery:
        outcomes = Outcomes(bench.bus, nursery)
        gates = [bench.driver.gate() for _ in range(5)]
        for number, gate in enumerate(gates):
            outcomes.ask(Op(str(number), gate=gate))
        while sum(gate.is_reached for gate in gates) < 3:
            await trio.lowlevel.checkpoint()
        await blocked()
        assert sum(gate.is_reached for gate in gates) == 3
        for gate in gates:
            gate.open()
    assert outcomes.of == {str(number): str(number) for number in range(5)}
    bench.observer.assert_whole()


async def test_the_highest_priority_goes_first_and_then_who_came_first(held, slow_style):
    async with held(slow_style, Op("running"), priority=0) as (bench, outcomes, gate):
        for label, priority in [("a", 1), ("b", 0), ("c", 3), ("d", 1), ("e", 3), ("f", 2)]:
            outcomes.ask(Op(label), priority=priority)
            await blocked()
        gate.open()
    assert bench.observer.labels("begin") == ["running", "c", "e", "f", "a", "d", "b"]


async def test_what_must_run_goes_before_everything_else_and_past_the_bound(held, slow_style):
    async with held(slow_style, Op("running"), queue_bound=1) as (bench, outcomes, gate):
        outcomes.ask(Op("urgent"), priority=3)
        outcomes.ask(Op("must"), must_run=True)
        await blocked()
        outcomes.ask(Op("must too"), must_run=True)
        await blocked()
        gate.open()
    assert bench.observer.labels("begin") == ["running", "must", "must too", "urgent"]


# --- a full queue answers RESOURCE_BUSY at once ------------------------------------------------------------------


async def test_a_full_queue_answers_resource_busy_at_once(held, slow_style):
    async with held(slow_style, Op("running"), queue_bound=2) as (bench, outcomes, gate):
        outcomes.ask(Op("one"))
        scope = outcomes.ask(Op("two"))
        await blocked()
        with pytest.raises(ResourceBusy) as busy:
            bench.bus.request(ticket(Op("three")))
        assert busy.value.code == -32004
        assert busy.value.data["reason"] == "queue full"
        assert busy.value.data["bus"] == "a"
        assert busy.value.data["effect"] == "none"
        scope.cancel()
        await blocked()
        outcomes.ask(Op("four"))
        await blocked()
        gate.open()
    assert bench.observer.labels("begin") == ["running", "one", "four"]


async def test_a_step_that_finds_the_queue_full_fails_with_resource_busy(make_world):
    async with make_world(bus_queue=1) as world:
        session = await world.connect().open()
        await session.start(("read", {"gate": "x"}))
        await world.gate("x").reached()
        await session.start(("read", {"tag": "queued"}))
        await blocked()
        refused = await session.run(("read", {"tag": "refused"}))
        step = refused["steps"][0]
        assert (refused["status"], step["status"], step["error_code"]) == ("FAILED", "FAILED", -32004)
        assert step["error_data"]["reason"] == "queue full"
        world.gate("x").open()
    assert world.observer.labels("begin") == ["read", "queued"]


async def test_requests_that_were_withdrawn_do_not_pile_up(held):
    async with held(Style.ASYNC, Op("running"), queue_bound=8) as (bench, outcomes, gate):
        remembered = weakref.WeakSet()
        for _ in range(500):
            op = Op("withdrawn")
            remembered.add(op)
            with trio.CancelScope() as scope:
                scope.cancel()
                await transact(bench.bus, op)
        del op
        gc.collect()
        assert bench.bus.health()["queued"] == 0
        assert len(remembered) <= 20
        gate.open()
    assert outcomes.of == {"running": "running"}


# --- a transaction past its limit marks the bus wedged -----------------------------------------------------------


async def wedge(bench):
    """Wait until the bus is wedged by what stands at the gate."""
    while bench.bus.state != "wedged":
        await trio.lowlevel.checkpoint()


async def test_a_transaction_past_its_limit_marks_the_bus_wedged(held, slow_style):
    async with held(slow_style, Op("slow"), limit=0.02) as (bench, outcomes, gate):
        outcomes.ask(Op("queued"), YOU)
        await wedge(bench)
        await blocked()
        # Who asked for the slow one still waits; who queued is told why not, at once; and so is who comes now.
        assert list(outcomes.of) == ["queued"]
        for busy in (outcomes.of["queued"], _refusal(bench.bus, YOU)):
            assert isinstance(busy, ResourceBusy)
            assert busy.data["reason"] == "wedged"
            assert "20 ms" in busy.data["detail"]
            assert busy.data["effect"] == "none"
            assert busy.data["held_ms"] >= 20
            assert "holder_task" not in busy.data, "another principal's task is nobody's business"
        assert _refusal(bench.bus, ME).data["holder_task"] == "task"
        health = bench.bus.health()
        assert health["state"] == "wedged"
        assert "20 ms" in health["reason"]
        assert [record["event"] for record in bench.audited] == ["bus.wedged"]
        assert bench.audited[0]["bus"] == "a"
        assert bench.audited[0]["task_id"] == "task"
        gate.open()
        await until(lambda: "slow" in outcomes.of)
        assert bench.bus.state == "ready"
        assert "reason" not in bench.bus.health()
        assert [record["event"] for record in bench.audited] == ["bus.wedged", "bus.reopened"]
        assert await transact(bench.bus, Op("after")) == "after"
    late = outcomes.of["slow"]
    assert isinstance(late, TimedOut)
    assert late.data["effect"] == "done"
    assert late.data["took_ms"] >= late.data["limit_ms"] == 20
    assert bench.observer.labels("begin") == ["slow", "after"]
    bench.observer.assert_whole()


def _refusal(bus, requester):
    with pytest.raises(ResourceBusy) as busy:
        bus.request(ticket(Op("refused"), requester))
    return busy.value


async def test_an_overdue_transaction_that_fails_at_last_says_how_it_failed(held, slow_style):
    async with held(slow_style, Op("slow", raises=device_error("NACK", effect="unknown")), limit=0.01) as (
        bench,
        outcomes,
        gate,
    ):
        await wedge(bench)
        gate.open()
    assert outcomes.of["slow"].message == "NACK"
    assert effect_of(outcomes.of["slow"]) == "unknown"
    assert [record["event"] for record in bench.audited] == ["bus.wedged", "bus.reopened"]


async def test_the_result_of_an_overdue_transaction_is_not_lost(held, slow_style):
    async with held(slow_style, Op("slow", do=lambda _driver: {"value": 7}), limit=0.01) as (bench, outcomes, gate):
        await wedge(bench)
        gate.open()
    assert outcomes.of["slow"].data["result"] == {"value": 7}


async def test_what_must_run_waits_for_a_wedged_bus_to_return(held, slow_style):
    async with held(slow_style, Op("slow"), limit=0.01) as (bench, outcomes, gate):
        await wedge(bench)
        outcomes.ask(Op("must"), must_run=True)
        await blocked()
        assert outcomes.of == {}
        gate.open()
    assert outcomes.of["must"] == "must"
    assert bench.observer.labels("begin") == ["slow", "must"]


async def test_a_pool_is_wedged_only_when_its_last_lane_is(bus_bench, slow_style):
    async with bus_bench(slow_style, width=2) as bench, trio.open_nursery() as nursery:
        first, second = bench.driver.gate(), bench.driver.gate()
        outcomes = Outcomes(bench.bus, nursery)
        outcomes.ask(Op("slow", gate=first), limit=0.01)
        await first.reached()
        while not bench.bus._overdue:
            await trio.lowlevel.checkpoint()
        assert bench.bus.state == "ready"
        assert await transact(bench.bus, Op("beside")) == "beside"
        outcomes.ask(Op("slow too", gate=second), limit=0.01)
        await second.reached()
        await wedge(bench)
        first.open()
        await until(lambda: "slow" in outcomes.of)
        assert bench.bus.state == "ready"
        assert await transact(bench.bus, Op("beside again")) == "beside again"
        second.open()
    assert {type(error) for error in outcomes.of.values()} == {TimedOut}
    bench.observer.assert_whole()


async def test_a_wedged_bus_leaves_its_step_running_and_other_buses_alone(make_world, slow_style):
    async with make_world(buses={"a": slow_style, "b": slow_style}) as world:
        client = world.connect()
        session = await client.open()
        slow = await session.start(
            ("set", {"tag": "slow", "gate": "x", "limit_ms": 20, "line": 1, "value": 1}), ("read", {})
        )
        queued = await session.start(("read", {"tag": "queued"}))
        await until(lambda: world.runtime.buses["a"].state == "wedged")
        # The step is RUNNING until the call returns: nothing may kill it (draft §3.6).
        shown = await session.get(slow)
        assert shown["status"] == "RUNNING"
        assert [step["status"] for step in shown["steps"]] == ["RUNNING"]
        assert await session.cancel(slow) == "CANCELLING"
        assert (await session.get(slow))["status"] == "RUNNING"
        refused = await session.wait(queued)
        assert refused["steps"][0]["error_code"] == -32004
        assert refused["steps"][0]["error_data"]["reason"] == "wedged"
        assert refused["steps"][0]["error_data"]["holder_task"] == slow
        assert (await session.run(("read", {"bus": "b", "tag": "elsewhere"})))["status"] == "SUCCESS"
        health = world.runtime.health()
        assert health["ok"] is False
        assert health["buses"]["a"]["state"] == "wedged"
        assert health["buses"]["b"]["state"] == "ready"
        assert len(world.journal.of("bus.wedged", bus="a", task_id=slow)) == 1
        world.gate("x").open()
        ended = await session.wait(slow)
        assert ended["status"] == "CANCELLED"
        assert ended["steps"][0]["error_code"] == -32010
        assert ended["steps"][0]["error_data"]["effect"] == "done"
        assert ended["steps"][1]["status"] == "CANCELLED"
        assert len(world.journal.of("bus.reopened", bus="a")) == 1
        assert world.runtime.health()["ok"] is True
    world.observer.assert_whole()


# --- an error tells what became of the world ---------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["none", "done", "unknown"])
async def test_an_error_tells_what_became_of_the_world(bus_bench, style, effect):
    async with bus_bench(style) as bench:
        with pytest.raises(DeviceError) as failed:
            await transact(bench.bus, Op("x", raises=device_error(effect=effect)))
    assert failed.value.data["effect"] == effect


async def test_an_error_that_does_not_know_what_became_of_the_world_says_none(bus_bench, style):
    # It was raised before any device was touched: who touches one raises DeviceError, which must say.
    async with bus_bench(style) as bench:
        with pytest.raises(ResourceBusy) as failed:
            await transact(bench.bus, Op("x", raises=ResourceBusy("held by another process")))
    assert failed.value.data == {"effect": "none"}


async def test_a_transaction_that_crashes_its_bus_says_that_the_effect_is_unknown(bus_bench, style):
    async with bus_bench(style) as bench:
        with pytest.raises(InternalError) as failed:
            await transact(bench.bus, Op("x", raises=RuntimeError("a bug")))
        await until(lambda: bench.crashes)
    assert failed.value.data["effect"] == "unknown"
    assert failed.value.data["bus"] == "a"


async def test_a_bus_that_is_down_refuses_at_once_and_says_why(bus_bench, style):
    async with bus_bench(style) as bench:
        with pytest.raises(InternalError):
            await transact(bench.bus, Op("x", raises=RuntimeError("a bug")))
        await until(lambda: bench.crashes)
        with pytest.raises(DeviceError, match="down: it crashed: RuntimeError") as refused:
            bench.bus.request(ticket(Op("x")))
        assert bench.bus.health()["state"] == "down"
    assert refused.value.data == {"effect": "none", "bus": "a", "state": "down"}


async def test_a_bus_that_crashes_answers_everybody_who_waits(bus_bench, style):
    async with bus_bench(style) as bench, trio.open_nursery() as nursery:
        outcomes = Outcomes(bench.bus, nursery)
        lease = await take_lease(bench.bus, YOU)
        for label in ("one", "two"):
            outcomes.ask(Op(label))
        await blocked()
        with pytest.raises(InternalError):
            await transact(bench.bus, Op("bug", raises=RuntimeError("a bug")), YOU)
        await until(lambda: bench.crashes)
        await until(lambda: len(outcomes.of) == 2)
        bench.bus.release(lease)
    assert {effect_of(error) for error in outcomes.of.values()} == {"none"}
    assert bench.observer.labels("begin") == ["bug"]


async def test_no_transaction_begins_on_a_bus_that_is_about_to_crash(bus_bench):
    async with bus_bench(Style.INLINE) as bench:
        bug, after = ticket(Op("bug", raises=RuntimeError("a bug"))), ticket(Op("after"))
        bench.bus.request(bug)
        bench.bus.request(after)  # in the same turn: the bus has not had its own since
        with pytest.raises(InternalError):
            await bug.get()
        with pytest.raises(DeviceError):
            await after.get()
    assert bench.observer.labels("begin") == ["bug"]


# --- leases ------------------------------------------------------------------------------------------------------


async def take_lease(bus, requester=ME):
    lease = ticket(None, requester, limit=0)
    await bus.request(lease).get()
    return lease


async def test_a_leased_bus_serves_its_holder_only(bus_bench, style):
    async with bus_bench(style) as bench, trio.open_nursery() as nursery:
        lease = await take_lease(bench.bus)
        outcomes = Outcomes(bench.bus, nursery)
        outcomes.ask(Op("yours"), YOU, priority=3)
        await blocked()
        assert await transact(bench.bus, Op("mine")) == "mine"
        assert await transact(bench.bus, Op("mine too"), priority=0) == "mine too"
        assert outcomes.of == {}
        bench.bus.release(lease)
    assert bench.observer.labels("begin") == ["mine", "mine too", "yours"]


async def test_a_lease_waits_for_the_transaction_that_runs(bus_bench, slow_style):
    async with bus_bench(slow_style) as bench, trio.open_nursery() as nursery:
        gate = bench.driver.gate()
        outcomes = Outcomes(bench.bus, nursery)
        outcomes.ask(Op("yours", gate=gate), YOU)
        await gate.reached()
        granted = []

        async def lease():
            granted.append(await take_lease(bench.bus))

        nursery.start_soon(lease)
        await blocked()
        assert granted == []
        gate.open()
        await until(lambda: granted)
        assert bench.observer.labels("end") == ["yours"]
        bench.bus.release(granted[0])


async def test_a_lease_that_is_asked_for_and_withdrawn_leaves_nothing_behind(bus_bench, style):
    async with bus_bench(style) as bench:
        held = await take_lease(bench.bus, YOU)
        wanted = ticket(None, limit=0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await bench.bus.request(wanted).get()
        bench.bus.release(wanted)
        bench.bus.release(held)
        assert "leased" not in bench.bus.health()
        assert await transact(bench.bus, Op("x"), YOU) == "x"


async def test_the_holder_of_a_lease_is_not_held_up_by_those_who_wait_for_its_end(bus_bench, style):
    async with bus_bench(style, queue_bound=2) as bench, trio.open_nursery() as nursery:
        lease = await take_lease(bench.bus)
        outcomes = Outcomes(bench.bus, nursery)
        outcomes.ask(Op("one"), YOU)
        outcomes.ask(Op("two"), YOU)
        await blocked()
        # The queue is full of others, and yet the bus is the holder's.
        assert await transact(bench.bus, Op("mine")) == "mine"
        assert bench.bus.busy(ME) is None
        assert await bench.bus.request(ticket(Op("mine at once")), no_wait=True).get() == "mine at once"
        assert bench.bus.busy(YOU).data["reason"] == "leased"
        bench.bus.release(lease)
    assert bench.observer.labels("begin")[:2] == ["mine", "mine at once"]


async def test_releasing_twice_or_for_another_changes_nothing(bus_bench, style):
    async with bus_bench(style) as bench:
        mine = await take_lease(bench.bus)
        bench.bus.release(ticket(None, YOU, limit=0))
        assert bench.bus.health()["leased"] is True
        bench.bus.release(mine)
        bench.bus.release(mine)
        assert "leased" not in bench.bus.health()


async def test_a_lease_lets_pass_what_takes_a_started_effect_back(bus_bench, style):
    async with bus_bench(style) as bench:
        lease = await take_lease(bench.bus)
        assert await transact(bench.bus, Op("undo"), YOU, must_run=True) == "undo"
        bench.bus.release(lease)


# --- no_wait ------------------------------------------------------------------------------------------------------


async def test_who_does_not_want_to_wait_is_told_who_is_in_the_way(bus_bench, slow_style):
    async with bus_bench(slow_style) as bench, trio.open_nursery() as nursery:
        assert await bench.bus.request(ticket(Op("free")), no_wait=True).get() == "free"
        gate = bench.driver.gate()
        outcomes = Outcomes(bench.bus, nursery)
        outcomes.ask(Op("held", gate=gate))
        await gate.reached()
        for requester, holder in [(ME, {"holder_task": "task"}), (YOU, {})]:
            with pytest.raises(ResourceBusy) as busy:
                bench.bus.request(ticket(Op("no"), requester), no_wait=True)
            data = busy.value.data
            assert data["held_ms"] >= 0
            assert {key: data[key] for key in ("bus", "reason", "effect")} == {
                "bus": "a",
                "reason": "in use",
                "effect": "none",
            }
            assert {key: data[key] for key in data if key == "holder_task"} == holder
        gate.open()


# --- the bus's own life -------------------------------------------------------------------------------------------


class Blocking(BaseDriver):
    """A driver whose operations say in which thread they ran."""

    style = Style.THREAD


async def test_a_thread_driver_is_called_from_one_thread_that_is_not_trios(nursery):
    import threading

    bus = Bus("a", Blocking())
    await nursery.start(bus.run)
    threads = {await transact(bus, lambda _driver: threading.get_ident()) for _ in range(20)}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    nursery.cancel_scope.cancel()


async def test_a_transaction_that_is_given_up_at_the_end_of_the_process_has_an_unknown_effect(held, slow_style):
    async with held(slow_style, Op("stuck")) as (bench, outcomes, _gate):
        outcomes.ask(Op("queued"))
        outcomes.ask(Op("must"), must_run=True)
        await blocked()
        bench.bus.abandon()
        await until(lambda: len(outcomes.of) == 3)
        assert isinstance(outcomes.of["stuck"], DeviceError)
        assert {label: effect_of(error) for label, error in outcomes.of.items()} == {
            "stuck": "unknown",
            "queued": "none",
            "must": "none",
        }
        # Nothing more may begin: the stuck one may still be moving the hardware.
        with pytest.raises(DeviceError) as refused:
            await transact(bench.bus, Op("later"), must_run=True)
        assert effect_of(refused.value) == "none"
    assert bench.observer.labels("begin") == ["stuck"]


def test_what_is_given_up_is_unknown_under_every_schedule(bus_bench):
    async def main():
        async with bus_bench(Style.ASYNC) as bench, trio.open_nursery() as nursery:
            gate = bench.driver.gate()
            outcomes = Outcomes(bench.bus, nursery)
            outcomes.ask(Op("stuck", gate=gate))
            await gate.reached()
            bench.bus.abandon()
        return bench, outcomes.of["stuck"]

    for seed in range(20):
        with seeded(seed):
            bench, error = trio.run(main)
        assert isinstance(error, DeviceError), f"seed {seed}: {error!r}"
        assert effect_of(error) == "unknown"
        assert bench.crashes == []


async def test_a_bus_with_nothing_in_flight_serves_on_when_the_process_stops_waiting(bus_bench, style):
    async with bus_bench(style) as bench:
        bench.bus.abandon()
        assert await transact(bench.bus, Op("safe"), must_run=True) == "safe"
    bench.observer.assert_whole()


async def test_a_bus_that_has_ended_answers_even_what_must_run(bus_bench, style):
    async with bus_bench(style) as bench:
        await transact(bench.bus, Op("x", do=None), drives=3)
    with pytest.raises(DeviceError) as refused:
        await transact(bench.bus, Op("late"), must_run=True)
    assert effect_of(refused.value) == "none"
    safe = bench.bus.make_safe(ME.session_id)
    await safe.wait()
    with pytest.raises(DeviceError):
        await safe.get()


@pytest.mark.parametrize("principal", [ALICE, BOB])
async def test_a_busy_bus_names_the_holders_task_to_its_own_principal_only(world, principal):
    holder = await world.connect(ALICE).open()
    task_id = await holder.start(("read", {"gate": "x"}))
    await world.gate("x").reached()
    requester = await world.connect(principal).open()
    refused = await requester.run(("read", {}), on_busy="fail")
    data = refused["steps"][0]["error_data"]
    assert refused["steps"][0]["error_code"] == -32004
    assert data["bus"] == "a"
    assert data["held_ms"] >= 0
    assert data.get("holder_task") == (task_id if principal is ALICE else None)
