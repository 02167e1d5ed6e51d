"""The registers of one device, as the messages of a transaction write and read them. Pure: it reaches no device.

I2C and SPI share it: their transfers have the same messages. It refuses what no limit could permit, a write to a
register that the profile does not list or to a part of one, and knows nothing of levels.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.drivers.kind import Signal, finite
from hearth.drivers.registers import Read, Write
from hearth.errors import LimitViolated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.drivers.registers import Message, Register, RegisterMap


@frozen
class RegisterWrite:
    """A register within the messages of a transaction, and the number that is written to it."""

    reg: int
    raw: int
    message: int
    at: int
    """The index of the message, and of the register's first byte in it."""


class RegisterWrites:
    """The registers of one device. `what` is what messages call it, `place` the members that name it in errors."""

    def __init__(self, device: RegisterMap, what: str, place: Mapping[str, Any]) -> None:
        self._device = device
        self._registers = {register.reg: register for register in device.registers}
        self._what = what
        self._place = place

    def signals(self) -> Iterator[tuple[int, Signal]]:
        """Yield each register as a signal, by its number."""
        for register in self._device.registers:
            named = {"name": register.name} if register.name else {}
            place = {**self._place, "reg": register.reg, **named}
            reached = {key: value for key, value in place.items() if key != "bus"}
            yield (
                register.reg,
                register_signal(
                    register,
                    (self._device.addr, register.reg),
                    what=f"{self._what}, register {register.reg:#04x}{f' ({register.name})' if register.name else ''}",
                    place=place,
                    report=reached,
                    device=self._device.addr,
                ),
            )

    def writes(self, messages: Sequence[Message]) -> list[RegisterWrite]:
        """Return the registers that a transaction writes.

        Raises LimitViolated for a write to another register or to a part of one, and for a read of one that is only
        written.
        """
        found: list[RegisterWrite] = []
        for index, message in enumerate(messages):
            if isinstance(message, Write):
                followed = index + 1 < len(messages) and isinstance(messages[index + 1], Read)
                found += self._in_write(index, message.data, read=followed)
        numbers = [write.reg for write in found]
        for reg in numbers:
            # Both would be compared with the value before the transaction, and not with each other.
            if numbers.count(reg) > 1 and self._registers[reg].stepped:
                raise self.refused(reg, "it is written twice in one transaction, and its steps are limited")
        return found

    def _in_write(self, index: int, data: bytes, *, read: bool) -> Iterator[RegisterWrite]:
        at = first = (self._device.reg_width or 8) // 8
        reg = int.from_bytes(data[:at], "big")
        if len(data) < at:
            raise self.refused(reg, f"the number of a register has {at} bytes there")
        register = self._registers.get(reg)
        if len(data) == at and read and register is not None and register.access == "w":
            raise self.refused(reg, 'it is only written (access = "w")')
        while at < len(data):
            if at > first and self._device.increment == "none":
                raise self.refused(reg, 'one write has one register (increment = "none")')
            register = self._writable(reg, len(data) - at)
            raw = int.from_bytes(data[at : at + register.size], register.order, signed=register.signed)
            yield RegisterWrite(reg, raw, index, at)
            at += register.size
            reg += register.size if self._device.increment == "byte" else 1

    def _writable(self, reg: int, rest: int) -> Register:
        """Return a register to which a write of `rest` more bytes goes. Raises LimitViolated."""
        register = self._registers.get(reg)
        if register is None:
            listed = (one.reg for one in self._device.registers if one.access != "r")
            known = ", ".join(f"{one:#04x}" for one in listed) or "none"
            raise self.refused(reg, f"the board profile does not list it; to be written are: {known}")
        if register.access == "r":
            raise self.refused(reg, 'it is only read (access = "r")')
        if rest < register.size:
            raise self.refused(reg, f"it has {register.size} bytes; write it whole")
        return register

    def rewritten(
        self, messages: Sequence[Message], writes: Sequence[RegisterWrite], numbers: Sequence[int]
    ) -> list[Message]:
        """Return the messages with other numbers in the registers that they write."""
        changed = list(messages)
        for write, raw in zip(writes, numbers, strict=True):
            message, register = changed[write.message], self._registers[write.reg]
            assert isinstance(message, Write), "`writes` has found it"
            number = raw.to_bytes(register.size, register.order, signed=register.signed)
            end = write.at + register.size
            changed[write.message] = Write(message.data[: write.at] + number + message.data[end:])
        return changed

    def reads(self, messages: Sequence[Message], answer: bytes) -> Iterator[tuple[int, int]]:
        """Yield the register that a transaction has read whole, and its number."""
        match messages:
            case [Write(data), Read()] if len(data) == (self._device.reg_width or 8) // 8:
                register = self._registers.get(int.from_bytes(data, "big"))
                if register is not None and len(answer) >= register.size:
                    number = int.from_bytes(answer[: register.size], register.order, signed=register.signed)
                    yield register.reg, number

    def refused(self, reg: int, why: str) -> LimitViolated:
        """Return the refusal of a transaction because of a register."""
        register = self._registers.get(reg)
        name = None if register is None else register.name
        named = {"name": name} if name else {}
        text = f"{self._what}, register {reg:#04x}{f' ({name})' if name else ''}: {why}"
        data = {**self._place, "reg": reg, **named, "reason": why, "effect": "none"}
        return LimitViolated(f"Limit violated: {text}; nothing was written", data=data)


def _scaled(register: Register, number: float) -> float:
    return number * register.scale


def _number(register: Register, value: object) -> float:
    return register.number_of(finite(value))


def register_signal(register: Register, output: tuple[Any, ...], **more: Any) -> Signal:
    """Return a register as a signal, whose levels are its own numbers."""
    least, most = register.raw_bounds
    step, slew = register.raw_steps
    bounds = {key: getattr(register, key) for key in ("min", "max", "max_step", "slew_per_s")}
    values: dict[str, Any] = {
        "name": register.name or f"{register.reg:#04x}",
        "unit": register.unit or "",
        "access": register.access,
        "safe": register.safe_number,
        "least": least,
        "most": most,
        "step": step,
        "slew": slew,
        "bounds": {key: value for key, value in bounds.items() if value is not None},
        "on_limit": register.on_limit,
        "grain": 1.0 if register.counts else 0.0,
        "wrote": "written",
        "shown": partial(_scaled, register),
        "number": partial(_number, register),
        "is_none": register.is_none,
    }
    return Signal(output, **{**values, **more})
