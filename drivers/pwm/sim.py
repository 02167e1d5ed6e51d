"""A simulated PWM chip: channels that give out the pulses that they are told, and a record of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hearth.drivers.base import Style
from hearth.drivers.pwm.driver import ChannelSpec, Pulses, PwmChip
from hearth.drivers.simulated_channels import SimChannels

if TYPE_CHECKING:
    from collections.abc import Iterable

_NEVER_SET = Pulses(0, 0, enabled=False)


class PwmWrite(NamedTuple):
    """One write to a channel."""

    channel: int
    pulses: Pulses


class SimPwm(SimChannels[ChannelSpec], PwmChip):
    """A PWM chip without hardware; `pulses` and `high` are its outside too."""

    def __init__(self, label: str, channels: Iterable[ChannelSpec], *, style: Style = Style.INLINE) -> None:
        super().__init__(label, channels, style=style)
        self._pulses: dict[int, Pulses] = {}

    def open(self) -> None:
        """Offer the channels; drive none."""
        super().open()
        self.forget_waves()

    def read(self, spec: ChannelSpec) -> Pulses:
        """See `PwmChip.read`."""
        self._check(spec)
        return self.pulses(spec.number)

    def write(self, spec: ChannelSpec, pulses: Pulses) -> None:
        """See `PwmChip.write`."""
        self._check(spec)
        self._pulses[spec.number] = pulses
        self._changed(PwmWrite(spec.number, pulses), pulses)

    def pulses(self, channel: int) -> Pulses:
        """Return what an oscilloscope shows of a channel."""
        return self._pulses.get(channel, _NEVER_SET)

    def high(self, channel: int) -> float:
        """Return the share of the time for which the pin is high. One that is not enabled is low, as of most chips."""
        pulses = self.pulses(channel)
        if not pulses.enabled:
            return 0.0
        share = pulses.length_ns / pulses.period_ns
        return 1 - share if self.specs[channel].polarity == "inversed" else share
