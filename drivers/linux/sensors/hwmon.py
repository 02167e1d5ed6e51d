"""Sensors of the class hwmon: the measurements of monitoring chips, with their own limits and alarms.

It owns the attributes' names (kernel: Documentation/hwmon/sysfs-interface). It leaves out outputs (pwm), and the copies
of thermal zones and power supplies in this class: those are read in their own classes.
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

_MILLI, _MICRO = Fraction(1, 1_000), Fraction(1, 1_000_000)

_QUANTITIES = {
    "in": ("voltage", "volt", _MILLI),
    "temp": ("temperature", "celsius", _MILLI),
    "curr": ("current", "ampere", _MILLI),
    "power": ("power", "watt", _MICRO),
    "energy": ("energy", "joule", _MICRO),
    "humidity": ("humidity", "percent", _MILLI),
    "fan": ("fan", "rpm", Fraction(1)),
    "freq": ("frequency", "hertz", Fraction(1)),
}
_LIMITS = ("min", "max", "lcrit", "crit", "emergency", "cap")
_MEASURED = re.compile(rf"(({'|'.join(_QUANTITIES)})\d+)_(input|average)")
_ALARM = re.compile(r"((?:[a-z]+)\d+)_(?:[a-z]+_)*(?:alarm|fault)")
_SHADOWED = frozenset(("thermal", "power_supply"))


def devices(sys: Path, stem: str | None = None) -> Iterator[SensorDevice]:
    """Yield the monitoring chips."""
    for link in sysfs.entries(sys / "class/hwmon", "hwmon*"):
        at = sysfs.real(link)
        name = sysfs.text(at / "name") or sysfs.text(at / "device/name") or "unnamed"
        if not sysfs.may_be(name, stem):
            continue
        parent = sysfs.linked(at / "device")
        if sysfs.subsystem(parent) not in _SHADOWED:
            yield SensorDevice(sysfs.chip(name, parent), link.name, at, name, parent)


def channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """Yield the chip's quantities ("temp1", "power1_average"), then its alarms ("temp1_max_alarm"). Raises OSError."""
    names = sysfs.names(device.at)
    present = frozenset(names)
    for name in names:
        if found := _MEASURED.fullmatch(name):
            base, quantity, form = found.groups()
            kind, unit, factor = _QUANTITIES[quantity]
            limits = [limit for limit in _LIMITS if form == "input" and f"{base}_{limit}" in present]
            yield SensorChannel(
                base if form == "input" else name,
                kind,
                unit,
                device.at / name,
                factor,
                label=device.at / f"{base}_label",
                limits={limit: device.at / f"{base}_{limit}" for limit in limits},
            )
    for name in names:
        if found := _ALARM.fullmatch(name):
            base = found[1]
            yield SensorChannel(
                name,
                "alarm",
                "boolean",
                device.at / name,
                label=device.at / f"{base}_label",
                of=base if f"{base}_input" in present else None,
            )
