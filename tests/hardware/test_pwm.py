"""PWM channels and servos on a PCA9685 under the kernel's driver: what was asked for is what its registers have."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from contextlib import contextmanager
from fcntl import ioctl
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from support.pca9685 import pca9685

import hearth
from hearth.drivers.pwm.driver import ChannelSpec, Pulses, ServoSpec
from hearth.drivers.pwm.linux import LinuxPwm, pwm_chips
from hearth.errors import DeviceError, LimitViolated, ResourceBusy

FAN, SERVO, OTHER = range(3)
CHANNELS = [
    ChannelSpec(FAN, "FAN", min_period_us=1_000, max_period_us=40_000),
    ChannelSpec(SERVO, "SERVO", servo=ServoSpec(1_000, 2_000, -45, 45, slew=300), safe=0),
    ChannelSpec(OTHER, "OTHER", period_us=5_000),
]
REQUEST = 0x75 << 8 | 1

PROFILE = """
name = "arm"
description = "a servo board"
[[pwm]]
label = "{label}"
driver = "pwm"
chardev = {chardev}
channels = ["FAN", "SERVO"]
[pwm.channel.FAN]
period_us = 20_000
safe = 0.1
limit = {{ max = 0.8, max_step = 0.5 }}
[pwm.channel.SERVO]
servo = {{ min_us = 1_000, max_us = 2_000, min_angle = -45, max_angle = 45, slew = 300 }}
safe = 0
"""


@pytest.fixture
def chip():
    with pca9685() as chip:
        yield chip


@pytest.fixture(params=[True, False], ids=["chardev", "sysfs"])
def chardev(request):
    return request.param


@pytest.fixture
def driver(chip, chardev):
    driver = LinuxPwm(chip.label, CHANNELS, chardev=chardev)
    driver.open()
    yield driver
    driver.close()


@pytest.fixture
def profile(chip, chardev, tmp_path):
    path = tmp_path / "arm.toml"
    path.write_text(PROFILE.format(label=chip.label, chardev=str(chardev).lower()))
    return path


def refusal(operation, error=DeviceError):
    with pytest.raises(error) as caught:
        operation()
    return caught.value


# --- the driver -------------------------------------------------------------------------------------------------------


def test_the_registers_have_the_steps_of_the_pulse_that_was_asked_for(chip, driver) -> None:
    driver.set(FAN, 0.25)
    begin, steps = chip.steps(FAN)
    assert begin == 0
    assert steps == pytest.approx(1024, abs=2)
    assert chip.period_us == pytest.approx(20_000, rel=0.001)
    for angle, pulse_us in ((-45, 1_000), (0, 1_500), (45, 2_000)):
        driver.set(SERVO, angle)
        assert -2 * chip.step_us <= chip.pulse_us(SERVO) - pulse_us <= 0.01


def test_the_chip_is_found_by_its_device_whatever_its_number_is(chip, driver) -> None:
    [found] = [found for found in pwm_chips() if found.device == chip.label]
    assert driver.describe()["path"] == str(chip.chip.resolve()) == str(found.path)
    missing = refusal(LinuxPwm("7-0041", CHANNELS).open)
    assert missing.data["known"] == [chip.label]
    assert "hearth doctor" in missing.message


def test_a_channel_number_that_the_chip_has_not_is_refused_at_the_opening(chip) -> None:
    other = LinuxPwm(chip.label, [ChannelSpec(17, "BEYOND")])
    assert "0 to 16" in refusal(other.open).message


def test_a_channel_that_sysfs_has_taken_is_busy_for_the_waveforms_and_the_others_are_not(chip) -> None:
    (chip.chip / "export").write_text(str(SERVO))
    # A channel in use has a period, which all channels of this chip have then.
    (chip.chip / f"pwm{SERVO}" / "period").write_text("20000000")
    driver = LinuxPwm(chip.label, CHANNELS, chardev=True)
    driver.open()
    try:
        busy = refusal(lambda: driver.set(SERVO, 0), ResourceBusy)
        assert (busy.data["errno"], busy.data["effect"]) == ("EBUSY", "none")
        driver.set(FAN, 0.5)
        (chip.chip / "unexport").write_text(str(SERVO))
        driver.set(SERVO, 0)
        assert chip.pulse_us(SERVO) > 0
    finally:
        driver.close()


def test_a_channel_that_a_waveform_has_taken_is_busy_for_sysfs(chip) -> None:
    other = os.open(f"/dev/{chip.chip.name}", os.O_RDWR)
    driver = LinuxPwm(chip.label, CHANNELS, chardev=False)
    driver.open()
    try:
        ioctl(other, REQUEST, SERVO)
        assert refusal(lambda: driver.set(SERVO, 0), ResourceBusy).data["effect"] == "none"
    finally:
        os.close(other)
        driver.set(SERVO, 0)
        driver.close()
    assert chip.pulse_us(SERVO) > 0


def test_a_channel_that_was_exported_between_two_looks_is_taken_over(chip) -> None:
    """The race of two exports: one of them is EBUSY, and the channel's directory is there all the same."""
    (chip.chip / "export").write_text(str(FAN))
    driver = LinuxPwm(chip.label, CHANNELS, chardev=False)
    driver.open()
    driver.set(FAN, 0.5)
    assert chip.steps(FAN)[1] == pytest.approx(2048, abs=2)
    driver.close()
    assert not (chip.chip / f"pwm{FAN}").exists()


def test_a_second_hearthd_is_kept_from_the_chip(chip, driver) -> None:
    second = LinuxPwm(chip.label, CHANNELS)
    assert "another hearthd" in refusal(second.open, ResourceBusy).message
    driver.close()
    second.open()
    second.close()


def test_a_period_that_the_chips_other_channels_do_not_have_is_refused_and_nothing_changes(chip) -> None:
    """The character device tells it beforehand; /sys would give out the pulse in the other period."""
    driver = LinuxPwm(chip.label, CHANNELS, chardev=True)
    driver.open()
    driver.set(SERVO, 10)
    before = chip.steps(SERVO), chip.period_us
    refused = refusal(lambda: driver.set(OTHER, 0.5))
    assert refused.data["channel"] == "OTHER"
    assert (chip.steps(SERVO), chip.period_us) == before
    assert chip.steps(OTHER) == (0, 0)
    driver.close()


def test_the_period_changes_while_the_channel_is_alone(chip, driver, chardev) -> None:
    for period_us in (5_000, 20_000, 2_000, 40_000):
        driver.set(FAN, 0.5, period_us)
        assert chip.period_us == pytest.approx(period_us, rel=0.05)
        # The chip's periods have steps; through /sys the share is that of the period that was asked for.
        assert chip.steps(FAN)[1] == pytest.approx(2048, abs=4 if chardev else 0.05 * 2048)


def test_an_inversed_waveform_begins_with_its_low_part(chip) -> None:
    driver = LinuxPwm(chip.label, [ChannelSpec(0, "INV", polarity="inversed")], chardev=True)
    driver.open()
    driver.set(0, 0.25)
    begin, steps = chip.steps(0)
    assert begin == pytest.approx(1024, abs=3)
    assert steps == pytest.approx(3072, abs=3)
    driver.close()


TRACING = Path("/sys/kernel/tracing")
ROUNDED = TRACING / "events/pwm/pwm_round_waveform_tohw/enable"


@contextmanager
def driven(seen):
    """Note the waveforms that the chip is given while the body runs, into `seen`: the share for which the pin is high.

    A channel that is not enabled has none.
    """
    if not ROUNDED.exists():
        subprocess.run(["/run/busybox", "mount", "-t", "tracefs", "tracefs", TRACING], check=True)
    (TRACING / "trace").write_text("")
    ROUNDED.write_text("1")
    try:
        yield
    finally:
        ROUNDED.write_text("0")
        for line in (TRACING / "trace").read_text().splitlines():
            if found := re.search(r"tohw: \S+ (\d+)/(\d+) ", line):
                high, period = map(int, found.groups())
                seen.append(high / period if period else None)


@pytest.mark.parametrize(("first", "power"), [(0.25, 0.25), ("off", 0)])
@pytest.mark.parametrize("enabled", [True, False], ids=["enabled", "not enabled"])
def test_an_inversed_channel_has_its_polarity_before_its_first_pulses(chip, first, power, enabled) -> None:
    (chip.chip / "export").write_text("0")
    (chip.chip / "pwm0/enable").write_text(str(int(enabled)))
    driver = LinuxPwm(chip.label, [ChannelSpec(0, "INV", polarity="inversed")], chardev=False)
    driver.open()
    seen: list[float | None] = []
    with driven(seen):
        driver.set(0, first)
    assert seen[-1] == pytest.approx(1 - power, abs=0.001)
    assert all(high is None or high >= seen[-1] for high in seen), seen
    driver.close()
    assert chip.steps(0)[1] == pytest.approx(4096 * (1 - power), abs=3)
    assert (chip.chip / "pwm0").exists(), "some chips switch off a channel that is given back"
    (chip.chip / "unexport").write_text("0")


@pytest.mark.parametrize("chardev", [True, False], ids=["chardev", "sysfs"])
def test_off_is_not_refused_to_an_inversed_channel_for_a_period_that_the_chip_cannot_give_it(chip, chardev) -> None:
    channels = [ChannelSpec(0, "INV", polarity="inversed", period_us=5_000), ChannelSpec(1, "OTHER")]
    driver = LinuxPwm(chip.label, channels, chardev=chardev)
    driver.open()
    driver.set(1, 0.5)
    driver.set(0, "off")
    assert chip.steps(0) == (0, 4096)
    assert chip.steps(1)[1] == pytest.approx(2048, abs=2)
    driver.close()


@pytest.mark.parametrize("how", ["unplug", "unbind"])
async def test_a_chip_that_goes_is_reported_at_once_and_opened_again_when_it_is_back(chip, driver, how) -> None:
    driver.set(FAN, 0.5)
    getattr(chip, how)()
    async with trio.open_nursery() as nursery:

        async def pump():
            with pytest.raises(DeviceError, match="is gone"):
                await driver.pump()

        nursery.start_soon(pump)
        await trio.testing.wait_all_tasks_blocked()
        gone = refusal(lambda: driver.set(FAN, 0.25))
        assert gone.data["errno"] == "ENODEV"
    driver.close()
    assert refusal(driver.open).data["errno"] == "ENODEV"
    (chip.plug_in if how == "unplug" else chip.bind)()
    driver.open()
    driver.set(FAN, 0.25)
    assert chip.steps(FAN)[1] == pytest.approx(1024, abs=2)


def test_a_period_that_the_chip_cannot_have_is_refused_with_the_nearest(chip) -> None:
    driver = LinuxPwm(chip.label, [ChannelSpec(0, "SLOW", period_us=90_000_000)], chardev=True)
    driver.open()
    refused = refusal(lambda: driver.set(0, 0.5))
    assert "us now, and not of 9e+07 us" in refused.message
    assert chip.steps(0) == (0, 0)
    driver.close()


def test_a_value_that_the_kernel_refuses_is_told_with_its_errno(chip, driver) -> None:
    refused = refusal(lambda: driver.write(driver.specs[FAN], Pulses(30_000_000, 20_000_000)))
    assert refused.data["errno"] == "EINVAL"
    assert refused.data["effect"] == "none"
    assert chip.steps(FAN) == (0, 0)


@contextmanager
def another_user():
    """Be a user that root's files are closed to, in this thread's process."""
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_user_that_may_not_use_the_chip_is_told_the_cure(chip) -> None:
    node = LinuxPwm(chip.label, CHANNELS, chardev=True)
    either = LinuxPwm(chip.label, CHANNELS)
    with another_user():
        refused = refusal(node.open)
        assert refused.data["errno"] == "EACCES"
        assert "`hearth doctor` shows the rule" in refused.message
        # Without the node there is still /sys, where the export is refused.
        either.open()
        assert either.describe()["interface"] == "sysfs"
        refused = refusal(lambda: either.set(FAN, 0.5))
        assert (refused.data["errno"], refused.data["effect"]) == ("EACCES", "none")
    either.close()
    assert chip.steps(FAN) == (0, 0)


@pytest.mark.parametrize("given", [True, False], ids=["given in time", "never given"])
def test_the_files_of_an_exported_channel_are_waited_for_until_udev_has_given_them(chip, given) -> None:
    (chip.chip / "export").chmod(0o666)
    driver = LinuxPwm(chip.label, CHANNELS, chardev=False)
    driver.open()
    files = [chip.chip / f"pwm{FAN}" / name for name in ("period", "duty_cycle", "enable", "polarity")]

    def udev():
        # A process of its own, since the user is one of the whole process.
        script = "while ! [ -e {0} ]; do sleep 0.01; done; sleep 0.1; chmod 666 {1}"
        words = script.format(files[-1], " ".join(map(str, files)))
        return subprocess.Popen(["sh", "-c", words])

    rule = udev() if given else None
    with another_user():
        if given:
            driver.set(FAN, 0.5)
        else:
            assert refusal(lambda: driver.set(FAN, 0.5)).data["errno"] == "EACCES"
    if rule is not None:
        assert rule.wait(30) == 0
    assert (chip.steps(FAN)[1] > 0) is given
    driver.close()


# --- the daemon's runtime ---------------------------------------------------------------------------------------------


async def test_a_servo_never_leaves_its_limits_nor_its_slew_whatever_is_asked_of_it(chip, profile) -> None:
    rng = random.Random(7)
    seen: list[tuple[float, float]] = []
    async with hearth.open_runtime(board=str(profile)) as runtime:
        driver = runtime.board.drivers[f"pwm:{chip.label}"]
        real = driver.write

        def write(spec, pulses):
            real(spec, pulses)
            if spec.name == "SERVO" and pulses.enabled:
                seen.append((time.monotonic(), chip.pulse_us(SERVO)))

        driver.write = write
        async with runtime.open_session(client_name="arm") as session:
            await session.run("servo.move", servo="SERVO", angle=0)
            for _ in range(12):
                angle = rng.choice([-45, 45, rng.uniform(-200, 200)])
                if not -45 <= angle <= 45:
                    with pytest.raises(LimitViolated):
                        await session.run("servo.move", servo="SERVO", angle=angle)
                    continue
                with trio.move_on_after(rng.choice([0.05, 5])):
                    await session.run("servo.move", servo="SERVO", angle=angle)
                    assert chip.pulse_us(SERVO) == pytest.approx(1_500 + angle * 500 / 45, abs=12)
    assert len(seen) > 8
    assert all(1_000 - 2 * chip.step_us <= pulse_us <= 2_000 for _, pulse_us in seen)
    # 300 degrees a second are 3333 us of pulse a second, in steps of a tenth of a second at most.
    moves = seen[:-1]  # the last one is the safe state, which no limit holds up
    steps = [abs(after - before) for (_, before), (_, after) in pairwise(moves)]
    assert max(steps) <= 334 + 2 * chip.step_us


async def test_the_end_of_a_session_brings_its_channels_to_their_safe_state(chip, profile) -> None:
    async with hearth.open_runtime(board=str(profile)) as runtime:
        async with runtime.open_session(client_name="arm") as session:
            await session.run("servo.move", servo="SERVO", angle=30)
            await session.run("pwm.set", channel="FAN", duty=0.5)
            assert (await session.run("pwm.get", channel="SERVO"))["angle"] == pytest.approx(30, abs=1)
        assert chip.pulse_us(SERVO) == pytest.approx(1_500, abs=2 * chip.step_us)
        assert chip.steps(FAN)[1] == pytest.approx(410, abs=3)


async def test_a_rollback_moves_the_servo_back(chip, profile) -> None:
    async with (
        hearth.open_runtime(board=str(profile)) as runtime,
        runtime.open_session(client_name="arm") as session,
    ):
        await session.run("servo.move", servo="SERVO", angle=20)
        before = chip.steps(SERVO)
        task = await session.submit(
            "a move that is taken back",
            [
                hearth.step("servo.move", servo="SERVO", angle=-40),
                hearth.step("pwm.set", channel="FAN", duty=0.7),
                hearth.step("pwm.set", channel="FAN", duty=0.1),
            ],
            rollback_on_failure=True,
        )
        result = await task.wait()
        assert result.status == "FAILED"
        assert chip.steps(SERVO) == before
        assert chip.steps(FAN)[1] == 0


async def test_a_chip_that_is_unbound_during_use_fails_the_step_and_serves_again_when_it_is_back(chip, profile) -> None:
    async with (
        hearth.open_runtime(board=str(profile)) as runtime,
        runtime.open_session(client_name="arm") as session,
    ):
        await session.run("pwm.set", channel="FAN", duty=0.3)
        chip.unbind()
        with pytest.raises(DeviceError):
            await session.run("pwm.set", channel="FAN", duty=0.4)
        chip.bind()
        while True:
            try:
                await session.run("pwm.set", channel="FAN", duty=0.4)
            except DeviceError:
                await trio.sleep(0.05)
            else:
                break
        assert chip.steps(FAN)[1] == pytest.approx(1638, abs=3)


def test_the_sandbox_plan_names_the_chips_directory_and_node(chip, profile) -> None:
    from hearth.drivers.boards import load_profile
    from hearth.drivers.sandbox.plan import devices_of

    grants = devices_of(load_profile(str(profile)), False).grants
    paths = {path for path, access, _ in grants if access == "device"}
    assert {chip.chip.resolve(), Path("/dev", chip.chip.name)} <= paths
