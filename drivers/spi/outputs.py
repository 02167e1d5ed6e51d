"""The registers of an SPI device as outputs: which of them a transfer writes and reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hearth.drivers.kind import ANY, Call, Outputs, Signal, undeclared
from hearth.drivers.register_writes import RegisterWrites
from hearth.drivers.registers import Write
from hearth.errors import LimitViolated

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from hearth.drivers.kind import Driven, Level
    from hearth.drivers.registers import Message
    from hearth.drivers.spi.driver import Registers
    from hearth.drivers.spi.spec import SpiSpec


class SpiOutputs(Outputs):
    """One device; an output is (0, register). Without declared registers each transfer is an effect on none."""

    plain: ClassVar[frozenset[str]] = frozenset({"describe", "limit_ms", "settings"})

    def __init__(self, spec: SpiSpec) -> None:
        self._bus = spec.bus
        self._name = spec.name
        self._declared: Registers | None = spec.declared
        self._writes: RegisterWrites | None = None
        self.signals: Mapping[Hashable, Signal] = {}
        if spec.declared is not None:
            where = {"bus": spec.bus, "device": spec.name}
            self._writes = RegisterWrites(spec.as_device(), f"spi device {spec.name!r}", where)
            self.signals = {(0, reg): signal for reg, signal in self._writes.signals()}

    def _messages(self, data: bytes) -> list[Message]:
        """Return what a transfer does as messages. Raises LimitViolated for one that begins with no command."""
        assert self._declared is not None, "asked by the caller"
        messages = self._declared.frame.messages(data)
        if messages is None:
            why = "a transfer begins with a command that reads or writes a register"
            text = f"Limit violated: spi device {self._name!r}: {why}; nothing was sent"
            raise LimitViolated(text, data={"bus": self._bus, "reason": why, "effect": "none"})
        return messages

    def driven(self, call: Call) -> Sequence[Driven]:
        """Return the register that a transfer writes; reading one that reading changes is an effect too."""
        if call.op != "transfer":
            raise undeclared(call, self._bus)
        data = call.args[0]
        if self._writes is None or self._declared is None:
            return ((ANY, data),)
        found: list[Driven] = [((0, write.reg), write.raw) for write in self._writes.writes(self._messages(data))]
        return [*found, (ANY, data)] if self._declared.disturbs(data) else found

    def permitted(self, call: Call, levels: Sequence[Level]) -> Call:
        """Return the transfer with other numbers in the registers that it writes; a read goes out as it came."""
        if self._writes is None or self._declared is None:
            return call
        data = call.args[0]
        messages = self._messages(data)
        writes = self._writes.writes(messages)
        first = self._writes.rewritten(messages, writes, levels[: len(writes)])[0]
        assert isinstance(first, Write), "a transfer begins with a command"
        size = self._declared.frame.size
        return call.with_arg(0, data if len(messages) > 1 else data[:size] + first.data[size:])

    def seen(self, call: Call, answer: Any) -> Iterable[Driven]:
        """Return the register that a transfer has read whole."""
        if self._writes is not None and self._declared is not None and call.op == "transfer":
            for reg, number in self._writes.reads(self._messages(call.args[0]), answer[self._declared.frame.header :]):
                yield (0, reg), number

    def read(self, signal: Signal) -> Call | None:
        """Return the transfer that reads a register; None for one that reading changes."""
        register = None if self._declared is None else self._declared.named(signal.place["reg"])
        if self._declared is None or register is None or "r" not in register.access or register.read_effect:
            return None
        return Call("transfer", (self._declared.frame.read(register),))

    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return the transfers that write numbers to registers."""
        declared = self._declared
        assert declared is not None, "a device without registers has no signals"
        calls = []
        for output, level in wanted:
            register = declared.named(self.signals[output].place["reg"])
            assert register is not None, "it is one of the signals"
            calls.append(Call("transfer", (declared.frame.write(register, int(level)),)))
        return calls

    def asked(self, output: Hashable, level: Level) -> Call:
        """Return the transfer that a tool has declared."""
        return Call("transfer", (level,))
