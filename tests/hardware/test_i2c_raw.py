"""Raw I2C on the kernel's adapters: one exchange stays one, however many messages it has, and addresses of ten bits."""

from functools import partial

import pytest
import trio
from smbus2 import SMBus, i2c_msg
from support.i2c_stub import kernel_driver
from support.mcp2221 import Mcp2221
from support.mcp2221_chip import Memory
from support.tiny_usb import RAW, SMBUS, TEN_BIT, TinyUsb

from hearth.drivers.i2c.driver import DANGEROUS, MAX_MESSAGES
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.registers import Read, Write
from hearth.errors import DeviceError, ResourceBusy

MEMORY, WIDE = 0x50, 0x150


@pytest.fixture
def adapter():
    with TinyUsb([MEMORY], wide=[WIDE, MEMORY]) as adapter:
        yield adapter


@pytest.fixture
def driver(adapter):
    driver = LinuxI2c(adapter.bus)
    driver.open()
    yield driver
    driver.close()


def test_a_list_of_messages_is_one_exchange_on_the_wire(driver, adapter):
    driver.transfer(MEMORY, [Write(b"\x10abcd")])
    adapter.exchange()
    messages = [Write(b"\x10"), Read(2), Write(b"\x12"), Read(1), Read(1)]
    assert driver.transfer(MEMORY, messages) == b"abcd"
    exchange = adapter.exchange()
    assert exchange.messages == (
        ("write", b"\x10"),
        ("read", b"ab"),
        ("write", b"\x12"),
        ("read", b"c"),
        ("read", b"d"),
    )
    assert adapter.quiet()


def test_as_many_messages_as_the_kernel_takes_are_still_one_exchange(driver, adapter):
    assert driver.transfer(MEMORY, [Write(b"\x00"), Read(1)] * (MAX_MESSAGES // 2)) == bytes(MAX_MESSAGES // 2)
    assert len(adapter.exchange().messages) == MAX_MESSAGES
    assert adapter.quiet()


def test_an_address_of_ten_bits_goes_over_the_wire_as_one(driver, adapter):
    driver.transfer(WIDE, [Write(b"\x10xy")])
    written = adapter.exchange()
    assert (written.addr, written.ten_bit, written.messages) == (WIDE, True, (("write", b"\x10xy"),))
    assert driver.transfer(WIDE, [Write(b"\x10"), Read(2)]) == b"xy"


def test_a_small_number_can_be_an_address_of_ten_bits_and_is_another_device_than_its_seven_bits(driver, adapter):
    driver.transfer(MEMORY, [Write(b"\x10S")])
    driver.transfer(MEMORY, [Write(b"\x10T")], ten_bit=True)
    assert [adapter.exchange().ten_bit for _ in range(2)] == [False, True]
    assert driver.transfer(MEMORY, [Write(b"\x10"), Read(1)]) == b"S"
    assert driver.transfer(MEMORY, [Write(b"\x10"), Read(1)], ten_bit=True) == b"T"


def test_no_device_at_an_address_of_ten_bits_is_enxio_without_effect(driver):
    with pytest.raises(DeviceError) as caught:
        driver.transfer(0x3FF, [Write(b"\x10"), Read(1)])
    assert caught.value.data == {"effect": "none", "bus": driver.bus, "addr": 0x3FF, "errno": "ENXIO"}


def test_an_address_of_ten_bits_that_a_driver_of_the_kernels_has_is_refused_naming_it(driver):
    with kernel_driver(driver.bus, WIDE, "lm75", ten_bit=True):
        with pytest.raises(ResourceBusy) as caught:
            driver.transfer(WIDE, [Read(1)])
        assert caught.value.data["owner"] == "lm75"
        assert driver.transfer(MEMORY, [Read(1)], ten_bit=True) == b"\0"
    assert len(driver.transfer(WIDE, [Read(1)])) == 1


def test_an_adapter_that_does_not_say_it_can_do_ten_bits_is_not_asked_to():
    # The kernel's driver of the MCP2221 would drop the upper bits, and reach somebody else.
    for plug, options in ((TinyUsb, {"functionality": RAW | SMBUS}), (Mcp2221, {"targets": {0x50: Memory()}})):
        with plug(**options) as adapter:
            driver = LinuxI2c(adapter.bus)
            driver.open()
            for addr, ten_bit in ((WIDE, False), (WIDE, True), (MEMORY, True)):
                with pytest.raises(DeviceError, match="cannot do 10-bit addresses") as caught:
                    driver.transfer(addr, [Write(b"\x00")], ten_bit=ten_bit)
                assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "EOPNOTSUPP")
            driver.close()


def test_a_scan_without_quick_writes_asks_only_where_receiving_a_byte_is_safest():
    with TinyUsb([0x20, MEMORY], functionality=RAW | TEN_BIT | SMBUS & ~0x10000) as adapter:
        driver = LinuxI2c(adapter.bus)
        driver.open()
        scan = driver.scan()
        assert scan.found == (MEMORY,)
        assert "only a quick write is safe here" in scan.skipped[0x20]
        assert scan.skipped[0x69] == DANGEROUS[0x69]
        assert driver.scan({0x20}).found == (0x20, MEMORY)
        driver.close()


@pytest.mark.parametrize("size", [1, 60, 61, 120, 121, 255, 1000, 4096])
def test_a_long_message_crosses_the_wire_whole_and_in_order(size):
    data = bytes(n * 13 % 256 for n in range(size))
    with Mcp2221({MEMORY: Memory(65536, pointer_bytes=2)}) as adapter:
        driver = LinuxI2c(adapter.bus)
        driver.open()
        driver.transfer(MEMORY, [Write(b"\x01\x00" + data)])
        assert driver.transfer(MEMORY, [Write(b"\x01\x00"), Read(size)]) == data
        driver.close()
        assert [(exchange.whole, len(exchange.messages)) for exchange in adapter.chip.log] == [(True, 1), (True, 2)]
        assert adapter.chip.log[0].written == b"\x01\x00" + data
        assert not adapter.chip.strays


def test_a_read_from_a_register_is_one_exchange_that_another_user_of_the_adapter_cannot_come_into():
    # Each of them moves the pointer: a user in between would make the other read the wrong cell.
    memory = Memory()
    memory.cells[0x10], memory.cells[0x20] = 1, 2
    with Mcp2221({MEMORY: memory}) as adapter:

        def with_hearth(driver):
            (cell,) = driver.transfer(MEMORY, [Write(b"\x10"), Read(1)])
            return cell

        def without(bus):
            read = i2c_msg.read(MEMORY, 1)
            bus.i2c_rdwr(i2c_msg.write(MEMORY, [0x20]), read)
            return next(iter(read))

        async def reader(read, value):
            for _ in range(40):
                assert await trio.to_thread.run_sync(read) == value

        async def both():
            driver = LinuxI2c(adapter.bus)
            driver.open()
            with SMBus(adapter.bus) as bus, trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(reader, partial(with_hearth, driver), 1)
                    nursery.start_soon(reader, partial(without, bus), 2)
            driver.close()

        trio.run(both)
        assert all(exchange.whole and len(exchange.messages) == 2 for exchange in adapter.chip.log)
        assert len(adapter.chip.log) == 80


async def test_a_usb_adapter_that_is_pulled_out_is_gone_at_once(adapter, driver):
    async with trio.open_nursery() as nursery:

        async def pump():
            with pytest.raises(DeviceError, match="is gone"):
                await driver.pump()

        nursery.start_soon(pump)
        await trio.to_thread.run_sync(adapter.close)
    driver.close()
