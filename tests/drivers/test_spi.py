"""Frames of registers, the profile's [[spi]], the simulated devices, and the spi tools on the simulated board."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import tomllib
from pathlib import Path

import attrs
import pytest
import trio
from support.machine import FilesMachine

from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.diagnose import look, mismatches
from hearth.drivers.boards.discover import find, survey
from hearth.drivers.boards.profile import load_profile, parse_profile
from hearth.drivers.linux.device_users import NO_HOLDERS, Holder, Holders
from hearth.drivers.linux.machine import DeviceOrigin, FoundDevice
from hearth.drivers.linux.node import Presence
from hearth.drivers.registers import Read, Write
from hearth.drivers.spi.driver import RegisterFrame, Registers, SpiRegister, SpiSettings
from hearth.drivers.spi.linux import LinuxSpi
from hearth.drivers.spi.sim import Loopback, RegisterChip, SimSpi
from hearth.errors import ConfigError, DeviceError, InvalidParams, TimedOut

# --- frames -----------------------------------------------------------------------------------------------------------

WIDE = RegisterFrame(reg_width=16, read_mask=0x4100, write_mask=0x4000, dummy=1)


@pytest.mark.parametrize(
    ("frame", "register", "read", "write"),
    [
        (RegisterFrame(), SpiRegister(0x10), b"\x90\0", b"\x10\x2a"),
        (RegisterFrame(), SpiRegister(0x10, width=16), b"\x90\0\0", b"\x10\0\x2a"),
        (RegisterFrame(), SpiRegister(0x10, width=16, order="little"), b"\x90\0\0", b"\x10\x2a\0"),
        (RegisterFrame(read_mask=0, write_mask=0x80), SpiRegister(0x10), b"\x10\0", b"\x90\x2a"),
        (WIDE, SpiRegister(0x12), b"\x41\x12\0\0", b"\x40\x12\x2a"),
    ],
)
def test_a_register_has_one_transfer_to_read_it_and_one_to_write_it(frame, register, read, write):
    assert (frame.read(register), frame.write(register, 42)) == (read, write)
    number = register.reg.to_bytes(frame.size, "big")
    assert frame.messages(read) == [Write(number), Read(register.size)]
    assert frame.messages(write) == [Write(number + write[frame.size :])]


@pytest.mark.parametrize("data", [b"", b"\x41", b"\x00\x12\x2a", b"\x01\x12\x2a"])
def test_what_begins_with_no_command_is_neither_read_nor_write(data):
    assert WIDE.messages(data) is None


def test_a_read_that_ends_before_the_value_reads_nothing():
    assert WIDE.messages(b"\x41\x12") == [Write(b"\0\x12"), Read(0)]


def test_what_reading_changes_is_known_and_an_undeclared_register_counts_as_such():
    declared = Registers(RegisterFrame(), (SpiRegister(1), SpiRegister(2, read_effect=True)))
    assert [declared.disturbs(data) for data in (b"\x81\0", b"\x82\0", b"\x83\0", b"\x02\0")] == [
        False,
        True,
        True,
        False,
    ]


# --- the simulator ----------------------------------------------------------------------------------------------------


async def test_a_chip_with_registers_of_sixteen_bits_numbers_and_a_dummy_byte_is_reached_by_its_frame():
    driver = SimSpi("x", RegisterChip(WIDE, cleared=[0x21]), style=Style.INLINE)
    driver.open()
    register = SpiRegister(0x20, width=16)
    driver.transfer(WIDE.write(register, 0x1234))
    assert driver.transfer(WIDE.read(register))[WIDE.header :] == b"\x12\x34"
    assert driver.transfer(WIDE.read(register))[WIDE.header :] == b"\x12\0", "0x21 is cleared when it is read"


async def test_a_transfer_takes_the_time_of_its_bits(autojump_clock):
    driver = SimSpi("x", Loopback(), SpiSettings(speed_hz=8_000), style=Style.ASYNC)
    driver.open()
    begun = trio.current_time()
    assert await driver.transfer(b"x" * 50) == b"x" * 50
    assert trio.current_time() - begun == pytest.approx(0.05)
    driver.faults.latency_s = 1
    await driver.transfer(b"x")
    assert trio.current_time() - begun == pytest.approx(1.051)


async def test_a_failure_leaves_the_transfer_incomplete_and_its_effect_unknown(autojump_clock):
    driver = SimSpi("x", Loopback(), style=Style.ASYNC)
    driver.open()
    driver.faults.fail(after=2)
    with pytest.raises(DeviceError, match=r"x'.*failed \(EIO\)") as caught:
        await driver.transfer(b"abcd")
    assert (caught.value.data["effect"], caught.value.data["errno"]) == ("unknown", "EIO")
    assert (bytes(driver.log[-1].read), driver.log[-1].complete) == (b"ab", False)
    driver.faults.timeout(seconds=0.5)
    with pytest.raises(TimedOut) as timed_out:
        await driver.transfer(b"abcd")
    assert timed_out.value.data["errno"] == "ETIMEDOUT"
    assert await driver.transfer(b"abcd") == b"abcd"
    assert driver.overlaps == 0


async def test_a_wedged_transfer_goes_on_when_it_is_released(autojump_clock):
    driver, ended = SimSpi("x", Loopback(), style=Style.ASYNC), []
    driver.open()
    driver.faults.wedge(after=1)

    async def transfer():
        ended.append(await driver.transfer(b"abc"))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transfer)
            await driver.faults.wait_held()
            assert (ended, bytes(driver.log[-1].read)) == ([], b"a")
            driver.faults.release()
    assert ended == [b"abc"]


# --- the kernel's driver, without a device ----------------------------------------------------------------------------


async def test_a_driver_that_is_not_open_has_nothing_to_pump_and_closes_twice():
    driver = LinuxSpi("FLASH", "/dev/spidev7.7", SpiSettings(mode=3))
    await driver.pump()
    driver.close()
    driver.close()
    assert driver.describe() == {
        "kind": "spi",
        "driver": "spidev",
        "device": "FLASH",
        "path": "/dev/spidev7.7",
        "mode": 3,
        "speed_hz": 500_000,
        "bits": 8,
    }


def test_a_node_that_is_not_there_says_who_knows_how_to_switch_it_on(tmp_path):
    with pytest.raises(DeviceError, match=r"is not there; is it switched on\? `hearth doctor` says how") as caught:
        LinuxSpi("FLASH", f"{tmp_path}/spidev0.0").open()
    assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "ENOENT")


@pytest.mark.parametrize("node", ["plain", "directory"])
def test_what_is_no_spi_device_is_refused_and_not_kept_open(tmp_path, node):
    path = tmp_path / node
    path.mkdir() if node == "directory" else path.touch()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DeviceError, match=r"is no SPI device|cannot be opened: Is a directory"):
        LinuxSpi("FLASH", str(path)).open()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("number", "effect", "kind", "why"),
    [
        (errno.ETIMEDOUT, "unknown", TimedOut, "did not end in the controller's time"),
        (errno.EIO, "unknown", DeviceError, "the controller reports that the transfer failed"),
        (errno.EREMOTEIO, "unknown", DeviceError, "Remote I/O error"),
        (errno.EMSGSIZE, "none", DeviceError, "spidev.bufsiz=4096"),
        (errno.EINVAL, "none", DeviceError, "does not take such a transfer"),
    ],
)
def test_an_error_of_the_kernels_has_its_name_and_the_effect_that_is_certain(tmp_path, number, effect, kind, why):
    node = tmp_path / "node"
    node.touch()
    fd = os.open(node, os.O_RDWR)
    presence = Presence(fd, tmp_path, str(node))
    driver = LinuxSpi("FLASH", str(node))
    error = driver._failed(OSError(number, os.strerror(number)), presence)
    assert (type(error), error.data["effect"], error.data["errno"]) == (kind, effect, errno.errorcode[number])
    assert why in error.message
    node.unlink()
    assert driver._failed(OSError(number, ""), presence).data["errno"] == "ENODEV"
    presence.close()
    os.close(fd)


# --- the profile ------------------------------------------------------------------------------------------------------

SPEED = {"reg": 0x10, "name": "SPEED", "width": 16, "max": 3000}


def board(**device):
    given = {"name": "MOTOR", "driver": "sim", "kind": "registers", "registers": [SPEED], **device}
    content = {key: value for key, value in given.items() if value is not None}
    return parse_profile({"name": "b", "description": "b", "spi": [content]}, "b.toml")


def test_two_devices_of_one_name_are_refused():
    one = {"name": "A", "driver": "sim", "kind": "loopback"}
    with pytest.raises(ConfigError, match=r'spi\[1\]\.name: "A" is there twice'):
        parse_profile({"name": "b", "description": "b", "spi": [one, one]}, "b.toml")


def test_a_profile_gives_the_settings_and_the_form_of_a_register():
    (spec,) = board(mode=3, bits=16, speed_hz=1_000_000, cs_high=True, lsb_first=True, reg_width=16).of("spi")
    assert spec.settings == SpiSettings(3, 1_000_000, 16, True, True)
    assert spec.declared.frame == RegisterFrame(reg_width=16)
    opened = open_board(board(driver="spidev", path="/dev/spidev0.0", kind=None, registers=None))
    assert opened.drivers["spi:MOTOR"].describe()["path"] == "/dev/spidev0.0"


# --- the machine ------------------------------------------------------------------------------------------------------


def spidev(node, name="spidev", path=None):
    return FoundDevice(node, path or f"/none/{node}", DeviceOrigin(), name)


def offered(*devices, holders=NO_HOLDERS, listed=(), wanted=True):
    content = {"name": "g", "description": "g", "discover": {"spi": wanted}, "spi": list(listed)}
    return survey(parse_profile(content, "g"), {"spi": devices}, holders)


def files(tmp_path, *nodes):
    machine = FilesMachine(tmp_path).machine
    for node in nodes:
        device = machine.sys / f"devices/spi/{node.replace('spidev', 'spi')}"
        (device / "spidev" / node).mkdir(parents=True)
        (device / "modalias").write_text("spi:adxl345\n")
        (device / "spidev" / node / "device").symlink_to(device)
        (machine.sys / "class/spidev").mkdir(exist_ok=True, parents=True)
        (machine.sys / "class/spidev" / node).symlink_to(device / "spidev" / node)
        (machine.dev / node).touch()
    return machine


def test_the_devices_that_have_a_node_are_found_with_their_names(tmp_path):
    machine = files(tmp_path, "spidev0.1", "spidev0.0")
    (machine.dev / "spidev0.1").unlink()
    assert [(one.node, one.label) for one in find(("spi",), machine).get("spi", ())] == [("spidev0.0", "adxl345")]
    assert find(("gpio",), machine).get("spi", ()) == ()


def test_generic_linux_offers_a_device_by_its_node_and_leaves_out_what_the_profile_lists():
    listed = [{"name": "FLASH", "driver": "spidev", "path": "/none/spidev0.1"}]
    result = offered(spidev("spidev0.0", "adxl345"), spidev("spidev0.1"), listed=listed)
    (spec,) = result.of("spi")
    assert (spec.name, spec.driver, spec.path, spec.kind) == ("spidev0.0", "spidev", "/none/spidev0.0", "adxl345")
    assert offered(spidev("spidev0.0"), wanted=["spidev1.*"]).of("spi") == ()


def test_a_raspberry_pi_5s_boot_memory_and_a_device_in_use_are_left_alone():
    holders = Holders({}, {"/none/spidev0.0": (Holder(7, "ledd"),)}, complete=True)
    boot, used = offered(spidev("spidev10.0"), spidev("spidev0.0"), holders=holders).undriven
    assert "the memory that the machine starts from" in boot.reason
    assert used.reason == "it is open in ledd (pid 7)"


@pytest.mark.parametrize(("profile", "chip"), [("rpi4", "pinctrl-bcm2711"), ("rpi5", "pinctrl-rp1")])
def test_the_pins_of_a_controller_that_is_on_are_no_lines_of_a_raspberry_pi(tmp_path, profile, chip):
    def reserved(*nodes):
        opened = open_board(load_profile(profile), machine=files(tmp_path / str(len(nodes)), *nodes))
        assert [spec.name for spec in opened.profile.of("spi")] == [node for node in nodes if "10" not in node]
        return {line.name for line in opened.chips[chip].lines if "SPI controller" in (line.reserved or "")}

    assert reserved() == set()
    assert reserved("spidev0.0") == {"GPIO8", "GPIO9", "GPIO10", "GPIO11"}
    assert reserved("spidev0.0", "spidev0.1", "spidev10.0") == {"GPIO7", "GPIO8", "GPIO9", "GPIO10", "GPIO11"}


def test_a_device_that_is_not_there_is_told_with_the_setting_that_switches_it_on():
    profile = board(driver="spidev", path="/none/spidev0.0", kind=None)
    (problem,) = mismatches(profile, {"spi": (spidev("spidev0.1"),)}, NO_HOLDERS)
    assert (problem.key, problem.severity) == ("spi[0].path", "fail")
    assert problem.problem == "the SPI device /none/spidev0.0 is not there; there is /none/spidev0.1"
    assert "dtparam=spi=on" in problem.cure
    assert list(mismatches(profile, {"spi": (spidev("spidev0.0"),)}, NO_HOLDERS)) == []
    assert list(mismatches(board(), {}, NO_HOLDERS)) == []


def test_doctor_looks_at_the_devices_and_gives_no_hint_where_there_is_no_raspberry_pi(tmp_path):
    found = look(machine=files(tmp_path, "spidev0.0"))
    assert found["hints"] == []
    (device,) = found["spi"]
    assert (device["node"], device["name"], device["not_driven"]) == ("spidev0.0", "adxl345", None)


# --- the tools --------------------------------------------------------------------------------------------------------


async def test_a_transfer_returns_what_came_in(bench, autojump_clock):
    sent = base64.b64encode(b"hearth").decode()
    assert await bench.run("spi.transfer", device="LOOP", write=sent) == {
        "data": sent,
        "hex": "686561727468",
        "text": "hearth",
    }
    assert [transfer.sent for transfer in bench.driver("spi:LOOP").log] == [b"hearth"]


async def test_a_register_is_known_by_its_name_and_its_number(bench, autojump_clock):
    wrote = await bench.run("spi.write", device="MOTOR", register="SPEED", value=1199.6)
    assert wrote == {"device": "MOTOR", "register": "SPEED", "value": 1200, "raw": 1200, "unit": "rpm"}
    for name in ("SPEED", 0x10, "0x10", "0X10"):
        assert await bench.run("spi.read", device="MOTOR", register=name) == wrote
    assert len(bench.driver("spi:MOTOR").log) == 5


@pytest.mark.parametrize(
    ("tool", "args", "path", "reason"),
    [
        ("spi.read", {"register": "SPED"}, "/register", "did you mean SPEED"),
        ("spi.read", {"register": 0x13}, "/register", "has no register 19; it has SPEED, CURRENT, FAULTS"),
        ("spi.read", {"device": "LOOP", "register": 1}, "/register", "'LOOP' declares no registers; use spi.transfer"),
        ("spi.write", {"register": "FAULTS", "value": 1}, "/register", "it is only read (access = 'r')"),
        ("spi.write", {"register": "SPEED", "value": 70_000}, "/value", "70000 is impossible: the register holds 0 to"),
        ("spi.write", {"register": "SPEED", "value": -1}, "/value", "-1 is impossible"),
        ("spi.write", {"register": "SPEED", "value": 1e300}, "/value", "1e+18 is impossible"),
        ("spi.transfer", {"hex": "0"}, "/hex", "two hexadecimal digits"),
        ("spi.transfer", {"hex": "00", "text": "x"}, "/hex", "exactly one"),
    ],
)
async def test_what_cannot_be_is_refused_at_submit_with_its_place(bench, tool, args, path, reason):
    with pytest.raises(InvalidParams) as caught:
        bench.tools[tool].bus({"device": "MOTOR", **args})
    assert caught.value.data["path"] == path
    assert reason in caught.value.message


def test_a_transfer_of_no_whole_words_is_refused_at_submit(make_board_bench):
    device = {"name": "ADC", "driver": "sim", "kind": "loopback", "bits": 12}
    bench = make_board_bench({"name": "b", "description": "b", "spi": [device]})
    with pytest.raises(InvalidParams, match="/write: 3 bytes are no whole words of 12 bits"):
        bench.tools["spi.transfer"].bus({"device": "ADC", "hex": "000000"})


def test_a_register_that_is_only_written_is_not_read(make_board_bench):
    register = {"reg": 1, "access": "w"}
    device = {"name": "DAC", "driver": "sim", "kind": "registers", "registers": [register]}
    bench = make_board_bench({"name": "b", "description": "b", "spi": [device]})
    with pytest.raises(InvalidParams, match="it is only written"):
        bench.tools["spi.read"].bus({"device": "DAC", "register": 1})
    assert bench.tools["spi.write"].preview({"device": "DAC", "register": 1, "value": 2}) is None


async def test_only_a_read_without_an_effect_has_no_risk(bench):
    risks = {name: bench.tools["spi.read"].risk_of({"device": "MOTOR", "register": name}) for name in ("SPEED", 0x20)}
    assert risks == {"SPEED": 0, 0x20: 2}
    assert bench.tools["spi.transfer"].risk_of({"device": "LOOP", "hex": "00"}) == 2


async def test_reading_a_latched_fault_clears_it(bench, autojump_clock):
    bench.driver("spi:MOTOR").chip.cells[0x20] = 5
    assert (await bench.run("spi.read", device="MOTOR", register="FAULTS"))["raw"] == 5
    assert (await bench.run("spi.read", device="MOTOR", register="FAULTS"))["raw"] == 0


async def test_the_list_has_the_devices_with_their_registers(bench, autojump_clock):
    answer = await bench.run("hw.spi.list")
    loop, motor = json.loads(json.dumps(answer["devices"]))
    assert (loop["device"], loop["bus"], loop["chip"], "registers" in loop) == ("LOOP", "spi:LOOP", "loopback", False)
    assert (motor["mode"], motor["bits"], motor["increment"]) == (3, 8, "byte")
    assert motor["registers"][2] == {
        "reg": 32, "hex": "0x20", "width": 8, "access": "r", "name": "FAULTS", "read_effect": True,
    }  # fmt: skip


# --- the documentation ------------------------------------------------------------------------------------------------


def test_the_device_in_the_documentation_is_a_good_one_with_the_defaults_that_it_says():
    page = (Path(__file__).parents[2] / "docs/reference/boards.md").read_text("utf-8")
    (text,) = [block for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[[spi]]" in block]
    (spec,) = parse_profile({"name": "b", "description": "b", **tomllib.loads(text)}, "boards.md").of("spi")
    assert [register.name for register in spec.declared.registers] == ["VMAX", "GSTAT"]
    for key, default in {**attrs.asdict(SpiSettings()), **attrs.asdict(RegisterFrame())}.items():
        (comment,) = [line.partition("#")[2] for line in text.splitlines() if line.startswith(f"{key} =")]
        words = comment.replace("_", "")
        assert isinstance(default, bool) or str(default) in words or f"{default:#04x}" in words, key
    masks = dict(re.findall(r"(read_mask|write_mask) = (0x4[01]00)", page))
    assert board(reg_width=16, **{key: int(mask, 16) for key, mask in masks.items()}).of("spi")[0].declared is not None
