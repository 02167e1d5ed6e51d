"""The limits of the registers on one Modbus line: `limits.RegisterLimits` with the addresses of Modbus.

It owns the way from the values of a request to the numbers of declared registers and back. The comparison with `min`,
`max`, `max_step` and `slew_per_s` is that of I2C registers. An output is a register's unit, table and address.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from hearth.actors.bus.limits import RegisterLimits, bounded
from hearth.drivers.modbus.driver import device_of
from hearth.errors import LimitViolated

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from hearth.drivers.modbus.codec import ModbusTable
    from hearth.drivers.modbus.driver import ModbusRegister
    from hearth.drivers.modbus.spec import ModbusSpec
    from hearth.tools import Drive


class ModbusLimits(RegisterLimits):
    """The limits of the devices on one line."""

    def __init__(self, spec: ModbusSpec) -> None:
        super().__init__(0, ())
        self._line = spec.line
        self._units = {device.unit: device for device in spec.devices}
        self._registers = {
            (device.unit, register.table, register.reg): bounded(register)
            for device in spec.devices
            for register in device.registers
        }

    @property
    def safe(self) -> dict[Hashable, float]:
        """Return the number of each register that has a safe value."""
        found: dict[Hashable, float] = {}
        for output, register in self._registers.items():
            spec = cast("ModbusRegister", register.spec)
            if spec.safe is not None:
                found[output] = spec.number(spec.encode(spec.safe))
        return found

    def numbers(
        self, unit: int, table: ModbusTable, reg: int, values: Sequence[int], *, write: bool = False
    ) -> Iterator[tuple[Hashable, float]]:
        """Yield the declared registers of a request with their numbers. Raises the errors of `ModbusDevice.covered`."""
        for register in self._covered(unit, table, reg, len(values), write=write):
            at = register.reg - reg
            yield (unit, table, register.reg), register.number(values[at : at + register.size])

    def _covered(self, unit: int, table: ModbusTable, reg: int, count: int, *, write: bool) -> list[ModbusRegister]:
        return device_of(self._units, self._line, unit).covered(table, reg, count, write=write)

    def replaced(self, reg: int, values: Sequence[int], numbers: Sequence[tuple[Hashable, float]]) -> tuple[int, ...]:
        """Return the values of a request with other numbers in its registers."""
        changed = list(values)
        for output, number in numbers:
            register = cast("ModbusRegister", self._registers[output].spec)
            at = register.reg - reg
            changed[at : at + register.size] = register.values(number)
        return tuple(changed)

    def clamped(self, output: Hashable, asked: float, written: float) -> dict[str, Any]:
        """Return what was asked of a register that was clamped, and what is written instead, in its unit."""
        unit, _, _ = cast("tuple[int, ModbusTable, int]", output)
        spec = cast("ModbusRegister", self._registers[output].spec)
        values = {what: spec.shown(spec.values(number)) for what, number in (("asked", asked), ("written", written))}
        return {"device": self._units[unit].name, "register": spec.reg, "name": spec.name, **values}

    def check(self, output: Hashable, level: Any, now: float) -> Any:
        """Return the number to write. Raises LimitViolated, also for what is no number."""
        if not isfinite(level):
            raise self._refused(output, f"{level} is no number")
        return super().check(output, level, now)

    def foresee(self, drive: Drive) -> None:
        """Refuse values beyond `min` and `max`. Raises LimitViolated."""
        unit, table, reg = cast("tuple[int, ModbusTable, int]", drive.output)
        for output, number in self.numbers(unit, table, reg, drive.level, write=True):
            self.foresee_write(output, number)

    def _refused(self, output: Any, why: str, **data: Any) -> LimitViolated:
        unit, table, reg = output
        device, name = self._units[unit].name, self._registers[output].spec.name
        text = f"modbus device {device}, {name} ({table} {reg})"
        place = {"bus": f"modbus:{self._line}", "device": device, "table": table, "register": reg, "name": name}
        data = {**place, "reason": why, **data, "effect": "none"}
        return LimitViolated(f"Limit violated: {text}: {why}; nothing was written", data=data)
