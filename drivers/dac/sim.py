"""A simulated converter: channels that give out what they are told, and a record of all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hearth.drivers.base import Style
from hearth.drivers.dac.driver import DacChannelSpec, DacChip, DacStep
from hearth.drivers.simulated_channels import SimChannels
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterable

_SCALE: Final = 0.001
"""The value of one step, for a channel whose profile gives none."""
HIGHEST: Final = (1 << 16) - 1
"""The greatest count that the device has; a negative one is as far from 0."""


class DacWrite(NamedTuple):
    """One write to a channel: the `value` is its count, None for off."""

    channel: int
    value: int | None


class SimDac(SimChannels[DacChannelSpec], DacChip):
    """A converter without hardware; `level` and `volts` are its outside too."""

    def __init__(self, label: str, channels: Iterable[DacChannelSpec], *, style: Style = Style.INLINE) -> None:
        super().__init__(label, channels, style=style)
        self.counts: dict[int, int | None] = {}
        """By channel that was ever set: its count."""

    def open(self) -> None:
        """Offer the channels; drive none. Raises DeviceError for a channel that could never be set."""
        for spec in self.specs.values():
            self.check_step(spec)
        super().open()

    def step(self, spec: DacChannelSpec) -> DacStep:
        """See `DacChip.step`."""
        return DacStep(_SCALE if spec.scale is None else spec.scale, spec.offset)

    def read(self, spec: DacChannelSpec) -> int | None:
        """See `DacChip.read`."""
        self._check(spec)
        return self.counts.get(spec.number, 0)

    def write(self, spec: DacChannelSpec, count: int | None) -> None:
        """See `DacChip.write`."""
        self._check(spec)
        if count is not None and abs(count) > HIGHEST:
            text = f"dac {self.label}, channel {spec.name}: it has no step {count}: the last is {HIGHEST}"
            raise DeviceError(text, effect="none", data={"channel": spec.name, "errno": "EINVAL"})
        self.counts[spec.number] = count
        self._changed(DacWrite(spec.number, count), self.level(spec.number))

    def level(self, channel: int) -> float | None:
        """Return the value that a channel gives out, None for one that is off."""
        count = self.counts.get(channel, 0)
        spec = self.specs[channel]
        return None if count is None else spec.level(count, self.step(spec))

    def volts(self, channel: int) -> float:
        """Return what a voltmeter shows, in the channel's unit: one that is off is pulled to ground."""
        return self.level(channel) or 0.0
