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
from hearth.drivers.i2c import (
    FIRST_ADDR,
    Kind,
    Message,
    Outcome,
    Read,
    Scan,
    Write,
    check_transfer,
    limit_ms,
    nack,
    not_open,
    owned,
    plan,
)
from hearth.drivers.i2c_addresses import EVERY_ADDRESS, LAST_SEVEN_BIT
from hearth.drivers.sim.faults import Fault, Faults
from hearth.errors import TimedOut

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Mapping, Sequence

    from hearth.drivers.i2c_addresses import Addresses
    from hearth.drivers.sim.devices import Clock, Device

T = TypeVar("T")

LOG_LENGTH = 1024
_BITS_PER_BYTE = 9
_PROBES: Mapping[Kind, tuple[Message, ...]] = {"quick": (Write(b""),), "receive": (Read(1),)}


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

    __slots__ = ("due", "fault", "messages", "moved")

    def __init__(self, due: float, fault: Fault | None, messages: Sequence[Message]) -> None:
        self.due = due
        self.fault = fault
        self.messages = messages
        self.moved = 0


class SimI2c(BaseDriver):
    """An `I2cDriver` without hardware.

    THREAD blocks as a kernel does, ASYNC sleeps in Trio's time, INLINE takes no time. It is an adapter that can do
    everything: any list of messages, and 10-bit addresses, which devices have that sit beyond 0x7f.
    """

    def __init__(
        self,
        bus: int,
        devices: Mapping[int, Device],
        *,
        style: Style = Style.THREAD,
        speed_hz: int = 100_000,
        addresses: Addresses = EVERY_ADDRESS,
    ) -> None:
        self.style = style
        self.bus = bus
        self.speed_hz = speed_hz
        self.devices = dict(devices)
        self.addresses = addresses
        self.faults = Faults(style)
        self.owners: dict[int, str] = {}
        """Addresses that a driver of the kernel's has for itself, by its name: none, unless a test says so."""
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

    def transfer(self, addr: int, messages: Sequence[Message], *, ten_bit: bool = False) -> Outcome[bytes]:
        """See `I2cDriver.transfer`. A coroutine unless INLINE; one that never suspends unless ASYNC."""
        return self._outcome(self._transfer(addr, messages, ten_bit=ten_bit))

    def scan(self, include: Collection[int] = ()) -> Outcome[Scan]:
        """See `I2cDriver.scan`."""
        return self._outcome(self._scan(include))

    def limit_ms(self, messages: Sequence[Message]) -> float:
        """See `I2cDriver.limit_ms`."""
        return limit_ms(messages, speed_hz=self.speed_hz)

    def _outcome(self, coroutine: Coroutine[Any, Any, T]) -> Outcome[T]:
        return finish_now(coroutine) if self.style is Style.INLINE else coroutine

    async def _transfer(self, addr: int, messages: Sequence[Message], *, ten_bit: bool) -> bytes:
        if not self._opened:
            raise not_open(self.bus)
        check_transfer(self.bus, addr, messages, self.addresses, ten_bit=ten_bit)
        if addr in self.owners:
            raise owned(self.bus, addr, self.owners[addr])
        # A device answers to addresses of its own width only, also where the number is the same.
        wide = ten_bit or addr > LAST_SEVEN_BIT
        device = self.devices.get(addr) if wide == (addr > LAST_SEVEN_BIT) else None
        transaction = Transaction(addr)
        progress = self._begin(addr, messages)
        self.log.append(transaction)
        try:
            await self._delay(self.faults.latency_s)
            for message in messages:
                reading = isinstance(message, Read)
                await self._tick(transaction, progress)
                if device is None or not device.start(reading=reading):
                    raise nack(self.bus, addr, messages)
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
                raise nack(self.bus, transaction.addr, progress.messages, errno="EREMOTEIO", byte=True)
            transaction.written.append(byte)
            progress.moved += 1

    async def _receive(self, device: Device, length: int, transaction: Transaction, progress: _Progress) -> None:
        for _ in range(length):
            await self._tick(transaction, progress)
            transaction.read.append(device.read())
            progress.moved += 1

    async def _scan(self, include: Collection[int]) -> Scan:
        if not self._opened:
            raise not_open(self.bus)
        planned = plan(include, addresses=self.addresses)
        found: list[int] = []
        owners: dict[int, str] = {}
        progress = self._begin(None, _PROBES["quick"])
        try:
            await self._delay(self.faults.latency_s)
            for addr, kind in planned.probes.items():
                if addr in self.owners:
                    owners[addr] = self.owners[addr]
                elif await self._answers(addr, kind, progress):
                    found.append(addr)
            return Scan(tuple(found), owners, planned.skipped)
        finally:
            self._in_flight -= 1

    async def _answers(self, addr: int, kind: Kind, progress: _Progress) -> bool:
        await self._tick(None, progress)
        device = self.devices.get(addr)
        if device is None or not device.start(reading=kind == "receive"):
            return False
        if kind == "receive":
            await self._tick(None, progress)
            device.read()
        device.stop()
        return True

    def _begin(self, addr: int | None, messages: Sequence[Message]) -> _Progress:
        if self._in_flight:
            self.overlaps += 1
        self._in_flight += 1
        return _Progress(self._clock(), self.faults.pick(addr), messages)

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
            await self._go_wrong(fault, transaction, progress)
        if self._byte_s:
            # Against a schedule: the system's own delays do not add up over a long transaction.
            progress.due += self._byte_s
            await self._delay(progress.due - self._clock())

    async def _go_wrong(self, fault: Fault, transaction: Transaction | None, progress: _Progress) -> None:
        if fault.kind == "wedge":
            await self.faults.hold()
            return
        addr = transaction.addr if transaction else FIRST_ADDR
        if fault.kind == "nack":
            if progress.moved:
                raise nack(self.bus, addr, progress.messages, errno="EREMOTEIO", byte=True)
            raise nack(self.bus, addr, progress.messages)
        await self._delay(fault.seconds)
        raise TimedOut(
            f"i2c bus {self.bus}: the device at {addr:#04x} held the clock for {fault.seconds * 1000:g} ms",
            effect="unknown",
            data={"bus": self.bus, "addr": addr, "errno": "ETIMEDOUT"},
        )
