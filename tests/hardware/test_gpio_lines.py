"""GPIO lines of a real kernel chip: taken, set, turned round, shared with nobody, and given back."""

import errno
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import gpiod
import pytest
import trio
from gpiod.line import Bias, Direction, Drive, Edge, Value
from support import guarded
from support.gpio_sim import gpio_sim

from hearth.drivers.gpio.linux import LinuxGpio
from hearth.drivers.gpio.spec import LineSpec
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


# --- one request per line ---------------------------------------------------------------------------------------------


def test_opening_a_chip_takes_no_line(chip):
    with opened("relays"):
        assert [chip.info(line).used for line in range(8)] == [False] * 8


def test_setting_a_line_a_thousand_times_requests_it_once(chip):
    with opened("relays") as driver:
        with history(chip, 3) as seen:
            for n in range(1000):
                driver.set(3, n % 2)
            assert chip.info(3).consumer == "hearth"
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
            driver.release(6)
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


def test_a_line_that_is_an_input_by_the_profile_is_made_one_by_every_holder(chip):
    with gpiod.Chip(chip.path) as raw:
        raw.request_lines({3: gpiod.LineSettings(direction=Direction.OUTPUT)}).release()
    with opened("relays", specs(direction="input")) as driver:
        driver.get(3)
        assert chip.info(3).direction is Direction.INPUT


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
        assert (chip.info(3).direction, chip.pulled(3)) == (Direction.INPUT, 1)


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
        assert (chip.info(3).bias, chip.pulled(3)) == (bias, pulled)


@pytest.mark.parametrize(
    ("drive", "asked"),
    [("push-pull", Drive.PUSH_PULL), ("open-drain", Drive.OPEN_DRAIN), ("open-source", Drive.OPEN_SOURCE)],
)
def test_the_drive_of_the_profile_is_asked_for(chip, drive, asked):
    with opened("relays", specs(drive=drive)) as driver:
        driver.set(3, 0 if drive == "open-drain" else 1)
        assert chip.info(3).drive is asked
        assert chip.value(3) == (0 if drive == "open-drain" else 1)


def test_an_open_drain_line_reads_what_is_on_it_and_not_what_was_asked_for(chip):
    with opened("relays", specs(drive="open-drain")) as driver:
        driver.set(3, 0)
        assert (driver.set(3, 1), driver.get(3)) == (0, 0)
        assert driver.set(3, 0) == 1


def test_a_debounced_line_is_debounced_by_the_kernel(chip):
    with opened("relays", specs(debounce_us=2000)) as driver:
        driver.get(3)
        told = chip.info(3)
        assert told.debounced
        assert told.debounce_period.total_seconds() == 0.002
        driver.set(3, 1)
        assert not chip.info(3).debounced


async def test_a_contact_that_bounces_within_the_debounce_period_is_one_edge(chip):
    with opened("relays", specs(debounce_us=100_000)) as driver:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.pump)
            watch = driver.watch(3, "both")
            for level in (1, 0, 1, 0, 1):
                chip.push(3, level)
            assert (await watch.receive()).value == 1
            driver.unwatch(watch)
            with pytest.raises(DeviceError, match="ended"):
                await watch.receive()
            nursery.cancel_scope.cancel()


def test_a_line_that_is_active_low_is_so_for_the_kernel(chip):
    with opened("relays", specs(active_low=True)) as driver:
        driver.set(3, 1)
        assert (chip.value(3), chip.info(3).active_low) == (0, True)
        driver.set(3, 0)
        assert chip.value(3) == 1


def test_initial_levels_are_driven_when_the_chip_opens_without_passing_through_the_other(chip):
    lines = [LineSpec(0, "A", initial=1), LineSpec(1, "B", initial=0), LineSpec(2, "C", initial=1, active_low=True)]
    chip.pull(2, 1)
    with history(chip, 0, 1, 2) as seen, opened("relays", lines):
        assert [chip.value(line) for line in range(3)] == [1, 0, 0]
        assert chip.info(3).used is False
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


def test_a_chip_does_not_open_while_another_holds_a_line_that_has_to_be_driven_at_once(chip):
    lines = [LineSpec(0, "A", initial=1), LineSpec(3, "D", initial=1)]
    driver = LinuxGpio("relays", lines)
    with gpiod.Chip(chip.path) as raw, raw.request_lines({3: gpiod.LineSettings()}, consumer="pump controller"):
        with pytest.raises(ResourceBusy, match="pump controller"):
            driver.open()
        assert chip.info(0).used is False
    driver.open()
    assert chip.value(3) == 1
    driver.close()


# --- letting go -------------------------------------------------------------------------------------------------------


def test_closing_the_chip_gives_every_line_back(chip):
    with opened("relays") as driver:
        for line in range(8):
            driver.set(line, 1)
        driver.watch(0, "both")
    assert [chip.info(line).used for line in range(8)] == [False] * 8


def test_a_line_made_safe_as_an_input_is_an_input_and_is_released(chip):
    lines = [LineSpec(0, "A"), LineSpec(1, "B", safe=1), LineSpec(2, "C", hold="keep")]
    with opened("relays", lines) as driver:
        for line, level in ((0, 1), (1, 0), (2, 1)):
            driver.set(line, level)
        with history(chip, 0) as seen:
            done = guarded.lines(driver, lines).make_safe([0, 1, 2])
        assert done == [
            {"line": 0, "name": "A", "safe": "input"},
            {"line": 1, "name": "B", "safe": 1},
        ]
        assert seen == [(0, INFO.LINE_CONFIG_CHANGED, Direction.INPUT), (0, INFO.LINE_RELEASED, Direction.INPUT)]
        assert [chip.info(line).used for line in range(3)] == [False, True, True]
        assert [chip.value(line) for line in range(3)] == [0, 1, 1]
        assert driver.set(0, 1) == "input"


def test_a_line_that_cannot_be_made_safe_does_not_keep_the_others_from_it(chip):
    lines = [LineSpec(0, "A", safe=1), LineSpec(9, "Z", safe=1)]
    with opened("relays", lines) as driver:
        driver.set(0, 0)
        first, second = guarded.lines(driver, lines).make_safe([9, 0])
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
    holder.wait(60)
    holder.stdout.close()
    told = chip.info(3)
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


def test_edge_detection_is_off_while_nothing_watches(chip):
    with opened("relays") as driver:
        driver.get(3)
        assert chip.info(3).edge_detection is Edge.NONE
