"""The two small things that all actors talk through, and the one that wakes them."""

from __future__ import annotations

import pytest
import trio

from hearth.actors.mailbox import Mailbox, Slot
from hearth.actors.runtime import Timers


async def test_a_mailbox_hands_over_everything_that_is_there_in_the_order_it_came():
    box = Mailbox()
    for number in range(5):
        box.post(number)
    assert await box.batch() == [0, 1, 2, 3, 4]
    box.post(5)
    assert box.drain() == [5]
    assert box.drain() == []


async def test_an_owner_waits_for_its_mailbox():
    box, got = Mailbox(), []

    async def own():
        got.append(await box.batch())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(own)
        await trio.testing.wait_all_tasks_blocked()
        box.post("x")
    assert got == [["x"]]


async def test_a_mailbox_that_is_closed_refuses():
    box = Mailbox()
    box.close()
    with pytest.raises(trio.BrokenResourceError):
        box.post("x")
    await trio.lowlevel.checkpoint()


async def test_a_slot_carries_one_answer_and_a_second_one_is_a_bug():
    slot = Slot()
    assert not slot.filled
    slot.fill(None)
    assert slot.filled
    assert await slot.get() is None
    for again in (slot.fill, slot.fail):
        with pytest.raises(RuntimeError):
            again(ValueError())


async def test_a_slot_carries_an_error():
    slot = Slot()
    slot.fail(ValueError("x"))
    await slot.wait()
    with pytest.raises(ValueError, match="x"):
        await slot.get()


async def test_who_waits_at_a_slot_is_woken_and_may_leave():
    slot, got = Slot(), []

    async def ask():
        got.append(await slot.get())

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.01):
            await slot.get()
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        slot.fill(7)
    assert got == [7]


async def test_alarms_ring_in_the_order_of_their_times(nursery, autojump_clock):
    rung = []
    timers = Timers(lambda name: rung.append((name, trio.current_time())))
    nursery.start_soon(timers.run)
    for name, when in [("late", 30), ("early", 10), ("same", 20), ("too", 20)]:
        timers.set(name, when)
    await trio.sleep(15)
    assert rung == [("early", 10)]
    timers.set("sooner", 16)
    await trio.sleep(100)
    assert [name for name, _ in rung] == ["early", "sooner", "same", "too", "late"]
    assert [when for _, when in rung] == [10, 16, 20, 20, 30]


async def test_an_alarm_for_a_time_that_has_passed_rings_at_once(nursery, autojump_clock):
    rung = []
    timers = Timers(rung.append)
    nursery.start_soon(timers.run)
    await trio.sleep(50)
    timers.set("now", 10)
    await trio.testing.wait_all_tasks_blocked()
    assert rung == ["now"]


async def test_an_alarm_may_set_another(nursery, autojump_clock):
    rung = []

    def ring(name):
        rung.append(trio.current_time())
        if len(rung) < 3:
            timers.set(name, trio.current_time() + 5)

    timers = Timers(ring)
    nursery.start_soon(timers.run)
    timers.set("again", 5)
    await trio.sleep(100)
    assert rung == [5, 10, 15]
