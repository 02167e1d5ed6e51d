"""A PWM chip of the kernel's, through its character device's waveforms, else through /sys/class/pwm.

It owns one chip: its lock, its two interfaces, and their errors. `hearth.drivers.pwm.driver` has what all chips share.

**Two interfaces.** `/dev/pwmchipN` (Linux 6.17 and later, for chips whose kernel driver has waveforms) gives a channel
to one program at a time, sets period and pulse in one call, and says beforehand what the hardware makes of them. `/sys`
has one file for each attribute and no owner: a channel that another program has exported can be used by both. Between
two writes the channel gives out the new pulse in the old period, or the old pulse in the new one. They are ordered so
that the share of the period is never greater than both the old and the new one.

**Rounding.** The hardware gives out the next shorter pulse and period that it can; a PCA9685 has 4096 steps a period.
Its channels have one period: the first one that is used sets it. What others ask for is rounded to it without an error.
The character device tells it beforehand, so a period that would be off by more than `_OFF_BY` is refused there, and a
share is that of the real period. `/sys` tells nothing: there the profile must give such channels one period.

**Off.** A normal channel gets pulses of no length, and is then switched off: what a chip makes of a channel that is not
enabled is its own. An inversed one stays enabled with pulses of no length (`hearth.drivers.pwm.driver`). In `/sys` its
polarity is set while it is not enabled yet, so that its first pulses are the ones that were asked for.

**Afterwards.** The chips of this kind keep what they give out when the last user closes them, also after `kill -9`: see
docs/reference/boards.md. Some (bcm2835-pwm) switch a channel off when it is unexported, so an inversed one stays
exported.

The channel of a chip is claimed when it is first used, also by a read, and held until the bus closes. No descriptor
tells that a chip is gone: the transaction that meets it reports it (`DeviceGone`).
"""

from __future__ import annotations

import errno
import os
import struct
import time
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import define, field, frozen

from hearth.drivers.linux.channels import LinuxChannels
from hearth.drivers.linux.device_users import shared_device
from hearth.drivers.linux.node import claim_node
from hearth.drivers.pwm.driver import ChannelSpec, Pulses, PwmChip
from hearth.errors import DeviceError, Effect, RpcError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SYS = Path("/sys")
DEV = Path("/dev")

_OFF_BY: Final = 0.2
"""The part of a period by which the hardware's may differ. A PCA9685 has steps of an eighth at its highest rates."""
_NODE_S: Final = 1.0
"""Seconds to wait for a node or a permission: udev makes both a moment after the kernel's entry."""
_POLL_S: Final = 0.01


@frozen
class PwmNode:
    """A PWM chip of this machine. `device` is the kernel's name of its device, `node` its character device, if any."""

    name: str
    device: str
    path: Path
    channels: int
    node: str | None


def pwm_chips(sys: Path = SYS, dev: Path = DEV) -> list[PwmNode]:
    """Return the PWM chips of this machine, by number."""
    found = []
    for entry in (sys / "class/pwm").glob("pwmchip*"):
        with suppress(OSError, ValueError):  # it was removed while we looked
            channels = int((entry / "npwm").read_text())
            node = str(dev / entry.name) if (entry / "dev").exists() else None
            device = (entry / "device").resolve().name
            found.append(PwmNode(entry.name, device, entry.resolve(strict=True), channels, node))
    return sorted(found, key=lambda chip: int(chip.name.removeprefix("pwmchip")))


def find_pwm_chip(label: str) -> PwmNode:
    """Return the chip whose device has this name. Raises DeviceError: absent, or ambiguous."""
    present = pwm_chips()
    matching = [chip for chip in present if chip.device == label]
    if len(matching) == 1:
        return matching[0]
    there = ", ".join(f"{chip.device!r} ({chip.name}, {chip.channels} channels)" for chip in present) or "none"
    what = "is not there" if not matching else f"has {len(matching)} chips"
    cure = "is its overlay or kernel driver loaded? `hearth doctor` names the chips"
    data = {"chip": label, "errno": "ENODEV", "known": [chip.device for chip in present]}
    raise DeviceError(f"pwm chip {label}: the device {what}; there is {there}; {cure}", effect="none", data=data)


class _Interface(Protocol):
    """One way to a chip's channels. Everything raises OSError."""

    name: str

    def claim(self, spec: ChannelSpec) -> None:
        """Take a channel."""

    def read(self, spec: ChannelSpec) -> Pulses:
        """Return what a channel gives out."""
        ...

    def write(self, spec: ChannelSpec, pulses: Pulses) -> None:
        """Make a channel give out pulses."""

    def close(self) -> None:
        """Give everything back."""


# struct pwmchip_waveform and the ioctls of linux/pwm.h. A period of 0 is "off"; an inverted pulse begins late.

_WAVEFORM: Final = struct.Struct("=IIQQQ")
"""hwpwm, padding, period_length_ns, duty_length_ns, duty_offset_ns."""
_REQUEST: Final = 0x75 << 8 | 1


def _ioc(direction: int, number: int) -> int:
    return direction << 30 | _WAVEFORM.size << 16 | 0x75 << 8 | number


_ROUND, _GET, _SET_ROUNDED = _ioc(3, 3), _ioc(3, 4), _ioc(1, 5)


class _PeriodTaken(OSError):
    """The hardware cannot give the period that was asked for now; `period_ns` is the nearest."""

    def __init__(self, asked_ns: int, period_ns: int) -> None:
        super().__init__(errno.EBUSY, "another period")
        self.asked_ns, self.period_ns = asked_ns, period_ns


class _Waveforms:
    """A chip's character device."""

    name = "chardev"

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def claim(self, spec: ChannelSpec) -> None:
        ioctl(self._fd, _REQUEST, spec.number)

    def _call(self, request: int, channel: int, period: int = 0, length: int = 0, offset: int = 0) -> tuple[int, ...]:
        waveform = bytearray(_WAVEFORM.pack(channel, 0, period, length, offset))
        ioctl(self._fd, request, waveform)
        return _WAVEFORM.unpack(waveform)[2:]

    def read(self, spec: ChannelSpec) -> Pulses:
        period, length, _ = self._call(_GET, spec.number)
        if not period:
            return Pulses(0, 0, enabled=False)
        return Pulses(period - length if spec.polarity == "inversed" else length, period)

    def write(self, spec: ChannelSpec, pulses: Pulses) -> None:
        if not pulses.enabled:
            if now := self._call(_GET, spec.number)[0]:
                with suppress(OSError):  # as in /sys
                    self._call(_SET_ROUNDED, spec.number, now)
            self._call(_SET_ROUNDED, spec.number)
            return
        length, period = pulses.length_ns, pulses.period_ns
        rounded = self._call(_ROUND, spec.number, period, length)[0]
        # Pulses of no length are the same in every period: off is never refused for it.
        if length and abs(rounded - period) > _OFF_BY * period:
            raise _PeriodTaken(period, rounded)
        if spec.servo is None and spec.unit == "duty":
            length = round(length * rounded / period)
        if spec.polarity == "inversed":
            # Of the period that the hardware has: beyond the end of that, the load would have power for the rest of it.
            length = min(length, rounded)
            self._call(_SET_ROUNDED, spec.number, rounded, rounded - length, length % rounded)
        else:
            self._call(_SET_ROUNDED, spec.number, period, length)

    def close(self) -> None:
        os.close(self._fd)


_FILES: Final = ("period", "duty_cycle", "enable", "polarity")


class _Sysfs:
    """A chip's directory in /sys. A channel that is exported already is taken over: no file says who has done it."""

    name = "sysfs"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[int, dict[str, int]] = {}
        self._kept: set[int] = set()
        """Inversed channels: some chips switch one off when it is given back, which gives its load full power."""

    def claim(self, spec: ChannelSpec) -> None:
        channel = spec.number
        place = self._path / f"pwm{channel}"
        try:
            self._write("export", channel)
        except OSError as error:
            if error.errno != errno.EBUSY or not place.exists():
                raise
        files: dict[str, int] = {}
        deadline = time.monotonic() + _NODE_S
        while len(files) < len(_FILES):
            name = _FILES[len(files)]
            try:
                files[name] = os.open(place / name, os.O_RDWR | os.O_CLOEXEC)
            except PermissionError:
                # udev gives the files to a group a moment after the export.
                if time.monotonic() > deadline:
                    for fd in files.values():
                        os.close(fd)
                    raise
                time.sleep(_POLL_S)
        self._files[channel] = files
        if spec.polarity == "inversed":
            self._kept.add(channel)

    def _get(self, channel: int, name: str) -> str:
        return os.pread(self._files[channel][name], 64, 0).decode("ascii").strip()

    def _now(self, channel: int) -> Pulses:
        period, length, enabled = (int(self._get(channel, name)) for name in _FILES[:3])
        return Pulses(length, period, enabled=enabled == 1)

    def read(self, spec: ChannelSpec) -> Pulses:
        now = self._now(spec.number)
        if now.enabled and self._get(spec.number, "polarity") != spec.polarity:
            # Another program has enabled it, or the chip comes up so: its pulses are the load's pauses.
            return Pulses(now.period_ns - now.length_ns, now.period_ns)
        return now

    def write(self, spec: ChannelSpec, pulses: Pulses) -> None:
        now = self._now(spec.number)
        if not pulses.enabled:
            if now.enabled:
                # A chip may keep the pin where it is at that moment: low, not in the midst of a pulse. Not every chip
                # has pulses of no length.
                with suppress(OSError):
                    self._put(spec.number, "duty_cycle", "0")
                self._put(spec.number, "enable", "0")
            return
        lengths = ("duty_cycle", now.length_ns, pulses.length_ns)
        periods = ("period", now.period_ns, pulses.period_ns)
        order = [periods, lengths] if pulses.period_ns >= now.period_ns else [lengths, periods]
        if not pulses.length_ns and now.period_ns:
            order = [lengths]  # as for a waveform
        enabled = now.enabled
        if self._get(spec.number, "polarity") != spec.polarity:
            # The kernel changes it only while the channel is off, and not before it has a period.
            if enabled:
                self._put(spec.number, "enable", "0")
            if not now.period_ns:
                self._put(spec.number, "period", str(pulses.period_ns))
                order = [lengths]
            self._put(spec.number, "polarity", spec.polarity)
            enabled = False
        for name, former, value in order:
            if former != value:
                self._put(spec.number, name, str(value))
        if not enabled:
            self._put(spec.number, "enable", "1")

    def _put(self, channel: int, name: str, value: str) -> None:
        os.pwrite(self._files[channel][name], value.encode("ascii"), 0)

    def close(self) -> None:
        for channel, files in self._files.items():
            for fd in files.values():
                os.close(fd)
            if channel not in self._kept:
                with suppress(OSError):  # gone with its chip
                    self._write("unexport", channel)

    def _write(self, name: str, channel: int) -> None:
        # Opened without truncation, which the sandbox does not permit on devices.
        fd = os.open(self._path / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(channel).encode("ascii"))
        finally:
            os.close(fd)


@define(eq=False)
class _OpenChip:
    """An open chip."""

    found: PwmNode
    lock: int
    interface: _Interface
    claimed: set[int] = field(factory=set)


class LinuxPwm(LinuxChannels[ChannelSpec], PwmChip):
    """A PWM chip over /dev/pwmchip* or /sys/class/pwm.

    The chip is found by the name of its device when it is opened. `chardev` chooses the interface: true and false
    alone, None the character device where there is one that may be opened.
    """

    absent = (errno.ENODEV, errno.ENXIO, errno.ENOENT)
    untouched = (errno.EINVAL, errno.ERANGE, errno.EOPNOTSUPP, errno.EBUSY, errno.EACCES, errno.EPERM, errno.EDOM)
    user = "a driver of the kernel's, such as a fan's or a light's, or by another program"

    def __init__(self, label: str, channels: Iterable[ChannelSpec], *, chardev: bool | None = None) -> None:
        super().__init__(label, channels)
        self._chardev = chardev
        self._opened: _OpenChip | None = None
        self._last: PwmNode | None = None

    def open(self) -> None:
        """Find the chip and lock it; use no channel. Raises DeviceError (absent, not permitted), ResourceBusy."""
        found = find_pwm_chip(self.label)
        for spec in self.specs.values():
            if spec.number >= found.channels:
                text = f"it has the channels 0 to {found.channels - 1}, and no {spec.number} ({spec.name})"
                raise self._error(f"{text}; is this the right profile for it?", "EINVAL")
        held = str(found.path / "npwm")
        lock = os.open(held, os.O_RDONLY | os.O_CLOEXEC)
        try:
            claim_node(lock, f"pwm chip {self.label}", held, chip=self.label)
            interface = self._interface(found)
        except RpcError:
            os.close(lock)
            raise
        self._opened = _OpenChip(found, lock, interface)
        self._last = found
        self.shares = shared_device(found.path)
        self._gone.forget()
        self.forget_waves()

    def _interface(self, found: PwmNode) -> _Interface:
        node = found.node
        if self._chardev is not False and node is not None:
            deadline = time.monotonic() + _NODE_S
            # A device has its entry in /sys a moment before its node in /dev.
            while not Path(node).exists() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            try:
                return _Waveforms(os.open(node, os.O_RDWR | os.O_CLOEXEC))
            except OSError as error:
                if self._chardev:
                    raise self._failed(error, node, "none") from error
        if self._chardev:
            why = "the kernel's driver of this chip has no character device; take `chardev` out of the board profile"
            raise self._error(why, "ENOENT")
        return _Sysfs(found.path)

    def close(self) -> None:
        """Give the channels and the chip back; what they give out stays."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.interface.close()
            os.close(opened.lock)
        self.forget_waves()

    def describe(self) -> Mapping[str, Any]:
        """Return the chip and its place; `path` and `interface` are null until it has been opened."""
        opened, last = self._opened, self._last
        return {
            "kind": "pwm",
            "driver": "pwm",
            "chip": self.label,
            "path": None if last is None else str(last.path),
            "interface": None if opened is None else opened.interface.name,
            "channels": len(self.specs),
        }

    def read(self, spec: ChannelSpec) -> Pulses:
        """See `PwmChip.read`."""
        return self._do("none", spec, lambda interface: interface.read(spec))  # type: ignore[no-any-return]

    def write(self, spec: ChannelSpec, pulses: Pulses) -> None:
        """See `PwmChip.write`."""
        self._do("unknown", spec, lambda interface: interface.write(spec, pulses))

    def _do(self, effect: Effect, spec: ChannelSpec, op: Any) -> Any:
        opened = self._opened
        if opened is None:
            raise self._error("the chip is not open", None, channel=spec.name)
        try:
            if spec.number not in opened.claimed:
                opened.interface.claim(spec)
                opened.claimed.add(spec.number)
        except OSError as error:
            raise self._failed(error, str(opened.found.path), "none", spec) from error
        try:
            return op(opened.interface)
        except _PeriodTaken as taken:
            text = (
                f"the chip can give it a period of {taken.period_ns / 1000:g} us now, and not of "
                f"{taken.asked_ns / 1000:g} us; channels of a chip may share one period, which the first one in use "
                "has set: give them the same period_us"
            )
            raise self._error(text, "EBUSY", channel=spec.name) from None
        except OSError as error:
            raise self._failed(error, str(opened.found.path), effect, spec) from error
