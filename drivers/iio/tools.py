"""The tools hw.sensor.list, hw.sensor.read and hw.sensor.capture: the measurements of a board.

hw.sensor.read chooses a sensor's bus by its name: a sensor of the profile is a transaction on its own bus; one of the
kernel's is a read of /sys, found at each call since sensors come and go.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

from hearth._util.text import suggestions
from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.board import BOARD_BUS, Board
from hearth.drivers.declare import reading, tool
from hearth.drivers.iio.driver import MAX_SENSORS as MAX_CAPTURED, MAX_VALUES, CaptureRequest, check_size
from hearth.drivers.named import NamedSignal
from hearth.drivers.schemas import wrong
from hearth.drivers.sensor import SENSORS_BUS
from hearth.errors import InvalidParams
from hearth.tools import Args, Reached, StepContext, Tool, Use, i2c_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.drivers.iio.driver import Captured
    from hearth.drivers.iio.kernel import KernelReading, KernelSensor, KernelSensors
    from hearth.drivers.schemas import Schema

MAX_SENSORS = 1024
"""Most of the kernel's sensors in one answer; a server with hundreds of cores has hundreds of them."""
MAX_CAPTURE_MS = 60_000
_CAPTURE_MS = 10_000
_CAPTURE_GRACE_MS = 5_000

_SPI_CHIP = re.compile(r"[a-z]+/[^/]*-spi-(\d+)-([0-9a-f]+)/")
_I2C_CHIP = re.compile(r"hwmon/[^/]*-i2c-(\d+)-([0-9a-f]+)/")


def _sensor_uses(board: Board, name: str) -> Sequence[Use]:
    """Return the I2C or SPI device that a sensor is, if it is one; of iio, counter and power_supply that is unknown."""
    if (sensor := board.sensors.get(name)) is not None:
        return (sensor.uses(),)
    if (chip := _I2C_CHIP.match(name)) is not None:
        return (i2c_use(int(chip[1]), int(chip[2], 16)),)
    if (chip := _SPI_CHIP.match(name)) is not None:
        return (Use("spi", (f"spidev{int(chip[1])}.{int(chip[2], 16)}",)),)
    return (Use("i2c", (name,)),) if name.startswith(("iio/", "counter/", "power_supply/")) else ()


def sensor_tools(board: Board) -> list[Tool]:
    """Return the sensor tools for a board, in the default order."""
    kernel = SENSORS_BUS in board.drivers

    def bus_of(args: Args) -> str:
        name = args["sensor"]
        if not kernel or name in board.sensors:
            return board.sensor(name).bus
        if "/" not in name:  # all of the kernel's have one: impossible names are refused before anything runs
            known = list(board.sensors)
            cure, near = suggestions(name, known)
            raise InvalidParams(
                f"board {board.name!r} has no sensor {name!r}; its profile names {', '.join(known) or 'none'}, and "
                'hw.sensor.list has those of the kernel, such as "hwmon/lm75-i2c-1-48/temp1"'
                f"{cure}",
                data={"sensor": name, "known": known, **near},
            )
        return SENSORS_BUS

    async def read(ctx: StepContext, args: Args) -> Mapping[str, Any]:
        name = args["sensor"]
        if kernel and name not in board.sensors:
            reading: KernelReading = await ctx.transact(lambda driver: driver.read(name))
            return {"sensor": name, "value": reading.value, "unit": reading.unit, "kernel": reading.kernel}
        sensor = board.sensor(name)
        raw = await ctx.transact(sensor.read, limit_ms=sensor.limit_ms(board.drivers[sensor.bus]))
        return {"sensor": sensor.name, "value": sensor.value(raw), "unit": sensor.unit}

    async def listed(ctx: StepContext, _args: Args) -> Mapping[str, Any]:
        found: list[KernelSensor] = await ctx.transact(_scan if kernel else lambda _driver: [])
        sensors = [sensor.to_json() for sensor in board.sensors.values()]
        sensors += [{**sensor.to_json(), "bus": SENSORS_BUS} for sensor in found[:MAX_SENSORS]]
        permitted = [one for one in sensors if all(map(ctx.permits, _sensor_uses(board, one["sensor"])))]
        return {"sensors": permitted, **({"truncated": len(found) > MAX_SENSORS} if kernel else {})}

    names = f"one of: {', '.join(board.sensors) or 'none'}"
    asked = schemas.text(f"{names}, or one of hw.sensor.list" if kernel else names, most=256)
    found_now = (
        " Besides those that the board's profile names these are all that the kernel has at the moment; those "
        "that come and go (USB, batteries) are there while they are plugged in."
    )
    reads = reading("CAP_SYS_READ")
    return [
        reads(
            "hw.sensor.list",
            "List the sensors that hw.sensor.read can read, with their units. Measures nothing."
            + (found_now if kernel else " Touches no hardware."),
            {},
            {
                "sensors": schemas.listed("the sensors", _entry()),
                "truncated?": schemas.flag("true if sensors are missing from the list"),
            },
            timeout_ms=10_000 if kernel else 1_000,  # a chip is asked for its limits, perhaps over a slow wire
            bus=lambda _args: SENSORS_BUS if kernel else BOARD_BUS,
            uses=lambda _args: (),
            run=listed,
        ),
        reads(
            "hw.sensor.read",
            "Read a sensor by its name and return its value with the unit (for example celsius).",
            {"sensor": asked},
            {
                "sensor": schemas.text("the sensor's name", most=256),
                "value": {"type": "number", "description": "what it measures now"},
                "unit": schemas.text("the unit of the value"),
                "kernel?": schemas.text("what the kernel calls the device, if the kernel drives it", most=256),
            },
            timeout_ms=5_000,
            logged=("sensor",),
            plain_result=not kernel,
            bus=bus_of,
            uses=lambda args: _sensor_uses(board, args["sensor"]),
            reaches=lambda args: _reached(board, [args["sensor"]]),
            run=read,
        ),
        _capture_tool(board, bus_of),
    ]


def _capture_tool(board: Board, bus_of: Callable[[Args], str]) -> Tool:
    simulated = {wave.sensor for spec in board.of("iio") for wave in spec.channels}
    named = f"of one device: {', '.join(sorted(simulated))}" if simulated else "of one device"

    def bus(args: Args) -> str:
        names = args["sensors"]
        buses = []
        for index, name in enumerate(names):
            at = f"/sensors/{index}"
            if name in names[:index]:
                raise wrong(at, f"{name!r} is there twice; name each sensor once")
            buses.append(bus_of({"sensor": name}))
            if (name in board.sensors and name not in simulated) or (buses[0] == SENSORS_BUS and name[:4] != "iio/"):
                raise wrong(at, f"{name!r} has no buffer, which only IIO devices have; hw.sensor.read reads it")
            if buses[-1] != buses[0]:
                raise wrong(at, f"{name!r} is of another device than {names[0]!r}; capture each device by its own call")
        check_size(int(args["samples"]), len(names))
        return buses[0]

    async def run(ctx: StepContext, args: Args) -> Mapping[str, Any]:
        names, timeout_ms, stop = args["sensors"], args.get("timeout_ms", _CAPTURE_MS), threading.Event()
        request = CaptureRequest(
            samples=int(args["samples"]),
            timeout_s=timeout_ms / 1000,
            rate_hz=args.get("rate_hz"),
            timestamps=bool(args.get("timestamps", False)),
            stop=stop.is_set,
        )
        captured: Captured = await ctx.transact(
            lambda driver: driver.capture(names, request), limit_ms=timeout_ms + _CAPTURE_GRACE_MS, on_cancel=stop.set
        )
        columns = zip(names, captured.units, captured.samples, strict=True)
        optional = {"rate_hz": captured.rate_hz, "timestamps_us": captured.timestamps_us}
        return {
            "sensors": [{"sensor": name, "unit": unit, "samples": samples} for name, unit, samples in columns],
            "kernel": captured.kernel,
            "timed_out": captured.timed_out,
            **{key: value for key, value in optional.items() if value is not None},
        }

    column = schemas.object_of(
        {
            "sensor": schemas.text("its name", most=256),
            "unit": schemas.text("of the samples"),
            "samples": {
                "type": "array",
                "items": {"type": "number"},
                "description": "its values, oldest first, in `unit`",
            },
        }
    )
    wanted = schemas.listed(f"names of sensors {named}", schemas.text("a name of hw.sensor.list", most=256))
    count = f"samples of each sensor; of all sensors together at most {MAX_VALUES}"
    rate = "samples a second; left out: the rate that the device or its trigger has now"
    microseconds = "microseconds by the device's clock, for each sample"
    return tool(
        "hw.sensor.capture",
        "Take many samples of sensors of one device at an even rate, through the device's buffer: for waveforms, "
        "vibration, noise. Only sensors with `capture` in hw.sensor.list. The device's settings are changed for "
        "the capture and put back at its end, also when the task is cancelled. Running into the timeout is no "
        "failure: timed_out says so, and the samples that came are there.",
        {
            "sensors": {**wanted, "minItems": 1, "maxItems": MAX_CAPTURED},
            "samples": schemas.integer(count, 1, MAX_VALUES),
            "rate_hz?": {"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000, "description": rate},
            "timestamps?": schemas.flag("return the time of each sample too", default=False),
            "timeout_ms?": schemas.integer("the longest wait in milliseconds", 1, MAX_CAPTURE_MS, default=_CAPTURE_MS),
        },
        {
            "sensors": schemas.listed("in the order of the request", column),
            "kernel": schemas.text("what the kernel calls the device", most=256),
            "timed_out": schemas.flag("true if fewer than `samples` came in time"),
            "rate_hz?": {"type": "number", "description": "the rate that the device really had, if it has one"},
            "timestamps_us?": schemas.listed(microseconds, {"type": "integer"}),
        },
        capability="CAP_SYS_READ",
        risk_level=1,
        timeout_ms=MAX_CAPTURE_MS + _CAPTURE_GRACE_MS,
        logged=("sensors", "samples", "rate_hz", "timeout_ms"),
        bus=bus,
        uses=lambda args: [use for name in args["sensors"] for use in _sensor_uses(board, name)],
        reaches=lambda args: _reached(board, args["sensors"]),
        run=run,
    )


def _reached(board: Board, names: Sequence[str]) -> Sequence[Reached]:
    """Return sensors as signals: none, if one is not the profile's."""
    known = board.sensors
    return [(known[name].bus, name) for name in names] if known.keys() >= {*names} else ()


def _scan(driver: KernelSensors) -> list[KernelSensor]:
    return driver.scan(MAX_SENSORS + 1)


def _entry() -> Schema:
    """Return the schema of a sensor in the list; an absent member is unknown."""
    words: Mapping[str, str] = {
        "sensor": "its name, which outlasts a reboot and hw.sensor.read takes",
        "kind": 'what it measures ("temperature", "voltage", "fan", …), or the chip of a sensor in the profile',
        "unit": 'the unit of its value ("celsius", "volt", …); "boolean" is 0 or 1, "raw" a count without a unit',
        "bus": "the bus on which it is read",
        "description?": "what it is there for, by the profile, or how it is to be understood",
        "kernel?": "what the kernel calls the device",
        "driver?": "the kernel's driver of it",
        "label?": "what the driver or the board's maker calls this quantity",
        "path?": "its attribute in /sys",
        "status?": 'a word on it, such as "Charging"',
        "problem?": "why this process cannot read it, and the cure",
    }
    limits = "limits that the device knows, in `unit`: min, max, crit, …"
    members: dict[str, Schema] = {
        **{name: {"type": "string", "description": described} for name, described in words.items()},
        "rate_hz?": {"type": "number", "description": "how often the device measures, in hertz"},
        "capture?": schemas.flag("true if hw.sensor.capture takes it"),
        "scale?": {"type": "number", "description": "what the attribute's number was multiplied by"},
        "offset?": {"type": "number", "description": "what was added to the attribute's number before that"},
        "limits?": {"type": "object", "description": limits, "additionalProperties": {"type": "number"}},
        "alarms?": schemas.listed("sensors that show if a limit is passed: 1 is on", {"type": "string"}),
    }
    return schemas.object_of(members)


class SensorSignal(NamedSignal):
    """A sensor that the board's profile names, as a signal."""

    def read(self) -> Step:
        """See NamedSignal."""
        return Step("hw.sensor.read", {"sensor": self.name})


def iio_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the sensors that the profile of a board names, whatever bus they are on, as signals."""
    for sensor in board.sensors.values():
        yield SensorSignal(bus=sensor.bus, name=sensor.name, unit=sensor.unit, use=sensor.uses())
