"""A capability that holds the event loop is named, while it does and afterwards."""

from __future__ import annotations

import logging
import threading
import time

import pytest
import trio
from support.hcp import capability, hcp_world
from support.hearthd import eventually

from hearth.actors.bridges.hcp import execution
from hearth.actors.bridges.hcp.execution import LONG_S, LimitWatch


def compute(seconds):
    """Hold the event loop, as a long computation does."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@pytest.mark.slow
async def test_a_stretch_that_is_long_is_reported_and_waiting_is_none():
    reported = []
    watch = LimitWatch("it", reported.append)

    async def code():
        await trio.sleep(2 * LONG_S)
        compute(1.5 * LONG_S)
        await trio.lowlevel.checkpoint()
        return "done"

    assert await watch.over(code()) == "done"
    assert len(reported) >= 1
    assert max(reported) >= 1.5 * LONG_S


async def test_what_is_awaited_gets_cancellations_and_exceptions_as_without_a_watch():
    watch = LimitWatch("it", lambda _seconds: None)
    seen = []

    async def code():
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            seen.append("cancelled")
            raise
        finally:
            seen.append("finally")

    with trio.move_on_after(0):
        await watch.over(code())
    assert seen == ["cancelled", "finally"]

    async def fails():
        await trio.lowlevel.checkpoint()
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        await watch.over(fails())


@pytest.mark.slow
def test_one_that_does_not_end_is_in_the_log_while_it_lasts_with_the_line_that_it_is_at(caplog, monkeypatch):
    monkeypatch.setattr(execution, "STUCK_S", 0.1)
    watch = LimitWatch("capability look (look.py:3)", lambda _seconds: None)
    told = threading.Event()

    def is_told():
        return any("has held the event loop" in record.message for record in caplog.records)

    async def function():
        eventually(is_told)

    with caplog.at_level(logging.ERROR, "hearth.hcp"), watch.looking():
        with pytest.raises(StopIteration):
            watch.over(function()).send(None)
        told.set()
    (record,) = [one for one in caplog.records if "has held" in one.message]
    assert "capability look (look.py:3)" in record.message
    assert ".py:" in record.message.partition("at ")[2]


def test_the_thread_that_looks_ends_with_the_job():
    watch = LimitWatch("it", lambda _seconds: None)
    before = threading.enumerate()
    with watch.looking():
        (thread,) = [one for one in threading.enumerate() if one.name == "hearth-hcp-watch" and one not in before]
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.slow
async def test_a_function_that_holds_the_loop_is_named_in_the_log_and_in_the_summary(tmp_path, caplog):
    async def function(job):
        await job.run("bench.read")
        compute(1.5 * LONG_S)
        await job.gather(lambda: job.run("bench.read"))
        return {}

    with trio.fail_after(60), caplog.at_level(logging.WARNING, "hearth.hcp"):
        async with hcp_world(tmp_path / "hcp", capability(function=function)) as world:
            caller = world.caller()
            session_id = await caller.accepted()
            summary = (await caller.outcome(session_id))["execution_summary"]
            codes = [event["data"]["code"] for event in caller.events_in(session_id, "warning")]
    assert codes == ["event_loop_held"]
    assert "held the daemon's event loop" in summary["warnings"][0]
    assert __file__ in summary["warnings"][0]
    assert any("held the daemon's event loop" in record.message for record in caplog.records)
