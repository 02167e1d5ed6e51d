"""The kernel's sensors: every quantity that hwmon, IIO, counters, thermal zones, batteries and RAPL offer under /sys.

It finds a sensor by its lasting name and reads it once, whole. It keeps nothing between two calls: a device plugged in
since is there at the next one, and a name never leads to another device that has taken over a number. It does not
sample on its own or average, and sets only what a capture needs, for its duration.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen

from hearth.drivers import sysfs as sysfs
from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.linux.device_users import kept_by_sandbox
from hearth.drivers.sysfs import CLASSES as CLASSES, SensorChannel, SensorDevice
from hearth.errors import DeviceError, InvalidParams, ResourceBusy, no_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from fractions import Fraction

    from hearth.drivers.iio.driver import Captured, CaptureRequest
    from hearth.drivers.sysfs import SensorClass

_TRIES = 3
"""Attempts at a reading whose scale is changed while it is taken."""
MAX_CAPTURES = 2
"""Captures at once: half of the bus's threads, so that other sensors are read at the same time."""


@frozen
class KernelSensor:
    """A sensor that the kernel has at present. `path` is its attribute, `limits` are in `unit`."""

    name: str
    kind: str
    unit: str
    kernel: str
    path: str
    scale: float | None
    """Factor from the attribute's number to `unit`; None where the device does not show it now."""
    offset: float
    """Added to the attribute's number before that."""
    driver: str | None
    label: str | None
    description: str | None
    status: str | None
    limits: Mapping[str, float]
    alarms: tuple[str, ...]
    """The names of the sensors that are its alarms: 1 is on."""
    problem: str | None
    """The reason why this process cannot read it, and the cure; None where it may."""
    rate_hz: float | None = None
    """The frequency at which the device measures, where it has one."""
    capture: bool = False
    """True where hw.sensor.capture takes it: the device has a buffer for it."""

    def to_json(self) -> dict[str, Any]:
        """Return the present members for hw.sensor.list."""
        members = {"sensor": self.name, **asdict(self), "alarms": list(self.alarms)}
        return {key: value for key, value in members.items() if value and key != "name"}


@frozen
class KernelReading:
    """A measurement: `value` in `unit`, by the device that the kernel calls `kernel`."""

    value: float
    unit: str
    kernel: str


class KernelSensors(BaseDriver):
    """The bus "sensors": reads one attribute at a time, in a thread, since a chip behind a slow wire may block.

    `sys` is the root of /sys. Names are "<class>/<device>" or "<class>/<device>/<channel>", such as
    "hwmon/lm75-i2c-1-48/temp1"; where several devices have one name, the kernel's number distinguishes them
    ("thermal/acpitz@thermal_zone1"). No reading has an effect, so every error's effect is "none", but for a capture
    whose device could not be set back. `triggers` are those of the board profile, by the IIO device's stem.
    """

    style = Style.THREAD
    width = 4

    def __init__(
        self, *, sys: Path = Path("/sys"), dev: Path = Path("/dev"), triggers: Mapping[str, str] | None = None
    ) -> None:
        self._sys, self._dev = sys, dev
        self._triggers = triggers or {}
        self._captures = threading.BoundedSemaphore(MAX_CAPTURES)

    def describe(self) -> Mapping[str, Any]:
        """Return the description of this bus, for health."""
        return {"kind": "sensors", "driver": "sysfs", "classes": list(CLASSES)}

    def scan(self, most: int | None = None) -> list[KernelSensor]:
        """Return every sensor that is there now, by class and device; at most `most` of them.

        Measures nothing, but reads limits and scales, which some chips must be asked for; a chip that does not answer
        is asked once. An alarm is listed on its own only where its chip does not measure the quantity.
        """
        found: list[KernelSensor] = []
        for prefix, of_class in CLASSES.items():
            for name, device in _named(prefix, of_class.devices(self._sys, None)):
                channels = _channels(of_class, device)
                answers = True
                for channel in channels:
                    if channel.of is None:
                        if len(found) == most:
                            return found
                        limits, answers = _limits(channel) if answers else ({}, False)
                        alarms = [_joined(name, other.name) for other in channels if other.of == channel.name]
                        found.append(_sensor(_joined(name, channel.name), device, channel, limits, tuple(alarms)))
        return found

    def read(self, name: str) -> KernelReading:
        """Read a sensor once.

        Raises DeviceError: ENODEV where no such sensor is there now, ENOTUNIQ where the name is that of several,
        EACCES with the cure where this process may not, EBADMSG for an attribute that is no number, else the errno
        of a device that does not answer. ResourceBusy where another program captures from it.
        """
        device, channel = self._find(name)
        try:
            value = _measure(name, channel)
        except OSError as error:
            raise _failure(name, device, channel.path, error) from error
        if (fault := _fault(channel)) is not None and sysfs.text(fault) == "1":
            why = f"its chip says that it is at fault ({fault} is 1): is it connected, and whole?"
            raise no_value(f"sensor {name!r}: {why}", sensor=name)
        if value == _W1_POWER_ON and (unchecked := _unchecked(device)) is not None:
            raise no_value(f"sensor {name!r}: it may not have measured; {unchecked}", sensor=name)
        return KernelReading(value, channel.unit, device.kernel)

    def capture(self, names: Sequence[str], request: CaptureRequest) -> Captured:
        """Capture samples of sensors of one IIO device, each named once; `request.trigger` None is the profile's.

        Raises InvalidParams for sensors of several devices, DeviceError as `read` does and for what the device cannot
        do, and ResourceBusy where another program captures, or MAX_CAPTURES are running.
        """
        from hearth.drivers.iio.capture import capture

        found = [self._find(name) for name in names]
        device = found[0][0]
        elements = []
        for name, (of, channel) in zip(names, found, strict=True):
            if of.at != device.at:
                reason = f"{name!r} is of another device than {names[0]!r}; capture each device by a call of its own"
                raise InvalidParams(reason, data={"pointer": "/sensors", "reason": reason})
            if channel.scan is None:
                raise DeviceError(
                    f"sensor {name!r} ({of.kernel}): it cannot be captured, because the kernel has no buffer for it; "
                    "hw.sensor.read reads it, and `capture` in hw.sensor.list marks those that can be captured",
                    effect="none",
                    data={"sensor": name, "errno": "ENOTSUP"},
                )
            elements.append(channel.scan)
        if request.trigger is None:
            label = device.stem if device.stem in self._triggers else f"{device.stem}@{device.instance}"
            request = evolve(request, trigger=self._triggers.get(label))
        if not self._captures.acquire(blocking=False):
            text = f"{MAX_CAPTURES} captures are running, and the bus has other sensors to read; ask again later"
            raise ResourceBusy(f"sensor {names[0]!r}: {text}", data={"sensor": names[0], "effect": "none"})
        try:
            return capture(device, elements, self._dev / device.instance, request)
        except OSError as error:
            raise _failure(names[0], device, error.filename or found[0][1].path, error, capturing=True) from error
        finally:
            self._captures.release()

    def _find(self, name: str) -> tuple[SensorDevice, SensorChannel]:
        prefix, _, rest = name.partition("/")
        wanted, _, channel_name = rest.partition("/")
        of_class = CLASSES.get(prefix)
        if of_class is None:
            raise _absent(name, f"the kernel's sensors begin with {', '.join(f'{known}/' for known in CLASSES)}")
        stem, _, instance = wanted.partition("@")
        devices = sysfs.called(of_class.devices(self._sys, stem), stem, instance)
        if len(devices) > 1:
            names = [_joined(f"{prefix}/{stem}@{device.instance}", channel_name) for device in devices]
            raise DeviceError(
                f"sensor {name!r}: the kernel has {len(devices)} devices of this name; ask for {' or '.join(names)}",
                effect="none",
                data={"sensor": name, "errno": "ENOTUNIQ", "known": names},
            )
        if not devices:
            raise _absent(name, f"no {prefix} device has this name now")
        channels = _channels(of_class, devices[0])
        for channel in channels:
            if channel.name == channel_name:
                return devices[0], channel
        known = ", ".join(channel.name for channel in channels if channel.name and channel.of is None) or "no such part"
        raise _absent(name, f"{devices[0].stem} has {known}")


def _named(prefix: str, devices: Iterator[SensorDevice]) -> Iterator[tuple[str, SensorDevice]]:
    """Yield the devices with their names: those that share a stem get the kernel's numbers, all of them."""
    found = list(devices)
    stems = [device.stem for device in found]
    for device in sorted(found, key=lambda device: device.stem):
        several = stems.count(device.stem) > 1
        yield f"{prefix}/{device.stem}" + (f"@{device.instance}" if several else ""), device


def _joined(name: str, channel: str) -> str:
    return f"{name}/{channel}" if channel else name


def _channels(of_class: SensorClass, device: SensorDevice) -> list[SensorChannel]:
    """Return the device's channels; none if it was removed since."""
    try:
        return list(of_class.channels(device))
    except OSError:
        return []


def _limits(channel: SensorChannel) -> tuple[dict[str, float], bool]:
    """Return the limits that the device has, and False if it does not answer: then no further one is read."""
    limits: dict[str, float] = {}
    for limit, at in channel.limits.items():
        try:
            value = sysfs.number(sysfs.read(at))
        except OSError as error:
            if error.errno in _SILENT:
                return limits, False
            continue  # it has no such limit at present
        if value is not None:
            limits[limit] = float(value * channel.factor)
    return limits, True


def _sensor(
    name: str, device: SensorDevice, channel: SensorChannel, limits: Mapping[str, float], alarms: tuple[str, ...]
) -> KernelSensor:
    scale = sysfs.numeric(channel.scale) if channel.scale is not None else 1
    offset = sysfs.numeric(channel.offset) if channel.offset is not None else 0
    return KernelSensor(
        name=name,
        kind=channel.kind,
        unit=channel.unit,
        kernel=device.kernel,
        path=os.fsencode(channel.path).decode("utf-8", "replace"),
        scale=None if scale is None else float(scale * channel.factor),
        offset=float(offset or 0),
        driver=sysfs.driver(device.parent),
        label=sysfs.text(channel.label) if channel.label is not None else None,
        description=channel.description,
        status=sysfs.text(channel.status) if channel.status is not None else None,
        limits=limits,
        alarms=alarms,
        problem=((_off(channel) or _unchecked(device)) if os.access(channel.path, os.R_OK) else _cure(channel.path)),
        rate_hz=None if channel.rate is None else _frequency(channel.rate),
        capture=channel.scan is not None,
    )


def _frequency(at: Path) -> float | None:
    """Return the number of an attribute that may have its unit beside it ("100.000000 Hz"), or None."""
    given = (sysfs.text(at) or "").partition(" ")[0]
    found = sysfs.number(given)
    return None if found is None else float(found)


def _off(channel: SensorChannel) -> str | None:
    """Return why a counter counts nothing, with the cure; None where it counts."""
    if channel.enable is None or sysfs.text(channel.enable) != "0":
        return None
    return f"it counts nothing, because it is switched off: `echo 1 | sudo tee {channel.enable}` switches it on"


def _fault(channel: SensorChannel) -> Path | None:
    """Return the attribute in which a hwmon chip says that a reading is not to be trusted (temp1_fault, fan1_fault)."""
    quantity, _, what = channel.path.name.partition("_")
    return channel.path.with_name(f"{quantity}_fault") if what in ("input", "average") else None


_W1_DEVICE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{12}")
_W1_THERMOMETERS = ("10-", "22-", "28-", "3b-", "42-")
"""The families of w1_therm, each of which has that value."""
_W1_POWER_ON = 85.0
"""The celsius of a 1-Wire thermometer (DS18B20) that has not measured since it lost its supply for a moment."""


def _w1_device(device: SensorDevice) -> Path | None:
    return device.parent if device.parent is not None and _W1_DEVICE.fullmatch(device.parent.name) else None


def _unchecked(device: SensorDevice) -> str | None:
    """Return why a 1-Wire thermometer gives its power-on value as a measurement, with the cure; None where it does not.

    The kernel checks for that value with bit 0 of `features` (Documentation/w1/slaves/w1_therm.rst), off by default.
    One without `features` does not check, and a measurement of just 85 is not told from that value: it is none either.
    """
    if (parent := _w1_device(device)) is None or not parent.name.startswith(_W1_THERMOMETERS):
        return None
    at = parent / "features"
    if not at.exists():
        cure = "a newer kernel can check for it"
    elif (features := int(sysfs.number(sysfs.text(at) or "") or 0)) & 1:
        return None
    else:
        cure = f"`echo {features | 1} | sudo tee {at}`, or the package's udev rules, have the kernel check for it"
    return f"its power-on value, {_W1_POWER_ON:g} celsius, counts as a measurement: {cure}"


def _measure(name: str, channel: SensorChannel) -> float:
    """Return the value, rounded once. Read it again if its scale has changed in between: it would be wrong."""
    if (off := _off(channel)) is not None:
        data = {"sensor": name, "errno": "ENODATA", "path": str(channel.enable)}
        raise DeviceError(f"sensor {name!r}: {off}", effect="none", data=data)
    if channel.gate_s:
        return _rate(name, channel)
    for _ in range(_TRIES):
        before = _settings(name, channel)
        raw = _number(name, channel.path)
        if before == (after := _settings(name, channel)):
            scale, offset = after
            return float((raw + offset) * scale * channel.factor)
    raise DeviceError(
        f"sensor {name!r}: another program keeps changing its scale ({channel.scale}); ask again",
        effect="none",
        data={"sensor": name, "errno": "EAGAIN"},
    )


def _rate(name: str, channel: SensorChannel) -> float:
    """Return the change of a count a second. A counter that begins again at its end has moved the shorter way."""
    first, begun = _number(name, channel.path), time.monotonic()
    time.sleep(channel.gate_s)
    moved, ended = _number(name, channel.path) - first, time.monotonic()
    top = sysfs.numeric(channel.path.with_name("ceiling"))
    if top is not None and top > 0:
        moved = (moved + (top + 1) / 2) % (top + 1) - (top + 1) / 2
    return float(moved) / (ended - begun)


def _settings(name: str, channel: SensorChannel) -> tuple[Fraction | int, Fraction | int]:
    scale = 1 if channel.scale is None else _number(name, channel.scale)
    offset = 0 if channel.offset is None else _number(name, channel.offset)
    return scale, offset


def _number(name: str, path: Path) -> Fraction:
    given = sysfs.read(path)
    found = sysfs.number(given)
    if found is None:
        raise DeviceError(
            f"sensor {name!r}: {path} says {given[:40]!r}, which is no number",
            effect="none",
            data={"sensor": name, "errno": "EBADMSG", "path": str(path)},
        )
    return found


# The errors for the kernel's refusals of a sensor: each names the sensor, the errno and the cure. Every one has effect
# "none", since a reading has none.

_GONE = frozenset((errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESHUTDOWN))
_SILENT = frozenset((errno.EIO, errno.ENXIO, errno.EREMOTEIO, errno.ETIMEDOUT))
"""Errnos of a device that does not answer, and will not at the next read."""
_WHY: Mapping[int, str] = {
    errno.EAGAIN: "it has no reading ready; ask again",
    errno.ENODATA: "it has no data: switched off, nothing connected, or no measurement yet",
    errno.ETIMEDOUT: "it did not answer in time",
    errno.EIO: "it does not answer; is it powered and connected?",
    errno.ENXIO: "no device answers at its address; is it powered and connected?",
    errno.EREMOTEIO: "no device answers at its address; is it powered and connected?",
}


def _absent(name: str, reason: str) -> DeviceError:
    """Return the error for a name that no sensor has."""
    return DeviceError(
        f"there is no sensor {name!r}: {reason} (unplugged, or its driver not bound?); "
        "hw.sensor.list shows what is there",
        effect="none",
        data={"sensor": name, "errno": "ENODEV"},
    )


def _cure(path: Path) -> str:
    """Return the command that gives the right to read an attribute."""
    return (
        f"reading {path} needs root, as the kernel has it; to give it to the group hearth at every boot, put "
        f'"z {path} 0440 root hearth" into /etc/tmpfiles.d/hearth.conf and run systemd-tmpfiles --create'
    )


def _capture_cure(device: SensorDevice, path: str) -> str:
    """Return why a capture may not use a file, with the cure."""
    if kept := kept_by_sandbox(path):
        return f"{kept}; [[iio]] in the board profile names a device whose buffer hearthd may use"
    return (
        f"no permission to use {path}, as a capture must; the rule for iio:device* in packaging/udev/60-hearth.rules "
        "gives the device to the group gpio"
    )


def _failure(
    name: str, device: SensorDevice, path: Path | str, error: OSError, *, capturing: bool = False
) -> DeviceError | ResourceBusy:
    """Return hearth's error for the kernel's."""
    number = error.errno or errno.EIO
    symbol = errno.errorcode.get(number, str(number))
    data = {"sensor": name, "errno": symbol, "path": str(path)}
    if number == errno.EBUSY:
        reason = "it is busy; ask again"
        if device.instance.startswith("iio:"):
            reason = "another program captures from it (its buffer is enabled); it answers when that ends"
            if capturing:
                reason = "another program or session captures from it; it answers when that ends"
            else:
                reason += ". If that program was killed, hw.sensor.capture or a 0 in buffer/enable ends the capture"
        return ResourceBusy(
            f"sensor {name!r} ({device.kernel}): {reason} (EBUSY)",
            data={**data, "effect": "none"},
        )
    if number in _GONE:
        data["errno"] = "ENODEV"
        reason = f"has gone ({symbol}): unplugged, or its driver was unbound; hw.sensor.list shows what is there"
    elif number in (errno.EACCES, errno.EPERM):
        cure = _capture_cure(device, str(path)) if capturing else _cure(Path(path))
        reason = f"({device.kernel}): {cure}"
    else:
        why = _WHY.get(number, os.strerror(number))
        if number == errno.EIO and _w1_device(device) is not None:
            why = "it does not answer, or has only its power-on value (85 celsius); is it powered and connected?"
        reason = f"({device.kernel}): {why} ({symbol})"
        if capturing and error.filename is not None:
            reason += f", from {path}"
    return DeviceError(f"sensor {name!r} {reason}", effect="none", data=data)
