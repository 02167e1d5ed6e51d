"""Analog outputs: the vocabulary of an output that takes a number in a unit, with bounds, steps and slew.

A signal is one output of a bus: the duty of a PWM channel, the angle of a servo, the voltage of a DAC's channel. This
module owns what a board profile says about one, and what the drivers of all such chips share.
The bus's guard holds drivers to it; it does not know what the number does to the hardware.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, NoReturn, TypeAlias, TypeVar

from attrs import asdict, frozen

from hearth.drivers.base import BaseDriver
from hearth.errors import DeviceError
from hearth.fields import ANY_NUMBER, Number

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

Hold: TypeAlias = Literal["release", "keep"]
OnLimit: TypeAlias = Literal["refuse", "clamp"]
Off: TypeAlias = Literal["refuse", "zero", "hold"]
"""What "off" counts as for the next step of an output: nothing but a halt may switch it off; 0; its last level."""
Quantity: TypeAlias = Annotated[float, ANY_NUMBER]
Positive: TypeAlias = Annotated[float, Number(gt=0)]

STEP_S: Final = 0.1
"""A signal with a `slew` moves at most as far in one step as it may in this time."""
ROUNDING: Final = 1e-6
"""In steps of a number, added before a limit is rounded to them: in floating point 0.3 is less than 3 times 0.1."""

OFF: Final = "off"
SignalLevel: TypeAlias = float | Literal["off"]
"""The value of an output in its unit, or "off": it gives out nothing."""
Level: TypeAlias = Literal[0, 1]
LineState: TypeAlias = Literal[0, 1, "input"]
"""The state that hearth gives a line: driven low, driven high, or input (high impedance)."""


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


def beyond(limit: SignalLimit, level: float, unit: str) -> str | None:
    """Return why a level is not within the bounds of a limit that has both, or None."""
    assert limit.min is not None, "every channel has both bounds"
    assert limit.max is not None, "every channel has both bounds"
    if limit.min <= level <= limit.max:
        return None
    has = f"its limits are {limit.min:g} to {limit.max:g} {unit}"
    return f'{level:g} is beyond the channel\'s limits: {has}; give one within them, or "off"'


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


class SignalChannel(ABC):
    """A channel of a chip in a board's profile: what is the same for chips of every kind."""

    number: int
    """Its number on the chip."""
    name: str
    """Its name, which no other channel of the board has."""
    safe: SignalLevel
    """Its safe state."""
    hold: Hold
    """If it is left as it is when the session that drove it ends."""
    reserved: str | None
    """The reason why it may not be used, or None."""
    start: Quantity | None
    """The value that it has when nothing is known of it; None: the profile does not say."""
    off: Off
    """What "off" counts as for its next step."""

    @property
    @abstractmethod
    def signal(self) -> SignalSpec:
        """Return it as a signal of its bus."""

    @abstractmethod
    def fault_of(self, level: SignalLevel) -> str | None:
        """Return why the profile may not name a level as the channel's safe state or in a stop sequence, or None."""


ChannelT = TypeVar("ChannelT", bound=SignalChannel)


class SignalChip(BaseDriver, ABC, Generic[ChannelT]):
    """The parts that the drivers of all chips with signals share. `kind` is what messages call it, `noun` its sort."""

    kind = noun = "chip"

    def __init__(self, label: str, channels: Iterable[ChannelT]) -> None:
        self.label = label
        self.specs: Mapping[int, ChannelT] = {spec.number: spec for spec in channels}

    def spec(self, channel: int) -> ChannelT:
        """Return what the profile says about a channel. Raises DeviceError for one that it does not list."""
        return self.specs.get(channel) or self._unknown(channel)

    def _unknown(self, channel: int) -> NoReturn:
        raise DeviceError(
            f"{self.kind} {self.label}: no channel {channel!r}; the board lists "
            f"{', '.join(map(str, sorted(self.specs))) or 'none'}",
            effect="none",
            data={"channel": channel, "errno": "EINVAL"},
        )
