"""Alarms by name: they ring once and in time, and what is forgotten costs nothing."""

from __future__ import annotations

import trio
import trio.testing

from hearth.actors.runtime import SLACK, Timers


async def test_alarms_ring_in_their_order_and_the_forgotten_do_not(autojump_clock) -> None:
    rung = []
    alarms = Timers(lambda name: rung.append((name, trio.current_time())))
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        alarms.set("c", start + 3)
        nursery.start_soon(alarms.run)
        await trio.testing.wait_all_tasks_blocked()
        alarms.set("a", start + 1)
        alarms.set("b", start + 2)
        alarms.set("a", start + 4)
        alarms.forget("b")
        alarms.forget("nobody")
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert rung == [("a", start + 1), ("c", start + 3), ("a", start + 4)]


async def test_names_that_come_and_go_leave_nothing_until_their_time_would_have_come() -> None:
    alarms = Timers(lambda _name: None)
    for n in range(10_000):
        alarms.set(f"session {n}", n + 300.0)
        if n >= 10:
            alarms.forget(f"session {n - 10}")
    assert len(alarms._heap) <= 2 * 10 + SLACK + 1
    assert len(alarms._names) == 10
