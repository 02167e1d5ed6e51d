"""Modbus: the registers that a board profile declares, the permitted accesses, and the interface of a line's driver.

A driver here is one line: the devices on a serial line, or behind one TCP address. A transaction is one request with
its answer, or several of them in a row. This module knows no bytes of the protocol.

A device is used by its declared registers. An access covers whole registers of them without a gap, in one table; other
addresses are refused, except where the device has `raw`. Every driver checks that immediately before a request, for any
caller; tools check it at submit too. The limits of values are the bus's (`hearth.actors.bus.limit`).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence  # noqa: TC003  attrs and callers read the annotations
from decimal import Decimal
from math import isfinite
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from attrs import Factory, field, frozen

from hearth.drivers.modbus.codec import MOST_READ, MOST_WRITTEN, ModbusTable
from hearth.drivers.registers import Register
from hearth.drivers.signals import Quantity  # noqa: TC001  attrs reads the annotations
from hearth.errors import InvalidParams, PermissionDenied
from hearth.fields import Integer

ValueType: TypeAlias = Literal["bool", "u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64", "text"]
_SIZES: Final = {"u32": 2, "s32": 2, "f32": 2, "u64": 4, "s64": 4, "f64": 4}
_FLOATS: Final = {"f32": ">f", "f64": ">d"}
SUNSPEC: Final[dict[str, int]] = {
    "s16": 0x8000, "u16": 0xFFFF, "s32": 1 << 31, "u32": (1 << 32) - 1, "s64": 1 << 63, "u64": (1 << 64) - 1, "text": 0,
}  # fmt: skip
"""The bits that mean "not implemented" in each type of the SunSpec information models; floats have NaN."""
Raw: TypeAlias = Literal["none", "r", "rw"]
"""What may be done with addresses that no register declares: nothing, read them, or write them too."""

LAST_REG = 0xFFFF
BROADCAST = 0
"""The unit that all devices on a serial line obey, and none answers."""


_LARGEST_F32 = (2 - 2**-23) * 2.0**127


def _f32(value: float) -> float:
    """Return the nearest number that a register of type f32 holds. Raises OverflowError for a greater one."""
    number: float = struct.unpack(">f", struct.pack(">f", value))[0]
    return number


def _shortest(number: float) -> float:
    """Return the number with the fewest digits that is this one in 32 bits: 0.1, and not 0.10000000149011612."""
    for digits in range(1, 9):
        near = float(f"{number:.{digits}g}")
        try:
            if _f32(near) == number:
                return near
        except OverflowError:
            continue  # the largest numbers, rounded up
    return float(f"{number:.9g}")


@frozen
class ModbusRegister(Register):
    """A named value of a device: `reg` is its address on the wire, from 0, in its `table`.

    `order` is that of its words, `byte_order` that of the bytes of each word. Its value is its number times `scale`,
    plus `offset`. `length` is the registers of a text. `sensor` is the name under which it is also a sensor of the
    board. `safe` is the value that it gets when the session that has written it ends, and when the daemon is halted;
    None: it keeps its value.
    """

    table: ModbusTable = "holding"
    type: ValueType = "u16"
    byte_order: Literal["big", "little"] = "big"
    offset: Quantity = 0
    length: Annotated[int, Integer(1, 125)] | None = None
    sensor: str | None = None
    note: str | None = None
    safe: bool | float | None = None
    width: Any = field(init=False, default=Factory(lambda register: 16 * register.size, takes_self=True))
    signed: bool = field(init=False, default=Factory(lambda register: register.type[0] == "s", takes_self=True))

    @property
    def size(self) -> int:
        """Return the bits or 16-bit registers that it covers."""
        return _SIZES.get(self.type, 1) if self.length is None else self.length

    @property
    def counts(self) -> bool:
        """True if its numbers are integers."""
        return self.type not in _FLOATS

    @property
    def raw_bounds(self) -> tuple[Any, Any]:
        """Return the least and the greatest number of it that its type, `min` and `max` permit."""
        if self.counts:
            low, high = super().raw_bounds
            return (low, min(high, 1)) if self.type == "bool" else (low, high)
        most: float = _LARGEST_F32 if self.type == "f32" else sys.float_info.max
        bounds = (
            -most if self.min is None else self.counted(self.min),
            most if self.max is None else self.counted(self.max),
        )
        return (_f32(bounds[0]), _f32(bounds[1])) if self.type == "f32" else bounds

    def counted(self, value: float) -> float:
        """Return a value in its unit as its number, not rounded."""
        return float((Decimal(repr(value)) - Decimal(repr(self.offset))) / Decimal(repr(self.scale)))

    def valued(self, number: float) -> float:
        """Return its number as a value in its unit: 0.3 for 3 times 0.1, and all digits of a count of 64 bits."""
        if isinstance(number, int) and self.scale == 1 and self.offset == 0:
            return number
        exact = Decimal(repr(number)) * Decimal(repr(self.scale)) + Decimal(repr(self.offset))
        integral = isinstance(self.scale, int) and isinstance(self.offset, int) and isinstance(number, int)
        return int(exact) if integral else float(exact)

    def number(self, values: Sequence[int]) -> float:
        """Return its number, not scaled, from the values of its addresses."""
        if self.type == "bool":
            return int(any(values))
        data = self._swapped(struct.pack(f">{len(values)}H", *values))
        if self.type in _FLOATS:
            return cast("float", struct.unpack(_FLOATS[self.type], data)[0])
        return int.from_bytes(data, "big", signed=self.signed)

    def _swapped(self, data: bytes) -> bytes:
        """Return bytes in the order of the other side."""
        words = [data[at : at + 2] for at in range(0, len(data), 2)]
        ordered = words if self.order == "big" else words[::-1]
        return b"".join(word if self.byte_order == "big" else word[::-1] for word in ordered)

    def values(self, number: float) -> tuple[int, ...]:
        """Return the values of its addresses for a number that is not scaled. Raises OverflowError."""
        if self.type == "bool":
            return (int(number),)
        if self.type in _FLOATS:
            data = struct.pack(_FLOATS[self.type], number)
        else:
            data = int(number).to_bytes(2 * self.size, "big", signed=self.signed)
        return struct.unpack(f">{self.size}H", self._swapped(data))

    def encode(self, value: bool | float) -> tuple[int, ...]:
        """Return the values of its addresses for a value in its unit. Raises OverflowError and struct.error."""
        if self.scale == 1 and self.offset == 0:
            return self.values(value if self.type in _FLOATS else round(value))
        exact = (Decimal(repr(value)) - Decimal(repr(self.offset))) / Decimal(repr(self.scale))
        return self.values(float(exact) if self.type in _FLOATS else round(exact))

    def shown(self, values: Sequence[int]) -> bool | float | str | None:
        """Return its value for a caller: true or false, a number in its unit, or a text; None where it has none."""
        number = self.number(values)
        return None if self.is_none(number) else self.shown_number(number)

    def is_none(self, number: float) -> bool:
        """Return True if a number means that there is no value."""
        return not isfinite(number) or super().is_none(number)

    def shown_number(self, number: float) -> bool | float | str | None:
        """Return a number as a value for a caller, also one that means that there is none; None if it is not finite."""
        if self.type == "bool":
            return bool(number)
        if not isfinite(number):
            return None
        if self.type != "text":
            return self.valued(_shortest(number) if self.type == "f32" else number)
        text = int(number).to_bytes(2 * self.size, "big").partition(b"\0")[0].decode("utf-8", "replace")
        return "".join(one if one.isprintable() else "\ufffd" for one in text)

    def number_of(self, value: bool | float) -> float:
        """Return the number that a value in its unit is. Raises OverflowError for one that is too large."""
        return self.number(self.encode(value))

    def unlimited(self) -> ModbusRegister:
        """Return the register with the limits of its type alone."""
        return ModbusRegister(self.reg, type=self.type, scale=self.scale, offset=self.offset, length=self.length)

    def to_json(self) -> dict[str, Any]:
        """Return the register for hw.modbus.list, without what is as usual."""
        entry: dict[str, Any] = {"name": self.name, "register": self.reg, "table": self.table, "type": self.type}
        optional = {
            key: getattr(self, key)
            for key in ("unit", "min", "max", "max_step", "slew_per_s", "length", "sensor", "note")
        }
        optional |= {
            "safe": self.safe,
            "scale": self.scale if self.scale != 1 else None,
            "order": self.order if self.size > 1 else None,
            "byte_order": self.byte_order if self.byte_order != "big" else None,
            "offset": self.offset or None,
            "none": list(self.none) or None,
            "valid": None if self.valid is None else list(self.valid),
        }
        return {**entry, "access": self.access, **{key: value for key, value in optional.items() if value is not None}}


@frozen
class ModbusDevice:
    """A device on a line: its number there, its name on the board, and its registers."""

    unit: int
    name: str
    registers: tuple[ModbusRegister, ...] = ()
    raw: Raw = "none"
    note: str | None = None
    write: Literal["single", "multiple"] = "single"
    """With "multiple" one register or coil is written by function 16 or 15 too."""
    unit_reply: Literal["same", "any"] = "same"
    """With "any" its answers may have another unit."""
    codes: Literal["sunspec"] | None = None
    """Numbers that mean "no value" in its registers without `none`, by their types."""
    leaned_on: tuple[str, ...] = ()
    """What goes by its readings, of a broadcast those of all devices: undeclared addresses are only read."""

    def register(self, name: str) -> ModbusRegister | None:
        """Return the register of a name; None if there is none."""
        return next((register for register in self.registers if register.name == name), None)

    def sensors(self) -> list[str]:
        """Return the names of the registers that are sensors of the board."""
        return [register.sensor for register in self.registers if register.sensor is not None]

    def covered(self, table: ModbusTable, reg: int, count: int, *, write: bool = False) -> list[ModbusRegister]:
        """Return the declared registers among these addresses, in order.

        Raises InvalidParams for what one request cannot do; PermissionDenied, with effect "none", where an address is
        not declared or a register is not whole, and for an access that the profile does not give.
        """
        most = (MOST_WRITTEN if write else MOST_READ).get(table, 0)
        if not (1 <= count <= most and 0 <= reg <= LAST_REG + 1 - count):
            reason = f"one request has 1 to {most} of table {table!r}" if most else f"table {table!r} is only read"
            raise InvalidParams(f"modbus device {self.name}: {reason}", data={"device": self.name, "reason": reason})
        of_table = [register for register in self.registers if register.table == table]
        inside = {at: one for one in of_table for at in range(one.reg, one.reg + one.size)}
        found: list[ModbusRegister] = []
        at = reg
        while at < reg + count:
            register = inside.get(at)
            if register is None:
                why = self._undeclared(write)
            elif register.reg != at or at + register.size > reg + count:
                why = f"it is a part of {register.name}, which has {register.size} registers; use it whole"
            else:
                why = _denied(register, write)
                found.append(register)
            if why is not None:
                raise self._refused(table, at, why)
            at += 1 if register is None else register.size
        return found

    def _undeclared(self, write: bool) -> str | None:
        """Return why an address that no register declares may not be read or written, None if it may."""
        if self.raw != "rw" and (write or self.raw == "none"):
            return "the board profile does not declare it"
        return f"{self.leaned_on[0]}, so only declared registers are written" if write and self.leaned_on else None

    def _refused(self, table: ModbusTable, reg: int, why: str) -> PermissionDenied:
        known = ", ".join(str(register.name) for register in self.registers) or "none"
        data = {"device": self.name, "table": table, "register": reg, "reason": why, "effect": "none"}
        return PermissionDenied(
            f"Permission denied: modbus device {self.name}, {table} {reg}: {why}; its registers are: {known}", data=data
        )


def _denied(register: ModbusRegister, write: bool) -> str | None:
    if ("w" if write else "r") in register.access:
        return None
    return f'{register.name} is only {"read" if write else "written"} (access = "{register.access}")'


def device_of(devices: dict[int, ModbusDevice], line: str, unit: int) -> ModbusDevice:
    """Return a declared device. Raises PermissionDenied, with effect "none"."""
    device = devices.get(unit)
    if device is None:
        reason = "the board profile declares no such device; add a [[modbus.device]]"
        raise PermissionDenied(
            f"Permission denied: modbus line {line}, unit {unit}: {reason}",
            data={"line": line, "unit": unit, "reason": reason, "effect": "none"},
        )
    return device
