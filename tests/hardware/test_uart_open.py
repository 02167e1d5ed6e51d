"""How a serial port is opened, and what is said of one that cannot be, on the kernel's own ttys."""

from __future__ import annotations

import fcntl
import grp
import os
import subprocess
import sys
import termios
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from support.usb_serial import usb_serial

from hearth.drivers.serial_port.settings import Rs485, UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.errors import DeviceError, ResourceBusy

NEAR = UartSettings(baud=38_400)
STICK = 0o10000000000
"""CMSPAR: the parity bit is always the same. Python's termios does not know it."""


@pytest.fixture
def adapter(tmp_path):
    with usb_serial(tmp_path) as made:
        yield made


@contextmanager
def process(code, *args):
    """Another process, at work when this returns: it has printed a line."""
    command = [sys.executable, "-c", code, *args]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "ready\n"
            yield other
        finally:
            other.stdin.close()


def said_as_nobody(code, *args):
    """What a program prints that is nobody once it has what it needs of root's files."""
    become = """
import grp, os, pwd, serial, serial.rs485, sys
import hearth.drivers.serial_port.tty, hearth.drivers.serial_port.settings
os.setgroups([])
os.setgid(pwd.getpwnam("nobody").pw_gid)
os.setuid(pwd.getpwnam("nobody").pw_uid)
"""
    command = [sys.executable, "-c", become + code, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


LOCKED = """
import serial, sys
port = serial.Serial(sys.argv[1], int(sys.argv[2]), exclusive=True)
print("ready", flush=True)
sys.stdin.read()
"""
OPEN = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
print("ready", flush=True)
sys.stdin.read()
"""


def refused(path, settings=NEAR, kind=DeviceError):
    with pytest.raises(kind) as caught:
        LinuxUart("arm", path, settings).open()
    assert caught.value.data["effect"] == "none"
    assert caught.value.data["port"] == "arm"
    assert caught.value.message.startswith(f"uart arm: {path}")
    return caught.value


@pytest.mark.parametrize("code", [LOCKED, OPEN], ids=["locked", "without a lock"])
def test_a_port_that_another_process_has_open_is_busy_and_the_holder_is_named(null_modem, code):
    with process(code, null_modem[0], "38400") as other:
        error = refused(null_modem[0], kind=ResourceBusy)
        assert f"(pid {other.pid})" in error.message
        assert error.data["holders"] == [{"pid": other.pid, "name": Path(sys.executable).name}]
        assert error.data["errno"] == "EBUSY"
    port = LinuxUart("arm", null_modem[0], NEAR)
    port.open()
    port.close()


def test_the_same_port_under_two_names_of_one_board_is_busy(null_modem):
    first = LinuxUart("one", null_modem[0], NEAR)
    first.open()
    try:
        error = refused(null_modem[0], kind=ResourceBusy)
        assert f"(pid {os.getpid()})" in error.message
    finally:
        first.close()


TRY = """
try:
    os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    print("open")
except OSError as error:
    print(error.strerror)
"""


def test_while_it_is_open_other_users_cannot_open_it_and_afterwards_they_can(null_modem):
    os.chmod(null_modem[0], 0o666)
    port = LinuxUart("arm", null_modem[0], NEAR)
    port.open()
    assert said_as_nobody(TRY, null_modem[0]) == "Device or resource busy"
    port.close()
    assert said_as_nobody(TRY, null_modem[0]) == "open"
    os.chmod(null_modem[0], 0o600)


ASK = """
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.drivers.serial_port.settings import UartSettings
from hearth.errors import DeviceError
try:
    LinuxUart("arm", sys.argv[1], UartSettings(baud=38_400)).open()
except DeviceError as error:
    print(error.data["errno"], error.data["effect"], error.message)
"""


@pytest.mark.parametrize(
    ("group", "mode", "cure"),
    [
        ("dialout", 0o660, "it belongs to the group dialout: `sudo usermod -aG dialout nobody`, then log in again"),
        (
            "root",
            0o600,
            'a udev rule must give it to a group (GROUP="dialout", MODE="0660"); `sudo usermod -aG dialout nobody`',
        ),
    ],
)
def test_a_port_without_permission_names_the_group_and_the_command(null_modem, group, mode, cure):
    path = null_modem[0]
    os.chown(path, 0, grp.getgrnam(group).gr_gid)
    os.chmod(path, mode)
    try:
        expected = f"EACCES none uart arm: no permission to open {path}: {cure}"
        assert said_as_nobody(ASK, path) == expected
    finally:
        os.chown(path, 0, 0)
        os.chmod(path, 0o600)


@pytest.mark.parametrize("times", [1, 2])
def test_a_rate_that_the_device_refuses_is_an_error_that_names_it_each_time(null_modem, times):
    for _ in range(times):
        error = refused(null_modem[0], UartSettings(baud=115_200))
        assert "does not do baud = 115200 (it stays at 38400)" in error.message
    assert error.data["refused"] == [{"setting": "baud", "wanted": 115_200, "found": 38_400}]


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"parity": "even"}, "parity"),
        ({"parity": "mark"}, "parity"),
        ({"bits": 7}, "bits"),
        ({"stop_bits": 2}, "stop_bits"),
        ({"flow": "rtscts"}, "flow"),
    ],
)
def test_a_setting_that_the_device_refuses_is_an_error_that_names_it(null_modem, settings, setting):
    error = refused(null_modem[0], UartSettings(baud=38_400, **settings))
    assert [entry["setting"] for entry in error.data["refused"]] == [setting]


@pytest.mark.parametrize(
    ("settings", "cflag"),
    [
        ({"parity": "none"}, termios.CS8),
        ({"parity": "even", "bits": 7}, termios.CS7 | termios.PARENB),
        ({"parity": "odd", "bits": 6, "stop_bits": 2}, termios.CS6 | termios.PARENB | termios.PARODD | termios.CSTOPB),
        ({"parity": "mark"}, termios.CS8 | termios.PARENB | termios.PARODD | STICK),
        ({"parity": "space", "bits": 5, "stop_bits": 1.5}, termios.CS5 | termios.PARENB | STICK | termios.CSTOPB),
        ({"flow": "rtscts"}, termios.CS8 | termios.CRTSCTS),
        ({"baud": 12_345}, termios.CS8),
        ({"baud": 250_000}, termios.CS8),
        ({"hangup": False}, termios.CS8),
    ],
    ids=repr,
)
def test_settings_reach_the_kernel(adapter, settings, cflag):
    wanted = UartSettings(**settings)
    port = LinuxUart("arm", adapter.path, wanted)
    port.open()
    found = termios.tcgetattr(port._fd)
    rate = fcntl.ioctl(port._fd, 0x802C542A, bytes(44))
    port.close()
    mask = termios.CSIZE | termios.PARENB | termios.PARODD | STICK | termios.CSTOPB | termios.CRTSCTS
    assert found[2] & mask == cflag
    assert bool(found[2] & termios.HUPCL) is wanted.hangup
    assert int.from_bytes(rate[40:44], "little") == wanted.baud
    assert found[3] & (termios.ICANON | termios.ECHO | termios.ISIG) == 0


def test_software_flow_control_reaches_the_kernel(adapter):
    port = LinuxUart("arm", adapter.path, UartSettings(flow="xonxoff"))
    port.open()
    iflag = termios.tcgetattr(port._fd)[0]
    port.close()
    assert iflag & (termios.IXON | termios.IXOFF) == termios.IXON | termios.IXOFF


@pytest.mark.parametrize("rs485", [True, Rs485(rts_on_send=False, before_ms=2, after_ms=3, loopback=True)])
def test_a_device_without_rs485_is_refused_at_open_with_the_cure(adapter, null_modem, rs485):
    for path, baud in ((adapter.path, 115_200), (null_modem[0], 38_400)):
        error = refused(path, UartSettings(baud=baud, rs485=rs485))
        assert "has no RS-485 mode: take rs485 out of the board profile" in error.message
        assert error.data["errno"] == "ENOTTY"


def test_a_port_that_is_not_there_or_is_none_says_so(tmp_path):
    with pytest.raises(DeviceError, match=r"there is no /dev/serial/by-id/gps: .*`ls /dev/serial/by-id`") as caught:
        LinuxUart("gps", "/dev/serial/by-id/gps", NEAR).open()
    assert caught.value.data == {"effect": "none", "port": "gps", "errno": "ENOENT"}
    file = tmp_path / "file"
    file.touch()
    for path in ("/dev/null", str(file)):
        assert "is not a serial port" in refused(path).message


async def test_a_port_without_a_carrier_opens_at_once(adapter):
    fd = os.open(adapter.path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    attributes = termios.tcgetattr(fd)
    attributes[2] &= ~termios.CLOCAL
    termios.tcsetattr(fd, termios.TCSANOW, attributes)
    os.close(fd)
    port = LinuxUart("arm", adapter.path, UartSettings())
    await trio.to_thread.run_sync(port.open, abandon_on_cancel=True)
    lines = await port.control()
    port.close()
    assert lines.cd is False


def test_nothing_stays_open_after_an_opening_that_failed(null_modem):
    before = sorted(os.listdir("/proc/self/fd"))
    for settings in (UartSettings(baud=9600), UartSettings(baud=38_400, rs485=True)):
        refused(null_modem[0], settings)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_describe_tells_the_device_behind_a_link_and_its_settings(adapter):
    port = LinuxUart("arm", adapter.path, UartSettings(baud=9600, parity="odd"))
    assert port.describe()["device"] is None
    port.open()
    described = port.describe()
    port.close()
    assert described == {
        "kind": "uart",
        "driver": "serial",
        "port": "arm",
        "path": adapter.path,
        "device": adapter.node,
        "baud": 9600,
        "bits": 8,
        "parity": "odd",
        "stop_bits": 1,
        "flow": "none",
        "rs485": False,
        "errors": {"overrun": 0, "frame": 0, "parity": 0, "breaks": 0},
    }
