"""Buses that share one device take turns; all others go on beside each other."""

from __future__ import annotations

import threading

import pytest
from support.doubles import BenchDriver, Observer

from hearth.actors.bus.actor import Bus
from hearth.actors.bus.queue import Requester, Ticket
from hearth.drivers.base import Style

ME = Requester("session", "task", "me")


async def two_buses(nursery, first, second):
    made = []
    for name, device in (("a", first), ("b", second)):
        driver = BenchDriver(name, Observer(), style=Style.THREAD)
        driver.shares = device
        made.append(Bus(name, driver))
        await nursery.start(made[-1].run)
    return made


@pytest.mark.slow
async def test_transactions_of_buses_that_share_a_device_never_overlap(nursery):
    inside, most = [], []

    def op(_driver):
        inside.append(1)
        most.append(len(inside))
        # Long enough for the other thread to come in, if anything lets it.
        threading.Event().wait(0.001)
        inside.pop()

    buses = await two_buses(nursery, "adapter", "adapter")
    tickets = [bus.request(Ticket(op, ME, limit=60)) for _ in range(50) for bus in buses]
    for ticket in tickets:
        await ticket.get()
    assert most == [1] * 100
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("first", "second"), [(None, None), ("adapter", "another"), ("adapter", None)])
async def test_transactions_of_buses_with_devices_of_their_own_run_beside_each_other(nursery, first, second):
    together = threading.Barrier(2)

    buses = await two_buses(nursery, first, second)
    # Each waits for the other in the middle of its transaction.
    tickets = [bus.request(Ticket(lambda _driver: together.wait(20), ME, limit=60)) for bus in buses]
    assert sorted([await ticket.get() for ticket in tickets]) == [0, 1]
    nursery.cancel_scope.cancel()
