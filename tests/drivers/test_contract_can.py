"""The contract of every CAN driver; `can_bench` is an open interface with another node on its bus."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from hearth.drivers.can.driver import EXTENDED, FD_LENGTHS, MOST_CURSORS, Frame, key_of
from hearth.errors import DeviceError, LimitViolated


@pytest.fixture
async def bench(can_bench, nursery):
    """The bench, receiving; its pump ends with the test."""
    nursery.start_soon(can_bench.driver.pump)
    yield can_bench
    nursery.cancel_scope.cancel()


async def read_by(driver, transact, reader, count=1, wanted=None, *, errors=False):
    """Wait beside the bus, then take `count` frames: what a reader does."""
    queue = driver.queue
    with trio.fail_after(10):
        await queue.wait(queue.cursor(reader), wanted, count, errors=errors)
        return await transact(driver, lambda d: d.take(wanted, count, errors=errors, reader=reader))


async def begin(driver, transact, *readers):
    for reader in readers:
        await transact(driver, lambda d, who=reader: d.take(None, 1, reader=who))


async def send(bench, transact, frame, reader=""):
    with trio.fail_after(10):
        await transact(bench.driver, lambda d: d.send(frame, timeout_s=5, reader=reader))


async def test_a_frame_that_is_sent_reaches_the_other_node(bench, transact):
    await send(bench, transact, Frame(0x123, b"\xab\xcd"))
    assert bench.heard() == [(0x123, b"\xab\xcd")]


async def test_a_frame_of_29_bits_and_one_of_the_same_number_in_11_are_two(bench, transact):
    await begin(bench.driver, transact, "a")
    long = key_of(0x123, extended=True)
    await send(bench, transact, Frame(long, b"l"))
    bench.say(Frame(long, b"1"))
    bench.say(Frame(0x123, b"2"))
    taken = await read_by(bench.driver, transact, "a", 1, lambda key: key == 0x123)
    assert [(frame.key, frame.data) for frame in taken.frames] == [(0x123, b"2")]
    assert bench.heard()[0] == (0x123 | EXTENDED, b"l")


@pytest.mark.parametrize("length", FD_LENGTHS)
async def test_an_fd_frame_of_every_length_passes_both_ways(length, bench, transact):
    data = bytes(range(length))
    await begin(bench.driver, transact, "a")
    await send(bench, transact, Frame(0x321, data, fd=True, bitrate_switch=True), "a")
    assert bench.heard() == [(0x321, data)]
    bench.say(Frame(0x322, data, fd=True, bitrate_switch=True))
    taken = await read_by(bench.driver, transact, "a")
    assert taken.frames == [Frame(0x322, data, fd=True, bitrate_switch=True)]


async def test_frames_come_in_order_with_the_time_of_their_reception(bench, transact):
    await begin(bench.driver, transact, "a")
    for number in range(20):
        bench.say(Frame(0x100 + number, bytes([number])))
    taken = await read_by(bench.driver, transact, "a", 20)
    assert [frame.data[0] for frame in taken.frames] == list(range(20))
    times = [frame.timestamp_us for frame in taken.frames]
    assert times == sorted(times)
    assert times[0] > 1_500_000_000_000_000


async def test_a_session_begins_at_its_first_use_of_the_bus(bench, transact):
    await begin(bench.driver, transact, "early")
    bench.say(Frame(1, b"1"))
    await read_by(bench.driver, transact, "early")
    await begin(bench.driver, transact, "late")
    bench.say(Frame(2, b"2"))
    assert [frame.key for frame in (await read_by(bench.driver, transact, "late")).frames] == [2]


async def test_no_session_takes_what_another_one_waits_for(bench, transact):
    await begin(bench.driver, transact, "a", "b")
    for number in range(4):
        bench.say(Frame(number, b""))
    assert [frame.key for frame in (await read_by(bench.driver, transact, "a", 4)).frames] == [0, 1, 2, 3]
    assert [frame.key for frame in (await read_by(bench.driver, transact, "b", 2)).frames] == [0, 1]
    assert [frame.key for frame in (await read_by(bench.driver, transact, "b", 2)).frames] == [2, 3]


async def test_a_session_sees_what_others_send_and_not_what_it_sends_itself(bench, transact):
    await begin(bench.driver, transact, "a", "b")
    await send(bench, transact, Frame(0x10, b"from a"), "a")
    bench.say(Frame(0x20, b"the end"))
    assert [frame.key for frame in (await read_by(bench.driver, transact, "b", 2)).frames] == [0x10, 0x20]
    assert [frame.key for frame in (await read_by(bench.driver, transact, "a", 1)).frames] == [0x20]


async def test_what_is_lost_in_a_full_queue_is_counted_for_each_session_by_itself(bench, transact):
    await begin(bench.driver, transact, "slow", "quick")
    capacity = bench.driver.queue.capacity
    for number in range(capacity):
        bench.say(Frame(number, b""))
    await read_by(bench.driver, transact, "quick", capacity)
    for number in range(10):
        bench.say(Frame(0x700 + number, b""))
    assert (await read_by(bench.driver, transact, "quick", 10)).lost == 0
    taken = await read_by(bench.driver, transact, "slow", capacity)
    assert taken.lost == 10
    assert [frame.key for frame in taken.frames] == [*range(10, capacity), *range(0x700, 0x70A)]
    bench.say(Frame(0, b""))
    assert (await read_by(bench.driver, transact, "slow")).lost == 0


async def test_a_read_skips_what_it_does_not_want(bench, transact):
    await begin(bench.driver, transact, "a")
    for number in (1, 2, 3, 2):
        bench.say(Frame(number, b""))
    taken = await read_by(bench.driver, transact, "a", 2, {2}.__contains__)
    assert ([frame.key for frame in taken.frames], taken.lost) == ([2, 2], 0)
    rest = await transact(bench.driver, lambda d: d.take(None, 9, partial=True, reader="a"))
    assert rest.frames == []


async def test_a_read_that_is_not_complete_takes_nothing_unless_it_is_asked_to(bench, transact):
    await begin(bench.driver, transact, "a")
    bench.say(Frame(1, b""))
    with trio.fail_after(10):
        await bench.driver.queue.wait(bench.driver.queue.cursor("a"), None, 1)
    none = await transact(bench.driver, lambda d: d.take(None, 2, reader="a"))
    assert (none.frames, none.complete) == ((), False)
    some = await transact(bench.driver, lambda d: d.take(None, 2, partial=True, reader="a"))
    assert ([frame.key for frame in some.frames], some.complete) == ([1], False)


async def test_a_watch_sees_everything_from_now_on_and_takes_it_from_no_session(bench, transact):
    await begin(bench.driver, transact, "a")
    cursor = await transact(bench.driver, lambda d: d.follow())
    await send(bench, transact, Frame(1, b""), "a")
    bench.say(Frame(2, b""))
    with trio.fail_after(10):
        await bench.driver.queue.wait(cursor, None, 2)
    assert [frame.key for frame in bench.driver.queue.take(cursor, None, 2).frames] == [1, 2]
    assert [frame.key for frame in (await read_by(bench.driver, transact, "a", 1)).frames] == [2]


async def test_what_is_kept_for_a_session_goes_with_it_and_is_bounded(bench, transact):
    await begin(bench.driver, transact, "session")
    bench.driver.forget("session")
    bench.driver.forget("session")
    for number in range(MOST_CURSORS + 2):
        bench.driver.queue.cursor(str(number))
    assert len(bench.driver.queue._cursors) == MOST_CURSORS
    assert "1" not in bench.driver.queue._cursors


# --- ISO-TP -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 8, 300, 4095])
async def test_an_isotp_message_is_answered(size, bench, transact):
    bench.answer(0x7E0, 0x7E8, lambda message: message[::-1])
    data = bytes(number % 251 for number in range(size))
    with trio.fail_after(20):
        answer = await transact(bench.driver, lambda d: d.isotp(0x7E0, 0x7E8, data, timeout_s=10))
    assert answer == data[::-1]


async def test_padding_fills_every_frame_of_an_isotp_message(bench, transact):
    bench.answer(0x7E0, 0x7E8, lambda _message: b"ok")
    with trio.fail_after(20):
        await transact(bench.driver, lambda d: d.isotp(0x7E0, 0x7E8, b"ask", timeout_s=10, padding=0xCC))
    assert bench.heard()[0] == (0x7E0, b"\x03ask\xcc\xcc\xcc\xcc")


async def test_an_isotp_message_without_an_answer_ends_in_time(bench, transact):
    bench.answer(0x7E0, 0x7E8, lambda _message: None)
    with trio.fail_after(20):
        assert await transact(bench.driver, lambda d: d.isotp(0x7E0, 0x7E8, b"ask", timeout_s=0.05)) is None


@pytest.mark.slow
async def test_a_long_isotp_message_that_no_node_takes_has_an_unknown_effect(bench, transact):
    with trio.fail_after(20), pytest.raises(DeviceError, match="no flow control") as caught:
        await transact(bench.driver, lambda d: d.isotp(0x7E1, 0x7E9, bytes(100), timeout_s=10))
    assert caught.value.data["effect"] == "unknown"


# --- errors -----------------------------------------------------------------------------------------------------------


class Refusing:
    """Rules that permit nothing."""

    def check(self, _frame):
        raise LimitViolated("no", data={"effect": "none"})

    def check_isotp(self, _key):
        raise LimitViolated("no", data={"effect": "none"})


async def test_what_the_rules_refuse_never_reaches_the_wire(bench, transact):
    bench.driver.rules = Refusing()
    with pytest.raises(LimitViolated):
        await send(bench, transact, Frame(1, b"x"))
    with pytest.raises(LimitViolated):
        await transact(bench.driver, lambda d: d.isotp(1, 2, b"x", timeout_s=1))
    assert bench.heard() == []


async def test_bus_off_takes_the_bus_down_and_ends_its_readers_and_it_can_be_opened_again(can_bench, transact):
    driver = can_bench.driver
    await begin(driver, transact, "a")
    failures = []

    async def read():
        with pytest.raises(DeviceError, match="bus off") as caught:
            await driver.queue.wait(driver.queue.cursor("a"), None, 9)
        failures.append(caught.value.data["effect"])

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            can_bench.bus_off()
            with pytest.raises(DeviceError, match="wiring"):
                await driver.pump()
        assert failures == ["none"]
        assert driver.describe()["state"] == "bus-off"
        assert driver.describe()["errors"] == {"bus off": 1}
        driver.close()
        driver.open()
        assert driver.describe()["state"] == "error-active"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.pump)
            can_bench.say(Frame(5, b"again"))
            taken = await read_by(driver, transact, "a", 2, errors=True)
            assert (taken.frames[0].error, taken.frames[1].data) == (("bus off",), b"again")
            nursery.cancel_scope.cancel()


# The kernel takes an interface down before it removes it, and reports whichever the socket sees first.
async def test_an_interface_that_goes_in_mid_read_is_reported_and_opened_when_it_is_back(can_bench, transact):
    driver = can_bench.driver
    await begin(driver, transact, "a")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            async def read():
                with pytest.raises(DeviceError, match=r"plugged in|is down"):
                    await driver.queue.wait(driver.queue.cursor("a"), None, 1)

            async def pump():
                with pytest.raises(DeviceError, match=r"plugged in|is down"):
                    await driver.pump()

            nursery.start_soon(pump)
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(can_bench.unplug)
    driver.close()
    with pytest.raises(DeviceError, match="plugged in") as caught:
        driver.open()
    assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "ENODEV")
    can_bench.plug()
    driver.open()


async def test_closing_ends_readers_and_pump(can_bench):
    driver = can_bench.driver
    with trio.fail_after(10), pytest.RaisesGroup(pytest.RaisesExc(DeviceError, match="closed")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.pump)
            nursery.start_soon(driver.queue.wait, driver.queue.cursor("a"), None, 1)
            await trio.testing.wait_all_tasks_blocked()
            driver.close()
