"""`hearth doctor` on a board with Modbus over TCP: addresses that take no connection, each with its cure, in time."""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack, contextmanager

import pytest
from support.modbus_server import modbus_server

from hearth.drivers.boards.diagnose import mismatches
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.linux.device_users import NO_HOLDERS
from hearth.drivers.modbus.machine import unreachable
from hearth.drivers.modbus.spec import ModbusSpec

WITHIN_S = 0.3


def tcp(port, host="127.0.0.1"):
    return ModbusSpec(f"line{port}", "tcp", host=host, tcp_port=port)


def listener(stack, family=socket.AF_INET, backlog=5):
    made = stack.enter_context(socket.socket(family))
    made.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    made.listen(backlog)
    return made, made.getsockname()[1]


@contextmanager
def silent():
    """The port of a server that takes no further connection and refuses none: its queue is full."""
    with ExitStack() as stack:
        server, port = listener(stack, backlog=0)
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        # It has room for one: from then on the kernel drops what comes.
        assert select.select([server], [], [], 10)[0]
        yield port


def free_port(family=socket.AF_INET):
    with ExitStack() as stack:
        return listener(stack, family)[1]


def test_a_server_that_takes_connections_is_no_problem():
    with modbus_server("tcp") as port:
        assert list(unreachable([tcp(int(port))])) == []


@pytest.mark.parametrize(
    ("family", "host", "shown"), [(socket.AF_INET, "127.0.0.1", "127.0.0.1:{}"), (socket.AF_INET6, "::1", "[::1]:{}")]
)
def test_where_nothing_listens_the_port_is_to_be_looked_at(family, host, shown):
    port = free_port(family)
    (problem,) = unreachable([tcp(port, host)])
    assert (problem.key, problem.problem, problem.cure) == (
        "modbus[0].host",
        f"nothing listens at {shown.format(port)}",
        "is Modbus TCP switched on in the device, and is `tcp_port` right?",
    )


def test_addresses_that_do_not_answer_cost_one_wait_together(tmp_path):
    with silent() as port:
        began = time.monotonic()
        lines = [*[tcp(port)] * 10, ModbusSpec("serial", "rtu", path="/dev/null"), tcp(free_port())]
        # The connection that fills the queue is not a daemon's.
        problems = list(unreachable(lines, tmp_path, within_s=WITHIN_S))
        assert time.monotonic() - began < 8 * WITHIN_S
    told = {one.key: (one.problem, one.cure) for one in problems}
    assert set(told) == {f"modbus[{at}].host" for at in (*range(10), 11)}
    problem, cure = told["modbus[9].host"]
    assert problem == f"127.0.0.1:{port} does not answer within 0.3 s"
    assert "`ping 127.0.0.1`" in cure
    assert "nothing listens" in told["modbus[11].host"][0]


def test_an_address_without_a_way_names_the_network():
    # A connection to a multicast address is refused by the kernel itself.
    (problem,) = unreachable([tcp(502, "224.0.0.1")])
    assert problem.problem.startswith("there is no way to 224.0.0.1:502: ")
    assert "`ip route get 224.0.0.1`" in problem.cure


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_device_that_this_machine_is_connected_to_gets_no_second_connection(family, host):
    with ExitStack() as stack:
        server, port = listener(stack, family)
        stack.enter_context(socket.create_connection((host, port)))
        stack.enter_context(server.accept()[0])
        assert list(unreachable([tcp(port, host)])) == []
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_it_is_a_failed_check_of_the_profile(tmp_path):
    device = {"unit": 1, "name": "METER", "raw": "r"}
    line = {"line": "meter", "driver": "tcp", "host": "127.0.0.1", "tcp_port": free_port(), "device": [device]}
    profile = parse_profile({"name": "b", "description": "b", "modbus": [line]}, "profile")
    (problem,) = mismatches(profile, {}, NO_HOLDERS)
    assert (problem.key, problem.severity) == ("modbus[0].host", "fail")


def test_without_the_kernels_list_of_connections_the_address_is_tried(tmp_path):
    (problem,) = unreachable([tcp(free_port())], tmp_path)
    assert "nothing listens" in problem.problem
