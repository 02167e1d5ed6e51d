"""Which tools there are: the default set, what the operator adds and takes away, and every tool's declaration."""

import base64
import sys

import jsonschema
import jsonschema_rs
import pytest

from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.tools import build_tools
from hearth.errors import ConfigError
from hearth.schema import authority
from hearth.tools import Tool, ToolRegistry

DESIGN = {
    "signal.list": 0,
    "signal.read": 0,
    "signal.watch": 0,
    "signal.set": 2,
    "hw.board": 0,
    "hw.gpio.list": 0,
    "hw.i2c.list": 0,
    "hw.uart.list": 0,
    "hw.pwm.list": 0,
    "hw.dac.list": 0,
    "hw.can.list": 0,
    "hw.spi.list": 0,
    "hw.modbus.list": 0,
    "hw.sensor.list": 0,
    "hw.sensor.read": 0,
    "hw.sensor.capture": 1,
    "gpio.get": 0,
    "gpio.watch": 0,
    "gpio.set": 2,
    "gpio.pulse": 2,
    "i2c.read": 2,
    "i2c.write": 2,
    "i2c.transfer": 2,
    "i2c.scan": 1,
    "uart.read": 1,
    "uart.write": 2,
    "uart.exchange": 2,
    "uart.control": 2,
    "pwm.get": 0,
    "pwm.set": 2,
    "pwm.off": 2,
    "servo.move": 2,
    "dac.get": 0,
    "dac.set": 2,
    "can.send": 2,
    "can.read": 1,
    "can.watch": 1,
    "can.isotp": 2,
    "spi.transfer": 2,
    "spi.read": 2,
    "spi.write": 2,
    "modbus.read": 0,
    "modbus.write": 2,
    "file.list": 0,
    "file.stat": 0,
    "file.read": 0,
    "file.write": 1,
    "file.delete": 3,
    "sys.cpuinfo": 0,
    "sys.memory": 0,
    "sys.thermal": 0,
    "sys.load": 0,
    "sys.disk": 0,
    "sys.network": 0,
    "sys.uptime": 0,
    "proc.list": 0,
}
_KINDS = ("signal.", "gpio.", "i2c.", "uart.", "pwm.", "servo.", "dac.", "can.", "spi.", "modbus.")
MINE = [name for name in DESIGN if name.startswith(("hw.", *_KINDS))]


@pytest.fixture(scope="module")
def board():
    return open_board(load_profile("sim"), style=Style.INLINE)


@pytest.fixture(scope="module")
def tools(board):
    return {tool.name: tool for tool in build_tools(board)}


def names(*args, **kwargs):
    return [tool.name for tool in build_tools(*args, **kwargs)]


@pytest.mark.spec("3.3", "is", "1 | low | Local mutation, easily reversible")
@pytest.mark.spec("3.3", "is", "2 | medium | Physical actuation or cross-process effect")
def test_the_default_set_is_the_designs_in_its_order_with_its_risks(board):
    tools = build_tools(board)
    assert {tool.name: tool.risk_level for tool in tools} == DESIGN
    assert [tool.name for tool in tools] == list(DESIGN)
    assert len(ToolRegistry(tools)) == len(DESIGN)


@pytest.mark.spec("3.3", "is", "3 | high | Irreversible, destructive, or safety-critical")
def test_opt_in_tools_are_there_only_when_they_are_named_and_are_of_the_highest_risk(board):
    offered = build_tools(board, enable=["proc.exec"], exec_templates={"date": ["/bin/date"]})
    assert [(tool.name, tool.risk_level) for tool in offered if tool.opt_in] == [("proc.exec", 3)]
    assert {"proc.exec", "proc.signal"} <= set(
        names(board, enable=["proc.signal", "proc.exec"], exec_templates={"date": ["/bin/date"]})
    )


def test_naming_a_tool_that_is_on_anyway_changes_nothing(board):
    assert names(board, enable=["gpio.set"]) == list(DESIGN)


def test_patterns_take_tools_away(board):
    left = names(board, disable=["uart.*", "file.delete", "*.scan"])
    assert left == [name for name in DESIGN if not name.startswith("uart.") and name not in ("file.delete", "i2c.scan")]


def test_taking_away_wins_over_enabling(board):
    assert "proc.signal" not in names(board, enable=["proc.signal"], disable=["proc.*"])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"disable": ["gpio.sett"]}, r"disable: no tool matches 'gpio\.sett'; did you mean gpio\.set"),
        ({"disable": ["spy.*"]}, r"disable: no tool matches 'spy\.\*'"),
        ({"disable": [""]}, "disable: no tool matches ''"),
        ({"enable": ["proc.exce"]}, r"enable: .* no tool or vendor package 'proc\.exce'; did you mean proc\.exec"),
        ({"enable": ["proc.*"]}, "patterns are for disable"),
        ({"enable": ["zzz"]}, "`hearth tools` lists them"),
    ],
)
def test_a_name_that_matches_nothing_is_refused_with_what_is_near(board, how, message):
    with pytest.raises(ConfigError, match=message):
        build_tools(board, **how)


def test_a_board_without_a_bus_has_no_tools_for_it_but_always_those_that_say_so():
    board = open_board(parse_profile({"name": "bare", "description": "nothing but files"}, "bare.toml"))
    assert names(board) == [name for name in DESIGN if not name.startswith(_KINDS)]
    assert names(board, disable=["uart.*"], enable=["gpio.set"]) == names(board)  # one config for many boards


def test_the_profile_decides_what_is_allowed():
    content = {"name": "x", "description": "x", "tools": {"allow": ["hw.*", "sys.*"]}}
    board = open_board(parse_profile(content, "x.toml"))
    assert names(board) == [name for name in DESIGN if name.startswith(("hw.", "sys."))]
    with pytest.raises(ConfigError, match=r"'proc\.signal' is not allowed by x\.toml"):
        build_tools(board, enable=["proc.signal"])


@pytest.mark.parametrize(
    ("bus", "message"),
    [
        ("board", "needs the vendor's prefix, such as com.acme.board"),
        ("com.acme.leds", "has a bus 'com.acme.leds' already"),
    ],
)
def test_a_vendors_driver_has_a_bus_of_its_own_under_the_vendors_prefix(bus, message):
    board = open_board(load_profile("sim"))
    board.add_driver("com.acme.leds", BaseDriver())
    with pytest.raises(ConfigError, match=message):
        board.add_driver(bus, BaseDriver())


VENDOR = """
from hearth.tools import Tool

def tool(name, opt_in=False):
    async def run(ctx, args):
        return {{}}
    return Tool(name=name, risk_level=0, timeout_ms=1, description="d", params_schema={{}}, result_schema={{}},
                capability="CAP_ACME", bus=lambda args: "board", run=run, opt_in=opt_in)

def make(board):
    assert board.name == "sim"
    return (tool(name, name.endswith("_raw")) for name in {names!r})

def broken(board):
    raise LookupError("no licence")

def wrong(board):
    return ["gpio.set"]

def thief(board):
    return [tool("gpio.set")]
"""


@pytest.fixture
def vendor(tmp_path, monkeypatch):
    """A distribution `acme-hearth` on sys.path with entry points in the group hearth.tools."""
    module = "acme_hearth_for_test"
    tools = ["com.acme.modbus.read", "com.acme.modbus.write", "com.acme.modbus.write_raw"]
    (tmp_path / f"{module}.py").write_text(VENDOR.format(names=tools))
    info = tmp_path / "acme_hearth-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-hearth\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hearth.tools]\n"
        f"com.acme.modbus = {module}:make\n"
        f"com.acme.broken = {module}:broken\n"
        f"com.acme.missing = {module}_missing:make\n"
        f"com.acme.wrong = {module}:wrong\n"
        f"com.acme.thief = {module}:thief\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop(module, None)


def test_a_vendors_package_is_not_even_imported_unless_it_is_named(board, vendor):
    assert names(board) == list(DESIGN)
    assert "acme_hearth_for_test" not in sys.modules


def test_a_vendors_entry_point_adds_its_tools_after_the_default_set(board, vendor):
    assert names(board, enable=["com.acme.modbus"]) == [*DESIGN, "com.acme.modbus.read", "com.acme.modbus.write"]


def test_a_vendors_tool_is_added_alone_by_its_name_also_one_that_is_opt_in(board, vendor):
    assert names(board, enable=["com.acme.modbus.write"]) == [*DESIGN, "com.acme.modbus.write"]
    assert names(board, enable=["com.acme.modbus", "com.acme.modbus.write_raw", "com.acme.modbus.read"])[-3:] == [
        "com.acme.modbus.read",
        "com.acme.modbus.write",
        "com.acme.modbus.write_raw",
    ]
    assert names(board, enable=["com.acme.modbus"], disable=["*.write"])[-1] == "com.acme.modbus.read"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("com.acme.broken", r"package 'acme-hearth' \(.*:broken\) cannot be used: LookupError: no licence"),
        ("com.acme.missing", "package 'acme-hearth' .* ModuleNotFoundError"),
        ("com.acme.wrong", "package 'acme-hearth' returned 'gpio.set', which is not"),
        ("com.acme.thief", r"package 'acme-hearth' may not replace the tool 'gpio\.set'"),
        ("com.acme.modbus.raed", r"package 'acme-hearth' has no tool 'com.acme.modbus.raed'; did you mean com\.acme"),
        ("com.acme.modbuss", "there is no tool or vendor package 'com.acme.modbuss'; did you mean com.acme.modbus"),
    ],
)
def test_a_vendors_package_that_cannot_be_used_is_named(board, vendor, name, message):
    with pytest.raises(ConfigError, match=message):
        build_tools(board, enable=[name])


@pytest.mark.parametrize("name", MINE)
def test_every_tool_declares_itself_fully(tools, name):
    tool = tools[name]
    assert isinstance(tool, Tool)
    for schema in (tool.params_schema, tool.result_schema):
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema_rs.validator_for(schema)
        assert schema["type"] == "object"
        assert "additionalProperties" not in schema
        # The interfaces of models refuse a whole request for one schema with any of these at its root.
        assert not schema.keys() & {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "enum"}
        assert all("description" in part for part in schema["properties"].values())
    assert tool.description.endswith(".")
    assert tool.timeout_ms > 0
    undone = ("gpio.set", "uart.control", "pwm.set", "pwm.off", "servo.move", "dac.set", "modbus.write")
    assert tool.supports_rollback is (name in undone)
    kind = name.partition(".")[0]
    writes = name in ("signal.set", "gpio.set", "gpio.pulse", "i2c.write", "i2c.transfer", "modbus.write") or name in (
        "uart.write",
        "uart.exchange",
        "uart.control",
        "pwm.set",
        "pwm.off",
        "servo.move",
        "dac.set",
        "can.send",
        "can.isotp",
        "spi.transfer",
        "spi.write",
    )
    flag = "PWM" if kind == "servo" else kind.upper()
    expected = "CAP_SYS_READ" if kind == "hw" else f"CAP_{flag}_{'RW' if writes else 'READ'}"
    assert tool.capability == expected
    assert isinstance(tool.to_wire()["params_schema"], dict)


def b64(size):
    return base64.b64encode(b"x" * size).decode()


I2C = {"bus": 1, "addr": 0x48}
GOOD = [
    ("hw.board", {}),
    ("hw.sensor.read", {"sensor": "temperature"}),
    (
        "hw.sensor.capture",
        {"sensors": ["vibration", "strain"], "samples": 16_384, "rate_hz": 0.5, "timeout_ms": 60_000},
    ),
    ("gpio.get", {"line": 17, "future": {"fields": "are ignored"}}),
    ("gpio.get", {"line": "GPIO17", "chip": "sim"}),
    ("gpio.set", {"line": 0, "value": 1}),
    ("gpio.pulse", {"line": 1023, "value": 0, "duration_ms": 60_000}),
    ("gpio.watch", {"line": 1}),
    ("gpio.watch", {"line": 1, "edge": "both", "count": 10_000, "timeout_ms": 600_000}),
    ("i2c.read", {"bus": 1, "addr": "0x48", "reg": "0x00", "len": 2}),
    ("i2c.read", {"bus": 1, "addr": "0x8", "len": 4096}),
    ("i2c.read", {"bus": 1, "addr": "0X77", "reg": 255, "len": 1}),
    ("i2c.read", {"bus": 1, "addr": "0x6F", "reg": "0xfF", "len": 1}),
    ("i2c.write", {**I2C, "data": b64(1)}),
    ("i2c.write", {**I2C, "data": b64(4096), "reg": 0}),
    ("i2c.transfer", {**I2C, "write": b64(2), "read_len": 4096}),
    ("i2c.write", {**I2C, "text": "x" * 4096}),
    ("i2c.write", {**I2C, "hex": "00 " * 4096}),
    ("uart.read", {"port": "uart0", "len": 4096, "until": "\n", "timeout_ms": 0}),
    ("uart.write", {"port": "uart0", "data": b64(4096)}),
    ("uart.exchange", {"port": "uart0", "data": b64(3), "until": "\r\n", "timeout_ms": 60_000}),
    ("uart.exchange", {"port": "uart0", "data": b64(3), "gap_ms": 60_000}),
    ("uart.control", {"port": "uart0", "rts": True, "dtr": False, "break_ms": 5_000}),
    ("can.send", {"bus": "can0", "message": "FAN_COMMAND", "signals": {"Speed": {"value": 1, "unit": "percent"}}}),
    ("can.send", {"bus": "can0", "message": "ENGINE_DATA", "signals": {"Speed": 1, "Temperature": 0, "Mode": "off"}}),
    ("can.send", {"bus": "can0", "id": "0x18feca00", "hex": "", "timeout_ms": 10_000}),
    ("can.send", {"bus": "can0", "id": 0x1FFFFFFF, "data": b64(64), "fd": True, "bitrate_switch": False}),
    ("can.read", {"bus": "can0", "filter": [1, "0x1", "ENGINE_*"], "count": 256, "timeout_ms": 0, "errors": True}),
    ("can.watch", {"bus": "can0", "count": 10_000_000, "timeout_ms": 600_000, "every_ms": 10}),
    ("can.isotp", {"bus": "can0", "tx": 1, "rx": "0x2", "data": b64(4095), "padding": 255, "fd": True}),
]
WRONG = [
    ("hw.sensor.read", {}),
    ("hw.sensor.read", {"sensor": ""}),
    ("hw.sensor.capture", {"sensors": [], "samples": 1}),
    ("hw.sensor.capture", {"sensors": ["vibration"]}),
    ("hw.sensor.capture", {"sensors": ["vibration"], "samples": 16_385}),
    ("hw.sensor.capture", {"sensors": ["vibration"], "samples": 1, "rate_hz": 0}),
    ("hw.sensor.capture", {"sensors": ["vibration"], "samples": 1, "timeout_ms": 60_001}),
    ("gpio.get", {}),
    ("gpio.get", {"line": -1}),
    ("gpio.get", {"line": 1024}),
    ("gpio.get", {"line": True}),
    ("gpio.get", {"line": 1.5}),
    ("gpio.get", {"line": ""}),
    ("gpio.get", {"line": None}),
    ("gpio.get", {"line": 1, "chip": None}),
    ("gpio.set", {"line": 1}),
    ("gpio.set", {"line": 1, "value": 2}),
    ("gpio.set", {"line": 1, "value": True}),
    ("gpio.set", {"line": 1, "value": "1"}),
    ("gpio.pulse", {"line": 1, "value": 1}),
    ("gpio.pulse", {"line": 1, "value": 1, "duration_ms": 0}),
    ("gpio.pulse", {"line": 1, "value": 1, "duration_ms": 60_001}),
    ("gpio.watch", {"line": 1, "edge": "up"}),
    ("gpio.watch", {"line": 1, "count": 0}),
    ("gpio.watch", {"line": 1, "count": 10_001}),
    ("gpio.watch", {"line": 1, "timeout_ms": 600_001}),
    ("i2c.read", {"bus": 1, "addr": 0x48}),
    ("i2c.read", {"bus": 1, "addr": "72", "len": 1}),
    ("i2c.read", {"bus": 1, "addr": "0x48\n", "len": 1}),
    ("i2c.read", {"bus": 1, "addr": 0x48, "reg": "0x4\n", "len": 1}),
    ("i2c.read", {"bus": 1, "addr": 0x48, "len": 0}),
    ("i2c.read", {"bus": 1, "addr": 0x48, "len": 4097}),
    ("i2c.read", {"bus": "1", "addr": 0x48, "len": 1}),
    ("i2c.write", {**I2C, "data": ""}),
    ("i2c.write", {**I2C, "text": ""}),
    ("i2c.write", {**I2C, "hex": "0"}),
    ("i2c.write", {**I2C, "hex": 10}),
    ("i2c.write", {**I2C, "hex": "00" * 6145}),
    ("i2c.write", {**I2C, "data": "not base64!"}),
    ("i2c.write", {**I2C, "data": "QQ="}),
    ("i2c.write", {**I2C, "data": "QQ==\n"}),
    ("i2c.write", {**I2C, "data": "Q==="}),
    ("i2c.write", {**I2C, "data": b64(4100)}),
    ("i2c.transfer", {**I2C, "write": "", "read_len": 1}),
    ("i2c.transfer", {**I2C, "write": b64(1), "read_len": -1}),
    ("i2c.scan", {}),
    ("uart.read", {"port": "uart0", "len": 0}),
    ("uart.read", {"port": "uart0", "until": ""}),
    ("uart.read", {"port": "uart0", "timeout_ms": -1}),
    ("uart.exchange", {"port": "uart0", "data": b64(1), "timeout_ms": 60_001}),
    ("uart.read", {"port": "uart0", "gap_ms": 0}),
    ("uart.control", {"rts": True}),
    ("can.send", {"bus": "can0", "id": 0x20000000, "hex": ""}),
    ("can.send", {"bus": "can0", "id": "123", "hex": ""}),
    ("can.send", {"bus": "can0", "message": "FAN_COMMAND", "signals": {"Speed": None}}),
    ("can.send", {"bus": "can0", "message": "FAN_COMMAND", "signals": {"Speed": {"unit": "percent"}}}),
    ("can.send", {"bus": "can0", "id": 1, "data": b64(70)}),
    ("can.send", {"id": 1, "hex": ""}),
    ("can.read", {"bus": "can0", "filter": []}),
    ("can.read", {"bus": "can0", "filter": "ENGINE_*"}),
    ("can.read", {"bus": "can0", "count": 257}),
    ("can.watch", {"bus": "can0", "every_ms": 9}),
    ("can.isotp", {"bus": "can0", "tx": 1, "hex": "00"}),
    ("can.isotp", {"bus": "can0", "tx": 1, "rx": 2, "data": ""}),
    ("uart.control", {"port": "uart0", "rts": 1}),
    ("uart.control", {"port": "uart0", "break_ms": 5_001}),
]


@pytest.mark.parametrize(
    ("name", "args", "good"), [(*case, True) for case in GOOD] + [(*case, False) for case in WRONG], ids=repr
)
def test_both_validators_give_the_right_verdict_on_args(tools, name, args, good):
    schema = tools[name].params_schema
    assert authority(schema).is_valid(args) is good
    assert jsonschema_rs.validator_for(schema).is_valid(args) is good
