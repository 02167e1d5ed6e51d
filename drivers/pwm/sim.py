"""A simulated PWM chip: channels that give out the pulses that they are told, and a record of all of them.

Channels keep what they give out while the chip is closed, as real ones do. A load that is attached to a channel gets
its pulses at each change, so a test, or another simulator, sees what a servo or a motor would.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth.drivers.base import Style
from hearth.drivers.pwm.driver import ChannelSpec, Pulses, PwmChip
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_KEPT = 4096
"""Writes that the record keeps."""
_NEVER_SET = Pulses(0, 0, enabled=False)


class PwmWrite(NamedTuple):
    """One write to a channel."""

    channel: int
    pulses: Pulses


class SimPwm(PwmChip):
    """A `PwmDriver` without hardware; `pulses`, `high`, `log`, `attach` and `fail` are its outside."""

    simulated = True

    def __init__(self, label: str, channels: Iterable[ChannelSpec], *, style: Style = Style.INLINE) -> None:
        super().__init__(label, channels)
        self.style = style
        self.log: deque[PwmWrite] = deque(maxlen=_KEPT)
        """The last writes, oldest first."""
        self._open = False
        self._pulses: dict[int, Pulses] = {}
        self._loads: dict[int, list[Callable[[Pulses], None]]] = {}
        self._failing = 0

    def open(self) -> None:
        """Offer the channels; drive none."""
        self._open = True
        self.forget_waves()

    def close(self) -> None:
        """Stop offering the channels."""
        self._open = False

    def describe(self) -> Mapping[str, Any]:
        """Return the simulator's name."""
        return {"kind": "pwm", "driver": "sim", "chip": self.label, "channels": len(self.specs)}

    def read(self, spec: ChannelSpec) -> Pulses:
        """See `PwmChip.read`."""
        self._check(spec)
        return self.pulses(spec.number)

    def write(self, spec: ChannelSpec, pulses: Pulses) -> None:
        """See `PwmChip.write`."""
        self._check(spec)
        self._pulses[spec.number] = pulses
        self.log.append(PwmWrite(spec.number, pulses))
        for load in self._loads.get(spec.number, ()):
            load(pulses)

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

    def attach(self, channel: int, load: Callable[[Pulses], None]) -> None:
        """Connect a simulated machine to a channel: `load` gets its pulses at each change from now on."""
        self._loads.setdefault(channel, []).append(load)

    def fail(self, times: int = 1) -> None:
        """Let the next `times` operations fail before they do anything."""
        self._failing = times

    def _check(self, spec: ChannelSpec) -> None:
        data = {"channel": spec.name}
        if not self._open:
            raise DeviceError(f"pwm chip {self.label}: the chip is not open", effect="none", data=data)
        if self._failing:
            self._failing -= 1
            text = f"pwm chip {self.label}: injected fault on channel {spec.name}"
            raise DeviceError(text, effect="none", data={**data, "errno": "EIO"})
