"""The kernel's own SMBus simulator, i2c-stub: which number it has, and kernel drivers bound to its addresses.

Its chips are those of the module's `chip_addr`: 0x40, 0x48 and 0x50 in the guest. Each has 256 registers of 16 bits: a
byte goes to a register's low half, a block to the low halves of as many registers, a word to a whole one. It knows
quick, byte, byte data, word data and I2C block transfers, and no raw I2C.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.sysfs import named

if TYPE_CHECKING:
    from collections.abc import Iterator

ADAPTER = "SMBus stub driver"
"""The kernel's name of the adapter."""

CHIPS = (0x40, 0x48, 0x50)
"""The addresses that answer."""


def stub_bus(timeout: float = 10.0) -> int:
    """The number of the adapter, once its node is in /dev. Raises LookupError: the module is not loaded."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for node, name in named("/sys/class/i2c-dev").items():
            if name == ADAPTER and Path("/dev", node).exists():
                return int(node.removeprefix("i2c-"))
        time.sleep(0.01)
    raise LookupError("there is no i2c-stub adapter: load the module with chip_addr=0x40,0x48,0x50")


@contextmanager
def kernel_driver(bus: int, addr: int, kind: str, *, ten_bit: bool = False) -> Iterator[Path]:
    """Let a kernel driver own an address: `kind` is a device name that one answers to ("lm75", "pca9554").

    Yields the device's directory in sysfs. A device that no driver wants is there too, without a driver: "dummy-x".
    """
    adapter = Path(f"/sys/bus/i2c/devices/i2c-{bus}")
    # The kernel keeps 10-bit addresses apart from 7-bit ones by this offset.
    wire = addr | 0xA000 if ten_bit else addr
    (adapter / "new_device").write_text(f"{kind} {wire:#x}")
    try:
        yield Path(f"/sys/bus/i2c/devices/{bus}-{wire:04x}")
    finally:
        (adapter / "delete_device").write_text(f"{wire:#x}")
