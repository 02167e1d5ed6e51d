"""The kernel's sensors through the real tools: chips that come and go, cells that drain, wires that break."""

import contextlib
import os
from pathlib import Path

import pytest
import smbus2
import trio
from support.i2c_stub import kernel_driver, stub_bus
from support.mcp2221 import Mcp2221, Memory
from support.sysfs import named

import hearth
from hearth.drivers.iio.kernel import KernelSensors
from hearth.errors import DeviceError, InvalidParams, ResourceBusy

NOBODY = 65534
THERMOMETER, OTHER = 0x48, 0x50
ZONE = Path("/sys/class/thermal/thermal_zone0")
POWER = Path("/sys/module/test_power/parameters")
CONFIGFS = Path("/sys/kernel/config/iio")

PROFILE = """
name = "cell"
description = "What the kernel of this machine has, and one sensor of our own."

[discover]
sensors = true

[[i2c]]
bus = BUS
driver = "i2c-dev"

[sensors.inlet]
kind = "lm75"
bus = BUS
addr = 0x50
description = "air inlet"
"""


@pytest.fixture
async def session(tmp_path):
    """A session of an embedded runtime on a board that offers the kernel's sensors."""
    profile = tmp_path / "cell.toml"
    profile.write_text(PROFILE.replace("BUS", str(stub_bus())))
    with trio.fail_after(30):
        async with (
            hearth.open_runtime(board=str(profile)) as runtime,
            runtime.open_session(client_name="sensors") as opened,
        ):
            yield opened


@pytest.fixture
def stub():
    """Writes a big-endian 16-bit register of a chip on the stub, also while a kernel driver owns it."""
    bus = stub_bus()

    def write(address, register, value):
        with smbus2.SMBus(bus) as wire:
            wire.write_word_data(
                address, register, int.from_bytes(value.to_bytes(2, "big", signed=value < 0), "little"), force=True
            )

    return write


@contextlib.contextmanager
def lm75(stub, celsius):
    """A thermometer that the kernel drives; yields the directory of its device."""
    stub(THERMOMETER, 0, int(celsius * 256))
    stub(THERMOMETER, 2, 75 * 256)
    stub(THERMOMETER, 3, 80 * 256)
    with kernel_driver(stub_bus(), THERMOMETER, "lm75") as device:
        yield device


@contextlib.contextmanager
def simulated_converter(name):
    at = CONFIGFS / "devices/dummy" / name
    at.mkdir()
    try:
        yield
    finally:
        at.rmdir()


@contextlib.contextmanager
def nobody():
    """This process, without root's rights."""
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


async def listed(session):
    return {entry["sensor"]: entry for entry in (await session.run("hw.sensor.list"))["sensors"]}


async def read(session, name):
    return await session.run("hw.sensor.read", sensor=name)


async def becomes(session, name, value):
    """Read until the sensor says `value`: a chip's driver keeps what it has for its conversion time."""
    while (await read(session, name))["value"] != value:  # noqa: ASYNC110 - a sensor tells nobody of a change
        await trio.sleep(0.05)


async def refused(session, name):
    with pytest.raises(DeviceError) as caught:
        await read(session, name)
    assert caught.value.data["effect"] == "none"
    return caught.value


async def whatever(session, name):
    with contextlib.suppress(DeviceError):
        await read(session, name)


def unbind(device):
    (device / "driver/unbind").write_text(device.name)


def bind(device):
    Path("/sys/bus/i2c/drivers/lm75/bind").write_text(device.name)


def resolved(at):
    return str(at.resolve())


def hwmon_names():
    return set(named("/sys/class/hwmon").values())


def lm75_name():
    return f"hwmon/lm75-i2c-{stub_bus()}-48/temp1"


# --- hwmon -------------------------------------------------------------------------------------------------------


async def test_a_thermometer_that_the_kernel_drives_is_read_in_degrees(session, stub):
    name = lm75_name()
    with lm75(stub, 25.5) as device:
        where = resolved(device)
        entry = (await listed(session))[name]
        assert await read(session, name) == {"sensor": name, "value": 25.5, "unit": "celsius", "kernel": "lm75"}
        stub(THERMOMETER, 0, 30 * 256)
        await becomes(session, name, 30.0)
    path = entry.pop("path")
    assert path.startswith(f"{where}/hwmon/hwmon")
    assert path.endswith("/temp1_input")
    assert entry == {
        "sensor": name,
        "kind": "temperature",
        "unit": "celsius",
        "bus": "sensors",
        "kernel": "lm75",
        "driver": "lm75",
        "scale": 0.001,
        "limits": {"max": 80.0},
    }


async def test_a_value_below_zero_keeps_its_sign(session, stub):
    with lm75(stub, -40.5):
        assert (await read(session, lm75_name()))["value"] == -40.5


async def test_a_sensor_is_there_as_long_as_its_chip_is(session, stub):
    name = lm75_name()
    assert name not in await listed(session)
    for _ in range(3):
        with lm75(stub, 25.5):
            assert name in await listed(session)
        assert name not in await listed(session)


async def test_a_sensor_that_is_unbound_between_list_and_read_is_a_clear_error(session, stub):
    with lm75(stub, 25.5) as device:
        (name,) = (sensor for sensor in await listed(session) if sensor.startswith("hwmon/lm75"))
        unbind(device)
        error = await refused(session, name)
        assert error.data["errno"] == "ENODEV"
        assert "hw.sensor.list" in error.message
        bind(device)
        assert (await read(session, name))["value"] == 25.5


async def test_an_attribute_that_goes_while_it_is_held_open_reads_as_gone(stub, monkeypatch):
    """The narrowest moment: the chip's driver is unbound between the opening of its attribute and the reading."""
    from hearth.drivers import sysfs

    real_read = sysfs.os.read
    with lm75(stub, 25.5) as device:

        def unbind_first(fd, size):
            if Path(f"/proc/self/fd/{fd}").readlink().name == "temp1_input":
                unbind(device)
            return real_read(fd, size)

        monkeypatch.setattr(sysfs.os, "read", unbind_first)
        with pytest.raises(DeviceError, match="has gone") as caught:
            KernelSensors().read(lm75_name())
        assert caught.value.data["errno"] == "ENODEV"


async def test_a_name_outlasts_the_kernels_numbers(session, stub):
    name = lm75_name()
    paths = []
    with lm75(stub, 25.5):
        paths.append((await listed(session))[name]["path"])
    with kernel_driver(stub_bus(), OTHER, "lm75"), lm75(stub, 26.5):  # the other one takes the number
        paths.append((await listed(session))[name]["path"])
        assert (await read(session, name))["value"] == 26.5
    assert paths[0] != paths[1]


async def test_limits_are_told_as_the_chip_has_them_now(session, stub):
    with lm75(stub, 25.5) as device:
        (limit,) = device.glob("hwmon/hwmon*/temp1_max")
        limit.write_text("60000")
        assert (await listed(session))[lm75_name()]["limits"] == {"max": 60.0}


async def test_a_sensor_of_the_profile_is_listed_and_read_beside_the_kernels(session, stub):
    stub(OTHER, 0, int(-7.5 * 256))
    first, *_ = (await session.run("hw.sensor.list"))["sensors"]
    assert first == {
        "sensor": "inlet",
        "kind": "lm75",
        "unit": "celsius",
        "bus": f"i2c:{stub_bus()}",
        "description": "air inlet",
    }
    assert await read(session, "inlet") == {"sensor": "inlet", "value": -7.5, "unit": "celsius"}


async def test_a_sensor_of_the_profile_whose_address_a_kernel_driver_owns_is_read_through_that(session, stub):
    stub(OTHER, 0, 21 * 256)
    with kernel_driver(stub_bus(), OTHER, "lm75"):
        with pytest.raises(ResourceBusy):
            await read(session, "inlet")
        assert (await read(session, f"hwmon/lm75-i2c-{stub_bus()}-50/temp1"))["value"] == 21.0


async def test_a_name_that_no_device_can_have_is_refused_before_anything_runs(session):
    with pytest.raises(InvalidParams, match=r"inlet, and hw\.sensor\.list has those of the kernel"):
        await read(session, "temperature")


def test_a_user_who_may_not_read_an_attribute_is_told_what_gives_the_right(stub):
    driver, name = KernelSensors(), lm75_name()
    with lm75(stub, 25.5) as device:
        (attribute,) = device.glob("hwmon/hwmon*/temp1_input")
        attribute.chmod(0o400)  # as the kernel has RAPL's counters
        with nobody():
            (sensor,) = (sensor for sensor in driver.scan() if sensor.name == name)
            with pytest.raises(DeviceError) as caught:
                driver.read(name)
        cure = f"z {attribute.resolve()} 0440 root hearth"
    assert cure in sensor.problem
    assert cure in caught.value.message
    assert caught.value.data["errno"] == "EACCES"


# --- a wire that breaks ------------------------------------------------------------------------------------------


async def test_a_chip_that_does_not_answer_is_an_error_with_its_errno_until_it_answers_again(session):
    chip = Memory()
    chip.cells[0] = 21
    with Mcp2221({0x4A: chip}) as adapter, kernel_driver(adapter.bus, 0x4A, "lm75"):
        name = f"hwmon/lm75-i2c-{adapter.bus}-4a/temp1"
        assert 21 <= (await read(session, name))["value"] < 22
        adapter.chip.nack(float("inf"), addr=0x4A)
        with pytest.raises(DeviceError) as caught:
            await becomes(session, name, None)
        error = caught.value
        assert error.data["effect"] == "none"
        assert "limits" not in (await listed(session))[name]
        assert error.data["errno"] in {"ENXIO", "EIO", "EREMOTEIO"}
        assert "powered and connected" in error.message
        adapter.chip.clear()
        assert 21 <= (await read(session, name))["value"] < 22


async def test_a_chip_whose_adapter_hangs_keeps_no_caller_from_the_other_sensors(session):
    with Mcp2221({0x4A: Memory()}) as adapter, kernel_driver(adapter.bus, 0x4A, "lm75"):
        adapter.chip.wedge(addr=0x4A)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(whatever, session, f"hwmon/lm75-i2c-{adapter.bus}-4a/temp1")
            await trio.to_thread.run_sync(adapter.chip.wait_held)
            assert (await read(session, "power_supply/test_battery/present"))["value"] == 1.0
            assert adapter.chip.held, "it hung all the while"
            adapter.chip.release()


# --- thermal, power ----------------------------------------------------------------------------------------------


async def test_a_thermal_zone_is_named_by_what_it_watches(session):
    name = f"thermal/{(ZONE / 'type').read_text().strip()}"
    assert (await listed(session))[name]["kind"] == "temperature"
    (ZONE / "emul_temp").write_text("71500")
    try:
        assert await read(session, name) == {
            "sensor": name,
            "value": 71.5,
            "unit": "celsius",
            "kernel": "test_battery",
        }
        (zone,) = (await session.run("sys.thermal"))["zones"]
        assert zone["celsius"] == 71.5
    finally:
        (ZONE / "emul_temp").write_text("0")
    assert (await read(session, name))["value"] != 71.5


async def test_what_a_zone_mirrors_into_hwmon_is_not_listed_twice(session):
    assert "test_battery" in hwmon_names()
    entries = (await listed(session)).values()
    temperatures = [entry for entry in entries if entry["kind"] == "temperature"]
    assert sorted(entry["sensor"] for entry in temperatures) == [
        "power_supply/test_battery/temp",
        "thermal/test_battery",
    ]


async def test_a_battery_tells_its_charge_and_whether_it_is_charging(session):
    charge = "power_supply/test_battery/capacity"
    entry = (await listed(session))[charge]
    assert (entry["kind"], entry["unit"], entry["status"]) == ("charge", "percent", "Discharging")
    was = (POWER / "battery_capacity").read_text()
    try:
        (POWER / "battery_capacity").write_text("7")
        assert (await read(session, charge))["value"] == 7.0
        (POWER / "battery_status").write_text("charging")
        assert (await listed(session))[charge]["status"] == "Charging"
    finally:
        (POWER / "battery_capacity").write_text(was)
        (POWER / "battery_status").write_text("discharging")
    assert (await read(session, "power_supply/test_battery/voltage_now"))["unit"] == "volt"
    assert (await read(session, "power_supply/test_battery/temp"))["value"] == 2.6
    assert (await read(session, "power_supply/test_battery/current_now"))["value"] == -0.0016


async def test_mains_that_are_pulled_read_as_zero(session):
    name = "power_supply/test_ac/online"
    assert (await read(session, name))["value"] == 1.0
    (POWER / "ac_online").write_text("off")
    try:
        assert await read(session, name) == {"sensor": name, "value": 0.0, "unit": "boolean", "kernel": "test_ac"}
    finally:
        (POWER / "ac_online").write_text("on")


# --- IIO ---------------------------------------------------------------------------------------------------------


async def test_a_converter_is_read_with_its_scale_and_offset(session):
    with simulated_converter("adc0"):
        entries = await listed(session)
        reading = await read(session, "iio/adc0/voltage0")
        assert (reading["value"], reading["unit"]) == (pytest.approx((73 + 7) * 0.001333e-3), "volt")
        entry = entries["iio/adc0/voltage0"]
        assert (entry["scale"], entry["offset"]) == (pytest.approx(0.001333e-3), 7.0)
        difference = await read(session, "iio/adc0/voltage3-voltage4")
        assert difference["value"] == pytest.approx(-34 * 0.000001344e-3)
        assert (await read(session, "iio/adc0/accel_x")) | {"kernel": ""} == {
            "sensor": "iio/adc0/accel_x",
            "value": 34.0,
            "unit": "raw",
            "kernel": "",
        }
        assert (await read(session, "iio/adc0/steps"))["unit"] == "count"
    assert (await refused(session, "iio/adc0/voltage0")).data["errno"] == "ENODEV"


async def test_two_converters_are_told_apart_by_their_names(session):
    with simulated_converter("left"), simulated_converter("right"):
        names = [name for name in await listed(session) if name.endswith("/voltage0")]
    assert names == ["iio/left/voltage0", "iio/right/voltage0"]


async def test_a_power_monitor_is_read_in_volt_ampere_and_watt(session, stub):
    for register in range(6):
        stub(OTHER, register, 0)
    with kernel_driver(stub_bus(), OTHER, "ina219"):
        stub(OTHER, 1, 2000)  # 10 µV each across the shunt of 10 mΩ
        stub(OTHER, 2, 3000 << 3)  # 4 mV each
        stub(OTHER, 4, 1500)
        chip = f"hwmon/ina219-i2c-{stub_bus()}-50"
        values = {name: await read(session, f"{chip}/{name}") for name in ("in0", "in1", "curr1", "power1")}
    assert values["in1"]["value"] == 12.0
    assert values["in0"]["value"] == 0.02
    assert values["curr1"]["value"] > 0
    assert [value["unit"] for value in values.values()] == ["volt", "volt", "ampere", "watt"]


async def test_a_converter_on_a_wire_is_named_by_its_address(session, stub):
    with kernel_driver(stub_bus(), OTHER, "ads1015"):
        stub(OTHER, 0, 500 << 4)
        name = f"iio/ads1015-i2c-{stub_bus()}-50/voltage0"
        entry = (await listed(session))[name]
        assert (await read(session, name))["value"] == pytest.approx(500 * entry["scale"])


async def test_a_converter_that_another_program_captures_from_is_busy(session):
    trigger = CONFIGFS / "triggers/hrtimer/clock"
    with kernel_driver(stub_bus(), OTHER, "ads1015") as chip:
        (device,) = chip.glob("iio:device*")
        trigger.mkdir()
        try:
            (device / "scan_elements/in_voltage0_en").write_text("1")
            (device / "trigger/current_trigger").write_text("clock")
            (device / "buffer/enable").write_text("1")
            with pytest.raises(ResourceBusy, match=r"ads1015.*another program captures from it"):
                await read(session, f"iio/ads1015-i2c-{stub_bus()}-50/voltage0")
            (device / "buffer/enable").write_text("0")
            await read(session, f"iio/ads1015-i2c-{stub_bus()}-50/voltage0")
        finally:
            (device / "buffer/enable").write_text("0")
            (device / "trigger/current_trigger").write_text("\n")
            trigger.rmdir()


# --- all of them -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def counting():
    """All counters of the machine, switched on."""
    switches = [*Path("/sys/bus/counter/devices").glob("*/count*/enable")]
    for switch in switches:
        switch.write_text("1")
    try:
        yield
    finally:
        for switch in switches:
            switch.write_text("0")


async def test_every_sensor_of_the_list_can_be_read_and_has_a_name_of_its_own(session, stub):
    with lm75(stub, 25.5), simulated_converter("adc0"), counting():
        entries = (await session.run("hw.sensor.list"))["sensors"]
        names = [entry["sensor"] for entry in entries if entry["bus"] == "sensors"]
        assert len(set(names)) == len(names) > 15
        for entry in entries[1:]:
            reading = await read(session, entry["sensor"])
            assert (reading["unit"], reading["kernel"]) == (entry["unit"], entry["kernel"])


async def test_many_ask_at_once(session, stub):
    with lm75(stub, 25.5):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(read, session, lm75_name())
                nursery.start_soon(read, session, "power_supply/test_battery/capacity")


@pytest.mark.parametrize(
    "tool", ["sys.cpuinfo", "sys.memory", "sys.thermal", "sys.load", "sys.disk", "sys.network", "sys.uptime"]
)
async def test_this_kernel_without_many_of_its_parts_is_told_all_the_same(session, tool):
    assert await session.run(tool)
