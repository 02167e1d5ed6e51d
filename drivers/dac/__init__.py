"""DAC: converters whose outputs have a value in a unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Opening

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.drivers.base import Driver
    from hearth.drivers.board import Board
    from hearth.drivers.dac.spec import DacSpec
    from hearth.drivers.kind import Outputs
    from hearth.drivers.linux.survey import OnMachine
    from hearth.fields import Table
    from hearth.tools import Tool


def _read(table: Table) -> DacSpec:
    from hearth.drivers.dac.spec import parse_dac

    return parse_dac(table)


def _open(spec: DacSpec, opening: Opening) -> Driver:
    from hearth.drivers.dac.spec import dac_driver

    return dac_driver(spec, opening.style)


def _tools(board: Board) -> Iterable[Tool]:
    from hearth.drivers.dac.tools import dac_tools

    return dac_tools(board)


def _machine() -> OnMachine:
    from hearth.drivers.dac.machine import MACHINE

    return MACHINE


def _outputs(spec: DacSpec, _driver: object) -> Outputs:
    from hearth.drivers.channel_outputs import ChannelOutputs

    return ChannelOutputs(spec)


KIND: Final = BusKind(
    name="dac",
    key="label",
    read=_read,
    open=_open,
    tools=_tools,
    machine=_machine,
    outputs=_outputs,
)
