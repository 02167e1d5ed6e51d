"""A board profile, read: the devices of a board, its interlocks, and what halts it. It knows no kind of hardware.

`hearth.drivers.boards.profile` reads one from its TOML file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from attrs import field, frozen

from hearth.drivers.signals import Level  # noqa: TC001  attrs reads the annotations
from hearth.fields import ANY_NUMBER, Integer

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping


@frozen
class Undriven:
    """A device that is listed or was found, and that cannot be used through hearth: `reason` says why.

    `cure` has commands, one a line, or a sentence, where there is a cure. `left_alone` marks a device that could be
    driven and is not, out of caution.
    """

    kind: str
    name: str
    reason: str
    path: str | None = None
    label: str | None = None
    cure: str | None = None
    left_alone: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the device for hw.board and the lists."""
        entry: dict[str, Any] = {"kind": self.kind, "name": self.name, "driven": False, "reason": self.reason}
        optional = {"path": self.path, "label": self.label, "cure": self.cure, "left_alone": self.left_alone or None}
        return entry | {key: value for key, value in optional.items() if value is not None}


@frozen
class Condition:
    """One requirement of an interlock: line `name` reads `value`, or sensor `name` reads at least `min`, at most `max`.

    `bus` is the bus that reads it; `line` is the line's offset, and None for a sensor. A sensor whose readings have all
    been the same for `stuck_after_ms` counts as not read.
    """

    name: str
    bus: str
    line: int | None = None
    value: Level | None = None
    min: float | None = None
    max: float | None = None
    stuck_after_ms: int | None = None

    def holds(self, read: float) -> bool:
        """Return True if a reading meets the requirement; NaN meets none."""
        if self.line is not None:
            return read == self.value
        return (self.min is None or read >= self.min) and (self.max is None or read <= self.max)

    def to_json(self) -> dict[str, Any]:
        """Return the condition as the profile has it."""
        if self.line is not None:
            return {"line": self.name, "value": self.value}
        bounds = {"min": self.min, "max": self.max, "stuck_after_ms": self.stuck_after_ms}
        return {"sensor": self.name, **{key: bound for key, bound in bounds.items() if bound is not None}}

    def __str__(self) -> str:
        if self.line is not None:
            return f"line {self.name} = {self.value}"
        bounds = [f"{sign} {bound:g}" for sign, bound in (("≥", self.min), ("≤", self.max)) if bound is not None]
        return f"sensor {self.name} {' and '.join(bounds)}"


MAX_AGE_MS, CHECK_MS = 500, 100


@frozen
class InterlockSpec:
    """An output that may be driven to some levels only while all of `requires` hold.

    `name` is the output as the profile names it here, `output` its number on the chip of `bus`. Of a line the guarded
    level is `value`; of an output that takes a number, everything `above` and `below`. A reading counts for
    `max_age_ms`; while the output is at a guarded level, the conditions are evaluated every `check_ms`, and with `halt`
    the daemon is halted when they do not hold.
    """

    name: str
    bus: str
    output: int
    requires: tuple[Condition, ...]
    value: Level | None = None
    above: Annotated[float, ANY_NUMBER] | None = None
    below: Annotated[float, ANY_NUMBER] | None = None
    max_age_ms: Annotated[int, Integer(1, 60_000)] = MAX_AGE_MS
    check_ms: Annotated[int, Integer(10, 10_000)] = CHECK_MS
    halt: bool = False

    def guards(self, level: object) -> bool:
        """Return True if the conditions must hold for this level of the output."""
        if self.value is not None:
            return level == self.value
        if not isinstance(level, (int, float)):
            return False
        return (self.above is not None and level > self.above) or (self.below is not None and level < self.below)

    @property
    def place(self) -> dict[str, Any]:
        """Return the output and its guarded levels, for errors and records: {"line": "PUMP", "value": 1}."""
        if self.value is not None:
            return {"line": self.name, "value": self.value}
        bounds = {"above": self.above, "below": self.below}
        return {"channel": self.name, **{key: bound for key, bound in bounds.items() if bound is not None}}

    @property
    def what(self) -> str:
        """Return the output in words."""
        kind = "gpio line" if self.value is not None else f"{self.bus.partition(':')[0]} channel"
        return f"{kind} {self.name}"

    @property
    def region(self) -> str:
        """Return the guarded levels in words: "1", "above 0.5", "below 10 or above 170"."""
        if self.value is not None:
            return str(self.value)
        bounds = (("below", self.below), ("above", self.above))
        return " or ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


@frozen
class HaltLine:
    """A line that `[halt]` names: its bus, its offset, and its name."""

    bus: str
    offset: int
    name: str


@frozen
class HaltInput(HaltLine):
    """An input that halts: at the level `stop`, or, with `timeout_ms`, after so many milliseconds without an edge."""

    stop: Level = 1
    timeout_ms: Annotated[int, Integer(20, 3_600_000)] | None = None


@frozen
class StopEntry:
    """One entry of the stop sequence: `after_ms` after the entry before it, the output goes to `value`.

    `key` is how the profile names it. `output` and `value` are as its bus has them: the number on the chip of a line or
    a channel, or what the kind of a signal calls it, and the level.
    """

    key: Literal["line", "channel", "signal"]
    bus: str
    output: Hashable
    name: str
    value: Any = 0
    after_ms: int = 0


@frozen
class Heartbeat(HaltLine):
    """The output that toggles while the daemon is healthy and not halted: `hz` periods a second."""

    hz: float = 1.0


@frozen
class HaltSpec:
    """The section `[halt]` of a profile.

    With a `sequence` a halt is a stop of category 1 (IEC 60204-1), without one of category 0.
    """

    inputs: tuple[HaltInput, ...] = ()
    sequence: tuple[StopEntry, ...] = ()
    heartbeat: Heartbeat | None = None


@frozen(eq=False)
class Profile:
    """A board, as its profile describes it. `tools` are the patterns of the tools that it allows."""

    name: str
    description: str
    source: str
    specs: Mapping[str, tuple[Any, ...]] = field(factory=dict)
    """The devices that it lists, by their table: each kind has its own sort of spec."""
    interlocks: tuple[InterlockSpec, ...] = ()
    tools: tuple[str, ...] = ("*",)
    halt: HaltSpec = field(factory=HaltSpec)
    discover: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Further devices to look for on the machine: kind to patterns of nodes and names, ("*",) for all."""

    def of(self, table: str) -> tuple[Any, ...]:
        """Return the devices of a table."""
        return self.specs.get(table, ())

    @property
    def line_chips(self) -> list[Any]:
        """Return the chips with lines."""
        return [spec for spec in self._devices() if hasattr(spec, "lines")]

    @property
    def signal_chips(self) -> tuple[Any, ...]:
        """Return the chips whose outputs take a number: their channels are signals."""
        chips = [spec for spec in self._devices() if isinstance(getattr(spec, "channels", None), tuple)]
        return tuple([chip for chip in chips if all(hasattr(one, "signal") for one in chip.channels)])

    def _devices(self) -> list[Any]:
        return [spec for specs in self.specs.values() for spec in specs]

    def simulated_line(self, name: str) -> tuple[str, int] | None:
        """Return the simulated bus and the offset of the line with this name or alias; None if there is none."""
        for chip in self.line_chips:
            offsets = {line.name: line.offset for line in chip.lines} | dict(chip.aliases)
            if chip.driver == "sim" and name in offsets:
                return chip.bus, offsets[name]
        return None
