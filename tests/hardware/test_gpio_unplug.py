"""A chip that is pulled out while it is used, and comes back: the errors on the way, and the bus that recovers."""

import os

import pytest
import trio
import trio.testing
from gpiod.line import Edge
from support.gpio_sim import gpio_sim
from support.mcp2221 import Mcp2221
from support.waiting import passes

import hearth
from hearth import step
from hearth.drivers.base import Style
from hearth.drivers.gpio.linux import LinuxGpio
from hearth.drivers.gpio.spec import LineSpec
from hearth.errors import DeviceError

PROFILE = """
name = "cell"
description = "one chip of the kernel's"
[[gpio]]
label = "cell"
driver = "gpiod"
names = ["relay", "button", "lamp"]
[gpio.lines.lamp]
initial = 1
"""


@pytest.fixture
def chip():
    with gpio_sim("cell", ["relay", "button", "lamp", ""]) as chip:
        yield chip


@pytest.fixture
def driver():
    driver = LinuxGpio("cell", [LineSpec(n, f"L{n}") for n in range(4)])
    driver.open()
    yield driver
    driver.close()


def watched(chip, line):
    return chip.info(line).edge_detection is not Edge.NONE


def refused(operation):
    with pytest.raises(DeviceError) as caught:
        operation()
    assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "ENODEV")
    return caught.value.message


def test_every_operation_on_an_unplugged_chip_says_that_it_is_gone(chip, driver):
    driver.set(0, 1)
    driver.get(1)
    watch = driver.watch(2, "both")
    chip.unplug()
    for operation in (
        lambda: driver.set(0, 0),
        lambda: driver.set(0, "input"),
        lambda: driver.set(1, 1),
        lambda: driver.set(2, 1),
        lambda: driver.set(3, 1),
        lambda: driver.get(1),
        lambda: driver.get(3),
        lambda: driver.watch(1, "both"),
        lambda: driver.watch(3, "both"),
    ):
        assert "gpio chip cell is gone" in refused(operation)
    driver.unwatch(watch)
    assert "is gone" in refused(lambda: driver.release(0))
    driver.close()
    assert "no chip has this label" in refused(driver.open)


async def test_the_pump_raises_when_the_chip_is_unplugged_though_no_line_is_used(chip, driver):
    async with trio.open_nursery() as nursery:

        async def pump():
            with pytest.raises(DeviceError, match="was unplugged") as caught:
                await driver.pump()
            assert caught.value.data["path"] == chip.path

        nursery.start_soon(pump)
        await trio.testing.wait_all_tasks_blocked()
        chip.unplug()


async def test_a_watch_gets_its_last_edges_and_then_the_reason(chip, driver):
    watch = driver.watch(2, "both")
    chip.push(2, 1)
    async with trio.open_nursery() as nursery:

        async def pump():
            with pytest.raises(DeviceError, match="was unplugged"):
                await driver.pump()

        nursery.start_soon(pump)
        assert (await watch.receive()).value == 1
        chip.unplug()
    with pytest.raises(DeviceError, match="was unplugged") as caught:
        await watch.receive()
    assert caught.value.data["effect"] == "none"


async def test_an_operation_that_finds_the_chip_gone_wakes_the_pump(chip, driver):
    """As on kernels that tell nobody who waits: the hang-up is left out, the operation's own word has to do."""
    driver.set(0, 1)
    chip.unplug()
    refused(lambda: driver.set(0, 0))
    with pytest.raises(DeviceError, match="was unplugged"):
        await driver.pump()


def test_a_chip_that_returns_under_another_number_is_opened_again(chip, driver):
    driver.set(0, 1)
    old = chip.path
    chip.unplug()
    # Its old number is taken for as long as somebody has the old device open.
    chip.plug()
    assert chip.path != old
    driver.close()
    driver.open()
    assert driver.describe()["path"] == chip.path
    assert driver.set(0, 1) == "input"
    assert chip.value(0) == 1


def test_an_unplugged_chip_leaves_no_descriptor_behind(chip, driver):
    driver.close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        driver.open()
        driver.set(0, 1)
        driver.watch(1, "both")
        chip.unplug()
        driver.close()
        chip.plug()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("style", [Style.INLINE, Style.THREAD])
async def test_the_bus_goes_down_with_its_chip_and_is_reopened_when_it_returns(chip, tmp_path, monkeypatch, style):
    """Also where the kernel may sleep over a line, as it does for one on an I2C expander."""
    monkeypatch.setattr("hearth.drivers.gpio.linux.style_of", lambda _name: style)
    profile = tmp_path / "cell.toml"
    profile.write_text(PROFILE)
    async with hearth.open_runtime(board=str(profile)) as runtime, runtime.open_session() as session:
        assert chip.value("lamp") == 1
        first = await session.run("gpio.set", line="relay", value=1)
        assert (first["value"], chip.value(0)) == (1, 1)
        watching = await session.submit("watch", [step("gpio.watch", line="button", timeout_ms=20_000)])
        await passes(lambda: watched(chip, "button"))
        chip.unplug()
        ended = await watching.wait()
        assert "was unplugged" in ended.steps[0].error
        with pytest.raises(DeviceError, match=r"bus gpio:cell is down|was unplugged|is gone") as caught:
            await session.run("gpio.set", line="relay", value=0)
        assert caught.value.data["effect"] == "none"
        chip.plug()
        assert chip.value("lamp") == 0
        await passes(lambda: runtime.health()["buses"]["gpio:cell"]["state"] == "ready")
        # What has to be driven from the moment the bus opens is driven again.
        assert chip.value("lamp") == 1
        await session.run("gpio.set", line="relay", value=1)
        assert chip.value(0) == 1


def test_an_adapter_that_is_unplugged_and_returns_is_found_again():
    driver = LinuxGpio("mcp2221_gpio", [LineSpec(n, f"GP{n}") for n in range(4)])
    with Mcp2221() as adapter:
        driver.open()
        driver.set(1, 1)
        adapter.unplug()
        refused(lambda: driver.set(1, 0))
        driver.close()
        refused(driver.open)
        adapter.plug()
        driver.open()
        assert driver.set(1, 0) in (0, 1, "input")
        assert adapter.chip.gpio[1] == [0, 0]
        driver.close()
