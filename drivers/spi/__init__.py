"""SPI: devices that exchange bytes, and their registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Opening

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.drivers.base import Driver
    from hearth.drivers.board import Board
    from hearth.drivers.kind import Outputs
    from hearth.drivers.linux.survey import OnMachine
    from hearth.drivers.spi.spec import SpiSpec
    from hearth.fields import Table
    from hearth.tools import Tool


def _read(table: Table) -> SpiSpec:
    from hearth.drivers.spi.spec import parse_device

    return parse_device(table)


def _open(spec: SpiSpec, opening: Opening) -> Driver:
    from hearth.drivers.base import Style

    if spec.path is not None:
        from hearth.drivers.spi.linux import LinuxSpi

        return LinuxSpi(spec.name, spec.path, spec.settings)
    from hearth.drivers.spi.sim import Loopback, RegisterChip, SimSpi

    chip: Loopback | RegisterChip = Loopback()
    if spec.kind == "registers":
        registers = () if spec.declared is None else spec.declared.registers
        cleared = {one.reg + at for one in registers if one.read_effect for at in range(one.size)}
        chip = RegisterChip(None if spec.declared is None else spec.declared.frame, cleared=cleared)
    return SimSpi(spec.name, chip, spec.settings, style=opening.style or Style.THREAD)


def _tools(board: Board) -> Iterable[Tool]:
    from hearth.drivers.spi.tools import spi_tools

    return spi_tools(board)


def _machine() -> OnMachine:
    from hearth.drivers.spi.machine import MACHINE

    return MACHINE


def _outputs(spec: SpiSpec, _driver: object) -> Outputs:
    from hearth.drivers.spi.outputs import SpiOutputs

    return SpiOutputs(spec)


KIND: Final = BusKind(
    name="spi",
    key="name",
    discover="spi",
    read=_read,
    open=_open,
    tools=_tools,
    machine=_machine,
    outputs=_outputs,
)
