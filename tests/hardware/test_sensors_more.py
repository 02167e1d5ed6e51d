"""IIO converters and their outputs, counters, and 1-Wire thermometers as sensors, through the real tools."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest
import smbus2
import trio
from support.i2c_stub import kernel_driver, stub_bus
from support.mcp2221 import Mcp2221, Memory
from support.one_wire import Ds18b20, Ds2482
from support.waiting import passes

import hearth
from hearth.errors import DeviceError, InterlockOpen, ResourceBusy

BRIDGE, DAC, CONVERTER = 0x18, 0x60, 0x50
CONFIGFS = Path("/sys/kernel/config/iio")
IIO = Path("/sys/bus/iio/devices")
TICK_S = 0.02
"""Longer than the tick with which the kernel's simulated interrupts come: edges within one merge."""


@pytest.fixture
async def session(tmp_path):
    profile = tmp_path / "cell.toml"
    profile.write_text('name = "cell"\ndescription = "the kernel\'s sensors"\n[discover]\nsensors = true\n')
    with trio.fail_after(120):
        async with hearth.open_runtime(board=str(profile)) as runtime, runtime.open_session() as session:
            yield session


async def listed(session):
    return {entry["sensor"]: entry for entry in (await session.run("hw.sensor.list"))["sensors"]}


async def value(session, name):
    return (await session.run("hw.sensor.read", sensor=name))["value"]


# --- counters ---------------------------------------------------------------------------------------------------------

NAME = "counter/counter-counter"


def pull(level):
    """Drive the counter's line, which is number 13 of the device tree's simulated chip."""
    (line,) = Path("/sys/devices/platform/gpio").glob("gpiochip*/sim_gpio13")
    (line / "pull").write_text("pull-up" if level else "pull-down")


async def pulses(count):
    for _ in range(count):
        for level in (1, 0):
            pull(level)
            await trio.sleep(TICK_S)


@pytest.fixture
def counter():
    (at,) = Path("/sys/bus/counter/devices").glob("counter*")
    (at / "count0/count").write_text("0")
    (at / "count0/enable").write_text("1")
    yield at / "count0"
    (at / "count0/enable").write_text("0")


async def test_a_counter_is_listed_with_its_count_and_its_rate(session, counter):
    entries = await listed(session)
    count, rate = entries[f"{NAME}/count0"], entries[f"{NAME}/count0_rate"]
    assert (count["kind"], count["unit"], count["label"]) == ("count", "count", "Channel 0 Count")
    assert (rate["kind"], rate["unit"]) == ("frequency", "hertz")
    assert count["path"] == rate["path"] == str(counter.resolve() / "count")


async def test_a_counter_counts_each_pulse_of_its_line(session, counter):
    await pulses(25)
    while await value(session, f"{NAME}/count0") != 25:  # noqa: ASYNC110 - a count tells nobody of a change
        await trio.sleep(TICK_S)
    (counter / "count").write_text("1000")
    assert await value(session, f"{NAME}/count0") == 1000


async def test_the_rate_of_a_counter_is_its_pulses_a_second(session, counter):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulses, 10_000)
        rates = [await value(session, f"{NAME}/count0_rate") for _ in range(3)]
        nursery.cancel_scope.cancel()
    pull(0)
    await trio.sleep(TICK_S)
    # A pulse takes two ticks at the least, and a loaded machine takes longer.
    assert 0 < max(rates) <= 1 / (2 * TICK_S) * 1.5
    assert await value(session, f"{NAME}/count0_rate") == 0


async def test_a_counter_that_is_switched_off_is_an_error_and_no_standstill(session, counter):
    (counter / "enable").write_text("0")
    for name in ("count0", "count0_rate"):
        with pytest.raises(DeviceError, match="it counts nothing, because it is switched off: `echo 1") as caught:
            await value(session, f"{NAME}/{name}")
        assert (caught.value.data["errno"], caught.value.data["effect"]) == ("ENODATA", "none")
    assert "switched off" in (await listed(session))[f"{NAME}/count0"]["problem"]


# --- converters -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def converter():
    """An ADS1015 on the stub, whose registers are set here."""
    with smbus2.SMBus(stub_bus()) as bus, kernel_driver(stub_bus(), CONVERTER, "ads1015") as at:
        (device,) = at.glob("iio:device*")
        yield device, lambda raw: bus.write_word_data(CONVERTER, 0, (raw << 4 & 0xFF) << 8 | raw >> 4, force=True)


async def test_a_converter_is_listed_with_the_rate_at_which_it_measures(session):
    with converter() as (device, put):
        put(500)
        name = f"iio/ads1015-i2c-{stub_bus()}-50/voltage0"
        entry = (await listed(session))[name]
        assert entry["rate_hz"] == float((device / "in_voltage0_sampling_frequency").read_text())
        assert await value(session, name) == pytest.approx(500 * entry["scale"])


async def test_a_negative_reading_keeps_its_sign(session):
    with converter() as (_device, put):
        name = f"iio/ads1015-i2c-{stub_bus()}-50/voltage0"
        put(0xFFF)
        assert await value(session, name) == pytest.approx(-(await listed(session))[name]["scale"])


def named(pattern, name):
    (found,) = [at for at in IIO.glob(pattern) if (at / "name").read_text().strip() == name]
    return found


@contextlib.contextmanager
def dummy(name):
    """A converter that the kernel makes up."""
    at = CONFIGFS / "devices/dummy" / name
    at.mkdir()
    try:
        yield named("iio:device*", name)
    finally:
        at.rmdir()


async def test_a_device_that_captures_by_a_trigger_has_the_triggers_rate(session):
    (CONFIGFS / "triggers/hrtimer/t100").mkdir()
    try:
        with dummy("daq") as device:
            (named("trigger*", "t100") / "sampling_frequency").write_text("50")
            assert (await listed(session))["iio/daq/voltage0"]["rate_hz"] != 50
            (device / "trigger/current_trigger").write_text("t100")
            assert (await listed(session))["iio/daq/voltage0"]["rate_hz"] == 50
            (device / "trigger/current_trigger").write_text("\n")
    finally:
        (CONFIGFS / "triggers/hrtimer/t100").rmdir()


async def test_a_channel_whose_buffer_another_program_fills_is_busy_and_read_again_afterwards(session):
    (IIO / "iio_sysfs_trigger/add_trigger").write_text("7")
    with converter() as (device, put):
        name = f"iio/ads1015-i2c-{stub_bus()}-50/voltage1"
        put(1000)
        try:
            (device / "trigger/current_trigger").write_text("sysfstrig7")
            (device / "scan_elements/in_voltage1_en").write_text("1")
            (device / "buffer/enable").write_text("1")
            with pytest.raises(ResourceBusy, match="another program captures from it"):
                await value(session, name)
        finally:
            (device / "buffer/enable").write_text("0")
            (device / "trigger/current_trigger").write_text("\n")
            (IIO / "iio_sysfs_trigger/remove_trigger").write_text("7")
        assert await value(session, name) == pytest.approx(1000 * (await listed(session))[name]["scale"])


async def test_the_output_of_a_converter_is_a_sensor_of_what_it_is_set_to(session):
    with dummy("dac") as device:
        entry = (await listed(session))["iio/dac/out_voltage0"]
        assert (entry["kind"], entry["description"]) == ("voltage", "an output: what it is set to")
        for raw in (0, 1000):
            (device / "out_voltage0_raw").write_text(str(raw))
            assert await value(session, "iio/dac/out_voltage0") == raw


async def test_an_output_whose_reference_the_kernel_does_not_know_is_an_error_and_no_number(session):
    with Mcp2221({DAC: Memory()}) as adapter, kernel_driver(adapter.bus, DAC, "mcp4725"):
        with pytest.raises(DeviceError, match="EINVAL") as caught:
            await value(session, f"iio/mcp4725-i2c-{adapter.bus}-60/out_voltage0")
        assert caught.value.data["effect"] == "none"


# --- 1-Wire -----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def thermometers(*those):
    """A 1-Wire bus with these, found by the kernel."""
    with Mcp2221({BRIDGE: Ds2482(those), 0x51: Memory()}) as adapter, kernel_driver(adapter.bus, BRIDGE, "ds2482"):
        nodes = [Path("/sys/bus/w1/devices") / each.name / "hwmon" for each in those]
        with trio.fail_after(60):
            await passes(lambda: all(node.is_dir() and any(node.iterdir()) for node in nodes))
        for node in nodes:
            (node.parent / "conv_time").write_text("50")  # milliseconds; a real one takes 750
        yield


def name_of(thermometer):
    return f"hwmon/w1_slave_temp-w1-{thermometer.name}/temp1"


async def test_thermometers_on_one_wire_are_told_apart_by_their_serial_numbers(session):
    warm, cold = Ds18b20(0x0123456789AB, 21.5), Ds18b20(0x42, -10.125)
    async with thermometers(warm, cold):
        entries = await listed(session)
        assert [entries[name_of(each)]["unit"] for each in (warm, cold)] == ["celsius", "celsius"]
        assert [await value(session, name_of(each)) for each in (warm, cold)] == [21.5, -10.125]
        warm.celsius = 99.0625
        assert await value(session, name_of(warm)) == pytest.approx(99.0625, abs=0.001)


async def test_a_thermometer_that_is_pulled_off_the_wire_is_an_error_and_no_temperature(session):
    one = Ds18b20(0x77, 20)
    async with thermometers(one):
        one.present = False
        with pytest.raises(DeviceError) as caught:
            await value(session, name_of(one))
        assert caught.value.data["effect"] == "none"
        assert caught.value.data["errno"] in {errno.errorcode[number] for number in (errno.EIO, errno.ENODEV)}
        one.present = True
        assert await value(session, name_of(one)) == 20


async def test_a_wire_whose_bridge_goes_takes_its_thermometers_along(session):
    one = Ds18b20(0x78, 20)
    async with thermometers(one):
        assert name_of(one) in await listed(session)
    with pytest.raises(DeviceError) as caught:
        await value(session, name_of(one))
    assert caught.value.data["errno"] == "ENODEV"
    assert name_of(one) not in await listed(session)


async def failure(session, name):
    with pytest.raises(DeviceError) as caught:
        await value(session, name)
    assert caught.value.data["effect"] == "none"
    return caught.value


async def test_85_degrees_are_a_measurement_only_where_the_kernel_tells_them_from_the_power_on_value(session):
    """Linux Documentation/w1/slaves/w1_therm.rst; https://github.com/timofurrer/w1thermsensor/issues/46."""
    one = Ds18b20(0x79, 85)
    async with thermometers(one):
        name, features = name_of(one), Path("/sys/bus/w1/devices") / one.name / "features"
        assert features.read_text().strip() == "0"
        for one.fails in (True, False):
            assert (await failure(session, name)).data["errno"] == "ENODATA"
        assert f"`echo 1 | sudo tee {features.resolve()}`" in (await listed(session))[name]["problem"]

        features.write_text("1")
        assert await value(session, name) == 85
        assert "problem" not in (await listed(session))[name]
        one.fails = True
        error = await failure(session, name)
        assert (error.data["errno"], "power-on value" in error.message) == ("EIO", True)
        one.fails, one.celsius = False, 20.5
        assert await value(session, name) == 20.5


GUARDED = """
name = "cell"
description = "a pump that one of the kernel's thermometers guards"
[discover]
sensors = true
[[gpio]]
label = "cell"
driver = "sim"
names = ["pump"]
[gpio.lines.pump]
safe = 0
[[interlock]]
drives = "pump"
value = 1
requires = [{{ sensor = "{sensor}", min = 5, max = 95 }}]
max_age_ms = 20_000
check_ms = 10_000
"""


@pytest.mark.parametrize("checked", [False, True])
async def test_a_power_on_value_closes_no_interlock_although_it_lies_between_its_bounds(tmp_path, checked):
    one = Ds18b20(0x7A, 20)
    profile = tmp_path / "guarded.toml"
    profile.write_text(GUARDED.format(sensor=name_of(one)))
    async with thermometers(one), hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        (Path("/sys/bus/w1/devices") / one.name / "features").write_text(str(int(checked)))
        one.fails = True
        with pytest.raises(InterlockOpen, match="power-on value"):
            await session.run("gpio.set", line="pump", value=1)
        one.fails = False
        await session.run("gpio.set", line="pump", value=1)
