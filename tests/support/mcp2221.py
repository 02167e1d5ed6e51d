"""An MCP2221 USB-to-I2C adapter under the kernel's own driver, played from user space on /dev/uhid.

`Mcp2221` plugs the chip of `mcp2221_chip` into this process; `Mcp2221Process` plays the same in a process of its own,
for code under test that shares a process with its test, or that must be able to die. Both give a real /dev/i2c-N
with raw I2C_RDWR (at most: one write, one read, or a write and then a read of the same address) and a four-line
gpiochip. It refuses to keep order among callers: the kernel does that.

Run as a program it is the process's far end: JSON documents on standard input and output, one a line.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from support.mcp2221_chip import Chip, Exchange, Memory, Target

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ADAPTER", "Chip", "Exchange", "Mcp2221", "Mcp2221Process", "Memory", "Target"]

ADAPTER = "MCP2221 usb-i2c bridge"
"""The kernel's name of such an adapter."""

_DESTROY, _STOP, _OUTPUT, _CREATE2, _INPUT2 = 1, 3, 6, 11, 12
_USB, _VENDOR, _PRODUCT = 3, 0x04D8, 0x00DD
_OUTPUT_SIZE_AT = 4 + 4096
# One vendor page with an input and an output report of 64 bytes.
_DESCRIPTOR = bytes.fromhex("0600ff0901a101190129401500 26ff00750895408102190129409540 9102c0")

_PATIENCE_S = 3.9
"""The kernel's driver waits 4 s for a reply: one that would come later is not sent, for the next command to meet."""

_SETTINGS = 0x61
"""The command that asks for the chip's settings: the kernel's last one before it leaves a new adapter to its users."""

_numbers = itertools.count()


class Mcp2221:
    """One adapter, plugged in from the start; a context manager that unplugs it for good.

    `chip` has the targets, the faults and the log; `bus` is the number of the adapter while it is plugged in.
    """

    def __init__(self, targets: dict[int, Target] | None = None, *, speed_hz: int | None = None) -> None:
        self.chip = Chip(targets, speed_hz=speed_hz)
        self.bus = -1
        self._fd = -1
        self._threads: list[threading.Thread] = []
        self._settled = threading.Event()
        self._unplugging: threading.Thread | None = None
        self.plug()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def plug(self, timeout: float = 10.0) -> int:
        """Appear, and return the adapter's number when its node is there. Raises TimeoutError."""
        uniq = f"hearth-{os.getpid()}-{next(_numbers)}"
        self._fd = os.open("/dev/uhid", os.O_RDWR | os.O_CLOEXEC)
        self._settled.clear()
        self._send_create(uniq)
        reports: queue.SimpleQueue[tuple[float, bytes] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._receive, args=(self._fd, reports), name="mcp2221-reader", daemon=True),
            threading.Thread(target=self._answer, args=(self._fd, reports), name="mcp2221-chip", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.bus = _wait_for_node(uniq, timeout)
        # It asks a tenth of a second later, in the buffer in which a line's command may just be prepared: who drives a
        # line before that may find that nothing was driven.
        if not self._settled.wait(timeout):
            raise TimeoutError(f"the kernel has not asked for the chip's settings within {timeout:g} s")
        self.chip.log.clear()  # the kernel itself has looked for thermometers
        return self.bus

    def begin_unplug(self) -> None:
        """Disappear. The kernel completes that only when nobody has the adapter open any more: see `wait_unplugged`."""
        self._unplugging = threading.Thread(target=self._destroy, name="mcp2221-unplug", daemon=True)
        self._unplugging.start()

    def wait_unplugged(self, timeout: float = 20.0) -> None:
        """Wait until the kernel has let go of the adapter. Raises TimeoutError: somebody holds it open."""
        assert self._unplugging is not None
        for thread in (self._unplugging, *self._threads):
            thread.join(timeout)
            if thread.is_alive():
                raise TimeoutError(f"{thread.name} goes on: somebody holds /dev/i2c-{self.bus} open")
        self._unplugging = None
        os.close(self._fd)  # only now: the number would soon be somebody else's
        self._fd = self.bus = -1

    def unplug(self, timeout: float = 20.0) -> None:
        """Disappear, and wait until it is done."""
        self.begin_unplug()
        self.wait_unplugged(timeout)

    def replug(self, timeout: float = 10.0) -> int:
        """Appear again, with the same targets and whatever faults are planned."""
        return self.plug(timeout)

    def close(self) -> None:
        """Unplug for good, letting go of what hangs in a wedge."""
        self.chip.shut()
        if self._fd >= 0:
            if self._unplugging is None:
                self.begin_unplug()
            self.wait_unplugged()

    def _send_create(self, uniq: str) -> None:
        strings = b"hearth mcp2221", b"hearth", uniq.encode()
        numbers = len(_DESCRIPTOR), _USB, _VENDOR, _PRODUCT, 0x0200, 0
        os.write(self._fd, struct.pack("<I128s64s64sHHIIII", _CREATE2, *strings, *numbers) + _DESCRIPTOR)

    def _destroy(self) -> None:
        os.write(self._fd, struct.pack("<I", _DESTROY))

    def _receive(self, fd: int, reports: queue.SimpleQueue[tuple[float, bytes] | None]) -> None:
        """Stamp what comes, so that the chip's thread can tell what the kernel no longer waits for."""
        while True:
            event = os.read(fd, 8192)
            (kind,) = struct.unpack_from("<I", event)
            if kind == _STOP:
                reports.put(None)
                return
            if kind == _OUTPUT:
                (size,) = struct.unpack_from("<H", event, _OUTPUT_SIZE_AT)
                reports.put((time.monotonic(), event[4 : 4 + size]))

    def _answer(self, fd: int, reports: queue.SimpleQueue[tuple[float, bytes] | None]) -> None:
        while (item := reports.get()) is not None:
            came, report = item
            if time.monotonic() - came > _PATIENCE_S:
                continue
            reply = self.chip.command(report)
            if time.monotonic() - came > _PATIENCE_S:
                self.chip.abandon()
                continue
            try:
                os.write(fd, struct.pack("<IH", _INPUT2, len(reply)) + reply)
            except OSError:
                self.chip.abandon()  # it was unplugged meanwhile
            if report[0] == _SETTINGS:
                self._settled.set()


def _wait_for_node(uniq: str, timeout: float) -> int:
    """The number of the adapter whose HID device has this serial, once it is all there.

    The node in /dev comes after the entry in sysfs, and the gpiochip after the kernel's own probing of the wires: an
    adapter that goes before that leaves its driver waiting for replies for half a minute.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for adapter in Path("/sys/class/i2c-dev").glob("i2c-*"):
            try:
                hid = (adapter / "device").resolve().parent
                if (
                    f"HID_UNIQ={uniq}" in (hid / "uevent").read_text().splitlines()
                    and Path("/dev", adapter.name).exists()
                    and all(Path("/dev", chip.name).exists() for chip in hid.glob("gpiochip[0-9]*"))
                    and any(hid.glob("gpiochip[0-9]*"))
                ):
                    return int(adapter.name.removeprefix("i2c-"))
            except OSError:
                pass  # it went while we looked
        time.sleep(0.005)
    raise TimeoutError(f"the kernel made no I2C adapter of the emulated MCP2221 within {timeout:g} s")


class Mcp2221Process:
    """The same adapter in a process of its own, with plain memories as targets: one for each of `memories`.

    `wide` addresses get memories of 64 KiB with a 16-bit pointer. A context manager.
    """

    def __init__(
        self, memories: Iterable[int] = (0x50,), *, wide: Iterable[int] = (), speed_hz: int | None = None
    ) -> None:
        setup = {"memories": list(memories), "wide": list(wide), "speed_hz": speed_hz}
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.mcp2221", json.dumps(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.bus = -1
        try:
            self.bus = self._reply()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def close(self) -> None:
        """Unplug for good and end the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.stdout.close()
            self._process.wait(60)

    def log(self, since: int = 0) -> list[Exchange]:
        """The exchanges that crossed the wire, from the number `since` on."""
        return [Exchange.from_json(entry) for entry in self._ask("log", since=since)]

    def strays(self) -> list[str]:
        """See `Chip.strays`."""
        strays: list[str] = self._ask("strays")
        return strays

    def cells(self, addr: int) -> bytes:
        """What the memory at an address holds."""
        return bytes.fromhex(self._ask("cells", addr=addr))

    def fill(self, addr: int, data: bytes) -> None:
        """Put bytes at the start of the memory at an address."""
        self._ask("fill", addr=addr, data=data.hex())

    def nack(self, times: float = 1, *, addr: int | None = None, after: int = 0) -> None:
        """See `Chip.nack`."""
        self._ask("nack", times=times, addr=addr, after=after)

    def busy(self, times: float = 1, *, addr: int | None = None) -> None:
        """See `Chip.busy`."""
        self._ask("busy", times=times, addr=addr)

    def timeout(self, times: float = 1, *, addr: int | None = None, after: int = 0) -> None:
        """See `Chip.timeout`."""
        self._ask("timeout", times=times, addr=addr, after=after)

    def wedge(self, *, addr: int | None = None, after: int = 0) -> None:
        """See `Chip.wedge`."""
        self._ask("wedge", addr=addr, after=after)

    def release(self) -> None:
        """See `Chip.release`."""
        self._ask("release")

    def clear(self) -> None:
        """See `Chip.clear`."""
        self._ask("clear")

    def delay(self, seconds: float) -> None:
        """See `Chip.delay_s`."""
        self._ask("delay", seconds=seconds)

    def wait_held(self, timeout: float = 10.0) -> None:
        """See `Chip.wait_held`; the process takes no other request meanwhile."""
        self._ask("wait_held", timeout=timeout)

    def wait_logged(self, count: int, timeout: float = 10.0) -> None:
        """See `Chip.wait_logged`; the process takes no other request meanwhile."""
        self._ask("wait_logged", count=count, timeout=timeout)

    def begin_unplug(self) -> None:
        """See `Mcp2221.begin_unplug`."""
        self._ask("begin_unplug")

    def wait_unplugged(self, timeout: float = 20.0) -> None:
        """See `Mcp2221.wait_unplugged`."""
        self._ask("wait_unplugged", timeout=timeout)
        self.bus = -1

    def unplug(self, timeout: float = 20.0) -> None:
        """See `Mcp2221.unplug`."""
        self.begin_unplug()
        self.wait_unplugged(timeout)

    def replug(self, timeout: float = 10.0) -> int:
        """See `Mcp2221.replug`."""
        self.bus = self._ask("replug", timeout=timeout)
        return self.bus

    def _ask(self, what: str, **args: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **args}) + "\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the emulator's process ended, status {self._process.wait(60)}")
        reply = json.loads(line)
        if "error" in reply:
            raise TimeoutError(reply["error"])
        return reply["value"]


def _serve(setup: dict[str, Any]) -> None:
    """The process's side: answer each request of standard input until it ends."""
    targets: dict[int, Target] = {addr: Memory() for addr in setup["memories"]}
    targets |= {addr: Memory(65536, pointer_bytes=2) for addr in setup["wide"]}
    with Mcp2221(targets, speed_hz=setup["speed_hz"]) as adapter:
        _say({"value": adapter.bus})
        for line in sys.stdin:
            request = json.loads(line)
            try:
                _say({"value": _do(adapter, request.pop("do"), request)})
            except TimeoutError as error:
                _say({"error": str(error)})


def _do(adapter: Mcp2221, what: str, args: dict[str, Any]) -> Any:
    chip = adapter.chip
    match what:
        case "log":
            return [entry.to_json() for entry in chip.log[args["since"] :]]
        case "strays":
            return chip.strays
        case "delay":
            chip.delay_s = args["seconds"]
            return None
        case "cells" | "fill":
            memory = chip.targets[args["addr"]]
            assert isinstance(memory, Memory)
            if what == "fill":
                data = bytes.fromhex(args["data"])
                memory.cells[: len(data)] = data
            return memory.cells.hex()
        case "begin_unplug" | "wait_unplugged" | "replug":
            return getattr(adapter, what)(**args)
        case _:
            return getattr(chip, what)(**args)


def _say(reply: dict[str, Any]) -> None:
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
