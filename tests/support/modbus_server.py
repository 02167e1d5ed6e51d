"""pymodbus's own server as a process: a Modbus device that is not ours, on a TCP port or on a serial port.

`python modbus_server.py tcp` chooses a port of 127.0.0.1; `rtu PATH BAUD PARITY` opens a serial port; `cable FD` makes
a null modem of the pseudo-terminal whose master it gets, and one of its own. It prints the port number, or the path,
when it serves. Unit 3 has 200 of each table: coils and discrete inputs are 0, a
holding register is 0, an input register is its own address.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import tty
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hearth.drivers.modbus.codec import checked

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 200


@contextmanager
def modbus_server(*args: str, pass_fds: tuple[int, ...] = ()) -> Iterator[str]:
    """Run the server until the block ends; return what it serves on."""
    command = [sys.executable, str(Path(__file__)), *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=pass_fds) as server:
        try:
            assert server.stdout is not None
            ready = server.stdout.readline().strip()
            assert ready, "the server did not start"
            yield ready
        finally:
            server.kill()


@contextmanager
def modbus_pty() -> Iterator[str]:
    """Run the server at the other end of a null modem; return the path of this end, which stays open."""
    master, slave = os.openpty()
    tty.setraw(slave)
    try:
        with modbus_server("cable", str(master), pass_fds=(master,)):
            yield os.ttyname(slave)
    finally:
        os.close(master)
        os.close(slave)


class Quirky:
    """A Modbus server on a TCP port that does not keep to the standard; one register 289 is 215, others are 0.

    `number(n)` is the number of the answer to request n, `unit(u)` its unit. It is deaf for `deaf_s` after a connect,
    ends a connection behind `answers` answers, speaks RTU with `rtu`, knows only the `functions`, and gives exceptions
    another length with `length`.
    """

    def __init__(self, *, number=int, unit=int, deaf_s=0.0, answers=None, rtu=False, functions=(3, 6, 16), length=None):
        self.number, self.unit, self.deaf_s, self.answers = number, unit, deaf_s, answers
        self.rtu, self.functions, self.length = rtu, functions, length
        self.memory, self.writes, self.connections = {289: 215}, [], 0

    @contextmanager
    def serving(self):
        """Serve until the block ends; return the port."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            self._listener = listener
            yield listener.getsockname()[1]
            self.stop()

    @contextmanager
    def on_a_port(self, *, baud=19_200, echo=False, before=b""):
        """Serve RTU on a pseudo-terminal until the block ends; return its path.

        It hears nothing at another baud rate. With `echo` it sends back what it gets; `before` goes before each answer.
        """
        master, slave = os.openpty()
        tty.setraw(slave)

        def serve():
            with suppress(OSError):
                while data := os.read(master, 300):
                    if echo:
                        os.write(master, data)
                    if termios.tcgetattr(master)[5] == getattr(termios, f"B{baud}"):
                        os.write(master, before + (self._answer(data) if self.functions else b""))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield os.ttyname(slave)
        finally:
            os.close(slave)
            thread.join()
            os.close(master)

    def stop(self):
        """Take no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener):
        with suppress(OSError):
            while True:
                connection = listener.accept()[0]
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        deaf_until = time.monotonic() + self.deaf_s
        answered = 0
        with connection, suppress(OSError):
            while answered != self.answers and (data := connection.recv(300)):
                whole = checked(data[:-2]) == data if self.rtu else data[2:4] == b"\0\0" and len(data) == 6 + data[5]
                if whole and time.monotonic() >= deaf_until:
                    answered += 1
                    if answered == self.answers:
                        # The end travels with the answer: who has the one can know of the other.
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                    connection.sendall(self._answer(data))
                    if answered == self.answers:
                        connection.shutdown(socket.SHUT_WR)

    def _answer(self, data):
        if self.rtu:
            return checked(bytes((self.unit(data[0]),)) + self._pdu(data[1:-2]))
        pdu = self._pdu(data[7:])
        size = len(pdu) + 1 if pdu[0] < 0x80 or self.length is None else self.length
        number = self.number(int.from_bytes(data[:2], "big")) & 0xFFFF
        return struct.pack(">HHHB", number, 0, size, self.unit(data[6])) + pdu

    def _pdu(self, pdu):
        function, reg, count = struct.unpack(">BHH", pdu[:5])
        if function not in self.functions:
            return bytes((function | 0x80, 1))
        if function == 3:
            values = [self.memory.get(reg + at, 0) for at in range(count)]
            return struct.pack(f">BB{count}H", 3, 2 * count, *values)
        values = struct.unpack(f">{count}H", pdu[6:]) if function == 16 else (count,)
        self.memory.update({reg + at: value for at, value in enumerate(values)})
        self.writes.append((function, reg, values))
        return pdu[:5]


async def _serve(kind: str, *args: str) -> None:
    from pymodbus import FramerType
    from pymodbus.server import ModbusSerialServer, ModbusTcpServer
    from pymodbus.simulator import DataType, SimData, SimDevice

    bits = [SimData(0, count=SIZE, values=False, datatype=DataType.BITS)]
    holding = [SimData(0, count=SIZE, values=0, datatype=DataType.REGISTERS)]
    inputs = [SimData(0, values=list(range(SIZE)), datatype=DataType.REGISTERS)]
    device = SimDevice(3, simdata=(bits, bits, holding, inputs))
    if kind == "tcp":
        tcp = ModbusTcpServer(device, address=("127.0.0.1", 0))
        await tcp.serve_forever(background=True)
        print(tcp.transport.sockets[0].getsockname()[1], flush=True)
    else:
        far = _cable(int(args[0])) if kind == "cable" else args[0]
        baud, parity = args[1:] or ("19200", "N")
        line = ModbusSerialServer(
            device, framer=FramerType.RTU, port=far, baudrate=int(baud), parity=parity, ignore_missing_devices=True
        )
        await line.serve_forever(background=True)
        print(far, flush=True)
    await asyncio.Event().wait()


def _cable(other: int) -> str:
    """Join a pseudo-terminal to a new one; return the path of that. Two ends of one are no two ports."""
    one, far = os.openpty()
    tty.setraw(far)
    loop = asyncio.get_running_loop()
    loop.add_reader(one, lambda: os.write(other, os.read(one, 4096)))
    loop.add_reader(other, lambda: os.write(one, os.read(other, 4096)))
    return os.ttyname(far)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
