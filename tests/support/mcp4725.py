"""An MCP4725, a converter with one output of 12 bits, on the wires of the emulated MCP2221 under the kernel's driver.

It owns the chip's register and its power-down bits: what a voltmeter would show. The kernel does not know the voltage
of its supply, which is the converter's reference.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.mcp2221 import Mcp2221

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDR = 0x60
SUPPLY = 3.3
STEP = SUPPLY / 4096
"""Volts of one step."""


class Register:
    """The chip as its adapter sees it: two bytes set it, five are read."""

    kind = "mcp4725"

    def __init__(self) -> None:
        self.raw = 0
        self.power_down = 0
        self.acknowledges = True
        self.writes: list[tuple[int, int]] = []
        """Power-down bits and number of each write."""
        self._came: list[int] = []
        self._at = 0

    def start(self, *, reading: bool) -> bool:
        self._came.clear()
        self._at = 0
        return self.acknowledges

    def write(self, byte: int) -> bool:
        self._came.append(byte)
        if len(self._came) == 2:
            high, low = self._came
            self.power_down, self.raw = high >> 4 & 3, (high & 15) << 8 | low
            self.writes.append((self.power_down, self.raw))
        return True

    def read(self) -> int:
        answer = (0xC0 | self.power_down << 1, self.raw >> 4, (self.raw & 15) << 4, 0, 0)
        self._at += 1
        return answer[min(self._at, len(answer)) - 1]

    def stop(self) -> None:
        pass


class Mcp4725:
    """The chip on its adapter; `label` is what a board profile calls it."""

    def __init__(self, adapter: Mcp2221, chip: Register) -> None:
        self.adapter = adapter
        self.chip = chip

    @property
    def label(self) -> str:
        """The name that a profile gives it."""
        return f"mcp4725-i2c-{self.adapter.bus}-60"

    @property
    def at(self) -> Path:
        """The device's directory in /sys."""
        return next(Path(f"/sys/bus/i2c/devices/{self.adapter.bus}-{ADDR:04x}").glob("iio:device*"))

    @property
    def volts(self) -> float:
        """What a voltmeter shows."""
        return 0.0 if self.chip.power_down else self.chip.raw * STEP

    def _tell(self, file: str, text: str) -> None:
        Path(f"/sys/bus/i2c/{file}").write_text(text)

    def bind(self) -> None:
        """Give the device its driver back."""
        self._tell("drivers/mcp4725/bind", f"{self.adapter.bus}-{ADDR:04x}")

    def unbind(self) -> None:
        """Take the driver away from the device."""
        self._tell("drivers/mcp4725/unbind", f"{self.adapter.bus}-{ADDR:04x}")

    def plug_in(self) -> None:
        """Make the kernel's driver find the chip."""
        self._tell(f"devices/i2c-{self.adapter.bus}/new_device", f"mcp4725 {ADDR:#x}")

    def unplug(self) -> None:
        """Take the device away, with the driver."""
        self._tell(f"devices/i2c-{self.adapter.bus}/delete_device", f"{ADDR:#x}")


@contextmanager
def mcp4725() -> Iterator[Mcp4725]:
    """A chip that is plugged in."""
    chip = Register()
    with Mcp2221({ADDR: chip}) as adapter:
        dac = Mcp4725(adapter, chip)
        dac.plug_in()
        try:
            yield dac
        finally:
            # On an adapter that is gone each transfer takes its whole time limit.
            if Path(f"/sys/bus/i2c/devices/{adapter.bus}-{ADDR:04x}").exists():
                dac.unplug()
