"""Energy an invocation: from readings of the machine's meters and a count of invocations to a figure. Pure.

This module owns which sensors are meters of the whole machine, and the sums. It refuses to guess: a figure needs a
window long enough and invocations enough, and what is between two readings too far apart is thrown away.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attrs import frozen

from hearth.agentcard.build import Measured

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PERIOD_S = 30.0
"""Between two readings: RAPL's counters begin again after half an hour of full load at the earliest."""
LONGEST_GAP_S = 10 * PERIOD_S
"""A machine that slept longer begins a new window."""
LEAST_S = 600.0
LEAST_INVOCATIONS = 100
LONGEST_S = 6 * 3600.0
"""A window that has lasted so long gives its figure and ends: a price is about today's load."""

_SYSTEM = re.compile(r"powercap/[^/]*psys[^/]*/energy")
_PACKAGE = re.compile(r"powercap/[^/]*package-[0-9]+/energy")


@frozen
class Meter:
    """A sensor to read: an energy counter in joules that begins again at `top`, or, without one, power in watts."""

    sensor: str
    top: float | None = None


@frozen
class Sensor:
    """What is known of a sensor: as hw.sensor.list tells it."""

    name: str
    kind: str
    unit: str
    top: float | None = None
    readable: bool = True


def choose_meters(sensors: Iterable[Sensor]) -> list[Meter]:
    """The meters of the machine: RAPL's platform counter, else its packages' counters, else the one power sensor.

    None where there are several power sensors: which of them is the machine's, nobody can tell.
    """
    usable = [sensor for sensor in sensors if sensor.readable]
    for pattern in (_SYSTEM, _PACKAGE):
        counters = [s for s in usable if pattern.fullmatch(s.name) and s.unit == "joule" and s.top]
        if counters:
            return [Meter(sensor.name, sensor.top) for sensor in counters]
    powers = [sensor for sensor in usable if sensor.kind == "power" and sensor.unit == "watt"]
    return [Meter(powers[0].name)] if len(powers) == 1 else []


class EnergyPerInvocation:
    """The sum over a window that begins with the first reading; `measured` is the newest figure, or None."""

    def __init__(self, meters: Iterable[Meter]) -> None:
        self.meters = tuple(meters)
        self.measured: Measured | None = None
        self._begun: tuple[float, int] | None = None
        self._last: tuple[float, Mapping[str, float]] | None = None
        self._joules = 0.0

    def reading(self, at: float, values: Mapping[str, float], invocations: int) -> None:
        """Take one reading of all meters, at a monotonic time in seconds, with the invocations so far."""
        last, begun = self._last, self._begun
        self._last = (at, values)
        if last is None or begun is None or not 0 <= at - last[0] <= LONGEST_GAP_S:
            self._begin(at, invocations)
            return
        for meter in self.meters:
            self._joules += _between(meter, last[1][meter.sensor], values[meter.sensor], at - last[0])
        seconds, count = at - begun[0], invocations - begun[1]
        if seconds >= LEAST_S and count >= LEAST_INVOCATIONS:
            sensors = " and ".join(meter.sensor for meter in self.meters)
            self.measured = Measured(self._joules / count, sensors, seconds, count)
        if seconds >= LONGEST_S:
            self._begin(at, invocations)

    def broken(self) -> None:
        """A reading failed: what came since the last one is not known."""
        self._last = None

    def _begin(self, at: float, invocations: int) -> None:
        self._begun = (at, invocations)
        self._joules = 0.0


def _between(meter: Meter, former: float, value: float, seconds: float) -> float:
    if meter.top is None:
        return (former + value) / 2 * seconds
    return value - former if value >= former else value + meter.top - former
