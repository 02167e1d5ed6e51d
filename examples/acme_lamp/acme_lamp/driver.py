"""The drivers of lamps: over the kernel's LED class, and a simulated one.

A driver knows no session, no policy and no limit. The bus calls it, one transaction at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from acme_lamp.spec import Lamp
from hearth.drivers.base import Style
from hearth.drivers.signals import SignalChip
from hearth.drivers.simulated_channels import SimChannels
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.errors import Effect


class Leds(SignalChip[Lamp]):
    """Lamps over the LED class of the kernel."""

    kind, noun = "lamp", "cabinet"
    style = Style.THREAD  # a call may block: it runs in a thread of the bus

    def open(self) -> None:
        """Read the highest brightness of each LED; drive none."""
        self._most = {lamp.number: self._read(lamp, "max_brightness") for lamp in self.specs.values()}

    def value(self, channel: int) -> float:
        """Return the brightness of a lamp in percent."""
        return 100 * self._read(self.spec(channel), "brightness") / self._most[channel]

    def set(self, channel: int, percent: float) -> float:
        """Bring a lamp to a brightness, rounded down; return the former one."""
        former, lamp = self.value(channel), self.spec(channel)
        try:
            self._file(lamp, "brightness").write_text(str(int(percent * self._most[channel] / 100 + 1e-6)))
        except OSError as error:
            raise self._failed(lamp, error, "unknown") from error
        return former

    def describe(self) -> Mapping[str, Any]:
        """Return what hw.board lists of this bus."""
        return {"kind": "lamp", "driver": "leds", "cabinet": self.label, "channels": len(self.specs)}

    def _read(self, lamp: Lamp, name: str) -> int:
        try:
            return int(self._file(lamp, name).read_text())
        except OSError as error:
            raise self._failed(lamp, error, "none") from error

    def _file(self, lamp: Lamp, name: str) -> Path:
        return Path(lamp.led, name)

    def _failed(self, lamp: Lamp, error: OSError, effect: Effect) -> DeviceError:
        text = f"lamp {lamp.name}: {error.filename}: {error.strerror}"
        return DeviceError(text, effect=effect, data={"channel": lamp.name})


class SimLamps(SimChannels[Lamp]):
    """Lamps without hardware; `percent` is what a light meter shows."""

    kind, noun = "lamp", "cabinet"

    def __init__(self, label: str, channels: tuple[Lamp, ...]) -> None:
        super().__init__(label, channels)
        self.percent = dict.fromkeys(self.specs, 0.0)

    def value(self, channel: int) -> float:
        """Return the brightness of a lamp in percent."""
        self._check(self.spec(channel))
        return self.percent[channel]

    def set(self, channel: int, percent: float) -> float:
        """Bring a lamp to a brightness; return the former one."""
        former, self.percent[channel] = self.value(channel), percent
        self._changed((channel, percent), percent)
        return former
