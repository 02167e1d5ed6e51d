"""The outputs of a board's buses, by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hearth.drivers.boards.profile import Profile
    from hearth.drivers.kind import Outputs


def outputs_of(bus_id: str, driver: Any, profile: Profile) -> Outputs | None:
    """Return the outputs of a bus; None for one that the profile does not list."""
    from hearth.drivers.can.outputs import CanOutputs
    from hearth.drivers.channel_outputs import ChannelOutputs
    from hearth.drivers.gpio.outputs import GpioOutputs
    from hearth.drivers.i2c.outputs import I2cOutputs
    from hearth.drivers.modbus.outputs import ModbusOutputs
    from hearth.drivers.spi.outputs import SpiOutputs
    from hearth.drivers.uart.outputs import UartOutputs

    specs: dict[str, Any] = {chip.bus: (GpioOutputs, chip) for chip in profile.chips}
    specs |= {f"i2c:{one.bus}": (I2cOutputs, one) for one in profile.i2c}
    specs |= {f"uart:{one.port}": (UartOutputs, one) for one in profile.uarts}
    specs |= {one.bus: (ChannelOutputs, one) for one in profile.signal_chips}
    specs |= {one.bus: (SpiOutputs, one) for one in profile.spi}
    specs |= {one.bus: (ModbusOutputs, one) for one in profile.modbus}
    specs |= {f"can:{one.bus}": (lambda _spec: CanOutputs(driver.rules), one) for one in profile.cans}
    if bus_id not in specs:
        return None
    make, spec = specs[bus_id]
    return make(spec)  # type: ignore[no-any-return]
