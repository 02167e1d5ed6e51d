"""UART: serial ports that bytes are written to and read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Opening

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.drivers.base import Driver
    from hearth.drivers.board import Board
    from hearth.drivers.kind import Outputs
    from hearth.drivers.linux.survey import OnMachine
    from hearth.drivers.uart.spec import UartSpec
    from hearth.fields import Table
    from hearth.tools import Tool


def _read(table: Table) -> UartSpec:
    from hearth.drivers.uart.spec import parse_port

    return parse_port(table)


def _open(spec: UartSpec, opening: Opening) -> Driver:
    from hearth.drivers.base import Style

    if spec.path is not None:
        from hearth.drivers.serial_port.tty import LinuxUart

        return LinuxUart(spec.port, spec.path, spec.settings)
    from hearth.drivers.serial_port.pty import SimUart

    return SimUart(spec.port, spec.settings, peer=spec.peer, terminal=opening.style is not Style.ASYNC)


def _tools(board: Board) -> Iterable[Tool]:
    from hearth.drivers.uart.tools import uart_tools

    return uart_tools(board)


def _machine() -> OnMachine:
    from hearth.drivers.uart.machine import MACHINE

    return MACHINE


def _outputs(spec: UartSpec, _driver: object) -> Outputs:
    from hearth.drivers.uart.outputs import UartOutputs

    return UartOutputs(spec)


KIND: Final = BusKind(
    name="uart",
    key="port",
    discover="uart",
    read=_read,
    open=_open,
    tools=_tools,
    machine=_machine,
    outputs=_outputs,
)
