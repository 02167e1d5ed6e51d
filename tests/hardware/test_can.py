"""CAN on the kernel's own interfaces: a virtual bus, and an adapter whose error states and unplugging a test plays."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.testing
from support.can_bus import BUS_OFF, answering, deaf_slcan, ip, node, remove, slcan, virtual

import hearth
from hearth.drivers.boards import open_board
from hearth.drivers.boards.diagnose import look
from hearth.drivers.boards.discover import find
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.can.driver import EXTENDED, Frame
from hearth.drivers.can.linux import LinuxCan
from hearth.errors import DeviceError, LimitViolated, TimedOut, effect_of

DBC = """VERSION ""
NS_ :
BS_:
BU_: ECU HEARTH
BO_ 291 DRIVE: 2 HEARTH
 SG_ Torque : 0|16@1- (0.5,0) [-100|100] "Nm" ECU
"""
BOUND = 30


def board_of(interface, **more):
    spec = {"bus": "can0", "driver": "socketcan", "interface": interface, **more}
    return open_board(parse_profile({"name": "b", "description": "a board", "can": [spec]}, "a test"))


@asynccontextmanager
async def sessions(board, count=1):
    """A runtime over the board, and sessions of it."""
    with trio.fail_after(BOUND):
        async with hearth.open_runtime(board=board) as runtime:
            opened = []
            async with trio.open_nursery() as nursery:
                ended = trio.Event()

                async def hold(task_status):
                    async with runtime.open_session(client_name="c") as session:
                        opened.append(session)
                        task_status.started()
                        await ended.wait()

                for _ in range(count):
                    await nursery.start(hold)
                await bus_state(opened[0], "ready")
                yield opened
                ended.set()


async def bus_state(session, state):
    """Wait until the bus is in that state; what health says of it then."""
    while True:
        bus = (await session.run("hw.board"))["health"]["buses"]["can:can0"]
        if bus["state"] == state:
            return bus
        await trio.sleep(0.02)


@pytest.fixture
def vcan():
    with virtual(fd=True) as name:
        yield name


# --- raw, FD, filters, DBC --------------------------------------------------------------------------------------------


async def test_raw_frames_of_11_and_29_bits_pass_both_ways_through_the_tools(vcan):
    with node(vcan) as other:
        async with sessions(board_of(vcan)) as (session,):
            await session.run("can.send", bus="can0", id=0x123, hex="abcd")
            await session.run("can.send", bus="can0", id="0x00000123", hex="")
            assert [other.hear(), other.hear()] == [(0x123, b"\xab\xcd"), (0x123 | EXTENDED, b"")]
            other.say(0x18FECA00 | EXTENDED, b"x")
            (frame,) = (await session.run("can.read", bus="can0", timeout_ms=9000))["frames"]
            assert (frame["id"], frame["hex"]) == ("0x18feca00", "78")


async def test_fd_frames_of_64_bytes_pass_both_ways_and_a_classic_interface_refuses_the_profile(vcan):
    with node(vcan, fd=True) as other:
        async with sessions(board_of(vcan, fd=True)) as (session,):
            await session.run("can.send", bus="can0", id=0x321, hex="ab" * 64)
            assert other.hear() == (0x321, b"\xab" * 64)
            other.say_fd(0x322, bytes(range(48)), fast=False)
            (frame,) = (await session.run("can.read", bus="can0", timeout_ms=9000))["frames"]
            assert (frame["hex"], frame["fd"], frame["bitrate_switch"]) == (bytes(range(48)).hex(), True, False)
    with virtual("vcan1") as classic, pytest.raises(DeviceError, match="does no CAN FD"):
        LinuxCan("can0", classic, fd=True).open()


async def test_the_filters_of_the_profile_are_the_kernels(vcan):
    filters = [{"id": 0x120, "mask": 0x7F0}, {"id": 0x300, "extended": True}]
    with node(vcan) as other:
        async with sessions(board_of(vcan, filters=filters)) as (session,):
            await session.run("can.read", bus="can0", timeout_ms=0)
            for key in (0x123, 0x300, 0x300 | EXTENDED, 0x123 | EXTENDED, 0x12F):
                other.say(key)
            answer = await session.run("can.read", bus="can0", count=3, timeout_ms=9000)
            assert [frame["id"] for frame in answer["frames"]] == ["0x123", "0x00000300", "0x12f"]
            # A frame that the filters would not let in is sent, and confirmed, all the same.
            await session.run("can.send", bus="can0", id=0x700, hex="")
            (bus,) = (await session.run("hw.can.list"))["buses"]
            assert bus["received"] == 3


async def test_signals_are_sent_and_read_by_name_and_their_limits_hold_for_raw_bytes(vcan, tmp_path):
    path = tmp_path / "drive.dbc"
    path.write_text(DBC)
    limits = {"DRIVE.Torque": {"limit": {"min": 0}}}
    with node(vcan) as other:
        async with sessions(board_of(vcan, dbc=str(path), signals=limits)) as (session,):
            await session.run("can.send", bus="can0", message="DRIVE", signals={"Torque": 12.5})
            assert other.hear() == (291, b"\x19\x00")
            for args in ({"message": "DRIVE", "signals": {"Torque": -1}}, {"id": 291, "hex": "ffff"}):
                with pytest.raises(LimitViolated, match="0 to 100 Nm"):
                    await session.run("can.send", bus="can0", **args)
            other.say(291, b"\x64\x00")
            (frame,) = (await session.run("can.read", bus="can0", timeout_ms=9000))["frames"]
            assert (frame["message"], frame["signals"]) == ("DRIVE", {"Torque": {"value": 50, "unit": "Nm"}})
            assert other.heard() == []


ENGINE = f"""VERSION ""
NS_ :
BS_:
BU_: ECU HEARTH
BO_ {0x98F00403} EEC1: 8 ECU
 SG_ Speed : 24|16@1+ (0.125,0) [0|8031.875] "rpm" HEARTH
BO_ {0x8C000003} TSC1: 8 HEARTH
 SG_ Wanted : 8|16@1+ (0.125,0) [0|8031.875] "rpm" ECU
BA_DEF_ BO_ "VFrameFormat" ENUM "StandardCAN","ExtendedCAN","reserved","J1939PG";
BA_DEF_DEF_ "VFrameFormat" "J1939PG";
"""
BROADCAST = socket.J1939_NO_ADDR


@contextmanager
def j1939_node(interface, address):
    """Another node whose identifiers the kernel's J1939 makes and reads."""
    with socket.socket(socket.AF_CAN, socket.SOCK_DGRAM, socket.CAN_J1939) as made:
        made.settimeout(BOUND)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.bind((interface, socket.J1939_NO_NAME, socket.J1939_NO_PGN, address))
        yield made


async def test_j1939_messages_of_the_kernels_own_stack_are_read_from_any_address_and_read_by_it(vcan, tmp_path):
    path = tmp_path / "engine.dbc"
    path.write_text(ENGINE)
    async with sessions(board_of(vcan, dbc=str(path))) as (session,):
        await session.run("can.read", bus="can0", timeout_ms=0)
        for address, message, signal, group, to, hexes, value in (
            (0x00, "EEC1", "Speed", 0xF004, BROADCAST, "ff7d7d007dffffff", 4000),
            (0x21, "EEC1", "Speed", 0xF004, BROADCAST, "ff7d7dffffffffff", None),
            (0xF9, "TSC1", "Wanted", 0x0000, 0x30, "ff007dffffffffff", 4000),
        ):
            with j1939_node(vcan, address) as other:
                other.sendto(bytes.fromhex(hexes), (vcan, socket.J1939_NO_NAME, group, to))
                (frame,) = (await session.run("can.read", bus="can0", timeout_ms=9000))["frames"]
            assert (frame["message"], int(frame["id"], 16) & 0xFF) == (message, address)
            assert frame["signals"][signal]["value"] == value
        with j1939_node(vcan, 0x30) as other:
            await session.run("can.send", bus="can0", message="EEC1", signals={"Speed": 1000})
            data, (*_, group, address) = other.recvfrom(64)
            assert (data[3:5], group, address) == ((8000).to_bytes(2, "little"), 0xF004, 3)


# --- ISO-TP -----------------------------------------------------------------------------------------------------------


async def test_an_isotp_exchange_of_many_frames_with_another_node(vcan):
    with answering(vcan, 0x7E0, 0x7E8, lambda message: message[::-1]), node(vcan) as spy:
        async with sessions(board_of(vcan)) as (session,):
            answer = await session.run("can.isotp", bus="can0", tx=0x7E0, rx=0x7E8, hex="0102030405060708", padding=0)
            assert answer["hex"] == "0807060504030201"
            kinds = [spy.hear()[1][0] >> 4 for _ in range(6)]
            assert kinds == [1, 3, 2, 1, 3, 2], "first, flow control, consecutive, and the same back"


async def test_isotp_over_fd_frames_needs_fewer_of_them(vcan):
    with answering(vcan, 0x7E0, 0x7E8, lambda _message: b"ok", fd=True), node(vcan, fd=True) as spy:
        async with sessions(board_of(vcan, fd=True)) as (session,):
            answer = await session.run("can.isotp", bus="can0", tx=0x7E0, rx=0x7E8, hex="55" * 60, fd=True)
            assert answer["text"] == "ok"
            assert spy.hear()[1][:2] == bytes([0, 60]), "a single frame"


# --- sessions and their queues ----------------------------------------------------------------------------------------


async def test_two_sessions_have_queues_of_their_own(vcan):
    with node(vcan) as other:
        async with sessions(board_of(vcan), 2) as (one, two):
            for session in (one, two):
                await session.run("can.read", bus="can0", timeout_ms=0)
            for number in range(4):
                other.say(number)
            first = await one.run("can.read", bus="can0", count=4, timeout_ms=9000)
            assert [frame["id"] for frame in first["frames"]] == ["0x000", "0x001", "0x002", "0x003"]
            await two.run("can.send", bus="can0", id=0x70, hex="")
            later = await two.run("can.read", bus="can0", count=4, timeout_ms=9000)
            assert [frame["id"] for frame in later["frames"]] == ["0x000", "0x001", "0x002", "0x003"]
            seen = await one.run("can.read", bus="can0", timeout_ms=9000)
            assert [frame["id"] for frame in seen["frames"]] == ["0x070"], "what the other session sent"
            none = await two.run("can.read", bus="can0", timeout_ms=0)
            assert none["frames"] == [], "not what it sent itself"


async def test_what_a_session_reads_too_late_is_counted(vcan):
    with node(vcan) as other:
        async with sessions(board_of(vcan, queue=16), 2) as (slow, quick):
            for session in (slow, quick):
                await session.run("can.read", bus="can0", timeout_ms=0)
            for first in (0, 16):
                for number in range(first, first + 16):
                    other.say(number)
                answer = await quick.run("can.read", bus="can0", count=16, timeout_ms=9000)
                assert (len(answer["frames"]), answer["lost"]) == (16, 0)
            answer = await slow.run("can.read", bus="can0", count=16, timeout_ms=9000)
            assert (answer["lost"], answer["frames"][0]["id"]) == (16, "0x010")


async def test_what_the_kernel_drops_before_it_is_read_is_counted_too(vcan):
    driver = LinuxCan("can0", vcan)
    driver.open()
    cursor = driver.queue.cursor("a")
    driver._rx.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    with node(vcan) as other:
        for number in range(100):
            other.say(number)
        # No further frame comes: the socket itself says how many it had no room for.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.pump)
            with trio.fail_after(BOUND):
                await driver.queue.wait(cursor, None, 1)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    taken = driver.queue.take(cursor, None, 200, partial=True)
    assert taken.lost > 0
    assert len(taken.frames) + taken.lost == 100
    driver.close()
    driver.open()
    assert driver.queue.kernel_lost == taken.lost, "of all openings together"
    driver.close()


async def test_a_watch_streams_every_frame(vcan):
    with node(vcan) as other:
        async with sessions(board_of(vcan)) as (session,):
            task = await session.submit("w", [hearth.step("can.watch", bus="can0", count=300, every_ms=10)])
            seen = []
            async for event in task.events():
                if event.phase == "start":
                    await bus_transactions(session, 1)
                    for number in range(300):
                        other.say(number)
                elif event.phase == "progress":
                    seen += [frame["id"] for frame in event.data["data"]["frames"]]
            assert seen == [f"{number:#05x}" for number in range(300)]


async def bus_transactions(session, count):
    """Wait until the bus has begun so many transactions."""
    while True:
        if (await session.run("hw.board"))["health"]["buses"]["can:can0"]["transactions"] >= count:
            return
        await trio.sleep(0.01)


# --- errors, bus-off, unplugging --------------------------------------------------------------------------------------


async def test_an_error_frame_tells_readers_who_ask_and_sets_the_state(vcan):
    with node(vcan) as other:
        async with sessions(board_of(vcan)) as (session,):
            await session.run("can.read", bus="can0", timeout_ms=0)
            other.report(0x04, bytes([0, 0x20, 0, 0, 0, 0, 0, 0]))
            answer = await session.run("can.read", bus="can0", errors=True, timeout_ms=9000)
            assert answer["frames"][0]["error"] == ["transmit error passive"]
            (bus,) = (await session.run("hw.can.list"))["buses"]
            assert bus["state"] == "error-passive"


async def test_bus_off_brings_the_bus_down_and_it_is_reopened_when_the_controller_is_back():
    with slcan() as adapter:
        name = adapter.plug()
        async with sessions(board_of(name)) as (session,):
            await session.run("can.send", bus="can0", id=0x123, hex="abcd")
            assert adapter.heard() == b"t1232ABCD\r"
            adapter.say(b"t4563010203")
            (frame,) = (await session.run("can.read", bus="can0", timeout_ms=9000))["frames"]
            assert (frame["id"], frame["hex"]) == ("0x456", "010203")
            adapter.say(b"sb256256")
            down = await bus_state(session, "down")
            assert "bus off" in down["reason"]
            with pytest.raises(DeviceError, match="bus off") as caught:
                await session.run("can.send", bus="can0", id=1, hex="")
            assert effect_of(caught.value) == "none"
            (found,) = [one for one in look()["cans"] if one["node"] == name]
            assert "off the bus" in found["problem"]
            adapter.down()
            adapter.up()
            await bus_state(session, "ready")
            await session.run("can.send", bus="can0", id=0x124, hex="")
            assert adapter.heard() == b"t1240\r"


async def test_a_bus_off_that_the_kernel_mends_itself_is_reopened_and_audited_as_down(vcan):
    with node(vcan) as other:
        async with sessions(board_of(vcan)) as (session,):
            other.report(BUS_OFF)
            await bus_state(session, "down")
            await bus_state(session, "ready")
            await session.run("can.send", bus="can0", id=1, hex="")


async def test_an_adapter_that_is_pulled_out_in_mid_read_fails_it_clearly_and_is_opened_when_it_returns():
    failures = []

    async def read(session):
        with pytest.raises(DeviceError, match=r"is down|plugged in") as caught:
            await session.run("can.read", bus="can0", timeout_ms=BOUND * 1000)
        failures.append(effect_of(caught.value))

    with slcan() as adapter:
        name = adapter.plug()
        async with sessions(board_of(name)) as (session,):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, session)
                await bus_transactions(session, 1)
                await trio.to_thread.run_sync(adapter.unplug)
            assert failures == ["none"]
            down = await bus_state(session, "down")
            assert "can0" in down["reason"]
            await trio.to_thread.run_sync(adapter.plug)
            await bus_state(session, "ready")
            await session.run("can.send", bus="can0", id=5, hex="")


async def test_an_interface_that_is_removed_in_an_isotp_transfer_leaves_its_effect_unknown(vcan):
    failures = []

    async def exchange(session):
        with pytest.raises(DeviceError) as caught:
            await session.run("can.isotp", bus="can0", tx=0x7E0, rx=0x7E8, hex="00" * 8, timeout_ms=BOUND * 1000)
        failures.append(effect_of(caught.value))

    with node(vcan) as other:
        async with sessions(board_of(vcan)) as (session,):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(exchange, session)
                assert (await trio.to_thread.run_sync(other.hear))[1][0] >> 4 == 1
                await trio.to_thread.run_sync(remove, vcan)
            assert failures == ["unknown"]


async def test_a_frame_that_the_kernel_does_not_take_has_no_effect():
    with slcan() as adapter:
        driver = LinuxCan("can0", adapter.plug())
        driver.open()
        ip("set", adapter.name, "down")
        for op in (driver.send(Frame(1, b""), timeout_s=1), driver.isotp(1, 2, b"x", timeout_s=1)):
            with trio.fail_after(BOUND), pytest.raises(DeviceError, match="is down") as caught:
                await op
            assert not isinstance(caught.value, TimedOut)
            assert effect_of(caught.value) == "none"
        driver.close()


async def test_a_full_transmit_queue_is_waited_for_and_a_frame_that_it_does_not_take_has_no_effect():
    with deaf_slcan() as adapter:
        driver = LinuxCan("can0", adapter.name)
        driver.open()
        with node(adapter.name) as other:
            other.say_until_full()
        with trio.fail_after(BOUND), pytest.raises(TimedOut, match="transmit queue is full") as caught:
            await driver.send(Frame(1, b""), timeout_s=0.1)
        assert effect_of(caught.value) == "none"
        assert not driver._sent
        driver.close()


async def test_a_frame_without_an_acknowledgement_has_an_unknown_effect(vcan):
    """A virtual bus acknowledges everything: here the kernel is told not to hand frames back."""
    driver = LinuxCan("can0", vcan)
    driver.open()
    driver._tx.setsockopt(socket.SOL_CAN_RAW, socket.CAN_RAW_LOOPBACK, 0)
    with node(vcan) as other:
        other.say(1)  # one of another node is not mistaken for it
        with trio.fail_after(BOUND), pytest.raises(TimedOut, match="acknowledged") as caught:
            await driver.send(Frame(1, b""), timeout_s=0.1)
    assert effect_of(caught.value) == "unknown"
    driver.close()


# --- the machine ------------------------------------------------------------------------------------------------------


async def test_an_interface_that_is_down_is_told_with_the_command_that_brings_it_up_and_opened_when_it_is():
    with virtual("vcan2", up=False) as name:
        (found,) = [one for one in find(("can",)).get("can", ()) if one.name == name]
        assert (found.down, found.fd) == (True, False)
        profile = {"name": "b", "description": "x", "can": [{"bus": "can0", "driver": "socketcan", "interface": name}]}
        board = open_board(parse_profile(profile, "a test"))
        async with hearth.open_runtime(board=board) as runtime, runtime.open_session(client_name="c") as session:
            down = await bus_state(session, "down")
            assert f"sudo ip link set {name} up" in down["reason"]
            ip("set", name, "up")
            await bus_state(session, "ready")


def test_a_generic_board_has_the_interfaces_that_the_machine_has(vcan):
    profile = parse_profile({"name": "b", "description": "x", "discover": {"can": ["vcan*"]}}, "a test")
    board = open_board(profile)
    assert "can:vcan0" in board.drivers
    assert board.drivers["can:vcan0"].describe()["fd"] is True
