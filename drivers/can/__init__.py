"""CAN: buses with frames, and the messages of a DBC file."""

from __future__ import annotations

from typing import Final

from hearth.drivers.kind import BusKind, late

KIND: Final = BusKind(
    name="can",
    key="bus",
    discover="can",
    outputs=late("can.outputs:can_outputs"),
    cautions=late("can.spec:cautions"),
    limits="a signal: `limit` with `min`, `max`, `max_step`, `slew_per_s`; a bus: `scope`",
    safe="a signal: `safe`, and `idle` for the others of its message; without it a halt lists the signal as left",
)
