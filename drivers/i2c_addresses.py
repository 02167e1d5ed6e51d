"""Which addresses of an I2C bus hearth may use, and how wide the register numbers of the devices there are.

Owns the rules that a board profile has for one adapter: `scope`, `reserved`, and the declared devices. Every driver
checks them immediately before a transfer, whoever asks for it; tools check them at submit too, so that a refusal comes
before anything moves. It refuses to know whether a device is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from attrs import field, frozen

from hearth.errors import PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Mapping

Scope: TypeAlias = Literal["any", "declared"]
RegWidth: TypeAlias = Literal[8, 16]

LAST_SEVEN_BIT = 0x7F
"""Above it an address has ten bits, also where the caller does not say so."""


@frozen
class Addresses:
    """The rules for one adapter. `declared` maps the address of each declared device to its register width, if known.

    A 10-bit address that is also a 7-bit number names another device on the wire. Not every adapter tells the two
    apart, so such an address is never taken for a declared one, and a reserved number is reserved in both widths.
    """

    declared: Mapping[int, RegWidth | None] = field(factory=dict)
    scope: Scope = "any"
    reserved: frozenset[int] = frozenset()

    def reg_width(self, addr: int, *, ten_bit: bool = False) -> RegWidth | None:
        """The bits of a register number of the device at `addr`, None where the profile does not declare it."""
        return None if ten_bit and addr <= LAST_SEVEN_BIT else self.declared.get(addr)

    def refusal(self, addr: int, *, ten_bit: bool = False) -> str | None:
        """Why `addr` may not be used, with the cure; None if it may."""
        if addr in self.reserved:
            return "the board profile reserves it ([[i2c]] reserved)"
        if self.scope == "declared" and (addr not in self.declared or (ten_bit and addr <= LAST_SEVEN_BIT)):
            cure = "add an [[i2c.device]] with this addr"
            return f'the board profile declares no device there (scope = "declared"); {cure}'
        return None

    def check(self, bus: int, addr: int, *, ten_bit: bool = False) -> None:
        """Refuse an address that may not be used. Raises PermissionDenied with effect "none"."""
        reason = self.refusal(addr, ten_bit=ten_bit)
        if reason is not None:
            raise PermissionDenied(
                f"Permission denied: i2c bus {bus}, address {addr:#04x}: {reason}",
                data={"bus": bus, "addr": addr, "reason": reason, "effect": "none"},
            )


EVERY_ADDRESS = Addresses()
"""The rules of an adapter of which the profile says nothing."""
