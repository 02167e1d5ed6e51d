"""CAN: buses with frames, and the messages of a DBC file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.drivers.kind import BusKind, late

if TYPE_CHECKING:
    from hearth.drivers.can.spec import CanSpec
    from hearth.drivers.kind import Outputs


def _outputs(spec: CanSpec, driver: Any) -> Outputs:
    from hearth.drivers.can.outputs import CanOutputs
    from hearth.drivers.can.spec import can_database

    return CanOutputs(can_database(spec) if driver is None else driver.rules)


KIND: Final = BusKind(
    name="can",
    key="bus",
    discover="can",
    open=late("can.spec:can_driver"),
    beside=lambda spec, folder: spec.beside(folder),
    files=lambda spec: spec.files(),
    outputs=_outputs,
)
