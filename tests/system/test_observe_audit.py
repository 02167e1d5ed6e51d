"""An observer of a real hearthd: over the wire, through a kill -9, and what the log and `hearth audit` show of it."""

from __future__ import annotations

import json

import pytest
from support.hearthd import Hearthd

from hearth.audit.record import args_hash
from hearth.audit.verify import page, verify

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]


@pytest.fixture
def daemon(tmp_path):
    running = Hearthd(tmp_path)
    yield running.start()
    running.end()
    assert "Traceback" not in running.said


def events(peer):
    """The params of observe.event, as they come."""
    while True:
        line = peer.line()
        assert line is not None, "the server closed"
        if line.get("method") == "observe.event":
            yield line["params"]


def observe(daemon, **asked):
    """A peer that observes, its answer, and its events."""
    peer = daemon.peer()
    answer = peer.call("observe.subscribe", {"session_id": peer.open(), **asked})
    return peer, answer["result"], events(peer)


def test_an_observer_follows_a_daemon_through_a_kill_and_is_told_that_it_is_another_run(daemon) -> None:
    _, answer, told = observe(daemon)
    first = next(told)
    assert (first["kind"], first["missed"], first["stream"]) == ("snapshot", None, answer["stream"])
    assert answer["you"]["rights"] == ["admin", "approve", "observe", "reset_halt"]
    worker = daemon.peer()
    session = worker.open()
    worker.run(session, "gpio.set", line="LED", value=1)
    known = first["seq"]
    lit = None
    while lit is None or lit["value"] != 1:
        event = next(told)
        assert event["seq"] == known + 1
        known = event["seq"]
        lit = next((line for line in event.get("lines", ()) if line["line"] == 17), None)
    assert lit["owner"]["session_id"] == session
    daemon.hang_up()
    daemon.kill()
    daemon.start()
    _, answer, told = observe(daemon, stream=first["stream"], from_seq=known + 1)
    again = next(told)
    assert (again["kind"], again["missed"]) == ("snapshot", None)
    assert again["stream"] == answer["stream"] != first["stream"]
    (led,) = [line for line in again["state"]["lines"] if "LED" in line["aliases"]]
    assert (led["line"], led["owner"]) == (17, None)


def test_records_of_earlier_runs_are_read_by_range_and_the_log_with_clear_arguments_verifies(daemon) -> None:
    for _ in range(2):
        peer = daemon.peer()
        session = peer.open()
        peer.run(session, "gpio.set", line="LED", value=1)
        peer.run(session, "i2c.write", bus=1, addr=72, hex="01 60 a0")
        daemon.hang_up()
        daemon.stop()
        daemon.start()
    peer = daemon.peer()
    session = peer.open()
    read, at = [], 1
    while at is not None:
        answer = peer.call("observe.audit", {"session_id": session, "from_seq": at, "limit": 9})["result"]
        read += answer["records"]
        at = answer["next_seq"]
    on_disk = daemon.records()
    assert read == on_disk[: len(read)]
    assert len(read) > 20
    submitted = [record["steps"][0] for record in read if record["event"] == "task.submit"]
    assert [step.get("args") for step in submitted] == [{"line": "LED", "value": 1}, {"bus": 1, "addr": 72}] * 2
    assert submitted[1]["args_hash"] == args_hash({"bus": 1, "addr": 72, "hex": "01 60 a0"})
    assert "60 a0" not in json.dumps(read)
    assert verify(daemon.audit).ok


@pytest.mark.parametrize("rotate", [1024, 4096, 1 << 20])
def test_every_range_of_a_rotated_log_is_what_a_reader_of_all_of_it_sees(tmp_path, rotate: int) -> None:
    running = Hearthd(tmp_path, audit=f"rotate_bytes = {rotate}\ncheckpoint_every = 7")
    running.start()
    try:
        peer = running.peer()
        session = peer.open()
        for number in range(20):
            peer.run(session, "gpio.set", line="LED", value=number % 2)
    finally:
        running.end()
    everything = running.records()
    last = everything[-1]["seq"]
    for first in (1, 2, 17, last - 1, last, last + 1):
        for count in (1, 13, 500):
            found = page(running.audit, first, count)
            assert found["records"] == everything[first - 1 :][:count]
            until = first + len(found["records"])
            assert found["next_seq"] == (until if until <= last else None)
    assert page(running.audit, None, 5)["records"] == everything[-5:]
