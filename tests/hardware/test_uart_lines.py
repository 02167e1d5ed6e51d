"""RTS, DTR, the lines that come in, and breaks: on a USB adapter of the kernel's, and on ports that have none of them.

A second descriptor shows what the kernel has of the lines; the adapter's inside raises DSR and CD while somebody has it
open.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from contextlib import contextmanager

import pytest
import trio
from support import guarded
from support.usb_serial import usb_serial, wait_until

import hearth
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.serial_port.settings import MODEM_LINES, ModemLines, UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.errors import DeviceError, TimedOut


@pytest.fixture
def adapter(tmp_path):
    with usb_serial(tmp_path) as made:
        yield made


@contextmanager
def opened(path, **settings):
    port = LinuxUart("arm", path, UartSettings(**settings))
    port.open()
    try:
        yield port
    finally:
        port.close()


def bits(fd):
    return struct.unpack("=I", fcntl.ioctl(fd, termios.TIOCMGET, bytes(4)))[0]


def shown(port):
    """RTS and DTR as the kernel has them."""
    return bool(bits(port._fd) & termios.TIOCM_RTS), bool(bits(port._fd) & termios.TIOCM_DTR)


@pytest.mark.parametrize("rts", [True, False])
@pytest.mark.parametrize("dtr", [True, False])
async def test_at_open_rts_and_dtr_get_the_levels_of_the_settings(adapter, rts, dtr):
    with opened(adapter.path, rts=rts, dtr=dtr) as port:
        assert shown(port) == (rts, dtr)


async def test_rts_and_dtr_are_driven_one_by_one_and_told(adapter):
    with opened(adapter.path) as port:
        lines = await port.control(rts=False)
        assert (lines.rts, lines.dtr) == shown(port) == (False, True)
        lines = await port.control(dtr=False)
        assert (lines.rts, lines.dtr) == shown(port) == (False, False)
        lines = await port.control(rts=True, dtr=True)
        assert (lines.rts, lines.dtr) == shown(port) == (True, True)


async def test_lines_that_come_in_follow_the_other_side(adapter):
    with opened(adapter.path) as port:
        before = await port.control()
        other = os.open(adapter.device, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            wait_until("the other side is seen", lambda: bits(port._fd) & termios.TIOCM_CAR)
            there = await port.control()
        finally:
            os.close(other)  # the kernel lets the adapter go only then
        wait_until("the other side is gone", lambda: not bits(port._fd) & termios.TIOCM_CAR)
        after = await port.control()
    assert (before.dsr, before.cd) == (after.dsr, after.cd) == (False, False)
    assert (there.dsr, there.cd) == (True, True)
    assert there.ri is False


async def test_a_port_without_lines_tells_null_and_refuses_to_drive_them(null_modem):
    with opened(null_modem[0], baud=38_400) as port:
        assert await port.control() == ModemLines()
        with pytest.raises(DeviceError, match="RTS and DTR cannot be set") as caught:
            await port.control(rts=True)
        assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "ENOTTY")
        assert "RTS and DTR cannot be set" in (await guarded.port(port).make_safe([MODEM_LINES]))[0]["error"]


async def test_rts_belongs_to_flow_control_where_there_is_some(adapter):
    with opened(adapter.path, flow="rtscts") as port:
        with pytest.raises(DeviceError, match="RTS belongs to flow control") as caught:
            await port.control(rts=False)
        assert caught.value.data["effect"] == "none"
        assert (await port.control(dtr=False)).dtr is False
        assert await guarded.port(port).make_safe([MODEM_LINES]) == [{"port": "arm", "safe": {"dtr": True}}]
        assert shown(port)[1] is True


async def test_a_break_that_the_device_cannot_send_is_an_error_without_effect(adapter):
    with opened(adapter.path) as port, pytest.raises(DeviceError, match="no break was sent") as caught:
        await port.control(break_s=0.01)
    assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "ENOTSUP")


async def test_a_break_takes_its_time_and_leaves_the_port_usable(null_modem):
    with opened(null_modem[0], baud=38_400) as port:
        start = trio.current_time()
        await port.control(break_s=0.1)
        assert 0.1 <= trio.current_time() - start < 5
        with opened(null_modem[1], baud=38_400) as other:
            await port.write(b"x", timeout_s=5)
            await trio.lowlevel.wait_readable(other._fd)
            assert os.read(other._fd, 10) == b"x"


async def test_a_break_behind_output_that_does_not_leave_is_refused_while_others_go_on(adapter, autojump_clock):
    """The kernel would wait for that output in the ioctl itself, for ever; the clock jumps over our own wait."""
    with opened(adapter.path) as port:
        await port.write(b"stuck", timeout_s=5)
        turns = 0

        async def others():
            nonlocal turns
            while True:
                await trio.sleep(0.1)
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            with pytest.raises(TimedOut, match="no break was sent: output is still there") as caught:
                await port.control(break_s=0.1)
            nursery.cancel_scope.cancel()
        assert caught.value.data["effect"] == "none"
        assert turns > 5
        adapter.unplug()


async def test_lines_that_a_session_drove_go_back_to_the_settings_when_it_ends(adapter):
    spec = {"port": "arm", "driver": "serial", "path": adapter.path, "dtr": False}
    board = open_board(parse_profile({"name": "b", "description": "a board", "uart": [spec]}, "a test"))
    look = os.open(adapter.path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)

    def levels():
        return bool(bits(look) & termios.TIOCM_RTS), bool(bits(look) & termios.TIOCM_DTR)

    async with hearth.open_runtime(board=board) as runtime:
        async with runtime.open_session(client_name="one") as session:
            result = await session.run("uart.control", port="arm", rts=False, dtr=True)
            assert (result["port"], result["rts"], result["dtr"]) == ("arm", False, True)
            assert levels() == (False, True)
        assert levels() == (True, False)
    os.close(look)


@pytest.mark.parametrize("hangup", [True, False])
def test_at_close_the_lines_fall_or_stay_as_the_settings_say(adapter, hangup):
    """What the kernel would do at the last close is told by HUPCL; a second opening shows that it is kept."""
    with opened(adapter.path, hangup=hangup):
        pass
    fd = os.open(adapter.path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    cflag = termios.tcgetattr(fd)[2]
    os.close(fd)
    assert bool(cflag & termios.HUPCL) is hangup
