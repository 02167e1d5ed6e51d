"""IIO: the sensors that the kernel drives itself, and devices with a buffer for captures."""

from __future__ import annotations

from typing import Final

from hearth.drivers.kind import BusKind, late

KIND: Final = BusKind(
    name="iio",
    key="label",
    scope="i2c",
    discover="sensors",
    patterns=False,
    tools=late("iio.tools:sensor_tools"),
    check=late("iio.spec:check"),
    limits="none: it only reads",
    safe="none: it only reads",
)
