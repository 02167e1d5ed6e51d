"""Analog outputs: the vocabulary of an output that takes a number in a unit, with bounds, steps and slew.

A signal is one output of a bus: the duty of a PWM channel, the angle of a servo, and alike for outputs of other kinds
that take a number. This module owns what a board profile says about one. `hearth.actors.bus.signals` holds drivers to
it; it does not know what the number does to the hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from attrs import asdict, frozen

from hearth.fields import ANY_NUMBER, Number

if TYPE_CHECKING:
    from collections.abc import Hashable

OnLimit: TypeAlias = Literal["refuse", "clamp"]
Quantity: TypeAlias = Annotated[float, ANY_NUMBER]
Positive: TypeAlias = Annotated[float, Number(gt=0)]

ROUNDING: Final = 1e-6
"""In steps of a number, added before a limit is rounded to them: in floating point 0.3 is less than 3 times 0.1."""

OFF: Final = "off"
SignalLevel: TypeAlias = float | Literal["off"]
"""The value of an output in its unit, or "off": it gives out nothing."""


@frozen
class SignalLimit:
    """The limits of a signal, in its unit; None: no limit.

    `min` and `max` bound its value, `max_step` the change from one value to the next, `slew_per_s` the change a second,
    counted from the last change. From "off" to any value is no step, and no limit forbids "off".
    """

    min: Quantity | None = None
    max: Quantity | None = None
    max_step: Positive | None = None
    slew_per_s: Positive | None = None

    @property
    def stepped(self) -> bool:
        """True if a value is compared with the one before it."""
        return self.max_step is not None or self.slew_per_s is not None

    def to_json(self) -> dict[str, float]:
        """Return the limits that there are."""
        return asdict(self, filter=lambda _attribute, value: value is not None)


@frozen
class SignalSpec:
    """A signal as its bus knows it.

    `output` is the output on the bus, `key` and `name` are what a refusal's data call it ({"channel": "FAN"}), and
    `what` is what its message calls it ("pwm channel FAN"). With `on_limit` "clamp" the nearest permitted value is
    driven in place of one beyond a limit.
    """

    output: Hashable
    key: str
    name: str
    what: str
    unit: str
    limit: SignalLimit
    on_limit: OnLimit = "refuse"

    def to_json(self) -> dict[str, Any]:
        """Return what callers see of it in a list: unit and limits."""
        shown: dict[str, Any] = {"unit": self.unit, "limit": self.limit.to_json()}
        return shown if self.on_limit == "refuse" else {**shown, "on_limit": self.on_limit}
