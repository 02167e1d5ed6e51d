"""The table [[modbus]] of a board profile: what it makes, and a fault with its place for all that cannot be."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.modbus.network import TcpPort
from hearth.drivers.serial_port.settings import UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.errors import ConfigError

ROOT = Path(__file__).parents[2]
SPEED = {"name": "speed", "reg": 100}


def register(**more):
    return {"modbus": [line(device=[drive(registers=[{**SPEED, **more}])])]}


def drive(**more):
    return {"unit": 3, "name": "FAN", "registers": [SPEED], **more}


def line(**more):
    return {"line": "plant", "driver": "sim", "device": [drive()], **more}


def serial(**more):
    return line(driver="rtu", path="/dev/ttyUSB0", **more)


def tcp(**more):
    return line(driver="tcp", host="192.0.2.7", **more)


def parsed(content):
    return parse_profile({"name": "b", "description": "a board", **content}, "profile")


def test_a_serial_line_has_the_settings_of_the_standard_where_the_profile_does_not_say():
    (spec,) = parsed({"modbus": [serial()]}).of("modbus")
    assert spec.settings == UartSettings(baud=19_200, parity="even", stop_bits=1)
    (spec,) = parsed({"modbus": [serial(baud=9600, parity="none", stop_bits=2, rs485=True)]}).of("modbus")
    assert (spec.settings.baud, spec.settings.parity, spec.settings.stop_bits) == (9600, "none", 2)
    assert spec.settings.rs485 is not None


def test_each_line_is_a_bus_over_its_own_port():
    board = open_board(
        parsed(
            {
                "modbus": [
                    serial(line="a", device=[drive(name="A")]),
                    tcp(line="b", device=[drive(name="B")], tcp_port=1502),
                ]
            }
        )
    )
    assert list(board.drivers) == ["modbus:a", "modbus:b", "board"]
    assert isinstance(board.drivers["modbus:a"].port, LinuxUart)
    assert isinstance(board.drivers["modbus:b"].port, TcpPort)
    assert board.drivers["modbus:b"].describe() == {
        "driver": "tcp",
        "host": "192.0.2.7",
        "tcp_port": 1502,
        "kind": "modbus",
        "line": "b",
    }


def test_the_simulated_board_has_a_drive_whose_current_is_a_sensor():
    board = open_board(load_profile("sim"))
    assert board.sensors["fan_current"].unit == "ampere"
    assert board.sensors["fan_current"].bus == "modbus:plant"


def test_the_lines_in_the_documentation_are_good_ones():
    found = [block for page in ("reference/boards", "howto/read-and-write-a-modbus-device") for block in of_page(page)]
    for block in found:
        content = tomllib.loads(block)
        for one in content["modbus"]:
            one.setdefault("device", [drive()])
        assert parsed({"modbus": content["modbus"]}).of("modbus")
    assert len(found) == 4


def of_page(page):
    blocks = re.findall(r"(?ms)^```toml\n(.*?)^```", (ROOT / f"docs/{page}.md").read_text("utf-8"))
    return [block for block in blocks if "[[modbus]]" in block]


def test_bits_and_inputs_have_the_type_and_access_that_their_table_gives():
    for table, kind, access in (
        ("coil", "bool", "rw"),
        ("discrete", "bool", "r"),
        ("input", "u16", "r"),
        ("holding", "u16", "rw"),
    ):
        ((one,),) = ((device.registers for device in parsed(register(table=table)).of("modbus")[0].devices),)
        assert (one[0].type, one[0].access) == (kind, access)


def test_several_faults_are_all_reported():
    with pytest.raises(ConfigError) as caught:
        parsed({"modbus": [line(device=[drive(registers=[{"reg": -1}]), {"unit": 300}])]})
    assert len(str(caught.value).splitlines()) >= 4


def faults(content):
    with pytest.raises(ConfigError) as caught:
        parsed(content)
    return str(caught.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"type": "text", "access": "r"}, "length: missing"),
        ({"length": 4}, 'length: only type = "text" has one'),
        ({"type": "text", "length": 4}, 'a text is only read; give access = "r"'),
        ({"type": "text", "length": 4, "access": "r", "scale": 2}, "scale: a text is not a number"),
        ({"valid": [5, 1]}, "valid: 5 is greater than 1; exchange them"),
        ({"valid": [1]}, "valid: expected an array of at least 2"),
        ({"table": "coil", "none": [1]}, "none: a bool is 0 or 1"),
        ({"scale": 0.1, "offset": -40, "max": 6514}, "max: 6514 is impossible: type 'u16' holds -40 to 6513.5"),
    ],
)
def test_what_a_register_cannot_be_is_a_fault_with_its_place(more, said):
    assert said in faults(register(**more))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (serial(tid="zero"), 'tid: a line with driver = "rtu" has none'),
        (serial(framing="tcp"), 'framing: a line with driver = "rtu" has none'),
        (tcp(loopback=True), 'loopback: a line with driver = "tcp" has none'),
        (tcp(late_ms=100), 'late_ms: a line with driver = "tcp" has none'),
        (tcp(framing="rtu", tid="zero"), 'tid: a line with driver = "tcp" and framing = "rtu" has none'),
        (tcp(framing="rtu", device=[drive(unit=250)]), "a serial line has the units 1 to 247"),
    ],
)
def test_a_key_that_its_line_cannot_have_is_a_fault(content, said):
    assert said in faults({"modbus": [content]})


def test_codes_of_sunspec_go_by_the_type_of_each_register():
    registers = [
        {"name": "w", "reg": 0, "type": "s16"},
        {"name": "wh", "reg": 1, "type": "u64", "access": "r"},
        {"name": "sn", "reg": 5, "type": "text", "length": 2, "access": "r"},
        {"name": "own", "reg": 7, "none": [7]},
        {"name": "hz", "reg": 8, "type": "f32"},
    ]
    (spec,) = parsed({"modbus": [tcp(device=[drive(registers=registers, codes="sunspec")])]}).of("modbus")
    one = {register.name: register for register in spec.devices[0].registers}
    assert one["w"].shown((0x8000,)) is None
    assert one["w"].shown((0x7FFF,)) == 0x7FFF
    assert one["wh"].shown((0xFFFF,) * 4) is None
    assert one["sn"].shown((0, 0)) is None
    assert (one["own"].shown((7,)), one["own"].shown((0xFFFF,))) == (None, 0xFFFF)
    assert one["hz"].none == ()
