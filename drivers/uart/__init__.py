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
    safe="bytes: `safe_text` or `safe_hex`; without them a halt lists the port as left. RTS and DTR: as at the opening",
)
