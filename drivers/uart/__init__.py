"""UART: serial ports that bytes are written to and read from."""

from __future__ import annotations

from typing import Final

from hearth.drivers.kind import BusKind, late

KIND: Final = BusKind(
    name="uart",
    key="port",
    discover="uart",
    outputs=late("uart.outputs:UartOutputs", 1),
    limits="no key: bytes are sent as they are",
    safe="a port: bytes in `safe_text` or `safe_hex`; without them nothing is sent, and a halt lists the port as left",
)
