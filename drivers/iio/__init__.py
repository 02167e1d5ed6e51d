"""IIO: the sensors that the kernel drives itself, and devices with a buffer for captures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Opening, Specs
from hearth.fields import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.drivers.base import Driver
    from hearth.drivers.board import Board
    from hearth.drivers.iio.spec import IioSpec
    from hearth.drivers.linux.survey import OnMachine
    from hearth.fields import Table
    from hearth.tools import Tool


def _read(table: Table) -> IioSpec:
    from hearth.drivers.iio.spec import parse_iio

    return parse_iio(table)


def _open(spec: IioSpec, opening: Opening) -> Driver | None:
    from hearth.drivers.iio.spec import iio_driver

    # The kernel's devices are read on the bus of all its sensors.
    return iio_driver(spec, opening.style) if spec.driver == "sim" else None


def _check(top: Table, specs: Specs, discover: Mapping[str, tuple[str, ...]]) -> None:
    for index, spec in enumerate(specs.get("iio", ())):
        if spec.driver == "iio" and "sensors" not in discover:
            reason = "the kernel's sensors are not offered; add sensors = true under [discover]"
            top.faults.append(Fault(f"iio[{index}].driver", reason))


def _tools(board: Board) -> Iterable[Tool]:
    from hearth.drivers.iio.tools import sensor_tools

    return sensor_tools(board)


def _machine() -> OnMachine:
    from hearth.drivers.iio.machine import MACHINE

    return MACHINE


KIND: Final = BusKind(
    name="iio",
    key="label",
    scope="i2c",
    discover="sensors",
    patterns=False,
    read=_read,
    open=_open,
    tools=_tools,
    machine=_machine,
    sensors=lambda specs: [sensor for spec in specs.get("iio", ()) for sensor in spec.sensors()],
    check=_check,
)
