"""hearthd itself in the guest: what a client asks for through the socket is what the kernel's devices see."""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
import serial
from gpiod.line import Direction, Edge
from support.cell import MEMORY, Cell
from support.hearthd import submission

pytestmark = pytest.mark.slow

LENGTH = 190
"""Bytes of the writes that are cancelled: three reports to the adapter and a part of a fourth."""


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    with Cell(tmp_path_factory.mktemp("cell"), adapter=True, uarts=True) as made:
        made.running = made.daemon("[limits]\ntask_history = 1\n").start()
        yield made
        assert made.running.stop() == 0
        assert "crashed" not in made.running.said, made.running.said


@pytest.fixture
def peer(cell):
    return cell.running.peer()


@pytest.fixture
def session(peer):
    opened = peer.open()
    yield opened
    peer.call("session.close", {"session_id": opened})


def b64(data):
    return b64encode(data).decode()


def follow(peer, session, *steps, **constraints):
    """Submit with a subscription; returns the task's id."""
    answer = peer.call("task.submit", {**submission(session, *steps, **constraints), "subscribe": True})
    return answer["result"]["task_id"]


def event(peer, task, phase):
    """The params of the next event of this phase; answers and other events are passed over."""
    while True:
        said = peer.line()
        assert said is not None, "the server closed"
        params = said.get("params", {})
        if params.get("task_id") == task and params["phase"] == phase:
            return params


def test_a_line_that_a_client_drives_has_that_level_in_the_kernel(cell, peer, session) -> None:
    for value in (1, 0, 1):
        assert peer.run(session, "gpio.set", line="lamp", value=value)["result"] == {"line": "lamp", "value": value}
        assert cell.level("lamp") == value
        info = cell.user_of("lamp")
        assert info.used
        assert info.direction is Direction.OUTPUT
        assert info.consumer.startswith("hearth")


def test_a_client_reads_the_level_that_the_world_gives_a_line(cell, peer, session) -> None:
    for value in (1, 0, 1):
        cell.sim.push("button", value)
        assert peer.run(session, "gpio.get", line="button")["result"]["value"] == value


def test_an_edge_that_the_world_makes_arrives_as_a_progress_event(cell, peer, session) -> None:
    cell.sim.push("button", 0)
    task = follow(peer, session, ("gpio.watch", {"line": "button", "count": 3, "timeout_ms": 20_000}))
    cell.running.until(lambda: cell.user_of("button").edge_detection is Edge.BOTH)
    for level, edge in ((1, "rising"), (0, "falling"), (1, "rising")):
        cell.sim.pull("button", level)
        data = event(peer, task, "progress")["data"]
        assert (data["line"], data["value"], data["edge"]) == ("button", level, edge)
    assert event(peer, task, "task_finish")["status"] == "SUCCESS"


def test_what_a_client_writes_on_i2c_is_in_the_device_and_is_read_back(cell, peer, session) -> None:
    data = random.Random(1).randbytes(100)
    written = peer.run(session, "i2c.write", bus=1, addr=MEMORY, reg=8, data=b64(data))
    assert written["result"] == {"written": 100}
    assert cell.memory.cells[8:108] == data
    read = peer.run(session, "i2c.read", bus=1, addr=MEMORY, reg=8, len=100)
    assert b64decode(read["result"]["data"]) == data
    assert cell.wire.strays == []


@pytest.fixture
def zone():
    """A thermal zone whose temperature is what it is told to be."""
    [there] = Path("/sys/class/thermal").glob("thermal_zone0")
    yield there
    (there / "emul_temp").write_text("0")


def test_what_the_kernel_and_a_chip_on_the_wire_measure_is_what_a_client_is_told(cell, peer, session, zone) -> None:
    kernels = f"thermal/{(zone / 'type').read_text().strip()}"
    listed = [entry["sensor"] for entry in peer.run(session, "hw.sensor.list")["result"]["sensors"]]
    assert {"motor", kernels} <= set(listed)
    for celsius in (71.5, 22.25):
        (zone / "emul_temp").write_text(str(round(celsius * 1000)))
        cell.thermometer.cells[0:2] = round(celsius * 256).to_bytes(2, "big")
        for name in ("motor", kernels):
            reading = peer.run(session, "hw.sensor.read", sensor=name)["result"]
            assert (reading["value"], reading["unit"]) == (celsius, "celsius")


def test_an_instrument_on_a_serial_port_is_asked_and_answers(peer, session) -> None:
    asked = {"port": "instrument", "data": b64(b"*idn?\nrest\n"), "until": "\n", "timeout_ms": 20_000}
    answer = peer.run(session, "uart.exchange", **asked)["result"]
    assert answer["timed_out"] is False
    assert b64decode(answer["data"]) == b"*IDN?\n"
    # What came beyond the answer waits for the next read.
    rest = peer.run(session, "uart.read", port="instrument", until="\n", timeout_ms=20_000)["result"]
    assert b64decode(rest["data"]) == b"REST\n"


def test_a_waiting_read_on_a_serial_port_does_not_keep_another_client_from_writing(cell, peer, session) -> None:
    other = cell.running.peer()
    others = other.open()
    with serial.Serial("/dev/ttyS2", 38_400, timeout=60) as far:
        far.reset_input_buffer()
        task = follow(peer, session, ("uart.read", {"port": "modem", "len": 4, "timeout_ms": 20_000}))
        event(peer, task, "start")
        assert other.run(others, "uart.write", port="modem", data=b64(b"ping"))["result"] == {"written": 4}
        assert far.read(4) == b"ping"
        far.write(b"pong")
        step = peer.wait(session, task)["steps"][0]
        assert b64decode(step["result"]["data"]) == b"pong"
    other.close()


class Cancelled:
    """Raw writes whose tasks are cancelled, each at another moment, and what the wire shows of them."""

    def __init__(self, cell) -> None:
        self.cell = cell
        self.peer = cell.running.peer()
        self.session = self.peer.open()
        self.rng = random.Random(200)
        self.effects: dict[str, str] = {}

    def submit(self):
        """Submit the next write, which nobody has seen before."""
        self.data = self.rng.randbytes(LENGTH)
        self.before = len(self.cell.wire.log)
        return follow(self.peer, self.session, ("i2c.write", {"bus": 1, "addr": MEMORY, "data": b64(self.data)}))

    def cancel(self, task) -> str:
        return self.peer.call("task.cancel", {"session_id": self.session, "task_id": task})["result"]["status"]

    def at_byte(self, number):
        """Cancelled while the wire stands before a byte: the address for 0, else that byte of the data."""
        self.cell.wire.wedge(after=number)
        task = self.submit()
        self.cell.wire.wait_held()
        assert self.cancel(task) == "CANCELLING"
        self.cell.wire.release()
        self.judge(task, begun=True, ends="CANCELLED")

    def in_the_queue(self):
        """Cancelled while it waits for the end of another's transaction."""
        other = self.cell.running.peer()
        others = other.open()
        self.cell.wire.wedge()
        # A long one may take longer before its bus counts as wedged.
        first = other.submit(others, ("i2c.read", {"bus": 1, "addr": MEMORY, "len": 3000}))
        self.cell.wire.wait_held()
        task = self.submit()
        event(self.peer, task, "start")
        assert self.cancel(task) == "CANCELLING"
        self.judge(task, begun=False)
        self.cell.wire.release()
        assert other.wait(others, first)["status"] == "SUCCESS"
        assert [exchange.written for exchange in self.cell.wire.log[self.before :]] == []
        other.close()

    def at_once(self):
        """Cancelled as soon as it is accepted: the two race."""
        task = self.submit()
        self.cancel(task)
        self.judge(task)

    def when_it_starts(self):
        """Cancelled as soon as its start is told: the two race."""
        task = self.submit()
        event(self.peer, task, "start")
        self.cancel(task)
        self.judge(task)

    def when_it_is_done(self):
        """Cancelled too late."""
        task = self.submit()
        event(self.peer, task, "task_finish")
        assert self.cancel(task) == "SUCCESS"
        self.judge(task, begun=True)

    def judge(self, task, *, begun=None, ends=None):
        """The wire has all of it or has never heard of it, and the task says which."""
        done = self.peer.wait(self.session, task)
        [step] = done["steps"]
        wire = self.cell.wire.log[self.before :]
        on_wire = [bytes(exchange.written) for exchange in wire]
        effect = self.effects[task] = effect_of(step, step.get("error_data"))
        if effect == "done":
            assert on_wire == [self.data]
            assert wire[0].whole
            assert step["status"] == "FAILED" or step["result"] == {"written": LENGTH}
        else:
            assert effect == "none"
            assert self.data not in on_wire
            assert done["status"] == "CANCELLED"
        assert begun in (None, effect == "done"), step
        assert ends in (None, done["status"]), done


def effect_of(outcome, data):
    """What a step, or its record, says became of the world: one that took too long has failed, and is done."""
    if outcome["status"] == "FAILED":
        return data["effect"]
    return {"SUCCESS": "done", "CANCELLED": "none"}[outcome["status"]]


def test_an_i2c_write_whose_task_is_cancelled_reaches_the_adapter_whole_or_not_at_all(cell) -> None:
    """At two hundred moments from its submission to its end: before, between and after its bytes on the wire."""
    writes = Cancelled(cell)
    for byte in range(LENGTH):
        writes.at_byte(byte)
    assert list(writes.effects.values()) == ["done"] * LENGTH
    writes.in_the_queue()
    for _ in range(4):
        writes.at_once()
        writes.when_it_starts()
    writes.when_it_is_done()
    assert len(writes.effects) == 200
    # The audit log tells the same story; a task that was cancelled before its step began has no step in it.
    finishes = {record["task_id"]: record for record in cell.running.records(event="task.step.finish")}
    recorded = {task: effect_of(finishes[task], finishes[task]) for task in writes.effects if task in finishes}
    assert recorded == {task: effect for task, effect in writes.effects.items() if task in finishes}
    assert all(writes.effects[task] == "none" for task in writes.effects if task not in finishes)
    assert cell.wire.strays == []
    assert {exchange.end for exchange in cell.wire.log} == {"stop"}
