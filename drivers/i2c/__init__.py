"""I2C: adapters, the devices on them, and sensors that one transaction reads."""

from __future__ import annotations

from typing import Final

from hearth.drivers.kind import BusKind, late

KIND: Final = BusKind(
    name="i2c",
    key="bus",
    discover="i2c",
    named={"sensors": late("i2c.spec:parse_sensor")},
    check=late("i2c.spec:check"),
    outputs=late("i2c.outputs:I2cOutputs", 1),
    lean=late("i2c.spec:lean"),
    cautions=late("i2c.spec:cautions"),
    limits="a register: `min`, `max`, `max_step`, `slew_per_s`, `on_limit`",
    safe="a register: `safe`; without it, and after a raw write, the value stays and a halt lists it as left",
)
