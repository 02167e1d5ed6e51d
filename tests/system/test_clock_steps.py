"""The wall clock steps back and forth under a daemon: what is dated by it says so, and nothing that is timed notices.

The steps are made by libfaketime (Debian: faketime), for this process and CLOCK_REALTIME alone: Linux has no name space
for the wall clock. Timers, time-outs and the event loop run by the monotonic clock, which stays as it is.
"""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path

import pytest
from support.hearthd import eventually

from hearth.audit.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
DAY = 86_400
STEPS = ("+10d", "-3650d", "+0", "+40y", "-1d")
"""What the clock is off by, one step after the other; some are years."""


@pytest.fixture
def stepped(hearthd, tmp_path):
    """A daemon whose clock can be stepped, and the function that steps it."""
    if LIBRARY is None:
        pytest.skip("libfaketime is not here (Debian: apt-get install faketime)")
    clock = tmp_path / "clock"

    def step(offset):
        draft = tmp_path / "clock.next"
        draft.write_text(f"{offset}\n")
        draft.rename(clock)

    step("+0")
    running = hearthd(
        "[limits]\nidle_ttl_s = 8.0\n"
        '[[policy]]\nname = "all"\nmatch = { any = true }\nmax_risk = 2\nrate = { "gpio.get" = "3/h" }\n',
        env={
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "NO_FAKE_STAT": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        },
    )
    # The file has to be read at every look at the clock, which the sandbox has no reason to allow.
    running.start("--no-sandbox")
    return running, step


def when(record):
    return dt.datetime.fromisoformat(record["ts"]).timestamp()


@pytest.mark.proof
def test_records_keep_their_order_and_their_chain_and_say_what_the_clock_said(stepped):
    running, step = stepped
    peer = running.peer()
    session = peer.open()
    offsets = {"+10d": 10 * DAY, "-3650d": -3650 * DAY, "+0": 0, "+40y": 40 * 365 * DAY, "-1d": -DAY}
    for number, offset in enumerate(STEPS):
        step(offset)
        assert peer.run(session, "gpio.set", line=18, value=number % 2)["status"] == "SUCCESS"
        newest = running.records(event="task.finish")[-1]
        assert abs(when(newest) - time.time() - offsets[offset]) < 60, "the timestamp is not what the clock said"
    assert running.stop() == 0
    report = verify([running.audit])
    assert report.ok, report.first_bad
    stamps = [when(record) for record in running.records()]
    assert stamps != sorted(stamps), "the clock did step back"
    assert len(running.records(event="task.finish")) == len(STEPS)
    assert [record["event"] for record in running.records()][-2:] == ["daemon.stop", "audit.checkpoint"]


@pytest.mark.proof
def test_time_outs_deadlines_rates_and_idle_sessions_go_by_a_clock_that_does_not_step(stepped):
    running, step = stepped
    peer, other = running.peer(), running.peer()
    began = time.monotonic()
    session, idle = peer.open(), other.open()
    for _ in range(3):
        assert peer.run(session, "gpio.get", line=18)["status"] == "SUCCESS"

    # A watch of 5 s and a task of at most 1 s are under way while the clock is years off, in both directions.
    watch = ("gpio.watch", {"line": 4, "timeout_ms": 5000})
    started = time.monotonic()
    waiting = peer.submit(session, watch)
    bounded = peer.submit(session, ("gpio.watch", {"line": 5, "timeout_ms": 60_000}), max_duration_ms=1000)
    for offset in ("+40y", "-3650d", "+10d"):
        step(offset)
        error = peer.refusal("task.submit", _get(session))
        assert error["code"] == -32006, "three an hour are three an hour, whatever the clock says"
        assert error["data"]["retry_after_ms"] <= 3_600_000
        here = {"session_id": session, "task_id": waiting}
        status = peer.call("task.get", here)["result"]["status"]
        assert status == "RUNNING" or time.monotonic() - started >= 4.9, "a time-out came early"
    assert peer.wait(session, bounded)["status"] in ("TIMEOUT", "FAILED", "CANCELLED")
    assert peer.wait(session, waiting)["steps"][0]["status"] == "SUCCESS"
    took = time.monotonic() - started
    assert took >= 4.9, "a time-out came early"

    # The session that nobody used ended when its time was over, and not when the clock jumped.
    ended = eventually(lambda: running.records(event="session.close", session_id=idle), "the idle session's end")
    assert time.monotonic() - began >= 7.9, "an idle session ended early"
    assert "idle" in ended[0]["reason"]
    assert running.stop() == 0
    assert verify([running.audit]).ok


def _get(session):
    return {"session_id": session, "task": {"intent": "look", "steps": [{"tool": "gpio.get", "args": {"line": 18}}]}}


@pytest.mark.proof
def test_a_daemon_that_starts_before_the_time_of_its_own_log_goes_on_with_it(stepped):
    running, step = stepped
    peer = running.peer()
    session = peer.open()
    peer.run(session, "gpio.set", line=18, value=1)
    running.kill()
    for offset in ("-3650d",):
        step(offset)
        running.hang_up()
        running.start("--no-sandbox")
        peer = running.peer()
        session = peer.open()
        assert peer.run(session, "gpio.set", line=18, value=0)["status"] == "SUCCESS"
        running.kill()
    running.hang_up()
    running.start("--no-sandbox")
    assert running.stop() == 0
    report = verify([running.audit])
    assert report.ok, report.first_bad
    assert len(running.records(event="daemon.recover")) == 2
