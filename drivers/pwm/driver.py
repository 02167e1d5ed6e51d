"""PWM: the interface of a chip's driver, its channels with their units, servos, and what all chips share.

A driver here is one chip. A channel gives out pulses of a length in a period, or nothing ("off"). Callers name a value
in the channel's own unit, in which its limits are too: the duty (0 to 1), the pulse in microseconds, or, for a servo,
the angle in degrees. This module owns the way from a value to a pulse and back; it does not access a chip.

**Off** is what the load gets, and not what the chip does. An inversed channel drives a load that has power while the
pin is low, and most chips hold a channel that is not enabled low. So an inversed channel is off while it is enabled
with pulses of no length, which holds its pin high; one that is not enabled counts as full power. The kernel promises
nothing about a channel that is not enabled (struct pwm_waveform in linux/pwm.h).

A subclass of `PwmChip` has two operations of its own, `read` and `write`, each about one channel and bounded to a few
system calls. Between a `write` and the next one the chip remembers the channel, so a `set` reads only after `open` and
after a failure.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from attrs import Factory, asdict, field, frozen

from hearth.drivers.signals import (
    OFF,
    STEP_S,
    Hold,
    Off,
    OnLimit,
    Quantity,
    SignalChannel,
    SignalChip,
    SignalLevel,
    SignalLimit,
    SignalSpec,
    beyond,
)
from hearth.errors import LimitViolated
from hearth.fields import ANY_NUMBER, Number

if TYPE_CHECKING:
    from collections.abc import Iterable

Polarity: TypeAlias = Literal["normal", "inversed"]
ChannelUnit: TypeAlias = Literal["duty", "us"]

Period: TypeAlias = Annotated[float, Number(ge=0.01, le=100_000_000)]
"""Microseconds: from 100 MHz down to one pulse in a hundred seconds."""

SERVO_PERIOD_US: Final = 20_000.0


@frozen
class ServoSpec:
    """A servo on a channel: the pulses at its two ends, and how fast it may be moved, in degrees a second.

    `min_us` is the pulse at `min_angle` and `max_us` that at `max_angle`; the greater pulse may be at either end.
    """

    min_us: float
    max_us: float
    min_angle: Annotated[float, ANY_NUMBER] = 0.0
    max_angle: Annotated[float, ANY_NUMBER] = 180.0
    slew: Annotated[float, Number(ge=0.1, le=100_000)] | None = None

    def pulse_us(self, angle: float) -> float:
        """Return the pulse of an angle."""
        share = (angle - self.min_angle) / (self.max_angle - self.min_angle)
        return self.min_us + share * (self.max_us - self.min_us)

    def angle(self, pulse_us: float) -> float:
        """Return the angle of a pulse."""
        share = (pulse_us - self.min_us) / (self.max_us - self.min_us)
        return self.min_angle + share * (self.max_angle - self.min_angle)


class Pulses(NamedTuple):
    """What a channel gives out: pulses of `length_ns` in each `period_ns`; `enabled` false: the chip gives out none.

    A pulse is the time for which the load has power: of an inversed channel the pin is low for it.
    """

    length_ns: int
    period_ns: int
    enabled: bool = True


class Wave(NamedTuple):
    """The value of a channel in its unit, or "off", and its period."""

    value: SignalLevel
    period_us: float


@frozen
class ChannelSpec(SignalChannel):
    """A channel in a board's profile; `number` is its number on the chip.

    `safe` and `hold` decide what it gives out after the session that drove it has ended. Callers may choose a period
    from `min_period_us` to `max_period_us`; without them it is always `period_us`. `limit` bounds the value, in the
    channel's unit. `reserved` is the reason why it may not be used, or None.
    """

    number: int
    name: str
    period_us: Period = SERVO_PERIOD_US
    min_period_us: Period | None = None
    max_period_us: Period | None = None
    polarity: Polarity = "normal"
    unit: ChannelUnit = "duty"
    safe: SignalLevel = OFF
    hold: Hold = "release"
    limit: SignalLimit | None = None
    on_limit: OnLimit = "refuse"
    servo: ServoSpec | None = None
    off: Off = field(default=Factory(lambda channel: "zero" if channel.servo is None else "hold", takes_self=True))
    start: Quantity | None = None
    reserved: str | None = None
    note: str | None = None

    @property
    def signal(self) -> SignalSpec:
        """Return the channel as a signal of its bus: its unit, and its bounds, which each channel has."""
        servo, given = self.servo, self.limit or SignalLimit()
        what = f"{'pwm channel' if servo is None else 'servo'} {self.name}"
        if servo is not None:
            step = None if servo.slew is None else servo.slew * STEP_S
            limit = SignalLimit(servo.min_angle, servo.max_angle, step, servo.slew)
            return SignalSpec(self.number, "channel", self.name, what, "degree", limit, self.on_limit)
        low = 0.0 if given.min is None else given.min
        most = 1.0 if self.unit == "duty" else self.longest_us
        high = most if given.max is None else given.max
        limit = SignalLimit(low, high, given.max_step, given.slew_per_s)
        return SignalSpec(self.number, "channel", self.name, what, self.unit, limit, self.on_limit)

    def fault_of(self, level: SignalLevel) -> str | None:
        """See `SignalChannel.fault_of`."""
        if level == OFF:
            return None
        signal = self.signal
        if (fault := beyond(signal.limit, level, signal.unit)) is not None:
            return fault
        try:
            self.pulses(Wave(level, self.period_us))
        except LimitViolated as error:
            return error.message.partition(": ")[2]
        return None

    @property
    def longest_us(self) -> float:
        """Return the longest period that callers may choose."""
        return self.period_us if self.max_period_us is None else self.max_period_us

    @property
    def shortest_us(self) -> float:
        """Return the shortest period that callers may choose."""
        return self.period_us if self.min_period_us is None else self.min_period_us

    def check_period(self, period_us: float) -> None:
        """Refuse a period that the profile does not permit. Raises LimitViolated."""
        if self.shortest_us <= period_us <= self.longest_us:
            return
        limit = "min_period_us" if period_us < self.shortest_us else "max_period_us"
        bound = self.shortest_us if period_us < self.shortest_us else self.longest_us
        why = f"a period of {period_us:g} us is beyond {limit} = {bound:g}"
        if self.shortest_us == self.longest_us:
            limit, why = "period_us", f"its period is always {bound:g} us; leave period_us out"
        data = {"channel": self.name, "limit": limit, "allowed": bound, "unit": "us", "effect": "none"}
        text = f"Limit violated: pwm channel {self.name}: {why}; nothing was driven"
        raise LimitViolated(text, data=data)

    def pulse_us(self, value: float, period_us: float) -> float:
        """Return the pulse of a value. Raises LimitViolated for one that is longer than the period."""
        if self.servo is not None:
            return self.servo.pulse_us(value)
        pulse_us = value * period_us if self.unit == "duty" else value
        if not 0 <= pulse_us <= period_us:
            why = f"a pulse of {pulse_us:g} us does not fit into a period of {period_us:g} us"
            data = {"channel": self.name, "limit": "period_us", "allowed": period_us, "unit": "us", "effect": "none"}
            text = f"Limit violated: pwm channel {self.name}: {why}; nothing was driven"
            raise LimitViolated(text, data=data)
        return pulse_us

    def pulses(self, wave: Wave) -> Pulses:
        """Return what the chip gives out for a value and a period. Raises LimitViolated."""
        period_ns = round(wave.period_us * 1000)
        if wave.value == OFF:
            return Pulses(0, period_ns, enabled=self.polarity == "inversed")
        return Pulses(min(round(self.pulse_us(wave.value, wave.period_us) * 1000), period_ns), period_ns)

    def wave(self, pulses: Pulses) -> Wave:
        """Return the value and the period of what the chip gives out; a chip that was never set has the profile's."""
        period_us = pulses.period_ns / 1000 or self.period_us
        pulse_us = pulses.length_ns / 1000
        by_length = self.servo is not None or self.polarity == "inversed"
        if not pulses.enabled or (by_length and not pulse_us):
            return Wave(OFF, period_us)
        if self.servo is not None:
            return Wave(round(self.servo.angle(pulse_us), 6), period_us)
        return Wave(pulse_us / period_us if self.unit == "duty" else pulse_us, period_us)

    def given(self, pulses: Pulses) -> Pulses:
        """Return what the load gets: full power from an inversed channel that is not enabled, but a servo no pulse."""
        if pulses.enabled or self.polarity == "normal" or self.servo is not None:
            return pulses
        period_ns = pulses.period_ns or round(self.period_us * 1000)
        return Pulses(period_ns, period_ns)

    def to_json(self) -> dict[str, Any]:
        """Return the channel for hw.pwm.list."""
        entry: dict[str, Any] = {"channel": self.name, "number": self.number, **self.signal.to_json()}
        entry |= {"period_us": self.period_us, "safe": self.safe, "hold": self.hold}
        optional = {
            "min_period_us": self.min_period_us,
            "max_period_us": self.max_period_us,
            "polarity": None if self.polarity == "normal" else self.polarity,
            "servo": None if self.servo is None else asdict(self.servo, filter=lambda _, value: value is not None),
            "reserved": self.reserved,
            "note": self.note,
        }
        return entry | {key: value for key, value in optional.items() if value is not None}


class PwmChip(SignalChip[ChannelSpec]):
    """One PWM chip: the operations of all drivers of one."""

    kind = "pwm chip"

    def __init__(self, label: str, channels: Iterable[ChannelSpec]) -> None:
        super().__init__(label, channels)
        self._waves: dict[int, Wave] = {}

    @abstractmethod
    def read(self, spec: ChannelSpec) -> Pulses:
        """Return what a channel gives out, with pulses of the profile's polarity. Raises DeviceError, ResourceBusy."""

    @abstractmethod
    def write(self, spec: ChannelSpec, pulses: Pulses) -> None:
        """Make a channel give out these pulses. Raises DeviceError, ResourceBusy."""

    def get(self, channel: int) -> Pulses:
        """Return what the load of a channel gets, by what the kernel knows. Raises DeviceError, ResourceBusy."""
        spec = self.spec(channel)
        return spec.given(self.read(spec))

    def value(self, channel: int) -> SignalLevel:
        """Return the value of what a channel gives out, in its unit. Raises what `get` raises."""
        pulses = self.get(channel)
        return self.specs[channel].wave(pulses).value

    def set(self, channel: int, value: SignalLevel, period_us: float | None = None) -> Wave:
        """Bring a channel to a value, with its profile's period if none is given; return what it was before.

        Raises LimitViolated, DeviceError, ResourceBusy.
        """
        spec = self.spec(channel)
        if period_us is None:
            period_us = spec.period_us
        else:
            spec.check_period(period_us)
        wave = Wave(value, period_us)
        pulses = spec.pulses(wave)
        # A channel that nothing had enabled was off: to go back to it must not give the load full power.
        former = self._waves.pop(channel, None) or spec.wave(self.read(spec))
        self.write(spec, pulses)
        self._waves[channel] = wave
        return former

    def forget_waves(self) -> None:
        """Drop what is remembered of the channels, because the chip was opened or closed."""
        self._waves.clear()
