"""The lines of a GPIO chip as outputs: which line a call drives, and the calls that drive lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hearth._util.toml import show
from hearth.drivers.kind import Call, Signal, Times, undeclared

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from hearth.drivers.gpio.spec import ChipSpec, LineLimit, LineSpec
    from hearth.drivers.kind import Driven, Level


class GpioOutputs:
    """The lines of one chip; an output is a line's offset, with the levels 0, 1 and "input"."""

    plain: ClassVar[frozenset[str]] = frozenset({"describe"})
    reading: ClassVar[frozenset[str]] = frozenset({"get", "watch", "unwatch", "held"})
    single: ClassVar[Mapping[str, tuple[int, int]]] = {"set": (0, 1)}

    def __init__(self, spec: ChipSpec) -> None:
        self._bus = spec.bus
        self.signals: Mapping[Hashable, Signal] = {line.offset: _signal(spec, line) for line in spec.lines}

    def driven(self, call: Call) -> Sequence[Driven]:
        """Return the line of a `set`."""
        if call.op != "set":
            raise undeclared(call, self._bus)
        return (call.args[:2],)

    def permitted(self, call: Call, levels: Sequence[Level]) -> Call:
        """Return the call with another level."""
        return call.with_arg(1, levels[0])

    def seen(self, call: Call, answer: Any) -> Iterable[Driven]:
        """Return the level of a `get`, which a line's limits need not know."""
        return ((call.args[0], answer),) if call.op == "get" else ()

    def read(self, signal: Signal) -> Call | None:
        """Return the call that reads a line."""
        return Call("get", (signal.output,))

    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return the calls that bring lines to levels; one that becomes an input is given back to the kernel."""
        del known
        return [Call("release", (line,)) if level == "input" else Call("set", (line, level)) for line, level in wanted]

    def asked(self, output: Hashable, level: Level) -> Call:
        """Return the `set` that a tool has declared."""
        return Call("set", (output, level))

    def place(self, output: Hashable) -> Mapping[str, Any]:
        """Return the line."""
        return {"line": output}


def _signal(chip: ChipSpec, line: LineSpec) -> Signal:
    named = {"line": line.offset, "name": line.name}
    return Signal(
        line.offset,
        line.name,
        f"gpio line {line.offset} ({line.name}) of chip {chip.label!r}",
        place={"bus": chip.bus, **named},
        report=named,
        access="r" if line.direction == "input" else "rw",
        reserved=line.reserved,
        safe=line.safe,
        keep=line.hold == "keep",
        start=line.initial,
        bounds={} if line.limit is None else line.limit.to_json(),
        times=None if line.limit is None else _times(line.limit),
        number=_state,
    )


def _state(value: object) -> Level:
    if isinstance(value, bool) or value not in (0, 1, "input"):
        raise ValueError(f'expected 0, 1 or "input", got {show(value)}')
    return value


def _times(limit: LineLimit) -> Times:
    given = {
        "min_on": limit.min_on_ms and limit.min_on_ms / 1000,
        "max_on": limit.max_on_ms and limit.max_on_ms / 1000,
        "min_off": limit.min_off_ms and limit.min_off_ms / 1000,
        "period": limit.max_rate_hz and 1 / limit.max_rate_hz,
    }
    return Times(**{name: seconds for name, seconds in given.items() if seconds is not None})
