"""A kind of hardware: all that hearth knows of one sort of bus, as one record, and the words that kinds and core share.

The three words. A *signal* is a named value of the machine, an output in most cases: a line, a channel, a register, a
signal of a CAN message. A *kind* is everything that hearth knows of one sort of hardware: its table in a board profile,
its drivers, its tools, how it is found, checked and confined. A *call* is one operation of a driver with its arguments,
the thing that the guard lets through, changes or refuses (`hearth.actors.bus.guard`).

A kind is one folder of `hearth.drivers`, whose package has its record, `KIND`. `hearth.drivers.kinds` has the list of
them. The core loops over that list: nothing outside of a kind's folder names it, and no kind imports another. The
functions of a record import what they need when they are called, so that a board loads only the kinds that it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import inf, nan
from os.path import realpath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from attrs import Factory, field, frozen

from hearth._util.foreign import usable
from hearth._util.toml import show
from hearth.errors import denied

if TYPE_CHECKING:
    from pathlib import Path

    from hearth.drivers.base import Driver, Style
    from hearth.drivers.board import Board
    from hearth.drivers.linux.survey import OnMachine
    from hearth.drivers.sensor import Sensor
    from hearth.drivers.signals import Off, OnLimit
    from hearth.errors import PermissionDenied
    from hearth.tables import Table
    from hearth.tools import Tool

Level: TypeAlias = Any
"""What an output is driven to, in its kind's own number: 0, 1 or "input", a duty or "off", a register's integer."""
Driven: TypeAlias = tuple[Hashable, Level]
"""An output, and the level that a call brings it to."""

ANY: Final = "any"
"""The output of an effect that reaches no declared signal: a raw transfer, a frame, bytes."""
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Call(NamedTuple):
    """One operation of a driver with its arguments."""

    op: str
    args: tuple[Any, ...] = ()
    kw: Mapping[str, Any] = _NONE

    def with_arg(self, index: int, value: object) -> Call:
        """Return the same call with another argument at a place."""
        return self._replace(args=(*self.args[:index], value, *self.args[index + 1 :]))


def undeclared(call: Call, bus: str) -> PermissionDenied:
    """Return the refusal of an operation that its kind does not declare: what it does is not known."""
    return denied(f"{call.op!r} is not an operation of bus {bus} that a transaction may use")


@frozen
class Times:
    """How an output may be switched in time, in seconds: it is on at level 1 of a line, and off at all others."""

    min_on: float = 0.0
    max_on: float = inf
    min_off: float = 0.0
    period: float = 0.0
    """The least time between two moments at which it is switched on."""

    def forbids_pulse(self, on: bool, seconds: float) -> str | None:
        """Return the limit that a pulse of this length breaks, whenever it comes; None if none does."""
        if seconds < (self.min_on if on else self.min_off):
            return "min_on_ms" if on else "min_off_ms"
        return "max_on_ms" if on and seconds > self.max_on else None


def _same(level: Level) -> Level:
    return level


def finite(value: object) -> float:
    """Return a value that is a finite number. Raises ValueError for any other."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -inf < value < inf:
        return value
    raise ValueError(f"expected a number, got {show(value)}")


@frozen(eq=False)
class Signal:
    """A signal as its bus knows it. A level is the kind's own number; `shown` turns it into one in `unit`.

    `place` has the members by which errors and clamps name it ({"channel": "FAN"}), `report` those of safe states
    ({"channel": 0, "name": "FAN"}), and `what` is what a message calls it ("pwm channel FAN"). `least`, `most`, `step`
    and `slew` (a second) are in levels; `bounds` has by the name of a limit what the profile gives, in `unit`.
    """

    output: Hashable
    name: str
    what: str
    place: Mapping[str, Any] = _NONE
    report: Mapping[str, Any] = _NONE
    unit: str = ""
    access: Literal["r", "w", "rw"] = "rw"
    reserved: str | None = None
    safe: Level | None = None
    """The level of its safe state; None: it has none, and is left as it is."""
    keep: bool = False
    """True for an output that the end of a session leaves as it is (`hold = "keep"`)."""
    start: Level | None = None
    """The level that the machine has when nothing is known of the output; None: the profile does not say."""
    off: Off | None = None
    """None: it has no "off"."""
    least: float = -inf
    most: float = inf
    step: float = inf
    slew: float = inf
    bounds: Mapping[str, float] = _NONE
    on_limit: OnLimit = "refuse"
    times: Times | None = None
    grain: float = 0.0
    """1 for counts, which are rounded to whole ones; 0 for other numbers."""
    slack: float = 0.0
    """By how much a number may be beyond a limit, for the arithmetic of one that is scaled."""
    device: Hashable = None
    """Signals of one device: one that does not answer is not asked for the others."""
    wrote: Literal["driven", "written", "sent"] = "driven"
    shown: Callable[[Level], Any] = field(default=_same)
    number: Callable[[Any], Level] = field(default=finite)
    """The inverse of `shown`, for a value that a person has written: raises ValueError, which says what is expected."""
    is_none: Callable[[Level], bool] | None = None
    """True for a level that means "no value"; None: each level is a value."""
    alias: str | None = None
    """A second name, where other signals of its bus may have `name` too."""
    called: str | None = None
    """What people call it, where that is not its name: what is wired to a line."""

    def level(self, value: object) -> Level:
        """Return the level that a value of a profile means. Raises ValueError for one that it may not be driven to."""
        try:
            level = self.number(value)
        except OverflowError:
            level = nan  # within no bounds
        if isinstance(level, (int, float)) and not self.least - self.slack <= level <= self.most + self.slack:
            bounds = f"{self.shown(self.least):g} to {self.shown(self.most):g} {self.unit}".rstrip()
            raise ValueError(f"{show(value)} is beyond what it may be driven to, {bounds}")
        return level

    @property
    def stepped(self) -> bool:
        """True if a level is compared with the one before it."""
        return self.step < inf or self.slew < inf

    @property
    def limited(self) -> bool:
        """True if some levels may not be driven, or not at any time."""
        return self.stepped or self.least > -inf or self.most < inf or self.times is not None


class Outputs(ABC):
    """Which outputs the calls of one bus drive, and which calls drive its outputs. Pure: no clock, no hardware.

    By default no signal has a limit or can be read.
    """

    plain: ClassVar[frozenset[str]]
    """The attributes of the driver that are not operations: a transaction gets them as they are."""
    reading: ClassVar[frozenset[str]] = frozenset()
    """The operations without an effect, whatever their arguments, of whose answers `seen` says nothing."""
    single: ClassVar[Mapping[str, tuple[int, int]]] = {}
    """The operations that drive one output, with the places of output and level: they are compiled."""
    signals: Mapping[Hashable, Signal] = MappingProxyType({})
    """The signals of the bus that the profile declares."""

    @abstractmethod
    def driven(self, call: Call) -> Sequence[Driven]:
        """Return the outputs that a call drives, and their levels; `ANY` for an effect on none; () without effect.

        Raises LimitViolated or PermissionDenied, with effect "none", for a call that no level could permit.
        """

    def permitted(self, call: Call, levels: Sequence[Level]) -> Call:
        """Return the same call with other levels, in the order of `driven`; all its other bits as they were."""
        return call

    def seen(self, call: Call, answer: Any) -> Iterable[Driven]:
        """Return the levels that the answer of a call shows."""
        return ()

    def read(self, signal: Signal) -> Call | None:
        """Return the call that reads a signal's level; None if it cannot be read, or reading changes it."""
        return None

    @abstractmethod
    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return the calls that bring outputs to levels; `known` are the levels of the others."""

    @abstractmethod
    def asked(self, output: Hashable, level: Level) -> Call:
        """Return the call of which a tool says in advance that it will drive an output (`hearth.tools.Drive`)."""

    def place(self, output: Hashable) -> Mapping[str, Any]:
        """Return the members that name an output which the profile does not list, in a report."""
        return {"output": output}


Specs: TypeAlias = Mapping[str, tuple[Any, ...]]
"""The devices of a profile, by the table that lists them."""


class Caution(NamedTuple):
    """A finding about a profile that is right: the key path, a severity, the finding, and its cure."""

    key: str
    severity: Literal["note", "warn"]
    problem: str
    cure: str


class Opening(NamedTuple):
    """How simulated buses are made: the way they wait (None: as each likes best), and the seed of their readings."""

    style: Style | None = None
    seed: int = 0


@frozen
class Resource:
    """A thing that one entry of a profile needs alone: a second entry with the same `key` is refused.

    The key is resolved: the real path of a node, the address of a host, the name of an interface. `place` is the path
    of the value within its table, `what` the value in words. `refusal` replaces "WHAT is taken by PLACE".
    """

    key: Hashable
    place: str
    what: str
    refusal: str | None = None


@frozen
class Follow:
    """A simulated device that follows a line of another bus; `place` is the key path of the line's name in the spec.

    `attach` gets the driver of the device's own bus, and returns the function to call with each level of the line.
    """

    place: str
    line: str
    attach: Callable[[Any], Callable[[Any], None]]


def late(where: str, most: int | None = None, package: str = "hearth.drivers") -> Callable[..., Any]:
    """Return a function that imports MODULE:NAME of a package when it is called, and calls that.

    It passes the first `most` arguments on, and raises ConfigError where there is no such part.
    """
    module, _, name = where.partition(":")
    module = f"{package}.{module}"
    what = f"{module}:{name}, which a kind of hardware names,"
    return lambda *args: usable(lambda: getattr(import_module(module), name), what)(*args[:most])


def _nothing(_spec: Any) -> tuple[()]:
    return ()


def _resources(spec: Any) -> Iterable[Resource]:
    """Return the node of a spec with a `path`, and what its own method `resources` yields."""
    path: str | None = getattr(spec, "path", None)
    node = () if path is None else (Resource(("node", realpath(path)), "path", show(path)),)
    return (*node, *getattr(spec, "resources", tuple)())


def _follows(spec: Any) -> Iterable[Follow]:
    return tuple(getattr(spec, "follows", tuple)())


def _sensors(tables: Iterable[str], specs: Specs) -> Iterable[Sensor]:
    listed = (spec for table in tables for spec in specs.get(table, ()))
    return [sensor for spec in listed for sensor in getattr(spec, "sensors", tuple)()]


def _open(spec: Any, opening: Opening) -> Driver | None:
    driver: Driver | None = spec.make_driver(opening)
    return driver


def _beside(spec: Any, folder: Path) -> Any:
    return spec.beside(folder) if hasattr(spec, "beside") else spec


def _files(spec: Any) -> Iterable[Path]:
    return tuple(getattr(spec, "files", tuple)())


def _signals(package: str, name: str, board: Board) -> Iterable[Any]:
    """Return what `tools:NAME_signals` of a kind's package returns; a package without one has no signals."""
    tools = f"{package}.tools"
    found = getattr(import_module(tools), f"{name}_signals", _nothing) if find_spec(tools) else _nothing
    return found(board)


@frozen(eq=False, kw_only=True)
class BusKind:
    """A kind of hardware. Its functions import their modules when they are called.

    Those about one spec call the spec's own method by default: `make_driver` to open it, `sensors`, `resources`,
    `follows`, `beside` and `files` where it has them.
    """

    name: str
    """The prefix of its bus ids, the name of its table in a profile, and its name in messages."""
    package: str = Factory(lambda kind: f"hearth.drivers.{kind.name}", takes_self=True)
    """Where the parts are that are not given: of "dac" `spec:parse_dac`, `tools:dac_tools` and `machine:DacMachine`."""
    key: str
    """The attribute of a spec, and the key in its table, that names its bus: `label`, `port`."""
    read: Callable[[Table], Any] = Factory(
        lambda kind: late(f"spec:parse_{kind.name}", package=kind.package), takes_self=True
    )
    """Reads one entry of its table, with the faults; returns a spec, which has the names of its bus and its driver."""
    open: Callable[[Any, Opening], Driver | None] = _open
    """Makes the driver of a spec, and opens nothing; None for a device without a bus."""
    tools: Callable[[Board], Iterable[Tool]] = Factory(
        lambda kind: late(f"tools:{kind.name}_tools", package=kind.package), takes_self=True
    )
    machine: Callable[[], OnMachine] = Factory(
        lambda kind: late(f"machine:{kind.name.capitalize()}Machine", package=kind.package), takes_self=True
    )
    """Returns the part of the kind that looks at this machine."""
    signals: Callable[[Board], Iterable[Any]] = Factory(
        lambda kind: partial(_signals, kind.package, kind.name), takes_self=True
    )
    """Returns what the profile of a board names of it, as `named.NamedSignal`, by default of `tools:dac_signals`."""
    named: Mapping[str, Callable[[str, Table], Any]] = _NONE
    """Further tables of it, `[NAME.KEY]`, with the function that reads one entry."""
    scope: str | None = None
    """Its word in a policy, if that is not its name."""
    discover: str | None = None
    """Its word in `[discover]`; None: it is not looked for."""
    patterns: bool = True
    """True if `[discover]` takes patterns for it; else only true or false."""
    families: Mapping[str, Callable[[Board], bool]] = _NONE
    """Prefixes of tools that a board offers only under a condition; those of the kind's name need a bus of it."""
    sensors: Callable[[Specs], Iterable[Sensor]] = Factory(lambda kind: partial(_sensors, kind.tables), takes_self=True)
    """Returns the sensors of the board that are read on its buses."""
    resources: Callable[[Any], Iterable[Resource]] = _resources
    follows: Callable[[Any], Iterable[Follow]] = _follows
    check: Callable[[Table, Specs, Mapping[str, tuple[str, ...]]], None] | None = None
    """Adds the faults of entries that do not go together; gets the whole document, its specs, and its `[discover]`."""
    lean: Callable[[Specs, Mapping[str, str]], Specs] | None = None
    """Returns its tables with devices that know that safety leans on them; gets by sensor what goes by it."""
    cautions: Callable[[Specs], Iterable[Caution]] = _nothing
    """Returns what a person should know of entries that go together: key path, severity, finding and cure."""
    beside: Callable[[Any, Path], Any] = _beside
    """Returns a spec whose files are resolved in the folder of the profile."""
    files: Callable[[Any], Iterable[Path]] = _files
    """Returns the files beside the profile that a spec is made of: they are measured with it."""
    outputs: Callable[[Any, Any], Outputs] | None = None
    """Returns the outputs of a bus, by its spec and its driver; None for a kind that only reads."""
    limits: str = ""
    """The `keys` of its table that bound its outputs, for its reference page."""
    safe: str = ""
    """The `keys` of its table for the safe state of its outputs, and the effect of leaving them out, for that page."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of its tables in a profile."""
        return (self.name, *self.named)

    @property
    def word(self) -> str:
        """Return its word in a policy."""
        return self.name if self.scope is None else self.scope

    def bus(self, spec: Any) -> str:
        """Return the id of the bus of a spec."""
        return f"{self.name}:{getattr(spec, self.key)}"
