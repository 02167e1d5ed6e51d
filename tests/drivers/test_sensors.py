"""The kernel's sensors on made-up trees: what no simulated kernel has, what is odd, and what is nonsense."""

import errno
import math
import os
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hearth.drivers import sysfs as sysfs
from hearth.drivers.base import Style
from hearth.drivers.iio.kernel import CLASSES, KernelSensors
from hearth.drivers.iio.machine import IioMachine
from hearth.errors import DeviceError, ResourceBusy


class Tree:
    """A made-up /sys."""

    def __init__(self, root):
        self.root = root

    def write(self, at, files):
        folder = self.root / at
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
        return folder

    def link(self, at, to):
        at, to = self.root / at, self.root / to
        at.parent.mkdir(parents=True, exist_ok=True)
        to.mkdir(parents=True, exist_ok=True)
        at.symlink_to(to)

    def hardware(self, at, bus, driver=None):
        """A device on a bus (or of a class, "class/nvme"), with the kernel driver bound to it."""
        self.write(at, {})
        self.link(f"{at}/subsystem", bus if "/" in bus else f"bus/{bus}")
        if driver:
            self.link(f"{at}/driver", f"bus/{bus}/drivers/{driver}")

    def hwmon(self, number, files, parent=None):
        at = f"{parent or 'devices/virtual'}/hwmon/hwmon{number}"
        self.write(at, files)
        self.link(f"class/hwmon/hwmon{number}", at)
        if parent:
            self.link(f"{at}/device", parent)
        return self.root / at

    def iio(self, number, files, parent=None):
        at = f"{parent or 'devices'}/iio:device{number}"
        self.write(at, files)
        self.link(f"bus/iio/devices/iio:device{number}", at)
        return self.root / at

    def counter(self, number, files, parent="devices/platform/wheel"):
        at = f"{parent}/counter{number}"
        self.link(f"bus/counter/devices/counter{number}", at)
        return self.write(at, files)

    def zone(self, number, files):
        at = f"devices/virtual/thermal/thermal_zone{number}"
        self.link(f"class/thermal/thermal_zone{number}", at)
        return self.write(at, files)

    def supply(self, name, files):
        self.link(f"class/power_supply/{name}", f"devices/x/power_supply/{name}")
        return self.write(f"devices/x/power_supply/{name}", files)

    def domain(self, path, files):
        at = f"devices/virtual/powercap/intel-rapl/{path}"
        self.link(f"class/powercap/{path.rpartition('/')[2]}", at)
        return self.write(at, files)

    @property
    def driver(self):
        return KernelSensors(sys=self.root)

    def listed(self):
        return {sensor.name: sensor for sensor in self.driver.scan()}

    def read(self, name):
        return self.driver.read(name)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def failure(tree, name):
    with pytest.raises(DeviceError) as caught:
        tree.read(name)
    assert caught.value.data["effect"] == "none"
    return caught.value


# --- names -------------------------------------------------------------------------------------------------------

CHIPS = [
    ("lm75", "devices/i2c-1/1-0048", "i2c", "lm75-i2c-1-48"),
    ("lm75", "devices/i2c-11/11-a123", "i2c", "lm75-i2c-11-a123"),
    ("odd", "devices/i2c-1/i2c-INT33FE:00", "i2c", "odd-i2c-i2c-INT33FE:00"),
    ("adt7310", "devices/spi/spi0.12", "spi", "adt7310-spi-0-c"),
    ("k10temp", "devices/pci0000:00/0000:00:18.3", "pci", "k10temp-pci-00c3"),
    ("far", "devices/pci0001:00/0001:02:00.0", "pci", "far-pci-10200"),
    ("coretemp", "devices/platform/coretemp.1", "platform", "coretemp-isa-0001"),
    ("nct6775", "devices/platform/nct6775.656", "platform", "nct6775-isa-0290"),
    ("gpio_fan", "devices/platform/fan", "platform", "gpio_fan-fan"),
    ("w1_slave_temp", "devices/w1_bus_master1/28-0000057f9a4b", "w1", "w1_slave_temp-w1-28-0000057f9a4b"),
    ("psu", "devices/usb1/1-2/1-2:1.0", "usb", "psu-usb-1-2:1.0"),
    ("two words", "devices/acpi/PNP0C0A:00", "acpi", "two_words-acpi-PNP0C0A:00"),
]


@pytest.mark.parametrize("name", ["???", "_odd_", "-", "", "a b", b"\xff"])
def test_a_chip_is_found_again_whatever_its_driver_calls_it(tree, name):
    tree.hardware("devices/i2c-1/1-0048", "i2c")
    tree.hwmon(0, {"name": name, "temp1_input": 25500}, "devices/i2c-1/1-0048")
    tree.iio(0, {"name": name, "in_temp_input": 25500}, "devices/i2c-1/1-0048")
    tree.iio(1, {"name": "other", "in_temp_input": 1})
    assert sorted(tree.read(sensor).value for sensor in tree.listed()) == [0.001, 25.5, 25.5]


@pytest.mark.parametrize(("name", "at", "bus", "stem"), CHIPS, ids=[chip[3] for chip in CHIPS])
def test_a_chip_is_named_by_its_kernel_name_its_bus_and_its_address(tree, name, at, bus, stem):
    tree.hardware(at, bus, driver="thedriver")
    tree.hwmon(7, {"name": name, "temp1_input": 25500}, at)
    ((listed, sensor),) = tree.listed().items()
    assert listed == f"hwmon/{stem}/temp1"
    assert (sensor.kernel, sensor.driver) == (name, "thedriver")


def test_a_name_does_not_depend_on_the_kernels_numbers(tmp_path):
    names = []
    for number in (0, 5):
        tree = Tree(tmp_path / str(number))
        tree.hardware("devices/i2c-1/1-0048", "i2c")
        tree.hwmon(number, {"name": "lm75", "temp1_input": 1}, "devices/i2c-1/1-0048")
        tree.iio(number, {"name": "lm75", "in_temp_input": 1}, "devices/i2c-1/1-0048")
        names.append(list(tree.listed()))
    assert names[0] == names[1] == ["hwmon/lm75-i2c-1-48/temp1", "iio/lm75-i2c-1-48/temp"]


def test_a_class_device_is_named_by_the_bus_beneath_it(tree):
    tree.hardware("devices/pci0000:00/0000:01:00.0", "pci", driver="nvme")
    nvme = "devices/pci0000:00/0000:01:00.0/nvme/nvme0"
    tree.hardware(nvme, "class/nvme")
    tree.hwmon(2, {"name": "nvme", "temp1_input": 1}, nvme)
    assert list(tree.listed()) == ["hwmon/nvme-pci-0100/temp1"]


def test_a_hid_device_is_named_by_its_port_and_not_by_the_count_of_its_arrivals(tree):
    tree.hardware("devices/usb1/1-2:1.0", "usb")
    hid = "devices/usb1/1-2:1.0/0003:1B1C:1C0A.0004"
    tree.hardware(hid, "hid")
    tree.hwmon(2, {"name": "corsairpsu", "temp1_input": 1}, hid)
    tree.hardware("devices/virtual/misc/uhid/0005:046D:B36F.0007", "hid")
    tree.hwmon(3, {"name": "ghost", "temp1_input": 1}, "devices/virtual/misc/uhid/0005:046D:B36F.0007")
    assert list(tree.listed()) == [
        "hwmon/corsairpsu-usb-1-2:1.0/temp1",
        "hwmon/ghost-hid-0005:046D:B36F/temp1",
    ]


def test_devices_of_one_name_carry_the_kernels_number_all_of_them(tree):
    tree.zone(0, {"type": "acpitz", "temp": 20000})
    tree.zone(3, {"type": "acpitz", "temp": 30000})
    assert list(tree.listed()) == ["thermal/acpitz@thermal_zone0", "thermal/acpitz@thermal_zone3"]
    assert tree.read("thermal/acpitz@thermal_zone3").value == 30.0
    error = failure(tree, "thermal/acpitz")
    assert error.data["known"] == ["thermal/acpitz@thermal_zone0", "thermal/acpitz@thermal_zone3"]
    assert error.data["errno"] == "ENOTUNIQ"


def test_the_long_name_is_good_also_when_the_other_one_has_gone(tree):
    tree.zone(3, {"type": "acpitz", "temp": 30000})
    assert list(tree.listed()) == ["thermal/acpitz"]
    assert tree.read("thermal/acpitz@thermal_zone3") == tree.read("thermal/acpitz")
    assert failure(tree, "thermal/acpitz@thermal_zone0").data["errno"] == "ENODEV"


def test_a_number_that_is_given_to_another_chip_does_not_lead_to_it(tree):
    for address in ("48", "49"):
        tree.hardware(f"devices/i2c-1/1-00{address}", "i2c")
    tree.hwmon(0, {"name": "lm75", "temp1_input": 1}, "devices/i2c-1/1-0048")
    (name,) = tree.listed()
    (tree.root / "class/hwmon/hwmon0").unlink()
    tree.hwmon(0, {"name": "lm75", "temp1_input": 99000}, "devices/i2c-1/1-0049")
    assert failure(tree, name).data["errno"] == "ENODEV"


def test_odd_names_become_plain_ones(tree):
    tree.zone(0, {"type": "INT3400 Thermal", "temp": 20000})
    tree.zone(1, {"type": b"a/b@c\xff", "temp": 20000})
    tree.zone(2, {"type": "", "temp": 20000})
    assert list(tree.listed()) == ["thermal/INT3400_Thermal", "thermal/a_b_c", "thermal/unnamed"]
    assert tree.read("thermal/a_b_c").value == 20.0


def test_a_chip_without_a_name_has_that_of_its_device(tree):
    tree.hardware("devices/i2c-1/1-0048", "i2c")
    tree.write("devices/i2c-1/1-0048", {"name": "ds75"})
    tree.hwmon(0, {"temp1_input": 1}, "devices/i2c-1/1-0048")
    tree.hwmon(1, {"temp1_input": 1})
    assert list(tree.listed()) == ["hwmon/ds75-i2c-1-48/temp1", "hwmon/unnamed/temp1"]


# --- hwmon -------------------------------------------------------------------------------------------------------

HWMON = [
    ("in0_input", 3312, "voltage", "volt", 3.312),
    ("temp3_input", -5000, "temperature", "celsius", -5.0),
    ("temp2_input", 81850, "temperature", "celsius", 81.85),
    ("curr1_input", 750, "current", "ampere", 0.75),
    ("power1_input", 2500000, "power", "watt", 2.5),
    ("energy1_input", 18446744073709551615, "energy", "joule", 18446744073709.551615),
    ("humidity1_input", 45300, "humidity", "percent", 45.3),
    ("fan1_input", 1200, "fan", "rpm", 1200.0),
    ("freq1_input", 300000000, "frequency", "hertz", 300e6),
]


@pytest.mark.parametrize(("attribute", "raw", "kind", "unit", "value"), HWMON)
def test_hwmon_values_come_in_si_units_without_rounding_noise(tree, attribute, raw, kind, unit, value):
    tree.hwmon(0, {"name": "chip", attribute: raw})
    name = f"hwmon/chip/{attribute.removesuffix('_input')}"
    sensor = tree.listed()[name]
    reading = tree.read(name)
    assert (sensor.kind, sensor.unit, reading.unit) == (kind, unit, unit)
    assert reading.value == value
    assert isinstance(reading.value, float)
    assert sensor.scale == pytest.approx(value / raw)


# Linux Documentation/hwmon/sysfs-interface.rst (tempX_fault, fanX_fault)
@pytest.mark.parametrize(("fault", "works"), [("0", True), ("1", False), (None, True)])
def test_a_reading_that_the_chip_says_is_at_fault_is_no_value(tree, fault, works):
    files = {} if fault is None else {"temp2_fault": fault}
    tree.hwmon(0, {"name": "chip", "temp1_input": 40000, "temp2_input": -128000, **files})
    assert tree.read("hwmon/chip/temp1").value == 40
    if works:
        assert tree.read("hwmon/chip/temp2").value == -128
    else:
        assert failure(tree, "hwmon/chip/temp2").data["quality"] == "none"


def test_a_chip_tells_its_labels_limits_and_alarms(tree):
    files = {"name": "chip", "temp1_input": 40000, "temp1_label": "CPU", "temp1_max": 80000, "temp1_crit": 95500}
    at = tree.hwmon(0, files | {"temp1_min": "garbage", "temp1_max_alarm": 0, "temp1_fault": 1, "temp10_input": 1})
    first, tenth = tree.listed().values()
    assert (first.label, tenth.label) == ("CPU", None)
    assert first.limits == {"max": 80.0, "crit": 95.5}
    assert first.alarms == ("hwmon/chip/temp1_fault", "hwmon/chip/temp1_max_alarm")
    assert first.path == str(at / "temp1_input")
    assert tree.read("hwmon/chip/temp1_fault").value == 1.0
    assert tree.read("hwmon/chip/temp1_max_alarm").unit == "boolean"


def test_an_alarm_of_what_the_chip_does_not_measure_is_a_sensor_of_its_own(tree):
    tree.hwmon(0, {"name": "rpi_volt", "in0_lcrit_alarm": 1})
    ((name, sensor),) = tree.listed().items()
    assert (name, sensor.kind, sensor.unit) == ("hwmon/rpi_volt/in0_lcrit_alarm", "alarm", "boolean")
    assert tree.read(name).value == 1.0


def test_an_averaged_power_is_a_sensor_beside_the_momentary_one(tree):
    tree.hwmon(0, {"name": "chip", "power1_average": 2000000, "power1_input": 3000000})
    assert {name: tree.read(name).value for name in tree.listed()} == {
        "hwmon/chip/power1_average": 2.0,
        "hwmon/chip/power1": 3.0,
    }


def test_outputs_and_settings_are_no_sensors(tree):
    tree.hwmon(0, {"name": "chip", "pwm1": 255, "fan1_target": 900, "update_interval": 100, "temp_input": 1})
    assert tree.listed() == {}


@pytest.mark.parametrize("owner", ["thermal", "power_supply"])
def test_what_a_zone_or_supply_mirrors_into_hwmon_is_told_once(tree, owner):
    tree.hardware("devices/virtual/thing", f"class/{owner}")
    tree.hwmon(0, {"name": "cpu_thermal", "temp1_input": 1}, "devices/virtual/thing")
    tree.zone(0, {"type": "cpu-thermal", "temp": 48312})
    assert list(tree.listed()) == ["thermal/cpu-thermal"]


# --- 1-Wire ------------------------------------------------------------------------------------------------------
#
# Linux Documentation/w1/slaves/w1_therm.rst; https://github.com/timofurrer/w1thermsensor/issues/46

_DS18B20 = "hwmon/w1_slave_temp-w1-28-0000057f9a4b/temp1"


@pytest.fixture
def thermometer(tree):
    """Return a function that makes a DS18B20 with these `features` and this temperature."""

    def make(features, millicelsius):
        at = "devices/w1_bus_master1/28-0000057f9a4b"
        tree.hardware(at, "w1", "w1_slave_driver")
        tree.write(at, {} if features is None else {"features": features})
        tree.hwmon(0, {"name": "w1_slave_temp", "temp1_input": millicelsius}, at)
        return tree

    return make


@pytest.mark.parametrize(
    ("features", "cure"),
    [("0", "`echo 1 | sudo tee "), ("2", "`echo 3 | sudo tee "), (None, "a newer kernel can check")],
)
def test_the_power_on_value_of_a_thermometer_that_the_kernel_does_not_check_is_no_measurement(
    thermometer, features, cure
):
    tree = thermometer(features, 85000)
    assert cure in tree.listed()[_DS18B20].problem
    error = failure(tree, _DS18B20)
    assert (error.data["errno"], "may not have measured" in error.message) == ("ENODATA", True)
    (tree.root / "devices/w1_bus_master1/28-0000057f9a4b/hwmon/hwmon0/temp1_input").write_text("85062\n")
    assert tree.read(_DS18B20).value == 85.062


def test_doctor_names_a_thermometer_that_the_kernel_does_not_check(thermometer):
    look = SimpleNamespace(has_header=False, machine=SimpleNamespace(sys=thermometer("0", 20000).root))
    (hint,) = IioMachine().hints(look)
    assert hint["hint"].startswith(f"{_DS18B20}: its power-on value")
    (look.machine.sys / "devices/w1_bus_master1/28-0000057f9a4b/features").write_text("1\n")
    assert list(IioMachine().hints(look)) == []


@pytest.mark.parametrize("features", ["1", "3"])
def test_a_thermometer_that_the_kernel_checks_may_have_measured_85_degrees(thermometer, features):
    tree = thermometer(features, 85000)
    assert tree.listed()[_DS18B20].problem is None
    assert tree.read(_DS18B20).value == 85.0


# --- IIO ---------------------------------------------------------------------------------------------------------


def test_an_iio_value_is_raw_plus_offset_times_scale(tree):
    tree.iio(0, {"name": "adc0", "in_voltage0_raw": 73, "in_voltage0_offset": 7, "in_voltage0_scale": "0.001333"})
    sensor = tree.listed()["iio/adc0/voltage0"]
    reading = tree.read("iio/adc0/voltage0")
    assert (reading.value, reading.unit, reading.kernel) == (80 * 0.001333 / 1000, "volt", "adc0")
    assert (sensor.scale, sensor.offset, sensor.kind) == (0.001333e-3, 7.0, "voltage")


@pytest.mark.parametrize(
    ("channel", "shared", "value"),
    [
        ("voltage3", "in_voltage_scale", 0.2),
        ("voltage1-voltage2", "in_voltage-voltage_scale", 0.2),
        ("voltage0_vbat", "in_voltage0_scale", 0.2),
        ("temp_object", "in_temp_scale", 0.2),
        ("accel_x_peak", "in_accel_x_scale", 200.0),
        ("accel_x", "in_scale", 200.0),
        ("anglvel_z", "scale", 200.0),
        ("pressure", "in_pressure_scale", 200e3),
    ],
)
def test_a_scale_may_be_shared_by_type_direction_or_all(tree, channel, shared, value):
    tree.iio(0, {"name": "dev", f"in_{channel}_raw": 100, shared: "2.000000000"})
    assert tree.read(f"iio/dev/{channel}").value == value


def test_a_channels_own_scale_comes_before_a_shared_one(tree):
    tree.iio(0, {"name": "d", "in_voltage1_raw": 4, "in_voltage1_scale": 250, "in_voltage_scale": 7, "scale": 9})
    assert tree.read("iio/d/voltage1").value == 1.0


def test_a_differential_channel_does_not_borrow_the_scale_of_a_single_one(tree):
    tree.iio(0, {"name": "d", "in_voltage1-voltage2_raw": 4, "in_voltage_scale": 7})
    reading = tree.read("iio/d/voltage1-voltage2")
    assert (reading.value, reading.unit) == (4.0, "raw")


IIO = [
    ("temp_input", "21500.000000", "temperature", "celsius", 21.5),
    ("humidityrelative_input", "45250", "humidity", "percent", 45.25),
    ("pressure_input", "101.325000000", "pressure", "pascal", 101325.0),
    ("illuminance_input", "320.5", "illuminance", "lux", 320.5),
    ("resistance_input", "110", "resistance", "ohm", 110.0),
    ("distance_input", "0.25", "distance", "metre", 0.25),
    ("steps_input", "47", "steps", "count", 47.0),
    ("concentration_co2_input", "0.041", "concentration", "percent", 0.041),
    ("velocity_sqrt_input", "1.5", "velocity", "metre_per_second", 1.5),
    ("newthing0_input", "12", "newthing", "raw", 12.0),
    ("magn_x_input", "-0.5", "magnetic_field", "tesla", -0.00005),
    # Linux Documentation/ABI/testing/sysfs-bus-iio; https://github.com/analogdevicesinc/libiio/issues/1401
    ("massconcentration_pm2p5_input", "12", "mass_concentration", "microgram_per_cubic_metre", 12.0),
    ("ph_input", "7", "acidity", "pH", 7.0),
    ("electricalconductivity_input", "3", "conductivity", "siemens_per_metre", 3.0),
    ("phase_input", "1", "phase", "radian", 1.0),
    ("rot_from_north_true_input", "90", "rotation", "degree", 90.0),
    ("colortemp_input", "6500", "colour_temperature", "kelvin", 6500.0),
    ("altcurrent0_input", "1500", "current", "ampere", 1.5),
    ("attention_input", "100", "attention", "percent", 100.0),
    ("chromaticity_x_input", "0.3", "chromaticity", "count", 0.3),
]


@pytest.mark.parametrize(("attribute", "raw", "kind", "unit", "value"), IIO)
def test_iio_values_come_in_si_units(tree, attribute, raw, kind, unit, value):
    tree.iio(0, {"name": "dev", f"in_{attribute}": raw})
    ((name, sensor),) = tree.listed().items()
    assert (sensor.kind, sensor.unit, tree.read(name).value) == (kind, unit, value)


def test_a_count_without_a_known_scale_is_not_called_a_quantity(tree):
    tree.iio(0, {"name": "dev", "in_accel_x_raw": 34, "in_intensity_both_raw": 9, "in_intensity_scale": 2})
    assert {name: (tree.read(name).value, tree.read(name).unit) for name in tree.listed()} == {
        "iio/dev/accel_x": (34.0, "raw"),
        "iio/dev/intensity_both": (18.0, "count"),
    }


def test_a_scaled_input_is_preferred_to_its_raw_form(tree):
    tree.iio(0, {"name": "dev", "in_temp_input": 21000, "in_temp_raw": 77, "in_temp_scale": 2})
    assert tree.read("iio/dev/temp").value == 21.0
    assert len(tree.listed()) == 1


def test_times_and_quaternions_are_no_sensors(tree):
    tree.iio(0, {"name": "d", "in_timestamp_raw": 1, "in_rot_quaternion_raw": "0 0 0 1"})
    tree.write("bus/iio/devices/iio_evgen", {"in_voltage0_raw": 1})
    tree.write("bus/iio/devices/trigger0", {"name": "t"})
    assert tree.listed() == {}


def test_an_iio_label_is_the_channels_own_or_else_the_devices(tree):
    tree.iio(
        0, {"name": "d", "label": "board", "in_voltage0_input": 1, "in_voltage1_input": 1, "in_voltage1_label": "x"}
    )
    assert [sensor.label for sensor in tree.listed().values()] == ["board", "x"]


def test_a_silent_scale_is_unknown_in_the_list_and_an_error_in_a_reading(tree):
    tree.iio(0, {"name": "d", "in_voltage0_raw": 1, "in_voltage0_scale": ""})
    assert "scale" not in tree.listed()["iio/d/voltage0"].to_json()
    assert failure(tree, "iio/d/voltage0").data["errno"] == "EBADMSG"


def test_an_output_is_a_sensor_of_what_it_is_set_to_with_its_own_scale(tree):
    files = {"out_voltage1_raw": 100, "out_voltage_scale": 2, "in_voltage1_raw": 7, "in_voltage_scale": 1000}
    tree.iio(0, {"name": "d", **files, "out_voltage1_label": "heater"})
    assert tree.read("iio/d/out_voltage1").value == 0.2
    assert tree.read("iio/d/voltage1").value == 7
    sensor = tree.listed()["iio/d/out_voltage1"]
    assert (sensor.unit, sensor.label, sensor.description) == ("volt", "heater", "an output: what it is set to")


@pytest.mark.parametrize("given", ["128", "128.000000", "128.000000 Hz"])
@pytest.mark.parametrize("attribute", ["sampling_frequency", "in_accel_sampling_frequency", "in_sampling_frequency"])
def test_a_device_that_measures_at_a_rate_is_listed_with_it(tree, attribute, given):
    tree.iio(0, {"name": "d", "in_accel_x_raw": 1, attribute: given})
    assert tree.listed()["iio/d/accel_x"].to_json()["rate_hz"] == 128


def test_a_rate_that_is_no_number_is_left_out(tree):
    tree.iio(0, {"name": "d", "in_accel_x_raw": 1, "sampling_frequency": "fast"})
    assert "rate_hz" not in tree.listed()["iio/d/accel_x"].to_json()


def test_the_rate_of_a_trigger_has_precedence(tree):
    at = tree.iio(0, {"name": "d", "in_accel_x_raw": 1, "sampling_frequency": 5, "trigger/current_trigger": "t100"})
    (at / "subsystem").symlink_to(tree.root / "bus/iio")
    for number, name in enumerate(("other", "t100")):
        tree.write(f"bus/iio/devices/trigger{number}", {"name": name, "sampling_frequency": 100 * number})
    assert tree.listed()["iio/d/accel_x"].rate_hz == 100
    (at / "trigger/current_trigger").write_text("gone\n")
    assert tree.listed()["iio/d/accel_x"].rate_hz == 5


class Changing(Tree):
    """A tree whose scale is another one each time it is read, for as long as `changes` last."""

    def __init__(self, root, monkeypatch, changes):
        super().__init__(root)
        self.iio(0, {"name": "d", "in_voltage0_raw": 1000, "in_voltage0_scale": 1})
        self.changes = changes
        plain = sysfs.read

        def read(path):
            if path.name.endswith("_raw") and self.changes:
                self.changes -= 1
                path.with_name("in_voltage0_scale").write_text(f"{self.changes + 2}")
            return plain(path)

        monkeypatch.setattr(sysfs, "read", read)


def test_a_counter_is_listed_with_its_counts_and_their_rates(tree):
    tree.hardware("devices/platform/wheel", "platform")
    count = {"name": "Left", "count": 7, "ceiling": 999, "floor": 0, "direction": "forward", "enable": 1}
    files = {f"count0/{name}": content for name, content in count.items()} | {
        "count1/count": 9,
        "signal0/signal": "low",
    }
    tree.counter(0, {"name": "eqep", **files})
    listed = tree.listed()
    assert list(listed) == [f"counter/eqep-wheel/{name}" for name in ("count0", "count0_rate", "count1", "count1_rate")]
    left, rate, *_ = listed.values()
    assert (left.kind, left.unit, left.label, left.status) == ("count", "count", "Left", "forward")
    assert left.limits == {"min": 0, "max": 999}
    assert (rate.kind, rate.unit, rate.limits) == ("frequency", "hertz", {})
    assert tree.read("counter/eqep-wheel/count1").value == 9


class Turning(Tree):
    """A tree whose count is the next one of `counts` each time it is read."""

    def __init__(self, root, monkeypatch, counts, **files):
        super().__init__(root)
        self.counter(0, {"name": "eqep", "count0/count": 0, **files})
        self.hardware("devices/platform/wheel", "platform")
        left, plain = list(counts), sysfs.read
        monkeypatch.setattr(sysfs, "read", lambda path: str(left.pop(0)) if path.name == "count" else plain(path))


@pytest.mark.parametrize(
    ("counts", "ceiling", "moved"),
    [((10, 110), None, 100), ((110, 10), None, -100), ((990, 90), 999, 100), ((90, 990), 999, -100), ((5, 5), 999, 0)],
)
def test_a_rate_is_the_pulses_a_second_the_shorter_way_round(tmp_path, monkeypatch, counts, ceiling, moved):
    files = {} if ceiling is None else {"count0/ceiling": ceiling}
    rate = Turning(tmp_path, monkeypatch, counts, **files).read("counter/eqep-wheel/count0_rate").value
    # It is counted for a quarter of a second at the least, and longer on a busy machine.
    assert abs(rate) <= abs(moved) / sysfs.GATE_S
    assert (rate > 0, rate < 0) == (moved > 0, moved < 0)


def test_a_counter_that_is_switched_off_is_an_error_with_the_cure(tree):
    tree.hardware("devices/platform/wheel", "platform")
    tree.counter(0, {"name": "eqep", "count0/count": 7, "count0/enable": 0})
    error = failure(tree, "counter/eqep-wheel/count0")
    assert (error.data["errno"], error.data["effect"]) == ("ENODATA", "none")
    assert "count0/enable` switches it on" in error.message
    assert "switched off" in tree.listed()["counter/eqep-wheel/count0"].problem


def test_a_value_is_never_made_of_two_scales(tmp_path, monkeypatch):
    assert Changing(tmp_path, monkeypatch, 1).read("iio/d/voltage0").value == 2.0


def test_a_scale_that_does_not_settle_is_an_error_and_not_a_guess(tmp_path, monkeypatch):
    assert failure(Changing(tmp_path, monkeypatch, 99), "iio/d/voltage0").data["errno"] == "EAGAIN"


# --- thermal, power, RAPL ----------------------------------------------------------------------------------------


def test_a_thermal_zone_has_the_lowest_trip_of_each_kind_as_its_limits(tree):
    trips = [("passive", 70000), ("active", 60000), ("active", 50000), ("critical", 105000), ("odd", 1), ("hot", "x")]
    files = {
        f"trip_point_{n}_{what}": pair[n2] for n, pair in enumerate(trips) for n2, what in enumerate(("type", "temp"))
    }
    tree.zone(0, {"type": "cpu-thermal", "temp": 48312} | files)
    sensor = tree.listed()["thermal/cpu-thermal"]
    assert sensor.limits == {"passive": 70.0, "active": 50.0, "crit": 105.0}
    assert (sensor.kind, sensor.unit, tree.read(sensor.name).value) == ("temperature", "celsius", 48.312)


SUPPLY = [
    ("capacity", 87, "charge", "percent", 87.0),
    ("charge_now", 2500000, "charge", "coulomb", 9000.0),
    ("energy_now", 50000000, "energy", "joule", 180000.0),
    ("voltage_now", 12345678, "voltage", "volt", 12.345678),
    ("current_now", -1600, "current", "ampere", -0.0016),
    ("power_now", 7500000, "power", "watt", 7.5),
    ("temp", 265, "temperature", "celsius", 26.5),
    ("time_to_empty_now", 3600, "duration", "second", 3600.0),
    ("cycle_count", 12, "cycles", "count", 12.0),
    ("online", 1, "online", "boolean", 1.0),
]


@pytest.mark.parametrize(("attribute", "raw", "kind", "unit", "value"), SUPPLY)
def test_a_power_supply_is_read_in_si_units(tree, attribute, raw, kind, unit, value):
    tree.supply("BAT0", {"type": "Battery", attribute: raw})
    ((name, sensor),) = tree.listed().items()
    assert (name, sensor.kind, sensor.unit) == (f"power_supply/BAT0/{attribute}", kind, unit)
    assert tree.read(name).value == value


def test_a_battery_tells_its_limits_its_model_and_whether_it_is_charging(tree):
    files = {
        "charge_now": 1000000,
        "charge_full": 2000000,
        "charge_counter": -5,
        "voltage_now": 1,
        "voltage_max_design": 12600000,
    }
    tree.supply(
        "BAT0", files | {"capacity": 50, "temp": 300, "temp_max": 600, "status": "Charging", "model_name": "X1"}
    )
    sensors = tree.listed()
    assert sensors["power_supply/BAT0/charge_now"].limits == {"full": 7200.0}
    assert sensors["power_supply/BAT0/charge_counter"].limits == {}
    assert sensors["power_supply/BAT0/voltage_now"].limits == {"max_design": 12.6}
    assert sensors["power_supply/BAT0/temp"].limits == {"max": 60.0}
    capacity = sensors["power_supply/BAT0/capacity"].to_json()
    assert (capacity["status"], capacity["label"]) == ("Charging", "X1")
    assert "status" not in sensors["power_supply/BAT0/temp"].to_json()


def test_rapl_domains_are_named_by_the_way_down_to_them(tree):
    tree.domain("intel-rapl:0", {"name": "package-0", "energy_uj": 262143328849, "max_energy_range_uj": 262143328850})
    tree.domain("intel-rapl:0/intel-rapl:0:1", {"name": "core", "energy_uj": 1500000, "power_uw": 2000000})
    tree.write("class/powercap/intel-rapl", {"enabled": 1})
    sensors = tree.listed()
    assert {name: tree.read(name).value for name in sensors} == {
        "powercap/intel-rapl-package-0/energy": 262143.328849,
        "powercap/intel-rapl-package-0-core/energy": 1.5,
        "powercap/intel-rapl-package-0-core/power": 2.0,
    }
    package = sensors["powercap/intel-rapl-package-0/energy"]
    assert (package.unit, package.limits) == ("joule", {"max": 262143.32885})
    assert "counts up" in package.description
    assert sensors["powercap/intel-rapl-package-0-core/power"].description is None


def test_what_only_root_may_read_is_listed_with_the_cure(tree, monkeypatch):
    at = tree.domain("intel-rapl:0", {"name": "package-0", "energy_uj": 1}) / "energy_uj"
    opened, allowed = os.open, os.access

    def refuse(path, *args, **kwargs):
        if path == at:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)  # the tests may run as root, whom no mode refuses
    monkeypatch.setattr(os, "access", lambda path, mode: path != at and allowed(path, mode))
    (sensor,) = tree.listed().values()
    assert f"z {at} 0440 root hearth" in sensor.to_json()["problem"]
    error = failure(tree, sensor.name)
    assert error.data["errno"] == "EACCES"
    assert sensor.problem in error.message


# --- what goes wrong ---------------------------------------------------------------------------------------------

ANSWERS = [
    (errno.EIO, "EIO", "powered and connected"),
    (errno.ENXIO, "ENXIO", "no device answers"),
    (errno.ENODATA, "ENODATA", "no data"),
    (errno.EAGAIN, "EAGAIN", "ask again"),
    (errno.ETIMEDOUT, "ETIMEDOUT", "in time"),
    (errno.EINVAL, "EINVAL", "Invalid argument"),
    (errno.ENODEV, "ENODEV", r"has gone .* hw\.sensor\.list"),
    (errno.ENOENT, "ENODEV", "has gone"),
]


@pytest.mark.parametrize(("number", "symbol", "words"), ANSWERS)
def test_a_device_that_does_not_answer_is_an_error_with_its_errno_and_without_effect(
    tree, monkeypatch, number, symbol, words
):
    at = tree.hwmon(0, {"name": "chip", "temp1_input": 1}) / "temp1_input"

    def fail(path):
        assert path == at
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sysfs, "read", fail)
    monkeypatch.setattr(sysfs, "text", lambda _path: "chip")
    with pytest.raises(DeviceError, match=words) as caught:
        tree.read("hwmon/chip/temp1")
    assert (caught.value.data["errno"], caught.value.data["effect"]) == (symbol, "none")
    assert caught.value.data["sensor"] == "hwmon/chip/temp1"


def test_a_converter_that_another_program_captures_from_is_busy(tree, monkeypatch):
    tree.iio(0, {"name": "adc", "in_voltage0_input": 1})
    plain = sysfs.read

    def busy(path):
        if path.name.startswith("in_"):
            raise OSError(errno.EBUSY, "Device or resource busy")
        return plain(path)

    monkeypatch.setattr(sysfs, "read", busy)
    with pytest.raises(ResourceBusy, match=r"adc.*another program captures from it") as caught:
        tree.read("iio/adc/voltage0")
    assert caught.value.data["effect"] == "none"


def test_a_chip_that_is_busy_for_a_moment_is_busy_too(tree, monkeypatch):
    at = tree.hwmon(0, {"name": "chip", "temp1_input": 1}) / "temp1_input"
    plain = sysfs.read

    def busy(path):
        if path == at:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return plain(path)

    monkeypatch.setattr(sysfs, "read", busy)
    with pytest.raises(ResourceBusy, match="busy; ask again"):
        tree.read("hwmon/chip/temp1")


@pytest.mark.parametrize("odd", ["", "abc", "1 2 3", "0x10", "nan", "1e999", "--5", "5.", "9" * 5000, "१२"])
def test_an_attribute_that_is_no_number_is_an_error_that_shows_it(tree, odd):
    tree.hwmon(0, {"name": "chip", "temp1_input": odd})
    error = failure(tree, "hwmon/chip/temp1")
    assert error.data["errno"] == "EBADMSG"
    assert len(error.message) < 300
    assert odd[:10] in error.message


def test_a_folder_where_an_attribute_should_be_is_an_error(tree):
    (tree.hwmon(0, {"name": "chip"}) / "temp1_input").mkdir()
    assert failure(tree, "hwmon/chip/temp1").data["errno"] == "EISDIR"
    assert list(tree.listed()) == ["hwmon/chip/temp1"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("temperature", "begin with hwmon/"),
        ("", "begin with hwmon/"),
        ("hwmon", "no hwmon device has this name"),
        ("hwmon/", "no hwmon device has this name"),
        ("hwmon/lm75-i2c-1-48/temp1", "no hwmon device has this name"),
        ("hwmon/chip", "chip has temp1"),
        ("hwmon/chip/temp2", "chip has temp1"),
        ("hwmon/chip/../x", "chip has temp1"),
        ("hwmon/chip@hwmon1/temp1", "no hwmon device has this name"),
        ("thermal/cpu/x", "cpu has no such part"),
    ],
)
def test_a_sensor_that_is_not_there_is_named_with_what_is(tree, name, words):
    tree.hwmon(0, {"name": "chip", "temp1_input": 1})
    tree.zone(0, {"type": "cpu", "temp": 1})
    error = failure(tree, name)
    assert words in error.message
    assert "hw.sensor.list" in error.message
    assert error.data["errno"] == "ENODEV"


def test_a_device_that_goes_while_it_is_being_looked_at_is_just_not_there(tree):
    tree.link("class/hwmon/hwmon0", "devices/gone")
    (tree.root / "devices/gone").rmdir()
    tree.link("class/power_supply/BAT0", "devices/gone")
    (tree.root / "devices/gone").rmdir()
    assert tree.listed() == {}
    assert failure(tree, "hwmon/unnamed/temp1").data["errno"] == "ENODEV"


def test_a_class_that_goes_while_it_is_listed_has_nothing(tree, monkeypatch):
    tree.hwmon(0, {"name": "chip", "temp1_input": 1})

    def gone(_path, _pattern):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(type(tree.root), "glob", gone)
    assert tree.driver.scan() == []


def test_links_in_a_circle_end(tree):
    (tree.root / "class/hwmon").mkdir(parents=True)
    (tree.root / "class/hwmon/hwmon0").symlink_to(tree.root / "class/hwmon/hwmon0")
    assert tree.listed() == {}


def test_a_machine_without_sensors_has_none(tree):
    assert tree.driver.scan() == []
    assert failure(tree, "hwmon/chip/temp1").data["errno"] == "ENODEV"


def test_a_chip_that_does_not_answer_is_asked_for_one_limit_and_no_more(tree, monkeypatch):
    files = {f"temp{n}_{what}": 1000 for n in (1, 2, 3) for what in ("input", "min", "max", "crit")}
    tree.hwmon(0, {"name": "dead"} | files)
    tree.hwmon(1, {"name": "live", "temp1_input": 1, "temp1_max": 80000})
    asked = []
    plain = sysfs.read

    def read(path):
        if path.parent.name == "hwmon0" and path.name.endswith(("_min", "_max", "_crit")):
            asked.append(path.name)
            raise OSError(errno.ETIMEDOUT, "Connection timed out")
        return plain(path)

    monkeypatch.setattr(sysfs, "read", read)
    sensors = tree.listed()
    assert [dict(sensor.limits) for sensor in sensors.values()] == [{}, {}, {}, {"max": 80.0}]
    assert asked == ["temp1_min"]


def test_a_limit_that_a_chip_does_not_have_at_the_moment_costs_it_no_other(tree, monkeypatch):
    tree.hwmon(0, {"name": "chip", "temp1_input": 1, "temp1_max": 80000, "temp1_min": 1000})
    plain = sysfs.read

    def read(path):
        if path.name == "temp1_min":
            raise OSError(errno.ENODATA, "No data available")
        return plain(path)

    monkeypatch.setattr(sysfs, "read", read)
    assert tree.listed()["hwmon/chip/temp1"].limits == {"max": 80.0}


def test_a_list_may_be_cut(tree):
    tree.hwmon(0, {"name": "huge"} | {f"temp{n}_input": n for n in range(1, 8)})
    assert [sensor.name[-5:] for sensor in tree.driver.scan(3)] == ["temp1", "temp2", "temp3"]


# --- whatever the kernel says ------------------------------------------------------------------------------------


def outcome_of(tree, name):
    try:
        return tree.read(name).value
    except DeviceError as error:
        return error.data["errno"]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    contents=st.lists(
        st.one_of(st.binary(max_size=40), st.from_regex(rb"-?[0-9]{1,30}(\.[0-9]{1,30})?\n")), min_size=9, max_size=9
    )
)
def test_whatever_an_attribute_holds_the_answer_is_a_finite_number_or_our_error(tmp_path_factory, contents):
    tree = Tree(tmp_path_factory.mktemp("sys"))
    files = iter(contents)
    tree.hwmon(0, {"name": next(files), "temp1_input": next(files), "temp1_max": next(files)})
    tree.iio(
        0, {"name": "d", "in_voltage0_raw": next(files), "in_voltage_scale": next(files), "in_offset": next(files)}
    )
    tree.zone(0, {"type": next(files), "temp": next(files)})
    tree.supply("BAT0", {"capacity": next(files)})
    sensors = tree.driver.scan()
    assert len(sensors) == 4
    assert len({sensor.name for sensor in sensors}) == 4
    for sensor in sensors:
        assert sensor.name.isascii()
        outcome = outcome_of(tree, sensor.name)
        assert outcome == "EBADMSG" or math.isfinite(outcome)


@given(st.text(max_size=60))
def test_whatever_name_is_asked_for_the_answer_is_our_error(tmp_path_factory, name):
    driver = KernelSensors(sys=tmp_path_factory.getbasetemp() / "nowhere")
    with pytest.raises(DeviceError):
        driver.read(name)


# --- the driver itself -------------------------------------------------------------------------------------------


def test_the_bus_runs_four_reads_at_once_in_threads_and_has_no_outputs():
    driver = KernelSensors()
    assert (driver.style, driver.width) == (Style.THREAD, 4)
    driver.open()
    assert driver.make_safe(["x"]) == []
    assert driver.describe() == {"kind": "sensors", "driver": "sysfs", "classes": list(CLASSES)}
    driver.close()


def test_nothing_is_kept_between_two_calls(tree):
    driver = tree.driver
    assert driver.scan() == []
    at = tree.hwmon(0, {"name": "chip", "temp1_input": 1000})
    assert [sensor.name for sensor in driver.scan()] == ["hwmon/chip/temp1"]
    assert driver.read("hwmon/chip/temp1").value == 1.0
    (at / "temp1_input").write_text("2000")
    assert driver.read("hwmon/chip/temp1").value == 2.0
    (tree.root / "class/hwmon/hwmon0").unlink()
    assert driver.scan() == []
