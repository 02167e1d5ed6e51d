"""Board profiles: what ships, and how a bad one is refused."""

import copy
import tomllib
from pathlib import Path

import pytest

import hearth.drivers.boards
from hearth.drivers.boards import load_profile, shipped_profiles
from hearth.drivers.boards.profile import parse_profile
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
    (chip,) = profile.chips
    assert [line.name for line in chip.lines] == [f"GPIO{n}" for n in range(32)]
    assert (17, 27) in chip.wires
    assert [(device.addr, device.kind) for device in profile.i2c[0].devices] == [(0x48, "tmp102"), (0x50, "24c02")]
    assert profile.i2c[0].bus == 1
    assert profile.uarts[0].peer == "echo"
    assert (profile.sensors[0].name, profile.sensors[0].kind) == ("temperature", "tmp102")
    assert all(line.direction == "any" for line in chip.lines)


@pytest.mark.parametrize(("name", "label"), [("rpi4", "pinctrl-bcm2711"), ("rpi5", "pinctrl-rp1")])
def test_the_raspberry_profiles_offer_the_header_and_keep_off_what_is_taken(name, label):
    (chip,) = load_profile(name).chips
    assert chip.label == label
    assert [line.offset for line in chip.lines] == list(range(28))
    assert [line.offset for line in chip.lines if line.reserved] == [0, 1, 2, 3, 14, 15]
    assert (chip.aliases["PIN11"], chip.aliases["PIN40"]) == (17, 21)
    assert len(set(chip.aliases.values())) == len(chip.aliases) == 26
    assert not {"PIN27", "PIN28"} & set(chip.aliases)


def test_a_profile_is_read_from_a_path(tmp_path):
    path = tmp_path / "robot.toml"
    path.write_text('name = "robot"\ndescription = "a robot"\n')
    profile = load_profile(str(path))
    assert (profile.name, profile.chips, profile.tools, profile.discover) == ("robot", (), ("*",), ())


@pytest.mark.parametrize("name", ["rpi6", "../boards/sim", "", "SIM"])
def test_a_profile_that_does_not_exist_is_refused_with_what_does(name):
    with pytest.raises(ConfigError, match="cannot be read" if "/" in name else "generic-linux, rpi4, rpi5, sim"):
        load_profile(name)


def test_a_file_that_cannot_be_read_or_is_no_toml_is_named(tmp_path):
    path = tmp_path / "robot.toml"
    with pytest.raises(ConfigError, match=r"robot\.toml: cannot be read: No such file"):
        load_profile(str(path))
    path.write_text("name = ")
    with pytest.raises(ConfigError, match=r"robot\.toml: is not TOML"):
        load_profile(str(path))
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(ConfigError, match=r"robot\.toml: is not TOML"):
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


def drop(*path):
    def edit(content):
        at = content
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return edit


BAD = [
    (drop("name"), "name: is missing"),
    (put("name", value=""), "name: expected a non-empty string, found ''"),
    (put("colour", value="red"), "colour: unknown key; this table has description, discover, gpio"),
    (put("gpio", value={}), "gpio: expected an array of tables ([[gpio]]), found {}"),
    (put("gpio", value=["x"]), "gpio[0]: expected a table, found 'x'"),
    (put("gpio", 0, "speed", value=1), "gpio[0].speed: unknown key"),
    (put("gpio", 0, "driver", value="gpoid"), 'gpio[0].driver: expected one of "sim", "gpiod", found \'gpoid\''),
    (put("gpio", 0, "names", value="GPIO0"), "gpio[0].names: expected a list of strings"),
    (put("gpio", 0, "names", value=[1]), "gpio[0].names: expected a list of strings"),
    (put("gpio", 0, "names", value=["A", "A"]), "gpio[0].names: 'A' is there twice"),
    (put("gpio", 0, "names", value=["", ""]), "gpio[0].names: expected the names of up to 1024 lines"),
    (put("gpio", 0, "names", value=[f"L{n}" for n in range(1025)]), "gpio[0].names: expected the names of up to 1024"),
    (put("gpio", 0, "lines", value=[]), "gpio[0].lines: expected a table"),
    (put("gpio", 0, "lines", "GPIO99", value={}), "gpio[0].lines.GPIO99: no such name under `names`"),
    (put("gpio", 0, "lines", "GPIO17", value=1), "gpio[0].lines.GPIO17: expected a table, found 1"),
    (put("gpio", 0, "lines", "GPIO17", "safe", value=2), 'gpio[0].lines.GPIO17.safe: expected one of 0, 1, "input"'),
    (put("gpio", 0, "lines", "GPIO17", "safe", value=True), 'gpio[0].lines.GPIO17.safe: expected one of 0, 1, "input"'),
    (put("gpio", 0, "lines", "GPIO17", "hold", value="yes"), "gpio[0].lines.GPIO17.hold: expected one of"),
    (put("gpio", 0, "lines", "GPIO17", "saef", value=0), "gpio[0].lines.GPIO17.saef: unknown key; this table has"),
    (put("gpio", 0, "lines", "GPIO17", "direction", value="input"), "gpio[0].lines.GPIO17.safe: a line with direction"),
    (put("gpio", 0, "alias", "X", value="GPIO99"), "gpio[0].alias.X: no line is named 'GPIO99'"),
    (put("gpio", 0, "alias", "GPIO3", value="GPIO17"), "gpio[0].alias.GPIO3: a line has this name already"),
    (put("gpio", 0, "alias", "X", value=17), "gpio[0].alias.X: expected a non-empty string, found 17"),
    (put("gpio", 0, "alias", value=["X"]), "gpio[0].alias: expected a table"),
    (put("gpio", 0, "wires", value=[["GPIO1"]]), "gpio[0].wires: expected pairs of line names, found ['GPIO1']"),
    (put("gpio", 0, "wires", value=[["GPIO1", 2]]), "gpio[0].wires: expected pairs of line names"),
    (put("gpio", 0, "wires", value="GPIO1"), "gpio[0].wires: expected a list of pairs"),
    (put("gpio", 0, "wires", value=[["GPIO1", "GPIO99"]]), "gpio[0].wires: no line is named 'GPIO99'"),
    (put("gpio", 0, "driver", value="gpiod"), "gpio[0].wires: only a simulated chip"),
    (put("gpio", value=[SIM["gpio"][0], SIM["gpio"][0]]), "gpio[1].label: 'sim' is there twice"),
    (put("i2c", 0, "bus", value="1"), "i2c[0].bus: expected an integer from 0 to 255, found '1'"),
    (put("i2c", 0, "bus", value=True), "i2c[0].bus: expected an integer from 0 to 255, found True"),
    (put("i2c", 0, "bus", value=256), "i2c[0].bus: expected an integer from 0 to 255, found 256"),
    (put("i2c", 0, "bus", value=2), "sensors.temperature.bus: there is no [[i2c]] with bus = 1"),
    (put("i2c", value=[SIM["i2c"][0], SIM["i2c"][0]]), "i2c[1].bus: 1 is there twice"),
    (put("i2c", 0, "device", 0, "kind", value="bme280"), "i2c[0].device[0].kind: expected one of"),
    (put("i2c", 0, "device", 0, "addr", value=3), "i2c[0].device[0].addr: expected an integer from 8 to 119"),
    (put("i2c", 0, "device", 1, "addr", value=0x48), "i2c[0].device[1].addr: 0x48 is taken on this bus"),
    (put("i2c", 0, "device", 1, "write_cycle_ms", value="5"), "i2c[0].device[1].write_cycle_ms: expected a number"),
    (put("i2c", 0, "device", 1, "page", value=8), "i2c[0].device[1].page: unknown key"),
    (put("uart", 0, "peer", value="cat"), "uart[0].peer: expected one of"),
    (put("uart", 0, "path", value="/dev/ttyS0"), "uart[0].path: a simulated port has none"),
    (put("uart", 0, "driver", value="serial"), "uart[0].path: is missing"),
    (put("uart", value=[SIM["uart"][0], SIM["uart"][0]]), "uart[1].port: 'uart0' is there twice"),
    (put("sensors", "temperature", "kind", value="lm75"), "sensors.temperature.kind: expected one of"),
    (put("sensors", "temperature", "unit", value="F"), "sensors.temperature.unit: unknown key"),
    (put("discover", "gpio", value=1), "discover.gpio: expected true or false, found 1"),
    (put("discover", "spi", value=True), "discover.spi: unknown key"),
    (put("tools", "allow", value="*"), "tools.allow: expected a list of strings"),
    (put("tools", "deny", value=["x"]), "tools.deny: unknown key; this table has allow"),
]


@pytest.mark.parametrize(("edit", "message"), BAD, ids=[message.partition(":")[0] for _, message in BAD])
def test_what_is_wrong_is_refused_with_the_file_and_the_key_path(edit, message):
    with pytest.raises(ConfigError) as caught:
        parse_profile(edited(edit), "board profile x.toml")
    assert str(caught.value).startswith(f"board profile x.toml: {message}")


def test_a_top_level_that_is_no_table_is_refused():
    with pytest.raises(ConfigError, match=r"x\.toml: the file: expected a table"):
        parse_profile([], "x.toml")


def test_everything_a_profile_may_say_is_understood():
    def edit(content):
        content["gpio"][0]["lines"]["GPIO3"] = {"direction": "input", "pull": "up", "note": "n"}
        content["gpio"][0]["names"][9] = ""
        content["i2c"][0]["device"][1]["write_cycle_ms"] = 5
        content["tools"] = {"allow": ["gpio.*"]}
        content["discover"] = {"uart": True, "gpio": False}
        content["uart"].append({"port": "gps", "driver": "serial", "path": "/dev/ttyAMA0", "baud": 9600})
        content["i2c"].append({"bus": 3, "driver": "i2c-dev", "device": [{"addr": 0x76, "kind": "bme280"}]})

    profile = parse_profile(edited(edit), "x")
    lines = {line.offset: line for line in profile.chips[0].lines}
    assert (lines[3].direction, lines[3].pull, lines[3].safe, lines[3].note) == ("input", "up", "input", "n")
    assert 9 not in lines
    assert (lines[10].name, len(lines)) == ("GPIO10", 31)
    assert (lines[31].safe, lines[31].hold, lines[17].safe, lines[17].hold) == (0, "keep", 0, "release")
    assert profile.i2c[0].devices[1].write_cycle_ms == 5.0
    assert profile.i2c[1].devices[0].kind == "bme280"
    assert (profile.tools, profile.discover) == (("gpio.*",), ("uart",))
    assert (profile.uarts[1].path, profile.uarts[1].baud) == ("/dev/ttyAMA0", 9600)


DOC = Path(__file__).parents[2] / "docs/reference/boards.md"


def blocks(language):
    return [block.partition("```")[0] for block in DOC.read_text().split(f"```{language}\n")[1:]]


def test_the_profile_in_the_documentation_is_a_good_one():
    (text,) = blocks("toml")
    content = tomllib.loads(text)
    profile = parse_profile(content, "board profile cell-7.toml")
    lines = {line.name: line for line in profile.chips[0].lines}
    assert lines["DOOR"].offset == 3
    assert lines["WDOG"].reserved == "the watchdog"
    content["gpio"][0]["lines"]["VALVE"]["safe"] = 2
    with pytest.raises(ConfigError) as caught:
        parse_profile(content, "board profile cell-7.toml")
    assert f"`{caught.value}`" in DOC.read_text().replace("\n", " ")


def test_the_python_in_the_documentation_runs():
    (text,) = blocks("python")
    names = {}
    exec(compile(text, str(DOC), "exec"), names)
    assert names["chip"].level(4) == 1
    assert [fault.kind for fault in names["i2c"].faults._planned] == ["nack", "timeout", "wedge"]


def test_the_documentation_names_every_shipped_profile():
    assert all(f"`{name}`" in DOC.read_text() for name in shipped_profiles())
