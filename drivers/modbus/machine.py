"""Modbus lines on this machine: ports and addresses, tried for `hearth doctor`, and opened by the sandbox.

A device is asked for one register, which shows the keys that one needs that does not keep to the standard, and settings
of a serial line that it has in place of the profile's. Nothing is written to it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import time
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import trio
from attrs import evolve

from hearth.drivers.linux.survey import DeviceNode, OnMachine, ProfileProblem, Sockets, real
from hearth.drivers.serial_port.machine import port_problems
from hearth.errors import DeviceError, RpcError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hearth.drivers.linux.survey import Inspection
    from hearth.drivers.modbus.driver import ModbusDevice, ModbusRegister
    from hearth.drivers.modbus.spec import ModbusSpec
    from hearth.drivers.serial_port.settings import Parity

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
    """Yield the keys that devices need which do not keep to the standard, as their answers to one read show.

    The first declared register of a line that can be read is asked for, as a daemon would ask. A line that cannot be
    opened is passed over, and one that a process of this machine uses.
    """
    asked = [
        (f"modbus[{index}]", spec)
        for index, spec in enumerate(lines)
        if spec.driver == "rtu" or (spec.host is not None and not _connected(spec.host, spec.tcp_port, proc))
    ]
    if asked:
        from concurrent.futures import ThreadPoolExecutor  # a daemon imports this module, and asks nobody

        with ThreadPoolExecutor(len(asked)) as pool:
            yield from chain.from_iterable(pool.map(lambda one: list(_quirk(*one)), asked))


def _quirk(at: str, spec: ModbusSpec) -> Iterator[ProfileProblem]:
    found = ((unit, one) for unit in spec.devices for one in unit.registers if "r" in one.access)
    device, register = next(found, (None, None))
    if device is None or register is None:
        return
    try:
        fault, advice = _tried(spec, device, register)
    except RpcError:
        return  # it cannot be opened: `unreachable` and `faults` say so
    yield from (ProfileProblem(at, "warn", *one) for one in advice)
    if advice or fault is None:
        return
    if (not fault or spec.driver == "rtu") and (answered := _answered(spec, device, register)) is not None:
        key, told, cure = answered
        yield ProfileProblem(f"{at}.{key}", "warn", told, cure)
        return
    if fault:
        yield ProfileProblem(at, "warn", f"{device.name} is not understood: {fault}")
        return
    told = f"{device.name} (unit {device.unit}) does not answer a read within {spec.timeout_ms:g} ms"
    cure = f"is it on{', set to RTU' if spec.driver == 'rtu' else ''}, and is its unit right?"
    yield ProfileProblem(at, "warn", told, cure)


def _answered(spec: ModbusSpec, device: ModbusDevice, register: ModbusRegister) -> tuple[str, str, str] | None:
    """Return the key, the finding and the cure of the first other setting with which a device answers, or None."""
    for other, *found in _others(spec, device):
        with suppress(RpcError):  # a port that does not have these settings
            if _tried(other, device, register)[0] is None:
                key, told, cure = found
                return key, told, cure
    return None


_BAUDS: Final = (9_600, 19_200, 38_400, 57_600, 115_200)
_TRIED_MS: Final = 300.0


def _others(spec: ModbusSpec, device: ModbusDevice) -> Iterator[tuple[ModbusSpec, str, str, str]]:
    """Yield a line with other settings: those, the key that differs, what an answer with them shows, and the cure."""
    if spec.driver == "tcp":
        late = f"{device.name} does not answer when it is connected to, but {REACHED_WITHIN_S:g} s later"
        delay_ms = spec.delay_ms + 1000 * REACHED_WITHIN_S
        yield evolve(spec, delay_ms=delay_ms), "delay_ms", late, f"give the line delay_ms = {delay_ms:g}"
        framing: Literal["rtu", "tcp"] = "tcp" if spec.framing == "rtu" else "rtu"
        alone = f"{device.name} answers frames of Modbus {framing.upper()} alone"
        yield evolve(spec, framing=framing, tid="same"), "framing", alone, f'give the line framing = "{framing}"'
        return
    own = spec.settings
    parities: tuple[Parity, ...] = ("even", "none")
    for baud, parity in product(dict.fromkeys((own.baud, *_BAUDS)), parities):
        if (baud, parity) != (own.baud, own.parity):
            settings = evolve(own, baud=baud, parity=parity)
            told = f"{device.name} does not answer at {own.baud} baud, parity {own.parity}, but with others"
            other = evolve(spec, settings=settings, timeout_ms=min(spec.timeout_ms, _TRIED_MS), late_ms=0)
            yield other, "baud", told, f'give the line baud = {baud}, parity = "{parity}"'


def _tried(
    spec: ModbusSpec, device: ModbusDevice, register: ModbusRegister
) -> tuple[str | None, Sequence[tuple[str, str]]]:
    """Return why a read has no answer, "" if nothing came, None if there was one; and what the line was seen to need.

    Raises DeviceError and ResourceBusy for a line that cannot be opened.
    """
    line = spec.make_driver(None)

    async def receive() -> None:
        with suppress(DeviceError):
            await line.pump()

    async def read() -> str | None:
        fault = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            try:
                await line.read(device.unit, register.table, register.reg, register.size)
            except DeviceError as error:
                told = error.data or {}
                if "exception" not in told:
                    fault = told.get("reason", "" if isinstance(error, TimedOut) else error.message)
            nursery.cancel_scope.cancel()
        return fault

    try:
        line.open()
        return trio.run(read), line.advice
    finally:
        line.close()


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
