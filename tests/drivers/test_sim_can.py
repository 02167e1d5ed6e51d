"""The simulated bus: its nodes, the faults of a real one, and the arithmetic of ISO-TP frames."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st

from hearth.drivers.can.driver import Frame, FrameQueue, errors_of, key_name, key_of
from hearth.drivers.can.sim import FAN_COMMAND, Plant, SimCan, segments
from hearth.errors import DeviceError, TimedOut


@pytest.fixture
async def can(autojump_clock, nursery):
    driver = SimCan("sim", nodes=[Plant()], virtual=True)
    driver.open()

    async def pump():
        with suppress(DeviceError):
            await driver.pump()

    nursery.start_soon(pump)
    yield driver
    driver.close()


async def test_a_node_is_silent_until_there_is_a_reader(can, autojump_clock):
    await trio.sleep(10)
    assert can.queue.received == 0
    can.queue.cursor("a")
    await trio.sleep(1.05)
    assert can.queue.received == 10


async def test_a_watch_alone_makes_the_nodes_speak(can, autojump_clock):
    cursor = await can.follow()
    await trio.sleep(1.05)
    assert len(can.queue.take(cursor, None, 100, partial=True).frames) == 10


async def test_the_fan_cools_the_engine(can, autojump_clock):
    plant = can.nodes[0]
    can.queue.cursor("a")
    await trio.sleep(60)
    hot = plant.temperature
    await can.send(Frame(FAN_COMMAND, bytes([200])), timeout_s=1)
    await trio.sleep(60)
    assert hot > 90
    assert plant.temperature < 60


async def test_a_full_transmit_queue_is_waited_for_and_then_has_no_effect(can, nursery, autojump_clock):
    can.set_faults(full=True)
    with pytest.raises(TimedOut, match="queue is full") as caught:
        await can.send(Frame(1, b""), timeout_s=1)
    assert (caught.value.data["effect"], can.wire) == ("none", [])
    nursery.start_soon(lambda: can.send(Frame(1, b""), timeout_s=1))
    await trio.testing.wait_all_tasks_blocked()
    can.set_faults(full=False)
    await trio.testing.wait_all_tasks_blocked()
    assert len(can.wire) == 1


async def test_a_frame_that_no_node_acknowledges_has_an_unknown_effect(can, autojump_clock):
    can.set_faults(acknowledged=False)
    with pytest.raises(TimedOut, match="acknowledged") as caught:
        await can.send(Frame(1, b""), timeout_s=1)
    assert caught.value.data["effect"] == "unknown"


@pytest.mark.parametrize("fault", ["acknowledged", "full"])
async def test_a_frame_that_waits_when_the_interface_goes_fails_at_once(fault, can, nursery, autojump_clock):
    can.set_faults(**{fault: fault == "full"})
    failures = []

    async def send():
        with pytest.raises(DeviceError, match="went") as caught:
            await can.send(Frame(1, b""), timeout_s=100)
        failures.append(caught.value.data["effect"])

    nursery.start_soon(send)
    await trio.testing.wait_all_tasks_blocked()
    can.report("bus off")
    await trio.testing.wait_all_tasks_blocked()
    assert failures == ["none" if fault == "full" else "unknown"]


async def test_a_controller_that_does_not_restart_cannot_be_opened(autojump_clock):
    can = SimCan("sim")
    can.open()
    can.report("bus off")
    can.close()
    can.restarts = False
    with pytest.raises(DeviceError, match="bus off"):
        can.open()
    can.restarts = True
    can.open()
    can.close()


def test_nothing_is_heard_while_the_interface_is_closed():
    can = SimCan("sim")
    can.inject(Frame(1, b""))
    assert can.queue.received == 0


@given(size=st.integers(1, 4095), padding=st.none() | st.integers(0, 255))
def test_the_frames_of_an_isotp_message_hold_all_of_it(size, padding):
    data = bytes(number % 256 for number in range(size))
    frames = list(segments(data, padding))
    assert all(len(frame) <= 8 for frame in frames)
    assert padding is None or all(len(frame) == 8 for frame in frames)
    if size <= 7:
        assert frames[0][1 : 1 + frames[0][0]] == data
        return
    assert int.from_bytes(frames[0][:2], "big") == 0x1000 | size
    assert (frames[0][2:] + b"".join(frame[1:] for frame in frames[1:]))[:size] == data
    assert [frame[0] for frame in frames[1:]] == [0x20 | number % 16 for number in range(1, len(frames))]


@pytest.mark.parametrize(
    ("error_class", "data", "words"),
    [
        (0x40, b"", ("bus off",)),
        (0x04, bytes([0, 0x04]), ("receive error warning",)),
        (0x04, bytes(8), ("controller",)),
        (0x204, bytes([0, 0x30]), ("receive error passive", "transmit error passive")),
        (0x28, bytes(8), ("protocol violation", "no acknowledgement")),
        (0x200, bytes(8), ("unspecified",)),
    ],
)
def test_error_frames_are_told_in_words(error_class, data, words):
    assert errors_of(error_class, data) == words


def test_identifiers_are_written_with_three_digits_or_with_eight():
    assert [key_name(key_of(number)) for number in (1, 0x7FF, 0x800)] == ["0x001", "0x7ff", "0x00000800"]
    assert key_name(key_of(1, extended=True)) == "0x00000001"


async def test_a_reader_that_waits_while_its_frames_are_dropped_waits_on():
    queue = FrameQueue(4)
    cursor = queue.cursor("a")
    for number in range(9):
        queue.feed(Frame(number, b""))
    with trio.fail_after(10):
        await queue.wait(cursor, None, 4)
        taken = queue.take(cursor, None, 4)
    assert ([frame.key for frame in taken.frames], taken.lost) == ([5, 6, 7, 8], 5)
