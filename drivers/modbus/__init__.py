"""Modbus: lines, serial or over TCP, the devices on them, and their registers."""

from __future__ import annotations

from typing import Final

from hearth.drivers.kind import BusKind, late

KIND: Final = BusKind(
    name="modbus",
    key="line",
    outputs=late("modbus.outputs:ModbusOutputs", 1),
    lean=late("modbus.spec:lean"),
    cautions=late("modbus.spec:cautions"),
    limits="a register: `min`, `max`, `max_step`, `slew_per_s`, `on_limit`",
    safe="a register: `safe`; without it, and after a raw write, the value stays and a halt lists it as left",
)
