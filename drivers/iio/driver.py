"""What every device that captures samples shares: the request, the result, and the form of samples in a buffer.

The form is the kernel's (`scan_elements` of sysfs-bus-iio in Documentation/ABI/testing). Decoding touches no device.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING, Annotated, Final

from attrs import field, frozen

from hearth.drivers.signals import Quantity  # noqa: TC001  attrs reads the annotations
from hearth.errors import InvalidParams
from hearth.fields import Number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction
    from typing import Literal

MAX_VALUES: Final = 16_384
"""Most samples of a capture, times the number of its sensors: it bounds the kernel's buffer and the answer."""
MAX_SENSORS: Final = 16
"""Most sensors of a capture."""
SLICE_S: Final = 0.1
"""The longest time after which a cancellation or an unplugged device is noticed."""
_TYPE: Final = re.compile(r"(be|le):([suf])(\d{1,3})/(\d{1,3})(?:X(\d{1,3}))?>>(\d{1,3})")
_FLOATS: Final = {16: "e", 32: "f", 64: "d"}


@frozen
class ScanType:
    """The form of a channel in a sample: `bits` of a number of `size` bytes, shifted up by `shift`."""

    order: Literal["big", "little"]
    form: str
    """"s" signed, "u" unsigned, "f" floating point."""
    bits: int
    size: int
    shift: int

    @classmethod
    def parse(cls, text: str) -> ScanType | None:
        """Return the form that an attribute such as "le:s12/16>>4" describes; None if this release cannot decode it."""
        found = _TYPE.fullmatch(text)
        if found is None or (found[5] or "1") != "1":
            return None
        bits, storage, shift = int(found[3]), int(found[4]), int(found[6])
        if storage % 8 or not 0 < bits <= storage - shift or (found[2] == "f" and bits not in _FLOATS):
            return None
        return cls("big" if found[1] == "be" else "little", found[2], bits, storage // 8, shift)

    def decode(self, raw: bytes) -> int | float:
        """Return the number in `size` bytes."""
        value = int.from_bytes(raw, self.order) >> self.shift & (1 << self.bits) - 1
        if self.form == "f":
            number: float = struct.unpack(f"<{_FLOATS[self.bits]}", value.to_bytes(self.bits // 8, "little"))[0]
            return number
        return value - (1 << self.bits) if self.form == "s" and value >> (self.bits - 1) else value


def layout(types: Sequence[ScanType]) -> tuple[list[int], int]:
    """Return the offset of each channel in a sample, and the sample's size; `types` are in the order of their indices.

    A channel begins at a multiple of its own size, and a sample at one of its largest.
    """
    offsets, end = [], 0
    for each in types:
        offsets.append(-(-end // each.size) * each.size)
        end = offsets[-1] + each.size
    widest = max(each.size for each in types)
    return offsets, -(-end // widest) * widest


def scaled(raw: float, offset: Fraction, scale: Fraction) -> float:
    """Return (raw + offset) * scale, rounded once."""
    if not isinstance(raw, int):
        return (raw + float(offset)) * float(scale)
    # The same in integers, whose true division rounds once: fractions would take five times as long.
    number = raw * offset.denominator + offset.numerator
    return number * scale.numerator / (offset.denominator * scale.denominator)


@frozen
class CaptureRequest:
    """The wanted samples: `rate_hz` None leaves the rate, `trigger` None the trigger as it is."""

    samples: int
    timeout_s: float
    rate_hz: float | None = None
    timestamps: bool = False
    trigger: str | None = None
    stop: Callable[[], bool] = field(default=lambda: False)
    """Asked at least every SLICE_S: True ends the capture early, with what there is."""


@frozen
class Captured:
    """Samples: one list for each channel, of equal length, in its unit."""

    kernel: str
    units: list[str]
    samples: list[list[float]]
    rate_hz: float | None
    """The rate that the kernel gives; None where it has none, as for a trigger that a program fires."""
    timestamps_us: list[int] | None
    """Microseconds of the device's clock, which is the system's unless `current_timestamp_clock` says otherwise."""
    timed_out: bool


def check_size(samples: int, sensors: int) -> None:
    """Raise InvalidParams for more values than a capture may have."""
    if samples * sensors > MAX_VALUES:
        most = MAX_VALUES // sensors
        reason = f"{samples} samples of {sensors} sensors are more than {MAX_VALUES} values; ask for {most} samples"
        raise InvalidParams(reason, data={"pointer": "/samples", "reason": reason, "maximum": most})


@frozen
class SimulatedWave:
    """A simulated channel: `offset` + `amplitude` * sin(2π * `hz` * t)."""

    sensor: str
    unit: str
    amplitude: Quantity = 1
    hz: Annotated[float, Number(gt=0, le=100_000)] = 1
    offset: Quantity = 0

    def at(self, seconds: float) -> float:
        """Return the value at a time."""
        return round(self.offset + self.amplitude * math.sin(2 * math.pi * self.hz * seconds), 6)
