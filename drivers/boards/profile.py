"""Board profiles: the devices of a board, as TOML, the permitted uses of each, and what must hold before a use.

It owns the profile as a whole, its interlocks and its `[halt]`, and the checks of what does not go together; `devices`
reads the tables of devices. It does not look at the machine. A profile is an allowlist: a line, adapter or port that it
does not list does not exist for clients of hearth.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args

from attrs import evolve, field, frozen

from hearth._util.files import read_file
from hearth._util.toml import parse_toml, show
from hearth.drivers.boards.halt import HaltInput, HaltSpec, Heartbeat, StopEntry
from hearth.drivers.can.spec import CanSpec, parse_can
from hearth.drivers.channels import LevelField
from hearth.drivers.dac.spec import DacSpec, parse_dac
from hearth.drivers.gpio.spec import ChipSpec, LineSpec, parse_chip
from hearth.drivers.i2c.spec import I2cSpec, SensorSpec, lean_on, parse_adapter, parse_sensor
from hearth.drivers.iio.spec import IioSpec, parse_iio
from hearth.drivers.modbus.spec import ModbusSpec, check_lines, lean_on_lines, parse_line
from hearth.drivers.pwm.spec import PwmSpec, parse_pwm
from hearth.drivers.sensor import SENSORS_BUS
from hearth.drivers.signals import Level  # noqa: TC001  attrs reads the annotations
from hearth.drivers.spi.spec import SpiSpec, parse_device
from hearth.drivers.uart.spec import UartSpec, parse_port
from hearth.errors import ConfigError
from hearth.fields import (
    ANY_NUMBER,
    STRINGS,
    Anything,
    Choice,
    Fault,
    FieldType,
    Flag,
    Integer,
    ListOf,
    Number,
    Table,
    Text,
    join,
    near,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.drivers.signals import SignalChannel, SignalChipSpec

BusKind: TypeAlias = Literal["gpio", "i2c", "uart", "pwm", "dac", "can", "spi", "sensors"]

_DISCOVERED: Final[tuple[BusKind, ...]] = tuple(kind for kind in get_args(BusKind) if kind != "dac")
"""A converter is not looked for: only a person knows the bounds of what is connected to it."""
_FLAG: Final = Flag()
_TEXT: Final = Text()

_SHIPPED = Path(__file__).parent


@frozen
class Undriven:
    """A device that is listed or was found, and that cannot be used through hearth: `reason` says why.

    `cure` has commands, one a line, or a sentence, where there is a cure. `left_alone` marks a device that could be
    driven and is not, out of caution.
    """

    kind: BusKind
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


@frozen(eq=False)
class Profile:
    """A board, as its profile describes it. `tools` are the patterns of the tools that it allows."""

    name: str
    description: str
    source: str
    chips: tuple[ChipSpec, ...] = ()
    i2c: tuple[I2cSpec, ...] = ()
    uarts: tuple[UartSpec, ...] = ()
    pwm: tuple[PwmSpec, ...] = ()
    dacs: tuple[DacSpec, ...] = ()
    cans: tuple[CanSpec, ...] = ()
    spi: tuple[SpiSpec, ...] = ()
    modbus: tuple[ModbusSpec, ...] = ()
    iio: tuple[IioSpec, ...] = ()
    sensors: tuple[SensorSpec, ...] = ()
    interlocks: tuple[InterlockSpec, ...] = ()
    tools: tuple[str, ...] = ("*",)
    halt: HaltSpec = field(factory=HaltSpec)
    discover: Mapping[BusKind, tuple[str, ...]] = field(factory=dict)
    """Devices to look for on the machine besides the listed: kind to patterns of nodes and names, ("*",) for all."""

    @property
    def signal_chips(self) -> tuple[SignalChipSpec, ...]:
        """Return the chips whose outputs take a number: those of PWM, and converters."""
        return (*self.pwm, *self.dacs)

    def simulated_line(self, name: str) -> tuple[str, int] | None:
        """Return the simulated chip (its label) and the offset of the line with this name or alias; None if none."""
        for chip in self.chips:
            offsets = {line.name: line.offset for line in chip.lines} | dict(chip.aliases)
            if chip.driver == "sim" and name in offsets:
                return chip.label, offsets[name]
        return None


def shipped_profiles() -> list[str]:
    """Return the names of the profiles that come with hearth."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def profile_file(name_or_path: str) -> Path | None:
    """Return the file of a profile that is given by its path; None for a shipped one."""
    return Path(name_or_path) if "/" in name_or_path or name_or_path.endswith(".toml") else None


def load_profile(name_or_path: str, *, any_owner: bool = False) -> Profile:
    """Read a profile: a shipped one by name, or a TOML file by path (with a "/" in it, or ending in .toml).

    Raises ConfigError with one line for each fault: the file, the key path, and what is expected there; also if users
    other than root and our own could change the file, unless it may be of `any_owner`.
    """
    path = profile_file(name_or_path)
    if path is None:
        path = _SHIPPED / f"{name_or_path}.toml"
        if name_or_path not in shipped_profiles():
            raise ConfigError(
                f"no board profile {name_or_path!r}; shipped are {', '.join(shipped_profiles())}, "
                "or give the path of a TOML file"
            )
    source = f"board profile {path.name if path.parent == _SHIPPED else path}"
    trusted = None if any_owner or path.parent == _SHIPPED else {os.geteuid()}
    try:
        data, _ = read_file(path, trusted=trusted)
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"board profile {error}") from None
    profile = parse_profile(parse_toml(data, source), source)
    return evolve(profile, cans=tuple(spec.beside(path.parent) for spec in profile.cans))


def parse_profile(content: Mapping[str, object], source: str) -> Profile:
    """Return a profile from the content of its TOML file. Raises ConfigError with one line for each fault."""
    faults: list[Fault] = []
    top = Table(content, "", faults)
    tools, discover = top.table("tools", required=False), top.table("discover", required=False)
    interlocks, halt_table = top.tables("interlock"), top.table("halt", required=False)
    profile = Profile(
        name=top.take("name", _TEXT),
        description=top.take("description", _TEXT),
        source=source,
        chips=tuple([parse_chip(table) for table in top.tables("gpio")]),
        i2c=tuple([parse_adapter(table) for table in top.tables("i2c")]),
        uarts=tuple([parse_port(table) for table in top.tables("uart")]),
        pwm=tuple([parse_pwm(table) for table in top.tables("pwm")]),
        dacs=tuple([parse_dac(table) for table in top.tables("dac")]),
        cans=tuple([parse_can(table) for table in top.tables("can")]),
        spi=tuple([parse_device(table) for table in top.tables("spi")]),
        modbus=tuple([parse_line(table) for table in top.tables("modbus")]),
        iio=tuple([parse_iio(table) for table in top.tables("iio")]),
        sensors=tuple([parse_sensor(name, table) for name, table in top.named("sensors")]),
        tools=tools.take("allow", STRINGS, ("*",)),
        discover={kind: patterns for kind in _DISCOVERED if (patterns := _patterns(discover, kind))},
    )
    for table in (tools, discover):
        table.done()
    if top.ok:
        _check_profile(top, profile)
    whole = profile if top.ok else None
    locks = [(table, lock) for table in interlocks if (lock := _parse_interlock(table, whole)) is not None]
    halt = parse_halt(halt_table, whole)
    for table, lock in locks:
        _check_halt(table, lock, halt)
    top.done()
    if faults:
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults))
    found = tuple(lock for _, lock in locks)
    users = {one.name: f"the interlock of {lock.what}" for lock in found for one in lock.requires if one.line is None}
    i2c, modbus = lean_on(profile.i2c, profile.sensors, users), lean_on_lines(profile.modbus, users)
    return evolve(profile, interlocks=found, halt=halt, i2c=i2c, modbus=modbus)


def _check_profile(top: Table, profile: Profile) -> None:
    """Add the faults of values that do not go together."""
    _check_unique(top, "gpio", "label", [chip.label for chip in profile.chips])
    _check_unique(top, "i2c", "bus", [spec.bus for spec in profile.i2c])
    _check_unique(top, "uart", "port", [spec.port for spec in profile.uarts])
    _check_unique(top, "pwm", "label", [spec.label for spec in profile.pwm])
    _check_unique(top, "dac", "label", [spec.label for spec in profile.dacs])
    taken: set[str] = set()
    places: list[tuple[str, Sequence[SignalChannel]]]
    places = [(f"pwm[{index}]", pwm.channels) for index, pwm in enumerate(profile.pwm)]
    places += [(f"dac[{index}]", dac.channels) for index, dac in enumerate(profile.dacs)]
    for place, channels in places:
        names = [channel.name for channel in channels]
        for name in names:
            if name in taken:
                top.faults.append(Fault(f"{place}.channels", f"{show(name)} is a channel of another chip already"))
        taken |= set(names)
    _check_unique(top, "can", "bus", [spec.bus for spec in profile.cans])
    _check_unique(top, "spi", "name", [spec.name for spec in profile.spi])
    check_lines(top, profile.modbus, {spec.path for spec in profile.uarts}, [one.name for one in profile.sensors])
    _check_iio(top, profile)
    adapters = {spec.bus: spec for spec in profile.i2c}
    for sensor in profile.sensors:
        table = Table({}, join("sensors", sensor.name), top.faults)
        if sensor.bus not in adapters:
            table.fault("bus", f"there is no [[i2c]] with bus = {sensor.bus}")
        elif (refused := adapters[sensor.bus].addresses.refusal(sensor.addr)) is not None:
            table.fault("addr", f"{sensor.addr:#04x} may not be used: {refused}")
    for bus, spec in enumerate(profile.i2c):
        for index, device in enumerate(spec.devices):
            if device.tank is not None and profile.simulated_line(device.tank.pump) is None:
                place = f"i2c[{bus}].device[{index}].tank.pump"
                reason = f"no simulated chip has a line {show(device.tank.pump)}"
                top.faults.append(Fault(place, reason))


def _check_iio(top: Table, profile: Profile) -> None:
    _check_unique(top, "iio", "label", [spec.label for spec in profile.iio])
    taken = {sensor.name for sensor in profile.sensors}
    taken |= {sensor.name for line in profile.modbus for sensor in line.sensors()}
    for index, spec in enumerate(profile.iio):
        if spec.driver == "iio" and "sensors" not in profile.discover:
            reason = "the kernel's sensors are not offered; add sensors = true under [discover]"
            top.faults.append(Fault(f"iio[{index}].driver", reason))
        for number, wave in enumerate(spec.channels):
            if wave.sensor in taken:
                reason = f"there is another sensor {show(wave.sensor)}; give this one a name of its own"
                top.faults.append(Fault(f"iio[{index}].channels[{number}].sensor", reason))
            taken.add(wave.sensor)


def _check_unique(top: Table, key: str, what: str, values: Sequence[str | int]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            top.faults.append(Fault(f"{key}[{index}].{what}", f"{show(value)} is there twice"))


def _patterns(table: Table, kind: str) -> tuple[str, ...]:
    """Read `true` for everything, or a list of patterns. Sensors have no patterns, because reading one does no harm."""
    if kind != "sensors" and isinstance(table.content.get(kind), list):
        return table.take(kind, STRINGS) or ()
    return ("*",) if table.take(kind, _FLAG, False) else ()


# --- interlocks -------------------------------------------------------------------------------------------------------

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


def _parse_interlock(table: Table, profile: Profile | None) -> InterlockSpec | None:
    """Read one `[[interlock]]`; None after a fault, and without a profile that is right by itself."""
    of_channel = "above" in table.content or "below" in table.content
    found = _find_channel(table, "drives", profile) if of_channel else _find_line(table, "drives", profile)
    values = table.given(InterlockSpec)
    requires = [(entry, _parse_condition(entry, profile)) for entry in table.tables("requires")]
    table.done()
    age, period = values.get("max_age_ms", MAX_AGE_MS), values.get("check_ms", CHECK_MS)
    if table.ok and age < 2 * period:
        why = f"{age} is less than twice check_ms = {period}: readings would be stale between checks"
        table.fault("max_age_ms", why)
    if table.ok and not requires:
        table.fault("requires", 'expected at least one condition, such as { line = "DOOR", value = 0 }')
    if not of_channel and "value" not in table.content:
        table.fault("value", f"missing; it takes {_LEVEL.expected} for a line; a channel takes `above` or `below`")
    elif of_channel and "value" in table.content:
        table.fault("value", "a channel has no level; `above` and `below` say which of its values need the conditions")
    if found is None or (values.get("value") is None) is not of_channel:
        return None
    chip, output = found
    read = [(entry, condition) for entry, condition in requires if condition is not None]
    conditions = tuple(condition for _, condition in read)
    number = output.offset if isinstance(output, LineSpec) else output.number
    lock = InterlockSpec(table.content["drives"], chip.bus, number, conditions, **values)
    _check_interlock(table, lock, output, [entry for entry, _ in read])
    return lock


def _check_interlock(
    table: Table, lock: InterlockSpec, output: LineSpec | SignalChannel, entries: Sequence[Table]
) -> None:
    """Refuse an interlock that could not hold, and one that could never be met."""
    what = "line" if isinstance(output, LineSpec) else "channel"
    key = "value" if isinstance(output, LineSpec) else "above" if lock.above is not None else "below"
    never = isinstance(output, LineSpec) and output.direction == "input"
    if output.reserved is not None or never:
        reason = f"reserved: {output.reserved}" if output.reserved else 'direction = "input"'
        table.fault("drives", f"{what} {show(output.name)} may not be driven ({reason}); name an output")
    if lock.guards(output.safe):
        table.fault(key, f"{output.safe} is also the {what}'s safe state, to which an open interlock must bring it")
    if isinstance(output, LineSpec) and output.initial == lock.value:
        table.fault("value", f"the line is driven to initial = {output.initial} before any condition is read; drop it")
    if output.hold == "keep":
        why = "its level would outlast the daemon, which could not take it back"
        table.fault("drives", f'{what} {show(output.name)} has hold = "keep", so that {why}; use hold = "release"')
    for index, (entry, condition) in enumerate(zip(entries, lock.requires, strict=True)):
        if (condition.bus, condition.line) == (lock.bus, lock.output):
            entry.fault("line", "this is the driven line itself; require another one")
        for other in lock.requires[:index]:
            if _contradict(condition, other):
                entry.fault("", f"contradicts the requirement {other}: the output could never be driven")


def _find_channel(table: Table, key: str, profile: Profile | None) -> tuple[SignalChipSpec, SignalChannel] | None:
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
    table.fault(key, f"no pwm or dac channel is named {show(name)}{has}{what}")
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
    buses = {sensor.name: f"i2c:{sensor.bus}" for sensor in profile.sensors}
    buses |= {sensor.name: sensor.bus for line in profile.modbus for sensor in line.sensors()}
    buses |= {sensor.name: sensor.bus for device in profile.iio for sensor in device.sensors()}
    if name in buses:
        return buses[name]
    if "/" in name and "sensors" in profile.discover:
        # The kernel's sensors come and go; one that is not there cannot be read, and leaves the interlock open.
        return SENSORS_BUS
    has = near(name, list(buses)) or f"; [sensors] has {', '.join(buses) or 'none'}"
    entry.fault("sensor", f"no sensor is named {show(name)}{has}")
    return None


def _check_halt(table: Table, lock: InterlockSpec, halt: HaltSpec) -> None:
    """Refuse outputs that the halt drives without asking anything: an interlock could not hold for them."""
    if halt.heartbeat is not None and (halt.heartbeat.bus, halt.heartbeat.offset) == (lock.bus, lock.output):
        table.fault(
            "drives", f"line {show(lock.name)} is the heartbeat of [halt], which asks no interlock; name another"
        )
    for index, entry in enumerate(halt.sequence):
        if (entry.bus, entry.output) == (lock.bus, lock.output) and lock.guards(entry.value):
            why = f"halt.sequence[{index}] drives {entry.key} {show(lock.name)} to it, and a stop asks no interlock"
            key = "value" if lock.value is not None else "above" if lock.above is not None else "below"
            table.fault(key, f"{why}; drop that entry, or this interlock")


def _find_line(table: Table, key: str, profile: Profile | None) -> tuple[ChipSpec, LineSpec] | None:
    """Return the line whose name or alias is at `key`, on the chip that the table names, or on the only one with it.

    None after a fault, and without a profile that is right by itself.
    """
    name, label = table.take(key, _TEXT), table.take("chip", _TEXT, None)
    if profile is None or name is None or (label is None and "chip" in table.content):
        return None
    chips = [spec for spec in profile.chips if label in (None, spec.label)]
    if not chips:
        labels = [spec.label for spec in profile.chips]
        has = near(label or "", labels) or f"; [[gpio]] has {', '.join(labels) or 'none'}"
        key, which = (key, "") if label is None else ("chip", f" {show(label)}")
        table.fault(key, f"no chip{which} is listed{has}")
        return None
    found = [
        (spec, line)
        for spec in chips
        for line in spec.lines
        if line.name == name or spec.aliases.get(name) == line.offset
    ]
    if len(found) == 1:
        return found[0]
    if found:
        table.fault(key, f'{show(name)} is a line of {", ".join(spec.label for spec, _ in found)}; add chip = "..."')
        return None
    names = chain.from_iterable((*(line.name for line in spec.lines), *spec.aliases) for spec in chips)
    cure = near(name, names) or "; list it under `names` of its [[gpio]]"
    table.fault(key, f"no line is named {show(name)}{cure}")
    return None


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


# --- halt -------------------------------------------------------------------------------------------------------------

_STATE: Final = Choice(0, 1, "input")
_AFTER_MS: Final = Integer(0, 60_000)
_HZ: Final = Number(ge=0.1, le=100)
_Used: TypeAlias = dict[tuple[str, int], str]
"""The lines that `[halt]` names already, and what for."""


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
    for entry in table.tables("sequence"):
        after = entry.take("after_ms", _AFTER_MS, 0)
        stop = _stop_channel(entry, profile) if "channel" in entry.content else _stop_line(entry, profile)
        if stop is not None:
            sequence.append(evolve(stop, after_ms=after))
        entry.done()
    heartbeat = None
    if "heartbeat" in table.content:
        entry = table.table("heartbeat")
        lines = [one for one in sequence if one.key == "line"]
        used.update({(one.bus.removeprefix("gpio:"), one.output): "a line of [[halt.sequence]]" for one in lines})
        line, hz = _halt_line(entry, profile, used, driven=True, limited=False), entry.take("hz", _HZ)
        if line is not None:
            heartbeat = Heartbeat(*line, hz)
        entry.done()
    table.done()
    return HaltSpec(tuple(inputs), tuple(sequence), heartbeat)


def _stop_line(entry: Table, profile: Profile | None) -> StopEntry | None:
    line, value = _halt_line(entry, profile, {}, driven=True), entry.take("value", _STATE)
    return None if line is None else StopEntry("line", f"gpio:{line[0]}", line[1], line[2], value)


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


def _table_of(given: object, path: str, table: Table) -> Table:
    if isinstance(given, Mapping):
        return Table(given, path, table.faults)
    expected = 'expected a line\'s name, or a table such as { line = "ESTOP", stop = 1 }'
    table.faults.append(Fault(path, f"{expected}; got {show(given)}"))
    return Table({}, "", [])


def _halt_line(
    entry: Table, profile: Profile | None, used: _Used, *, driven: bool, limited: bool = True
) -> tuple[str, int, str] | None:
    """Return chip, offset and name of the line that a table of `[halt]` names, or None; see _find_line."""
    found = _find_line(entry, "line", profile)
    if found is None:
        return None
    chip, line = found
    name, place = show(line.name), (chip.label, line.offset)
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
