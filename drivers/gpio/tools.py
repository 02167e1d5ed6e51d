"""The tools hw.gpio.list, gpio.get, gpio.watch, gpio.set and gpio.pulse.

They own what a GPIO step does between its transactions: a transaction takes microseconds; the step waits for time or
edges beside the bus. However a step ends, its pulse or its watch ends too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NotRequired, TypeAlias, TypedDict, cast

import trio
from annotated_types import Ge, Le, Len
from attrs import define, evolve

from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.declare import GRACE_MS, LIMIT_MS, Listing
from hearth.drivers.gpio.driver import EdgeKind
from hearth.drivers.gpio.spec import HEADER_PIN
from hearth.drivers.named import NamedSignal
from hearth.drivers.signals import Level
from hearth.drivers.typed_tools import changes, reads, tools_of
from hearth.errors import LimitViolated
from hearth.tools import Args, Done, Drive, Preview, Reached, StepContext, Tool, Transaction, Undo, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.gpio.driver import GpioDriver, Watch
    from hearth.drivers.gpio.spec import ChipSpec, LineSpec
    from hearth.drivers.kind import Signal
    from hearth.drivers.signals import LineState

MAX_PULSE_MS = 60_000
MAX_WATCH_MS = 600_000
MAX_EDGES = 10_000


def _row(chip: ChipSpec, _described: Mapping[str, Any], path: dict[str, Any]) -> dict[str, Any]:
    """Return a chip for hw.gpio.list."""
    lines = [_line_json(chip, line) for line in chip.lines]
    return {"chip": chip.label, "bus": chip.bus, "driven": True, **path, "lines": lines}


def _line_json(chip: ChipSpec, line: LineSpec) -> dict[str, Any]:
    aliases = [alias for alias, offset in chip.aliases.items() if offset == line.offset]
    pins = [int(alias[3:]) for alias in aliases if HEADER_PIN.fullmatch(alias)]
    optional = {
        "aliases": aliases,
        "pin": pins[0] if pins else None,
        "active_low": line.active_low,
        "drive": line.drive if line.drive != "push-pull" else None,
        "pull": line.pull if line.pull != "as-is" else None,
        "debounce_us": line.debounce_us,
        "functions": list(line.functions),
        "limit": None if line.limit is None else line.limit.to_json(),
        "reserved": line.reserved,
        "note": line.note,
    }
    initial = {} if line.initial is None else {"initial": line.initial}
    return {
        "line": line.offset,
        **{name: getattr(line, name) for name in ("name", "direction", "safe", "hold")},
        **{key: value for key, value in optional.items() if value},
        **initial,
    }


listed: Final = Listing("gpio", "chips", _row, "lines", ("interlocks", "undriven"))

_LINE: Final = 'the line: its offset on the chip (17) or its name ("GPIO17"); hw.gpio.list has them'
_EDGES: Final = {"type": "string", "enum": ["rising", "falling", "both"], "description": "which edges to report"}
_NS: Final = "CLOCK_MONOTONIC in nanoseconds, a 64-bit integer: beyond 2^53 after 104 days of uptime"
Line: TypeAlias = Annotated[int | str, schemas.number_or(_LINE, 0, 1023, minLength=1, maxLength=64)]
Label: TypeAlias = Annotated[str, Len(1, 64), "the chip's label, one of: {chips}; left out: the first"]
Value: TypeAlias = Annotated[Level, {"type": "integer", "enum": [0, 1], "description": "0 is low, 1 is high"}]
Edges: TypeAlias = Annotated[EdgeKind, _EDGES]


class _LineValue(TypedDict):
    line: Line
    chip: NotRequired[Label]
    value: Value


class _LinePulsed(_LineValue):
    duration_ms: Annotated[int, Ge(1), Le(MAX_PULSE_MS), "as asked for"]
    restored: Annotated[
        bool,
        "true if this pulse brought the line back; false if another pulse still runs and will, if the line has been "
        "set since, or if the session that held it has ended and it is safe",
    ]


class _EdgeSeen(TypedDict):
    value: Value
    edge: Annotated[
        str, {"type": "string", "enum": ["rising", "falling"], "description": "the direction of the change"}
    ]
    timestamp_ns: Annotated[int, _NS]
    seq: Annotated[int, Ge(1)]


class _EdgesSeen(TypedDict):
    line: Line
    chip: Label
    edges: Annotated[list[_EdgeSeen], "the edges, in order"]
    timed_out: Annotated[bool, "true if fewer than `count` edges came in time"]
    dropped: Annotated[int, Ge(0), "edges lost because too many came"]


_reads = partial(reads, capability="CAP_GPIO_READ", plain_result=True)
_drives = partial(changes, capability="CAP_GPIO_RW", plain_result=True)


class _Gpio:
    """The four tools of one board. A facet is a lookup: a plan would take a gpio.set more time."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._chips: dict[str | None, Chip] = {label: Chip(board, label) for label in board.chips}
        for chip in list(self._chips.values())[:1]:
            self._chips[None] = chip  # the default chip

    def _find(self, line: int | str, label: str | None, *, drive: bool) -> tuple[Chip, int]:
        """Return the chip and offset that args name. Raises InvalidParams, PermissionDenied."""
        chip = self._chips.get(label)
        if chip is not None:
            offset = (chip.drivable if drive else chip.readable).get(line)
            if offset is not None:
                return chip, offset
        # Not there: `line` raises with the reason.
        offset = self._board.line(label, line, drive=drive)
        raise AssertionError(f"the board found line {offset}, its tables did not")

    def bus(self, args: Args, *, drive: bool) -> str:
        """Return the bus of a line that a step reads, or drives."""
        return self._find(args["line"], args.get("chip"), drive=drive)[0].bus

    def uses(self, args: Args, *, drive: bool) -> Sequence[Use]:
        """Return the line that a step reads, or drives."""
        chip, offset = self._find(args["line"], args.get("chip"), drive=drive)
        return (self._board.lines.use(chip.label, offset),)

    def reaches(self, args: Args) -> Sequence[Reached]:
        """Return the line that a step reads."""
        chip, offset = self._find(args["line"], args.get("chip"), drive=False)
        return ((chip.bus, offset),)

    def drives(self, args: Args) -> Sequence[Drive]:
        """Return the line that a gpio.set or gpio.pulse will drive."""
        chip, offset = self._find(args["line"], args.get("chip"), drive=True)
        return (Drive(chip.bus, offset, 1 if args["value"] else 0, args.get("duration_ms")),)

    @_reads("gpio.get", logged=("chip", "line"))
    def get(self, line: Line, chip: Label | None = None) -> Transaction[_LineValue]:
        """Read a GPIO line: 1 if it is high, 0 if it is low, whatever drives it.

        It is the other way round on a line that is active low (hw.gpio.list).
        """
        _, offset = self._find(line, chip, drive=False)
        return Transaction(lambda driver: driver.get(offset), lambda value: _echo(line, chip, offset, value=value))

    @_reads("gpio.watch", timeout_ms=MAX_WATCH_MS + GRACE_MS, logged=("chip", "line", "edge", "count", "timeout_ms"))
    async def watch(
        self,
        ctx: StepContext,
        line: Line,
        chip: Label | None = None,
        edge: Edges = "both",
        count: Annotated[int, Ge(1), Le(MAX_EDGES), "edges to wait for"] = 1,
        timeout_ms: Annotated[int, Ge(1), Le(MAX_WATCH_MS), "the longest wait in milliseconds"] = 10_000,
    ) -> _EdgesSeen:
        """Wait for edges (changes of level) on a GPIO line.

        Each is published as a progress event; the step ends after `count` edges or `timeout_ms`, whichever is first,
        and returns all of them. Running into the timeout is no failure: timed_out says so. Gaps in `seq` are edges that
        were dropped. While the line is driven by hearth they are hearth's own changes of it.
        """
        found, offset = self._find(line, chip, drive=False)
        begun: list[Watch] = []

        def begin(driver: GpioDriver) -> Watch:
            begun.append(driver.watch(offset, edge))
            return begun[0]

        edges: list[dict[str, Any]] = []
        try:
            watch: Watch = await ctx.transact(begin, limit_ms=LIMIT_MS)
            with trio.move_on_after(timeout_ms / 1000):
                while len(edges) < count:
                    seen = await watch.receive()
                    entry = {"value": seen.value, "edge": seen.edge, "timestamp_ns": seen.timestamp_ns, "seq": seen.seq}
                    edges.append(entry)
                    ctx.progress(_echo(line, chip, offset, **entry))
        finally:
            # A watch that ended with its chip needs no undo, whose transaction would wait for the chip's return.
            if begun and not begun[0].ended:
                with trio.CancelScope(shield=True):
                    await ctx.transact(lambda driver: driver.unwatch(begun[0]), limit_ms=LIMIT_MS, must_run=True)
        timed_out = len(edges) < count
        result: _EdgesSeen = _echo(line, found.label, offset, edges=edges, timed_out=timed_out, dropped=watch.dropped)
        return result

    @_drives("gpio.set", logged=("chip", "line", "value"), supports_rollback=True, idempotent=True)
    def set(self, *, line: Line, chip: Label | None = None, value: Value) -> Transaction[_LineValue]:
        """Drive a GPIO line low (0) or high (1); the other way round if it is active low.

        It stays so until it is set again; when the session ends it goes to its safe state (hw.gpio.list), unless its
        `hold` is keep. Rollback restores what it was before.
        """
        found, offset = self._find(line, chip, drive=True)
        level: Level = 1 if value else 0
        return Transaction(
            found.set(offset, level),
            lambda former: Done(_echo(line, chip, offset, value=level), found.undo(offset, former)),
            drives=offset,
        )

    def preview_set(self, args: Args) -> Preview:
        """Show the level of the line before a gpio.set, and after it."""
        # By chip and offset, so that two steps that name one line in two ways are about the same thing.
        chip, offset = self._find(args["line"], args.get("chip"), drive=True)
        return Preview(
            "gpio.get", {"chip": chip.label, "line": offset}, ("value",), {"value": 1 if args["value"] else 0}
        )

    def preview_pulse(self, args: Args) -> Preview:
        """Show the level of the line before a gpio.pulse and during it; after it, it is as it was before."""
        shown = self.preview_set(args)
        return evolve(shown, after=None, during=shown.after, during_ms=args["duration_ms"])

    @_drives("gpio.pulse", timeout_ms=MAX_PULSE_MS + GRACE_MS, logged=("chip", "line", "value", "duration_ms"))
    async def pulse(
        self,
        ctx: StepContext,
        *,
        line: Line,
        chip: Label | None = None,
        value: Value,
        duration_ms: Annotated[int, Ge(1), Le(MAX_PULSE_MS), "how long, in milliseconds"],
    ) -> _LinePulsed:
        """Drive a GPIO line to a value for a duration, then bring it back to what it was before.

        It is brought back also when the step is cancelled or fails. The duration is at least what was asked for, and
        some milliseconds more on a busy machine.
        """
        found, offset = self._find(line, chip, drive=True)
        pulse = LinePulse(offset, 1 if value else 0)
        restored = False
        try:
            await ctx.transact(found.begin_pulse(pulse), limit_ms=LIMIT_MS, drives=offset, borrows=True)
            await trio.sleep(duration_ms / 1000)
        finally:
            # Not "if transact returned": one that took longer than its limit raises, and has driven the line.
            if pulse.begun:
                with trio.CancelScope(shield=True):
                    ended = await ctx.transact(
                        found.end_pulse(pulse),
                        limit_ms=LIMIT_MS,
                        gives_back=lambda: offset if found.restores(pulse) else None,
                        instead=lambda: found.forget_pulse(pulse),
                        must_run=True,
                    )
                    restored = ended is True
        result: _LinePulsed = _echo(line, chip, offset, value=pulse.value, duration_ms=duration_ms, restored=restored)
        return result


def _echo(line: int | str, chip: str | None, offset: int, **answer: Any) -> Any:
    """Return the result: the line as the args name it, and the answer."""
    echo = {"line": line if isinstance(line, str) else offset, **answer}
    return echo if chip is None else {**echo, "chip": chip}


def gpio_tools(board: Board) -> list[Tool]:
    """Return the gpio tools for a board, in the default order."""
    gpio = _Gpio(board)
    read = {"bus": partial(gpio.bus, drive=False), "uses": partial(gpio.uses, drive=False), "reaches": gpio.reaches}
    drive = {"bus": partial(gpio.bus, drive=True), "uses": partial(gpio.uses, drive=True), "drives": gpio.drives}
    return [
        listed.tool(
            "List the GPIO chips and their lines: offset, name, aliases, header pin, what may be done with each, "
            "what else the pin can be, and the safe state it goes to when the session that drove it ends. "
            "Also the interlocks, with what they read now. Drives nothing.",
            "the chips; the first is the default",
            "chip, bus, path, lines",
            use=lambda chip, line: board.lines.use(chip["chip"], line["line"]),
        ),
        *tools_of(
            gpio,
            {"chips": ", ".join(board.chips) or "none"},
            get=read,
            watch=read,
            set={**drive, "preview": gpio.preview_set},
            pulse={**drive, "preview": gpio.preview_pulse},
        ),
    ]


# One rule: a pulse leaves its line as it was before it, however many overlap; and a set of a pulsed line takes
# precedence. Tables are computed before the first step, so that a gpio.set only looks up.


@define(eq=False)
class _Pulsed:
    """A line with pulses under way: the state before the first, which the last one to end restores."""

    rest: LineState
    count: int = 0


@define(eq=False)
class LinePulse:
    """One pulse; `begun` once the line has been driven, even if the step that asked for it was not answered."""

    offset: int
    value: Level
    line: _Pulsed | None = None

    @property
    def begun(self) -> bool:
        """Return True once the line has been driven: then `Chip.end_pulse` must be called."""
        return self.line is not None


class Chip:
    """One chip. `_pulses` is touched by transactions only, and so by one at a time."""

    __slots__ = ("_pulses", "_sets", "_undos", "bus", "drivable", "label", "readable")

    def __init__(self, board: Board, label: str) -> None:
        self.label = label
        self.bus = board.gpio_bus(label)
        self.readable = board.lines.readable[label]
        self.drivable = board.lines.drivable[label]
        self._pulses: dict[int, _Pulsed] = {}
        self._sets: dict[tuple[int, LineState], Callable[[GpioDriver], LineState]] = {}
        self._undos: dict[tuple[int, LineState], Undo] = {}

    def set(self, offset: int, state: LineState) -> Callable[[GpioDriver], LineState]:
        """Return the transaction that sets a line; it returns the state to go back to.

        It takes the line away from pulses under way, which then leave it alone: the last set takes precedence.
        """
        known = self._sets.get((offset, state))
        if known is not None:
            return known
        pulses = self._pulses

        def op(driver: GpioDriver) -> LineState:
            former = driver.set(offset, state)
            if pulses:
                line = pulses.pop(offset, None)
                if line is not None:
                    return line.rest
            return former

        self._sets[offset, state] = op
        return op

    def undo(self, offset: int, former: LineState) -> Undo:
        """Return the undo to `former`."""
        undo = self._undos.get((offset, former))
        if undo is None:
            back = "an input" if former == "input" else str(former)
            undo = Undo(self.set(offset, former), f"gpio line {offset} of {self.label} back to {back}", offset)
            self._undos[offset, former] = undo
        return undo

    def begin_pulse(self, pulse: LinePulse) -> Callable[[GpioDriver], None]:
        """Return the transaction that begins a pulse."""

        def op(driver: GpioDriver) -> None:
            former = driver.set(pulse.offset, pulse.value)
            line = self._pulses.get(pulse.offset)
            if line is None:
                line = self._pulses[pulse.offset] = _Pulsed(former)
            line.count += 1
            pulse.line = line

        return op

    def restores(self, pulse: LinePulse) -> bool:
        """Return True if the end of this pulse, if it came now, would restore the line; within a transaction's turn."""
        line = self._pulses.get(pulse.offset)
        return line is not None and line is pulse.line and line.count == 1

    def forget_pulse(self, pulse: LinePulse) -> None:
        """Forget the last pulse on a line, which is in its safe state; within a transaction's turn."""
        self._pulses.pop(pulse.offset, None)

    def end_pulse(self, pulse: LinePulse) -> Callable[[GpioDriver], bool]:
        """Return the transaction that ends a pulse; True if it restored the line."""

        def op(driver: GpioDriver) -> bool:
            line = self._pulses.get(pulse.offset)
            if line is None or line is not pulse.line:
                return False
            line.count -= 1
            if line.count:
                return False
            # Dropped only once the line is restored: if the driver fails now, the next pulse still knows the state.
            try:
                driver.set(pulse.offset, line.rest)
            except LimitViolated:
                # Too early: the transaction comes again.
                line.count += 1
                raise
            del self._pulses[pulse.offset]
            return True

        return op


class LineSignal(NamedSignal):
    """A line as a signal: 0 or 1."""

    sets: ClassVar[tuple[str, ...]] = ("gpio.set", "gpio.pulse")

    @property
    def _line(self) -> dict[str, Any]:
        assert self.signal is not None
        return {"chip": self.bus.partition(":")[2], "line": self.signal.output}

    def read(self) -> Step:
        """See NamedSignal."""
        return Step("gpio.get", self._line)

    def write(self, value: Any) -> Step:
        """See NamedSignal."""
        return Step("gpio.set", {**self._line, "value": _level(value)})

    def pulse(self, value: Any, duration_ms: int) -> Step:
        """See NamedSignal."""
        return Step("gpio.pulse", {**self._line, "value": _level(value), "duration_ms": duration_ms})

    def edges(self, count: int, timeout_ms: int) -> Step:
        """See NamedSignal."""
        return Step("gpio.watch", {**self._line, "count": count, "timeout_ms": timeout_ms})


def _level(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def gpio_signals(board: Board) -> Iterator[NamedSignal]:
    """Return the lines of a board as signals."""
    found = [
        _line_signal(board, chip, signal)
        for chip in board.of("gpio")
        for signal in board.outputs[chip.bus].signals.values()
    ]
    # Those to which the profile gives a name of its own come first.
    return iter(sorted(found, key=lambda one: one.signal is not None and one.name == one.signal.name))


def _line_signal(board: Board, chip: ChipSpec, signal: Signal) -> NamedSignal:
    names = [alias for alias, offset in chip.aliases.items() if offset == signal.output]
    # What is wired to it, before what the chip calls it and its place on the header.
    names.sort(key=lambda alias: HEADER_PIN.fullmatch(alias) is not None)
    name = names[0] if names and not HEADER_PIN.fullmatch(names[0]) else signal.name
    lines = board.lines
    readable, drivable = (signal.output in names[chip.label] for names in (lines.readable, lines.drivable))
    access = "r" * readable + "w" * drivable
    use = lines.use(chip.label, cast("int", signal.output))
    return LineSignal(bus=chip.bus, name=name, aliases=(signal.name, *names), signal=signal, access=access, use=use)
