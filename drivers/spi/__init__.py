"""SPI: devices that exchange bytes, and their registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Opening, late

if TYPE_CHECKING:
    from hearth.drivers.base import Driver
    from hearth.drivers.spi.spec import SpiSpec


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


KIND: Final = BusKind(name="spi", key="name", discover="spi", open=_open, outputs=late("spi.outputs:SpiOutputs", 1))
