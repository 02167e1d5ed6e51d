"""Sensors of the subsystem IIO: converters, environment and motion sensors, one quantity at a time.

It owns the channel names and the units of the ABI (kernel: Documentation/ABI/testing/sysfs-bus-iio). It leaves out
outputs, events and buffered capture. A count for which the kernel gives no scale stays a count, in the unit "raw".
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from hearth.drivers.linux.sensors import sysfs
from hearth.drivers.linux.sensors.sysfs import SensorChannel, SensorDevice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MILLI, _ONE = Fraction(1, 1_000), Fraction(1)

_QUANTITIES: dict[str, tuple[str, str, Fraction]] = {
    "accel": ("acceleration", "metre_per_second_squared", _ONE),
    "activity": ("activity", "percent", _ONE),
    "altvoltage": ("voltage", "volt", _MILLI),
    "angl": ("angle", "radian", _ONE),
    "anglvel": ("angular_velocity", "radian_per_second", _ONE),
    "capacitance": ("capacitance", "farad", Fraction(1, 10**9)),
    "concentration": ("concentration", "percent", _ONE),
    "current": ("current", "ampere", _MILLI),
    "deltaangl": ("angle", "radian", _ONE),
    "deltavelocity": ("velocity", "metre_per_second", _ONE),
    "distance": ("distance", "metre", _ONE),
    "energy": ("energy", "joule", _ONE),
    "gravity": ("acceleration", "metre_per_second_squared", _ONE),
    "humidityrelative": ("humidity", "percent", _MILLI),
    "illuminance": ("illuminance", "lux", _ONE),
    "incli": ("inclination", "degree", _ONE),
    "magn": ("magnetic_field", "tesla", Fraction(1, 10**4)),  # from gauss
    "positionrelative": ("position", "percent", _MILLI),
    "power": ("power", "watt", _MILLI),
    "pressure": ("pressure", "pascal", Fraction(1000)),
    "proximity": ("proximity", "metre", _ONE),
    "resistance": ("resistance", "ohm", _ONE),
    "temp": ("temperature", "celsius", _MILLI),
    "velocity": ("velocity", "metre_per_second", _ONE),
    "voltage": ("voltage", "volt", _MILLI),
}
"""The ABI's types: kind, unit, and the factor from the ABI's own unit."""
_COUNTED = frozenset(("count", "index", "intensity", "steps", "uvindex"))
"""Types that have no unit, whatever their scale."""
_CHANNEL = re.compile(r"in_(([a-z]+)\d*(-[a-z]+\d*)?(?:_[A-Za-z0-9_.+-]+?)?)_(raw|input)")


def devices(sys: Path, stem: str | None = None) -> Iterator[SensorDevice]:
    """The IIO devices; triggers and event generators are none."""
    for link in sysfs.entries(sys / "bus/iio/devices", "iio:device*"):
        at = sysfs.real(link)
        name = sysfs.text(at / "name") or "unnamed"
        if sysfs.may_be(name, stem):
            parent = at.parent if (at.parent / "subsystem").is_symlink() else None
            yield SensorDevice(sysfs.chip(name, parent), link.name, at, name, parent)


def channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """The input channels ("voltage0", "voltage1-voltage2", "accel_x"). Raises OSError."""
    names = sysfs.names(device.at)
    present = frozenset(names)
    for name in names:
        found = _CHANNEL.fullmatch(name)
        if found is None or found[2] == "timestamp" or "quaternion" in name:  # a quaternion is no single number
            continue
        channel, quantity, minus, form = found.groups()
        if form == "raw" and f"in_{channel}_input" in present:
            continue  # the same, already scaled
        kind, unit, factor = _QUANTITIES.get(quantity, (quantity, "raw", _ONE))
        scale = offset = None
        if form == "raw":
            shared = f"in_{quantity}-{quantity}" if minus else f"in_{quantity}"
            words = channel.split("_")
            own = [f"in_{'_'.join(words[:length])}" for length in range(len(words), 0, -1)]
            bases = (*own, shared, "in", "")
            scale, offset = (_first(device.at, present, bases, what) for what in ("scale", "offset"))
            if scale is None:
                unit, factor = "raw", _ONE
        if quantity in _COUNTED:
            unit = "count"
        label = f"in_{channel}_label"
        yield SensorChannel(
            channel,
            kind,
            unit,
            device.at / name,
            factor,
            scale=scale,
            offset=offset,
            label=device.at / (label if label in present else "label"),
        )


def _first(at: Path, present: frozenset[str], bases: tuple[str, ...], what: str) -> Path | None:
    """Return the channel's own attribute, or the one shared by others of its type, its direction, or by all."""
    for base in bases:
        name = f"{base}_{what}" if base else what
        if name in present:
            return at / name
    return None
