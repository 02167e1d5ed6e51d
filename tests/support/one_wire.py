"""A DS2482, which makes a 1-Wire bus of I2C, and DS18B20 thermometers on that bus, as a target of the MCP2221.

The kernel's ds2482, w1 and w1_therm face it: their commands, as the data sheets have them, are answered here. Owns the
search of the bus (a triplet a bit), the choice of a thermometer, and its scratchpad.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

_FAMILY = 0x28
_RESET, _CONFIGURE, _SELECT, _WIRE_RESET, _SEND, _RECEIVE, _BIT, _TRIPLET = (
    0xF0, 0xD2, 0xE1, 0xB4, 0xA5, 0x96, 0x87, 0x78,
)  # fmt: skip
_SKIP, _MATCH, _CONVERT, _SCRATCHPAD = 0xCC, 0x55, 0x44, 0xBE
_PRESENCE, _SINGLE, _IS_RESET, _SECOND, _WAY = 0x02, 0x20, 0x10, 0x40, 0x80
_POWER_ON = b"\x50\x05", b"\x0c"
"""The temperature and byte 6 after a reset: 85 degrees, with another byte 6 than where they were measured."""
_IDLE = 0x18
"""The status after a reset: the bus is high, and nothing was set."""


def _checksum(data: bytes) -> int:
    """CRC-8 of 1-Wire: x^8 + x^5 + x^4 + 1, low bit first."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x8C if crc & 1 else 0)
    return crc


class Ds18b20:
    """One thermometer; `celsius` is what it measures, in steps of a sixteenth. Without `present` it is silent.

    Where the supply `fails`, a conversion resets it, and it then has its power-on value.
    """

    def __init__(self, serial: int, celsius: float) -> None:
        body = bytes([_FAMILY]) + serial.to_bytes(6, "little")
        self.rom = body + bytes([_checksum(body)])
        self.name = f"{_FAMILY:02x}-{serial:012x}"
        self.celsius = celsius
        self.present = True
        self.fails = False
        self._measured = _POWER_ON

    def convert(self) -> None:
        """Measure the temperature; byte 6 is the count that remains of a degree."""
        sixteenths = round(self.celsius * 16)
        measured = sixteenths.to_bytes(2, "little", signed=True), bytes([16 - sixteenths % 16])
        self._measured = _POWER_ON if self.fails else measured

    def scratchpad(self) -> bytes:
        """The temperature, two alarms, the resolution (12 bits), three bytes of the chip, and the checksum."""
        temperature, remains = self._measured
        pad = temperature + bytes.fromhex("4b467fff") + remains + b"\x10"
        return pad + bytes([_checksum(pad)])

    def bit(self, index: int) -> int:
        """A bit of its address, the lowest first."""
        return self.rom[index // 8] >> index % 8 & 1


class Ds2482:
    """The bridge, an I2C target."""

    kind = "ds2482"

    def __init__(self, thermometers: Sequence[Ds18b20]) -> None:
        self.thermometers = thermometers
        self._registers = {"status": _IDLE, "config": 0, "data": 0}
        self._pointer = "status"
        self._frame = b""
        self._state: Literal["rom", "match", "search", "function"] = "rom"
        self._chosen: list[Ds18b20] = []
        self._asked = b""
        self._answer = b""
        self._searched = 0

    def start(self, *, reading: bool) -> bool:
        """Always there; a write begins with a command."""
        if not reading:
            self._frame = b""
        return True

    def write(self, byte: int) -> bool:
        """A command, and its parameter."""
        self._frame += bytes([byte])
        command = self._frame[0]
        if len(self._frame) == 1 and command in (_RESET, _WIRE_RESET, _RECEIVE):
            self._run(command, 0)
        elif len(self._frame) == 2:
            self._run(command, byte)
        return True

    def read(self) -> int:
        """The register that the pointer is at."""
        return self._registers[self._pointer]

    def stop(self) -> None:
        """Nothing to finish."""

    def _run(self, command: int, parameter: int) -> None:
        if command == _SELECT:
            self._pointer = {0xE1: "data", 0xC3: "config"}.get(parameter, "status")
            return
        self._pointer = "status"
        if command == _RESET:
            self._registers = {"status": _IDLE, "config": 0, "data": 0}
        elif command == _CONFIGURE:
            self._registers["config"], self._pointer = parameter & 0x0F, "config"
            self._registers["status"] &= ~_IS_RESET
        elif command == _WIRE_RESET:
            self._state, self._answer, self._searched = "rom", b"", 0
            self._chosen = [each for each in self.thermometers if each.present]
            self._registers["status"] = _PRESENCE if self._chosen else 0
        elif command == _SEND:
            self._send(parameter)
        elif command == _RECEIVE:
            self._registers["data"] = self._answer[0] if self._answer else 0xFF
            self._answer = self._answer[1:]
        elif command == _BIT:
            self._registers["status"] |= _SINGLE  # a free bus reads 1: a conversion has ended
        elif command == _TRIPLET:
            self._triplet(parameter >> 7)

    def _send(self, byte: int) -> None:
        if self._state == "rom":
            self._state = "function" if byte == _SKIP else "match" if byte == _MATCH else "search"
            self._asked = b""
        elif self._state == "match":
            self._asked += bytes([byte])
            if len(self._asked) == 8:
                self._state = "function"
                self._chosen = [each for each in self._chosen if each.rom == self._asked]
        elif self._state == "function" and self._chosen:
            self._answer = self._chosen[0].scratchpad() if byte == _SCRATCHPAD else b""
            if byte == _CONVERT:
                for each in self._chosen:
                    each.convert()

    def _triplet(self, wanted: int) -> None:
        """Read a bit of all addresses and its complement, and keep those that have the bit that is then written."""
        bits = {each.bit(self._searched) for each in self._chosen}
        way = wanted if len(bits) == 2 else 0 if bits == {0} else 1
        told = (0 if 0 in bits else _SINGLE) | (0 if 1 in bits else _SECOND) | (_WAY if way else 0)
        self._registers["status"] = self._registers["status"] & 0x1F | told
        self._chosen = [each for each in self._chosen if each.bit(self._searched) == way]
        self._searched += 1
