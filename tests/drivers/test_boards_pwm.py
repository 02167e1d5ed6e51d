"""PWM chips of a machine: found by their devices, offered or left alone, and whether a profile fits them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machine import FilesMachine

from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.boards.diagnose import look, mismatches, safety_gaps
from hearth.drivers.boards.discover import DeviceOrigin, find, survey
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.linux import survey as access
from hearth.drivers.linux.device_users import NO_HOLDERS
from hearth.drivers.pwm.machine import ACCESS, FoundPwm
from hearth.drivers.pwm.tools import listed
from hearth.drivers.sandbox.plan import devices_of
from hearth.errors import InvalidParams

SERVO_BOARD = "pci0000:00/0000:00:15.0/i2c-1/1-0040"
SOC = "platform/soc/fe20c000.pwm"


@pytest.fixture
def files(tmp_path):
    files = FilesMachine(tmp_path)
    files.device("pci0000:00/0000:00:15.0", "pci", driver="i801", acpi="I801")
    files.device("pci0000:00/0000:00:15.0/i2c-1", "i2c")
    files.device(SERVO_BOARD, "i2c", driver="pca9685-pwm")
    files.device(SOC, "platform", driver="pwm-bcm2835", compatible="brcm,bcm2835-pwm")
    return files


def profile(**chip):
    chip = {"label": "1-0040", "driver": "pwm", "channels": ["A"], "channel": {"A": {"period_us": 40}}, **chip}
    return parse_profile({"name": "p", "description": "p", "pwm": [chip]}, "p")


def problems(given, files):
    return [(one.key, one.severity, one.problem) for one in mismatches(given, find(machine=files.machine), NO_HOLDERS)]


def test_chips_are_found_in_the_order_of_their_numbers_with_their_devices(files) -> None:
    files.pwm(10, SOC, 2)
    at = files.pwm(2, SERVO_BOARD, 17, node=True)
    one, other = find(["pwm"], files.machine).get("pwm", ())
    assert (one.node, one.label, one.channels, one.origin.driver) == ("pwmchip2", "1-0040", 17, "pca9685-pwm")
    assert one.chardev
    assert one.path == str(files.machine.dev / "pwmchip2")
    assert (other.label, other.chardev) == ("fe20c000.pwm", False)
    assert other.path == str(at.parents[6] / "devices" / SOC / "pwm/pwmchip10/export") or other.path.endswith("/export")


def test_generic_linux_offers_chips_behind_a_bus_and_leaves_the_machines_own_alone() -> None:
    board = FoundPwm("pwmchip0", "/none/pwmchip0", DeviceOrigin(("pwm", "i2c", "i2c"), "pca9685-pwm"), "1-0040", 17)
    soc = FoundPwm("pwmchip1", "/none/export", DeviceOrigin(("pwm", "platform"), "pwm-bcm2835"), "fe20c000.pwm", 2)
    content = {"name": "g", "description": "g", "discover": {"pwm": True}}
    found = survey(parse_profile(content, "g"), {"pwm": (board, soc)})
    [spec] = found.of("pwm")
    # Channel 16 of this chip is all others at once.
    assert [channel.number for channel in spec.channels] == list(range(16))
    assert (spec.channels[3].name, spec.channels[3].safe) == ("1-0040:3", "off")
    [left] = found.undriven
    assert (left.kind, left.name, left.label, left.left_alone) == ("pwm", "pwmchip1", "fe20c000.pwm", True)


def test_a_chip_that_the_profile_lists_is_not_found_again() -> None:
    board = FoundPwm("pwmchip0", "/none/pwmchip0", DeviceOrigin(("pwm", "i2c", "i2c"), "pca9685-pwm"), "1-0040", 17)
    content = {
        "name": "g",
        "description": "g",
        "discover": {"pwm": ["1-*"]},
        "pwm": [{"label": "1-0040", "driver": "pwm", "channels": ["A"], "channel": {"A": {"period_us": 40}}}],
    }
    assert survey(parse_profile(content, "g"), {"pwm": (board,)}).of("pwm") == ()


def test_a_profile_fits_where_its_chip_is(files) -> None:
    files.pwm(0, SERVO_BOARD, 17, node=True)
    assert problems(profile(), files) == []


def test_what_does_not_fit_is_named_with_what_there_is(files) -> None:
    files.pwm(0, SERVO_BOARD, 1)
    [(key, severity, told)] = problems(profile(label="1-0041"), files)
    assert (key, severity) == ("pwm[0].label", "fail")
    assert "'1-0041' is not there; there is '1-0040' (pwmchip0)" in told
    [(key, severity, told)] = problems(profile(channels=["", "A"]), files)
    assert (key, told) == ("pwm[0].channel.A", "the chip has the channels 0 to 0, and no 1")
    [(key, severity, told)] = problems(profile(chardev=True), files)
    assert (key, severity) == ("pwm[0].chardev", "fail")


def test_a_chip_whose_overlay_is_off_is_named_with_the_commands_and_is_no_failure(files) -> None:
    [problem] = mismatches(profile(label="fe20c000.pwm", overlay="pwm-2chan"), find(machine=files.machine), NO_HOLDERS)
    assert (problem.severity, problem.key) == ("note", "pwm[0].label")
    assert "dtoverlay=pwm-2chan' | sudo tee -a /boot/firmware/config.txt, then sudo reboot" in problem.problem
    assert problem.cure is not None
    assert problem.cure.splitlines()[-1] == "sudo reboot"


def test_a_board_without_its_overlay_lists_the_chip_as_undriven_and_answers_with_the_reason(files) -> None:
    given = profile(label="fe20c000.pwm", overlay="pwm-2chan")
    board = open_board(given, machine=files.machine)
    assert not board.has("pwm")
    [entry] = listed(board.drivers["board"])["undriven"]
    assert (entry["name"], entry["driven"]) == ("fe20c000.pwm", False)
    assert "dtoverlay=pwm-2chan" in entry["cure"]
    with pytest.raises(InvalidParams, match="the overlay pwm-2chan switches it on"):
        board.channel("pwm", "A")
    files.pwm(0, SOC, 2)
    assert open_board(given, machine=files.machine).channel("pwm", "A")[0] == "pwm:fe20c000.pwm"


def test_a_reserved_channel_is_denied_with_its_reason(files) -> None:
    files.pwm(0, SERVO_BOARD, 17)
    board = open_board(profile(channel={"A": {"period_us": 40, "reserved": "the fan of the rack"}}))
    with pytest.raises(Exception, match="A is reserved: the fan of the rack"):
        board.channel("pwm", "A")


def test_doctor_lists_the_chips_and_their_interfaces(files) -> None:
    files.pwm(0, SERVO_BOARD, 17, node=True)
    files.pwm(1, SOC, 2)
    told = look("sim", machine=files.machine)["pwm"]
    assert [(one["node"], one["device"], one["channels"], one["chardev"]) for one in told] == [
        ("pwmchip0", "1-0040", 17, True),
        ("pwmchip1", "fe20c000.pwm", 2, False),
    ]
    assert [one["not_driven"] is None for one in told] == [True, False]


def test_a_permission_that_lacks_is_given_by_a_rule_for_the_node_and_the_files(files, monkeypatch) -> None:
    at = files.pwm(0, SERVO_BOARD, 17)
    monkeypatch.setattr(access.os, "access", lambda path, mode, effective_ids: False)
    lack = ACCESS.lack_of(str(at / "export"))
    assert lack is not None
    assert 'SUBSYSTEM=="pwm", KERNEL=="pwmchip*", GROUP="gpio"' in lack.cure
    assert "chgrp -R gpio /sys%p" in lack.cure
    assert "--subsystem-match=pwm" in lack.cure


def test_channels_without_a_limit_and_servos_without_a_slew_are_gaps(files) -> None:
    files.pwm(0, SERVO_BOARD, 17)
    given = profile(
        channels=["A", "B", "C", "D"],
        channel={
            "A": {"period_us": 40},
            "B": {"period_us": 40, "limit": {"max": 0.5}},
            "C": {"servo": {"min_us": 1_000, "max_us": 2_000}},
            "D": {"servo": {"min_us": 1_000, "max_us": 2_000, "slew": 90}},
        },
    )
    found = find(machine=files.machine)
    gaps = {one.key: one for one in safety_gaps(given, found, NO_HOLDERS, files.machine)}
    assert set(gaps) == {"pwm[0].limit", "pwm[0]", "halt.inputs"}
    assert gaps["pwm[0].limit"].problem.endswith("at once: A, C")
    assert gaps["pwm[0].limit"].severity == "warn"
    assert gaps["pwm[0]"].problem.endswith("since it cannot be read: D")
    absent = [one.key for one in safety_gaps(given, {}, NO_HOLDERS, files.machine)]
    assert absent == ["halt.inputs", "pwm[0]"], "what a limit means does not depend on what is there"


def test_the_sandbox_permits_the_directory_and_the_node_of_a_chip(files) -> None:
    at = files.pwm(0, SERVO_BOARD, 17)
    devices = devices_of(profile(), None, sys=files.machine.sys)
    assert (at.resolve(), "device", "pwm chip 1-0040") in devices.grants
    assert devices.hotplug is None
    missing = devices_of(profile(label="1-0041"), None, sys=files.machine.sys)
    assert missing.hotplug == "pwm chip 1-0041 is not there now"
    assert Path("/dev") in [path for path, _, _ in missing.grants]


def test_the_raspberry_pis_open_without_their_overlay(files) -> None:
    for name in ("rpi4", "rpi5"):
        board = open_board(load_profile(name), machine=files.machine)
        assert [entry.label for entry in board.undriven if entry.kind == "pwm"] == [board.profile.of("pwm")[0].label]
