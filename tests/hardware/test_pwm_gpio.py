"""PWM in software on a GPIO line (pwm-gpio): a chip without waveforms, whose pulses are seen on its line.

The kernel notes each change of a line in its trace, with the time. The chip comes from a device tree, and its lines
from gpio-mockup, whose calls never sleep. In virtual time its edges are exact, however busy the host is.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from support.gpio_sim import wait_until

from hearth.drivers.pwm.driver import ChannelSpec, Wave
from hearth.drivers.pwm.linux import LinuxPwm
from hearth.errors import DeviceError

DEVICE = "servo"
TREE = Path("/sys/firmware/devicetree/base/servo")
TRACING = Path("/sys/kernel/tracing")
BUSYBOX = "/run/busybox"

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.skipif(not TREE.exists(), reason="no pwm-gpio: the guest was booted without its device tree"),
]


@pytest.fixture(scope="module")
def chip():
    module = Path(os.environ["HEARTH_GUEST_MODULES"], "gpio-mockup.ko")
    subprocess.run([BUSYBOX, "insmod", module], check=True)
    if not (TRACING / "trace").exists():
        subprocess.run([BUSYBOX, "mount", "-t", "tracefs", "tracefs", TRACING], check=True)
    # The kernel has coarse timers for its first moments, on which this chip gives out nothing.
    wait_until("fine timers", lambda: time.clock_getres(time.CLOCK_MONOTONIC) < 1e-6)
    wait_until("the chip", Path("/sys/bus/platform/drivers/pwm-gpio", DEVICE).exists)
    return DEVICE


@pytest.fixture
def driver(chip):
    opened = []

    def made(**channel):
        driver = LinuxPwm(chip, [ChannelSpec(0, "SERVO", **channel)])
        driver.open()
        opened.append(driver)
        return driver

    yield made
    for driver in opened:
        driver.set(0, "off")
        driver.close()


@contextmanager
def traced(seen):
    """Note the changes of lines while the body runs: (seconds, line, level), into `seen`."""
    enable = TRACING / "events/gpio/gpio_value/enable"
    (TRACING / "trace_clock").write_text("mono")
    (TRACING / "trace").write_text("")
    enable.write_text("1")
    try:
        yield
    finally:
        enable.write_text("0")
        for line in (TRACING / "trace").read_text().splitlines():
            if not line.startswith("#"):
                when, _, words = line[line.index("]") + 1 :].split(": ", 2)
                number, what, level = words.split()[:3]
                if what == "set":
                    seen.append((float(when.split()[-1]), number, int(level)))


def share():
    """The share of the time for which the line is high: of the line that changes most often."""
    seen = []
    with traced(seen):
        time.sleep(0.5)  # what the line does in this time is what the test is about
    lines = [number for _, number, _ in seen]
    line = max(lines, key=lines.count)
    edges = [(when, level) for when, number, level in seen if number == line]
    high = sum(after - before for (before, level), (after, _) in pairwise(edges) if level)
    return high / (edges[-1][0] - edges[0][0])


def last(seen):
    """The level at the end: of the line that changes most often."""
    lines = [number for _, number, _ in seen]
    line = max(lines, key=lines.count)
    return [level for _, number, level in seen if number == line][-1]


def test_a_chip_without_waveforms_is_used_through_sys_and_its_line_shows_the_pulses(driver) -> None:
    servo = driver()
    assert servo.describe()["interface"] == "sysfs"
    for duty in (0.25, 0.6):
        servo.set(0, duty)
        assert share() == pytest.approx(duty, abs=0.03)


def test_the_period_and_the_pulse_change_in_an_order_that_the_kernel_takes(driver) -> None:
    servo = driver(min_period_us=5_000, max_period_us=40_000)
    servo.set(0, 0.9, 40_000)
    assert servo.set(0, 0.2, 10_000) == Wave(0.9, 40_000)
    assert share() == pytest.approx(0.2, abs=0.03)
    servo.set(0, 0.75, 20_000)
    assert share() == pytest.approx(0.75, abs=0.03)


def test_an_inversed_line_is_low_for_its_pulse(driver) -> None:
    servo = driver(polarity="inversed")
    servo.set(0, 0.25)
    assert share() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("closes", [False, True])
def test_off_leaves_an_inversed_line_high_also_when_the_chip_is_closed(driver, closes) -> None:
    servo = driver(polarity="inversed")
    servo.set(0, 0.5)
    seen: list[tuple[float, str, int]] = []
    with traced(seen):
        time.sleep(0.2)  # pulses, by which the line is known
        servo.set(0, "off")
        if closes:
            servo.close()
        time.sleep(0.2)
    assert last(seen) == 1
    if closes:
        servo.open()


@pytest.mark.parametrize(("polarity", "level"), [("normal", 0), ("inversed", 1)])
def test_this_chip_rests_where_the_load_has_no_power(driver, polarity, level) -> None:
    """What hearth doctor says of it, whose table has the kernel's drivers by name (hearth.drivers.pwm.spec)."""
    servo = driver(polarity=polarity)
    servo.set(0, 0.5)
    seen: list[tuple[float, str, int]] = []
    with traced(seen):
        time.sleep(0.2)  # pulses, by which the line is known
        (Path(servo.describe()["path"]) / "pwm0/enable").write_text("0")
        time.sleep(0.1)
    assert last(seen) == level


def test_a_character_device_that_is_asked_for_and_is_not_there_is_refused_with_the_cure(chip) -> None:
    driver = LinuxPwm(chip, [ChannelSpec(0, "SERVO")], chardev=True)
    with pytest.raises(DeviceError, match="take `chardev` out of the board profile"):
        driver.open()
