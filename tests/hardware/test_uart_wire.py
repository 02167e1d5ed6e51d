"""What crosses the wire: rate, parity, lines, breaks and damaged input, as a USB device of our own sees and says."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest
import trio
from support import guarded
from support.cdc_device import BREAK, CD, DSR, FRAMING, OVERRUN, PARITY, RING, cdc_device

from hearth.drivers.serial_port.settings import UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.errors import DeviceError


@pytest.fixture
def device():
    with cdc_device() as made:
        yield made


@contextmanager
def opened(device, **settings):
    port = LinuxUart("arm", device.path, UartSettings(**settings))
    port.open()
    try:
        yield port
    finally:
        port.close()


@pytest.mark.parametrize(
    ("settings", "coding"),
    [
        ({}, [115_200, 8, "N", 1]),
        ({"baud": 12_345, "parity": "even", "bits": 7}, [12_345, 7, "E", 1]),
        ({"baud": 9600, "parity": "odd", "stop_bits": 2}, [9600, 8, "O", 2]),
        ({"baud": 300, "parity": "mark"}, [300, 8, "M", 1]),
        ({"baud": 4_000_000, "parity": "space", "bits": 6}, [4_000_000, 6, "S", 1]),
    ],
    ids=repr,
)
def test_the_device_is_told_rate_bits_parity_and_stop_bits(device, settings, coding):
    with opened(device, **settings):
        device.wait_for("the coding", lambda: device.last("coding") == coding)


@pytest.mark.parametrize("rts", [True, False])
@pytest.mark.parametrize("dtr", [True, False])
def test_the_device_sees_the_levels_that_the_settings_give_the_lines(device, rts, dtr):
    with opened(device, rts=rts, dtr=dtr):
        device.wait_for("the lines", lambda: (device.last("rts"), device.last("dtr")) == (rts, dtr))


async def test_the_device_sees_each_line_that_is_driven(device):
    with opened(device) as port:
        await port.control(rts=False)
        device.wait_for("RTS falls alone", lambda: (device.last("rts"), device.last("dtr")) == (False, True))
        await port.control(dtr=False)
        device.wait_for("DTR falls", lambda: (device.last("rts"), device.last("dtr")) == (False, False))
        assert await guarded.port(port).make_safe(["lines"])
        device.wait_for("both rise", lambda: (device.last("rts"), device.last("dtr")) == (True, True))


@pytest.mark.parametrize("hangup", [True, False])
def test_at_the_last_close_the_device_sees_the_lines_fall_only_with_hangup(device, hangup):
    with opened(device, hangup=hangup):
        device.wait_for("the lines", lambda: device.last("dtr"))
    closed = len(device.log)
    with opened(device, hangup=hangup):
        device.wait_for("another opening", lambda: [event for event in device.log[closed:] if "dtr" in event])
    fell = [event for event in device.log if event.get("dtr") is False]
    assert bool(fell) is hangup


async def test_a_break_begins_after_what_was_written_and_ends_after_its_time(device):
    before = bytes(range(256)) * 32
    with opened(device) as port:
        await port.write(before, timeout_s=5)
        started = time.monotonic()
        await port.control(break_s=0.1)
        assert time.monotonic() - started >= 0.1
        device.wait_for("the break ends", lambda: device.last("sends_break") == 0)
        await port.write(b"after", timeout_s=5)
        device.wait_for("all bytes", lambda: device.taken == before + b"after")
    kinds = [next(iter(event)) for event in device.log if "out" in event or "sends_break" in event]
    begins, ends = (number for number, kind in enumerate(kinds) if kind == "sends_break")
    # Of what came before, the device may tell its last packet late: another of its threads tells of breaks.
    assert kinds[begins:ends].count("out") <= 1
    assert kinds[:begins].count("out") > 1
    assert kinds[ends:] == ["sends_break", "out"]
    assert [event["sends_break"] for event in device.log if "sends_break" in event] == [0xFFFF, 0]


async def test_a_break_whose_transaction_is_abandoned_is_ended(device):
    with opened(device) as port, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: port.control(break_s=60))
            await trio.to_thread.run_sync(
                device.wait_for, "the break begins", lambda: device.last("sends_break") == 0xFFFF
            )
            nursery.cancel_scope.cancel()
        device.wait_for("the break ends", lambda: device.last("sends_break") == 0)


async def test_an_adapter_pulled_out_in_a_break_is_an_error_whose_effect_is_unknown(device):
    failures = []
    with opened(device) as port, trio.fail_after(60):

        async def send_break():
            with pytest.raises(DeviceError, match="could not be ended") as caught:
                await port.control(break_s=0.5)
            failures.append(caught.value.data["effect"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_break)
            await trio.to_thread.run_sync(
                device.wait_for, "the break begins", lambda: device.last("sends_break") == 0xFFFF
            )
            await trio.to_thread.run_sync(device.unplug)
    assert failures == ["unknown"]


async def test_incoming_lines_are_told_one_by_one(device):
    with opened(device) as port:
        for bits, expected in ((DSR, ("dsr",)), (RING, ("ri",)), (CD | DSR, ("dsr", "cd")), (0, ())):
            device.state(bits)
            while True:
                lines = await port.control()
                asserted = tuple(name for name in ("dsr", "ri", "cd") if getattr(lines, name))
                if asserted == expected:
                    break
                await trio.sleep(0.002)


async def test_characters_that_the_device_lost_are_told_once_with_the_next_bytes(device, nursery):
    with opened(device) as port:
        nursery.start_soon(port.pump)
        device.state(OVERRUN)
        device.state(OVERRUN | FRAMING | PARITY)
        device.send(b"ab")
        await port._inbox.wait(2, None)
        first, second = await port.take(1, None), await port.take(1, None)
    assert (first.data, first.overrun) == (b"a", 2)
    assert (second.data, second.overrun) == (b"b", 0)
    assert port.describe()["errors"] == {"overrun": 2, "frame": 1, "parity": 1, "breaks": 0}


async def test_an_exchange_forgets_what_was_lost_before_it(device, nursery):
    with opened(device) as port:
        nursery.start_soon(port.pump)
        device.state(OVERRUN)
        async with trio.open_nursery() as inner:

            async def answer():
                await trio.to_thread.run_sync(device.wait_for, "the question", lambda: device.taken == b"?")
                await trio.to_thread.run_sync(device.send, b"!")

            inner.start_soon(answer)
            reply = await port.exchange(b"?", length=1, until=None, timeout_s=9)
    assert (reply.data, reply.overrun) == (b"!", 0)


async def test_a_break_that_comes_in_is_a_zero_byte_and_flushes_nothing(device, nursery):
    with opened(device) as port:
        nursery.start_soon(port.pump)
        device.send(b"be")
        device.state(BREAK)
        device.state(0)
        device.send(b"fore")
        await port._inbox.wait(7, None)
        got = await port.take(7, None)
    assert sorted(got.data) == sorted(b"before\x00")
    assert port.describe()["errors"]["breaks"] == 1


async def test_pulled_out_while_bytes_stream_both_ways_both_ends_fail_and_nothing_hangs(device):
    port = LinuxUart("arm", device.path, UartSettings())
    port.open()
    ended = []

    async def pump():
        with pytest.raises(DeviceError, match="plugged in"):
            await port.pump()
        ended.append("pump")

    async def write_for_ever():
        while True:
            await port.write(bytes(4096), timeout_s=10)

    async def write():
        with pytest.raises(DeviceError, match="plugged in"):
            await write_for_ever()
        ended.append("write")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump)
        nursery.start_soon(write)
        await trio.to_thread.run_sync(device.send, b"x" * 500)
        await trio.to_thread.run_sync(device.wait_for, "bytes", lambda: len(device.taken) > 20_000)
        await trio.to_thread.run_sync(device.unplug)
    port.close()
    assert sorted(ended) == ["pump", "write"]
