"""Modbus lines on this machine: ports and addresses, tried for `hearth doctor`, and opened by the sandbox.

A server that takes a connection is asked for one register, which shows the keys that a device needs that does not keep
to the standard. Nothing is written to it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import time
from contextlib import ExitStack
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hearth.drivers.linux.survey import DeviceNode, OnMachine, ProfileProblem, Sockets, real
from hearth.drivers.modbus.codec import BadAnswer, RtuFraming, TcpFraming, read_request
from hearth.drivers.serial_port.machine import port_problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hearth.drivers.linux.survey import Inspection
    from hearth.drivers.modbus.codec import ModbusFraming, ModbusRequest
    from hearth.drivers.modbus.driver import ModbusDevice
    from hearth.drivers.modbus.spec import ModbusSpec

REACHED_WITHIN_S: Final = 2.0
"""Seconds for the connections of all lines together."""
_ESTABLISHED: Final = "01"


def unreachable(
    lines: Sequence[ModbusSpec], proc: Path = Path("/proc"), *, within_s: float = REACHED_WITHIN_S
) -> Iterator[ProfileProblem]:
    """Yield the lines over TCP whose address takes no connection.

    A connection is made and ended, with nothing sent. A device may have only one at a time: where this machine is
    connected to it already, as a daemon is, no other one is made.
    """
    wanted = {
        f"modbus[{index}].host": (spec.host, spec.tcp_port)
        for index, spec in enumerate(lines)
        if spec.driver == "tcp" and spec.host is not None and not _connected(spec.host, spec.tcp_port, proc)
    }
    for key, number in _refused(wanted, within_s).items():
        host, port = wanted[key]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if number == errno.ECONNREFUSED:
            told = f"nothing listens at {where}"
            yield ProfileProblem(key, "fail", told, "is Modbus TCP switched on in the device, and is `tcp_port` right?")
        elif number == errno.ETIMEDOUT:
            told = f"{where} does not answer within {within_s:g} s"
            cure = f"is the device on, and no firewall between? `ping {host}` tells whether it is there"
            yield ProfileProblem(key, "fail", told, cure)
        else:
            told = f"there is no way to {where}: {os.strerror(number)}"
            yield ProfileProblem(key, "fail", told, f"is the network up? `ip route get {host}` shows the way")


def _refused(wanted: Mapping[str, tuple[str, int]], within_s: float) -> dict[str, int]:
    """Connect to all addresses at the same time; return the error of each that takes no connection."""
    refused: dict[str, int] = {}
    deadline = time.monotonic() + within_s
    with ExitStack() as stack:
        poll, waiting = select.poll(), {}
        for key, address in wanted.items():
            made = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET))
            made.setblocking(False)
            number = made.connect_ex(address)
            if number == errno.EINPROGRESS:
                poll.register(made, select.POLLOUT)
                waiting[made.fileno()] = key, made
            elif number:
                refused[key] = number
        while waiting and (left := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(1000 * left):
                poll.unregister(fd)
                key, made = waiting.pop(fd)
                if number := made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    refused[key] = number
        refused |= {key: errno.ETIMEDOUT for key, _ in waiting.values()}
    return refused


def quirks(lines: Sequence[ModbusSpec], proc: Path = Path("/proc")) -> Iterator[ProfileProblem]:
    """Yield the keys that servers need which do not keep to the standard, as their answers to one read each show.

    The first declared register that can be read is asked for. An address that takes no connection is passed over, and
    a device that this machine is connected to.
    """
    asked = [
        (f"modbus[{index}]", spec, spec.host)
        for index, spec in enumerate(lines)
        if spec.driver == "tcp" and spec.host is not None and not _connected(spec.host, spec.tcp_port, proc)
    ]
    if asked:
        from concurrent.futures import ThreadPoolExecutor  # a daemon imports this module, and asks nobody

        with ThreadPoolExecutor(len(asked)) as pool:
            yield from chain.from_iterable(pool.map(lambda one: list(_quirk(*one)), asked))


def _quirk(at: str, spec: ModbusSpec, host: str) -> Iterator[ProfileProblem]:
    found = ((unit, one) for unit in spec.devices for one in unit.registers if "r" in one.access)
    device, register = next(found, (None, None))
    if device is None or register is None:
        return
    request, rtu, late = (
        read_request(device.unit, register.table, register.reg, register.size),
        spec.framing == "rtu",
        "",
    )
    try:
        fault = _tried(spec, host, device, request, rtu=rtu)
        if fault == "":
            late = f"{device.name} does not answer when it is connected to, but {REACHED_WITHIN_S:g} s later"
            fault = _tried(spec, host, device, request, rtu=rtu, later_s=REACHED_WITHIN_S)
        if fault is None:
            if late:
                yield ProfileProblem(f"{at}.delay_ms", "warn", late, "give the line delay_ms = 2000")
        elif fault:
            why, _, cure = fault.partition("; ")
            yield ProfileProblem(at, "warn", f"{device.name} is not understood: {why}", cure or None)
        elif _tried(spec, host, device, request, rtu=not rtu) is None:
            told = f"{device.name} answers frames of Modbus {'TCP' if rtu else 'RTU'} alone"
            yield ProfileProblem(f"{at}.framing", "warn", told, f'give the line framing = "{"tcp" if rtu else "rtu"}"')
        else:
            told = f"{device.name} (unit {device.unit}) does not answer a read within {spec.timeout_ms:g} ms"
            yield ProfileProblem(at, "warn", told, "is it on, and is its unit right?")
    except OSError:
        return  # `unreachable` says so


def _tried(
    spec: ModbusSpec, host: str, device: ModbusDevice, request: ModbusRequest, *, rtu: bool, later_s: float = 0.0
) -> str | None:
    """Return what `_asked` returns on a connection of its own. Raises OSError."""
    with socket.create_connection((host, spec.tcp_port), REACHED_WITHIN_S) as connection:
        time.sleep(spec.delay_ms / 1000 + later_s)
        return _asked(connection, _framing(spec, device, rtu), request, spec.timeout_ms / 1000)


def _framing(spec: ModbusSpec, device: ModbusDevice, rtu: bool) -> ModbusFraming:
    any_unit = device.unit_reply == "any"
    return RtuFraming(any_unit=any_unit) if rtu else TcpFraming(99, tid=spec.tid, any_unit=any_unit)


def _asked(connection: socket.socket, framing: ModbusFraming, request: ModbusRequest, within_s: float) -> str | None:
    """Send a request; return None once its answer is there, else why not: "" if nothing has come."""
    connection.sendall(framing.begin(request))
    deadline = time.monotonic() + within_s
    try:
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            data = connection.recv(4096)
            if not data or framing.feed(data) is not None:
                return None if data else framing.fault() or ""
    except TimeoutError:
        pass
    except BadAnswer as error:
        return str(error)
    return framing.fault() or ""


def _connected(host: str, port: int, proc: Path) -> bool:
    """Return True if a process of this machine has a connection to an address."""
    packed = ip_address(host).packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    remote = "".join(f"{word:08X}" for word in words) + f":{port:04X}"
    try:
        lines = (proc / "net" / ("tcp" if len(packed) == 4 else "tcp6")).read_text("ascii").splitlines()
    except OSError:
        return False
    return any(line.split()[2:4] == [remote, _ESTABLISHED] for line in lines)


class ModbusMachine(OnMachine):
    """Modbus lines as the machine has them."""

    kind = "modbus"

    def problems(self, specs: Sequence[ModbusSpec], look: Inspection) -> Iterator[ProfileProblem]:
        """Yield serial ports that cannot be used, and TCP addresses that take no connection, all tried at once."""
        yield from super().problems(specs, look)
        yield from unreachable(specs, look.machine.proc)
        yield from quirks(specs, look.machine.proc)

    def faults(self, at: str, spec: ModbusSpec, look: Inspection) -> Iterable[ProfileProblem]:
        """See `OnMachine.faults`."""
        return () if spec.path is None else port_problems(f"{at}.path", spec.path, look)

    def files(self, spec: ModbusSpec, sys: Path) -> Iterator[DeviceNode]:
        """Yield the node of a serial line."""
        if spec.driver == "rtu":
            yield DeviceNode(f"modbus line {spec.line}", real(spec.path))

    def sockets(self, specs: Sequence[ModbusSpec]) -> Iterator[Sockets]:
        """Yield the ports of lines over TCP."""
        for spec in specs:
            if spec.driver == "tcp":
                yield Sockets("inet-stream", f"modbus line {spec.line} is at {spec.host}", spec.tcp_port)
