"""Board profiles: what ships, and how a bad one is refused."""

import copy
import re
import tomllib
from pathlib import Path

import attrs
import pytest

import hearth.drivers.boards
from hearth.drivers.boards import load_profile, shipped_profiles
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.gpio import machine as gpio
from hearth.drivers.i2c import machine as i2c
from hearth.drivers.i2c.spec import I2cSpec
from hearth.drivers.linux.survey import join_group
from hearth.drivers.serial_port.settings import Rs485, UartSettings
from hearth.errors import ConfigError

SIM = tomllib.loads((Path(hearth.drivers.boards.__file__).parent / "sim.toml").read_text())


def test_four_profiles_ship_and_each_is_named_like_its_file():
    assert shipped_profiles() == ["generic-linux", "rpi4", "rpi5", "sim"]
    for name in shipped_profiles():
        profile = load_profile(name)
        assert profile.name == name
        assert profile.description


def test_the_simulated_board_is_the_one_that_the_design_describes():
    profile = load_profile("sim")
    (chip,) = profile.of("gpio")
    assert [line.name for line in chip.lines] == [f"GPIO{n}" for n in range(32)]
    assert (17, 27) in chip.wires
    devices = [(device.addr, device.kind) for device in profile.of("i2c")[0].devices]
    assert devices == [(0x48, "tmp102"), (0x50, "24c02"), (0x4D, "mcp3221")]
    assert profile.of("i2c")[0].bus == 1
    assert profile.of("uart")[0].peer == "echo"
    assert {sensor.name: sensor.kind for sensor in profile.of("sensors")} == {
        "temperature": "tmp102",
        "tank": "mcp3221",
    }
    inputs = [line.offset for line in chip.lines if line.direction != "any"]
    assert inputs == [chip.aliases["DOOR"], chip.aliases["ESTOP"]] == list(chip.contacts)
    assert [chip.called(line) for line in inputs] == ["DOOR", "ESTOP"]


@pytest.mark.parametrize(("name", "label"), [("rpi4", "pinctrl-bcm2711"), ("rpi5", "pinctrl-rp1")])
def test_the_raspberry_profiles_offer_the_header_and_keep_off_what_is_taken(name, label):
    (chip,) = load_profile(name).of("gpio")
    assert chip.label == label
    assert [line.offset for line in chip.lines] == list(range(28))
    assert [line.offset for line in chip.lines if line.reserved] == [0, 1, 2, 3, 14, 15]
    assert (chip.aliases["PIN11"], chip.aliases["PIN40"]) == (17, 21)
    assert chip.called(17) is None, "its place on the header is not what is wired to it"
    assert len(set(chip.aliases.values())) == len(chip.aliases) == 26
    assert not {"PIN27", "PIN28"} & set(chip.aliases)


POWER_AND_GROUND = {1, 2, 4, 6, 9, 14, 17, 20, 25, 30, 34, 39}
"""The pins of the 40-pin header that are no lines; 27 and 28 are the HAT's own."""
SPI0 = {7: "CE1", 8: "CE0", 9: "MISO", 10: "MOSI", 11: "SCLK"}


@pytest.mark.parametrize("name", ["rpi4", "rpi5"])
def test_every_pin_of_the_header_is_a_line_or_power_or_ground_or_the_hats(name):
    (chip,) = load_profile(name).of("gpio")
    pins = {int(alias.removeprefix("PIN")) for alias in chip.aliases}
    assert not pins & POWER_AND_GROUND
    assert pins | POWER_AND_GROUND | {27, 28} == set(range(1, 41))
    assert sorted(chip.aliases.values()) == list(range(2, 28))


def test_both_raspberry_headers_have_the_same_lines_at_the_same_pins():
    (four,), (five,) = load_profile("rpi4").of("gpio"), load_profile("rpi5").of("gpio")
    assert four.aliases == five.aliases
    assert [(line.offset, line.name) for line in four.lines] == [(line.offset, line.name) for line in five.lines]


def functions(name):
    (chip,) = load_profile(name).of("gpio")
    return [dict(function.split(" ") for function in line.functions) for line in chip.lines]


@pytest.mark.parametrize(("name", "highest"), [("rpi4", 5), ("rpi5", 8)])
def test_every_line_says_what_else_it_can_be_once_for_each_alternate(name, highest):
    (chip,) = load_profile(name).of("gpio")
    for line, found in zip(chip.lines, functions(name), strict=True):
        assert len(found) == len(line.functions) > 0
        assert set(found) <= {f"ALT{n}" for n in range(highest + 1)}


def test_the_functions_of_the_header_are_the_bcm2711s():
    found = functions("rpi4")
    assert (found[2]["ALT0"], found[3]["ALT0"]) == ("SDA1", "SCL1")
    assert (found[14]["ALT0"], found[15]["ALT0"]) == ("TXD0", "RXD0")
    assert (found[14]["ALT5"], found[15]["ALT5"]) == ("TXD1", "RXD1")
    for line, signal in SPI0.items():
        assert found[line]["ALT0"].startswith(f"SPI0_{signal}")
    assert [found[line]["ALT0"] for line in (12, 13)] == [found[line]["ALT5"] for line in (18, 19)]
    assert found[12]["ALT0"] == "PWM0_0"
    assert [found[line]["ALT0"] for line in range(18, 22)] == ["PCM_CLK", "PCM_FS", "PCM_DIN", "PCM_DOUT"]
    assert [found[line]["ALT0"] for line in range(4, 7)] == ["GPCLK0", "GPCLK1", "GPCLK2"]


def test_the_functions_of_the_header_are_the_rp1s():
    found = functions("rpi5")
    assert (found[2]["ALT3"], found[3]["ALT3"]) == ("SDA1", "SCL1")
    assert (found[14]["ALT4"], found[15]["ALT4"]) == ("TXD0", "RXD0")
    for line, signal in SPI0.items():
        assert found[line]["ALT0"] == f"SPI0_{signal}"
    assert [found[line]["ALT0"] for line in range(12, 16)] == [f"PWM0_CHAN{n}" for n in range(4)]
    assert [found[line]["ALT2"] for line in range(18, 22)] == ["I2S0_SCLK", "I2S0_WS", "I2S0_SDI0", "I2S0_SDO0"]
    assert not any("ALT5" in line for line in found), "ALT5 is the GPIO itself"


@pytest.mark.parametrize("name", ["rpi4", "rpi5"])
def test_a_signal_of_the_raspberrys_transmit_has_a_receive_beside_it(name):
    signals = [set(line.values()) for line in functions(name)]
    for offset, found in enumerate(signals):
        for signal in found:
            if signal.startswith(("TXD", "SDA")):
                other = signal.replace("TXD", "RXD").replace("SDA", "SCL")
                assert other in signals[offset + 1], (offset, signal)


@pytest.mark.parametrize(("name", "uart"), [("rpi4", "serial0"), ("rpi5", "uart0")])
def test_the_lines_that_are_reserved_for_a_bus_are_those_that_the_profile_gives_it(name, uart):
    profile = load_profile(name)
    reserved = {line.offset: line.reserved for line in profile.of("gpio")[0].lines if line.reserved}
    assert [spec.bus for spec in profile.of("i2c")] == [1]
    assert [spec.port for spec in profile.of("uart")] == [uart]
    assert all("I2C bus 1" in reserved[line] for line in (2, 3))
    assert all(uart in reserved[line] for line in (14, 15))
    assert all("HAT" in reserved[line] for line in (0, 1))


def test_a_profile_is_read_from_a_path(tmp_path):
    path = tmp_path / "robot.toml"
    path.write_text('name = "robot"\ndescription = "a robot"\n')
    profile = load_profile(str(path))
    assert (profile.name, profile.of("gpio"), profile.tools, profile.discover) == ("robot", (), ("*",), {})


@pytest.mark.parametrize("name", ["rpi6", "../boards/sim", "", "SIM"])
def test_a_profile_that_does_not_exist_is_refused_with_what_does(name):
    with pytest.raises(ConfigError, match="cannot be read" if "/" in name else "generic-linux, rpi4, rpi5, sim"):
        load_profile(name)


def test_a_file_that_cannot_be_read_or_is_no_toml_is_named(tmp_path):
    path = tmp_path / "robot.toml"
    with pytest.raises(ConfigError, match=r"robot\.toml: cannot be read: No such file"):
        load_profile(str(path))
    path.write_text("name = ")
    with pytest.raises(ConfigError, match=r"robot\.toml: at the end: Invalid value"):
        load_profile(str(path))
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigError, match=r"robot\.toml: line 1: byte 0xff is not UTF-8; save it as UTF-8"):
        load_profile(str(path))


def edited(edit):
    content = copy.deepcopy(SIM)
    edit(content)
    return content


def put(*path, value):
    def edit(content):
        at = content
        for key in path[:-1]:
            at = at[key] if isinstance(key, int) else at.setdefault(key, {})
        at[path[-1]] = value

    return edit


def test_everything_a_profile_may_say_is_understood():
    def edit(content):
        content["gpio"][0]["lines"]["GPIO3"] = {"direction": "input", "pull": "up", "note": "n"}
        content["gpio"][0]["names"][9] = ""
        content["i2c"][0]["device"][1]["write_cycle_ms"] = 5
        content["tools"] = {"allow": ["gpio.*"]}
        content["discover"] = {"uart": True, "gpio": False, "i2c": ["i2c-1*"], "sensors": True}
        content["uart"].append({"port": "gps", "driver": "serial", "path": "/dev/ttyAMA0", "baud": 9600})
        content["i2c"].append({"bus": 3, "driver": "i2c-dev", "device": [{"addr": 0x76, "kind": "bme280"}]})

    profile = parse_profile(edited(edit), "x")
    lines = {line.offset: line for line in profile.of("gpio")[0].lines}
    assert (lines[3].direction, lines[3].pull, lines[3].safe, lines[3].note) == ("input", "up", "input", "n")
    assert 9 not in lines
    assert (lines[10].name, len(lines)) == ("GPIO10", 31)
    assert (lines[31].safe, lines[31].hold, lines[17].safe, lines[17].hold) == (0, "keep", 0, "release")
    assert profile.of("i2c")[0].devices[1].write_cycle_ms == 5.0
    assert profile.of("i2c")[1].devices[0].kind == "bme280"
    assert profile.tools == ("gpio.*",)
    assert profile.discover == {"i2c": ("i2c-1*",), "uart": ("*",), "sensors": ("*",)}
    assert (profile.of("uart")[1].path, profile.of("uart")[1].baud) == ("/dev/ttyAMA0", 9600)


def test_everything_that_a_real_board_may_say_is_understood():
    content = {
        "name": "cell",
        "description": "a cell",
        "gpio": [
            {
                "label": "pca9554",
                "driver": "gpiod",
                "path": "/dev/gpiochip7",
                "blocking": True,
                "names": ["VALVE", "DOOR", "BUS"],
                "lines": {
                    "VALVE": {"active_low": True, "initial": 0, "safe": 0, "functions": ["ALT0 PWM0"]},
                    "DOOR": {"direction": "input", "pull": "none", "debounce_us": 5000},
                    "BUS": {"drive": "open-drain"},
                },
            }
        ],
        "i2c": [
            {
                "bus": 4,
                "driver": "i2c-dev",
                "adapter": "MCP2221 usb-i2c bridge",
                "timeout_ms": 250,
                "retries": 2,
                "device": [{"addr": 0x3F0, "kind": "sensor"}],
            }
        ],
        "uart": [
            {
                "port": "motor",
                "driver": "serial",
                "path": "/dev/ttyUSB0",
                "baud": 19200,
                "bits": 7,
                "parity": "even",
                "stop_bits": 2,
                "flow": "none",
                "rs485": {"rts_on_send": False, "after_ms": 2},
                "inbox_bytes": 8192,
                "rts": False,
                "dtr": False,
                "hangup": False,
            },
            {"port": "plain", "driver": "serial", "path": "/dev/ttyUSB1", "rs485": True},
        ],
    }
    profile = parse_profile(content, "x")
    (chip,), (adapter,), (motor, plain) = profile.of("gpio"), profile.of("i2c"), profile.of("uart")
    assert (chip.path, chip.blocking) == ("/dev/gpiochip7", True)
    valve, door, bus = chip.lines
    assert (valve.active_low, valve.initial, valve.functions) == (True, 0, ("ALT0 PWM0",))
    assert (door.pull, door.debounce_us, door.initial) == ("none", 5000, None)
    assert (bus.drive, bus.pull, bus.active_low) == ("open-drain", "as-is", False)
    assert (adapter.adapter, adapter.timeout_ms, adapter.retries) == ("MCP2221 usb-i2c bridge", 250, 2)
    assert adapter.devices[0].addr == 0x3F0
    assert motor.settings == UartSettings(
        baud=19200,
        bits=7,
        parity="even",
        stop_bits=2,
        rs485=Rs485(rts_on_send=False, after_ms=2),
        inbox_bytes=8192,
        rts=False,
        dtr=False,
        hangup=False,
    )
    assert plain.settings == UartSettings(rs485=True)
    assert repr(plain.settings.stop_bits) == "1"


REAL = {
    "name": "real",
    "description": "real",
    "gpio": [{"label": "c", "driver": "gpiod", "names": ["A"], "lines": {"A": {}}}],
    "i2c": [{"bus": 1, "driver": "i2c-dev"}],
    "uart": [{"port": "p", "driver": "serial", "path": "/dev/ttyS9"}],
}


def test_all_faults_of_a_profile_are_reported_at_once():
    def edit(content):
        del content["name"]
        content["gpio"][0]["lines"]["GPIO17"] = {"safe": 2, "saef": 0}
        content["gpio"][0]["alias"] = {"X": 17}
        content["i2c"][0]["bus"] = 256
        content["i2c"][0]["device"] = [{"addr": "0x50", "kind": "24c02"}, {"addr": 0, "kind": "24c02"}]
        content["uart"][0]["path"] = "/dev/ttyS0"
        content["tools"] = {"deny": []}

    with pytest.raises(ConfigError) as caught:
        parse_profile(edited(edit), "x")
    assert str(caught.value).splitlines() == [
        "x: name: missing; it takes a non-empty string",
        'x: gpio[0].lines.GPIO17.safe: expected 0, 1 or "input", got 2',
        "x: gpio[0].lines.GPIO17.saef: unknown key; did you mean safe?",
        "x: gpio[0].alias.X: expected a non-empty string, got 17",
        "x: i2c[0].bus: expected an integer from 0 to 255, got 256",
        'x: i2c[0].device[0].addr: expected an integer from 8 to 119, got "0x50"',
        "x: i2c[0].device[1].addr: expected an integer from 8 to 119, got 0",
        "x: uart[0].path: a simulated port has none: the pseudo-terminal's is in hw.uart.list",
        "x: tools.deny: unknown key; expected allow",
    ]


def test_faults_between_values_are_reported_once_each_value_is_right():
    def edit(content):
        content["gpio"].append(content["gpio"][0])
        content["sensors"]["temperature"]["bus"] = 7
        content["sensors"]["other"] = {**content["sensors"]["temperature"], "bus": 1, "addr": 0x78}

    with pytest.raises(ConfigError) as caught:
        parse_profile(edited(edit), "x")
    (line,) = str(caught.value).splitlines()
    assert line.startswith("x: sensors.other.addr: 0x78 is reserved by the I2C specification")
    content = edited(edit)
    content["sensors"]["other"]["addr"] = 0x48
    with pytest.raises(ConfigError) as caught:
        parse_profile(content, "x")
    assert str(caught.value).splitlines() == [
        'x: gpio[1].label: "sim" is there twice',
        "x: sensors.temperature.bus: there is no [[i2c]] with bus = 7",
    ]


DOC = Path(__file__).parents[2] / "docs/reference/boards.md"


def blocks(language):
    return [block.partition("```")[0] for block in DOC.read_text().split(f"```{language}\n")[1:]]


def test_the_profile_in_the_documentation_is_a_good_one():
    content = tomllib.loads(blocks("toml")[0])
    profile = parse_profile(content, "board profile cell-7.toml")
    lines = {line.name: line for line in profile.of("gpio")[0].lines}
    assert lines["DOOR"].offset == 3
    assert lines["WDOG"].reserved == "the watchdog"
    content["gpio"][0]["lines"]["VALVE"]["safe"] = 2
    with pytest.raises(ConfigError) as caught:
        parse_profile(content, "board profile cell-7.toml")
    assert f"`{caught.value}`" in DOC.read_text().replace("\n", " ")


def test_the_real_profile_in_the_documentation_says_what_its_comments_say():
    """tests/hardware opens it."""
    _, text, *_ = blocks("toml")
    profile = parse_profile(tomllib.loads(text), "board profile cell.toml")
    (chip,), (adapter,), (port,) = profile.of("gpio"), profile.of("i2c"), profile.of("uart")
    lines = {line.name: line for line in chip.lines}
    assert (lines["VALVE"].active_low, lines["VALVE"].initial, lines["STOP"].offset) == (True, 0, 4)
    assert (adapter.timeout_ms, adapter.retries) == (250, 1)
    assert (port.settings.bits, port.settings.parity, port.settings.inbox_bytes) == (7, "even", 16_384)
    for key, default in (("timeout_ms", "1000"), ("retries", "0"), ("bits", "8"), ("stop_bits", "1")):
        (comment,) = [line.partition("#")[2] for line in text.splitlines() if line.startswith(f"{key} =")]
        field = next(field for spec in (I2cSpec, UartSettings) for field in attrs.fields(spec) if field.name == key)
        assert default in comment
        assert float(field.default) == float(default)


def test_the_table_for_rs485_in_the_documentation_has_the_defaults():
    (table,) = re.findall(r"`(\{ rts_on_send.*?\})`", DOC.read_text())
    content = copy.deepcopy(REAL)
    content["uart"][0] |= tomllib.loads(f"rs485 = {table}")
    assert parse_profile(content, "x").of("uart")[0].settings.rs485 == Rs485()


def test_the_commands_in_the_documentation_are_those_that_doctor_prints():
    (text,) = blocks("sh")
    assert text.splitlines() == [*gpio.ACCESS.commands("/dev/gpiochip0"), join_group("gpio", "hearth")]
    assert f"`{i2c.ACCESS.commands('/dev/i2c-1')[1].split(chr(39))[1]}`" in DOC.read_text()


def test_the_documentation_says_of_released_outputs_what_the_decision_says():
    decision = DOC.parents[1] / "decisions/0031-what-holds-a-gpio-level-and-where-a-chip-is-asked.md"

    def table(text):
        return text.partition("| chip | output after its release |\n")[2].partition("\n\n")[0]

    assert table(DOC.read_text()) == table(decision.read_text()) != ""


def test_the_python_in_the_documentation_runs():
    (text,) = blocks("python")
    names = {}
    exec(compile(text, str(DOC), "exec"), names)
    assert names["chip"].level(4) == 1
    assert [fault.kind for fault in names["i2c"].faults._planned] == ["nack", "timeout", "wedge"]


def test_the_documentation_names_every_shipped_profile():
    assert all(f"`{name}`" in DOC.read_text() for name in shipped_profiles())


def refused(tmp_path, text):
    file = tmp_path / "board.toml"
    file.write_bytes(text.encode())
    with pytest.raises(ConfigError) as caught:
        load_profile(str(file))
    told = str(caught.value)
    assert told.startswith(f"board profile {file}: ")
    return told.removeprefix(f"board profile {file}: ")


def test_a_profile_that_is_nested_without_end_is_refused(tmp_path):
    assert refused(tmp_path, "a = " + "[" * 5000) == "arrays or tables are nested too deeply; flatten them"


@pytest.mark.parametrize("digits", ["9" * 4000, "0x" + "f" * 5000, "[" + "1, " * 4000 + "]"])
def test_a_value_without_end_is_refused_in_a_few_words(tmp_path, digits):
    told = refused(tmp_path, f"description = 'd'\nname = {digits}")
    assert told.startswith("name: expected a non-empty string, got ")
    assert len(told) < 120


def test_what_a_profile_calls_its_lines_cannot_break_the_line_of_an_error(tmp_path):
    text = 'name = "a"\ndescription = "b"\n"x\\n\\u001b[2J" = 1\n'
    told = refused(tmp_path, text)
    assert told.startswith('"x\\n\\u001b[2J": unknown key; expected ')


def test_a_lone_carriage_return_ends_no_line(tmp_path):
    # As in a hearth.toml, and as TOML has it; Python's text files would take it for a line end.
    assert refused(tmp_path, 'name = "a"\rdescription = "b"\n').startswith("line 1, column 11: ")


# --- interlocks -------------------------------------------------------------------------------------------------------

DOOR = {"line": "BUTTON", "value": 0}
WARM = {"sensor": "temperature", "min": 5, "max": 40.5}


def interlocked(*requires, content=SIM, **more):
    lock = {"drives": "RELAY", "value": 1, "requires": list(requires) or [DOOR], **more}
    # Without the board's own [halt], whose lines are outputs and inputs too: an edit of one would be a mistake there.
    content = {key: value for key, value in content.items() if key != "halt" or value != SIM["halt"]}
    return {**content, "interlock": [{key: value for key, value in lock.items() if value is not None}]}


def test_an_interlock_names_a_line_a_level_and_the_conditions_that_it_requires():
    (lock,) = parse_profile(interlocked(DOOR, WARM, max_age_ms=250, check_ms=20), "here").interlocks
    assert (lock.name, lock.bus, lock.output, lock.value) == ("RELAY", "gpio:sim", 5, 1)
    assert (lock.max_age_ms, lock.check_ms) == (250, 20)
    door, warm = lock.requires
    assert (door.bus, door.line, warm.bus, warm.line) == ("gpio:sim", 4, "i2c:1", None)
    assert [condition.to_json() for condition in lock.requires] == [DOOR, WARM]
    assert [str(condition) for condition in lock.requires] == ["line BUTTON = 0", "sensor temperature ≥ 5 and ≤ 40.5"]


def test_a_reading_meets_a_condition_within_its_bounds_and_one_that_is_no_number_meets_none():
    (lock,) = parse_profile(interlocked(DOOR, WARM, {"sensor": "temperature", "min": 6}), "here").interlocks
    door, warm, least = lock.requires
    assert [door.holds(level) for level in (0, 1)] == [True, False]
    assert [warm.holds(value) for value in (4.9, 5, 40.5, 40.6, float("nan"))] == [False, True, True, False, False]
    assert [least.holds(value) for value in (5.9, 6, float("inf"), float("nan"))] == [False, True, True, False]


def two_chips():
    second = {"label": "other", "driver": "sim", "names": ["BUTTON", "LID"]}
    return {**copy.deepcopy(SIM), "gpio": [*copy.deepcopy(SIM["gpio"]), second]}


def test_a_line_of_an_interlock_may_be_on_another_chip_which_is_named_where_two_have_it():
    content = interlocked({"line": "LID", "value": 1}, {**DOOR, "chip": "other"}, content=two_chips())
    (lock,) = parse_profile(content, "here").interlocks
    assert [(one.bus, one.line) for one in lock.requires] == [("gpio:other", 1), ("gpio:other", 0)]


def test_a_sensor_of_the_kernel_may_be_required_where_the_profile_discovers_them():
    named = {"sensor": "hwmon/lm75-i2c-1-48/temp1", "max": 60}
    content = interlocked(named, content={**SIM, "discover": {"sensors": True}})
    (condition,) = parse_profile(content, "here").interlocks[0].requires
    assert (condition.bus, condition.name) == ("sensors", named["sensor"])


def line(name, **spec):
    return edited(put("gpio", 0, "lines", name, value=spec))


def test_all_faults_of_an_interlock_are_found_at_once():
    content = interlocked({"line": "BUTON", "value": 0}, {"sensor": "level", "min": 1}, drives="GPIO31")
    with pytest.raises(ConfigError) as refused:
        parse_profile(content, "here")
    assert len(str(refused.value).splitlines()) == 3


# --- limits -----------------------------------------------------------------------------------------------------------


def test_the_limits_in_the_documentation_are_good_ones():
    found = [block for block in blocks("toml") if "[[modbus]]" not in block]
    of_line, of_device = (block for block in found if "limit = { min_on" in block or "registers = [" in block)
    content = copy.deepcopy(SIM)
    content["gpio"][0]["names"][0] = "VALVE"
    content["gpio"][0]["lines"] |= tomllib.loads(of_line)["gpio"]["lines"]
    content["i2c"].append({"bus": 3, "driver": "i2c-dev", **tomllib.loads(of_device)["i2c"]})
    profile = parse_profile(content, "here")
    assert profile.of("gpio")[0].lines[0].limit.to_json() == {
        "min_on_ms": 500,
        "max_on_ms": 60_000,
        "min_off_ms": 2_000,
        "max_rate_hz": 0.2,
    }
    (device,) = profile.of("i2c")[1].devices
    angle, duty, status = device.registers
    assert (device.increment, angle.raw_bounds, duty.raw_bounds) == ("byte", (0, 1800), (0, 200))
    assert (duty.on_limit, status.access) == ("clamp", "r")
