"""Sensors: how a named quantity is read from a device, in one transaction, and turned into a number with a unit.

Owns the table of sensor kinds; refuses to keep state, and anything that would take more than one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.drivers.i2c import I2cDriver, Message, Outcome, Read, Write
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SENSORS_BUS = "sensors"
"""The bus of the sensors that the kernel drives itself, on boards whose profile offers them."""


@frozen
class SensorKind:
    """`messages` go to the device as one transaction; `decode` makes a number in `unit` of what was read."""

    messages: tuple[Message, ...]
    length: int
    decode: Callable[[bytes], float]
    unit: str


@frozen(eq=False)
class Sensor:
    """One sensor of a board. `bus` is a bus id ("i2c:1")."""

    name: str
    kind: str
    bus: str
    addr: int
    unit: str
    description: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As hw.sensor.list shows it."""
        entry = {"sensor": self.name, "kind": self.kind, "unit": self.unit, "bus": self.bus}
        return entry if self.description is None else {**entry, "description": self.description}

    def read(self, driver: I2cDriver) -> Outcome[bytes]:
        """The transaction that reads it."""
        return driver.transfer(self.addr, SENSOR_KINDS[self.kind].messages)

    def value(self, raw: bytes) -> float:
        """The number that `raw` stands for. Raises DeviceError for a reply of the wrong length."""
        kind = SENSOR_KINDS[self.kind]
        if len(raw) != kind.length:
            raise DeviceError(
                f"sensor {self.name!r}: expected {kind.length} bytes, got {len(raw)}",
                effect="done",
                data={"addr": self.addr},
            )
        return kind.decode(raw)


def decode_tmp102(raw: bytes) -> float:
    """Degrees Celsius from the two bytes of a TMP102's temperature register, in its 12-bit or 13-bit form."""
    word = int.from_bytes(raw, "big", signed=True)
    return (word >> 3 if word & 1 else word >> 4) / 16


def _left(bits: int, per_unit: int) -> Callable[[bytes], float]:
    """Decodes a signed value in the upper `bits` of a big-endian word; what stands below it is not defined."""
    return lambda raw: (int.from_bytes(raw, "big", signed=True) >> (16 - bits)) / per_unit


def decode_tmp117(raw: bytes) -> float:
    """Degrees Celsius from a TMP117, which says -256 until its first conversion. Raises DeviceError then."""
    if raw == b"\x80\x00":
        raise DeviceError("the tmp117 has measured nothing yet; ask again", effect="none", data={"errno": "EAGAIN"})
    return int.from_bytes(raw, "big", signed=True) / 128


def decode_mcp9808(raw: bytes) -> float:
    """Degrees Celsius from the 13 lower bits of an MCP9808's ambient register; the upper three are alerts."""
    word = int.from_bytes(raw, "big") & 0x1FFF
    return (word - 0x2000 if word & 0x1000 else word) / 16


def _register(number: int, decode: Callable[[bytes], float], unit: str = "celsius") -> SensorKind:
    """A kind whose value is one 16-bit register."""
    return SensorKind((Write(bytes((number,))), Read(2)), 2, decode, unit)


SENSOR_KINDS: Mapping[str, SensorKind] = {
    "tmp102": _register(0x00, decode_tmp102),
    "lm75": _register(0x00, _left(9, 2)),
    "lm75b": _register(0x00, _left(11, 8)),
    "tmp75": _register(0x00, _left(12, 16)),
    "tmp117": _register(0x00, decode_tmp117),
    "mcp9808": _register(0x05, decode_mcp9808),
    "ina219": _register(0x02, lambda raw: (int.from_bytes(raw, "big") >> 3) * 4 / 1000, "volt"),
    "ina226": _register(0x02, lambda raw: int.from_bytes(raw, "big") * 125 / 100_000, "volt"),
}
"""What can be read in one transaction from a chip as it powers up; of the INA chips that is the bus voltage.

A chip that has to be set up, waited for, or calibrated belongs to its kernel driver, whose sensors are offered too.
"""
