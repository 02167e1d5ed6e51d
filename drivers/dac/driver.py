"""DAC channels: the interface of a converter's driver, its channels with their units, and what all converters share.

A driver here is one device. A channel gives out a voltage, a current or a resistance, as a count of steps, or nothing
("off": powered down). Callers name a value in the channel's own unit, in which its bounds are too. This module owns the
way from a value to a count and back; it does not access a device.

A subclass of `DacChip` has three operations of its own, each about one channel and bounded to a few system calls:
`step`, `read` and `write`. Nothing is remembered between them: a `set` reads what it replaces.
"""

from __future__ import annotations

from abc import abstractmethod
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from attrs import frozen

from hearth.drivers.signals import (
    OFF,
    ROUNDING,
    STEP_S,
    Hold,
    Off,
    OnLimit,
    Positive,
    Quantity,
    SignalChannel,
    SignalChip,
    SignalLevel,
    SignalLimit,
    SignalSpec,
    beyond,
)
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping

DacQuantity: TypeAlias = Literal["voltage", "current", "resistance"]

UNITS: Final[Mapping[DacQuantity, str]] = {"voltage": "volt", "current": "ampere", "resistance": "ohm"}
MOST_DECIMALS: Final = 12
"""Digits after the point of a value that was read: fewer than a float has, so that 0.1 volt reads as 0.1."""


class DacStep(NamedTuple):
    """The steps of a channel: (count + `offset`) * `scale` is its value in its unit."""

    scale: float
    offset: float = 0.0

    def value(self, count: int) -> float:
        """Return the value of a count."""
        return (count + self.offset) * self.scale

    def steps(self, value: float) -> float:
        """Return the count of a value, with its fraction."""
        return value / self.scale - self.offset


@frozen
class DacChannelSpec(SignalChannel):
    """A channel in a board's profile; `number` is its number on the device.

    `min` and `max` bound its value, in its unit; it moves at its `slew`, in units a second. `safe` and `hold` decide
    what it gives out after the session that drove it has ended. `scale` is the value of one step and `offset` what is
    added to the count before, where the profile says that and not the kernel; only then it has a `unit` of its own.
    `reserved` is the reason why it may not be used, or None.
    """

    number: int
    name: str
    min: Quantity
    max: Quantity
    safe: SignalLevel
    quantity: DacQuantity = "voltage"
    slew: Positive | None = None
    on_limit: OnLimit = "refuse"
    hold: Hold = "release"
    scale: Quantity | None = None
    offset: Quantity = 0.0
    unit: str | None = None
    off: Off = "zero"
    start: Quantity | None = None
    reserved: str | None = None
    note: str | None = None

    @property
    def output(self) -> str:
        """Return the kernel's name of its output: "out_voltage0"."""
        return f"out_{self.quantity}{self.number}"

    @property
    def signal(self) -> SignalSpec:
        """Return the channel as a signal of its bus: its unit and its limits."""
        step = None if self.slew is None else self.slew * STEP_S
        limit = SignalLimit(self.min, self.max, step, self.slew)
        unit = self.unit or UNITS[self.quantity]
        return SignalSpec(self.number, "channel", self.name, f"dac channel {self.name}", unit, limit, self.on_limit)

    def fault_of(self, level: SignalLevel) -> str | None:
        """See `SignalChannel.fault_of`. Only a `safe` of "off" says that the converter can be switched off."""
        if level == OFF:
            return None if self.safe == OFF else 'it has no "off", unless its `safe` is "off"; give a number'
        return beyond(self.signal.limit, level, self.signal.unit)

    def counts(self, step: DacStep) -> tuple[int, int]:
        """Return the least and the greatest count whose value is within the bounds; none if the first is greater."""
        low, high = sorted((step.steps(self.min), step.steps(self.max)))
        return ceil(low - ROUNDING), floor(high + ROUNDING)

    def count(self, value: float, step: DacStep) -> int:
        """Return the count nearest to a value, of those within the bounds."""
        low, high = self.counts(step)
        return min(max(round(step.steps(value)), low), high)

    def level(self, count: int, step: DacStep) -> float:
        """Return the value of a count; a bound, where it differs from that by rounding alone."""
        value = round(step.value(count), MOST_DECIMALS)
        near = [bound for bound in (self.min, self.max) if abs(value - bound) <= 2 * ROUNDING * abs(step.scale)]
        return float(near[0]) if near else value

    def to_json(self) -> dict[str, Any]:
        """Return the channel for hw.dac.list."""
        entry: dict[str, Any] = {"channel": self.name, "number": self.number, "quantity": self.quantity}
        entry |= {**self.signal.to_json(), "safe": self.safe, "hold": self.hold}
        optional = {"slew": self.slew, "reserved": self.reserved, "note": self.note}
        return entry | {key: value for key, value in optional.items() if value is not None}


class DacChip(SignalChip[DacChannelSpec]):
    """One converter: the operations of all drivers of one."""

    kind, noun = "dac", "device"

    @abstractmethod
    def step(self, spec: DacChannelSpec) -> DacStep:
        """Return the steps of a channel. Raises DeviceError."""

    @abstractmethod
    def read(self, spec: DacChannelSpec) -> int | None:
        """Return the count that a channel is set to, None for one that is off. Raises DeviceError."""

    @abstractmethod
    def write(self, spec: DacChannelSpec, count: int | None) -> None:
        """Set a channel to a count, or switch it off with None. Raises DeviceError."""

    def value(self, channel: int) -> SignalLevel:
        """Return the value that a channel is set to, in its unit. Raises DeviceError, ResourceBusy."""
        spec = self.spec(channel)
        count = self.read(spec)
        return OFF if count is None else spec.level(count, self.step(spec))

    def set(self, channel: int, value: SignalLevel) -> SignalLevel:
        """Bring a channel to a value; return what it was before. Raises DeviceError, ResourceBusy."""
        former = self.value(channel)
        spec = self.specs[channel]
        self.write(spec, None if value == OFF else spec.count(value, self.step(spec)))
        return former

    def check_step(self, spec: DacChannelSpec) -> None:
        """Refuse a channel with no count within its bounds. Raises DeviceError."""
        step = self.step(spec)
        low, high = spec.counts(step)
        if low > high:
            text = f"no step is within its bounds: one is {step.scale:g} {spec.signal.unit}; correct min and max"
            data = {"channel": spec.name, "errno": "EINVAL"}
            raise DeviceError(f"dac {self.label}, channel {spec.name}: {text}", effect="none", data=data)
