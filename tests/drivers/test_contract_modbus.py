"""The contract of every Modbus line; `modbus_bench` is an open one with unit 3, whose tables have 200 places each."""

from __future__ import annotations

import pytest
import trio

from hearth.errors import DeviceError, InvalidParams, PermissionDenied

BOUND = 60


async def read(driver, transact, table, reg, count=1, unit=3):
    with trio.fail_after(BOUND):
        return await transact(driver, lambda d: d.read(unit, table, reg, count))


async def write(driver, transact, table, reg, *values, unit=3):
    with trio.fail_after(BOUND):
        await transact(driver, lambda d: d.write(unit, table, reg, values))


async def test_registers_that_are_written_are_read_back(modbus_bench, transact):
    await write(modbus_bench, transact, "holding", 10, 0xFFFF)
    await write(modbus_bench, transact, "holding", 11, 1, 0x8000, 0)
    assert await read(modbus_bench, transact, "holding", 9, 6) == (0, 0xFFFF, 1, 0x8000, 0, 0)


async def test_coils_that_are_written_are_read_back(modbus_bench, transact):
    await write(modbus_bench, transact, "coil", 3, 1)
    await write(modbus_bench, transact, "coil", 5, 1, 1, 0, 1, 0, 0, 0, 0, 1)
    assert await read(modbus_bench, transact, "coil", 2, 13) == (0, 1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1, 0)
    await write(modbus_bench, transact, "coil", 3, 0)
    assert await read(modbus_bench, transact, "coil", 3) == (0,)


async def test_each_table_has_its_own_places(modbus_bench, transact):
    await write(modbus_bench, transact, "holding", 7, 77)
    assert await read(modbus_bench, transact, "input", 7, 3) == (7, 8, 9)
    assert await read(modbus_bench, transact, "discrete", 7) == (0,)
    assert await read(modbus_bench, transact, "holding", 7) == (77,)


async def test_the_longest_requests_pass_whole(modbus_bench, transact):
    values = tuple(range(1000, 1123))
    await write(modbus_bench, transact, "holding", 70, *values)
    assert await read(modbus_bench, transact, "holding", 70, 125) == (*values, 0, 0)
    assert await read(modbus_bench, transact, "input", 0, 125) == tuple(range(125))


async def test_an_exception_of_the_device_is_an_error_without_effect_and_the_line_goes_on(modbus_bench, transact):
    with pytest.raises(DeviceError, match="exception 2, illegal data address") as caught:
        await read(modbus_bench, transact, "holding", 500)
    assert caught.value.data["exception"] == 2
    assert caught.value.data["effect"] == "none"
    assert (caught.value.data["line"], caught.value.data["unit"]) == ("bench", 3)
    with pytest.raises(DeviceError, match="exception 2") as caught:
        await write(modbus_bench, transact, "holding", 500, 1, 2)
    assert caught.value.data["effect"] == "none"
    assert await read(modbus_bench, transact, "input", 42) == (42,)


async def test_what_the_profile_or_one_request_does_not_allow_is_never_sent(modbus_bench, transact):
    with pytest.raises(PermissionDenied, match="no such device"):
        await read(modbus_bench, transact, "holding", 0, unit=9)
    for table, reg, count in (("holding", 0, 126), ("holding", 0xFFFF, 2), ("coil", -1, 1), ("input", 0, 0)):
        with pytest.raises(InvalidParams):
            await read(modbus_bench, transact, table, reg, count)
    for table, values in (("input", (1,)), ("holding", (0,) * 124), ("coil", ())):
        with pytest.raises(InvalidParams):
            await write(modbus_bench, transact, table, 0, *values)


async def test_requests_that_run_after_each_other_get_their_own_answers(modbus_bench, transact):
    for reg in range(0, 100, 3):
        assert await read(modbus_bench, transact, "input", reg) == (reg,)
    assert modbus_bench.limit_ms(2) > modbus_bench.limit_ms() > 1000


async def test_a_unit_that_is_not_there_is_an_error_and_the_line_goes_on(modbus_bench, transact):
    modbus_bench._timeout_s = 0.2  # pymodbus answers for it, with an exception
    with pytest.raises(DeviceError, match=r"device unit4 \(unit 4\)") as caught:
        await read(modbus_bench, transact, "holding", 0, unit=4)
    assert caught.value.data["effect"] == "none"
    modbus_bench._timeout_s = 10
    assert await read(modbus_bench, transact, "input", 1) == (1,)
