"""A simulated converter: channels that give out what they are told, and a record of all of it.

Channels keep what they give out while the device is closed, as real ones do. A load that is attached to a channel gets
its value at each change, so a test, or another simulator, sees what a valve or a power supply would.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hearth.drivers.base import Style
from hearth.drivers.dac.driver import DacChannelSpec, DacChip, DacStep
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_KEPT: Final = 4096
"""Writes that the record keeps."""
_SCALE: Final = 0.001
"""The value of one step, for a channel whose profile gives none."""
HIGHEST: Final = (1 << 16) - 1
"""The greatest count that the device has; a negative one is as far from 0."""


class DacWrite(NamedTuple):
    """One write to a channel: the `value` is its count, None for off."""

    channel: int
    value: int | None


class SimDac(DacChip):
    """A `DacDriver` without hardware; `level`, `volts`, `log`, `attach` and `fail` are its outside."""

    simulated = True

    def __init__(self, label: str, channels: Iterable[DacChannelSpec], *, style: Style = Style.INLINE) -> None:
        super().__init__(label, channels)
        self.style = style
        self.log: deque[DacWrite] = deque(maxlen=_KEPT)
        """The last writes, oldest first."""
        self.counts: dict[int, int | None] = {}
        """By channel that was ever set: its count."""
        self._open = False
        self._loads: dict[int, list[Callable[[float | None], None]]] = {}
        self._failing = 0

    def open(self) -> None:
        """Offer the channels; drive none. Raises DeviceError for a channel that could never be set."""
        for spec in self.specs.values():
            self.check_step(spec)
        self._open = True

    def close(self) -> None:
        """Stop offering the channels."""
        self._open = False

    def describe(self) -> Mapping[str, Any]:
        """Return the simulator's name."""
        return {"kind": "dac", "driver": "sim", "device": self.label, "channels": len(self.specs)}

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
        self.log.append(DacWrite(spec.number, count))
        for load in self._loads.get(spec.number, ()):
            load(self.level(spec.number))

    def level(self, channel: int) -> float | None:
        """Return the value that a channel gives out, None for one that is off."""
        count = self.counts.get(channel, 0)
        spec = self.specs[channel]
        return None if count is None else spec.level(count, self.step(spec))

    def volts(self, channel: int) -> float:
        """Return what a voltmeter shows, in the channel's unit: one that is off is pulled to ground."""
        return self.level(channel) or 0.0

    def attach(self, channel: int, load: Callable[[float | None], None]) -> None:
        """Connect a simulated machine to a channel: `load` gets its value at each change from now on."""
        self._loads.setdefault(channel, []).append(load)

    def fail(self, times: int = 1) -> None:
        """Let the next `times` operations fail before they do anything."""
        self._failing = times

    def _check(self, spec: DacChannelSpec) -> None:
        data = {"channel": spec.name}
        if not self._open:
            raise DeviceError(f"dac {self.label}: the device is not open", effect="none", data=data)
        if self._failing:
            self._failing -= 1
            text = f"dac {self.label}: injected fault on channel {spec.name}"
            raise DeviceError(text, effect="none", data={**data, "errno": "EIO"})
