"""The lines of a GPIO chip as outputs: which line a call drives, and the calls that drive lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hearth._util.toml import show
from hearth.drivers.channel_outputs import ChannelOutputs
from hearth.drivers.kind import Call, Signal, Times

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from hearth.drivers.gpio.spec import ChipSpec, LineLimit, LineSpec
    from hearth.drivers.kind import Driven, Level


class GpioOutputs(ChannelOutputs):
    """The lines of one chip; an output is a line's offset, with the levels 0, 1 and "input"."""

    reading: ClassVar[frozenset[str]] = frozenset({"get", "watch", "unwatch", "held"})
    reads: ClassVar[str] = "get"
    number: ClassVar[str] = "line"

    def __init__(self, spec: ChipSpec) -> None:
        self._bus = spec.bus
        self.signals: Mapping[Hashable, Signal] = {line.offset: _signal(spec, line) for line in spec.lines}

    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return the calls that bring lines to levels; one that becomes an input is given back to the kernel."""
        return [Call("release", (line,)) if level == "input" else Call("set", (line, level)) for line, level in wanted]


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
        called=chip.called(line.offset),
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
