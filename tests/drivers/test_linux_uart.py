"""What a Linux port says of a terminal that cannot be used, on pseudo-terminals, which any machine has.

Devices with lines, breaks, an unplugging and another user's rights are in the guest: tests/hardware/test_uart_*.py.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
import threading
import time
import tty

import pytest
import trio
import trio.testing

from hearth.actors.bus.actor import Bus
from hearth.drivers.linux.device_users import Holder, holders
from hearth.drivers.serial_port import tty as uart
from hearth.drivers.serial_port.settings import UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.errors import DeviceError, ResourceBusy

TIOCGEXCL = 0x80045440
"""asm-generic/ioctls.h; Python has no name for it."""


@pytest.fixture
def terminal():
    """A pseudo-terminal's path, and the descriptor of its far end."""
    far, near = os.openpty()
    tty.setraw(near)
    path = os.ttyname(near)
    yield path, far
    os.close(near)
    os.close(far)


def refused(path, kind=DeviceError, **settings):
    with pytest.raises(kind) as caught:
        LinuxUart("arm", path, UartSettings(**settings)).open()
    assert caught.value.data["effect"] == "none"
    return caught.value


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"parity": "odd"}, {"setting": "parity", "wanted": "odd", "found": "none"}),
        ({"bits": 7}, {"setting": "bits", "wanted": 7, "found": 8}),
    ],
)
def test_a_setting_that_cannot_be_had_is_named_with_what_there_is_instead(terminal, settings, found):
    for _ in range(2):
        error = refused(terminal[0], **settings)
        assert found in error.data["refused"]
        assert f"does not do {found['setting']} = {found['wanted']} (it stays at {found['found']})" in error.message


def test_a_port_that_was_refused_is_open_to_others_again(terminal):
    refused(terminal[0], bits=7)
    other = os.open(terminal[0], os.O_RDWR | os.O_NOCTTY)
    try:
        # What keeps out everybody but root; a test by root must ask for it.
        assert struct.unpack("=i", fcntl.ioctl(other, TIOCGEXCL, bytes(4))) == (0,)
    finally:
        os.close(other)


def test_a_rate_need_not_be_one_of_the_usual_ones(terminal):
    port = LinuxUart("arm", terminal[0], UartSettings(baud=12_345))
    port.open()
    assert uart.refusals(port._fd, UartSettings(baud=12_345)) == []
    assert [one.setting for one in uart.refusals(port._fd, UartSettings(baud=19_200))] == ["baud"]
    port.close()


def test_a_port_that_is_locked_names_its_holder(terminal):
    other = os.open(terminal[0], os.O_RDWR | os.O_NOCTTY)
    fcntl.flock(other, fcntl.LOCK_EX)
    error = refused(terminal[0], ResourceBusy)
    os.close(other)
    assert {"pid": os.getpid(), "name": holders(terminal[0])[0].name} in error.data["holders"]
    assert f"(pid {os.getpid()})" in error.message


def test_a_port_that_is_open_without_a_lock_is_not_touched(terminal):
    code = "import os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY); print(flush=True); sys.stdin.read()"
    before = termios.tcgetattr(terminal[1])
    with subprocess.Popen(
        [sys.executable, "-c", code, terminal[0]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        error = refused(terminal[0], ResourceBusy, baud=9600)
        other.stdin.close()
    assert f"(pid {other.pid})" in error.message
    assert termios.tcgetattr(terminal[1]) == before


def test_a_login_console_is_told_how_to_be_freed(terminal, monkeypatch):
    monkeypatch.setattr("hearth.drivers.serial_port.tty.holders", lambda path: [Holder(1, "agetty")])
    assert "systemctl stop serial-getty@" in refused(terminal[0], ResourceBusy).message


def test_while_the_port_is_open_the_terminal_is_exclusive_and_afterwards_it_is_not(terminal):
    port = LinuxUart("arm", terminal[0], UartSettings())
    port.open()
    mine = port._fd
    taken = fcntl.ioctl(mine, 0x80045440, bytes(4))  # TIOCGEXCL
    other = os.open(os.devnull, os.O_RDONLY)
    os.close(other)
    port.close()
    free = os.open(terminal[0], os.O_RDWR | os.O_NOCTTY)
    left = fcntl.ioctl(free, 0x80045440, bytes(4))
    os.close(free)
    assert (int.from_bytes(taken, "little"), int.from_bytes(left, "little")) == (1, 0)


async def test_nothing_to_read_is_not_the_end_of_the_device(terminal, nursery):
    """What is pulled before a read that ends with a gap leaves the pump with a wake-up and no bytes."""
    port = LinuxUart("arm", terminal[0], UartSettings())
    port.open()
    with pytest.raises(BlockingIOError):
        os.read(port._fd, 1)
    nursery.start_soon(port.pump)
    for _ in range(50):
        os.write(terminal[1], b"xyz")
        await trio.lowlevel.checkpoint()
        taken = await port.take(None, None, gap_s=0.0)
        while not taken.complete:
            await taken.inbox.wait(None, None)
            taken = await port.take(None, None, gap_s=0.0)
    port.close()


@pytest.mark.slow
async def test_a_process_that_was_busy_for_longer_than_the_gap_does_not_cut_a_message_in_two(terminal, nursery):
    port, gap_s = LinuxUart("arm", terminal[0], UartSettings()), 0.1
    port.open()
    nursery.start_soon(port.pump)
    got = []

    async def read():
        taken = await port.take(None, None, gap_s=gap_s)
        while not taken.complete:
            await taken.inbox.wait(None, None, gap_s)
            taken = await port.take(None, None, gap_s=gap_s)
        got.append(taken.data)

    async with trio.open_nursery() as inner:
        inner.start_soon(read)
        os.write(terminal[1], b"first ")
        await port._inbox.wait(6, None)
        os.write(terminal[1], b"and second half")
        time.sleep(2 * gap_s)  # noqa: ASYNC251  the loop stands still: that is the point
    assert got == [b"first and second half"]
    port.close()


async def test_a_far_end_that_goes_ends_the_pump(terminal):
    far, near = os.openpty()
    tty.setraw(near)
    port = LinuxUart("arm", os.ttyname(near), UartSettings())
    port.open()
    os.close(near)
    os.close(far)
    with trio.fail_after(60), pytest.raises(DeviceError, match="is it still plugged in"):
        await port.pump()
    port.close()


def test_a_terminal_that_has_gone_is_not_there(terminal):
    assert "there is no /dev/pts/99999: is the device plugged in? `ls /dev` shows" in refused("/dev/pts/99999").message


def test_what_is_no_terminal_is_not_opened(tmp_path):
    file = tmp_path / "file"
    file.touch()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in ("/dev/null", str(file), str(fifo)):
        assert "is not a serial port" in refused(path).message
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be looked at" in refused(str(tmp_path / "loop")).message


def test_low_latency_is_refused_where_there_is_none(terminal):
    assert "has no low-latency mode: take low_latency out" in refused(terminal[0], low_latency=True).message


def test_low_latency_is_asked_for_and_read_back(monkeypatch):
    """struct serial_struct of linux/serial.h has `flags` behind four ints; no pseudo-terminal has the ioctl."""
    port = {"info": bytes(16) + (0x10).to_bytes(4, "little") + bytes(108), "takes": True}

    def ioctl(_fd, request, argument):
        if request == 0x541F and port["takes"]:
            port["info"] = argument
        return port["info"]

    monkeypatch.setattr(uart.fcntl, "ioctl", ioctl)
    assert uart.lower_latency(9)
    assert port["info"][16:20] == (0x2010).to_bytes(4, "little"), "the other flags stay"
    port.update(info=bytes(128), takes=False)
    assert not uart.lower_latency(9), "a driver may take the setting and leave it off"


def test_rs485_is_refused_where_there_is_none(terminal):
    assert "has no RS-485 mode" in refused(terminal[0], rs485=True).message


def test_an_opening_that_failed_leaves_nothing_open(terminal):
    before = len(os.listdir("/proc/self/fd"))
    for settings in ({"rs485": True}, {"parity": "even"}):
        refused(terminal[0], **settings)
    assert len(os.listdir("/proc/self/fd")) == before
    port = LinuxUart("arm", terminal[0], UartSettings())
    for _ in range(3):
        port.open()
        port.close()
        port.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_without_a_holder_has_none():
    assert holders("/dev/no-such-device") == []


def test_a_process_that_ends_while_it_is_looked_at_has_nothing_open(tmp_path):
    process = tmp_path / "7"
    process.mkdir()
    assert holders(os.devnull, proc=tmp_path) == []
    (process / "fd").mkdir()
    (process / "fd" / "3").symlink_to("/dev/gone")
    (process / "fd" / "4").symlink_to(os.devnull)
    assert holders(os.devnull, proc=tmp_path) == [Holder(7, "a process")]


@pytest.mark.slow
def test_a_pseudo_terminal_counts_no_errors_and_has_no_lines(terminal):
    port = LinuxUart("arm", terminal[0], UartSettings())
    port.open()
    assert uart.line_errors(port._fd) is None
    assert "errors" not in port.describe()
    assert uart.unsent(port._fd) == 0
    port.close()


async def test_an_opening_that_takes_its_time_keeps_no_other_waiting(terminal):
    """A USB device may take seconds to answer; the loop that serves all other buses must go on."""
    hold = threading.Event()

    class Slow(LinuxUart):
        def open(self):
            assert hold.wait(60)
            super().open()

    bus = Bus("uart:arm", Slow("arm", terminal[0], UartSettings()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bus.run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert bus.state == "opening"
        hold.set()
        while bus.state != "ready":  # noqa: ASYNC110  a bus tells its state, not its changes
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
