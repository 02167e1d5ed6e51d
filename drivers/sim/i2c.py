"""A simulated I2C adapter: moves bytes between a transaction and simulated devices, at a real bus's pace.

It owns the wire: acknowledges, repeated starts, how long a byte takes, injected faults, and a log of every
transaction byte by byte, in which a torn or overlapping one is visible. It refuses to know what the bytes
mean.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from attrs import define, field

from hearth.drivers.base import BaseDriver, Style, finish_now
from hearth.drivers.i2c import FIRST_ADDR, LAST_ADDR, Message, Outcome, Read, nack
from hearth.drivers.sim.faults import Fault, Faults
from hearth.errors import DeviceError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from hearth.drivers.sim.devices import Clock, Device

T = TypeVar("T")

LOG_LENGTH = 1024
_BITS_PER_BYTE = 9


@define(eq=False)
class Transaction:
    """One transaction as a logic analyser would show it.

    `complete` is False while it runs, and for ever if it broke off.
    """

    addr: int
    written: bytearray = field(factory=bytearray)
    read: bytearray = field(factory=bytearray)
    complete: bool = False


def clock_for(style: Style) -> Clock:
    """Trio's clock, which may be virtual, for ASYNC; else the machine's."""
    return trio.current_time if style is Style.ASYNC else time.monotonic


class _Progress:
    """One transaction's pace and fault: `tick` is called before each byte."""

    __slots__ = ("due", "fault", "moved")

    def __init__(self, due: float, fault: Fault | None) -> None:
        self.due = due
        self.fault = fault
        self.moved = 0


class SimI2c(BaseDriver):
    """An `I2cDriver` without hardware.

    THREAD blocks as a kernel does, ASYNC sleeps in Trio's time, INLINE takes no time.
    """

    def __init__(
        self,
        bus: int,
        devices: Mapping[int, Device],
        *,
        style: Style = Style.THREAD,
        speed_hz: int = 100_000,
    ) -> None:
        self.style = style
        self.bus = bus
        self.speed_hz = speed_hz
        self.devices = dict(devices)
        self.faults = Faults(style)
        self.log: deque[Transaction] = deque(maxlen=LOG_LENGTH)
        self.overlaps = 0
        """How many transactions began while another was under way: a bus must keep this at 0."""
        self._in_flight = 0
        self._opened = False
        self._byte_s = 0.0 if style is Style.INLINE else _BITS_PER_BYTE / speed_hz
        self._clock = clock_for(style)
        self._block = time.sleep

    def open(self) -> None:
        """Offer the bus."""
        self._opened = True

    def close(self) -> None:
        """Stop offering the bus."""
        self._opened = False

    def describe(self) -> Mapping[str, Any]:
        """Which simulator this is, and who sits on it."""
        devices = [{"addr": addr, "kind": device.kind} for addr, device in sorted(self.devices.items())]
        return {"kind": "i2c", "driver": "sim", "bus": self.bus, "speed_hz": self.speed_hz, "devices": devices}

    def transfer(self, addr: int, messages: Sequence[Message]) -> Outcome[bytes]:
        """See `I2cDriver.transfer`. A coroutine unless INLINE; one that never suspends unless ASYNC."""
        return self._outcome(self._transfer(addr, messages))

    def scan(self) -> Outcome[list[int]]:
        """See `I2cDriver.scan`."""
        return self._outcome(self._scan())

    def _outcome(self, coroutine: Coroutine[Any, Any, T]) -> Outcome[T]:
        return finish_now(coroutine) if self.style is Style.INLINE else coroutine

    async def _transfer(self, addr: int, messages: Sequence[Message]) -> bytes:
        transaction = Transaction(addr)
        progress = self._begin(addr)
        self.log.append(transaction)
        device = self.devices.get(addr)
        try:
            await self._delay(self.faults.latency_s)
            for message in messages:
                reading = isinstance(message, Read)
                await self._tick(transaction, progress)
                if device is None or not device.start(reading=reading):
                    raise nack(self.bus, addr, taken=len(transaction.written))
                if isinstance(message, Read):
                    await self._receive(device, message.length, transaction, progress)
                else:
                    await self._send(device, message.data, transaction, progress)
            transaction.complete = True
            return bytes(transaction.read)
        finally:
            self._in_flight -= 1
            if device is not None:
                device.stop()

    async def _send(self, device: Device, data: bytes, transaction: Transaction, progress: _Progress) -> None:
        for byte in data:
            await self._tick(transaction, progress)
            if not device.write(byte):
                raise nack(self.bus, transaction.addr, taken=len(transaction.written))
            transaction.written.append(byte)
            progress.moved += 1

    async def _receive(self, device: Device, length: int, transaction: Transaction, progress: _Progress) -> None:
        for _ in range(length):
            await self._tick(transaction, progress)
            transaction.read.append(device.read())
            progress.moved += 1

    async def _scan(self) -> list[int]:
        progress = self._begin(None)
        found: list[int] = []
        try:
            await self._delay(self.faults.latency_s)
            for addr in range(FIRST_ADDR, LAST_ADDR + 1):
                await self._tick(None, progress)
                device = self.devices.get(addr)
                if device is not None and device.start(reading=False):
                    device.stop()
                    found.append(addr)
            return found
        finally:
            self._in_flight -= 1

    def _begin(self, addr: int | None) -> _Progress:
        if not self._opened:
            raise DeviceError(f"i2c bus {self.bus}: the bus is not open", effect="none", data={"bus": self.bus})
        if self._in_flight:
            self.overlaps += 1
        self._in_flight += 1
        return _Progress(self._clock(), self.faults.pick(addr))

    async def _delay(self, seconds: float) -> None:
        if seconds > 0:
            if self.style is Style.ASYNC:
                await trio.sleep(seconds)
            elif self.style is Style.THREAD:
                self._block(seconds)

    async def _tick(self, transaction: Transaction | None, progress: _Progress) -> None:
        """Let one byte's time go by, and let what was planned go wrong."""
        fault = progress.fault
        if fault is not None and progress.moved >= fault.after:
            progress.fault = None
            await self._go_wrong(fault, transaction)
        if self._byte_s:
            # Against a schedule: the system's own delays do not add up over a long transaction.
            progress.due += self._byte_s
            await self._delay(progress.due - self._clock())

    async def _go_wrong(self, fault: Fault, transaction: Transaction | None) -> None:
        if fault.kind == "wedge":
            await self.faults.hold()
            return
        addr, taken = (transaction.addr, len(transaction.written)) if transaction else (FIRST_ADDR, 0)
        if fault.kind == "nack":
            raise nack(self.bus, addr, taken=taken)
        await self._delay(fault.seconds)
        raise TimedOut(
            f"i2c bus {self.bus}: the device at {addr:#04x} held the clock for {fault.seconds * 1000:g} ms",
            effect="unknown",
            data={"addr": addr, "errno": "ETIMEDOUT", "taken": taken},
        )
