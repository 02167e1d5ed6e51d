"""What becomes of bytes when the other side does not take them, or nobody reads them: on a USB adapter of the kernel's.

The adapter's inside (`device`) is the other side: while nobody has it open it takes nothing, and the host's output
stands still, as behind a CTS that stays low.
"""

from __future__ import annotations

import fcntl
import os
import termios
import time
import tty

import pytest
import trio
import trio.testing
from support.usb_serial import usb_serial

from hearth.actors.bus.actor import Bus
from hearth.actors.bus.queue import Requester, Ticket
from hearth.drivers.serial_port.settings import UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.errors import TimedOut

ME = Requester("session", "task", "me")


@pytest.fixture
def adapter(tmp_path):
    with usb_serial(tmp_path) as made:
        yield made


class OtherSide:
    """The instrument in the adapter: bytes in and out, when a test says so.

    A context manager, because the kernel lets an adapter go only when nobody has this side of it open.
    """

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        # At once: its default flushes what has come since it was opened.
        tty.setraw(self.fd, termios.TCSANOW)

    async def read(self, size):
        got = bytearray()
        while len(got) < size:
            await trio.lowlevel.wait_readable(self.fd)
            got += os.read(self.fd, 65536)
        return bytes(got)

    async def write(self, data):
        rest = memoryview(data)
        while rest:
            await trio.lowlevel.wait_writable(self.fd)
            rest = rest[os.write(self.fd, rest) :]

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        trio.lowlevel.notify_closing(self.fd)
        os.close(self.fd)


@pytest.fixture
async def other_side(adapter):
    with OtherSide(adapter.device) as made:
        yield made


def let_go(adapter):
    """Let the output that stands still go, so that closing the port need not wait for it."""
    with OtherSide(adapter.device):
        pass


def unsent(port):
    return int.from_bytes(fcntl.ioctl(port._fd, termios.TIOCOUTQ, bytes(4)), "little")


async def opened(port, nursery):
    port.open()
    nursery.start_soon(port.pump)


async def test_a_write_ends_when_the_kernel_has_all_of_it_and_with_drain_when_it_has_left(adapter, nursery):
    port = LinuxUart("arm", adapter.path, UartSettings())
    await opened(port, nursery)
    assert await port.write(b"taken", timeout_s=10) == 5
    assert unsent(port)
    done = trio.Event()

    async def drained():
        assert await port.write(b" and gone", timeout_s=20, drain=True) == 9
        done.set()

    nursery.start_soon(drained)
    await trio.sleep(0.05)
    assert not done.is_set()
    with OtherSide(adapter.device) as other:
        assert await other.read(14) == b"taken and gone"
        await done.wait()
        assert not unsent(port)
    port.close()


async def test_output_that_does_not_leave_ends_a_draining_write_with_what_was_taken(adapter, nursery):
    port = LinuxUart("arm", adapter.path, UartSettings())
    await opened(port, nursery)
    with trio.fail_after(60), pytest.raises(TimedOut, match="flow control") as caught:
        await port.write(b"stuck", timeout_s=0.05, drain=True)
    assert (caught.value.data["taken"], caught.value.data["effect"]) == (5, "unknown")
    assert caught.value.data["unsent"] > 0
    let_go(adapter)
    port.close()


async def test_a_write_that_is_taken_in_part_says_how_much(adapter, nursery):
    port = LinuxUart("arm", adapter.path, UartSettings())
    await opened(port, nursery)
    with trio.fail_after(60), pytest.raises(TimedOut) as caught:
        await port.write(bytes(1_000_000), timeout_s=0.2)
    assert 0 < caught.value.data["taken"] < 1_000_000
    assert caught.value.data["effect"] == "unknown"
    with trio.fail_after(60), pytest.raises(TimedOut) as caught:
        await port.write(b"x", timeout_s=0.05)
    assert (caught.value.data["taken"], caught.value.data["effect"]) == (0, "none")
    taken = 0
    with OtherSide(adapter.device) as other, trio.move_on_after(0.5):
        while True:
            await trio.lowlevel.wait_readable(other.fd)
            taken += len(os.read(other.fd, 65536))
    port.close()
    assert taken > 0


class Ticker:
    """Counts the turns of the loop: what stalls it would stop the count."""

    def __init__(self):
        self.longest = 0.0

    async def run(self):
        last = time.perf_counter()
        while True:
            await trio.sleep(0.005)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now


async def test_closing_with_output_that_does_not_leave_stalls_no_other_and_ends(adapter):
    """The kernel keeps the caller of close(2) waiting for up to 30 s."""
    port = LinuxUart("arm", adapter.path, UartSettings())
    bus, ticker = Bus("uart:arm", port), Ticker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ticker.run)
        async with trio.open_nursery() as life:
            await life.start(bus.run)
            ticket = bus.request(Ticket(lambda d: d.write(b"stuck", timeout_s=5), ME, limit=10, risk=1))
            assert await ticket.get() == 5
            before = time.perf_counter()
            life.cancel_scope.cancel()
        took = time.perf_counter() - before
        nursery.cancel_scope.cancel()
    assert took > 1, "the output was given its time to leave"
    assert ticker.longest < 1
    let_go(adapter)


async def test_what_was_written_before_the_end_still_leaves(adapter):
    port = LinuxUart("arm", adapter.path, UartSettings())
    bus = Bus("uart:arm", port)
    got = []

    async def late_reader():
        await trio.sleep(0.3)
        with OtherSide(adapter.device) as other:
            got.append(await other.read(10))

    async with trio.open_nursery() as nursery, trio.open_nursery() as life:
        await life.start(bus.run)
        await bus.request(Ticket(lambda d: d.write(b"last words", timeout_s=5), ME, limit=10, risk=1)).get()
        nursery.start_soon(late_reader)
        life.cancel_scope.cancel()
    assert got == [b"last words"]


async def test_without_flow_control_unread_bytes_are_dropped_and_counted(adapter, other_side, nursery):
    port = LinuxUart("arm", adapter.path, UartSettings(inbox_bytes=4096))
    await opened(port, nursery)
    data = bytes(range(250)) * 100
    await other_side.write(data)
    await port._inbox._wakeup.until(lambda: port._inbox.lost == len(data) - 4096)
    taken = await port.take(4096, None)
    assert taken.overflow == len(data) - 4096
    assert taken.data == data[-4096:]
    port.close()


@pytest.mark.parametrize("flow", ["rtscts", "xonxoff"])
async def test_with_flow_control_unread_bytes_wait_where_they_are(adapter, other_side, nursery, flow):
    port = LinuxUart("arm", adapter.path, UartSettings(inbox_bytes=4096, flow=flow))
    await opened(port, nursery)
    data = bytes(range(0x20, 0x7F)) * 3000
    got = bytearray()
    nursery.start_soon(other_side.write, data)
    await port._inbox._wakeup.until(lambda: not port._inbox.room)
    await trio.testing.wait_all_tasks_blocked(0.2)
    while len(got) < len(data):
        taken = await port.take(None, None)
        assert not taken.overflow
        got += taken.data
        if not taken.complete:
            await taken.inbox.wait(None, None)
    assert bytes(got) == data
    port.close()


async def test_an_exchange_drops_what_is_still_in_the_kernel_too(adapter, other_side, nursery):
    port = LinuxUart("arm", adapter.path, UartSettings())
    port.open()  # and no pump yet
    await other_side.write(b"stale\n")
    await trio.lowlevel.wait_readable(port._fd)

    async def answer():
        assert await other_side.read(4) == b"ask\n"
        await other_side.write(b"reply\n")

    nursery.start_soon(answer)
    async with trio.open_nursery() as inner:
        inner.start_soon(port.pump)
        reply = await port.exchange(b"ask\n", length=None, until=b"\n", timeout_s=10)
        inner.cancel_scope.cancel()
    assert (reply.data, reply.discarded) == (b"reply\n", 6)
    port.close()


async def test_a_waiting_read_and_a_write_go_on_at_the_same_time(adapter, other_side):
    port = LinuxUart("arm", adapter.path, UartSettings())
    bus = Bus("uart:arm", port)
    order, read_ended = [], trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(bus.run)

        async def read():
            taken = await bus.request(Ticket(lambda d: d.take(5, None), ME, limit=5)).get()
            await taken.inbox.wait(5, None)
            taken = await bus.request(Ticket(lambda d: d.take(5, None), ME, limit=5)).get()
            order.append(taken.data)
            read_ended.set()

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert await bus.request(Ticket(lambda d: d.write(b"ping", timeout_s=5), ME, limit=5, risk=1)).get() == 4
        order.append(await other_side.read(4))
        await other_side.write(b"reply")
        await read_ended.wait()
        nursery.cancel_scope.cancel()
    assert order == [b"ping", b"reply"]
