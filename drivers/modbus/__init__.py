"""Modbus: lines, serial or over TCP, the devices on them, and their registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Caution

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.drivers.board import Board
    from hearth.drivers.kind import Outputs, Specs
    from hearth.drivers.linux.survey import OnMachine
    from hearth.drivers.modbus.spec import ModbusSpec
    from hearth.fields import Table
    from hearth.tools import Tool


def _read(table: Table) -> ModbusSpec:
    from hearth.drivers.modbus.spec import parse_line

    return parse_line(table)


def _tools(board: Board) -> Iterable[Tool]:
    from hearth.drivers.modbus.tools import modbus_tools

    return modbus_tools(board)


def _machine() -> OnMachine:
    from hearth.drivers.modbus.machine import MACHINE

    return MACHINE


def _lean(specs: Specs, users: Mapping[str, str]) -> Specs:
    from hearth.drivers.modbus.spec import lean_on_lines

    return {"modbus": lean_on_lines(specs.get("modbus", ()), users)}


def _cautions(specs: Specs) -> Iterable[Caution]:
    from hearth.drivers.modbus.spec import writable

    return [
        Caution(key, "warn" if key.endswith("registers") else "note", problem, cure)
        for key, problem, cure in writable(specs.get("modbus", ()))
    ]


def _outputs(spec: ModbusSpec, _driver: object) -> Outputs:
    from hearth.drivers.modbus.outputs import ModbusOutputs

    return ModbusOutputs(spec)


KIND: Final = BusKind(
    name="modbus",
    key="line",
    read=_read,
    open=lambda spec, _opening: spec.make_driver(),
    tools=_tools,
    machine=_machine,
    sensors=lambda specs: [sensor for spec in specs.get("modbus", ()) for sensor in spec.sensors()],
    outputs=_outputs,
    lean=_lean,
    cautions=_cautions,
)
