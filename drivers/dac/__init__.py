"""DAC: converters whose outputs have a value in a unit."""

from __future__ import annotations

from typing import Final

from hearth.drivers.kind import BusKind, late

KIND: Final = BusKind(
    name="dac",
    key="label",
    outputs=late("channel_outputs:ChannelOutputs", 1),
    limits="a channel: `min`, `max`, `slew`, `on_limit`, `off`",
    safe='a channel: `safe` = a value or "off"; it is required',
)
