"""The pseudo-terminal port, its peer, and the machine over a descriptor when things go wrong."""

import os

import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st

from hearth.drivers.serial_port.fd import FdUart
from hearth.drivers.serial_port.inbox import Inbox
from hearth.drivers.serial_port.pty import EchoPeer, SimUart
from hearth.drivers.serial_port.settings import INBOX_CAPACITY, MAX_TAKE, Rs485, UartSettings, write_timeout_s
from hearth.errors import DeviceError, TimedOut


@pytest.fixture
async def port(nursery):
    driver = SimUart("sim")
    driver.open()
    nursery.start_soon(driver.pump)
    yield driver
    driver.close()


async def ask(port, line, *, length=None, until=b"\n"):
    with trio.fail_after(60):
        return await port.exchange(line, length=length, until=until, timeout_s=9)


async def test_the_peer_answers_its_commands_and_echoes_the_rest(port):
    assert (await ask(port, b"*IDN?\r\n")).data == b"HEARTH,SIM-UART,0,1\n"
    assert (await ask(port, b"DELAY 1 later\n")).data == b"later\n"
    assert (await ask(port, b"BURST 25\n", length=25)).data == b"0123456789012345678901234"
    for line in (b"DELAY\n", b"DELAY x\n", b"BURST\n", b"BURST 12345678\n", b"BURST -5\n", b"\n", b"  *IDN?\n"):
        assert (await ask(port, line)).data == line


async def test_two_lines_in_one_write_are_answered_in_order(port):
    assert (await ask(port, b"one\ntwo\n", length=8, until=None)).data == b"one\ntwo\n"


async def test_a_line_without_an_end_is_echoed_when_it_is_as_long_as_a_line_may_be(port):
    assert (await ask(port, b"x" * 4096, length=4096, until=None)).data == b"x" * 4096


async def test_a_muted_peer_swallows_everything(port):
    port.peer.mute = True
    reply = await port.exchange(b"*IDN?\n", length=None, until=b"\n", timeout_s=0.01)
    assert not reply.complete


async def test_an_unread_flood_is_bounded_and_counted(port):
    total = INBOX_CAPACITY + 10_000
    await port.write(b"BURST %d\n" % total, timeout_s=1)
    await port._inbox._wakeup.until(lambda: port._inbox.lost == 10_000)
    taken = await port.take(10, None)
    assert (taken.data, taken.overflow) == (b"0123456789", 10_000)
    assert (await port.take(10, None)).overflow == 0


async def test_a_person_can_attach_to_the_far_end(nursery):
    port = SimUart("sim", peer="none")
    port.open()
    nursery.start_soon(port.pump)
    path = port.describe()["path"]
    assert path.startswith("/dev/pts/")
    person = os.open(path, os.O_RDWR | os.O_NOCTTY)
    await port.write(b"who is there?\n", timeout_s=1)
    await trio.lowlevel.wait_readable(person)
    assert os.read(person, 100) == b"who is there?\n"
    os.write(person, b"me\n")
    await port._inbox.wait(None, b"\n")
    os.close(person)
    assert (await port.take(None, b"\n")).data == b"me\n"
    await port.write(b"still open\n", timeout_s=1)
    port.close()
    assert port.describe()["path"] is None


async def test_a_system_without_pseudo_terminals_is_a_device_error(monkeypatch):
    def none_left():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "openpty", none_left)
    port = SimUart("sim")
    with pytest.raises(DeviceError, match="/dev/pts") as caught:
        port.open()
    assert caught.value.data["effect"] == "none"
    port.close()


def test_a_port_can_be_closed_where_no_trio_runs():
    port = SimUart("sim")
    port.open()
    port.close()


async def test_the_peer_leaves_when_the_port_is_closed_while_it_has_work():
    port = SimUart("sim")
    port.open()
    peer = port.peer
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.pump)
        await port.write(b"DELAY 60000 too late\n", timeout_s=1)
        await trio.testing.wait_all_tasks_blocked()
        port.close()
    assert peer._fd == -1


class TestPeerOverAPipe:
    """The peer's own edges, without a terminal's buffering."""

    async def test_it_waits_for_a_reader_that_is_slow(self):
        near, far = (s.detach() for s in __import__("socket").socketpair())
        for fd in (near, far):
            os.set_blocking(fd, False)
        peer, got = EchoPeer(far), bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.run)
            os.write(near, b"BURST 1000000\n")
            await trio.testing.wait_all_tasks_blocked()
            while len(got) < 1_000_000:
                await trio.lowlevel.wait_readable(near)
                got += os.read(near, 65536)
            peer.close()
            os.write(near, b"unanswered\n")
        os.close(near)
        os.close(far)


class Pair(FdUart):
    """A port over one end of a socket pair: descriptors that can hang up."""

    def __init__(self):
        super().__init__("pair", UartSettings(baud=9600))

    def open(self):
        import socket

        near, far = socket.socketpair()
        self.far = far
        near.setblocking(False)
        self._attach(near.detach())


async def test_a_write_that_is_not_taken_is_bounded_and_says_how_much_was_taken():
    port = Pair()
    port.open()
    with trio.fail_after(30), pytest.raises(TimedOut) as caught:
        await port.write(b"x" * 10_000_000, timeout_s=0.01)
    assert 0 < caught.value.data["taken"] < 10_000_000
    assert caught.value.data["effect"] == "unknown"
    with trio.fail_after(30), pytest.raises(TimedOut) as caught:
        await port.write(b"x", timeout_s=0.01)
    assert (caught.value.data["taken"], caught.value.data["effect"]) == (0, "none")
    port.close()
    port.far.close()


async def test_a_write_under_way_when_the_port_is_closed_says_how_much_was_taken():
    port = SimUart("sim", peer="none")
    port.open()
    failures = []

    async def write():
        with pytest.raises(DeviceError, match="closed") as caught:
            await port.write(b"x" * 10_000_000, timeout_s=10)
        failures.append(caught.value.data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        port.close()
    assert failures[0]["effect"] == "unknown"
    assert failures[0]["taken"] > 0


async def test_a_far_end_that_hangs_up_ends_the_pump_and_its_readers_with_an_error():
    port = Pair()
    port.open()
    port.far.close()
    with pytest.raises(DeviceError, match="hung up") as caught:
        await port.pump()
    assert caught.value.data["errno"] == "EIO"
    with pytest.raises(DeviceError, match="hung up"):
        await port._inbox.wait(1, None)
    with pytest.raises(DeviceError) as caught:
        await port.write(b"x", timeout_s=1)
    assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "EPIPE")
    port.close()


async def test_an_exchange_whose_far_end_hangs_up_leaves_the_effect_unknown():
    port = Pair()
    port.open()
    failures = []

    async def exchange():
        with pytest.raises(DeviceError) as caught:
            await port.exchange(b"x", length=1, until=None, timeout_s=10)
        failures.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange)
        await trio.testing.wait_all_tasks_blocked()
        port.far.close()
        with pytest.raises(DeviceError):
            await port.pump()
    assert failures[0].data["effect"] == "unknown"
    port.close()


async def test_the_simulated_port_passes_a_failing_pump_on_as_one_error_and_no_group(monkeypatch):
    port = SimUart("sim")
    port.open()

    def broken(fd, size):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("hearth.drivers.serial_port.fd.os.read", broken)
    port.peer = None
    os.write(port._far, b"x")
    with trio.fail_after(60), pytest.raises(DeviceError, match="Input/output"):
        await port.pump()
    port.close()


async def test_a_wakeup_without_bytes_is_no_end(monkeypatch):
    port = Pair()
    port.open()
    real, calls = os.read, []

    def first_nothing(fd, size):
        calls.append(fd)
        if len(calls) == 1:
            raise BlockingIOError
        return real(fd, size)

    monkeypatch.setattr("hearth.drivers.serial_port.fd.os.read", first_nothing)
    port.far.send(b"hi")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.pump)
        await port._inbox.wait(2, None)
        port.close()
    port.far.close()


async def test_a_port_closed_in_the_moment_in_which_bytes_come_ends_its_pump_quietly(monkeypatch):
    port = Pair()
    port.open()
    near = port._fd

    async def readable(fd):
        port.close()

    monkeypatch.setattr("trio.lowlevel.wait_readable", readable)
    await port.pump()
    assert port._fd == -1 != near
    port.far.close()


async def test_what_came_before_the_port_was_closed_can_still_be_taken():
    inbox = Inbox()
    inbox.feed(b"last words\n")
    inbox.close(DeviceError("closed"))
    await inbox.wait(None, b"\n")
    assert inbox.take(None, b"\n").data == b"last words\n"


def test_until_alone_ends_at_the_most_that_a_read_returns():
    inbox = Inbox()
    inbox.feed(b"x" * (MAX_TAKE + 5))
    assert len(inbox.take(None, b"\n").data) == MAX_TAKE
    assert inbox.take(None, b"\n", partial=True).data == b"xxxxx"


def test_a_length_beyond_the_most_is_the_most():
    inbox = Inbox()
    inbox.feed(b"x" * (MAX_TAKE + 5))
    assert len(inbox.take(MAX_TAKE * 2, None).data) == MAX_TAKE


def test_clearing_tells_how_much_and_forgets_what_was_lost():
    inbox = Inbox(capacity=4)
    inbox.feed(b"abcdef")
    assert inbox.skip() == 4
    inbox.feed(b"gh")
    assert inbox.take(2, None).overflow == 0


async def test_a_gap_is_counted_from_the_last_byte_that_came(autojump_clock):
    inbox, start = Inbox(), trio.current_time()

    async def feed():
        for at in (1.0, 1.4, 1.8):
            await trio.sleep_until(start + at)
            inbox.feed(b"x", now=trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        with trio.fail_after(10):
            await inbox.wait(None, None, 0.5)
    assert trio.current_time() - start == pytest.approx(2.3)
    assert inbox.take(None, None, gap_s=0.5).data == b"xxx"
    assert not inbox.take(None, None, gap_s=0.5).complete


async def test_bytes_of_which_another_reader_takes_all_are_no_answer_after_the_gap(autojump_clock):
    inbox, ended = Inbox(), []

    async def read():
        await inbox.wait(None, None, 0.5)
        ended.append(trio.current_time())

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            start = trio.current_time()
            inbox.feed(b"theirs", now=start)
            nursery.start_soon(read)
            await trio.sleep(0.2)
            inbox.take(6, None)
            await trio.sleep(5)
            assert not ended
            inbox.feed(b"mine", now=trio.current_time())
    assert ended == [pytest.approx(start + 5.7)]


async def test_a_port_with_flow_control_takes_no_more_than_it_has_room_for(nursery):
    port = SimUart("sim", UartSettings(flow="rtscts", inbox_bytes=4096))
    port.open()
    nursery.start_soon(port.pump)
    total, got = 100_000, bytearray()
    await port.write(b"BURST %d\n" % total, timeout_s=1)
    while len(got) < total:
        await port._inbox.wait(None, None)
        await trio.testing.wait_all_tasks_blocked()
        assert port._inbox.room >= 0
        taken = await port.take(None, None, gap_s=0.0)
        assert not taken.overflow
        got += taken.data
    assert bytes(got) == (b"0123456789" * (total // 10))
    port.close()


async def test_a_break_is_ended_whatever_happens():
    port = SimUart("sim")
    port.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: port.control(break_s=60))
        await trio.testing.wait_all_tasks_blocked()
        assert port.in_break
        nursery.cancel_scope.cancel()
    assert (port.in_break, port.breaks) == (False, 1)
    port.close()


async def test_a_break_that_cannot_be_ended_says_that_it_may_still_be_on(monkeypatch):
    port = SimUart("sim")
    port.open()

    async def stuck(on):
        if not on:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(port, "_set_break", stuck)
    with pytest.raises(DeviceError, match="could not be ended") as caught:
        await port.control(break_s=0.001)
    assert caught.value.data["effect"] == "unknown"
    port.close()


async def test_a_write_whose_device_goes_while_it_drains_leaves_the_effect_unknown(port, monkeypatch):
    def gone(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(port, "_unsent", gone)
    with trio.fail_after(60), pytest.raises(DeviceError, match="plugged in") as caught:
        await port.write(b"x", timeout_s=5, drain=True)
    assert caught.value.data["effect"] == "unknown"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"bits": 9}, "bits"),
        ({"baud": 49}, "baud"),
        ({"parity": "both"}, "parity"),
        ({"stop_bits": 3}, "stop_bits"),
        ({"stop_bits": 1.5}, "stop_bits"),
        ({"stop_bits": 2, "bits": 5}, "stop_bits"),
        ({"flow": "dsrdtr"}, "flow"),
        ({"rs485": True, "flow": "rtscts"}, "rs485"),
        ({"inbox_bytes": 100}, "inbox_bytes"),
    ],
)
def test_settings_that_no_port_can_have_are_refused_by_name(settings, key):
    with pytest.raises(ValueError, match=key):
        UartSettings(**settings)


def test_rs485_may_be_asked_for_in_short():
    assert UartSettings(rs485=True).rs485 == Rs485()
    assert UartSettings(rs485=False).rs485 is None
    assert UartSettings(rs485=Rs485(before_ms=3)).rs485.before_ms == 3


wishes = st.tuples(
    st.one_of(st.none(), st.integers(1, 12)), st.one_of(st.none(), st.sampled_from([b"\n", b"ab"])), st.booleans()
)


@pytest.mark.slow
@given(st.lists(st.one_of(st.text("ab\n", max_size=8).map(str.encode), wishes), max_size=40))
def test_bytes_leave_in_the_order_they_came_and_none_is_lost_or_doubled_without_being_counted(steps):
    inbox, stream, at = Inbox(capacity=16), b"", 0
    for step in steps:
        if isinstance(step, bytes):
            inbox.feed(step)
            stream += step
            continue
        length, until, partial = step
        taken = inbox.take(length, until, partial=partial)
        at += taken.overflow
        assert stream[at : at + len(taken.data)] == taken.data
        at += len(taken.data)
        if taken.complete:
            assert len(taken.data) == length or length is None or (until and taken.data.endswith(until))
            if until and len(taken.data) != length:
                assert taken.data.find(until) == len(taken.data) - len(until)
        else:
            assert partial or not taken.data
    rest = inbox.take(None, None, partial=True)
    assert stream[at + rest.overflow :] == rest.data


def test_a_write_may_take_twice_its_time_on_the_wire_and_a_second():
    assert write_timeout_s(960, 9600) == pytest.approx(3.0)
