import threading

import pytest
import trio
import trio.testing

from hearth.drivers.base import DeviceGone, Wakeup
from hearth.errors import DeviceError


async def test_a_condition_that_holds_already_needs_no_waiting():
    with trio.testing.assert_no_checkpoints():
        await Wakeup().until(lambda: True)


async def test_every_waiter_looks_again_and_those_whose_wish_is_not_met_go_on_waiting():
    wakeup, level, met = Wakeup(), [0], []

    async def wait_for(wanted):
        await wakeup.until(lambda: level[0] >= wanted)
        met.append(wanted)

    async with trio.open_nursery() as nursery:
        for wanted in (1, 2):
            nursery.start_soon(wait_for, wanted)
        await trio.testing.wait_all_tasks_blocked()
        level[0] = 1
        wakeup.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert met == [1]
        level[0] = 2
        wakeup.wake()
    assert met == [1, 2]


async def test_a_ring_from_another_thread_is_heard():
    wakeup, rung = Wakeup(), []

    def ring():
        rung.append(1)
        wakeup.wake()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.until, lambda: rung)
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(ring)


async def test_a_change_that_comes_while_the_waiter_lies_down_is_not_missed():
    wakeup, looks = Wakeup(), []

    def ready():
        looks.append(1)
        return len(looks) > 1  # it becomes true between the first look and the wait

    await wakeup.until(ready)
    assert len(looks) == 2


async def test_a_cancelled_waiter_leaves_nothing_behind():
    wakeup = Wakeup()
    with trio.move_on_after(0) as scope:
        await wakeup.until(lambda: False)
    assert scope.cancelled_caught
    wakeup.wake()


def test_a_ring_after_the_run_has_ended_is_of_no_consequence():
    wakeup = Wakeup()

    async def main():
        with trio.move_on_after(0):
            await wakeup.until(lambda: False)

    trio.run(main)
    ringer = threading.Thread(target=wakeup.wake)
    ringer.start()
    ringer.join(60)
    assert not ringer.is_alive()


def test_no_waiter_costs_nothing_and_needs_no_trio():
    Wakeup().wake()


@pytest.mark.parametrize("count", [1, 3])
async def test_a_wakeup_serves_again_and_again(count):
    wakeup, heard = Wakeup(), []

    async def wait_for(wanted):
        while len(heard) < wanted:
            seen = len(heard)
            await wakeup.until(lambda: len(heard) > seen)  # noqa: B023

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for, count)
        for _ in range(count):
            await trio.testing.wait_all_tasks_blocked()
            heard.append(1)
            wakeup.wake()


async def test_a_device_that_departs_ends_the_wait_with_the_first_reason_that_was_told(nursery):
    departure, raised = DeviceGone(), []

    async def pump():
        try:
            await departure.wait()
        except DeviceError as error:
            raised.append(error)

    for reason in ("unplugged", "unplugged again"):
        departure.forget()
        async with trio.open_nursery() as pumps:
            pumps.start_soon(pump)
            await trio.testing.wait_all_tasks_blocked()
            assert raised == []
            # From the bus's own thread, as a transaction does.
            await trio.to_thread.run_sync(departure.report, DeviceError(reason, effect="unknown"))
            departure.report(DeviceError("what follows from it", effect="none"))
        assert [error.message for error in raised] == [reason]
        raised.clear()


async def test_a_device_that_departed_before_anybody_waited_is_not_missed():
    departure = DeviceGone()
    departure.report(DeviceError("unplugged", effect="none"))
    with pytest.raises(DeviceError, match="unplugged"):
        await departure.wait()
