"""The contract of every I2C driver; `i2c_bench` gives one implementation after the other."""

import pytest
import trio
from attrs import evolve

from hearth.drivers.i2c.driver import DANGEROUS, LAST_ADDR, MAX_MESSAGES, Addresses
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.registers import Read, Write
from hearth.errors import DeviceError, PermissionDenied, ResourceBusy


def limit_ms(messages, **settings):
    return LinuxI2c(1, **settings).limit_ms(messages)


PATTERN = bytes(n * 7 % 251 for n in range(4096))


async def refused(bench, transact, messages, *, addr=None, **options):
    """The error of an exchange that must not happen."""
    with trio.fail_after(30), pytest.raises(DeviceError) as caught:
        await transact(bench.driver, lambda d: d.transfer(bench.memory if addr is None else addr, messages, **options))
    assert caught.value.data["effect"] == "none"
    assert f"i2c bus {caught.value.data['bus']}" in caught.value.message
    return caught.value


async def test_what_is_written_to_a_register_is_read_from_it(i2c_bench, transact):
    driver, addr = i2c_bench.driver, i2c_bench.memory
    assert await transact(driver, lambda d: d.transfer(addr, [Write(b"\x10abcd")])) == b""
    assert await transact(driver, lambda d: d.transfer(addr, [Write(b"\x11"), Read(3)])) == b"bcd"


@pytest.mark.parametrize("count", [1, 2, 3, 7])
async def test_a_register_of_any_size_keeps_the_order_of_its_bytes(i2c_bench, transact, count):
    driver, addr = i2c_bench.driver, i2c_bench.memory
    data = bytes(range(0x31, 0x31 + count))
    await transact(driver, lambda d: d.transfer(addr, [Write(b"\x40" + data)]))
    if count == 2 and i2c_bench.longest == 32:
        # The kernel's SMBus simulator has 16-bit registers: what goes in as a word comes out as one.
        assert await transact(driver, lambda d: d.transfer(addr, [Write(b"\x40"), Read(2)])) == data
        return
    for at in range(count):
        messages = [Write(bytes([0x40 + at])), Read(1)]
        assert await transact(driver, lambda d, wanted=messages: d.transfer(addr, wanted)) == data[at : at + 1]


async def test_a_read_without_a_register_goes_on_where_the_last_one_ended(i2c_bench, transact):
    driver, addr = i2c_bench.driver, i2c_bench.memory
    await transact(driver, lambda d: d.transfer(addr, [Write(b"\x20wxyz")]))
    await transact(driver, lambda d: d.transfer(addr, [Write(b"\x20"), Read(1)]))
    assert await transact(driver, lambda d: d.transfer(addr, [Read(1)])) == b"x"
    assert await transact(driver, lambda d: d.transfer(addr, [Read(1)])) == b"y"


async def test_several_reads_of_one_transaction_are_joined_or_refused_whole(i2c_bench, transact):
    driver, addr = i2c_bench.driver, i2c_bench.memory
    messages = [Write(b"\x30"), Read(2), Write(b"\x32"), Read(2)]
    await transact(driver, lambda d: d.transfer(addr, [Write(b"\x30abcd")]))
    if i2c_bench.messages >= len(messages):
        assert await transact(driver, lambda d: d.transfer(addr, messages)) == b"abcd"
        return
    error = await refused(i2c_bench, transact, messages)
    assert error.data["errno"] == "EOPNOTSUPP"
    assert "write 1, read 2, write 1, read 2 (bytes) as one exchange" in error.message


async def test_a_register_of_sixteen_bits_is_reached_or_refused_whole(i2c_bench, transact):
    driver, addr = i2c_bench.driver, i2c_bench.wide
    if addr is None:
        error = await refused(i2c_bench, transact, [Write(b"\x12\x34"), Read(3)])
        assert "in one exchange it can" in error.message
        return
    await transact(driver, lambda d: d.transfer(addr, [Write(b"\x12\x34abc")]))
    assert await transact(driver, lambda d: d.transfer(addr, [Write(b"\x12\x35"), Read(2)])) == b"bc"


@pytest.mark.parametrize("size", [33, 61, 300, 4096])
async def test_a_long_message_goes_whole_or_not_at_all(i2c_bench, transact, size):
    driver, addr = i2c_bench.driver, i2c_bench.wide
    data = PATTERN[:size]
    if addr is None:
        error = await refused(i2c_bench, transact, [Write(b"\0" + data)])
        assert error.data["errno"] == "EOPNOTSUPP"
        return
    await transact(driver, lambda d: d.transfer(addr, [Write(b"\0\0" + data)]))
    assert await transact(driver, lambda d: d.transfer(addr, [Write(b"\0\0"), Read(size)])) == data


@pytest.mark.parametrize("messages", [[Write(b"\x00\x01")], [Read(1)], [Write(b"\x00"), Read(1)]])
async def test_an_address_that_no_device_answers_at_is_an_error_without_effect(i2c_bench, transact, messages):
    error = await refused(i2c_bench, transact, messages, addr=i2c_bench.nobody)
    place = {"bus": i2c_bench.driver.bus, "addr": i2c_bench.nobody}
    assert error.data == {"effect": "none", **place, "errno": i2c_bench.nobody_errno}
    assert "0x23" in error.message


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Write(b"")],
        [Write(b"\0"), Read(0)],
        [Read(8193)],
        [Write(b"x" * 8193)],
        [Read(1)] * (MAX_MESSAGES + 1),
    ],
    ids=["none", "empty write", "empty read", "long read", "long write", "many"],
)
async def test_what_no_adapter_can_do_is_refused(i2c_bench, transact, messages):
    assert (await refused(i2c_bench, transact, messages)).data["errno"] == "EINVAL"


@pytest.mark.parametrize("addr", [-1, 0x07, 0x78, 0x7F, 0x400])
async def test_an_address_that_no_device_has_is_refused(i2c_bench, transact, addr):
    assert (await refused(i2c_bench, transact, [Read(1)], addr=addr)).data["errno"] == "EINVAL"


async def test_a_ten_bit_address_is_reached_or_refused_and_never_taken_for_seven_bits(i2c_bench, transact):
    # An adapter that cannot do it would send the low seven bits, and reach the memory at 0x50 in this case.
    driver, addr = i2c_bench.driver, 0x80 | i2c_bench.memory
    if i2c_bench.ten_bit is None:
        for where, options in ((addr, {}), (addr, {"ten_bit": True}), (i2c_bench.memory, {"ten_bit": True})):
            error = await refused(i2c_bench, transact, [Read(1)], addr=where, **options)
            assert error.data["errno"] == "EOPNOTSUPP"
            assert "10-bit" in error.message
        return
    await transact(driver, lambda d: d.transfer(i2c_bench.ten_bit, [Write(b"\x05ab")], ten_bit=True))
    # Beyond seven bits there is no doubt how it is meant.
    assert await transact(driver, lambda d: d.transfer(i2c_bench.ten_bit, [Write(b"\x05"), Read(2)])) == b"ab"
    await refused(i2c_bench, transact, [Read(1)], addr=i2c_bench.memory, ten_bit=True)


@pytest.mark.parametrize("messages", [[Read(1)], [Write(b"\x01\x02")], [Write(b"\x00"), Read(1)]])
async def test_an_address_that_a_driver_of_the_kernels_has_is_refused_naming_it(i2c_bench, transact, messages):
    with trio.fail_after(30), pytest.raises(ResourceBusy, match="'lm75'") as caught:
        await transact(i2c_bench.driver, lambda d: d.transfer(i2c_bench.owned, messages))
    place = {"bus": i2c_bench.driver.bus, "addr": i2c_bench.owned}
    assert caught.value.data == {"effect": "none", **place, "errno": "EBUSY", "reason": "held", "owner": "lm75"}


async def test_a_scan_finds_who_acknowledges_in_order_and_touches_nothing_that_is_owned(i2c_bench, transact):
    scan = await transact(i2c_bench.driver, lambda d: d.scan())
    assert i2c_bench.memory in scan.found
    assert i2c_bench.nobody not in scan.found
    assert list(scan.found) == sorted(scan.found)
    assert max(scan.found) <= LAST_ADDR
    assert scan.owned == {i2c_bench.owned: "lm75"}
    assert scan.skipped == DANGEROUS


async def test_a_scan_asks_at_a_dangerous_address_only_if_it_is_told_to(i2c_bench, transact):
    scan = await transact(i2c_bench.driver, lambda d: d.scan({0x0C, 0x69}))
    assert set(DANGEROUS) - set(scan.skipped) == {0x0C, 0x69}


def test_the_limit_of_a_transaction_grows_with_its_bytes_and_lets_the_kernel_end_it_first():
    assert limit_ms([Read(1)]) > 1000
    assert limit_ms([Read(200)]) > limit_ms([Read(100)]) > limit_ms([Read(1)])


async def test_an_adapter_knows_the_limit_of_a_transaction(i2c_bench):
    speed = i2c_bench.driver.speed_hz
    messages = [Write(b"\0"), Read(100)]
    assert i2c_bench.driver.limit_ms(messages) == limit_ms(messages, speed_hz=speed)


# --- what the board profile refuses ---------------------------------------------------------------------------------


async def test_an_address_that_the_profile_refuses_is_not_touched_for_any_caller(i2c_bench, transact, monkeypatch):
    driver, addr = i2c_bench.driver, i2c_bench.memory
    await transact(driver, lambda d: d.transfer(addr, [Write(b"\x10a")]))
    for rules, why in (
        (Addresses(reserved=frozenset({addr})), "reserves it"),
        (Addresses({addr + 1: 8}, "declared"), r"no device there \(scope = "),
    ):
        monkeypatch.setattr(driver, "addresses", rules)
        for messages in ([Write(b"\x10b")], [Read(1)], [Write(b"\x10"), Read(1)]):
            with pytest.raises(PermissionDenied, match=why) as caught:
                await transact(driver, lambda d, wanted=messages: d.transfer(addr, wanted))
            assert (caught.value.data["addr"], caught.value.data["effect"]) == (addr, "none")
    monkeypatch.setattr(driver, "addresses", Addresses({addr: None}, "declared"))
    assert await transact(driver, lambda d: d.transfer(addr, [Write(b"\x10"), Read(1)])) == b"a"


async def test_a_scan_skips_what_the_profile_refuses_even_if_it_is_named(i2c_bench, transact, monkeypatch):
    driver, addr = i2c_bench.driver, i2c_bench.memory
    monkeypatch.setattr(driver, "addresses", Addresses(reserved=frozenset({addr})))
    found = await transact(driver, lambda d: d.scan([addr]))
    assert addr not in found.found
    assert "reserves it" in found.skipped[addr]


WRITES = {
    "a register": [Write(b"\x20cd")],
    "a register before a read": [Write(b"\x20cd"), Read(2)],
    "a register after a read": [Read(2), Write(b"\x20c")],
    "two bytes before a read": [Write(b"\x20c"), Read(2)],
}


@pytest.mark.parametrize("how", WRITES)
async def test_a_device_that_safety_goes_by_is_only_read_by_any_caller(i2c_bench, transact, how):
    driver, addr = i2c_bench.driver, i2c_bench.memory
    await transact(driver, lambda d: d.transfer(addr, [Write(b"\x20ab")]))
    driver.addresses = evolve(driver.addresses, protected={addr: "an interlock goes by it"})
    for options in ({}, {"ten_bit": True}):
        with pytest.raises(PermissionDenied, match="an interlock goes by it") as refused:
            await transact(driver, lambda d, options=options: d.transfer(addr, WRITES[how], **options))
        assert refused.value.data["effect"] == "none"
    assert await transact(driver, lambda d: d.transfer(addr, [Write(b"\x20"), Read(2)])) == b"ab"
