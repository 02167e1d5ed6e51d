"""Which device nodes a board needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.sandbox.plan import DEV, devices_of

NULL = Path("/dev/null")


def profile(**content):
    return parse_profile({"name": "x", "description": "y", **content}, "test")


def port(path):
    return {"port": "p", "driver": "serial", "path": str(path)}


def nodes(devices):
    return {(str(path), access) for path, access, _ in devices.grants}


PLAIN = {(f"/dev/{name}", "device") for name in ("null", "zero", "full", "random", "urandom", "tty")}


def test_a_board_without_devices_reaches_none():
    assert nodes(devices_of(profile(), None)) == PLAIN
    assert devices_of(profile(), None).hotplug is None


def test_a_simulated_serial_port_is_a_pseudo_terminal():
    devices = devices_of(profile(uart=[{"port": "p", "driver": "sim"}]), None)
    assert nodes(devices) - PLAIN == {("/dev/ptmx", "device"), ("/dev/pts", "device")}


@pytest.mark.parametrize("hotplug", [None, True])
def test_the_panel_of_a_simulated_chip_is_reached_where_it_is(tmp_path, hotplug):
    os.mkfifo(tmp_path / "panel")
    chips = [
        {"label": name, "driver": "sim", "names": ["A"], "panel": str(tmp_path / name)} for name in ("panel", "missing")
    ]
    devices = devices_of(profile(gpio=chips), hotplug)
    assert (tmp_path / "panel", "device", "the panel of gpio chip panel") in devices.grants
    assert str(tmp_path / "missing") not in {path for path, _ in nodes(devices)}
    assert (devices.hotplug is None) == (hotplug is None)


def test_a_device_that_stays_where_it_is_is_reached_by_its_node_alone(tmp_path):
    (tmp_path / "link").symlink_to("/dev/full")
    devices = devices_of(profile(uart=[port(tmp_path / "link")]), None)
    assert devices.hotplug is None
    assert nodes(devices) == PLAIN
    assert (Path("/dev/full"), "device", "uart p") in devices.grants


def test_a_device_that_is_not_there_yet_will_have_an_unknown_node():
    devices = devices_of(profile(uart=[port("/dev/ttyUSB77")]), None)
    assert devices.hotplug == "uart p is not there now"
    assert devices.grants == ((DEV, "device", devices.hotplug),)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({"i2c": [{"bus": 222, "driver": "i2c-dev"}]}, "i2c bus 222"),
        ({"i2c": [{"bus": 222, "driver": "i2c-dev", "adapter": "no such adapter"}]}, "i2c bus 222"),
        ({"gpio": [{"label": "none", "driver": "gpiod", "names": ["a"]}]}, "gpio chip none"),
        ({"gpio": [{"label": "none", "driver": "gpiod", "names": ["a"], "path": "/dev/none"}]}, "gpio chip none"),
    ],
)
def test_that_holds_for_every_kind_of_device(content, what):
    assert devices_of(profile(**content), None).hotplug == f"{what} is not there now"


def test_what_can_be_unplugged_may_come_back_under_a_new_node(tmp_path):
    number = NULL.stat().st_rdev
    (tmp_path / "dev/char").mkdir(parents=True)
    (tmp_path / "devices/pci0/usb1/1-1/tty/ttyUSB0").mkdir(parents=True)
    entry = tmp_path / f"dev/char/{os.major(number)}:{os.minor(number)}"
    entry.symlink_to("../../devices/pci0/usb1/1-1/tty/ttyUSB0")
    devices = devices_of(profile(uart=[port(NULL)]), None, sys=tmp_path)
    assert devices.hotplug == "uart p can be unplugged"
    entry.unlink()
    entry.symlink_to("../../devices/platform/serial0/tty/ttyS0")
    assert devices_of(profile(uart=[port(NULL)]), None, sys=tmp_path).hotplug is None


def test_the_operator_has_the_last_word():
    content = profile(uart=[port("/dev/ttyUSB77")], gpio=[{"label": "none", "driver": "gpiod", "names": ["a"]}])
    assert nodes(devices_of(content, False)) == {*PLAIN, ("/dev", "list")}, "GPIO chips are found by looking"
    assert devices_of(profile(), True).hotplug == "[sandbox] hotplug"


def test_a_path_that_is_no_device_is_nothing_that_could_be_unplugged(tmp_path):
    (tmp_path / "pipe").touch()
    devices = devices_of(profile(uart=[port(tmp_path / "pipe")]), None)
    assert devices.hotplug is None
