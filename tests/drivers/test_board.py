"""Boards: the drivers of a profile, and the names by which everything is found."""

import json
import subprocess
import sys

import pytest
from support.machine import FilesMachine

from hearth.drivers.base import Style
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.gpio import tools as gpio
from hearth.drivers.i2c import tools as i2c
from hearth.drivers.uart import tools as uart
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
                ],
            },
            "two.toml",
        )
    )


def test_the_simulated_board_has_a_driver_for_each_bus_and_opens_none(sim):
    buses = [
        "gpio:sim",
        "i2c:1",
        "uart:uart0",
        "pwm:sim",
        "dac:sim",
        "can:can0",
        "spi:LOOP",
        "spi:MOTOR",
        "modbus:plant",
        "iio:sim",
        "board",
    ]
    assert list(sim.drivers) == buses
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
    assert sim.bus("i2c", "bus", 1) == "i2c:1"
    assert sim.bus("uart", "port", "uart0") == "uart:uart0"
    assert sim.sensor("temperature").bus == "i2c:1"
    assert sim.bus("can", "bus", "can0") == "can:can0"
    assert all(sim.has(kind) for kind in ("gpio", "i2c", "uart", "can", "spi", "modbus"))
    assert not sim.has("com.acme")


@pytest.mark.parametrize(
    ("ask", "known"),
    [
        (lambda b: b.gpio_bus("gpiochip0"), ["sim"]),
        (lambda b: b.bus("i2c", "bus", 0), [1]),
        (lambda b: b.bus("uart", "port", "ttyS0"), ["uart0"]),
        (lambda b: b.bus("spi", "device", "FLASH", key="name"), ["LOOP", "MOTOR"]),
        (lambda b: b.sensor("humidity"), ["temperature", "tank", "fan_current", "vibration", "strain"]),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(sim, ask, known):
    with pytest.raises(InvalidParams) as caught:
        ask(sim)
    assert caught.value.data["known"] == known
    assert str(known[0]) in caught.value.message


@pytest.mark.parametrize(
    ("ask", "near"),
    [
        (lambda b: b.line(None, "led"), "LED"),
        (lambda b: b.line("sim", "BUTTN"), "BUTTON"),
        (lambda b: b.line("sim", "GPOI17"), "GPIO17"),
        (lambda b: b.gpio_bus("simm"), "sim"),
        (lambda b: b.bus("uart", "port", "urat0"), "uart0"),
        (lambda b: b.bus("spi", "device", "MOTR", key="name"), "MOTOR"),
        (lambda b: b.sensor("temprature"), "temperature"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest(sim, ask, near):
    with pytest.raises(InvalidParams, match=rf"did you mean {near}[,?]") as caught:
        ask(sim)
    assert caught.value.data["suggestions"][0] == near


def test_a_name_that_is_like_no_other_is_refused_without_a_suggestion(sim):
    for ask in (lambda: sim.line(None, 99), lambda: sim.line(None, "x" * 64), lambda: sim.bus("i2c", "bus", 7)):
        with pytest.raises(InvalidParams) as caught:
            ask()
        assert "did you mean" not in caught.value.message
        assert "suggestions" not in caught.value.data


def test_a_board_without_a_kind_says_that_it_has_none():
    board = open_board(parse_profile({"name": "bare", "description": "nothing"}, "bare.toml"))
    with pytest.raises(InvalidParams, match="has no gpio chip; it has: none"):
        board.gpio_bus()


def test_lines_are_found_by_offset_name_and_alias(sim):
    for name in (17, "GPIO17", "LED"):
        assert sim.line(None, name) == sim.line("sim", name, drive=True) == 17


@pytest.mark.parametrize("name", [32, -1, "GPIO32", "32", "017", ""])
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


REAL = {
    "name": "cell",
    "description": "a cell",
    "gpio": [
        {
            "label": "expander",
            "driver": "gpiod",
            "names": ["VALVE", "DOOR"],
            "alias": {"PIN11": "VALVE", "V": "VALVE"},
            "lines": {
                "VALVE": {
                    "active_low": True,
                    "initial": 0,
                    "drive": "open-drain",
                    "functions": ["ALT0 PWM0"],
                    "safe": 0,
                },
                "DOOR": {"pull": "up", "debounce_us": 2000, "direction": "input"},
            },
        }
    ],
    "i2c": [{"bus": 7, "driver": "i2c-dev", "adapter": "bridge", "timeout_ms": 200, "retries": 1}],
    "uart": [
        {"port": "motor", "driver": "serial", "path": "/dev/ttyUSB7", "baud": 9600, "parity": "even", "rs485": True}
    ],
    "sensors": {"outside": {"kind": "tmp102", "bus": 7, "addr": 0x48}},
}


@pytest.fixture
def real():
    return open_board(parse_profile(REAL, "cell.toml"))


def test_a_real_boards_drivers_are_made_and_not_opened_though_nothing_of_it_is_there(real):
    assert list(real.drivers) == ["gpio:expander", "i2c:7", "uart:motor", "board"]
    assert [real.drivers[bus].describe()["driver"] for bus in ("gpio:expander", "i2c:7")] == ["gpiod", "i2c-dev"]
    assert real.sensor("outside").bus == "i2c:7"
    assert real.undriven == ()
    for bus in ("gpio:expander", "i2c:7"):
        with pytest.raises(DeviceError):
            real.drivers[bus].open()


def test_the_list_of_lines_has_what_is_particular_about_each_and_nothing_else(real):
    (chip,) = gpio.listed(real.drivers["board"])["chips"]
    valve, door = chip["lines"]
    assert valve == {
        "line": 0,
        "name": "VALVE",
        "direction": "any",
        "safe": 0,
        "hold": "release",
        "aliases": ["PIN11", "V"],
        "pin": 11,
        "active_low": True,
        "drive": "open-drain",
        "functions": ["ALT0 PWM0"],
        "initial": 0,
    }
    assert door == {
        "line": 1,
        "name": "DOOR",
        "direction": "input",
        "safe": "input",
        "hold": "release",
        "pull": "up",
        "debounce_us": 2000,
    }


def test_the_list_of_adapters_has_the_kernels_name_and_what_the_kernel_is_told(real):
    (bus,) = i2c.listed(real.drivers["board"])["buses"]
    assert {key: bus[key] for key in ("bus", "id", "driven", "adapter", "timeout_ms", "retries")} == {
        "bus": 7,
        "id": "i2c:7",
        "driven": True,
        "adapter": "bridge",
        "timeout_ms": 200,
        "retries": 1,
    }


def test_the_list_of_ports_has_how_each_is_set_up(real):
    (port,) = uart.listed(real.drivers["board"])["ports"]
    settings = {key: port[key] for key in ("port", "path", "baud", "bits", "parity", "stop_bits", "flow")}
    assert settings == {
        "port": "motor",
        "path": "/dev/ttyUSB7",
        "baud": 9600,
        "bits": 8,
        "parity": "even",
        "stop_bits": 1,
        "flow": "none",
    }
    assert port["rs485"]["rts_on_send"] is True


@pytest.mark.parametrize(("name", "label"), [("rpi4", "pinctrl-bcm2711"), ("rpi5", "pinctrl-rp1")])
def test_a_raspberrys_lines_are_listed_with_their_pins_and_functions(name, label):
    (chip,) = gpio.listed(open_board(load_profile(name)).drivers["board"])["chips"]
    assert chip["chip"] == label
    lines = {line["name"]: line for line in chip["lines"]}
    assert (lines["GPIO17"]["pin"], lines["GPIO21"]["pin"]) == (11, 40)
    assert "pin" not in lines["ID_SD"]
    assert any(function.endswith("SPI0_MOSI") for function in lines["GPIO10"]["functions"])


def test_what_is_not_driven_is_refused_by_name_label_and_node_with_the_reason(tmp_path):
    files = FilesMachine(tmp_path)
    files.device("pci0000:00/0000:00:1f.4", "pci", driver="i801_smbus")
    files.adapter(3, "SMBus I801 adapter at efa0", "pci0000:00/0000:00:1f.4")
    files.console("ttyS0")
    files.device("platform/serial8250", "platform", driver="serial8250")
    files.port("ttyS0", "4:64", "platform/serial8250", type_="4")
    board = open_board(load_profile("generic-linux"), machine=files.machine)
    assert [(entry.kind, entry.name) for entry in board.undriven] == [("i2c", "i2c-3"), ("uart", "ttyS0")]
    with pytest.raises(InvalidParams, match="a wrong write can destroy memory modules") as caught:
        board.bus("i2c", "bus", 3)
    assert caught.value.data["cure"].startswith("a board profile that lists it drives it")
    with pytest.raises(InvalidParams, match="the kernel writes its console to it"):
        board.bus("uart", "port", "ttyS0")


@pytest.mark.parametrize("name", ["sim", "rpi4", "rpi5", "generic-linux"])
def test_what_the_board_tells_about_itself_is_json(name):
    driver = open_board(load_profile(name)).drivers["board"]
    for answer in (driver.info(), *(kind.listed(driver) for kind in (gpio, i2c, uart)), driver.describe()):
        assert json.loads(json.dumps(answer)) == answer


def test_a_sensor_that_answers_with_too_few_bytes_is_a_device_error(sim):
    with pytest.raises(DeviceError, match="expected 4 bytes, got 1"):
        sim.sensor("temperature").value(b"\x00")


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["sim", "generic-linux"])
def test_a_board_without_hardware_of_a_kind_loads_no_library_for_it(profile, tmp_path):
    """On a machine that has none: the files of one."""
    FilesMachine(tmp_path)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from hearth.drivers.boards import load_profile, open_board\n"
        "from hearth.drivers.boards.discover import Machine\n"
        f"root = Path({str(tmp_path)!r})\n"
        f"board = open_board(load_profile({profile!r}), machine=Machine(root / 'sys', root / 'dev', root / 'proc'))\n"
        "print(sorted({'gpiod', 'smbus2', 'serial', 'psutil'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
