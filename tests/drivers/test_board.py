"""Boards: the drivers of a profile, and the names by which everything is found."""

import json

import pytest

from hearth.drivers.base import Style
from hearth.drivers.boards import board as board_module, load_profile, open_board
from hearth.drivers.boards.discover import Found, discover
from hearth.drivers.boards.profile import parse_profile
from hearth.errors import DeviceError, InvalidParams, PermissionDenied


@pytest.fixture
def sim():
    return open_board(load_profile("sim"))


def two_chips():
    return open_board(
        parse_profile(
            {
                "name": "two",
                "description": "two chips",
                "gpio": [
                    {"label": "main", "driver": "sim", "names": ["A", "B"], "alias": {"RELAY": "B"}},
                    {
                        "label": "expander",
                        "driver": "sim",
                        "names": ["", "X", "Y", "Z"],
                        "alias": {"EYE": "Y", "NO": "Z"},
                        "lines": {"Y": {"direction": "input"}, "Z": {"reserved": "the watchdog"}},
                    },
                    {"label": "real", "driver": "gpiod", "names": ["P"]},
                ],
                "i2c": [{"bus": 7, "driver": "i2c-dev"}],
                "sensors": {"outside": {"kind": "tmp102", "bus": 7, "addr": 0x48}},
            },
            "two.toml",
        )
    )


def test_the_simulated_board_has_a_driver_for_each_bus_and_opens_none(sim):
    assert list(sim.drivers) == ["gpio:sim", "i2c:1", "uart:uart0", "board"]
    assert sim.undriven == ()
    assert (sim.name, sim.description) == ("sim", sim.profile.description)
    with pytest.raises(DeviceError, match="not open"):
        sim.drivers["gpio:sim"].get(0)


@pytest.mark.parametrize(
    ("style", "styles"),
    [
        (None, (Style.INLINE, Style.THREAD, Style.ASYNC)),
        (Style.INLINE, (Style.INLINE, Style.INLINE, Style.ASYNC)),
        (Style.THREAD, (Style.THREAD, Style.THREAD, Style.ASYNC)),
        (Style.ASYNC, (Style.INLINE, Style.ASYNC, Style.ASYNC)),
    ],
)
def test_the_style_is_that_of_the_simulated_buses_that_have_something_to_wait_for(style, styles):
    drivers = open_board(load_profile("sim"), style=style).drivers
    assert tuple(drivers[bus].style for bus in ("gpio:sim", "i2c:1", "uart:uart0")) == styles
    assert drivers["board"].style is Style.INLINE


def test_the_seed_decides_what_is_measured():
    def reading(seed):
        board = open_board(load_profile("sim"), style=Style.INLINE, seed=seed)
        driver = board.drivers["i2c:1"]
        driver.open()
        driver.devices[0x48].temperature._clock = lambda: 0.0
        sensor = board.sensor("temperature")
        return sensor.value(sensor.read(driver))

    assert reading(1) == reading(1)
    assert len({reading(seed) for seed in range(5)}) > 1


def test_buses_are_found_by_what_callers_call_them(sim):
    assert sim.gpio_bus() == sim.gpio_bus("sim") == "gpio:sim"
    assert sim.i2c_bus(1) == "i2c:1"
    assert sim.uart_bus("uart0") == "uart:uart0"
    assert sim.sensor("temperature").bus == "i2c:1"
    assert [sim.has(kind) for kind in ("gpio", "i2c", "uart", "spi")] == [True, True, True, False]


@pytest.mark.parametrize(
    ("ask", "known"),
    [
        (lambda b: b.gpio_bus("gpiochip0"), ["sim"]),
        (lambda b: b.i2c_bus(0), [1]),
        (lambda b: b.uart_bus("ttyS0"), ["uart0"]),
        (lambda b: b.sensor("humidity"), ["temperature"]),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(sim, ask, known):
    with pytest.raises(InvalidParams) as caught:
        ask(sim)
    assert caught.value.data["known"] == known
    assert str(known[0]) in caught.value.message


def test_a_board_without_a_kind_says_that_it_has_none():
    board = open_board(load_profile("rpi5"))
    with pytest.raises(InvalidParams, match="has no gpio chip; it has: none"):
        board.gpio_bus()


def test_lines_are_found_by_offset_name_and_alias(sim):
    for name in (17, "GPIO17", "LED"):
        assert sim.line(None, name) == sim.line("sim", name, drive=True) == 17


@pytest.mark.parametrize("name", [32, -1, "GPIO32", "17", ""])
def test_a_line_that_the_profile_does_not_list_does_not_exist(sim, name):
    with pytest.raises(InvalidParams) as caught:
        sim.line(None, name)
    assert "GPIO31" in caught.value.data["known"]


def test_the_first_chip_is_meant_when_none_is_named_and_each_has_its_own_lines():
    board = two_chips()
    assert board.gpio_bus() == "gpio:main"
    assert board.line(None, "RELAY") == board.line("expander", "X") == 1
    with pytest.raises(InvalidParams, match="'main'"):
        board.line(None, "X")
    with pytest.raises(InvalidParams, match="no gpio line 0"):
        board.line("expander", 0)


@pytest.mark.parametrize("name", [3, "Z", "NO"])
@pytest.mark.parametrize("drive", [True, False])
def test_a_reserved_line_is_denied_with_the_reason_however_it_is_named(name, drive):
    with pytest.raises(PermissionDenied, match="reserved: the watchdog") as caught:
        two_chips().line("expander", name, drive=drive)
    assert caught.value.data == {"chip": "expander", "line": 3, "reason": "the watchdog"}


@pytest.mark.parametrize("name", [2, "Y", "EYE"])
def test_an_input_may_be_read_but_never_driven(name):
    board = two_chips()
    assert board.line("expander", name) == 2
    with pytest.raises(PermissionDenied, match="never driven"):
        board.line("expander", name, drive=True)


def test_what_has_no_driver_is_listed_with_the_reason_and_not_offered():
    board = two_chips()
    assert [(entry.kind, entry.name) for entry in board.undriven] == [("gpio", "real"), ("i2c", "7")]
    assert list(board.drivers) == ["gpio:main", "gpio:expander", "board"]
    assert not board.sensors
    for ask in (lambda: board.gpio_bus("real"), lambda: board.i2c_bus(7)):
        with pytest.raises(InvalidParams, match="not driven in this release"):
            ask()


def test_a_generic_machine_lists_what_it_finds_and_not_twice(monkeypatch):
    found = [Found("gpio", "gpiochip0", "/dev/gpiochip0", "pinctrl"), Found("uart", "ttyS0", "/dev/ttyS0")]
    monkeypatch.setattr(board_module, "discover", lambda kinds: found)
    board = open_board(load_profile("generic-linux"))
    assert list(board.drivers) == ["board"]
    assert [(entry.name, entry.label) for entry in board.undriven] == [("gpiochip0", "pinctrl"), ("ttyS0", None)]
    with pytest.raises(InvalidParams, match="not driven in this release"):
        board.gpio_bus("pinctrl")
    listed = parse_profile(
        {
            "name": "x",
            "description": "x",
            "uart": [{"port": "gps", "driver": "serial", "path": "/dev/ttyS0"}],
            "discover": {"uart": True},
        },
        "x",
    )
    assert [entry.name for entry in open_board(listed).undriven] == ["gps", "gpiochip0"]


def test_discovery_reads_names_from_sys_and_opens_nothing(tmp_path):
    sys, dev = tmp_path / "sys", tmp_path / "dev"
    dev.mkdir()
    for name in ("gpiochip0", "gpiochip10", "gpiochip2", "i2c-1", "ttyS0", "ttyUSB0", "tty1", "ttyS4"):
        (dev / name).write_text("")
    for chip in ("gpiochip0", "gpiochip10", "gpiochip2", "gpiochip3"):
        (sys / "bus/gpio/devices" / chip).mkdir(parents=True)
    (sys / "bus/gpio/devices/gpiochip2/label").write_text("pinctrl-rp1\n")
    (sys / "class/i2c-dev/i2c-1").mkdir(parents=True)
    (sys / "class/i2c-dev/i2c-1/name").write_text("bcm2835 (i2c@7e804000)\n")
    for tty, kind in (("ttyS0", "4"), ("ttyS4", "0"), ("ttyUSB0", None)):
        (sys / "class/tty" / tty / "device").mkdir(parents=True)
        if kind:
            (sys / "class/tty" / tty / "type").write_text(kind)
    (sys / "class/tty/tty1").mkdir()
    (sys / "drivers/pl2303").mkdir(parents=True)
    (sys / "class/tty/ttyUSB0/device/driver").symlink_to(sys / "drivers/pl2303")
    assert [(entry.kind, entry.name, entry.label) for entry in discover(["uart", "i2c", "gpio"], sys=sys, dev=dev)] == [
        ("gpio", "gpiochip0", None),
        ("gpio", "gpiochip2", "pinctrl-rp1"),
        ("gpio", "gpiochip10", None),
        ("i2c", "i2c-1", "bcm2835 (i2c@7e804000)"),
        ("uart", "ttyS0", None),
        ("uart", "ttyUSB0", "pl2303"),
    ]
    assert discover([], sys=sys, dev=dev) == []
    assert discover(["gpio", "i2c", "uart"], sys=tmp_path / "none", dev=dev) == []


@pytest.mark.parametrize("name", ["sim", "rpi4", "generic-linux"])
def test_what_the_board_tells_about_itself_is_json(name):
    driver = open_board(load_profile(name)).drivers["board"]
    for answer in (driver.info(), driver.gpio(), driver.i2c(), driver.uart(), driver.sensors(), driver.describe()):
        assert json.loads(json.dumps(answer)) == answer


def test_a_sensor_that_answers_with_too_few_bytes_is_a_device_error(sim):
    with pytest.raises(DeviceError, match="expected 2 bytes, got 1"):
        sim.sensor("temperature").value(b"\x00")
