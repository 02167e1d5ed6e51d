"""What the simulated adapter adds to the contract: a bus's pace, injected faults, and a log byte by byte."""

import pytest
import trio
import trio.testing

import hearth
from hearth.drivers.base import Style, finish_now
from hearth.drivers.i2c.driver import MAX_LENGTH, plan
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.i2c.sim import Eeprom, SimI2c
from hearth.drivers.registers import Read, Write
from hearth.drivers.simulated import clock_for
from hearth.errors import DeviceError, TimedOut


def limit_ms(messages, **settings):
    return LinuxI2c(1, **settings).limit_ms(messages)


BYTE_S = 9 / 100_000
WRITE = [Write(b"\x00ABCD")]


@pytest.fixture(params=list(Style), ids=lambda style: style.value)
def bus(request):
    return make_bus(request.param)


def make_bus(style):
    driver = SimI2c(1, {0x50: Eeprom(clock_for(style))}, style=style)
    driver.open()
    return driver


async def test_in_virtual_time_a_transfer_takes_as_long_as_its_bytes_take_on_the_wire(autojump_clock):
    driver = make_bus(Style.ASYNC)
    start = trio.current_time()
    await driver.transfer(0x50, [Write(b"\x00"), Read(97)])  # two addresses, a register, 97 bytes
    assert trio.current_time() - start == pytest.approx(100 * BYTE_S)


async def test_in_virtual_time_a_scan_takes_one_byte_for_each_address_and_one_more_where_a_byte_comes(autojump_clock):
    driver = make_bus(Style.ASYNC)
    start = trio.current_time()
    await driver.scan()
    assert trio.current_time() - start == pytest.approx((len(plan().probes) + 1) * BYTE_S)


def test_in_a_thread_a_transfer_really_blocks_for_as_long():
    driver = make_bus(Style.THREAD)
    now = [0.0]

    def block(seconds):
        now[0] += seconds

    driver._clock, driver._block = lambda: now[0], block
    finish_now(driver.transfer(0x50, [Write(b"\x00"), Read(97)]))
    assert now[0] == pytest.approx(100 * BYTE_S)


def test_delays_of_the_system_do_not_add_up_over_a_transfer():
    driver = make_bus(Style.THREAD)
    now, naps = [0.0], []

    def block(seconds):
        naps.append(seconds)
        now[0] += seconds + BYTE_S / 2  # every nap is half a byte too long

    driver._clock, driver._block = lambda: now[0], block
    finish_now(driver.transfer(0x50, [Read(99)]))
    assert now[0] == pytest.approx(100.5 * BYTE_S)


def test_inline_a_transfer_takes_no_time_whatever_is_injected():
    driver = make_bus(Style.INLINE)
    driver._block = None
    driver.faults.latency_s = 60.0
    assert driver.transfer(0x50, [Read(2)]) == b"\xff\xff"
    driver.faults.timeout(seconds=60.0)
    with pytest.raises(TimedOut):
        driver.transfer(0x50, [Read(2)])


async def test_latency_is_added_to_every_transaction(autojump_clock):
    driver = make_bus(Style.ASYNC)
    driver.faults.latency_s = 2.0
    start = trio.current_time()
    await driver.transfer(0x50, [Read(1)])
    await driver.scan()
    assert trio.current_time() - start == pytest.approx(4.0, abs=0.1)
    driver.faults.clear()
    await driver.transfer(0x50, [Read(1)])
    assert trio.current_time() - start < 4.1


@pytest.mark.parametrize(
    ("after", "data"),
    [
        (0, {"effect": "none", "bus": 1, "addr": 0x50, "errno": "ENXIO"}),
        (3, {"effect": "unknown", "bus": 1, "addr": 0x50, "errno": "EREMOTEIO"}),
    ],
)
async def test_an_injected_nack_says_whether_anything_can_have_been_taken(bus, transact, after, data):
    bus.faults.nack(after=after)
    with trio.fail_after(60), pytest.raises(DeviceError) as caught:
        await transact(bus, lambda d: d.transfer(0x50, WRITE))
    assert caught.value.data == data
    assert await transact(bus, lambda d: d.transfer(0x50, WRITE)) == b""


@pytest.mark.parametrize(
    ("messages", "effect"),
    [
        ([Write(b"\x00"), Read(1)], "none"),
        ([Write(b"\x00\x01"), Read(1)], "unknown"),
        ([Read(4)], "none"),
        ([Write(b"\x00AB"), Read(1)], "unknown"),
        ([Write(b"\x00"), Write(b"A")], "unknown"),
    ],
    ids=["register", "read", "register written and read", "command", "two writes"],
)
@pytest.mark.parametrize("after", [0, 1])
async def test_what_has_no_effect_is_an_exchange_that_wrote_a_register_number_at_most(
    bus, transact, messages, effect, after
):
    # Nobody tells at which of its addresses an exchange ended, so one with more than one may have written something.
    bus.faults.nack(after=after)
    with trio.fail_after(60), pytest.raises(DeviceError) as caught:
        await transact(bus, lambda d: d.transfer(0x50, messages))
    assert caught.value.data["effect"] == effect


async def test_a_device_that_refuses_a_byte_stops_the_transfer_there(bus, transact):
    class Full(Eeprom):
        def write(self, byte):
            return byte != ord("C") and super().write(byte)

    bus.devices[0x50] = Full(lambda: 0.0)
    with trio.fail_after(60), pytest.raises(DeviceError) as caught:
        await transact(bus, lambda d: d.transfer(0x50, WRITE))
    assert caught.value.data["errno"] == "EREMOTEIO"
    assert bytes(bus.log[-1].written) == b"\x00AB"


async def test_an_injected_timeout_leaves_the_effect_unknown(bus, transact):
    bus.faults.timeout(times=2, seconds=0.001, after=2)
    for _ in range(2):
        with trio.fail_after(60), pytest.raises(TimedOut) as caught:
            await transact(bus, lambda d: d.transfer(0x50, WRITE))
        assert caught.value.data == {"effect": "unknown", "bus": 1, "addr": 0x50, "errno": "ETIMEDOUT"}
    assert await transact(bus, lambda d: d.transfer(0x50, WRITE)) == b""


STRETCHED = "held the clock"
LOST = "won the arbitration; try again"


@pytest.mark.parametrize(
    ("fault", "step", "errno", "effect", "words"),
    [
        ("timeout", ("i2c.write", {"reg": 16, "hex": "05"}), "ETIMEDOUT", "unknown", STRETCHED),
        ("timeout", ("i2c.read", {"reg": 16, "len": 2}), "ETIMEDOUT", "none", STRETCHED),
        ("timeout", ("i2c.transfer", {"messages": [{"read": 4}]}), "ETIMEDOUT", "none", STRETCHED),
        ("busy", ("i2c.write", {"reg": 16, "hex": "05"}), "EAGAIN", "none", LOST),
        ("busy", ("i2c.read", {"reg": 16, "len": 2}), "EAGAIN", "none", LOST),
        ("busy", ("i2c.transfer", {"messages": [{"hex": "1001"}, {"hex": "1101"}]}), "EAGAIN", "unknown", LOST),
    ],
)
async def test_a_step_says_what_clock_stretching_and_a_lost_arbitration_have_done(fault, step, errno, effect, words):
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session(client_name="c") as session:
        faults = runtime.board.drivers["i2c:1"].faults
        getattr(faults, fault)(addr=0x50, after=1)
        tool, args = step
        with pytest.raises(DeviceError, match=words) as caught:
            await session.run(tool, bus=1, addr=0x50, **args)
        assert (caught.value.data["errno"], caught.value.data["effect"]) == (errno, effect)
        assert isinstance(caught.value, TimedOut) is (errno == "ETIMEDOUT")
        await session.run(tool, bus=1, addr=0x50, **args)


async def test_a_fault_for_one_address_spares_the_others(bus, transact):
    bus.devices[0x51] = Eeprom(lambda: 0.0)
    bus.faults.nack(addr=0x51)
    assert await transact(bus, lambda d: d.transfer(0x50, [Read(1)])) == b"\xff"
    with pytest.raises(DeviceError):
        await transact(bus, lambda d: d.transfer(0x51, [Read(1)]))


async def test_a_fault_may_hit_a_scan(bus, transact):
    bus.faults.nack()
    with pytest.raises(DeviceError):
        await transact(bus, lambda d: d.scan())
    assert (await transact(bus, lambda d: d.scan())).found == (0x50,)


async def test_a_scan_receives_a_byte_where_a_write_might_do_harm(bus, transact):
    class Told(Eeprom):
        def start(self, *, reading):
            told.append(reading)
            return super().start(reading=reading)

    told = []
    bus.devices |= {addr: Told(lambda: 0.0) for addr in (0x2F, 0x30, 0x37, 0x38, 0x4F, 0x50, 0x5F, 0x60)}
    assert (await transact(bus, lambda d: d.scan())).found == (0x2F, 0x30, 0x37, 0x38, 0x4F, 0x50, 0x5F, 0x60)
    assert told == [False, True, True, False, False, True, True, False]


@pytest.mark.parametrize("style", [Style.THREAD, Style.ASYNC], ids=lambda style: style.value)
async def test_a_wedged_transaction_hangs_until_it_is_released_and_then_completes(style, transact):
    bus = make_bus(style)
    bus.faults.wedge(after=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transact, bus, lambda d: d.transfer(0x50, WRITE))
        await bus.faults.wait_held()
        assert bus.faults.held == 1
        assert not bus.log[-1].complete
        assert bytes(bus.log[-1].written) == b"\x00A"
        nursery.cancel_scope.cancel()  # cannot reach it
        await trio.lowlevel.cancel_shielded_checkpoint()
        assert bus.faults.held == 1
        bus.faults.release()
    assert bus.log[-1].complete
    assert bytes(bus.devices[0x50].memory[:4]) == b"ABCD"
    assert bus.faults.held == 0


def test_an_inline_bus_cannot_be_wedged():
    with pytest.raises(ValueError, match="INLINE"):
        make_bus(Style.INLINE).faults.wedge()


async def test_a_transaction_that_is_torn_shows_in_the_log_and_in_the_memory():
    bus = make_bus(Style.ASYNC)
    bus.faults.wedge(after=3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bus.transfer, 0x50, WRITE)  # not shielded: a bus that breaks its contract
        await bus.faults.wait_held()
        nursery.cancel_scope.cancel()
    assert not bus.log[-1].complete
    assert bytes(bus.log[-1].written) == b"\x00AB"
    assert bytes(bus.devices[0x50].memory[:4]) == b"AB\xff\xff"


async def test_the_log_shows_each_transaction_byte_by_byte(bus, transact):
    await transact(bus, lambda d: d.transfer(0x50, WRITE))
    await transact(bus, lambda d: d.transfer(0x50, [Write(b"\x01"), Read(2)]))
    assert [(t.addr, bytes(t.written), bytes(t.read), t.complete) for t in bus.log] == [
        (0x50, b"\x00ABCD", b"", True),
        (0x50, b"\x01", b"BC", True),
    ]
    assert bus.overlaps == 0


async def test_transactions_that_overlap_are_counted(autojump_clock):
    driver = make_bus(Style.ASYNC)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(driver.transfer, 0x50, [Read(4)])
    assert driver.overlaps == 1


def test_the_limit_of_a_transaction_follows_from_what_the_kernel_may_take():
    assert limit_ms([Read(1)]) > 1000
    assert limit_ms([Read(MAX_LENGTH)]) - limit_ms([Read(0)]) > MAX_LENGTH * BYTE_S * 1000 * 2
    assert limit_ms([Read(1)], timeout_ms=3000) - limit_ms([Read(1)]) == pytest.approx(2000)
    # A lost arbitration is tried again for as long as one timeout, and the last attempt may take another.
    assert limit_ms([Read(1)], retries=3) - limit_ms([Read(1)]) == pytest.approx(1000)
    slow, fast = (limit_ms([Read(1000)], speed_hz=hz) for hz in (10_000, 1_000_000))
    assert slow - fast > 1000 * 9 / 10_000 * 1000
    assert fast < limit_ms([Read(1000)]) < slow


def test_a_simulated_adapter_counts_with_its_own_speed():
    slow = SimI2c(1, {}, speed_hz=10_000)
    assert slow.limit_ms([Read(100)]) == limit_ms([Read(100)], speed_hz=10_000)


def test_an_adapter_without_one_of_the_probes_leaves_out_what_the_other_could_harm():
    everything = plan()
    no_quick, no_receive = plan(quick=False), plan(receive=False)
    assert {addr for addr, kind in everything.probes.items() if kind == "receive"} == set(no_quick.probes)
    assert {addr for addr, kind in everything.probes.items() if kind == "quick"} == set(no_receive.probes)
    assert "quick write" in no_quick.skipped[0x20]
    assert "receiving a byte" in no_receive.skipped[0x50]
    assert not plan(range(128), quick=False, receive=False).probes


def test_an_included_address_is_asked_with_what_the_adapter_has():
    assert plan({0x20, 0x69}, quick=False).probes[0x20] == "receive"
    assert plan({0x50}, receive=False).probes[0x50] == "quick"
    assert plan({0x20, 0x50, 0x69}).probes == plan({0x69}).probes
