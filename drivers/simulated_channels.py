"""A simulated chip with channels: what its outside has, for chips of every kind.

Channels keep what they give out while the chip is closed, as real ones do. A load that is attached to a channel gets
what it gives out at each change, so a test, or another simulator, sees what a servo, a motor or a valve would.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from hearth.drivers.base import Style
from hearth.drivers.signals import ChannelT, SignalChip
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_KEPT: Final = 4096
"""Writes that the record keeps."""


class SimChannels(SignalChip[ChannelT]):
    """The part of a chip without hardware that knows no values; `log`, `attach` and `fail` are its outside."""

    simulated = True

    def __init__(self, label: str, channels: Iterable[ChannelT], *, style: Style = Style.INLINE) -> None:
        super().__init__(label, channels)
        self.style = style
        self.log: deque[Any] = deque(maxlen=_KEPT)
        """The last writes, oldest first."""
        self._open = False
        self._loads: dict[int, list[Callable[[Any], None]]] = {}
        self._failing = 0

    def open(self) -> None:
        """Offer the channels; drive none."""
        self._open = True

    def close(self) -> None:
        """Stop offering the channels."""
        self._open = False

    def describe(self) -> Mapping[str, Any]:
        """Return the simulator's name."""
        return {
            "kind": self.kind.partition(" ")[0],
            "driver": "sim",
            self.noun: self.label,
            "channels": len(self.specs),
        }

    def attach(self, channel: int, load: Callable[[Any], None]) -> None:
        """Connect a simulated machine to a channel: `load` gets what it gives out at each change from now on."""
        self._loads.setdefault(channel, []).append(load)

    def fail(self, times: int = 1) -> None:
        """Let the next `times` operations fail before they do anything."""
        self._failing = times

    def _changed(self, written: tuple[int, Any], given: Any) -> None:
        """Note a write, and pass what the channel gives out now to its loads."""
        self.log.append(written)
        for load in self._loads.get(written[0], ()):
            load(given)

    def _check(self, spec: ChannelT) -> None:
        data = {"channel": spec.name}
        if not self._open:
            raise DeviceError(f"{self.kind} {self.label}: the {self.noun} is not open", effect="none", data=data)
        if self._failing:
            self._failing -= 1
            text = f"{self.kind} {self.label}: injected fault on channel {spec.name}"
            raise DeviceError(text, effect="none", data={**data, "errno": "EIO"})
