"""Crashes stay where they happen, and a bus that failed is opened again (design §3)."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
import trio
from support.doubles import BenchDriver, Observer, Op
from support.waiting import passes, until

from hearth.actors.bus.actor import Bus
from hearth.actors.bus.queue import Requester, Ticket
from hearth.actors.supervisor import FIRST_PAUSE, LONGEST_PAUSE, STABLE_AFTER, contain, keep_open
from hearth.drivers.base import Style
from hearth.errors import DeviceError, InternalError

ME = Requester("session", "task", "me")


async def crash():
    await trio.lowlevel.checkpoint()
    raise ZeroDivisionError("a bug")


async def test_a_crash_is_contained_logged_with_its_traceback_and_told_to_the_owner(caplog):
    told = []
    await contain("session x", crash, told.append)
    assert [type(error) for error in told] == [ZeroDivisionError]
    (record,) = caplog.records
    assert record.getMessage() == "session x crashed"
    assert record.exc_info[0] is ZeroDivisionError


async def test_the_owner_is_told_what_went_wrong_and_not_how_it_was_wrapped():
    told = []

    async def actor():
        async with trio.open_nursery() as outer, trio.open_nursery():
            outer.start_soon(crash)

    await contain("session x", actor, told.append)
    assert [type(error) for error in told] == [ZeroDivisionError]


async def test_an_actor_that_ends_well_reports_nothing():
    told = []
    await contain("session x", trio.lowlevel.checkpoint, told.append)
    assert told == []


async def test_a_cancellation_is_not_a_crash():
    told = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await contain("session x", trio.sleep_forever, told.append)
    assert scope.cancelled_caught
    assert told == []


async def test_an_actor_that_crashes_while_it_is_being_cancelled_is_contained_and_the_cancellation_goes_on(caplog):
    told = []

    async def crash_at_once():
        raise ZeroDivisionError("a bug")

    async def actor():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash_at_once)
            await trio.lowlevel.checkpoint_if_cancelled()

    with trio.CancelScope() as scope:
        scope.cancel()
        await contain("session x", actor, told.append)
    assert scope.cancelled_caught
    assert [type(error) for error in told] == [ZeroDivisionError]
    assert [record.getMessage() for record in caplog.records] == ["session x crashed"]


class Kept:
    """A supervised bus."""

    def __init__(self, style=Style.ASYNC):
        self.observer = Observer()
        self.driver = BenchDriver("a", self.observer, style=style)
        self.audited = []
        self.bus = Bus("a", self.driver, audit=self.audit)
        self.started = 0

    def audit(self, event, **fields):
        self.audited.append({"event": event, **fields})

    def start(self, nursery):
        nursery.start_soon(keep_open, self.bus, self.audit, self._on_start)

    def _on_start(self):
        self.started += 1

    async def transact(self, op):
        return await self.bus.request(Ticket(op, ME, limit=60)).get()


@pytest.mark.slow
@pytest.mark.parametrize("style", list(Style))
async def test_a_bus_that_crashed_is_reopened_and_says_so(style, nursery, caplog):
    kept = Kept(style)
    kept.start(nursery)
    await until(lambda: kept.bus.state == "ready")
    with pytest.raises(InternalError):
        await kept.transact(Op("bug", raises=RuntimeError("a bug")))
    await passes(lambda: kept.audited)
    assert await kept.transact(Op("after")) == "after"
    assert kept.audited == [{"event": "bus.reopened", "bus": "a", "attempts": 1}]
    assert "bus a: crashed: RuntimeError('a bug')" in caplog.text
    assert caplog.records[0].exc_info, "a bug is logged with its traceback"
    nursery.cancel_scope.cancel()
    kept.observer.assert_whole()


async def test_a_bus_whose_device_is_missing_is_tried_again_with_growing_pauses(nursery, autojump_clock, caplog):
    kept = Kept()
    kept.driver.refuses = DeviceError("no such device", effect="none")
    attempts = []
    kept.driver.open = lambda: (attempts.append(trio.current_time()), BenchDriver.open(kept.driver))
    kept.start(nursery)
    await trio.sleep(200)
    pauses = [round(later - sooner, 6) for sooner, later in pairwise(attempts)]
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    assert "cannot be used: no such device" in caplog.text
    assert not any(record.exc_info for record in caplog.records), "a device that says no is no crash"
    assert kept.started == len(attempts), "its first failure lets the others start"
    with pytest.raises(DeviceError, match="bus a is down: no such device") as refused:
        kept.bus.request(Ticket(Op("x"), ME, limit=1))
    assert refused.value.data["effect"] == "none"
    kept.driver.refuses = None
    await trio.sleep(LONGEST_PAUSE)
    assert await kept.transact(Op("after")) == "after"
    assert kept.audited[0]["event"] == "bus.reopened"
    nursery.cancel_scope.cancel()


async def test_a_bus_that_served_for_a_while_starts_again_with_the_first_pause(nursery, autojump_clock):
    kept = Kept()
    kept.start(nursery)
    await trio.testing.wait_all_tasks_blocked()

    async def pause_after_a_crash():
        kept.driver.break_pump()
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await passes(lambda: kept.bus.state == "ready")
        return trio.current_time() - began

    pauses = [await pause_after_a_crash() for _ in range(4)]
    assert pauses == sorted(pauses)
    assert pauses[3] >= 8 * FIRST_PAUSE
    await trio.sleep(STABLE_AFTER + 1)
    assert await pause_after_a_crash() <= 2 * FIRST_PAUSE
    nursery.cancel_scope.cancel()


async def test_what_must_run_waits_for_the_bus_to_be_reopened(nursery, autojump_clock):
    kept = Kept()
    kept.start(nursery)
    await trio.testing.wait_all_tasks_blocked()
    kept.driver.break_pump()
    await trio.testing.wait_all_tasks_blocked()
    assert kept.bus.state == "down"
    must = kept.bus.request(Ticket(Op("must"), ME, limit=60, must_run=True))
    assert await must.get() == "must"
    assert kept.driver.opened == 2
    nursery.cancel_scope.cancel()


async def test_a_bus_that_crashes_while_it_is_cancelled_ends_quietly(autojump_clock, caplog):
    kept = Kept()

    async def ask():
        with pytest.raises(InternalError):
            await kept.transact(Op("bug", seconds=1, raises=RuntimeError("a bug")))

    async with trio.open_nursery() as askers, trio.open_nursery() as nursery:
        kept.start(nursery)
        await trio.testing.wait_all_tasks_blocked()
        askers.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert "a bug" in caplog.text
    assert kept.bus.state == "closed"
    kept.observer.assert_whole()


async def test_a_driver_that_cannot_be_closed_is_contained_too(nursery, autojump_clock, caplog):
    kept = Kept()
    kept.start(nursery)
    await trio.testing.wait_all_tasks_blocked()

    def close():
        raise OSError("stuck")

    kept.driver.close = close
    kept.driver.break_pump()
    await trio.sleep(1)
    assert kept.bus.state == "ready"
    assert caplog.records[0].levelno == logging.ERROR
    del kept.driver.close
    nursery.cancel_scope.cancel()
