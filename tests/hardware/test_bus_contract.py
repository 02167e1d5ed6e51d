"""The bus contract (design §3), sentence by sentence, on the kernel's own interfaces with the drivers that serve them.

Each bench is one interface, a way to let a transaction on it stand still in the kernel or beyond, and what the world
shows of those that were done. A line of gpio-sim and a channel on i2c-stub cannot stand still: setting them does not
wait. There the bus is held by a lease.
"""

from __future__ import annotations

import inspect
import threading
from contextlib import ExitStack, asynccontextmanager

import pytest
import serial
import trio
import trio.testing
from support import virtio_spi
from support.can_bus import answering, virtual
from support.cell import MEMORY, SlowLines
from support.gpio_sim import GpioSim
from support.mcp2221 import ADAPTER, Mcp2221, Memory
from support.mcp4725 import mcp4725
from support.pca9685 import pca9685
from support.waiting import passes

from hearth.actors.bus.actor import Bus
from hearth.actors.bus.queue import Requester, Ticket
from hearth.drivers.can.linux import LinuxCan
from hearth.drivers.dac.driver import DacChannelSpec
from hearth.drivers.dac.linux import LinuxDac
from hearth.drivers.gpio.linux import LinuxGpio
from hearth.drivers.gpio.spec import LineSpec
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.modbus.codec import checked
from hearth.drivers.modbus.driver import ModbusDevice
from hearth.drivers.modbus.line import ModbusLine
from hearth.drivers.pwm.driver import ChannelSpec
from hearth.drivers.pwm.linux import LinuxPwm
from hearth.drivers.registers import Write
from hearth.drivers.serial_port.settings import UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.drivers.spi.linux import LinuxSpi
from hearth.errors import DeviceError, HearthError, ResourceBusy, TimedOut, effect_of

ME = Requester("session", "task", "me")
YOU = Requester("other session", "other task", "you")
LINES = tuple(LineSpec(offset, f"L{offset}") for offset in range(4))
BOUND = 30
"""Seconds for each test here; it usually takes a small part of one."""


class OnGpioSim:
    """Transaction n drives line n high."""

    slow = False

    def __init__(self, stack: ExitStack) -> None:
        self.chip = GpioSim("contract", 4)
        stack.callback(self.chip.close)
        self.driver = LinuxGpio("contract", LINES)

    def op(self, number):
        return lambda driver: driver.set(number, 1)

    def done(self):
        return [offset for offset in range(4) if self.chip.value(offset)]


class OnPwm:
    """Transaction n gives channel n a pulse; it is a few writes to the stub, which do not wait."""

    slow = False

    def __init__(self, stack: ExitStack) -> None:
        self.chip = stack.enter_context(pca9685())
        self.driver = LinuxPwm(self.chip.label, [ChannelSpec(number, f"C{number}") for number in range(4)])

    def op(self, number):
        return lambda driver: driver.set(number, 0.5)

    def done(self):
        return [number for number in range(4) if self.chip.steps(number)[1]]


class OnAdapter:
    """An MCP2221, which has both of the next two interfaces."""

    slow = True

    def __init__(self, stack: ExitStack) -> None:
        self.adapter = stack.enter_context(Mcp2221({MEMORY: Memory()}))


class OnI2c(OnAdapter):
    """Transaction n writes a hundred times n, in two reports to the adapter; it stands before the seventieth."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.driver = LinuxI2c(1, adapter=ADAPTER)

    def op(self, number):
        return lambda driver: driver.transfer(MEMORY, [Write(bytes([number]) * 100)])

    def hold(self):
        self.adapter.chip.wedge(after=70)

    async def reached(self):
        await trio.to_thread.run_sync(self.adapter.chip.wait_held)

    def let_go(self):
        self.adapter.chip.release()

    def done(self):
        log = self.adapter.chip.log
        assert {len(exchange.written) for exchange in log if exchange.whole} <= {100}
        assert self.adapter.chip.strays == []
        return [exchange.written[0] for exchange in log if exchange.whole]


class OnAdaptersLines(OnAdapter):
    """Transaction n drives line n of the adapter high; it stands when the adapter has been told to."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.driver = LinuxGpio("mcp2221_gpio", LINES)
        self._lines = SlowLines(self.adapter.chip)

    def op(self, number):
        return lambda driver: driver.set(number, 1)

    def hold(self):
        self._lines.hold()

    async def reached(self):
        assert await trio.to_thread.run_sync(self._lines.reached.wait, BOUND)

    def let_go(self):
        self._lines.let_go()

    def done(self):
        return [pin for pin, (level, is_input) in enumerate(self.adapter.chip.gpio) if level and not is_input]


class OnDac(OnAdapter):
    """Transaction n sets a converter to a hundred times n; it stands before the second of its two bytes."""

    def __init__(self, stack: ExitStack) -> None:
        self._dac = stack.enter_context(mcp4725())
        self.adapter = self._dac.adapter
        channel = DacChannelSpec(0, "OUT", min=0, max=4_095, safe=0, scale=1, unit="raw")
        self.driver = LinuxDac(self._dac.label, [channel])

    def op(self, number):
        return lambda driver: driver.set(0, number * 100)

    def hold(self):
        self.adapter.chip.wedge(after=1)

    async def reached(self):
        await trio.to_thread.run_sync(self.adapter.chip.wait_held)

    def let_go(self):
        self.adapter.chip.release()

    def done(self):
        return [raw // 100 for _, raw in self._dac.chip.writes]


class OnSpi:
    """Transaction n is a transfer of a hundred times n; it stands before the controller answers."""

    slow = True

    def __init__(self, stack: ExitStack) -> None:
        self.driver = LinuxSpi("contract", virtio_spi.spidev(virtio_spi.LOOPBACK))
        self._wire = virtio_spi.Wire()
        stack.callback(self._wire.release)

    def op(self, number):
        data = bytes([number]) * 100

        def transfer(driver):
            assert driver.transfer(data) == data

        return transfer

    def hold(self):
        self._wire.hold()

    async def reached(self):
        await trio.to_thread.run_sync(self._wire.wait_held)

    def let_go(self):
        self._wire.release()

    def done(self):
        assert {len(data) for _, data in self._wire.transfers()} <= {100}
        return [data[0] for _, data in self._wire.transfers()]


class OnUart:
    """Transaction n is an exchange with an instrument that answers each line; it stands while that is silent."""

    slow = True

    def __init__(self, stack: ExitStack) -> None:
        self.driver = LinuxUart("contract", "/dev/ttyS1", UartSettings(baud=38_400))
        self.heard: list[int] = []
        self._asked, self._answers = threading.Event(), threading.Event()
        self._answers.set()
        self._far = stack.enter_context(serial.Serial("/dev/ttyS2", timeout=BOUND))
        self._far.reset_input_buffer()
        thread = threading.Thread(target=self._instrument, daemon=True)
        thread.start()
        stack.callback(thread.join, BOUND)
        stack.callback(self._far.cancel_read)
        stack.callback(self._answers.set)

    def _instrument(self):
        while line := self._far.readline():
            self._asked.set()
            self._answers.wait(BOUND)
            self.heard.append(int(line))
            self._far.write(b"done " + line)

    def op(self, number):
        async def exchange(driver):
            reply = await driver.exchange(b"%d\n" % number, length=None, until=b"\n", timeout_s=BOUND)
            assert reply.data == b"done %d\n" % number

        return exchange

    def hold(self):
        self._asked.clear()
        self._answers.clear()

    async def reached(self):
        assert await trio.to_thread.run_sync(self._asked.wait, BOUND)

    def let_go(self):
        self._answers.set()

    def done(self):
        return list(self.heard)


class OnCan:
    """Transaction n is an ISO-TP exchange with another node of a virtual bus; it stands while that is silent."""

    slow = True

    def __init__(self, stack: ExitStack) -> None:
        self.heard: list[int] = []
        self._asked, self._answers = threading.Event(), threading.Event()
        self._answers.set()
        name = stack.enter_context(virtual("vcan8"))
        stack.enter_context(answering(name, 0x7E0, 0x7E8, self._node))
        stack.callback(self._answers.set)
        self.driver = LinuxCan("contract", name)

    def _node(self, message):
        self._asked.set()
        self._answers.wait(BOUND)
        self.heard.append(message[0])
        return b"done" + message

    def op(self, number):
        async def exchange(driver):
            assert await driver.isotp(0x7E0, 0x7E8, bytes([number]), timeout_s=BOUND) == b"done" + bytes([number])

        return exchange

    def hold(self):
        self._asked.clear()
        self._answers.clear()

    async def reached(self):
        assert await trio.to_thread.run_sync(self._asked.wait, BOUND)

    def let_go(self):
        self._answers.set()

    def done(self):
        return list(self.heard)


class OnModbus(OnUart):
    """Transaction n writes n to a register of a Modbus device, which repeats it; it stands while that is silent."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        port, device = LinuxUart("contract", "/dev/ttyS1", UartSettings(baud=38_400)), ModbusDevice(3, "D", raw="rw")
        self.driver = ModbusLine("contract", port, [device], timeout_s=BOUND)

    def _instrument(self):
        while request := self._far.read(8):
            assert checked(request[:-2]) == request
            self._asked.set()
            self._answers.wait(BOUND)
            self.heard.append(int.from_bytes(request[4:6], "big"))
            self._far.write(request)

    def op(self, number):
        return lambda driver: driver.write(3, "holding", 0, [number])


BENCHES = {
    "gpio-sim": OnGpioSim,
    "pwm": OnPwm,
    "gpio-mcp2221": OnAdaptersLines,
    "i2c": OnI2c,
    "dac": OnDac,
    "spi": OnSpi,
    "uart": OnUart,
    "can": OnCan,
    "modbus": OnModbus,
}


@pytest.fixture(params=BENCHES)
def bench(request):
    with ExitStack() as stack:
        yield BENCHES[request.param](stack)


@pytest.fixture(params=[name for name, bench in BENCHES.items() if bench.slow])
def slow_bench(request):
    with ExitStack() as stack:
        yield BENCHES[request.param](stack)


@asynccontextmanager
async def serving(bench, **more):
    """The bench's bus, open; what it audits is in `bench.audited`."""
    bench.audited = []

    def audit(event, **fields):
        bench.audited.append((event, fields))

    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            bus = Bus("contract", bench.driver, audit=audit, **more)
            await nursery.start(bus.run)
            try:
                yield bus
            except BaseException:
                if bench.slow:
                    bench.let_go()
                raise
            finally:
                nursery.cancel_scope.cancel()


class Askers:
    """Askers in tasks of their own, and what became of each: a value, an error or "cancelled"."""

    def __init__(self, bus, bench, nursery) -> None:
        self.of: dict[int, object] = {}
        self._bus, self._bench, self._nursery = bus, bench, nursery

    def ask(self, number, *, requester=ME, limit=BOUND) -> trio.CancelScope:
        """Ask for transaction `number`; returns the scope that cancels its asker."""
        scope = trio.CancelScope()
        ticket = Ticket(self._bench.op(number), requester, limit=limit)

        async def run():
            with scope:
                try:
                    await self._bus.request(ticket).get()
                    self.of[number] = "done"
                except trio.Cancelled:
                    self.of[number] = "cancelled"
                    raise
                except HearthError as error:
                    self.of[number] = error

        self._nursery.start_soon(run)
        return scope


@asynccontextmanager
async def standing(bus, bench, nursery):
    """Nobody's transaction can begin inside this block, which gets the numbers of those that are done after it.

    Transaction 0 stands on the wire, or the bus is leased.
    """
    if bench.slow:
        bench.hold()
        askers = Askers(bus, bench, nursery)
        askers.ask(0, requester=YOU)
        await bench.reached()
        yield [0]
        bench.let_go()
        await passes(lambda: askers.of)
        assert askers.of == {0: "done"}
    else:
        lease = Ticket(None, YOU, limit=0)
        await bus.request(lease).get()
        yield []
        bus.release(lease)


async def queued(bus, count):
    await passes(lambda: bus.health()["queued"] == count)


# --- a transaction that has begun is never interrupted ----------------------------------------------------------


@pytest.mark.parametrize("by", ["a cancel", "a deadline", "the end of its bus"])
async def test_a_transaction_that_has_begun_is_not_interrupted_by(by, slow_bench) -> None:
    bench = slow_bench

    async def let_go_once_all_is_quiet():
        await trio.testing.wait_all_tasks_blocked()
        assert bench.done() == []
        assert askers.of == {}
        bench.let_go()

    async with trio.open_nursery() as nursery, serving(bench) as bus:
        bench.hold()
        askers = Askers(bus, bench, nursery)
        scope = askers.ask(1)
        await bench.reached()
        nursery.start_soon(let_go_once_all_is_quiet)
        if by == "a cancel":
            scope.cancel()
        elif by == "a deadline":
            scope.deadline = trio.current_time()
        if by != "the end of its bus":
            await passes(lambda: askers.of)
    assert askers.of == {1: "done"}
    assert bench.done() == [1]


# --- a queued request whose asker is cancelled never begins ------------------------------------------------------


async def test_a_queued_request_whose_asker_is_cancelled_never_begins(bench) -> None:
    async with serving(bench) as bus, trio.open_nursery() as nursery:
        askers = Askers(bus, bench, nursery)
        async with standing(bus, bench, nursery) as others:
            withdrawn = askers.ask(1)
            askers.ask(2)
            await queued(bus, 2)
            withdrawn.cancel()
            await passes(lambda: askers.of)
            assert askers.of == {1: "cancelled"}
            assert bus.health()["queued"] == 1
        await passes(lambda: 2 in askers.of)
        assert bench.done() == [*others, 2]


# --- two transactions on one bus never overlap -------------------------------------------------------------------


def watched(op, notes, name):
    """The transaction, with its beginning and end noted where it runs."""

    def run(driver):
        notes.append(("begin", name))
        value = op(driver)
        if inspect.iscoroutine(value):
            return finish(value)
        notes.append(("end", name))
        return value

    async def finish(coroutine):
        value = await coroutine
        notes.append(("end", name))
        return value

    return run


async def test_two_transactions_on_one_bus_never_overlap(bench) -> None:
    notes: list[tuple[str, tuple[int, int]]] = []

    async def ask(bus, number):
        for round_ in range(8):
            op = watched(bench.op(number), notes, (number, round_))
            await bus.request(Ticket(op, ME, limit=BOUND)).get()

    async with serving(bench) as bus:
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(ask, bus, number)
        assert set(bench.done()) == {0, 1, 2, 3}
    assert len(notes) == 2 * 4 * 8
    for begin, end in zip(notes[::2], notes[1::2], strict=True):
        assert (begin[0], end) == ("begin", ("end", begin[1]))


# --- a full queue answers RESOURCE_BUSY at once ------------------------------------------------------------------


async def test_a_full_queue_answers_resource_busy_at_once(bench) -> None:
    async with serving(bench, queue_bound=2) as bus, trio.open_nursery() as nursery:
        askers = Askers(bus, bench, nursery)
        async with standing(bus, bench, nursery) as others:
            askers.ask(1)
            askers.ask(2)
            await queued(bus, 2)
            # Synchronously: it is refused before anything else could happen.
            with pytest.raises(ResourceBusy) as refused:
                bus.request(Ticket(bench.op(3), ME, limit=BOUND))
            assert refused.value.data["reason"] == "queue full"
            assert effect_of(refused.value) == "none"
        await passes(lambda: len(askers.of) == 2)
        assert askers.of == {1: "done", 2: "done"}
        assert sorted(bench.done()) == [*others, 1, 2]


# --- a transaction past its limit marks the bus wedged -----------------------------------------------------------


async def test_a_transaction_past_its_limit_marks_its_bus_wedged_and_finishes_all_the_same(slow_bench) -> None:
    bench = slow_bench
    with ExitStack() as stack:
        other = OnGpioSim(stack)
        async with serving(bench) as bus, serving(other) as other_bus, trio.open_nursery() as nursery:
            askers = Askers(bus, bench, nursery)
            bench.hold()
            askers.ask(1, limit=0.05)
            await bench.reached()
            await passes(lambda: bus.state == "wedged")
            assert askers.of == {}, "nothing may kill it, so its asker waits for it"
            with pytest.raises(ResourceBusy) as refused:
                bus.request(Ticket(bench.op(2), YOU, limit=BOUND))
            assert refused.value.data["reason"] == "wedged"
            assert [event for event, _ in bench.audited] == ["bus.wedged"]
            assert bus.health()["state"] == "wedged"
            assert bus.health()["reason"] == bench.audited[0][1]["reason"]
            # Another bus is not concerned.
            await other_bus.request(Ticket(other.op(3), ME, limit=BOUND)).get()
            assert other.done() == [3]

            bench.let_go()
            await passes(lambda: askers.of)
            assert isinstance(askers.of[1], TimedOut)
            assert effect_of(askers.of[1]) == "done"
            assert bench.done() == [1]
            assert [event for event, _ in bench.audited] == ["bus.wedged", "bus.reopened"]
            await bus.request(Ticket(bench.op(2), YOU, limit=BOUND)).get()
            assert bench.done() == [1, 2]


# --- an error tells what became of the world ---------------------------------------------------------------------


async def test_an_error_tells_whether_anything_crossed_the_wire() -> None:
    with ExitStack() as stack:
        bench = OnI2c(stack)
        async with serving(bench) as bus:

            async def effect(*, addr=MEMORY):
                ticket = Ticket(lambda driver: driver.transfer(addr, [Write(bytes(100))]), ME, limit=BOUND, risk=1)
                with pytest.raises(DeviceError) as failed:
                    await bus.request(ticket).get()
                return effect_of(failed.value)

            assert await effect(addr=0x23) == "none"
            bench.adapter.chip.nack(after=0)
            assert await effect() == "none"
            bench.adapter.chip.nack(after=65)
            assert await effect() == "unknown"
            bench.adapter.chip.timeout(after=3)
            assert await effect() == "unknown"
            assert [len(exchange.written) for exchange in bench.adapter.chip.log] == [0, 0, 65, 3]
