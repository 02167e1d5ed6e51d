"""The interlocks and the `[halt]` of a board profile: outputs and conditions by name, and contradictions.

It finds lines, channels and signals on the devices that the profile lists, whatever kind they are of.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attrs import evolve

from hearth._util.toml import show
from hearth.drivers.channels import LevelField
from hearth.drivers.kinds import kinds_of
from hearth.drivers.profile import (
    CHECK_MS,
    MAX_AGE_MS,
    Condition,
    HaltInput,
    HaltSpec,
    Heartbeat,
    InterlockSpec,
    StopEntry,
)
from hearth.drivers.sensor import SENSORS_BUS
from hearth.errors import ConfigError
from hearth.fields import ANY_NUMBER, Anything, Choice, Fault, FieldType, Integer, ListOf, Number, Text
from hearth.tables import Table, near

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from hearth.drivers.channels import SignalChipSpec
    from hearth.drivers.kind import Signal
    from hearth.drivers.lines import LineChip
    from hearth.drivers.profile import Profile
    from hearth.drivers.signals import SignalChannel

_TEXT: Final = Text()
_LEVEL: Final = Choice(0, 1)
_CONDITION: Final[Mapping[str, FieldType]] = {
    "line": _TEXT,
    "chip": _TEXT,
    "value": _LEVEL,
    "sensor": _TEXT,
    "min": ANY_NUMBER,
    "max": ANY_NUMBER,
    "stuck_after_ms": Integer(1_000, 86_400_000),
}


def parse_interlock(table: Table, profile: Profile | None) -> InterlockSpec | None:
    """Read one `[[interlock]]`; None after a fault, and without a profile that is right by itself."""
    of_channel = "above" in table.content or "below" in table.content
    found = _find_channel(table, "drives", profile) if of_channel else _find_line(table, "drives", profile)
    values = table.given(InterlockSpec)
    requires = [(entry, _parse_condition(entry, profile)) for entry in table.tables("requires")]
    table.done()
    _check_values(table, values, of_channel=of_channel, any_required=bool(requires))
    if found is None or (values.get("value") is None) is not of_channel:
        return None
    chip, output = found
    read = [(entry, condition) for entry, condition in requires if condition is not None]
    conditions = tuple(condition for _, condition in read)
    number: int = getattr(output, "number" if of_channel else "offset")
    lock = InterlockSpec(table.content["drives"], chip.bus, number, conditions, **values)
    _check_output(table, lock, output)
    _check_conditions(lock, [entry for entry, _ in read])
    return lock


def _check_values(table: Table, values: Mapping[str, Any], *, of_channel: bool, any_required: bool) -> None:
    age, period = values.get("max_age_ms", MAX_AGE_MS), values.get("check_ms", CHECK_MS)
    if table.ok and age < 2 * period:
        why = f"{age} is less than twice check_ms = {period}: readings would be stale between checks"
        table.fault("max_age_ms", why)
    if table.ok and not any_required:
        table.fault("requires", 'expected at least one condition, such as { line = "DOOR", value = 0 }')
    if not of_channel and "value" not in table.content:
        table.fault("value", f"missing; it takes {_LEVEL.expected} for a line; a channel takes `above` or `below`")
    elif of_channel and "value" in table.content:
        table.fault("value", "a channel has no level; `above` and `below` say which of its values need the conditions")


def _check_output(table: Table, lock: InterlockSpec, output: Any) -> None:
    """Refuse an interlock that could not hold: its output is never driven, or is at a guarded level without asking."""
    of_line = lock.value is not None
    what = "line" if of_line else "channel"
    if output.reserved is not None or (of_line and output.direction == "input"):
        reason = f"reserved: {output.reserved}" if output.reserved else 'direction = "input"'
        table.fault("drives", f"{what} {show(output.name)} may not be driven ({reason}); name an output")
    if lock.guards(output.safe):
        where = f"the {what}'s safe state, to which an open interlock must bring it"
        table.fault(_guarded_key(lock), f"{output.safe} is also {where}")
    if of_line and output.initial == lock.value:
        table.fault("value", f"the line is driven to initial = {output.initial} before any condition is read; drop it")
    if output.hold == "keep":
        why = "its level would outlast the daemon, which could not take it back"
        table.fault("drives", f'{what} {show(output.name)} has hold = "keep", so that {why}; use hold = "release"')


def _guarded_key(lock: InterlockSpec) -> str:
    return "value" if lock.value is not None else "above" if lock.above is not None else "below"


def _check_conditions(lock: InterlockSpec, entries: Sequence[Table]) -> None:
    """Refuse an interlock that could never be met."""
    for index, (entry, condition) in enumerate(zip(entries, lock.requires, strict=True)):
        if (condition.bus, condition.line) == (lock.bus, lock.output):
            entry.fault("line", "this is the driven line itself; require another one")
        for other in lock.requires[:index]:
            if _contradict(condition, other):
                entry.fault("", f"contradicts the requirement {other}: the output could never be driven")


def _find_channel(table: Table, key: str, profile: Profile | None) -> tuple[SignalChipSpec[Any], SignalChannel] | None:
    """Return the channel that `key` names; None after a fault, and without a profile that is right by itself."""
    name = table.take(key, _TEXT)
    if profile is None or name is None:
        return None
    channels = [(chip, channel) for chip in profile.signal_chips for channel in chip.channels]
    for chip, channel in channels:
        if channel.name == name:
            return chip, channel
    names = [channel.name for _, channel in channels]
    has = near(name, names) or f"; [[pwm]] and [[dac]] have {', '.join(names) or 'none'}"
    what = "; `above` and `below` are for channels" if key == "drives" else ""
    table.fault(key, f"no channel is named {show(name)}{has}{what}")
    return None


def _parse_condition(entry: Table, profile: Profile | None) -> Condition | None:
    """Read `{ line, value }`, `{ sensor, min }`, `{ sensor, max }` or `{ sensor, min, max }`; see _parse_interlock."""
    values = entry.given(_CONDITION)
    entry.done()
    if entry.ok:
        _check_condition(entry, values)
    if profile is None or not entry.ok:
        return None
    if "line" not in values:
        bus = _sensor_bus(entry, values["sensor"], profile)
        given = {key: values.get(key) for key in ("min", "max", "stuck_after_ms")}
        return None if bus is None else Condition(values["sensor"], bus, **given)
    found = _find_line(entry, "line", profile)
    if found is None:
        return None
    chip, line = found
    if line.reserved is not None:
        entry.fault("line", f"line {show(line.name)} may not be read (reserved: {line.reserved}); require another")
    return Condition(values["line"], chip.bus, line.offset, values["value"])


def _check_condition(entry: Table, values: Mapping[str, Any]) -> None:
    if ("line" in values) == ("sensor" in values):
        entry.fault("", "expected { line, value }, or { sensor, min, max } with at least one bound")
    elif "line" in values:
        if "value" not in values:
            entry.fault("value", f"missing; it takes {_LEVEL.expected}, the level that the line must have")
        for key in ("min", "max"):
            if key in values:
                entry.fault(key, "a line has no bounds; give the `value` that it must have")
        if "stuck_after_ms" in values:
            entry.fault("stuck_after_ms", "a line may stay as it is for ever; it is for a sensor")
    elif "min" not in values and "max" not in values:
        entry.fault("", "a sensor needs a bound: add min, max or both")
    elif "min" in values and "max" in values and values["min"] > values["max"]:
        entry.fault("min", f"{values['min']:g} is above max = {values['max']:g}: no reading is within these bounds")
    for key in ("chip", "value") if "line" not in values else ():
        if key in values:
            entry.fault(key, "a sensor has none; give min, max or both")


def _sensor_bus(entry: Table, name: str, profile: Profile) -> str | None:
    buses = {one.name: one.bus for kind in kinds_of(profile.specs) for one in kind.sensors(profile.specs)}
    if name in buses:
        return buses[name]
    if "/" in name and SENSORS_BUS in profile.discover:
        # The kernel's sensors come and go; one that is not there cannot be read, and leaves the interlock open.
        return SENSORS_BUS
    has = near(name, list(buses)) or f"; [sensors] has {', '.join(buses) or 'none'}"
    entry.fault("sensor", f"no sensor is named {show(name)}{has}")
    return None


def check_halt(table: Table, lock: InterlockSpec, halt: HaltSpec) -> None:
    """Refuse outputs that the halt drives without asking anything: an interlock could not hold for them."""
    if halt.heartbeat is not None and (halt.heartbeat.bus, halt.heartbeat.offset) == (lock.bus, lock.output):
        table.fault(
            "drives", f"line {show(lock.name)} is the heartbeat of [halt], which asks no interlock; name another"
        )
    for index, entry in enumerate(halt.sequence):
        if (entry.bus, entry.output) == (lock.bus, lock.output) and lock.guards(entry.value):
            why = f"halt.sequence[{index}] drives {entry.key} {show(lock.name)} to it, and a stop asks no interlock"
            table.fault(_guarded_key(lock), f"{why}; drop that entry, or this interlock")


def _find_line(table: Table, key: str, profile: Profile | None) -> tuple[LineChip, Any] | None:
    """Return the line whose name or alias is at `key`, on the chip that the table names, or on the only one with it.

    None after a fault, and without a profile that is right by itself.
    """
    name, label = table.take(key, _TEXT), table.take("chip", _TEXT, None)
    if profile is None or name is None or (label is None and "chip" in table.content):
        return None
    chips = [spec for spec in profile.line_chips if label in (None, spec.label)]
    found = [one for spec in chips for one in _lines_named(spec, name)]
    if len(found) == 1:
        return found[0]
    if found:
        table.fault(key, f'{show(name)} is a line of {", ".join(spec.label for spec, _ in found)}; add chip = "..."')
    elif chips:
        cure = near(name, chain.from_iterable(map(_names, chips))) or "; list it under `names` of its [[gpio]]"
        table.fault(key, f"no line is named {show(name)}{cure}")
    else:
        _refuse_chip(table, key, label, [spec.label for spec in profile.line_chips])
    return None


def _names(chip: LineChip) -> list[str]:
    return [*(line.name for line in chip.lines), *chip.aliases]


def _refuse_chip(table: Table, key: str, label: str | None, labels: list[str]) -> None:
    has = near(label or "", labels) or f"; [[gpio]] has {', '.join(labels) or 'none'}"
    at, which = (key, "") if label is None else ("chip", f" {show(label)}")
    table.fault(at, f"no chip{which} is listed{has}")


def _lines_named(chip: LineChip, name: str) -> list[tuple[LineChip, Any]]:
    return [(chip, line) for line in chip.lines if line.name == name or chip.aliases.get(name) == line.offset]


def _contradict(one: Condition, other: Condition) -> bool:
    """Return True if both requirements are of the same line or sensor, and no reading meets both."""
    if (one.bus, one.line) != (other.bus, other.line):
        return False
    if one.line is not None:
        return one.value != other.value
    if one.name != other.name:
        return False
    least = max((bound for bound in (one.min, other.min) if bound is not None), default=-inf)
    return least > min((bound for bound in (one.max, other.max) if bound is not None), default=inf)


_STATE: Final = Choice(0, 1, "input")


class _SignalValue(Anything):
    """A value of a signal, which the signal itself checks."""

    expected = 'a value in the unit of the signal, or "safe"'


_AFTER_MS: Final = Integer(0, 60_000)
_HZ: Final = Number(ge=0.1, le=100)
_Signals: TypeAlias = "dict[str, Collection[Signal]]"
_Used: TypeAlias = dict[tuple[str, Hashable], str]
"""The outputs that `[halt]` names already, and what for."""


def parse_halt(table: Table, profile: Profile | None) -> HaltSpec:
    """Read `[halt]`; its lines only with a profile that is right by itself."""
    inputs, sequence, used = [], [], _Used()
    for index, given in enumerate(table.take("inputs", ListOf(Anything()), ()) or ()):
        # A name stands for a table with nothing else.
        entry = _table_of({"line": given} if isinstance(given, str) else given, f"{table.at('inputs')}[{index}]", table)
        line, values = _halt_line(entry, profile, used, driven=False), entry.given(HaltInput)
        if len(values) > 1:
            entry.fault("timeout_ms", "an input halts by its level (`stop`) or by its silence: leave one of them out")
        if line is not None:
            inputs.append(HaltInput(*line, **values))
        entry.done()
    stop_signal = partial(_stop_signal, known={})
    by_key: dict[str, Callable[..., StopEntry | None]] = {"signal": stop_signal, "channel": _stop_channel}
    for entry in table.tables("sequence"):
        after = entry.take("after_ms", _AFTER_MS, 0)
        stop = next((read for key, read in by_key.items() if key in entry.content), _stop_line)(entry, profile)
        if stop is not None:
            sequence.append(evolve(stop, after_ms=after))
        entry.done()
    heartbeat = None
    if "heartbeat" in table.content:
        entry = table.table("heartbeat")
        used.update({(one.bus, one.output): "a line of [[halt.sequence]]" for one in sequence})
        line, hz = _halt_line(entry, profile, used, driven=True, limited=False), entry.take("hz", _HZ)
        if line is not None:
            heartbeat = Heartbeat(*line, hz)
        entry.done()
    table.done()
    return HaltSpec(tuple(inputs), tuple(sequence), heartbeat)


def _stop_line(entry: Table, profile: Profile | None) -> StopEntry | None:
    line, value = _halt_line(entry, profile, {}, driven=True), entry.take("value", _STATE)
    return None if line is None else StopEntry("line", *line, value)


def _stop_channel(entry: Table, profile: Profile | None) -> StopEntry | None:
    for key in ("line", "chip"):
        if key in entry.content:
            entry.fault(key, "an entry names a line or a channel, not both; a channel's name is unique on the board")
    found, value = _find_channel(entry, "channel", profile), entry.take("value", LevelField())
    if found is None or value is None:
        return None
    chip, channel = found
    if channel.reserved is not None:
        entry.fault("channel", f"{show(channel.name)} is reserved: {channel.reserved}")
    elif (fault := channel.fault_of(value)) is not None:
        entry.fault("value", fault)
    return StopEntry("channel", chip.bus, channel.number, channel.name, value)


def _stop_signal(entry: Table, profile: Profile | None, known: _Signals) -> StopEntry | None:
    name, value = entry.take("signal", _TEXT), entry.take("value", _SignalValue())
    found = None if profile is None or name is None else _find_signal(entry, name, profile, known)
    if found is None or name is None or value is None:
        return None
    bus, signal = found
    level = signal.safe
    if signal.reserved is not None:
        entry.fault("signal", f"{show(name)} is reserved: {signal.reserved}")
    elif signal.access == "r":
        entry.fault("signal", f"{show(name)} is only read: name an output")
    elif level is None:
        why = f"{show(name)} has no `safe`, to which the end of the sequence brings it"
        entry.fault("signal", f"{why}; give it one in its own table")
    elif value != "safe":
        try:
            level = signal.level(value)
        except ValueError as error:
            entry.fault("value", str(error))
    return StopEntry("signal", bus, signal.output, name, level)


def _find_signal(entry: Table, name: str, profile: Profile, known: _Signals) -> tuple[str, Signal] | None:
    """Return bus and signal of a full name, KIND:BUS:NAME; None after a fault."""
    if (of_bus := _signals_of_bus(entry, name, profile, known)) is None:
        return None
    bus, signals = of_bus
    asked = name.removeprefix(f"{bus}:")
    found = [one for one in signals if asked in (one.name, one.alias)]
    if len(found) == 1:
        return bus, found[0]
    names = [one.alias or one.name for one in found or signals]
    has = (near(asked, names) if not found else "") or f"; {bus} has {', '.join(names) or 'none'}"
    entry.fault("signal", f"{'several signals are' if found else 'no signal is'} named {show(asked)}{has}")
    return None


def _signals_of_bus(
    entry: Table, name: str, profile: Profile, known: _Signals
) -> tuple[str, Collection[Signal]] | None:
    """Return the bus with which a full name begins, and all its signals; None after a fault.

    `known` has those of the buses that were asked before: a DBC file is read once, and not for each entry.
    """
    kinds = [kind for kind in kinds_of(profile.specs) if kind.outputs is not None]
    buses = {kind.bus(spec): (kind, spec) for kind in kinds for spec in profile.of(kind.name)}
    bus = next((one for one in buses if name.startswith(f"{one}:")), None)
    if bus is None:
        has = near(name.rpartition(":")[0], buses) or f"; there are {', '.join(buses) or 'none'}"
        entry.fault("signal", f"no bus of the profile begins {show(name)}, which has the form KIND:BUS:NAME{has}")
        return None
    kind, spec = buses[bus]
    assert kind.outputs is not None, "asked above"
    try:
        if bus not in known:
            known[bus] = kind.outputs(spec, None).signals.values()
        return bus, known[bus]
    except ConfigError as error:  # of the DBC file, which the names are in
        entry.fault("signal", str(error))
        return None


def _table_of(given: object, path: str, table: Table) -> Table:
    if isinstance(given, Mapping):
        return Table(given, path, table.faults)
    expected = 'expected a line\'s name, or a table such as { line = "ESTOP", stop = 1 }'
    table.faults.append(Fault(path, f"{expected}; got {show(given)}"))
    return Table({}, "", [])


def _halt_line(
    entry: Table, profile: Profile | None, used: _Used, *, driven: bool, limited: bool = True
) -> tuple[str, int, str] | None:
    """Return bus, offset and name of the line that a table of `[halt]` names, or None; see _find_line."""
    found = _find_line(entry, "line", profile)
    if found is None:
        return None
    chip, line = found
    name, place = show(line.name), (chip.bus, line.offset)
    if line.reserved is not None:
        entry.fault("line", f"{name} is reserved: {line.reserved}")
    elif driven and line.direction == "input":
        entry.fault("line", f'{name} has direction = "input": it is never driven')
    elif not driven and line.direction != "input":
        entry.fault("line", f'{name} could be driven, and would then not report a stop; give it direction = "input"')
    if place in used:
        entry.fault("line", f"{name} is {used[place]} already")
    if line.limit is not None and not limited:
        why = f"{name} has a limit, which the heartbeat does not ask"
        entry.fault("line", f"{why}; take the limit out, or name another line")
    used[place] = "the heartbeat" if driven else "an input"
    return *place, line.name
