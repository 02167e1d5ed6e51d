"""`[[can]]` in a board profile, the interfaces that a machine has, and what `hearth doctor` says about them."""

from __future__ import annotations

import socket
import struct
import sys

import pytest

from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.boards.diagnose import look, mismatches
from hearth.drivers.boards.discover import Machine, survey
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.can.driver import Frame, FrameCursor, IdFilter
from hearth.drivers.can.linux import LinuxCan, _unpack, prepare, up_command
from hearth.drivers.can.machine import CanMachine, FoundCan, can_problem
from hearth.drivers.can.spec import CanSpec
from hearth.drivers.linux.device_users import NO_HOLDERS
from hearth.drivers.signals import SignalLimit
from hearth.errors import ConfigError, DeviceError, InvalidParams

REAL = {"bus": "can0", "driver": "socketcan"}


def parsed(*tables, **more):
    return parse_profile({"name": "b", "description": "a board", "can": list(tables), **more}, "a test")


def test_a_bus_is_read_with_all_its_keys():
    filters = [{"id": 0x120, "mask": 0x7F0}, {"id": 0x18FECA00}, {"id": 1, "extended": True}]
    signals = {"DRIVE.Torque": {"limit": {"min": 0, "max": 5.5}}}
    (spec,) = parsed(
        {
            **REAL, "interface": "can7", "bitrate": 250_000, "fd": True, "dbc": "car.dbc", "queue": 16,
            "scope": "declared", "filters": filters, "signals": signals,
        }
    ).of("can")  # fmt: skip
    assert spec == CanSpec(
        "can0", "socketcan", "can7", 250_000, True, "car.dbc", 16, "declared",
        (IdFilter(0x120, 0x7F0), IdFilter(0x18FECA00, 0x1FFFFFFF, True), IdFilter(1, 0x1FFFFFFF, True)),
        {"DRIVE.Torque": SignalLimit(0, 5.5)},
    )  # fmt: skip
    assert parsed(REAL).of("can") == (CanSpec("can0", "socketcan", "can0"),)


def test_two_buses_do_not_have_one_name():
    with pytest.raises(ConfigError, match="is there twice"):
        parsed(REAL, {**REAL, "interface": "can1"})


def test_a_dbc_file_lies_beside_the_profile_that_names_it(tmp_path):
    text = 'VERSION ""\nNS_ :\nBS_:\nBU_: A\nBO_ 5 FIVE: 1 A\n SG_ One : 0|8@1+ (1,0) [0|9] "" A\n'
    (tmp_path / "car.dbc").write_text(text)
    profile = tmp_path / "board.toml"
    profile.write_text('name = "b"\ndescription = "x"\n[[can]]\nbus = "can0"\ndriver = "socketcan"\ndbc = "car.dbc"\n')
    board = open_board(load_profile(str(profile)))
    assert board.drivers["can:can0"].rules.key("FIVE") == 5
    (tmp_path / "car.dbc").unlink()
    with pytest.raises(ConfigError, match=r"car\.dbc cannot be read"):
        open_board(load_profile(str(profile)))


def test_a_bus_that_there_is_not_is_refused_with_those_that_there_are():
    board = open_board(parsed({"bus": "can0", "driver": "sim"}))
    assert board.bus("can", "bus", "can0") == "can:can0"
    with pytest.raises(InvalidParams, match="it has: can0"):
        board.bus("can", "bus", "can1")


# --- the machine ------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path):
    """A machine with four interfaces, one of which is no CAN."""
    interfaces = {
        "eth0": ("1", "0x1003", "1", "1500"),
        "can0": ("280", "0x10c1", "1", "16"),
        "can1": ("280", "0x80", "", "72"),
        "can2": ("280", "0x10c1", "0", "2060"),
        "can3%x": ("280", "0x10c1", "1", "16"),
    }
    for name, values in interfaces.items():
        place = tmp_path / "sys/class/net" / name
        place.mkdir(parents=True)
        for attribute, value in zip(("type", "flags", "carrier", "mtu"), values, strict=True):
            if value:
                (place / attribute).write_text(f"{value}\n")
    return Machine(tmp_path / "sys", tmp_path / "dev", tmp_path / "proc")


def test_the_interfaces_of_a_machine_are_found_with_their_states(machine):
    assert list(CanMachine().find(machine))[:3] == [
        FoundCan("can0", down=False, off_bus=False, fd=False),
        FoundCan("can1", down=True, off_bus=False, fd=True),
        FoundCan("can2", down=False, off_bus=True, fd=True),
    ]


def test_a_board_that_looks_for_interfaces_gets_those_that_its_profile_does_not_list(machine):
    found = {"can": tuple(CanMachine().find(machine))}
    board = parsed({**REAL, "bus": "drive", "interface": "can0"}, discover={"can": True})
    assert [spec.bus for spec in survey(board, found).of("can")] == ["can1", "can2"]
    assert [spec.bus for spec in survey(parsed(discover={"can": ["*2"]}), found).of("can")] == ["can2"]
    assert survey(parsed(), found).of("can") == ()
    assert [spec.bus for spec in load_profile("generic-linux").of("can")] == []
    assert load_profile("rpi5").discover["can"] == ("*",)


@pytest.mark.parametrize(
    ("interface", "fd", "words", "cure"),
    [
        ("can0", False, None, None),
        ("can0", True, "no CAN FD", "dbitrate RATE fd on"),
        ("can1", False, "is down", "sudo ip link set can1 up type can bitrate 500000 restart-ms 100"),
        ("can2", False, "off the bus", "sudo ip link set can2 down"),
        ("can9", False, "there is can0, can1, can2", "plugged in"),
    ],
)
def test_what_keeps_a_bus_from_working_is_told_with_the_command_that_mends_it(interface, fd, words, cure, machine):
    spec = CanSpec("b", "socketcan", interface, bitrate=500_000, fd=fd)
    problem = can_problem(spec, list(CanMachine().find(machine)))
    if words is None:
        assert problem is None
    else:
        assert words in problem[0]
        assert cure in problem[1]


def test_the_fit_of_a_profile_names_the_table(machine):
    found = {"can": tuple(CanMachine().find(machine))}
    profile = parsed(REAL, {**REAL, "bus": "can1"}, {"bus": "can5", "driver": "sim"})
    (problem,) = mismatches(profile, found, NO_HOLDERS, machine)
    assert (problem.key, problem.severity) == ("can[1].interface", "fail")
    told = look(machine=machine)["cans"]
    assert [one["node"] for one in told] == [one.name for one in found["can"]]
    assert [one["problem"] is None for one in told] == [True, False, False, True]


def test_virtual_interfaces_have_no_bit_rate_to_set():
    assert up_command("vcan0", None, fd=False) == "sudo ip link set vcan0 up"
    assert "bitrate RATE" in up_command("can0", None, fd=False)


def test_a_machine_without_the_interface_or_without_can_says_so():
    """Whichever it is: this test runs on machines with and without CAN."""
    with pytest.raises(DeviceError, match=r"no CAN socket|there is no interface") as caught:
        LinuxCan("can0", "nocan9").open()
    assert caught.value.data["effect"] == "none"
    assert sys.platform == "linux"


def test_frames_that_the_kernel_drops_at_the_end_of_a_burst_are_counted_without_a_further_frame():
    """Over datagrams of the loopback: the count is the socket's (SO_MEMINFO), of whatever family it is."""
    driver = LinuxCan("can0", "can0")
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as rx,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as node,
    ):
        rx.bind(("127.0.0.1", 0))
        rx.setblocking(False)
        prepare(rx)
        rx.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for number in range(200):
            node.sendto(struct.pack("=IB3x8s", number, 8, bytes(8)), rx.getsockname())
        assert driver._receive(rx) is None
    taken = driver.queue.take(FrameCursor(0, 0), None, 256, partial=True)
    assert taken.lost > 0
    assert len(taken.frames) + taken.lost == 200
    assert [frame.key for frame in taken.frames] == [*range(len(taken.frames))]


def test_a_request_of_another_node_has_its_length():
    wire = struct.pack("=IB3x8s", 0x4000_0123, 5, bytes(8))
    assert _unpack(0x4000_0123, wire, 7) == Frame(0x123, remote=True, asked=5)
