"""Sensors: how a named quantity is read from a device, in one transaction, and turned into a number with a unit.

Owns the table of sensor kinds; refuses to keep state, and anything that would take more than one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from hearth.drivers.i2c import I2cDriver, Message, Outcome, Read, Write
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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


SENSOR_KINDS: Mapping[str, SensorKind] = {
    "tmp102": SensorKind((Write(b"\x00"), Read(2)), 2, decode_tmp102, "celsius"),
}
