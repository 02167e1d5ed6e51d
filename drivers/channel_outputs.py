"""The numbered channels of a chip as outputs: which channel a call drives, and the calls that drive channels.

It is the same for every chip whose channels take a number in a unit, or "off"; what the number does is the chip's.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from hearth.drivers.kind import Call, Outputs, Signal, finite, undeclared
from hearth.drivers.signals import OFF

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from hearth.drivers.channels import SignalChipSpec
    from hearth.drivers.kind import Driven, Level
    from hearth.drivers.signals import SignalChannel, SignalLevel


class ChannelOutputs(Outputs):
    """The channels of one chip; an output is a channel's number, with a value in its unit or "off"."""

    plain: ClassVar[frozenset[str]] = frozenset({"describe"})
    reading: ClassVar[frozenset[str]] = frozenset({"get"})
    single: ClassVar[Mapping[str, tuple[int, int]]] = {"set": (0, 1)}
    reads: ClassVar[str] = "value"
    """The operation that reads an output."""
    number: ClassVar[str] = "channel"
    """The member of a report that has an output's number."""

    def __init__(self, spec: SignalChipSpec[Any]) -> None:
        self._bus = spec.bus
        self.signals: Mapping[Hashable, Signal] = {one.number: _signal(spec.bus, one) for one in spec.channels}

    def driven(self, call: Call) -> Sequence[Driven]:
        """Return the channel of a `set`."""
        if call.op == self.reads:
            return ()
        if call.op != "set":
            raise undeclared(call, self._bus)
        return (call.args[:2],)

    def permitted(self, call: Call, levels: Sequence[Level]) -> Call:
        """Return the call with another value; a period stays."""
        return call.with_arg(1, levels[0])

    def seen(self, call: Call, answer: Any) -> Iterable[Driven]:
        """Return the value of a channel that was read."""
        return ((call.args[0], answer),) if call.op == self.reads else ()

    def read(self, signal: Signal) -> Call | None:
        """Return the call that reads a channel."""
        return Call(self.reads, (signal.output,))

    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return the calls that bring channels to values."""
        return [Call("set", (channel, value)) for channel, value in wanted]

    def asked(self, output: Hashable, level: Level) -> Call:
        """Return the `set` that a tool has declared."""
        return Call("set", (output, level))

    def place(self, output: Hashable) -> Mapping[str, Any]:
        """Return the channel."""
        return {self.number: output}


def _signal(bus: str, channel: SignalChannel) -> Signal:
    spec = channel.signal
    limit = spec.limit
    return Signal(
        channel.number,
        channel.name,
        spec.what,
        place={"bus": bus, spec.key: spec.name},
        report={"channel": channel.number, "name": channel.name},
        unit=spec.unit,
        reserved=channel.reserved,
        safe=channel.safe,
        keep=channel.hold == "keep",
        start=channel.start,
        off=channel.off if channel.fault_of(OFF) is None else None,
        least=-inf if limit.min is None else limit.min,
        most=inf if limit.max is None else limit.max,
        step=inf if limit.max_step is None else limit.max_step,
        slew=inf if limit.slew_per_s is None else limit.slew_per_s,
        bounds=limit.to_json(),
        on_limit=spec.on_limit,
        number=partial(_value, channel),
    )


def _value(channel: SignalChannel, value: object) -> SignalLevel:
    level: SignalLevel = OFF if value == OFF else finite(value)
    if (fault := channel.fault_of(level)) is not None:
        raise ValueError(fault)
    return level
