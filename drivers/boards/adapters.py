"""An I2C adapter as a board profile describes it, and the devices that are known to sit on it.

Owns the shape of `[[i2c]]` and its checks; refuses to look at the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from hearth.drivers.i2c import FIRST_ADDR, LAST_ADDR, LAST_TEN_BIT
from hearth.drivers.i2c_addresses import Addresses, RegWidth, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.drivers.boards.strict import Table

I2C_DRIVERS = ("sim", "i2c-dev")
SIM_DEVICES: Mapping[str, RegWidth] = {"tmp102": 8, "24c02": 8}
"""The devices that the simulator has, with the width of their register numbers."""
_SCOPES: tuple[Scope, ...] = ("any", "declared")
_REG_WIDTHS: tuple[RegWidth | None, ...] = (8, 16, None)

FIRST_TEN_BIT = 0x80
"""From here to LAST_TEN_BIT an address has ten bits and cannot be mistaken for one of seven."""


@frozen
class DeviceSpec:
    """What sits at an I2C address: made by the simulator, declared on real boards. 0x80 and above is 10-bit.

    `reg_width` is how many bits a register number has there: a read that begins with such a number cannot write.
    """

    addr: int
    kind: str
    note: str | None = None
    write_cycle_ms: float = 0.0
    reg_width: RegWidth | None = None


@frozen
class I2cSpec:
    """An I2C adapter, by the number in /dev/i2c-N, or by the kernel's name of it, where the number may move.

    `timeout_ms` and `retries` are what the kernel is told about one transfer on it. `scope` and `reserved` say which
    addresses may be used.
    """

    bus: int
    driver: str
    speed_hz: int = 100_000
    devices: tuple[DeviceSpec, ...] = ()
    adapter: str | None = None
    timeout_ms: int = 1000
    retries: int = 0
    scope: Scope = "any"
    reserved: tuple[int, ...] = ()

    @property
    def addresses(self) -> Addresses:
        """The rules for its addresses, as its driver checks them."""
        declared: dict[int, RegWidth | None] = {device.addr: device.reg_width for device in self.devices}
        return Addresses(declared, self.scope, frozenset(self.reserved))


def parse_adapter(table: Table) -> I2cSpec:
    """One `[[i2c]]`. Raises ConfigError with the key path."""
    bus = table.integer("bus", 0, 255)
    driver = table.choice("driver", I2C_DRIVERS)
    speed = table.integer("speed_hz", 1_000, 3_400_000, 100_000)
    if driver == "sim":
        for key in ("adapter", "timeout_ms", "retries"):
            if table.has(key):
                table.refuse(key, 'a simulated adapter has none; it is for driver = "i2c-dev"')
    adapter = table.text("adapter", None)
    timeout = table.integer("timeout_ms", 10, 60_000, 1000)
    retries = table.integer("retries", 0, 10, 0)
    scope: Scope = table.choice("scope", _SCOPES, "any")
    reserved = table.integers("reserved", FIRST_ADDR, LAST_TEN_BIT)
    devices: list[DeviceSpec] = []
    for entry in table.tables("device"):
        addr = parse_addr(entry, ten_bit=driver != "sim")
        if any(addr == other.addr for other in devices):
            entry.refuse("addr", f"{addr:#04x} is taken on this bus")
        if addr in reserved:
            entry.refuse("addr", f"{addr:#04x} is among the adapter's `reserved` addresses; take it out of one of them")
        kind = entry.choice("kind", tuple(SIM_DEVICES)) if driver == "sim" else entry.text("kind")
        note, cycle = entry.text("note", None), entry.number("write_cycle_ms", 0, 1000, 0.0)
        width: RegWidth | None = entry.choice("reg_width", _REG_WIDTHS, None)
        if driver == "sim":
            if width not in (None, SIM_DEVICES[kind]):
                entry.refuse("reg_width", f"the simulated {kind} has {SIM_DEVICES[kind]}, found {width}")
            width = SIM_DEVICES[kind]
        devices.append(DeviceSpec(addr, kind, note, cycle, width))
        entry.done()
    table.done()
    return I2cSpec(bus, driver, speed, tuple(devices), adapter, timeout, retries, scope, reserved)


def parse_addr(table: Table, *, ten_bit: bool = True) -> int:
    """The key `addr`: 0x08 to 0x77, or a 10-bit one beyond them. Raises ConfigError."""
    addr = table.integer("addr", FIRST_ADDR, LAST_TEN_BIT if ten_bit else LAST_ADDR)
    if LAST_ADDR < addr < FIRST_TEN_BIT:
        table.refuse(
            "addr",
            f"{addr:#04x} is reserved by the I2C specification; devices have {FIRST_ADDR:#04x} to {LAST_ADDR:#04x}, "
            f"with 10 bits {FIRST_TEN_BIT:#04x} to {LAST_TEN_BIT:#05x}",
        )
    return addr
