"""Modbus RTU on the kernel's own serial ports: a null modem, and a USB adapter with parity that is pulled out.

The contract of a line runs on both too, against pymodbus (tests/drivers/test_contract_modbus.py). The device here is
the test itself, so that it can be late, damaged or silent at will.
"""

from __future__ import annotations

import os
import termios
import threading
import tty
from contextlib import asynccontextmanager, contextmanager

import pytest
import serial
import trio
import trio.testing
from support.modbus_server import modbus_server
from support.usb_serial import usb_serial
from support.waiting import passes

import hearth
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.modbus.codec import checked
from hearth.drivers.modbus.driver import ModbusDevice
from hearth.drivers.modbus.line import ModbusLine
from hearth.drivers.serial_port.settings import UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.errors import DeviceError, TimedOut

BOUND = 60
ONE = ModbusDevice(3, "ONE", raw="rw")
SPEED = {"name": "speed", "reg": 10, "scale": 0.1, "unit": "hertz", "min": 0, "max": 50}
TEMPERATURE = {"name": "temperature", "table": "input", "reg": 20, "unit": "celsius", "sensor": "motor"}


def value(number):
    return checked(bytes((3, 3, 2)) + number.to_bytes(2, "big"))


class Device:
    """A device at the other end of the null modem. `answers` has what it says to each request, in order."""

    def __init__(self, port):
        self.port = port
        self.answers = []
        self.asked = threading.Semaphore(0)
        self.requests = []

    def run(self):
        while request := self.port.read(8):
            self.requests.append(request)
            self.asked.release()
            for part in self.answers.pop(0) if self.answers else ():
                if callable(part):
                    part()
                else:
                    self.port.write(part)


@pytest.fixture
def device(null_modem):
    with serial.Serial(null_modem[1], 38_400, timeout=BOUND) as port:
        port.reset_input_buffer()
        made = Device(port)
        thread = threading.Thread(target=made.run, daemon=True)
        thread.start()
        yield made
        port.cancel_read()
        thread.join(BOUND)


@pytest.fixture
async def line(null_modem, device, nursery):
    made = ModbusLine("plant", LinuxUart("plant", null_modem[0], UartSettings(baud=38_400)), [ONE], timeout_s=BOUND)
    await trio.to_thread.run_sync(made.open)
    nursery.start_soon(made.pump)
    yield made
    made.close()


async def read(line):
    with trio.fail_after(BOUND):
        (number,) = await line.read(3, "holding", 0, 1)
    return number


async def test_a_request_and_its_answer_pass_over_the_null_modem(line, device):
    device.answers = [[value(7)], [value(8)]]
    assert await read(line) == 7
    assert await read(line) == 8
    assert device.requests == [checked(b"\x03\x03\0\0\0\1")] * 2


async def test_a_late_answer_on_the_wire_is_not_taken_for_the_next_one(line, device):
    line._timeout_s = 0.1
    line._late_s = BOUND
    late = threading.Event()
    device.answers = [[lambda: late.wait(BOUND), value(111)], [value(222)]]
    with pytest.raises(TimedOut):
        await read(line)
    line._timeout_s = BOUND
    answers = []

    async def ask():
        answers.append(await read(line))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert len(device.requests) == 1, "the next request waits for the answer that is owed"
        late.set()
    assert answers == [222]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([b"\0" + value(7)[:-1]], "unit 0, or noise"),
        ([value(7)[:-1] + b"\0"], "checksum is wrong"),
        ([b"\xff" * 300], "unit 255"),
        ([checked(b"\3\x83\2")], "exception 2"),
    ],
)
async def test_a_wrong_answer_is_an_error_and_the_next_request_gets_its_own(line, device, said, why):
    line._late_s = 0.0
    line._timeout_s = 1.0
    device.answers = [said, [value(8)]]
    with pytest.raises(DeviceError, match=why) as caught:
        await read(line)
    assert caught.value.data["effect"] == "none"
    line._timeout_s = BOUND
    assert await read(line) == 8


async def test_a_write_whose_answer_is_cut_short_has_an_unknown_effect(line, device):
    line._timeout_s = 0.2
    device.answers = [[b"\3\6\0"]]
    with pytest.raises(TimedOut) as caught:
        await line.write(3, "holding", 0, [1])
    assert caught.value.data["effect"] == "unknown"


async def test_a_device_that_sends_without_end_gets_no_value_read_from_it(line, device):
    """Bytes come with the tick of the timer, and the line seems silent between: a request is sent, and noise comes."""
    line._timeout_s = 1.0
    stop = threading.Event()

    def jabber():
        while not stop.wait(0.001):
            device.port.write(b"\x55")

    thread = threading.Thread(target=jabber, daemon=True)
    thread.start()
    try:
        await passes(lambda: line.port.inbox.fed_at)
        with trio.fail_after(BOUND), pytest.raises(DeviceError, match=r"never silent|or noise") as caught:
            await read(line)
        assert caught.value.data["effect"] == "none"
    finally:
        stop.set()
        thread.join(BOUND)


async def test_parity_that_the_port_does_not_have_is_refused_by_name(null_modem):
    line = ModbusLine("plant", LinuxUart("plant", null_modem[0], UartSettings(baud=38_400, parity="even")), [ONE])
    with pytest.raises(DeviceError, match="parity = even"):
        await trio.to_thread.run_sync(line.open)


# --- through the runtime, over USB ------------------------------------------------------------------------------------


@pytest.fixture
def adapter(tmp_path):
    with usb_serial(tmp_path) as made:
        yield made


@asynccontextmanager
async def session(path, **more):
    """A session on a board with a line on this port."""
    device = {"unit": 3, "name": "DRIVE", "registers": [SPEED, TEMPERATURE]}
    spec = {"line": "plant", "driver": "rtu", "path": path, "late_ms": 50, "device": [device], **more}
    board = open_board(parse_profile({"name": "b", "description": "a board", "modbus": [spec]}, "a test"))
    with trio.fail_after(BOUND):
        async with hearth.open_runtime(board=board) as runtime, runtime.open_session(client_name="c") as opened:
            yield opened


@contextmanager
def inside(adapter):
    """The inside of the adapter, which the kernel lets go only when it is not open anywhere."""
    fd = os.open(adapter.device, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    tty.setraw(fd, termios.TCSANOW)
    try:
        yield fd
    finally:
        os.close(fd)


def parity_of(path):
    """The parity flags of a port that hearth has open, exclusively: root may open it all the same."""
    fd = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        return termios.tcgetattr(fd)[2] & (termios.PARENB | termios.PARODD)
    finally:
        os.close(fd)


async def bus_state(session, state):
    while True:
        bus = (await session.run("hw.board"))["health"]["buses"]["modbus:plant"]
        if bus["state"] == state:
            return bus
        await trio.sleep(0.02)


async def asked(fd):
    """Wait until a request has come out of the adapter."""
    await trio.lowlevel.wait_readable(fd)
    return os.read(fd, 256)


async def test_registers_are_read_and_written_by_name_over_usb_with_even_parity(adapter):
    with modbus_server("rtu", adapter.device, "19200", "N"):
        async with session(adapter.path) as opened:
            assert (await opened.run("modbus.write", device="DRIVE", name="speed", value=12.3))["value"] == 12.3
            assert (await opened.run("modbus.read", device="DRIVE", name="speed"))["value"] == 12.3
            assert (await opened.run("hw.sensor.read", sensor="motor"))["value"] == 20
            assert parity_of(adapter.path) == termios.PARENB


@pytest.mark.parametrize(("tool", "more", "effect"), [("read", {}, "none"), ("write", {"value": 1}, "unknown")])
async def test_unplugged_in_mid_transfer_the_step_fails_with_its_effect_and_the_bus_comes_back(
    adapter, tool, more, effect
):
    failures = []
    async with session(adapter.path, timeout_ms=30_000) as opened:
        await bus_state(opened, "ready")

        async def run():
            with pytest.raises(DeviceError, match="is it still plugged in") as caught:
                await opened.run(f"modbus.{tool}", device="DRIVE", name="speed", **more)
            failures.append(caught.value.data)

        with inside(adapter) as fd:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await asked(fd)
                if tool == "write":  # the read of the former value is answered
                    os.write(fd, value(5))
                    assert (await asked(fd))[1] == 6
                await trio.to_thread.run_sync(adapter.unplug)
        assert (failures[0]["effect"], failures[0]["line"], failures[0]["device"]) == (effect, "plant", "DRIVE")
        await bus_state(opened, "down")
        with pytest.raises(DeviceError) as caught:
            await opened.run("modbus.read", device="DRIVE", name="speed")
        assert caught.value.data["effect"] == "none"
        adapter.plug()
        await bus_state(opened, "ready")
        with modbus_server("rtu", adapter.device, "19200", "N"):
            assert (await opened.run("modbus.read", device="DRIVE", name="speed"))["value"] == 0
