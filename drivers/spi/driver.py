"""SPI: the interface of a device's driver, and the frames by which its registers are reached.

A driver here is one device, which is one chip select of a controller. A transaction is one transfer while the device is
selected: a bit goes out for each bit that comes in, so as many bytes are received as are sent. Bytes are in the order
of the wire; a word of more than eight bits goes high byte first.

SPI itself has no registers. Most chips with registers begin a transfer with a command, which is the register's number
with some bits that say read or write, and go on with the value. `RegisterFrame` describes that; the board profile says
which bits they are, and which registers there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from attrs import field, frozen

from hearth.drivers.base import BaseDriver
from hearth.drivers.registers import Outcome, Read, Register, RegWidth, Write
from hearth.errors import DeviceError, Effect, TimedOut
from hearth.fields import Integer

if TYPE_CHECKING:
    from hearth.drivers.registers import Message

Mode: TypeAlias = Literal[0, 1, 2, 3]
Bits: TypeAlias = Annotated[int, Integer(1, 32)]
Mask: TypeAlias = Annotated[int, Integer(0, 0xFFFF)]

MAX_LENGTH = 4096
"""Bytes of one transfer, as the kernel's spidev has it unless its parameter `bufsiz` is changed."""

_SLACK_MS = 1000.0
_STRETCH = 5.0


@frozen
class SpiSettings:
    """The wire's settings for one device. `bits` are those of a word, `speed_hz` is the greatest clock frequency."""

    mode: Mode = 0
    speed_hz: Annotated[int, Integer(1_000, 100_000_000)] = 500_000
    bits: Bits = 8
    cs_high: bool = False
    """True for a device that is selected by a high level."""
    lsb_first: bool = False
    """True for a device that takes the lowest bit of a word first."""

    @property
    def word(self) -> int:
        """Return the bytes of a word: 1, 2 or 4."""
        return 1 if self.bits <= 8 else 2 if self.bits <= 16 else 4


@frozen
class SpiRegister(Register):
    """A register of an SPI device. `read_effect`: reading it changes it, as reading a FIFO or a latched fault does."""

    read_effect: bool = False


@frozen
class RegisterFrame:
    """The form of a transfer that reads or writes a register.

    A command of `reg_width` bits, high byte first, is the register's number with the bits of `read_mask` or
    `write_mask`. Then, for a read, come `dummy` bytes without meaning, and then the value. The messages of a transfer
    are those that the same access has on I2C, so that one mechanism limits the registers of both.
    """

    reg_width: RegWidth = 8
    read_mask: Mask = 0x80
    write_mask: Mask = 0
    dummy: Annotated[int, Integer(0, 8)] = 0

    @property
    def size(self) -> int:
        """Return the bytes of a command."""
        return self.reg_width // 8

    @property
    def header(self) -> int:
        """Return the bytes before the value of a register that is read."""
        return self.size + self.dummy

    def read(self, register: Register) -> bytes:
        """Return the transfer that reads a register."""
        return (register.reg | self.read_mask).to_bytes(self.size, "big") + bytes(self.dummy + register.size)

    def write(self, register: Register, raw: int) -> bytes:
        """Return the transfer that writes a number to a register."""
        value = raw.to_bytes(register.size, register.order, signed=register.signed)
        return (register.reg | self.write_mask).to_bytes(self.size, "big") + value

    def messages(self, data: bytes) -> list[Message] | None:
        """Return what a transfer does as messages of I2C; None if it begins with no command."""
        command, mask = int.from_bytes(data[: self.size], "big"), self.read_mask | self.write_mask
        number = (command & ~mask).to_bytes(self.size, "big")
        if len(data) < self.size or command & mask not in (self.read_mask, self.write_mask):
            return None
        if command & mask == self.read_mask:
            return [Write(number), Read(max(0, len(data) - self.header))]
        return [Write(number + data[self.size :])]


@frozen
class Registers:
    """The registers that the board profile declares for a device, and the frame that reaches them."""

    frame: RegisterFrame
    registers: tuple[SpiRegister, ...] = field(factory=tuple)

    def named(self, name: object) -> SpiRegister | None:
        """Return the register of a name, or of a number; None if there is none."""
        return next((each for each in self.registers if name in (each.name, each.reg)), None)

    def disturbs(self, data: bytes) -> bool:
        """Return True if a transfer reads a register that reading changes."""
        messages = self.frame.messages(data)
        assert messages is not None, "the limits refuse a transfer without a command"
        first = messages[0]
        assert isinstance(first, Write)
        found = self.named(int.from_bytes(first.data[: self.frame.size], "big"))
        return len(messages) == 2 and (found is None or found.read_effect)


class SpiDriver(BaseDriver, ABC):
    """One SPI device, by its name in the board profile, with the wire's settings for it."""

    def __init__(self, device: str, settings: SpiSettings | None) -> None:
        self.device = device
        self.settings = settings or SpiSettings()

    @abstractmethod
    def transfer(self, data: bytes) -> Outcome[bytes]:
        """Send `data` while the device is selected, and return the bytes that came in at the same time.

        Raises DeviceError: effect "none" where the transfer cannot have begun, else "unknown"; `data.errno` is the
        errno's name. TimedOut when the controller did not end it in time.
        """

    def limit_ms(self, length: int) -> float:
        """Return the milliseconds after which a transfer of so many bytes counts as wedged; asks no hardware.

        The kernel ends a hung one before. A controller may have a clock that is slower than was asked for, a fifth of
        it here, and other devices may use it.
        """
        return _SLACK_MS + _STRETCH * length * 8 * 1000 / self.settings.speed_hz

    def _described(self, **more: str) -> dict[str, Any]:
        mine = self.settings
        described = {"kind": "spi", "device": self.device, **more}
        return {**described, "mode": mine.mode, "speed_hz": mine.speed_hz, "bits": mine.bits}

    def _late(self) -> DeviceError:
        why = "the transfer did not end in the controller's time (ETIMEDOUT)"
        return failure(self.device, why, "ETIMEDOUT", sent=True, kind=TimedOut)


def check_transfer(device: str, data: bytes, settings: SpiSettings) -> None:
    """Refuse a transfer that no controller can do. Raises DeviceError with effect "none" and errno EINVAL."""
    if not 1 <= len(data) <= MAX_LENGTH:
        reason = f"{len(data)} bytes; one transfer has 1 to {MAX_LENGTH}"
    elif len(data) % settings.word:
        reason = f"{len(data)} bytes are no whole words of {settings.bits} bits ({settings.word} bytes each)"
    else:
        return
    raise failure(device, reason, "EINVAL", sent=False)


def failure(device: str, reason: str, errno: str, *, sent: bool, kind: type[DeviceError] = DeviceError) -> DeviceError:
    """Return the error of a transfer; `sent`: the device may have taken bytes of it."""
    effect: Effect = "unknown" if sent else "none"
    return kind(f"spi device {device!r}: {reason}", effect=effect, data={"device": device, "errno": errno})


def not_open(device: str) -> DeviceError:
    """Return the error of a device that is used before it is open or after it was closed."""
    return DeviceError(f"spi device {device!r}: it is not open", effect="none", data={"device": device})
