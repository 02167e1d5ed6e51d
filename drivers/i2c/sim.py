"""A simulated I2C adapter and its devices: moves bytes between a transaction and simulated devices at a bus's pace.

It owns the wire: acknowledges, repeated starts, the time of a byte, injected faults, and a log of every transaction
byte by byte, in which a torn or overlapping one is visible. Only the devices know what the bytes mean.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import trio
from attrs import define, field

from hearth.drivers.base import BaseDriver, Style, finish_now
from hearth.drivers.i2c.driver import (
    EVERY_ADDRESS,
    FIRST_ADDR,
    LAST_SEVEN_BIT,
    Kind,
    Scan,
    check_transfer,
    limit_ms,
    nack,
    not_open,
    owned,
    plan,
)
from hearth.drivers.registers import Message, Outcome, Read, Write
from hearth.drivers.simulated import LOG_LENGTH, Clock, Faults, SimFault, clock_for
from hearth.errors import TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

    from hearth.drivers.i2c.driver import Addresses
    from hearth.drivers.registers import RegWidth

# --- faults -----------------------------------------------------------------------------------------------------------
#
# Faults that a test or a demonstration injects into a simulated bus: NACK, timeout, wedge, latency. `Faults` decides
# what fails and when; it knows no bytes and devices. It is set up from the Trio thread and read from the bus's own
# thread, so its few fields are changed by single assignments only.


# --- devices ----------------------------------------------------------------------------------------------------------
#
# The devices on a simulated I2C bus, byte by byte as in their data sheets: a TMP102, a 24C02 and an MCP3221. A device
# owns its registers or its memory and sees what a chip sees: START with a direction, bytes, STOP. It knows no time
# beyond its clock, and nothing about the bus that carries the bytes.


class Device(Protocol):
    """The interface of a device to the bus. `start` and `write` return True to acknowledge."""

    kind: str

    def start(self, *, reading: bool) -> bool:
        """Handle START: the device was addressed."""
        ...

    def write(self, byte: int) -> bool:
        """Handle a byte that was written."""
        ...

    def read(self) -> int:
        """Return the next byte to read."""
        ...

    def stop(self) -> None:
        """Handle STOP; also sent when a transaction is abandoned, as by an adapter that lost its master."""
        ...


class SlowTemperature:
    """An ambient temperature in degrees Celsius: a slow swing and a ripple, the same for the same seed and time."""

    def __init__(self, seed: int, clock: Clock) -> None:
        rng = random.Random(seed)
        self._mean = 20.5 + 2.0 * rng.random()
        self._phases = (rng.random() * math.tau, rng.random() * math.tau)
        self._clock = clock
        self._start: float | None = None

    def __call__(self) -> float:
        """Return the temperature now; time counts from the first call."""
        now = self._clock()
        if self._start is None:
            self._start = now
        at = now - self._start
        slow, ripple = self._phases
        return self._mean + 1.5 * math.sin(math.tau * at / 600 + slow) + 0.2 * math.sin(math.tau * at / 37 + ripple)


_ONE_SHOT, _POLARITY, _SHUTDOWN, _ALERT, _EXTENDED = 0x8000, 0x0400, 0x0100, 0x0020, 0x0010
_READ_ONLY = 0x6020
"""Bits of the configuration that a write does not change: the resolution and the alert flag."""


def encode_tmp102(celsius: float, *, extended: bool = False) -> int:
    """Return the temperature register for a temperature: 1/16 degree, two's complement, left-justified (12 or 13 bits).

    Saturates at the range's ends. In extended mode bit 0 is set, which distinguishes the two forms.
    """
    low, high = (-4096, 4095) if extended else (-2048, 2047)
    steps = min(max(round(celsius * 16), low), high)
    return (steps << 3) & 0xFFFF | 1 if extended else (steps << 4) & 0xFFFF


class Tmp102:
    """A TMP102 thermometer: temperature, configuration and two limits (registers 0 to 3), comparator alert."""

    kind = "tmp102"

    def __init__(self, temperature: Callable[[], float]) -> None:
        self.temperature = temperature
        """The measured temperature; a test may put another function here."""
        self._pointer = 0
        self._registers = [0, 0x60A0, 0x4B00, 0x5000]
        self._alerting = False
        self._written: list[int] = []
        self._read_at = 0

    def _convert(self) -> None:
        celsius = self.temperature()
        extended = bool(self._registers[1] & _EXTENDED)
        self._registers[0] = encode_tmp102(celsius, extended=extended)
        low, high = (self._limit(register, extended=extended) for register in (2, 3))
        if celsius >= high:
            self._alerting = True
        elif celsius < low:
            self._alerting = False
        # The flag is the alert pin: active low unless the polarity bit is set.
        high_when_alerting = bool(self._registers[1] & _POLARITY)
        pin = _ALERT if self._alerting is high_when_alerting else 0
        self._registers[1] = self._registers[1] & ~_ALERT | pin

    def _limit(self, register: int, *, extended: bool) -> float:
        raw = self._registers[register]
        return decode_twos(raw >> 3, 13) / 16 if extended else decode_twos(raw >> 4, 12) / 16

    def start(self, *, reading: bool) -> bool:
        """Start a fresh conversion, unless the chip is shut down; the device was addressed."""
        del reading
        self._written = []
        self._read_at = 0
        if not self._registers[1] & _SHUTDOWN:
            self._convert()
        return True

    def write(self, byte: int) -> bool:
        """Take a byte: the first is the pointer, the next two are a register, high byte first; more are ignored."""
        self._written.append(byte)
        if len(self._written) == 1:
            self._pointer = byte & 3
        elif len(self._written) == 3 and self._pointer:
            self._store(self._written[1] << 8 | self._written[2])
        return True

    def _store(self, value: int) -> None:
        if self._pointer != 1:
            self._registers[self._pointer] = value
            return
        self._registers[1] = value & ~(_READ_ONLY | _ONE_SHOT) | self._registers[1] & _READ_ONLY
        if value & _ONE_SHOT or not value & _SHUTDOWN:
            self._convert()

    def read(self) -> int:
        """Return the register's bytes, high first, again and again."""
        register = self._registers[self._pointer]
        byte = register & 0xFF if self._read_at % 2 else register >> 8
        self._read_at += 1
        return byte

    def stop(self) -> None:
        """Do nothing: there is nothing to finish."""


def decode_twos(raw: int, bits: int) -> int:
    """Return a two's complement number of `bits` bits as a signed one."""
    return raw - (1 << bits) if raw & 1 << (bits - 1) else raw


class Eeprom:
    """A 24C02: 256 bytes, an 8-bit address pointer, pages of 8 bytes within which a write wraps.

    The bytes of a page write are stored at STOP, all that came until then: a transaction that is cut short leaves a
    torn page, as on the real chip. With `write_cycle_s` it does not acknowledge while it is storing.
    """

    kind = "24c02"
    size = 256
    page_size = 8

    def __init__(self, clock: Clock, *, write_cycle_s: float = 0.0) -> None:
        self.memory = bytearray(b"\xff" * self.size)
        self.write_cycle_s = write_cycle_s
        self._clock = clock
        self._busy_until = -math.inf
        self._pointer = 0
        self._addressed = False
        self._latch: dict[int, int] = {}

    def start(self, *, reading: bool) -> bool:
        """Acknowledge, except during a write cycle."""
        self._addressed = reading
        return self._busy_until == -math.inf or self._clock() >= self._busy_until

    def write(self, byte: int) -> bool:
        """Take a byte: the first is the pointer, further ones go into the page latch."""
        if not self._addressed:
            self._addressed = True
            self._pointer = byte
            return True
        self._latch[self._pointer] = byte
        page = self._pointer - self._pointer % self.page_size
        self._pointer = page + (self._pointer + 1) % self.page_size
        return True

    def read(self) -> int:
        """Return the byte at the pointer, which advances and wraps at the end of the memory."""
        byte = self.memory[self._pointer]
        self._pointer = (self._pointer + 1) % self.size
        return byte

    def stop(self) -> None:
        """Store the page latch."""
        if self._latch:
            for at, byte in self._latch.items():
                self.memory[at] = byte
            self._latch = {}
            if self.write_cycle_s:
                self._busy_until = self._clock() + self.write_cycle_s


class Mcp3221:
    """An MCP3221: a converter of 12 bits without registers. Each two bytes are a new conversion, high byte first."""

    kind = "mcp3221"

    def __init__(self, percent: Callable[[], float]) -> None:
        self.percent = percent
        """The voltage at its input in percent of its supply; a test may put another function here."""
        self._code = 0
        self._read_at = 0

    def start(self, *, reading: bool) -> bool:
        """Acknowledge."""
        del reading
        self._read_at = 0
        return True

    def write(self, byte: int) -> bool:
        """Take nothing: there is nothing to write."""
        del byte
        return False

    def read(self) -> int:
        """Return the next byte of the conversions; the input saturates at the supply."""
        if self._read_at % 2 == 0:
            self._code = min(max(int(self.percent() * 40.96), 0), 0xFFF)
        byte = self._code & 0xFF if self._read_at % 2 else self._code >> 8
        self._read_at += 1
        return byte

    def stop(self) -> None:
        """Do nothing: there is nothing to finish."""


# --- i2c --------------------------------------------------------------------------------------------------------------

T = TypeVar("T")

_BITS_PER_BYTE = 9
_PROBES: Mapping[Kind, tuple[Message, ...]] = {"quick": (Write(b""),), "receive": (Read(1),)}


@define(eq=False)
class LoggedTransaction:
    """One transaction as a logic analyser would show it.

    `complete` is False while it runs, and for ever if it was aborted.
    """

    addr: int
    written: bytearray = field(factory=bytearray)
    read: bytearray = field(factory=bytearray)
    complete: bool = False


@define(eq=False)
class _Progress:
    """One transaction's pace and fault: `tick` is called before each byte."""

    due: float
    fault: SimFault | None
    messages: Sequence[Message]
    width: RegWidth | None
    """The bits of a register's number, if the board profile says."""
    moved: int = field(default=0, init=False)


class SimI2c(BaseDriver):
    """An `I2cDriver` without hardware.

    THREAD blocks as a kernel does, ASYNC sleeps in Trio's time, INLINE takes no time. It is an adapter that can do
    everything: any list of messages, and 10-bit addresses, which devices beyond 0x7f have.
    """

    simulated = True

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
        self.log: deque[LoggedTransaction] = deque(maxlen=LOG_LENGTH)
        self.overlaps = 0
        """Count of transactions that began while another was running: a bus must keep this at 0."""
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
        """Return the simulator's name and its devices."""
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
        transaction = LoggedTransaction(addr)
        progress = self._begin(addr, messages, self.addresses.reg_width(addr, ten_bit=ten_bit))
        self.log.append(transaction)
        try:
            await self._delay(self.faults.latency_s)
            for message in messages:
                reading = isinstance(message, Read)
                await self._tick(transaction, progress)
                if device is None or not device.start(reading=reading):
                    raise nack(self.bus, addr, messages, progress.width)
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

    async def _send(self, device: Device, data: bytes, transaction: LoggedTransaction, progress: _Progress) -> None:
        for byte in data:
            await self._tick(transaction, progress)
            if not device.write(byte):
                raise nack(self.bus, transaction.addr, progress.messages, progress.width, errno="EREMOTEIO", byte=True)
            transaction.written.append(byte)
            progress.moved += 1

    async def _receive(self, device: Device, length: int, transaction: LoggedTransaction, progress: _Progress) -> None:
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

    def _begin(self, addr: int | None, messages: Sequence[Message], width: RegWidth | None = None) -> _Progress:
        if self._in_flight:
            self.overlaps += 1
        self._in_flight += 1
        return _Progress(self._clock(), self.faults.pick(addr), messages, width)

    async def _delay(self, seconds: float) -> None:
        if seconds > 0:
            if self.style is Style.ASYNC:
                await trio.sleep(seconds)
            elif self.style is Style.THREAD:
                self._block(seconds)

    async def _tick(self, transaction: LoggedTransaction | None, progress: _Progress) -> None:
        """Wait for the time of one byte, and apply the planned fault."""
        fault = progress.fault
        if fault is not None and progress.moved >= fault.after:
            progress.fault = None
            await self._go_wrong(fault, transaction, progress)
        if self._byte_s:
            # Against a schedule: the system's own delays do not add up over a long transaction.
            progress.due += self._byte_s
            await self._delay(progress.due - self._clock())

    async def _go_wrong(self, fault: SimFault, transaction: LoggedTransaction | None, progress: _Progress) -> None:
        if fault.kind == "wedge":
            await self.faults.hold()
            return
        addr = transaction.addr if transaction else FIRST_ADDR
        if fault.kind == "nack":
            if progress.moved:
                raise nack(self.bus, addr, progress.messages, progress.width, errno="EREMOTEIO", byte=True)
            raise nack(self.bus, addr, progress.messages, progress.width)
        await self._delay(fault.seconds)
        raise TimedOut(
            f"i2c bus {self.bus}: the device at {addr:#04x} held the clock for {fault.seconds * 1000:g} ms",
            effect="unknown",
            data={"bus": self.bus, "addr": addr, "errno": "ETIMEDOUT"},
        )
