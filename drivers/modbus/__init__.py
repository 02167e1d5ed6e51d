"""Modbus: lines, serial or over TCP, the devices on them, and their registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Caution, late

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.drivers.kind import Specs


def _lean(specs: Specs, users: Mapping[str, str]) -> Specs:
    from hearth.drivers.modbus.spec import lean_on_lines

    return {"modbus": lean_on_lines(specs.get("modbus", ()), users)}


def _cautions(specs: Specs) -> Iterable[Caution]:
    from hearth.drivers.modbus.spec import writable

    return [
        Caution(key, "warn" if key.endswith("registers") else "note", problem, cure)
        for key, problem, cure in writable(specs.get("modbus", ()))
    ]


KIND: Final = BusKind(
    name="modbus",
    key="line",
    open=lambda spec, _opening: spec.make_driver(),
    sensors=lambda specs: [sensor for spec in specs.get("modbus", ()) for sensor in spec.sensors()],
    outputs=late("modbus.outputs:ModbusOutputs", 1),
    lean=_lean,
    cautions=_cautions,
)
