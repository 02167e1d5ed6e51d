"""A simulated I2C adapter and its devices: moves bytes between a transaction and simulated devices at a bus's pace.

It owns the wire: acknowledges, repeated starts, the time of a byte, injected faults, and a log of every transaction
byte by byte, in which a torn or overlapping one is visible. Only the devices know what the bytes mean.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from attrs import define, field

from hearth.drivers.base import Style
from hearth.drivers.i2c.driver import (
    BITS_PER_BYTE,
    EVERY_ADDRESS,
    FIRST_ADDR,
    LAST_SEVEN_BIT,
    I2cDriver,
    Kind,
    Scan,
    broken_effect,
    check_transfer,
    nack,
    not_open,
    owned,
    plan,
    refused_effect,
)
from hearth.drivers.registers import Message, Read, Write
from hearth.drivers.simulated import Clock, Faults, Progress, SimFault, SimWire
from hearth.errors import DeviceError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from hearth.drivers.i2c.driver import Addresses
    from hearth.drivers.registers import Outcome, RegWidth

# The devices on a simulated I2C bus, byte by byte as in their data sheets: a TMP102, a 24C02 and an MCP3221. A device
# owns its registers or its memory and sees what a chip sees: START with a direction, bytes, STOP. It knows no time
# beyond its clock, and nothing about the bus that carries the bytes.


class Device(ABC):
    """The interface of a device to the bus. `start` and `write` return True to acknowledge."""

    kind: str

    @abstractmethod
    def start(self, *, reading: bool) -> bool:
        """Handle START: the device was addressed."""

    def write(self, byte: int) -> bool:
        """Handle a byte that was written; by default there is nothing to write."""
        return False

    @abstractmethod
    def read(self) -> int:
        """Return the next byte to read."""

    def stop(self) -> None:
        """Handle STOP; also sent when a transaction is abandoned, as by an adapter that lost its master."""
        return


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


class Tmp102(Device):
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


def decode_twos(raw: int, bits: int) -> int:
    """Return a two's complement number of `bits` bits as a signed one."""
    return raw - (1 << bits) if raw & 1 << (bits - 1) else raw


class Eeprom(Device):
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


class Mcp3221(Device):
    """An MCP3221: a converter of 12 bits without registers. Each two bytes are a new conversion, high byte first."""

    kind = "mcp3221"

    def __init__(self, percent: Callable[[], float]) -> None:
        self.percent = percent
        """The voltage at its input in percent of its supply; a test may put another function here."""
        self._code = 0
        self._read_at = 0

    def start(self, *, reading: bool) -> bool:
        """Acknowledge."""
        self._read_at = 0
        return True

    def read(self) -> int:
        """Return the next byte of the conversions; the input saturates at the supply."""
        if self._read_at % 2 == 0:
            self._code = min(max(int(self.percent() * 40.96), 0), 0xFFF)
        byte = self._code & 0xFF if self._read_at % 2 else self._code >> 8
        self._read_at += 1
        return byte


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


@define(eq=False, kw_only=True)
class _I2cProgress(Progress):
    """A transaction on its way, with the bits of a register's number, if the board profile says."""

    addr: int
    messages: Sequence[Message]
    width: RegWidth | None


class SimI2c(SimWire, I2cDriver):
    """An adapter without hardware that can do everything: any list of messages, and 10-bit addresses.

    Those are the addresses of devices beyond 0x7f.
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
        SimWire.__init__(self, style, Faults(style), BITS_PER_BYTE / speed_hz)
        I2cDriver.__init__(self, bus, speed_hz, addresses)
        self.devices = dict(devices)
        self.owners: dict[int, str] = {}
        """Addresses that a driver of the kernel's has for itself, by its name: none, unless a test says so."""

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
        width = self.addresses.reg_width(addr, ten_bit=ten_bit)
        progress = _I2cProgress(self._clock(), self.faults.pick(addr), addr=addr, messages=messages, width=width)
        self.log.append(transaction)
        with self._transaction():
            try:
                await self._delay(self.faults.latency_s)
                for message in messages:
                    await self._tick(progress)
                    if device is None or not device.start(reading=isinstance(message, Read)):
                        raise nack(self.bus, addr, messages, width)
                    if isinstance(message, Read):
                        for _ in range(message.length):
                            await self._tick(progress)
                            transaction.read.append(device.read())
                            progress.moved += 1
                    else:
                        await self._send(device, message.data, transaction, progress)
            finally:
                if device is not None:
                    device.stop()
        transaction.complete = True
        return bytes(transaction.read)

    async def _send(self, device: Device, data: bytes, transaction: LoggedTransaction, progress: _I2cProgress) -> None:
        for byte in data:
            await self._tick(progress)
            if not device.write(byte):
                raise self._nack(progress, byte=True)
            transaction.written.append(byte)
            progress.moved += 1

    async def _scan(self, include: Collection[int]) -> Scan:
        if not self._opened:
            raise not_open(self.bus)
        planned = plan(include, addresses=self.addresses)
        found: list[int] = []
        owners: dict[int, str] = {}
        fault = self.faults.pick(None)
        progress = _I2cProgress(self._clock(), fault, addr=FIRST_ADDR, messages=_PROBES["quick"], width=None)
        with self._transaction():
            await self._delay(self.faults.latency_s)
            for addr, kind in planned.probes.items():
                if addr in self.owners:
                    owners[addr] = self.owners[addr]
                elif await self._answers(addr, kind, progress):
                    found.append(addr)
        return Scan(tuple(found), owners, planned.skipped)

    async def _answers(self, addr: int, kind: Kind, progress: _I2cProgress) -> bool:
        await self._tick(progress)
        device = self.devices.get(addr)
        if device is None or not device.start(reading=kind == "receive"):
            return False
        if kind == "receive":
            await self._tick(progress)
            device.read()
        device.stop()
        return True

    def _nack(self, progress: _I2cProgress, *, byte: bool) -> DeviceError:
        errno = "EREMOTEIO" if byte else "ENXIO"
        return nack(self.bus, progress.addr, progress.messages, progress.width, errno=errno, byte=byte)

    def _failure(self, fault: SimFault, progress: Any) -> DeviceError:
        if fault.kind == "nack":
            return self._nack(progress, byte=progress.moved > 0)
        place, data = f"i2c bus {self.bus}, address {progress.addr:#04x}", {"bus": self.bus, "addr": progress.addr}
        if fault.kind == "busy":
            # What the winner sends is the same up to there: none of this exchange's own bytes has arrived.
            effect = refused_effect(progress.messages, progress.width)
            text = f"{place}: another controller won the arbitration; try again (EAGAIN)"
            return DeviceError(text, effect=effect, data={**data, "errno": "EAGAIN"})
        return TimedOut(
            f"{place}: the device held the clock for {fault.seconds * 1000:g} ms",
            effect=broken_effect(progress.messages, progress.width),
            data={**data, "errno": "ETIMEDOUT"},
        )
