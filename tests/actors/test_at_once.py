"""Requests that a session handles in the turn that brings them, and tasks that end within it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import orjson
import pytest
import trio
import trio.testing
from attrs import evolve
from support.faulty_disk import FaultyDisk
from support.waiting import passes

from hearth.actors.build import build_parts
from hearth.actors.embedded import EMBEDDED_POLICY, LocalFollower, LocalRequest, open_all, serve_parts
from hearth.actors.events import EventLog
from hearth.actors.journal import Journal
from hearth.actors.send_queue import SendQueue
from hearth.actors.session import Session
from hearth.actors.task import TaskActor
from hearth.actors.transport import SocketCarrier
from hearth.config.model import AuditConfig, Config
from hearth.errors import AuditUnavailable, DeviceError, InternalError
from hearth.protocol.methods import METHODS
from hearth.tools import OneTransaction, Tool, ToolRegistry, Transaction

pytestmark = pytest.mark.usefixtures("_bounded")


@pytest.fixture
async def _bounded():
    with trio.fail_after(60):
        yield


class Bench:
    """A session of an embedded runtime over the simulated board, with a real audit log."""

    def __init__(self, runtime, session, tmp_path, disk):
        self.runtime, self.client, self.disk = runtime, session, disk
        self.gpio = runtime.board.drivers["gpio:sim"]
        self.journal = runtime._runtime.parts.journal
        self._log = tmp_path / "audit.log"

    @property
    def session(self):
        return self.runtime._runtime._sessions[self.client.session_id]

    def ask(self, tool, *, events=None, constraints=None, **args):
        """Ask the session for a task of one step, in this turn; return the request."""
        task = {"intent": "x", "steps": [{"tool": tool, "args": args}], "constraints": constraints}
        params = {"session_id": self.client.session_id, "task": task, "subscribe": events is not None}
        request = LocalRequest(METHODS["task.submit"](params), events)
        self.session.ask(request)
        return request

    def records(self, *names):
        """The records of the log so far, without what differs from run to run."""
        found = [json.loads(line) for line in self._log.read_bytes().splitlines()]
        return [record for record in found if record["event"].startswith("task.")]

    async def ended(self, task_id):
        """Wait for the end of a task; return it as task.get shows it."""
        ended = self.session._task_registry._history
        await passes(lambda: task_id in ended)
        return json.loads(ended[task_id].snapshot)


@asynccontextmanager
async def bench(tmp_path, *, tools=(), durability="os"):
    """A bench, with these tools more."""
    audit = AuditConfig(path=tmp_path / "audit.log", key=tmp_path / "key", durability=durability, reserve_bytes=0)
    parts = build_parts(Config(audit=audit), default_policy=EMBEDDED_POLICY)
    disk = FaultyDisk()
    journal = Journal(parts.journal.settings, disk=disk)
    parts = evolve(
        parts,
        journal=journal,
        audit_head=lambda: journal.head,
        registry=ToolRegistry([*parts.registry.values(), *tools]),
    )
    async with serve_parts(open_all(parts)) as runtime, runtime.open_session() as session:
        await trio.testing.wait_all_tasks_blocked()
        yield Bench(runtime, session, tmp_path, disk)


def tool(name, make, risk=1):
    """A tool whose step is one transaction on the simulated chip."""
    return Tool(
        name=f"test.{name}",
        risk_level=risk,
        timeout_ms=1000,
        description=name,
        params_schema={"type": "object"},
        result_schema={"type": "object"},
        capability="CAP_TEST",
        bus=lambda _args: "gpio:sim",
        run=OneTransaction(make),
    )


async def test_a_task_of_one_transaction_on_a_free_bus_ends_within_the_turn_that_submits_it(tmp_path):
    async with bench(tmp_path) as here:
        follower = LocalFollower()
        tasks = trio.lowlevel.current_statistics().tasks_living
        answer = here.ask("gpio.set", line=17, value=1, events=follower).slot
        assert answer.filled
        assert here.gpio.state(17) == 1
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        task_id = (await answer.get())["task_id"]
        assert here.session._task_registry._history[task_id].status == "SUCCESS"
        assert [record["event"] for record in here.records()] == [
            "task.submit",
            "task.step.start",
            "task.step.finish",
            "task.finish",
        ]
        lines, _ = follower.log.lines(1, 10)
        assert [json.loads(line)["params"]["phase"] for line in lines] == ["start", "finish", "task_finish"]


async def test_it_leaves_the_same_records_and_events_as_one_that_runs_in_a_task_of_its_own(tmp_path, monkeypatch):
    changing = {"seq", "ts", "prev", "task_id", "latency_ms", "duration_ms", "session_id"}

    def same(document):
        return {name: value for name, value in document.items() if name not in changing}

    seen = []
    for at_once in (True, False):
        place = tmp_path / str(at_once)
        place.mkdir()
        if not at_once:
            monkeypatch.setattr(TaskActor, "_ready", lambda _task, _step: None)
        async with bench(place) as here:
            found = []
            for name, args in (("gpio.set", {"line": 17, "value": 1}), ("gpio.get", {"line": 27})):
                follower = LocalFollower()
                answer = here.ask(name, events=follower, **args).slot
                assert answer.filled is at_once
                whole = await here.ended((await answer.get())["task_id"])
                whole["steps"][0].pop("latency_ms")
                lines, _ = follower.log.lines(1, 10)
                found.append((same(whole), [same(json.loads(line)["params"]) for line in lines]))
            seen.append((found, [same(record) for record in here.records()]))
    for told, _ in seen:
        for _, events in told:
            assert events[1].pop("result") is not None
    assert seen[0] == seen[1]


@pytest.mark.parametrize("durability", ["os", "fsync", "relaxed"])
async def test_a_session_answers_in_its_order_whatever_the_durability(tmp_path, durability):
    async with bench(tmp_path, durability=durability) as here:
        requests = [here.ask("gpio.set", line=17, value=value) for value in (1, 0, 1)]
        assert all(request.slot.filled is (durability != "fsync") for request in requests)
        for request in requests:
            assert (await here.ended((await request.slot.get())["task_id"]))["status"] == "SUCCESS"
        # Tasks that have waited for the disk have no order among them.
        assert here.gpio.state(17) in ({0, 1} if durability == "fsync" else {1})


async def test_a_step_does_not_run_at_once_if_its_start_cannot_be_written(tmp_path):
    async with bench(tmp_path) as here:
        here.disk.write_error = OSError(5, "I/O error")
        answer = here.ask("gpio.set", line=17, value=1).slot
        with pytest.raises(AuditUnavailable):
            await answer.get()
        assert here.gpio.state(17) == "input"
        here.disk.write_error = None
        # Nor later, when the log has been written: the task has ended by then.
        await passes(lambda: [record for record in here.records() if record["event"] == "task.finish"])
        assert here.gpio.state(17) == "input"


async def test_a_task_whose_end_cannot_be_written_at_once_ends_when_the_log_has_answered(tmp_path):
    def breaks(_args):
        def op(driver):
            here.disk.write_error = OSError(5, "I/O error")
            return driver.set(17, 1)

        return Transaction(op, lambda _former: {}, 17)

    async with bench(tmp_path, tools=[tool("breaks", breaks)]) as here:
        answer = here.ask("test.breaks").slot
        assert answer.filled
        whole = await here.ended((await answer.get())["task_id"])
        assert (whole["status"], here.gpio.state(17)) == ("SUCCESS", 1)
        assert [record["event"] for record in here.records()] == ["task.submit", "task.step.start"]
        here.disk.write_error = None


async def test_a_task_that_fails_at_once_rolls_back_in_a_task_of_its_own(tmp_path):
    def fails(_args):
        def op(_driver):
            raise DeviceError("the device said no", effect="none")

        return Transaction(op, lambda value: value)

    async with bench(tmp_path, tools=[tool("fails", fails)]) as here:
        answer = here.ask("test.fails", constraints={"rollback_on_failure": True}).slot
        whole = await here.ended((await answer.get())["task_id"])
        assert (whole["status"], whole["steps"][0]["error_code"]) == ("FAILED", DeviceError.code)
        answer = here.ask("test.fails").slot
        whole = await here.ended((await answer.get())["task_id"])
        assert whole["status"] == "FAILED"
        assert [record["event"] for record in here.records()].count("task.finish") == 2


PLACES = {
    "the making of the transaction": lambda _args: {}["a bug"],
    "the driver": lambda _args: Transaction(lambda _driver: {}["a bug"], lambda value: value),
    "the result": lambda _args: Transaction(lambda _driver: 1, lambda _value: {}["a bug"]),
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_bug_of_a_tool_that_runs_at_once_fails_its_task_alone(tmp_path, place, caplog):
    async with bench(tmp_path, tools=[tool("bug", PLACES[place])]) as here:
        answer = here.ask("test.bug").slot
        whole = await here.ended((await answer.get())["task_id"])
        code = whole.get("error_code") or whole["steps"][0]["error_code"]
        assert (whole["status"], code) == ("FAILED", InternalError.code)
        assert [record["event"] for record in here.records()][-1] == "task.finish"
        await here.client.run("hw.board")
    assert place == "the driver" or "crashed" in caplog.text


async def test_a_bug_in_a_session_ends_it_and_not_the_task_that_asks(tmp_path, monkeypatch, caplog):
    async with bench(tmp_path) as here, here.runtime.open_session() as other:
        await trio.testing.wait_all_tasks_blocked()
        here.client = other
        monkeypatch.setattr(Session, "_execute", lambda *_: {}["a bug"])
        request = here.ask("gpio.get", line=17)
        with pytest.raises(InternalError):
            await request.slot.get()
        monkeypatch.undo()
        await trio.testing.wait_all_tasks_blocked()
        other.closed = True
    assert "crashed" in caplog.text


async def test_what_a_request_asks_of_its_own_session_comes_after_it(tmp_path, monkeypatch):
    async with bench(tmp_path) as here:
        order = []
        execute = Session._execute

        def nested(session, request, verdicts):
            if not order:
                order.append("first begins")
                second = here.ask("gpio.get", line=17)
                order.append("second answered" if second.slot.filled else "second waits")
            execute(session, request, verdicts)

        monkeypatch.setattr(Session, "_execute", nested)
        assert here.ask("gpio.get", line=17).slot.filled
        assert order == ["first begins", "second waits"]
        await trio.testing.wait_all_tasks_blocked()
        assert len(here.session._task_registry._history) == 2


async def test_the_reader_sends_what_the_kernel_takes_and_the_writer_the_rest():
    queue, got = SendQueue(), []

    async def write():
        while documents := await queue.batch():
            got.extend(documents)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        assert queue.writable
        queue.corked = True
        log = EventLog("t")
        queue.push(b"answer\n")
        queue.follow(log, 1)
        log.publish("task_finish", "", {})
        await trio.testing.wait_all_tasks_blocked()
        assert (queue.corked, got) == (True, [])
        queue.corked = False
        data = b"".join(queue.take())
        assert not queue.sent(data, 3)
        queue.push(b"next\n")
        await trio.testing.wait_all_tasks_blocked()
        assert b"".join(got) == data[3:] + b"next\n"
        queue.finish()
    assert queue._charged == 0


async def test_a_lost_connection_takes_nothing_at_once_and_is_reported_by_the_next_send():
    import socket

    from hearth.actors.transport import PeerGone

    ours, theirs = socket.socketpair()
    carrier = SocketCarrier(ours)
    assert carrier.send_nowait(b"x") == 1
    theirs.close()
    assert carrier.send_nowait(orjson.dumps({})) == 0
    with pytest.raises(PeerGone):
        await carrier.send([b"x"])
    await carrier.aclose()
