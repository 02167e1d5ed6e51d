"""pymodbus's own server as a process: a Modbus device that is not ours, on a TCP port or on a serial port.

`python modbus_server.py tcp` chooses a port of 127.0.0.1; `rtu PATH BAUD PARITY` opens a serial port; `cable FD` makes
a null modem of the pseudo-terminal whose master it gets, and one of its own. It prints the port number, or the path,
when it serves. Unit 3 has 200 of each table: coils and discrete inputs are 0, a
holding register is 0, an input register is its own address.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tty
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

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
