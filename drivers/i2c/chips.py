"""Chips on I2C that one transaction reads: the table of sensor kinds, and a board's sensor of such a kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from attrs import frozen

from hearth.drivers.registers import Message, Outcome, Read, Write
from hearth.drivers.sensor import Sensor
from hearth.errors import DeviceError, no_value
from hearth.tools import Use, i2c_use

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hearth.drivers.i2c.driver import I2cDriver


@frozen
class Configuration:
    """The register that says if a chip measures: `stopped` takes its number. Its value is an old one then."""

    register: int
    length: int
    stopped: Callable[[int], bool]

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the exchange that reads it."""
        return (Write(bytes((self.register,))), Read(self.length))


@frozen
class SensorKind:
    """`messages` go to the device as one exchange; `decode` makes a number in `unit` of the bytes that were read.

    Where a chip can be stopped, its `configuration` is read after the value, in the same transaction of its bus.
    """

    messages: tuple[Message, ...]
    length: int
    decode: Callable[[bytes], float]
    unit: str
    configuration: Configuration | None = None


def decode_tmp102(raw: bytes) -> float:
    """Return degrees Celsius from the two bytes of a TMP102's temperature register, in its 12-bit or 13-bit form."""
    word = int.from_bytes(raw, "big", signed=True)
    return (word >> 3 if word & 1 else word >> 4) / 16


def _left(bits: int, per_unit: int) -> Callable[[bytes], float]:
    """Return a decoder of a signed value in the upper `bits` of a big-endian word; the lower bits are undefined."""
    return lambda raw: (int.from_bytes(raw, "big", signed=True) >> (16 - bits)) / per_unit


def decode_tmp117(raw: bytes) -> float:
    """Return degrees Celsius from a TMP117. Raises DeviceError for its -256 before the first conversion."""
    if raw == b"\x80\x00":
        raise no_value("the tmp117 has measured nothing yet; ask again", errno="EAGAIN")
    return int.from_bytes(raw, "big", signed=True) / 128


def decode_mcp9808(raw: bytes) -> float:
    """Return degrees Celsius from the 13 lower bits of an MCP9808's ambient register; the upper three are alerts."""
    word = int.from_bytes(raw, "big") & 0x1FFF
    return (word - 0x2000 if word & 0x1000 else word) / 16


def _register(
    number: int, decode: Callable[[bytes], float], configuration: Configuration, unit: str = "celsius"
) -> SensorKind:
    """A kind whose value is one 16-bit register."""
    return SensorKind((Write(bytes((number,))), Read(2)), 2, decode, unit, configuration)


_SHUTDOWN_8 = Configuration(0x01, 1, lambda word: bool(word & 1))
_SHUTDOWN_16 = Configuration(0x01, 2, lambda word: bool(word & 0x0100))
_MODE_TMP117 = Configuration(0x01, 2, lambda word: bool(word & 0x0400))
"""Shut down, or one conversion that ends so."""
_MODE_INA = Configuration(0x00, 2, lambda word: word & 6 != 6)
"""Not converting the bus voltage continuously."""

SENSOR_KINDS: Mapping[str, SensorKind] = {
    "tmp102": _register(0x00, decode_tmp102, _SHUTDOWN_16),
    "lm75": _register(0x00, _left(9, 2), _SHUTDOWN_8),
    "lm75b": _register(0x00, _left(11, 8), _SHUTDOWN_8),
    "tmp75": _register(0x00, _left(12, 16), _SHUTDOWN_8),
    "tmp117": _register(0x00, decode_tmp117, _MODE_TMP117),
    "mcp9808": _register(0x05, decode_mcp9808, _SHUTDOWN_16),
    "ina219": _register(0x02, lambda raw: (int.from_bytes(raw, "big") >> 3) * 4 / 1000, _MODE_INA, "volt"),
    "ina226": _register(0x02, lambda raw: int.from_bytes(raw, "big") * 125 / 100_000, _MODE_INA, "volt"),
    "mcp3221": SensorKind((Read(2),), 2, lambda raw: round(int.from_bytes(raw, "big") * 100 / 4096, 2), "percent"),
}
"""Sensors that can be read in one transaction from a chip as it powers up.

Of the INA chips the value is the bus voltage. An MCP3221 measures in percent of its supply: the level of a tank with a
ratiometric level sender, for one.

A chip that has to be set up, waited for, or calibrated belongs to its kernel driver, whose sensors are offered too.
"""


@frozen(eq=False)
class I2cSensor(Sensor):
    """A chip of one of these kinds at an address of an adapter. `none` and `valid` are in its unit."""

    none: tuple[float, ...] = ()
    valid: tuple[float, ...] | None = None

    def uses(self) -> Use:
        """Return the device that it is read from."""
        return i2c_use(int(self.bus.removeprefix("i2c:")), self.addr)

    @property
    def _exchanges(self) -> list[tuple[Message, ...]]:
        """Return the exchanges of a reading. Many adapters do no more than a write and a read in one.

        The value is the last: the chip's pointer stays where a client that names no register expects it.
        """
        kind = SENSOR_KINDS[self.kind]
        return [kind.messages] if kind.configuration is None else [kind.configuration.messages, kind.messages]

    def limit_ms(self, driver: Any) -> float:
        """See Sensor."""
        return sum(cast("I2cDriver", driver).limit_ms(messages) for messages in self._exchanges)

    def read(self, driver: Any) -> Outcome[Any]:
        """See Sensor."""
        first, *more = self._exchanges
        found = cast("I2cDriver", driver).transfer(self.addr, first)
        if not more:
            return found
        if isinstance(found, bytes):
            return found + driver.transfer(self.addr, *more)
        return self._joined(driver, found, *more)

    async def _joined(self, driver: Any, found: Coroutine[Any, Any, bytes], more: tuple[Message, ...]) -> bytes:
        configuration = await found
        value: bytes = await driver.transfer(self.addr, more)
        return configuration + value

    def value(self, raw: Any) -> float:
        """Return the number of `raw`. Raises DeviceError for a wrong length, and for a chip that does not measure."""
        kind = SENSOR_KINDS[self.kind]
        configuration = kind.configuration
        length = kind.length + (0 if configuration is None else configuration.length)
        if len(raw) != length:
            raise DeviceError(
                f"sensor {self.name!r}: expected {length} bytes, got {len(raw)}",
                effect="done",
                data={"addr": self.addr},
            )
        if configuration is not None:
            word = raw[: configuration.length]
            if configuration.stopped(int.from_bytes(word, "big")):
                register = f"register {configuration.register:#04x} is 0x{word.hex()}"
                text = f"sensor {self.name!r}: the chip is shut down ({register}), so it has only an old reading"
                cure = "let it measure continuously, or switch its supply off and on"
                raise no_value(f"{text}; {cure}", addr=self.addr)
        value = kind.decode(raw[-kind.length :])
        if value in self.none or not (self.valid is None or self.valid[0] <= value <= self.valid[1]):
            text = f"sensor {self.name!r}: {value:g} {self.unit} is not a measurement, by its `none` or `valid`"
            raise no_value(text, addr=self.addr)
        return value
