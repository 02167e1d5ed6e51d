"""The contract of every SPI driver; `spi_bench` gives one implementation after the other."""

import pytest
import trio

from hearth.drivers.spi.driver import MAX_LENGTH, RegisterFrame, SpiRegister, SpiSettings
from hearth.drivers.spi.linux import LinuxSpi
from hearth.errors import DeviceError


def limit_ms(length, speed_hz):
    return LinuxSpi("x", "/none", SpiSettings(speed_hz=speed_hz)).limit_ms(length)


PATTERN = bytes(n * 7 % 251 for n in range(MAX_LENGTH))


async def exchange(bench, transact, data):
    with trio.fail_after(30):
        return await transact(bench.driver, lambda d: d.transfer(data))


async def refused(bench, transact, data):
    """The error of a transfer that must not begin."""
    with pytest.raises(DeviceError) as caught:
        await exchange(bench, transact, data)
    assert caught.value.data["effect"] == "none"
    assert caught.value.message.startswith(f"spi device '{bench.driver.device}': ")
    return caught.value


@pytest.mark.parametrize("size", [1, 2, 61, 256, MAX_LENGTH])
async def test_a_loopback_returns_what_is_sent_at_any_length(spi_loopback, transact, size):
    assert await exchange(spi_loopback, transact, PATTERN[:size]) == PATTERN[:size]


async def test_what_is_written_to_a_register_is_read_from_it(spi_registers, transact):
    frame, register = RegisterFrame(), SpiRegister(0x10, width=24)
    assert len(await exchange(spi_registers, transact, frame.write(register, 0x123456))) == 4
    answer = await exchange(spi_registers, transact, frame.read(register))
    assert answer[frame.header :] == b"\x12\x34\x56"


async def test_a_longer_write_goes_on_at_the_next_register(spi_registers, transact):
    await exchange(spi_registers, transact, b"\x20abc")
    assert (await exchange(spi_registers, transact, b"\xa1\0\0"))[1:] == b"bc"


@pytest.mark.parametrize("data", [b"", bytes(MAX_LENGTH + 1)], ids=["none", "long"])
async def test_what_no_controller_can_do_is_refused(spi_loopback, transact, data):
    assert (await refused(spi_loopback, transact, data)).data["errno"] == "EINVAL"


async def test_a_part_of_a_word_is_refused(spi_loopback, transact):
    bench, driver = spi_loopback, spi_loopback.driver
    driver.close()
    driver.settings = SpiSettings(bits=16, speed_hz=driver.settings.speed_hz)
    driver.open()
    assert await exchange(bench, transact, b"abcd") == b"abcd"
    error = await refused(bench, transact, b"abc")
    assert "3 bytes are no whole words of 16 bits (2 bytes each)" in error.message


async def test_a_device_knows_the_limit_of_a_transfer_which_grows_with_its_bytes(spi_loopback):
    driver = spi_loopback.driver
    assert driver.limit_ms(100) == limit_ms(100, driver.settings.speed_hz)
    assert limit_ms(4096, 100_000) > limit_ms(1, 100_000) > 1000
