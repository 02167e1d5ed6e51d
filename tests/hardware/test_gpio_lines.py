"""GPIO lines of real kernel chips: found, taken, set, turned round and given back."""

import errno
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import gpiod
import pytest
import trio
from gpiod.line import Bias, Direction, Drive, Edge, Value
from smbus2 import SMBus
from support.gpio_sim import gpio_sim, wait_until
from support.i2c_stub import kernel_driver, stub_bus
from support.mcp2221 import Mcp2221

from hearth.drivers.base import Style
from hearth.drivers.gpio import LineSpec
from hearth.drivers.linux.gpio import LinuxGpio
from hearth.errors import DeviceError, ResourceBusy

INFO = gpiod.InfoEvent.Type
SPARE = 8
"""A line that no test uses."""


def specs(count=8, **more):
    return [LineSpec(n, f"L{n}", **more) for n in range(count)]


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


def info(chip, line):
    with gpiod.Chip(chip.path) as opened:
        return opened.get_line_info(line)


@contextmanager
def history(chip, *lines):
    """What the kernel says of lines while the block runs: (line, event, direction) in order."""
    seen = []
    with gpiod.Chip(chip.path) as observer:
        for line in (*lines, SPARE):
            observer.watch_line_info(line)
        yield seen
        # The kernel tells in order, but when it likes: what is told of the spare line comes after all that went before.
        observer.request_lines({SPARE: gpiod.LineSettings()}).release()
        while True:
            assert observer.wait_info_event(10), "the kernel told nothing of the spare line"
            event = observer.read_info_event()
            if event.line_info.offset == SPARE:
                break
            seen.append((event.line_info.offset, event.event_type, event.line_info.direction))


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


# --- one request per line ---------------------------------------------------------------------------------------------


def test_opening_a_chip_takes_no_line(chip):
    with opened("relays"):
        assert [info(chip, line).used for line in range(8)] == [False] * 8


def test_setting_a_line_a_thousand_times_requests_it_once(chip):
    with opened("relays") as driver:
        with history(chip, 3) as seen:
            for n in range(1000):
                driver.set(3, n % 2)
            assert info(chip, 3).consumer == "hearth"
        assert seen == [(3, INFO.LINE_REQUESTED, Direction.OUTPUT)]


def test_a_line_stays_ours_from_its_first_use_until_the_chip_is_closed(chip):
    with history(chip, 3) as seen, opened("relays") as driver:
        driver.get(3)
        driver.set(3, 1)
        driver.get(3)
        driver.set(3, "input")
        driver.set(3, 0)
    assert seen == [
        (3, INFO.LINE_REQUESTED, Direction.INPUT),
        (3, INFO.LINE_CONFIG_CHANGED, Direction.OUTPUT),
        (3, INFO.LINE_CONFIG_CHANGED, Direction.INPUT),
        (3, INFO.LINE_CONFIG_CHANGED, Direction.OUTPUT),
        (3, INFO.LINE_RELEASED, Direction.OUTPUT),
    ]


def test_another_process_never_gets_a_line_between_two_steps(chip):
    tries, won, refused, over = [], [], set(), threading.Event()

    def compete():
        with gpiod.Chip(chip.path) as rival:
            while not over.is_set():
                tries.append(1)
                try:
                    rival.request_lines({3: gpiod.LineSettings()}, consumer="rival").release()
                except OSError as error:
                    refused.add(errno.errorcode[error.errno])
                else:
                    won.append(1)

    with opened("relays") as driver:
        driver.set(3, 1)
        thread = threading.Thread(target=compete)
        thread.start()
        try:
            end = time.monotonic() + 20
            while len(tries) < 500 and time.monotonic() < end:
                for state in (0, "input", 1):
                    driver.set(3, state)
                driver.get(3)
        finally:
            over.set()
            thread.join()
    assert len(tries) >= 500
    assert (won, refused) == ([], {"EBUSY"})


def test_driving_one_line_leaves_the_others_as_they_are(chip):
    with opened("relays") as driver:
        driver.set(0, 1)
        with history(chip, 0) as seen:
            for line in range(1, 8):
                driver.set(line, 1)
                assert chip.value(0) == 1
            driver.set(5, "input")
            driver.make_safe([6])
        assert seen == []


def test_a_request_for_a_set_of_lines_would_let_go_of_them_to_take_one_more(chip):
    """Why there is one request per line (docs/decisions/0030): shown on the kernel, not on hearth."""
    output = gpiod.LineSettings(direction=Direction.OUTPUT, output_value=Value.ACTIVE)
    with gpiod.Chip(chip.path) as raw:
        first = raw.request_lines({0: output})
        assert chip.value(0) == 1
        with pytest.raises(OSError, match="busy"):
            raw.request_lines({0: output, 1: output})
        with pytest.warns(UserWarning, match="was not included in original request"):
            first.reconfigure_lines({0: output, 1: output})
        assert chip.value(1) == 0
        first.release()
        assert chip.value(0) == 0
        with raw.request_lines({2: output}), pytest.raises(OSError, match="busy"):
            raw.request_lines({0: output, 1: output, 2: output})


# --- directions -------------------------------------------------------------------------------------------------------


def test_an_output_of_an_earlier_user_is_told_as_the_former_state(chip):
    with gpiod.Chip(chip.path) as raw:
        raw.request_lines({3: gpiod.LineSettings(direction=Direction.OUTPUT)}).release()
    chip.push(3, 1)
    with opened("relays") as driver:
        assert driver.set(3, 0) == 1
        assert driver.set(3, "input") == 0


def test_reading_an_output_of_an_earlier_user_does_not_make_it_an_input(chip):
    with gpiod.Chip(chip.path) as raw:
        raw.request_lines({3: gpiod.LineSettings(direction=Direction.OUTPUT)}).release()
    chip.push(3, 1)
    with opened("relays") as driver, history(chip, 3) as seen:
        assert driver.get(3) == 1
        assert chip.value(3) == 1
    assert seen[0] == (3, INFO.LINE_REQUESTED, Direction.OUTPUT)


def test_a_line_that_is_an_input_by_the_profile_is_made_one_whoever_drove_it(chip):
    with gpiod.Chip(chip.path) as raw:
        raw.request_lines({3: gpiod.LineSettings(direction=Direction.OUTPUT)}).release()
    with opened("relays", specs(direction="input")) as driver:
        driver.get(3)
        assert info(chip, 3).direction is Direction.INPUT


def test_taking_over_an_output_at_its_own_level_changes_nothing_on_the_wire(chip):
    with gpiod.Chip(chip.path) as raw:
        raw.request_lines({3: gpiod.LineSettings(direction=Direction.OUTPUT)}).release()
    chip.push(3, 1)
    with opened("relays") as driver, history(chip, 3) as seen:
        assert driver.set(3, 1) == 1
        assert chip.value(3) == 1
    assert [(event, direction) for _, event, direction in seen[:2]] == [
        (INFO.LINE_REQUESTED, Direction.OUTPUT),
        (INFO.LINE_CONFIG_CHANGED, Direction.OUTPUT),
    ]


def test_an_input_becomes_an_output_at_its_level_in_one_step(chip):
    """Two steps would show: an output at the wrong level, or one more change of its configuration."""
    with opened("relays", specs(pull="up")) as driver:
        assert driver.get(3) == 1
        with history(chip, 3) as seen:
            assert driver.set(3, 1) == "input"
            assert chip.value(3) == 1
        assert seen == [(3, INFO.LINE_CONFIG_CHANGED, Direction.OUTPUT)]


def test_a_line_that_is_set_to_input_before_anything_else_is_an_input_with_its_bias(chip):
    with opened("relays", specs(pull="up")) as driver:
        assert driver.set(3, "input") == "input"
        assert (info(chip, 3).direction, chip.pulled(3)) == (Direction.INPUT, 1)


# --- what a line is asked to be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pull", "bias", "pulled"),
    [("up", Bias.PULL_UP, 1), ("down", Bias.PULL_DOWN, 0), ("none", Bias.DISABLED, 0), ("as-is", Bias.UNKNOWN, 1)],
)
@pytest.mark.parametrize("state", ["input", 0])
def test_the_bias_of_the_profile_is_asked_for(chip, pull, bias, pulled, state):
    chip.pull(3, 1 if pull == "as-is" else 0)
    with opened("relays", specs(pull=pull)) as driver:
        driver.set(3, state)
        assert (info(chip, 3).bias, chip.pulled(3)) == (bias, pulled)


@pytest.mark.parametrize(
    ("drive", "asked"),
    [("push-pull", Drive.PUSH_PULL), ("open-drain", Drive.OPEN_DRAIN), ("open-source", Drive.OPEN_SOURCE)],
)
def test_the_drive_of_the_profile_is_asked_for(chip, drive, asked):
    with opened("relays", specs(drive=drive)) as driver:
        driver.set(3, 0 if drive == "open-drain" else 1)
        assert info(chip, 3).drive is asked
        assert chip.value(3) == (0 if drive == "open-drain" else 1)


def test_an_open_drain_line_reads_what_is_on_it_and_not_what_was_asked_for(chip):
    with opened("relays", specs(drive="open-drain")) as driver:
        driver.set(3, 0)
        assert (driver.set(3, 1), driver.get(3)) == (0, 0)
        assert driver.set(3, 0) == 1


def test_a_debounced_line_is_debounced_by_the_kernel(chip):
    with opened("relays", specs(debounce_us=2000)) as driver:
        driver.get(3)
        told = info(chip, 3)
        assert told.debounced
        assert told.debounce_period.total_seconds() == 0.002
        driver.set(3, 1)
        assert not info(chip, 3).debounced


async def test_a_contact_that_bounces_within_the_debounce_period_is_one_edge(chip):
    with opened("relays", specs(debounce_us=100_000)) as driver:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.pump)
            watch = driver.watch(3, "both")
            for level in (1, 0, 1, 0, 1):
                chip.push(3, level)
            with trio.fail_after(10):
                assert (await watch.receive()).value == 1
            driver.unwatch(watch)
            with pytest.raises(DeviceError, match="ended"):
                await watch.receive()
            nursery.cancel_scope.cancel()


def test_a_line_that_is_active_low_is_so_for_the_kernel(chip):
    with opened("relays", specs(active_low=True)) as driver:
        driver.set(3, 1)
        assert (chip.value(3), info(chip, 3).active_low) == (0, True)
        driver.set(3, 0)
        assert chip.value(3) == 1


def test_initial_levels_are_driven_when_the_chip_opens_without_passing_through_the_other(chip):
    lines = [LineSpec(0, "A", initial=1), LineSpec(1, "B", initial=0), LineSpec(2, "C", initial=1, active_low=True)]
    chip.pull(2, 1)
    with history(chip, 0, 1, 2) as seen, opened("relays", lines):
        assert [chip.value(line) for line in range(3)] == [1, 0, 0]
        assert info(chip, 3).used is False
    assert [event for event in seen if event[1] is not INFO.LINE_RELEASED] == [
        (line, INFO.LINE_REQUESTED, Direction.OUTPUT) for line in range(3)
    ]


# --- held by somebody else --------------------------------------------------------------------------------------------


def test_a_line_that_another_process_holds_is_busy_and_names_its_consumer(chip):
    with opened("relays") as driver, gpiod.Chip(chip.path) as raw:
        with raw.request_lines({3: gpiod.LineSettings()}, consumer="pump controller"):
            for operation in (lambda: driver.get(3), lambda: driver.set(3, 1), lambda: driver.watch(3, "both")):
                with pytest.raises(ResourceBusy) as caught:
                    operation()
                assert "line 3 (L3) is held by 'pump controller'" in caught.value.message
                assert "reserved" in caught.value.message
                assert caught.value.data == {
                    "line": 3,
                    "name": "L3",
                    "errno": "EBUSY",
                    "reason": "held",
                    "consumer": "pump controller",
                    "effect": "none",
                }
            driver.set(4, 1)
            assert chip.value(4) == 1
        assert driver.set(3, 1) == "input"


def test_a_line_that_the_kernel_itself_holds_is_busy_and_names_the_kernels_user():
    with gpio_sim("hogged", 3, hogs={1: ("fan power", "output-high")}) as chip, opened("hogged") as driver:
        with pytest.raises(ResourceBusy, match="'fan power'"):
            driver.set(1, 0)
        assert chip.value(1) == 1


def test_a_chip_does_not_open_while_somebody_holds_a_line_that_has_to_be_driven_at_once(chip):
    lines = [LineSpec(0, "A", initial=1), LineSpec(3, "D", initial=1)]
    driver = LinuxGpio("relays", lines)
    with gpiod.Chip(chip.path) as raw, raw.request_lines({3: gpiod.LineSettings()}, consumer="pump controller"):
        with pytest.raises(ResourceBusy, match="pump controller"):
            driver.open()
        assert info(chip, 0).used is False
    driver.open()
    assert chip.value(3) == 1
    driver.close()


# --- letting go -------------------------------------------------------------------------------------------------------


def test_closing_the_chip_gives_every_line_back(chip):
    with opened("relays") as driver:
        for line in range(8):
            driver.set(line, 1)
        driver.watch(0, "both")
    assert [info(chip, line).used for line in range(8)] == [False] * 8


def test_a_line_made_safe_as_an_input_is_an_input_and_nobodys(chip):
    lines = [LineSpec(0, "A"), LineSpec(1, "B", safe=1), LineSpec(2, "C", hold="keep")]
    with opened("relays", lines) as driver:
        for line, level in ((0, 1), (1, 0), (2, 1)):
            driver.set(line, level)
        with history(chip, 0) as seen:
            done = driver.make_safe([0, 1, 2])
        assert done == [
            {"line": 0, "name": "A", "safe": "input"},
            {"line": 1, "name": "B", "safe": 1},
        ]
        assert seen == [(0, INFO.LINE_CONFIG_CHANGED, Direction.INPUT), (0, INFO.LINE_RELEASED, Direction.INPUT)]
        assert [info(chip, line).used for line in range(3)] == [False, True, True]
        assert [chip.value(line) for line in range(3)] == [0, 1, 1]
        assert driver.set(0, 1) == "input"


def test_a_line_that_cannot_be_made_safe_does_not_keep_the_others_from_it(chip):
    with opened("relays", [LineSpec(0, "A", safe=1), LineSpec(9, "Z", safe=1)]) as driver:
        driver.set(0, 0)
        first, second = driver.make_safe([9, 0])
        assert (first["line"], second) == (9, {"line": 0, "name": "A", "safe": 1})
        assert "the chip has 0 to 8" in first["error"]
        assert chip.value(0) == 1


HOLDER = """
import gpiod, signal, sys
from gpiod.line import Direction, Value
settings = gpiod.LineSettings(direction=Direction.OUTPUT, output_value=Value.ACTIVE)
request = gpiod.request_lines(sys.argv[1], config={3: settings})
print("holding", flush=True)
signal.pause()
"""


def test_a_simulated_line_goes_to_its_pull_when_its_holder_is_killed_and_is_free(chip):
    """What docs/decisions/0031 says of the kernel; of the chips behind USB and I2C, the tests below."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, chip.path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "holding\n"
    assert chip.value(3) == 1
    holder.kill()
    holder.wait(10)
    holder.stdout.close()
    told = info(chip, 3)
    assert (chip.value(3), told.used, told.direction) == (0, False, Direction.OUTPUT)


def test_every_descriptor_is_given_back(chip):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(3):
        with opened("relays", [LineSpec(0, "A", initial=1), *specs()[1:]]) as driver:
            for line in range(8):
                driver.set(line, 1)
            watch = driver.watch(2, "both")
            driver.watch(3, "rising")
            driver.unwatch(watch)
    assert descriptors() == before


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


def test_edge_detection_is_off_while_nobody_watches(chip):
    with opened("relays") as driver:
        driver.get(3)
        assert info(chip, 3).edge_detection is Edge.NONE
