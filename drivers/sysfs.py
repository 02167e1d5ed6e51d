"""The kernel's sensors in /sys: the classes hwmon, IIO, counter, thermal, power_supply and powercap.

It owns the reading of one attribute, the lasting name of the chip behind a device, and for each class the choice of
attributes that are measurements. Their names and units are the kernel's ABI: Documentation/hwmon/sysfs-interface, and
sysfs-bus-iio, -counter, sysfs-class-thermal, -power and -powercap in Documentation/ABI/testing. Settings and events
are left out; an output of a converter is a sensor of what it is set to. `hearth.drivers.iio.kernel` turns a failed
reading into an error, and its module `capture` fills an IIO device's buffer.
"""

from __future__ import annotations

import os
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from hearth.drivers.linux.machine import entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_PAGE = 4096
"""Longest attribute in bytes."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,24}(?:\.[0-9]{1,24})?")
_ODD = re.compile(r"[^A-Za-z0-9._:+-]+")
_ONE, _MILLI, _MICRO = Fraction(1), Fraction(1, 1_000), Fraction(1, 1_000_000)
_MICROHOUR = Fraction(3_600, 1_000_000)
"""µAh to coulomb, µWh to joule."""


@frozen
class SensorDevice:
    """One device of a sensor class.

    `stem` is its lasting name; `instance` the kernel's number for it in this boot ("hwmon3"), which distinguishes those
    of one stem; `at` its directory, links resolved, so that a number that is given to another chip leads nowhere;
    `parent` the hardware behind it, where there is some.
    """

    stem: str
    instance: str
    at: Path
    kernel: str
    """The kernel's name for it: the chip's, zone's or supply's."""
    parent: Path | None = None


@frozen
class ScanElement:
    """A channel in the samples of its device's buffer: (raw + `offset`) * `scale` * `factor` is its value in `unit`.

    `at` is the path of its attributes without their ends, "…/scan_elements/in_voltage0".
    """

    at: Path
    unit: str
    factor: Fraction
    scale: Path | None
    offset: Path | None
    rate: Path | None
    """The attribute with the device's own frequency."""


@frozen
class SensorChannel:
    """One quantity of a device: (`path` + `offset`) * `scale` * `factor` is its value in `unit`."""

    name: str
    """Its name in the device; empty where the device has only one quantity."""
    path: Path
    kind: str
    unit: str
    factor: Fraction = Fraction(1)
    scale: Path | None = None
    offset: Path | None = None
    label: Path | None = None
    status: Path | None = None
    """A text about it that is no number ("Charging")."""
    limits: Mapping[str, Path] = field(factory=dict)
    """Name to attribute, in the kernel's unit of `path`."""
    of: str | None = None
    """The channel that this one is an alarm of: it is listed there."""
    description: str | None = None
    rate: Path | None = None
    """The attribute with the frequency at which the device measures, in hertz."""
    gate_s: float = 0
    """Not 0: the value is the change of `path` a second, counted for this time."""
    enable: Path | None = None
    """The attribute that is 0 while it counts nothing."""
    scan: ScanElement | None = None
    """Its place in the device's buffer, where it can be captured."""


@frozen
class SensorClass:
    """A class of /sys: its devices, and the channels of one of them.

    `devices` takes the root of /sys and, for a search, the stem: devices that cannot have it may be left out, which
    saves most of the work.
    """

    devices: Callable[[Path, str | None], Iterator[SensorDevice]]
    channels: Callable[[SensorDevice], Iterator[SensorChannel]]


def attributes(folder: Path) -> list[str]:
    """Return the attributes of a device, those of a kind in the order of their numbers. Raises OSError."""
    found = (entry.name for entry in folder.iterdir())
    return sorted(found, key=lambda name: (re.sub(r"\d+", "", name), len(name), name))


def read(path: Path) -> str:
    """Return the attribute's text, by one read: the kernel measures once. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _PAGE).decode("utf-8", "replace").strip(" \t\r\n\0")
    finally:
        os.close(fd)


def text(path: Path) -> str | None:
    """Return the same for an optional attribute: None when it is missing, does not answer, or is empty."""
    try:
        return read(path) or None
    except OSError:
        return None


def number(given: str) -> Fraction | None:
    """Return the number of an attribute's text, exactly; None where it is none."""
    return Fraction(given) if _NUMBER.fullmatch(given) else None


def numeric(path: Path) -> Fraction | None:
    """Return the attribute's number, or None where it is missing, does not answer, or is no number."""
    found = text(path)
    return None if found is None else number(found)


def plain(name: str) -> str:
    """Return a kernel's name as a part of a sensor's: without blanks, "/" and "@"."""
    return _ODD.sub("_", name).strip("_") or "unnamed"


def linked(path: Path) -> Path | None:
    """Return the target of a link, or None where there is none. By one step: links of /sys have no more."""
    try:
        to = os.readlink(path)  # noqa: PTH115 - half the time of a lookup otherwise
    except OSError:
        return None
    return Path(os.path.normpath(path.parent / to))


def real(path: Path) -> Path:
    """Return the target of a link, or the path itself."""
    return linked(path) or path


def driver(parent: Path | None) -> str | None:
    """Return the kernel driver that is bound to the hardware behind a device."""
    found = None if parent is None else linked(parent / "driver")
    return None if found is None else found.name


def subsystem(at: Path | None) -> str | None:
    """Return the bus or class that a device belongs to ("i2c", "thermal")."""
    found = None if at is None else linked(at / "subsystem")
    return None if found is None else found.name


def may_be(name: str, stem: str | None) -> bool:
    """Return True if a chip of this kernel name can have that stem; without a stem every chip can."""
    return stem is None or stem.startswith(plain(name))


def called(devices: Iterable[SensorDevice], stem: str, instance: str) -> list[SensorDevice]:
    """Return the devices of this stem, of them the one of this instance, if one is given."""
    return [device for device in devices if device.stem == stem and instance in ("", device.instance)]


def chip(name: str, parent: Path | None) -> str:
    """Return a chip's lasting name: its kernel name, its bus and its address there, as far as it has them.

    The nearest device above that is on a bus counts ("nvme0" is a class device on a PCI one). A HID device gets a new
    number each time it is plugged in, so the USB port or I2C address beneath it counts instead.
    """
    fallback = None
    at = parent
    while at is not None and at != at.parent:
        bus = linked(at / "subsystem")
        if bus is not None and bus.parent.name == "bus":
            if bus.name != "hid":
                return f"{plain(name)}-{plain(_address(bus.name, at.name))}"
            fallback = fallback or f"{plain(name)}-hid-{plain(at.name.rpartition('.')[0])}"
        at = at.parent
    return fallback or plain(name)


def _chips(
    folder: Path, pattern: str, stem: str | None, parent: Callable[[Path], Path | None]
) -> Iterator[SensorDevice]:
    """Yield the devices of a folder, by their kernel names; `parent` returns the hardware behind one."""
    for link in entries(folder, pattern):
        at = real(link)
        name = text(at / "name") or text(at / "device/name") or "unnamed"
        if may_be(name, stem):
            behind = parent(at)
            yield SensorDevice(chip(name, behind), link.name, at, name, behind)


def _pci(*parts: str) -> str:
    domain, number, slot, function = (int(part, 16) for part in parts)
    return f"pci-{domain << 16 | number << 8 | slot << 3 | function:04x}"


_ADDRESSES: Mapping[str, Callable[..., str]] = {
    r"i2c/(\d+)-0*([0-9a-f]{2,})": "i2c-{}-{}".format,
    r"spi/spi(\d+)\.(\d+)": lambda number, select: f"spi-{number}-{int(select):x}",
    r"pci/([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)\.([0-7])": _pci,
    r"platform/.*\.(\d+)(?:\.auto)?": lambda number: f"isa-{int(number):04x}",
    r"platform/(.*)": str,
}
"""Bus and device as the kernel names them, to the address as lm-sensors writes it."""


def _address(bus: str, device: str) -> str:
    """Return bus and address as lm-sensors writes them, from the kernel's name of the device; else just that name."""
    for pattern, written in _ADDRESSES.items():
        if found := re.fullmatch(pattern, f"{bus}/{device}"):
            return written(*found.groups())
    return f"{bus}-{device}"


# Copies of thermal zones and power supplies appear in this class too; they are read in their own classes.

_HWMON: Mapping[str, tuple[str, str, Fraction]] = {
    "in": ("voltage", "volt", _MILLI),
    "temp": ("temperature", "celsius", _MILLI),
    "curr": ("current", "ampere", _MILLI),
    "power": ("power", "watt", _MICRO),
    "energy": ("energy", "joule", _MICRO),
    "humidity": ("humidity", "percent", _MILLI),
    "fan": ("fan", "rpm", _ONE),
    "freq": ("frequency", "hertz", _ONE),
}
_HWMON_LIMITS = ("min", "max", "lcrit", "crit", "emergency", "cap")
_HWMON_MEASURED = re.compile(rf"(({'|'.join(_HWMON)})\d+)_(input|average)")
_HWMON_ALARM = re.compile(r"((?:[a-z]+)\d+)_(?:[a-z]+_)*(?:alarm|fault)")
_SHADOWED = frozenset(("thermal", "power_supply"))


def monitoring_chips(sys: Path, stem: str | None = None) -> Iterator[SensorDevice]:
    """Yield the monitoring chips."""
    found = _chips(sys / "class/hwmon", "hwmon*", stem, lambda at: linked(at / "device"))
    return (device for device in found if subsystem(device.parent) not in _SHADOWED)


def chip_channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """Yield the chip's quantities ("temp1", "power1_average"), then its alarms ("temp1_max_alarm"). Raises OSError."""
    names = attributes(device.at)
    present = frozenset(names)
    for name in names:
        if found := _HWMON_MEASURED.fullmatch(name):
            base, quantity, form = found.groups()
            limits = {limit: device.at / f"{base}_{limit}" for limit in _HWMON_LIMITS if f"{base}_{limit}" in present}
            label = device.at / f"{base}_label"
            if form != "input":
                base, limits = name, {}
            yield SensorChannel(base, device.at / name, *_HWMON[quantity], label=label, limits=limits)
    for name in names:
        if found := _HWMON_ALARM.fullmatch(name):
            base = found[1]
            of, label = base if f"{base}_input" in present else None, device.at / f"{base}_label"
            yield SensorChannel(name, device.at / name, "alarm", "boolean", label=label, of=of)


# A count for which the kernel gives no scale stays a count, in the unit "raw".

IIO_QUANTITIES: dict[str, tuple[str, str, Fraction]] = {
    "accel": ("acceleration", "metre_per_second_squared", _ONE),
    "activity": ("activity", "percent", _ONE),
    "altcurrent": ("current", "ampere", _MILLI),
    "altvoltage": ("voltage", "volt", _MILLI),
    "angl": ("angle", "radian", _ONE),
    "anglvel": ("angular_velocity", "radian_per_second", _ONE),
    "attention": ("attention", "percent", _ONE),
    "capacitance": ("capacitance", "farad", Fraction(1, 10**9)),
    "colortemp": ("colour_temperature", "kelvin", _ONE),
    "concentration": ("concentration", "percent", _ONE),
    "current": ("current", "ampere", _MILLI),
    "deltaangl": ("angle", "radian", _ONE),
    "deltavelocity": ("velocity", "metre_per_second", _ONE),
    "distance": ("distance", "metre", _ONE),
    "electricalconductivity": ("conductivity", "siemens_per_metre", _ONE),
    "energy": ("energy", "joule", _ONE),
    "gravity": ("acceleration", "metre_per_second_squared", _ONE),
    "humidityrelative": ("humidity", "percent", _MILLI),
    "illuminance": ("illuminance", "lux", _ONE),
    "incli": ("inclination", "degree", _ONE),
    "magn": ("magnetic_field", "tesla", Fraction(1, 10**4)),  # from gauss
    "massconcentration": ("mass_concentration", "microgram_per_cubic_metre", _ONE),
    "ph": ("acidity", "pH", _ONE),
    "phase": ("phase", "radian", _ONE),
    "positionrelative": ("position", "percent", _MILLI),
    "power": ("power", "watt", _MILLI),
    "pressure": ("pressure", "pascal", Fraction(1000)),
    "proximity": ("proximity", "metre", _ONE),
    "resistance": ("resistance", "ohm", _ONE),
    "rot": ("rotation", "degree", _ONE),
    "temp": ("temperature", "celsius", _MILLI),
    "velocity": ("velocity", "metre_per_second", _ONE),
    "voltage": ("voltage", "volt", _MILLI),
}
"""The ABI's types: kind, unit, and the factor from the ABI's own unit."""
_IIO_COUNTED = ("chromaticity", "count", "index", "intensity", "steps", "uvindex")
"""Types that have no unit, whatever their scale."""
_IIO_TYPES = IIO_QUANTITIES | {name: (name, "count", _ONE) for name in _IIO_COUNTED}
_IIO_CHANNEL = re.compile(
    r"(?!(?:in|out)_timestamp(?![a-z])|.*quaternion)(in|out)_(([a-z]+)\d*(-[a-z]+\d*)?(?:_[A-Za-z0-9_.+-]+?)?)_(raw|input)"
)
"""A quaternion is not a single number."""
_IIO_WAYS: Mapping[str, tuple[str, str | None]] = {"in": ("", None), "out": ("out_", "an output: what it is set to")}
"""What begins a channel's name by its direction, and what describes it."""

IIO_OUTPUT = re.compile(r"out_(?:voltage|current|resistance)\d+_raw")
"""The attributes by which a program sets an output."""


def iio_devices(sys: Path, stem: str | None = None) -> Iterator[SensorDevice]:
    """Yield the IIO devices, without triggers and event generators."""

    def parent(at: Path) -> Path | None:
        return at.parent if (at.parent / "subsystem").is_symlink() else None

    return _chips(sys / "bus/iio/devices", "iio:device*", stem, parent)


def iio_device(sys: Path, label: str) -> SensorDevice | None:
    """Return the device of this lasting name: a stem, with the kernel's number where several devices have it."""
    stem, _, instance = label.partition("@")
    found = called(iio_devices(sys, stem), stem, instance)
    return found[0] if len(found) == 1 else None


def iio_channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """Yield the inputs ("voltage0", "voltage1-voltage2", "accel_x") and outputs ("out_voltage0"). Raises OSError."""
    names = attributes(device.at)
    present = frozenset(names)
    trigger = _trigger_rate(device.at)
    for name in names:
        found = _IIO_CHANNEL.fullmatch(name)
        if found is None:
            continue
        way, channel, quantity, minus, form = found.groups()
        if form == "raw" and f"{way}_{channel}_input" in present:
            continue  # the same, already scaled
        kind, unit, factor = _IIO_TYPES.get(quantity, (quantity, "raw", _ONE))
        prefix, description = _IIO_WAYS[way]
        shared = f"{way}_{quantity}-{quantity}" if minus else f"{way}_{quantity}"
        words = channel.split("_")
        own = [f"{way}_{'_'.join(words[:length])}" for length in range(len(words), 0, -1)]
        bases = (*own, shared, way, "")
        wanted = ("scale", "offset", "sampling_frequency")
        scale, offset, rate = (shared_attribute(device.at, present, bases, what) for what in wanted)
        scan = ScanElement(device.at / f"scan_elements/{way}_{channel}", unit, factor, scale, offset, rate)
        if scale is None and unit != "count":  # the buffer has what `_raw` has, also beside an `_input`
            scan = evolve(scan, unit="raw", factor=_ONE)
        if form == "raw":
            unit, factor = scan.unit, scan.factor
        else:
            scale = offset = None
        label = f"{way}_{channel}_label"
        yield SensorChannel(
            f"{prefix}{channel}",
            device.at / name,
            kind,
            unit,
            factor,
            scale=scale,
            offset=offset,
            label=device.at / (label if label in present else "label"),
            description=description,
            rate=trigger or rate,
            scan=scan if way == "in" and scan.at.with_name(f"{scan.at.name}_en").exists() else None,
        )


def shared_attribute(at: Path, present: frozenset[str], bases: tuple[str, ...], what: str) -> Path | None:
    """Return the channel's own attribute, or the one shared by others of its type, its direction, or by all."""
    for base in bases:
        name = f"{base}_{what}" if base else what
        if name in present:
            return at / name
    return None


def iio_trigger(at: Path, name: str | None) -> Path | None:
    """Return the directory of the trigger of this name, for a device in `at`."""
    devices = linked(at / "subsystem")
    for trigger in entries(devices / "devices", "trigger*") if name and devices is not None else ():
        if text(trigger / "name") == name:
            return real(trigger)
    return None


def _trigger_rate(at: Path) -> Path | None:
    """Return the attribute with the frequency of the trigger by which a device captures, if it has one."""
    trigger = iio_trigger(at, text(at / "trigger/current_trigger"))
    return trigger / "sampling_frequency" if trigger and (trigger / "sampling_frequency").exists() else None


GATE_S = 0.25
"""The time for which pulses are counted for a rate, which so has steps of 4 hertz."""


def counters(sys: Path, stem: str | None = None) -> Iterator[SensorDevice]:
    """Yield the counters."""
    return _chips(sys / "bus/counter/devices", "counter*", stem, lambda at: at.parent)


def counter_channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """Yield each count of a counter ("count0"), and its change a second ("count0_rate"). Raises OSError."""
    for name in attributes(device.at):
        at = device.at / name
        if re.fullmatch(r"count\d+", name) is None:
            continue
        enable = at / "enable"
        ends = {limit: at / end for limit, end in (("min", "floor"), ("max", "ceiling")) if (at / end).exists()}
        count = SensorChannel(
            name,
            at / "count",
            "count",
            "count",
            label=at / "name",
            status=at / "direction",
            limits=ends,
            enable=enable if enable.exists() else None,
        )
        yield count
        told = f"pulses a second, counted for {GATE_S:g} s; less than 0 backwards"
        rate = evolve(count, name=f"{name}_rate", kind="frequency", unit="hertz", limits={}, gate_s=GATE_S)
        yield evolve(rate, description=told)


_TRIPS = {"critical": "crit", "hot": "hot", "passive": "passive", "active": "active"}

_SUPPLY: Mapping[str, tuple[str, str, Fraction]] = {
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


_COUNTS_UP = "counts up, and begins again at limits.max: power is the difference of two readings by the time between"


def zones(sys: Path, _stem: str | None = None) -> Iterator[SensorDevice]:
    """Yield the thermal zones, named by the measured part."""
    for link in entries(sys / "class/thermal", "thermal_zone*"):
        name = text(link / "type") or "unnamed"
        yield SensorDevice(plain(name), link.name, real(link), name)


def zone_channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """Yield the zone's one temperature, with the lowest trip point of each kind as its limits."""
    limits: dict[str, Path] = {}
    lowest: dict[str, Fraction] = {}
    for kind in entries(device.at, "trip_point_*_type"):
        limit = _TRIPS.get(text(kind) or "")
        at = kind.with_name(kind.name.replace("_type", "_temp"))
        celsius = numeric(at)
        if limit is not None and celsius is not None and celsius < lowest.get(limit, celsius + 1):
            lowest[limit], limits[limit] = celsius, at
    yield SensorChannel("", device.at / "temp", "temperature", "celsius", _MILLI, limits=limits)


def supplies(sys: Path, _stem: str | None = None) -> Iterator[SensorDevice]:
    """Yield batteries, mains and USB supplies, by the names that their drivers give them."""
    for link in entries(sys / "class/power_supply", "*"):
        at = real(link)
        yield SensorDevice(plain(link.name), link.name, at, link.name, linked(at / "device"))


def supply_channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """Yield the supply's quantities, by the kernel's property ("capacity", "voltage_now"). Raises OSError."""
    present = frozenset(attributes(device.at))
    for name, measured in _SUPPLY.items():
        if name in present:
            quantity = name.removesuffix("_now").removesuffix("_avg")  # a counter's zero is anywhere: it has no limits
            wanted = {limit: f"{quantity}_{limit}" for limit in _SUPPLY_LIMITS.get(quantity, ())}
            limits = {limit: device.at / at for limit, at in wanted.items() if at in present}
            status = device.at / "status" if name == "capacity" else None
            label = device.at / "model_name"
            yield SensorChannel(name, device.at / name, *measured, label=label, status=status, limits=limits)


def domains(sys: Path, _stem: str | None = None) -> Iterator[SensorDevice]:
    """Yield the power domains, by the names on the way down to them ("intel-rapl-package-0-core")."""
    for link in entries(sys / "class/powercap", "*:*"):
        at, control = real(link), link.name.partition(":")[0]
        path = [at, *(parent for parent in at.parents if parent.name.startswith(f"{control}:"))]
        names = [text(domain / "name") or "unnamed" for domain in reversed(path)]
        yield SensorDevice(plain("-".join([control, *names])), link.name, at, names[-1])


def domain_channels(device: SensorDevice) -> Iterator[SensorChannel]:
    """Yield the domain's energy counter, and its power where the kernel measures that. Raises OSError."""
    present = frozenset(attributes(device.at))
    for name, (kind, unit, top) in _POWERCAP.items():
        if name in present:
            limits = {"max": device.at / top} if top in present else {}
            told = _COUNTS_UP if kind == "energy" else None
            yield SensorChannel(kind, device.at / name, kind, unit, _MICRO, limits=limits, description=told)


CLASSES: Mapping[str, SensorClass] = {
    "hwmon": SensorClass(monitoring_chips, chip_channels),
    "iio": SensorClass(iio_devices, iio_channels),
    "counter": SensorClass(counters, counter_channels),
    "thermal": SensorClass(zones, zone_channels),
    "power_supply": SensorClass(supplies, supply_channels),
    "powercap": SensorClass(domains, domain_channels),
}
"""Sensor classes by the first part of a sensor's name."""
