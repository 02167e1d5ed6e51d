"""What the kinds of I2C sensors make of a chip's bytes: the examples of their data sheets."""

import pytest

from hearth.drivers.i2c.chips import SENSOR_KINDS, I2cSensor
from hearth.errors import DeviceError

EXAMPLES = [
    ("tmp102", "7ff0", 127.9375),
    ("tmp102", "e700", -25.0),
    ("tmp102", "4b01", 150.0),
    ("lm75", "7d00", 125.0),
    ("lm75", "00ff", 0.5),
    ("lm75", "c900", -55.0),
    ("lm75b", "7f00", 127.0),
    ("lm75b", "003f", 0.125),
    ("lm75b", "ffe0", -0.125),
    ("tmp75", "0040", 0.25),
    ("tmp75", "ffc0", -0.25),
    ("tmp75", "3200", 50.0),
    ("tmp117", "0c80", 25.0),
    ("tmp117", "ffff", -0.0078125),
    ("mcp9808", "c194", 25.25),
    ("mcp9808", "1ff0", -1.0),
    ("ina219", "1f42", 4.0),
    ("ina219", "5dc0", 12.0),
    ("ina226", "2570", 11.98),
    ("mcp3221", "0800", 50.0),
    ("mcp3221", "0fff", 99.98),
]

POWER_ON = {
    "tmp102": "60a0", "lm75": "00", "lm75b": "00", "tmp75": "00", "tmp117": "0220", "mcp9808": "0000",
    "ina219": "399f", "ina226": "4127", "mcp3221": "",
}  # fmt: skip
"""The configuration of each kind after power-on: it measures."""
STOPPED = [
    ("tmp102", "61a0"),
    ("lm75", "01"),
    ("lm75b", "01"),
    ("tmp75", "01"),
    ("tmp75", "81"),
    ("tmp117", "0620"),
    ("tmp117", "0e20"),
    ("mcp9808", "0100"),
    ("ina219", "3998"),
    ("ina219", "399b"),
    ("ina219", "399c"),
    ("ina219", "399d"),
    ("ina226", "4120"),
    ("ina226", "4123"),
]
"""Shut down, one conversion at a time, or another quantity alone."""


def sensor(kind):
    return I2cSensor("t", kind, "i2c:1", 0x48, SENSOR_KINDS[kind].unit)


@pytest.mark.parametrize(("kind", "raw", "value"), EXAMPLES)
def test_a_register_becomes_a_number_with_a_unit(kind, raw, value):
    assert sensor(kind).value(bytes.fromhex(POWER_ON[kind] + raw)) == value


@pytest.mark.parametrize(("kind", "configuration"), STOPPED)
def test_a_chip_that_does_not_measure_is_an_error_and_not_its_last_reading(kind, configuration):
    raw = next(raw for example, raw, _ in EXAMPLES if example == kind)
    with pytest.raises(DeviceError, match=f"shut down .* is 0x{configuration}") as caught:
        sensor(kind).value(bytes.fromhex(configuration + raw))
    assert caught.value.data == {"effect": "none", "addr": 0x48, "errno": "ENODATA", "quality": "none"}


def test_every_kind_has_an_example():
    assert {kind for kind, _, _ in EXAMPLES} == set(SENSOR_KINDS)


def test_a_chip_that_has_measured_nothing_yet_is_an_error_and_not_the_coldest_of_all_temperatures():
    with pytest.raises(DeviceError, match="ask again") as caught:
        sensor("tmp117").value(b"\x02\x20\x80\x00")
    assert caught.value.data == {"effect": "none", "errno": "EAGAIN", "quality": "none"}


@pytest.mark.parametrize("raw", [b"", b"\x19", b"\x19\x00\x60\xa0\x00"])
def test_a_reply_of_the_wrong_length_is_an_error(raw):
    with pytest.raises(DeviceError, match="expected 4 bytes") as caught:
        sensor("tmp102").value(raw)
    assert caught.value.data["addr"] == 0x48


@pytest.mark.parametrize(("codes", "raw"), [({"none": (-0.0625,)}, "fff0"), ({"valid": (-20.0, 60.0)}, "7ff0")])
def test_a_code_and_a_number_outside_of_the_valid_ones_are_no_measurement(codes, raw):
    made = I2cSensor("t", "tmp102", "i2c:1", 0x48, "celsius", **codes)
    with pytest.raises(DeviceError, match="not a measurement") as caught:
        made.value(bytes.fromhex(POWER_ON["tmp102"] + raw))
    assert caught.value.data["errno"] == "ENODATA"
    assert made.value(bytes.fromhex(POWER_ON["tmp102"] + "1900")) == 25.0
