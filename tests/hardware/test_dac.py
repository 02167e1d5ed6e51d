"""DAC channels on an MCP4725 under the kernel's driver: what was asked for is what its register has."""

from __future__ import annotations

import os
import random
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from support.hearthd import Hearthd
from support.mcp4725 import STEP, mcp4725
from support.waiting import passes

import hearth
from hearth.drivers.boards import load_profile
from hearth.drivers.boards.diagnose import look
from hearth.drivers.dac.driver import DacChannelSpec
from hearth.drivers.dac.linux import LinuxDac, iio_outputs
from hearth.drivers.sandbox.plan import devices_of
from hearth.errors import DeviceError, InterlockOpen, LimitViolated, ResourceBusy

LEVEL = 0
DUMMIES = Path("/sys/kernel/config/iio/devices/dummy")
PROFILE = """
name = "bench"
description = "a converter"
[[gpio]]
label = "door"
driver = "sim"
names = ["DOOR"]
[[dac]]
label = "{label}"
driver = "iio"
channels = ["LEVEL"]
[dac.channel.LEVEL]
scale = {scale!r}
min = 0.25
max = 3
safe = 0.5
slew = 6
{more}
"""
LOCK = """[[interlock]]
drives = "LEVEL"
above = 2
requires = [{ line = "DOOR", value = 0 }]
"""


def channel(**more):
    return DacChannelSpec(LEVEL, "LEVEL", **{"min": 0.25, "max": 3, "safe": 0.5, "scale": STEP, **more})


@pytest.fixture
def chip():
    with mcp4725() as chip:
        yield chip


@pytest.fixture
def driver(chip):
    driver = LinuxDac(chip.label, [channel()])
    driver.open()
    yield driver
    driver.close()


@pytest.fixture
def profile(chip, tmp_path):
    def write(more=""):
        path = tmp_path / "bench.toml"
        path.write_text(PROFILE.format(label=chip.label, scale=STEP, more=more))
        return path

    return write


@contextmanager
def dummy(name):
    """A converter that the kernel makes up, with one output and no scale."""
    at = DUMMIES / name
    at.mkdir()
    try:
        yield next(one.at for one in iio_outputs() if one.kernel == name)
    finally:
        at.rmdir()


def refusal(operation, error=DeviceError):
    with pytest.raises(error) as caught:
        operation()
    return caught.value


# --- the driver -------------------------------------------------------------------------------------------------------


def test_the_register_has_the_step_that_was_asked_for(chip, driver) -> None:
    for volts in (0.25, 1.65, 3):
        driver.set(LEVEL, volts)
        assert chip.volts == pytest.approx(volts, abs=STEP)
        assert 0.25 <= chip.volts <= 3
    assert chip.chip.power_down == 0


def test_the_device_is_found_by_its_lasting_name(chip, driver) -> None:
    assert driver.describe()["path"] == str(chip.at.resolve())
    missing = refusal(LinuxDac("mcp4725-i2c-1-61", [channel()]).open)
    assert missing.data["known"] == [chip.label]
    assert "hearth doctor" in missing.message


def test_a_converter_whose_reference_the_kernel_does_not_know_needs_a_scale(chip) -> None:
    refused = refusal(LinuxDac(chip.label, [channel(scale=None)]).open)
    assert "the kernel does not know its scale" in refused.message
    assert "give the channel a `scale`" in refused.message
    working = LinuxDac(chip.label, [channel()])
    working.open()
    working.close()


def test_an_output_that_the_device_has_not_is_refused_at_the_opening(chip) -> None:
    for wrong in (DacChannelSpec(1, "B", 0, 1, 0), channel(quantity="current")):
        refused = refusal(LinuxDac(chip.label, [wrong]).open)
        assert "it has out_voltage0, and no out_" in refused.message


def test_off_powers_the_output_down_and_a_value_powers_it_up_at_that_value(chip, driver) -> None:
    driver.set(LEVEL, 2)
    driver.set(LEVEL, "off")
    assert chip.chip.power_down != 0
    assert driver.value(LEVEL) == "off"
    assert driver.set(LEVEL, 1) == "off"
    assert (chip.at / "out_voltage0_powerdown").read_text() == "0\n"
    assert chip.volts == pytest.approx(1, abs=STEP)
    assert {raw for down, raw in chip.chip.writes if not down} == {round(2 / STEP), round(1 / STEP)}, "nothing between"


def test_a_chip_that_does_not_answer_is_an_error_with_an_unknown_effect_and_no_departure(chip, driver) -> None:
    driver.set(LEVEL, 1)
    chip.chip.acknowledges = False
    refused = refusal(lambda: driver.set(LEVEL, 2))
    assert (refused.data["errno"], refused.data["effect"]) == ("ENXIO", "unknown")
    assert "is it powered and connected" in refused.message
    chip.chip.acknowledges = True
    driver.set(LEVEL, 2)
    assert chip.volts == pytest.approx(2, abs=STEP)


def test_a_second_hearthd_is_kept_from_the_converter(chip, driver) -> None:
    second = LinuxDac(chip.label, [channel()])
    assert "another hearthd" in refusal(second.open, ResourceBusy).message
    driver.close()
    second.open()
    second.close()


@contextmanager
def another_user():
    """Be a user that root's files are closed to, in this thread's process."""
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_user_that_may_not_set_the_output_is_told_the_cure(chip) -> None:
    driver = LinuxDac(chip.label, [channel()])
    with another_user():
        refused = refusal(driver.open)
        assert (refused.data["errno"], refused.data["effect"]) == ("EACCES", "none")
        assert "`hearth doctor` shows the rule" in refused.message
    (chip.at / "out_voltage0_raw").chmod(0o666)
    with another_user():
        assert "out_voltage0_powerdown" in refusal(driver.open).message
    (chip.at / "out_voltage0_powerdown").chmod(0o666)
    with another_user():
        driver.open()
        driver.set(LEVEL, 2)
    assert chip.volts == pytest.approx(2, abs=STEP)
    driver.close()


@pytest.mark.parametrize("how", ["unplug", "unbind"])
async def test_a_device_that_goes_is_reported_at_once_and_opened_again_when_it_is_back(chip, driver, how) -> None:
    driver.set(LEVEL, 1)
    getattr(chip, how)()
    async with trio.open_nursery() as nursery:

        async def pump():
            with pytest.raises(DeviceError, match="is gone"):
                await driver.pump()

        nursery.start_soon(pump)
        await trio.testing.wait_all_tasks_blocked()
        assert refusal(lambda: driver.set(LEVEL, 2)).data["errno"] == "ENODEV"
    driver.close()
    assert refusal(driver.open).data["errno"] == "ENODEV"
    (chip.plug_in if how == "unplug" else chip.bind)()
    driver.open()
    driver.set(LEVEL, 2)
    assert chip.volts == pytest.approx(2, abs=STEP)


def test_a_converter_without_power_down_cannot_be_off() -> None:
    with dummy("made-up") as device:
        assert "it cannot be switched off" in refusal(LinuxDac("made-up", [channel(safe="off")]).open).message
        driver = LinuxDac("made-up", [channel(scale=0.001)])
        driver.open()
        driver.set(LEVEL, 1.5)
        assert (device / "out_voltage0_raw").read_text() == "1500\n"
        refused = refusal(lambda: driver.set(LEVEL, "off"))
        assert (refused.data["errno"], refused.data["effect"]) == ("ENOTSUP", "none")
        assert driver.value(LEVEL) == 1.5
        driver.close()


def test_a_reserved_channel_is_neither_opened_nor_set(chip) -> None:
    driver = LinuxDac(chip.label, [channel(reserved="the bias of the amplifier")])
    driver.open()
    assert "the bias of the amplifier" in refusal(lambda: driver.set(LEVEL, 1)).message
    driver.close()
    assert chip.chip.writes == []


# --- the daemon's runtime ---------------------------------------------------------------------------------------------


async def test_the_output_never_leaves_its_bounds_nor_its_slew_whatever_is_asked_of_it(chip, profile) -> None:
    rng = random.Random(5)
    async with hearth.open_runtime(board=str(profile())) as runtime:
        real, seen = chip.chip.stop, []
        chip.chip.stop = lambda: (real(), seen.append((time.monotonic(), chip.volts)))
        async with runtime.open_session(client_name="bench") as session:
            await session.dac.set("LEVEL", 0.5)
            for _ in range(10):
                volts = rng.choice([0.25, 3, rng.uniform(-2, 5)])
                if not 0.25 <= volts <= 3:
                    with pytest.raises(LimitViolated):
                        await session.dac.set("LEVEL", volts)
                    continue
                with trio.move_on_after(rng.choice([0.05, 5])):
                    await session.dac.set("LEVEL", volts)
                    assert chip.volts == pytest.approx(volts, abs=STEP)
            moved = len(seen)
    assert moved > 8
    assert all(0.25 <= volts <= 3 for _, volts in seen)
    steps = [abs(after - before) for (_, before), (_, after) in pairwise(seen[1:moved])]
    assert max(steps) <= 0.6 + 2 * STEP


async def test_the_end_of_a_session_brings_the_output_to_its_safe_value(chip, profile) -> None:
    async with hearth.open_runtime(board=str(profile())) as runtime:
        async with runtime.open_session(client_name="bench") as session:
            await session.dac.set("LEVEL", 2)
            reading = await session.dac.get("LEVEL")
            assert (reading.value, reading.unit) == (pytest.approx(2, abs=STEP), "volt")
        assert chip.volts == pytest.approx(0.5, abs=STEP)


async def test_an_interlock_and_a_halt_hold_the_output_down(chip, profile) -> None:
    async with (
        hearth.open_runtime(board=str(profile(LOCK))) as runtime,
        runtime.open_session(client_name="bench") as session,
    ):
        door = runtime.board.drivers["gpio:door"]
        await session.dac.set("LEVEL", 2.5)
        door.push(0, 1)
        await passes(lambda: chip.volts <= 0.5 + STEP)
        with pytest.raises(InterlockOpen):
            await session.dac.set("LEVEL", 2.5)
        await session.dac.set("LEVEL", 1)
        await session.halt("smoke")
        await passes(lambda: chip.volts <= 0.5 + STEP)


async def test_a_device_that_is_unbound_during_use_fails_the_step_and_serves_again_when_it_is_back(
    chip, profile
) -> None:
    async with (
        hearth.open_runtime(board=str(profile())) as runtime,
        runtime.open_session(client_name="bench") as session,
    ):
        await session.dac.set("LEVEL", 1)
        chip.unbind()
        with pytest.raises(DeviceError):
            await session.dac.set("LEVEL", 2)
        chip.bind()
        while True:
            try:
                await session.dac.set("LEVEL", 2)
            except DeviceError:
                await trio.sleep(0.05)
            else:
                break
        assert chip.volts == pytest.approx(2, abs=STEP)


def test_doctor_and_the_sandbox_know_the_converter(chip, profile) -> None:
    found = look(str(profile()))
    [told] = found["dacs"]
    assert (told["label"], told["outputs"]) == (chip.label, ["out_voltage0"])
    assert found["profile"]["problems"] == []
    grants = devices_of(load_profile(str(profile())), False).grants
    assert chip.at.resolve().parent in {path for path, access, _ in grants if access == "device"}


@pytest.mark.slow
def test_after_kill_9_the_output_is_as_it_was_until_the_next_start_makes_it_safe(chip, profile, tmp_path) -> None:
    daemon = Hearthd(tmp_path, f'[board]\nprofile = "{profile()}"\n')
    daemon.start()
    try:
        peer = daemon.peer()
        assert peer.run(peer.open(), "dac.set", channel="LEVEL", value=2.0)["status"] == "SUCCESS"
        assert chip.volts == pytest.approx(2, abs=STEP)
        daemon.kill()
        assert chip.volts == pytest.approx(2, abs=STEP)
        daemon.start()
        assert chip.volts == pytest.approx(0.5, abs=STEP)
        [made_safe] = [record for record in daemon.records() if record["event"] == "outputs.safe"]
        assert (made_safe["bus"], made_safe["safe"][0]["safe"]) == (f"dac:{chip.label}", 0.5)
        peer = daemon.peer()
        peer.run(peer.open(), "dac.set", channel="LEVEL", value=2.0)
        assert daemon.stop() == 0
        assert chip.volts == pytest.approx(0.5, abs=STEP)
    finally:
        daemon.end()
