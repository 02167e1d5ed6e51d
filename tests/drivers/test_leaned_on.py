"""Devices that an interlock goes by: what a profile makes of them, and what `hearth doctor` says about them."""

from __future__ import annotations

import pytest

from hearth.actors import daemon
from hearth.drivers.boards.diagnose import cautions
from hearth.drivers.boards.profile import parse_profile
from hearth.errors import ConfigError, PermissionDenied

HEATER = {"label": "oven", "driver": "sim", "names": ["HEATER"], "lines": {"HEATER": {"safe": 0}}}


def profile(sensor="T", **tables):
    lock = {"drives": "HEATER", "value": 1, "requires": [{"sensor": sensor, "max": 60}]}
    return parse_profile({"name": "oven", "description": "o", "gpio": [HEATER], "interlock": [lock], **tables}, "oven")


def on_i2c(kind="tmp102", **device):
    devices = [{"addr": 0x48, "kind": kind, **device}, {"addr": 0x50, "kind": "24c02"}]
    sensors = {"T": {"kind": kind, "bus": 1, "addr": 0x48}, "U": {"kind": "tmp102", "bus": 1, "addr": 0x49}}
    return profile(i2c=[{"bus": 1, "driver": "sim", "device": devices}, {"bus": 2, "driver": "sim"}], sensors=sensors)


def on_modbus(unit=3, **device):
    registers = [{"name": "temp", "reg": 1, "sensor": "T"}, {"name": "mode", "reg": 2}]
    devices = [{"unit": 3, "name": "OVEN", "registers": registers, **device}, {"unit": 4, "name": "FAN", "raw": "rw"}]
    return profile(
        modbus=[{"line": "plant", "driver": "sim", "device": [*devices, {"unit": 0, "name": "ALL", "raw": "rw"}]}]
    )


def problems(found):
    return [(one.key, one.severity, one.problem) for one in cautions(found)]


def test_only_the_device_that_an_interlock_goes_by_is_protected():
    one, other = on_i2c().of("i2c")
    assert list(one.addresses.protected) == [0x48]
    assert other.addresses.protected == {}


def test_doctor_names_a_device_that_clients_only_read_for_that_reason():
    told = "clients only read address 0x48, since the interlock of gpio line HEATER goes by sensor T"
    assert problems(on_i2c()) == [("i2c[0]", "note", told)]


def test_a_device_that_lists_its_registers_is_written_as_they_permit():
    found = on_i2c(registers=[{"reg": 1, "width": 16}])
    assert found.of("i2c")[0].addresses.protected == {}
    assert problems(found) == []


def test_a_chip_without_registers_has_nothing_to_protect():
    assert problems(on_i2c("mcp3221")) == []


@pytest.mark.parametrize("table", ["i2c", "modbus"])
def test_what_goes_by_a_device_is_no_key_of_the_profile(table):
    content = {"i2c": {"bus": 1, "driver": "sim"}, "modbus": {"line": "a", "driver": "sim"}}[table]
    device = {"unit": 1, "name": "A", "raw": "r", "leaned_on": "x"}
    content |= {"leaned_on": {}} if table == "i2c" else {"device": [device]}
    with pytest.raises(ConfigError, match="leaned_on: unknown key"):
        parse_profile({"name": "oven", "description": "o", table: [content]}, "oven")


def test_undeclared_addresses_of_a_modbus_device_that_an_interlock_goes_by_are_only_read_also_by_a_broadcast():
    oven, fan, everyone = on_modbus(raw="rw").of("modbus")[0].devices
    for device in (oven, everyone):
        with pytest.raises(PermissionDenied, match="HEATER goes by sensor T, so only declared") as refused:
            device.covered("holding", 900, 1, write=True)
        assert refused.value.data["effect"] == "none"
        assert device.covered("holding", 900, 1) == []
    assert [one.name for one in oven.covered("holding", 2, 1, write=True)] == ["mode"]
    assert fan.covered("holding", 900, 1, write=True) == []


def test_doctor_names_a_register_that_clients_could_write_for_an_interlock_to_read():
    assert problems(on_modbus()) == [
        ("modbus[0].device[0].registers", "warn", "clients may write temp, by which an interlock goes"),
        (
            "modbus[0].device[2].raw",
            "note",
            "undeclared addresses of ALL are only read, since the interlock of gpio line HEATER goes by sensor T",
        ),
    ]


@pytest.mark.parametrize(("direction", "named"), [("any", True), ("input", False), ("output", False)])
def test_doctor_names_a_required_line_that_clients_could_drive(direction, named):
    chip = {**HEATER, "names": ["HEATER", "DOOR"]}
    chip["lines"] = {**HEATER["lines"], "DOOR": {"direction": direction}}
    lock = {"drives": "HEATER", "value": 1, "requires": [{"line": "DOOR", "value": 0}]}
    found = parse_profile({"name": "oven", "description": "o", "gpio": [chip], "interlock": [lock]}, "oven")
    told = "clients may drive DOOR, by which the interlock of gpio line HEATER goes"
    assert problems(found) == ([("interlock[0].requires[0].line", "warn", told)] if named else [])


@pytest.mark.parametrize(
    ("register", "named"),
    [
        ({"access": "w", "max_step": 5}, True),
        ({"access": "w", "slew_per_s": 5}, True),
        ({"access": "w", "max_step": 5, "safe": 0}, False),
        ({"access": "rw", "max_step": 5}, False),
        ({"access": "w", "max": 5}, False),
    ],
    ids=["step", "slew", "safe", "readable", "bounds alone"],
)
def test_doctor_names_an_output_whose_first_drive_no_step_limits(register, named):
    registers = [{"reg": 0x41, "name": "key", "max": 50, **register}]
    device = {"addr": 0x50, "kind": "motor", "increment": "byte", "reg_width": 8, "registers": registers}
    bus = {"bus": 1, "driver": "i2c-dev", "device": [device]}
    found = parse_profile({"name": "oven", "description": "o", "i2c": [bus]}, "oven")
    told = "i2c:1: the first drive may be of any size within the bounds, since it cannot be read: key"
    assert (("i2c[0]", "warn", told) in problems(found)) is named


@pytest.mark.parametrize(("given", "named"), [({}, True), ({"start": 0}, False), ({"safe": 45}, False)])
def test_doctor_names_a_servo_whose_first_move_no_slew_limits(given, named):
    arm = {"servo": {"min_us": 1_000, "max_us": 2_000, "min_angle": 0, "max_angle": 180, "slew": 90}, **given}
    chip = {"label": "1f00098000.pwm", "driver": "pwm", "channels": ["ARM"], "channel": {"ARM": arm}}
    found = parse_profile({"name": "arm", "description": "a", "pwm": [chip]}, "arm")
    assert [key for key, severity, told in problems(found) if "first drive" in told] == (["pwm[0]"] if named else [])


# https://github.com/timofurrer/w1thermsensor/issues/46 and the like: a number that is none meets a bound
@pytest.mark.parametrize(
    ("bounds", "more", "warned"),
    [
        ({"max": 60}, {}, True),
        ({"min": 5}, {}, True),
        ({"min": -20, "max": 60}, {}, False),
        ({"max": 60}, {"valid": [-30, 120]}, False),
        ({"max": 60}, {"none": [-0.0625]}, False),
    ],
)
def test_an_interlock_with_one_bound_on_a_sensor_without_codes_is_a_finding(bounds, more, warned):
    lock = {"drives": "HEATER", "value": 1, "requires": [{"sensor": "T", **bounds}]}
    sensors = {"T": {"kind": "tmp102", "bus": 1, "addr": 0x48, **more}}
    i2c = [{"bus": 1, "driver": "i2c-dev"}]
    tables = {"gpio": [HEATER], "interlock": [lock], "i2c": i2c, "sensors": sensors}
    found = problems(parse_profile({"name": "oven", "description": "o", **tables}, "oven"))
    assert [one[:2] for one in found if "one bound" in one[2]] == [("interlock[0].requires[0]", "warn")] * warned


OVEN = """
name = "oven"
description = "a heater"
[[gpio]]
label = "oven"
driver = "sim"
names = ["HEATER"]
lines = { HEATER = { safe = 0 } }
[[i2c]]
bus = 1
driver = "sim"
device = [{ addr = 0x48, kind = "tmp102" }]
[sensors]
T = { kind = "tmp102", bus = 1, addr = 0x48 }
[[interlock]]
drives = "HEATER"
value = 1
requires = [{ sensor = "T", max = 60 }]
"""


def test_check_names_a_device_that_clients_only_read_with_the_cure(tmp_path, capsys):
    board, config = tmp_path / "oven.toml", tmp_path / "hearth.toml"
    board.write_text(OVEN)
    config.write_text(f'[board]\nprofile = "{board}"\n[audit]\npath = "{tmp_path / "audit.log"}"\n')
    daemon.main(["--config", str(config), "--check"])
    [note] = [line for line in capsys.readouterr().out.splitlines() if "note: board" in line]
    assert note == (
        "hearthd: note: board: i2c[0]: clients only read address 0x48, since the interlock of gpio line HEATER goes by "
        "sensor T; list the registers that they may write (`registers` of its [[i2c.device]])"
    )
