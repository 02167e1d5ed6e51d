"""Buffered capture: samples of an IIO device's channels, taken by the kernel and read from /dev/iio:deviceN.

It owns one capture from the first setting to the last one put back, and the form of the samples (sysfs-bus-iio in
Documentation/ABI/testing, Documentation/iio/iio_devbuf.rst). `hearth.drivers.iio.kernel` finds the channels, and
turns an OSError into hearth's error.

**Owner.** The kernel lets one process open the device node. It is opened first, so another program that captures is
found before anything is changed. An enabled buffer whose node is open in no process belongs to a program that was
killed, perhaps an earlier hearthd: it is switched off, and the capture begins.

**Settings.** They can be changed only while the buffer is off: the channels, the length, the trigger, the rate. Each
one that is changed is put back, in reverse order, after the buffer has been switched off: on success, after an error,
and after a cancellation. The buffer is as long as the capture, so no sample is lost when this process is late.

**Waiting.** The watermark is the number of samples, so the kernel wakes this thread at the end. The thread looks at
least every `SLICE_S`, because the kernel reports neither a cancellation nor, to `poll`, a device that was unplugged: a
read then fails with ENODEV.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from contextlib import ExitStack, suppress
from fractions import Fraction
from typing import TYPE_CHECKING

from hearth.drivers import sysfs
from hearth.drivers.iio.driver import SLICE_S, Captured, CaptureRequest, ScanType, layout, scaled
from hearth.drivers.linux.machine import entries
from hearth.errors import DeviceError, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hearth.drivers.sysfs import ScanElement, SensorDevice


_changing = threading.Lock()
"""Held while settings are changed or put back: two devices may share a trigger, and with it a rate."""


def capture(device: SensorDevice, elements: Sequence[ScanElement], node: Path, request: CaptureRequest) -> Captured:
    """Capture samples of these channels of a device, and leave its settings as they were.

    Raises OSError, with the path if the kernel refuses a setting. Raises DeviceError with the cure for a device
    without a trigger, a rate that it has not, samples that cannot be decoded, and a setting that could not be put back
    (effect "unknown"). Raises ResourceBusy for a trigger whose rate another capture needs.
    """
    at = device.at
    with ExitStack() as stack:
        _changing.acquire()
        stack.callback(_changing.release)
        fd = _opened(at, node)
        stack.callback(os.close, fd)
        _end_leftover(at, fd)
        wanted = [element.at.name for element in elements]
        if request.timestamps:
            wanted.append("in_timestamp")
        _set_channels(stack, device, wanted)
        if request.trigger is not None:
            _set_trigger(stack, device, request.trigger)
        rate_hz = _set_rate(stack, device, [element.rate for element in elements], request.rate_hz)
        for name, value in (("length", max(request.samples, 2)), ("watermark", request.samples)):
            if _writable(at / "buffer" / name):
                _set(stack, device, at / "buffer" / name, str(value))
        types = _types(device, sorted(wanted, key=lambda name: _index(at, name)))
        offsets, size = layout(list(types.values()))
        scales = [_scale(element) for element in elements]
        _enable(device)
        # First in the reverse order: the kernel refuses the other settings while the buffer is on.
        stack.callback(_put_back, device, at / "buffer/enable", "0")
        # Released while the samples are taken; held again, as the first step of the unwinding, to put all back.
        stack.callback(_changing.acquire)
        _changing.release()
        data, timed_out = _read(fd, request.samples * size, request)
        data = data[: len(data) // size * size]
    places = dict(zip(types, offsets, strict=True))

    def column(name: str) -> list[int | float]:
        form, offset = types[name], places[name]
        return [form.decode(data[begin : begin + form.size]) for begin in range(offset, len(data), size)]

    return Captured(
        kernel=device.kernel,
        units=[element.unit for element in elements],
        samples=[
            [scaled(raw, *scale) for raw in column(element.at.name)]
            for element, scale in zip(elements, scales, strict=True)
        ],
        rate_hz=rate_hz,
        timestamps_us=[int(raw) // 1000 for raw in column("in_timestamp")] if request.timestamps else None,
        timed_out=timed_out,
    )


def _opened(at: Path, node: Path) -> int:
    """Open the node of a device, which keeps others from it. Raises OSError."""
    fd = os.open(node, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status, number = os.fstat(fd), sysfs.text(at / "dev")
    if number is not None and number != f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}":
        os.close(fd)  # the number was given to another device since
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), str(node))
    return fd


def _end_leftover(at: Path, fd: int) -> None:
    """Switch off a buffer that a program which was killed has left on. Raises OSError, EBUSY if a program reads it."""
    if sysfs.read(at / "buffer/enable") != "1":
        return
    with suppress(BlockingIOError):
        os.read(fd, 1 << 16)  # EBUSY: a program has got a descriptor of the buffer itself (IIO_BUFFER_GET_FD_IOCTL)
    _write(at / "buffer/enable", "0")
    if _writable(at / "buffer/watermark"):
        _write(at / "buffer/watermark", "1")  # the kernel's own: another would make a later program wait


def _write(path: Path, text: str) -> None:
    """Write an attribute by one write. Raises OSError with its path."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # no O_TRUNC: the sandbox grants no right to truncate
    try:
        os.write(fd, f"{text}\n".encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(fd)


def _writable(path: Path) -> bool:
    """True for a setting that is there, and that the device does not fix."""
    try:
        return path.stat().st_mode & 0o222 != 0
    except FileNotFoundError:
        return False


def _set(stack: ExitStack, device: SensorDevice, path: Path, text: str) -> None:
    """Give an attribute a value until the stack unwinds. Raises OSError."""
    former = sysfs.read(path)
    if former != text:
        try:
            _write(path, text)
        except OSError:
            with suppress(OSError):
                _write(path, former)  # a device that did not answer may have taken it all the same
            raise
        stack.callback(_put_back, device, path, former)


def _put_back(device: SensorDevice, path: Path, text: str) -> None:
    """Write a setting's former value; a device that is gone has none any more. Raises DeviceError."""
    try:
        _write(path, text)
    except OSError as error:
        if not path.exists():
            return
        symbol = errno.errorcode.get(error.errno or 0, "EIO")
        raise DeviceError(
            f"iio device {device.stem!r} ({device.at.name}): {path} could not be set back to {text!r} ({symbol}), so "
            f"that other programs may find it changed; `echo '{text}' | sudo tee {path}` sets it",
            effect="unknown",
            data={"device": device.stem, "path": str(path), "errno": symbol},
        ) from error


def _set_channels(stack: ExitStack, device: SensorDevice, wanted: Sequence[str]) -> None:
    scans = device.at / "scan_elements"
    if "in_timestamp" in wanted and not (scans / "in_timestamp_en").exists():
        raise _error(device, "its samples have no timestamp; leave `timestamps` out", "ENOTSUP")
    # The others first: some devices have no two channels at once.
    for enable in sorted(entries(scans, "*_en"), key=lambda path: path.name.removesuffix("_en") in wanted):
        _set(stack, device, enable, "1" if enable.name.removesuffix("_en") in wanted else "0")


def _set_trigger(stack: ExitStack, device: SensorDevice, name: str) -> None:
    current = device.at / "trigger/current_trigger"
    if not current.exists():
        raise _error(device, f"it takes no trigger, and so not {name!r}; correct the board profile", "ENOTSUP")
    if sysfs.iio_trigger(device.at, name) is None:
        cure = "make it (iio-trig-hrtimer, iio-trig-sysfs), or correct the board profile"
        raise _error(device, f"there is no trigger {name!r} now; {cure}", "ENODEV")
    _set(stack, device, current, name)


def _rates(device: SensorDevice, trigger: Path | None, own: Sequence[Path | None]) -> list[Path]:
    """Return the attributes with the rate: the trigger's.

    A trigger of the device itself (data ready) has none of its own, and so has a device with a buffer in its hardware:
    there it is the device's. `own` are the attributes of its channels for that.
    """
    if trigger is not None and (trigger / "sampling_frequency").exists():
        return [trigger / "sampling_frequency"]
    if trigger is None or (device.parent is not None and trigger.parent == device.at.parent):
        return [path for path in dict.fromkeys(own) if path is not None]
    return []


def _set_rate(stack: ExitStack, device: SensorDevice, own: Sequence[Path | None], wanted: float | None) -> float | None:
    """Set the rate, if one is wanted, and return the one that there is then. Raises DeviceError, ResourceBusy, OSError.

    `own` are the attributes of the channels for the rate.
    """
    at, name = device.at, sysfs.text(device.at / "trigger/current_trigger")
    trigger = sysfs.iio_trigger(at, name)
    paths = _rates(device, trigger, own)
    if not paths:
        if wanted is not None:
            why = f"a program fires its trigger {name!r}" if trigger is not None else "the kernel has no rate for it"
            raise _error(device, f"its rate cannot be set: {why}; leave `rate_hz` out", "ENOTSUP")
        return None
    for path in paths:
        if wanted is None or (before := _hertz(path)) == wanted:
            continue
        if path.parent == trigger and (others := _sharing(at, name)):
            text = f"{others[0].name} captures by the same trigger {name!r} at {before} Hz; leave `rate_hz` out"
            raise ResourceBusy(f"iio device {device.stem!r}: {text}", data={"device": device.stem, "effect": "none"})
        try:
            _set(stack, device, path, f"{wanted:.6f}".rstrip("0").rstrip("."))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            offered = sysfs.text(path.with_name(f"{path.name}_available"))
            cure = f"it has {offered}" if offered else f"{path} has the present one"
            raise _error(device, f"it cannot sample at {wanted:g} Hz; {cure}", "EINVAL") from error
    return _hertz(paths[0])


def _sharing(at: Path, trigger: str | None) -> list[Path]:
    """Return the other devices that capture by a trigger now."""
    devices = sysfs.linked(at / "subsystem")
    others = [] if devices is None else [sysfs.real(one) for one in entries(devices / "devices", "iio:device*")]
    return [
        other
        for other in others
        if other != at
        and sysfs.text(other / "trigger/current_trigger") == trigger
        and sysfs.text(other / "buffer/enable") == "1"
    ]


def _hertz(path: Path) -> float | None:
    found = sysfs.number(sysfs.read(path).partition(" ")[0])
    return None if found is None else float(found)


def _enable(device: SensorDevice) -> None:
    """Switch the buffer on. Raises OSError, and DeviceError with the cure for a device that lacks a trigger."""
    try:
        _write(device.at / "buffer/enable", "1")
    except OSError as error:
        trigger = device.at / "trigger/current_trigger"
        if error.errno != errno.EINVAL or not trigger.exists() or sysfs.text(trigger) is not None:
            raise
        raise _error(
            device,
            "it has no trigger, and no buffer of its own: nothing says when to sample. Name a `trigger` for it under "
            f"[[iio]] in the board profile, or set one: `echo NAME | sudo tee {trigger}`",
            "EINVAL",
        ) from error


def _index(at: Path, name: str) -> Fraction:
    """Return a channel's place among the others. Raises OSError: EBADMSG for one that is no number."""
    path = at / f"scan_elements/{name}_index"
    if (found := sysfs.number(sysfs.read(path))) is None:
        raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG), str(path))
    return found


def _types(device: SensorDevice, names: Sequence[str]) -> dict[str, ScanType]:
    """Return the form of each channel. Raises DeviceError for one that cannot be decoded, OSError."""
    types = {}
    for name in names:
        path = device.at / f"scan_elements/{name}_type"
        given = sysfs.read(path)
        parsed = ScanType.parse(given)
        if parsed is None:
            raise _error(device, f"{path} says {given[:40]!r}, which this release cannot decode", "EBADMSG")
        types[name] = parsed
    return types


def _scale(element: ScanElement) -> tuple[Fraction, Fraction]:
    """Return the offset and the scale of a channel, to its unit. Raises OSError: EBADMSG for one that is no number."""
    numbers = []
    for path, default in ((element.offset, Fraction(0)), (element.scale, Fraction(1))):
        number = default if path is None else sysfs.number(sysfs.read(path))
        if number is None:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG), str(path))
        numbers.append(number)
    return numbers[0], numbers[1] * element.factor


def _read(fd: int, wanted: int, request: CaptureRequest) -> tuple[bytes, bool]:
    """Return `wanted` bytes, or fewer after the timeout or a stop; and True after the timeout. Raises OSError."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    deadline = time.monotonic() + request.timeout_s
    data = bytearray()
    while len(data) < wanted and not request.stop():
        left = deadline - time.monotonic()
        poller.poll(max(0.0, min(left, SLICE_S)) * 1000)
        try:
            read = os.read(fd, wanted - len(data))
        except BlockingIOError:
            read = None
        if read == b"":
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        data += read or b""
        if left <= 0 and len(data) < wanted:
            return bytes(data), True
    return bytes(data), False


def _error(device: SensorDevice, reason: str, symbol: str) -> DeviceError:
    text = f"iio device {device.stem!r} ({device.at.name}): {reason}"
    return DeviceError(text, effect="none", data={"device": device.stem, "errno": symbol})
