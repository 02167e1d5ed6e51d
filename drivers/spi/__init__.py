"""SPI: devices that exchange bytes, and their registers."""

from __future__ import annotations

from typing import Final

from hearth.drivers.kind import BusKind, late

KIND: Final = BusKind(
    name="spi",
    key="name",
    discover="spi",
    outputs=late("spi.outputs:SpiOutputs", 1),
    limits="a register: `min`, `max`, `max_step`, `slew_per_s`, `on_limit`",
    safe="a register: `safe`; without it, and after a raw transfer, the value stays and a halt lists it as left",
)
