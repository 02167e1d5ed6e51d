"""A converter's outputs through the kernel's IIO devices: /sys/bus/iio/devices/iio:deviceN/out_voltageM_raw.

It owns one device: its lock, its open attributes, and their errors. `hearth.drivers.dac.driver` has what all converters
share, `hearth.drivers.sysfs` the lasting names of IIO devices and the units of their quantities.

**Steps.** A count becomes a value by `out_voltageM_scale` and `_offset`, or those of all voltages, as the kernel's ABI
has them (sysfs-bus-iio), read at each transaction, since a reference may change. The kernel does not know the scale of
a converter whose reference it does not know: then the profile must give it.

**Off.** A channel is off while its own `out_voltageM_powerdown` is 1. To bring it from there to a value, the count is
written first. An attribute for several channels at once is not used.

**Owner.** /sys has none: another program can set the channel too. Only a second hearthd is kept from the device, by a
lock on its `name`. Many kernel drivers answer a read from their memory, so after a failed write they may return the
count that was asked for, though the converter has the former one.

**Afterwards.** The kernel leaves a channel as it is when the process ends, also after `kill -9`.

The attributes are opened with the device and kept open, so that they never lead to another device that has taken over
the number. No descriptor tells that a device is gone: the transaction that meets it reports it (`DeviceGone`).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field, frozen

from hearth.drivers import sysfs
from hearth.drivers.dac.driver import DacChannelSpec, DacChip, DacStep
from hearth.drivers.linux.channels import LinuxChannels
from hearth.drivers.linux.device_users import shared_device
from hearth.drivers.linux.node import claim_node
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SYS: Final = Path("/sys")


@frozen
class IioOutputs:
    """An IIO device of this machine that has outputs. `outputs` are the kernel's names: "out_voltage0".

    `label` is its lasting name, the middle part of its sensors' names; `place` the directory that is there as long as
    the hardware is, also while no driver is bound to it.
    """

    label: str
    kernel: str
    at: Path
    place: Path
    outputs: tuple[str, ...]


def iio_outputs(sys: Path = SYS) -> list[IioOutputs]:
    """Return the IIO devices with outputs that can be set, by number."""
    found = []
    devices = list(sysfs.iio_devices(sys))
    stems = [device.stem for device in devices]
    for device in devices:
        try:
            names = sysfs.attributes(device.at)
        except OSError:
            continue  # it was removed while it was looked at
        outputs = [name.removesuffix("_raw") for name in names if sysfs.IIO_OUTPUT.fullmatch(name)]
        if outputs:
            several = stems.count(device.stem) > 1
            label = f"{device.stem}@{device.instance}" if several else device.stem
            found.append(IioOutputs(label, device.kernel, device.at, device.parent or device.at, tuple(outputs)))
    return found


def find_iio_outputs(label: str) -> IioOutputs:
    """Return the device that has this lasting name. Raises DeviceError."""
    present = iio_outputs()
    for device in present:
        if device.label == label:
            return device
    known = [device.label for device in present]
    there = ", ".join(f"{one.label!r} ({one.at.name}, {', '.join(one.outputs)})" for one in present) or "none"
    text = f"no IIO device with outputs has this name; there is {there}; is it plugged in and its driver loaded?"
    data = {"device": label, "errno": "ENODEV", "known": known}
    raise DeviceError(f"dac {label}: {text} `hearth doctor` names the devices", effect="none", data=data)


@define(eq=False)
class _ChannelFiles:
    """The open attributes of a channel. `scale` and `offset` are read by their paths."""

    raw: int
    powerdown: int | None
    scale: Path | None
    offset: Path | None

    def close(self) -> None:
        os.close(self.raw)
        if self.powerdown is not None:
            os.close(self.powerdown)


@define(eq=False)
class _OpenDevice:
    found: IioOutputs
    lock: int
    outputs: dict[int, _ChannelFiles] = field(factory=dict)

    def close(self) -> None:
        for output in self.outputs.values():
            output.close()
        os.close(self.lock)


_SILENT: Final = {errno.EIO, errno.ENXIO, errno.EREMOTEIO, errno.ETIMEDOUT}


class LinuxDac(LinuxChannels[DacChannelSpec], DacChip):
    """A converter over an IIO device, which is found by its lasting name when it is opened."""

    absent = (errno.ENODEV, errno.ENOENT, errno.ESHUTDOWN)
    untouched = (errno.EINVAL, errno.ERANGE, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EDOM, errno.EBUSY)
    user = "another program or by a driver of the kernel's"
    busy_on = ("none", "unknown")

    def __init__(self, label: str, channels: Iterable[DacChannelSpec]) -> None:
        super().__init__(label, channels)
        self._opened: _OpenDevice | None = None
        self._last: IioOutputs | None = None

    def open(self) -> None:
        """Find the device, lock it and open its outputs; set none.

        Raises DeviceError (absent, not permitted, a channel that it has not) and ResourceBusy.
        """
        found = find_iio_outputs(self.label)
        for spec in self.specs.values():
            if spec.output not in found.outputs:
                text = f"it has {', '.join(found.outputs)}, and no {spec.output}; correct `channels` or `quantity`"
                raise self._error(text, "EINVAL", channel=spec.name)
        held = str(found.at / "name")
        lock = os.open(held, os.O_RDONLY | os.O_CLOEXEC)
        opened = _OpenDevice(found, lock)
        try:
            claim_node(lock, f"dac {self.label}", held, device=self.label)
            for spec in self.specs.values():
                if spec.reserved is None:
                    opened.outputs[spec.number] = self._output(spec, found)
            self._opened = opened
            for number in opened.outputs:
                self.check_step(self.specs[number])
        except BaseException:
            self._opened = None
            opened.close()
            raise
        self._last = found
        self.shares = shared_device(found.at)
        self._gone.forget()

    def _output(self, spec: DacChannelSpec, found: IioOutputs) -> _ChannelFiles:
        """Open the attributes of a channel. Raises DeviceError."""
        at = found.at
        present = frozenset(sysfs.attributes(at))
        bases = (spec.output, f"out_{spec.quantity}", "out")
        scale, offset = (sysfs.shared_attribute(at, present, bases, what) for what in ("scale", "offset"))
        own = f"{spec.output}_powerdown"
        if spec.safe == "off" and own not in present:
            text = f"it cannot be switched off: the kernel has no {own} for it; give it a number as `safe`"
            raise self._error(text, "ENOTSUP", channel=spec.name)
        try:
            raw = os.open(at / f"{spec.output}_raw", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise self._failed(error, at / f"{spec.output}_raw", "none", spec) from error
        try:
            powerdown = os.open(at / own, os.O_RDWR | os.O_CLOEXEC) if own in present else None
        except OSError as error:
            os.close(raw)
            raise self._failed(error, at / own, "none", spec) from error
        return _ChannelFiles(raw, powerdown, scale, offset)

    def close(self) -> None:
        """Give the device back; what its channels give out stays."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def describe(self) -> Mapping[str, Any]:
        """Return the device and its place; `path` is null until it has been opened."""
        last = self._last
        path = None if last is None else str(last.at)
        return {"kind": "dac", "driver": "iio", "device": self.label, "path": path, "channels": len(self.specs)}

    def step(self, spec: DacChannelSpec) -> DacStep:
        """See `DacChip.step`."""
        if spec.scale is not None:
            return DacStep(spec.scale, spec.offset)
        opened, output = self._of(spec)
        factor = sysfs.IIO_QUANTITIES[spec.quantity][2]
        numbers = []
        for what, at in (("scale", output.scale), ("offset", output.offset)):
            if at is None:
                given = None if what == "scale" else sysfs.number("0")
            else:
                try:
                    given = sysfs.number(sysfs.read(at))
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise self._failed(error, at, "none", spec) from error
                    given = None
            if given is None or (what == "scale" and not given):
                text = f"the kernel does not know its {what} ({at or opened.found.at}); give the channel a `scale`: "
                raise self._error(f"{text}the value of one step in its unit", "EINVAL", channel=spec.name)
            numbers.append(given)
        return DacStep(float(numbers[0] * factor), float(numbers[1]))

    def read(self, spec: DacChannelSpec) -> int | None:
        """See `DacChip.read`."""
        opened, output = self._of(spec)
        try:
            if output.powerdown is not None and os.pread(output.powerdown, 8, 0).strip() == b"1":
                return None
            return int(os.pread(output.raw, 64, 0))
        except OSError as error:
            raise self._failed(error, opened.found.at, "none", spec) from error

    def write(self, spec: DacChannelSpec, count: int | None) -> None:
        """See `DacChip.write`."""
        opened, output = self._of(spec)
        try:
            if count is not None:
                os.pwrite(output.raw, b"%d" % count, 0)
                if output.powerdown is not None and os.pread(output.powerdown, 8, 0).strip() == b"1":
                    os.pwrite(output.powerdown, b"0", 0)
            elif output.powerdown is not None:
                os.pwrite(output.powerdown, b"1", 0)
            else:
                raise OSError(errno.ENOTSUP, "it cannot be switched off")
        except OSError as error:
            raise self._failed(error, opened.found.at, "unknown", spec) from error

    def _of(self, spec: DacChannelSpec) -> tuple[_OpenDevice, _ChannelFiles]:
        opened = self._opened
        if opened is None:
            raise self._error("the device is not open", None, channel=spec.name)
        output = opened.outputs.get(spec.number)
        if output is None:
            raise self._error(f"reserved: {spec.reserved}", None, channel=spec.name)
        return opened, output

    def _reason(self, error: OSError, name: str) -> str:
        if error.errno in _SILENT:
            return f"it does not answer; is it powered and connected? ({name})"
        beyond = "; is its `max` beyond its last step?" if error.errno in (errno.EINVAL, errno.ERANGE) else ""
        return super()._reason(error, name) + beyond
