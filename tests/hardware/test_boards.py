"""Boards on the kernel's own devices: generic-linux finds and drives them, and a profile for them fits and drives."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import gpiod
import pytest
import trio
from gpiod.line import Direction
from smbus2 import SMBus
from support.gpio_sim import gpio_sim
from support.i2c_stub import ADAPTER as STUB, kernel_driver, stub_bus
from support.mcp2221 import ADAPTER as MCP2221, Mcp2221
from support.mcp2221_chip import Memory
from support.usb_serial import usb_serial
from support.users import ordinary_user

import hearth
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.boards.discover import THIS
from hearth.drivers.gpio.machine import GpioMachine
from hearth.drivers.i2c.machine import I2cMachine
from hearth.drivers.serial_port.machine import find_ports
from hearth.errors import InvalidParams, PermissionDenied, ResourceBusy

LIMIT_S = 60


@pytest.fixture
def cell():
    """A chip with two named lines, two without a name, and one that the kernel holds for itself."""
    with gpio_sim("cell", ["relay", "button", "", "", "power"], hogs={4: ("board-power", "output-high")}) as chip:
        yield chip


@contextlib.asynccontextmanager
async def generic(tmp_path, text="gpio = true\ni2c = true\nuart = true\nsensors = true\n"):
    """A session on a board of what is found."""
    profile = tmp_path / "found.toml"
    profile.write_text(f'name = "found"\ndescription = "what there is"\n[discover]\n{text}')
    with trio.fail_after(LIMIT_S):
        async with hearth.open_runtime(board=str(profile)) as runtime, runtime.open_session() as session:
            yield session


def line_info(chip, line):
    with gpiod.Chip(chip.path) as opened:
        return opened.get_line_info(chip.offset(line))


# --- what is found --------------------------------------------------------------------------------------------------


def test_a_chips_lines_are_found_with_the_kernels_names_and_who_holds_them(cell):
    (found,) = [chip for chip in GpioMachine().find(THIS) if chip.label == "cell"]
    assert (found.path, found.origin.driver, found.error) == (cell.path, "gpio-sim", None)
    assert [line.name for line in found.lines] == ["relay", "button", None, None, "power"]
    assert [line.consumer for line in found.lines] == [None, None, None, None, "board-power"]
    assert [line.output for line in found.lines] == [False, False, False, False, True]


def test_looking_at_a_chip_takes_no_line_of_it(cell):
    before = cell.value("relay")
    list(GpioMachine().find(THIS))
    info = line_info(cell, "relay")
    assert (info.used, info.direction, cell.value("relay")) == (False, Direction.INPUT, before)


def test_a_chip_that_is_unplugged_is_found_no_more(cell):
    cell.unplug()
    assert "cell" not in [chip.label for chip in GpioMachine().find(THIS)]


def test_the_adapter_and_the_chip_of_a_usb_bridge_are_found_where_they_are():
    with Mcp2221() as bridge:
        (adapter,) = [adapter for adapter in I2cMachine().find(THIS) if adapter.label == MCP2221]
        (chip,) = [chip for chip in GpioMachine().find(THIS) if chip.label == "mcp2221_gpio"]
        assert (adapter.bus, adapter.path) == (bridge.bus, f"/dev/i2c-{bridge.bus}")
    assert "hid" in adapter.origin.above
    assert "hid" in chip.origin.above
    assert chip.origin.driver == "mcp2221"


def test_a_usb_serial_adapter_is_found_as_a_device_and_a_line_of_this_machine_as_none(tmp_path):
    with usb_serial(tmp_path) as adapter:
        ports = {port.path: port for port in find_ports(THIS)}
        assert "usb" in ports[adapter.node].origin.above
        assert ports[adapter.node].origin.driver == "cdc_acm"
    assert ports["/dev/ttyS1"].origin.above == ()
    assert "/dev/tty1" not in ports


def test_a_terminal_that_a_login_uses_is_found_with_the_process():
    login = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, "/dev/ttyS2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert login.stdout.readline() == "held\n"
        (port,) = [port for port in find_ports(THIS) if port.node == "ttyS2"]
        (terminal,) = port.terminal_of
        assert terminal.endswith(f"(pid {login.pid})")
    finally:
        login.communicate(timeout=LIMIT_S)


TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)   # a session leader's first terminal is its controlling one
print("held", flush=True)
sys.stdin.read()
"""


# --- what generic-linux makes of it ---------------------------------------------------------------------------------


async def test_generic_linux_drives_the_lines_that_it_finds(cell, tmp_path):
    async with generic(tmp_path) as session:
        for line in ("relay", 2, "line3"):
            for value in (1, 0):
                await session.run("gpio.set", chip="cell", line=line, value=value)
                assert cell.value(3 if line == "line3" else line) == value
        cell.pull("button", 1)
        assert (await session.run("gpio.get", chip="cell", line="button"))["value"] == 1


async def test_a_line_that_the_kernel_holds_is_reserved_naming_the_holder(cell, tmp_path):
    async with generic(tmp_path) as session:
        (chip,) = (await session.run("hw.gpio.list"))["chips"]
        lines = {line["name"]: line for line in chip["lines"]}
        assert chip["path"] == cell.path
        assert list(lines) == ["relay", "button", "line2", "line3", "power"]
        assert lines["power"]["reserved"] == "in use by 'board-power' since before hearth started"
        with pytest.raises(PermissionDenied, match="in use by 'board-power'"):
            await session.run("gpio.get", chip="cell", line="power")
    assert cell.value("power") == 1


async def test_a_line_that_another_process_holds_is_reserved_too(cell, tmp_path):
    with gpiod.request_lines(cell.path, consumer="plc", config={"relay": None}):
        board = open_board(load_profile("generic-linux"))
    with pytest.raises(PermissionDenied, match="in use by 'plc'"):
        board.line("cell", "relay", drive=True)
    assert board.line("cell", "button") == 1


async def test_chips_of_one_label_are_both_driven_by_their_nodes(tmp_path):
    with gpio_sim("twin", ["a"]) as one, gpio_sim("twin", ["a"]) as other:
        async with generic(tmp_path) as session:
            for chip in (one, other):
                await session.run("gpio.set", chip=chip.name, line="a", value=1)
            assert (one.value("a"), other.value("a")) == (1, 1)
            with pytest.raises(InvalidParams):
                await session.run("gpio.set", chip="twin", line="a", value=0)


async def test_generic_linux_drives_a_usb_bridge_with_its_lines(tmp_path):
    memory = Memory()
    with Mcp2221({0x50: memory}) as bridge:
        async with generic(tmp_path) as session:
            (bus,) = [bus for bus in (await session.run("hw.i2c.list"))["buses"] if bus["bus"] == bridge.bus]
            assert (bus["adapter"], bus["mode"], bus["driver"]) == (MCP2221, "raw", "i2c-dev")
            await session.run("i2c.write", bus=bridge.bus, addr=0x50, reg=0, data="aGVhcnRo")
            answer = await session.run("i2c.read", bus=bridge.bus, addr=0x50, reg=0, len=6)
            assert answer["data"] == "aGVhcnRo"
            await session.run("gpio.set", chip="mcp2221_gpio", line=0, value=1)
            level, is_input = bridge.chip.gpio[0]
            assert (bool(level), bool(is_input)) == (True, False)


async def test_generic_linux_drives_an_expander_and_leaves_its_address_on_the_wire_to_the_kernel(tmp_path):
    number = stub_bus()
    with kernel_driver(number, 0x50, "pca9554"):
        label = f"{number}-0050"
        (found,) = [chip for chip in GpioMachine().find(THIS) if chip.label == label]
        assert found.origin.above.count("i2c") == 2
        assert len(found.lines) == 8
        async with generic(tmp_path) as session:
            await session.run("gpio.set", chip=label, line="line3", value=1)
            with SMBus(number, force=True) as wire:
                assert wire.read_byte_data(0x50, 1, force=True) & 0b1000
                assert not wire.read_byte_data(0x50, 3, force=True) & 0b1000
            with pytest.raises(ResourceBusy, match="pca953x"):
                await session.run("i2c.write", bus=number, addr=0x50, reg=1, data="AA==")


async def test_generic_linux_drives_an_smbus_adapter_that_is_unclaimed(tmp_path):
    number = stub_bus()
    async with generic(tmp_path) as session:
        (bus,) = [bus for bus in (await session.run("hw.i2c.list"))["buses"] if bus["bus"] == number]
        assert (bus["adapter"], bus["mode"]) == (STUB, "smbus")
        await session.run("i2c.write", bus=number, addr=0x50, reg=7, data="Kg==")
        assert (await session.run("i2c.read", bus=number, addr=0x50, reg=7, len=1))["data"] == "Kg=="


async def test_generic_linux_drives_a_usb_serial_adapter(tmp_path):
    with usb_serial(tmp_path) as adapter:
        async with generic(tmp_path) as session:
            port = adapter.node.removeprefix("/dev/")
            (listed,) = (await session.run("hw.uart.list"))["ports"]
            assert (listed["port"], listed["path"], listed["baud"], listed["bits"]) == (port, adapter.node, 115_200, 8)
            with open(adapter.device, "r+b", buffering=0) as instrument:  # noqa: ASYNC230 - opens at once
                os.set_blocking(instrument.fileno(), False)
                await session.run("uart.write", port=port, data="aGVsbG8K")
                await trio.lowlevel.wait_readable(instrument)
                assert instrument.read(100).startswith(b"hel")


async def test_a_serial_line_of_the_machine_itself_is_taken_only_when_it_is_named(tmp_path):
    async with generic(tmp_path, "uart = true\n") as session:
        assert (await session.run("hw.uart.list"))["ports"] == []
    async with generic(tmp_path, 'uart = ["ttyS[12]"]\n') as session:
        ports = (await session.run("hw.uart.list"))["ports"]
        assert [(port["port"], port["path"]) for port in ports] == [("ttyS1", "/dev/ttyS1"), ("ttyS2", "/dev/ttyS2")]


async def test_generic_linux_reads_the_kernels_sensors(tmp_path):
    with kernel_driver(stub_bus(), 0x48, "lm75"):
        async with generic(tmp_path, "sensors = true\n") as session:
            sensors = [sensor["sensor"] for sensor in (await session.run("hw.sensor.list"))["sensors"]]
            (lm75,) = [sensor for sensor in sensors if sensor.startswith("hwmon/lm75")]
            assert (await session.run("hw.sensor.read", sensor=lm75))["unit"] == "celsius"


def test_what_this_user_may_not_open_is_listed_with_the_command(cell, tmp_path):
    os.chown(cell.path, 0, 20)
    Path(cell.path).chmod(0o660)
    load_profile("generic-linux")
    with ordinary_user():
        board = open_board(load_profile("generic-linux"))
    undriven = {entry.name: entry for entry in board.undriven}
    assert not board.has("gpio")
    assert undriven[cell.name].reason.endswith("mode 0660)")
    assert undriven[cell.name].cure.startswith("sudo usermod -aG ")
    stub = undriven[f"i2c-{stub_bus()}"]
    assert 'SUBSYSTEM=="i2c-dev"' in stub.cure
    assert stub.label == STUB


# --- a profile for what is there ------------------------------------------------------------------------------------

PROFILE = """
name = "cell"
description = "the cell's chip, a bridge, a null modem"

[[gpio]]
label = "cell"
driver = "gpiod"
names = ["VALVE", "DOOR", "", "LAMP"]

[gpio.lines.VALVE]
active_low = true
initial = 0
safe = 0

[gpio.lines.DOOR]
direction = "input"
pull = "up"

[gpio.lines.LAMP]
drive = "open-drain"

[[i2c]]
bus = 77
driver = "i2c-dev"
adapter = "MCP2221 usb-i2c bridge"
timeout_ms = 500

[[uart]]
port = "modem"
driver = "serial"
path = "/dev/ttyS1"
baud = 38_400
inbox_bytes = 4096

[[uart]]
port = "far"
driver = "serial"
path = "/dev/ttyS2"
baud = 38_400
"""


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "cell.toml"
    path.write_text(PROFILE)
    return str(path)


async def test_a_profile_for_simulated_chips_opens_and_drives_them(cell, profile):
    with Mcp2221({0x50: Memory()}) as bridge, trio.fail_after(LIMIT_S):
        assert bridge.bus != 77
        async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
            states = (await session.run("hw.board"))["health"]["buses"]
            assert {bus: states[bus]["state"] for bus in ("gpio:cell", "i2c:77", "uart:modem")} == {
                "gpio:cell": "ready",
                "i2c:77": "ready",
                "uart:modem": "ready",
            }
            assert cell.value(0) == 1, "driven from the start: 0 of a line that is active low"
            await session.run("gpio.set", line="VALVE", value=1)
            assert cell.value(0) == 0
            assert (await session.run("gpio.get", line="DOOR"))["value"] == 1
            await session.run("i2c.write", bus=77, addr=0x50, reg=1, data="Kg==")
            assert (await session.run("i2c.read", bus=77, addr=0x50, reg=1, len=1))["data"] == "Kg=="
            await session.run("uart.write", port="modem", data="aGVsbG8K")
            answer = await session.run("uart.read", port="far", until="\n", timeout_ms=10_000)
            assert (answer["data"], answer["timed_out"]) == ("aGVsbG8K", False)


# --- the Raspberry Pi's headers, on chips that look like theirs -----------------------------------------------------

PI_LINES = ["ID_SDA", "ID_SCL", *(f"GPIO{n}" for n in range(2, 28)), *(f"SOC{n}" for n in range(28, 54))]


@pytest.fixture(params=[("rpi4", "pinctrl-bcm2711"), ("rpi5", "pinctrl-rp1")], ids=["rpi4", "rpi5"])
def header(request):
    """A profile's name and its chip, which is not the first one of the machine; a line of the board's own is in use."""
    name, label = request.param
    with gpio_sim("gpio-brcmstb", 4), gpio_sim(label, PI_LINES, hogs={22: ("led0", "output-low")}) as chip:
        yield name, chip


async def test_a_raspberrys_header_is_driven_by_pin_whatever_number_its_chip_has(header):
    name, chip = header
    assert chip.name != "gpiochip0"
    async with hearth.open_runtime(board=name) as runtime, runtime.open_session() as session:
        for line in ("PIN11", "GPIO17", 17):
            for value in (1, 0):
                await session.run("gpio.set", line=line, value=value)
                assert chip.value(17) == value
        for reserved in ("ID_SD", "GPIO2", "GPIO3", "GPIO14", 15):
            with pytest.raises(PermissionDenied):
                await session.run("gpio.get", line=reserved)
        for absent in (28, "SOC28", "PIN1", "PIN27"):
            with pytest.raises(InvalidParams):
                await session.run("gpio.set", line=absent, value=1)
    assert [line_info(chip, offset).consumer for offset in (2, 17, 22)] == [None, None, "led0"]


def test_generic_linux_knows_a_raspberrys_header(header):
    name, chip = header
    board = open_board(load_profile("generic-linux"))
    (shipped,) = load_profile(name).of("gpio")
    offered = board.chips[chip.label]
    assert len(offered.lines) == 28
    assert offered.aliases == shipped.aliases
    assert offered.lines[22].reserved == "in use by 'led0' since before hearth started"
    assert board.line(chip.label, "PIN11", drive=True) == 17
    with pytest.raises(InvalidParams):
        board.line(chip.label, 28)
