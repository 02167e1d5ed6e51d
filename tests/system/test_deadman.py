"""A controller that dies leaves a robot that stops: deadman, disconnect and the safe states behind them (design §4)."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.hearthd import Peer, submission

from hearth.audit.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

LED, SEEN, LATCH = 17, 27, 31
"""LED is wired to SEEN, so that its level can be read without asking who drives it; LATCH holds its level."""


@pytest.fixture
def witness(shared):
    """`witness(line)`: the level of a line, read in a session of its own."""
    peer = shared.peer()
    session = peer.open()
    yield lambda line: peer.run(session, "gpio.get", line=line)["result"]["value"]
    peer.call("session.close", {"session_id": session})


def closes(running, session: str) -> list[dict]:
    return [r for r in running.records() if r["event"] == "session.close" and r["session_id"] == session]


def test_a_controller_that_misses_its_heartbeat_is_closed_and_its_outputs_go_safe(shared, witness) -> None:
    peer = shared.peer()
    session = peer.open(heartbeat_ms=300)
    peer.run(session, "gpio.set", line=LED, value=1)
    watch = peer.submit(session, ("gpio.watch", {"line": 4, "timeout_ms": 60_000}))
    # Heartbeats are requests that name the session, whatever they ask; for a while they come, also from elsewhere.
    for _ in range(50):
        assert peer.call("task.get", {"session_id": session, "task_id": watch})["result"]["status"] == "RUNNING"
    assert witness(SEEN) == 1
    shared.until(lambda: witness(SEEN) == 0)
    assert peer.refusal("tool.list", {"session_id": session})["code"] == -32000
    [close] = closes(shared, session)
    assert close["reason"] == "no heartbeat within 300 ms"
    [end] = [r for r in shared.records() if r["event"] == "task.finish" and r["task_id"] == watch]
    assert end["status"] == "CANCELLED"


def test_a_subscription_is_no_heartbeat(shared, witness) -> None:
    peer = shared.peer()
    session = peer.open(heartbeat_ms=200)
    peer.call("task.events.subscribe", {"session_id": session})
    peer.run(session, "gpio.set", line=LED, value=1)
    shared.until(lambda: witness(SEEN) == 0)


def test_a_session_bound_to_its_connection_ends_with_it(shared, witness) -> None:
    peer = Peer(shared.socket)
    session = peer.open(on_disconnect="close")
    peer.run(session, "gpio.set", line=LED, value=1)
    peer.run(session, "gpio.set", line=LATCH, value=1)
    assert witness(SEEN) == 1
    peer.close()
    shared.until(lambda: witness(SEEN) == 0)
    assert witness(LATCH) == 1, "hold = keep"
    shared.until(lambda: bool(closes(shared, session)))
    assert closes(shared, session)[0]["reason"] == "its client disconnected"


def test_other_connections_may_leave_a_session_that_is_bound_to_its_opener(shared, witness) -> None:
    opener, other = shared.peer(), Peer(shared.socket)
    session = opener.open(on_disconnect="close")
    other.run(session, "gpio.set", line=LED, value=1)
    other.close()
    opener.call("tool.list", {"session_id": session})
    assert witness(SEEN) == 1
    opener.call("session.close", {"session_id": session})
    assert witness(SEEN) == 0


_CONTROLLER = """
import hearth, sys, trio
from hearth import step
async def main():
    async with hearth.connect(sys.argv[1]) as client:
        async with client.open_session(client_name="arm", on_disconnect="close") as session:
            await session.run("gpio.set", line=17, value=1)
            await session.submit("hold", [step("gpio.watch", line=4, timeout_ms=60000)])
            print("driving", flush=True)
            await trio.sleep_forever()
trio.run(main)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_controller_process_that_is_killed_leaves_its_outputs_safe(shared, witness, how: signal.Signals) -> None:
    controller = subprocess.Popen(
        [sys.executable, "-c", _CONTROLLER, str(shared.socket)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert controller.stdout is not None
    with controller.stdout:
        assert controller.stdout.readline() == b"driving\n"
        assert witness(SEEN) == 1
        controller.send_signal(how)
        assert controller.wait(60) != 0
    shared.until(lambda: witness(SEEN) == 0)


PHASES = {
    "queued behind a lease": ("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 2}),
    "in a transaction of a thread": ("uart.exchange", {"port": "uart0", "data": "aGk=", "len": 9, "timeout_ms": 400}),
    "waiting beside the bus": ("gpio.watch", {"line": 4, "timeout_ms": 60_000}),
    "in a pulse": ("gpio.pulse", {"line": LED, "value": 1, "duration_ms": 60_000}),
    "in a loop of steps": ("gpio.get", {"line": 4}),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_vanishes_in_the_middle_of_a_task_leaves_nothing_running(shared, witness, phase: str) -> None:
    tool, args = PHASES[phase]
    holder = shared.peer()
    holding = holder.open()
    if phase.startswith("queued"):
        long = ("uart.read", {"port": "uart0", "timeout_ms": 60_000})
        task = holder.submit(holding, (tool, args), long, exclusive=True)
        here = {"session_id": holding, "task_id": task}
        shared.until(lambda: len(holder.call("task.get", here)["result"]["steps"]) == 2)
    peer = Peer(shared.socket)
    session = peer.open(on_disconnect="close")
    steps = [("gpio.set", {"line": LED, "value": 1})] + [(tool, args)] * (200 if "loop" in phase else 1)
    task = peer.submit(session, *steps, ("gpio.set", {"line": LED, "value": 1}))
    here = {"session_id": session, "task_id": task}
    shared.until(lambda: len(peer.call("task.get", here)["result"]["steps"]) >= 2)
    peer.close()
    shared.until(lambda: bool(closes(shared, session)))
    assert witness(SEEN) == 0
    # Its records are complete: what began has ended, and nothing began afterwards.
    events = [r["event"] for r in shared.records() if r.get("task_id") == task]
    assert events[0] == "task.submit"
    assert events[-1] == "task.finish"
    assert events.count("task.step.start") == events.count("task.step.finish")
    holder.call("session.close", {"session_id": holding})


def test_a_client_that_vanishes_right_after_its_request_leaves_nothing_running(shared, witness) -> None:
    """Whatever of session.open, task.submit and the task the daemon was at when the connection went."""
    for cut in range(0, 40, 2):
        peer = Peer(shared.socket)
        session = peer.open(on_disconnect="close")
        steps = [("gpio.set", {"line": LED, "value": 1}), ("gpio.watch", {"line": 4, "timeout_ms": 60_000})]
        peer.start("task.submit", {**submission(session, *steps), "subscribe": True})
        received = b""
        while len(received) < cut * 20:
            received += peer.socket.recv(20)
            if received.count(b'"start"') == 2 and received.endswith(b"\n"):
                break
        peer.close()
    shared.until(lambda: witness(SEEN) == 0)
    other = shared.peer()
    shared.until(lambda: other.health()["sessions"] <= 2)
    starts = {r["task_id"] for r in shared.records() if r["event"] == "task.submit"}
    ends = {r["task_id"] for r in shared.records() if r["event"] == "task.finish"}
    witness_task = 1
    assert len(starts - ends) <= witness_task


def test_an_idle_session_is_closed_and_a_running_task_alone_does_not_keep_it(hearthd) -> None:
    running = hearthd("[limits]\nidle_ttl_s = 0.4\n").start()
    peer = running.peer()
    working, listening, idle = peer.open(), peer.open(), peer.open()
    peer.call("task.events.subscribe", {"session_id": listening})
    peer.submit(working, ("gpio.set", {"line": LED, "value": 1}), ("gpio.watch", {"line": 4, "timeout_ms": 60_000}))
    running.until(lambda: bool(closes(running, working)) and bool(closes(running, idle)))
    assert closes(running, working)[0]["reason"] == "idle"
    # A live subscription keeps a session, and when it goes the session's time begins to run.
    assert not closes(running, listening)
    peer.close()
    running.until(lambda: bool(closes(running, listening)))


_STEPPED = """
import time
honest, begun = time.time, time.monotonic()

def stepped():
    # A year back and forth every 50 ms, as if somebody were setting the clock all the time.
    return honest() + (31_536_000 if int((time.monotonic() - begun) * 20) % 2 else 0)

time.time = stepped
from hearth.actors.daemon import main
main()
"""


@pytest.mark.proof
def test_a_clock_that_is_set_back_and_forth_closes_no_session_and_breaks_no_log(hearthd) -> None:
    running = hearthd("[limits]\nidle_ttl_s = 30\n").start(program=["-c", _STEPPED])
    peer = running.peer()
    session = peer.open(heartbeat_ms=20_000)
    for _ in range(8):
        pulse = peer.run(session, "gpio.pulse", line=18, value=1, duration_ms=50)
        assert pulse["result"]["restored"] is True
        assert 50 <= pulse["latency_ms"] < 10_000
    assert running.stop() == 0
    assert verify([running.audit]).ok
