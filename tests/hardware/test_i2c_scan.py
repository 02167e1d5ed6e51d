"""A scan on the kernel's adapters: how each address is asked, and what is left alone."""

import pytest
from smbus2 import SMBus
from support.i2c_stub import CHIPS, kernel_driver, stub_bus
from support.mcp2221 import Mcp2221
from support.mcp2221_chip import Memory

from hearth.drivers.i2c.driver import ADDRESSES, DANGEROUS
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.registers import Read
from hearth.errors import DeviceError, TimedOut

CORNERS = (0x0A, 0x2F, 0x30, 0x37, 0x38, 0x4F, 0x50, 0x5F, 0x60, 0x77)


@pytest.fixture
def adapter():
    with Mcp2221({addr: Memory() for addr in CORNERS}) as adapter:
        yield adapter


@pytest.fixture
def driver(adapter):
    driver = LinuxI2c(adapter.bus)
    driver.open()
    yield driver
    driver.close()


def asked(adapter):
    """Which address was asked in which way, from the wire; with nothing but an address, where it was a write."""
    assert all(len(exchange.messages) == 1 for exchange in adapter.chip.log)
    assert not any(exchange.written for exchange in adapter.chip.log)
    return {exchange.addr: exchange.messages[0].way for exchange in adapter.chip.log}


def test_each_address_is_asked_once_by_receiving_a_byte_where_eeproms_live_and_by_a_quick_write_elsewhere(
    driver, adapter
):
    scan = driver.scan()
    assert scan.found == CORNERS
    ways = asked(adapter)
    assert len(adapter.chip.log) == len(ways) == len(ADDRESSES) - len(DANGEROUS)
    received = [*range(0x30, 0x38), *range(0x50, 0x60)]
    assert [addr for addr, way in sorted(ways.items()) if way == "read"] == received
    assert not set(ways) & set(DANGEROUS)
    assert scan.skipped == DANGEROUS


def test_a_dangerous_address_is_asked_when_it_is_included_and_in_the_way_that_is_safest_there(driver, adapter):
    adapter.chip.targets[0x69] = Memory()
    scan = driver.scan({0x69})
    assert 0x69 in scan.found
    assert asked(adapter)[0x69] == "write"
    assert 0x0C not in asked(adapter)


def test_an_address_that_a_driver_of_the_kernels_has_is_told_and_not_touched(driver, adapter):
    with kernel_driver(driver.bus, 0x4F, "lm75"):
        adapter.chip.log.clear()
        scan = driver.scan()
        assert 0x4F not in asked(adapter)
    assert scan.owned == {0x4F: "lm75"}
    assert 0x4F not in scan.found


def test_no_device_on_the_wires_is_an_empty_scan(driver, adapter):
    adapter.chip.targets.clear()
    scan = driver.scan()
    assert (scan.found, scan.owned) == ((), {})


def test_a_stuck_bus_ends_a_scan_at_once_instead_of_being_asked_a_hundred_times(driver, adapter):
    adapter.chip.timeout(float("inf"))
    with pytest.raises(TimedOut):
        driver.scan()
    assert len(adapter.chip.log) == 1


def test_a_busy_bus_ends_a_scan_since_nothing_can_be_said_about_who_is_there(driver, adapter):
    adapter.chip.busy(float("inf"))
    with pytest.raises(DeviceError, match="EAGAIN"):
        driver.scan()


def test_an_adapter_that_has_smbus_only_is_scanned_too():
    driver = LinuxI2c(stub_bus())
    driver.open()
    assert driver.scan().found == CHIPS
    with kernel_driver(driver.bus, 0x48, "lm75"):
        scan = driver.scan()
    assert (scan.found, scan.owned) == ((0x40, 0x50), {0x48: "lm75"})
    driver.close()


def test_a_scan_sends_no_device_a_byte_though_the_adapters_driver_would(driver, adapter):
    # What this kernel makes of a quick write on this adapter: a port expander would take the zero for its outputs.
    with SMBus(driver.bus) as other:
        other.write_quick(0x60)
    assert [exchange.written for exchange in adapter.chip.log] == [b"\0"]
    adapter.chip.log.clear()
    driver.scan()
    assert 0x60 in asked(adapter)


def test_a_scan_leaves_the_adapter_as_it_was(driver, adapter):
    adapter.chip.targets[0x50].cells[:4] = b"WXYZ"
    driver.scan()
    assert bytes(adapter.chip.targets[0x50].cells[:4]) == b"WXYZ"
    assert len(driver.transfer(0x50, [Read(2)])) == 2
