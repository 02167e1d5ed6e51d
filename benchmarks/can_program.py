"""The other processes of `benchmarks.can`: a program that sends CAN frames at a rate, and a bare one that reads them.

    python -m benchmarks.can_program send COUNT RATE WIRE...
    python -m benchmarks.can_program bare WIRE

A wire is the name of a CAN interface, or stands for one where the machine has none: the port of a UDP socket on
loopback to send to, the number of an inherited descriptor of that socket to read from. A datagram is then a frame in
the form that a raw CAN socket reads and writes. Like such a socket, a UDP socket drops what its buffer cannot hold, and
counts it.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

import trio

FRAME = struct.Struct("=IB3xQ")
LONGEST = 72
"""Bytes of a CAN FD frame, the longest that a raw CAN socket reads."""
KNOWN = 0x100
"""The identifier of ENGINE_DATA in the simulated board's DBC file: one frame in four has it."""


def opened(wire: str, *, filters: bytes | None = None) -> socket.socket:
    """A socket that reads from a wire."""
    if wire.isdigit():
        return socket.socket(fileno=int(wire))
    made = socket.socket(socket.AF_CAN, socket.SOCK_RAW, socket.CAN_RAW)
    if filters is not None:
        made.setsockopt(socket.SOL_CAN_RAW, socket.CAN_RAW_FILTER, filters)
    made.bind((wire,))
    return made


def speaker(wire: str) -> socket.socket:
    """A socket that sends to a wire, and reads nothing."""
    if not wire.isdigit():
        return opened(wire, filters=b"")
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.connect(("127.0.0.1", int(wire)))
    return made


def send(count: int, rate: int, wires: list[str]) -> None:
    """Send frames to all wires, each at the time when it is due."""
    speakers = [speaker(wire) for wire in wires]
    begun = time.monotonic()
    for number in range(count):
        wait = begun + number / rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        frame = FRAME.pack(KNOWN if number % 4 == 0 else 0x400 + number % 64, 8, number & 0x3FFF)
        for one in speakers:
            one.send(frame)


async def bare(wire: str) -> None:
    """Read frames, and do nothing with them."""
    stream = trio.socket.from_stdlib_socket(opened(wire))
    print("bare: ready on its wire", file=sys.stderr, flush=True)
    while True:
        await stream.recv(LONGEST)


def main() -> None:
    """Send, or read."""
    what, *rest = sys.argv[1:]
    if what == "send":
        send(int(rest[0]), int(rest[1]), rest[2:])
    else:
        trio.run(bare, rest[0])


if __name__ == "__main__":
    main()
