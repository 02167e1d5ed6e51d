"""The devices on a simulated I2C bus, byte by byte as their data sheets have it: a TMP102 and a 24C02.

A device owns its registers or its memory and sees what a chip sees: START with a direction, bytes, STOP. It
refuses to know time beyond the clock it is given, and everything about the bus that carries the bytes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Protocol

Clock = Callable[[], float]


class Device(Protocol):
    """What the bus needs of a device. `start` and `write` return True to acknowledge."""

    kind: str

    def start(self, *, reading: bool) -> bool:
        """The device was addressed."""
        ...

    def write(self, byte: int) -> bool:
        """A byte came."""
        ...

    def read(self) -> int:
        """A byte is wanted."""
        ...

    def stop(self) -> None:
        """STOP; also sent when a transaction is abandoned, as by an adapter that lost its master."""
        ...


class SlowTemperature:
    """A room's temperature in degrees Celsius: a slow swing and a ripple, the same for the same seed and time."""

    def __init__(self, seed: int, clock: Clock) -> None:
        rng = random.Random(seed)
        self._mean = 20.5 + 2.0 * rng.random()
        self._phases = (rng.random() * math.tau, rng.random() * math.tau)
        self._clock = clock
        self._start: float | None = None

    def __call__(self) -> float:
        """The temperature now; time counts from the first call."""
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
    """The temperature register for a temperature: 1/16 degree, two's complement, left-justified (12 or 13 bits).

    Saturates at the range's ends. In extended mode bit 0 is set, which is how a reader tells the two forms
    apart.
    """
    low, high = (-4096, 4095) if extended else (-2048, 2047)
    steps = min(max(round(celsius * 16), low), high)
    return (steps << 3) & 0xFFFF | 1 if extended else (steps << 4) & 0xFFFF


class Tmp102:
    """A TMP102 thermometer: temperature, configuration and two limits (registers 0 to 3), comparator alert."""

    kind = "tmp102"

    def __init__(self, temperature: Callable[[], float]) -> None:
        self.temperature = temperature
        """What it measures; a test may put another function here."""
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
        # The flag is the alert pin: active low unless the polarity bit says otherwise.
        high_when_alerting = bool(self._registers[1] & _POLARITY)
        pin = _ALERT if self._alerting is high_when_alerting else 0
        self._registers[1] = self._registers[1] & ~_ALERT | pin

    def _limit(self, register: int, *, extended: bool) -> float:
        raw = self._registers[register]
        return decode_twos(raw >> 3, 13) / 16 if extended else decode_twos(raw >> 4, 12) / 16

    def start(self, *, reading: bool) -> bool:
        """Addressed: the registers are those of a fresh conversion, unless the chip is shut down."""
        del reading
        self._written = []
        self._read_at = 0
        if not self._registers[1] & _SHUTDOWN:
            self._convert()
        return True

    def write(self, byte: int) -> bool:
        """The first byte is the pointer, the next two are a register, high byte first; more are ignored."""
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
        """The register's bytes, high first, again and again."""
        register = self._registers[self._pointer]
        byte = register & 0xFF if self._read_at % 2 else register >> 8
        self._read_at += 1
        return byte

    def stop(self) -> None:
        """Nothing to finish."""


def decode_twos(raw: int, bits: int) -> int:
    """A two's complement number of `bits` bits as a signed one."""
    return raw - (1 << bits) if raw & 1 << (bits - 1) else raw


class Eeprom:
    """A 24C02: 256 bytes, an 8-bit address pointer, pages of 8 bytes within which a write wraps.

    The bytes of a page write land at STOP, all that came until then: a transaction that somebody cut short
    leaves a torn page, as on the real chip. With `write_cycle_s` it does not acknowledge while it is storing.
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
        """Addressed; not acknowledged during a write cycle."""
        self._addressed = reading
        return self._busy_until == -math.inf or self._clock() >= self._busy_until

    def write(self, byte: int) -> bool:
        """The first byte is the pointer, further ones go into the page latch."""
        if not self._addressed:
            self._addressed = True
            self._pointer = byte
            return True
        self._latch[self._pointer] = byte
        page = self._pointer - self._pointer % self.page_size
        self._pointer = page + (self._pointer + 1) % self.page_size
        return True

    def read(self) -> int:
        """The byte at the pointer, which goes on and wraps at the end of the memory."""
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
