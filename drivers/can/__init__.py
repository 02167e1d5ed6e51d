"""CAN: buses with frames, and the messages of a DBC file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.drivers.kind import BusKind, Opening

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.drivers.base import Driver
    from hearth.drivers.board import Board
    from hearth.drivers.can.spec import CanSpec
    from hearth.drivers.kind import Outputs
    from hearth.drivers.linux.survey import OnMachine
    from hearth.fields import Table
    from hearth.tools import Tool


def _read(table: Table) -> CanSpec:
    from hearth.drivers.can.spec import parse_can

    return parse_can(table)


def _open(spec: CanSpec, opening: Opening) -> Driver:
    from hearth.drivers.can.spec import can_driver

    return can_driver(spec, opening.style)


def _tools(board: Board) -> Iterable[Tool]:
    from hearth.drivers.can.tools import can_tools

    return can_tools(board)


def _machine() -> OnMachine:
    from hearth.drivers.can.machine import MACHINE

    return MACHINE


def _outputs(spec: CanSpec, driver: Any) -> Outputs:
    from hearth.drivers.can.outputs import CanOutputs
    from hearth.drivers.can.spec import can_database

    return CanOutputs(can_database(spec) if driver is None else driver.rules)


KIND: Final = BusKind(
    name="can",
    key="bus",
    discover="can",
    read=_read,
    open=_open,
    tools=_tools,
    machine=_machine,
    beside=lambda spec, folder: spec.beside(folder),
    files=lambda spec: spec.files(),
    outputs=_outputs,
)
