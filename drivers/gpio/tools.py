"""The tools hw.gpio.list, gpio.get, gpio.watch, gpio.set and gpio.pulse.

They own what a GPIO step does between its transactions: a transaction takes microseconds; the step waits for time or
edges beside the bus. However a step ends, its pulse or its watch ends too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import trio
from attrs import define, evolve

from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.declare import GRACE_MS, LIMIT_MS, Listing, changing, reading
from hearth.drivers.gpio.spec import HEADER_PIN
from hearth.drivers.named import NamedSignal
from hearth.errors import LimitViolated
from hearth.tools import Args, Done, Drive, OneTransaction, Preview, Reached, StepContext, Tool, Transaction, Undo, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.gpio.driver import EdgeKind, GpioDriver, Watch
    from hearth.drivers.gpio.spec import ChipSpec, LineSpec
    from hearth.drivers.kind import Signal
    from hearth.drivers.signals import Level, LineState

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


class _Gpio:
    """The four tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._chips: dict[str | None, Chip] = {label: Chip(board, label) for label in board.chips}
        for chip in list(self._chips.values())[:1]:
            self._chips[None] = chip  # the default chip

    def _find(self, args: Args, *, drive: bool) -> tuple[Chip, int]:
        """Return the chip and offset that args name. Raises InvalidParams, PermissionDenied."""
        chip = self._chips.get(args.get("chip"))
        if chip is not None:
            offset = (chip.drivable if drive else chip.readable).get(args["line"])
            if offset is not None:
                return chip, offset
        # Not there: `line` raises with the reason.
        offset = self._board.line(args.get("chip"), args["line"], drive=drive)
        raise AssertionError(f"the board found line {offset}, its tables did not")

    def bus_to_read(self, args: Args) -> str:
        """Return the bus of a line that may be read."""
        return self._find(args, drive=False)[0].bus

    def bus_to_drive(self, args: Args) -> str:
        """Return the bus of a line that may be driven."""
        return self._find(args, drive=True)[0].bus

    def uses(self, args: Args, *, drive: bool) -> Sequence[Use]:
        """Return the line that a step reads, or drives."""
        chip, offset = self._find(args, drive=drive)
        return (self._board.lines.use(chip.label, offset),)

    def reaches(self, args: Args) -> Sequence[Reached]:
        """Return the line that a step reads."""
        chip, offset = self._find(args, drive=False)
        return ((chip.bus, offset),)

    def drives(self, args: Args) -> Sequence[Drive]:
        """Return the line that a gpio.set or gpio.pulse will drive."""
        chip, offset = self._find(args, drive=True)
        return (Drive(chip.bus, offset, 1 if args["value"] else 0, args.get("duration_ms")),)

    def get(self, args: Args) -> Transaction:
        """gpio.get."""
        _, offset = self._find(args, drive=False)
        return Transaction(lambda driver: driver.get(offset), lambda value: _echo(args, offset, {"value": value}))

    def set(self, args: Args) -> Transaction:
        """gpio.set."""
        chip, offset = self._find(args, drive=True)
        value: Level = 1 if args["value"] else 0
        return Transaction(
            chip.set(offset, value),
            lambda former: Done(_echo(args, offset, {"value": value}), chip.undo(offset, former)),
            drives=offset,
        )

    def preview_set(self, args: Args) -> Preview:
        """Show the level of the line before a gpio.set, and after it."""
        # By chip and offset, so that two steps that name one line in two ways are about the same thing.
        chip, offset = self._find(args, drive=True)
        return Preview(
            "gpio.get", {"chip": chip.label, "line": offset}, ("value",), {"value": 1 if args["value"] else 0}
        )

    def preview_pulse(self, args: Args) -> Preview:
        """Show the level of the line before a gpio.pulse and during it; after it, it is as it was before."""
        shown = self.preview_set(args)
        return evolve(shown, after=None, during=shown.after, during_ms=args["duration_ms"])

    async def pulse(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """gpio.pulse."""
        chip, offset = self._find(args, drive=True)
        duration_ms = int(args["duration_ms"])
        pulse = LinePulse(offset, 1 if args["value"] else 0)
        restored = False
        try:
            await ctx.transact(chip.begin_pulse(pulse), limit_ms=LIMIT_MS, drives=offset, borrows=True)
            await trio.sleep(duration_ms / 1000)
        finally:
            # Not "if transact returned": one that took longer than its limit raises, and has driven the line.
            if pulse.begun:
                with trio.CancelScope(shield=True):
                    ended = await ctx.transact(
                        chip.end_pulse(pulse),
                        limit_ms=LIMIT_MS,
                        gives_back=lambda: offset if chip.restores(pulse) else None,
                        instead=lambda: chip.forget_pulse(pulse),
                        must_run=True,
                    )
                    restored = ended is True
        return _echo(args, offset, {"value": pulse.value, "duration_ms": duration_ms, "restored": restored})

    async def watch(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """gpio.watch."""
        chip, offset = self._find(args, drive=False)
        edge: EdgeKind = args.get("edge", "both")
        count = int(args.get("count", 1))
        begun: list[Watch] = []

        def begin(driver: GpioDriver) -> Watch:
            begun.append(driver.watch(offset, edge))
            return begun[0]

        def end(driver: GpioDriver) -> None:
            driver.unwatch(begun[0])

        edges: list[dict[str, Any]] = []
        try:
            watch: Watch = await ctx.transact(begin, limit_ms=LIMIT_MS)
            with trio.move_on_after(int(args.get("timeout_ms", 10_000)) / 1000):
                while len(edges) < count:
                    seen = await watch.receive()
                    entry = {"value": seen.value, "edge": seen.edge, "timestamp_ns": seen.timestamp_ns, "seq": seen.seq}
                    edges.append(entry)
                    ctx.progress(_echo(args, offset, entry))
        finally:
            # A watch that ended with its chip needs no undo, whose transaction would wait for the chip's return.
            if begun and not begun[0].ended:
                with trio.CancelScope(shield=True):
                    await ctx.transact(end, limit_ms=LIMIT_MS, must_run=True)
        answer = {"edges": edges, "timed_out": len(edges) < count, "dropped": watch.dropped}
        return {**_echo(args, offset, answer), "chip": chip.label}


def _echo(args: Args, offset: int, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result: the line as the args name it, and the answer."""
    line = args["line"]
    echo: dict[str, Any] = {"line": line if isinstance(line, str) else offset, **answer}
    if "chip" in args:
        echo["chip"] = args["chip"]
    return echo


def gpio_tools(board: Board) -> list[Tool]:
    """Return the gpio tools for a board, in the default order."""
    gpio = _Gpio(board)
    which = ", ".join(board.chips) or "none"
    which_line = 'the line: its offset on the chip (17) or its name ("GPIO17"); hw.gpio.list has them'
    line = schemas.number_or(which_line, 0, 1023, minLength=1, maxLength=64)
    chip = schemas.text(f"the chip's label, one of: {which}; left out: the first")
    named = {"line": line, "chip?": chip}
    level = {"type": "integer", "enum": [0, 1], "description": "0 is low, 1 is high"}
    edges = ["rising", "falling"]
    ns = "CLOCK_MONOTONIC in nanoseconds, a 64-bit integer: beyond 2^53 after 104 days of uptime"
    edge: dict[str, schemas.Schema] = {
        "value": level,
        "edge": {"type": "string", "enum": edges, "description": "the direction of the change"},
        "timestamp_ns": {"type": "integer", "description": ns},
        "seq": {"type": "integer", "minimum": 1},
    }
    wanted = {"type": "string", "enum": [*edges, "both"], "default": "both", "description": "which edges to report"}
    read_uses, drive_uses = partial(gpio.uses, drive=False), partial(gpio.uses, drive=True)
    reads = reading("CAP_GPIO_READ", plain_result=True, bus=gpio.bus_to_read, uses=read_uses, reaches=gpio.reaches)
    drives = changing("CAP_GPIO_RW", plain_result=True, bus=gpio.bus_to_drive, uses=drive_uses, drives=gpio.drives)
    return [
        listed.tool(
            "List the GPIO chips and their lines: offset, name, aliases, header pin, what may be done with each, "
            "what else the pin can be, and the safe state it goes to when the session that drove it ends. "
            "Also the interlocks, with what they read now. Drives nothing.",
            "the chips; the first is the default",
            "chip, bus, path, lines",
            use=lambda chip, line: board.lines.use(chip["chip"], line["line"]),
        ),
        reads(
            "gpio.get",
            "Read a GPIO line: 1 if it is high, 0 if it is low, whatever drives it; the other way round on a line "
            "that is active low (hw.gpio.list).",
            named,
            {**named, "value": level},
            timeout_ms=1_000,
            logged=("chip", "line"),
            run=OneTransaction(gpio.get),
        ),
        reads(
            "gpio.watch",
            "Wait for edges (changes of level) on a GPIO line. Each is published as a progress event; "
            "the step ends after `count` edges or `timeout_ms`, whichever is first, and returns all of "
            "them. Running into the timeout is no failure: timed_out says so. Gaps in `seq` are edges "
            "that were dropped. While the line is driven by hearth they are hearth's own changes of it.",
            {
                **named,
                "edge?": wanted,
                "count?": schemas.integer("edges to wait for", 1, MAX_EDGES, default=1),
                "timeout_ms?": schemas.integer("the longest wait in milliseconds", 1, MAX_WATCH_MS, default=10_000),
            },
            {
                "line": line,
                "chip": chip,
                "edges": schemas.listed("the edges, in order", schemas.root(edge)),
                "timed_out": schemas.flag("true if fewer than `count` edges came in time"),
                "dropped": {"type": "integer", "minimum": 0, "description": "edges lost because too many came"},
            },
            timeout_ms=MAX_WATCH_MS + GRACE_MS,
            logged=("chip", "line", "edge", "count", "timeout_ms"),
            run=gpio.watch,
        ),
        drives(
            "gpio.set",
            "Drive a GPIO line low (0) or high (1); the other way round if it is active low. It stays so until it "
            "is set again; when the session ends it goes to its safe state (hw.gpio.list), unless its `hold` is "
            "keep. Rollback restores what it was before.",
            {**named, "value": level},
            {**named, "value": level},
            timeout_ms=1_000,
            logged=("chip", "line", "value"),
            supports_rollback=True,
            idempotent=True,
            run=OneTransaction(gpio.set),
            preview=gpio.preview_set,
        ),
        drives(
            "gpio.pulse",
            "Drive a GPIO line to a value for a duration, then bring it back to what it was before, "
            "also when the step is cancelled or fails. The duration is at least what was asked for, and "
            "some milliseconds more on a busy machine.",
            {**named, "value": level, "duration_ms": schemas.integer("how long, in milliseconds", 1, MAX_PULSE_MS)},
            {
                **named,
                "value": level,
                "duration_ms": schemas.integer("as asked for", 1, MAX_PULSE_MS),
                "restored": schemas.flag(
                    "true if this pulse brought the line back; false if another pulse still runs and will, if "
                    "the line has been set since, or if the session that held it has ended and it is safe"
                ),
            },
            timeout_ms=MAX_PULSE_MS + GRACE_MS,
            logged=("chip", "line", "value", "duration_ms"),
            run=gpio.pulse,
            preview=gpio.preview_pulse,
        ),
    ]


# --- the state of a chip: its lines, its transactions, and the pulses under way on it ---------------------------------
#
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
