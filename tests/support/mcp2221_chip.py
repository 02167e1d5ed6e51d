"""What an MCP2221 does between its HID reports and its two wires: the part of the emulation that needs no kernel.

Owns the chip's commands, the I2C engine behind them, the faults a test injects, and a record of every byte that
crossed the wire. It refuses to know how reports arrive: `Chip.command` takes one report and returns the reply, or
None where the chip stays silent. Command and reply layouts: MCP2221 data sheet (DS20005565), chapter 3.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Literal, Protocol

from attrs import asdict, define, field

STATUS, READ, WRITE, READ_RESTART, WRITE_NO_STOP = 0x10, 0x91, 0x90, 0x93, 0x94
GET_DATA, SET_GPIO, GET_GPIO = 0x40, 0x50, 0x51
_CANCEL, _SPEED = 0x10, 0x20
_BUSY, _ADDRESS_NACK, _DATA_NACK, _DATA_TIMEOUT, _COMPLETE = 0x01, 0x25, 0x45, 0x44, 0x55
CHUNK = 60
"""Data bytes in one report."""

FaultKind = Literal["nack", "busy", "timeout", "wedge"]


class Target(Protocol):
    """A device on the emulated wires; the simulator's devices are such targets."""

    kind: str

    def start(self, *, reading: bool) -> bool:
        """The device was addressed; True acknowledges."""
        ...

    def write(self, byte: int) -> bool:
        """A byte came; True acknowledges."""
        ...

    def read(self) -> int:
        """A byte is wanted."""
        ...

    def stop(self) -> None:
        """STOP."""
        ...


class Memory:
    """A register file, or an EEPROM without pages: a pointer of 1 or 2 bytes (high byte first), then data.

    The pointer goes on with every byte and wraps at the end; a read begins where the last access ended.
    """

    kind = "memory"

    def __init__(self, size: int = 256, *, pointer_bytes: int = 1) -> None:
        self.cells = bytearray(size)
        self.pointer = 0
        self.stops = 0
        self._width = pointer_bytes
        self._wanted = 0

    def start(self, *, reading: bool) -> bool:
        """Always there; a write begins with the pointer."""
        if not reading:
            self._wanted = self._width
        return True

    def write(self, byte: int) -> bool:
        """The pointer's bytes, then data."""
        if self._wanted:
            before = 0 if self._wanted == self._width else self.pointer
            self._wanted -= 1
            self.pointer = (before << 8 | byte) % len(self.cells)
        else:
            self.cells[self.pointer] = byte
            self.pointer = (self.pointer + 1) % len(self.cells)
        return True

    def read(self) -> int:
        """The byte at the pointer."""
        byte = self.cells[self.pointer]
        self.pointer = (self.pointer + 1) % len(self.cells)
        return byte

    def stop(self) -> None:
        """Counted."""
        self.stops += 1


@define(eq=False)
class Message:
    """What went one way after one START: `acked` is False if the address was not acknowledged.

    `at` are the times (of the machine's monotonic clock) at which the bytes of `data` crossed the wire.
    """

    way: Literal["write", "read"]
    began: float
    acked: bool = True
    data: bytearray = field(factory=bytearray)
    at: list[float] = field(factory=list)


@define(eq=False)
class Exchange:
    """Everything between a START and its STOP, as a logic analyser shows it.

    `end` is None while it runs; "nack" and "timeout" are ends by a fault; "torn" is what must not be: another
    exchange began, or the adapter was told to let go, before this one had its last byte.
    """

    addr: int
    began: float
    messages: list[Message] = field(factory=list)
    end: Literal["stop", "nack", "timeout", "torn"] | None = None
    ended: float | None = None

    @property
    def whole(self) -> bool:
        """It ended with its STOP."""
        return self.end == "stop"

    @property
    def written(self) -> bytes:
        """The data bytes that were sent, of all its messages."""
        return b"".join(message.data for message in self.messages if message.way == "write")

    @property
    def read(self) -> bytes:
        """The data bytes that were received, of all its messages."""
        return b"".join(message.data for message in self.messages if message.way == "read")

    def to_json(self) -> dict[str, Any]:
        """As it crosses a pipe."""
        return asdict(self, value_serializer=lambda _owner, _name, value: _plain(value))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Exchange:
        """The inverse of `to_json`."""
        messages = [Message(**{**message, "data": bytearray.fromhex(message["data"])}) for message in data["messages"]]
        return cls(**{**data, "messages": messages})


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytearray) else value


@define(eq=False)
class Fault:
    """What goes wrong in the next `times` exchanges with `addr` (None: any), after `after` data bytes."""

    kind: FaultKind
    times: float
    addr: int | None
    after: int


class _EngineError(Exception):
    """The engine stopped; `state` is its code."""

    def __init__(self, state: int) -> None:
        self.state = state


class Chip:
    """One MCP2221. `targets` sit on its wires by address, and may be changed at any time.

    `speed_hz` paces the bytes (None: they take no time). Faults may be injected from any thread; commands come
    from one.
    """

    def __init__(self, targets: dict[int, Target] | None = None, *, speed_hz: int | None = None) -> None:
        self.targets = dict(targets or {})
        self.speed_hz = speed_hz
        self.log: list[Exchange] = []
        self.strays: list[str] = []
        """Commands that made no sense on the wire: there are none while the kernel's exchanges are whole."""
        self.delay_s = 0.0
        """Added to every exchange's first command."""
        self.gpio: list[list[int]] = [[0, 1] for _ in range(4)]
        """Level and "is an input" of each of the four pins."""
        self.held = 0
        self._faults: list[Fault] = []
        self._current: Exchange | None = None
        self._fault: Fault | None = None
        self._to_come = 0
        self._header = b""
        self._answer = b""
        self._state = 0
        self._moved = 0
        self._changed = threading.Condition()
        self._closed = False

    # --- the test's side, from any thread ------------------------------------------------------------------------

    def nack(self, times: float = 1, *, addr: int | None = None, after: int = 0) -> None:
        """Not acknowledged: the address, or the byte after `after` data bytes."""
        self._plan(Fault("nack", times, addr, after))

    def busy(self, times: float = 1, *, addr: int | None = None) -> None:
        """The engine says that it is busy (the kernel: EAGAIN), as when another master has the bus."""
        self._plan(Fault("busy", times, addr, 0))

    def timeout(self, times: float = 1, *, addr: int | None = None, after: int = 0) -> None:
        """The engine gives up on a held clock (the kernel: ETIMEDOUT)."""
        self._plan(Fault("timeout", times, addr, after))

    def wedge(self, *, addr: int | None = None, after: int = 0) -> None:
        """The adapter stops answering at that place, until `release`."""
        self._plan(Fault("wedge", math.inf, addr, after))

    def release(self) -> None:
        """Go on with what hangs, and wedge nothing more."""
        with self._changed:
            self._faults = [fault for fault in self._faults if fault.kind != "wedge"]
            self.held = 0
            self._changed.notify_all()

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        self.delay_s = 0.0
        with self._changed:
            self._faults = []
        self.release()

    def wait_held(self, timeout: float = 10.0) -> None:
        """Wait until an exchange hangs in a wedge. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.held, timeout):
                raise TimeoutError("no exchange reached the wedge")

    def wait_logged(self, count: int, timeout: float = 10.0) -> None:
        """Wait until the log has `count` exchanges (the last of them may be under way). Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.log) >= count, timeout):
                raise TimeoutError(f"{len(self.log)} exchanges crossed the wire, not {count}")

    def shut(self) -> None:
        """Let everything that waits go: the adapter is being closed."""
        with self._changed:
            self._closed = True
        self.clear()

    def _plan(self, fault: Fault) -> None:
        with self._changed:
            self._faults = [*self._faults, fault]

    # --- the adapter's side, from one thread -----------------------------------------------------------------------

    def command(self, report: bytes) -> bytes:
        """One report in, the reply out: 64 bytes each. It may block: in a wedge, in a delay, at the bus's pace."""
        report = report.ljust(64, b"\0")
        reply = bytearray(64)
        reply[0] = report[0]
        match report[0]:
            case 0x90 | 0x94:
                self._i2c(self._write, report, reply)
            case 0x91 | 0x93:
                self._i2c(self._read, report, reply)
            case 0x40:
                self._get_data(reply)
            case 0x10:
                self._status(report, reply)
            case 0x50:
                self._set_gpio(report, reply)
            case 0x51:
                for pin, (level, is_input) in enumerate(self.gpio):
                    reply[2 + 2 * pin : 4 + 2 * pin] = bytes((level, is_input))
            case _:
                pass  # settings: acknowledged, all zeros
        return bytes(reply)

    def abandon(self) -> None:
        """The kernel gave up waiting for the last reply: what was under way is torn."""
        self._state = self._to_come = 0
        self._answer = b""
        self._end("torn")

    def _i2c(self, run: Any, report: bytes, reply: bytearray) -> None:
        try:
            run(report)
        except _EngineError as error:
            self._state = error.state
            self._to_come = 0
            if error.state not in (_ADDRESS_NACK, _DATA_NACK):
                # Those two show in the status that the kernel asks for next, the others at once.
                reply[1], reply[2] = 1, error.state

    def _write(self, report: bytes) -> None:
        length, addr = int.from_bytes(report[1:3], "little"), report[3] >> 1
        header = report[:4]  # the same in all reports of one write
        if self._to_come and header != self._header:
            self._stray(f"a write to {addr:#04x} while {self._to_come} bytes of another were to come")
        if not self._to_come:
            self._begin(addr, reading=False, restart=False)
            self._to_come, self._header = length, header
        data = report[4 : 4 + min(self._to_come, CHUNK)]
        message = self._message()
        target = self.targets[addr]
        for byte in data:
            self._tick(message)
            if not target.write(byte):
                self._end("nack")
                raise _EngineError(_DATA_NACK)
            message.data.append(byte)
            message.at.append(time.monotonic())
            self._moved += 1
        self._to_come -= len(data)
        if not self._to_come and report[0] == WRITE:
            self._end("stop")

    def _read(self, report: bytes) -> None:
        length, addr = int.from_bytes(report[1:3], "little"), report[3] >> 1
        restart = report[0] == READ_RESTART
        if self._to_come:
            self._stray(f"a read of {addr:#04x} while {self._to_come} bytes of a write were to come")
        if restart and self._state == _ADDRESS_NACK:
            return  # the write before it met nobody: the kernel learns it when it asks for the data
        self._begin(addr, reading=True, restart=restart)
        message = self._message()
        target = self.targets[addr]
        for _ in range(length):
            self._tick(message)
            message.data.append(target.read())
            message.at.append(time.monotonic())
            self._moved += 1
        self._answer = bytes(message.data)
        self._end("stop")

    def _get_data(self, reply: bytearray) -> None:
        if self._state:
            reply[2] = self._state  # until the kernel cancels: it asks several times
            return
        part, self._answer = self._answer[:CHUNK], self._answer[CHUNK:]
        reply[2], reply[3] = _COMPLETE, len(part)
        reply[4 : 4 + len(part)] = part

    def _status(self, report: bytes, reply: bytearray) -> None:
        reply[2], reply[3], reply[4] = report[2], report[3], report[4]
        if report[2] == _CANCEL:
            self.abandon()
        elif self._state == _ADDRESS_NACK:
            reply[20] = 0x40
        else:
            reply[8] = self._state

    def _set_gpio(self, report: bytes, reply: bytearray) -> None:
        for pin in range(4):
            at = slice(2 + 4 * pin, 6 + 4 * pin)
            set_level, level, set_direction, direction = report[at]
            if set_level:
                self.gpio[pin][0] = level
            if set_direction:
                self.gpio[pin][1] = direction
            reply[at] = report[at]

    # --- the wire ------------------------------------------------------------------------------------------------

    def _begin(self, addr: int, *, reading: bool, restart: bool) -> None:
        if restart and (self._current is None or self._current.addr != addr):
            self._stray(f"a repeated START for {addr:#04x} without a START")
        if not restart:
            self._end("torn")
            self._state, self._moved, self._answer = 0, 0, b""
            self._pick(addr)
            if self._fault is not None and self._fault.kind == "busy":
                raise _EngineError(_BUSY)
            self._sleep(self.delay_s)
        now = time.monotonic()
        with self._changed:
            if self._current is None:
                self._current = Exchange(addr, now)
                self.log.append(self._current)
                self._changed.notify_all()
            message = Message("read" if reading else "write", now)
            self._current.messages.append(message)
        self._tick(message, address=True)
        target = self.targets.get(addr)
        if target is None or not target.start(reading=reading):
            self._refuse(message)

    def _refuse(self, message: Message) -> None:
        message.acked = False
        self._end("nack")
        raise _EngineError(_ADDRESS_NACK)

    def _message(self) -> Message:
        assert self._current is not None
        return self._current.messages[-1]

    def _pick(self, addr: int) -> None:
        with self._changed:
            self._fault = next((fault for fault in self._faults if fault.addr in (None, addr)), None)
            if self._fault is not None:
                self._fault.times -= 1
                if self._fault.times <= 0:
                    self._faults.remove(self._fault)

    def _tick(self, message: Message, *, address: bool = False) -> None:
        """One byte's turn: let what was planned go wrong, and the byte's time go by."""
        fault = self._fault
        if fault is not None and self._moved >= fault.after and not (address and fault.after):
            self._fault = None
            if fault.kind == "wedge":
                self._hold()
            elif fault.kind == "timeout":
                self._end("timeout")
                raise _EngineError(_DATA_TIMEOUT)
            elif address:
                self._refuse(message)
            else:
                self._end("nack")
                raise _EngineError(_DATA_NACK)
        if self.speed_hz:
            self._sleep(9 / self.speed_hz)

    def _hold(self) -> None:
        with self._changed:
            if self._closed:
                return
            self.held = 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self.held)

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._closed, seconds)

    def _end(self, how: Literal["stop", "nack", "timeout", "torn"]) -> None:
        current, self._current = self._current, None
        if current is None:
            return
        current.end, current.ended = how, time.monotonic()
        self._fault = None
        target = self.targets.get(current.addr)
        if target is not None:
            target.stop()
        with self._changed:
            self._changed.notify_all()

    def _stray(self, what: str) -> None:
        self.strays.append(what)
        self._end("torn")
        self._to_come = 0
