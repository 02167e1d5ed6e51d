"""The registers of the devices on one Modbus line as outputs: which of them a request writes and reads."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from hearth._util.toml import show
from hearth.drivers.kind import ANY, Call, Outputs, Signal, finite, undeclared
from hearth.drivers.modbus.driver import BROADCAST, device_of
from hearth.drivers.register_writes import register_signal
from hearth.errors import PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from hearth.drivers.kind import Driven, Level
    from hearth.drivers.modbus.codec import ModbusTable
    from hearth.drivers.modbus.driver import ModbusDevice, ModbusRegister
    from hearth.drivers.modbus.spec import ModbusSpec


class ModbusOutputs(Outputs):
    """The devices of one line; an output is unit, table and address of a declared register.

    Every device on a serial line obeys a request to unit 0, so it drives the registers of all of them that it reaches.
    """

    plain: ClassVar[frozenset[str]] = frozenset({"describe", "devices", "limit_ms", "line"})

    def __init__(self, spec: ModbusSpec) -> None:
        self._bus = spec.bus
        self._line = spec.line
        self._devices = {device.unit: device for device in spec.devices}
        self._serial = spec.broadcasts
        self._registers: dict[Hashable, ModbusRegister] = {
            (device.unit, one.table, one.reg): one for device in spec.devices for one in device.registers
        }
        self.signals: Mapping[Hashable, Signal] = {
            (device.unit, one.table, one.reg): self._signal(device, one)
            for device in spec.devices
            for one in device.registers
        }

    def _signal(self, device: ModbusDevice, register: ModbusRegister) -> Signal:
        named = {"table": register.table, "register": register.reg, "name": register.name}
        return register_signal(
            register,
            (device.unit, register.table, register.reg),
            name=f"{device.name}.{register.name}",
            what=f"modbus device {device.name}, {register.name} ({register.table} {register.reg})",
            place={"bus": f"modbus:{self._line}", "device": device.name, **named},
            report={"unit": device.unit, "device": device.name, **named},
            device=device.unit,
            shown=register.shown_number,
            number=partial(_number, register),
        )

    def driven(self, call: Call) -> Sequence[Driven]:
        """Return the declared registers that a request writes, with their numbers; `ANY` for addresses beside them.

        Raises the errors of `ModbusDevice.covered`, for each device that the request reaches.
        """
        if call.op == "read":
            unit, table, reg, count = call.args
            device_of(self._devices, self._line, unit).covered(table, reg, count)
            return ()
        if call.op != "write":
            raise undeclared(call, self._bus)
        unit, table, reg, values = call.args
        device_of(self._devices, self._line, unit).covered(table, reg, len(values), write=True)
        found = list(self._written(unit, table, reg, values))
        whole = self._size(found) == len(values)
        if self._serial and unit == BROADCAST:
            others = [list(self._written(other, table, reg, values)) for other in self._devices if other != unit]
            # What the broadcast's own registers name is declared, whichever unit it reaches.
            whole = whole or (bool(others) and all(self._size(one) == len(values) for one in others))
            found += chain.from_iterable(others)
        # The level of the rest is none: a clamp changes the numbers of declared registers only.
        return found if whole else (*found, (ANY, None))

    def _size(self, found: Iterable[Driven]) -> int:
        """Return the number of addresses of declared registers."""
        return sum(self._registers[output].size for output, _ in found)

    def _written(self, unit: int, table: ModbusTable, reg: int, values: Sequence[int]) -> Iterator[Driven]:
        """Yield the declared registers of a device that lie in a request; one of which only a part does is refused."""
        for register in self._devices[unit].registers:
            at = register.reg - reg
            if register.table != table or at + register.size <= 0 or at >= len(values):
                continue
            if at < 0 or at + register.size > len(values):
                device = self._devices[unit].name
                why = f"it is a part of {register.name} of device {device}, which has {register.size} registers"
                data = {"device": device, "table": table, "register": reg, "reason": why, "effect": "none"}
                raise PermissionDenied(f"Permission denied: modbus line {self._line}, {table} {reg}: {why}", data=data)
            yield (unit, table, register.reg), register.number(values[at : at + register.size])

    def permitted(self, call: Call, levels: Sequence[Level]) -> Call:
        """Return the request with other numbers in its registers."""
        reg, changed = call.args[2], list(call.args[3])
        for (output, _), number in zip(self.driven(call), levels, strict=True):
            register = self._registers.get(output)
            if register is not None:
                at = register.reg - reg
                changed[at : at + register.size] = register.values(number)
        return call.with_arg(3, tuple(changed))

    def seen(self, call: Call, answer: Any) -> Iterable[Driven]:
        """Return the registers that a request has read whole."""
        return self._written(call.args[0], call.args[1], call.args[2], answer) if call.op == "read" else ()

    def read(self, signal: Signal) -> Call | None:
        """Return the request that reads a register."""
        register = self._registers[signal.output]
        if "r" not in register.access:
            return None
        return Call("read", (signal.report["unit"], register.table, register.reg, register.size))

    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return the requests that write numbers to registers."""
        calls = []
        for output, number in wanted:
            register, unit = self._registers[output], self.signals[output].report["unit"]
            calls.append(Call("write", (unit, register.table, register.reg, register.values(number))))
        return calls

    def asked(self, output: Hashable, level: Level) -> Call:
        """Return the request that a tool has declared: a place, and the values from there on."""
        assert isinstance(output, tuple), "unit, table and address"
        return Call("write", (*output, level))


def _number(register: ModbusRegister, value: object) -> float:
    if register.type != "bool":
        return register.number_of(finite(value))
    if value is True or value is False:
        return int(value)
    raise ValueError(f"expected true or false, got {show(value)}")
