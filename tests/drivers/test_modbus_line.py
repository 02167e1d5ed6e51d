"""A Modbus line's timing, and which answer it takes: late, damaged, foreign and endless ones, and connections that end.

Serial lines run in virtual time over a pair of sockets; TCP in real time, against servers that the tests play.
"""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing
from support.waiting import passes

from hearth.drivers.modbus.codec import MOST_STRAYS, checked
from hearth.drivers.modbus.driver import ModbusDevice
from hearth.drivers.modbus.line import NOISE_S, ModbusLine, frame_gap_s
from hearth.drivers.modbus.network import TcpPort
from hearth.drivers.modbus.sim import SimModbusPort
from hearth.drivers.serial_port.pty import SimUart
from hearth.drivers.serial_port.settings import Rs485, UartSettings
from hearth.errors import DeviceError, TimedOut

BAUD = 19_200
ONE = ModbusDevice(1, "ONE", raw="rw")
ALL = ModbusDevice(0, "ALL", raw="rw")
BOUND = 60


def value(number, unit=1):
    """The answer to a read of one register."""
    return checked(bytes((unit, 3, 2)) + number.to_bytes(2, "big"))


class Serial:
    """A line whose far end is the test: `say` sends bytes, `heard` has each request and its time."""

    def __init__(self, **more):
        settings = UartSettings(baud=BAUD, **more)
        self.port = SimUart("line", settings, peer="none", terminal=False)
        self.line = ModbusLine("line", self.port, [ONE, ALL])
        self.heard = []
        self.script = []
        """For each request: (delay, bytes) pairs of what is said."""

    async def say(self, data):
        await trio.lowlevel.wait_writable(self.port._far)
        os.write(self.port._far, data)

    async def run(self):
        """Listen until the port is closed."""
        with suppress(trio.ClosedResourceError):
            await self._listen()

    async def _listen(self):
        while True:
            await trio.lowlevel.wait_readable(self.port._far)
            self.heard.append((trio.current_time(), os.read(self.port._far, 4096)))
            await self.play(self.script.pop(0) if self.script else [])

    async def play(self, parts):
        for delay, data in parts:
            await trio.sleep(delay)
            await self.say(data)


@asynccontextmanager
async def serial(**more):
    peer = Serial(**more)
    peer.line.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.line.pump)
        nursery.start_soon(peer.run)
        yield peer
        nursery.cancel_scope.cancel()
    peer.line.close()


async def read(line, reg=0):
    (number,) = await line.read(1, "holding", reg, 1)
    return number


# --- late answers -----------------------------------------------------------------------------------------------------


async def test_the_late_answer_of_a_request_that_has_timed_out_is_never_taken_for_the_next_one(autojump_clock):
    async with serial() as peer:
        peer.script = [[(1.5, value(111))], [(0.1, value(222))]]
        with pytest.raises(TimedOut):
            await read(peer.line, reg=10)
        assert await read(peer.line, reg=20) == 222
        late, second = 1.5, peer.heard[1][0] - peer.heard[0][0]
        assert late < second < late + 0.1, "it waited for the late answer, and not longer"


async def test_an_answer_that_comes_in_two_halves_around_the_timeout_is_dropped_whole(autojump_clock):
    async with serial() as peer:
        peer.script = [[(0.9, value(111)[:3]), (0.5, value(111)[3:])], [(0.1, value(222))]]
        with pytest.raises(TimedOut):
            await read(peer.line)
        assert await read(peer.line) == 222


async def test_where_no_answer_comes_at_all_the_next_request_waits_for_late_s(autojump_clock):
    async with serial() as peer:
        peer.script = [[], [(0.0, value(5))]]
        with pytest.raises(TimedOut) as caught:
            await read(peer.line)
        assert caught.value.data == {"effect": "none", "line": "line", "device": "ONE", "unit": 1}
        assert await read(peer.line) == 5
        assert 2.0 < peer.heard[1][0] - peer.heard[0][0] < 2.1


async def test_noise_while_an_answer_is_owed_does_not_hide_it(autojump_clock):
    async with serial() as peer:
        peer.script = [[(1.2, b"\xfe"), (0.3, value(111))], [(0.1, value(222))]]
        with pytest.raises(TimedOut):
            await read(peer.line)
        assert await read(peer.line) == 222


async def test_after_answers_in_time_only_the_silence_between_frames_is_kept(autojump_clock):
    async with serial() as peer:
        peer.script = [[(0.0, value(n))] for n in range(20)]
        begun = trio.current_time()
        for number in range(20):
            assert await read(peer.line) == number
        times = [at for at, _ in peer.heard]
        assert all(b - a > 0.999 * frame_gap_s(BAUD) for a, b in pairwise(times))
        assert trio.current_time() - begun < 20 * frame_gap_s(BAUD) + 0.01


def test_the_silence_is_three_and_a_half_characters_and_fixed_above_19200():
    assert frame_gap_s(9600) == pytest.approx(3.5 * 11 / 9600)
    assert frame_gap_s(115_200) == 0.00175


async def test_bytes_that_came_before_a_request_are_no_answer_to_it(autojump_clock):
    async with serial() as peer:
        peer.script = [[(0.1, value(222))]]
        await peer.say(value(111))
        assert await read(peer.line) == 222


async def test_a_second_copy_of_the_last_answer_is_not_the_answer_to_the_next_request(autojump_clock):
    async with serial() as peer:
        peer.script = [[(0.0, value(111)), (0.004, value(111))], [(0.01, value(222))], [(0.01, value(222))]]
        assert await read(peer.line, reg=10) == 111
        assert await read(peer.line, reg=20) == 222
        assert len(peer.heard) == 3, "the read in doubt was sent once more"


async def test_two_registers_with_one_value_cost_a_second_read_but_not_after_late_s(autojump_clock):
    async with serial() as peer:
        peer.script = [[(0.01, value(7))]] * 4
        for reg, requests_sent in ((10, 1), (10, 2), (20, 4)):
            assert await read(peer.line, reg=reg) == 7
            assert len(peer.heard) == requests_sent
        await trio.sleep(1.1)
        peer.script = [[(0.01, value(7))]]
        assert await read(peer.line, reg=10) == 7
        assert len(peer.heard) == 5


async def test_what_another_master_asked_for_before_is_waited_for(autojump_clock):
    async with serial() as peer:
        peer.script = [[(0.01, value(8))]]
        await peer.say(checked(b"\1\3\0\5\0\1"))
        asked_at = trio.current_time()

        async def answer():
            await trio.sleep(0.3)
            await peer.say(value(5))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            assert await read(peer.line, reg=10) == 8
        assert peer.heard[0][0] >= asked_at + 0.3


async def test_an_answer_that_may_be_another_masters_is_asked_for_again_and_else_an_error(autojump_clock):
    foreign = checked(b"\1\3\0\5\0\1")
    async with serial() as peer:
        peer.script = [[(0.0, foreign), (0.01, value(5)), (0.01, value(8))], [(0.01, value(8))]]
        assert await read(peer.line, reg=10) == 8
        peer.script = [[(0.0, foreign), (0.01, value(8)), (0.01, value(5))]] * 2
        with pytest.raises(DeviceError, match="another master asks the same unit") as caught:
            await read(peer.line, reg=20)
        assert caught.value.data["effect"] == "none"


# --- answers that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"\x00" + value(7)[:-1], "a frame of unit 0, or noise"),
        (value(7, unit=2), "a frame of unit 2"),
        (value(7)[:-1] + b"\0", "its checksum is wrong"),
        (value(7)[:3] + b"\0" + value(7)[3:], "its checksum is wrong"),
        (checked(b"\1\3\4\0\1\0\2"), "it begins like the answer to another request"),
        (checked(b"\1\4\2\0\1"), "it begins like the answer to another request"),
    ],
)
async def test_what_is_not_the_answer_is_an_error_and_the_next_request_gets_its_own(autojump_clock, said, why):
    async with serial() as peer:
        peer.script = [[(0.0, said)], [(0.1, value(8))]]
        with pytest.raises(DeviceError, match=f"what came is not the answer: {why}") as caught:
            await read(peer.line)
        assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "EBADMSG")
        assert await read(peer.line) == 8


async def test_a_line_that_is_never_silent_is_refused_in_bounded_time_with_nothing_sent(autojump_clock):
    async with serial() as peer, trio.open_nursery() as nursery:

        async def jabber():
            while True:
                await peer.say(b"\x55")
                await trio.sleep(frame_gap_s(BAUD) / 2)

        nursery.start_soon(jabber)
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        with pytest.raises(DeviceError, match="never silent") as caught:
            await peer.line.write(1, "holding", 0, [1])
        assert caught.value.data["effect"] == "none"
        assert trio.current_time() - begun < NOISE_S + 0.1
        assert peer.heard == []
        nursery.cancel_scope.cancel()


async def test_a_flood_in_place_of_an_answer_is_refused_and_keeps_no_more_than_the_inbox_holds(autojump_clock):
    async with serial() as peer:
        peer.script = [[(0.0, b"\xff" * 4000)] * 30]
        with pytest.raises(DeviceError, match="unit 255, or noise"):
            await read(peer.line)
        with trio.fail_after(BOUND):
            await passes(lambda: len(peer.port.inbox._data) == 65_536)
        assert len(peer.line._framing._data) <= 4096


async def test_a_flood_that_goes_on_ends_the_wait_for_an_answer_at_its_time(monkeypatch) -> None:
    async with serial() as peer:
        take = peer.port.take

        async def flooded(*args, **more):
            if peer.heard:
                await peer.say(b"\xff")
            return await take(*args, **more)

        monkeypatch.setattr(peer.port, "take", flooded)
        peer.line._timeout_s = 0.1
        with trio.fail_after(BOUND), pytest.raises(DeviceError, match="unit 255, or noise"):
            await read(peer.line)


async def test_a_port_that_receives_its_own_requests_is_used_by_skipping_them(autojump_clock):
    async with serial(rs485=Rs485(loopback=True)) as peer:
        ask = checked(b"\1\3\0\0\0\1")
        peer.script = [[(0.0, ask), (0.1, value(9))], [(0.0, value(9))]]
        assert await read(peer.line) == 9
        with pytest.raises(DeviceError, match="loopback"):
            await read(peer.line)


# --- effects ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def simulated(nursery):
    port = SimModbusPort("line", UartSettings(baud=BAUD), [ONE])
    line = ModbusLine("line", port, [ONE, ALL])
    port.devices[1].memory = {("holding", at): 0 for at in range(4)} | {("coil", at): 0 for at in range(9)}
    line.open()
    nursery.start_soon(line.pump)
    yield line, port.devices[1]
    line.close()


@pytest.mark.parametrize("fault", ["lost", "damaged", "cut", "foreign", 4, 5, 8, 11, 99])
async def test_a_write_whose_answer_is_not_there_or_says_nothing_has_an_unknown_effect(
    simulated, autojump_clock, fault
):
    line, device = simulated
    device.faults.append(fault)
    with pytest.raises(DeviceError, match="not known: read it back") as caught:
        await line.write(1, "holding", 0, [7])
    assert caught.value.data["effect"] == "unknown"
    device.faults.append(fault)
    with pytest.raises(DeviceError) as caught:
        await line.read(1, "holding", 0, 1)
    assert caught.value.data["effect"] == "none"
    done = (0,) if isinstance(fault, int) else (7,)
    assert await line.read(1, "holding", 0, 1) == done


@pytest.mark.parametrize(
    ("code", "why"), [(1, "illegal function"), (2, "address"), (3, "value"), (6, "busy"), (10, "no path")]
)
async def test_a_request_that_the_device_refuses_has_no_effect(simulated, autojump_clock, code, why):
    line, device = simulated
    device.faults.append(code)
    with pytest.raises(DeviceError, match=rf"exception {code}, .*{why}") as caught:
        await line.write(1, "coil", 0, [1, 1])
    assert (caught.value.data["effect"], caught.value.data["exception"]) == ("none", code)
    assert await line.read(1, "coil", 0, 2) == (0, 0)


async def test_a_broadcast_reaches_every_unit_and_waits_for_no_answer(simulated, autojump_clock):
    line, device = simulated
    begun = trio.current_time()
    await line.write(0, "holding", 2, [42])
    assert trio.current_time() - begun >= 0.1, "the turnaround"
    assert await line.read(1, "holding", 2, 1) == (42,)
    assert device.requests == 1


async def test_the_simulated_device_refuses_what_it_does_not_know(simulated, autojump_clock):
    _, device = simulated
    assert device.answer(b"\x2b\0\0\0\1") == b"\xab\1"
    assert device.answer(b"\3\0\0\0\x7e") == b"\x83\3"
    assert device.answer(b"\6\0\x09\0\1") == b"\x86\2"


async def test_a_slow_device_is_waited_for_as_long_as_the_timeout(simulated, autojump_clock):
    line, device = simulated
    device.delay_s = 0.95
    assert await line.read(1, "holding", 0, 1) == (0,)


# --- the end of the port ----------------------------------------------------------------------------------------------


async def test_a_port_that_is_closed_in_mid_request_leaves_a_write_in_doubt(autojump_clock):
    for operation, effect in (
        (lambda line: line.write(1, "holding", 0, [1]), "unknown"),
        (lambda line: line.read(1, "holding", 0, 1), "none"),
    ):
        async with serial() as peer:

            async def close(peer=peer):
                await trio.sleep(0.2)
                peer.line.close()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(close)
                with pytest.raises(DeviceError, match="closed") as caught:
                    await operation(peer.line)
            assert caught.value.data["effect"] == effect


async def test_a_pump_that_is_cancelled_receives_until_the_answer_is_there(autojump_clock):
    peer = Serial()
    peer.line.open()
    async with trio.open_nursery() as outer:
        outer.start_soon(peer.run)
        peer.script = [[(0.2, value(7)[:3]), (0.2, value(7)[3:])]]
        async with trio.open_nursery() as pumping:
            pumping.start_soon(peer.line.pump)

            async def end():
                await trio.sleep(0.3)
                pumping.cancel_scope.cancel()

            outer.start_soon(end)
            with trio.CancelScope(shield=True):
                assert await read(peer.line) == 7
        outer.cancel_scope.cancel()
    peer.line.close()


# --- TCP --------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def server(handler, **more):
    """A line to a server that is played by `handler(stream)`."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
        port = TcpPort("line", "127.0.0.1", listener.socket.getsockname()[1])
        line = ModbusLine("line", port, [ONE, ALL], **more)
        await trio.to_thread.run_sync(line.open)
        yield line, nursery
        line.close()
        nursery.cancel_scope.cancel()


async def requests(stream):
    """Yield the requests on a connection."""
    data = b""
    async for part in stream:
        data += part
        while len(data) >= 12:
            yield data[:12]
            data = data[12:]


def tcp_value(request, number):
    return request[:4] + b"\0\5" + request[6:8] + b"\2" + number.to_bytes(2, "big")


async def test_over_tcp_a_late_answer_is_skipped_by_its_number_and_the_next_request_does_not_wait(nursery):
    held = []

    async def handler(stream):
        async for request in requests(stream):
            held.append(request)
            if len(held) == 2:
                await stream.send_all(tcp_value(held[0], 111) + tcp_value(held[1], 222))

    with trio.fail_after(BOUND):
        async with server(handler, timeout_s=0.05, reconnect=False) as (line, nursery):
            nursery.start_soon(line.pump)
            with pytest.raises(TimedOut):
                await read(line)
            line._timeout_s = BOUND
            assert await read(line) == 222


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda request: request[:2] + b"\0\1" + request[4:] + b"\0", "no Modbus TCP"),
        (lambda request: b"\xff\xff\0\0\0\3\1\3\0" * (MOST_STRAYS + 2), "answers to other requests"),
    ],
)
async def test_a_stream_that_cannot_be_followed_is_hung_up_and_the_pump_says_that_the_device_is_gone(answer, why):
    async def handler(stream):
        async for request in requests(stream):
            await stream.send_all(answer(request))

    with trio.fail_after(BOUND):
        async with server(handler) as (line, _):
            async with trio.open_nursery() as nursery:
                ended = []

                async def pump():
                    with pytest.raises(DeviceError, match=r"connection to 127\.0\.0\.1:\d+ has ended") as caught:
                        await line.pump()
                    ended.append(caught.value.data["line"])

                nursery.start_soon(pump)
                with pytest.raises(DeviceError, match=why) as caught:
                    await line.write(1, "holding", 0, [1])
                assert caught.value.data["effect"] == "unknown"
            assert ended == ["line"]
            line.port.hang_up()


async def test_a_server_that_floods_is_not_read_further_than_a_page_and_is_hung_up():
    async def handler(stream):
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"\x12\x34\0\0\0\3\1\3\0" * 1000)

    with trio.fail_after(BOUND):
        async with server(handler) as (line, nursery):

            async def pump():
                with pytest.raises(DeviceError):
                    await line.pump()

            nursery.start_soon(pump)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert len(line.port.inbox._data) <= 4096
            with pytest.raises(DeviceError, match=r"answers to other requests|has ended") as caught:
                await line.read(1, "holding", 0, 1)
            assert caught.value.data["effect"] == "none"
            assert len(line._framing._data) <= 4096 + 260


async def test_a_connection_that_ends_in_mid_request_leaves_a_write_in_doubt_and_is_made_again():
    connections = []

    async def handler(stream):
        connections.append(stream)
        if len(connections) == 1:
            await stream.receive_some(12)
            return
        async for request in requests(stream):
            await stream.send_all(tcp_value(request, 9) if request[7] == 3 else request)

    for reads in (False, True):
        connections.clear()
        with trio.fail_after(BOUND):
            async with server(handler) as (line, nursery):
                nursery.start_soon(line.pump)
                if not reads:
                    with pytest.raises(DeviceError, match=r"the connection to .* has ended") as caught:
                        await line.write(1, "holding", 0, [1])
                    assert caught.value.data["effect"] == "unknown"
                assert await read(line) == 9
                assert len(connections) == 2


async def test_unit_0_is_no_broadcast_over_tcp():
    async def handler(stream):
        async for request in requests(stream):
            await stream.send_all(request)

    with trio.fail_after(BOUND):
        async with server(handler) as (line, nursery):
            nursery.start_soon(line.pump)
            await line.write(0, "holding", 0, [1])


async def test_a_server_that_is_not_there_is_an_error_with_its_address_and_can_be_opened_later():
    with trio.socket.socket() as listening:
        await listening.bind(("127.0.0.1", 0))
        number = listening.getsockname()[1]
        port = TcpPort("line", "127.0.0.1", number, connect_s=1)
        line = ModbusLine("line", port, [ONE])
        with pytest.raises(DeviceError, match=rf"modbus line line: no connection to 127\.0\.0\.1:{number}: ") as caught:
            await trio.to_thread.run_sync(line.open)
        assert caught.value.data == {"line": "line", "errno": "ECONNREFUSED", "effect": "none"}
        line.close()
        listening.listen()
        await trio.to_thread.run_sync(line.open)
        line.close()


def test_an_ipv6_address_is_shown_in_brackets():
    assert str(TcpPort("line", "::1", 502)) == "[::1]:502"


def test_hanging_up_twice_is_once_and_other_failures_are_not_hidden(monkeypatch):
    port = TcpPort("line", "127.0.0.1", 502)
    port.hang_up()

    class Broken:
        def shutdown(self, _how):
            raise OSError(errno.EBADF, "bad")

    port._socket = Broken()
    with pytest.raises(OSError, match="bad"):
        port.hang_up()
