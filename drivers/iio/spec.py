"""The buffered devices of a board profile: the table `[[iio]]`.

With driver = "iio" it names a device of the kernel whose buffer hearth may use, perhaps with the trigger by which it
samples. With driver = "sim" it is a simulated device, whose channels are sensors of the board.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from attrs import frozen

from hearth._util.toml import show
from hearth.drivers.base import Style
from hearth.drivers.iio.driver import SimulatedWave
from hearth.drivers.kind import Resource
from hearth.drivers.sensor import Sensor
from hearth.fields import Choice, Fault, Number, Text
from hearth.tools import Use

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping

    from hearth.drivers.base import Driver
    from hearth.drivers.iio.sim import SimIio
    from hearth.drivers.kind import Opening, Specs
    from hearth.tables import Table

_TEXT: Final = Text()
_DRIVER: Final = Choice("sim", "iio")
_RATE: Final = Number(gt=0, le=100_000)


@frozen(eq=False)
class IioSensor(Sensor):
    """A channel of a simulated device. Its `addr` has no meaning."""

    def to_json(self) -> dict[str, Any]:
        """Return the sensor for hw.sensor.list."""
        return {**super().to_json(), "capture": True}

    def uses(self) -> Use:
        """Return the use of a sensor whose bus is not known, as of the kernel's IIO sensors."""
        return Use("i2c", (self.name,))

    def limit_ms(self, driver: Any) -> float:
        """See Sensor."""
        return 1_000

    def read(self, driver: Any) -> Coroutine[Any, Any, float]:
        """Return the transaction that reads it."""
        return cast("SimIio", driver).read(self.name)

    def value(self, raw: Any) -> float:
        """Return what was read."""
        return float(raw)


@frozen
class IioSpec:
    """A device, by its lasting name: the middle part of its sensors' names. `trigger` None leaves its own."""

    label: str
    driver: str
    trigger: str | None = None
    rate_hz: float = 100
    channels: tuple[SimulatedWave, ...] = ()

    @property
    def bus(self) -> str:
        """Return the id of a simulated device's bus; the kernel's are read on the bus "sensors"."""
        return f"iio:{self.label}"

    def make_driver(self, opening: Opening) -> Driver | None:
        """Return the driver of a simulated device, not opened; the kernel's are read on the bus of all its sensors."""
        if self.driver != "sim":
            return None
        from hearth.drivers.iio.sim import SimIio

        style = Style.ASYNC if opening.style is Style.ASYNC else Style.THREAD
        return SimIio(self.label, self.channels, self.rate_hz, style=style)

    def sensors(self) -> Iterator[Sensor]:
        """Yield the simulated channels as sensors of the board."""
        for wave in self.channels:
            yield IioSensor(wave.sensor, "iio", self.bus, 0, wave.unit, f"simulated: {wave.hz:g} Hz")

    def resources(self) -> Iterator[Resource]:
        """Yield what it needs alone on its board."""
        for number, wave in enumerate(self.channels):
            name = show(wave.sensor)
            taken = f"there is another sensor {name}; give this one a name of its own"
            yield Resource(("sensor", wave.sensor), f"channels[{number}].sensor", name, taken)


def check(top: Table, specs: Specs, discover: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse devices of the kernel on a board that does not offer the kernel's sensors."""
    for index, spec in enumerate(specs["iio"]):
        if spec.driver == "iio" and "sensors" not in discover:
            reason = "the kernel's sensors are not offered; add sensors = true under [discover]"
            top.faults.append(Fault(f"iio[{index}].driver", reason))


def parse_iio(table: Table) -> IioSpec:
    """Read one `[[iio]]`; only where the table is `ok` is every value of its type."""
    label: str = table.take("label", _TEXT)
    driver: str = table.take("driver", _DRIVER)
    trigger, rate_hz = table.take("trigger", _TEXT, None), table.take("rate_hz", _RATE, 100)
    channels = tuple([_wave(entry) for entry in table.tables("channels")])
    table.done()
    if driver == "sim" and not channels:
        table.fault("channels", "a simulated device has channels; add { sensor = NAME, unit = UNIT }")
    own = {"sim": ("channels", "rate_hz"), "iio": ("trigger",)}
    for kind, keys in own.items():
        for key in keys:
            if key in table.content and table.ok and driver != kind:
                table.fault(key, f'only a device with driver = "{kind}" has it')
    return IioSpec(label, driver, trigger, rate_hz, channels)


def _wave(entry: Table) -> SimulatedWave:
    sensor, unit = entry.take("sensor", _TEXT), entry.take("unit", _TEXT)
    values = entry.given(SimulatedWave)
    entry.done()
    return SimulatedWave(sensor, unit, **values)
