"""A small world under a thousand schedules: everything at random, and an observer that must find nothing wrong.

A seed decides Trio's scheduling and the story: what a few agents submit, cancel, follow and drop, and which faults
befall buses and audit log. Replay one with

    python -m pytest tests/actors/test_seeded_schedules.py --seed 123
"""

from __future__ import annotations

import random

import pytest
import trio
from support.doubles import args_hash
from support.steps import seeded, within_real_seconds
from support.world import ALICE, BOB, World, running
from trio.testing import MockClock

from hearth.drivers.base import Style
from hearth.errors import RpcError

TERMINAL = {"SUCCESS", "FAILED", "CANCELLED"}
GONE = (EOFError, trio.BrokenResourceError, trio.ClosedResourceError)
REFUSALS = {
    -32000,  # the session is closed
    -32001,  # the task is forgotten
    -32003,  # the risk is too high
    -32004,  # the bus is busy
    -32005,  # too many tasks
    -32006,  # too fast
    -32007,  # shutting down
    -32009,  # the bus is down
    -32011,  # the log cannot be written
    -32602,  # an idempotency key that stands for another task
}


class Story:
    """One seed's world, its agents, and what they were told."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.world = World(
            buses={"a": Style.ASYNC, "b": Style.ASYNC, "pool": Style.ASYNC, "quick": Style.INLINE},
            widths={"pool": 2},
            durability=self.rng.choice(["os", "os", "relaxed"]),
            bus_queue=4,
            max_tasks_per_session=6,
            task_history=12,
            close_grace_s=0.5,
            shutdown_grace_s=5,
            idle_ttl_s=20,
            max_outstanding=8,
        )
        self.agents = []
        self.watchers = []
        self.args = {}
        """Each step's args by its tag; a tag is used once in a story."""
        self.accepted = {}
        """What was submitted, by the task_id it was accepted under."""
        self.shown = {}
        """What task.get said of ended tasks."""
        self.truth = {}
        """Ended tasks' whole event histories."""

    async def run(self):
        rng = self.rng
        self.agents = [Agent(self, number) for number in range(rng.randint(2, 4))]
        with trio.CancelScope() as program:
            if rng.random() < 0.25:
                # The embedding program is cancelled from outside in the middle of it all.
                program.deadline = trio.current_time() + rng.random() * 0.5
            async with running(self.world) as world:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._faults)
                    for agent in self.agents:
                        nursery.start_soon(agent.run)
                await trio.sleep(rng.choice([0, 0.05, 2]))
                if rng.random() < 0.3:
                    await world.runtime.end_sessions()
        self.cancelled = program.cancelled_caught
        self.living = trio.lowlevel.current_statistics().tasks_living

    async def _faults(self):
        rng, world = self.rng, self.world
        for _ in range(rng.randint(0, 4)):
            await trio.sleep(rng.random() * 0.2)
            fault = rng.choice(["pump", "full disk", "slow disk", "full disk"])
            if fault == "pump":
                driver = world.drivers[rng.choice(["a", "b"])]
                if driver.is_open:
                    driver.break_pump()
            elif fault == "full disk":
                world.journal.fail("disk full")
                await trio.sleep(rng.random() * 0.03)
                world.journal.heal()
            else:
                world.journal.hold()
                await trio.sleep(rng.random() * 0.03)
                world.journal.release()

    def submission(self, agent):
        """A random task, as the steps and constraints of a submit."""
        rng = self.rng
        agent.count += 1
        steps = [self._step(f"{agent.number}.{agent.count}.{index}") for index in range(rng.randint(1, 4))]
        return steps, self._constraints(steps)

    def _step(self, tag):
        rng = self.rng
        bus = rng.choice(["a", "a", "b", "b", "pool", "quick"])
        args = {"bus": bus, "tag": tag}
        tool = rng.choices(
            ["read", "set", "fail", "nap", "many", "progress", "bug", "crash", "slow", "children"],
            [8, 8, 2, 2, 2, 2, 0.5, 0.3, 0.4, 0.2],
        )[0]
        if tool in ("read", "set") and bus != "quick":
            args["ms"] = rng.randint(0, 12)
        if tool == "set":
            args["bus"] = bus = rng.choice(["a", "b", "quick"])
            args.update(line=rng.randint(0, 3), value=rng.randint(0, 1))
        if tool in ("many", "progress"):
            args["n"] = rng.randint(0, 90 if tool == "progress" else 4)
        if tool == "nap":
            args["ms"] = rng.randint(0, 60)
        if tool == "progress":
            del args["tag"]
        if tool == "slow":
            # Past its limit, and back before the runtime loses patience.
            tool = "read"
            args.update(bus=rng.choice(["a", "b"]), ms=rng.randint(40, 400), limit_ms=20)
        self.args[tag] = (tool, args)
        return tool, args

    def _constraints(self, steps):
        rng = self.rng
        constraints = {}
        if rng.random() < 0.3:
            constraints["priority"] = rng.choice(["low", "high", "urgent"])
        for name, chance in [("exclusive", 0.25), ("rollback_on_failure", 0.4), ("dry_run", 0.05)]:
            if rng.random() < chance:
                constraints[name] = True
        if rng.random() < 0.2:
            constraints["abort_on_step_failure"] = False
        if rng.random() < 0.2:
            constraints["on_busy"] = "fail"
        if rng.random() < 0.2 or any(tool == "children" for tool, _ in steps):
            constraints["max_duration_ms"] = rng.randint(1, 60)
        if rng.random() < 0.05:
            constraints["max_risk_level"] = 1
        return constraints

    # --- what must hold -----------------------------------------------------------------------------------------

    def check(self):
        world = self.world
        world.observer.assert_whole()
        assert not world.observer.of("closed"), "a transaction on a driver that is not open"
        begun = [label for label in world.observer.labels("begin") if not label.startswith("safe")]
        assert len(begun) == len(set(begun)), "something ran twice"
        self._check_audit()
        self._check_write_ahead()
        self._check_leases()
        self._check_tasks()
        self._check_events()
        self._check_end()

    def _check_audit(self):
        journal = self.world.journal
        records = [*journal.records, *journal.lost]

        def ids(event, name):
            return sorted(record[name] for record in records if record["event"] == event)

        assert ids("session.open", "session_id") == ids("session.close", "session_id")
        assert ids("task.submit", "task_id") == ids("task.finish", "task_id"), "each task ends, and once"
        assert set(self.accepted) <= set(ids("task.submit", "task_id"))
        started = sorted((r["task_id"], r["step_index"]) for r in records if r["event"] == "task.step.start")
        ended = sorted((r["task_id"], r["step_index"]) for r in records if r["event"] == "task.step.finish")
        assert started == ended, "each step that is on record as started is on record as ended"
        assert len(started) == len(set(started))

    def _check_write_ahead(self):
        written = set()
        lost = {record.get("args_hash") for record in self.world.journal.lost}
        for what in self.world.observer.seen:
            if what[0] == "record" and what[1] in ("task.step.start", "task.step.rollback"):
                written.add((what[1], what[2]["args_hash"]))
            elif what[0] == "begin" and not what[2].startswith("safe"):
                label = what[2].removeprefix("undo ")
                tool, args = self.args.get(label) or self.args[label.rpartition(".")[0]]
                event = "task.step.start" if label == what[2] else "task.step.rollback"
                hashed = args_hash(args)
                if (event, hashed) not in written:
                    # Reads go on while the log cannot be written, and so does taking back.
                    assert hashed in lost, f"{what[2]} began before its record was written"
                    assert tool in ("read", "many") or event == "task.step.rollback", f"{what[2]} began unrecorded"

    def _check_leases(self):
        labels = {}
        for steps, constraints in self.accepted.values():
            if constraints.get("exclusive"):
                tags = [args["tag"] for _, args in steps if "tag" in args]
                labels.update({tag: (tags[0], {args["bus"] for _, args in steps} - {"pool"}) for tag in tags})

        def owner(label):
            return labels.get(label) or labels.get(label.rpartition(".")[0])

        first, last = {}, {}
        for at, what in enumerate(self.world.observer.seen):
            if what[0] in ("begin", "end") and owner(what[2]):
                first.setdefault(owner(what[2])[0], at)
                last[owner(what[2])[0]] = at
        for at, what in enumerate(self.world.observer.seen):
            if what[0] != "begin" or what[2].startswith(("safe", "undo")):
                continue
            mine = owner(what[2])
            for task, buses in {(tag, frozenset(buses)) for tag, buses in labels.values()}:
                if what[1] in buses and task in first and first[task] < at < last[task]:
                    assert mine is not None, f"{what[2]} began on {what[1]} during the lease of {task}"
                    assert mine[0] == task, f"{what[2]} began on {what[1]} during the lease of {task}"

    def _check_tasks(self):
        journal = self.world.journal
        ends = {r["task_id"]: r for r in [*journal.records, *journal.lost] if r["event"] == "task.finish"}
        for task_id, shown in self.shown.items():
            assert shown["status"] in TERMINAL
            assert shown["status"] == ends[task_id]["status"]
            assert len(shown["steps"]) == len(self.accepted[task_id][0])
            assert {step["status"] for step in shown["steps"]} <= TERMINAL
            for step in shown["steps"]:
                assert (step["status"] == "FAILED") == ("error" in step)

    def _check_events(self):
        journal = self.world.journal
        records = [*journal.records, *journal.lost]
        for task_id, events in self.truth.items():
            numbers = [event["seq"] for event in events]
            assert numbers == sorted(set(numbers))
            assert [event["phase"] for event in events].count("task_finish") == 1
            assert events[-1]["phase"] == "task_finish"
            for phase in ("start", "finish"):
                told = [event["step_index"] for event in events if event["phase"] == phase]
                of_task = [r for r in records if r.get("task_id") == task_id]
                on_record = sorted(r["step_index"] for r in of_task if r["event"] == f"task.step.{phase}")
                assert told == on_record, f"{phase} events {told}, records {on_record}"
        for watcher in self.watchers:
            watcher.check(self.truth, cancelled=self.cancelled)

    def _check_end(self):
        runtime = self.world.runtime
        assert runtime.sessions == 0
        for bus in runtime.buses.values():
            assert bus.health()["queued"] == 0
            assert "leased" not in bus.health()
        for driver in self.world.drivers.values():
            assert not driver.is_open
            assert set(driver.levels.values()) <= {0, None}, f"{driver.name} was left at {driver.levels}"
        assert self.living <= 4, "tasks are left running"  # main, init and Trio's own
        for agent in [] if self.cancelled else self.agents:
            for client in agent.clients:
                if not client.ended_by_us:
                    for id_ in client.sent:
                        assert len(client.answers(id_)) == 1, f"request {id_} has {len(client.answers(id_))} answers"


ACTIONS = {
    "submit": 10,
    "repeat": 2,
    "batch": 2,
    "cancel": 4,
    "get": 2,
    "watch": 4,
    "watch_all": 1,
    "stop_watching": 1,
    "drop": 1,
    "close": 0.7,
    "crash": 0.15,
}
"""What agents do, and how often."""


class Watcher:
    """A connection that follows one task, or all of a session, from some event on."""

    def __init__(self, client, session_id, task_id, from_seq, wide_from=()):
        self.client = client
        self.session_id = session_id
        self.task_id = task_id
        self.from_seq = from_seq
        self.left = False

    def check(self, truth, *, cancelled):
        """Who stayed has seen every start, finish and task_finish, once and in order."""
        ids = [self.task_id] if self.task_id is not None else sorted({event["task_id"] for event in self.client.events})
        for task_id in ids:
            events = self.client.events_of(task_id)
            numbers = [event["seq"] for event in events]
            assert numbers == sorted(set(numbers)), f"{numbers} is out of order"
            if self.left or cancelled or task_id not in truth:
                continue
            must = [e for e in truth[task_id] if e["phase"] != "progress" and e["seq"] >= self.from_seq]
            seen = [e for e in events if e["phase"] != "progress"]
            assert seen == must, f"a watcher of {task_id} from {self.from_seq} missed something"


class Agent:
    """Somebody who opens sessions and does things at random."""

    def __init__(self, story, number):
        self.story = story
        self.rng = story.rng
        self.number = number
        self.count = 0
        self.clients = []
        self.client = None
        self.session = None
        self.mine = []
        self.keys = []

    async def run(self):
        await self._open()
        for _ in range(self.rng.randint(4, 12)):
            await trio.sleep(self.rng.random() * self.rng.choice([0, 0.004, 0.04]))
            action = self.rng.choices([*ACTIONS], [*ACTIONS.values()])[0]
            try:
                await getattr(self, f"do_{action}")()
            except RpcError as error:
                if error.code not in REFUSALS:
                    raise
                if error.code == -32000:
                    await self._open()
            except GONE:
                await self._open()
        await self._finish()

    def _connect(self):
        client = self.story.world.connect(self.rng.choice([ALICE, BOB]) if not self.clients else self.principal)
        client.ended_by_us = False
        client.sent = []
        return client

    async def _open(self):
        if not self.clients:
            self.principal = self.rng.choice([ALICE, BOB])
        self.client = self.story.world.connect(self.principal)
        self.client.ended_by_us = False
        self.client.sent = []
        self.clients.append(self.client)
        self.session = await self.client.open(on_disconnect=self.rng.choice(["keep", "close"]))
        self.mine, self.keys = [], []

    async def do_submit(self):
        steps, constraints = self.story.submission(self)
        more = {"subscribe": True} if self.rng.random() < 0.3 else {}
        if self.rng.random() < 0.3:
            more["key"] = f"k{self.count}"
        answer = await self.session.submit(*steps, **more, **constraints)
        self._accepted(answer["task_id"], steps, constraints)
        if "key" in more:
            self.keys.append((more["key"], steps, constraints, answer["task_id"]))

    def _accepted(self, task_id, steps, constraints):
        self.story.accepted[task_id] = (steps, constraints)
        self.mine.append(task_id)

    async def do_repeat(self):
        if self.keys:
            key, steps, constraints, task_id = self.rng.choice(self.keys)
            answer = await self.session.submit(*steps, key=key, **constraints)
            assert answer["task_id"] == task_id, "a repeat was taken for a new task"

    async def do_batch(self):
        client, requests, submitted = self.client, [], {}
        for _ in range(self.rng.randint(1, 3)):
            steps, constraints = self.story.submission(self)
            request = client.request("task.submit", self.session.submission(steps, subscribe=True, **constraints))
            requests.append(request)
            submitted[request["id"]] = (steps, constraints)
        if self.mine:
            params = {"session_id": self.session.session_id, "task_id": self.rng.choice(self.mine)}
            requests.append(client.request("task.get", params))
        client.sent += [request["id"] for request in requests]
        await client.send(requests)
        await client.until(lambda: all(client.answers(request["id"]) for request in requests))
        for id_, (steps, constraints) in submitted.items():
            answer = client.answers(id_)[0]
            if "result" in answer:
                self._accepted(answer["result"]["task_id"], steps, constraints)
        documents = [d for d in client.documents if isinstance(d, list)]
        assert any({one["id"] for one in d} == {r["id"] for r in requests} for d in documents), "one batch, one line"
        for id_ in submitted:
            self._check_answer_first(client, id_)

    def _check_answer_first(self, client, id_):
        answer = client.answers(id_)[0]
        if "result" in answer:
            at = next(
                index
                for index, document in enumerate(client.documents)
                if isinstance(document, list) and answer in document
            )
            early = [d for d in client.documents[:at] if isinstance(d, dict) and "method" in d]
            task_id = answer["result"]["task_id"]
            assert all(d["params"]["task_id"] != task_id for d in early), "an event before its answer"

    async def do_cancel(self):
        if self.mine:
            assert await self.session.cancel(self.rng.choice(self.mine)) in {"CANCELLING", *TERMINAL}

    async def do_get(self):
        if self.mine:
            shown = await self.session.get(self.rng.choice(self.mine))
            assert shown["status"] in {"QUEUED", "RUNNING", *TERMINAL}

    async def do_watch(self):
        if self.mine:
            task_id = self.rng.choice(self.mine)
            await self._watch(task_id, self.rng.choice([1, 1, 1, 2, 3, 5]))

    async def do_watch_all(self):
        await self._watch(None, 1)

    async def _watch(self, task_id, from_seq):
        client = self.story.world.connect(self.principal)
        client.ended_by_us, client.sent = False, []
        self.clients.append(client)
        watcher = Watcher(client, self.session.session_id, task_id, from_seq)
        params = {"session_id": self.session.session_id}
        if task_id is not None:
            params.update(task_id=task_id, from_seq=from_seq)
        answer = await client.ask("task.events.subscribe", params)
        if "result" in answer:
            self.story.watchers.append(watcher)

    async def do_stop_watching(self):
        watchers = [w for w in self.story.watchers if w.client in self.clients and not w.left]
        if watchers:
            watcher = self.rng.choice(watchers)
            watcher.left = True
            watcher.client.ended_by_us = True
            await watcher.client.close()

    async def do_drop(self):
        """Lose the connection, perhaps with a request on its way, and come back to the session if it is kept."""
        if self.rng.random() < 0.5:
            steps, constraints = self.story.submission(self)
            await self.client.send(self.client.request("task.submit", self.session.submission(steps, **constraints)))
        self.client.ended_by_us = True
        await self.client.close()
        self.client = self.story.world.connect(self.principal)
        self.client.ended_by_us, self.client.sent = False, []
        self.clients.append(self.client)
        self.session.client = self.client
        await self.session.call("tool.list")

    async def do_close(self):
        await self._collect()
        closed = await self.session.close()
        assert closed["ok"] is True
        await self._open()

    async def do_crash(self):
        answer = await self.client.ask("task.submit", self.session.submission([("badbus", {})]))
        assert answer["error"]["code"] in (-32603, -32000)
        await self._open()

    async def _finish(self):
        if self.rng.random() < 0.7:
            try:
                await self._settle()
                await self._collect()
            except GONE:
                return
        if self.rng.random() < 0.5:
            await self.client.ask("session.close", {"session_id": self.session.session_id})

    async def _settle(self):
        for task_id in self.mine:
            if self.rng.random() < 0.3:
                await self.client.ask("task.cancel", {"session_id": self.session.session_id, "task_id": task_id})

    async def _collect(self):
        """Learn the whole truth about the tasks that have ended or will end: their history, and how they are shown."""
        params = {"session_id": self.session.session_id}
        for task_id in dict.fromkeys(self.mine):
            client = self.story.world.connect(self.principal)
            client.ended_by_us, client.sent = False, []
            answer = await client.ask("task.events.subscribe", {**params, "task_id": task_id})
            if "error" in answer:
                assert answer["error"]["code"] in (-32000, -32001)
            else:
                self.story.truth[task_id] = await client.finished(task_id)
                shown = await client.ask("task.get", {**params, "task_id": task_id})
                if "result" in shown:
                    self.story.shown[task_id] = shown["result"]
            await client.close()


def play(seed):
    """Play one seed's story and check it."""
    story = Story(seed)

    async def main():
        with trio.fail_after(3600):
            await story.run()

    try:
        with within_real_seconds(60), seeded(seed):
            trio.run(main, clock=MockClock(autojump_threshold=0))
        story.check()
    except BaseException as error:
        error.add_note(f"replay: python -m pytest tests/actors/test_seeded_schedules.py --seed {seed}")
        raise


def pytest_seeds(config, default):
    chosen = config.getoption("--seed", None)
    return default if chosen is None else [chosen]


@pytest.mark.parametrize("block", range(5))
def test_under_fifty_schedules_nothing_goes_wrong(block, request):
    for seed in pytest_seeds(request.config, range(block * 10, block * 10 + 10)):
        play(seed)


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured_here")
@pytest.mark.parametrize("block", range(19))
def test_under_a_thousand_schedules_nothing_goes_wrong(block, request):
    for seed in pytest_seeds(request.config, range(50 + block * 50, 100 + block * 50)):
        play(seed)
