"""The tools hw.sensor.list, hw.sensor.read and hw.sensor.capture: the measurements of a board.

hw.sensor.read chooses a sensor's bus by its name: a sensor of the profile is a transaction on its own bus; one of the
kernel's is a read of /sys, found at each call since sensors come and go.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypeAlias, TypedDict

from annotated_types import Ge, Gt, Le, Len

from hearth._util.text import suggestions
from hearth.api import Step
from hearth.drivers.board import BOARD_BUS, Board
from hearth.drivers.declare import Planned
from hearth.drivers.iio.driver import MAX_SENSORS as MAX_CAPTURED, MAX_VALUES, CaptureRequest, check_size
from hearth.drivers.named import NamedSignal
from hearth.drivers.schemas import given, wrong
from hearth.drivers.sensor import SENSORS_BUS
from hearth.drivers.typed_tools import offers, reads, tools_of
from hearth.errors import InvalidParams
from hearth.tools import Reached, StepContext, Tool, Use, i2c_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.drivers.iio.driver import Captured
    from hearth.drivers.iio.kernel import KernelReading, KernelSensor

MAX_SENSORS = 1024
"""Most of the kernel's sensors in one answer; a server with hundreds of cores has hundreds of them."""
MAX_CAPTURE_MS = 60_000
_CAPTURE_MS = 10_000
_CAPTURE_GRACE_MS = 5_000

_SPI_CHIP = re.compile(r"[a-z]+/[^/]*-spi-(\d+)-([0-9a-f]+)/")
_I2C_CHIP = re.compile(r"hwmon/[^/]*-i2c-(\d+)-([0-9a-f]+)/")


_SAMPLES: Final = "samples of each sensor; of all sensors together at most {MAX_VALUES}"
_RATE: Final = "samples a second; left out: the rate that the device or its trigger has now"
Name: TypeAlias = Annotated[str, Len(1, 256)]
Unit: TypeAlias = Annotated[str, Len(1, 64)]


class _SensorEntry(TypedDict):
    """A sensor in the list; an absent member is unknown."""

    sensor: Annotated[str, "its name, which outlasts a reboot and hw.sensor.read takes"]
    kind: Annotated[
        str, 'what it measures ("temperature", "voltage", "fan", …), or the chip of a sensor in the profile'
    ]
    unit: Annotated[
        str, 'the unit of its value ("celsius", "volt", …); "boolean" is 0 or 1, "raw" a count without a unit'
    ]
    bus: Annotated[str, "the bus on which it is read"]
    description: NotRequired[Annotated[str, "what it is there for, by the profile, or how it is to be understood"]]
    kernel: NotRequired[Annotated[str, "what the kernel calls the device"]]
    driver: NotRequired[Annotated[str, "the kernel's driver of it"]]
    label: NotRequired[Annotated[str, "what the driver or the board's maker calls this quantity"]]
    path: NotRequired[Annotated[str, "its attribute in /sys"]]
    status: NotRequired[Annotated[str, 'a word on it, such as "Charging"']]
    problem: NotRequired[Annotated[str, "why this process cannot read it, and the cure"]]
    rate_hz: NotRequired[Annotated[float, "how often the device measures, in hertz"]]
    capture: NotRequired[Annotated[bool, "true if hw.sensor.capture takes it"]]
    scale: NotRequired[Annotated[float, "what the attribute's number was multiplied by"]]
    offset: NotRequired[Annotated[float, "what was added to the attribute's number before that"]]
    limits: NotRequired[Annotated[dict[str, float], "limits that the device knows, in `unit`: min, max, crit, …"]]
    alarms: NotRequired[Annotated[list[str], "sensors that show if a limit is passed: 1 is on"]]


class _SensorList(TypedDict):
    sensors: Annotated[list[_SensorEntry], "the sensors"]
    truncated: NotRequired[Annotated[bool, "true if sensors are missing from the list"]]


class _SensorRead(TypedDict):
    sensor: Annotated[Name, "the sensor's name"]
    value: Annotated[float, "what it measures now"]
    unit: Annotated[Unit, "the unit of the value"]
    kernel: NotRequired[Annotated[Name, "what the kernel calls the device, if the kernel drives it"]]


class _Column(TypedDict):
    sensor: Annotated[Name, "its name"]
    unit: Annotated[Unit, "of the samples"]
    samples: Annotated[list[float], "its values, oldest first, in `unit`"]


class _Samples(TypedDict):
    sensors: Annotated[list[_Column], "in the order of the request"]
    kernel: Annotated[Name, "what the kernel calls the device"]
    timed_out: Annotated[bool, "true if fewer than `samples` came in time"]
    rate_hz: NotRequired[Annotated[float, "the rate that the device really had, if it has one"]]
    timestamps_us: NotRequired[Annotated[list[int], "microseconds by the device's clock, for each sample"]]


class _Sensors:
    """The tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._known = board.sensors
        self.kernel = SENSORS_BUS in board.drivers
        self.simulated = {wave.sensor for spec in board.of("iio") for wave in spec.channels}

    @reads("hw.sensor.list", "CAP_SYS_READ")
    def listed(self) -> Planned[_SensorList]:
        """List the sensors that hw.sensor.read can read, with their units.

        Measures nothing. {found}
        """

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            found: list[KernelSensor] = await ctx.transact(
                lambda driver: driver.scan(MAX_SENSORS + 1) if self.kernel else []
            )
            sensors = [sensor.to_json() for sensor in self._known.values()]
            sensors += [{**sensor.to_json(), "bus": SENSORS_BUS} for sensor in found[:MAX_SENSORS]]
            permitted = [one for one in sensors if all(map(ctx.permits, self._uses(one["sensor"])))]
            return {"sensors": permitted, **({"truncated": len(found) > MAX_SENSORS} if self.kernel else {})}

        return Planned(SENSORS_BUS if self.kernel else BOARD_BUS, tuple, run)

    @reads("hw.sensor.read", "CAP_SYS_READ", timeout_ms=5_000, logged=("sensor",))
    def read(self, sensor: Annotated[Name, "{sensors}"]) -> Planned[_SensorRead]:
        """Read a sensor by its name and return its value with the unit (for example celsius)."""
        bus = self._bus(sensor)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            if (known := self._known.get(sensor)) is None:
                reading: KernelReading = await ctx.transact(lambda driver: driver.read(sensor))
                return {"sensor": sensor, "value": reading.value, "unit": reading.unit, "kernel": reading.kernel}
            raw = await ctx.transact(known.read, limit_ms=known.limit_ms(self._board.drivers[bus]))
            return {"sensor": sensor, "value": known.value(raw), "unit": known.unit}

        return Planned(bus, lambda: self._uses(sensor), run, reaches=lambda: self._reached([sensor]))

    @offers(
        "hw.sensor.capture",
        "CAP_SYS_READ",
        1,
        timeout_ms=MAX_CAPTURE_MS + _CAPTURE_GRACE_MS,
        logged=("sensors", "samples", "rate_hz", "timeout_ms"),
    )
    def capture(
        self,
        sensors: Annotated[
            list[Annotated[Name, "a name of hw.sensor.list"]],
            Len(1, MAX_CAPTURED),
            "names of sensors of one device{simulated}",
        ],
        samples: Annotated[int, Ge(1), Le(MAX_VALUES), _SAMPLES],
        rate_hz: Annotated[float, Gt(0), Le(1_000_000), _RATE] | None = None,
        timestamps: Annotated[bool, "return the time of each sample too"] = False,
        timeout_ms: Annotated[int, Ge(1), Le(MAX_CAPTURE_MS), "the longest wait in milliseconds"] = _CAPTURE_MS,
    ) -> Planned[_Samples]:
        """Take many samples of sensors of one device at an even rate, through the device's buffer.

        It is for waveforms, vibration, noise. Only sensors with `capture` in hw.sensor.list. The device's settings are
        changed for the capture and put back at its end, also when the task is cancelled. Running into the timeout is no
        failure: timed_out says so, and the samples that came are there.
        """
        bus = self._device(sensors)
        check_size(samples, len(sensors))

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            stop = threading.Event()
            request = CaptureRequest(samples, timeout_ms / 1000, rate_hz, timestamps, stop=stop.is_set)
            captured: Captured = await ctx.transact(
                lambda driver: driver.capture(sensors, request),
                limit_ms=timeout_ms + _CAPTURE_GRACE_MS,
                on_cancel=stop.set,
            )
            columns = zip(sensors, captured.units, captured.samples, strict=True)
            return {
                "sensors": [{"sensor": name, "unit": unit, "samples": values} for name, unit, values in columns],
                "kernel": captured.kernel,
                "timed_out": captured.timed_out,
                **given(rate_hz=captured.rate_hz, timestamps_us=captured.timestamps_us),
            }

        def uses() -> list[Use]:
            return [use for name in sensors for use in self._uses(name)]

        return Planned(bus, uses, run, reaches=lambda: self._reached(sensors))

    def _bus(self, name: str) -> str:
        """Return the bus of a sensor. Raises InvalidParams."""
        if not self.kernel or name in self._known:
            return self._board.sensor(name).bus
        if "/" not in name:  # all of the kernel's have one: impossible names are refused before anything runs
            known = list(self._known)
            cure, near = suggestions(name, known)
            raise InvalidParams(
                f"board {self._board.name!r} has no sensor {name!r}; its profile names {', '.join(known) or 'none'}, "
                f'and hw.sensor.list has those of the kernel, such as "hwmon/lm75-i2c-1-48/temp1"{cure}',
                data={"sensor": name, "known": known, **near},
            )
        return SENSORS_BUS

    def _device(self, names: Sequence[str]) -> str:
        """Return the bus of the one device whose sensors these are. Raises InvalidParams."""
        buses: list[str] = []
        for index, name in enumerate(names):
            at = f"/sensors/{index}"
            if name in names[:index]:
                raise wrong(at, f"{name!r} is there twice; name each sensor once")
            buses.append(self._bus(name))
            of_profile = name in self._known and name not in self.simulated
            if of_profile or (buses[0] == SENSORS_BUS and name[:4] != "iio/"):
                raise wrong(at, f"{name!r} has no buffer, which only IIO devices have; hw.sensor.read reads it")
            if buses[-1] != buses[0]:
                raise wrong(at, f"{name!r} is of another device than {names[0]!r}; capture each device by its own call")
        return buses[0]

    def _uses(self, name: str) -> Sequence[Use]:
        """Return the I2C or SPI device that a sensor is, if it is one; of iio, counter, power_supply it is unknown."""
        if (sensor := self._known.get(name)) is not None:
            return (sensor.uses(),)
        if (chip := _I2C_CHIP.match(name)) is not None:
            return (i2c_use(int(chip[1]), int(chip[2], 16)),)
        if (chip := _SPI_CHIP.match(name)) is not None:
            return (Use("spi", (f"spidev{int(chip[1])}.{int(chip[2], 16)}",)),)
        return (Use("i2c", (name,)),) if name.startswith(("iio/", "counter/", "power_supply/")) else ()

    def _reached(self, names: Sequence[str]) -> Sequence[Reached]:
        """Return sensors as signals: none, if one is not the profile's."""
        return [(self._known[name].bus, name) for name in names] if self._known.keys() >= {*names} else ()


def sensor_tools(board: Board) -> list[Tool]:
    """Return the sensor tools for a board, in the default order."""
    sensors = _Sensors(board)
    names = f"one of: {', '.join(board.sensors) or 'none'}"
    found = (
        "Besides those that the board's profile names these are all that the kernel has at the moment; those that come "
        "and go (USB, batteries) are there while they are plugged in."
    )
    texts = {
        "found": found if sensors.kernel else "Touches no hardware.",
        "sensors": f"{names}, or one of hw.sensor.list" if sensors.kernel else names,
        "simulated": f": {', '.join(sorted(sensors.simulated))}" if sensors.simulated else "",
    }
    # A chip is asked for its limits, perhaps over a slow wire.
    listing = {"timeout_ms": 10_000 if sensors.kernel else 1_000}
    return tools_of(sensors, texts, listed=listing, read={"plain_result": not sensors.kernel})


class SensorSignal(NamedSignal):
    """A sensor that the board's profile names, as a signal."""

    def read(self) -> Step:
        """See NamedSignal."""
        return Step("hw.sensor.read", {"sensor": self.name})


def iio_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the sensors that the profile of a board names, whatever bus they are on, as signals."""
    for sensor in board.sensors.values():
        yield SensorSignal(bus=sensor.bus, name=sensor.name, unit=sensor.unit, use=sensor.uses())
