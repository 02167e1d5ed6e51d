"""How a bus opens and closes its driver: nothing hangs with a device that hangs, and nothing is closed under a call."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing
from support.doubles import BenchDriver, Observer, Op
from support.waiting import passes, until

from hearth.actors.bus import workers as workers_module
from hearth.actors.bus.actor import Bus
from hearth.actors.bus.queue import Requester, Ticket
from hearth.actors.supervisor import keep_open
from hearth.drivers.base import DeviceGone, Style
from hearth.errors import DeviceError, ResourceBusy

ME = Requester("session", "task", "me")


class Blocking(BenchDriver):
    """A driver whose open and close block until they are let go; it notes the threads they run in."""

    def __init__(self, *, style=Style.THREAD, **more):
        super().__init__("a", Observer(), style=style, **more)
        self.opens, self.closes = threading.Event(), threading.Event()
        self.opens.set()
        self.closes.set()
        self.opening = self.closing = 0
        self.threads = []

    def open(self):
        self.opening += 1
        self.opens.wait()
        super().open()

    def close(self):
        self.closing += 1
        self.threads.append(threading.current_thread())
        self.closes.wait()
        super().close()


@pytest.fixture
def driver():
    made = Blocking()
    yield made
    made.opens.set()
    made.closes.set()


async def served(bus, nursery):
    await nursery.start(bus.run)
    return bus


@pytest.mark.parametrize("style", list(Style))
async def test_a_driver_is_closed_in_a_thread_where_closing_may_block_and_only_there(style):
    driver = Blocking(style=style)
    async with trio.open_nursery() as nursery:
        await served(Bus("a", driver), nursery)
        nursery.cancel_scope.cancel()
    in_thread = [thread is not threading.main_thread() for thread in driver.threads]
    assert in_thread == [style is Style.THREAD]
    assert not driver.is_open


async def test_a_close_that_hangs_holds_up_no_other_and_the_end_not_for_long(driver, monkeypatch, caplog):
    monkeypatch.setattr(workers_module, "CLOSE_LIMIT", 0.02)
    driver.closes.clear()
    async with trio.open_nursery() as nursery:
        await served(Bus("a", driver), nursery)
        nursery.cancel_scope.cancel()
    assert driver.is_open
    assert "bus a: not closed within 0.02 s" in caplog.text


@pytest.mark.slow
async def test_a_bus_is_not_opened_again_before_it_is_closed_and_its_askers_do_not_wait_for_that(driver, nursery):
    bus = Bus("a", driver)
    nursery.start_soon(keep_open, bus, lambda _event, **_fields: None, lambda: None)
    await passes(lambda: bus.state == "ready")
    driver.closes.clear()
    gate = driver.gate()
    bus.request(Ticket(Op("running", gate=gate), ME, limit=60))
    await gate.reached()
    queued = bus.request(Ticket(Op("queued"), ME, limit=60))
    driver.break_pump(DeviceError("unplugged", effect="none"))
    # Until the bus has taken back what its thread could begin next.
    await trio.testing.wait_all_tasks_blocked()
    gate.open()
    with pytest.raises(DeviceError, match="unplugged"):
        await queued.get()
    await passes(lambda: driver.closing)
    assert bus.state == "down"
    assert driver.opening == 1
    driver.closes.set()
    await passes(lambda: bus.state == "ready")
    assert driver.opening == 2
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("width", [1, 3])
async def test_a_driver_is_not_closed_while_a_call_that_was_given_up_is_still_inside_it(width):
    driver = Blocking(width=width)
    async with trio.open_nursery() as nursery:
        bus = await served(Bus("a", driver), nursery)
        gate = driver.gate()
        stuck = bus.request(Ticket(Op("stuck", gate=gate), ME, limit=60))
        await gate.reached()
        bus.abandon()
        nursery.cancel_scope.cancel()
    with pytest.raises(DeviceError, match="before the transaction on a returned"):
        await stuck.get()
    assert driver.is_open
    assert driver.closing == 0
    gate.open()
    await passes(lambda: driver.closing)
    await passes(lambda: not driver.is_open)
    assert [what[0] for what in driver.observer.of("end", "close")] == ["end", "close"]


async def test_a_device_that_is_opened_too_late_is_closed_again(driver):
    driver.opens.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Bus("a", driver).run)
        await passes(lambda: driver.opening)
        nursery.cancel_scope.cancel()
    assert driver.closing == 0
    driver.opens.set()
    await passes(lambda: driver.closing and not driver.is_open)
    assert driver.opened == 1


async def test_a_device_that_could_not_be_opened_is_not_closed(driver):
    driver.opens.clear()
    driver.refuses = DeviceError("no such device", effect="none")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Bus("a", driver).run)
        await passes(lambda: driver.opening)
        nursery.cancel_scope.cancel()
    driver.opens.set()
    await passes(lambda: not any(thread.name == "hearth-close" for thread in threading.enumerate()))
    assert driver.closing == 0


@pytest.mark.slow
@pytest.mark.parametrize("style", list(Style))
async def test_a_driver_can_say_from_a_transaction_that_its_device_is_gone(style, nursery):
    class Departing(BenchDriver):
        departure = DeviceGone()

        def open(self):
            super().open()
            self.departure.forget()

        async def pump(self):
            await self.departure.wait()

        def meet(self):
            error = DeviceError("the adapter does not answer: it is gone", effect="unknown", data={"errno": "ENODEV"})
            self.departure.report(error)
            raise error

    driver, audited = Departing("a", Observer(), style=style), []
    bus = Bus("a", driver)
    started = trio.Event()
    nursery.start_soon(keep_open, bus, lambda event, **_fields: audited.append(event), started.set)
    await started.wait()
    with pytest.raises(DeviceError) as failed:
        await bus.request(Ticket(Op("x", do=Departing.meet), ME, limit=60)).get()
    assert failed.value.data == {"effect": "unknown", "errno": "ENODEV"}
    await until(lambda: bus.state == "down")
    with pytest.raises(DeviceError, match="bus a is down: the adapter does not answer") as refused:
        bus.request(Ticket(Op("y"), ME, limit=60))
    assert refused.value.data["effect"] == "none"
    await passes(lambda: bus.state == "ready")
    assert await bus.request(Ticket(Op("z"), ME, limit=60)).get() == "z"
    await until(lambda: audited)  # the supervisor's to say, when its turn comes
    assert audited == ["bus.reopened"]
    assert driver.observer.labels("begin") == ["x", "z"]
    nursery.cancel_scope.cancel()


async def test_a_bus_whose_device_another_process_holds_answers_resource_busy_and_names_the_holder(nursery):
    class Held(BenchDriver):
        def open(self):
            data = {"reason": "held", "holders": [7], "effect": "none"}
            raise ResourceBusy("a: held by 'minicom' (pid 7)", data=data)

    bus = Bus("a", Held("a", Observer()))
    started = trio.Event()
    nursery.start_soon(keep_open, bus, lambda _event, **_fields: None, started.set)
    await started.wait()
    with pytest.raises(ResourceBusy, match="bus a is down: a: held by 'minicom'") as refused:
        bus.request(Ticket(Op("x"), ME, limit=60))
    assert refused.value.data == {"bus": "a", "state": "down", "reason": "held", "holders": [7], "effect": "none"}
    nursery.cancel_scope.cancel()
