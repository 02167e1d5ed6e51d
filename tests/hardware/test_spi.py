"""SPI devices of the kernel's: what is asked for is what the controller is told; its errors come with their effects."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support.virtio_spi import DEAD, HEADER, LOOPBACK, REGISTERS, Header, Wire, spidev
from support.waiting import passes

import hearth
from hearth import step
from hearth.drivers.boards.diagnose import look
from hearth.drivers.spi.driver import SpiSettings
from hearth.drivers.spi.linux import LinuxSpi
from hearth.errors import DeviceError, LimitViolated, ResourceBusy

PROFILE = """
name = "cell"
description = "SPI devices of the kernel's"
[[spi]]
name = "LOOP"
driver = "spidev"
path = "{loop}"
speed_hz = 10_000_000
[[spi]]
name = "MOTOR"
driver = "spidev"
path = "{registers}"
speed_hz = 10_000_000
[[spi.registers]]
reg = 0x10
name = "SPEED"
width = 16
max = 3000
unit = "rpm"
[[spi.registers]]
reg = 0x12
name = "CURRENT"
scale = 0.1
max = 2.0
on_limit = "clamp"
[[spi]]
name = "DEAD"
driver = "spidev"
path = "{dead}"
"""


@asynccontextmanager
async def cell(tmp_path):
    """A session on a board with three of the devices, and the wire's view."""
    profile = tmp_path / "cell.toml"
    profile.write_text(
        PROFILE.format(loop=spidev(LOOPBACK), registers=spidev(REGISTERS), dead=spidev(DEAD)), encoding="utf-8"
    )
    with trio.fail_after(60):
        async with hearth.open_runtime(board=str(profile)) as runtime, runtime.open_session() as session:
            yield runtime, session, Wire()


@pytest.fixture
def opened():
    """opened(chip select, settings…) is an open driver."""
    drivers = []

    def open_it(chip_select, **settings):
        driver = LinuxSpi("bench", spidev(chip_select), SpiSettings(**settings))
        driver.open()
        drivers.append(driver)
        return driver

    yield open_it
    for driver in drivers:
        driver.close()


def header(driver):
    answer = driver.transfer(bytes(32))
    word = driver.settings.word
    return Header.read(b"".join(answer[at : at + word][::-1] for at in range(0, 32, word)))


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize(("flag", "bit"), [(None, 0), ("cs_high", 4), ("lsb_first", 8)])
def test_the_controller_is_told_the_mode_of_the_profile(opened, mode, flag, bit):
    told = header(opened(HEADER, mode=mode, **({flag: True} if flag else {})))
    assert (told.chip_select, told.mode & 0x0F) == (HEADER, mode | bit)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("speed_hz", [100_000, 2_000_000])
def test_the_controller_is_told_the_word_and_the_speed_of_the_profile(opened, bits, speed_hz):
    told = header(opened(HEADER, bits=bits, speed_hz=speed_hz))
    assert (told.bits, told.hz) == (bits, speed_hz)


def test_the_settings_of_the_last_user_do_not_stay(opened):
    opened(HEADER, mode=3, bits=16, cs_high=True).close()
    told = header(opened(HEADER))
    assert (told.mode, told.bits) == (0, 8)


def test_words_go_out_high_byte_first(opened):
    # The controller gets words as this machine has them: low byte first.
    wire, driver = Wire(), opened(LOOPBACK, bits=16)
    assert driver.transfer(b"\x12\x34\x56\x78") == b"\x12\x34\x56\x78"
    assert wire.transfers() == [(LOOPBACK, b"\x34\x12\x78\x56")]


def test_a_word_that_the_controller_lacks_is_refused_when_the_device_is_opened():
    driver = LinuxSpi("bench", spidev(LOOPBACK), SpiSettings(bits=24))
    with pytest.raises(DeviceError, match=r"cannot do this \(words of 24 bits\); correct the board profile") as caught:
        driver.open()
    assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "EINVAL")
    assert not [fd for fd in os.listdir("/proc/self/fd") if "spidev" in _target(fd)]


def _target(fd):
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return ""


def test_a_transfer_that_the_controller_fails_has_an_unknown_effect(opened):
    with pytest.raises(DeviceError, match=r"the controller reports that the transfer failed \(EIO\)") as caught:
        opened(DEAD).transfer(b"x")
    assert caught.value.data == {"effect": "unknown", "device": "bench", "errno": "EIO"}


def test_a_node_that_is_no_spi_device_is_refused(tmp_path):
    for path, errno in (("/dev/null", "ENOTTY"), (f"{tmp_path}/none", "ENOENT")):
        with pytest.raises(DeviceError) as caught:
            LinuxSpi("bench", path).open()
        assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", errno)


def test_a_device_that_one_may_not_open_names_the_cure():
    os.seteuid(65534)
    try:
        with pytest.raises(DeviceError, match="no permission for /dev/spidev") as caught:
            LinuxSpi("bench", spidev(LOOPBACK)).open()
    finally:
        os.seteuid(0)
    assert "a udev rule may give it to a group" in caught.value.message


def test_only_one_hearthd_has_a_device(opened):
    opened(LOOPBACK)
    with pytest.raises(ResourceBusy, match="is in use by another hearthd"):
        LinuxSpi("other", spidev(LOOPBACK)).open()


def test_a_device_on_lines_of_a_gpio_chip_reads_what_its_line_shows():
    """spi-gpio: the kernel moves the lines itself, and the input is pulled by the test."""
    (bank,) = Path("/sys/devices/platform/gpio").glob("gpiochip*")
    driver = LinuxSpi("bench", "/dev/spidev0.0", SpiSettings(speed_hz=100_000))
    driver.open()
    try:
        for pull, byte in (("pull-up", 0xFF), ("pull-down", 0x00)):
            (bank / "sim_gpio3/pull").write_text(pull)
            assert driver.transfer(b"\xa5\x5a") == bytes([byte] * 2)
    finally:
        driver.close()


# --- through the runtime ----------------------------------------------------------------------------------------------


async def test_a_transfer_of_4096_bytes_is_one_on_the_wire(tmp_path):
    data = bytes(range(256)) * 16
    async with cell(tmp_path) as (_runtime, session, wire):
        assert (await session.run("spi.transfer", device="LOOP", hex=data.hex()))["data"]
        assert wire.transfers() == [(LOOPBACK, data)]


async def test_a_register_is_written_and_read_by_name_in_its_unit(tmp_path):
    async with cell(tmp_path) as (_runtime, session, wire):
        await session.run("spi.write", device="MOTOR", register="SPEED", value=1200)
        read = await session.run("spi.read", device="MOTOR", register="SPEED")
        assert read == {"device": "MOTOR", "register": "SPEED", "value": 1200, "raw": 1200, "unit": "rpm"}
        assert wire.transfers() == [(REGISTERS, b"\x10\x04\xb0"), (REGISTERS, b"\x90\0\0")]


async def test_what_is_beyond_a_limit_is_clamped_or_does_not_reach_the_wire(tmp_path):
    async with cell(tmp_path) as (_runtime, session, wire):
        with pytest.raises(LimitViolated):
            await session.run("spi.write", device="MOTOR", register="SPEED", value=3001)
        with pytest.raises(LimitViolated):
            await session.run("spi.transfer", device="MOTOR", hex="10 ff ff")
        with pytest.raises(LimitViolated):
            await session.run("spi.transfer", device="MOTOR", hex="30 00")
        assert wire.transfers() == []
        assert (await session.run("spi.write", device="MOTOR", register="CURRENT", value=2.5))["value"] == 2.0
        assert wire.transfers() == [(REGISTERS, b"\x12\x14")]


async def test_transfers_of_one_controllers_devices_do_not_mix(tmp_path):
    async with cell(tmp_path) as (_runtime, session, wire):

        async def many(device, text):
            for _ in range(5):
                await session.run("spi.transfer", device=device, hex=text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(many, "LOOP", "aa" * 300)
            nursery.start_soon(many, "MOTOR", "90" + "00" * 20)
        sent = wire.transfers()
    assert sorted(sent) == [(LOOPBACK, b"\xaa" * 300)] * 5 + [(REGISTERS, b"\x90" + bytes(20))] * 5


async def test_a_device_whose_transfer_stands_is_wedged_and_ready_when_it_returns(tmp_path):
    async with cell(tmp_path) as (runtime, session, wire):
        try:
            wire.hold()
            stuck = await session.submit("stuck", [step("spi.transfer", device="LOOP", text="x")])
            await passes(lambda: runtime.health()["buses"]["spi:LOOP"]["state"] == "wedged")
            with pytest.raises(ResourceBusy, match="wedged"):
                await session.run("spi.transfer", device="LOOP", text="y")
        finally:
            wire.release()
        await stuck.wait()
        await passes(lambda: runtime.health()["buses"]["spi:LOOP"]["state"] == "ready")
        assert (await session.run("spi.transfer", device="LOOP", text="y"))["text"] == "y"


async def test_a_failed_transfer_is_a_failed_step_with_its_effect(tmp_path):
    async with cell(tmp_path) as (_runtime, session, _wire):
        with pytest.raises(DeviceError) as caught:
            await session.run("spi.transfer", device="DEAD", text="x")
        assert caught.value.data["effect"] == "unknown"
        assert (await session.run("spi.transfer", device="LOOP", text="x"))["text"] == "x"


async def test_generic_linux_drives_the_devices_that_have_a_node():
    async with hearth.open_runtime(board="generic-linux") as runtime, runtime.open_session() as session:
        listed = {one["device"]: one for one in (await session.run("hw.spi.list"))["devices"]}
        loop = Path(spidev(LOOPBACK)).name
        assert set(listed) == set(os.listdir("/sys/class/spidev"))
        assert listed[loop]["driver"] == "spidev"
        assert (await session.run("spi.transfer", device=loop, text="found"))["text"] == "found"


def test_doctor_lists_the_devices_and_what_a_profile_misses(tmp_path):
    profile = tmp_path / "cell.toml"
    profile.write_text(PROFILE.format(loop=spidev(LOOPBACK), registers="/dev/spidev9.9", dead=spidev(DEAD)))
    found = look(str(profile))
    assert spidev(LOOPBACK) in [device["path"] for device in found["spi"]]
    (problem,) = found["profile"]["problems"]
    assert (problem["key"], problem["severity"]) == ("spi[1].path", "fail")
    assert "/dev/spidev9.9 is not there; there is /dev/spidev" in problem["problem"]
    assert "dtparam=spi=on" in problem["cure"]
