"""A driver behind its guard, without a bus: safe states are the guard's doing, on simulators and on the test kernel."""

from types import SimpleNamespace

from hearth.actors.bus.face import guard_of
from hearth.drivers.channel_outputs import ChannelOutputs
from hearth.drivers.gpio.outputs import GpioOutputs
from hearth.drivers.gpio.spec import ChipSpec
from hearth.drivers.uart.outputs import UartOutputs


def of(board, bus):
    """Return the guarded driver of a bus of a board."""
    return guard_of(bus, board.drivers[bus], board.outputs[bus]).face


def lines(driver, specs):
    """Return the guarded driver of a chip with these lines."""
    spec = ChipSpec("bench", "sim", tuple(specs), {})
    return guard_of(spec.bus, driver, GpioOutputs(spec)).face


def channels(driver):
    """Return the guarded driver of a chip with channels."""
    spec = SimpleNamespace(bus="chip:bench", channels=driver.specs.values())
    return guard_of("chip:bench", driver, ChannelOutputs(spec)).face


def port(driver):
    """Return the guarded driver of a serial port."""
    spec = SimpleNamespace(port=driver.port, settings=driver.settings, safe_bytes=None)
    return guard_of(f"uart:{driver.port}", driver, UartOutputs(spec)).face
