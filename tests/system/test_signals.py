"""What an operator does to a daemon: signals at bad moments, kill and restart, a terminal or a log reader that goes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from support.hearthd import Hearthd, Peer, listens, submission

from hearth._util.foreign import usable
from hearth.actors.daemon.process import Signals
from hearth.audit.verify import verify
from hearth.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

WATCH = ("gpio.watch", {"line": 4, "timeout_ms": 60_000})


def assert_complete(running: Hearthd) -> None:
    """The log verifies, every task in it has ended, and every step that began has."""
    report = verify([running.audit])
    assert report.ok, report.first_bad
    records = running.records()

    def ids(event: str) -> list[tuple]:
        return sorted((r["task_id"], r.get("step_index")) for r in records if r["event"] == event)

    assert ids("task.submit") == ids("task.finish")
    assert ids("task.step.start") == ids("task.step.finish")
    assert "daemon.stop" in [record["event"] for record in records]


def busy(running: Hearthd, clients: int) -> list[Peer]:
    """Clients that each have tasks of every kind under way and do not read."""
    peers = []
    for n in range(clients):
        peer = running.peer()
        session = peer.open(on_disconnect=("keep", "close")[n % 2])
        for steps in (
            [("gpio.set", {"line": 8 + n % 8, "value": 1}), WATCH],
            [("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 2})] * 50,
            [("gpio.pulse", {"line": 5, "value": 1, "duration_ms": 30_000})],
            [("sys.load", {})] * 20,
        ):
            peer.start("task.submit", {**submission(session, *steps), "subscribe": True})
        peers.append(peer)
    return peers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_50_clients_are_busy_ends_it_within_its_bound_with_everything_told(hearthd, number: int) -> None:
    running = hearthd("[limits]\nmax_sessions_per_principal = 100\nshutdown_grace_s = 8\n").start()
    peers = busy(running, 50)
    while (said := peers[-1].line()) is not None and said.get("params", {}).get("phase") != "start":
        pass
    running.signal(number)
    assert running.wait() == 0
    assert_complete(running)
    # Each was told how each of its tasks ended, before its connection was closed.
    for peer in peers:
        said = peer.rest()
        accepted = {answer["result"]["task_id"] for answer in said if "task_id" in answer.get("result", {})}
        ended = {e["params"]["task_id"] for e in said if e.get("params", {}).get("phase") == "task_finish"}
        assert accepted <= ended
    assert "crashed" not in running.said


def test_a_second_sigterm_stops_waiting_and_still_leaves_a_log_that_verifies(hearthd) -> None:
    running = hearthd("[limits]\nshutdown_grace_s = 60\nclose_grace_s = 60\n").start()
    peer = running.peer()
    session = peer.open()
    peer.run(session, "gpio.set", line=17, value=1)
    task = peer.submit(session, ("uart.exchange", {"port": "uart0", "data": "aGk=", "len": 99, "timeout_ms": 60_000}))
    here = {"session_id": session, "task_id": task}
    running.until(lambda: peer.call("task.get", here)["result"]["status"] == "RUNNING")
    running.signal(signal.SIGTERM)
    running.until(lambda: "shutting down" in running.said)
    running.signal(signal.SIGTERM)
    running.until(lambda: "again" in running.said)
    for _ in range(5):
        # A nervous operator.
        with contextlib.suppress(ProcessLookupError):
            running.signal(signal.SIGTERM)
    # The wait is bounded, and shorter than the exchange.
    assert running.wait() == 0
    report = verify([running.audit])
    assert report.ok, report.first_bad
    closed = [record for record in running.records() if record["event"] == "session.close"]
    assert closed[0]["safe"], "the outputs went to their safe state"
    assert "crashed" not in running.said


@pytest.mark.proof
def test_a_signal_during_the_start_ends_it_or_is_obeyed_when_it_is_up(hearthd, tmp_path) -> None:
    for n in range(8):
        directory = tmp_path / str(n)
        directory.mkdir()
        running = Hearthd(directory)
        process = subprocess.Popen(
            [sys.executable, "-m", "hearth.actors.daemon", "--config", str(running.config)],
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.08 * n)
        process.terminate()
        _, said = process.communicate(timeout=30)
        assert process.returncode in (0, -signal.SIGTERM)
        assert "Traceback" not in said
        assert not running.audit.exists() or verify([running.audit]).ok


def test_a_signal_that_meets_code_of_a_package_during_the_start_is_not_taken_for_its_exception(monkeypatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    handle = Signals()._handle
    with pytest.raises(SystemExit) as ended:
        usable(lambda: handle(signal.SIGTERM, None), "[lamp]")
    assert ended.value.code == 0
    with pytest.raises(ConfigError, match=r"\[lamp\] cannot be used: SystemExit"):
        usable(lambda: sys.exit(1), "[lamp]")


@pytest.mark.proof
def test_a_client_that_does_not_read_does_not_keep_the_daemon_from_ending(hearthd, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(os.urandom(256 * 1024))
    running = hearthd(f'[files]\nread = ["{tmp_path}/data"]\n[limits]\nsend_timeout_s = 60\n').start()
    deaf = running.peer()
    session = deaf.open()
    deaf.call("task.events.subscribe", {"session_id": session})
    for _ in range(8):
        deaf.start("task.submit", submission(session, *[("file.read", {"path": str(tmp_path / "data" / "x")})] * 8))
    running.until(lambda: sum(r["event"] == "task.finish" for r in running.records()) == 8)
    assert running.stop() == 0
    assert_complete(running)


def test_sighup_that_was_ignored_at_the_start_stays_ignored(hearthd) -> None:
    running = hearthd().start(prefix=["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"])
    peer = running.peer()
    running.signal(signal.SIGHUP)
    session = peer.open()
    running.signal(signal.SIGHUP)
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    assert running.stop() == 0


def test_a_terminal_that_closes_ends_the_daemon_in_it_with_safe_states(tmp_path) -> None:
    running = Hearthd(tmp_path)
    ours, theirs = os.openpty()
    # A session of its own takes the first terminal that it opens for its own.
    command = [sys.executable, "-m", "hearth.actors.daemon", "--config", str(running.config)]
    process = subprocess.Popen(
        ["sh", "-c", f'exec 0<>{os.ttyname(theirs)} 1>&0 2>&0; exec "$@"', "sh", *command], start_new_session=True
    )
    said = b""
    while b"ready on" not in said:
        said += os.read(ours, 1000)
    os.close(theirs)
    peer = Peer(running.socket)
    session = peer.open()
    peer.run(session, "gpio.set", line=17, value=1)
    os.close(ours)
    assert process.wait(30) == 0
    peer.close()
    [closed] = [record for record in running.records() if record["event"] == "session.close"]
    assert closed["reason"] == "shutting down"
    assert closed["safe"]
    assert_complete(running)


@pytest.mark.proof
def test_kill_9_and_restart_names_the_tasks_that_were_in_flight(hearthd) -> None:
    running = hearthd().start()
    peer = running.peer()
    session = peer.open()
    finished = peer.submit(session, ("gpio.get", {"line": 4}))
    peer.wait(session, finished)
    waiting = [peer.submit(session, ("gpio.set", {"line": 18, "value": 1}), WATCH) for _ in range(3)]
    for task in waiting:
        here = {"session_id": session, "task_id": task}
        running.until(lambda here=here: len(peer.call("task.get", here)["result"]["steps"]) == 2)
    running.kill()
    running.start()
    other = running.peer()
    # Sessions do not outlive the process, and their ids are worth nothing.
    assert other.refusal("tool.list", {"session_id": session})["code"] == -32000
    assert running.stop() == 0
    [recovered] = [record for record in running.records() if record["event"] == "daemon.recover"]
    assert {task["task_id"] for task in recovered["in_flight"]} == set(waiting)
    assert all(task in str(recovered) for task in waiting)
    assert finished not in str(recovered)
    assert verify([running.audit]).ok
    # Told once: the next start finds nothing to tell.
    running.start()
    assert running.stop() == 0
    assert sum(record["event"] == "daemon.recover" for record in running.records()) == 1


@pytest.mark.parametrize("how", ["closed", "a reader that has gone"])
def test_it_serves_though_its_readiness_cannot_be_reported(tmp_path, how: str) -> None:
    running = Hearthd(tmp_path)
    command = [sys.executable, "-m", "hearth.actors.daemon", "--config", str(running.config)]
    if how == "closed":
        process = subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", *command])
    else:
        reading, writing = os.pipe()
        os.close(reading)
        process = subprocess.Popen(command, stderr=writing)
        os.close(writing)
    running.process = process
    try:
        running.until(lambda: listens(running.socket))
        peer = Peer(running.socket)
        session = peer.open()
        assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
        peer.close()
        process.terminate()
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert_complete(running)


@pytest.mark.proof
def test_a_reader_of_its_messages_that_does_not_read_cannot_stop_it(tmp_path) -> None:
    running = Hearthd(tmp_path)
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "hearth.actors.daemon", "--config", str(running.config)], stderr=writing
    )
    running.process = process
    try:
        said = b""
        while b"ready on" not in said:
            said += os.read(reading, 1000)
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 512)
        # The file description is shared: it must block again, as what others hand over does.
        os.set_blocking(writing, True)
        peer = Peer(running.socket)
        session = peer.open(on_disconnect="close")
        peer.run(session, "gpio.set", line=17, value=1)
        process.terminate()
        assert process.wait(60) == 0
        peer.close()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(reading)
        os.close(writing)
    assert_complete(running)
