"""The first sentence of the bus contract from the socket to the wire: what has begun there is never interrupted.

A write stands in the emulated adapter while hearthd is disturbed in each of the ways that design §3 names; whatever
they do to the task, all of its bytes cross the wire, and the log says so.
"""

from __future__ import annotations

import signal
import time
from base64 import b64encode

import pytest
from support.cell import MEMORY, Cell
from support.saboteur import bug, install

pytestmark = pytest.mark.slow

DATA = bytes(range(250)) * 12
"""A long write: it may take 3 s before it counts as wedged."""
DEADLINE_MS = 300


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cell")
    install(directory)
    with Cell(directory, adapter=True) as made:
        made.running = made.daemon('[tools]\nenable = ["com.example"]\n', env={"PYTHONPATH": str(directory)})
        yield made


@pytest.fixture
def cell(shared):
    """The cell, with a daemon that runs."""
    if shared.running.process is None or shared.running.process.poll() is not None:
        shared.running.start()
    yield shared
    shared.wire.clear()
    shared.running.hang_up()


HOWS = {
    "a cancel": lambda scene: scene.cancel(),
    "its task's deadline": lambda scene: scene.pass_the_deadline(),
    "the end of its session": lambda scene: scene.end_session(),
    "a client that disconnects": lambda scene: scene.disconnect(),
    "a session that crashes elsewhere": lambda scene: scene.crash(scene.witness, scene.witness.open()),
    "the crash of its own session": lambda scene: scene.crash(scene.peer, scene.session),
    "SIGTERM": lambda scene: scene.terminate(),
}


class Scene:
    """A task that stands in the middle of an I2C write on the wire, and a witness who sees what arrives at hearthd."""

    def __init__(self, cell, limit) -> None:
        self.daemon = cell.running
        self.peer, self.witness = self.daemon.peer(), self.daemon.peer()
        self.session = self.peer.open(on_disconnect="close")
        cell.wire.wedge(after=70)
        step = ("i2c.write", {"bus": 1, "addr": MEMORY, "data": b64encode(DATA).decode()})
        self.began = time.monotonic()
        self.task = self.peer.submit(self.session, step, **limit)
        cell.wire.wait_held()

    def cancel(self):
        answer = self.peer.call("task.cancel", {"session_id": self.session, "task_id": self.task})
        assert answer["result"]["status"] == "CANCELLING"

    def pass_the_deadline(self):
        """Until the daemon has served somebody after it."""
        self.daemon.until(lambda: time.monotonic() > self.began + 2 * DEADLINE_MS / 1000)
        self.witness.health()

    def end_session(self):
        self.peer.start("session.close", {"session_id": self.session})
        self.until_it_is_gone()

    def disconnect(self):
        self.peer.close()
        self.until_it_is_gone()

    def until_it_is_gone(self):
        """There is no session but the one that asks."""
        self.daemon.until(lambda: self.witness.health()["sessions"] == 1)

    def crash(self, peer, session):
        assert peer.refusal("task.submit", bug(session))["code"] == -32603

    def terminate(self):
        self.daemon.signal(signal.SIGTERM)
        self.daemon.until(lambda: "error" in self.witness.call("session.open"))

    def steps(self, event):
        return self.daemon.records(event=event, task_id=self.task)


@pytest.mark.parametrize("how", HOWS)
def test_a_write_that_is_on_the_wire_is_never_interrupted_by(how, cell) -> None:
    before = len(cell.wire.log)
    scene = Scene(cell, {"max_duration_ms": DEADLINE_MS} if how == "its task's deadline" else {})
    HOWS[how](scene)
    # It stands where it stood.
    [exchange] = cell.wire.log[before:]
    assert exchange.end is None
    assert scene.steps("task.step.finish") == []
    cell.wire.release()
    scene.daemon.until(lambda: scene.steps("task.finish"))
    assert exchange.whole
    assert exchange.written == DATA
    [step] = scene.steps("task.step.finish")
    assert step["status"] == "SUCCESS"
    [task] = scene.steps("task.finish")
    verdicts = {"a session that crashes elsewhere": "SUCCESS", "its task's deadline": "FAILED"}
    assert task["status"] == verdicts.get(how, "CANCELLED")
    if how == "SIGTERM":
        assert scene.daemon.wait() == 0
