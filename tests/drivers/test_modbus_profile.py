"""The table [[modbus]] of a board profile: what it makes, and a fault with its place for all that cannot be."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.modbus.line import TcpPort
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


BAD = [
    ({"modbus": [line(line="a:b")]}, "modbus[0].line: expected a name without a colon"),
    ({"modbus": [line(device=[])]}, "modbus[0].device: the line has no device"),
    ({"modbus": [line(driver="rtu")]}, "modbus[0].path: missing; it takes the device of the port"),
    ({"modbus": [line(driver="tcp")]}, "modbus[0].host: missing; it takes an IP address"),
    ({"modbus": [line(path="/dev/ttyS0")]}, 'modbus[0].path: only a line with driver = "rtu" has one'),
    ({"modbus": [serial(host="::1")]}, 'modbus[0].host: only a line with driver = "tcp" has one'),
    ({"modbus": [serial(tcp_port=502)]}, 'modbus[0].tcp_port: a line with driver = "rtu" has none'),
    ({"modbus": [tcp(baud=9600)]}, 'modbus[0].baud: a line with driver = "tcp" has none'),
    ({"modbus": [tcp(late_ms=5)]}, 'modbus[0].late_ms: a line with driver = "tcp" has none'),
    ({"modbus": [tcp(rs485=True)]}, 'modbus[0].rs485: a line with driver = "tcp" has none'),
    (
        {"modbus": [{**tcp(), "host": "plc.local"}]},
        'modbus[0].host: expected an IP address such as "192.0.2.7": another machine could answer for a name',
    ),
    ({"modbus": [serial(baud=110)]}, "modbus[0].baud: 110 is slower than Modbus can be timed"),
    ({"modbus": [serial(stop_bits=1.5)]}, "modbus[0].stop_bits: 1.5 does not go with bits = 8"),
    ({"modbus": [serial(bits=7)]}, "modbus[0].bits: unknown key"),
    ({"modbus": [line(device=[drive(), drive(name="B")])]}, "modbus[0].device[1].unit: 3 is taken on this line"),
    ({"modbus": [line(device=[drive(unit=248)])]}, "modbus[0].device[0].unit: a serial line has the units 1 to 247"),
    (
        {"modbus": [line(device=[drive(unit=0)])]},
        'modbus[0].device[0].registers[0].access: none answers for unit 0, so it is only written; give access = "w"',
    ),
    ({"modbus": [line(device=[drive(registers=[])])]}, "modbus[0].device[0].registers: nothing of the device"),
    (
        {"modbus": [line(device=[drive(registers=[SPEED, SPEED])])]},
        "modbus[0].device[0].registers[1].name: 'speed' is there twice",
    ),
    (
        {"modbus": [line(device=[drive(registers=[{**SPEED, "type": "u32"}, {"name": "b", "reg": 101}])])]},
        "modbus[0].device[0].registers[1].reg: holding 101 belongs to speed",
    ),
    ({"modbus": [line(), line(device=[drive(name="B")])]}, 'modbus[1].line: "plant" is there twice'),
    ({"modbus": [line(), line(line="b")]}, 'modbus[1].device[0].name: "FAN" is taken by modbus[0].device[0].name'),
    (
        {"uart": [{"port": "u", "driver": "serial", "path": "/dev/ttyUSB0"}], "modbus": [serial()]},
        'modbus[0].path: "/dev/ttyUSB0" is taken by uart[0].path',
    ),
    (
        {
            "i2c": [{"bus": 1, "driver": "i2c-dev"}],
            "sensors": {"t": {"kind": "tmp102", "bus": 1, "addr": 0x48}},
            **register(sensor="t"),
        },
        'modbus[0].device[0].registers[0].sensor: "t" is taken by sensors.t',
    ),
    (register(table="coil", type="u16"), 'registers[0].type: a coil is one bit; give type = "bool"'),
    (register(table="input", access="rw"), "registers[0].access: table 'input' is only read"),
    (register(reg=0xFFFF, type="u32"), "registers[0].reg: its 2 registers end beyond 65535"),
    (register(access="r", max=5), 'registers[0].access: a register with access = "r" is never written'),
    (register(access="w", sensor="s"), 'registers[0].sensor: a register with access = "w" is never read'),
    (register(table="coil", max=1), "registers[0].max: a bool is 0 or 1"),
    (register(max=70_000), "registers[0].max: 70000 is impossible: type 'u16' holds 0 to 65535"),
    (register(scale=0.1, max=7_000), "registers[0].max: 7000 is impossible: type 'u16' holds 0 to 6553.5"),
    (register(min=5, max=4), "registers[0].min: no value lies between min and max"),
    (register(scale=10, min=1, max=9), "registers[0].min: no value lies between min and max"),
    (register(scale=2, max_step=1), "registers[0].max_step: 1 is less than one step of the register, 2"),
    (
        register(safe="off"),
        'registers[0].safe: expected a number in the unit of the register, or true or false, got "off"',
    ),
    (register(safe=True), "registers[0].safe: expected a number, got true"),
    (register(table="coil", safe=0), "registers[0].safe: expected true or false, got 0"),
    (register(access="r", safe=0), 'registers[0].safe: a register with access = "r" is never written'),
    (register(max=5, safe=6), "registers[0].safe: 6 is beyond what may be written, 0 to 5"),
    (register(safe=-1), "registers[0].safe: -1 is beyond what may be written, 0 to 65535"),
    (register(type="f32", safe=1e39), "registers[0].safe: 1e+39 is beyond what may be written"),
    (register(width=32), "registers[0].width: unknown key"),
    (register(tabel="coil"), "registers[0].tabel: unknown key; did you mean table?"),
    (register(type="u64"), 'registers[0].type: expected "bool", "u16", "s16", "u32", "s32" or "f32"'),
]


@pytest.mark.parametrize(("content", "message"), BAD, ids=[message.partition(": ")[0] for _, message in BAD])
def test_what_cannot_be_is_a_fault_with_its_place_and_its_cure(content, message):
    with pytest.raises(ConfigError) as caught:
        parsed(content)
    assert message in str(caught.value)


def test_several_faults_are_all_reported():
    with pytest.raises(ConfigError) as caught:
        parsed({"modbus": [line(device=[drive(registers=[{"reg": -1}]), {"unit": 300}])]})
    assert len(str(caught.value).splitlines()) >= 4
