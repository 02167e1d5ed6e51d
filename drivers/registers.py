"""Registers: the table of a device that a board profile declares, on whatever bus, and the messages that reach it.

It owns what I2C, SPI and Modbus share: a register with its limits, the messages of one transaction, the registers of
one device, and the reading of a profile's table of them. It knows no bus.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar

from attrs import asdict, field, frozen

from hearth.drivers.signals import ROUNDING, OnLimit, Positive, Quantity
from hearth.fields import ANY_NUMBER, Integer, ListOf

if TYPE_CHECKING:
    from hearth.tables import Table

RegWidth: TypeAlias = Literal[8, 16]


Access: TypeAlias = Literal["r", "w", "rw"]


Valid: TypeAlias = Annotated[tuple[float, ...], ListOf(ANY_NUMBER, least=2, most=2)]
"""The least and the greatest value that is a measurement."""


Increment: TypeAlias = Literal["none", "byte", "register"]
"""The way in which a device moves its register pointer within a write.

"byte": by one for each byte, so a register of 16 bits has two numbers; "register": by one for each register; "none": a
write that is longer than its register is refused.
"""


@frozen
class Register:
    """A register that the board profile declares, `width` bits wide, and the limits of what is written to it.

    A value is the register's number times `scale`, in `unit`; `min`, `max` and `max_step` (from one write to the next)
    are in that unit, `slew_per_s` in that unit a second. With `on_limit` "clamp" the nearest permitted value is written
    instead of one beyond a limit. The numbers of `none`, as they are in the register, and values outside of `valid`
    mean that there is no value. `safe` is the value that it gets when the session that has written it ends, and when
    the daemon is halted; None: it keeps its value.
    """

    reg: int
    width: Literal[8, 16, 24, 32] = 8
    access: Access = "rw"
    min: Quantity | None = None
    max: Quantity | None = None
    max_step: Positive | None = None
    slew_per_s: Positive | None = None
    unit: str | None = None
    name: str | None = None
    signed: bool = False
    order: Literal["big", "little"] = "big"
    scale: Positive = 1
    on_limit: OnLimit = "refuse"
    safe: Quantity | None = None
    none: Annotated[tuple[int, ...], ListOf(Integer(-(1 << 63), (1 << 64) - 1))] = ()
    valid: Valid | None = None

    @property
    def size(self) -> int:
        """Return its width in bytes."""
        return self.width // 8

    @property
    def raw_bounds(self) -> tuple[int, int]:
        """Return the least and the greatest number of it that its width, `min` and `max` permit."""
        low = -(1 << self.width - 1) if self.signed else 0
        high = low + (1 << self.width) - 1
        # A decimal fraction such as 0.3 is no multiple of a scale of 0.1 in floating point.
        least = low if self.min is None else max(low, ceil(self.counted(self.min) - ROUNDING))
        most = high if self.max is None else min(high, floor(self.counted(self.max) + ROUNDING))
        return least, most

    def counted(self, value: float) -> float:
        """Return a value in its unit as its number, not rounded."""
        return value / self.scale

    def valued(self, number: float) -> float:
        """Return its number as a value in its unit."""
        return number * self.scale

    @property
    def counts(self) -> bool:
        """True if its numbers are integers."""
        return True

    @property
    def raw_steps(self) -> tuple[float, float]:
        """Return the greatest step of its number, and its greatest change a second."""
        step = inf if self.max_step is None else self.max_step / self.scale
        if step < inf and self.counts:
            step = floor(step + ROUNDING)
        return step, inf if self.slew_per_s is None else self.slew_per_s / self.scale

    def number_of(self, value: bool | float) -> float:
        """Return the number that a value in its unit is. Raises OverflowError for one that is too large."""
        return round(value / self.scale)

    @property
    def safe_number(self) -> float | None:
        """Return the number that `safe` is, None without one."""
        return None if self.safe is None else self.number_of(self.safe)

    def is_none(self, number: float) -> bool:
        """Return True for a number that means that there is no value; a code of `none` may have either sign."""
        if any(number == code or (self.counts and (number - code) % (1 << self.width) == 0) for code in self.none):
            return True
        return self.valid is not None and not self.valid[0] <= self.valued(number) <= self.valid[1]

    @property
    def stepped(self) -> bool:
        """True if a number is compared with the one before it."""
        return self.max_step is not None or self.slew_per_s is not None

    @property
    def limited(self) -> bool:
        """True if some values may not be written to it."""
        return any(limit is not None for limit in (self.min, self.max, self.max_step, self.slew_per_s))

    def to_json(self) -> dict[str, Any]:
        """Return the register for hw.i2c.list, without what is as usual."""
        shown = asdict(self, filter=lambda attribute, value: value != attribute.default)
        return {"reg": self.reg, "hex": f"{self.reg:#04x}", "width": self.width, "access": self.access, **shown}


T = TypeVar("T")


Outcome: TypeAlias = T | Coroutine[Any, Any, T]
"""The return type of an operation: its value (INLINE, THREAD), or a coroutine that the bus drives to its value."""


@frozen
class Write:
    """Send these bytes."""

    data: bytes = field(converter=bytes)


@frozen
class Read:
    """Receive this many bytes."""

    length: int


Message: TypeAlias = Write | Read


_REG: Final = Integer(0, 0xFFFF)


_Register = TypeVar("_Register", bound=Register)


def parse_register(table: Table, kind: type[_Register]) -> _Register:
    """Read one register, and refuse limits by which nothing could be written to it."""
    number = table.take("reg", _REG)
    values = table.given(kind)
    table.done()
    if not table.ok:
        return kind(0)
    register = kind(number, **values)
    if register.access == "r" and (register.limited or "on_limit" in values):
        table.fault("access", 'a register with access = "r" is never written, so it has no limits')
    elif "on_limit" in values and not register.limited:
        table.fault("on_limit", "the register has no limit; give min, max, max_step or slew_per_s")
    if (fault := _bounds_fault(register)) is not None:
        table.fault(*fault)
        return register
    _check_values(table, register)
    return register


def check_valid(table: Table, valid: Valid | None) -> None:
    """Refuse a range of values that is reversed."""
    if valid is not None and valid[0] > valid[1]:
        table.fault("valid", f"{valid[0]:g} is greater than {valid[1]:g}; exchange them")


def _check_values(table: Table, register: Register) -> None:
    """Refuse a range that is reversed, a safe value that cannot be written, and limits that leave no value."""
    check_valid(table, register.valid)
    least, most = register.raw_bounds
    if register.access == "r" and register.safe is not None:
        table.fault("safe", 'a register with access = "r" is never written, so it has no safe value')
    elif register.safe_number is not None and not least <= register.safe_number <= most:
        has = f"{least * register.scale:g} to {most * register.scale:g}"
        table.fault("safe", f"{register.safe:g} is beyond what may be written, {has}")
    if least > most:
        table.fault("min", f"no value lies between min and max: the register changes in steps of {register.scale:g}")
    elif register.max_step is not None and register.max_step < register.scale:
        table.fault("max_step", f"{register.max_step:g} is less than one step of the register, {register.scale:g}")


def _bounds_fault(register: Register) -> tuple[str, str] | None:
    """Return the key of a bound that its register cannot have, and the reason."""
    if register.min is not None and register.max is not None and register.min > register.max:
        return "min", f"{register.min:g} is greater than max = {register.max:g}; exchange them"
    low, high = (bound * register.scale for bound in Register(0, register.width, signed=register.signed).raw_bounds)
    for key, bound in (("min", register.min), ("max", register.max)):
        if bound is not None and not low <= bound <= high:
            holds = f"a register of {register.width} bits holds {low:g} to {high:g}"
            return key, f"{bound:g} is impossible: {holds} (see width, signed and scale)"
    return None


@frozen
class RegisterMap:
    """The registers of one device, as the limits of its bus see them.

    `addr` tells the devices of one bus apart, `reg_width` is the bits of a register's number, `increment` says which
    register follows in a longer write.
    """

    registers: tuple[Register, ...] = ()
    reg_width: RegWidth | None = None
    increment: Increment = "none"
    addr: int = 0


def check_registers(entry: Table, device: RegisterMap, tables: Sequence[Table]) -> None:
    """Refuse registers whose numbers a write could not tell apart."""
    if device.registers and device.reg_width is None:
        entry.fault("reg_width", "missing; `registers` needs the bits of a register's number, 8 or 16")
    if device.increment != "none" and not device.registers:
        entry.fault("increment", "it is for a device with `registers`; list them, or leave it out")
    taken: dict[int, int] = {}
    for index, (register, table) in enumerate(zip(device.registers, tables, strict=True)):
        if device.reg_width == 8 and register.reg > 0xFF:
            table.fault("reg", f"{register.reg:#06x} has more than 8 bits; give the device reg_width = 16")
        for number in range(register.reg, register.reg + (register.size if device.increment == "byte" else 1)):
            other = taken.setdefault(number, register.reg)
            if other != register.reg:
                table.fault("reg", f'{number:#04x} belongs to register {other:#04x} (increment = "byte")')
                break
        else:
            if register.reg in (earlier.reg for earlier in device.registers[:index]):
                table.fault("reg", f"{register.reg:#04x} is there twice")
