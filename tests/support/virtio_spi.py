"""An SPI controller for the guest, with its devices, played in the runner's process: virtio-spi over vhost-user.

The kernel's own drivers face it: virtio_uml, spi-virtio and spidev. So mode, word size, speed and errors of a transfer
cross the kernel unchanged. Owns the far end of the virtual queue, the devices, and what a test in the guest says and
sees of them, in files of the folder that both sides have:

    spi-hold    while it is there no transfer is answered: it stands in the kernel
    spi-held    is there while one stands
    spi-log     a line of JSON for each transfer that was answered: chip select, bytes out, bytes in

The protocols: the OASIS specification of virtio (split virtqueues; SPI device), and vhost-user of QEMU's documentation.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import socket
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOOPBACK, REGISTERS, HEADER, DEAD = range(4)
"""What is at each chip select: what was sent; 128 registers; the header of the transfer; an error for each transfer."""

_HEAD = struct.Struct("<BBBBB3xIIIIII")
_WORDS_OF_8_16_32 = 1 << 7 | 1 << 15 | 1 << 31
_EVERY_MODE = 0x7F
MAX_HZ = 10_000_000
_CONFIG = struct.pack("<BBBBIIIIIII", 4, 1, 0, 0, _WORDS_OF_8_16_32, _EVERY_MODE, MAX_HZ, *[1_000_000] * 4)
_DONE, _FAILED = b"\0", b"\2"
_FOLDER = Path("/run/hearth")
"""The runner's folder as the guest sees it."""
_POLL_S = 0.002


@frozen
class Header:
    """What the kernel says of a transfer."""

    chip_select: int
    bits: int
    cs_change: int
    tx_lines: int
    rx_lines: int
    mode: int
    hz: int
    word_delay_ns: int
    cs_setup_ns: int
    cs_hold_ns: int
    cs_inactive_ns: int

    @classmethod
    def read(cls, data: bytes) -> Header:
        """Read one from the first bytes of a transfer, or from what the device `HEADER` answers."""
        return cls(*_HEAD.unpack(data[: _HEAD.size]))


@define(eq=False)
class Devices:
    """The devices at the four chip selects, and the folder where a test holds them and sees what they did."""

    folder: Path
    _cells: bytearray = field(factory=lambda: bytearray(128), init=False)

    def transfer(self, head: bytes, sent: bytes) -> bytes | None:
        """Return what comes in while `sent` goes out, as many bytes; None for a transfer that fails."""
        header = Header.read(head)
        self._stand()
        if header.chip_select == DEAD:
            return None
        answer = sent
        if header.chip_select == HEADER:
            answer = head.ljust(len(sent), b"\0")[: len(sent)]
        elif header.chip_select == REGISTERS:
            answer = self._registers(sent)
        entry = {"chip_select": header.chip_select, "sent": sent.hex(), "read": answer.hex()}
        with (self.folder / "spi-log").open("a") as log:
            log.write(json.dumps(entry) + "\n")
        return answer

    def _registers(self, sent: bytes) -> bytes:
        """The first byte is a register's number, with 0x80 to read it; each further one is of the next register."""
        at, reading = sent[0] & 0x7F, sent[0] & 0x80
        back = bytearray(1)
        for byte in sent[1:]:
            back.append(self._cells[at] if reading else 0)
            if not reading:
                self._cells[at] = byte
            at = (at + 1) % len(self._cells)
        return bytes(back)

    def _stand(self) -> None:
        held = self.folder / "spi-held"
        while (self.folder / "spi-hold").exists():
            held.touch()
            time.sleep(_POLL_S)
        held.unlink(missing_ok=True)


# --- the guest's side -------------------------------------------------------------------------------------------------


def spidev(chip_select: int, timeout: float = 10.0) -> str:
    """Return the node of the device at a chip select, once it is there. Raises LookupError."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for device in Path("/sys/bus/spi/devices").glob(f"spi*.{chip_select}"):
            node = Path(f"/dev/spidev{device.name.removeprefix('spi')}")
            if _NODE in device.resolve().parts and node.exists():
                return str(node)
        time.sleep(0.01)
    raise LookupError(f"there is no virtio-spi device at chip select {chip_select}: has the kernel a device tree?")


class Wire:
    """What a test in the guest says to the devices, and what it sees of them."""

    def __init__(self) -> None:
        self._log = _FOLDER / "spi-log"
        self._begin = len(self._lines())

    def _lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def transfers(self) -> list[tuple[int, bytes]]:
        """Return chip select and bytes of each transfer that was answered since this object was made."""
        entries = [json.loads(line) for line in self._lines()[self._begin :]]
        return [(entry["chip_select"], bytes.fromhex(entry["sent"])) for entry in entries]

    def hold(self) -> None:
        """Let transfers stand in the kernel from now on."""
        (_FOLDER / "spi-hold").touch()

    def release(self) -> None:
        """Let them go on."""
        (_FOLDER / "spi-hold").unlink(missing_ok=True)

    def wait_held(self, timeout: float = 10.0) -> None:
        """Wait until a transfer stands. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while not (_FOLDER / "spi-held").exists():
            if time.monotonic() > deadline:
                raise TimeoutError("no transfer stands")
            time.sleep(_POLL_S)


_PLUG = Path("/sys/bus/platform/drivers/virtio-uml")
_NODE = "virtio-spi"
"""The device tree's name of the controller."""


def unplug() -> None:
    """Take the controller away from the guest, in the middle of a transfer too."""
    (_PLUG / "unbind").write_text(_NODE)


def plug() -> None:
    """Bring the controller back."""
    (_PLUG / "bind").write_text(_NODE)


# --- the queue --------------------------------------------------------------------------------------------------------


class _Memory:
    """The guest's memory, of which the kernel passes the descriptor."""

    def __init__(self, descriptor: int, base: int, size: int, offset: int) -> None:
        self._map = mmap.mmap(descriptor, offset + size)
        self._shift = offset - base
        os.close(descriptor)

    def get(self, form: str, address: int) -> tuple[int, ...]:
        return struct.unpack_from(form, self._map, address + self._shift)

    def put(self, form: str, address: int, *values: int) -> None:
        struct.pack_into(form, self._map, address + self._shift, *values)

    def read(self, address: int, size: int) -> bytes:
        return self._map[address + self._shift : address + self._shift + size]

    def write(self, address: int, data: bytes) -> None:
        self._map[address + self._shift : address + self._shift + len(data)] = data


_NEXT, _FOR_US_TO_WRITE = 1, 2


@define(eq=False)
class _Queue:
    """One split virtqueue: descriptors, the ring of those that are offered, the ring of those that are used."""

    size: int = 0
    taken: int = 0
    descriptors: int = 0
    offered: int = 0
    used: int = 0
    kick: int | None = None
    call: int | None = None

    def serve(self, memory: _Memory, devices: Devices) -> None:
        """Answer each transfer that is offered."""
        while self.taken != memory.get("<H", self.offered + 2)[0]:
            (first,) = memory.get("<H", self.offered + 4 + 2 * (self.taken % self.size))
            out: list[bytes] = []
            room: list[tuple[int, int]] = []
            index, more = first, _NEXT
            while more:
                address, length, flags, following = memory.get("<QIHH", self.descriptors + 16 * index)
                if flags & _FOR_US_TO_WRITE:
                    room.append((address, length))
                else:
                    out.append(memory.read(address, length))
                index, more = following, flags & _NEXT
            written = _answer(devices, out, [length for _, length in room])
            for (address, _), data in zip(room, written, strict=True):
                memory.write(address, data)
            (count,) = memory.get("<H", self.used + 2)
            memory.put("<II", self.used + 4 + 8 * (count % self.size), first, sum(map(len, written)))
            memory.put("<H", self.used + 2, (count + 1) & 0xFFFF)
            self.taken = (self.taken + 1) & 0xFFFF
            assert self.call is not None
            os.write(self.call, struct.pack("<Q", 1))


def _answer(devices: Devices, out: Sequence[bytes], room: Sequence[int]) -> list[bytes]:
    """Return the bytes for each of the buffers: what was read, if there is one for it, and then the result."""
    length = room[0] if len(room) > 1 else 0
    sent = out[1] if len(out) > 1 else bytes(length)
    read = devices.transfer(out[0], sent)
    result = [_FAILED if read is None else _DONE]
    return [bytes(length) if read is None else read[:length], *result] if len(room) > 1 else result


# --- vhost-user -------------------------------------------------------------------------------------------------------

_GET_FEATURES, _MEMORY, _NUM, _ADDR, _BASE, _KICK, _CALL, _GET_MORE, _GET_CONFIG = 1, 5, 8, 9, 10, 12, 13, 15, 24
_VERSION_1, _MORE_FEATURES = 1 << 32, 1 << 30
_REPLY_ACK, _WITH_CONFIG = 1 << 3, 1 << 9
_WANTS_REPLY, _IS_REPLY = 8, 5
_MESSAGE = struct.Struct("<III")


class _Front:
    """The connection of one guest's controller."""

    def __init__(self, connection: socket.socket, devices: Devices) -> None:
        self._connection = connection
        self._devices = devices
        self._queue = _Queue()
        self._memory: _Memory | None = None
        self._buffer = b""
        self._passed: list[int] = []

    def run(self) -> None:
        """Serve until the guest is gone or its controller is unplugged."""
        while True:
            kick = self._queue.kick
            ready, _, _ = select.select([self._connection, *([] if kick is None else [kick])], [], [])
            if self._connection in ready:
                data, passed, _, _ = socket.recv_fds(self._connection, 4096, 8)
                if not data:
                    return
                self._buffer += data
                self._passed += passed
                self._read()
            elif kick is not None:
                os.read(kick, 8)
                assert self._memory is not None
                self._queue.serve(self._memory, self._devices)

    def close(self) -> None:
        """Close what the guest passed."""
        for descriptor in (self._queue.kick, self._queue.call, *self._passed):
            if descriptor is not None:
                os.close(descriptor)
        self._connection.close()

    def _read(self) -> None:
        while len(self._buffer) >= _MESSAGE.size:
            kind, flags, size = _MESSAGE.unpack_from(self._buffer)
            end = _MESSAGE.size + size
            if len(self._buffer) < end:
                return
            body, self._buffer = self._buffer[_MESSAGE.size : end], self._buffer[end:]
            reply = self._handle(kind, body)
            if reply is None and flags & _WANTS_REPLY:
                reply = struct.pack("<Q", 0)
            if reply is not None:
                self._connection.sendall(_MESSAGE.pack(kind, _IS_REPLY, len(reply)) + reply)

    def _handle(self, kind: int, body: bytes) -> bytes | None:
        queue = self._queue
        if kind == _GET_FEATURES:
            return struct.pack("<Q", _VERSION_1 | _MORE_FEATURES)
        if kind == _GET_MORE:
            return struct.pack("<Q", _REPLY_ACK | _WITH_CONFIG)
        if kind == _GET_CONFIG:
            return body[:12] + _CONFIG.ljust(len(body) - 12, b"\0")[: len(body) - 12]
        if kind == _MEMORY:
            base, size, _, offset = struct.unpack_from("<QQQQ", body, 8)
            self._memory = _Memory(self._passed.pop(0), base, size, offset)
        elif kind == _NUM:
            queue.size = struct.unpack("<II", body)[1]
        elif kind == _ADDR:
            _, _, queue.descriptors, queue.used, queue.offered, _ = struct.unpack("<IIQQQQ", body)
        elif kind == _BASE:
            queue.taken = struct.unpack("<II", body)[1]
        elif kind == _KICK:
            queue.kick = self._passed.pop(0)
        elif kind == _CALL:
            queue.call = self._passed.pop(0)
        return None


def start(path: Path, folder: Path) -> Callable[[], None]:
    """Offer a controller at the socket `path`, to one guest at a time; return what ends that.

    The guest's device tree names the socket in a node that is compatible with "virtio,uml".
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    devices = Devices(folder)

    def serve() -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                front = _Front(listener.accept()[0], devices)
                with contextlib.suppress(OSError):  # the guest is gone
                    front.run()
                front.close()

    def stop() -> None:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    threading.Thread(target=serve, name="virtio-spi", daemon=True).start()
    return stop
