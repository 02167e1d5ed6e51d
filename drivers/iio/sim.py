"""A simulated converter with a buffer: sine waves, sampled at a rate, in real or in virtual time."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

import trio

from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.iio.driver import SLICE_S, Captured
from hearth.drivers.simulated import clock_for
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.iio.driver import CaptureRequest, SimulatedWave

FASTEST_HZ: Final = 100_000


class SimIio(BaseDriver):
    """The simulator of an `[[iio]]` with driver = "sim"; ASYNC in virtual time, else THREAD."""

    simulated = True

    width = 2

    def __init__(
        self, label: str, waves: Sequence[SimulatedWave], rate_hz: float, *, style: Style = Style.THREAD
    ) -> None:
        self.label = label
        self.rate_hz = rate_hz
        self.style = style
        self._waves = {wave.sensor: wave for wave in waves}
        self._clock = clock_for(style)
        self._block = time.sleep

    def describe(self) -> Mapping[str, Any]:
        """Return the simulator's name."""
        return {"kind": "iio", "driver": "sim", "device": self.label, "channels": len(self._waves)}

    async def read(self, name: str) -> float:
        """Return the value of a channel now."""
        return self._waves[name].at(self._clock())

    async def capture(self, names: Sequence[str], request: CaptureRequest) -> Captured:
        """Return samples of the channels, when they would have been taken. Raises DeviceError for a rate it has not."""
        rate = self.rate_hz if request.rate_hz is None else request.rate_hz
        if rate > FASTEST_HZ:
            text = f"iio device {self.label!r}: it cannot sample at {rate:g} Hz; it has up to {FASTEST_HZ} Hz"
            raise DeviceError(text, effect="none", data={"device": self.label, "errno": "EINVAL"})
        begun, epoch_us = self._clock(), time.time_ns() // 1000
        end = begun + min(request.samples / rate, request.timeout_s)
        while (left := end - self._clock()) > 0 and not request.stop():
            if self.style is Style.ASYNC:
                await trio.sleep(min(left, SLICE_S))
            else:
                self._block(min(left, SLICE_S))
        taken = min(request.samples, math.floor((self._clock() - begun) * rate + 1e-6))
        waves = [self._waves[name] for name in names]
        return Captured(
            kernel=self.label,
            units=[wave.unit for wave in waves],
            samples=[[wave.at(begun + (index + 1) / rate) for index in range(taken)] for wave in waves],
            rate_hz=rate,
            timestamps_us=[epoch_us + round((index + 1) / rate * 1e6) for index in range(taken)]
            if request.timestamps
            else None,
            timed_out=taken < request.samples and not request.stop(),
        )
