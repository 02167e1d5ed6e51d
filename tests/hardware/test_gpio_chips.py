"""GPIO chips of the kernel: found by label or path, refused with a cure, and asked where it costs nobody anything."""

import os
import resource
from contextlib import contextmanager
from pathlib import Path

import gpiod
import pytest
from gpiod.line import Direction, Value
from smbus2 import SMBus
from support.gpio_sim import gpio_sim, wait_until
from support.i2c_stub import kernel_driver, stub_bus
from support.mcp2221 import Mcp2221

from hearth.drivers.base import Style
from hearth.drivers.gpio.linux import LinuxGpio
from hearth.drivers.gpio.spec import LineSpec
from hearth.errors import DeviceError


def specs(count=8):
    return [LineSpec(n, f"L{n}") for n in range(count)]


@contextmanager
def opened(label, lines=None, **more):
    driver = LinuxGpio(label, lines or specs(), **more)
    driver.open()
    try:
        yield driver
    finally:
        driver.close()


@pytest.fixture
def chip():
    with gpio_sim("relays", 9) as chip:
        yield chip


# --- which chip -------------------------------------------------------------------------------------------------------


def test_a_chip_is_found_by_its_label_whatever_its_number_is():
    with gpio_sim("first", 2), gpio_sim("second", 3) as second, gpio_sim("third", 2), opened("second") as driver:
        told = driver.describe()
        assert (told["path"], told["kernel_label"], told["lines"]) == (second.path, "second", 3)
        assert (told["kind"], told["driver"], told["chip"], told["style"]) == ("gpio", "gpiod", "second", "inline")
        driver.set(1, 1)
        assert second.value(1) == 1


def test_a_chip_may_be_given_by_its_path(chip):
    with gpio_sim("relays", 4) as twin, opened("relays", path=twin.path) as driver:
        driver.set(2, 1)
        assert (twin.value(2), chip.value(2)) == (1, 0)


def test_two_chips_of_one_label_are_an_error_that_names_both_and_the_cure(chip):
    with gpio_sim("relays", 4) as twin:
        with pytest.raises(DeviceError) as caught:
            LinuxGpio("relays", specs()).open()
        assert chip.path in caught.value.message
        assert twin.path in caught.value.message
        assert f'path = "{chip.path}"' in caught.value.message
        assert caught.value.data == {"effect": "none", "chip": "relays", "paths": [chip.path, twin.path]}


def test_another_name_for_a_device_node_is_no_second_chip(chip):
    link = Path("/dev/gpiochip99")
    link.symlink_to(chip.path)
    try:
        with opened("relays") as driver:
            assert driver.describe()["path"] == chip.path
    finally:
        link.unlink()


def test_a_chip_that_is_not_there_is_an_error_that_lists_those_that_are(chip):
    with pytest.raises(DeviceError, match="no chip has this label") as caught:
        LinuxGpio("pumps", specs()).open()
    assert f"{chip.path} 'relays' (9 lines)" in caught.value.message
    assert (caught.value.data["errno"], caught.value.data["effect"]) == ("ENODEV", "none")
    with pytest.raises(DeviceError, match="there is no /dev/gpiochip77; there are: /dev/gpiochip"):
        LinuxGpio("pumps", specs(), path="/dev/gpiochip77").open()


def test_what_is_no_gpio_chip_is_refused_by_name():
    with pytest.raises(DeviceError, match="/dev/null is not a GPIO chip"):
        LinuxGpio("pumps", specs(), path="/dev/null").open()


@contextmanager
def as_nobody():
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("path", [None, "given"])
@pytest.mark.parametrize(
    ("mode", "gid", "cure"),
    [(0o660, 20, "sudo usermod -aG dialout USER"), (0o600, 0, 'SUBSYSTEM=="gpio", KERNEL=="gpiochip*", GROUP="gpio"')],
)
def test_a_chip_that_one_may_not_open_names_the_device_its_group_and_the_command(chip, path, mode, gid, cure):
    for other in Path("/dev").glob("gpiochip*"):
        other.chmod(0o666)  # the first that may not be opened is named
    os.chown(chip.path, 0, gid)
    os.chmod(chip.path, mode)
    with as_nobody(), pytest.raises(DeviceError) as caught:
        LinuxGpio("relays", specs(), path=chip.path if path else None).open()
    assert f"no permission to use {chip.path}" in caught.value.message
    assert cure in caught.value.message
    assert (caught.value.data["errno"], caught.value.data["path"]) == ("EACCES", chip.path)


def test_a_memory_mapped_chip_is_asked_in_place_and_one_behind_usb_in_a_thread(chip):
    assert LinuxGpio("relays", specs()).style is Style.INLINE
    assert LinuxGpio("relays", specs(), blocking=True).style is Style.THREAD
    assert LinuxGpio("not there", specs()).style is Style.THREAD
    with Mcp2221():
        assert LinuxGpio("mcp2221_gpio", specs(4)).style is Style.THREAD
        assert LinuxGpio("mcp2221_gpio", specs(4), blocking=False).style is Style.INLINE


def test_a_line_that_the_chip_does_not_have_is_refused_and_the_others_work():
    with gpio_sim("small", 2) as chip, opened("small", specs(5)) as driver:
        with pytest.raises(DeviceError, match=r"no line 4; the chip has 0 to 1; is this the right profile"):
            driver.set(4, 1)
        with pytest.raises(DeviceError, match=r"no line 9; the board lists 0, 1, 2, 3, 4"):
            driver.get(9)
        driver.set(1, 1)
        assert chip.value(1) == 1


def test_a_chip_that_cannot_be_opened_for_want_of_descriptors_says_so_and_leaves_none_behind(chip):
    driver = LinuxGpio("relays", [LineSpec(0, "A", initial=1)], path=chip.path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    fillers = [os.open("/dev/null", os.O_RDONLY)]
    while fillers[-1] < highest:
        fillers.append(os.open("/dev/null", os.O_RDONLY))
    try:
        for room in range(1, 4):
            resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + room, hard))
            with pytest.raises(DeviceError, match="Too many open files") as caught:
                driver.open()
            assert (caught.value.data["errno"], caught.value.data["effect"]) == ("EMFILE", "none")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


# --- a chip behind a bus ----------------------------------------------------------------------------------------------


def test_a_chip_behind_usb_is_driven_and_read_and_says_that_it_has_no_edges():
    with Mcp2221() as adapter, opened("mcp2221_gpio", specs(4)) as driver:
        assert driver.set(2, 1) == "input"
        assert adapter.chip.gpio[2] == [1, 0]
        assert driver.get(2) == 1
        assert driver.set(2, 0) == 1
        assert adapter.chip.gpio[2] == [0, 0]
        with pytest.raises(DeviceError, match=r"line 1 \(L1\) cannot report edges") as caught:
            driver.watch(1, "both")
        assert (caught.value.data["errno"], caught.value.data["effect"]) == ("ENXIO", "none")
        assert driver.get(1) == adapter.chip.gpio[1][0]
        with pytest.raises(DeviceError, match="cannot report edges"):
            driver.watch(1, "rising")
        watch = driver.watch(2, "both")
        driver.set(2, "input")
        assert adapter.chip.gpio[2][1] == 1
        driver.unwatch(watch)


def test_a_port_expander_is_asked_in_a_thread_and_keeps_its_outputs_when_it_is_closed():
    """The expander's registers are those of the memory it is made of: 1 is the output's, 3 the direction's."""
    bus = stub_bus()
    with SMBus(bus) as wire, kernel_driver(bus, 0x50, "pca9554") as device:
        [chip] = device.glob("gpiochip*")
        wait_until("the expander's device node", Path("/dev", chip.name).exists)

        def register(number):
            return wire.read_byte_data(0x50, number, force=True)

        with opened(device.name, specs(4)) as driver:
            assert driver.style is Style.THREAD
            wire.write_byte_data(0x50, 0, 0b0010, force=True)
            assert [driver.get(line) for line in range(3)] == [0, 1, 0]
            driver.set(2, 1)
            assert (register(1) >> 2 & 1, register(3) >> 2 & 1) == (1, 0)
        assert (register(1) >> 2 & 1, register(3) >> 2 & 1) == (1, 0)
        with opened(device.name, specs(4)) as driver:
            wire.write_byte_data(0x50, 0, 0b0100, force=True)
            assert driver.set(2, "input") == 1
            assert register(3) >> 2 & 1 == 1


def test_a_chip_behind_usb_keeps_its_outputs_when_it_is_closed_and_they_are_found_again():
    with Mcp2221() as adapter:
        with opened("mcp2221_gpio", specs(4)) as driver:
            driver.set(2, 1)
        assert adapter.chip.gpio[2] == [1, 0]
        with opened("mcp2221_gpio", specs(4)) as driver:
            assert driver.get(2) == 1
            assert adapter.chip.gpio[2] == [1, 0]
            assert driver.set(2, 0) == 1


class Pin(list):
    """A pin of the adapter, [level, is an input], that remembers everything it has been."""

    def __init__(self, level, is_input):
        super().__init__([level, is_input])
        self.seen = []

    def __setitem__(self, at, value):
        super().__setitem__(at, value)
        self.seen.append(tuple(self))


def test_a_line_becomes_an_output_by_no_more_reports_than_a_bare_request_for_its_level_takes():
    """On the adapter every report that crosses the wire is seen, so a detour over the other level would be too.

    (The adapter's own kernel driver switches the direction first and the level after it, whoever asks for it.)
    """
    output = gpiod.LineSettings(direction=Direction.OUTPUT, output_value=Value.ACTIVE)
    with Mcp2221() as adapter, opened("mcp2221_gpio", specs(4)) as driver:
        bare, ours = adapter.chip.gpio[:2] = [Pin(0, 1), Pin(0, 1)]
        with gpiod.Chip(driver.describe()["path"]) as raw, raw.request_lines({0: output}):
            driver.get(1)
            ours.seen.clear()
            driver.set(1, 1)
            assert ours.seen == bare.seen == [(0, 0), (1, 0)]
            ours.seen.clear()
            driver.set(1, 1)
            assert ours.seen == [(1, 0)]


def test_an_output_that_was_left_on_is_taken_over_without_a_change_on_the_wire():
    with Mcp2221() as adapter:
        with opened("mcp2221_gpio", specs(4)) as driver:
            driver.set(2, 1)
        pin = adapter.chip.gpio[2] = Pin(1, 0)
        with opened("mcp2221_gpio", specs(4)) as driver:
            assert (driver.get(2), pin.seen) == (1, [])
            assert driver.set(2, 1) == 1
            assert set(pin.seen) == {(1, 0)}
            assert driver.set(2, 0) == 1
        assert list(pin) == [0, 0]


NO_GPIO = [0xEE, 0xEF]
"""What the adapter says of a pin that has been given another function: the kernel's driver makes it ENOENT."""


def test_a_chip_that_fails_says_which_line_what_and_why():
    with Mcp2221() as adapter, opened("mcp2221_gpio", specs(4)) as driver:
        driver.get(1)
        adapter.chip.gpio[1] = NO_GPIO
        with pytest.raises(DeviceError, match=r"mcp2221_gpio: line 1 \(L1\) could not be read: No such file") as caught:
            driver.get(1)
        assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "ENOENT")


def test_a_line_whose_former_state_cannot_be_read_is_not_driven_and_given_back():
    with Mcp2221() as adapter:
        with opened("mcp2221_gpio", specs(4)) as driver:
            driver.set(2, 1)
        with opened("mcp2221_gpio", specs(4)) as driver, gpiod.Chip(driver.describe()["path"]) as raw:
            adapter.chip.gpio[2] = NO_GPIO
            with pytest.raises(DeviceError, match="could not be read") as caught:
                driver.set(2, 0)
            assert caught.value.data["effect"] == "none"
            assert raw.get_line_info(2).used is False
            adapter.chip.gpio[2] = [1, 0]
            assert driver.set(2, 0) == 1
