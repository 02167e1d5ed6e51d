"""The bus contract again, with a cancellation at every step that any task makes."""

from __future__ import annotations

import pytest
import trio
from support.doubles import BenchDriver, Observer, Op, args_hash
from support.steps import at_every_step
from support.world import ALICE, BOB, BenchWorld, running

from hearth.actors.bus.actor import Bus
from hearth.actors.bus.queue import Requester, Ticket
from hearth.drivers.base import Style
from hearth.errors import HearthError, InternalError, RpcError

STYLES = pytest.mark.parametrize("style", [Style.INLINE, Style.ASYNC], ids=lambda style: style.value)


class Tree:
    """A tree of asker tasks over two buses: three branches of three leaves with three transactions each.

    `scopes` are what may be cancelled: the root, a branch, a leaf.
    """

    def __init__(self, style):
        self.observer = Observer()
        self.buses = [
            Bus(name, BenchDriver(name, self.observer, style=style), queue_bound=6, audit=self._audit) for name in "ab"
        ]
        self.scopes = {"root": trio.CancelScope(), "branch": trio.CancelScope(), "leaf": trio.CancelScope()}
        self.asked = set()
        self.outcomes = {}

    def _audit(self, event, **_fields):
        self.observer.note("audit", event)

    async def run(self, arm, victim):
        async with trio.open_nursery() as nursery:
            for bus in self.buses:
                await nursery.start(bus.run)
            arm(self.scopes[victim].cancel)
            with self.scopes["root"]:
                async with trio.open_nursery() as branches:
                    for number in range(3):
                        branches.start_soon(self._branch, number)
            await trio.testing.wait_all_tasks_blocked()
            self.left = [bus.health()["queued"] for bus in self.buses]
            # A bus that did not survive its askers would not answer this.
            for bus in self.buses:
                await self._ask(bus, f"after {bus.bus_id}", Requester("s", "t", "p"))
            nursery.cancel_scope.cancel()
        return self

    async def _branch(self, number):
        with self.scopes["branch"] if number == 1 else trio.CancelScope():
            async with trio.open_nursery() as leaves:
                for leaf in range(3):
                    leaves.start_soon(self._leaf, number, leaf)

    async def _leaf(self, branch, leaf):
        requester = Requester(f"session {branch}", f"task {branch}.{leaf}", "principal")
        with self.scopes["leaf"] if (branch, leaf) == (1, 1) else trio.CancelScope():
            for number in range(3):
                bus = self.buses[(branch + leaf + number) % 2]
                await self._ask(
                    bus, f"{branch}.{leaf}.{number}", requester, priority=(leaf + number) % 3, must=number == 2
                )

    async def _ask(self, bus, label, requester, *, priority=1, must=False):
        self.asked.add(label)
        op = Op(label, seconds=0.001 * (1 + len(self.asked) % 3))
        ticket = Ticket(op, requester, limit=60, priority=priority, must_run=must)
        try:
            self.outcomes[label] = await bus.request(ticket).get()
        except trio.Cancelled:
            self.outcomes[label] = "cancelled"
            raise
        except HearthError as error:
            self.outcomes[label] = error

    def check(self):
        self.observer.assert_whole()
        begun = self.observer.labels("begin")
        assert len(begun) == len(set(begun)), "something ran twice"
        assert self.outcomes.keys() == self.asked, "an asker was left without an answer"
        for label, outcome in self.outcomes.items():
            if label in begun:
                assert outcome == label, f"{label} began, and its asker was told {outcome!r}"
            else:
                assert outcome == "cancelled" or isinstance(outcome, HearthError), f"{label} never began: {outcome!r}"
        assert self.left == [0, 0]
        assert {"after a", "after b"} <= set(begun)


@pytest.mark.proof
@pytest.mark.usefixtures("unmeasured_here")
@STYLES
@pytest.mark.parametrize("victim", ["root", "branch", "leaf"])
def test_a_tree_of_askers_that_is_cancelled_anywhere_cuts_nothing_and_loses_no_answer(style, victim):
    runs = at_every_step(lambda arm: Tree(style).run(arm, victim), Tree.check)
    assert runs >= (10 if style is Style.INLINE else 50)


PLANS = {
    "plain": (
        [("read", {"bus": "a", "tag": "plain.0", "ms": 2}), ("read", {"bus": "b", "tag": "plain.1"})],
        {},
    ),
    "back": (
        [
            ("set", {"bus": "a", "line": 1, "value": 1, "tag": "back.0", "ms": 1}),
            ("set", {"bus": "b", "line": 2, "value": 1, "tag": "back.1", "ms": 3}),
            ("fail", {"bus": "a", "tag": "back.2"}),
        ],
        {"rollback_on_failure": True},
    ),
    "alone": (
        [
            ("set", {"bus": "b", "line": 3, "value": 1, "tag": "alone.0", "ms": 2}),
            ("read", {"bus": "a", "tag": "alone.1", "ms": 1}),
        ],
        {"exclusive": True, "priority": "high"},
    ),
}
"""What the session's three tasks do: their steps, their constraints."""

BYSTANDER = [
    ("set", {"bus": "a", "line": 9, "value": 1, "tag": "by.0", "ms": 2}),
    ("read", {"bus": "b", "tag": "by.1", "ms": 1}),
]
CRASH = ("crash", {"bus": "a", "tag": "crash"})
ARGS_HASHES = {
    args["tag"]: args_hash(args)
    for _, args in [*(step for steps, _ in PLANS.values() for step in steps), *BYSTANDER, CRASH]
}
"""What the audit must say of each step's args, by the step's tag."""


class Disturbed:
    """One session with three tasks over two buses, which something happens to."""

    def __init__(self, style, act, durability="os", *, spares_others=True):
        buses = {"a": style, "b": style}
        self.world = BenchWorld(buses=buses, durability=durability, close_grace_s=0.5, shutdown_grace_s=0.5)
        self._act = act
        self._spares_others = spares_others
        self.told = {}
        self.task_ids = {}
        self.bystander = {}

    async def run(self, arm):
        happen = trio.Event()
        async with running(self.world) as world:
            client = self.client = world.connect(ALICE)
            session = self.session = await client.open(on_disconnect="close")
            other = await world.connect(BOB).open()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._disturb, happen, nursery)
                arm(happen.set)
                nursery.start_soon(self._bystand, other)
                await self._work(session)
                happen.set()
        return self

    async def _disturb(self, happen, nursery):
        await happen.wait()
        await self._act(self, nursery)

    async def _bystand(self, other):
        try:
            self.bystander["task"] = await other.run(*BYSTANDER)
        except (RpcError, EOFError):
            assert not self._spares_others

    async def _work(self, session):
        client = self.client
        requests = {
            name: client.request("task.submit", session.submission(steps, subscribe=True, **more), f"submit {name}")
            for name, (steps, more) in PLANS.items()
        }
        try:
            await client.send(*requests.values())
            await client.until(lambda: all(client.answers(f"submit {name}") for name in requests))
            for name in requests:
                answer = client.answers(f"submit {name}")[0]
                if "result" in answer:
                    self.task_ids[name] = answer["result"]["task_id"]
            for task_id in self.task_ids.values():
                await client.finished(task_id)
            for task_id in self.task_ids.values():
                self.told[task_id] = await client.ask(
                    "task.get", {"session_id": session.session_id, "task_id": task_id}
                )
        except (EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            self.told = None  # the client has gone: nobody is left to tell

    # --- what may be concluded from observer, audit and client --------------------------------------------------

    def check(self):
        world = self.world
        world.observer.assert_whole()
        begun = world.observer.labels("begin")
        assert len(begun) == len(set(begun)), f"something ran twice: {begun}"
        if self._spares_others:
            assert self.bystander["task"]["status"] == "SUCCESS"
        self._check_audit()
        self._check_write_ahead()
        self._check_end()
        for task_id in self.task_ids.values():
            self._check_told(task_id)

    def _check_audit(self):
        journal = self.world.journal
        submitted = [record["task_id"] for record in journal.of("task.submit")]
        finished = [record["task_id"] for record in journal.of("task.finish")]
        assert sorted(submitted) == sorted(finished), "each accepted task ends once, on record"
        for task_id in submitted:
            started = [record["step_index"] for record in journal.of("task.step.start", task_id=task_id)]
            ended = [record["step_index"] for record in journal.of("task.step.finish", task_id=task_id)]
            assert started == ended == sorted(set(started)), f"steps of {task_id}: started {started}, ended {ended}"
        opened = [record["session_id"] for record in journal.of("session.open")]
        closed = [record["session_id"] for record in journal.of("session.close")]
        assert sorted(opened) == sorted(closed)

    def _check_write_ahead(self):
        journal = self.world.journal
        hashes = {record["args_hash"] for record in journal.records if "args_hash" in record}
        recorded = set()
        for what in self.world.observer.seen:
            if what[0] == "record" and what[1] in ("task.step.start", "task.step.rollback"):
                recorded.add(what[2]["args_hash"])
            elif what[0] == "begin" and not what[2].startswith("safe"):
                hashed = ARGS_HASHES[what[2].removeprefix("undo ")]
                assert hashed in hashes, f"no record has the hash of {what[2]}'s args"
                assert hashed in recorded, f"{what[2]} began before its record was written"

    def _check_end(self):
        # Everything that a session drove is safe in the end, whatever ended the session.
        for driver in self.world.drivers.values():
            assert set(driver.levels.values()) <= {0, None}, f"{driver.name}: {driver.levels}"
        runtime = self.world.runtime
        assert runtime.sessions == 0
        assert [bus.health()["queued"] for bus in runtime.buses.values()] == [0, 0]
        assert not any("leased" in bus.health() for bus in runtime.buses.values())

    def _check_told(self, task_id):
        journal = self.world.journal
        events = self.client.events_of(task_id)
        numbers = [event["seq"] for event in events]
        assert numbers == list(range(1, len(numbers) + 1)), "events come once and in order"
        if self.told is None:
            return
        assert events[-1]["phase"] == "task_finish"
        status = journal.of("task.finish", task_id=task_id)[0]["status"]
        assert events[-1]["status"] == status
        for record in journal.of("task.step.finish", task_id=task_id):
            of_step = [event for event in events if event.get("step_index") == record["step_index"]]
            assert [event["phase"] for event in of_step][:2] == ["start", "finish"]
            assert of_step[1]["status"] == record["status"]
        answer = self.told[task_id]
        if "error" in answer:
            assert answer["error"]["code"] == -32000
            return
        shown = answer["result"]
        assert shown["status"] == status
        assert {step["status"] for step in shown["steps"]} <= {"SUCCESS", "FAILED", "CANCELLED"}


async def cancel_tasks(scene, _nursery):
    for name in ("plain", "back", "alone"):
        answer = scene.client.answers(f"submit {name}")
        if answer and "result" in answer[0]:
            await scene.client.ask(
                "task.cancel",
                {"session_id": scene.session.session_id, "task_id": answer[0]["result"]["task_id"]},
            )


async def close_session(scene, _nursery):
    await scene.client.ask("session.close", {"session_id": scene.session.session_id})


async def disconnect(scene, _nursery):
    await scene.client.close()


async def crash_session(scene, _nursery):
    answer = await scene.client.ask("task.submit", scene.session.submission([("badbus", {})]))
    assert answer["error"]["code"] in (InternalError.code, -32000)


async def crash_bus(scene, _nursery):
    other = await scene.world.connect(BOB).open()
    await other.run(CRASH)


async def break_pump(scene, _nursery):
    scene.world.drivers["a"].break_pump()
    await trio.lowlevel.checkpoint()


async def end_runtime(scene, _nursery):
    await scene.world.runtime.end_sessions()


ACTS = {
    "a cancel of each": (cancel_tasks, True),
    "the end of the session": (close_session, True),
    "a disconnect": (disconnect, True),
    "a crash of the session": (crash_session, True),
    "a transaction that crashes a bus": (crash_bus, False),
    "a driver whose pump crashes": (break_pump, False),
    "the end of the runtime": (end_runtime, False),
}


def disturbed(style, name, durability):
    act, spares_others = ACTS[name]
    return lambda arm: Disturbed(style, act, durability, spares_others=spares_others).run(arm)


@pytest.mark.usefixtures("unmeasured_here")
@pytest.mark.slow
@STYLES
@pytest.mark.parametrize("act", ACTS)
def test_a_session_with_tasks_that_meets_this_here_and_there_leaves_no_trace_of_harm(style, act):
    at_every_step(disturbed(style, act, "os"), Disturbed.check, stride=11)


@STYLES
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(("durability", "stride"), [("os", 2), ("relaxed", 5)])
@pytest.mark.proof
@pytest.mark.usefixtures("unmeasured_here")
def test_a_session_with_tasks_that_meets_this_anywhere_leaves_no_trace_of_harm(style, act, durability, stride):
    at_every_step(disturbed(style, act, durability), Disturbed.check, stride=stride)
