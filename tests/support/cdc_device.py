"""A USB serial device of our own making, which tells what it is asked and says what we like: only in the guest.

The kernel's own ACM gadget keeps to itself what the host asks of it. This one (raw-gadget on dummy_udc) records every
request that crosses the wire, rate, parity, RTS, DTR and breaks, takes and gives bytes, and reports line states and
errors as real hardware would. It owns the device's side of CDC-ACM (USB class definitions for communication devices,
PSTN subclass 1.2); it refuses to know hearth.

The device is a process of its own: to pull it out is to kill it, whatever it is doing.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CD, DSR, BREAK, RING, FRAMING, PARITY, OVERRUN = (1 << bit for bit in range(7))
"""The bits of SERIAL_STATE (PSTN 6.5.4)."""

PATIENCE_S = 10.0

_INIT, _RUN, _EVENT_FETCH = 0x41015500, 0x5501, 0x80085502
_EP0_WRITE, _EP0_READ, _EP0_STALL = 0x40085503, 0xC0085504, 0x550C
_EP_ENABLE, _EP_WRITE, _EP_READ = 0x40095505, 0x40085507, 0xC0085508
_CONFIGURE, _VBUS_DRAW = 0x5509, 0x4004550A
_HIGH_SPEED, _CONTROL = 3, 2

# The addresses are those of dummy_udc's endpoints of these kinds.
_NOTIFY = struct.pack("<BBBBHB", 7, 5, 0x85, 3, 64, 9)
_OUT = struct.pack("<BBBBHB", 7, 5, 0x02, 2, 512, 0)
_IN = struct.pack("<BBBBHB", 7, 5, 0x81, 2, 512, 0)
_PARTS = (
    bytes([8, 11, 0, 2, 2, 2, 1, 0]),  # two interfaces are one function
    bytes([9, 4, 0, 0, 1, 2, 2, 1, 0]),  # its control: communication, abstract control model
    bytes([5, 0x24, 0, 0x10, 0x01]),
    bytes([5, 0x24, 1, 0, 1]),
    bytes([4, 0x24, 2, 0b0110]),  # it knows line codings, states, and breaks
    bytes([5, 0x24, 6, 0, 1]),
    _NOTIFY,
    bytes([9, 4, 1, 0, 2, 10, 0, 0, 0]),  # its data
    _OUT,
    _IN,
)
_BODY = b"".join(_PARTS)
_CONFIG = struct.pack("<BBHBBBBB", 9, 2, 9 + len(_BODY), 2, 1, 0, 0x80, 50) + _BODY
_DEVICE = struct.pack("<BBHBBBBHHHBBBB", 18, 1, 0x0200, 2, 0, 0, 64, 0x0525, 0xA4A8, 1, 1, 2, 3, 1)


class Device:
    """The process: what it answers on endpoint 0, and three threads that move bytes."""

    def __init__(self, serial_number: str) -> None:
        self._strings = ["hearth", "serial device", serial_number]
        self._fd = os.open("/dev/raw-gadget", os.O_RDWR)
        self._lock = threading.Lock()
        self._out = self._in = self._notify = -1
        self._configured = threading.Event()

    def tell(self, **event: Any) -> None:
        with self._lock:
            print(json.dumps(event), flush=True)

    def run(self) -> None:
        fcntl.ioctl(self._fd, _INIT, struct.pack("128s128sB", b"dummy_udc", b"dummy_udc.0", _HIGH_SPEED))
        fcntl.ioctl(self._fd, _RUN)
        for work in (self._take, self._obey):
            threading.Thread(target=work, daemon=True).start()
        while True:
            event = bytearray(struct.pack("II8x", 0, 8))
            fcntl.ioctl(self._fd, _EVENT_FETCH, event)
            kind, _ = struct.unpack_from("II", event)
            if kind == _CONTROL:
                self._control(*struct.unpack_from("<BBHHH", event, 8))

    def _answer(self, data: bytes, length: int) -> None:
        data = data[:length]
        fcntl.ioctl(self._fd, _EP0_WRITE, struct.pack("=HHI", 0, 0, len(data)) + data)

    def _accept(self, length: int) -> bytes:
        buffer = bytearray(struct.pack("=HHI", 0, 0, length) + bytes(length))
        got = fcntl.ioctl(self._fd, _EP0_READ, buffer)
        return bytes(buffer[8 : 8 + got])

    def _control(self, kind: int, request: int, value: int, _index: int, length: int) -> None:
        match kind, request:
            case 0x80, 6 if value >> 8 in (1, 2):
                self._answer(_DEVICE if value >> 8 == 1 else _CONFIG, length)
            case 0x80, 6 if value >> 8 == 3:
                self._answer(self._string(value & 0xFF), length)
            case 0x00, 9:
                self._notify, self._out, self._in = (self._enable(part) for part in (_NOTIFY, _OUT, _IN))
                fcntl.ioctl(self._fd, _VBUS_DRAW, 50)
                fcntl.ioctl(self._fd, _CONFIGURE)
                self._accept(0)
                self._configured.set()
            case 0x21, 0x20:
                rate, stop, parity, bits = struct.unpack("<IBBB", self._accept(7))
                self.tell(coding=[rate, bits, "NOEMS"[parity], (1, 1.5, 2)[stop]])
            case 0x21, 0x22:
                self._accept(0)
                self.tell(dtr=bool(value & 1), rts=bool(value & 2))
            case 0x21, 0x23:
                self._accept(0)
                self.tell(sends_break=value)
            case _:
                fcntl.ioctl(self._fd, _EP0_STALL)

    def _string(self, index: int) -> bytes:
        text = self._strings[index - 1].encode("utf-16-le") if index else b"\x09\x04"
        return bytes([2 + len(text), 3]) + text

    def _enable(self, descriptor: bytes) -> int:
        return fcntl.ioctl(self._fd, _EP_ENABLE, bytearray(descriptor + bytes(2)))

    def _take(self) -> None:
        self._configured.wait()
        while True:
            buffer = bytearray(struct.pack("=HHI", self._out, 0, 512) + bytes(512))
            got = fcntl.ioctl(self._fd, _EP_READ, buffer)
            self.tell(out=base64.b64encode(buffer[8 : 8 + got]).decode())

    def _obey(self) -> None:
        self._configured.wait()
        for line in sys.stdin:
            order = json.loads(line)
            data = base64.b64decode(order["data"])
            endpoint = {"in": self._in, "state": self._notify}[order["to"]]
            fcntl.ioctl(self._fd, _EP_WRITE, struct.pack("=HHI", endpoint, 0, len(data)) + data)
            self.tell(done=order["to"])


class CdcDevice:
    """The device as a test sees it; it is plugged in when this returns. `path` is its node on the host."""

    def __init__(self, serial_number: str = "HEARTHRAW") -> None:
        self.log: list[dict[str, Any]] = []
        """What has crossed the wire, in order: codings, lines, breaks, bytes."""
        command = [sys.executable, __file__, serial_number]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.path = self.wait_for("the device has a node", lambda: _node(serial_number))
        except BaseException:
            self._end()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.log.append(json.loads(line))

    def wait_for(self, what: str, ready: Callable[[], Any]) -> Any:
        """Look again and again until `ready()`; what it returned."""
        end = time.monotonic() + PATIENCE_S
        while not (found := ready()):
            if time.monotonic() > end or self._process.poll() is not None:
                raise TimeoutError(f"{what}: not so; the wire saw {self.log[-5:]}")
            time.sleep(0.002)
        return found

    def last(self, name: str) -> Any:
        """What was said last of this name: "coding", "rts", "dtr", "sends_break"."""
        return next((event[name] for event in reversed(self.log) if name in event), None)

    @property
    def taken(self) -> bytes:
        """All bytes that the host has sent."""
        return b"".join(base64.b64decode(event["out"]) for event in list(self.log) if "out" in event)

    def _order(self, to: str, data: bytes) -> None:
        assert self._process.stdin is not None
        done = sum(event.get("done") == to for event in self.log)
        self._process.stdin.write(json.dumps({"to": to, "data": base64.b64encode(data).decode()}) + "\n")
        self._process.stdin.flush()
        self.wait_for(f"the host takes {to}", lambda: sum(event.get("done") == to for event in list(self.log)) > done)

    def send(self, data: bytes) -> None:
        """Give bytes to the host, which has the port open."""
        self._order("in", data)

    def state(self, bits: int) -> None:
        """Report a line state to the host, which has the port open."""
        self._order("state", struct.pack("<BBHHHH", 0xA1, 0x20, 0, 0, 2, bits))

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # an order that it did not take any more
                pipe.close()

    def unplug(self) -> None:
        """Pull it out, whatever it is doing; returns when its node is gone."""
        self._end()
        end = time.monotonic() + PATIENCE_S
        while Path(self.path).exists():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {PATIENCE_S:g} s: {self.path} goes")
            time.sleep(0.002)


def _node(serial_number: str) -> str | None:
    for tty in Path("/sys/class/tty").glob("ttyACM*"):
        number = tty.resolve().parent.parent.parent / "serial"
        node = Path("/dev") / tty.name
        with suppress(OSError):  # another test's, which goes while it is looked at
            if number.read_text().strip() == serial_number and node.exists():
                return str(node)
    return None


@contextmanager
def cdc_device() -> Iterator[CdcDevice]:
    """A device that is plugged in."""
    device = CdcDevice()
    try:
        yield device
    finally:
        device.unplug()


if __name__ == "__main__":
    Device(sys.argv[1]).run()
