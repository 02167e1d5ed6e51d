"""docs/reference/sensors.md says what the code says."""

import re
from pathlib import Path

import pytest

from hearth.drivers import sysfs
from hearth.drivers.boards import load_profile
from hearth.drivers.i2c.chips import SENSOR_KINDS
from hearth.drivers.iio.kernel import CLASSES

PAGE = (Path(__file__).parents[2] / "docs/reference/sensors.md").read_text("utf-8")
UNITS = PAGE.partition("## Units")[2].partition("##")[0]


def test_every_kind_of_sensor_that_a_profile_may_name_is_on_the_page():
    paragraph = PAGE.partition("Kinds:")[2].partition("\n\n")[0]
    assert set(re.findall("`([a-z0-9]+)`", paragraph)) == set(SENSOR_KINDS)


def test_every_unit_of_the_kernels_sensors_is_in_the_table():
    tables = (sysfs._HWMON, sysfs.IIO_QUANTITIES, sysfs._SUPPLY, sysfs._POWERCAP)
    used = {row[1] for table in tables for row in table.values()} | {"boolean", "count", "raw"}
    assert used <= set(re.findall("`([a-zA-Z_]+)`", UNITS))


def test_every_class_has_an_example_of_its_names():
    names = re.findall(r"^\| `([^`]+)` \|", PAGE.partition("## Names")[2].partition("##")[0], re.MULTILINE)
    assert {name.partition("/")[0] for name in names} == set(CLASSES)


@pytest.mark.parametrize("name", ["generic-linux", "rpi4", "rpi5"])
def test_the_boards_that_are_said_to_offer_the_kernels_sensors_do(name):
    assert f"`{name}`" in PAGE
    assert "sensors" in load_profile(name).discover


def test_the_simulated_board_does_not_offer_those_of_its_host():
    assert "sensors" not in load_profile("sim").discover
