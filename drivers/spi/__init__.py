"""SPI: devices that exchange bytes, and their registers."""

from __future__ import annotations

from typing import Final

from hearth.drivers.kind import BusKind, late

KIND: Final = BusKind(name="spi", key="name", discover="spi", outputs=late("spi.outputs:SpiOutputs", 1))
