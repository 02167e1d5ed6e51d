"""The contract of every I2C driver; `i2c_bench` gives one implementation after the other."""

import json

import pytest
import trio

from hearth.drivers.i2c import LAST_ADDR, Read, Write
from hearth.errors import DeviceError


async def test_what_is_written_to_a_register_is_read_from_it(i2c_bench, transact):
    driver, addr = i2c_bench.driver, i2c_bench.memory
    with trio.fail_after(30):
        assert await transact(driver, lambda d: d.transfer(addr, [Write(b"\x10abcd")])) == b""
        assert await transact(driver, lambda d: d.transfer(addr, [Write(b"\x11"), Read(2)])) == b"bc"


async def test_a_read_without_a_register_goes_on_where_the_last_one_ended(i2c_bench, transact):
    driver, addr = i2c_bench.driver, i2c_bench.memory
    with trio.fail_after(30):
        await transact(driver, lambda d: d.transfer(addr, [Write(b"\x20wxyz")]))
        await transact(driver, lambda d: d.transfer(addr, [Write(b"\x20"), Read(1)]))
        assert await transact(driver, lambda d: d.transfer(addr, [Read(2)])) == b"xy"


async def test_several_reads_of_one_transaction_are_joined(i2c_bench, transact):
    driver, addr = i2c_bench.driver, i2c_bench.memory
    messages = [Write(b"\x30"), Read(2), Write(b"\x32"), Read(2)]
    with trio.fail_after(30):
        await transact(driver, lambda d: d.transfer(addr, [Write(b"\x30abcd")]))
        assert await transact(driver, lambda d: d.transfer(addr, messages)) == b"abcd"


@pytest.mark.parametrize("messages", [[Write(b"\x00\x01")], [Read(1)], [Write(b"\x00"), Read(1)]])
async def test_an_address_that_nobody_answers_at_is_an_error_without_effect(i2c_bench, transact, messages):
    with trio.fail_after(30), pytest.raises(DeviceError) as caught:
        await transact(i2c_bench.driver, lambda d: d.transfer(i2c_bench.nobody, messages))
    assert caught.value.data == {"effect": "none", "addr": i2c_bench.nobody, "errno": "ENXIO"}
    assert "0x23" in caught.value.message


async def test_a_scan_finds_who_acknowledges_in_order(i2c_bench, transact):
    with trio.fail_after(30):
        found = await transact(i2c_bench.driver, lambda d: d.scan())
    assert i2c_bench.memory in found
    assert i2c_bench.nobody not in found
    assert found == sorted(found)
    assert max(found) <= LAST_ADDR


async def test_a_bus_that_is_not_open_is_refused_without_effect(i2c_bench, transact):
    driver = i2c_bench.driver
    for _ in range(2):
        driver.close()
    for op in (lambda d: d.transfer(i2c_bench.memory, [Read(1)]), lambda d: d.scan()):
        with trio.fail_after(30), pytest.raises(DeviceError, match="not open") as caught:
            await transact(driver, op)
        assert caught.value.data["effect"] == "none"


async def test_a_bus_works_again_when_it_is_reopened(i2c_bench, transact):
    driver = i2c_bench.driver
    driver.close()
    driver.open()
    with trio.fail_after(30):
        assert len(await transact(driver, lambda d: d.transfer(i2c_bench.memory, [Read(3)]))) == 3


async def test_describe_is_json_whether_the_bus_is_open_or_not(i2c_bench):
    assert json.loads(json.dumps(i2c_bench.driver.describe()))["kind"] == "i2c"
    i2c_bench.driver.close()
    assert json.loads(json.dumps(i2c_bench.driver.describe()))["kind"] == "i2c"


async def test_there_are_no_outputs_to_bring_to_a_safe_state(i2c_bench, transact):
    assert await transact(i2c_bench.driver, lambda d: d.make_safe([1])) == []
