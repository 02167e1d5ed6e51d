"""Sensors of the classes thermal, power_supply and powercap: zones, batteries and mains, and RAPL's energy counters.

It owns the choice of attributes that are measurements, and their units (kernel: Documentation/ABI/testing/
sysfs-class-thermal, -power, -powercap). It leaves out their settings: policies, charge control, power limits.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from hearth.drivers.linux.sensors import sysfs
from hearth.drivers.linux.sensors.sysfs import SensorChannel, SensorDevice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ONE, _MILLI, _MICRO = Fraction(1), Fraction(1, 1_000), Fraction(1, 1_000_000)
_MICROHOUR = Fraction(3_600, 1_000_000)
"""µAh to coulomb, µWh to joule."""

_TRIPS = {"critical": "crit", "hot": "hot", "passive": "passive", "active": "active"}

_SUPPLY: dict[str, tuple[str, str, Fraction]] = {
    "online": ("online", "boolean", _ONE),
    "present": ("present", "boolean", _ONE),
    "capacity": ("charge", "percent", _ONE),
    "charge_now": ("charge", "coulomb", _MICROHOUR),
    "charge_counter": ("charge", "coulomb", _MICROHOUR),
    "energy_now": ("energy", "joule", _MICROHOUR),
    "voltage_now": ("voltage", "volt", _MICRO),
    "voltage_avg": ("voltage", "volt", _MICRO),
    "voltage_ocv": ("voltage", "volt", _MICRO),
    "current_now": ("current", "ampere", _MICRO),
    "current_avg": ("current", "ampere", _MICRO),
    "power_now": ("power", "watt", _MICRO),
    "power_avg": ("power", "watt", _MICRO),
    "temp": ("temperature", "celsius", Fraction(1, 10)),
    "temp_ambient": ("temperature", "celsius", Fraction(1, 10)),
    "time_to_empty_now": ("duration", "second", _ONE),
    "time_to_empty_avg": ("duration", "second", _ONE),
    "time_to_full_now": ("duration", "second", _ONE),
    "time_to_full_avg": ("duration", "second", _ONE),
    "cycle_count": ("cycles", "count", _ONE),
}
_SUPPLY_LIMITS = {
    "capacity": ("alert_min", "alert_max"),
    "charge": ("full", "full_design"),
    "energy": ("full", "full_design"),
    "voltage": ("min", "max", "min_design", "max_design"),
    "current": ("max",),
    "power": ("max",),
    "temp": ("min", "max", "alert_min", "alert_max"),
}

_POWERCAP = {
    "energy_uj": ("energy", "joule", "max_energy_range_uj"),
    "power_uw": ("power", "watt", "max_power_range_uw"),
}


def zones(sys: Path, _stem: str | None = None) -> Iterator[SensorDevice]:
    """Yield the thermal zones, named by the measured part."""
    for link in sysfs.entries(sys / "class/thermal", "thermal_zone*"):
        name = sysfs.text(link / "type") or "unnamed"
        yield SensorDevice(sysfs.plain(name), link.name, sysfs.real(link), name)


def zone_channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """Yield the zone's one temperature, with the lowest trip point of each kind as its limits."""
    limits: dict[str, Path] = {}
    lowest: dict[str, Fraction] = {}
    for kind in sysfs.entries(device.at, "trip_point_*_type"):
        limit = _TRIPS.get(sysfs.text(kind) or "")
        at = kind.with_name(kind.name.replace("_type", "_temp"))
        celsius = sysfs.numeric(at)
        if limit is not None and celsius is not None and celsius < lowest.get(limit, celsius + 1):
            lowest[limit], limits[limit] = celsius, at
    yield SensorChannel("", "temperature", "celsius", device.at / "temp", _MILLI, limits=limits)


def supplies(sys: Path, _stem: str | None = None) -> Iterator[SensorDevice]:
    """Yield batteries, mains and USB supplies, by the names that their drivers give them."""
    for link in sysfs.entries(sys / "class/power_supply", "*"):
        at = sysfs.real(link)
        yield SensorDevice(sysfs.plain(link.name), link.name, at, link.name, sysfs.linked(at / "device"))


def supply_channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """Yield the supply's quantities, by the kernel's property ("capacity", "voltage_now"). Raises OSError."""
    present = frozenset(sysfs.names(device.at))
    for name, (kind, unit, factor) in _SUPPLY.items():
        if name not in present:
            continue
        quantity = name.removesuffix("_now").removesuffix("_avg")  # a counter's zero is anywhere: it has no limits
        limits = [limit for limit in _SUPPLY_LIMITS.get(quantity, ()) if f"{quantity}_{limit}" in present]
        yield SensorChannel(
            name,
            kind,
            unit,
            device.at / name,
            factor,
            label=device.at / "model_name",
            status=device.at / "status" if name == "capacity" else None,
            limits={limit: device.at / f"{quantity}_{limit}" for limit in limits},
        )


def domains(sys: Path, _stem: str | None = None) -> Iterator[SensorDevice]:
    """Yield the power domains, by the names on the way down to them ("intel-rapl-package-0-core")."""
    for link in sysfs.entries(sys / "class/powercap", "*:*"):
        at, control = sysfs.real(link), link.name.partition(":")[0]
        path = [at, *(parent for parent in at.parents if parent.name.startswith(f"{control}:"))]
        names = [sysfs.text(domain / "name") or "unnamed" for domain in reversed(path)]
        yield SensorDevice(sysfs.plain("-".join([control, *names])), link.name, at, names[-1])


def domain_channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """Yield the domain's energy counter, and its power where the kernel measures that. Raises OSError."""
    present = frozenset(sysfs.names(device.at))
    for name, (kind, unit, top) in _POWERCAP.items():
        if name in present:
            counter = (
                "counts up, and begins again at limits.max: power is the difference of two readings by the time between"
            )
            yield SensorChannel(
                kind,
                kind,
                unit,
                device.at / name,
                _MICRO,
                limits={"max": device.at / top} if top in present else {},
                description=counter if kind == "energy" else None,
            )
