"""The registers of the devices on one I2C adapter as outputs: which of them a transaction writes and reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve

from hearth.drivers.i2c.driver import LAST_SEVEN_BIT, selects
from hearth.drivers.kind import ANY, Call, Outputs, Signal, undeclared
from hearth.drivers.register_writes import RegisterWrites
from hearth.drivers.registers import Read, Write

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from hearth.drivers.i2c.spec import I2cSpec
    from hearth.drivers.kind import Driven, Level
    from hearth.drivers.registers import Message


class I2cOutputs(Outputs):
    """The devices of one adapter; an output is address and register of a device that lists its registers.

    A device that does not list them has no outputs: what a write does there is not known.
    """

    plain: ClassVar[frozenset[str]] = frozenset({"addresses", "describe", "limit_ms"})
    reading: ClassVar[frozenset[str]] = frozenset({"scan"})

    def __init__(self, spec: I2cSpec) -> None:
        self._bus = f"i2c:{spec.bus}"
        self._addresses = spec.addresses
        self._devices: dict[int, RegisterWrites] = {}
        self._registers = {(device.addr, one.reg): one for device in spec.devices for one in device.registers}
        self._widths = {device.addr: (device.reg_width or 8) // 8 for device in spec.devices}
        signals: dict[Hashable, Signal] = {}
        for device in spec.devices:
            if device.registers:
                where = {"bus": f"i2c:{spec.bus}", "addr": device.addr}
                what = f"i2c bus {spec.bus}, address {device.addr:#04x}"
                writes = self._devices[device.addr] = RegisterWrites(device.map, what, where)
                for reg, signal in writes.signals():
                    # Two devices may each have a register of this name.
                    signals[device.addr, reg] = evolve(signal, alias=f"{device.addr:#04x}.{signal.name}")
        self.signals: Mapping[Hashable, Signal] = signals

    def _listed(self, call: Call) -> RegisterWrites | None:
        """Return the registers of a call's device; a 7-bit number in ten bits is another device."""
        addr = call.args[0]
        return None if call.kw.get("ten_bit") and addr <= LAST_SEVEN_BIT else self._devices.get(addr)

    def driven(self, call: Call) -> Sequence[Driven]:
        """Return the registers that a transaction writes, each with its number."""
        if call.op != "transfer":
            raise undeclared(call, self._bus)
        addr, messages = call.args[:2]
        device = self._listed(call)
        if device is not None:
            return [((addr, write.reg), write.raw) for write in device.writes(messages)]
        width = self._addresses.reg_width(addr, ten_bit=bool(call.kw.get("ten_bit")))
        # A pointer that moves is no effect.
        reads = selects(messages, width) or all(isinstance(message, Read) for message in messages)
        return () if reads else ((ANY, messages),)

    def permitted(self, call: Call, levels: Sequence[Level]) -> Call:
        """Return the transaction with other numbers in the registers that it writes."""
        device = self._listed(call)
        if device is None:
            return call
        messages: Sequence[Message] = call.args[1]
        return call.with_arg(1, device.rewritten(messages, device.writes(messages), levels))

    def seen(self, call: Call, answer: Any) -> Iterable[Driven]:
        """Return the register that a transaction has read whole."""
        device = self._listed(call) if call.op == "transfer" else None
        if device is not None:
            for reg, number in device.reads(call.args[1], answer):
                yield (call.args[0], reg), number

    def read(self, signal: Signal) -> Call | None:
        """Return the transaction that reads a register."""
        addr, reg = self._place_of(signal)
        register = self._registers[addr, reg]
        if "r" not in register.access:
            return None
        pointer = reg.to_bytes(self._widths[addr], "big")
        return Call("transfer", (addr, [Write(pointer), Read(register.size)]))

    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return the transactions that write numbers to registers."""
        calls = []
        for output, level in wanted:
            addr, reg = self._place_of(self.signals[output])
            register = self._registers[addr, reg]
            number = int(level).to_bytes(register.size, register.order, signed=register.signed)
            calls.append(Call("transfer", (addr, [Write(reg.to_bytes(self._widths[addr], "big") + number)])))
        return calls

    @staticmethod
    def _place_of(signal: Signal) -> tuple[int, int]:
        return signal.place["addr"], signal.place["reg"]

    def asked(self, output: Hashable, level: Level) -> Call:
        """Return the transaction that a tool has declared: an address, and its messages."""
        return Call("transfer", (output, level))
