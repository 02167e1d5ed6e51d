"""Limits of outputs that take a number: bounds, the step from one value to the next, and the change a second.

`BoundedValue` is the arithmetic of one number, in whatever unit its owner counts: `RegisterLimits` counts a register's
own integers, `SignalLimits` the unit of a signal (`hearth.drivers.signals`). `SignalLimits` has the same methods as the
other limits of a bus, which `guard` asks before each effect and tells afterwards; see `limits`.

A value is known from what was last driven or read. `max_step` and `slew_per_s` are counted from there. After "off", and
as long as nothing is known, only the bounds hold. The guard reads a signal whose steps are limited before it is driven
for the first time (`unknown`), so that a value that an earlier run left is not stepped over.

`towards` is for outputs that follow a target: it returns the farthest value on the way that is permitted now, so a
sequence of such values moves as fast as the limits permit, whatever the time between them.
"""

from __future__ import annotations

from math import ceil, inf
from typing import TYPE_CHECKING, Any

from attrs import define, field

from hearth.drivers.signals import OFF
from hearth.errors import LimitViolated

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from hearth.drivers.signals import SignalLevel, SignalSpec
    from hearth.tools import Drive

_ROUNDING = 1e-9
"""The part of a value by which sums in floating point may be off: 0.1 + 0.2 is more than 0.3."""


@define(eq=False)
class BoundedValue:
    """The bounds of one number, and its present value as far as it is known; `slew` is a second."""

    least: float
    most: float
    step: float = inf
    slew: float = inf
    value: float | None = field(default=None, init=False)
    """None: not known, or nothing is given out."""
    since: float = field(default=0.0, init=False)
    """The time of the last change."""

    @property
    def stepped(self) -> bool:
        """True if a value is compared with the one before it."""
        return self.step < inf or self.slew < inf

    def window(self, now: float) -> tuple[float, float]:
        """Return the least and the greatest value that may come next."""
        if self.value is None or not self.stepped:
            return self.least, self.most
        former = self._former
        reach = self.step
        if self.slew < inf:
            reach = min(reach, self.slew * max(0.0, now - self.since))
        return max(self.least, former - reach), min(self.most, former + reach)

    @property
    def _former(self) -> float:
        assert self.value is not None
        # A device may come up beyond the bounds: then the nearest bound counts as its value.
        return min(max(self.value, self.least), self.most)

    def broken(self, level: float, now: float, *, rounding: float = 0.0) -> tuple[str, float | None] | None:
        """Return the name of the limit that forbids a value, and the seconds until it permits it, if it will; or None.

        `rounding` is by how much a step may be exceeded.
        """
        if not self.least <= level <= self.most:
            return ("min" if level < self.least else "max"), None
        low, high = self.window(now)
        if low - rounding <= level <= high + rounding:
            return None
        change = abs(level - self._former)
        if change <= self.step + rounding:
            return "slew_per_s", change / self.slew - (now - self.since)
        return "max_step", None

    def note(self, value: float | None, now: float) -> None:
        """Note the present value, None where it is not known."""
        if self.value != value:
            self.value, self.since = value, now


class SignalLimits:
    """The limits of the signals of one bus."""

    def __init__(self, bus: str, specs: Iterable[SignalSpec]) -> None:
        self._bus = bus
        self._specs = {spec.output: spec for spec in specs}
        self._values = {output: _bounded(spec) for output, spec in self._specs.items()}
        self._unknown: set[Hashable] = set(self._values)

    def unknown(self, output: Hashable) -> bool:
        """Return True if a signal should be read before it is driven, because its steps are limited."""
        return output in self._unknown and self._values[output].stepped

    def check(self, output: Hashable, level: Any, now: float) -> Any:
        """Return the value to drive, which differs from `level` where it is clamped. Raises LimitViolated."""
        signal = self._values.get(output)
        if signal is None or level == OFF:
            return level
        rounding = _ROUNDING * max(1.0, abs(level))
        broken = signal.broken(level, now, rounding=rounding)
        if broken is None:
            return level
        spec = self._specs[output]
        if spec.on_limit == "refuse":
            raise self._beyond(spec, level, *broken)
        low, high = signal.window(now)
        return min(max(level, low), high)

    def bounded(self, output: Hashable, level: SignalLevel) -> SignalLevel:
        """Return a target within `min` and `max`: `level`, or the nearer bound where the profile clamps.

        Raises LimitViolated.
        """
        signal = self._values.get(output)
        if signal is None or level == OFF or signal.least <= level <= signal.most:
            return level
        spec = self._specs[output]
        if spec.on_limit == "refuse":
            raise self._beyond(spec, level, "min" if level < signal.least else "max", None)
        return min(max(level, signal.least), signal.most)

    def towards(self, output: Hashable, target: SignalLevel, now: float) -> SignalLevel:
        """Return the value nearest to a target within the bounds that may be driven now."""
        signal = self._values.get(output)
        if signal is None or target == OFF:
            return target
        low, high = signal.window(now)
        return min(max(target, low), high)

    def note(self, output: Hashable, level: Any, now: float) -> None:
        """Note that a signal is at a value, or off."""
        signal = self._values.get(output)
        if signal is not None:
            self._unknown.discard(output)
            signal.note(None if level == OFF else level, now)

    def failed(self, output: Hashable, level: Any, now: float) -> None:
        """Note that driving a signal has failed: its value is not known any more."""
        del level
        self.note(output, OFF, now)
        if output in self._values:
            self._unknown.add(output)

    def opened(self, now: float, *, driven: bool) -> None:
        """Note that the bus was opened: what its signals did before is not known."""
        del driven  # Opening drives no signal.
        for output in self._values:
            self.failed(output, None, now)

    def foresee(self, drive: Drive) -> None:
        """Refuse a value beyond `min` and `max`. Raises LimitViolated."""
        self.bounded(drive.output, drive.level)

    def clamp_report(self, output: Hashable, asked: SignalLevel, written: SignalLevel) -> dict[str, Any]:
        """Return what was asked of a signal that was clamped, and what is driven instead."""
        spec = self._specs[output]
        return {spec.key: spec.name, "asked": asked, "written": written, "unit": spec.unit}

    def _beyond(self, spec: SignalSpec, level: float, limit: str, wait: float | None) -> LimitViolated:
        bound = getattr(spec.limit, limit)
        wanted = f"{level:g} {spec.unit}".rstrip()
        how = f"{wanted} is beyond"
        if limit in ("max_step", "slew_per_s"):
            how = f"from {self._values[spec.output].value:g} to {wanted} exceeds"
        text = f"{how} {limit} = {bound:g}"
        data = {"bus": self._bus, spec.key: spec.name, "limit": limit, "allowed": bound, "unit": spec.unit}
        if wait is not None:
            data["retry_after_ms"] = max(1, ceil(wait * 1000))
            text += f"; try again in {data['retry_after_ms']} ms"
        return LimitViolated(
            f"Limit violated: {spec.what}: {text}; nothing was driven", data={**data, "effect": "none"}
        )


def _bounded(spec: SignalSpec) -> BoundedValue:
    limit = spec.limit
    return BoundedValue(
        -inf if limit.min is None else limit.min,
        inf if limit.max is None else limit.max,
        inf if limit.max_step is None else limit.max_step,
        inf if limit.slew_per_s is None else limit.slew_per_s,
    )
