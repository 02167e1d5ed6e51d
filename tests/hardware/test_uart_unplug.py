"""A USB serial adapter that is pulled out in the middle of everything, and comes back: errors, a reopened bus."""

from __future__ import annotations

import os
import termios
import tty
from base64 import b64decode, b64encode
from contextlib import contextmanager

import pytest
import trio
import trio.testing
from support.usb_serial import usb_serial

import hearth
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.serial_port.settings import UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.errors import DeviceError


@pytest.fixture
def adapter(tmp_path):
    with usb_serial(tmp_path) as made:
        yield made


@pytest.fixture
def board(adapter):
    spec = {"port": "arm", "driver": "serial", "path": adapter.path}
    return open_board(parse_profile({"name": "b", "description": "a board", "uart": [spec]}, "a test"))


@contextmanager
def other_side(adapter):
    """The inside of the adapter, which the kernel lets go only when nobody has it open."""
    fd = os.open(adapter.device, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    tty.setraw(fd, termios.TCSANOW)
    try:
        yield fd
    finally:
        os.close(fd)


async def unplugged(adapter):
    await trio.to_thread.run_sync(adapter.unplug)


async def bus_state(session, state):
    """Wait until the bus is in that state; what health says of it then."""
    while True:
        board = await session.run("hw.board")
        bus = board["health"]["buses"]["uart:arm"]
        if bus["state"] == state:
            return bus
        await trio.sleep(0.02)


async def test_unplugged_in_mid_read_the_read_fails_clearly_and_the_bus_reopens_when_it_returns(adapter, board):
    failures = []

    async def read(session):
        with pytest.raises(DeviceError, match="is it still plugged in") as caught:
            await session.run("uart.read", port="arm", len=10, timeout_ms=30_000)
        failures.append(caught.value.data)

    async with hearth.open_runtime(board=board) as runtime, runtime.open_session(client_name="c") as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, session)
            await bus_state(session, "ready")
            await unplugged(adapter)
        assert failures[0]["effect"] == "none"
        assert failures[0]["port"] == "arm"
        down = await bus_state(session, "down")
        assert "uart arm" in down["reason"]
        with pytest.raises(DeviceError, match="uart arm") as caught:
            await session.run("uart.write", port="arm", data=b64encode(b"x").decode())
        assert caught.value.data["effect"] == "none"
        adapter.plug()
        await bus_state(session, "ready")
        with other_side(adapter) as fd:
            os.write(fd, b"back again")
            read_again = await session.run("uart.read", port="arm", len=10, timeout_ms=10_000)
    assert b64decode(read_again["data"]) == b"back again"


async def test_an_adapter_that_returns_under_another_number_is_found_by_its_link(adapter, board):
    async with hearth.open_runtime(board=board) as runtime, runtime.open_session(client_name="c") as session:
        await bus_state(session, "ready")
        was = adapter.node
        holds_the_number = os.open(adapter.path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        await unplugged(adapter)
        await bus_state(session, "down")
        assert adapter.plug() != was
        await bus_state(session, "ready")
        (port,) = (await session.run("hw.uart.list"))["ports"]
        assert (port["path"], port["device"]) == (adapter.path, adapter.node)
        os.close(holds_the_number)


async def test_unplugged_in_mid_write_the_write_tells_what_was_taken(adapter, nursery):
    port = LinuxUart("arm", adapter.path, UartSettings())
    port.open()
    failures = []

    async def pump():
        with pytest.raises(DeviceError):
            await port.pump()

    async def write():
        with pytest.raises(DeviceError) as caught:
            await port.write(bytes(1_000_000), timeout_s=30)
        failures.append(caught.value.data)

    async with trio.open_nursery() as inner:
        inner.start_soon(pump)
        inner.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        await unplugged(adapter)
    assert 0 < failures[0]["taken"] < 1_000_000
    assert failures[0]["effect"] == "unknown"
    port.close()


async def test_unplugged_in_an_exchange_the_effect_is_unknown(adapter):
    port = LinuxUart("arm", adapter.path, UartSettings())
    port.open()
    failures = []

    async def pump():
        with pytest.raises(DeviceError):
            await port.pump()

    async def exchange():
        with pytest.raises(DeviceError, match="is it still plugged in") as caught:
            await port.exchange(b"?", length=1, until=None, timeout_s=30)
        failures.append(caught.value.data["effect"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump)
        nursery.start_soon(exchange)
        await trio.testing.wait_all_tasks_blocked()
        await unplugged(adapter)
    assert failures == ["unknown"]
    port.close()


async def test_unplugged_while_a_full_inbox_holds_back_the_next_write_finds_out(adapter):
    port = LinuxUart("arm", adapter.path, UartSettings(flow="rtscts", inbox_bytes=4096))
    port.open()
    ended = trio.Event()

    async def pump():
        with pytest.raises(DeviceError, match="plugged in"):
            await port.pump()
        ended.set()

    with trio.fail_after(30), other_side(adapter) as fd:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump)
            os.write(fd, bytes(5000))
            await port._inbox._wakeup.until(lambda: not port._inbox.room)
            await unplugged(adapter)
            with pytest.raises(DeviceError, match="plugged in"):
                await port.write(b"x", timeout_s=5)
            await ended.wait()
    port.close()


async def test_operations_on_lines_of_an_adapter_that_is_gone_say_so(adapter):
    port = LinuxUart("arm", adapter.path, UartSettings())
    port.open()
    await unplugged(adapter)
    for call in (port.control, lambda: port.control(rts=True), lambda: port.control(break_s=0.01)):
        with pytest.raises(DeviceError, match=r"plugged in|cannot be set|no break"):
            await call()
    port.close()
