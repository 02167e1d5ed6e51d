"""Lamps: LEDs of the kernel's LED class that a board profile lists, as a kind of hardware."""

from __future__ import annotations

from typing import Final

from hearth.drivers.kind import BusKind, late

KIND: Final = BusKind(name="lamp", package="acme_lamp", key="label", outputs=late("channel_outputs:ChannelOutputs", 1))
