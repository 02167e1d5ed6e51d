"""UART: serial ports that bytes are written to and read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Opening, late

if TYPE_CHECKING:
    from hearth.drivers.base import Driver
    from hearth.drivers.uart.spec import UartSpec


def _open(spec: UartSpec, opening: Opening) -> Driver:
    from hearth.drivers.base import Style

    if spec.path is not None:
        from hearth.drivers.serial_port.tty import LinuxUart

        return LinuxUart(spec.port, spec.path, spec.settings)
    from hearth.drivers.serial_port.pty import SimUart

    return SimUart(spec.port, spec.settings, peer=spec.peer, terminal=opening.style is not Style.ASYNC)


KIND: Final = BusKind(name="uart", key="port", discover="uart", open=_open, outputs=late("uart.outputs:UartOutputs", 1))
