"""An i2c-tiny-usb adapter under the kernel's own driver, played on /dev/raw-gadget behind dummy_hcd; only in the guest.

Its functionality bits are the device's to tell, so it can be an adapter that takes 10-bit addresses and as many
messages in one exchange as the kernel does, where the MCP2221 takes neither. `TinyUsb` runs it in a process of its own
and ends that to pull it out: the kernel blocks who asks for a USB event, and only the process's end lets go of that.
The machine has one port for such devices: no USB serial adapter can be plugged in at the same time.

Run as a program it is the device: JSON documents, one for each exchange that ended, on standard output.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import queue
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from attrs import define, field, frozen
from smbus2 import SMBus
from support.mcp2221_chip import Memory

if TYPE_CHECKING:
    from collections.abc import Iterable

RAW, TEN_BIT = 0x1, 0x2
SMBUS = 0x0EFF0008
"""What the kernel makes of raw messages itself (I2C_FUNC_SMBUS_EMUL)."""

_VENDOR, _PRODUCT = 0x0403, 0xC631
_INIT, _RUN, _FETCH, _EP0_WRITE, _EP0_READ, _CONFIGURE, _STALL = (
    0x41015500,
    0x5501,
    0x80085502,
    0x40085503,
    0xC0085504,
    0x5509,
    0x550C,
)
_HIGH_SPEED, _CONTROL = 3, 2
_GET_FUNC, _GET_STATUS, _IO, _BEGIN, _END = 1, 3, 4, 1, 2
_ACKNOWLEDGED, _NOT_ACKNOWLEDGED = 1, 2
_READ_FLAG, _TEN_BIT_FLAG = 0x01, 0x10
_NOBODY = 0x77
_PATIENCE_S = 10.0


@frozen
class Exchange:
    """What crossed the wire between a START and its STOP."""

    addr: int
    ten_bit: bool
    messages: tuple[tuple[Literal["write", "read"], bytes], ...]
    acknowledged: bool


class TinyUsb:
    """One adapter with a memory (8-bit pointer) at each of `memories`, and of `wide` at 10-bit addresses.

    A context manager. `bus` is the adapter's number, `name` what the kernel calls it.
    """

    def __init__(
        self, memories: Iterable[int] = (0x50,), *, wide: Iterable[int] = (), functionality: int = RAW | TEN_BIT | SMBUS
    ) -> None:
        _wait_for_a_free_port()
        before = set(Path("/sys/class/i2c-dev").glob("i2c-*"))
        setup = {"memories": list(memories), "wide": list(wide), "functionality": functionality}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.tiny_usb", json.dumps(setup)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            text=True,
        )
        self._log: queue.SimpleQueue[Exchange] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="tiny-usb", daemon=True)
        self._reader.start()
        try:
            self.bus = self._wait(before)
            self._settle()
            self.name = Path(f"/sys/class/i2c-dev/i2c-{self.bus}/name").read_text().strip()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def exchange(self) -> Exchange:
        """The next exchange that crossed the wire. Raises queue.Empty after a while without one."""
        return self._log.get(timeout=_PATIENCE_S)

    def quiet(self) -> bool:
        """Nothing has crossed the wire that was not asked for by `exchange`."""
        return self._log.empty()

    def close(self) -> None:
        """Pull it out; a driver that has it open sees it go."""
        self._process.kill()
        self._process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            entry = json.loads(line)
            messages = tuple((way, bytes.fromhex(data)) for way, data in entry.pop("messages"))
            self._log.put(Exchange(messages=messages, **entry))

    def _settle(self) -> None:
        """Let the kernel finish looking for thermometers, and forget that it did."""
        # Readable when nobody has the USB device locked, as its driver has while it starts.
        interface = Path(f"/sys/class/i2c-dev/i2c-{self.bus}/device").resolve().parent
        (interface.parent / "bConfigurationValue").read_text()
        with SMBus(self.bus) as probe, suppress(OSError):
            probe.read_byte(_NOBODY)
        while self.exchange().addr != _NOBODY:
            pass

    def _wait(self, before: set[Path]) -> int:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for entry in set(Path("/sys/class/i2c-dev").glob("i2c-*")) - before:
                if "i2c-tiny-usb" in (entry / "name").read_text() and Path("/dev", entry.name).exists():
                    return int(entry.name.removeprefix("i2c-"))
            if self._process.poll() is not None:
                raise RuntimeError(f"the emulated adapter's process ended, status {self._process.returncode}")
            time.sleep(0.005)
        raise TimeoutError("the kernel made no I2C adapter of the emulated i2c-tiny-usb")


def _wait_for_a_free_port() -> None:
    """Until the device that was plugged in last has been forgotten: a hub may miss one that comes as another goes."""
    deadline = time.monotonic() + _PATIENCE_S
    while any(Path("/sys/bus/usb/devices").glob("*-[1-9]")):
        if time.monotonic() > deadline:
            raise TimeoutError("something is plugged into the emulated USB port already, or is held open")
        time.sleep(0.005)


@define
class _Device:
    """The device's side: one control request after the other."""

    fd: int
    functionality: int
    targets: dict[tuple[int, bool], Memory]
    messages: list[tuple[str, str]] = field(factory=list)
    acknowledged: bool = True

    def serve(self) -> None:
        while True:
            event = bytearray(8 + 8)
            struct.pack_into("<II", event, 0, 0, 8)
            fcntl.ioctl(self.fd, _FETCH, event)
            if struct.unpack_from("<I", event)[0] == _CONTROL:
                with suppress(BrokenPipeError):  # the host gave the request up
                    self.control(*struct.unpack_from("<BBHHH", event, 8))

    def control(self, kind: int, request: int, value: int, index: int, length: int) -> None:
        if kind & 0x60 == 0x40:
            self.vendor(request, value, index, length)
        elif (kind, request) == (0x80, 6) and value >> 8 in (1, 2):
            self.send((_DEVICE if value >> 8 == 1 else _CONFIGURATION)[:length])
        elif (kind, request) == (0x80, 6) and value >> 8 == 3:
            text = "i2c-tiny-usb".encode("utf-16-le") if value & 0xFF else b"\x09\x04"
            self.send((bytes([len(text) + 2, 3]) + text)[:length])
        elif request == 9:
            fcntl.ioctl(self.fd, _CONFIGURE)
            self.receive(0)
        elif request == 11:
            self.receive(0)
        else:
            fcntl.ioctl(self.fd, _STALL)

    def vendor(self, request: int, flags: int, addr: int, length: int) -> None:
        if request == _GET_FUNC:
            self.send(struct.pack("<I", self.functionality))
        elif request == _GET_STATUS:
            self.send(bytes([_ACKNOWLEDGED if self.acknowledged else _NOT_ACKNOWLEDGED]))
        elif request & _IO:
            self.message(request, flags, addr, length)
        else:
            self.receive(length)  # the clock's period: any will do

    def message(self, request: int, flags: int, addr: int, length: int) -> None:
        ten_bit = bool(flags & _TEN_BIT_FLAG)
        target = self.targets.get((addr, ten_bit))
        if request & _BEGIN:
            self.messages, self.acknowledged = [], True
        self.acknowledged = self.acknowledged and target is not None and target.start(reading=bool(flags & _READ_FLAG))
        if flags & _READ_FLAG:
            data = bytes(target.read() for _ in range(length)) if target else bytes(length)
            self.send(data)
        else:
            data = self.receive(length)
            for byte in data if target else b"":
                assert target is not None
                target.write(byte)
        self.messages.append(("read" if flags & _READ_FLAG else "write", data.hex() if target else ""))
        if request & _END or not self.acknowledged:
            entry: dict[str, Any] = {"addr": addr, "ten_bit": ten_bit, "messages": self.messages}
            print(json.dumps({**entry, "acknowledged": self.acknowledged}), flush=True)

    def send(self, data: bytes) -> None:
        fcntl.ioctl(self.fd, _EP0_WRITE, bytearray(struct.pack("<HHI", 0, 0, len(data)) + data))

    def receive(self, length: int) -> bytes:
        buffer = bytearray(struct.pack("<HHI", 0, 0, length) + bytes(length))
        got = fcntl.ioctl(self.fd, _EP0_READ, buffer)
        return bytes(buffer[8 : 8 + got])


_DEVICE = struct.pack("<BBHBBBBHHHBBBB", 18, 1, 0x0200, 0xFF, 0, 0, 64, _VENDOR, _PRODUCT, 0x0100, 1, 2, 0, 1)
_CONFIGURATION = struct.pack("<BBHBBBBB", 9, 2, 18, 1, 1, 0, 0x80, 50) + struct.pack(
    "<BBBBBBBBB", 9, 4, 0, 0, 0, 0xFF, 0, 0, 0
)


def _play(setup: dict[str, Any]) -> None:
    """Be the device until the process is killed, or its parent ends."""
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    targets = {(addr, False): Memory() for addr in setup["memories"]}
    targets |= {(addr, True): Memory() for addr in setup["wide"]}
    fd = os.open("/dev/raw-gadget", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(fd, _INIT, struct.pack("<128s128sB", b"dummy_udc", b"dummy_udc.0", _HIGH_SPEED))
    fcntl.ioctl(fd, _RUN)
    _Device(fd, setup["functionality"], targets).serve()


if __name__ == "__main__":
    _play(json.loads(sys.argv[1]))
