"""GPIO: chips with lines that are read, watched and driven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.drivers.kind import BusKind, Opening

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.drivers.base import Driver
    from hearth.drivers.board import Board
    from hearth.drivers.gpio.spec import ChipSpec
    from hearth.drivers.kind import Outputs
    from hearth.drivers.linux.survey import OnMachine
    from hearth.fields import Table
    from hearth.tools import Tool


def _read(table: Table) -> ChipSpec:
    from hearth.drivers.gpio.spec import parse_chip

    return parse_chip(table)


def _open(spec: ChipSpec, opening: Opening) -> Driver:
    from hearth.drivers.base import Style

    if spec.driver == "gpiod":
        from hearth.drivers.gpio.linux import LinuxGpio

        return LinuxGpio(spec.label, spec.lines, path=spec.path, blocking=spec.blocking)
    from hearth.drivers.gpio.sim import SimGpio
    from hearth.drivers.lines import names_of
    from hearth.drivers.simulated import clock_for

    # A chip never waits: in virtual time it is INLINE.
    style = Style.THREAD if opening.style is Style.THREAD else Style.INLINE
    names = {name: offset for name, offset in names_of(spec, lambda _: True).items() if isinstance(name, str)}
    wiring: Any = {"wires": spec.wires, "contacts": spec.contacts, "panel": spec.panel}
    driver = SimGpio(spec.label, spec.lines, names=names, style=style, **wiring)
    if opening.style is Style.ASYNC:
        clock = clock_for(opening.style)
        driver.clock_ns = lambda: round(clock() * 1e9)
    return driver


def _tools(board: Board) -> Iterable[Tool]:
    from hearth.drivers.gpio.tools import gpio_tools

    return gpio_tools(board)


def _machine() -> OnMachine:
    from hearth.drivers.gpio.machine import MACHINE

    return MACHINE


def _outputs(spec: ChipSpec, _driver: object) -> Outputs:
    from hearth.drivers.gpio.outputs import GpioOutputs

    return GpioOutputs(spec)


KIND: Final = BusKind(
    name="gpio",
    key="label",
    scope="lines",
    discover="gpio",
    read=_read,
    open=_open,
    tools=_tools,
    machine=_machine,
    outputs=_outputs,
)
