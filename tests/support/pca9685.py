"""A PCA9685, the servo board with 16 channels, on the kernel's SMBus simulator under the kernel's own driver.

It owns the chip's registers: what they are after power-on, and what a voltmeter or an oscilloscope would show of them.
A chip at an address of i2c-stub has no wire behind it, so the registers are all there is of the hardware.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.gpio_sim import wait_until
from support.i2c_stub import stub_bus

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDR = 0x40
OSCILLATOR_HZ = 25_000_000
STEPS = 4096
_MODE1, _LED0, _PRESCALE = 0x00, 0x06, 0xFE
_FULL = 0x10
"""In the upper byte of a channel's ON or OFF: always on, or always off."""


class Pca9685:
    """The chip; `label` is what a board profile calls it."""

    def __init__(self) -> None:
        from smbus2 import SMBus

        self.bus = stub_bus()
        self.label = f"{self.bus}-{ADDR:04x}"
        self.device = Path(f"/sys/bus/i2c/devices/{self.label}")
        self._adapter = Path(f"/sys/bus/i2c/devices/i2c-{self.bus}")
        self._smbus = SMBus(self.bus)
        self.power_on()

    def power_on(self) -> None:
        """Give the registers their values after power-on: asleep, about 200 Hz, every channel fully off."""
        self._put(_MODE1, 0x11, 0x04)
        self._put(_PRESCALE, 0x1E)
        for channel in range(16):
            self._put(_LED0 + 4 * channel, 0, 0, 0, _FULL)

    def plug_in(self) -> None:
        """Bind the kernel's driver; return when the chip's node is there."""
        (self._adapter / "new_device").write_text(f"pca9685 {ADDR:#x}")
        wait_until("the PCA9685's node", lambda: Path("/dev", self.chip.name).exists())

    def unplug(self) -> None:
        """Take the device away, with the driver."""
        (self._adapter / "delete_device").write_text(f"{ADDR:#x}")

    def unbind(self) -> None:
        """Take the driver away from the device."""
        Path("/sys/bus/i2c/drivers/pca9685-pwm/unbind").write_text(self.label)

    def bind(self) -> None:
        """Give the device its driver back."""
        Path("/sys/bus/i2c/drivers/pca9685-pwm/bind").write_text(self.label)
        wait_until("the PCA9685's node", lambda: Path("/dev", self.chip.name).exists())

    def close(self) -> None:
        """Take everything away."""
        if self.device.exists():
            self.unplug()
        self._smbus.close()

    @property
    def chip(self) -> Path:
        """The chip's directory in /sys."""
        return next((self.device / "pwm").iterdir())

    def _put(self, register: int, *values: int) -> None:
        for offset, value in enumerate(values):
            self._smbus.write_byte_data(ADDR, register + offset, value, force=True)

    def _get(self, register: int) -> int:
        value: int = self._smbus.read_byte_data(ADDR, register, force=True)
        return value

    @property
    def period_us(self) -> float:
        """The period, by the prescaler."""
        return (self._get(_PRESCALE) + 1) * STEPS / OSCILLATOR_HZ * 1e6

    @property
    def step_us(self) -> float:
        """The length of one step."""
        return self.period_us / STEPS

    def steps(self, channel: int) -> tuple[int, int]:
        """Return at which step of the period a channel's pulse begins, and how many it has; (0, 0) is off."""
        low_on, high_on, low_off, high_off = (self._get(_LED0 + 4 * channel + offset) for offset in range(4))
        if high_off & _FULL:
            return 0, 0
        if high_on & _FULL:
            return 0, STEPS
        begin, end = low_on | (high_on & 15) << 8, low_off | (high_off & 15) << 8
        return begin, (end - begin) % STEPS

    def pulse_us(self, channel: int) -> float:
        """Return the length of a channel's pulse."""
        return self.steps(channel)[1] * self.step_us


@contextmanager
def pca9685() -> Iterator[Pca9685]:
    """A chip that is plugged in."""
    chip = Pca9685()
    try:
        chip.plug_in()
        yield chip
    finally:
        chip.close()
